//! Requests and replies of the daemon's API (docs/openapi.json is generated from them). Front ends translate to these.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::action::Applied;
use crate::error::Fault;
use crate::finding::Finding;
use crate::heat::HeatSource;
use crate::model::{Calibration, FsKind, Hold, IoLimit, Mode, Policy, Provision, ReadFrom, Server, Unit, VolumeRef};
use crate::name::Name;
use crate::units::{Bytes, Share};

/// Header in which a client gives its request a UUID, by which it finds the request's job.
pub const REQUEST_HEADER: &str = "bulkhead-request";

/// Header in which the daemon says which job a stream belongs to, where it switches protocols.
pub const JOB_HEADER: &str = "bulkhead-job";

/// The protocol that a connection is switched to (RFC 9110, 7.8): the bytes of a stream, and nothing else, until it is closed.
pub const STREAM_PROTOCOL: &str = "bulkhead-stream";

/// What happened: the object as it is now, and the steps that were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Done<T> {
    /// The object after the operation; in a dry run and after a removal there may be none.
    pub object: Option<T>,
    /// The steps; empty when everything was as asked for already.
    pub steps: Vec<Applied>,
    /// Whether this was a dry run.
    pub dry_run: bool,
}

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

/// Makes a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Pool and name.
    pub volume: VolumeRef,
    /// Size; rounded up to what the pool can give.
    pub size_bytes: Bytes,
    /// File system.
    #[serde(default)]
    pub fs: FsKind,
    /// When its blocks are taken; `null` means full on file and thick pools, on demand on thin ones.
    #[serde(default)]
    pub provision: Option<Provision>,
    /// ext4's fast_commit feature.
    #[serde(default)]
    pub fast_commit: bool,
}

/// How large a journal is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JournalSize {
    /// As that of a new volume of the same size.
    Auto,
    /// So large; rounded up to whole MiB.
    Bytes(Bytes),
}

/// Changes a volume's size, that of its journal, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// The new size; the one that it has when left away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<Bytes>,
    /// Must be true to make it smaller.
    #[serde(default)]
    pub shrink: bool,
    /// Replaces the journal of an ext4 that is not mounted; it stays as it is when left away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalSize>,
}

/// Makes a snapshot or a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCopy {
    /// Name of the copy, in the same pool.
    pub name: Name,
    /// A snapshot is read-only, a clone is not.
    pub read_only: bool,
    /// Where it reads the blocks that it shares; on LVM `disk` or `host_cache`. Default: as the origin, and on LVM `disk`.
    #[serde(default)]
    pub read_from: Option<ReadFrom>,
    /// Only volumes of the same sharing domain learn from each other's reads. Default: the origin's.
    #[serde(default)]
    pub domain: Option<Name>,
}

/// Has a copied volume copy what it shares, or no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeFlatten {
    /// It is to stop. What it has copied by then stays its own.
    #[serde(default)]
    pub cancel: bool,
}

/// What a volume has read from one source of what it shares, since it was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeatRow {
    /// Who read.
    #[schema(value_type = String)]
    pub reader: VolumeRef,
    /// From where.
    pub source: HeatSource,
    /// What that is called: the sibling, or the snapshot that holds what the layer does; a UUID's beginning when neither is there.
    pub source_name: String,
    /// Reads.
    pub requests: u64,
    /// How much they brought.
    pub bytes: Bytes,
    /// Reads of the disk that were not needed.
    pub disk_reads_saved: u64,
}

/// Makes a volume what a snapshot of it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRollback {
    /// Name of the snapshot, in the same pool.
    pub to: Name,
    /// Must be true: what was written since the snapshot is lost.
    #[serde(default)]
    pub lose_changes: bool,
}

/// Has a snapshot made ready to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeSend {
    /// A snapshot in the same pool that the receiver has: only what differs from it is sent.
    #[serde(default)]
    pub from: Option<Name>,
    /// Begin where an earlier transfer of the same was interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<ResumeToken>,
}

/// What is to be measured on a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceMeasure {
    /// The pool whose room is used; the one with most of it on the device when left out.
    #[serde(default)]
    pub pool: Option<Name>,
    /// Only measure what the recorded calibration does.
    #[serde(default)]
    pub verify: bool,
}

/// What a small append + fsync every 100 ms has to bear beside a neighbour, both on volumes of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Verified {
    /// The neighbour, in words.
    pub neighbour: String,
    /// Mean fsync latency, as a multiple of that alone; and the most that it should be.
    pub mean_ratio: f64,
    /// See `mean_ratio`.
    pub mean_ratio_limit: f64,
    /// The same of the 99th percentile.
    pub p99_ratio: f64,
    /// See `p99_ratio`.
    pub p99_ratio_limit: f64,
    /// What the neighbour got through, percent of what the small load leaves it; and the least that it should be.
    pub neighbour_pct: f64,
    /// See `neighbour_pct`.
    pub neighbour_pct_limit: f64,
}

