//! The recorded objects: pools, volumes, tenants, leases, devices, holds.
//!
//! These types are the bodies of state files (docs/formats/state.md) and the content of LVM tags.

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

/// A file system type that Bulkhead creates and mounts.
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
    /// The type name for mount(2).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            FsKind::Ext4 => "ext4",
            FsKind::Xfs => "xfs",
        }
    }

    /// The smallest volume for which `mkfs` succeeds with Bulkhead's options (mkfs.xfs refuses less than 300 MiB).
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

/// When a volume's blocks are allocated from its pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Provision {
    /// All at creation: a preallocated image, a thick LV, or a thin LV of which each block was written once.
    #[default]
    Full,
    /// On the first write to each block: a sparse image or a thin LV. Each first write changes metadata that all
    /// tenants share.
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

/// From where a volume reads shared blocks: those of its layers that it has not written itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReadFrom {
    /// From the layers, with direct I/O. No memory is shared.
    Disk,
    /// From the layers, through the host's page cache. All volumes on a layer share one copy in memory.
    #[default]
    HostCache,
    /// From the page cache of a peer that has read the same block (Zhao et al., *DRR*), otherwise from disk. There is
    /// no other copy in memory.
    Peers,
    /// From a peer's page cache, otherwise through the host's.
    Both,
}

impl ReadFrom {
    /// All modes, in ascending order of sharing.
    pub const ALL: [Self; 4] = [Self::Disk, Self::HostCache, Self::Peers, Self::Both];

    /// The value on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::HostCache => "host-cache",
            Self::Peers => "peers",
            Self::Both => "both",
        }
    }

    /// The value in LVM tags, state files and files of block servers, which outlive versions of the program.
    #[must_use]
    pub const fn tag(self) -> &'static str {
        match self {
            Self::Disk => "off",
            Self::HostCache => "base",
            Self::Peers => "drr",
            Self::Both => "both",
        }
    }

    /// The mode with this tag, if there is one.
    #[must_use]
    pub fn from_tag(tag: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.tag() == tag)
    }

    /// Whether the volume reads from peers, and lets them read from it.
    #[must_use]
    pub fn uses_peers(self) -> bool {
        matches!(self, Self::Peers | Self::Both)
    }

    /// Whether layers are read through the host's page cache.
    #[must_use]
    pub fn caches_layers(self) -> bool {
        matches!(self, Self::HostCache | Self::Both)
    }
}

/// [`ReadFrom`] in the JSON of state files and files of block servers, as its tag, which earlier versions also read.
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
/// `ReplacingJournal` follows `Ready` and returns to it, as `Resizing` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum VolumeState {
    /// Being created; not yet reported to the caller. After a crash it is removed.
    Creating,
    /// Usable.
    Ready,
    /// Being resized. After a crash the resize is completed, unless [`Volume::unfilled_from_bytes`] is set: filling
    /// takes long, and is left to the next request.
    Resizing {
        /// The future size.
        to_bytes: Bytes,
    },
    /// Its journal is being replaced, and may be missing: it must not be mounted. After a crash it gets the new journal
    /// if it has none, and otherwise keeps the old one.
    ReplacingJournal {
        /// The journal's future size.
        to_bytes: Bytes,
    },
    /// Being removed. After a crash the removal is completed.
    Removing,
}

/// Deviations from the default mount options, which are `nosuid,nodev` and the root of the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MountOptions {
    /// Set-user-ID programs and file capabilities take effect, as the root file system of a container needs it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub suid: bool,
    /// Device nodes can be opened.
    #[serde(default, skip_serializing_if = "is_false")]
    pub dev: bool,
    /// The directory in the file system's root that is mounted instead of the root; it is created if it does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(nullable = false))]
    pub subdir: Option<Name>,
}

