//! Tests on a simulated host whose device is always busy, and whose tenants get the same whatever their weights are:
//! `a` has journal I/O on top and wants more than it gets, so that `b` gets capped.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::action::{CgroupAction, QueueAction};
use crate::control::Reason;
use crate::control::own_caps::limits_with_cap;
use crate::control::reading::Counters;
use crate::identity::identify;
use crate::model::{HeldJournal, IoMax, Mode, RateLimit, Unit};
use crate::observe::activity::{ContainerView, DeviceShare, FileSystemShare, FileSystemView, JournalBytes};

const SECOND: u64 = 1_000_000_000;
const NAMES: [&str; 2] = ["a", "b"];
/// The cgroup of `a`'s journal thread.
const BESIDE: &str = "journal:a";

struct Host {
    at_ns: u64,
    seconds: u64,
    weights: BTreeMap<String, u32>,
    limits: BTreeMap<String, IoMax>,
    tunables: BTreeMap<String, String>,
    fsyncs: Histogram,
    /// The latencies of all fsyncs on the file system, `dm-0`.
    fsyncs_there: Histogram,
    /// The tenant with a volume on it.
    owner: Option<&'static str>,
    /// Bytes per second of `a`'s journal thread; `None` if that is in the root cgroup.
    journal_bytes: Option<u64>,
}

/// `a` is to have 95 %.
fn hold(before: IoMax, has_journal: bool) -> Hold {
    let tenant = |name: &str, share_ppm| HeldTenant {
        name: name.to_owned(),
        share_ppm,
        identity: identify(&format!("/{name}")),
        cgroup: name.parse().unwrap(),
        iops_before: before.ops,
        bytes_before: before.bytes,
        fsync_p99_us: None,
        journal: (has_journal && name == "a")
            .then(|| HeldJournal { device: "dm-0".parse().unwrap(), cgroup: BESIDE.parse().unwrap() }),
    };
    Hold {
        device: "sda".parse().unwrap(),
        unit: Unit::Bytes,
        mode: Mode::Correcting,
        weight_file: "io.bfq.weight".to_owned(),
        total_weight: 200,
        tenants: vec![tenant("a", 950_000), tenant("b", 50_000)],
        tunables: [("low_latency".to_owned(), "1".to_owned()), ("slice_idle".to_owned(), "8".to_owned())].into(),
        lease_seconds: None,
        for_promises: false,
    }
}

impl Host {
    fn new(hold: &Hold) -> Self {
        let mut weights: BTreeMap<String, u32> = NAMES.map(|name| (name.to_owned(), 100)).into();
        if hold.tenants[0].journal.is_some() {
            weights.extend([("a".to_owned(), 90), (BESIDE.to_owned(), 10)]);
        }
        Self {
            at_ns: 0,
            seconds: 0,
            weights,
            limits: hold.tenants.iter().map(|tenant| (tenant.cgroup.to_string(), tenant.before())).collect(),
            tunables: hold.tunables.clone(),
            fsyncs: Histogram::default(),
            fsyncs_there: Histogram::default(),
            owner: None,
            journal_bytes: hold.tenants[0].journal.is_some().then_some(1 << 20),
        }
    }

    fn seen(&self) -> Activity {
        let seconds = self.seconds;
        let journal = |bytes: u64| JournalBytes { commit_bytes: bytes * seconds, ..JournalBytes::default() };
        let container = |name: &str, caused: u64, fsync: Histogram| ContainerView {
            identity: identify(&format!("/{name}")),
            journal: vec![FileSystemShare {
                device: "dm-0".to_owned(),
                journal: journal(caused),
                ..FileSystemShare::default()
            }],
            read_bytes: seconds << 20,
            written_bytes: 0,
            device_seconds: 0.0,
            devices: vec![DeviceShare {
                device: "sda".to_owned(),
                read_bytes: seconds << 20,
                ..DeviceShare::default()
            }],
            fsync,
        };
        Activity {
            observed_seconds: f64::from(u32::try_from(seconds).unwrap()),
            containers: vec![container("a", 1 << 20, self.fsyncs.clone()), container("b", 0, Histogram::default())],
            file_systems: vec![FileSystemView {
                device: "dm-0".to_owned(),
                mount_point: None,
                disks: vec!["sda".to_owned()],
                commits: seconds,
                journal: journal(1 << 20),
                unattributed: JournalBytes::default(),
                pending_bytes: 0,
                fsync: self.fsyncs_there.clone(),
            }],
            ..Activity::default()
        }
    }

