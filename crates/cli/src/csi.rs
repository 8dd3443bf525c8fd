//! `bulkhead csi`: runs `bulkhead_csi` on a socket.

use std::path::{Path, PathBuf};

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_csi::controller::{Controller, PATIENCE, Settings};
use bulkhead_csi::identity::Driver;
use bulkhead_csi::server::{self, Limits, Services};
use bulkhead_engine::socket::{self, Access};

use crate::args::{CsiArgs, CsiMode};
use crate::{daemon, parse, plugin};

/// Longest name of a node, in bytes: CSI allows 256, but recommends this, and a label's value has at most 63.
const MAX_NODE_BYTES: usize = 128;

/// Answers orchestrators until `SIGTERM` or `SIGINT`.
///
/// # Errors
/// For invalid arguments, and when the socket cannot be created or fails.
pub(crate) fn run(args: &CsiArgs, client: Client) -> Result<(), Fault> {
    let (socket, node) = (endpoint(&args.endpoint)?, node(&args.node_id)?);
    let pool = args.pool.as_deref().map(parse::pool_name).transpose()?;
    let size = parse::size(&args.size)?;
    daemon::start_log(args.log_format)?;
    let controller = match args.mode {
        CsiMode::Controller => Some(Controller::new(client.clone(), Settings { node, pool, size, patience: PATIENCE })),
    };
    let services = Services { driver: Driver { daemon: client }, controller };
    plugin::block_on("csi", serve(services, &socket))
}

async fn serve(services: Services, path: &Path) -> Result<(), Fault> {
    let stop = plugin::stop("csi")?;
    let listener = socket::listen(path, Access::Owner).await.map_err(|fault| match fault.code {
        Code::InUse => fault.hint("stop the other driver, or choose another path with --endpoint"),
        Code::HasData => fault.hint("remove it, or choose another path with --endpoint"),
        _ => fault,
    })?;
    tracing::info!(socket = %path.display(), "the CSI driver is ready");
    let ended = server::serve(listener, services, Limits::default(), stop).await;
    socket::remove(path);
    ended.map_err(|error| Fault::new(Code::Internal, format!("socket {}", path.display()), error))
}

/// The socket that an endpoint names: `unix:///PATH`, `unix:/PATH`, or an absolute path.
fn endpoint(text: &str) -> Result<PathBuf, Fault> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    if path.starts_with('/') && !path.ends_with('/') {
        return Ok(path.into());
    }
    Err(Fault::new(Code::InvalidArgument, "--endpoint", format!("{text:?} names no unix socket"))
        .hint("specify one as unix:///PATH"))
}

fn node(text: &str) -> Result<String, Fault> {
    if text.is_empty() || text.len() > MAX_NODE_BYTES {
        let cause = format!("the name of a node has 1 to {MAX_NODE_BYTES} bytes");
        return Err(Fault::new(Code::InvalidArgument, "--node-id", cause));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{endpoint, node};

    #[test]
    fn an_endpoint_is_a_unix_socket() {
        for text in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(endpoint(text).unwrap(), std::path::Path::new("/csi/csi.sock"), "{text}");
        }
        for text in ["", "tcp://0.0.0.0:9000", "csi.sock", "unix://csi.sock", "unix:///csi/", "unix://"] {
            assert_eq!(endpoint(text).unwrap_err().object, "--endpoint", "{text}");
        }
        assert!(node("").is_err() && node(&"n".repeat(129)).is_err() && node("node-1").is_ok());
    }
}
