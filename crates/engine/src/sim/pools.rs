//! Space in the pools of the simulated host.

use std::path::{Path, PathBuf};

use bulkhead_core::backend::image_path;
use bulkhead_core::error::Fault;
use bulkhead_core::health::Space;
use bulkhead_core::model::PoolSource;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;

use super::Sim;
use crate::host::Pools;

impl Pools for Sim {
    fn space(&self, source: &PoolSource) -> Result<Space, Fault> {
        let extent = if matches!(source, PoolSource::File { .. }) { Bytes(4096) } else { Bytes::mib(4) };
        if let PoolSource::Lvm { vg, .. } = source {
            while let Some(asked) = self.world().silent.get_mut(vg) {
                *asked = true;
                std::thread::yield_now();
            }
        }
        let world = self.world();
        let here = directory_of(source);
        let in_pool = world.allocated.iter().filter(|(path, _)| path.parent() == Some(&here));
        let (taken, in_free) = in_pool.fold((0, 0), |(a, b), (_, (now, in_free))| (a + now.0, b + in_free.0));
        let is_thin = matches!(source, PoolSource::Lvm { thin_pool: Some(_), .. });
        Ok(Space {
            total: world.total.unwrap_or(Bytes(Bytes::GIB)),
            free: Bytes((world.free.unwrap_or(Bytes::mib(512)).0 + in_free).saturating_sub(taken)),
            extent,
            data_pct: is_thin.then_some(50.0),
            metadata_pct: is_thin.then(|| world.metadata_pct.unwrap_or(10.0)),
            health: String::new(),
            is_partial: false,
        })
    }

    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault> {
        let here = directory_of(source);
        let path = match source {
            PoolSource::File { .. } => image_path(&here, volume),
            PoolSource::Lvm { .. } => here.join(volume.as_str()),
        };
        Ok(self.world().allocated.get(&path).map_or(Bytes(0), |(now, _)| *now))
    }

    fn physical_devices(&self, _source: &PoolSource) -> (Vec<String>, Vec<String>) {
        (vec!["sda".to_owned()], vec![])
    }
}

/// The directory of a pool's images or nodes.
pub(super) fn directory_of(source: &PoolSource) -> PathBuf {
    match source {
        PoolSource::File { directory, .. } => directory.clone(),
        PoolSource::Lvm { vg, .. } => Path::new("/dev").join(vg),
    }
}