    /// The next second.
    fn read(&mut self) -> Reading {
        self.seconds += 1;
        self.at_ns += SECOND;
        let seconds = self.seconds;
        let counters = |name: &str| {
            let journal_bytes = if name == "a" { self.journal_bytes.unwrap_or(0) * seconds } else { 0 };
            let beside = if name == "a" { self.weights.get(BESIDE).copied().unwrap_or(0) } else { 0 };
            Counters {
                weight: self.weights[name] + beside,
                limit: Some(self.limits[name]),
                waited: Duration::from_secs(seconds),
                operations: 100 * seconds,
                moved_bytes: seconds << 20,
                journal_bytes,
                has_journal: journal_bytes > 0,
            }
        };
        Reading {
            at_ns: self.at_ns,
            seen: Arc::new(self.seen()),
            busy: Duration::from_secs(seconds),
            cost_used: Duration::ZERO,
            largest: None,
            tenants: NAMES.map(|name| (name.to_owned(), counters(name))).into(),
            volumes: self.owner.iter().map(|name| ((*name).to_owned(), vec!["dm-0".to_owned()])).collect(),
        }
    }

    /// The next second, and its result.
    fn next(&mut self, holding: &mut Holding) -> Option<HoldStep> {
        let reading = self.read();
        self.carry_out(holding, reading)
    }

    fn carry_out(&mut self, holding: &mut Holding, reading: Reading) -> Option<HoldStep> {
        let turn = holding.step(reading)?;
        for action in &turn.actions {
            match action.clone() {
                Action::Cgroup(CgroupAction::SetWeight { cgroup, file, device, weight }) => {
                    assert_eq!((file.as_str(), device.as_str()), ("io.bfq.weight", "sda"));
                    self.weights.insert(cgroup.to_string(), weight);
                }
                Action::Cgroup(CgroupAction::LimitIo { cgroup, limit, .. }) => {
                    self.limits.insert(cgroup.to_string(), limit);
                }
                Action::Queue(QueueAction::SetTunable { tunable, value, .. }) => {
                    self.tunables.insert(tunable, value);
                }
                other => panic!("{other}"),
            }
        }
        holding.carried_out(&turn.step);
        Some(turn)
    }
}

fn is_limit(action: &Action) -> bool {
    matches!(action, Action::Cgroup(CgroupAction::LimitIo { .. }))
}

/// No limits, recorded by a version that knows limits on bytes.
fn unlimited() -> IoMax {
    IoMax { bytes: Some(RateLimit::default()), ..IoMax::default() }
}

fn limits() -> impl Strategy<Value = IoMax> {
    let one = || prop_oneof![Just(None), (1u64..100).prop_map(Some)];
    let rates = || (one(), one()).prop_map(|(read, write)| RateLimit { read, write });
    (rates(), rates()).prop_map(|(ops, bytes)| IoMax { ops, bytes: Some(bytes) })
}

#[test]
fn a_tenant_that_no_weight_restricts_is_capped_and_its_cap_survives_a_restart() {
    let hold = hold(IoMax { ops: RateLimit { read: Some(50), write: None }, ..unlimited() }, false);
    let (mut host, mut first) = (Host::new(&hold), Holding::new(hold.clone()));
    assert_eq!(host.next(&mut first), None, "a single reading has no differences");
    (0..40).for_each(|_| drop(host.next(&mut first)));
    let cap = first.cap("b").unwrap();
    assert_eq!((first.cap("a"), host.limits["b"]), (None, limits_with_cap(hold.tenants[1].before(), Some(cap))));
    let mut second = Holding::new(hold.clone());
    assert_eq!(host.next(&mut second), None);
    for _ in 0..4 {
        let turn = host.next(&mut second).unwrap();
        assert!(!turn.actions.iter().any(is_limit), "{turn:?}");
        assert_eq!(second.cap("b"), Some(cap));
    }
    // The hold cannot continue: its caps are lifted.
    let lift = second.lift();
    assert_eq!(lift, [set_cap(&hold, &hold.tenants[1], None)]);
    second.lifted();
    assert!(second.lift().is_empty() && second.cap("b").is_none());
    second.reset();
    assert_eq!(host.next(&mut second), None);
}

