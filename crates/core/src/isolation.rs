//! Whether io.cost isolates a device as it was calibrated, and what to do where it does not.
//!
//! A calibration chooses the best of what it tried, which may still be bad: a drive that serves a stream before all else, or whose
//! write cache is full of somebody's data, keeps a small fsync waiting at every speed (docs/EVIDENCE.md).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::strictness::STRICT;

/// From how many times as long on an fsync is not isolated. On the lab's disks it takes 2 to 9.4 times as long where io.cost is
/// the best of all controllers, and 18 to 116 times where the drive's queue or cache is what it waits for.
const FAR: u64 = 10;

/// What the chosen model does to a small append + fsync every 100 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Isolation {
    /// Mean latency of an fsync alone, microseconds.
    pub alone_us: u64,
    /// The same beside greedy buffered writers in another tenant, microseconds.
    pub beside_us: u64,
}

impl Isolation {
    /// From what was measured.
    #[must_use]
    pub fn new(alone: Duration, beside: Duration) -> Self {
        let [alone_us, beside_us] = [alone, beside].map(|mean| u64::try_from(mean.as_micros()).unwrap_or(u64::MAX));
        Self { alone_us, beside_us }
    }

    /// Whether the chosen speed isolates. Nothing is said against one whose fsyncs took no time alone.
    #[must_use]
    pub fn is_isolated(self) -> bool {
        self.alone_us == 0 || self.beside_us / FAR < self.alone_us
    }

    /// What to do about a device that is not isolated; `None` for one that is. On hard disks BFQ with one request in the drive at
    /// a time isolates instead; for others that was not measured.
    #[must_use]
    pub fn advice(self, device: &str, is_rotational: bool) -> Option<String> {
        if self.is_isolated() {
            return None;
        }
        let times = self.beside_us / self.alone_us.max(1);
        let found = format!(
            "io.cost does not isolate it: at the best speed found, an fsync beside writers takes {times} times as long as alone"
        );
        if !is_rotational {
            return Some(found);
        }
        let tunables = STRICT.map(|(tunable, value)| format!("{tunable}={value}")).join(", ");
        Some(format!(
            "{found}. Use a strict BFQ: `bulkhead device control {device} --policy bfq`, then {tunables} in \
             /sys/block/{device}/queue/iosched. If its write cache is on, switch that off first (`hdparm -W 0 /dev/{device}`): a \
             flush waits for all that is in it"
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn isolation(alone_ms: u64, beside_ms: u64) -> Isolation {
        Isolation::new(Duration::from_millis(alone_ms), Duration::from_millis(beside_ms))
    }

    #[test]
    fn a_strict_bfq_is_advised_on_disks_that_no_speed_isolates() {
        let advice = isolation(25, 2250).advice("sda", true).unwrap();
        assert!(advice.contains("takes 90 times as long as alone. Use a strict BFQ"), "{advice}");
        assert!(advice.contains("strict_guarantees=1, low_latency=0, slice_idle=20 in /sys/block/sda/"), "{advice}");
        let flash = isolation(1, 116).advice("nvme0n1", false).unwrap();
        assert!(flash.contains("116 times") && !flash.to_lowercase().contains("bfq"), "{flash}");
    }

    #[test]
    fn what_isolates_as_far_as_the_device_lets_it_needs_no_advice() {
        // ssd, nvme-slow and the spinning disk of the lab.
        for measured in [isolation(26, 80), Isolation { alone_us: 4500, beside_us: 42_300 }, isolation(15, 30)] {
            assert_eq!(measured.advice("sda", true), None, "{measured:?}");
        }
        assert!(isolation(0, 1000).is_isolated(), "nothing to compare with");
    }

    proptest! {
        #[test]
        fn there_is_advice_exactly_where_fsyncs_are_far(alone_us: u64, beside_us: u64, is_rotational: bool) {
            let measured = Isolation { alone_us, beside_us };
            let is_far = alone_us > 0 && u128::from(beside_us) >= 10 * u128::from(alone_us);
            prop_assert_eq!(measured.advice("sda", is_rotational).is_some(), is_far);
        }
    }
}
