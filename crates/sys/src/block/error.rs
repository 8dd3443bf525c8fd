//! Errors of block devices.

use std::path::PathBuf;

use bulkhead_core::units::DevNo;

use crate::mount::MountError;
use crate::tool::ToolError;

/// A block device could not be examined or changed.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The kernel does not know the device number.
    #[error("there is no block device {dev}")]
    NotFound {
        /// The device number.
        dev: DevNo,
    },
    /// The path is not a block device.
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
    #[error("cannot read the mount table")]
    Mounts {
        /// The cause; boxed because it is much larger than the other variants.
        #[source]
        source: Box<MountError>,
    },
    /// A file of sysfs could not be written.
    #[error("cannot write {value:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of sysfs has unexpected content.
    #[error("{path}: unexpected content {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// The device has no such I/O scheduler.
    #[error("device {dev} has no I/O scheduler {wanted:?}; available: {}", available.join(" "))]
    SchedulerUnavailable {
        /// The device that has the queue.
        dev: DevNo,
        /// The requested scheduler.
        wanted: String,
        /// Available schedulers; empty for a device without a request queue of its own.
        available: Vec<String>,
        /// Why the module could not be loaded, if that was attempted.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The kernel accepted the write, but reports another scheduler.
    #[error("device {dev}: the scheduler is {found:?} after {wanted:?} was set")]
    SchedulerNotActive {
        /// The device that has the queue.
        dev: DevNo,
        /// The value written.
        wanted: String,
        /// The value read back.
        found: String,
    },
    /// A helper program failed.
    #[error("cannot probe {path} for signatures")]
    Probe {
        /// The device.
        path: PathBuf,
        /// The program's failure.
        #[source]
        source: ToolError,
    },
    /// The output of `wipefs` has an unexpected format.
    #[error("cannot parse the output of wipefs for {path}")]
    ProbeOutput {
        /// The device.
        path: PathBuf,
        /// The parser's error.
        #[source]
        source: serde_json::Error,
    },
}

impl BlockError {
    pub(super) fn mounts(source: MountError) -> Self {
        Self::Mounts { source: Box::new(source) }
    }
}
