//! Pools: where volumes live, and what serves images.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::Name;

/// Where a pool stores its volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum PoolSource {
    /// A directory on a file system of the host; a volume is an image file in it.
    File {
        /// Absolute path.
        directory: PathBuf,
        /// What serves the images as block devices.
        #[serde(default)]
        server: Server,
    },
    /// An LVM volume group; a volume is a logical volume in it.
    Lvm {
        /// Name of the volume group.
        vg: String,
        /// Thin pool in the group; without one, volumes are thick.
        thin_pool: Option<String>,
        /// The device on which Bulkhead created the group, which it removes with the pool.
        #[serde(default)]
        device: Option<String>,
    },
}

impl PoolSource {
    /// `file`, `lvm` or `lvm-thin`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            PoolSource::File { .. } => "file",
            PoolSource::Lvm { thin_pool: None, .. } => "lvm",
            PoolSource::Lvm { thin_pool: Some(_), .. } => "lvm-thin",
        }
    }
}

/// A pool as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name, unique on the host.
    pub name: Name,
    /// Its identity, written into the pool itself.
    pub uuid: Uuid,
    /// Where its volumes are.
    pub source: PoolSource,
}

/// What serves an image as a block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// A block server for each volume; a loop device if the kernel has no ublk.
    #[default]
    Auto,
    /// A loop device.
    Loop,
}