impl Verified {
    /// Whether all three are as they should be.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.mean_ratio <= self.mean_ratio_limit
            && self.p99_ratio <= self.p99_ratio_limit
            && self.neighbour_pct >= self.neighbour_pct_limit
    }
}

/// Makes a snapshot of a tar archive, or of an image in one that is an OCI layout or what `docker save` writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ImageImport {
    /// What the archive is called, for messages.
    pub source: String,
    /// The size of the snapshot, rounded up to whole blocks; about twice what is in it when left out.
    #[serde(default)]
    pub size_bytes: Option<Bytes>,
    /// Which image of several: `OS/ARCHITECTURE[/VARIANT]`; what this host runs when left out.
    #[serde(default)]
    pub platform: Option<String>,
    /// Which image of several, by its name, its tag or its digest.
    #[serde(default)]
    pub reference: Option<String>,
    /// Refuses a source of which not all extended attributes can be kept, which are left out otherwise.
    #[serde(default)]
    pub strict: bool,
    /// The directory of the host in which archives are unpacked on the way, `/var/tmp` when left out. Nobody but root may be able to
    /// replace what is in it.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub staging: Option<PathBuf>,
    /// The tenant that is charged for the work; without one, nobody is, and it has the lowest priority. The snapshot is not attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Name>,
}

/// An extended attribute that files of an imported image do not have, although its source has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LeftOut {
    /// Its name; `(others)` for what is too much to be named.
    pub attribute: String,
    /// Why they do not have it.
    pub reason: String,
    /// How many entries of the source have it.
    pub entries: u64,
    /// The first of these.
    pub example: String,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { attribute, reason, entries, example } = self;
        let noun = if *entries == 1 { "entry" } else { "entries" };
        write!(f, "{attribute} of {entries} {noun} such as \"{example}\": {reason}")
    }
}

/// Where an interrupted transfer goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResumeToken {
    /// What was being sent.
    pub content: Uuid,
    /// What that was based on.
    #[serde(default)]
    pub base: Option<Uuid>,
    /// Up to where it was received.
    pub received_bytes: Bytes,
}

impl From<&ReceiveView> for ResumeToken {
    fn from(view: &ReceiveView) -> Self {
        Self { content: view.content, base: view.base, received_bytes: view.received_bytes }
    }
}

/// A snapshot that is being received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceiveView {
    /// The volume that it becomes.
    pub volume: VolumeRef,
    /// What is received.
    pub content: Uuid,
    /// The layer that it is based on.
    pub base: Option<Uuid>,
    /// Its size.
    pub size_bytes: Bytes,
    /// Everything before this offset is there, after a crash too.
    pub received_bytes: Bytes,
    /// The file into which it is received.
    #[schema(value_type = String)]
    pub part: PathBuf,
}

/// Where the data of a copied file volume is (docs/formats/layers.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayersView {
    /// What its image takes in the pool: what was written since the last copy was made of it, or it was made.
    pub own_bytes: Bytes,
    /// The layers below, the newest first.
    pub below: Vec<LayerView>,
}

/// A layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LayerView {
    /// Its name in the pool's directory.
    pub id: Uuid,
    /// What it takes in the pool; others may lie on it as well.
    pub bytes: Bytes,
}

/// How a volume's journal is charged to its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "way", rename_all = "snake_case")]
pub enum Accounting {
    /// The volume is not mounted.
    NotMounted,
    /// The journal thread runs in the tenant's `journal` cgroup.
    JournalThread {
        /// Its process id.
        pid: u32,
        /// The cgroup that it is in.
        cgroup: String,
    },
    /// All that the volume writes, journal included, is written by its block server, which runs in the tenant's `server` cgroup.
    Server {
        /// Its process id.
        pid: u32,
        /// The cgroup that it is in.
        cgroup: String,
    },
    /// Only part of the journal I/O is charged; the text says which part is not.
    Partial {
        /// What is not charged, and why.
        limit: String,
    },
    /// Not charged.
    None {
        /// Why.
        reason: String,
    },
}

