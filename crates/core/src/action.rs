//! The vocabulary of everything that Bulkhead does to a host.
//!
//! Invariant 1: a write to the kernel or to the state is one `Action`; `--dry-run` prints these and nothing else happens.
//! Each action is idempotent: applied to a host where it is already done, it changes nothing and succeeds.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::model::{
    DeviceRecord, FsKind, Hold, IoMax, Lease, Mapping, Pool, Provision, Repair, Server, Tenant, Volume,
};
use crate::serve::ServeSpec;
use crate::units::Bytes;

/// A block device, named by what it is made of, so that a plan can be written before the device exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceRef {
    /// The block device that an image is served as.
    Image {
        /// The image.
        image: PathBuf,
        /// The volume that it is of.
        volume: Uuid,
    },
    /// A logical volume.
    Lv {
        /// Volume group.
        vg: String,
        /// Logical volume.
        lv: String,
    },
}

impl fmt::Display for DeviceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceRef::Image { image, .. } => write!(f, "block device of {}", image.display()),
            DeviceRef::Lv { vg, lv } => write!(f, "/dev/{vg}/{lv}"),
        }
    }
}

/// A body of a state file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// `pools/NAME` on the host and `bulkhead-pool` inside a file pool.
    Pool(Pool),
    /// `NAME.volume` beside the image.
    Volume(Volume),
    /// `tenants/NAME`.
    Tenant(Tenant),
    /// `leases/ID` under the runtime directory.
    Lease(Lease),
    /// `devices/NAME`: a device's calibration, and what was in force before Bulkhead changed it.
    Device(DeviceRecord),
    /// `holds/DEVICE` under the runtime directory.
    Hold(Hold),
    /// `mappings/UUID` under the runtime directory, by the UUID of the volume.
    Mapping(Mapping),
}

impl Record {
    /// The word that opens the state file.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Record::Pool(_) => "pool",
            Record::Volume(_) => "volume",
            Record::Tenant(_) => "tenant",
            Record::Lease(_) => "lease",
            Record::Device(_) => "device",
            Record::Hold(_) => "hold",
            Record::Mapping(_) => "mapping",
        }
    }
}

