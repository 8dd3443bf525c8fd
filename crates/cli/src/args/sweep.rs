//! Arguments of `bulkhead sweep`.

use std::path::PathBuf;

use bulkhead_measure::experiment::Simulated;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct SweepArgs {
    /// Sweep file: commands that print their rates, and how many copies of each run together, in TOML
    pub(crate) file: PathBuf,
    /// Number of rounds of all mixes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Continue an interrupted sweep, whose result is in the directory of the report
    #[arg(long)]
    pub(crate) resume: bool,
    /// Output directory for the pictures and the measurements
    #[arg(long, value_name = "DIR", default_value = "bulkhead-sweep")]
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) simulated: Simulated,
}