/// A volume as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Pool and name.
    pub volume: VolumeRef,
    /// Identity.
    pub uuid: Uuid,
    /// `creating`, `ready`, `resizing`, `removing` or `damaged`.
    pub state: String,
    /// Size of the block device.
    pub size_bytes: Bytes,
    /// File system.
    pub fs: FsKind,
    /// When its blocks are taken.
    pub provision: Provision,
    /// Whether it is a read-only snapshot.
    pub read_only: bool,
    /// What it was copied from.
    pub origin: Option<Name>,
    /// Where its data is, for a file volume that was copied or is a copy.
    pub layers: Option<LayersView>,
    /// Where it reads the blocks that it shares with others.
    pub read_from: ReadFrom,
    /// Its sharing domain, where it is not the pool's.
    pub domain: Option<Name>,
    /// The tenant that has it mounted.
    pub tenant: Option<Name>,
    /// Where it is mounted on the host.
    #[schema(value_type = Option<String>)]
    pub mounted_at: Option<PathBuf>,
    /// Its block device while there is one.
    pub device: Option<String>,
    /// The device at the bottom of the stack.
    pub physical_devices: Vec<String>,
    /// How its journal is charged.
    pub accounting: Accounting,
    /// What is lost or wrong.
    pub findings: Vec<Finding>,
}

/// What came of trimming a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrimView {
    /// The volume.
    pub volume: VolumeRef,
    /// How much free space its file system discarded. After it was mounted, the first time counts all that is free, also what the pool
    /// had back already.
    pub trimmed_bytes: Bytes,
}

/// The outcome of a check.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCheck {
    /// Repair what can be repaired safely.
    #[serde(default)]
    pub repair: bool,
    /// Repair all of it, which can lose files that are damaged; what it was is kept as a snapshot where the pool can.
    #[serde(default)]
    pub full: bool,
}

/// Holds shares of containers on a device, journal I/O included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldStart {
    /// Kernel name of the physical device, or its path; may be left out on a host with only one that has a controller.
    #[serde(default)]
    pub device: Option<String>,
    /// What shares are parts of.
    #[serde(default)]
    pub unit: Unit,
    /// How they are held.
    #[serde(default)]
    pub mode: Mode,
    /// Who shares.
    pub tenants: Vec<HoldTenant>,
    /// After how long without this request it ends, seconds; by default it lasts until it is removed, or the host starts anew.
    #[serde(default)]
    pub lease_seconds: Option<u32>,
}

/// A container and its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HoldTenant {
    /// A tenant of Bulkhead, a container by name or by the start of its id, a unit, or the path of a cgroup.
    pub tenant: String,
    /// Its share; shares may sum to anything.
    pub share: f64,
    /// How long 99 % of its fsyncs are to take at most, microseconds: others are slowed down for it.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// An ext4 that only this container uses, by a directory in it or its device: its journal thread is charged to the container.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub journal: Option<PathBuf>,
}

impl HoldTenant {
    /// One who is promised a share and nothing else.
    #[must_use]
    pub fn new(tenant: impl Into<String>, share: f64) -> Self {
        Self { tenant: tenant.into(), share, fsync_p99_us: None, journal: None }
    }
}

/// Shares that are held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HoldView {
    /// As recorded.
    #[serde(flatten)]
    pub hold: Hold,
    /// `corrected`, `within_band`, `starting`, `not_contended`, `no_contenders`, `ineffective`, `capped`, `latency_missed`, `partial`,
    /// `late`, `clock_went_back`, `other_writer` or `failed`.
    pub state: String,
    /// The same for people: why weights were changed, or why not.
    pub reason: String,
    /// How often weights were changed since the daemon began.
    pub corrections: u64,
    /// Where each tenant stands, in the order of the record; empty before the first sample.
    pub standings: Vec<StandingView>,
}

/// Where a tenant stands in the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StandingView {
    /// What it is called in the record.
    pub name: String,
    /// What it is to have, of what all did who want more than they have (0 to 1).
    pub target_share: f64,
    /// What it had, journal I/O included.
    pub achieved_share: f64,
    /// Its journal I/O alone, in the same measure.
    pub journal_share: f64,
    /// Its weight on the device.
    pub weight: u32,
    /// Whether it wants more than it has, so that its share matters.
    pub contends: bool,
    /// Its journal I/O alone is more than its share: no weight helps, a volume of its own would.
    pub infeasible: bool,
    /// How many operations per second it is held to (`io.max`), where weights do nothing or for another one's latency.
    #[serde(default)]
    pub cap: Option<u32>,
    /// How many bytes per second it is held to, in place of operations where those vary in size.
    #[serde(default)]
    pub cap_bytes: Option<u64>,
    /// How long 99 % of its fsyncs in the last 10 s took at most; only of those to whom something was promised.
    #[serde(default)]
    pub fsync_p99_seconds: Option<f64>,
}

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

