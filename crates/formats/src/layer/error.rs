//! Errors of layers, of merging them, and of staging files.

use std::path::PathBuf;

use bulkhead_core::cow::MAX_LAYERS;
use bulkhead_sys::file::FileError;
use uuid::Uuid;

use super::ATTRIBUTE;

/// What can be wrong with an image and its layers.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// An operation on a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The attribute of a file is there and says nothing that is known.
    #[error("the attribute {name} of {path} cannot be read: {text:?}")]
    Attribute {
        /// The attribute.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What it says.
        text: String,
    },
    /// The image was copied by Bulkhead, and does not say any more what is below it.
    #[error("{path} has lost its attribute {ATTRIBUTE}: its holes may be data of a layer")]
    Unmarked {
        /// The image.
        path: PathBuf,
    },
    /// The file lies on layers, and was copied.
    #[error(
        "{path} is a copy (its {ATTRIBUTE} is that of inode {marked}, it has inode {inode}): its holes may not be those that it had"
    )]
    Copied {
        /// The file.
        path: PathBuf,
        /// The inode that the attribute was written for.
        marked: u64,
        /// Its inode.
        inode: u64,
    },
    /// A layer was written to, which nobody does.
    #[error("the layer {path} was changed: {found}, and when it became a layer {sealed}")]
    Changed {
        /// The layer.
        path: PathBuf,
        /// When it was written to last, and its size.
        found: String,
        /// The same as it was then.
        sealed: String,
    },
    /// A layer that is needed is not there.
    #[error("{path} lies on the layer {layer}, which is not there")]
    Missing {
        /// The file.
        path: PathBuf,
        /// The layer.
        layer: PathBuf,
    },
    /// Too many layers, or a ring of them.
    #[error("{path} lies on {MAX_LAYERS} layers, and no more are possible")]
    TooMany {
        /// The file.
        path: PathBuf,
    },
    /// The file system cannot tell data from holes as exactly as is needed.
    #[error("{path} cannot have layers: {reason}")]
    Coarse {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Somebody else has the file locked.
    #[error("{path} is still being served")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The layer that a staging file is to lie on is not there.
    #[error("there is no layer {layer} for {path} to lie on")]
    NoBase {
        /// The staging file.
        path: PathBuf,
        /// The layer.
        layer: Uuid,
    },
    /// Something else is being received.
    #[error("{path} is what was received of {content} so far")]
    OtherStaging {
        /// The staging file.
        path: PathBuf,
        /// What is being received.
        content: Uuid,
    },
    /// Another process receives into a staging file.
    #[error("another process receives into {path}")]
    StagingLocked {
        /// The staging file.
        path: PathBuf,
    },
    /// What was received so far is not there any more.
    #[error("what was received so far into {path} was given up meanwhile")]
    Discarded {
        /// The staging file.
        path: PathBuf,
    },
    /// A file has the name of a staging file, and is somebody else's.
    #[error("{path} has data and does not say that it is a staging file")]
    NotStaging {
        /// The file.
        path: PathBuf,
    },
    /// Layers are not what is to be merged any more: something else lies on one of them, or one is gone.
    #[error("layers in {directory} that were to be merged are needed, gone, or being merged by another process")]
    NotAlone {
        /// Where they are.
        directory: PathBuf,
    },
    /// A staging file is not there, or not whole.
    #[error("{path} is not whole")]
    Incomplete {
        /// The staging file.
        path: PathBuf,
    },
}
