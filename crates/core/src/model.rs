//! The objects that Bulkhead records: pools, volumes, tenants, leases. What is stored beside the data, and nothing else.
//!
//! These types are the body of the state files (docs/formats/state.md) and the content of the LVM tags.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::cgroup::CgroupPath;
use crate::devname::DevName;
use crate::identity::Identity;
use crate::name::{Name, NameError};
use crate::units::{Bytes, Share};

/// A file system that Bulkhead makes and mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum FsKind {
    /// ext4: its journal thread can be charged to the tenant.
    #[default]
    Ext4,
    /// XFS: log writes under fsync are charged to the caller, background log writes to the root cgroup (docs/DECISIONS.md, K3).
    Xfs,
}

impl FsKind {
    /// The name that mount(2) takes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        }
    }

    /// The smallest volume that `mkfs` with our options accepts (mkfs.xfs refuses less than 300 MiB).
    #[must_use]
    pub const fn min_size(self) -> Bytes {
        match self {
            FsKind::Ext4 => Bytes::mib(16),
            FsKind::Xfs => Bytes::mib(300),
        }
    }
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// When a volume's blocks are taken from its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Provision {
    /// All at creation: a preallocated image, a thick LV, a thin LV whose every block was written once.
    #[default]
    Full,
    /// When first written: a sparse image or a thin LV. Every first write then changes metadata that all tenants share.
    OnDemand,
}

impl fmt::Display for Provision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Provision::Full => "full",
            Provision::OnDemand => "on-demand",
        })
    }
}

/// What makes a block device of an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// A block server of the volume's own; a loop device where the kernel has no ublk.
    #[default]
    Auto,
    /// A loop device.
    Loop,
}

/// Where a volume reads the blocks that it shares with others: those of layers that it has not written itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReadFrom {
    /// From the layers, with direct I/O: no memory is shared.
    Disk,
    /// From the layers, through the host's page cache: all volumes on a layer share one copy of it.
    #[default]
    HostCache,
    /// From the page cache of a peer that has read the same block (Zhao et al., *DRR*), else from disk: there is no other copy in memory.
    Peers,
    /// From a peer's page cache, else through the host's.
    Both,
}

impl ReadFrom {
    /// All of them, in the order in which they share more.
    pub const ALL: [Self; 4] = [Self::Disk, Self::HostCache, Self::Peers, Self::Both];

    /// The word of the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::HostCache => "host-cache",
            Self::Peers => "peers",
            Self::Both => "both",
        }
    }

    /// The word of LVM tags, state files and block servers' files, which outlive versions of the program.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Disk => "off",
            Self::HostCache => "base",
            Self::Peers => "drr",
            Self::Both => "both",
        }
    }

    /// The mode that an LVM tag names; `None` when it is not one.
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.tag() == tag)
    }

    /// Whether peers are asked, and can ask in turn.
    #[must_use]
    pub fn asks_peers(self) -> bool {
        matches!(self, Self::Peers | Self::Both)
    }

    /// Whether layers are read through the host's page cache.
    #[must_use]
    pub fn caches_layers(self) -> bool {
        matches!(self, Self::HostCache | Self::Both)
    }
}

/// [`ReadFrom`] in the JSON of state files and of block servers' files: by its tag, which earlier versions read as well.
pub(crate) mod read_from_tag {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::ReadFrom;

    pub(crate) fn serialize<S: Serializer>(mode: &ReadFrom, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(mode.tag())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ReadFrom, D::Error> {
        let tag = String::deserialize(deserializer)?;
        ReadFrom::from_tag(&tag).ok_or_else(|| D::Error::custom(format!("unknown mode of sharing `{tag}`")))
    }
}

impl fmt::Display for ReadFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Where a pool's volumes live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum PoolSource {
    /// A directory on a host file system; a volume is an image file in it.
    File {
        /// Absolute path.
        directory: PathBuf,
        /// What makes block devices of the images.
        #[serde(default)]
        server: Server,
    },
    /// An LVM volume group; a volume is a logical volume in it.
    Lvm {
        /// Name of the volume group.
        vg: String,
        /// Thin pool inside the group; thick volumes when there is none.
        thin_pool: Option<String>,
        /// Bulkhead made the group on this device, and removes it with the pool.
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
    /// Where its volumes live.
    pub source: PoolSource,
}

/// A volume's stage of life.
///
/// ```text
///            create                    rm
///   (none) ─────────▶ Creating ─▶ Ready ────▶ Removing ─▶ (none)
///                        │        ▲   │           ▲
///      crash: rolled back└────────┼───┼───────────┘ crash: rolled forward
///                                 │   ▼ resize
///                                Resizing    crash: rolled forward, unless its room has yet to be taken
/// ```
///
/// `ReplacingJournal` is entered from `Ready` and left to it as `Resizing` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum VolumeState {
    /// Being made; the caller has not been told that it exists. Found after a crash, it is removed.
    Creating,
    /// Usable.
    Ready,
    /// Being resized. Found after a crash, the resize is completed; while it has [`Volume::unfilled_from_bytes`], which takes long, it is
    /// left to who asks for it again.
    Resizing {
        /// The size it will have.
        to_bytes: Bytes,
    },
    /// Its journal is being replaced, and may be missing: it must not be mounted. Found after a crash, it gets the new journal if it has
    /// none, and keeps the old one if that is still there.
    ReplacingJournal {
        /// The size that the journal will have.
        to_bytes: Bytes,
    },
    /// Being removed. Found after a crash, the removal is completed.
    Removing,
}

