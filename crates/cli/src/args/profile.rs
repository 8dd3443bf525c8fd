//! Arguments of `bulkhead profile`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Container of Docker or Podman by name or id, systemd unit, tenant, cgroup (with a slash), or a process as `pid:NUMBER`
    pub(crate) target: String,
    /// Watch it for at most this many seconds, 30 to 86400: less if the figures are stable before
    #[arg(long = "for", value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(30..=86_400))]
    pub(crate) seconds: u64,
    /// Write the demand to this file, for `demand` in a fleet file
    #[arg(long, value_name = "FILE")]
    pub(crate) demand: Option<PathBuf>,
}
