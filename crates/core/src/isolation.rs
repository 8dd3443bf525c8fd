//! Whether a calibrated io.cost isolates a device, and the finding if it does not.
//!
//! A calibration chooses the best of the models that it tried, which may still be bad: a drive that prefers sequential
//! streams, or whose write cache is full of another tenant's data, delays a small fsync at every speed
//! (docs/EVIDENCE.md).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::strictness::STRICT;
use crate::devname::DevName;
use crate::finding::{Finding, FindingId};
use crate::model::Isolation;
use crate::reason::Reason;

/// Ratio of fsync latency beside writers to that alone from which on a device is not isolated. On the lab's disks it is
/// 2 to 9.4 where io.cost is the best of all controllers, and 18 to 116 where fsyncs wait for the drive's queue or
/// cache.
const FAR: u64 = 10;

impl Isolation {
    /// From measured mean latencies.
    #[must_use]
    pub fn new(alone: Duration, beside: Duration) -> Self {
        let [alone_us, beside_us] = [alone, beside].map(|mean| u64::try_from(mean.as_micros()).unwrap_or(u64::MAX));
        Self { alone_us, beside_us }
    }

    /// Whether the device is isolated. A device whose fsyncs took no time alone counts as isolated.
    #[must_use]
    pub fn is_isolated(self) -> bool {
        self.alone_us == 0 || self.beside_us / FAR < self.alone_us
    }

    /// The finding about a device that is not isolated; `None` for one that is. On hard disks, BFQ with one request in
    /// the drive at a time isolates instead; on other devices that was not measured, and nothing is advised.
    #[must_use]
    pub fn finding(self, device: &DevName, is_rotational: bool) -> Option<Finding> {
        if self.is_isolated() {
            return None;
        }
        let times = self.beside_us / self.alone_us.max(1);
        let evidence = format!(
            "io.cost does not isolate it: at the best speed found, an fsync beside writers takes {times} times as long as alone"
        );
        let finding = Finding::new(FindingId::DeviceNotIsolated, format!("device {device}"), evidence);
        if !is_rotational {
            return Some(finding);
        }
        let tunables = STRICT.map(|(tunable, value)| format!("{tunable}={value}")).into();
        Some(finding.reason(Reason::StrictBfqNeeded { device: device.to_string(), tunables }))
    }
}

/// The effect of a neighbour on a small append + fsync every 100 ms, each on its own volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Verified {
    /// Description of the neighbour.
    pub neighbour: String,
    /// Mean fsync latency, as a multiple of that alone.
    pub mean_ratio: f64,
    /// Upper limit of `mean_ratio`.
    pub mean_ratio_limit: f64,
    /// 99th percentile of fsync latency, as a multiple of that alone.
    pub p99_ratio: f64,
    /// Upper limit of `p99_ratio`.
    pub p99_ratio_limit: f64,
    /// The neighbour's throughput, percent of what the small load leaves it.
    pub neighbour_pct: f64,
    /// Lower limit of `neighbour_pct`.
    pub neighbour_pct_limit: f64,
}

impl Verified {
    /// Whether all three are within their limits.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.mean_ratio <= self.mean_ratio_limit
            && self.p99_ratio <= self.p99_ratio_limit
            && self.neighbour_pct >= self.neighbour_pct_limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(name: &str) -> DevName {
        name.parse().unwrap()
    }

    fn isolation(alone_ms: u64, beside_ms: u64) -> Isolation {
        Isolation::new(Duration::from_millis(alone_ms), Duration::from_millis(beside_ms))
    }

    #[test]
    fn a_strict_bfq_is_advised_on_disks_that_no_speed_isolates() {
        let disk = isolation(25, 2250).finding(&device("sda"), true).unwrap();
        assert_eq!((disk.id, disk.object.as_str()), (FindingId::DeviceNotIsolated, "device sda"));
        assert!(disk.evidence.ends_with("takes 90 times as long as alone"), "{}", disk.evidence);
        let tunables = ["strict_guarantees=1", "low_latency=0", "slice_idle=20"].map(str::to_owned).into();
        assert_eq!(disk.reason, Some(Box::new(Reason::StrictBfqNeeded { device: "sda".to_owned(), tunables })));
        let flash = isolation(1, 116).finding(&device("nvme0n1"), false).unwrap();
        assert!(flash.evidence.contains("116 times"), "{}", flash.evidence);
        assert_eq!((flash.advice, flash.reason), (None, None), "what was not measured is not advised");
    }

    #[test]
    fn an_isolated_device_has_no_finding() {
        // ssd, nvme-slow and the hard disk of the lab.
        for measured in [isolation(26, 80), Isolation { alone_us: 4500, beside_us: 42_300 }, isolation(15, 30)] {
            assert_eq!(measured.finding(&device("sda"), true), None, "{measured:?}");
        }
        assert!(isolation(0, 1000).is_isolated(), "nothing to compare with");
    }

    #[test]
    fn a_verification_requires_all_three_limits() {
        let met = Verified {
            neighbour: "8 buffered writers".to_owned(),
            mean_ratio: 1.5,
            mean_ratio_limit: 1.5,
            p99_ratio: 2.0,
            p99_ratio_limit: 3.0,
            neighbour_pct: 90.0,
            neighbour_pct_limit: 90.0,
        };
        assert!(met.is_met());
        assert!(!Verified { mean_ratio: 1.6, ..met.clone() }.is_met());
        assert!(!Verified { p99_ratio: 3.1, ..met.clone() }.is_met());
        assert!(!Verified { neighbour_pct: 89.0, ..met }.is_met());
    }

    proptest! {
        #[test]
        fn a_device_has_a_finding_exactly_if_fsyncs_are_far_slower(alone_us: u64, beside_us: u64, is_rotational: bool) {
            let measured = Isolation { alone_us, beside_us };
            let is_far = alone_us > 0 && u128::from(beside_us) >= 10 * u128::from(alone_us);
            prop_assert_eq!(measured.finding(&device("sda"), is_rotational).is_some(), is_far);
        }
    }
}
