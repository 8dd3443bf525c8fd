//! Hysteresis in time: an event that counts for a while after it was last seen.

use std::time::Duration;

/// When an event was last seen, ns of a monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lasting {
    last_ns: Option<u64>,
}

impl Lasting {
    /// The event is seen at this time.
    pub(super) fn see(&mut self, at_ns: u64) {
        self.last_ns = Some(at_ns);
    }

    /// Whether it was seen within this time before `at_ns`, both ends included. A clock that went back has let no time go by:
    /// the event counts.
    pub(super) fn is_within(&self, at_ns: u64, length: Duration) -> bool {
        self.last_ns.is_some_and(|last| Duration::from_nanos(at_ns.saturating_sub(last)) <= length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_event_counts_for_exactly_the_time_after_it(seen: u64, at: u64, length_ns: u64) {
            let mut lasting = Lasting::default();
            let length = Duration::from_nanos(length_ns);
            prop_assert!(!lasting.is_within(at, length), "it was never seen");
            lasting.see(seen);
            let is_over = u128::from(at) > u128::from(seen) + u128::from(length_ns);
            prop_assert_eq!(lasting.is_within(at, length), !is_over);
        }
    }
}
