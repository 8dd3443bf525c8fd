//! `bulkhead csi`: runs `bulkhead_csi` on a socket.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_csi::calls::PATIENCE;
use bulkhead_csi::controller::{self, Controller};
use bulkhead_csi::diagnostics::{self, Diagnostics};
use bulkhead_csi::identity::Driver;
use bulkhead_csi::metrics::Metrics;
use bulkhead_csi::node::{self, Node};
use bulkhead_csi::probes::Probes;
use bulkhead_csi::registration::{self, Registration};
use bulkhead_csi::server::{self, Limits, Services};
use bulkhead_engine::socket::{self, Access};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::{CsiArgs, CsiMode, HttpEndpoint};
use crate::{daemon, parse, plugin};

/// Longest name of a node, in bytes: CSI allows 256, but recommends this, and a label's value has at most 63.
const MAX_NODE_BYTES: usize = 128;

/// How long a probe waits for the sockets or the daemon: shorter than a node's agent waits for the probe, so that it gets the reason.
const PROBE_PATIENCE: Duration = Duration::from_secs(8);

/// Answers orchestrators until `SIGTERM` or `SIGINT`.
///
/// # Errors
/// For invalid arguments, and when the socket cannot be created or fails.
pub(crate) fn run(args: &CsiArgs, client: Client) -> Result<(), Fault> {
    let (socket, name) = (endpoint(&args.endpoint)?, node_name(&args.node_id)?);
    let pool = args.pool.as_deref().map(parse::pool_name).transpose()?;
    let size = parse::size(&args.size)?;
    check_directories(args, &socket)?;
    daemon::start_log(args.log_format)?;
    let controller = (args.mode != CsiMode::Node).then(|| {
        let settings = controller::Settings { node: name.clone(), pool, size, patience: PATIENCE };
        Controller::new(client.clone(), settings)
    });
    let node = (args.mode != CsiMode::Controller).then(|| {
        let settings = node::Settings { node: name, kubelet_dir: args.kubelet_dir.clone(), patience: PATIENCE };
        Node::new(client.clone(), settings)
    });
    let driver = Driver { daemon: client.clone(), has_controller: controller.is_some() };
    let services = Services { driver, controller, node };
    let registration =
        args.registration_dir.as_ref().map(|dir| (dir.join(registration::SOCKET), Registration::new(socket.clone())));
    let registered = registration.iter().map(|(socket, _)| socket.clone());
    let sockets = [socket.clone()].into_iter().chain(registered).collect();
    let http = args.http_endpoint.map(|endpoint| Http {
        endpoint,
        probes: Probes { sockets, daemon: client, patience: PROBE_PATIENCE },
        with_daemon: args.daemon_metrics,
    });
    plugin::block_on("csi", serve(&socket, services, registration, http))
}

/// The endpoint for probes and metrics, before it listens.
struct Http {
    endpoint: HttpEndpoint,
    probes: Probes,
    /// Whether it passes the daemon's metrics on.
    with_daemon: bool,
}

/// Serves the driver's socket, the one that the kubelet looks for, and HTTP.
async fn serve(
    path: &Path,
    services: Services,
    registration: Option<(PathBuf, Registration)>,
    http: Option<Http>,
) -> Result<(), Fault> {
    let stop = plugin::stop("csi")?;
    let metrics = Metrics::default();
    // Before the sockets, so that nothing is left behind when the address is taken.
    let http = match http {
        Some(http) => Some((listen_for_http(http.endpoint).await?, http)),
        None => None,
    };
    let mut sockets = vec![(path.to_owned(), listen(path, "--endpoint").await?, services.routes())];
    if let Some((socket, registration)) = &registration {
        match listen(socket, "--registration-dir").await {
            Ok(listener) => sockets.push((socket.clone(), listener, registration.routes())),
            Err(fault) => {
                socket::remove(path);
                return Err(fault);
            }
        }
    }
    let (stopping, stopped) = watch::channel(false);
    let mut servers = JoinSet::new();
    let stop_of = |mut stopped: watch::Receiver<bool>| async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    for (path, listener, routes) in sockets {
        let (stop, metrics) = (stop_of(stopped.clone()), metrics.clone());
        servers.spawn(async move {
            let ended = server::serve(listener, routes, metrics, Limits::default(), stop).await;
            socket::remove(&path);
            ended.map_err(|error| Fault::new(Code::Internal, format!("socket {}", path.display()), error))
        });
    }
    if let Some((listener, http)) = http {
        let limits = diagnostics::Limits::default();
        let diagnostics = Diagnostics::new(http.probes, metrics, http.with_daemon, limits);
        let stop = stop_of(stopped);
        servers.spawn(async move {
            let ended = diagnostics.serve(listener, stop).await;
            ended.map_err(|error| Fault::new(Code::Internal, "--http-endpoint", error))
        });
    }
    tracing::info!(socket = %path.display(), "the CSI driver is ready");
    let refused = async {
        match &registration {
            Some((_, registration)) => registration.refused().await,
            None => std::future::pending().await,
        }
    };
    let refusal = tokio::select! {
        () = stop => None,
        reason = refused => Some(reason),
    };
    stopping.send_replace(true);
    while let Some(ended) = servers.join_next().await {
        ended.map_err(|error| Fault::new(Code::Internal, "csi", error))??;
    }
    match refusal {
        None => Ok(()),
        Some(reason) => Err(Fault::new(Code::Unavailable, "registration", format!("the kubelet refused it: {reason}"))),
    }
}

