//! Pools: requests and answers.

use std::path::PathBuf;

use bulkhead_core::finding::Finding;
use bulkhead_core::model::Server;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a new pool is to live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum NewPoolSource {
    /// A directory on a host file system.
    Directory {
        /// Absolute path; made when it is not there.
        #[schema(value_type = String)]
        path: PathBuf,
        /// What makes block devices of its images.
        #[serde(default)]
        server: Server,
    },
    /// A volume group that is there already.
    VolumeGroup {
        /// Its name.
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
        /// The exact path of the device once more, as confirmation that the data on it may be erased.
        erase: Option<String>,
    },
}

/// Makes a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Its name.
    pub name: Name,
    /// Where it is to live.
    pub source: NewPoolSource,
}

/// Says where a pool in a directory is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolMove {
    /// The directory in which its volumes are, an absolute path.
    #[schema(value_type = String)]
    pub directory: PathBuf,
}

/// A pool as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    /// Its name.
    pub name: Name,
    /// `file`, `lvm` or `lvm-thin`.
    pub kind: String,
    /// Directory or volume group (and thin pool).
    pub source: String,
    /// Size of what the pool lives on.
    pub total_bytes: Option<Bytes>,
    /// What is left of it.
    pub free_bytes: Option<Bytes>,
    /// Number of volumes.
    pub n_volumes: usize,
    /// The device at the bottom of the stack, where weights take effect.
    pub physical_devices: Vec<String>,
    /// What is wrong or lost with it, and what is unfinished in it.
    pub findings: Vec<Finding>,
}
