use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// A tenant of the simulated device.
#[derive(Clone, Copy, Debug)]
struct Worker {
    part: f64,
    /// Journal I/O per second, as a fraction of the device; written with each commit.
    journal: f64,
    /// How much more than counted here its own I/O costs in the controller's terms.
    dearness: f64,
    /// Its demand per second.
    demand: f64,
}

impl Worker {
    fn of(part: f64, journal: f64) -> Self {
        Self { part, journal, dearness: 1.0, demand: f64::INFINITY }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "weights are between 0 and 10 000")]
fn rounded(weight: f64) -> u32 {
    weight.round() as u32
}

/// A device with a proportional controller: journal writes go first, and the rest is divided by weight.
struct Device {
    workers: BTreeMap<String, Worker>,
    weights: BTreeMap<String, u32>,
    /// Journal writes that did not fit into their second.
    backlog: BTreeMap<String, f64>,
    seconds: u64,
    /// Time between two commits, s.
    period: u64,
    /// Variation of the effect of a weight from second to second, 0 to 1.
    noise: f64,
    seed: u64,
}

impl Device {
    fn new(workers: &[Worker], total: f64) -> Self {
        let workers: BTreeMap<String, Worker> =
            workers.iter().enumerate().map(|(n, w)| (format!("t{n:02}"), *w)).collect();
        let weights = workers.iter().map(|(name, worker)| (name.clone(), rounded(total * worker.part))).collect();
        let backlog = workers.keys().map(|name| (name.clone(), 0.0)).collect();
        Self { workers, weights, backlog, seconds: 0, period: 5, noise: 0.1, seed: 1 }
    }

    /// Between 0 and 1.
    fn random(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as f64 / (1u64 << 31) as f64
    }

    fn second(&mut self) -> Sample {
        self.seconds += 1;
        let mut usage: BTreeMap<String, Usage> = BTreeMap::new();
        let mut left = 1.0;
        if self.seconds.is_multiple_of(self.period) {
            for (name, worker) in &self.workers {
                *self.backlog.get_mut(name).unwrap() += self.period as f64 * worker.journal;
            }
        }
        let due: f64 = self.backlog.values().sum();
        let written = due.min(left);
        for (name, backlog) in &mut self.backlog {
            let mine = if due > 0.0 { *backlog * written / due } else { 0.0 };
            *backlog -= mine;
            usage.entry(name.clone()).or_default().journal = mine;
        }
        left -= written;
        // A tenant that wants less than its weight gives leaves the rest to the others.
        let mut wanting: BTreeMap<String, f64> = BTreeMap::new();
        for (name, weight) in &self.weights.clone() {
            let noise = 1.0 + self.noise * (2.0 * self.random() - 1.0);
            wanting.insert(name.clone(), f64::from(*weight) / self.workers[name].dearness * noise);
        }
        while left > 1e-9 && !wanting.is_empty() {
            let sum: f64 = wanting.values().sum();
            let satisfied = wanting
                .iter()
                .find(|(name, weight)| self.workers[*name].demand - usage[*name].native <= left * **weight / sum);
            match satisfied.map(|(name, _)| name.clone()) {
                Some(name) => {
                    left -= self.workers[&name].demand - usage[&name].native;
                    usage.get_mut(&name).unwrap().native = self.workers[&name].demand;
                    wanting.remove(&name);
                }
                None => {
                    for (name, weight) in &wanting {
                        usage.get_mut(name).unwrap().native += left * weight / sum;
                    }
                    left = 0.0;
                }
            }
        }
        let tenants = self.workers.iter().map(|(name, worker)| {
            let usage = usage[name];
            let waiting = if usage.native < worker.demand { 1.0 } else { 0.1 };
            (name.clone(), TenantSample { usage, waiting, weight: self.weights[name], ..TenantSample::default() })
        });
        Sample { at_ns: self.seconds * SECOND, busy: 1.0 - left, tenants: tenants.collect(), ..Sample::default() }
    }
}

fn params(device: &Device, total: f64) -> Params {
    Params {
        parts: device.workers.iter().map(|(name, worker)| (name.clone(), worker.part)).collect(),
        total_weight: total,
        range: 1..=10_000,
        fsync_p99: BTreeMap::new(),
    }
}

/// The course of a run: each second's totals, and the number of changes of weights.
struct Course {
    usages: Vec<BTreeMap<String, f64>>,
    n_changes: usize,
    last: Step,
}

