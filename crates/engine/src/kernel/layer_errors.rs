//! Error codes and hints for errors of layers and staging files.

use bulkhead_core::error::Code;
use bulkhead_core::reason::Reason;
use bulkhead_formats::layer::LayerError;

/// The code of an error, and its hint unless it has a [`reason`].
#[must_use]
pub fn code_and_hint(error: &LayerError) -> (Code, &'static str) {
    match error {
        LayerError::File(_) => (Code::Internal, ""),
        LayerError::Attribute { .. } | LayerError::AttributeLost { .. } | LayerError::Copied { .. } => (
            Code::Corrupt,
            "if the holes of the file are known to be intact, set its attribute as docs/formats/layers.md describes",
        ),
        LayerError::Changed { .. } => (
            Code::Corrupt,
            "restore the layer with its modification time (`cp --archive`), or restore its volumes; if its content is unchanged, see docs/formats/layers.md",
        ),
        LayerError::Missing { .. } => (Code::Corrupt, "restore the layer under its name, with its holes"),
        LayerError::TooMany { .. } => (Code::Unsupported, ""),
        LayerError::Unsupported { .. } => {
            (Code::Unsupported, "use a pool on ext4 or XFS with blocks of 4096 bytes, or on an LVM thin pool")
        }
        LayerError::Locked { .. } => {
            (Code::InUse, "its block server does not exit: the daemon's log and `dmesg` may say why")
        }
        LayerError::NoBase { .. } | LayerError::Discarded { .. } => (Code::NotFound, ""),
        LayerError::OtherStaging { .. } => (Code::AlreadyExists, ""),
        LayerError::StagingLocked { .. } => (Code::InUse, "wait until that process has finished, or stop it"),
        LayerError::NotStaging { .. } => {
            (Code::HasData, "Bulkhead did not create it: move it out of the pool's directory, or choose another name")
        }
        LayerError::RunChanged { .. } => (Code::InUse, "they are unchanged; the merge is retried later"),
        LayerError::Incomplete { .. } => (Code::InvalidArgument, "resume the transfer"),
    }
}

/// The reason of an error whose hint is worded by each front end.
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
