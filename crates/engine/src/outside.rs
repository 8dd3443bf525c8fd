//! Containers that use a volume outside of its tenant's slice. Their I/O is their own where no block server does it, and is not charged to the tenant.
//!
//! Owns: which volumes are looked at, and whose they are. Does not: move processes out of the cgroup in which their engine manages them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health;
use bulkhead_core::model::{Pool, PoolSource, VolumeRef};
use bulkhead_core::name::Name;

use crate::engine::Engine;

impl Engine {
    /// Findings about one volume on LVM, or about all of them.
    pub(crate) fn outside(&self, only: Option<&VolumeRef>) -> Vec<Finding> {
        let on_lvm = self.mounted_on_lvm(only);
        if on_lvm.is_empty() {
            return Vec::new();
        }
        let targets: Vec<PathBuf> = on_lvm.keys().cloned().collect();
        let found = match self.host().mounted_elsewhere(&targets) {
            Ok(found) => found,
            Err(fault) => return vec![Finding::from_fault(FindingId::LookupFailed, fault)],
        };
        let mut users: BTreeMap<PathBuf, Vec<CgroupPath>> = BTreeMap::new();
        for (target, cgroup) in found {
            users.entry(target).or_default().push(cgroup);
        }
        let of_volume = |(target, cgroups): (PathBuf, Vec<CgroupPath>)| {
            let (volume, tenant) = on_lvm.get(&target)?;
            health::outside_finding(volume, tenant, &cgroups)
        };
        users.into_iter().filter_map(of_volume).collect()
    }

    /// The mounted volumes of pools on LVM and their tenants, by mount point. Needs no LVM call.
    fn mounted_on_lvm(&self, only: Option<&VolumeRef>) -> BTreeMap<PathBuf, (VolumeRef, Name)> {
        let pools: Vec<Pool> = self.pools().unwrap_or_default().into_iter().filter_map(Result::ok).collect();
        let is_on_lvm = |volume: &VolumeRef| {
            let pool = pools.iter().find(|pool| pool.name == volume.pool);
            pool.is_some_and(|pool| matches!(pool.source, PoolSource::Lvm { .. }))
        };
        let mounted = self.mounted_volumes();
        let wanted = mounted.volumes().filter(|volume| only.is_none_or(|only| only == *volume) && is_on_lvm(volume));
        wanted
            .filter_map(|volume| {
                let watched = mounted.get(volume)?;
                Some((watched.target.clone(), (volume.clone(), watched.tenant.clone())))
            })
            .collect()
    }
}
