//! What is read of the host for a step, and how two readings compare.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::IoMax;
use crate::observe::activity::Activity;
use crate::observe::cost::as_f64;
use crate::units::Bytes;

/// What the kernel says of a tenant's cgroup. Sums count from whenever it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Its weight, with that of the journal thread beside it.
    pub weight: u32,
    /// Its `io.max`; `None` where the kernel has none.
    pub limit: Option<IoMax>,
    /// How long some task of it waited for I/O (io.pressure, `some`).
    pub waited: Duration,
    /// Operations on the device.
    pub operations: u64,
    /// Bytes that it moved there.
    pub moved_bytes: u64,
    /// Bytes that the journal thread beside it moved; 0 where there is none.
    pub of_journal: u64,
    /// Whether there is such a thread.
    pub has_journal: bool,
}

/// What was read at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// When the observation was made, ns of a monotonic clock.
    pub at_ns: u64,
    /// What was observed until then.
    pub seen: Arc<Activity>,
    /// How long the device was busy.
    pub busy: Duration,
    /// What io.cost let it do (`cost.usage`).
    pub cost_used: Duration,
    /// The most bytes that the device takes in one operation; `None` where it is not known, or where time does not go by bytes.
    pub largest: Option<Bytes>,
    /// Tenants whose cgroups are there.
    pub tenants: BTreeMap<String, Counters>,
}

/// The time between two readings, s. A clock that stood still or went back has let no time go by, in which nothing was done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval(f64);

impl Interval {
    pub(super) fn between(before_ns: u64, at_ns: u64) -> Self {
        Self(Duration::from_nanos(at_ns.saturating_sub(before_ns)).as_secs_f64())
    }

    /// Which part of it a sum of time grew by, 0 to 1.
    pub(super) fn part(self, now: Duration, before: Duration) -> f64 {
        if self.0 > 0.0 { (now.saturating_sub(before).as_secs_f64() / self.0).min(1.0) } else { 0.0 }
    }

    /// By how much a sum grew, per second.
    pub(super) fn growth(self, now: u64, before: u64) -> f64 {
        self.per_second(now.saturating_sub(before))
    }

    /// So many in it, per second.
    pub(super) fn per_second(self, n: u64) -> f64 {
        if self.0 > 0.0 { as_f64(n) / self.0 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sums_are_compared_by_the_time_between() {
        let interval = Interval::between(1_000_000_000, 3_000_000_000);
        let part = interval.part(Duration::from_secs(6), Duration::from_secs(5));
        assert!((part - 0.5).abs() < 1e-12 && (interval.growth(30, 10) - 10.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn sums_that_jump_and_clocks_that_stand_still_do_no_harm(times: [u64; 2], sums: [u64; 2], waited: [u64; 2]) {
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
