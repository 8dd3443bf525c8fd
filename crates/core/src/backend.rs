//! Plans for a volume's block device: one trait, with a backend for each kind of pool.
//!
//! A backend only makes plans. It knows where a volume's record is (a file beside the image, or tags of the logical
//! volume), and how its device is created and removed.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::action::{
    Action, DeviceRef, FsAction, ImageAction, LayerAction, LvmAction, Record, ServerAction, StateAction,
};
use crate::cgroup::CgroupPath;
use crate::error::{Code, Fault};
use crate::model::{
    FsKind, MountOptions, Pool, PoolSource, Provision, ReadFrom, Server, Volume, VolumeRef, VolumeState,
};
use crate::name::Name;
use crate::reason::Reason;
use crate::serve::ServeSpec;
use crate::units::Bytes;

/// Plans for the block devices of one pool.
pub trait Backend {
    /// The device that the volume's file system is on.
    fn device(&self, volume: &Volume) -> DeviceRef;
    /// Records the volume (in stage `Creating`) and creates its device, open for use.
    fn create(&self, volume: &Volume) -> Vec<Action>;
    /// Records a change from `old` to `new`.
    fn record(&self, old: &Volume, new: &Volume) -> Action;
    /// Makes the device node available. A process that serves it runs in this cgroup, or stays where it is.
    fn open(&self, volume: &Volume, server_cgroup: Option<&CgroupPath>) -> Vec<Action>;
    /// Releases the device node, unless keeping it costs nothing.
    fn close(&self, volume: &Volume) -> Vec<Action>;
    /// Grows the device, which may be open; never shrinks it.
    fn grow(&self, volume: &Volume, to: Bytes) -> Vec<Action>;
    /// Allocates a volume's device from offset `from` on, which is at or beyond the end of its file system. `None` if
    /// the device is allocated at creation, or on first write.
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
    fn receive(&self, part: &Path, new: &Volume) -> Result<Vec<Action>, Fault>;
    /// Sets the volume's UUID on the checked ext4 of a closed copy; `by_device` are the steps that use its device.
    fn set_fs_uuid(&self, new: &Volume, by_device: Vec<Action>) -> Vec<Action>;
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
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// File name suffix of a volume's record in a file pool.
pub const VOLUME_RECORD_SUFFIX: &str = "volume";
/// File name suffix of a volume's image in a file pool.
pub const IMAGE_SUFFIX: &str = "img";
/// File name suffix of a layer in a file pool; the stem is its UUID.
pub const LAYER_SUFFIX: &str = "layer";
/// File name suffix of a future image in a file pool; the stem is a UUID.
pub const NEW_SUFFIX: &str = "new";
/// File name suffix of a staging file in a file pool.
pub const PART_SUFFIX: &str = "part";
/// File name suffix of a layer's index; appended to the name of a staging file, that of the future index.
pub const INDEX_SUFFIX: &str = "index";
/// File name of a file pool's own record.
pub const POOL_RECORD: &str = "bulkhead-pool";

/// Path of a volume's record in a file pool.
#[must_use]
pub fn volume_record_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{VOLUME_RECORD_SUFFIX}"))
}

/// Path of a volume's image in a file pool.
#[must_use]
pub fn image_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{IMAGE_SUFFIX}"))
}

/// Path of the staging file of a volume in a file pool.
#[must_use]
pub fn part_path(directory: &Path, name: &Name) -> PathBuf {
    directory.join(format!("{name}.{PART_SUFFIX}"))
}

/// Why a volume that was provisioned in full is not trimmed.
const WRITTEN_IN_ADVANCE: &str =
    "it was written in advance, so that no write changes metadata that all tenants share: a hole would defeat that";

/// Images in a directory, served with direct I/O.
#[derive(Debug)]
struct FileBackend {
    directory: PathBuf,
    server: Server,
}

impl FileBackend {
    fn image(&self, volume: &Volume) -> PathBuf {
        image_path(&self.directory, &volume.name)
    }

    fn write_record(&self, volume: &Volume) -> Action {
        let path = volume_record_path(&self.directory, &volume.name);
        Action::State(StateAction::WriteRecord { path, record: Box::new(Record::Volume(volume.clone())) })
    }
}

