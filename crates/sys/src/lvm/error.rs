//! Errors of LVM.

use bulkhead_core::units::Bytes;

use crate::block;
use crate::tool::ToolError;

/// An operation on LVM failed. `object` is a group (`vg`), a volume (`vg/lv`) or a device.
#[derive(Debug, thiserror::Error)]
pub enum LvmError {
    /// A name that LVM does not accept, or that could be mistaken for an option.
    #[error("{name:?} cannot be the name of a {what}: {reason}")]
    BadName {
        /// `volume group` or `logical volume`.
        what: &'static str,
        /// The name.
        name: String,
        /// The reason.
        reason: &'static str,
    },
    /// A tag that LVM does not accept.
    #[error("{0:?} cannot be a tag: use 1 to 1024 of A-Z a-z 0-9 _ + . - / = ! : & #, not starting with -")]
    BadTag(String),
    /// A size of zero.
    #[error("cannot {operation} {object}: its size must not be 0")]
    ZeroSize {
        /// The operation.
        operation: &'static str,
        /// The volume.
        object: String,
    },
    /// It does not exist.
    #[error("cannot {operation} {object}: there is no {missing}")]
    NotFound {
        /// The operation.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// The missing object.
        missing: String,
    },
    /// A group or volume of that name exists.
    #[error("cannot {operation} {object}: it already exists")]
    AlreadyExists {
        /// The operation.
        operation: &'static str,
        /// The group or volume.
        object: String,
    },
    /// The group or the thin pool does not have enough space.
    #[error("cannot {operation} {object}: {reason}")]
    NoSpace {
        /// The operation.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// The space needed, and the space available.
        reason: String,
        /// LVM's error.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// It is open, mounted, or contains volumes.
    #[error("cannot {operation} {object}: {reason}")]
    InUse {
        /// The operation.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// Its user.
        reason: String,
        /// LVM's error.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The device has signatures, and is not overwritten.
    #[error("cannot {operation} {object}: it contains {}", list_signatures(found))]
    HasSignature {
        /// The operation.
        operation: &'static str,
        /// The device.
        object: String,
        /// The signatures.
        found: Vec<block::Signature>,
    },
    /// The volume would shrink, which the caller did not permit.
    #[error("{object} has a size of {now}: resizing it to {wanted} would truncate it")]
    WouldShrink {
        /// The volume.
        object: String,
        /// Its size.
        now: Bytes,
        /// The requested size.
        wanted: Bytes,
    },
    /// The device could not be examined.
    #[error("cannot {operation} {object}")]
    Device {
        /// The operation.
        operation: &'static str,
        /// The device.
        object: String,
        /// The cause.
        #[source]
        source: Box<block::BlockError>,
    },
    /// A report has an unexpected format.
    #[error("cannot parse the report of lvm about {object}: {reason}")]
    Report {
        /// The subject of the report.
        object: String,
        /// The parser's error.
        reason: String,
    },
    /// Any other failure.
    #[error("cannot {operation} {object}")]
    Other {
        /// The operation.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// LVM's error.
        #[source]
        source: Box<ToolError>,
    },
}

pub(super) fn no_group(operation: &'static str, object: &str, vg: &str) -> LvmError {
    LvmError::NotFound { operation, object: object.to_owned(), missing: format!("volume group {vg}") }
}

pub(super) fn no_volume(operation: &'static str, object: &str) -> LvmError {
    LvmError::NotFound { operation, object: object.to_owned(), missing: format!("volume {object}") }
}

pub(super) fn no_extents(
    operation: &'static str,
    object: String,
    need: Bytes,
    free: Bytes,
    source: ToolError,
) -> LvmError {
    let reason = format!("it needs {need}, but the volume group has {free} free");
    LvmError::NoSpace { operation, object, reason, source: Some(Box::new(source)) }
}

pub(super) fn other(operation: &'static str, object: &str, source: ToolError) -> LvmError {
    LvmError::Other { operation, object: object.to_owned(), source: Box::new(source) }
}

fn list_signatures(found: &[block::Signature]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
