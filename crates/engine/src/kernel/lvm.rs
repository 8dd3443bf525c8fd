//! Volume groups and logical volumes: their actions and look-ups.

use std::path::Path;

use bulkhead_core::action::LvmAction;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_formats::servers::lvm;
use bulkhead_sys::lvm::{self, LvKind};
use bulkhead_sys::{block, fsutil, mount};

use super::Kernel;
use super::act::Outcome;
use super::faults::Classify;
use crate::host::{LogicalVolume, ThinPool, VolumeGroups};

impl Kernel {
    pub(super) fn act_on_lvm(&self, action: &LvmAction) -> Result<Outcome, Fault> {
        use LvmAction as A;
        let of_vg = |vg: &str| format!("volume group {vg}");
        let of_lv = |vg: &str, lv: &str| format!("logical volume {vg}/{lv}");
        let changed = match action {
            A::CreateVg { vg, device, tags, erase } => {
                if *erase {
                    fsutil::wipe(Path::new(device)).map_err(|e| e.fault(format!("device {device}")))?;
                }
                let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
                lvm().vg_create(vg, Path::new(device), &tags).map_err(|e| e.fault(of_vg(vg)))?;
                true
            }
            A::CreateThinPool { vg, lv } => {
                let group = lvm().vg(vg).map_err(|e| e.fault(of_vg(vg)))?;
                let group = group.ok_or_else(|| Fault::new(Code::NotFound, of_vg(vg), "there is no such group"))?;
                let size = Bytes(group.free.0 / 100 * 98 / group.extent_size.0 * group.extent_size.0);
                lvm().create_thin_pool(vg, lv, size).map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::TagVg { vg, add, remove } => {
                lvm().change_vg_tags(vg, add, remove).map_err(|e| e.fault(of_vg(vg)))?;
                true
            }
            A::RemoveVg { vg, owner_tag, thin_pool, device } => remove_vg(vg, owner_tag, thin_pool.as_deref(), device)?,
            A::CreateLv { vg, lv, thin_pool, size_bytes, tags } => {
                let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
                match thin_pool {
                    Some(pool) => lvm().create_thin(vg, pool, lv, *size_bytes, &tags),
                    None => lvm().create_linear(vg, lv, *size_bytes, &tags),
                }
                .map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::SnapshotLv { vg, origin, lv, tags } => {
                let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
                lvm().snapshot_thin(vg, origin, lv, &tags, false).map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::ProtectLv { vg, lv } => lvm().protect(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?,
            A::ActivateLv { vg, lv } => {
                // The node exists exactly while the volume is active.
                if lvm::node(vg, lv).exists() {
                    return Ok(Outcome::UNCHANGED);
                }
                lvm().activate(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::TagLv { vg, lv, add, remove } => {
                lvm().change_lv_tags(vg, lv, add, remove).map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::GrowLv { vg, lv, size_bytes } | A::ShrinkLv { vg, lv, size_bytes } => {
                let found = lvm().lv(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?;
                let Some(found) = found else {
                    return Err(Fault::new(Code::NotFound, of_lv(vg, lv), "there is no such logical volume"));
                };
                let shrink = matches!(action, A::ShrinkLv { .. });
                if found.size == *size_bytes || (found.size < *size_bytes) == shrink {
                    return Ok(Outcome::UNCHANGED);
                }
                lvm().resize(&found, *size_bytes, shrink).map_err(|e| e.fault(of_lv(vg, lv)))?;
                return Ok(Outcome { old: Some(found.size.to_string()), changed: true, ..Outcome::DONE });
            }
            A::ZeroLv { vg, lv, from_bytes } => {
                fsutil::write_zeroes(&lvm::node(vg, lv), *from_bytes).map_err(|e| e.fault(of_lv(vg, lv)))?;
                true
            }
            A::DeactivateLv { vg, lv } => lvm().deactivate(vg, lv).map_err(|e| e.fault(of_lv(vg, lv)))?,
            A::FillLv { vg, lv, from_bytes } => return self.fill_lv(vg, lv, *from_bytes),
            // A volume of that name without the tag is not Bulkhead's.
            A::RemoveLv { vg, lv, owner_tag } => {
                lvm().remove(vg, lv, Some(owner_tag)).map_err(|e| e.fault(of_lv(vg, lv)))?
            }
        };
        Ok(Outcome::changed(changed))
    }

    /// Never over a file system: after an interrupted growth, an operator may have grown it by hand.
    fn fill_lv(&self, vg: &str, lv: &str, from: Bytes) -> Result<Outcome, Fault> {
        let (node, object) = (lvm::node(vg, lv), format!("logical volume {vg}/{lv}"));
        let mut from = from;
        if from > Bytes(0) {
            let dev = block::devno_of(&node).map_err(|e| e.fault(&object))?;
            let mounts = mount::mountinfo(&self.roots).map_err(|e| e.fault(&object))?;
            let mounted_at = mounts.iter().find(|mount| mount.dev == dev).map(|mount| mount.mount_point.as_path());
            from = from.max(fsutil::end_of_fs(&node, mounted_at).map_err(|e| e.fault(&object))?);
        }
        fsutil::write_zeroes(&node, from).map_err(|e| e.fault(&object))?;
        Ok(Outcome::DONE)
    }
}

impl VolumeGroups for Kernel {
    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault> {
        let volumes = lvm().lvs(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        let volume = |lv: lvm::Lv| LogicalVolume {
            thin_pool: matches!(lv.kind, LvKind::ThinPool).then_some(ThinPool { zeroes: lv.zeroes }),
            name: lv.name,
            size: lv.size,
            tags: lv.tags,
            read_only: lv.read_only,
        };
        Ok(volumes.into_iter().map(volume).collect())
    }

    fn vg_tags(&self, vg: &str) -> Result<Option<Vec<String>>, Fault> {
        let found = lvm().vg(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        Ok(found.map(|vg| vg.tags))
    }

    fn vg_devices(&self, vg: &str) -> Result<Vec<DevNo>, Fault> {
        let paths = lvm().pv_devices(vg).map_err(|e| e.fault(format!("volume group {vg}")))?;
        // A missing one has no node, and cannot be the device in question.
        Ok(paths.iter().filter_map(|path| block::devno_of(path).ok()).collect())
    }
}

/// Removes a group that Bulkhead created: first its thin pool, which must have no volumes, finally the label.
fn remove_vg(vg: &str, owner_tag: &str, thin_pool: Option<&str>, device: &str) -> Result<bool, Fault> {
    let object = format!("volume group {vg}");
    if let Some(group) = lvm().vg(vg).map_err(|e| e.fault(&object))? {
        if !group.tags.iter().any(|tag| tag == owner_tag) {
            return Ok(false);
        }
        if let Some(thin_pool) = thin_pool {
            lvm().remove(vg, thin_pool, None).map_err(|e| e.fault(&object))?;
        }
        lvm().vg_remove(vg).map_err(|e| e.fault(&object))?;
    }
    lvm().pv_remove(Path::new(device)).map_err(|e| e.fault(format!("device {device}")))
}
