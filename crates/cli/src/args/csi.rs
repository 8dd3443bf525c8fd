//! Arguments of `bulkhead csi`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::LogFormat;

#[derive(Debug, Args)]
pub(crate) struct CsiArgs {
    /// Unix socket to listen on
    #[arg(long, value_name = "unix:///PATH", env = "CSI_ENDPOINT")]
    pub(crate) endpoint: String,
    /// Calls to answer
    #[arg(long, value_enum)]
    pub(crate) mode: CsiMode,
    /// Name of this node in the orchestrator
    #[arg(long, value_name = "NODE", env = "NODE_ID")]
    pub(crate) node_id: String,
    /// Pool for new volumes [default: the only pool]
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Size of volumes that are requested without a capacity
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub(crate) size: String,
    /// Directory of the kubelet: all mounts are below it
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub(crate) kubelet_dir: PathBuf,
    /// The kubelet's plugin registry, in which the driver registers itself [default: no registration]
    #[arg(long, value_name = "DIR")]
    pub(crate) registration_dir: Option<PathBuf>,
    /// Also serve probes (/healthz, /readyz) and Prometheus metrics (/metrics) over HTTP on this address; :PORT is a port of all addresses.
    /// Clients are not authenticated
    #[arg(long, value_name = "[IP]:PORT", value_parser = http_endpoint)]
    pub(crate) http_endpoint: Option<HttpEndpoint>,
    /// Also serve the metrics of this node's daemon there (/metrics/daemon); they reveal the names of all containers that do I/O
    #[arg(long, requires = "http_endpoint")]
    pub(crate) daemon_metrics: bool,
    /// Format of the log on standard error; BULKHEAD_LOG sets its level (error, warn, info, debug)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CsiMode {
    /// Create, expand, modify, list and delete volumes and snapshots
    Controller,
    /// Mount volumes for containers of this node
    Node,
    /// Both
    All,
}

/// Where the driver serves HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpEndpoint {
    /// A port of all addresses, IPv6 and IPv4.
    Any(u16),
    One(SocketAddr),
}

fn http_endpoint(text: &str) -> Result<HttpEndpoint, String> {
    let any = text.strip_prefix(':').map(|port| port.parse().map(HttpEndpoint::Any).ok());
    any.unwrap_or_else(|| text.parse().map(HttpEndpoint::One).ok())
        .ok_or_else(|| "an address is IP:PORT, such as 127.0.0.1:9478 or [::1]:9478, or :PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use super::{HttpEndpoint, http_endpoint};

    #[test]
    fn an_http_endpoint_is_an_address_or_a_port_of_all() {
        assert_eq!(http_endpoint(":9478"), Ok(HttpEndpoint::Any(9478)));
        for text in ["127.0.0.1:9478", "[::1]:9478"] {
            assert_eq!(http_endpoint(text), Ok(HttpEndpoint::One(text.parse().unwrap())));
        }
        for text in ["", ":", "9478", "localhost:9478", "127.0.0.1", ":65536", "::1", "http://127.0.0.1:9478"] {
            assert!(http_endpoint(text).is_err(), "{text}");
        }
    }
}
