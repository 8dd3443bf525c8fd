//! Requests and answers about volumes.

use std::path::PathBuf;

use bulkhead_core::cow::LayersView;
use bulkhead_core::finding::Finding;
use bulkhead_core::heat::HeatSource;
use bulkhead_core::journal::{Accounting, JournalSize};
use bulkhead_core::model::{FrontEnd, MountOptions, Provision, ReadFrom, VolumeFs, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

/// Creates a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCreate {
    /// Pool and name.
    pub volume: VolumeRef,
    /// Size in bytes, rounded up to the granularity of the pool.
    pub size_bytes: Bytes,
    /// File system, or `none` for a raw volume, whose device is for its tenant. Default: ext4.
    #[serde(default)]
    pub fs: VolumeFs,
    /// When its blocks are allocated from the pool. Default: on demand in a thin pool, otherwise in full.
    #[serde(default)]
    pub provision: Option<Provision>,
    /// Size of the journal of an ext4 file system. Default: that for a volume of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalSize>,
    /// Enable ext4's fast_commit. Default: false.
    #[serde(default)]
    pub fast_commit: bool,
    /// How it is mounted for its tenant.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
    /// The front end that creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<FrontEnd>,
    /// The tenant that a front end mounts it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_tenant: Option<Name>,
}

impl VolumeCreate {
    /// A volume with defaults for everything else.
    #[must_use]
    pub fn new(volume: VolumeRef, size_bytes: Bytes) -> Self {
        Self {
            volume,
            size_bytes,
            fs: VolumeFs::default(),
            provision: None,
            journal: None,
            fast_commit: false,
            mount_options: MountOptions::default(),
            created_by: None,
            default_tenant: None,
        }
    }
}

/// Resizes a volume, its journal, or both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeResize {
    /// New size in bytes. Default: unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<Bytes>,
    /// Must be true if the volume is to shrink. Default: false.
    #[serde(default)]
    pub shrink: bool,
    /// Replaces the journal of an ext4 file system that is not mounted. Default: the journal is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalSize>,
}

/// Creates a snapshot or a clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCopy {
    /// Name of the copy, in the same pool.
    pub name: Name,
    /// Whether to create a read-only snapshot instead of a writable clone.
    pub read_only: bool,
    /// Where it reads shared blocks from; on LVM, `disk` or `host_cache` only. Default: that of the origin; on LVM, `disk`.
    #[serde(default)]
    pub read_from: Option<ReadFrom>,
    /// Its sharing domain: volumes read only the page caches of volumes in the same domain. Default: the origin's, else the pool's.
    #[serde(default)]
    pub domain: Option<Name>,
    /// How it is mounted for its tenant. `suid` and `dev` are not inherited from the origin; `subdir` is, by default.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
    /// The front end that creates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<FrontEnd>,
    /// The tenant that a front end mounts it for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_tenant: Option<Name>,
}

impl VolumeCopy {
    /// A copy with defaults for everything else.
    #[must_use]
    pub fn new(name: Name, read_only: bool) -> Self {
        Self {
            name,
            read_only,
            read_from: None,
            domain: None,
            mount_options: MountOptions::default(),
            created_by: None,
            default_tenant: None,
        }
    }
}

/// Starts to copy the blocks that a volume shares into its own image, or stops.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeFlatten {
    /// Stop copying; blocks that have been copied stay in the volume's image. Default: false.
    #[serde(default)]
    pub cancel: bool,
}

/// Reverts a volume to one of its snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeRollback {
    /// Name of the snapshot, in the same pool.
    pub to: Name,
    /// Must be true: everything written to the volume since the snapshot is lost.
    #[serde(default)]
    pub lose_changes: bool,
}

/// Checks a file system.
#[derive(Clone, Default, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeCheck {
    /// Repair what can be repaired safely. Default: false.
    #[serde(default)]
    pub repair: bool,
    /// Repair everything, even if damaged files are lost. If the pool supports snapshots, the previous state is kept as the snapshot
    /// `VOLUME-before-repair`. Default: false.
    #[serde(default)]
    pub full: bool,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeView {
    /// Pool and name.
    pub volume: VolumeRef,
    /// UUID of the volume.
    pub uuid: Uuid,
    /// `creating`, `ready`, `resizing`, `removing` or `damaged`.
    pub state: String,
    /// Size of its block device, bytes.
    pub size_bytes: Bytes,
    /// File system; `none` for a raw volume.
    pub fs: VolumeFs,
    /// When its blocks are allocated from the pool.
    pub provision: Provision,
    /// Whether it is a read-only snapshot.
    pub read_only: bool,
    /// The volume or snapshot that it was copied from, in the same pool.
    pub origin: Option<Name>,
    /// The layers that its image depends on; only for volumes of a directory pool that are copies or have been copied.
    pub layers: Option<LayersView>,
    /// Where it reads shared blocks from.
    pub read_from: ReadFrom,
    /// Its sharing domain; `null` for the pool's.
    pub domain: Option<Name>,
    /// How it is mounted for its tenant.
    pub mount_options: MountOptions,
    /// The front end that created it.
    pub created_by: Option<FrontEnd>,
    /// The tenant that a front end mounts it for.
    pub default_tenant: Option<Name>,
    /// When it was created, in seconds since the Unix epoch; `null` for volumes of versions that did not record it.
    #[serde(default)]
    pub created_unix_seconds: Option<u64>,
    /// The tenant that it is attached or leased to.
    pub tenant: Option<Name>,
    /// Its mount point on the host, while it is mounted. Of a raw volume: the path of its device's node while it is attached, the same at
    /// each attachment.
    #[schema(value_type = Option<String>)]
    pub mounted_at: Option<PathBuf>,
    /// Path of its block device, while it has one.
    pub device: Option<String>,
    /// Logical block size of its device in bytes, to which direct I/O (`O_DIRECT`) must be aligned: 4096 in directory pools, the disk's (often
    /// 512) on LVM.
    pub logical_block_bytes: Option<u32>,
    /// Kernel names of the devices at the bottom of the stack.
    pub physical_devices: Vec<String>,
    /// How its journal I/O is charged.
    pub accounting: Accounting,
    /// Problems and losses.
    pub findings: Vec<Finding>,
}

/// The result of trimming a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TrimView {
    /// The volume.
    pub volume: VolumeRef,
    /// Free space that its file system discarded, in bytes. The first trim after a mount counts all free space, including space that was
    /// returned to the pool before.
    pub trimmed_bytes: Bytes,
}

/// Reads of shared blocks by one volume from one source, since its device was opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeatRow {
    /// The volume that read.
    #[schema(value_type = String)]
    pub reader: VolumeRef,
    /// The kind of source.
    pub source: HeatSource,
    /// Name of the source: the peer, or the snapshot with the content of the layer; the first digits of a UUID if that is gone.
    pub source_name: String,
    /// Number of reads.
    pub requests: u64,
    /// Bytes read.
    pub bytes: Bytes,
    /// Number of reads from disk that were avoided.
    pub disk_reads_saved: u64,
}
