//! Tests through the whole controller, on a device whose tenants get equal parts whatever their weights are.

use proptest::prelude::*;

use crate::control::correcting::{State, step};
use crate::control::promise::FLOOR;
use crate::control::{LatencyMiss, Step, TenantSample, Usage};

use super::*;

const SECOND: u64 = 1_000_000_000;
/// The device's operations per second.
const OPS: f64 = 1000.0;
/// Their size, bytes.
const SIZE: f64 = 131_072.0;

/// A device with two tenants that wait for each of their operations.
struct Device {
    /// What each tenant can do at most, as a fraction of the device.
    wants: [f64; 2],
    /// The size of each tenant's operations, as a multiple of [`SIZE`]; their duration is proportional.
    sizes: [f64; 2],
    caps: [Option<Cap>; 2],
    weights: [u32; 2],
    seconds: u64,
    can_cap: bool,
    largest: Option<f64>,
    /// Whether caps admit whole operations in each slice of 0.1 s.
    slices: bool,
    /// Latency of A's fsyncs on an idle device, and while B uses all of it, s.
    fsync: (f64, f64),
}

const NAMES: [&str; 2] = ["a", "b"];

impl Device {
    fn new(wants: [f64; 2]) -> Self {
        Self {
            wants,
            sizes: [1.0; 2],
            caps: [None; 2],
            weights: [100; 2],
            seconds: 0,
            can_cap: true,
            largest: None,
            slices: false,
            fsync: (0.010, 0.050),
        }
    }

    /// Each tenant's fraction of the device: half, or what it wants, or its cap, or what the other one leaves.
    fn parts(&self) -> [f64; 2] {
        let allows = |n: usize, cap: Cap| {
            let rounded = |ops: f64| {
                if self.slices && ops >= SLICES_PER_SECOND {
                    SLICES_PER_SECOND * (ops / SLICES_PER_SECOND).floor()
                } else {
                    ops
                }
            };
            let ops = cap.ops.map_or(1.0, |ops| rounded(f64::from(ops)) * self.sizes[n] / OPS);
            cap.bytes.map_or(ops, |bytes| ops.min(bytes as f64 / (OPS * SIZE)))
        };
        let wants = [0, 1].map(|n| self.caps[n].map_or(self.wants[n], |cap| self.wants[n].min(allows(n, cap))));
        let left = [1, 0].map(|other| (1.0 - wants[other]).max(0.5));
        [wants[0].min(left[0]), wants[1].min(left[1])]
    }

    fn second(&mut self) -> Sample {
        self.seconds += 1;
        let parts = self.parts();
        let tenant = |n: usize| {
            let usage = Usage { native: parts[n], journal: 0.0 };
            let waiting = if parts[n] < self.wants[n] { 0.9 } else { 0.2 };
            let fsync_p99 = (n == 0).then_some(self.fsync.0 + (self.fsync.1 - self.fsync.0) * parts[1]);
            let (weight, cap) = (self.weights[n], self.caps[n]);
            let (ops, bytes) = (OPS * parts[n] / self.sizes[n], OPS * parts[n] * SIZE);
            (NAMES[n].to_owned(), TenantSample { usage, waiting, weight, ops, bytes, cap, fsync_p99 })
        };
        Sample {
            at_ns: self.seconds * SECOND,
            busy: parts[0] + parts[1],
            is_partial: false,
            can_cap: self.can_cap,
            largest: self.largest,
            tenants: [tenant(0), tenant(1)].into(),
        }
    }

    /// A's mean fraction of the device.
    fn mean_of_a(&mut self, state: &mut State, params: &Params, seconds: u32) -> f64 {
        let parts = (0..seconds).map(|_| {
            self.run(state, params, 1);
            self.parts()[0]
        });
        parts.sum::<f64>() / f64::from(seconds)
    }