impl MountOptions {
    /// Whether these are the default options.
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
    /// Its pool.
    pub pool: Name,
    /// Its name, unique in the pool.
    pub name: Name,
    /// Its identity, also the file system's UUID.
    pub uuid: Uuid,
    /// Size of the block device.
    pub size_bytes: Bytes,
    /// Its file system.
    pub fs: FsKind,
    /// When its blocks are allocated.
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
    /// In a file pool: its image was copied or is a copy, and names its backing chain itself (docs/formats/layers.md).
    #[serde(default)]
    pub layered: bool,
    /// The content of its layers is being copied into its image while it is in use, until it depends on no layer.
    #[serde(default)]
    pub flatten: bool,
    /// Fully provisioned on a thin pool, after an interrupted growth: offset from which on its blocks are not allocated
    /// yet. Its file system ends there, or before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfilled_from_bytes: Option<Bytes>,
    /// From where it reads shared blocks.
    #[serde(rename = "share", default, with = "read_from_tag")]
    pub read_from: ReadFrom,
    /// Its sharing domain: only volumes of the same domain read from each other's page cache. `None` is the pool's
    /// default domain.
    #[serde(default)]
    pub domain: Option<Name>,
    /// Its mount options.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
    /// Its stage of life.
    pub state: VolumeState,
}

impl Volume {
    /// Its name in requests and output.
    #[must_use]
    pub fn reference(&self) -> VolumeRef {
        VolumeRef { pool: self.pool.clone(), name: self.name.clone() }
    }

    /// Its sharing domain, qualified by the pool.
    #[must_use]
    pub fn sharing_domain(&self) -> String {
        // Names of pools and domains have no slashes.
        let domain = self.domain.as_ref().map_or("", Name::as_str);
        format!("{}/{domain}", self.pool)
    }

    /// A copy of the record in another stage.
    #[must_use]
    pub fn with_state(&self, state: VolumeState) -> Self {
        Self { state, ..self.clone() }
    }

    /// The file system's label: the volume's name, cut to 12 bytes (XFS allows 12, ext4 16).
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

/// An invalid volume reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeRefError {
    /// There is no slash.
    #[error("{0:?} does not name a volume: write POOL/VOLUME")]
    NoPool(String),
    /// One of the two parts is not a valid name.
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

/// Hard limits on a device, as in `io.max`; absent means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct IoLimit {
    /// Path of the physical device, for example `/dev/vda`.
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
    /// Its weight under contention.
    pub share: Share,
    /// Hard limits.
    #[serde(default)]
    pub limits: Vec<IoLimit>,
    /// Attached volumes, which stay mounted for it, also after a reboot.
    #[serde(default)]
    pub volumes: Vec<VolumeRef>,
    /// Being removed. After a crash the removal is completed.
    #[serde(default)]
    pub removing: bool,
}

/// A volume that is mounted for a process (`bulkhead run`), as long as that process lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Identity of the lease.
    pub id: Uuid,
    /// The tenant that it is mounted for.
    pub tenant: Name,
    /// The volume.
    pub volume: VolumeRef,
    /// The process id.
    pub pid: u32,
    /// The process's start time in clock ticks after boot (field 22 of `/proc/PID/stat`), which detects a reused pid.
    pub start_time_ticks: u64,
}

/// How far a repair may change a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// Not at all.
    #[default]
    No,
    /// Safe repairs only: the journal is replayed, minor errors are fixed.
    Safe,
    /// All repairs, which may lose damaged files.
    Full,
}

/// A volume that an operator has mapped: it has a device without being mounted. Lasts until a reboot at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The volume.
    pub volume: VolumeRef,
}

/// The controller that applies weights on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// `io.cost` with a model.
    Iocost,
    /// The BFQ scheduler.
    Bfq,
    /// None: weights have no effect.
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

/// A measured iocost model, with its latency targets and vrate range.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Calibration {
    /// The line for `io.cost.model`, without the device.
    pub model: String,
    /// The line for `io.cost.qos`, without the device.
    pub qos: String,
    /// How it was measured: command lines and raw figures.
    pub measured: Vec<String>,
    /// Its effect on a small fsync; absent if that was not measured, or not recorded by an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
}

/// Effect of the chosen model on a small append + fsync every 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Isolation {
    /// Mean latency of an fsync alone, microseconds.
    pub alone_us: u64,
    /// Mean latency of an fsync beside greedy buffered writers of another tenant, microseconds.
    pub beside_us: u64,
}

/// A device's queue settings from before Bulkhead's changes.
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
    /// Serial number or other lasting identity, which reveals a renamed device; empty if it has none.
    pub identity: String,
    /// The controller that the operator chose.
    pub policy: Option<Policy>,
    /// The settings before that.
    pub before: Option<QueueSettings>,
    /// Its calibration.
    pub calibration: Option<Calibration>,
}

