//! The space of pools, and the devices below them.

use bulkhead_core::backend::image_path;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::health::Space;
use bulkhead_core::model::PoolSource;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_formats::servers::lvm;
use bulkhead_sys::block::{self, Holder};
use bulkhead_sys::file;
use bulkhead_sys::lvm::{self, LvKind};

use super::Kernel;
use super::faults::{Classify, file as file_object};
use crate::host::Pools;

impl Pools for Kernel {
    fn space(&self, source: &PoolSource) -> Result<Space, Fault> {
        match source {
            PoolSource::File { directory, .. } => {
                let object = format!("directory {}", directory.display());
                let space = file::free_space(directory).map_err(|e| e.fault(&object))?;
                Ok(Space::new(space.total, space.free, Bytes(4096)))
            }
            PoolSource::Lvm { vg, thin_pool, .. } => {
                let object = format!("volume group {vg}");
                let group = lvm()
                    .vg(vg)
                    .map_err(|e| e.fault(&object))?
                    .ok_or_else(|| Fault::new(Code::NotFound, &object, "there is no such volume group"))?;
                let space = Space::new(group.size, group.free, group.extent_size);
                let mut space = Space { is_partial: group.partial, ..space };
                if let Some(name) = thin_pool {
                    thin_pool_space(vg, name, &mut space)?;
                }
                Ok(space)
            }
        }
    }

    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault> {
        match source {
            PoolSource::File { directory, .. } => {
                let image = image_path(directory, volume);
                bulkhead_sys::image::allocated(&image).map_err(|e| e.fault(file_object(&image)))
            }
            PoolSource::Lvm { vg, .. } => {
                let found =
                    lvm().lv(vg, volume.as_str()).map_err(|e| e.fault(format!("logical volume {vg}/{volume}")))?;
                Ok(found.as_ref().map_or(Bytes(0), lvm::Lv::allocated))
            }
        }
    }

    fn physical_devices(&self, source: &PoolSource) -> (Vec<String>, Vec<String>) {
        let devices = match source {
            PoolSource::File { directory, .. } => match block::holder_of(&self.roots, directory) {
                Ok(Holder::Devices(devices)) => devices,
                Ok(Holder::None { reason }) => return (Vec::new(), vec![reason]),
                Err(error) => return (Vec::new(), vec![error.to_string()]),
            },
            PoolSource::Lvm { vg, .. } => match lvm().pv_devices(vg) {
                Ok(paths) => paths.iter().filter_map(|path| block::devno_of(path).ok()).collect(),
                Err(error) => return (Vec::new(), vec![error.to_string()]),
            },
        };
        let (mut names, mut unknown) = (Vec::new(), Vec::new());
        for dev in devices {
            let (more_names, more_unknown) = self.physical(dev);
            names.extend(more_names);
            unknown.extend(more_unknown);
        }
        names.sort();
        names.dedup();
        (names, unknown)
    }
}

fn thin_pool_space(vg: &str, name: &str, space: &mut Space) -> Result<(), Fault> {
    let object = format!("thin pool {vg}/{name}");
    let pool = lvm()
        .lv(vg, name)
        .map_err(|e| e.fault(&object))?
        .filter(|lv| lv.kind == LvKind::ThinPool)
        .ok_or_else(|| Fault::new(Code::NotFound, &object, "there is no such thin pool"))?;
    space.total = pool.size;
    let used_pct = pool.data_percent.unwrap_or(0.0);
    // Basis points, so that the arithmetic stays in whole numbers.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a percentage lies between 0 and 100")]
    let free_bp = ((100.0 - used_pct).clamp(0.0, 100.0) * 100.0) as u64;
    space.free = Bytes(pool.size.0 / 10_000 * free_bp);
    (space.data_pct, space.metadata_pct, space.health) = (pool.data_percent, pool.metadata_percent, pool.health);
    Ok(())
}
