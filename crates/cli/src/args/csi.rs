//! Arguments of `bulkhead csi`.

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
