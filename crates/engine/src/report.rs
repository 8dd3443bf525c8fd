//! The host's report, for plans and schedulers: devices with their costs, and tenants with their demands.
//!
//! Owns: collecting it. Does not: measure costs or demands, which are recorded (`devices.rs`, `tenants.rs`), or predict.

use std::collections::BTreeMap;

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::VolumeView;
use bulkhead_core::error::Fault;
use bulkhead_core::model::Tenant;
use bulkhead_core::name::Name;
use bulkhead_core::report::{HostReport, ReportedDevice, ReportedPool, ReportedWorkload, VERSION, device_name};

use crate::engine::Engine;
use crate::host::HostSize;
use crate::volumes::created_now;

impl Engine {
    /// What plans have to know of the host. A pool whose devices are not known is left out, and so is a tenant with a damaged record.
    ///
    /// # Errors
    /// When records cannot be listed, or processors and memory not be read.
    pub fn report(&self) -> Result<HostReport, Fault> {
        let HostSize { cpus, memory_bytes } = self.host().size()?;
        let mut devices: BTreeMap<Vec<String>, Vec<ReportedPool>> = BTreeMap::new();
        let mut device_of: BTreeMap<Name, String> = BTreeMap::new();
        for pool in self.pools()?.into_iter().filter_map(Result::ok) {
            let (physical, _) = self.below(&pool);
            if physical.is_empty() {
                continue;
            }
            device_of.insert(pool.name.clone(), device_name(&physical));
            let free_bytes = self.host().space(&pool.source).ok().map(|space| space.free);
            devices.entry(physical).or_default().push(ReportedPool { name: pool.name, free_bytes });
        }
        let devices = devices.into_iter().map(|(physical, pools)| ReportedDevice {
            name: device_name(&physical),
            costs: self.costs_of(&physical),
            shares_work: physical.iter().all(|name| self.device_inspect(name).is_ok_and(|view| view.shares_work)),
            pools,
        });
        let devices = devices.collect();
        let volumes = self.volume_list(&VolumeFilter::default())?;
        let tenants = self.tenants()?.into_iter().filter_map(Result::ok).filter(|tenant| !tenant.removing);
        let workloads = tenants.map(|tenant| workload(tenant, &volumes, &device_of)).collect();
        let unix_seconds = created_now().unwrap_or_default();
        let domain = self.domain.clone();
        Ok(HostReport { version: VERSION, unix_seconds, cpus, memory_bytes, domain, devices, workloads, n_left_out: 0 })
    }
}

fn workload(tenant: Tenant, volumes: &[VolumeView], device_of: &BTreeMap<Name, String>) -> ReportedWorkload {
    let its: Vec<&VolumeView> = volumes.iter().filter(|view| view.tenant.as_ref() == Some(&tenant.name)).collect();
    let mut spaces: BTreeMap<&String, u64> = BTreeMap::new();
    for view in &its {
        if let Some(device) = device_of.get(&view.volume.pool) {
            let space = spaces.entry(device).or_default();
            *space = space.saturating_add(view.size_bytes.0);
        }
    }
    // Of equal ones the first.
    let most = spaces.iter().rev().max_by_key(|(_, space)| **space);
    ReportedWorkload {
        name: tenant.name,
        share: tenant.share,
        device: most.map(|(device, _)| (*device).clone()),
        space_bytes: most.map_or_else(Default::default, |(_, space)| bulkhead_core::units::Bytes(*space)),
        fsync_p99_us: tenant.fsync_p99_us,
        volumes: its.into_iter().map(|view| view.volume.clone()).collect(),
        profile: tenant.profile,
    }
}
