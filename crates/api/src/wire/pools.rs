//! Requests and answers about pools.

use std::path::PathBuf;

use bulkhead_core::finding::Finding;
use bulkhead_core::model::Server;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The storage of a new pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum NewPoolSource {
    /// A directory on a host file system.
    Directory {
        /// Absolute path; created if it does not exist.
        #[schema(value_type = String)]
        path: PathBuf,
        /// What serves its images as block devices. Default: a block server for each volume, or a loop device if the kernel has no ublk.
        #[serde(default)]
        server: Server,
    },
    /// A volume group that is there already.
    VolumeGroup {
        /// Name of the pool.
        vg: String,
        /// A thin pool in it, for thin volumes, snapshots and clones.
        thin_pool: Option<String>,
    },
    /// A whole block device, which becomes a volume group named `bulkhead-NAME`.
    Device {
        /// Absolute path of the device.
        #[schema(value_type = String)]
        path: PathBuf,
        /// Make a thin pool on it.
        thin: bool,
        /// The exact path of the device again, which confirms that the data on it may be erased.
        erase: Option<String>,
    },
}

/// Creates a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Name of the pool.
    pub name: Name,
    /// Its storage.
    pub source: NewPoolSource,
}

/// Records the new directory of a directory pool whose files have been moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolMove {
    /// Absolute path of the directory that now contains its volumes.
    #[schema(value_type = String)]
    pub directory: PathBuf,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    /// Name of the pool.
    pub name: Name,
    /// `file`, `lvm` or `lvm-thin`.
    pub kind: String,
    /// Its directory, or its volume group and thin pool.
    pub source: String,
    /// Size of its storage, bytes.
    pub total_bytes: Option<Bytes>,
    /// Free space in its storage, bytes.
    pub free_bytes: Option<Bytes>,
    /// Number of volumes.
    pub n_volumes: usize,
    /// Kernel names of the devices at the bottom of the stack, where weights take effect.
    pub physical_devices: Vec<String>,
    /// Problems and losses, and unfinished operations in it.
    pub findings: Vec<Finding>,
}