    fn run(&mut self, state: &mut State, params: &Params, seconds: usize) -> Step {
        let mut last = Step::default();
        for _ in 0..seconds {
            let sample = self.second();
            last = step(state, &sample, params);
            for (n, name) in NAMES.iter().enumerate() {
                self.weights[n] = last.changes.get(*name).copied().unwrap_or(self.weights[n]);
                self.caps[n] = last.caps.get(*name).copied().unwrap_or(self.caps[n]);
            }
        }
        last
    }
}

fn params(part_of_a: f64, fsync_p99: Option<f64>) -> Params {
    Params {
        parts: [("a".to_owned(), part_of_a), ("b".to_owned(), 1.0 - part_of_a)].into(),
        total_weight: 200.0,
        range: 1..=10_000,
        fsync_p99: fsync_p99.into_iter().map(|p99| ("a".to_owned(), p99)).collect(),
    }
}

/// Operations of 128 KiB.
fn rate(ops: f64) -> Rate {
    Rate { ops, bytes: SIZE * ops }
}

fn assert_near(found: f64, wanted: f64) {
    assert!((found - wanted).abs() < 0.02, "{found}, {wanted}");
}

#[test]
fn a_tenant_above_its_share_is_capped_where_weights_have_no_effect() {
    for part in [0.6, 0.7, 0.9] {
        let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
        let last = device.run(&mut state, &params(part, None), 60);
        assert!(matches!(&last.reason, Reason::Capped { tenant, .. } if tenant == "b"), "{last:?}");
        assert_eq!(device.caps[0], None);
        for _ in 0..30 {
            device.run(&mut state, &params(part, None), 1);
            assert_near(device.parts()[0], part);
        }
    }
}

/// Writeback of a stream of small writes issues larger or smaller operations from one second to the next.
#[test]
fn a_cap_on_bytes_holds_for_any_size_of_operation() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.largest = Some(4.0 * SIZE);
    device.run(&mut state, &params(0.7, None), 60);
    assert!(matches!(device.caps, [None, Some(Cap { ops: None, bytes: Some(_) })]), "{:?}", device.caps);
    for size in [2.0, 4.0, 0.5, 1.0] {
        device.sizes[1] = size;
        for _ in 0..10 {
            device.run(&mut state, &params(0.7, None), 1);
            assert_near(device.parts()[0], 0.7);
        }
    }
}

/// A limit on bytes suits neither many small operations nor those that the kernel splits.
#[test]
fn small_and_maximum_size_operations_are_capped_by_number() {
    for (size, largest) in [(1.0 / 16.0, 4.0), (1.0, 1.5), (4.0, 4.0)] {
        let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
        device.largest = Some(largest * SIZE);
        device.sizes[1] = size;
        device.run(&mut state, &params(0.7, None), 60);
        assert!(matches!(device.caps, [None, Some(Cap { ops: Some(_), bytes: None })]), "{size}: {:?}", device.caps);
        assert_near(device.mean_of_a(&mut state, &params(0.7, None), 8), 0.7);
    }
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.largest = Some(4.0 * SIZE);
    device.run(&mut state, &params(0.7, None), 60);
    device.sizes[1] = 1.0 / 16.0;
    device.run(&mut state, &params(0.7, None), 20);
    assert!(matches!(device.caps, [None, Some(Cap { ops: Some(_), bytes: None })]), "{:?}", device.caps);
    assert_near(device.parts()[0], 0.7);
}

/// If weights have some effect after all, as with debt of journal writes, the cap enforces the share, and weights stay
/// ideal.
#[test]
fn weights_add_nothing_to_a_cap() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 15);
    assert!(device.weights[0] > 150, "{:?}", device.weights);
    device.run(&mut state, &params(0.7, None), 45);
    assert!(device.caps[1].is_some());
    assert_eq!(device.weights, [140, 60]);
}

