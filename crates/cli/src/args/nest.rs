//! Arguments of `bulkhead nest`.

use std::path::PathBuf;

use bulkhead_measure::experiment::Simulated;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct NestArgs {
    /// Block device to measure on, at least 1.25 GiB (1 GiB with --quick); all data on it is lost
    #[arg(long, value_name = "DEV")]
    pub(crate) device: PathBuf,
    /// Repeat the exact path of the device, to confirm that its data may be lost
    #[arg(long, value_name = "DEV")]
    pub(crate) erase: Option<PathBuf>,
    /// Only these file systems in the image, `none` for I/O without one [default: all]
    #[arg(long, value_name = "FS", value_delimiter = ',')]
    pub(crate) guest: Vec<String>,
    /// Only these file systems below the image, and `thin` [default: all]; the device alone is always measured
    #[arg(long, value_name = "FS", value_delimiter = ',')]
    pub(crate) host: Vec<String>,
    /// Only these ways to serve an image: loop, loop-buffered, loop-reflink, blockd [default: all]
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    pub(crate) server: Vec<String>,
    /// Only these workloads, for example `mail-server` [default: all; write-heavy ones on a disk without an arm]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) workload: Vec<String>,
    /// Short windows, one round, ext4 and XFS, write-heavy workloads
    #[arg(long)]
    pub(crate) quick: bool,
    /// Number of rounds [default: 3, or 1 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: Option<u32>,
    /// Time limit in seconds of each workload, and of setting each stack up; one that takes longer is recorded as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u64).range(10..=86400))]
    pub(crate) limit: u64,
    /// Continue an interrupted run, whose result is in the directory of the report
    #[arg(long)]
    pub(crate) resume: bool,
    /// Output directory for the report and the measurements
    #[arg(long, value_name = "DIR", default_value = "bulkhead-nest")]
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) simulated: Simulated,
}