impl Course {
    fn share(&self, name: &str, from: usize, to: usize) -> f64 {
        let all = || self.usages[from..to].iter();
        all().map(|usage| usage[name]).sum::<f64>() / all().flat_map(BTreeMap::values).sum::<f64>()
    }
}

fn run(device: &mut Device, state: &mut State, params: &Params, seconds: usize) -> Course {
    let mut course = Course { usages: vec![], n_changes: 0, last: Step::default() };
    for _ in 0..seconds {
        let sample = device.second();
        let step = step(state, &sample, params);
        device.weights.extend(step.changes.clone());
        course.n_changes += usize::from(!step.changes.is_empty());
        course.usages.push(sample.tenants.iter().map(|(name, t)| (name.clone(), t.usage.total())).collect());
        course.last = step;
    }
    course
}

const TOTAL: f64 = 2000.0;

#[test]
fn the_case_of_the_paper_converges_to_equal_shares() {
    let mut device = Device::new(&[Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)], TOTAL);
    let params = params(&device, TOTAL);
    let course = run(&mut device, &mut State::default(), &params, 60);
    // Without correction it would be 0.64; the first burst does not fit into its second.
    assert!((course.share("t00", 0, 5) - 0.6).abs() < 0.02, "{}", course.share("t00", 0, 5));
    assert!((course.share("t00", 10, 60) - 0.5).abs() < 0.005, "{}", course.share("t00", 10, 60));
    for from in 10..55 {
        assert!((course.share("t00", from, from + 5) - 0.5).abs() < 0.05);
    }
}

/// ext4's timer goes off at whole seconds, so that commits come five or six seconds apart; full journals make them more frequent.
#[test]
fn shares_converge_for_any_commit_interval() {
    for period in 1..=7 {
        let mut device = Device::new(&[Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)], TOTAL);
        device.period = period;
        let params = params(&device, TOTAL);
        let course = run(&mut device, &mut State::default(), &params, 300);
        assert!((course.share("t00", 15, 300) - 0.5).abs() < 0.005, "{period} s: {}", course.share("t00", 15, 300));
    }
}

/// Variation from second to second is as often too much as too little.
#[test]
fn an_uneven_disk_does_no_favours() {
    for noise in [0.1, 0.5, 0.9] {
        let mut device = Device::new(&[Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)], TOTAL);
        device.noise = noise;
        let params = params(&device, TOTAL);
        let course = run(&mut device, &mut State::default(), &params, 3000);
        let share = course.share("t00", 15, 3000);
        assert!((share - 0.5).abs() < 0.003, "{noise}: {share}");
    }
}

#[test]
fn a_tenant_that_stops_frees_its_part_and_regains_it() {
    let workers = [Worker::of(0.5, 0.1), Worker::of(0.3, 0.0), Worker::of(0.2, 0.0)];
    let mut device = Device::new(&workers, TOTAL);
    let (params, mut state) = (params(&device, TOTAL), State::default());
    run(&mut device, &mut state, &params, 30);
    let stopped = Worker { demand: 0.0, journal: 0.0, ..workers[0] };
    *device.workers.get_mut("t00").unwrap() = stopped;
    let course = run(&mut device, &mut state, &params, 40);
    assert!((course.share("t01", 20, 40) - 0.6).abs() < 0.01, "{}", course.share("t01", 20, 40));
    device.workers.insert("t00".to_owned(), workers[0]);
    let course = run(&mut device, &mut state, &params, 40);
    assert!((course.share("t00", 15, 40) - 0.5).abs() < 0.01, "{}", course.share("t00", 15, 40));
}

#[test]
fn journal_io_above_the_share_is_reported_and_the_others_share_the_rest() {
    let mut device = Device::new(&[Worker::of(0.2, 0.4), Worker::of(0.4, 0.0), Worker::of(0.4, 0.0)], TOTAL);
    let params = params(&device, TOTAL);
    let course = run(&mut device, &mut State::default(), &params, 60);
    let standings = &course.last.tenants;
    assert!(standings["t00"].infeasible && !standings["t01"].infeasible, "{standings:?}");
    assert!(course.share("t00", 30, 60) < 0.43, "{}", course.share("t00", 30, 60));
    assert!((course.share("t01", 30, 60) - course.share("t02", 30, 60)).abs() < 0.02);
}

/// One line per second of a disk in the lab (evidence share-correction, shared/bfq/reads, 6.12, simulated hard disk):
/// MiB moved, and how many of them were journal and checkpoints, all caused by one of two readers.
const TRACE: &str = include_str!("trace.csv");

