//! Actions on the image files of directory pools.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::model::Provision;
use crate::units::Bytes;

/// Actions on the image files of directory pools.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum ImageAction {
    /// Makes an image file; refuses if one of another size exists.
    CreateImage { path: PathBuf, size_bytes: Bytes, provision: Provision },
    /// Grows an image file to this size, if it is smaller.
    GrowImage { path: PathBuf, size_bytes: Bytes, provision: Provision },
    /// Truncates an image file to this size, if it is larger.
    ShrinkImage { path: PathBuf, size_bytes: Bytes },
    /// Removes an image file.
    RemoveImage { path: PathBuf },
    /// Makes a layer from an image's own content, if it has any, which leaves the image empty on top of that layer. Its
    /// block server, if any, is replaced.
    CreateLayer { image: PathBuf, volume: Uuid, layer: Uuid },
    /// Makes an empty image on the layer below another one.
    CopyImage { path: PathBuf, of: PathBuf },
    /// Replaces an image with another one.
    ReplaceImage { path: PathBuf, by: PathBuf },
}

impl fmt::Display for ImageAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use ImageAction as A;
        match self {
            A::CreateImage { path, size_bytes, provision } => {
                write!(f, "create image {} of {size_bytes}, provision {provision}", path.display())
            }
            A::GrowImage { path, size_bytes, .. } => write!(f, "grow image {} to {size_bytes}", path.display()),
            A::ShrinkImage { path, size_bytes } => write!(f, "shrink image {} to {size_bytes}", path.display()),
            A::RemoveImage { path } => write!(f, "remove image {}", path.display()),
            A::CreateLayer { image, layer, .. } => {
                write!(f, "create layer {layer} from the content of {}", image.display())
            }
            A::CopyImage { path, of } => {
                write!(f, "create image {} on top of the layer of {}", path.display(), of.display())
            }
            A::ReplaceImage { path, by } => write!(f, "put {} in place of {}", by.display(), path.display()),
        }
    }
}
