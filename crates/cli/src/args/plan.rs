//! Arguments of `bulkhead plan`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Fleet file: hosts, devices and workloads, in TOML
    #[arg(required_unless_present = "here")]
    pub(crate) fleet: Option<PathBuf>,
    /// Plan for this host alone, from its daemon's report, in place of a fleet file
    #[arg(long, conflicts_with = "fleet")]
    pub(crate) here: bool,
    /// Predict today's places (`on` of each workload) instead of looking for better ones
    #[arg(long)]
    pub(crate) today: bool,
    /// Predict one more copy of this workload on each host, beside the planned places; with --here, beside today's
    #[arg(long, value_name = "WORKLOAD", conflicts_with = "commands")]
    pub(crate) one_more: Option<String>,
    /// Demand of the one more, as `profile --demand` writes it, if it is a workload that the fleet does not have yet
    #[arg(long, value_name = "FILE", requires = "one_more")]
    pub(crate) demand: Option<PathBuf>,
    /// Print the commands that copy volumes to their planned places, to be reviewed and run by you
    #[arg(long, conflicts_with = "today")]
    pub(crate) commands: bool,
}
