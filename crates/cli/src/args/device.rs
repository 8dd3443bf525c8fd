//! Arguments of `bulkhead device`.

use std::path::PathBuf;

use bulkhead_core::model::Policy;
use bulkhead_measure::calibrate::IocostLines;
use clap::{Args, Subcommand, ValueEnum};

use super::Write;

#[derive(Debug, Subcommand)]
pub(crate) enum DeviceCommand {
    /// List block devices, and whether shares work on them
    Ls,
    /// Show a block device: controller, scheduler, calibration
    Inspect {
        /// Kernel name or path of the device, for example vda
        device: String,
    },
    /// Select the I/O controller that makes shares work on a physical device
    Control {
        /// Kernel name or path of the device, for example vda
        device: String,
        #[command(flatten)]
        choice: ControlChoice,
        #[command(flatten)]
        write: Write,
    },
    /// Switch the arbiter of a hard disk on or off: block servers of its volumes take turns
    ///
    /// A volume of a directory pool keeps the disk for a chain of dependent writes, such as an fsync, and each tenant gets its share of the disk's
    /// time, with or without a controller and without a model of the disk. Not for RAID arrays and virtual disks, which the kernel may report as
    /// rotational. With several processors, volumes that were attached while it was off have to be attached again (docs/arbiter.md).
    Arbiter {
        /// Kernel name or path of the device, for example sda
        device: String,
        /// New state
        #[arg(value_enum)]
        switch: Switch,
        #[command(flatten)]
        write: Write,
    },
    /// Measure an io.cost model for a device, and store it
    ///
    /// Measures for minutes, or only stores the lines given with --model and --qos. Measuring creates two scratch volumes in a pool on the device,
    /// each with a tenant of the same name (bulkhead-calibrate-a and bulkhead-calibrate-b, names that nothing else may have), and removes them at
    /// the end. The device should be idle otherwise; its controller is disabled in the meantime. Requires fio. --dry-run shows what storing
    /// the lines would change, and is refused for a measurement.
    Calibrate(CalibrateArgs),
    /// Measure what the requests of a device cost, for `bulkhead plan`, and print it as JSON
    ///
    /// Reads and writes a file without a name in the given directory for about two minutes; it disappears at the end. The device should be idle
    /// otherwise, and the file as large as the data that will be there: an arm has a longer way on more of the disk. Needs no daemon, except
    /// with --save. Requires fio.
    Costs(CostsArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CostsArgs {
    /// Directory on the device, in which the file is made
    pub(crate) directory: PathBuf,
    /// Size of the file, at least 256 MiB [default: a quarter of the free space, at most 4 GiB]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Also store the costs in the daemon, for `host report`
    #[arg(long)]
    pub(crate) save: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Kernel name or path of the device, for example vda
    pub(crate) device: String,
    /// Pool to create the scratch volumes in [default: the one with the most free space on the device]
    #[arg(long, value_name = "POOL", conflicts_with_all = ["model", "qos"])]
    pub(crate) pool: Option<String>,
    /// Measure no model. Instead check, with the stored calibration, how much each of three neighbours slows down a small fsync, and how
    /// much of the remaining throughput the neighbour gets
    #[arg(long, conflicts_with_all = ["model", "qos", "dry_run"])]
    pub(crate) verify: bool,
    #[command(flatten)]
    pub(crate) iocost: IocostLines,
    #[command(flatten)]
    pub(crate) write: Write,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct ControlChoice {
    /// Controller; with `none`, shares have no effect
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Controller>,
    /// Restore the setting that was active before Bulkhead changed it
    #[arg(long)]
    pub(crate) restore: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controller {
    Iocost,
    Bfq,
    None,
}

impl From<Controller> for Policy {
    fn from(controller: Controller) -> Self {
        match controller {
            Controller::Iocost => Self::Iocost,
            Controller::Bfq => Self::Bfq,
            Controller::None => Self::None,
        }
    }
}
