//! The counts of a worker, and a series of values of bounded size.

use serde::{Deserialize, Serialize};

use crate::result::percentile;

/// Maximum number of values that a series keeps.
const KEPT: usize = 50_000;

/// A series of values. Mean, maximum and count are exact; at most 50 000 evenly spaced values are kept for percentiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    n: u64,
    sum: f64,
    max: f64,
    /// Every `stride`-th value is kept; doubled when the limit is reached.
    stride: u64,
    values: Vec<f64>,
}

impl Series {
    /// Adds a value.
    pub fn push(&mut self, value: f64) {
        if self.n.is_multiple_of(self.stride.max(1)) {
            if self.values.len() >= KEPT {
                self.stride = self.stride.max(1) * 2;
                let mut position = 0;
                self.values.retain(|_| {
                    position += 1;
                    position % 2 == 1
                });
            }
            // Microseconds are precise enough, and keep the JSON readable.
            self.values.push((value * 1000.0).round() / 1000.0);
        }
        self.n += 1;
        self.sum += value;
        self.max = self.max.max(value);
    }

    /// Adds another thread's series.
    pub fn add(&mut self, other: &Series) {
        self.n += other.n;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.values.extend(&other.values);
    }

    /// Number of values.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Mean; `None` without values.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.n > 0).then(|| self.sum / self.n as f64)
    }

    /// Largest value; `None` without values.
    #[must_use]
    pub fn max(&self) -> Option<f64> {
        (self.n > 0).then_some(self.max)
    }

    /// A percentile (nearest rank) of the values kept.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        percentile(&sorted, percent)
    }

    /// The kept values, in order of time for a single thread.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }
}

/// The counts of one worker thread, or of a whole load, in the window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Completed operations: appends, fsyncs, files created and removed, blocks written or read, directories created.
    pub ops: u64,
    /// Bytes passed to write(2).
    pub written_bytes: u64,
    /// Bytes made durable by a completed fsync.
    pub synced_bytes: u64,
    /// Duration of each fsync(2) call that began, in milliseconds.
    pub fsync_ms: Series,
    /// Servers: duration of each operation that ended, in milliseconds.
    #[serde(default)]
    pub op_ms: Series,
    /// probe: time from the scheduled moment of each operation to its end, which includes queueing.
    pub since_scheduled_ms: Series,
    /// probe, mkdirs: operations that were due but did not begin.
    pub missed_ops: u64,
}

impl Tally {
    /// Adds another worker's counts.
    pub fn add(&mut self, other: Tally) {
        self.ops += other.ops;
        self.written_bytes += other.written_bytes;
        self.synced_bytes += other.synced_bytes;
        self.fsync_ms.add(&other.fsync_ms);
        self.op_ms.add(&other.op_ms);
        self.since_scheduled_ms.add(&other.since_scheduled_ms);
        self.missed_ops += other.missed_ops;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_stays_small_and_keeps_its_shape() {
        let mut series = Series::default();
        for value in 0..400_000u32 {
            series.push(f64::from(value));
        }
        assert_eq!((series.n(), series.max()), (400_000, Some(399_999.0)));
        assert_eq!(series.mean(), Some(199_999.5));
        assert!(series.values().len() <= KEPT);
        let p99 = series.percentile(99.0).unwrap();
        assert!((395_000.0..=397_000.0).contains(&p99), "{p99}");
    }

    #[test]
    fn an_empty_series_has_no_mean() {
        assert_eq!((Series::default().mean(), Series::default().percentile(99.0)), (None, None));
    }

    #[test]
    fn threads_are_added_up() {
        let mut a = Tally { ops: 2, ..Tally::default() };
        a.fsync_ms.push(1.0);
        let mut b = Tally { ops: 3, written_bytes: 7, ..Tally::default() };
        b.fsync_ms.push(5.0);
        a.add(b);
        assert_eq!((a.ops, a.written_bytes, a.fsync_ms.n(), a.fsync_ms.max()), (5, 7, 2, Some(5.0)));
    }
}
