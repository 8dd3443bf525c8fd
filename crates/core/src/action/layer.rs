//! Actions on layers, and on the staging files that become layers.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cgroup::CgroupPath;
use crate::units::Bytes;

/// Actions on layers, and on the staging files that become layers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum LayerAction {
    /// Makes an empty staging file for receiving a snapshot, on the layer of its base; keeps an existing one.
    CreateStagingFile { path: PathBuf, content: Uuid, base: Option<Uuid>, size_bytes: Bytes },
    /// Makes a layer from a complete staging file, and an empty image on it. The staging file stays.
    PublishStagingFile { path: PathBuf, image: PathBuf },
    /// Removes a staging file that is not in use.
    RemoveStagingFile { path: PathBuf },
    /// Removes the layers in a directory that no image depends on.
    SweepLayers { directory: PathBuf },
    /// Renames all layers of a run but the newest to unused names. Both lists have the newest first.
    SetLayersAside { directory: PathBuf, layers: Vec<Uuid>, names: Vec<Uuid> },
    /// Copies the content of a run's layers that were set aside (newest first) into one of them. The copying process
    /// joins the cgroup.
    MergeLayers { directory: PathBuf, layers: Vec<Uuid>, into: Uuid, cgroup: Option<CgroupPath> },
    /// Replaces a run with the layer that it was merged into, which takes the name of the newest and the parent of the
    /// oldest.
    ReplaceLayers { directory: PathBuf, layers: Vec<Uuid>, into: Uuid, below: Option<Uuid> },
}

impl fmt::Display for LayerAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LayerAction as A;
        match self {
            A::CreateStagingFile { path, content, .. } => {
                write!(f, "create staging file {} for {content}", path.display())
            }
            A::PublishStagingFile { path, image } => {
                write!(f, "turn {} into a layer, and create image {} on top of it", path.display(), image.display())
            }
            A::RemoveStagingFile { path } => write!(f, "remove staging file {}", path.display()),
            A::SweepLayers { directory } => write!(f, "remove unused layers in {}", directory.display()),
            A::SetLayersAside { directory, layers, .. } => {
                write!(f, "set {} layers in {} aside", layers.len(), directory.display())
            }
            A::MergeLayers { directory, layers, into, .. } => {
                write!(f, "merge {} layers in {} into {into}", layers.len(), directory.display())
            }
            A::ReplaceLayers { directory, layers, into, .. } => {
                write!(f, "replace {} layers in {} with {into}", layers.len(), directory.display())
            }
        }
    }
}