impl Backend for FileBackend {
    fn device(&self, volume: &Volume) -> DeviceRef {
        DeviceRef::Image { image: self.image(volume), volume: volume.uuid }
    }

    fn create(&self, volume: &Volume) -> Vec<Action> {
        let path = self.image(volume);
        let create = Action::Image(ImageAction::CreateImage {
            path,
            size_bytes: volume.size_bytes,
            provision: volume.provision,
        });
        [vec![self.write_record(volume), create], self.open(volume, None)].concat()
    }

    fn record(&self, _old: &Volume, new: &Volume) -> Action {
        self.write_record(new)
    }

    fn open(&self, volume: &Volume, server_cgroup: Option<&CgroupPath>) -> Vec<Action> {
        let spec = ServeSpec {
            // In an image that was written in advance, a hole would cost a commit of the host's journal at the next
            // write.
            discards: volume.provision == Provision::OnDemand,
            layered: volume.layered,
            flatten: volume.flatten,
            cgroup: server_cgroup.cloned(),
            ..ServeSpec::new(volume, self.image(volume))
        };
        vec![Action::Server(ServerAction::AttachImage { server: self.server, spec })]
    }

    fn close(&self, volume: &Volume) -> Vec<Action> {
        vec![Action::Server(ServerAction::DetachImage { image: self.image(volume), volume: volume.uuid })]
    }

    fn grow(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        let image = self.image(volume);
        vec![
            Action::Image(ImageAction::GrowImage { path: image.clone(), size_bytes: to, provision: volume.provision }),
            Action::Server(ServerAction::RefreshImage { image, volume: volume.uuid, size_bytes: to }),
        ]
    }

    fn fill(&self, _volume: &Volume, _from: Bytes) -> Option<Action> {
        None
    }

    fn shrink(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        vec![Action::Image(ImageAction::ShrinkImage { path: self.image(volume), size_bytes: to })]
    }

    fn remove(&self, volume: &Volume) -> Vec<Action> {
        let image = self.image(volume);
        vec![
            Action::Server(ServerAction::DetachImage { image: image.clone(), volume: volume.uuid }),
            Action::Image(ImageAction::RemoveImage { path: image }),
            Action::State(StateAction::RemoveRecord { path: volume_record_path(&self.directory, &volume.name) }),
        ]
        .into_iter()
        .chain(self.sweep())
        .collect()
    }

    fn snapshot(&self, origin: &Volume, new: &Volume) -> Result<Vec<Action>, Fault> {
        // Each copy creates at most one layer, so its UUID serves for both.
        let freeze = self.freeze(origin, new.uuid)?;
        let copy = Action::Image(ImageAction::CopyImage { path: self.image(new), of: self.image(origin) });
        Ok([vec![self.write_record(new)], freeze, vec![copy]].concat())
    }

    fn freeze(&self, volume: &Volume, layer: Uuid) -> Result<Vec<Action>, Fault> {
        if self.server == Server::Loop {
            return Err(no_snapshots(volume, "loop"));
        }
        let mut steps =
            vec![Action::Image(ImageAction::CreateLayer { image: self.image(volume), volume: volume.uuid, layer })];
        if !volume.layered {
            steps.push(self.write_record(&Volume { layered: true, ..volume.clone() }));
        }
        Ok(steps)
    }

    fn receive(&self, part: &Path, new: &Volume) -> Result<Vec<Action>, Fault> {
        if self.server == Server::Loop {
            return Err(no_snapshots(new, "loop"));
        }
        let publish = Action::Layer(LayerAction::PublishStagingFile { path: part.to_owned(), image: self.image(new) });
        Ok(vec![self.write_record(new), publish])
    }

    fn set_fs_uuid(&self, new: &Volume, by_device: Vec<Action>) -> Vec<Action> {
        vec![Action::Fs(FsAction::StampFsUuid { image: self.image(new), uuid: new.uuid, otherwise: by_device })]
    }