async fn listen(path: &Path, option: &str) -> Result<UnixListener, Fault> {
    socket::listen(path, Access::Owner).await.map_err(|fault| match fault.code {
        Code::InUse => fault.hint(format!("stop the other driver, or choose another path with {option}")),
        Code::HasData => fault.hint(format!("remove it, or choose another path with {option}")),
        _ => fault,
    })
}

/// Listens for probes and metrics.
async fn listen_for_http(endpoint: HttpEndpoint) -> Result<TcpListener, Fault> {
    let (address, listener) = match endpoint {
        HttpEndpoint::One(address) => (address, TcpListener::bind(address).await),
        HttpEndpoint::Any(port) => {
            let all = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
            let all_of_ipv4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            match TcpListener::bind(all).await {
                // A host without IPv6.
                Err(error) if error.kind() != ErrorKind::AddrInUse => {
                    (all_of_ipv4, TcpListener::bind(all_of_ipv4).await)
                }
                bound => (all, bound),
            }
        }
    };
    let listener = listener.map_err(|error| {
        let code = if error.kind() == ErrorKind::AddrInUse { Code::InUse } else { Code::Internal };
        Fault::new(code, format!("address {address}"), format!("cannot listen for HTTP ({error})"))
            .hint("choose another address with --http-endpoint")
    })?;
    tracing::info!(%address, "serving probes and metrics");
    Ok(listener)
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

/// Refuses directories that do not exist. The driver creates none: a kubelet, or a container that mounts the host's directory, looks for
/// volumes and sockets elsewhere then.
fn check_directories(args: &CsiArgs, socket: &Path) -> Result<(), Fault> {
    const KUBELET: &str = "start the kubelet first, or specify its --root-dir with --kubelet-dir; in a container, mount it at the same path";
    const SOCKET: &str = "create it, or choose another path with --endpoint";
    const PLUGINS: &str =
        "start the kubelet first, or specify the plugins_registry below its --root-dir with --registration-dir";
    if args.mode != CsiMode::Controller {
        check_directory("--kubelet-dir", &args.kubelet_dir, KUBELET)?;
    }
    check_directory("--endpoint", socket.parent().unwrap_or(Path::new("/")), SOCKET)?;
    args.registration_dir.as_ref().map_or(Ok(()), |dir| check_directory("--registration-dir", dir, PLUGINS))
}

fn check_directory(option: &str, dir: &Path, hint: &str) -> Result<(), Fault> {
    let invalid = |cause: String| Err(Fault::new(Code::InvalidArgument, option, cause).hint(hint));
    let dir_text = dir.display();
    if !dir.is_absolute() {
        return invalid(format!("{dir_text} is not an absolute path"));
    }
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => invalid(format!("{dir_text} is not a directory")),
        Err(error) if error.kind() == ErrorKind::NotFound => invalid(format!("there is no directory {dir_text}")),
        Err(error) => invalid(format!("{dir_text} cannot be examined ({error})")),
    }
}

fn node_name(text: &str) -> Result<String, Fault> {
    if text.is_empty() || text.len() > MAX_NODE_BYTES {
        let cause = format!("the name of a node has 1 to {MAX_NODE_BYTES} bytes");
        return Err(Fault::new(Code::InvalidArgument, "--node-id", cause));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{endpoint, node_name};

    #[test]
    fn an_endpoint_is_a_unix_socket() {
        for text in ["unix:///csi/csi.sock", "unix:/csi/csi.sock", "/csi/csi.sock"] {
            assert_eq!(endpoint(text).unwrap(), std::path::Path::new("/csi/csi.sock"), "{text}");
        }
        for text in ["", "tcp://0.0.0.0:9000", "csi.sock", "unix://csi.sock", "unix:///csi/", "unix://"] {
            assert_eq!(endpoint(text).unwrap_err().object, "--endpoint", "{text}");
        }
        assert!(node_name("").is_err() && node_name(&"n".repeat(129)).is_err() && node_name("node-1").is_ok());
    }
}
