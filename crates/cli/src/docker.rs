//! `bulkhead docker-plugin`: runs `bulkhead_docker` on a socket of its own, or on one that systemd passes.

use std::path::Path;

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_docker::plugin::{Defaults, Plugin};
use bulkhead_docker::server::{self, Limits};
use bulkhead_engine::socket::{self, Access};
use bulkhead_sys::roots::Roots;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::net::UnixListener;

use crate::args::DockerArgs;
use crate::{daemon, parse, plugin};

/// Answers container engines until `SIGTERM` or `SIGINT`.
///
/// # Errors
/// For invalid arguments, and when the socket cannot be created or fails.
pub(crate) fn run(args: &DockerArgs, client: Client) -> Result<(), Fault> {
    daemon::start_log(args.log_format)?;
    let pool = args.pool.as_deref().map(parse::pool_name).transpose()?;
    let driver = Plugin::new(client, Defaults { pool, size: parse::size(&args.size)? });
    plugin::block_on("docker-plugin", serve(driver, &args.listen))
}

async fn serve(driver: Plugin, path: &Path) -> Result<(), Fault> {
    let stop = plugin::stop("docker-plugin")?;
    let (listener, is_ours) = match passed()? {
        Some(listener) => (listener, false),
        None => (listen(path).await?, true),
    };
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    tracing::info!(socket = %path.display(), "the volume plugin is ready");
    let ended = server::serve(listener, driver, &Roots::host(), Limits::default(), stop).await;
    if is_ours {
        socket::remove(path);
    }
    ended.map_err(|error| Fault::new(Code::Internal, format!("socket {}", path.display()), error))
}

/// The socket that systemd has passed.
fn passed() -> Result<Option<UnixListener>, Fault> {
    let unusable = |error| {
        Fault::new(Code::InvalidArgument, "socket unit", format!("the socket it passes cannot be used ({error})"))
    };
    let Some(listener) = ListenFd::from_env().take_unix_listener(0).map_err(unusable)? else { return Ok(None) };
    listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener)).map(Some).map_err(unusable)
}

async fn listen(path: &Path) -> Result<UnixListener, Fault> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)
            .map_err(|error| Fault::new(Code::Internal, format!("directory {}", dir.display()), error))?;
    }
    socket::listen(path, Access::Group(None)).await.map_err(|fault| match fault.code {
        Code::InUse => fault.hint("stop the other plugin: `systemctl stop bulkhead-docker.socket bulkhead-docker`"),
        Code::HasData => fault.hint("remove it, or choose another path with --listen"),
        _ => fault,
    })
}
