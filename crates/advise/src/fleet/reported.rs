//! A host of a fleet file as its own report describes it, with what runs there.

use std::path::Path;

use bulkhead_core::report::{HostReport, ReportedDevice};
use bulkhead_core::units::Bytes;

use super::{At, HostEntry, LineError, MAX_HOSTS, MAX_WORKLOADS, Parser, Unknown, UnknownWhat};
use crate::place::{Device, Machine, Place, Workload};

impl Parser<'_> {
    /// Adds the host that a report describes, and its tenants at their places.
    pub(super) fn reported(&mut self, at: &At<'_>, entry: &HostEntry, path: &Path) -> Result<(), LineError> {
        let own = [("cpus", entry.cpus.is_some()), ("memory", entry.memory.is_some())];
        let own = own.into_iter().chain([("devices", entry.devices.is_some()), ("count", entry.count.is_some())]);
        if let Some((key, _)) = own.into_iter().find(|(_, is_given)| *is_given) {
            return Err(at.error(key, "it cannot be given beside `report`"));
        }
        let text = (self.read)(path).map_err(|error| at.error("report", error))?;
        let report = HostReport::parse(&text);
        let report = report.map_err(|error| at.error("report", format!("{}: {error}", path.display())))?;
        if self.fleet.machines.len() == MAX_HOSTS || report.workloads.len() > MAX_WORKLOADS - self.fleet.workloads.len()
        {
            return Err(at.error("report", "the fleet has too many hosts or workloads already"));
        }
        let name = entry.name.clone();
        let machine = self.fleet.machines.len();
        if self.machines.insert(name.clone(), machine).is_some() {
            return Err(at.error("name", format!("there is another host {name:?}")));
        }
        let unknown = |what| Unknown { host: name.clone(), what };
        let (mut devices, mut pools) = (Vec::new(), Vec::new());
        for device in &report.devices {
            let Some(costs) = &device.costs else {
                self.unknown.push(unknown(UnknownWhat::Device(device.name.clone())));
                continue;
            };
            let known = self.fleet.costs.iter().position(|known| known == costs);
            let costs = known.unwrap_or_else(|| {
                self.fleet.costs.push(costs.clone());
                self.fleet.costs.len() - 1
            });
            devices.push(Device { name: device.name.clone(), costs, space: space_of(&report, device) });
            let roomiest = device.pools.iter().max_by_key(|pool| pool.free_bytes);
            pools.push(roomiest.map(|pool| pool.name.to_string()));
        }
        if devices.is_empty() {
            let cause = format!(
                "{}: it has no device with costs: run `bulkhead device costs DIRECTORY --save` there",
                path.display()
            );
            return Err(at.error("report", cause));
        }
        let domain = entry.domain.clone().or(report.domain).unwrap_or_else(|| name.clone());
        let (cpus, memory) = (f64::from(report.cpus), report.memory_bytes);
        self.fleet.machines.push(Machine { name: name.clone(), domain, cpus, memory, devices });
        self.pools.push(pools);
        if report.n_left_out > 0 {
            self.unknown.push(unknown(UnknownWhat::LeftOut(report.n_left_out)));
        }
        for its in report.workloads {
            let devices = &self.fleet.machines[machine].devices;
            let device = devices.iter().position(|device| Some(&device.name) == its.device.as_ref());
            let tenant = its.name.to_string();
            let (profile, device) = match (its.profile, device) {
                (Some(profile), Some(device)) => (profile, device),
                (None, _) => {
                    self.unknown.push(unknown(UnknownWhat::Demand(tenant)));
                    continue;
                }
                (_, None) => {
                    self.unknown.push(unknown(UnknownWhat::Place(tenant)));
                    continue;
                }
            };
            // Tenants of different hosts can have one name.
            let named = if self.names.contains_key(&tenant) { format!("{name}.{tenant}") } else { tenant };
            if self.names.insert(named.clone(), self.fleet.workloads.len()).is_some() {
                return Err(at.error("report", format!("there is another workload {named:?}")));
            }
            let place = Place { machine, device };
            let demand = match profile.alone_per_s {
                Some(per_s) => self.corrected(&named, profile.demand, per_s, place),
                None => profile.demand,
            };
            let demand = self.interned(demand);
            self.fleet.workloads.push(Workload {
                name: named,
                demand,
                share: f64::from(u32::from(its.share)),
                space: its.space_bytes,
                importance: 1.0,
                floor: self.floor,
                fsync_p99: its.fsync_p99_us.map(|us| us as f64 / 1e6),
                group: None,
                only: Vec::new(),
                now: Some(place),
            });
            self.volumes.push(its.volumes.iter().map(ToString::to_string).collect());
        }
        Ok(())
    }
}

/// Space for volumes on a device: what the workloads that can be placed have there, and what is free.
fn space_of(report: &HostReport, device: &ReportedDevice) -> Bytes {
    let placed =
        report.workloads.iter().filter(|its| its.profile.is_some() && its.device.as_ref() == Some(&device.name));
    let free = device.pools.iter().filter_map(|pool| pool.free_bytes);
    Bytes(placed.map(|its| its.space_bytes).chain(free).fold(0, |sum, bytes| sum.saturating_add(bytes.0)))
}
