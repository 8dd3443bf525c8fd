//! Requests and answers about tenants, their leases and the commands that run in them.

use std::path::PathBuf;

use bulkhead_core::demand::Demand;
use bulkhead_core::finding::Finding;
use bulkhead_core::model::{FrontEnd, IoLimit, LeaseUser, SelinuxContext, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Share;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Creates a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantCreate {
    /// Name of the tenant.
    pub name: Name,
    /// Its I/O weight under contention. Default: 100.
    #[serde(default)]
    pub share: Share,
    /// Hard I/O limits. Default: none.
    #[serde(default)]
    pub limits: Vec<IoLimit>,
    /// Promise for the 99th percentile of the latency of its fsyncs, in microseconds, greater than 0: while they take longer, other tenants
    /// with volumes on the same devices are throttled. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
    /// Volumes to attach, which are then kept mounted for it. Default: none.
    #[serde(default)]
    pub volumes: Vec<VolumeRef>,
    /// The front end that creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<FrontEnd>,
}

impl TenantCreate {
    /// A tenant with the default share, without limits, promise and volumes.
    #[must_use]
    pub fn new(name: Name) -> Self {
        Self {
            name,
            share: Share::DEFAULT,
            limits: Vec::new(),
            fsync_p99_us: None,
            volumes: Vec::new(),
            created_by: None,
        }
    }
}

/// Changes a tenant; omitted settings stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSet {
    /// New share.
    #[serde(default)]
    pub share: Option<Share>,
    /// New hard limits, which replace all existing ones.
    #[serde(default)]
    pub limits: Option<Vec<IoLimit>>,
    /// New promise for the 99th percentile of the latency of its fsyncs, in microseconds; 0 removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fsync_p99_us: Option<u64>,
    /// Volumes to attach.
    #[serde(default)]
    pub attach: Vec<VolumeRef>,
    /// Volumes to detach and unmount.
    #[serde(default)]
    pub detach: Vec<VolumeRef>,
}

/// Stores what a tenant demands of its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProfileStore {
    /// The workload that the tenant is a copy of, by which copies on other hosts are known. Default: the tenant's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Name>,
    /// What each of its operations demands.
    pub demand: Demand,
    /// Operations per second that it achieved while nothing else used the host, above 0. Default: it was not alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alone_per_s: Option<f64>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantView {
    /// Name of the tenant.
    pub name: Name,
    /// Its I/O weight under contention.
    pub share: Share,
    /// Hard I/O limits.
    pub limits: Vec<IoLimit>,
    /// Promise for the 99th percentile of the latency of its fsyncs, in microseconds.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// Its attached volumes, and those mounted for a running command.
    pub volumes: Vec<VolumeRef>,
    /// The front end that created it.
    pub created_by: Option<FrontEnd>,
    /// Path of its slice, relative to the cgroup root.
    pub slice: String,
    /// Number of its processes, without the block servers in its slice.
    pub n_processes: usize,
    /// I/O of its processes since its slice was created.
    pub payload_io: IoBytes,
    /// I/O of its journal threads.
    pub journal_io: IoBytes,
    /// I/O of the block servers of its volumes, which is the I/O of processes and journals on these volumes.
    pub server_io: IoBytes,
    /// Problems with the tenant.
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
    /// The difference. Saturates at 0, because `part` may have been read a moment later.
    #[must_use]
    pub fn without(self, part: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(part.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(part.written_bytes),
        }
    }
}

/// Mounts volumes for a tenant, until a process ends or a front end returns them. Exactly one of `pid` and `user` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseCreate {
    /// The tenant.
    pub tenant: Name,
    /// The volumes.
    pub volumes: Vec<VolumeRef>,
    /// The process, in the daemon's PID namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The user of a front end. It has to return each lease as often as it requests it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<LeaseUser>,
    /// The SELinux context of the mounts: all files have it, and their own are ignored. All mounts of a volume have the same, so a volume
    /// that is in use with another one, or without, is refused (`in_use`); so is any where the kernel does not use SELinux
    /// (`unsupported`), or its policy does not know the context (`invalid_argument`). Default: files have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<SelinuxContext>,
}

/// A lease of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseView {
    /// ID of the lease.
    pub id: Uuid,
    /// The volume.
    pub volume: VolumeRef,
    /// The tenant that it is mounted for.
    pub tenant: Name,
    /// The process that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The user of a front end that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<LeaseUser>,
    /// How often that user has to return it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mounts: Option<u32>,
    /// Its mount point on the host; of a raw volume, the path of its device's node.
    #[schema(value_type = String)]
    pub mounted_at: PathBuf,
    /// The SELinux context of its mount. Absent: files have their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selinux_context: Option<SelinuxContext>,
}

/// The leases of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeaseReply {
    /// One for each requested volume, in the same order.
    pub leases: Vec<LeaseView>,
}

/// Moves a command into a tenant, until it or the process that waits for it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunStart {
    /// The process that waits for the command and owns the leases. It identifies the run.
    pub pid: u32,
    /// The command's first process, a child of `pid`.
    pub command_pid: u32,
}

/// A running command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Path of its cgroup, relative to the cgroup root; all processes that it starts are in or below it.
    pub cgroup: String,
}