/// B has a cap already, and C gets what B lacks.
#[test]
fn a_tenant_short_of_its_share_below_its_cap_gets_others_capped() {
    let standing = |target: f64, achieved: f64| Standing { target, achieved, contends: true, ..Standing::default() };
    let standings = [("b".to_owned(), standing(0.5, 0.3)), ("c".to_owned(), standing(0.5, 0.7))].into();
    let waiting = ["b", "c"].map(|name| (name.to_owned(), 1.0)).into();
    for (cap, does, is_capped) in [(100.0, 70.0, true), (100.0, 90.0, false), (19.0, 9.0, false), (30.0, 12.0, true)] {
        let mut caps = Caps { share: [("b".to_owned(), Limit::Ops(cap))].into(), ..Caps::default() };
        caps.adjust_to_shares(&Recent {
            busy: 1.0,
            rates: &[("b".to_owned(), rate(does)), ("c".to_owned(), rate(300.0))].into(),
            standings: &standings,
            largest: None,
            waiting: &waiting,
            is_ineffective: false,
            seconds: 0.0,
        });
        assert_eq!(caps.cap("c").is_some(), is_capped, "{does} of {cap}");
    }
}

/// If it were lifted at once, the queue behind it would be released at once, and starve all others until it is set
/// again.
#[test]
fn a_cap_that_is_not_reached_rises_before_it_is_lifted() {
    let standing = |target: f64| Standing { target, achieved: target, contends: true, ..Standing::default() };
    let standings = [("a".to_owned(), standing(0.7)), ("b".to_owned(), standing(0.3))].into();
    for (cap, waiting, is_lifted) in [(17.0, 1.0, false), (17.0, 0.0, true), (50.0, 1.0, true)] {
        let mut caps = Caps { share: [("b".to_owned(), Limit::Ops(cap))].into(), ..Caps::default() };
        caps.adjust_to_shares(&Recent {
            busy: 0.5,
            rates: &[("a".to_owned(), rate(700.0)), ("b".to_owned(), rate(10.0))].into(),
            standings: &standings,
            largest: None,
            waiting: &[("a".to_owned(), 1.0), ("b".to_owned(), waiting)].into(),
            is_ineffective: false,
            seconds: 1.0,
        });
        assert_eq!(caps.cap("b").is_none(), is_lifted, "{cap} with {waiting}");
    }
}

#[test]
fn few_large_operations_are_capped_between_whole_ones_per_slice() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    // B's 30 % are 18.75 operations: the kernel admits 10 or 20.
    (device.sizes[1], device.slices) = (16.0, true);
    device.run(&mut state, &params(0.7, None), 60);
    for _ in 0..20 {
        assert_near(device.mean_of_a(&mut state, &params(0.7, None), 8), 0.7);
    }
}

#[test]
fn a_cap_is_lifted_when_its_beneficiary_stops() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 60);
    device.wants[0] = 0.0;
    let last = device.run(&mut state, &params(0.7, None), 20);
    assert_eq!((device.caps, last.reason), ([None; 2], Reason::NoContenders));
    device.wants[0] = 1.0;
    device.run(&mut state, &params(0.7, None), 60);
    assert_near(device.parts()[0], 0.7);
}

#[test]
fn capacity_that_no_other_tenant_can_use_is_not_taken_away() {
    let (mut device, mut state) = (Device::new([0.55, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 60);
    let mut done = 0.0;
    for _ in 0..100 {
        device.run(&mut state, &params(0.7, None), 1);
        done += device.parts().iter().sum::<f64>() / 100.0;
    }
    assert!(done > 0.85, "{done}");
}

#[test]
fn tenants_that_share_a_journal_are_not_capped() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 60);
    assert!(device.caps[1].is_some());
    device.can_cap = false;
    let last = device.run(&mut state, &params(0.7, None), 30);
    assert_eq!(device.caps, [None; 2]);
    assert!(matches!(last.reason, Reason::Ineffective { .. }), "{last:?}");
}

