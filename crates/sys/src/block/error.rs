//! Errors of block devices.

use std::path::PathBuf;

use bulkhead_core::units::DevNo;

use crate::mount::MountError;
use crate::tool::ToolError;

/// Why something about a block device could not be found out or set.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The kernel does not know the device number.
    #[error("there is no block device {dev}")]
    NotFound {
        /// The device number.
        dev: DevNo,
    },
    /// The path is something else.
    #[error("{path} is not a block device")]
    NotABlockDevice {
        /// The path.
        path: PathBuf,
    },
    /// A file of sysfs or procfs could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The mount table could not be read.
    #[error("cannot find out what is mounted")]
    Mounts {
        /// Why; boxed because it is much larger than the other reasons.
        #[source]
        source: Box<MountError>,
    },
    /// A file of sysfs could not be written.
    #[error("cannot write {value:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of sysfs holds something unexpected.
    #[error("{path}: cannot understand {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// The device has no such I/O scheduler.
    #[error("device {dev} has no I/O scheduler {wanted:?}; it offers: {}", available.join(" "))]
    SchedulerUnavailable {
        /// The device whose queue it is.
        dev: DevNo,
        /// The scheduler asked for.
        wanted: String,
        /// What the device offers; empty for a device without a request queue of its own.
        available: Vec<String>,
        /// Why the module could not be loaded, when that was tried.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The kernel accepted the write and shows another scheduler.
    #[error("device {dev}: the scheduler is {found:?} after {wanted:?} was set")]
    SchedulerNotInForce {
        /// The device whose queue it is.
        dev: DevNo,
        /// What was written.
        wanted: String,
        /// What was read back.
        found: String,
    },
    /// A helper program failed.
    #[error("cannot look for signatures on {path}")]
    Probe {
        /// The device.
        path: PathBuf,
        /// The program's failure.
        #[source]
        source: ToolError,
    },
    /// `wipefs` printed something unexpected.
    #[error("cannot read what wipefs said about {path}")]
    ProbeOutput {
        /// The device.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl BlockError {
    pub(super) fn mounts(source: MountError) -> Self {
        Self::Mounts { source: Box::new(source) }
    }
}