/// How shares are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Bulkhead's method.
    #[default]
    Correcting,
    /// The method published by Tobimatsu et al., for comparison.
    Published,
}

/// The resource that shares divide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// The bytes that the device reads and writes.
    #[default]
    Bytes,
    /// Device time: a random write of 4 KiB costs a disk more than 4 KiB of a stream.
    Time,
}

/// A hold as recorded: enforced shares of containers on a device, journal I/O included. A device has at most one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Hold {
    /// Kernel name of the physical device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// The resource that shares divide.
    pub unit: Unit,
    /// How shares are enforced.
    pub mode: Mode,
    /// The cgroup file with the weights of the active controller.
    pub weight_file: String,
    /// Sum of the tenants' weights.
    pub total_weight: u32,
    /// The tenants, at least two.
    pub tenants: Vec<HeldTenant>,
    /// Changed tunables of the device's scheduler, with their values from before the hold.
    #[serde(default)]
    pub tunables: BTreeMap<String, String>,
    /// Lease, seconds: the hold ends if it is not renewed for that long; `null` if it lasts until it is removed.
    pub lease_seconds: Option<u32>,
}

/// A container whose share is enforced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldTenant {
    /// Its name as requested.
    pub name: String,
    /// Its share, parts per million.
    pub share_ppm: u32,
    /// Its identity.
    pub identity: Identity,
    /// Its cgroup, on which its weight is set.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
    /// Its limit on operations from before the hold.
    #[serde(default)]
    pub iops_before: RateLimit,
    /// Its limit on bytes from before the hold. Earlier versions did not record it: their holds leave limits on bytes
    /// alone.
    #[serde(default)]
    pub bytes_before: Option<RateLimit>,
    /// Promised 99th percentile of its fsync latency, microseconds.
    #[serde(default)]
    pub fsync_p99_us: Option<u64>,
    /// The journal of a file system that only it uses.
    #[serde(default)]
    pub journal: Option<HeldJournal>,
}

impl HeldTenant {
    /// Its limits from before the hold.
    #[must_use]
    pub fn before(&self) -> IoMax {
        IoMax { ops: self.iops_before, bytes: self.bytes_before }
    }
}

/// A journal thread that is charged to its container during a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct HeldJournal {
    /// Kernel name of the file system's device.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: DevName,
    /// The thread's cgroup, next to the container's. Without a hold the thread is in the root cgroup.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub cgroup: CgroupPath,
}

/// Limits on a cgroup's operations or bytes per second on a device; absent means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RateLimit {
    /// Reads.
    pub read: Option<u64>,
    /// Writes.
    pub write: Option<u64>,
}

impl RateLimit {
    /// The same limits, each reduced to at most `most`.
    #[must_use]
    pub fn capped(self, most: u64) -> Self {
        Self {
            read: Some(self.read.map_or(most, |read| read.min(most))),
            write: Some(self.write.map_or(most, |write| write.min(most))),
        }
    }

    /// The larger of both limits; `None` if one is absent.
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
    /// Bytes (`rbps`, `wbps`); `None` leaves them unchanged.
    #[serde(default)]
    pub bytes: Option<RateLimit>,
}

impl IoMax {
    /// These limits, restricted to the keys that `other` has.
    #[must_use]
    pub fn restricted_to(self, other: Self) -> Self {
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
    /// `p/v`, a fully provisioned ext4 of 64 MiB, for tests.
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
    fn calibrations_without_isolation_are_read_and_written_unchanged() {
        let old = r#"{"model":"ctrl=user","qos":"enable=1","measured":["one"]}"#;
        let read: Calibration = serde_json::from_str(old).unwrap();
        assert_eq!((read.isolation, serde_json::to_string(&read).unwrap().as_str()), (None, old));
        let new = Calibration { isolation: Some(Isolation { alone_us: 1, beside_us: 2 }), ..read };
        assert_eq!(serde_json::from_str::<Calibration>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
    }

    #[test]
    fn volume_references_are_validated() {
        assert_eq!("fast/db".parse::<VolumeRef>().map(|r| r.to_string()), Ok("fast/db".to_owned()));
        for bad in ["db", "", "a/b/c", "/db", "a/..", "a/"] {
            assert!(bad.parse::<VolumeRef>().is_err(), "{bad}");
        }
    }
}
