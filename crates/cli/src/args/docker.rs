//! Arguments of `bulkhead docker-plugin`.

use std::path::PathBuf;

use clap::Args;

use super::LogFormat;

#[derive(Debug, Args)]
pub(crate) struct DockerArgs {
    /// Unix socket to listen on; ignored when systemd passes one
    #[arg(long, value_name = "PATH", default_value = "/run/docker/plugins/bulkhead.sock")]
    pub(crate) listen: PathBuf,
    /// Pool for new volumes, and the first one searched for a name [default: the only pool]
    #[arg(long, value_name = "POOL")]
    pub(crate) pool: Option<String>,
    /// Size of volumes that are requested without `--opt size`
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub(crate) size: String,
    /// Format of the log on standard error; BULKHEAD_LOG sets its level (error, warn, info, debug)
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}
