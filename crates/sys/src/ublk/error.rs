//! Errors of ublk devices.

use std::io;
use std::path::PathBuf;

use bulkhead_core::error::PathError;
use rustix::io::Errno;

use super::is;

/// A device could not be created, changed or served.
#[derive(Debug, thiserror::Error)]
pub enum UblkError {
    /// There is no `/dev/ublk-control` (module `ublk_drv` not loaded, or not built).
    #[error("cannot open {path}: is the ublk_drv module loaded?")]
    Unavailable {
        /// The control node.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The driver refused a command.
    #[error("{command} of ublk device {id} failed")]
    Command {
        /// The command's name in the kernel.
        command: &'static str,
        /// The device's number.
        id: u32,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The driver did not complete a command.
    #[error("{command} of ublk device {id} did not finish within {seconds} s")]
    Timeout {
        /// The command's name in the kernel.
        command: &'static str,
        /// The device's number.
        id: u32,
        /// The time limit.
        seconds: u64,
    },
    /// The kernel lacks a feature that all devices of ours need.
    #[error("the kernel has no {feature}")]
    Lacks {
        /// The feature's name in the kernel.
        feature: &'static str,
    },
    /// A device's node did not appear, or cannot be opened or mapped.
    #[error(transparent)]
    Node(#[from] PathError),
    /// An `io_uring` could not be created or used.
    #[error("cannot {operation} an io_uring")]
    Ring {
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The driver has reached its maximum number of devices, which cannot be raised.
    #[error("the number of ublk devices has reached the limit in {parameter}, which cannot be raised")]
    TooMany {
        /// The driver's parameter.
        parameter: PathBuf,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// The block device is mounted, or used by another device.
    #[error("{device} is in use")]
    Busy {
        /// The device node.
        device: PathBuf,
    },
}

impl UblkError {
    /// [`UblkError::Node`] of `operation` on `path`.
    #[must_use]
    pub fn node(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        PathError::new(operation, path, source).into()
    }

    /// Whether another process has the device now, so that a retry may succeed.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, UblkError::Command { source, .. } | UblkError::Node(PathError { source, .. }) if is(source, Errno::BUSY))
    }
}