/// A block device as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// Kernel name, for example `vda`.
    pub name: String,
    /// `major:minor`.
    pub dev: String,
    /// Its size.
    pub size_bytes: Bytes,
    /// Whether the kernel takes it for a rotating one.
    pub rotational: bool,
    /// The scheduler in force and those that can be had.
    pub scheduler: Option<String>,
    /// The devices at the bottom of its stack; itself when it is physical.
    pub physical_devices: Vec<String>,
    /// Which controller makes weights work on it.
    pub policy: Policy,
    /// Whether a tenant's share has any effect on this device.
    pub shares_work: bool,
    /// Why, or why not.
    pub reason: String,
    /// `io.cost.model` in force.
    pub cost_model: Option<String>,
    /// `io.cost.qos` in force.
    pub cost_qos: Option<String>,
    /// The calibration stored for this device, if it was calibrated.
    pub calibration: Option<Calibration>,
    /// What weakens isolation on it, or on the physical devices below it.
    pub findings: Vec<Finding>,
}

/// Puts a controller in force, or the one from before Bulkhead back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceControl {
    /// The controller; `null` restores what was in force before Bulkhead changed it.
    pub policy: Option<Policy>,
}

/// What the daemon is and sees.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// Bulkhead's version.
    pub version: String,
    /// Facts that were probed on this host.
    pub facts: serde_json::Value,
    /// What is to be known of the host and of all that is on it, the gravest first, as far as the daemon knows it without asking LVM or
    /// devices; `inspect` of an object looks at more.
    pub findings: Vec<Finding>,
}

/// How an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits for other operations on the same objects.
    Waiting,
    /// It goes on.
    Running,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// It was cancelled, and what it had begun was undone.
    Cancelled,
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            JobState::Waiting => "waiting",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
        })
    }
}

/// An operation that is under way, or ended lately. Numbers begin anew with the daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Its number.
    pub id: u64,
    /// What it does, for example `remove volume db/data`.
    pub operation: String,
    /// What the client gave in the header `Bulkhead-Request`, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Uuid>,
    /// What it changes; nobody else changes that meanwhile.
    pub objects: Vec<String>,
    /// How it is.
    pub state: JobState,
    /// The step that it is at, or was at when it ended.
    pub step: Option<String>,
    /// For how long it has been at that step.
    pub step_seconds: f64,
    /// For how long it has been going on, or did.
    pub seconds: f64,
    /// How long ago it ended.
    pub ended_seconds_ago: Option<f64>,
    /// The jobs that have what it wants.
    pub waits_for: Vec<u64>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// How far it is, where that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// How many steps it has done, where that is told: `step` is the present one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<JobSteps>,
    /// What it has measured so far, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<String>,
    /// What came of it, where its request was answered before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
}

/// The steps of a job that has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobSteps {
    /// Those that are done.
    pub done: u64,
    /// All of them, as far as that is known.
    pub of: u64,
}

/// How far a job is that moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobProgress {
    /// What it has moved.
    pub done_bytes: Bytes,
    /// What it has to move at most, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of_bytes: Option<Bytes>,
}

/// What came of a job whose request was answered before its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobResult {
    /// A snapshot was sent.
    Sent {
        /// What was read of it.
        read_bytes: Bytes,
    },
    /// A snapshot was received, and is a volume now.
    Received(Box<Done<VolumeView>>),
    /// An image was imported.
    Imported {
        /// The volume.
        done: Box<Done<VolumeView>>,
        /// The base that it lies on.
        content: Uuid,
        /// How many files, directories and so on are in it.
        entries: u64,
        /// Extended attributes of the source that it does not have.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<LeftOut>,
    },
    /// A device was measured, and what was found is recorded.
    Calibrated(Box<Done<DeviceView>>),
    /// It was measured what the recorded calibration of a device does.
    Verified(Vec<Verified>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_have_to_be_met() {
        let met = Verified {
            neighbour: "8 buffered writers".to_owned(),
            mean_ratio: 1.5,
            mean_ratio_limit: 1.5,
            p99_ratio: 2.0,
            p99_ratio_limit: 3.0,
            neighbour_pct: 90.0,
            neighbour_pct_limit: 90.0,
        };
        assert!(met.is_met());
        assert!(!Verified { mean_ratio: 1.6, ..met.clone() }.is_met());
        assert!(!Verified { p99_ratio: 3.1, ..met.clone() }.is_met());
        assert!(!Verified { neighbour_pct: 89.0, ..met }.is_met());
    }
}
