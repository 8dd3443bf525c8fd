//! Arguments of `bulkhead demo`.

use std::path::PathBuf;

use bulkhead_measure::calibrate::IocostLines;
use bulkhead_measure::experiment::Simulated;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory to run in; files created there (at most 6 GiB) are removed afterwards
    #[arg(long, value_name = "DIR", conflicts_with = "device", required_unless_present = "device")]
    pub(crate) on: Option<PathBuf>,
    /// Whole block device to run on instead; all data on it is lost
    #[arg(long, value_name = "DEV", requires = "erase")]
    pub(crate) device: Option<PathBuf>,
    /// Repeat the exact path of the device, to confirm that its data may be lost
    #[arg(long, value_name = "DEV", requires = "device")]
    pub(crate) erase: Option<PathBuf>,
    /// Output directory for the report, the measurements and the plots
    #[arg(long, value_name = "DIR", default_value = "bulkhead-demo")]
    pub(crate) report: PathBuf,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) simulated: Simulated,
}