#[test]
fn shares_are_enforced_on_a_recorded_disk_with_bursts_and_checkpoints() {
    let second =
        |line: &str| line.split_once(',').map(|(all, journal)| (all.parse().unwrap(), journal.parse().unwrap()));
    let seconds: Vec<(f64, f64)> = TRACE.lines().filter_map(second).collect();
    assert!(seconds.len() > 60, "{}", seconds.len());
    let params = Params {
        parts: [("a".to_owned(), 0.5), ("b".to_owned(), 0.5)].into(),
        total_weight: TOTAL,
        range: 1..=10_000,
        fsync_p99: BTreeMap::new(),
    };
    let share = |held: bool| {
        let mut weights: BTreeMap<String, u32> = [("a".to_owned(), 1000), ("b".to_owned(), 1000)].into();
        let (mut state, mut of_a, mut of_all) = (State::default(), 0.0, 0.0);
        // The recording three times over.
        for (index, (all, journal)) in seconds.iter().cycle().take(3 * seconds.len()).enumerate() {
            let own = |name: &str| (all - journal) * f64::from(weights[name]) / f64::from(weights["a"] + weights["b"]);
            let tenant = |name: &str, journal: f64| {
                let usage = Usage { native: own(name), journal };
                (
                    name.to_owned(),
                    TenantSample { usage, waiting: 1.0, weight: weights[name], ..TenantSample::default() },
                )
            };
            let tenants: BTreeMap<String, TenantSample> = [tenant("a", *journal), tenant("b", 0.0)].into();
            if index >= 10 {
                of_a += tenants["a"].usage.total();
                of_all += all;
            }
            let sample = Sample { at_ns: index as u64 * SECOND, busy: 1.0, tenants, ..Sample::default() };
            let step = step(&mut state, &sample, &params);
            if held {
                weights.extend(step.changes);
            }
        }
        of_a / of_all
    };
    assert!(share(false) > 0.55, "{}", share(false));
    assert!((share(true) - 0.5).abs() < 0.01, "{}", share(true));
}

/// The controller changes nothing while it is not sure.
#[test]
fn weights_stay_unchanged_with_a_reason() {
    let workers = [Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)];
    let mut device = Device::new(&workers, TOTAL);
    let (params, mut state) = (params(&device, TOTAL), State::default());
    let mut next = |state: &mut State, change: &dyn Fn(&mut Sample)| {
        let mut sample = device.second();
        change(&mut sample);
        let step = step(state, &sample, &params);
        assert!(step.changes.is_empty(), "{step:?}");
        step.reason
    };
    for _ in 0..5 {
        assert_eq!(next(&mut state, &|_| ()), Reason::Starting);
    }
    assert_eq!(next(&mut state, &|sample| sample.is_partial = true), Reason::Partial);
    assert_eq!(next(&mut state, &|sample| sample.at_ns += 9 * SECOND), Reason::Late { ns: 10 * SECOND });
    assert_eq!(next(&mut state, &|_| ()), Reason::ClockWentBack);
    let other = |sample: &mut Sample| sample.tenants.get_mut("t01").unwrap().weight = 7;
    let found = Reason::OtherWriter { tenant: "t01".to_owned(), found: 7, expected: 1000 };
    assert_eq!(next(&mut state, &other), found);
    // As long as it is so.
    assert_eq!(next(&mut state, &other), found);
    for _ in 0..3 {
        assert_eq!(next(&mut state, &|_| ()), Reason::Starting);
    }
    let idle = |sample: &mut Sample| sample.busy = 0.0;
    assert_eq!(next(&mut state, &idle), Reason::Starting);
    assert!(matches!(next(&mut state, &idle), Reason::NotContended { busy } if busy < 0.8));
    let alone = |sample: &mut Sample| {
        sample.tenants.remove("t01");
    };
    next(&mut state, &alone);
    assert!(matches!(next(&mut state, &alone), Reason::NotContended { .. }));
    for _ in 0..3 {
        next(&mut state, &alone);
    }
    assert_eq!(next(&mut state, &alone), Reason::NoContenders);
}

