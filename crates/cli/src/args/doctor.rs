//! Arguments of `bulkhead doctor`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Check captured facts instead of this host
    #[arg(long, value_name = "DIR", conflicts_with = "capture")]
    pub(crate) from: Option<PathBuf>,
    /// Write the facts of this host to a new directory instead of checking them: to keep them, or to send them to others. They contain names
    /// and paths of devices, mounts, cgroups and databases, and no data
    #[arg(long, value_name = "DIR")]
    pub(crate) capture: Option<PathBuf>,
    /// Explain a rule: what it finds, why that matters, and where the knowledge is from
    #[arg(long, value_name = "RULE", conflicts_with_all = ["from", "capture"])]
    pub(crate) explain: Option<String>,
    /// List all rules
    #[arg(long, conflicts_with_all = ["from", "capture", "explain"])]
    pub(crate) list_rules: bool,
}
