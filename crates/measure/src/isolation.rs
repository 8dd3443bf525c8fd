//! Measures of how far a busy neighbour disturbs the probe and the database, with their limits.
//!
//! Owns: the limits that calibration, reports and the evidence's judge share, and the fair throughput of a neighbour. Pure.

use crate::report::figure as f;
use crate::result::{Cell, Spread, spread};

/// Shares are equal in the probe experiment: B is entitled to half of the device, however busy A keeps it alone.
const A_FAIR_SHARE: f64 = 0.5;

/// Minimum throughput of the database next to a neighbour, in percent of its throughput alone: 95 % of its share of 70 %.
pub const DATABASE_PCT: f64 = 0.95 * 70.0;

/// The limits of the probe experiment next to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum ratio of the mean latency to that alone, on a disk with an arm.
    pub mean: f64,
    /// The same on flash.
    pub mean_on_flash: f64,
    /// The same for the 99th percentile, on either.
    pub p99: f64,
    /// Minimum throughput of the neighbour, in percent of the fair throughput.
    pub neighbour_pct: f64,
}

impl Limits {
    /// Next to buffered writers.
    pub const STREAMS: Self = Self { mean: 1.4, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };
    /// Next to writers that call fsync continuously.
    pub const FSYNCS: Self = Self { mean: 1.6, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };
    /// Next to a storm of small files.
    pub const STORM: Self = Self { mean: 1.6, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };

    /// Maximum ratio of the mean latency to that alone, by kind of disk.
    #[must_use]
    pub fn mean_on(&self, has_arm: bool) -> f64 {
        if has_arm { self.mean } else { self.mean_on_flash }
    }
}

/// The limits next to a neighbour of the probe.
#[must_use]
pub fn limits(neighbour: &str) -> Option<Limits> {
    match neighbour {
        "streams" => Some(Limits::STREAMS),
        "fsyncs" => Some(Limits::FSYNCS),
        "storm" => Some(Limits::STORM),
        _ => None,
    }
}

/// The neighbour's throughput, in percent of its throughput alone.
#[must_use]
pub fn kept_pct(cell: &Cell) -> Option<Spread> {
    cell.ratio(f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_ALONE_BYTES_PER_S)
        .or_else(|| cell.ratio(f::NEIGHBOUR_OPS_PER_S, f::NEIGHBOUR_ALONE_OPS_PER_S))
        .map(|kept| Spread { min: kept.min * 100.0, median: kept.median * 100.0, max: kept.max * 100.0 })
}

/// The neighbour's throughput, in percent of the fair throughput that A's share leaves it.
#[must_use]
pub fn fair_part_pct(cell: &Cell) -> Option<Spread> {
    kept_pct(cell)?;
    spread(cell.rounds.iter().filter_map(|round| {
        let figure = |name: &str| round.figures.get(name).copied().filter(|value| value.is_finite());
        let (got, alone) = match (figure(f::NEIGHBOUR_BYTES_PER_S), figure(f::NEIGHBOUR_ALONE_BYTES_PER_S)) {
            (Some(got), Some(alone)) => (got, alone),
            _ => (figure(f::NEIGHBOUR_OPS_PER_S)?, figure(f::NEIGHBOUR_ALONE_OPS_PER_S)?),
        };
        let left = 1.0 - figure(f::A_DEVICE_SHARE).unwrap_or(0.0).clamp(0.0, A_FAIR_SHARE);
        (alone > 0.0).then(|| 100.0 * got / (alone * left))
    }))
}
