//! On the simulated host, whose pools are all on `sda`.

use bulkhead_api::wire::{
    DeviceControl, HoldStart, HoldTenant, NewPoolSource, PoolCreate, TenantCreate, TenantSet, VolumeCreate,
};
use bulkhead_core::action::CgroupAction;
use bulkhead_core::finding::FindingId;
use bulkhead_core::model::{IoLimit, Policy, Server};
use bulkhead_core::observe::activity::{Activity, FileSystemView, JournalBytes};
use bulkhead_core::observe::histogram::Histogram;
use bulkhead_core::units::{Bytes, DevNo};

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::hold::RunningHolds;
use crate::sim::Sim;

/// A host with BFQ, and the tenants `a`, `b` and `c` with a volume each.
fn host() -> (Sim, Engine) {
    let sim = Sim::default();
    sim.set_free(Bytes(100 * Bytes::GIB));
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    let source = NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    engine.pool_create(&PoolCreate { name: "p".parse().unwrap(), source }, false).unwrap();
    for (name, share) in [("a", 300), ("b", 100), ("c", 100)] {
        let volume = format!("p/{name}").parse().unwrap();
        engine.volume_create(&VolumeCreate::new(volume, Bytes::mib(64)), false).unwrap();
        let request = TenantCreate { share: share.try_into().unwrap(), ..TenantCreate::new(name.parse().unwrap()) };
        engine.tenant_create(&request, false).unwrap();
    }
    attach(&engine, "a");
    attach(&engine, "b");
    control(&engine, Some(Policy::Bfq));
    (sim, engine)
}

fn control(engine: &Engine, policy: Option<Policy>) {
    engine.device_control("sda", &DeviceControl { policy }, false).unwrap();
}

fn set(engine: &Engine, tenant: &str, request: &TenantSet) {
    engine.tenant_set(&tenant.parse().unwrap(), request, false).unwrap();
}

fn attach(engine: &Engine, tenant: &str) {
    let attach = vec![format!("p/{tenant}").parse().unwrap()];
    set(engine, tenant, &TenantSet { attach, ..TenantSet::default() });
}

/// Promises `us` to `a`; 0 ends that.
fn promise(engine: &Engine, us: u64) {
    set(engine, "a", &TenantSet { fsync_p99_us: Some(us), ..TenantSet::default() });
}

/// The hold: names, shares in percent and promises.
fn held(engine: &Engine) -> Vec<(String, u32, Option<u64>)> {
    let holds = engine.holds().unwrap();
    let tenants = holds.into_iter().flat_map(|hold| hold.tenants);
    tenants.map(|tenant| (tenant.name, tenant.share_ppm / 10_000, tenant.fsync_p99_us)).collect()
}

fn file(sim: &Sim, tenant: &str, file: &str) -> Option<String> {
    sim.cgroup_file(format!("bulkhead.slice/bulkhead-{tenant}.slice"), &format!("{file} sda"))
}

fn unkept(engine: &Engine) -> Vec<String> {
    let findings = engine.findings().into_iter().filter(|finding| finding.id == FindingId::PromiseNotEnforced);
    findings.map(|finding| format!("{}: {}", finding.object, finding.evidence)).collect()
}

#[test]
fn a_promise_holds_its_device_for_all_tenants_with_volumes_on_it() {
    let (sim, engine) = host();
    engine.tick();
    assert_eq!(held(&engine), []);
    promise(&engine, 20_000);
    engine.tick();
    let owned = |tenants: &[(&str, u32, Option<u64>)]| {
        tenants.iter().map(|(name, share, us)| ((*name).to_owned(), *share, *us)).collect::<Vec<_>>()
    };
    assert_eq!(held(&engine), owned(&[("a", 75, Some(20_000)), ("b", 25, None)]));
    let weights = || ["a", "b", "c"].map(|tenant| file(&sim, tenant, "io.bfq.weight"));
    let [a, b, c] = ["30", "10", "10"].map(|weight| Some(weight.to_owned()));
    assert_eq!(weights(), [a.clone(), b.clone(), None]);
    assert_eq!(engine.host().tunable(DevNo::new(8, 0), "slice_idle").as_deref(), Some("20"));
    // The controller has corrected a weight, which stays as it is when another tenant comes.
    let cgroup = "bulkhead.slice/bulkhead-a.slice".parse().unwrap();
    let (weight_file, device) = ("io.bfq.weight".to_owned(), "sda".parse().unwrap());
    let corrected = CgroupAction::SetWeight { cgroup, file: weight_file, device, weight: 25 };
    engine.executor.run_steps(vec![Action::Cgroup(corrected)], false).unwrap();
    attach(&engine, "c");
    engine.tick();
    assert_eq!(held(&engine), owned(&[("a", 60, Some(20_000)), ("b", 20, None), ("c", 20, None)]));
    assert_eq!(weights(), [Some("25".to_owned()), b, c]);
    // One goes.
    let b = "p/b".parse().unwrap();
    set(&engine, "b", &TenantSet { detach: vec![b], ..TenantSet::default() });
    engine.tick();
    assert_eq!((held(&engine).len(), file(&sim, "b", "io.bfq.weight")), (2, None));
    // The hold ends with the promise.
    let fault = engine.hold_stop("sda", false).unwrap_err();
    assert_eq!(
        (fault.code, fault.reason.as_deref()),
        (Code::InUse, Some(&Reason::HoldForPromises { tenants: vec!["a".to_owned()] }))
    );
    promise(&engine, 0);
    engine.tick();
    assert_eq!((held(&engine), weights()), (vec![], [None, None, None]));
    assert_eq!(engine.host().tunable(DevNo::new(8, 0), "slice_idle").as_deref(), Some("8"));
}

