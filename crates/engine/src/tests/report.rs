//! The host's report, and what is stored for it: costs of devices, and demands of tenants.

use bulkhead_api::wire::{CostsStore, ProfileStore, TenantCreate};
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::error::Code;
use bulkhead_core::model::VolumeFs;
use bulkhead_core::report::{HostReport, ReportedDevice};
use bulkhead_core::units::Bytes;

use super::{Op, engine, run, with_pools};

fn costs(per_s: f64) -> DeviceCosts {
    let cost = format!(r#"{{"latency-us": 80, "per-s": {per_s}}}"#);
    let costs = format!(r#"{{"small": {cost}, "large": {cost}}}"#);
    let text = format!(
        r#"{{"random-read": {costs}, "sequential-read": {costs}, "random-write": {costs}, "sequential-write": {costs},
        "durable-write": {cost}, "read-write-sharing": 0.5, "sequential-run": 2}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn store(directory: &str, per_s: f64) -> CostsStore {
    CostsStore { directory: directory.into(), costs: costs(per_s) }
}

fn profile(clients: u32) -> ProfileStore {
    let demand: Demand = serde_json::from_str(&format!(r#"{{"clients": {clients}, "cpu-seconds": 0.001}}"#)).unwrap();
    ProfileStore { workload: Some("mysql".parse().unwrap()), demand, alone_per_s: Some(200.0) }
}

fn device(report: &HostReport) -> &ReportedDevice {
    assert_eq!(report.devices.len(), 1, "{:?}", report.devices);
    &report.devices[0]
}

#[test]
fn a_report_has_devices_with_costs_and_tenants_with_demands() {
    let sim = with_pools();
    let first = engine(&sim).in_domain(Some("rack-1".to_owned()));
    for name in ["file/small", "thick/large", "file/none"] {
        run(&first, &Op::Create(name, if name == "thick/large" { 128 } else { 64 }, VolumeFs::Ext4)).unwrap();
    }
    run(&first, &Op::Tenant("db", "thick/large")).unwrap();
    run(&first, &Op::Tenant("web", "file/small")).unwrap();
    first.tenant_create(&TenantCreate::new("idle".parse().unwrap()), false).unwrap();
    let report = first.report().unwrap();
    assert_eq!((report.cpus, report.domain.as_deref(), report.version), (4, Some("rack-1"), 1));
    assert_eq!((device(&report).name.as_str(), &device(&report).costs), ("sda", &None));
    assert!(device(&report).pools.iter().all(|pool| pool.free_bytes.is_some()));
    assert!(report.workloads.iter().all(|workload| workload.profile.is_none()));

    first.costs_store(&store("/srv/pool", 1000.0), false).unwrap();
    first.costs_store(&store("/srv/pool", 2000.0), false).unwrap();
    first.profile_store(&"db".parse().unwrap(), &profile(4), false).unwrap();
    // They are recorded, and read back by another start.
    let report = engine(&sim).report().unwrap();
    assert_eq!(device(&report).costs, Some(costs(2000.0)), "the latest");
    let of = |name: &str| report.workloads.iter().find(|its| its.name.as_str() == name).unwrap();
    let (db, idle) = (of("db"), of("idle"));
    assert_eq!((db.workload().as_str(), db.space_bytes, db.device.as_deref()), ("mysql", Bytes::mib(128), Some("sda")));
    assert_eq!(db.profile.as_ref().map(|its| (its.demand.clients, its.alone_per_s)), Some((4.0, Some(200.0))));
    assert_eq!((&of("web").profile, of("web").volumes.len()), (&None, 1));
    assert_eq!((&idle.device, idle.space_bytes), (&None, Bytes(0)), "without volumes");
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(HostReport::parse(&text), Ok(report));
}

#[test]
fn a_demand_is_kept_when_its_tenant_is_created_again_and_ends_with_it() {
    let sim = with_pools();
    let engine = engine(&sim);
    let (name, request) = ("db".parse().unwrap(), TenantCreate::new("db".parse().unwrap()));
    engine.tenant_create(&request, false).unwrap();
    engine.profile_store(&name, &profile(4), false).unwrap();
    engine.tenant_create(&request, false).unwrap();
    assert!(engine.report().unwrap().workloads[0].profile.is_some());
    engine.tenant_remove(&name, false, false).unwrap();
    engine.tenant_create(&request, false).unwrap();
    assert_eq!(engine.report().unwrap().workloads[0].profile, None);
}

#[test]
fn costs_and_demands_without_sense_are_refused() {
    let sim = with_pools();
    let engine = engine(&sim);
    engine.tenant_create(&TenantCreate::new("db".parse().unwrap()), false).unwrap();
    let fault = engine.costs_store(&store("/srv/pool", -1.0), false).unwrap_err();
    assert_eq!(fault.code, Code::InvalidArgument);
    assert!(fault.cause.contains("random-read.small.per-s: -1 is not a number above 0"), "{fault}");
    assert_eq!(engine.costs_store(&store("pool", 1.0), false).unwrap_err().code, Code::InvalidArgument);
    let fault = engine.profile_store(&"db".parse().unwrap(), &profile(0), false).unwrap_err();
    assert!(fault.code == Code::InvalidArgument && fault.cause.contains("clients: 0"), "{fault}");
    assert_eq!(engine.profile_store(&"no".parse().unwrap(), &profile(1), false).unwrap_err().code, Code::NotFound);
    // A dry run records nothing.
    engine.costs_store(&store("/srv/pool", 1.0), true).unwrap();
    engine.profile_store(&"db".parse().unwrap(), &profile(1), true).unwrap();
    let report = engine.report().unwrap();
    assert!(device(&report).costs.is_none() && report.workloads[0].profile.is_none());
}
