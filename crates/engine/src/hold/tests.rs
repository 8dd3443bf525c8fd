//! On the simulated host, whose device is always busy and whose containers always wait.

use std::sync::Arc;

use bulkhead_api::wire::{DeviceControl, TenantCreate};
use bulkhead_core::action::{Applied, CgroupAction};
use bulkhead_core::health;
use bulkhead_core::identity::identify;
use bulkhead_core::model::{IoMax, Mode, RateLimit, Unit};
use bulkhead_core::observe::activity::{
    Activity, ContainerView, DeviceShare, FileSystemShare, FileSystemView, JournalBytes,
};
use bulkhead_core::observe::histogram::Histogram;
use bulkhead_core::units::DevNo;

use super::*;
use crate::carry_out::Executor;
use crate::engine::Dirs;
use crate::sim::Sim;

const SECOND: u64 = 1_000_000_000;

/// A host with BFQ and the tenants `a` and `b`.
fn host() -> (Sim, Engine) {
    let sim = Sim::default();
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.device_control("sda", &DeviceControl { policy: Some(Policy::Bfq) }, false).unwrap();
    for name in ["a", "b"] {
        let name = name.parse().unwrap();
        let request = TenantCreate::new(name);
        engine.tenant_create(&request, false).unwrap();
    }
    (sim, engine)
}

fn request(tenants: &[(&str, f64)]) -> HoldStart {
    HoldStart {
        device: None,
        unit: Unit::Bytes,
        mode: Mode::Correcting,
        tenants: tenants.iter().map(|(tenant, share)| HoldTenant::new(*tenant, *share)).collect(),
        lease_seconds: None,
    }
}

fn weight(sim: &Sim, tenant: &str) -> Option<String> {
    sim.cgroup_file(format!("bulkhead.slice/bulkhead-{tenant}.slice"), "io.bfq.weight sda")
}

/// The observation after so many seconds: both have the same I/O, and `a` has as much journal I/O in addition.
fn seen(seconds: u64) -> Activity {
    let journal = |bytes: u64| JournalBytes { commit_bytes: bytes * seconds, ..JournalBytes::default() };
    let container = |name: &str, own: u64, caused: u64| ContainerView {
        identity: identify(&format!("/bulkhead.slice/bulkhead-{name}.slice/bulkhead-{name}-payload.slice")),
        journal: vec![FileSystemShare {
            device: "dm-0".to_owned(),
            journal: journal(caused),
            ..FileSystemShare::default()
        }],
        read_bytes: own * seconds,
        written_bytes: 0,
        device_seconds: 0.0,
        devices: vec![DeviceShare {
            device: "sda".to_owned(),
            seconds: 1.0,
            read_bytes: own * seconds,
            ..DeviceShare::default()
        }],
        fsync: Histogram::default(),
    };
    Activity {
        observed_seconds: f64::from(u32::try_from(seconds).unwrap()),
        containers: vec![container("a", 1 << 20, 1 << 20), container("b", 1 << 20, 0)],
        file_systems: vec![FileSystemView {
            device: "dm-0".to_owned(),
            mount_point: None,
            disks: vec!["sda".to_owned()],
            commits: seconds,
            journal: journal(1 << 20),
            unattributed: JournalBytes::default(),
            pending_bytes: 0,
            fsync: Histogram::default(),
        }],
        ..Activity::default()
    }
}

fn running_holds(engine: &Engine) -> RunningHolds {
    RunningHolds::new(engine.holds().unwrap())
}

fn steps(holds: &mut RunningHolds, engine: &Engine, seconds: std::ops::Range<u64>) {
    for second in seconds {
        holds.step(engine, Ok(seen(second)), second * SECOND);
    }
}

#[test]
fn weights_are_set_on_one_device_and_reset() {
    let (sim, engine) = host();
    let asked = request(&[("a", 70.0), ("b", 30.0)]);
    let dry = engine.hold_start(&asked, true).unwrap();
    assert_eq!((dry.steps.len(), weight(&sim, "a"), engine.holds().unwrap()), (6, None, vec![]));
    let tunables = || STRICT.map(|(tunable, _)| engine.host().tunable(DevNo::new(8, 0), tunable).unwrap());
    assert_eq!(tunables(), ["0", "1", "8"]);
    engine.hold_start(&asked, false).unwrap();
    assert_eq!(tunables(), ["1", "0", "20"]);
    assert_eq!((weight(&sim, "a").as_deref(), weight(&sim, "b").as_deref()), (Some("140"), Some("60")));
    assert!(engine.hold_start(&asked, false).unwrap().steps.is_empty());
    // A lease is recorded, and changes nothing else.
    let leased = HoldStart { lease_seconds: Some(30), ..asked };
    assert_eq!(engine.hold_start(&leased, false).unwrap().steps.len(), 1);
    let done = engine.hold_stop("/dev/sda", false).unwrap();
    let is_cap = |step: &Applied| matches!(step.action, Action::Cgroup(CgroupAction::LimitIo { .. }));
    assert!(done.steps.iter().all(|step| step.changed != is_cap(step)), "{done:?}");
    assert_eq!((weight(&sim, "a"), weight(&sim, "b"), engine.holds().unwrap()), (None, None, vec![]));
    assert_eq!(tunables(), ["0", "1", "8"]);
    assert!(engine.hold_stop("sda", false).unwrap().steps.is_empty());
}

