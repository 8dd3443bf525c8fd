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
    /// Show the storage stacks with the findings on them: each file system, and below it what it is on
    #[arg(long, conflicts_with_all = ["capture", "explain", "list_rules", "fix", "undo"])]
    pub(crate) picture: bool,
    /// Write that picture to an SVG file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["capture", "explain", "list_rules", "fix", "undo"])]
    pub(crate) svg: Option<PathBuf>,
    /// Print the findings as SARIF 2.1.0
    #[arg(long, conflicts_with_all = ["capture", "explain", "list_rules", "fix", "undo", "picture"])]
    pub(crate) sarif: bool,
    /// Explain a rule: what it finds, why that matters, and where the knowledge is from
    #[arg(long, value_name = "RULE", conflicts_with_all = ["from", "capture"])]
    pub(crate) explain: Option<String>,
    /// List all rules
    #[arg(long, conflicts_with_all = ["from", "capture", "explain"])]
    pub(crate) list_rules: bool,
    /// Fix what changes of settings can fix: shows each change, and verifies that the finding is gone. Concerns no data; all changes are
    /// recorded, and taken back if one fails
    #[arg(long, conflicts_with_all = ["from", "capture", "explain", "list_rules"])]
    pub(crate) fix: bool,
    /// With --fix: show what would be changed, without changing anything
    #[arg(long, requires = "fix")]
    pub(crate) dry_run: bool,
    /// Take back all changes of --fix that nobody has changed since
    #[arg(long, conflicts_with_all = ["from", "capture", "explain", "list_rules", "fix"])]
    pub(crate) undo: bool,
}
