//! Arguments of `bulkhead job`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List jobs: those in progress first, then those that ended, most recent first
    Ls,
    /// Show a job
    Inspect {
        /// Job number
        job: u64,
    },
    /// Cancel a job and undo what it has done
    ///
    /// A waiting job is cancelled at once; a running one before its next step, provided that everything it has done so far can be undone.
    Cancel {
        /// Job number
        job: u64,
    },
}
