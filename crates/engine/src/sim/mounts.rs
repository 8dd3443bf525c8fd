//! Mounts of the simulated host.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_core::action::{DeviceRef, MountAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FsKind;

use super::lvm::node;
use super::{Sim, World};
use crate::host::Mounts;

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_mount(&mut self, action: &MountAction) -> Result<bool, Fault> {
        use MountAction as A;
        Ok(match action {
            A::Mount { device, target, read_only, options, selinux_context, .. } => {
                if let (false, DeviceRef::Image { image, .. }) = (read_only, device) {
                    self.empty.remove(image);
                }
                let fs = self.fs(device)?.0.as_ref().expect("there is a file system to mount");
                assert!(
                    fs.kind == FsKind::Xfs || fs.journal.is_some(),
                    "a file system without its journal was mounted"
                );
                assert!(!self.is_mounted(device), "a volume was mounted twice");
                assert!(
                    selinux_context.is_none() || !self.lacks_selinux,
                    "a context was given to a kernel without SELinux"
                );
                self.mount_options.insert(target.clone(), (options.clone(), selinux_context.clone()));
                self.mounts.insert(target.clone(), device.clone()).is_none()
            }
            A::BindDevice { device, target } => {
                if let DeviceRef::Image { image, .. } = device {
                    self.empty.remove(image);
                }
                let (fs, size) = self.fs(device)?;
                assert!(fs.is_none(), "a volume with a file system was bound as a device");
                let path = path_of_device(device);
                assert!(!self.stale.contains_key(&path), "a tenant sees old data of others");
                assert!(!self.inactive.contains(&path), "the node of an inactive volume was bound");
                let shown = self.shown.entry(path).or_default();
                *shown = size.max(*shown);
                match self.mounts.insert(target.clone(), device.clone()) {
                    Some(other) => {
                        assert_eq!(other, *device, "the node of one volume replaced that of another");
                        false
                    }
                    None => true,
                }
            }
            A::UnbindDevice { device, target } => {
                if self.busy.contains(target) || self.bound.contains(target) {
                    return Err(Fault::new(Code::InUse, target.display(), "a process has it open"));
                }
                assert!(
                    self.mounts.get(target).is_none_or(|bound| bound == device),
                    "another volume's node was removed"
                );
                self.mounts.remove(target).is_some()
            }
            A::SyncDevice { device } => {
                assert!(self.is_mounted(device), "a device that nobody has was synced");
                true
            }
            A::Unmount { target } => {
                if self.busy.contains(target) {
                    return Err(Fault::new(Code::InUse, target.display(), "a process keeps it busy"));
                }
                if self.bound.contains(target) {
                    return Err(Fault::new(
                        Code::InUse,
                        target.display(),
                        "its file system is still mounted elsewhere",
                    ));
                }
                assert!(self.peers.values().all(|lent| lent != target), "a peer still reads from it");
                self.journals.remove(target);
                self.mounts.remove(target).is_some()
            }
            A::SyncFs { target } => {
                assert!(self.mounts.contains_key(target), "an unmounted file system was synced");
                true
            }
            A::TrimFs { target, cgroup, start_bytes, length_bytes } => {
                assert!(self.cgroups.contains_key(cgroup), "a file system was trimmed in a missing cgroup");
                let device = self.mounts.get(target).cloned().expect("a trimmed file system is mounted");
                let (_, size) = self.fs(&device)?;
                assert!(start_bytes.0 + length_bytes.0 <= size.0, "more than a volume was trimmed");
                let path = path_of_device(&device);
                assert!(!self.written.contains(&path), "a volume written in advance was trimmed");
                true
            }
            A::AttachPeer { volume, target, .. } => {
                assert!(self.mounts.contains_key(target), "a volume that is not mounted was attached as a peer");
                self.peers.insert(*volume, target.clone()).as_ref() != Some(target)
            }
            A::DetachPeer { volume } => self.peers.remove(volume).is_some(),
        })
    }

    pub(super) fn is_mounted(&self, device: &DeviceRef) -> bool {
        self.mounts.values().any(|mounted| mounted == device)
    }
}

fn path_of_device(device: &DeviceRef) -> PathBuf {
    match device {
        DeviceRef::Image { image, .. } => image.clone(),
        DeviceRef::Lv { vg, lv } => node(vg, lv),
    }
}

impl Mounts for Sim {
    fn is_mounted(&self, target: &Path) -> Result<bool, Fault> {
        Ok(self.world().mounts.contains_key(target))
    }

    fn mounted_device(&self, target: &Path) -> Result<Option<String>, Fault> {
        let name = |device: &DeviceRef| match device {
            DeviceRef::Image { image, .. } => image.file_stem().map(|stem| stem.to_string_lossy().into_owned()),
            DeviceRef::Lv { lv, .. } => Some(lv.to_string()),
        };
        Ok(self.world().mounts.get(target).and_then(name))
    }

    fn has_selinux(&self) -> Result<bool, Fault> {
        Ok(!self.world().lacks_selinux)
    }

    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault> {
        Ok(Arc::new(self.world().mounts.keys().cloned().collect()))
    }

    fn unmount_binds(&self, target: &Path) -> Result<(), Fault> {
        self.world().bound.remove(target);
        Ok(())
    }

    fn mounted_elsewhere(&self, targets: &[PathBuf]) -> Result<Vec<(PathBuf, CgroupPath)>, Fault> {
        let world = self.world();
        let is_logical = |target: &PathBuf| matches!(world.mounts.get(target), Some(DeviceRef::Lv { .. }));
        let wanted = |(target, _): &&(PathBuf, CgroupPath)| targets.contains(target) && is_logical(target);
        Ok(world.containers.iter().filter(wanted).cloned().collect())
    }
}
