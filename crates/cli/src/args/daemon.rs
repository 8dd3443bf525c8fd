//! Arguments of `bulkhead daemon` and of the block servers that it starts.

use std::net::SocketAddr;
use std::path::PathBuf;

use bulkhead_formats::servers;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Directory for state that survives a reboot
    #[arg(long, value_name = "DIR", default_value = "/var/lib/bulkhead")]
    pub(crate) state_dir: PathBuf,
    /// Directory for mount points and runtime state
    #[arg(long, value_name = "DIR", default_value = "/run/bulkhead")]
    pub(crate) run_dir: PathBuf,
    /// Group whose members may use the socket, besides root; membership is equivalent to root access
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// Also serve Prometheus metrics (/metrics) on this address, for example 127.0.0.1:9477; they reveal the names of all containers that do
    /// I/O
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// What fails together with this host, as a rack or a zone, for `host report`
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) domain: Option<String>,
    /// Maximum number of requests in flight per volume of a directory pool, 1 to 1024; each takes up to 256 KiB of memory that is never paged out. Volumes
    /// that already have a device keep their value
    #[arg(long, value_name = "N", default_value_t = servers::DEFAULT_REQUESTS, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) volume_requests: u16,
    /// Format of the log on standard error; BULKHEAD_LOG sets its level (error, warn, info, debug)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Args)]
pub(crate) struct BlockdArgs {
    /// Specification of the device to serve, as JSON (`ServeSpec`)
    pub(crate) spec: String,
    /// Maximum number of requests in flight
    #[arg(long, default_value_t = servers::DEFAULT_REQUESTS, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) requests: u16,
    /// Only take over the volume's existing device; do not create one
    #[arg(long)]
    pub(crate) successor: bool,
}