    fn replacement(&self, volume: &Volume, snapshot: &Volume, id: Uuid) -> Result<Replacement, Fault> {
        let (old, of) = (self.image(volume), self.image(snapshot));
        let new = self.directory.join(format!("{id}.{NEW_SUFFIX}"));
        // The volume is closed, so that the new device can have its identity.
        let spec = ServeSpec { discards: true, layered: true, ..ServeSpec::new(volume, new.clone()) };
        let attach = Action::Server(ServerAction::AttachImage { server: self.server, spec });
        let detach = Action::Server(ServerAction::DetachImage { image: new.clone(), volume: volume.uuid });
        Ok(Replacement {
            create: [
                self.freeze(snapshot, id)?,
                vec![Action::Image(ImageAction::CopyImage { path: new.clone(), of }), attach],
            ]
            .concat(),
            device: DeviceRef::Image { image: new.clone(), volume: volume.uuid },
            swap: vec![detach.clone(), Action::Image(ImageAction::ReplaceImage { path: old, by: new.clone() })],
            undo: [detach, Action::Image(ImageAction::RemoveImage { path: new })]
                .into_iter()
                .chain(self.sweep())
                .collect(),
        })
    }

    fn discard_obstacle(&self, volume: &Volume) -> Option<&'static str> {
        match (volume.provision, volume.layered) {
            (Provision::OnDemand, _) => None,
            (Provision::Full, false) => Some(WRITTEN_IN_ADVANCE),
            (Provision::Full, true) => {
                Some("it was provisioned in full before it was copied, and its block server refuses discards")
            }
        }
    }

    fn sweep(&self) -> Vec<Action> {
        vec![Action::Layer(LayerAction::SweepLayers { directory: self.directory.clone() })]
    }
}

/// Logical volumes: thick, or thin with a thin pool. A volume that shares memory with the snapshot that it was cloned
/// from has a block server in front of it.
#[derive(Debug)]
struct LvmBackend {
    vg: String,
    thin_pool: Option<String>,
}

impl LvmBackend {
    fn lv(&self, volume: &Volume) -> (String, String) {
        (self.vg.clone(), volume.name.to_string())
    }

    fn node(&self, lv: &Name) -> PathBuf {
        Path::new("/dev").join(&self.vg).join(lv.as_str())
    }

    /// The device of the snapshot with which a volume shares memory, if any.
    fn below(&self, volume: &Volume) -> Option<PathBuf> {
        volume.origin.as_ref().filter(|_| volume.read_from != ReadFrom::Disk).map(|origin| self.node(origin))
    }

    fn detach(&self, volume: &Volume) -> Option<Action> {
        let image = self.node(&volume.name);
        self.below(volume).map(|_| Action::Server(ServerAction::DetachImage { image, volume: volume.uuid }))
    }
}

impl Backend for LvmBackend {
    fn device(&self, volume: &Volume) -> DeviceRef {
        if self.below(volume).is_some() {
            return DeviceRef::Image { image: self.node(&volume.name), volume: volume.uuid };
        }
        let (vg, lv) = self.lv(volume);
        DeviceRef::Lv { vg, lv }
    }

    fn create(&self, volume: &Volume) -> Vec<Action> {
        let (vg, lv) = self.lv(volume);
        let fill = self.fill(volume, Bytes(0));
        let create = Action::Lvm(LvmAction::CreateLv {
            vg,
            lv,
            thin_pool: self.thin_pool.clone(),
            size_bytes: volume.size_bytes,
            tags: tags_of(volume),
        });
        std::iter::once(create).chain(fill).collect()
    }

    fn record(&self, old: &Volume, new: &Volume) -> Action {
        let (vg, lv) = self.lv(new);
        let (before, after) = (tags_of(old), tags_of(new));
        let only_in = |a: &[String], b: &[String]| a.iter().filter(|tag| !b.contains(tag)).cloned().collect();
        Action::Lvm(LvmAction::TagLv { vg, lv, add: only_in(&after, &before), remove: only_in(&before, &after) })
    }

