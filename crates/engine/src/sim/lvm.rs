//! Volume groups and logical volumes of the simulated host.

use std::path::{Path, PathBuf};

use bulkhead_core::action::{DeviceRef, LvmAction};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::{Bytes, DevNo};

use super::{Sim, World};
use crate::host::{LogicalVolume, ThinPool, VolumeGroups};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_lvm(&mut self, action: &LvmAction) -> Result<bool, Fault> {
        use LvmAction as A;
        Ok(match action {
            A::CreateVg { vg, tags, .. } => self.groups.insert(vg.clone(), tags.iter().cloned().collect()).is_none(),
            A::CreateThinPool { vg, lv } => {
                self.volumes.insert((vg.clone(), lv.clone()), (thin_pool(lv), None)).is_none()
            }
            A::TagVg { vg, add, remove } => {
                let tags = self.groups.get_mut(vg).expect("the group exists");
                remove.iter().for_each(|tag| {
                    tags.remove(tag);
                });
                let before = tags.len();
                tags.extend(add.iter().cloned());
                tags.len() != before
            }
            A::RemoveVg { vg, owner_tag, thin_pool, .. } => {
                if !self.groups.get(vg).is_some_and(|tags| tags.contains(owner_tag)) {
                    return Ok(false);
                }
                let is_other = |(group, lv): &(String, String)| group == vg && Some(lv) != thin_pool.as_ref();
                assert!(!self.volumes.keys().any(is_other), "a group with volumes was removed");
                self.volumes.retain(|(group, _), _| group != vg);
                self.groups.remove(vg).is_some()
            }
            A::CreateLv { vg, lv, size_bytes, tags, thin_pool } => {
                if self.volumes.contains_key(&(vg.clone(), lv.clone())) {
                    return Err(Fault::new(Code::AlreadyExists, lv, "it already exists"));
                }
                if thin_pool.is_none() {
                    self.stale.insert(node(vg, lv), Bytes(0));
                }
                let (name, tags) = (lv.clone(), tags.clone());
                let volume = LogicalVolume { name, size: *size_bytes, tags, thin_pool: None, read_only: false };
                self.volumes.insert((vg.clone(), lv.clone()), (volume, None)).is_none()
            }
            A::FillLv { vg, lv, from_bytes } => {
                let (_, fs) = &self.volumes[&(vg.clone(), lv.clone())];
                assert!(
                    fs.as_ref().is_none_or(|fs| fs.size <= *from_bytes),
                    "a file system was written over: data lost"
                );
                let path = node(vg, lv);
                assert!(self.unfilled.get(&path).is_none_or(|from| from_bytes <= from), "a range was skipped");
                self.unfilled.remove(&path);
                self.written.insert(path);
                true
            }
            A::ZeroLv { vg, lv, from_bytes } => {
                let (_, fs) = &self.volumes[&(vg.clone(), lv.clone())];
                let path = node(vg, lv);
                assert!(fs.is_none(), "a file system was written over: data lost");
                assert!(self.shown.get(&path).is_none_or(|to| to <= from_bytes), "a tenant's data was written over");
                assert!(!self.inactive.contains(&path), "an inactive volume was written to");
                let of_tenant = DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() };
                assert!(!self.is_mounted(&of_tenant), "a device was written to while a tenant had it");
                assert!(self.stale.get(&path).is_none_or(|from| from_bytes <= from), "a range was skipped");
                assert!(self.unfilled.get(&path).is_none_or(|from| from_bytes <= from), "a range was skipped");
                if self.stale.remove(&path).is_none() {
                    self.unfilled.remove(&path);
                    self.written.insert(path);
                }
                true
            }
            A::DeactivateLv { vg, lv } => {
                let path = node(vg, lv);
                assert!(!self.attached.contains_key(&path), "a served volume was deactivated");
                let of_tenant = DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() };
                if self.busy.contains(&path) || self.is_mounted(&of_tenant) {
                    return Err(Fault::new(Code::InUse, lv, "a program has it open"));
                }
                self.volumes.contains_key(&(vg.clone(), lv.clone())) && self.inactive.insert(path)
            }
            A::SnapshotLv { vg, origin, lv, tags } => {
                let (mut volume, fs) = self.volumes[&(vg.clone(), origin.clone())].clone();
                (volume.name, volume.tags, volume.read_only) = (lv.clone(), tags.clone(), false);
                self.volumes.insert((vg.clone(), lv.clone()), (volume, fs)).is_none()
            }
            A::ProtectLv { vg, lv } => {
                let (volume, _) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume exists");
                !std::mem::replace(&mut volume.read_only, true)
            }
            A::ActivateLv { vg, lv } => {
                self.inactive.remove(&node(vg, lv));
                true
            }
            A::TagLv { vg, lv, add, remove } => {
                let found = self.volumes.get_mut(&(vg.clone(), lv.clone()));
                let (volume, _) = found.ok_or_else(|| Fault::new(Code::NotFound, lv, "no such logical volume"))?;
                Self::tags(&mut volume.tags, add, remove)
            }
            A::GrowLv { vg, lv, size_bytes } => {
                let path = node(vg, lv);
                let (volume, _) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume exists");
                let larger = volume.size.max(*size_bytes);
                let before = std::mem::replace(&mut volume.size, larger);
                if before < *size_bytes && self.written.contains(&path) {
                    self.unfilled.entry(path.clone()).or_insert(before);
                }
                let is_thick = self.allocated.contains_key(&path) && !self.written.contains(&path);
                if before < *size_bytes && is_thick {
                    self.stale.entry(path).or_insert(before);
                }
                before < *size_bytes
            }
            A::ShrinkLv { vg, lv, size_bytes } => {
                let (volume, fs) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume exists");
                Self::resize_under(fs.as_ref(), *size_bytes);
                let shown = self.shown.get(&node(vg, lv));
                assert!(shown.is_none_or(|shown| shown <= size_bytes), "a tenant's data was cut off");
                let smaller = volume.size.min(*size_bytes);
                let changed = std::mem::replace(&mut volume.size, smaller) > *size_bytes;
                for offsets in [&mut self.unfilled, &mut self.stale] {
                    offsets.retain(|path, from| *path != node(vg, lv) || *from < *size_bytes);
                }
                changed
            }
            A::RemoveLv { vg, lv, owner_tag } => {
                let key = (vg.clone(), lv.clone());
                if !self.volumes.get(&key).is_some_and(|(volume, _)| volume.tags.contains(owner_tag)) {
                    return Ok(false);
                }
                assert!(
                    !self.is_mounted(&DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() }),
                    "a mounted LV was removed"
                );
                let node = format!("/dev/{vg}/{lv}");
                assert!(!self.attached.contains_key(Path::new(&node)), "a served LV was removed");
                if self.busy.contains(Path::new(&node)) {
                    return Err(Fault::new(Code::InUse, lv, "a program has it open"));
                }
                self.written.remove(Path::new(&node));
                self.stale.remove(Path::new(&node));
                self.shown.remove(Path::new(&node));
                self.inactive.remove(Path::new(&node));
                self.unfilled.remove(Path::new(&node));
                self.volumes.remove(&key).is_some()
            }
        })
    }

    pub(super) fn tags(set: &mut Vec<String>, add: &[String], remove: &[String]) -> bool {
        let before = set.clone();
        set.retain(|tag| !remove.contains(tag));
        for tag in add {
            if !set.contains(tag) {
                set.push(tag.clone());
            }
        }
        *set != before
    }
}

