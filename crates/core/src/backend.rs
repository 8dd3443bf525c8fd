//! Plans for a volume's block device: one trait, with a backend for each kind of pool.
//!
//! A backend only makes plans. It knows where a volume's record is (a file beside the image, or tags of the logical
//! volume), and how its device is created and removed.

mod file;
mod lvm;
mod tags;

use std::path::Path;

use uuid::Uuid;

use self::file::FileBackend;
pub use self::file::{
    IMAGE_SUFFIX, INDEX_SUFFIX, LAYER_SUFFIX, NEW_SUFFIX, POOL_RECORD, STAGING_SUFFIX, VOLUME_RECORD_SUFFIX,
    image_path, staging_path, volume_record_path,
};
use self::lvm::LvmBackend;
pub use self::tags::{pool_tags, pool_uuid_from_tags, pool_uuid_tag, tags_of, volume_from_tags};
use crate::action::{Action, DeviceRef};
use crate::cgroup::CgroupPath;
use crate::error::{Code, Fault};
use crate::model::{FsKind, Pool, PoolSource, Volume, VolumeRef};
use crate::reason::Reason;
use crate::units::Bytes;

/// Plans for the block devices of one pool.
pub trait Backend {
    /// The volume's device, which its file system is on, if it has one.
    fn device(&self, volume: &Volume) -> DeviceRef;
    /// Records the volume (in stage `Creating`) and creates its device, open for use.
    fn create(&self, volume: &Volume) -> Vec<Action>;
    /// Records a change from `old` to `new`.
    fn record(&self, old: &Volume, new: &Volume) -> Action;
    /// Makes the device node available. A process that serves it runs in this cgroup, or stays where it is.
    fn open(&self, volume: &Volume, server_cgroup: Option<&CgroupPath>) -> Vec<Action>;
    /// Releases the device node, unless keeping it costs nothing. That of a raw volume is always released: its tenant may
    /// have it open without any mount.
    fn close(&self, volume: &Volume) -> Vec<Action>;
    /// Grows the device, which may be open; never shrinks it.
    fn grow(&self, volume: &Volume, to: Bytes) -> Vec<Action>;
    /// Allocates a volume's device from offset `from` on, which is at or beyond the end of its file system, or of the part
    /// that a raw volume's tenant may have written. `None` if the device is allocated at creation, or on first write, and
    /// shows no old data there, or only below a file system.
    fn fill(&self, volume: &Volume, from: Bytes) -> Option<Action>;
    /// Shrinks the device, which is closed and whose file system is already smaller.
    fn shrink(&self, volume: &Volume, to: Bytes) -> Vec<Action>;
    /// Removes device and record, as far as they exist.
    fn remove(&self, volume: &Volume) -> Vec<Action>;
    /// Makes `new`, recorded in stage `Creating`, a copy-on-write copy of `origin`.
    ///
    /// # Errors
    /// `Unsupported` if the pool has no snapshots.
    fn snapshot(&self, origin: &Volume, new: &Volume) -> Result<Vec<Action>, Fault>;
    /// Makes a snapshot's content immutable: as a layer with this UUID, unless it is one already, or by making its
    /// device read-only.
    ///
    /// # Errors
    /// `Unsupported` if the pool does not support it.
    fn freeze(&self, volume: &Volume, layer: Uuid) -> Result<Vec<Action>, Fault>;
    /// Makes `new`, recorded in stage `Creating`, from a complete staging file.
    ///
    /// # Errors
    /// `Unsupported` if the pool has no layers.
    fn receive(&self, staging_file: &Path, new: &Volume) -> Result<Vec<Action>, Fault>;
    /// Sets the volume's UUID on the checked ext4 of a closed copy; `by_device` are the steps that use its device.
    fn set_fs_uuid(&self, new: &Volume, fs: FsKind, by_device: Vec<Action>) -> Vec<Action>;
    /// Plans the replacement of a volume by a copy of its snapshot; `id` is the UUID of no other volume or layer.
    ///
    /// # Errors
    /// `Unsupported` if the pool does not support it.
    fn replacement(&self, volume: &Volume, snapshot: &Volume, id: Uuid) -> Result<Replacement, Fault>;
    /// Why discarded space of a volume does not return to the pool, or must not; `None` if it does.
    fn discard_obstacle(&self, volume: &Volume) -> Option<&'static str>;
    /// Removes leftovers of interrupted operations that belong to no volume.
    fn sweep(&self) -> Vec<Action>;
}

/// The steps that replace a closed volume's device.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// Creates the new device, open for use.
    pub create: Vec<Action>,
    /// The new device.
    pub device: DeviceRef,
    /// Closes the new device, and puts it in place of the volume's.
    pub swap: Vec<Action>,
    /// Removes the new device again, if it is not in place yet.
    pub undo: Vec<Action>,
}

/// The backend of a pool.
#[must_use]
pub fn backend(pool: &Pool) -> Box<dyn Backend> {
    match &pool.source {
        PoolSource::File { directory, server } => {
            Box::new(FileBackend { directory: directory.clone(), server: *server })
        }
        PoolSource::Lvm { vg, thin_pool, .. } => Box::new(LvmBackend { vg: vg.clone(), thin_pool: thin_pool.clone() }),
    }
}

/// The mark on a volume's ublk device (`ublksrv_flags`), by which any process finds it: the first half of the volume's
/// UUID, which is random.
#[must_use]
pub fn device_owner(volume: Uuid) -> u64 {
    volume.as_u64_pair().0
}

/// Why a volume that was provisioned in full is not trimmed.
const WRITTEN_IN_ADVANCE: &str = "it was written in advance, so that no later write changes metadata that all tenants share: trimming would undo that";

/// The error of importing or receiving a volume into an LVM pool.
#[must_use]
pub fn not_received(volume: &VolumeRef) -> Fault {
    let cause = "LVM pools cannot import or receive: incoming data becomes a layer, which only directory pools have";
    Fault::new(Code::Unsupported, format!("volume {volume}"), cause).reason(Reason::NeedsDirectoryPool)
}

fn no_snapshots(volume: &Volume, kind: &str) -> Fault {
    Fault::new(
        Code::Unsupported,
        format!("volume {}", volume.reference()),
        format!("{kind} pools have no snapshots or clones"),
    )
    .reason(Reason::NoSnapshotsInPool)
}