#[test]
fn invalid_holds_are_refused_and_leave_nothing() {
    let (sim, engine) = host();
    let refused = |request: &HoldStart| engine.hold_start(request, false).unwrap_err();
    let code = |tenants: &[(&str, f64)]| refused(&request(tenants)).code;
    assert_eq!(code(&[("a", 1.0)]), Code::InvalidArgument);
    assert_eq!(code(&[("a", 1.0), ("b", 0.0)]), Code::InvalidArgument);
    assert_eq!(code(&[("a", 1.0), ("b", f64::NAN)]), Code::InvalidArgument);
    assert_eq!(code(&[("a", 1.0), ("a", 1.0)]), Code::InvalidArgument);
    assert_eq!(code(&[("a", 1.0), ("/bulkhead.slice/bulkhead-a.slice", 1.0)]), Code::InvalidArgument);
    assert_eq!(code(&[("a", 1.0), ("nobody", 1.0)]), Code::NotFound);
    assert_eq!(code(&[("a", 1.0), ("bulkhead.slice", 1.0)]), Code::Unsupported);
    let of = |device: &str| HoldStart { device: Some(device.to_owned()), ..request(&[("a", 1.0), ("b", 1.0)]) };
    assert_eq!(refused(&of("sdz")).code, Code::NotFound);
    assert_eq!(refused(&of("dm-0")).code, Code::Unsupported);
    engine.device_control("sda", &DeviceControl { policy: None }, false).unwrap();
    assert_eq!(refused(&of("sda")).code, Code::Unsupported);
    assert_eq!(code(&[("a", 1.0), ("b", 1.0)]), Code::Unsupported);
    assert_eq!((weight(&sim, "a"), weight(&sim, "b"), engine.holds().unwrap()), (None, None, vec![]));
}

#[test]
fn journal_io_lowers_the_weight_and_a_restart_continues() {
    let (sim, engine) = host();
    engine.hold_start(&request(&[("a", 1.0), ("b", 1.0)]), false).unwrap();
    let mut first = running_holds(&engine);
    steps(&mut first, &engine, 1..4);
    assert_eq!(weight(&sim, "a").as_deref(), Some("100"));
    steps(&mut first, &engine, 4..8);
    let lowered: u32 = weight(&sim, "a").unwrap().parse().unwrap();
    assert!(lowered < 100, "{:?}", first.views());
    assert!(weight(&sim, "b").unwrap().parse::<u32>().unwrap() > 100, "{lowered}");
    let view = &first.views()[0];
    assert_eq!((view.state.as_str(), view.standings[0].weight), ("corrected", lowered));
    assert!((view.standings[0].achieved_share - 2.0 / 3.0).abs() < 1e-9, "{view:?}");
    // A restarted daemon finds the record, and changes nothing before it has data.
    let mut second = running_holds(&engine);
    steps(&mut second, &engine, 8..12);
    assert_eq!(second.views()[0].state, "starting");
    assert_eq!(weight(&sim, "a"), Some(lowered.to_string()));
}

#[test]
fn a_hold_ends_by_the_devices_path_too() {
    let (sim, engine) = host();
    let hold = engine.hold_start(&request(&[("a", 1.0), ("b", 1.0)]), false).unwrap().object.unwrap();
    let mut holds = running_holds(&engine);
    assert_eq!(holds.begin(&engine, hold).state, "starting");
    engine.hold_stop("/dev/sda", false).unwrap();
    holds.end("/dev/sda");
    assert!(holds.is_empty());
    steps(&mut holds, &engine, 1..9);
    assert_eq!(weight(&sim, "a"), None);
}