/// BFQ gives one reader's pauses to the other, whatever their weights are.
#[test]
fn weights_without_effect_are_reported() {
    let mut device = Device::new(&[Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)], TOTAL);
    let params = params(&device, TOTAL);
    let (mut state, equal) = (State::default(), device.weights.clone());
    let mut reasons = Vec::new();
    for _ in 0..40 {
        let set = std::mem::replace(&mut device.weights, equal.clone());
        let mut sample = device.second();
        for (name, tenant) in &mut sample.tenants {
            tenant.weight = set[name];
        }
        device.weights = set;
        let step = step(&mut state, &sample, &params);
        device.weights.extend(step.changes);
        reasons.push(step.reason);
    }
    assert!(!reasons[..8].iter().any(|reason| matches!(reason, Reason::Ineffective { .. })), "too soon");
    assert!(matches!(reasons.last(), Some(Reason::Ineffective { .. })), "{:?}", reasons.last());
}

/// A restarted daemon finds the weights that it left.
#[test]
fn a_new_state_continues_with_existing_weights() {
    let mut device = Device::new(&[Worker::of(0.5, 0.28), Worker::of(0.5, 0.0)], TOTAL);
    let params = params(&device, TOTAL);
    run(&mut device, &mut State::default(), &params, 40);
    let before = device.weights.clone();
    let course = run(&mut device, &mut State::default(), &params, 40);
    for (name, weight) in &before {
        let now = device.weights[name];
        assert!(now.abs_diff(*weight) * 20 <= *weight, "{name}: {weight} became {now}");
    }
    assert!((course.share("t00", 0, 40) - 0.5).abs() < 0.01);
}

/// Tenants whose journal I/O fits into their shares.
fn mixes() -> impl Strategy<Value = Vec<Worker>> {
    let worker = (1.0..8.0f64, 0.0..0.7f64, 0.5..2.0f64);
    prop::collection::vec(worker, 2..=16).prop_map(|drawn| {
        let sum: f64 = drawn.iter().map(|(share, ..)| share).sum();
        let worker = |(share, journal, dearness)| {
            let part = share / sum;
            Worker { part, journal: part * journal, dearness, demand: f64::INFINITY }
        };
        drawn.into_iter().map(worker).collect()
    })
}

proptest! {
    #[test]
    fn shares_are_reached_and_kept(workers in mixes()) {
        let mut device = Device::new(&workers, 1000.0 * workers.len() as f64);
        let params = params(&device, 1000.0 * workers.len() as f64);
        let mut state = State::default();
        let course = run(&mut device, &mut state, &params, 80);
        for (name, worker) in &device.workers {
            let share = course.share(name, 20, 80);
            prop_assert!((share - worker.part).abs() < 0.01, "{name}: {share}, {worker:?}");
            for from in 20..75 {
                let share = course.share(name, from, from + 5);
                prop_assert!((share - worker.part).abs() < 0.05, "{name} at {from}: {share}, {worker:?}");
            }
        }
    }

    #[test]
    fn no_weight_leaves_its_range_for_any_measurement(
        samples in prop::collection::vec(
            (0u64..4 * SECOND, 0.0..2.0f64, prop::collection::vec((0.0..1e12f64, 0.0..1e12f64, 0.0..1.0f64, any::<bool>()), 3)),
            1..40,
        )
    ) {
        let names = ["a", "b", "c"];
        let params = Params {
            parts: names.map(|name| (name.to_owned(), 1.0 / 3.0)).into(),
            total_weight: 300.0,
            range: 1..=1000,
            fsync_p99: BTreeMap::new(),
        };
        let (mut state, mut at_ns) = (State::default(), 0);
        let mut weights: BTreeMap<String, u32> = names.map(|name| (name.to_owned(), 100)).into();
        for (ns, busy, tenants) in samples {
            at_ns += ns;
            let tenants = names.iter().zip(tenants).filter(|(_, drawn)| drawn.3).map(|(name, (native, journal, waiting, _))| {
                let usage = Usage { native: native.floor(), journal: journal.floor() };
                ((*name).to_owned(), TenantSample { usage, waiting, weight: weights[*name], ..TenantSample::default() })
            });
            let sample = Sample { at_ns, busy, tenants: tenants.collect(), ..Sample::default() };
            let step = step(&mut state, &sample, &params);
            for (name, weight) in &step.changes {
                prop_assert!(params.range.contains(weight));
                prop_assert!(sample.tenants.contains_key(name));
                let before = weights[name];
                prop_assert!(*weight <= 2 * before + 1 && 2 * *weight + 1 >= before, "{before} -> {weight}");
            }
            for standing in step.tenants.values() {
                prop_assert!(standing.target.is_finite() && standing.achieved.is_finite(), "{standing:?}");
            }
            weights.extend(step.changes);
        }
    }
}