    fn open(&self, volume: &Volume, server_cgroup: Option<&CgroupPath>) -> Vec<Action> {
        let (vg, lv) = self.lv(volume);
        let attach = self.below(volume).map(|below| {
            Action::Server(ServerAction::AttachImage {
                server: Server::Auto,
                spec: ServeSpec {
                    below: Some(below),
                    cgroup: server_cgroup.cloned(),
                    ..ServeSpec::new(volume, self.node(&volume.name))
                },
            })
        });
        std::iter::once(Action::Lvm(LvmAction::ActivateLv { vg, lv })).chain(attach).collect()
    }

    fn close(&self, volume: &Volume) -> Vec<Action> {
        self.detach(volume).into_iter().collect()
    }

    fn grow(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        let (vg, lv) = self.lv(volume);
        let image = self.node(&volume.name);
        let refresh = self
            .below(volume)
            .map(|_| Action::Server(ServerAction::RefreshImage { image, volume: volume.uuid, size_bytes: to }));
        std::iter::once(Action::Lvm(LvmAction::GrowLv { vg, lv, size_bytes: to })).chain(refresh).collect()
    }

    fn fill(&self, volume: &Volume, from: Bytes) -> Option<Action> {
        let (vg, lv) = self.lv(volume);
        let is_taken_late = self.thin_pool.is_some() && volume.provision == Provision::Full;
        is_taken_late.then_some(Action::Lvm(LvmAction::FillLv { vg, lv, from_bytes: from }))
    }

    fn shrink(&self, volume: &Volume, to: Bytes) -> Vec<Action> {
        let (vg, lv) = self.lv(volume);
        vec![Action::Lvm(LvmAction::ShrinkLv { vg, lv, size_bytes: to })]
    }

    fn remove(&self, volume: &Volume) -> Vec<Action> {
        let (vg, lv) = self.lv(volume);
        self.detach(volume)
            .into_iter()
            .chain([Action::Lvm(LvmAction::RemoveLv { vg, lv, owner_tag: owner_tag(volume) })])
            .collect()
    }

    fn snapshot(&self, origin: &Volume, new: &Volume) -> Result<Vec<Action>, Fault> {
        if self.thin_pool.is_none() {
            return Err(no_snapshots(new, "thick lvm"));
        }
        let ((vg, lv), origin) = (self.lv(new), origin.name.to_string());
        // Block servers of its clones read shared blocks from it, which therefore must not change.
        let protect = self.below(new).map(|_| Action::Lvm(LvmAction::ProtectLv { vg: vg.clone(), lv: origin.clone() }));
        Ok(protect
            .into_iter()
            .chain([Action::Lvm(LvmAction::SnapshotLv { vg, origin, lv, tags: tags_of(new) })])
            .collect())
    }

    fn freeze(&self, volume: &Volume, _layer: Uuid) -> Result<Vec<Action>, Fault> {
        if self.thin_pool.is_none() {
            return Err(no_snapshots(volume, "thick lvm"));
        }
        if volume.fs == FsKind::Xfs {
            let cause =
                "mounting an XFS snapshot writes to it, and a snapshot that was sent from a thin pool must not change";
            return Err(Fault::new(Code::Unsupported, format!("volume {}", volume.reference()), cause)
                .hint("use ext4 or a directory pool, or copy the files"));
        }
        let (vg, lv) = self.lv(volume);
        Ok(vec![
            Action::Lvm(LvmAction::ProtectLv { vg: vg.clone(), lv: lv.clone() }),
            Action::Lvm(LvmAction::ActivateLv { vg, lv }),
        ])
    }

    fn receive(&self, _part: &Path, new: &Volume) -> Result<Vec<Action>, Fault> {
        Err(not_received(&new.reference()))
    }

