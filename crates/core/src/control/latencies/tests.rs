use proptest::prelude::*;

use super::*;
use crate::observe::histogram::upper_bound;

const FSYNCS_NS: u64 = 10_000_000_000;

/// The fsyncs of one tenant, all of them counted.
#[derive(Default)]
struct Counter {
    counted: Histogram,
    latencies: Latencies,
}

impl Counter {
    fn step(&mut self, at_ns: u64, fsyncs_us: &[u64]) -> Option<f64> {
        fsyncs_us.iter().for_each(|us| self.counted.record(*us));
        let counted = [("a".to_owned(), self.counted.clone())].into();
        self.latencies.p99(at_ns, counted).get("a").copied()
    }
}

#[test]
fn a_slow_fsync_counts_for_ten_seconds() {
    let mut counter = Counter::default();
    assert_eq!(counter.step(0, &[9_000_000]), None, "it was before the first step, at an unknown time");
    let slow = micros(upper_bound(500_000));
    assert_eq!(counter.step(1_000_000_000, &[500_000]), Some(slow));
    for second in 2..=10 {
        assert_eq!(counter.step(second * 1_000_000_000, &[]), Some(slow), "second {second}");
    }
    assert_eq!(counter.step(11_000_000_000, &[]), None);
    assert_eq!(counter.step(12_000_000_000, &[10]), Some(micros(10)));
}

#[test]
fn a_restarted_counter_has_no_percentile_of_the_old_one() {
    let mut counter = Counter::default();
    counter.step(0, &[]);
    assert!(counter.step(1, &[100; 10]).is_some());
    // Its container was removed, and started again.
    counter.counted = Histogram::default();
    assert_eq!(counter.step(2, &[]), None);
    counter.latencies.clear();
    assert_eq!(counter.step(3, &[100; 10]), None);
}

/// Steps of up to 4 s each, with their fsyncs.
fn courses() -> impl Strategy<Value = Vec<(u64, Vec<u64>)>> {
    let fsyncs = prop::collection::vec(prop_oneof![9 => 1u64..1000, 1 => 1000u64..10_000_000], 0..5);
    prop::collection::vec((1u64..4_000_000_000, fsyncs), 1..60)
}

proptest! {
    /// Exactly the fsyncs since the oldest step within the window count.
    #[test]
    fn no_fsync_counts_for_longer_than_the_window(course in courses()) {
        let (mut counter, mut at_ns) = (Counter::default(), 0u64);
        // When each fsync was counted, and its latency.
        let mut fsyncs: Vec<(u64, u64)> = Vec::new();
        let mut steps: Vec<u64> = Vec::new();
        for (step_ns, latencies) in course {
            at_ns += step_ns;
            fsyncs.extend(latencies.iter().map(|us| (at_ns, *us)));
            let found = counter.step(at_ns, &latencies);
            let young = fsyncs.iter().filter(|(seen, _)| at_ns - seen <= FSYNCS_NS).map(|(_, us)| *us);
            let longest = young.max().map(|us| micros(upper_bound(us)));
            prop_assert!(found <= longest, "{found:?}, of {longest:?} at {at_ns}");
            let oldest_ns = steps.iter().copied().find(|step| at_ns - step <= FSYNCS_NS);
            let counts = |seen: u64| oldest_ns.is_some_and(|oldest| seen > oldest);
            prop_assert_eq!(found.is_some(), fsyncs.iter().any(|(seen, _)| counts(*seen)), "at {}", at_ns);
            steps.push(at_ns);
        }
    }

    /// Steps without time between them are not kept: memory is bounded by the steps of a window, whatever the clock
    /// does.
    #[test]
    fn memory_is_bounded_by_a_clock_that_stands_still_or_jumps(times in prop::collection::vec(0u64..30, 1..200)) {
        let mut counter = Counter::default();
        for (n, second) in times.into_iter().enumerate() {
            counter.step(second * 1_000_000_000, &[n as u64 + 1]);
            let read: Vec<u64> = counter.latencies.read.iter().map(|(at, _)| *at).collect();
            prop_assert!(read.is_sorted_by(|a, b| a < b), "{read:?}");
            prop_assert!(read.len() <= 11, "{read:?}");
        }
    }
}

/// The reference: keeps all steps, also those without time between them.
#[derive(Default)]
struct All(VecDeque<(u64, Histogram)>);

impl All {
    fn p99(&mut self, at_ns: u64, now: &Histogram) -> Option<f64> {
        while self.0.front().is_some_and(|(at, _)| at_ns.saturating_sub(*at) > FSYNCS_NS) {
            self.0.pop_front();
        }
        let before = self.0.front().map(|(_, before)| now.since(before));
        self.0.push_back((at_ns, now.clone()));
        before?.quantile_us(QUANTILE).map(micros)
    }
}

proptest! {
    #[test]
    fn omitted_steps_would_have_changed_nothing(
        course in prop::collection::vec((0u64..60, prop::collection::vec(1u64..1000, 0..3)), 1..100)
    ) {
        let (mut counter, mut all) = (Counter::default(), All::default());
        for (second, fsyncs) in course {
            let found = counter.step(second * 1_000_000_000, &fsyncs);
            prop_assert_eq!(found, all.p99(second * 1_000_000_000, &counter.counted));
        }
    }
}
