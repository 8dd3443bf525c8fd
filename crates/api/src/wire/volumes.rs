//! Volumes: requests and answers.

use std::path::PathBuf;

use bulkhead_core::cow::LayersView;
use bulkhead_core::finding::Finding;
use bulkhead_core::heat::HeatSource;
use bulkhead_core::journal::{Accounting, JournalSize};
use bulkhead_core::model::{FsKind, MountOptions, Provision, ReadFrom, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

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
    /// How it is mounted for its tenant.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
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
    /// How it is mounted for its tenant. `suid` and `dev` are never the origin's; `subdir` is, by default.
    #[serde(default, skip_serializing_if = "MountOptions::is_default")]
    pub mount_options: MountOptions,
}

/// Has a copied volume copy what it shares, or no longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeFlatten {
    /// It is to stop. What it has copied by then stays its own.
    #[serde(default)]
    pub cancel: bool,
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
    /// How it is mounted for its tenant.
    pub mount_options: MountOptions,
    /// The tenant that has it mounted.
    pub tenant: Option<Name>,
    /// Where it is mounted on the host.
    #[schema(value_type = Option<String>)]
    pub mounted_at: Option<PathBuf>,
    /// Its block device while there is one.
    pub device: Option<String>,
    /// The device's logical block size, of which direct I/O (`O_DIRECT`) has to be a multiple: 4096 in file pools, the disk's (often 512) on LVM.
    pub logical_block_bytes: Option<u32>,
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
