//! Errors of loop devices.

use std::path::PathBuf;

use bulkhead_core::error::PathError;

use super::MAX_RACES;
use crate::block;

/// Why a loop device could not be read or changed.
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
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Loop devices are not there: no `/dev/loop-control` (module `loop` not loaded, or hidden in a container).
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
    /// A sysfs file holds something unexpected.
    #[error("{path}: cannot understand {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// The image is attached already, in another way than asked for.
    #[error("{image} is already attached to {device} with other settings: {difference}")]
    Conflict {
        /// The image file.
        image: PathBuf,
        /// The device node.
        device: PathBuf,
        /// Which setting differs.
        difference: &'static str,
    },
    /// Another process is attaching the same image and does not come to an end.
    #[error("another process holds the lock on the image {image}")]
    Locked {
        /// The image file.
        image: PathBuf,
    },
    /// Every free device was taken by somebody else first.
    #[error("no free loop device for {image} after {MAX_RACES} attempts")]
    NoneFree {
        /// The image file.
        image: PathBuf,
    },
    /// Something still holds the device.
    #[error("{device} is in use: {reason}")]
    Busy {
        /// The device node.
        device: PathBuf,
        /// Who holds it, as far as it is known.
        reason: String,
    },
    /// Its use could not be examined.
    #[error("cannot find out whether {device} is in use")]
    Usage {
        /// The device node.
        device: PathBuf,
        /// Why.
        #[source]
        source: Box<block::BlockError>,
    },
}
