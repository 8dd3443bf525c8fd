//! Actions on file systems that are not mounted, and on their journals; growing works on mounted ones as well.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{Action, DeviceRef};
use crate::model::{FsKind, Repair};
use crate::units::Bytes;

/// Actions on file systems that are not mounted, and on their journals; growing works on mounted ones as well.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum FsAction {
    /// Makes a file system on a device without one.
    Mkfs {
        device: DeviceRef,
        fs: FsKind,
        uuid: Uuid,
        label: String,
        fast_commit: bool,
        /// The size of the journal; that for a volume of this size when `None`.
        #[serde(skip_serializing_if = "Option::is_none")]
        journal: Option<Bytes>,
    },
    /// Checks an unmounted file system, and repairs it as requested.
    CheckFs { device: DeviceRef, fs: FsKind, repair: Repair },
    /// Sets a new UUID on a cloned file system.
    NewFsUuid { device: DeviceRef, fs: FsKind, uuid: Uuid },
    /// Sets the UUID of the ext4 in an image on layers without a block server, by writing its superblock; if that is
    /// not enough, carries out `otherwise`.
    StampFsUuid { image: PathBuf, uuid: Uuid, otherwise: Vec<Action> },
    /// Grows the file system to the device's size, mounted at `mounted_at` or not mounted.
    GrowFs { device: DeviceRef, fs: FsKind, mounted_at: Option<PathBuf> },
    /// Shrinks an unmounted ext4.
    ShrinkFs { device: DeviceRef, size_bytes: Bytes },
    /// Removes the journal of an unmounted, checked ext4, unless it has that size; refuses if a journal of that size
    /// does not fit.
    RemoveJournal { device: DeviceRef, wanted_bytes: Bytes },
    /// Makes a journal in an unmounted ext4 without one; a smaller one if that size does not fit.
    MakeJournal { device: DeviceRef, size_bytes: Bytes },
}

impl fmt::Display for FsAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use FsAction as A;
        match self {
            A::Mkfs { device, fs, .. } => write!(f, "make {fs} on {device}"),
            A::CheckFs { device, fs, repair } => {
                let how = match repair {
                    Repair::No => "",
                    Repair::Safe => ", repairing what can be repaired safely",
                    Repair::Full => ", repairing everything",
                };
                write!(f, "check {fs} on {device}{how}")
            }
            A::NewFsUuid { device, fs, uuid } => write!(f, "set the UUID of {fs} on {device} to {uuid}"),
            A::StampFsUuid { image, uuid, .. } => write!(f, "set the UUID of ext4 in {} to {uuid}", image.display()),
            A::GrowFs { device, fs, .. } => write!(f, "grow {fs} on {device} to the device's size"),
            A::ShrinkFs { device, size_bytes } => write!(f, "shrink ext4 on {device} to {size_bytes}"),
            A::RemoveJournal { device, wanted_bytes } => {
                write!(f, "remove the journal of ext4 on {device}, unless it has {wanted_bytes}")
            }
            A::MakeJournal { device, size_bytes } => write!(f, "create a journal of {size_bytes} in ext4 on {device}"),
        }
    }
}