/// How a volume is mounted for its tenant, where that is not as by default: `nosuid,nodev`, with its whole file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MountOptions {
    /// Set-user-ID programs and file capabilities have effect, as a container's root needs it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suid: bool,
    /// Device nodes can be opened.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dev: bool,
    /// The directory below the file system's root that is mounted in place of the root; it is created if need be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(nullable = false))]
    pub subdir: Option<Name>,
}

impl MountOptions {
    /// Whether it is mounted as by default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = |is_set, set: &'static str, unset: &'static str| if is_set { set } else { unset };
        write!(f, "{},{}", option(self.suid, "suid", "nosuid"), option(self.dev, "dev", "nodev"))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// A volume as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The pool that it lives in.
    pub pool: Name,
    /// Its name, unique in the pool.
    pub name: Name,
    /// Its identity, also the file system's UUID.
    pub uuid: Uuid,
    /// Size of the block device.
    pub size_bytes: Bytes,
    /// Its file system.
    pub fs: FsKind,
    /// When its blocks are taken from the pool.
    pub provision: Provision,
    /// ext4's fast_commit feature.
    #[serde(default)]
    pub fast_commit: bool,
    /// A snapshot: mounted read-only.
    #[serde(default)]
    pub read_only: bool,
    /// The volume that this one is a snapshot or clone of.
    #[serde(default)]
    pub origin: Option<Name>,
    /// In a file pool: its image was copied, or is a copy, and says itself what lies below it (docs/formats/layers.md).
    #[serde(default)]
    pub layered: bool,
    /// What lies below its image is being copied into it while it is in use, so that it depends on no layer any more.
    #[serde(default)]
    pub flatten: bool,
    /// On a thin pool and provisioned in full: from where on its blocks have yet to be taken from the pool, after a growth that was cut
    /// off. Its file system ends there, or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfilled_from_bytes: Option<Bytes>,
    /// Where it reads the blocks that it shares with others.
    #[serde(rename = "share", default, with = "read_from_tag")]
    pub read_from: ReadFrom,
    /// Only volumes of the same sharing domain learn from each other's reads; without one it is the pool's.
    #[serde(default)]
    pub domain: Option<Name>,
    /// How it is mounted for its tenant.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
    /// Its stage of life.
    pub state: VolumeState,
}

impl Volume {
    /// How people and requests name it.
    #[must_use]
    pub fn reference(&self) -> VolumeRef {
        VolumeRef { pool: self.pool.clone(), name: self.name.clone() }
    }

    /// The sharing domain that it is in.
    #[must_use]
    pub fn sharing_domain(&self) -> String {
        // No pool or domain has a slash in its name.
        let domain = self.domain.as_ref().map_or("", Name::as_str);
        format!("{}/{domain}", self.pool)
    }

    /// The same volume in another stage.
    #[must_use]
    pub fn with_state(&self, state: VolumeState) -> Self {
        Self { state, ..self.clone() }
    }

    /// The file system's label: the volume's name as far as both ext4 (16 bytes) and XFS (12 bytes) can hold it.
    #[must_use]
    pub fn label(&self) -> &str {
        let name = self.name.as_str();
        &name[..name.len().min(12)]
    }
}

/// `pool/volume`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeRef {
    /// The pool.
    pub pool: Name,
    /// The volume in it.
    pub name: Name,
}

/// A text that is not `pool/volume`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefError {
    /// There is no slash.
    #[error("{0:?} does not name a volume: write POOL/VOLUME")]
    NoPool(String),
    /// One of the two parts is not a name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for VolumeRef {
    type Err = VolumeRefError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pool, name) = text.split_once('/').ok_or_else(|| VolumeRefError::NoPool(text.to_owned()))?;
        Ok(Self { pool: pool.parse()?, name: name.parse()? })
    }
}

