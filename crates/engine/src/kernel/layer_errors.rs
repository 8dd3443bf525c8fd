//! What errors of layers and staging files mean to operators: code, and hint or reason.

use bulkhead_core::error::Code;
use bulkhead_core::reason::Reason;
use bulkhead_formats::layer::LayerError;

/// The code of an error, and what to do about it, unless its [`reason`] says that.
#[must_use]
pub fn code_and_hint(error: &LayerError) -> (Code, &'static str) {
    match error {
        LayerError::File(_) => (Code::Internal, ""),
        LayerError::Attribute { .. } | LayerError::Unmarked { .. } | LayerError::Copied { .. } => (
            Code::Corrupt,
            "docs/formats/layers.md says how such a file is told what it is, when its holes are known to be exact",
        ),
        LayerError::Changed { .. } => (
            Code::Corrupt,
            "restore the layer with its time (`cp --archive`), or its volumes; docs/formats/layers.md, if it holds what it held",
        ),
        LayerError::Missing { .. } => (Code::Corrupt, "bring the layer back under its name, its holes as they were"),
        LayerError::TooMany { .. } => (Code::Unsupported, ""),
        LayerError::Coarse { .. } => {
            (Code::Unsupported, "use a pool on ext4 or XFS with blocks of 4096 bytes, or on an LVM thin pool")
        }
        LayerError::Locked { .. } => (Code::InUse, "its server does not end: the daemon's log and `dmesg` say more"),
        LayerError::NoBase { .. } | LayerError::Discarded { .. } => (Code::NotFound, ""),
        LayerError::OtherStaging { .. } => (Code::AlreadyExists, ""),
        LayerError::StagingLocked { .. } => (Code::InUse, "wait until it is done, or end it"),
        LayerError::NotStaging { .. } => {
            (Code::HasData, "it is not ours: move it out of the pool's directory, or choose another name")
        }
        LayerError::NotAlone { .. } => (Code::InUse, "they stay as they are; it is tried again later"),
        LayerError::Incomplete { .. } => (Code::InvalidArgument, "receive what is missing"),
    }
}

/// The reason of an error, in place of a hint, where front ends word the remedy in their own way.
#[must_use]
pub fn reason(error: &LayerError) -> Option<Reason> {
    match error {
        LayerError::TooMany { .. } => Some(Reason::TooManyLayers),
        LayerError::NoBase { .. } => Some(Reason::BaseMissing),
        LayerError::OtherStaging { .. } => Some(Reason::OtherReceived),
        LayerError::Discarded { .. } => Some(Reason::ReceiveGivenUp),
        _ => None,
    }
}
