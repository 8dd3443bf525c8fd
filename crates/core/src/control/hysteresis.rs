//! Hysteresis in time: a condition that still counts for a while after it was last observed.

use std::time::Duration;

/// The last observation of a condition, ns of a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hysteresis {
    last_ns: Option<u64>,
}

impl Hysteresis {
    /// Records an observation.
    pub(super) fn observe(&mut self, at_ns: u64) {
        self.last_ns = Some(at_ns);
    }

    /// Whether the last observation is at most `length` before `at_ns`. If the clock went back, no time has passed and
    /// the condition still counts.
    pub(super) fn is_active(&self, at_ns: u64, length: Duration) -> bool {
        self.last_ns.is_some_and(|last| Duration::from_nanos(at_ns.saturating_sub(last)) <= length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_observation_counts_for_exactly_its_duration(seen: u64, at: u64, length_ns: u64) {
            let mut hysteresis = Hysteresis::default();
            let length = Duration::from_nanos(length_ns);
            prop_assert!(!hysteresis.is_active(at, length), "it was never seen");
            hysteresis.observe(seen);
            let is_over = u128::from(at) > u128::from(seen) + u128::from(length_ns);
            prop_assert_eq!(hysteresis.is_active(at, length), !is_over);
        }
    }
}
