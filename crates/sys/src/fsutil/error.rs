//! Errors of file systems.

use std::path::{Path, PathBuf};

use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;

use crate::block::{BlockError, Signature};
use crate::tool::ToolError;

/// An operation on a file system failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// The device has signatures, and is not overwritten.
    #[error("{device} already contains {}", list_signatures(found))]
    HasSignature {
        /// The device.
        device: PathBuf,
        /// The signatures.
        found: Vec<Signature>,
    },
    /// The device could not be examined.
    #[error("cannot examine {device}")]
    Device {
        /// The device.
        device: PathBuf,
        /// The cause.
        #[source]
        source: Box<BlockError>,
    },
    /// It is mounted or otherwise claimed, and the operation requires that it is not.
    #[error("cannot {operation} {device} while it is in use")]
    InUse {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// A uuid, label or size that the file system does not accept.
    #[error("{what} {value:?} cannot be used for {kind}: {reason}", kind = kind.as_str())]
    BadOption {
        /// `uuid`, `label`, `journal size` …
        what: &'static str,
        /// The value.
        value: String,
        /// The file system.
        kind: FsKind,
        /// The reason.
        reason: &'static str,
    },
    /// There is no ext4 or XFS on the device.
    #[error("{device} has no ext4 or XFS file system (found: {found})")]
    UnknownFs {
        /// The device.
        device: PathBuf,
        /// Its signatures.
        found: String,
    },
    /// The journal has to be replayed first, by mounting the file system.
    #[error("cannot {operation} {device}: its journal must be replayed first (mount and unmount it)")]
    LogDirty {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: PathBuf,
    },
    /// It has errors, which have to be repaired first.
    #[error("cannot {operation} {device}: it has errors: {text}")]
    HasErrors {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The last lines of the checker's output.
        text: String,
    },
    /// The size is too small for the content.
    #[error("{device} cannot be shrunk to {wanted}: its content needs about {minimum}")]
    TooSmall {
        /// The device.
        device: PathBuf,
        /// The requested size.
        wanted: Bytes,
        /// The smallest possible size (`resize2fs -P`; a conservative estimate).
        minimum: Bytes,
    },
    /// A directory tree does not fit into the file system, or the image not into the file system below.
    #[error("{device} is too small for the directory tree")]
    TreeTooLarge {
        /// The device.
        device: PathBuf,
        /// The error of `mke2fs`.
        #[source]
        source: ToolError,
    },
    /// It has too little free space for a journal of that size.
    #[error(
        "{device} has no space for a journal of {wanted}: without a journal {free} are free, and a journal can use half of that"
    )]
    NoRoom {
        /// The device.
        device: PathBuf,
        /// The size of the journal.
        wanted: Bytes,
        /// Free space without a journal.
        free: Bytes,
    },
    /// The requested size is larger than the file system.
    #[error("{device} cannot be shrunk to {wanted}: its size is only {now}")]
    NotSmaller {
        /// The device.
        device: PathBuf,
        /// The requested size.
        wanted: Bytes,
        /// The present size.
        now: Bytes,
    },
    /// It has features that the installed tools do not support.
    #[error("cannot {operation} {device}: {text}")]
    Newer {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The tool's message.
        text: String,
    },
    /// The file system cannot do this.
    #[error("cannot {operation} {device}: {reason}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The device.
        device: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// A program's output lacks a field.
    #[error("the output of {program} for {device} lacks {missing}")]
    Report {
        /// The program.
        program: &'static str,
        /// The device.
        device: PathBuf,
        /// The missing field.
        missing: &'static str,
    },
    /// The directory tree to be copied cannot be examined.
    #[error("cannot examine {tree}")]
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
        /// The operation.
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