    fn set_fs_uuid(&self, new: &Volume, by_device: Vec<Action>) -> Vec<Action> {
        if self.below(new).is_none() {
            return by_device;
        }
        // This needs no block server.
        let (vg, lv) = self.lv(new);
        let device = DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() };
        vec![
            Action::Lvm(LvmAction::ActivateLv { vg, lv }),
            Action::Fs(FsAction::NewFsUuid { device, fs: new.fs, uuid: new.uuid }),
        ]
    }

    fn replacement(&self, volume: &Volume, _snapshot: &Volume, _id: Uuid) -> Result<Replacement, Fault> {
        let object = format!("volume {}", volume.reference());
        Err(Fault::new(Code::Unsupported, object, "volumes on LVM cannot be reverted to a snapshot in place")
            .hint("clone the snapshot, and attach the clone to the tenant instead"))
    }

    fn discard_obstacle(&self, volume: &Volume) -> Option<&'static str> {
        if self.thin_pool.is_none() {
            return Some("a thick logical volume keeps its space in the volume group, whatever is discarded in it");
        }
        if self.below(volume).is_some() {
            return Some("it shares memory with its snapshot, and the block server for that refuses discards");
        }
        (volume.provision == Provision::Full).then_some(WRITTEN_IN_ADVANCE)
    }

    fn sweep(&self) -> Vec<Action> {
        Vec::new()
    }
}

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

/// Prefix of all tags, followed by `key` or `key=value`. docs/formats/state.md lists them.
const TAG_PREFIX: &str = "bulkhead.";

/// The tag that identifies a logical volume as this volume: logical volumes without it are not touched.
fn owner_tag(volume: &Volume) -> String {
    format!("{TAG_PREFIX}volume={}", volume.uuid)
}

/// The tags of a volume's logical volume, which contain its record.
#[must_use]
pub fn tags_of(volume: &Volume) -> Vec<String> {
    let state = match volume.state {
        VolumeState::Creating => "creating".to_owned(),
        VolumeState::Ready => "ready".to_owned(),
        VolumeState::Removing => "removing".to_owned(),
        VolumeState::Resizing { to_bytes } => format!("resizing:{}", to_bytes.0),
        VolumeState::ReplacingJournal { to_bytes } => format!("journal:{}", to_bytes.0),
    };
    let provision = match volume.provision {
        Provision::Full => "full",
        Provision::OnDemand => "on_demand",
    };
    let mut tags = vec![
        owner_tag(volume),
        format!("{TAG_PREFIX}fs={}", volume.fs),
        format!("{TAG_PREFIX}provision={provision}"),
        format!("{TAG_PREFIX}state={state}"),
    ];
    if volume.fast_commit {
        tags.push(format!("{TAG_PREFIX}fast_commit"));
    }
    if volume.read_only {
        tags.push(format!("{TAG_PREFIX}read_only"));
    }
    if let Some(origin) = &volume.origin {
        tags.push(format!("{TAG_PREFIX}origin={origin}"));
    }
    if let Some(from) = volume.unfilled_from_bytes {
        tags.push(format!("{TAG_PREFIX}unfilled={}", from.0));
    }
    if volume.read_from != ReadFrom::Disk {
        tags.push(format!("{TAG_PREFIX}share={}", volume.read_from.tag()));
    }
    let MountOptions { suid, dev, subdir } = &volume.mount_options;
    let flags = [(*suid, "suid"), (*dev, "dev")].into_iter().filter(|(is_set, _)| *is_set);
    tags.extend(flags.map(|(_, flag)| format!("{TAG_PREFIX}{flag}")));
    tags.extend(subdir.iter().map(|subdir| format!("{TAG_PREFIX}subdir={subdir}")));
    tags
}

