//! Percentiles of recent fsync latencies, for tenants with a promised latency.
//!
//! The observer counts from its start. The difference to an earlier state of the same histogram is a window, so one
//! state per step of the window is kept.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::observe::histogram::Histogram;

/// Length of the window.
const FSYNCS: Duration = Duration::from_secs(10);
/// The percentile, 0 to 1.
const QUANTILE: f64 = 0.99;

/// Histograms of the window, by the time of their reading, in ascending order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latencies {
    read: VecDeque<(u64, BTreeMap<String, Histogram>)>,
}

impl Latencies {
    /// Adds the tenants' current histograms, and returns the 99th percentile of the window for each tenant, s. Tenants
    /// without an fsync in the window are omitted.
    pub fn p99(&mut self, at_ns: u64, now: BTreeMap<String, Histogram>) -> BTreeMap<String, f64> {
        let is_old = |at: u64| Duration::from_nanos(at_ns.saturating_sub(at)) > FSYNCS;
        while self.read.front().is_some_and(|(at, _)| is_old(*at)) {
            self.read.pop_front();
        }
        let p99 = |(name, histogram): (&String, &Histogram)| {
            let before = self.read.front().and_then(|(_, before)| before.get(name));
            let lately = before.map(|before| histogram.since(before))?;
            Some((name.clone(), micros(lately.quantile_us(QUANTILE)?)))
        };
        let found = now.iter().filter_map(p99).collect();
        // A state that is no newer than the last one expires no later than that, and never starts a window.
        if self.read.back().is_none_or(|(last, _)| at_ns > *last) {
            self.read.push_back((at_ns, now));
        }
        found
    }

    /// Starts a new window: counts so far and later ones are not comparable.
    pub fn clear(&mut self) {
        self.read.clear();
    }
}

/// Microseconds as seconds.
#[expect(clippy::cast_precision_loss, reason = "a latency is far below 2^52 us")]
pub(super) fn micros(us: u64) -> f64 {
    us as f64 / 1e6
}

#[cfg(test)]
mod tests;
