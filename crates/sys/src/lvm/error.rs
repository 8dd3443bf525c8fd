//! Errors of LVM.

use bulkhead_core::units::Bytes;

use crate::block;
use crate::tool::ToolError;

/// Why something about LVM failed. `object` is a group (`vg`), a volume (`vg/lv`) or a device.
#[derive(Debug, thiserror::Error)]
pub enum LvmError {
    /// A name that LVM does not take, or that could be mistaken for an option.
    #[error("{name:?} cannot be the name of a {what}: {reason}")]
    BadName {
        /// `volume group` or `logical volume`.
        what: &'static str,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tag that LVM does not take.
    #[error("{0:?} cannot be a tag: use 1 to 1024 of A-Z a-z 0-9 _ + . - / = ! : & #, not starting with -")]
    BadTag(String),
    /// A size of zero.
    #[error("cannot {operation} {object}: a size of 0 makes no sense")]
    ZeroSize {
        /// What was tried.
        operation: &'static str,
        /// The volume.
        object: String,
    },
    /// It does not exist.
    #[error("cannot {operation} {object}: there is no {missing}")]
    NotFound {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// What is missing.
        missing: String,
    },
    /// There is one of that name already.
    #[error("cannot {operation} {object}: it exists already")]
    AlreadyExists {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
    },
    /// The group, or the thin pool, has not enough space left.
    #[error("cannot {operation} {object}: {reason}")]
    NoSpace {
        /// What was tried.
        operation: &'static str,
        /// The group or volume.
        object: String,
        /// How much is needed, and how much is there.
        reason: String,
        /// What LVM said.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// It is open, mounted, or has volumes.
    #[error("cannot {operation} {object}: {reason}")]
    InUse {
        /// What was tried.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// By whom or what.
        reason: String,
        /// What LVM said.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The device carries something: nothing is overwritten.
    #[error("cannot {operation} {object}: it carries {}", list_signatures(found))]
    HasSignature {
        /// What was tried.
        operation: &'static str,
        /// The device.
        object: String,
        /// What was found on it.
        found: Vec<block::Signature>,
    },
    /// The volume would become smaller, and the caller did not say that this is meant.
    #[error("{object} is {now} large: making it {wanted} would cut it off")]
    WouldShrink {
        /// The volume.
        object: String,
        /// Its size.
        now: Bytes,
        /// The size asked for.
        wanted: Bytes,
    },
    /// The device could not be examined.
    #[error("cannot {operation} {object}")]
    Device {
        /// What was tried.
        operation: &'static str,
        /// The device.
        object: String,
        /// Why.
        #[source]
        source: Box<block::BlockError>,
    },
    /// A report was not understood.
    #[error("cannot read the report of lvm about {object}: {reason}")]
    Report {
        /// What the report is about.
        object: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Any other failure.
    #[error("cannot {operation} {object}")]
    Other {
        /// What was tried.
        operation: &'static str,
        /// The group, volume or device.
        object: String,
        /// What LVM said.
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
    let reason = format!("it needs {need} and the volume group has {free} free");
    LvmError::NoSpace { operation, object, reason, source: Some(Box::new(source)) }
}

pub(super) fn other(operation: &'static str, object: &str, source: ToolError) -> LvmError {
    LvmError::Other { operation, object: object.to_owned(), source: Box::new(source) }
}

fn list_signatures(found: &[block::Signature]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
