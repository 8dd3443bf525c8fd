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
    /// Also store the demand in the daemon, for `host report`: with the tenant that the container is in, or with the named one
    #[arg(long, value_name = "TENANT", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub(crate) save: Option<String>,
    /// Workload that the tenant is a copy of, by which copies on other hosts are known [default: the tenant's name]
    #[arg(long, value_name = "NAME", requires = "save")]
    pub(crate) workload: Option<String>,
    /// Nothing else used the host meanwhile: predictions are corrected by what the container achieved
    #[arg(long, requires = "save")]
    pub(crate) alone: bool,
}
