//! LVM pools: a volume is a logical volume, thick or thin.

use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::tags::{owner_tag, tags_of};
use super::{Backend, Replacement, WRITTEN_IN_ADVANCE, no_snapshots, not_received};
use crate::action::{Action, DeviceRef, FsAction, LvmAction, ServerAction};
use crate::cgroup::CgroupPath;
use crate::error::{Code, Fault};
use crate::model::{FsKind, Provision, ReadFrom, Server, Volume, VolumeFs};
use crate::name::Name;
use crate::serve::ServeSpec;
use crate::units::Bytes;

/// Logical volumes: thick, or thin with a thin pool. A volume that shares memory with the snapshot that it was cloned
/// from has a block server in front of it.
#[derive(Debug)]
pub(super) struct LvmBackend {
    pub(super) vg: String,
    pub(super) thin_pool: Option<String>,
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
        let (vg, lv) = self.lv(volume);
        let deactivate = volume.is_raw().then_some(Action::Lvm(LvmAction::DeactivateLv { vg, lv }));
        self.detach(volume).into_iter().chain(deactivate).collect()
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
        if volume.is_raw() {
            // Thick volumes show what earlier ones of the group contained; a file system hides that, and here is none.
            let shows_old_data = self.thin_pool.is_none();
            return (is_taken_late || shows_old_data).then_some(Action::Lvm(LvmAction::ZeroLv {
                vg,
                lv,
                from_bytes: from,
            }));
        }
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
        if volume.fs == VolumeFs::Xfs {
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

    fn receive(&self, _staging_file: &Path, new: &Volume) -> Result<Vec<Action>, Fault> {
        Err(not_received(&new.reference()))
    }

    fn set_fs_uuid(&self, new: &Volume, fs: FsKind, by_device: Vec<Action>) -> Vec<Action> {
        if self.below(new).is_none() {
            return by_device;
        }
        // This needs no block server.
        let (vg, lv) = self.lv(new);
        let device = DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() };
        vec![
            Action::Lvm(LvmAction::ActivateLv { vg, lv }),
            Action::Fs(FsAction::NewFsUuid { device, fs, uuid: new.uuid }),
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
