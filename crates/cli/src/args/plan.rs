//! Arguments of `bulkhead plan`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Fleet file: hosts, devices and workloads, in TOML
    pub(crate) fleet: PathBuf,
    /// Predict today's places (`on` of each workload) instead of looking for better ones
    #[arg(long)]
    pub(crate) today: bool,
    /// Predict one more copy of this workload on each host, beside the planned places
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "commands")]
    pub(crate) one_more: Option<String>,
    /// Print the commands that copy volumes to their planned places, to be reviewed and run by you
    #[arg(long, conflicts_with = "today")]
    pub(crate) commands: bool,
}