#[test]
fn another_program_that_sets_a_weight_is_reported_and_left_alone() {
    let (sim, engine) = host();
    engine.hold_start(&request(&[("a", 1.0), ("b", 1.0)]), false).unwrap();
    let mut holds = running_holds(&engine);
    steps(&mut holds, &engine, 1..4);
    let theirs = Action::Cgroup(CgroupAction::SetWeight {
        cgroup: "bulkhead.slice/bulkhead-b.slice".parse().unwrap(),
        file: "io.bfq.weight".to_owned(),
        device: "sda".parse().unwrap(),
        weight: 777,
    });
    engine.executor.run_steps(vec![theirs], false).unwrap();
    steps(&mut holds, &engine, 4..20);
    let view = &holds.views()[0];
    assert_eq!((view.state.as_str(), view.corrections), ("other_writer", 0));
    assert!(view.reason.contains("from 100 to 777"), "{}", view.reason);
    assert_eq!(weight(&sim, "b").as_deref(), Some("777"));
}

#[test]
fn containers_and_controllers_may_disappear_during_a_hold() {
    let (sim, engine) = host();
    let leased = HoldStart { lease_seconds: Some(0), ..request(&[("a", 1.0), ("b", 1.0)]) };
    let hold = engine.hold_start(&leased, false).unwrap().object.unwrap();
    let mut holds = RunningHolds::default();
    holds.begin(&engine, Hold { lease_seconds: None, ..hold });
    steps(&mut holds, &engine, 1..8);
    // A container is removed.
    engine.tenant_remove(&"b".parse().unwrap(), true, false).unwrap();
    steps(&mut holds, &engine, 8..20);
    assert_eq!(holds.views()[0].state, "no_contenders");
    // The observation fails, and works again.
    holds.step(&engine, Err(Fault::new(Code::Unavailable, "observation", "gone")), 20 * SECOND);
    let view = &holds.views()[0];
    assert_eq!(
        (
            view.state.as_str(),
            health::hold_finding(&view.hold.device, &view.state, &view.reason).map(|found| found.object)
        ),
        ("failed", Some("device sda".to_owned()))
    );
    steps(&mut holds, &engine, 21..23);
    assert_eq!(holds.views()[0].state, "starting");
    // The controller is disabled.
    engine.device_control("sda", &DeviceControl { policy: None }, false).unwrap();
    steps(&mut holds, &engine, 23..24);
    assert_eq!(holds.views()[0].state, "failed");
    // The client is gone: the recorded lease has expired.
    let mut holds = running_holds(&engine);
    steps(&mut holds, &engine, 24..25);
    assert!(holds.is_empty() && engine.holds().unwrap().is_empty());
    assert_eq!(weight(&sim, "a"), None);
}

fn io_max(sim: &Sim, tenant: &str) -> Option<String> {
    sim.cgroup_file(format!("bulkhead.slice/bulkhead-{tenant}.slice"), "io.max sda")
}

#[test]
fn a_tenant_that_weights_do_not_restrain_is_capped_and_released() {
    let (sim, engine) = host();
    let limited = Action::Cgroup(CgroupAction::LimitIo {
        cgroup: "bulkhead.slice/bulkhead-b.slice".parse().unwrap(),
        device: "sda".parse().unwrap(),
        limit: IoMax { ops: RateLimit { read: Some(50), write: None }, bytes: Some(RateLimit::default()) },
    });
    engine.executor.run_steps(vec![limited], false).unwrap();
    // `a` gets two thirds, whatever its weight.
    let asked = request(&[("a", 95.0), ("b", 5.0)]);
    engine.hold_start(&asked, false).unwrap();
    let mut holds = running_holds(&engine);
    steps(&mut holds, &engine, 1..40);
    let view = &holds.views()[0];
    assert_eq!((view.state.as_str(), io_max(&sim, "a")), ("capped", None));
    let cap = view.standings[1].cap.unwrap();
    assert_eq!(io_max(&sim, "b"), Some(format!("rbps=max wbps=max riops={} wiops={cap}", cap.min(50))));
    assert!(view.reason.contains(&format!("b: it is capped at {cap} operations")), "{}", view.reason);
    // A repeated request keeps the limits from before the hold; a restarted daemon continues with the current cap.
    engine.hold_start(&HoldStart { lease_seconds: Some(60), ..asked }, false).unwrap();
    let mut second = running_holds(&engine);
    steps(&mut second, &engine, 40..43);
    assert_eq!(second.views()[0].state, "capped");
    assert!(io_max(&sim, "b").unwrap().ends_with(&format!("wiops={cap}")));
    // Without supervision the cap is lifted.
    second.step(&engine, Err(Fault::new(Code::Unavailable, "observation", "gone")), 43 * SECOND);
    assert_eq!(io_max(&sim, "b").as_deref(), Some("rbps=max wbps=max riops=50 wiops=max"));
    steps(&mut second, &engine, 44..80);
    assert!(second.views()[0].standings[1].cap.is_some());
    engine.hold_stop("sda", false).unwrap();
    assert_eq!(io_max(&sim, "b").as_deref(), Some("rbps=max wbps=max riops=50 wiops=max"));
}

