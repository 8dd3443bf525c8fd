//! Tenants, their leases and the commands that run in them: requests and answers.

use std::path::PathBuf;

use bulkhead_core::finding::Finding;
use bulkhead_core::model::{IoLimit, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Share;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Makes a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantCreate {
    /// Its name.
    pub name: Name,
    /// Its share.
    #[serde(default)]
    pub share: Share,
    /// Hard limits.
    #[serde(default)]
    pub limits: Vec<IoLimit>,
    /// Volumes to keep mounted for it.
    #[serde(default)]
    pub volumes: Vec<VolumeRef>,
}

/// Changes a tenant; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSet {
    /// New share.
    #[serde(default)]
    pub share: Option<Share>,
    /// New limits; a device with no limit left is unlimited again.
    #[serde(default)]
    pub limits: Option<Vec<IoLimit>>,
    /// Volumes to mount for it from now on.
    #[serde(default)]
    pub attach: Vec<VolumeRef>,
    /// Volumes to unmount.
    #[serde(default)]
    pub detach: Vec<VolumeRef>,
}

/// A tenant as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// Its name.
    pub name: Name,
    /// Its share.
    pub share: Share,
    /// Hard limits.
    pub limits: Vec<IoLimit>,
    /// Volumes that are kept mounted for it, and those that a running command holds.
    pub volumes: Vec<VolumeRef>,
    /// Its slice, relative to the cgroup root.
    pub slice: String,
    /// Number of its processes: all in its slice but those that serve its I/O.
    pub n_processes: usize,
    /// I/O of its processes since the slice was made.
    pub payload_io: IoBytes,
    /// I/O of its journal threads.
    pub journal_io: IoBytes,
    /// I/O of the block servers of its volumes: that of processes and journals on those volumes.
    pub server_io: IoBytes,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Bytes of one cgroup on all physical devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IoBytes {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

impl IoBytes {
    /// What is left of them without those of a part, which may have been counted a moment later.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(part.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(part.written_bytes),
        }
    }
}

/// Mounts a volume for as long as a process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseCreate {
    /// For which tenant.
    pub tenant: Name,
    /// The volumes.
    pub volumes: Vec<VolumeRef>,
    /// The process.
    pub pid: u32,
}

/// Where a leased volume is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// Identity of the lease; one per volume.
    pub id: Uuid,
    /// The volume.
    pub volume: VolumeRef,
    /// Where it is mounted on the host.
    #[schema(value_type = String)]
    pub mounted_at: PathBuf,
}

/// Where leased volumes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseReply {
    /// One for each volume asked for, in that order.
    pub leases: Vec<LeaseView>,
}

/// Puts a command into a tenant, until it or what waits for it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunStart {
    /// The process that waits for the command, and has the leases; the run is called by it.
    pub pid: u32,
    /// The command's first process, a child of that.
    pub command_pid: u32,
}

/// Where a command runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Its cgroup, relative to the cgroup root; below it are all processes that it starts.
    pub cgroup: String,
}