impl TryFrom<String> for VolumeRef {
    type Error = VolumeRefError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(feature = "schema")]
impl utoipa::PartialSchema for VolumeRef {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        String::schema()
    }
}

#[cfg(feature = "schema")]
impl utoipa::ToSchema for VolumeRef {}

impl From<VolumeRef> for String {
    fn from(reference: VolumeRef) -> String {
        reference.to_string()
    }
}

impl fmt::Display for VolumeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}/{}", self.pool, self.name))
    }
}

/// A hard limit on a device, as `io.max` knows it; absent means no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct IoLimit {
    /// The physical device, for example `/dev/vda`.
    pub device: String,
    /// Bytes read per second.
    pub read_bytes_per_second: Option<u64>,
    /// Bytes written per second.
    pub write_bytes_per_second: Option<u64>,
    /// Reads per second.
    pub read_iops: Option<u64>,
    /// Writes per second.
    pub write_iops: Option<u64>,
}

/// A tenant as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name, unique on the host.
    pub name: Name,
    /// Its weight when there is contention.
    pub share: Share,
    /// Hard limits.
    #[serde(default)]
    pub limits: Vec<IoLimit>,
    /// Volumes that stay mounted for it, also after a reboot.
    #[serde(default)]
    pub volumes: Vec<VolumeRef>,
    /// Being removed. Found after a crash, the removal is completed.
    #[serde(default)]
    pub removing: bool,
}

/// A volume that is mounted because a process holds it (`bulkhead run`); it lasts as long as that process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Identity of the lease.
    pub id: Uuid,
    /// For whom it is mounted.
    pub tenant: Name,
    /// The volume.
    pub volume: VolumeRef,
    /// The holder's process id.
    pub pid: u32,
    /// The holder's start time in clock ticks after boot (field 22 of `/proc/PID/stat`): tells a reused pid apart.
    pub start_time_ticks: u64,
}

/// How far a file system may be changed to repair it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// Not at all.
    #[default]
    No,
    /// As far as is safe: the journal is replayed, small things are mended.
    Safe,
    /// As far as is necessary, which can lose files that are damaged.
    Full,
}

/// A volume that has a device without being mounted, because an operator asked for it; it lasts until a reboot at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The volume.
    pub volume: VolumeRef,
}

/// Which controller makes weights work on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// `io.cost` with a model.
    Iocost,
    /// The BFQ scheduler.
    Bfq,
    /// None: weights do nothing.
    None,
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Policy::Iocost => "iocost",
            Policy::Bfq => "bfq",
            Policy::None => "none",
        })
    }
}

/// A measured iocost model with the latency targets and vrate range that go with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Calibration {
    /// The line for `io.cost.model`, without the device.
    pub model: String,
    /// The line for `io.cost.qos`, without the device.
    pub qos: String,
    /// How it was measured: command lines and raw figures.
    pub measured: Vec<String>,
    /// What it does to a small fsync; absent where that was not measured, or by a version that did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// What the chosen model does to a small append + fsync every 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Isolation {
    /// Mean latency of an fsync alone, microseconds.
    pub alone_us: u64,
    /// The same beside greedy buffered writers in another tenant, microseconds.
    pub beside_us: u64,
}

/// What a device's queue was set to before Bulkhead changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSettings {
    /// The scheduler.
    pub scheduler: String,
    /// The line of `io.cost.model`, if there was one.
    pub cost_model: Option<String>,
    /// The line of `io.cost.qos`, if there was one.
    pub cost_qos: Option<String>,
}

/// A physical device as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRecord {
    /// Kernel name of the device.
    pub name: DevName,
    /// Serial number or other lasting identity, so that a renamed device is noticed; empty when it has none.
    pub identity: String,
    /// The controller that the operator chose.
    pub policy: Option<Policy>,
    /// What was in force before.
    pub before: Option<QueueSettings>,
    /// Its calibration.
    pub calibration: Option<Calibration>,
}

/// How shares are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// By the method of Bulkhead.
    #[default]
    Correcting,
    /// By the method that Tobimatsu et al. published, for comparison.
    Published,
}

/// What a share is a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// The bytes that the device reads and writes.
    #[default]
    Bytes,
    /// The time that it spends: a random write of 4 KiB costs a disk more than 4 KiB of a stream.
    Time,
}

