//! Arguments of `bulkhead journal`.

use bulkhead_measure::journal_cost::{self, Features};
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Measure the bytes that each kind of system call writes to the journal of ext4 or XFS on this kernel
    ///
    /// Each run creates a scratch file system in memory, with its journal on a separate device, and makes each of 13 system calls on separate
    /// files; their cost is the number of bytes written to the journal's device by the end of the commit. `cv` is the coefficient of variation;
    /// `paper` and `paper's cv` are the figures of Tobimatsu et al. for 1000 calls. The last two columns split the cost in two: a part per commit
    /// that contains such calls, and a part per call. Takes a minute, and at most 400 MiB of memory; requires root,
    /// e2fsprogs, xfsprogs and loop devices, but no daemon. Nothing else on the machine is touched.
    Calibrate(JournalCalibrateArgs),
}

#[derive(Debug, Args)]
pub(crate) struct JournalCalibrateArgs {
    /// Kind of file system; can be a comma-separated list [default: all, one after the other]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KIND")]
    pub(crate) features: Vec<Features>,
    /// Number of runs, 1 to 1000
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Calls of each kind per run, 100 to 1000
    #[arg(long, default_value_t = journal_cost::MAX_CALLS, value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(journal_cost::MIN_CALLS)..=i64::from(journal_cost::MAX_CALLS)))]
    pub(crate) calls: u32,
}