impl VolumeGroups for Sim {
    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault> {
        let world = self.world();
        Ok(world.volumes.iter().filter(|((group, _), _)| group == vg).map(|(_, (volume, _))| volume.clone()).collect())
    }

    fn vg_tags(&self, vg: &str) -> Result<Option<Vec<String>>, Fault> {
        Ok(self.world().groups.get(vg).map(|tags| tags.iter().cloned().collect()))
    }

    fn vg_devices(&self, _vg: &str) -> Result<Vec<DevNo>, Fault> {
        Ok(vec![DevNo::new(8, 16)])
    }
}

pub(super) fn thin_pool(name: &str) -> LogicalVolume {
    let thin_pool = Some(ThinPool { zeroes: true });
    LogicalVolume { name: name.to_owned(), size: Bytes(Bytes::GIB), tags: vec![], thin_pool, read_only: false }
}

pub(super) fn node(vg: &str, lv: &str) -> PathBuf {
    Path::new("/dev").join(vg).join(lv)
}

/// Group and name of a logical volume that is served.
pub(super) fn logical_volume(image: &Path) -> Option<(String, String)> {
    let (vg, lv) = image.strip_prefix("/dev").ok()?.to_str()?.split_once('/')?;
    Some((vg.to_owned(), lv.to_owned()))
}