/// One step. Paths of cgroups are relative to the cgroup v2 root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "snake_case")]
#[expect(missing_docs, reason = "each variant's fields say what its Display sentence says")]
pub enum Action {
    /// Makes a directory, mode 0700, with missing parents.
    MakeDir { path: PathBuf },
    /// Removes an empty directory.
    RemoveDir { path: PathBuf },
    /// Writes a state file atomically.
    WriteRecord { path: PathBuf, record: Box<Record> },
    /// Removes a state file durably.
    RemoveRecord { path: PathBuf },
    /// Makes an image file; refuses to touch one that is there with another size.
    CreateImage { path: PathBuf, size_bytes: Bytes, provision: Provision },
    /// Makes an image file as large as this, if it is smaller.
    GrowImage { path: PathBuf, size_bytes: Bytes, provision: Provision },
    /// Cuts an image file off, if it is larger than this.
    ShrinkImage { path: PathBuf, size_bytes: Bytes },
    /// Removes an image file.
    RemoveImage { path: PathBuf },
    /// Makes a layer of what an image holds, if it holds anything of its own: the image lies on it then, empty. A server of its is
    /// replaced by another.
    FreezeImage { image: PathBuf, volume: Uuid, layer: Uuid },
    /// Makes an empty image on the layer that another one lies on.
    CopyImage { path: PathBuf, of: PathBuf },
    /// Puts an image in the place of another, which is lost.
    ReplaceImage { path: PathBuf, by: PathBuf },
    /// Makes an empty part, into which a snapshot is received, on the layer that it is based on; keeps one that is there.
    CreatePart { path: PathBuf, content: Uuid, base: Option<Uuid>, size_bytes: Bytes },
    /// Makes a layer of a part that is whole, and an empty image on it. The part stays.
    PublishPart { path: PathBuf, image: PathBuf },
    /// Removes a part, unless something is being received into it.
    RemovePart { path: PathBuf },
    /// Removes the layers in a directory that no image lies on.
    SweepLayers { directory: PathBuf },
    /// Gives all layers of a run but the newest other names, which nobody knows. Both lists have the newest first.
    SetLayersApart { directory: PathBuf, layers: Vec<Uuid>, names: Vec<Uuid> },
    /// Copies what layers of a run have that was set apart, the newest first, into one of them. What copies joins the cgroup.
    MergeLayers { directory: PathBuf, layers: Vec<Uuid>, into: Uuid, cgroup: Option<String> },
    /// Puts the layer into which others of a run were merged in the place of the newest, on what the oldest lay on.
    ReplaceLayers { directory: PathBuf, layers: Vec<Uuid>, into: Uuid, below: Option<Uuid> },
    /// Has another server serve an image, if the one that it has holds layers that were replaced or removed.
    RenewServer { image: PathBuf, volume: Uuid },
    /// Makes a block device of an image with direct I/O, and has its server, where it has one, in a cgroup, or where it is. The image
    /// can be a thin volume's device, of which what it has in common with the volume `below` is read from there. An image
    /// that has a device keeps it; its server is replaced by another when it is to begin or end flattening, or
    /// to share in another way.
    AttachImage {
        server: Server,
        #[serde(flatten)]
        spec: ServeSpec,
    },
    /// Makes an image's device as large as this, if it is smaller.
    RefreshImage { image: PathBuf, volume: Uuid, size_bytes: Bytes },
    /// Removes an image's device, if there is one.
    DetachImage { image: PathBuf, volume: Uuid },
    /// Makes a volume group with its tags on a device; `erase` says that the data on it was given up explicitly.
    CreateVg { vg: String, device: String, tags: Vec<String>, erase: bool },
    /// Makes a thin pool that takes all but a reserve of the volume group.
    CreateThinPool { vg: String, lv: String },
    /// Adds and removes tags of a volume group in one metadata change.
    TagVg { vg: String, add: Vec<String>, remove: Vec<String> },
    /// Removes a volume group that has this tag, with its thin pool and its physical volume label. Any other volume in it is a
    /// reason to refuse.
    RemoveVg { vg: String, owner_tag: String, thin_pool: Option<String>, device: String },
    /// Makes a logical volume with its tags in one metadata change.
    CreateLv { vg: String, lv: String, thin_pool: Option<String>, size_bytes: Bytes, tags: Vec<String> },
    /// Writes every block of a thin logical volume once, from an offset on or from where its file system ends, if that is later: so that
    /// later writes need no thin-pool metadata.
    FillLv { vg: String, lv: String, from_bytes: Bytes },
    /// Makes a thin snapshot with its tags in one metadata change.
    SnapshotLv { vg: String, origin: String, lv: String, tags: Vec<String> },
    /// Makes a logical volume read-only, for good.
    ProtectLv { vg: String, lv: String },
    /// Makes a logical volume active, so that it has a device node.
    ActivateLv { vg: String, lv: String },
    /// Adds and removes tags of a logical volume in one metadata change.
    TagLv { vg: String, lv: String, add: Vec<String>, remove: Vec<String> },
    /// Makes a logical volume as large as this, if it is smaller.
    GrowLv { vg: String, lv: String, size_bytes: Bytes },
    /// Makes a logical volume as small as this, if it is larger.
    ShrinkLv { vg: String, lv: String, size_bytes: Bytes },
    /// Removes a logical volume, if there is one of that name with that tag.
    RemoveLv { vg: String, lv: String, owner_tag: String },
    /// Makes a file system on a device that carries none.
    Mkfs { device: DeviceRef, fs: FsKind, uuid: Uuid, label: String, fast_commit: bool },
    /// Checks an unmounted file system, and repairs it as far as asked.
    CheckFs { device: DeviceRef, fs: FsKind, repair: Repair },
    /// Gives a cloned file system its own UUID.
    NewFsUuid { device: DeviceRef, fs: FsKind, uuid: Uuid },
    /// Gives the ext4 in an image on layers, which nobody serves, a UUID by writing its superblock; where that alone does not do it,
    /// `otherwise` is done.
    StampFsUuid { image: PathBuf, uuid: Uuid, otherwise: Vec<Action> },
    /// Grows the file system to the device's size, mounted at `mounted_at` or not mounted.
    GrowFs { device: DeviceRef, fs: FsKind, mounted_at: Option<PathBuf> },
    /// Shrinks an unmounted ext4.
    ShrinkFs { device: DeviceRef, size_bytes: Bytes },
    /// Removes the journal of an unmounted ext4 that was checked, unless it has that size; refuses where there is no room for one of it.
    RemoveJournal { device: DeviceRef, wanted_bytes: Bytes },
    /// Makes a journal in an unmounted ext4 that has none; a smaller one where there is no room for that.
    MakeJournal { device: DeviceRef, size_bytes: Bytes },
    /// Mounts with `nosuid,nodev,noatime`.
    Mount { device: DeviceRef, fs: FsKind, target: PathBuf, read_only: bool, nouuid: bool },
    /// Lets siblings in the same sharing domain read what a mounted volume has in its page cache.
    AttachSibling { device: DeviceRef, volume: Uuid, target: PathBuf, domain: String },
    /// Keeps siblings from it, which would keep it from being unmounted.
    DetachSibling { volume: Uuid },
    /// Writes everything that a mounted file system has cached.
    SyncFs { target: PathBuf },
    /// Discards what a mounted file system has free in a part of its range (FITRIM). What does so joins the cgroup.
    TrimFs { target: PathBuf, cgroup: String, start_bytes: Bytes, length_bytes: Bytes },
    /// Unmounts what is mounted at the target, if anything.
    Unmount { target: PathBuf },
    /// Makes a cgroup, and makes controllers io and memory available to it.
    CreateCgroup { cgroup: String },
    /// Moves the processes of a cgroup, not of those below it, into another one, which is made first.
    MoveProcesses { from: String, to: String },
    /// Enables a controller for the cgroups below one; `/` is the root.
    EnableController { cgroup: String, controller: String },
    /// Writes a cgroup file.
    WriteCgroup { cgroup: String, file: String, value: String },
    /// Sets a cgroup's weight on one device; the file is one of [`crate::tenant::WEIGHT_FILES`].
    SetWeight { cgroup: String, file: String, device: String, weight: u32 },
    /// Takes a cgroup's own weight on a device back, if the cgroup is there and has one.
    ResetWeight { cgroup: String, file: String, device: String },
    /// Sets what a cgroup is allowed on a device, if both are there.
    #[serde(alias = "limit_iops")]
    LimitIo { cgroup: String, device: String, limit: IoMax },
    /// Removes a cgroup, if it is there.
    RemoveCgroup { cgroup: String },
    /// Moves the journal thread of a mounted file system into a cgroup.
    PlaceJournal { device: DeviceRef, fs: FsKind, cgroup: String },
    /// Moves the journal thread of an ext4, by the kernel name of its device, into a cgroup, if there is one.
    MoveJournal { device: String, cgroup: String },
    /// Sets a device's I/O scheduler.
    SetScheduler { device: String, scheduler: String },
    /// Sets a tunable of the I/O scheduler in force; nothing is to be done where that has none of the name.
    SetTunable { device: String, tunable: String, value: String },
    /// Sets `io.cost.model` of a device.
    SetCostModel { device: String, line: String },
    /// Sets `io.cost.qos` of a device.
    SetCostQos { device: String, line: String },
    /// Switches io.cost of a device off.
    DisableCost { device: String },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Action as A;
        match self {
            A::MakeDir { path } => write!(f, "make directory {}", path.display()),
            A::RemoveDir { path } => write!(f, "remove directory {}", path.display()),
            A::WriteRecord { path, record } => write!(f, "write {} record {}", record.kind(), path.display()),
            A::RemoveRecord { path } => write!(f, "remove record {}", path.display()),
            A::CreateImage { path, size_bytes, provision } => {
                write!(f, "create image {} of {size_bytes}, provision {provision}", path.display())
            }
            A::GrowImage { path, size_bytes, .. } => write!(f, "grow image {} to {size_bytes}", path.display()),
            A::ShrinkImage { path, size_bytes } => write!(f, "shrink image {} to {size_bytes}", path.display()),
            A::RemoveImage { path } => write!(f, "remove image {}", path.display()),
            A::FreezeImage { image, layer, .. } => {
                write!(f, "create layer {layer} from the content of {}", image.display())
            }
            A::CopyImage { path, of } => {
                write!(f, "create image {} on top of the layer of {}", path.display(), of.display())
            }
            A::ReplaceImage { path, by } => write!(f, "put {} in place of {}", by.display(), path.display()),
            A::CreatePart { path, content, .. } => write!(f, "create staging file {} for {content}", path.display()),
            A::PublishPart { path, image } => {
                write!(f, "turn {} into a layer, and create image {} on top of it", path.display(), image.display())
            }
            A::RemovePart { path } => write!(f, "remove staging file {}", path.display()),
            A::SweepLayers { directory } => write!(f, "remove unused layers in {}", directory.display()),
            A::SetLayersApart { directory, layers, .. } => {
                write!(f, "set {} layers in {} aside", layers.len(), directory.display())
            }
            A::MergeLayers { directory, layers, into, .. } => {
                write!(f, "merge {} layers in {} into {into}", layers.len(), directory.display())
            }
            A::ReplaceLayers { directory, layers, into, .. } => {
                write!(f, "replace {} layers in {} with {into}", layers.len(), directory.display())
            }
            A::RenewServer { image, .. } => write!(f, "restart the block server of {}", image.display()),
            A::AttachImage { server, spec: ServeSpec { image, cgroup, .. } } => {
                let how = match server {
                    Server::Auto => "serve",
                    Server::Loop => "attach to a loop device",
                };
                let cgroup = cgroup.as_ref().map_or_else(String::new, |cgroup| format!(", in cgroup {cgroup}"));
                write!(f, "{how} image {} with direct I/O{cgroup}", image.display())
            }
            A::RefreshImage { image, size_bytes, .. } => {
                write!(f, "grow the block device of {} to {size_bytes}", image.display())
            }
            A::DetachImage { image, .. } => write!(f, "remove the block device of {}", image.display()),
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
            A::SnapshotLv { vg, origin, lv, .. } => write!(f, "create thin snapshot {vg}/{lv} of {vg}/{origin}"),
            A::ProtectLv { vg, lv } => write!(f, "make {vg}/{lv} read-only"),
            A::ActivateLv { vg, lv } => write!(f, "activate {vg}/{lv}"),
            A::TagLv { vg, lv, add, remove } => write!(f, "tag {vg}/{lv}: {}", tag_change(add, remove)),
            A::GrowLv { vg, lv, size_bytes } => write!(f, "grow {vg}/{lv} to {size_bytes}"),
            A::ShrinkLv { vg, lv, size_bytes } => write!(f, "shrink {vg}/{lv} to {size_bytes}"),
            A::RemoveLv { vg, lv, .. } => write!(f, "remove logical volume {vg}/{lv}"),
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
            A::Mount { device, fs, target, read_only, .. } => {
                let how = if *read_only { ",ro" } else { "" };
                write!(f, "mount {fs} of {device} at {} (nosuid,nodev,noatime{how})", target.display())
            }
            A::AttachSibling { target, .. } => write!(f, "let peers read the cached blocks of {}", target.display()),
            A::DetachSibling { volume } => write!(f, "stop peers from reading volume {volume}"),
            A::SyncFs { target } => write!(f, "sync the file system at {}", target.display()),
            A::TrimFs { target, start_bytes, length_bytes, .. } => {
                let end = Bytes(start_bytes.0.saturating_add(length_bytes.0));
                write!(f, "trim the file system at {} from {start_bytes} to {end}", target.display())
            }
            A::Unmount { target } => write!(f, "unmount {}", target.display()),
            A::CreateCgroup { cgroup } => write!(f, "create cgroup {cgroup}"),
            A::MoveProcesses { from, to } => write!(f, "move the processes of cgroup {from} to {to}"),
            A::EnableController { cgroup, controller } => {
                write!(f, "enable controller {controller} below cgroup {cgroup}")
            }
            A::WriteCgroup { cgroup, file, value } => write!(f, "write {value:?} to {cgroup}/{file}"),
            A::SetWeight { cgroup, file, device, weight } => {
                write!(f, "set {file} of {cgroup} on {device} to {weight}")
            }
            A::ResetWeight { cgroup, file, device } => write!(f, "reset {file} of {cgroup} on {device}"),
            A::LimitIo { cgroup, device, limit } => write!(f, "set io.max of {cgroup} on {device} to {limit}"),
            A::RemoveCgroup { cgroup } => write!(f, "remove cgroup {cgroup}"),
            A::PlaceJournal { device, cgroup, .. } => write!(f, "move the journal thread of {device} to {cgroup}"),
            A::MoveJournal { device, cgroup } => write!(f, "move the journal thread of {device} to /{cgroup}"),
            A::SetScheduler { device, scheduler } => write!(f, "set the scheduler of {device} to {scheduler}"),
            A::SetTunable { device, tunable, value } => {
                write!(f, "set {tunable} of {device}'s scheduler to {value}")
            }
            A::SetCostModel { device, line } => write!(f, "set io.cost.model of {device}: {line}"),
            A::SetCostQos { device, line } => write!(f, "set io.cost.qos of {device}: {line}"),
            A::DisableCost { device } => write!(f, "disable io.cost on {device}"),
        }
    }
}

fn tag_change(add: &[String], remove: &[String]) -> String {
    let signed = |sign: char, tags: &[String]| tags.iter().map(|tag| format!("{sign}{tag}")).collect::<Vec<_>>();
    [signed('+', add), signed('-', remove)].concat().join(" ")
}

/// An action that was applied, or with `--dry-run` would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Applied {
    /// The step.
    #[schema(value_type = Object)]
    pub action: Action,
    /// What was there before, where that is a value (a weight, a scheduler, a thread's cgroup).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Whether anything changed; `false` when it was done already, or in a dry run.
    pub changed: bool,
    /// How much was discarded, by an action that discards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<Bytes>,
}