#[test]
fn a_promised_latency_must_not_be_zero() {
    let (_, engine) = host();
    let mut asked = request(&[("a", 1.0), ("b", 1.0)]);
    asked.tenants[0].fsync_p99_us = Some(0);
    assert_eq!(engine.hold_start(&asked, false).unwrap_err().code, Code::InvalidArgument);
    asked.tenants[0].fsync_p99_us = Some(20_000);
    let hold = engine.hold_start(&asked, false).unwrap().object.unwrap();
    assert_eq!(hold.tenants[0].fsync_p99_us, Some(20_000));
}

#[test]
fn bfq_does_not_idle_for_tenants_that_wait_for_their_journal() {
    let (_, engine) = host();
    engine.hold_start(&request(&[("a", 1.0), ("b", 1.0)]), false).unwrap();
    let mut holds = running_holds(&engine);
    let mut run = |seconds: std::ops::Range<u64>, syncs: u64| {
        for second in seconds {
            let mut seen = seen(second);
            (0..syncs * second).for_each(|_| seen.containers[0].fsync.record(10_000));
            holds.step(&engine, Ok(seen), second * SECOND);
        }
        STRICT.map(|(tunable, _)| engine.host().tunable(DevNo::new(8, 0), tunable).unwrap())
    };
    assert_eq!(run(1..5, 1), ["1", "0", "20"]);
    assert_eq!(run(5..9, 20), ["0", "1", "8"]);
    assert_eq!(run(9..60, 0), ["0", "1", "8"]);
    assert_eq!(run(60..72, 0), ["1", "0", "20"]);
    engine.hold_stop("sda", false).unwrap();
}

/// Where the journal thread of `sda1` is, and the weights of `a` and of the thread beside it.
fn journal_placement(sim: &Sim, engine: &Engine) -> (String, Option<String>, Option<String>) {
    let thread = engine.host().journal_at(Path::new("/dev/sda1")).unwrap().cgroup;
    (
        thread.relative().to_owned(),
        weight(sim, "a"),
        sim.cgroup_file("bulkhead.slice/bulkhead-journal:bulkhead-a.slice", "io.bfq.weight sda"),
    )
}

#[test]
fn a_journal_thread_runs_beside_its_container_and_has_its_part_of_the_weight() {
    let (sim, engine) = host();
    let mut asked = request(&[("a", 1.0), ("b", 1.0)]);
    let refused = |asked: &HoldStart| engine.hold_start(asked, false).unwrap_err().code;
    for (path, code) in [("sda1", Code::InvalidArgument), ("/srv/xfs", Code::Unsupported)] {
        asked.tenants[0].journal = Some(path.into());
        assert_eq!(refused(&asked), code);
    }
    asked.tenants[0].journal = Some("/dev/sda1".into());
    asked.tenants[1].journal = Some("/dev/sda1".into());
    assert_eq!(refused(&asked), Code::InvalidArgument);
    asked.tenants[1].journal = None;
    engine.hold_start(&asked, false).unwrap();
    let leaf = "bulkhead.slice/bulkhead-journal:bulkhead-a.slice";
    assert_eq!(journal_placement(&sim, &engine), (leaf.to_owned(), Some("90".to_owned()), Some("10".to_owned())));
    let mut holds = running_holds(&engine);
    steps(&mut holds, &engine, 1..30);
    let (_, own, journal) = journal_placement(&sim, &engine);
    let [own, journal] = [own, journal].map(|weight| weight.unwrap().parse::<u32>().unwrap());
    let part = f64::from(journal) / f64::from(own + journal);
    assert!((part - 0.25).abs() < 0.05, "{own} and {journal}");
    assert_eq!(holds.views()[0].standings[0].weight, own + journal);
    // A repeated request keeps the thread's original cgroup.
    engine.hold_start(&HoldStart { lease_seconds: Some(60), ..asked }, false).unwrap();
    engine.hold_stop("sda", false).unwrap();
    assert_eq!(journal_placement(&sim, &engine), (String::new(), None, None));
}