#[test]
fn others_are_slowed_down_for_a_promised_latency_down_to_their_floor() {
    // A wants little, so that it does not contend. Its latency is 20 ms while B has a quarter of the device.
    let run = |promised: f64, can_cap: bool| {
        let mut device = Device { can_cap, ..Device::new([0.05, 1.0]) };
        let mut state = State::default();
        let last = device.run(&mut state, &params(0.5, Some(promised)), 120);
        (device, state, last)
    };
    let (mut device, mut state, last) = run(0.020, true);
    assert!(device.second().tenants["a"].fsync_p99.unwrap() <= 0.020, "{last:?}");
    assert!(matches!(last.reason, Reason::Capped { .. }), "{last:?}");
    // The disk is faster now: B gets the whole device again.
    device.fsync = (0.005, 0.006);
    device.run(&mut state, &params(0.5, Some(0.020)), 180);
    assert_eq!(device.caps, [None; 2]);
    let (device, _, last) = run(0.011, true);
    let missed = |last: &Step| match &last.reason {
        Reason::LatencyMissed { why, .. } => Some(*why),
        _ => None,
    };
    assert_eq!(missed(&last), Some(LatencyMiss::AtFloor));
    assert_near(device.parts()[1], FLOOR * 0.5 * 0.95);
    let (device, _, last) = run(0.020, false);
    assert_eq!((missed(&last), device.caps), (Some(LatencyMiss::NoCaps), [None; 2]));
}

#[test]
fn a_new_state_continues_with_existing_caps() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 60);
    let before = device.caps;
    let mut state = State::default();
    device.run(&mut state, &params(0.7, None), 3);
    assert_eq!(device.caps, before);
    device.run(&mut state, &params(0.7, None), 30);
    assert_near(device.parts()[0], 0.7);
}

#[test]
fn a_limit_that_another_program_writes_is_reported_and_left_alone() {
    let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
    device.run(&mut state, &params(0.7, None), 60);
    let expected = device.caps[1];
    let found = Some(Cap { ops: Some(7), bytes: None });
    device.caps[1] = found;
    let last = device.run(&mut state, &params(0.7, None), 10);
    assert_eq!(device.caps[1], found);
    assert_eq!(last.reason, Reason::OtherCap { tenant: "b".to_owned(), found, expected });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Also a tenant without I/O of its own, whose part is all journal I/O.
    #[test]
    fn no_cap_falls_below_the_minimum_for_any_measurement(
        course in prop::collection::vec(([0.0..1.0f64, 0.0..1.0], [0u32..2000, 0..2000], [0u64..1 << 32, 0..1 << 32]), 1..60),
        largest in prop::option::of(4096.0..4e6),
        has_promise: bool,
    ) {
        let params = params(0.7, has_promise.then_some(0.02));
        let (mut device, mut state) = (Device::new([1.0, 1.0]), State::default());
        device.largest = largest;
        for (parts, ops, bytes) in course {
            let mut sample = device.second();
            sample.busy = 1.0;
            for (n, tenant) in sample.tenants.values_mut().enumerate() {
                tenant.usage = Usage { native: 0.0, journal: parts[n] };
                (tenant.ops, tenant.bytes) = (f64::from(ops[n]), bytes[n] as f64);
            }
            let step = step(&mut state, &sample, &params);
            for (n, name) in NAMES.iter().enumerate() {
                device.weights[n] = step.changes.get(*name).copied().unwrap_or(device.weights[n]);
                device.caps[n] = step.caps.get(*name).copied().unwrap_or(device.caps[n]);
            }
            for cap in device.caps.into_iter().flatten() {
                let is_enough = cap.ops.is_none_or(|ops| f64::from(ops) >= MIN_OPS)
                    && cap.bytes.is_none_or(|bytes| bytes as f64 >= MIN_BYTES);
                prop_assert!(is_enough && cap != Cap::default(), "{cap:?}");
            }
        }
    }
}