/// Shares of containers on a device that are held, journal I/O included, as recorded. There is one for a device at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Hold {
    /// Kernel name of the physical device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// What shares are parts of.
    pub unit: Unit,
    /// How they are held.
    pub mode: Mode,
    /// The cgroup file that has the weights: that of the controller in force.
    pub weight_file: String,
    /// Sum of the weights.
    pub total_weight: u32,
    /// Who shares, at least two.
    pub tenants: Vec<HeldTenant>,
    /// Tunables of the device's scheduler that were changed so that weights work, with what they were.
    #[serde(default)]
    pub tunables: BTreeMap<String, String>,
    /// After how long without being asked for again it ends, seconds; `None` when it lasts until it is removed.
    pub lease_seconds: Option<u32>,
}

/// A container whose share is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldTenant {
    /// What it was called when it was asked for.
    pub name: String,
    /// Its share, parts of a million.
    pub share_ppm: u32,
    /// Who it is.
    pub identity: Identity,
    /// The cgroup that its weight is set on: its own.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
    /// How many operations it was allowed on the device before.
    #[serde(default)]
    pub iops_before: RateLimit,
    /// How many bytes it was allowed before. Earlier versions did not record it: of a hold that they made, bytes are left alone.
    #[serde(default)]
    pub bytes_before: Option<RateLimit>,
    /// How long 99 % of its fsyncs are to take at most, microseconds.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// The journal of a file system that is its alone.
    #[serde(default)]
    pub journal: Option<HeldJournal>,
}

impl HeldTenant {
    /// What it was allowed on the device before.
    #[must_use]
    pub fn before(&self) -> IoMax {
        IoMax { ops: self.iops_before, bytes: self.bytes_before }
    }
}

/// A journal thread that runs in a cgroup beside its container while a share is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldJournal {
    /// Kernel name of the file system's device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// The cgroup beside the container's; before that it was in the root.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
}

/// Operations or bytes per second that a cgroup is allowed on a device; absent means as many as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RateLimit {
    /// Reads.
    pub read: Option<u64>,
    /// Writes.
    pub write: Option<u64>,
}

impl RateLimit {
    /// With so many of each at most.
    #[must_use]
    pub fn capped(self, most: u64) -> Self {
        Self {
            read: Some(self.read.map_or(most, |read| read.min(most))),
            write: Some(self.write.map_or(most, |write| write.min(most))),
        }
    }

    /// The larger of both; `None` when one is without limit.
    #[must_use]
    pub fn largest(self) -> Option<u64> {
        Some(self.read?.max(self.write?))
    }
}

/// A line of `io.max`, without the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoMax {
    /// Operations (`riops`, `wiops`).
    #[serde(flatten)]
    pub ops: RateLimit,
    /// Bytes (`rbps`, `wbps`); `None` where they are left as they are.
    #[serde(default)]
    pub bytes: Option<RateLimit>,
}

impl IoMax {
    /// What of it `other` says something of, too.
    #[must_use]
    pub fn as_far_as(self, other: Self) -> Self {
        Self { bytes: other.bytes.and(self.bytes), ..self }
    }
}

impl fmt::Display for IoMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        if let Some(RateLimit { read, write }) = self.bytes {
            write!(f, "rbps={} wbps={} ", text(read), text(write))?;
        }
        write!(f, "riops={} wiops={}", text(self.ops.read), text(self.ops.write))
    }
}

#[cfg(test)]
impl Volume {
    /// `p/v`, an ext4 of 64 MiB that was written in advance, for tests of what follows from a volume.
    pub(crate) fn sample() -> Self {
        Self {
            mount_options: MountOptions::default(),
            pool: "p".parse().unwrap(),
            name: "v".parse().unwrap(),
            uuid: Uuid::from_u128(7),
            size_bytes: Bytes::mib(64),
            fs: FsKind::Ext4,
            provision: Provision::Full,
            fast_commit: false,
            read_only: false,
            origin: None,
            layered: false,
            flatten: false,
            unfilled_from_bytes: None,
            read_from: ReadFrom::Disk,
            domain: None,
            state: VolumeState::Ready,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibrations_from_before_isolation_was_recorded_are_read_and_written_as_they_were() {
        let old = r#"{"model":"ctrl=user","qos":"enable=1","measured":["one"]}"#;
        let read: Calibration = serde_json::from_str(old).unwrap();
        assert_eq!((read.isolation, serde_json::to_string(&read).unwrap().as_str()), (None, old));
        let new = Calibration { isolation: Some(Isolation { alone_us: 1, beside_us: 2 }), ..read };
        assert_eq!(serde_json::from_str::<Calibration>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
    }

    #[test]
    fn volume_references_are_read_and_refused() {
        assert_eq!("fast/db".parse::<VolumeRef>().map(|r| r.to_string()), Ok("fast/db".to_owned()));
        for bad in ["db", "", "a/b/c", "/db", "a/..", "a/"] {
            assert!(bad.parse::<VolumeRef>().is_err(), "{bad}");
        }
    }
}