/// Reads a volume's record from the tags of its logical volume. `None` if it is not a volume of Bulkhead.
///
/// # Errors
/// `Corrupt` if it is one, and a tag is missing or cannot be read.
pub fn volume_from_tags(pool: &Name, lv: &str, size_bytes: Bytes, tags: &[String]) -> Result<Option<Volume>, Fault> {
    let value =
        |key: &str| tags.iter().find_map(|tag| tag.strip_prefix(TAG_PREFIX)?.strip_prefix(key)?.strip_prefix('='));
    let flag = |key: &str| tags.iter().any(|tag| tag.strip_prefix(TAG_PREFIX) == Some(key));
    let Some(uuid) = value("volume") else { return Ok(None) };
    let corrupt = |what: &str| {
        Fault::new(
            Code::Corrupt,
            format!("volume {pool}/{lv}"),
            format!("its LVM tag {TAG_PREFIX}{what} is missing or cannot be read"),
        )
        .hint(
            "compare `lvs -o lv_name,lv_tags` with docs/formats/state.md and restore the tag with `lvchange --addtag`",
        )
    };
    let fs = match value("fs") {
        Some("ext4") => FsKind::Ext4,
        Some("xfs") => FsKind::Xfs,
        _ => return Err(corrupt("fs")),
    };
    let provision = match value("provision") {
        Some("full") => Provision::Full,
        Some("on_demand") => Provision::OnDemand,
        _ => return Err(corrupt("provision")),
    };
    let state = match value("state") {
        Some("creating") => VolumeState::Creating,
        Some("ready") => VolumeState::Ready,
        Some("removing") => VolumeState::Removing,
        Some(text) => {
            let (stage, to) = text.split_once(':').ok_or_else(|| corrupt("state"))?;
            let to_bytes = Bytes(to.parse().map_err(|_| corrupt("state"))?);
            match stage {
                "resizing" => VolumeState::Resizing { to_bytes },
                "journal" => VolumeState::ReplacingJournal { to_bytes },
                _ => return Err(corrupt("state")),
            }
        }
        None => return Err(corrupt("state")),
    };
    Ok(Some(Volume {
        pool: pool.clone(),
        name: lv.parse().map_err(|_| corrupt("volume (the logical volume's name)"))?,
        uuid: Uuid::parse_str(uuid).map_err(|_| corrupt("volume"))?,
        size_bytes,
        fs,
        provision,
        fast_commit: flag("fast_commit"),
        read_only: flag("read_only"),
        origin: value("origin").map(str::parse).transpose().map_err(|_| corrupt("origin"))?,
        layered: false,
        flatten: false,
        unfilled_from_bytes: value("unfilled").map(str::parse).transpose().map_err(|_| corrupt("unfilled"))?.map(Bytes),
        read_from: value("share").map_or(Some(ReadFrom::Disk), ReadFrom::from_tag).ok_or_else(|| corrupt("share"))?,
        domain: None,
        mount_options: MountOptions {
            suid: flag("suid"),
            dev: flag("dev"),
            subdir: value("subdir").map(str::parse).transpose().map_err(|_| corrupt("subdir"))?,
        },
        state,
    }))
}

/// The tag that identifies a volume group as this pool.
#[must_use]
pub fn pool_uuid_tag(pool: &Pool) -> String {
    format!("{TAG_PREFIX}pool_uuid={}", pool.uuid)
}

/// The pool's UUID in the tags of its volume group; `None` if that is not a pool.
#[must_use]
pub fn pool_uuid_from_tags(tags: &[String]) -> Option<Uuid> {
    tags.iter().find_map(|tag| Uuid::parse_str(tag.strip_prefix(TAG_PREFIX)?.strip_prefix("pool_uuid=")?).ok())
}

