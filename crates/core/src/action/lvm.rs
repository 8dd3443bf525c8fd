//! Actions on volume groups and logical volumes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Actions on volume groups and logical volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum LvmAction {
    /// Makes a volume group with its tags on a device; `erase` is set if the operator confirmed the loss of the data on
    /// it.
    CreateVg { vg: String, device: String, tags: Vec<String>, erase: bool },
    /// Makes a thin pool from the volume group's space, except for a reserve.
    CreateThinPool { vg: String, lv: String },
    /// Adds and removes tags of a volume group in one metadata change.
    TagVg { vg: String, add: Vec<String>, remove: Vec<String> },
    /// Removes a volume group that has this tag, with its thin pool and its physical volume label. Refuses if it has any other
    /// volume.
    RemoveVg { vg: String, owner_tag: String, thin_pool: Option<String>, device: String },
    /// Makes a logical volume with its tags in one metadata change.
    CreateLv { vg: String, lv: String, thin_pool: Option<String>, size_bytes: Bytes, tags: Vec<String> },
    /// Writes every block of a thin logical volume once, from an offset or the end of its file system, whichever is later, so that
    /// later writes need no thin-pool metadata.
    FillLv { vg: String, lv: String, from_bytes: Bytes },
    /// Writes zeroes over a logical volume without a file system from an offset on, which nobody uses yet: so that no
    /// tenant sees what others stored there, and later writes need no thin-pool metadata.
    ZeroLv { vg: String, lv: String, from_bytes: Bytes },
    /// Makes a thin snapshot with its tags in one metadata change.
    SnapshotLv { vg: String, origin: String, lv: String, tags: Vec<String> },
    /// Makes a logical volume read-only permanently.
    ProtectLv { vg: String, lv: String },
    /// Activates a logical volume, so that it has a device node.
    ActivateLv { vg: String, lv: String },
    /// Deactivates a logical volume, so that it has no device. Refuses while that is open.
    DeactivateLv { vg: String, lv: String },
    /// Adds and removes tags of a logical volume in one metadata change.
    TagLv { vg: String, lv: String, add: Vec<String>, remove: Vec<String> },
    /// Grows a logical volume to this size, if it is smaller.
    GrowLv { vg: String, lv: String, size_bytes: Bytes },
    /// Shrinks a logical volume to this size, if it is larger.
    ShrinkLv { vg: String, lv: String, size_bytes: Bytes },
    /// Removes the logical volume of that name, if it has that tag.
    RemoveLv { vg: String, lv: String, owner_tag: String },
}

impl fmt::Display for LvmAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use LvmAction as A;
        match self {
            A::CreateVg { vg, device, erase, .. } => {
                let how = if *erase { ", erasing what is on it" } else { "" };
                write!(f, "create volume group {vg} on {device}{how}")
            }
            A::CreateThinPool { vg, lv } => write!(f, "create thin pool {vg}/{lv}"),
            A::TagVg { vg, add, remove } => write!(f, "tag volume group {vg}: {}", tag_change(add, remove)),
            A::RemoveVg { vg, .. } => write!(f, "remove volume group {vg}"),
            A::CreateLv { vg, lv, thin_pool, size_bytes, .. } => match thin_pool {
                Some(pool) => write!(f, "create thin volume {vg}/{lv} of {size_bytes} in {vg}/{pool}"),
                None => write!(f, "create logical volume {vg}/{lv} of {size_bytes}"),
            },
            A::FillLv { vg, lv, from_bytes: Bytes(0) } => write!(f, "write all blocks of {vg}/{lv}"),
            A::FillLv { vg, lv, from_bytes } => write!(f, "write all blocks of {vg}/{lv} from {from_bytes} on"),
            A::ZeroLv { vg, lv, from_bytes: Bytes(0) } => write!(f, "write zeroes to {vg}/{lv}"),
            A::ZeroLv { vg, lv, from_bytes } => write!(f, "write zeroes to {vg}/{lv} from {from_bytes} on"),
            A::SnapshotLv { vg, origin, lv, .. } => write!(f, "create thin snapshot {vg}/{lv} of {vg}/{origin}"),
            A::ProtectLv { vg, lv } => write!(f, "make {vg}/{lv} read-only"),
            A::ActivateLv { vg, lv } => write!(f, "activate {vg}/{lv}"),
            A::DeactivateLv { vg, lv } => write!(f, "deactivate {vg}/{lv}"),
            A::TagLv { vg, lv, add, remove } => write!(f, "tag {vg}/{lv}: {}", tag_change(add, remove)),
            A::GrowLv { vg, lv, size_bytes } => write!(f, "grow {vg}/{lv} to {size_bytes}"),
            A::ShrinkLv { vg, lv, size_bytes } => write!(f, "shrink {vg}/{lv} to {size_bytes}"),
            A::RemoveLv { vg, lv, .. } => write!(f, "remove logical volume {vg}/{lv}"),
        }
    }
}

fn tag_change(add: &[String], remove: &[String]) -> String {
    let signed = |sign: char, tags: &[String]| tags.iter().map(|tag| format!("{sign}{tag}")).collect::<Vec<_>>();
    [signed('+', add), signed('-', remove)].concat().join(" ")
}
