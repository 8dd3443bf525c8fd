use std::collections::VecDeque;

use crate::control::{TenantSample, Usage};

use super::*;

/// B does what its cap admits, and waits if it wants more. A's fsyncs take longer the more B does; their measured
/// latency is the maximum of the last 10 s.
#[derive(Default)]
struct Device {
    promises: Promises,
    latencies: VecDeque<f64>,
    /// B writes metadata, which bypasses caps.
    passes: bool,
}

const WANTS: f64 = 100.0;
const PROMISED: f64 = 0.050;

impl Device {
    fn ops(&self) -> f64 {
        match self.promises.limit("b").filter(|_| !self.passes) {
            Some(Limit::Ops(ops)) => ops.min(WANTS),
            other => {
                assert_eq!(other, None);
                WANTS
            }
        }
    }

    /// The next second.
    fn step(&mut self, latency: impl Fn(f64) -> f64) -> Option<Reason> {
        self.latencies.push_back(latency(self.ops()));
        if self.latencies.len() > 10 {
            self.latencies.pop_front();
        }
        let tenant = |fsync_p99, ops| {
            let usage = Usage { native: ops, journal: 0.0 };
            let waiting = if ops < WANTS { 0.9 } else { 0.2 };
            TenantSample { usage, waiting, weight: 100, ops, bytes: 4096.0 * ops, cap: None, fsync_p99 }
        };
        let p99 = self.latencies.iter().copied().fold(0.0, f64::max);
        let tenants = [("a".to_owned(), tenant(Some(p99), 10.0)), ("b".to_owned(), tenant(None, self.ops()))];
        let rate = |tenant: &TenantSample| Rate { ops: tenant.ops, bytes: tenant.bytes };
        let rates = tenants.iter().map(|(name, tenant)| (name.clone(), rate(tenant))).collect();
        let sample =
            Sample { at_ns: 0, busy: 1.0, is_partial: false, can_cap: true, largest: None, tenants: tenants.into() };
        let params = Params {
            parts: [("a".to_owned(), 0.5), ("b".to_owned(), 0.5)].into(),
            total_weight: 200.0,
            range: 1..=10_000,
            fsync_p99: [("a".to_owned(), PROMISED)].into(),
        };
        self.promises.step(&sample, &rates, &params, 1.0)
    }

    fn run(&mut self, latency: impl Fn(f64) -> f64, seconds: usize) -> Option<Reason> {
        (0..seconds).filter_map(|_| self.step(&latency)).last()
    }
}

fn why(reason: Option<&Reason>) -> Option<LatencyMiss> {
    match reason {
        Some(Reason::LatencyMissed { tenant, why, .. }) if tenant == "a" => Some(*why),
        _ => None,
    }
}

#[test]
fn a_promise_is_kept_without_slowing_others_more_than_needed() {
    // Kept with at most 44 operations per second.
    let latency = |ops: f64| 0.010 + 0.0009 * ops;
    let mut device = Device::default();
    assert_eq!(device.run(latency, 60), None);
    let (mut n_missed, mut done) = (0, 0.0);
    for _ in 0..1200 {
        device.step(latency);
        n_missed += usize::from(latency(device.ops()) > PROMISED);
        done += device.ops() / 1200.0;
    }
    assert!(n_missed < 60, "missed in {n_missed} s");
    assert!(done > 0.6 * 44.0, "only {done} operations a second");
    // The disk is fast all of a sudden: the cap is lifted.
    device.run(|_| 0.001, 120);
    assert_eq!((device.promises.limit("b"), device.promises.before), (None, None));
}

#[test]
fn caps_that_do_not_help_are_lifted() {
    let latency = |ops: f64| if ops > 5.0 { 0.100 } else { 0.010 };
    let mut device = Device::default();
    let mut least = WANTS;
    for _ in 0..60 {
        device.step(latency);
        least = least.min(device.ops());
    }
    assert_eq!((least, device.ops()), (FLOOR * 0.5 * WANTS, WANTS));
    let mut n_held = 0;
    for _ in 0..240 {
        assert_eq!(why(device.step(latency).as_ref()), Some(LatencyMiss::NoHelp));
        n_held += usize::from(device.ops() < WANTS);
    }
    assert_eq!(n_held, 0);
    // Some minutes later the load is another one.
    let latency = |ops: f64| 0.010 + 0.0009 * ops;
    assert_eq!(device.run(latency, 120).map(|_| ()), Some(()));
    assert!(latency(device.ops()) <= PROMISED, "{}", device.ops());
}

#[test]
fn caps_that_are_bypassed_are_lifted() {
    let mut device = Device { passes: true, ..Device::default() };
    let steps: Vec<_> = (0..60).map(|_| why(device.step(|_| 0.100).as_ref())).collect();
    assert_eq!(steps.last(), Some(&Some(LatencyMiss::PastCaps)));
    assert_eq!(steps.iter().filter(|why| why.is_some()).count(), 50, "{steps:?}");
    assert_eq!(device.promises.limit("b"), None);
    // Once it writes data, it is capped again.
    device.passes = false;
    assert_eq!(why(device.run(|ops| 0.010 + 0.0009 * ops, 200).as_ref()), Some(LatencyMiss::PastCaps), "for 5 minutes");
    device.run(|ops| 0.010 + 0.0009 * ops, 200);
    assert!(device.ops() < WANTS);
}

#[test]
fn others_stay_at_their_floor_if_that_helps_without_being_enough() {
    let mut device = Device::default();
    let last = device.run(|ops| 0.055 + 0.002 * ops, 120);
    assert_eq!((why(last.as_ref()), device.ops()), (Some(LatencyMiss::AtFloor), FLOOR * 0.5 * WANTS));
}

#[test]
fn existing_caps_are_not_lowered() {
    let cap = Limit::Ops(30.0);
    let mut device = Device { promises: Promises::resume([("b".to_owned(), cap)].into_iter()), ..Device::default() };
    assert_eq!(why(device.run(|_| 0.100, 60).as_ref()), Some(LatencyMiss::AtFloor));
    assert_eq!(device.promises.limit("b"), Some(cap));
    device.promises.retain(&BTreeMap::new());
    assert_eq!(device.promises.limit("b"), None);
}