/// The tags of a pool's volume group, which contain its record.
#[must_use]
pub fn pool_tags(pool: &Pool) -> Vec<String> {
    let mut tags = vec![format!("{TAG_PREFIX}pool={}", pool.name), pool_uuid_tag(pool)];
    if let PoolSource::Lvm { thin_pool: Some(thin_pool), .. } = &pool.source {
        tags.push(format!("{TAG_PREFIX}thin_pool={thin_pool}"));
    }
    tags
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};

    fn volumes() -> impl Strategy<Value = Volume> {
        let state = prop_oneof![
            Just(VolumeState::Creating),
            Just(VolumeState::Ready),
            Just(VolumeState::Removing),
            (0u64..1 << 50).prop_map(|n| VolumeState::Resizing { to_bytes: Bytes(n) }),
            (0u64..1 << 50).prop_map(|n| VolumeState::ReplacingJournal { to_bytes: Bytes(n) }),
        ];
        let unfilled = proptest::option::of((0u64..1 << 50).prop_map(Bytes));
        let origin = proptest::option::of("[a-z][a-z0-9]{0,8}");
        let subdir = proptest::option::of("[a-z][a-z0-9]{0,8}".prop_map(|name| name.parse().expect("a valid name")));
        let mount =
            (any::<(bool, bool)>(), subdir).prop_map(|((suid, dev), subdir)| MountOptions { suid, dev, subdir });
        (any::<u128>(), any::<(bool, bool, bool, bool, bool)>(), origin, unfilled, mount, state).prop_map(
            |(uuid, (xfs, full, fast_commit, read_only, shared), origin, unfilled, mount_options, state)| Volume {
                mount_options,
                pool: "p".parse().expect("a valid name"),
                name: "v".parse().expect("a valid name"),
                uuid: Uuid::from_u128(uuid),
                size_bytes: Bytes::mib(64),
                fs: if xfs { FsKind::Xfs } else { FsKind::Ext4 },
                provision: if full { Provision::Full } else { Provision::OnDemand },
                fast_commit,
                read_only,
                origin: origin.map(|o| o.parse().expect("a valid name")),
                layered: false,
                flatten: false,
                unfilled_from_bytes: unfilled,
                read_from: if shared { ReadFrom::HostCache } else { ReadFrom::Disk },
                domain: None,
                state,
            },
        )
    }

    proptest! {
        #[test]
        fn tags_carry_the_whole_record(volume in volumes()) {
            let read = volume_from_tags(&volume.pool, "v", volume.size_bytes, &tags_of(&volume));
            prop_assert_eq!(read, Ok(Some(volume)));
        }

        #[test]
        fn tags_use_only_what_lvm_allows(volume in volumes()) {
            for tag in tags_of(&volume) {
                let allowed = |c: char| c.is_ascii_alphanumeric() || "_+.-/=!:&#".contains(c);
                prop_assert_eq!(tag.chars().find(|&c| !allowed(c)), None);
            }
        }

        #[test]
        fn a_lost_tag_is_reported_not_guessed(volume in volumes(), lost in 1usize..4) {
            let mut tags = tags_of(&volume);
            tags.remove(lost);
            let error = volume_from_tags(&volume.pool, "v", volume.size_bytes, &tags).map_err(|f| f.code);
            prop_assert_eq!(error, Err(Code::Corrupt));
        }
    }

    /// As docs/formats/state.md has them.
    #[test]
    fn tags_of_version_1_are_read() {
        let text = "bulkhead.volume=00000000-0000-0000-0000-000000000007 bulkhead.fs=xfs bulkhead.provision=on_demand \
            bulkhead.state=resizing:8192 bulkhead.read_only bulkhead.origin=o bulkhead.unfilled=4096 bulkhead.share=base \
            bulkhead.suid bulkhead.dev bulkhead.subdir=data";
        let tags: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let volume = volume_from_tags(&"p".parse().unwrap(), "v", Bytes(4096), &tags).unwrap().unwrap();
        let subdir = Some("data".parse().unwrap());
        let expected = Volume {
            mount_options: MountOptions { suid: true, dev: true, subdir },
            pool: "p".parse().unwrap(),
            name: "v".parse().unwrap(),
            uuid: Uuid::from_u128(7),
            size_bytes: Bytes(4096),
            fs: FsKind::Xfs,
            provision: Provision::OnDemand,
            fast_commit: false,
            read_only: true,
            origin: Some("o".parse().unwrap()),
            layered: false,
            flatten: false,
            unfilled_from_bytes: Some(Bytes(4096)),
            read_from: ReadFrom::HostCache,
            domain: None,
            state: VolumeState::Resizing { to_bytes: Bytes(8192) },
        };
        assert_eq!((&volume, tags_of(&volume)), (&expected, tags.clone()));
        // Earlier versions wrote none of the last three.
        let earlier = volume_from_tags(&volume.pool, "v", Bytes(4096), &tags[..8]).unwrap().unwrap();
        assert_eq!(earlier, Volume { mount_options: MountOptions::default(), ..expected });
    }

    #[test]
    fn foreign_logical_volumes_are_left_alone() {
        let pool: Name = "p".parse().expect("a valid name");
        assert_eq!(volume_from_tags(&pool, "root", Bytes(0), &["other".into()]), Ok(None));
    }
}
