//! Latency histograms with eight buckets per power of two, so that a percentile is at most 12.5 % too large.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Counts of latencies in microseconds; empty buckets use no memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Histogram {
    /// Count per bucket, by the bucket's upper bound in microseconds.
    pub buckets: BTreeMap<u64, u64>,
    /// Sum of all latencies, in microseconds.
    pub sum_us: u64,
}

impl Histogram {
    /// Counts a latency.
    pub fn record(&mut self, latency_us: u64) {
        *self.buckets.entry(upper_bound(latency_us)).or_default() += 1;
        self.sum_us = self.sum_us.saturating_add(latency_us);
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (&bound, count) in &other.buckets {
            *self.buckets.entry(bound).or_default() += count;
        }
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    /// The difference to an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let buckets = self.buckets.iter().filter_map(|(bound, count)| {
            let new = count.saturating_sub(before.buckets.get(bound).copied().unwrap_or(0));
            (new > 0).then_some((*bound, new))
        });
        Self { buckets: buckets.collect(), sum_us: self.sum_us.saturating_sub(before.sum_us) }
    }

    /// Number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.values().sum()
    }

    /// The quantile `fraction` (0 to 1), as the upper bound of its bucket; `None` for an empty histogram.
    #[must_use]
    pub fn quantile_us(&self, fraction: f64) -> Option<u64> {
        let n = self.count();
        let mut seen = 0;
        for (bound, count) in &self.buckets {
            seen += count;
            #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
            if seen as f64 >= fraction * n as f64 {
                return Some(*bound);
            }
        }
        None
    }

    /// Number of latencies up to `latency_us`; exact if that is the bound of a bucket.
    #[must_use]
    pub fn count_up_to_us(&self, latency_us: u64) -> u64 {
        self.buckets.range(..=latency_us).map(|(_, count)| count).sum()
    }
}

/// The upper bound of a latency's bucket.
#[must_use]
pub fn upper_bound(latency_us: u64) -> u64 {
    if latency_us < 16 {
        return latency_us;
    }
    // The leading bit and the next three select the bucket.
    let shift = latency_us.ilog2() - 3;
    latency_us | ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_bounds_of_buckets() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(0.5), None);
        for latency_us in 1..=1000 {
            histogram.record(latency_us);
        }
        assert_eq!((histogram.count(), histogram.sum_us), (1000, 500_500));
        assert_eq!(histogram.quantile_us(0.5), Some(511));
        assert_eq!(histogram.quantile_us(0.99), Some(1023));
        assert_eq!(histogram.quantile_us(0.0), Some(1));
        assert_eq!(histogram.count_up_to_us(511), 511);
        let before = histogram.clone();
        histogram.record(20);
        assert_eq!(histogram.since(&before), Histogram { buckets: BTreeMap::from([(21, 1)]), sum_us: 20 });
    }

    proptest! {
        #[test]
        fn a_bucket_is_at_most_an_eighth_wide(latency_us: u64) {
            let bound = upper_bound(latency_us);
            prop_assert!(bound >= latency_us && bound - latency_us <= latency_us / 8);
            prop_assert_eq!(upper_bound(bound), bound);
        }
    }
}
