//! Errors of loop devices.

use std::path::PathBuf;

use bulkhead_core::error::PathError;

use super::MAX_RACES;
use crate::block;

/// A loop device could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The image cannot be opened or examined.
    #[error("cannot open the image {image}")]
    Image {
        /// The image file.
        image: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The image is not a regular file or block device, or is empty.
    #[error("cannot attach {image}: {reason}")]
    Unsuitable {
        /// The image file.
        image: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// There is no `/dev/loop-control` (module `loop` not loaded, or hidden in a container).
    #[error("cannot open {path}: is the loop module loaded?")]
    Unavailable {
        /// The control node.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A device node or sysfs file failed.
    #[error(transparent)]
    Device(#[from] PathError),
    /// A sysfs file has unexpected content.
    #[error("{path}: unexpected content {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Its content.
        text: String,
    },
    /// The image is attached already, with other settings than requested.
    #[error("{image} is already attached to {device} with other settings: {difference}")]
    Conflict {
        /// The image file.
        image: PathBuf,
        /// The device node.
        device: PathBuf,
        /// Which setting differs.
        difference: &'static str,
    },
    /// Another process has been attaching the same image for too long.
    #[error("another process holds the lock on the image {image}")]
    Locked {
        /// The image file.
        image: PathBuf,
    },
    /// Other processes took each free device first.
    #[error("no free loop device for {image} after {MAX_RACES} attempts")]
    NoneFree {
        /// The image file.
        image: PathBuf,
    },
    /// The device is in use.
    #[error("{device} is in use: {reason}")]
    Busy {
        /// The device node.
        device: PathBuf,
        /// Its user, if known.
        reason: String,
    },
    /// Its users could not be determined.
    #[error("cannot determine whether {device} is in use")]
    Usage {
        /// The device node.
        device: PathBuf,
        /// The cause.
        #[source]
        source: Box<block::BlockError>,
    },
}
