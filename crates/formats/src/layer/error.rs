//! Errors of layers, of merging them, and of staging files.

use std::path::PathBuf;

use bulkhead_core::cow::MAX_LAYERS;
use bulkhead_sys::file::FileError;
use uuid::Uuid;

use super::ATTRIBUTE;

/// Why an image, its layers or a staging file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// An attribute of a file has an unknown format.
    #[error("the attribute {name} of {path} has an invalid value: {text:?}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// Its value.
        text: String,
    },
    /// The image has a backing chain by the pool's records, and no attribute.
    #[error(
        "{path} has lost its attribute {ATTRIBUTE}, so that the layer it depends on is unknown: its holes may stand for data of that layer"
    )]
    AttributeLost {
        /// The image.
        path: PathBuf,
    },
    /// The file was copied, although it depends on layers.
    #[error(
        "{path} is a copy (its {ATTRIBUTE} is of inode {recorded}, it has inode {inode}): the copy may have lost holes"
    )]
    Copied {
        /// The file.
        path: PathBuf,
        /// The inode that the attribute was written for.
        recorded: u64,
        /// Its inode.
        inode: u64,
    },
    /// A layer was written to.
    #[error("the layer {path} was changed (modification time and size: {found}, sealed as {sealed})")]
    Changed {
        /// The layer.
        path: PathBuf,
        /// Its modification time and size.
        found: String,
        /// The same when it was sealed.
        sealed: String,
    },
    /// A layer of a backing chain is missing.
    #[error("{path} depends on the layer {layer}, which does not exist")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: PathBuf,
    },
    /// The backing chain is too long, or a cycle.
    #[error("{path} already depends on {MAX_LAYERS} layers, the maximum")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// The file system lacks a feature that layers need.
    #[error("{path} cannot have layers: {reason}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A server has locked the file.
    #[error("{path} is still being served")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The backing layer of a new staging file does not exist.
    #[error("layer {layer}, which {path} is to depend on, is missing")]
    NoBase {
        /// The staging file.
        path: PathBuf,
        /// The layer.
        layer: Uuid,
    },
    /// The staging file belongs to another transfer.
    #[error("the staging file {path} already contains data of another snapshot ({content})")]
    OtherStaging {
        /// The staging file.
        path: PathBuf,
        /// The content that it receives.
        content: Uuid,
    },
    /// Another process writes to the staging file.
    #[error("another process is writing to {path}")]
    StagingLocked {
        /// The staging file.
        path: PathBuf,
    },
    /// The staging file was discarded.
    #[error("the staging file {path} was discarded meanwhile")]
    Discarded {
        /// The staging file.
        path: PathBuf,
    },
    /// A file has the name of a staging file, but data and no attribute.
    #[error("{path} has data, but is not marked as a staging file")]
    NotStaging {
        /// The file.
        path: PathBuf,
    },
    /// Layers can no longer be merged: something else depends on one, one was removed, or another process is merging.
    #[error("layers in {directory} that were to be merged are in use, removed, or being merged by another process")]
    RunChanged {
        /// The pool's directory.
        directory: PathBuf,
    },
    /// A staging file is missing or incomplete.
    #[error("staging file {path} is incomplete")]
    Incomplete {
        /// The staging file.
        path: PathBuf,
    },
}