#[test]
fn a_promise_that_is_not_enforced_is_a_finding_with_the_reason() {
    let (_, engine) = host();
    control(&engine, None);
    promise(&engine, 20_000);
    engine.tick();
    assert_eq!(held(&engine), []);
    let found = unkept(&engine);
    assert!(found.len() == 1 && found[0].starts_with("tenant a: device sda: it has no controller"), "{found:?}");
    assert_eq!(engine.tenant_inspect(&"a".parse().unwrap()).unwrap().findings[0].id, FindingId::PromiseNotEnforced);
    control(&engine, Some(Policy::Bfq));
    engine.tick();
    assert_eq!((held(&engine).len(), unkept(&engine)), (2, vec![]));
    // An operator's hold takes precedence.
    let tenants = ["b", "c"].map(|name| HoldTenant::new(name, 1.0)).to_vec();
    let by_hand = HoldStart { device: None, unit: Unit::Bytes, mode: Mode::Correcting, tenants, lease_seconds: None };
    engine.hold_start(&by_hand, false).unwrap();
    engine.tick();
    let found = unkept(&engine);
    assert!(held(&engine)[0].0 == "b" && found.len() == 1 && found[0].contains("an operator's hold"), "{found:?}");
    engine.hold_stop("sda", false).unwrap();
    engine.tick();
    assert_eq!((held(&engine)[0].0.as_str(), unkept(&engine)), ("a", vec![]));
    // With its controller the hold goes, and comes back.
    control(&engine, None);
    engine.tick();
    assert_eq!((held(&engine), unkept(&engine).len()), (vec![], 1));
    // A promise to a tenant that is alone on its device needs nothing.
    let b = "p/b".parse().unwrap();
    set(&engine, "b", &TenantSet { detach: vec![b], ..TenantSet::default() });
    engine.tick();
    assert_eq!((held(&engine), unkept(&engine)), (vec![], vec![]));
}

#[test]
fn the_limits_of_a_held_tenant_are_applied_with_the_cap_of_the_hold() {
    let (sim, engine) = host();
    promise(&engine, 20_000);
    engine.tick();
    let mut running = RunningHolds::default();
    running.take_over_records(&engine);
    let limited = |n| IoLimit { device: "/dev/sda".to_owned(), write_iops: Some(n), ..IoLimit::default() };
    let limit = |limits| set(&engine, "b", &TenantSet { limits: Some(limits), ..TenantSet::default() });
    limit(vec![limited(50)]);
    running.take_over_records(&engine);
    let io_max = || file(&sim, "b", "io.max");
    assert_eq!(io_max().as_deref(), Some("rbps=max wbps=max riops=max wiops=50"));
    // The hold caps the tenant, and no check changes that.
    let capped = "rbps=max wbps=max riops=20 wiops=20";
    sim.set_cgroup_file("bulkhead.slice/bulkhead-b.slice", "io.max sda", capped);
    (0..50).for_each(|_| engine.tick());
    assert_eq!(io_max().as_deref(), Some(capped));
    assert_eq!(engine.problems(), []);
    // The end of the hold restores the limit, and a later one is written at once.
    promise(&engine, 0);
    engine.tick();
    running.take_over_records(&engine);
    assert!(running.is_empty());
    assert_eq!(io_max().as_deref(), Some("rbps=max wbps=max riops=max wiops=50"));
    limit(vec![limited(70)]);
    let written = sim.cgroup_file("bulkhead.slice/bulkhead-b.slice", "io.max");
    assert_eq!(written.as_deref(), Some("8:0 rbps=max wbps=max riops=max wiops=70"));
}

#[test]
fn fsyncs_on_a_volume_count_for_the_promise_of_its_tenant() {
    let (_, engine) = host();
    promise(&engine, 20_000);
    engine.tick();
    let mut holds = RunningHolds::new(engine.holds().unwrap());
    let mut fsync = Histogram::default();
    for second in 1..4 {
        fsync.record(500_000);
        let file_system = FileSystemView {
            device: "a".to_owned(),
            mount_point: None,
            disks: vec!["sda".to_owned()],
            commits: second,
            journal: JournalBytes::default(),
            unattributed: JournalBytes::default(),
            pending_bytes: 0,
            fsync: fsync.clone(),
        };
        holds.step(
            &engine,
            Ok(Activity { file_systems: vec![file_system], ..Activity::default() }),
            second * 1_000_000_000,
        );
    }
    let standings = holds.views().remove(0).standings;
    let p99 = |name: &str| standings.iter().find(|standing| standing.name == name).unwrap().fsync_p99_seconds;
    assert!(p99("a").is_some_and(|p99| p99 > 0.4) && p99("b").is_none(), "{standings:?}");
}

#[test]
fn a_promise_of_zero_is_refused_for_a_new_tenant() {
    let (_, engine) = host();
    let request = TenantCreate { fsync_p99_us: Some(0), ..TenantCreate::new("d".parse().unwrap()) };
    assert_eq!(engine.tenant_create(&request, false).unwrap_err().code, Code::InvalidArgument);
}