#[test]
fn a_hold_that_continues_with_other_limits_and_tenants_keeps_its_caps() {
    let first = hold(unlimited(), false);
    let (mut host, mut holding) = (Host::new(&first), Holding::new(first.clone()));
    (0..40).for_each(|_| drop(host.next(&mut holding)));
    let cap = holding.cap("b").unwrap();
    // The operator limits `b`, and the hold applies the limit with its cap.
    let limit = IoMax { ops: RateLimit { read: Some(10), write: None }, ..unlimited() };
    let mut limited = first.clone();
    (limited.tenants[1].iops_before, limited.tenants[1].bytes_before) = (limit.ops, limit.bytes);
    let actions = holding.continue_with(limited.clone());
    assert_eq!(actions, [set_cap(&limited, &limited.tenants[1], Some(cap))]);
    host.limits.insert("b".to_owned(), limits_with_cap(limit, Some(cap)));
    let step = host.next(&mut holding).unwrap().step;
    assert!(!step.reason.is_other_writer() && step.reason != Reason::Starting, "{step:?}");
    assert_eq!(holding.continue_with(limited.clone()), []);
    // `b` leaves, and comes back with the limits that it had without a cap.
    let alone = Hold { tenants: limited.tenants[..1].to_vec(), ..limited.clone() };
    assert_eq!(holding.continue_with(alone), []);
    host.limits.insert("b".to_owned(), limit);
    drop(host.next(&mut holding));
    assert_eq!((holding.continue_with(limited), holding.cap("b")), (vec![], None));
    let step = host.next(&mut holding).unwrap().step;
    assert!(!step.reason.is_other_writer() && step.reason != Reason::Starting, "{step:?}");
    (0..40).for_each(|_| drop(host.next(&mut holding)));
    assert!(holding.cap("b").is_some());
}

#[test]
fn a_shared_journal_lifts_caps_and_keeps_them_off() {
    let hold = hold(unlimited(), false);
    let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold));
    (0..40).for_each(|_| drop(host.next(&mut holding)));
    assert!(holding.cap("b").is_some());
    let mut shared = host.read();
    let mut seen = Activity::clone(&shared.seen);
    seen.containers[1].journal[0].journal.commit_bytes = 1;
    shared.seen = Arc::new(seen);
    let turn = host.carry_out(&mut holding, shared).unwrap();
    assert_eq!((turn.step.caps.get("b"), holding.cap("b"), host.limits["b"]), (Some(&None), None, unlimited()));
    (0..60).for_each(|_| assert!(!host.next(&mut holding).unwrap().actions.iter().any(is_limit)));
    assert!((0..10).any(|_| host.next(&mut holding).unwrap().actions.iter().any(is_limit)), "a minute is over");
}

#[test]
fn tunables_are_set_once_and_restored_during_fsyncs() {
    let hold = hold(unlimited(), false);
    let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold.clone()));
    let mut run = |seconds: usize, syncs: usize| {
        let is_tunable = |action: &Action| matches!(action, Action::Queue(QueueAction::SetTunable { .. }));
        let mut n_set = 0;
        for _ in 0..seconds {
            (0..syncs).for_each(|_| host.fsyncs.record(10_000));
            let turn = host.next(&mut holding);
            n_set += turn.map_or(0, |turn| turn.actions.iter().filter(|action| is_tunable(action)).count());
        }
        (n_set, host.tunables.clone())
    };
    let strict = hold.tunables.keys().map(|name| (name.clone(), strict_value(name).unwrap().to_owned())).collect();
    assert_eq!(run(5, 4), (2, strict));
    assert_eq!(run(1, 5), (2, hold.tunables.clone()));
    assert_eq!(run(60, 0), (0, hold.tunables.clone()));
    assert_eq!(run(1, 0).0, 2);
}

