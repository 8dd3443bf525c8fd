//! Errors of file systems.

use std::path::{Path, PathBuf};

use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use crate::block::{BlockError, Signature};
use crate::tool::ToolError;

/// Why something about a file system failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The device carries something: nothing is overwritten.
    #[error("{device} already carries {}", list_signatures(found))]
    HasSignature {
        /// The device.
        device: PathBuf,
        /// What was found on it.
        found: Vec<Signature>,
    },
    /// The device could not be examined.
    #[error("cannot examine {device}")]
    Device {
        /// The device.
        device: PathBuf,
        /// Why.
        #[source]
        source: Box<BlockError>,
    },
    /// It is mounted, or claimed in another way, and must not be for this.
    #[error("cannot {operation} {device} while it is in use")]
    InUse {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// A uuid, label or size that the file system does not take.
    #[error("{what} {value:?} cannot be used for {kind}: {reason}", kind = kind.as_str())]
    BadOption {
        /// `uuid`, `label`, `journal size` …
        what: &'static str,
        /// The value.
        value: String,
        /// The file system.
        kind: FsKind,
        /// What is wrong.
        reason: &'static str,
    },
    /// There is no file system of a known kind on the device.
    #[error("{device} carries no ext4 or XFS file system (found: {found})")]
    UnknownFs {
        /// The device.
        device: PathBuf,
        /// What is on it instead.
        found: String,
    },
    /// The journal has to be replayed first, by a mount.
    #[error(
        "cannot {operation} {device}: its journal holds changes that were not replayed; mount and unmount it first"
    )]
    LogDirty {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// It has errors that have to be repaired first.
    #[error("cannot {operation} {device}: it has errors: {text}")]
    HasErrors {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The end of what the check said.
        text: String,
    },
    /// The size is less than the content needs.
    #[error("{device} cannot be shrunk to {wanted}: its content needs about {minimum}")]
    TooSmall {
        /// The device.
        device: PathBuf,
        /// The size asked for.
        wanted: Bytes,
        /// The smallest possible size (`resize2fs -P`; an estimate, on the safe side).
        minimum: Bytes,
    },
    /// What is in a directory tree needs more room than the file system, or what it lies on, has.
    #[error("{device} is too small for what is to be in it")]
    TreeTooLarge {
        /// The device.
        device: PathBuf,
        /// What `mke2fs` said.
        #[source]
        source: ToolError,
    },
    /// There is no room in it for a journal of that size.
    #[error("{device} has no room for a journal of {wanted}: without one {free} are free, of which it can have half")]
    NoRoom {
        /// The device.
        device: PathBuf,
        /// The size of the journal.
        wanted: Bytes,
        /// What is free, without a journal.
        free: Bytes,
    },
    /// The size asked for is larger than the file system.
    #[error("{device} cannot be shrunk to {wanted}: it is only {now} large")]
    NotSmaller {
        /// The device.
        device: PathBuf,
        /// The size asked for.
        wanted: Bytes,
        /// The size now.
        now: Bytes,
    },
    /// It has features that the installed tools do not know.
    #[error("cannot {operation} {device}: {text}")]
    Newer {
        /// What was to be done.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// What the tool says.
        text: String,
    },
    /// The file system cannot do this.
    #[error("cannot {operation} {device}: {reason}")]
    Unsupported {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// Why not.
        reason: &'static str,
    },
    /// A program's output was not understood.
    #[error("cannot read what {program} said about {device}: {missing} is missing")]
    Report {
        /// The program.
        program: &'static str,
        /// The device.
        device: PathBuf,
        /// What is missing.
        missing: &'static str,
    },
    /// What is to be copied cannot be looked at.
    #[error("cannot look at {tree}")]
    Tree {
        /// The directory.
        tree: PathBuf,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The device cannot be written.
    #[error("cannot write to {device}")]
    Write {
        /// The device.
        device: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A program failed.
    #[error("cannot {operation} {device}")]
    Tool {
        /// What was tried.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The program's failure.
        #[source]
        source: ToolError,
    },
}

pub(super) fn tool_error(operation: &'static str, device: &Path, source: ToolError) -> FsError {
    FsError::Tool { operation, device: device.to_owned(), source }
}

pub(super) fn list_signatures(found: &[Signature]) -> String {
    found.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
