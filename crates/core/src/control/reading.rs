//! Readings of the host for a step of the controller, and the differences between two of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::IoMax;
use crate::observe::activity::Activity;
use crate::observe::cost::as_f64;
use crate::units::Bytes;

/// Counters of a tenant's cgroup. Sums start at its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Its weight, plus that of its journal thread's cgroup.
    pub weight: u32,
    /// Its `io.max`; `None` if the kernel has no such file.
    pub limit: Option<IoMax>,
    /// Total time in which at least one of its tasks waited for I/O (io.pressure, `some`).
    pub waited: Duration,
    /// Operations on the device.
    pub operations: u64,
    /// Bytes that it read and wrote there.
    pub moved_bytes: u64,
    /// Bytes that its journal thread read and wrote; 0 without a journal thread.
    pub journal_bytes: u64,
    /// Whether its journal thread has a cgroup of its own.
    pub has_journal: bool,
}

/// The state of the host at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Time of the observation, ns of a monotonic clock.
    pub at_ns: u64,
    /// The observation up to then.
    pub seen: Arc<Activity>,
    /// Total busy time of the device.
    pub busy: Duration,
    /// Total device capacity used, as io.cost accounts it (`cost.usage`).
    pub cost_used: Duration,
    /// Largest operation of the device, bytes; `None` if it is unknown, or if device time does not depend on size.
    pub largest: Option<Bytes>,
    /// Tenants whose cgroups exist.
    pub tenants: BTreeMap<String, Counters>,
    /// Names of the devices of tenants' mounted volumes.
    pub volumes: BTreeMap<String, Vec<String>>,
}

/// The time between two readings, s. If the clock stood still or went back, no time has passed and all rates are 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval(f64);

impl Interval {
    pub(super) fn between(before_ns: u64, at_ns: u64) -> Self {
        Self(Duration::from_nanos(at_ns.saturating_sub(before_ns)).as_secs_f64())
    }

    /// Growth of a sum of time as a fraction of the interval, 0 to 1.
    pub(super) fn part(self, now: Duration, before: Duration) -> f64 {
        if self.0 > 0.0 { (now.saturating_sub(before).as_secs_f64() / self.0).min(1.0) } else { 0.0 }
    }

    /// Growth of a counter, per second.
    pub(super) fn growth(self, now: u64, before: u64) -> f64 {
        self.per_second(now.saturating_sub(before))
    }

    /// `n` events in the interval, per second.
    pub(super) fn per_second(self, n: u64) -> f64 {
        if self.0 > 0.0 { as_f64(n) / self.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn differences_are_divided_by_the_interval() {
        let interval = Interval::between(1_000_000_000, 3_000_000_000);
        let part = interval.part(Duration::from_secs(6), Duration::from_secs(5));
        assert!((part - 0.5).abs() < 1e-12 && (interval.growth(30, 10) - 10.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn jumping_sums_and_stopped_clocks_are_harmless(times: [u64; 2], sums: [u64; 2], waited: [u64; 2]) {
            let interval = Interval::between(times[0], times[1]);
            let waited = waited.map(Duration::from_nanos);
            let (part, rate) = (interval.part(waited[1], waited[0]), interval.growth(sums[1], sums[0]));
            prop_assert!((0.0..=1.0).contains(&part) && rate >= 0.0 && rate.is_finite(), "{part}, {rate}");
            if times[1] <= times[0] || sums[1] <= sums[0] {
                prop_assert_eq!(rate, 0.0);
            }
            if times[1] <= times[0] || waited[1] <= waited[0] {
                prop_assert_eq!(part, 0.0);
            }
        }
    }
}