#[test]
fn fsyncs_on_a_tenants_volume_are_its_own_whichever_process_calls_them() {
    let mut hold = hold(unlimited(), false);
    hold.tenants.iter_mut().for_each(|tenant| tenant.fsync_p99_us = Some(1_000_000));
    let p99 = |owner, disk: &str| {
        let hold = Hold { device: disk.parse().unwrap(), ..hold.clone() };
        let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold));
        host.owner = owner;
        let mut step = || {
            host.fsyncs.record(10_000);
            host.fsyncs_there.record(500_000);
            let reading = host.read();
            holding.step(reading)
        };
        let found = (0..3).filter_map(|_| step()).last().unwrap().fsync_p99;
        found.into_iter().map(|(name, p99)| (name, p99 > 0.4)).collect::<BTreeMap<_, _>>()
    };
    let is_slow = |names: &[(&str, bool)]| names.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect();
    assert_eq!(p99(None, "sda"), is_slow(&[("a", false)]));
    assert_eq!(p99(Some("a"), "sda"), is_slow(&[("a", true)]));
    assert_eq!(p99(Some("b"), "sda"), is_slow(&[("a", false), ("b", true)]));
    // Its volume is on another device.
    assert_eq!(p99(Some("a"), "sdb"), is_slow(&[("a", false)]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// From the second in which another program writes `io.max` until it has its old value, no weight and no limit is
    /// written.
    #[test]
    fn a_foreign_limit_is_neither_overwritten_nor_lifted(
        before in limits(), foreign in limits(), whose in 0..2usize, at in 2..60usize, has_journal: bool,
    ) {
        let hold = hold(before, has_journal);
        let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold));
        (0..at).for_each(|_| drop(host.next(&mut holding)));
        let whose = NAMES[whose];
        let was = host.limits.insert(whose.to_owned(), foreign).unwrap();
        prop_assume!(was != foreign);
        for _ in 0..30 {
            let turn = host.next(&mut holding).unwrap();
            let is_written = |action: &Action| is_limit(action) || matches!(action, Action::Cgroup(CgroupAction::SetWeight { .. }));
            prop_assert!(!turn.actions.iter().any(is_written), "{foreign} for {was}: {turn:?}");
            prop_assert!(matches!(&turn.step.reason, Reason::OtherCap { tenant, .. } if tenant == whose), "{turn:?}");
        }
        host.limits.insert(whose.to_owned(), was);
        prop_assert!(!host.next(&mut holding).unwrap().step.reason.is_other_writer());
    }

    /// Whatever happens between two readings: the weights of `a` and its thread add up to the reported one, and neither
    /// is zero.
    #[test]
    fn weights_of_a_container_and_its_journal_thread_sum_to_its_weight(
        course in prop::collection::vec((0u64..4 * SECOND, 0u64..1 << 24), 1..60)
    ) {
        let hold = hold(unlimited(), true);
        let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold));
        for (ns, journal_bytes) in course {
            host.at_ns += ns;
            host.journal_bytes = Some(journal_bytes);
            let Some(turn) = host.next(&mut holding) else { continue };
            let (own, beside) = (host.weights["a"], host.weights[BESIDE]);
            prop_assert!(own >= 1 && beside >= 1 && own + beside == turn.weights["a"], "{own}, {beside}: {turn:?}");
        }
    }

    /// A clock that stands still, goes back or jumps produces only finite figures, and nothing that the kernel would
    /// refuse.
    #[test]
    fn any_clock_is_harmless(
        times in prop::collection::vec(prop_oneof![3 => (0u64..12).prop_map(|second| second * SECOND), 1 => any::<u64>()], 2..40)
    ) {
        let hold = hold(unlimited(), true);
        let (mut host, mut holding) = (Host::new(&hold), Holding::new(hold));
        for at_ns in times {
            let reading = Reading { at_ns, ..host.read() };
            let Some(turn) = host.carry_out(&mut holding, reading) else { continue };
            let sample = holding.sample(Reading { at_ns, ..host.read() }).expect("it is not the first one");
            prop_assert!((0.0..=1.0).contains(&sample.busy), "{sample:?}");
            let is_sane = |tenant: &TenantSample| tenant.ops.is_finite() && (0.0..=1.0).contains(&tenant.waiting);
            prop_assert!(sample.tenants.values().all(is_sane), "{sample:?}");
            prop_assert!(turn.weights.values().all(|weight| (1..=1000).contains(weight)), "{turn:?}");
            let figures = turn.step.tenants.values().flat_map(|standing| [standing.target, standing.achieved]);
            prop_assert!(figures.into_iter().all(f64::is_finite), "{turn:?}");
            prop_assert!(holding.splits.values().all(|split| split.fraction().is_finite()), "{turn:?}");
        }
    }
}
