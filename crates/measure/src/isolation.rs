//! How far a busy neighbour disturbs the probe and the database, and what is asked of that.
//!
//! Owns: the limits that calibration, reports and the evidence's judge have in common, and what of a neighbour's throughput is fair. Pure.

use crate::report::figure as f;
use crate::result::{Cell, Spread, spread};

/// Shares are equal in the probe: however busy A keeps the device alone, B may expect the other half of it.
const A_FAIR_SHARE: f64 = 0.5;

/// How much of its lone throughput the database must have beside a neighbour, percent: 95 % of its share of 70 %.
pub const DATABASE_PCT: f64 = 0.95 * 70.0;

/// What the probe is judged by beside a neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Mean latency over that alone at most, on a disk with an arm.
    pub mean: f64,
    /// The same on flash.
    pub mean_on_flash: f64,
    /// The same of the 99th percentile, on either.
    pub p99: f64,
    /// What the neighbour has of what is fair at least, percent.
    pub neighbour_pct: f64,
}

impl Limits {
    /// Beside buffered writers.
    pub const STREAMS: Self = Self { mean: 1.4, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };
    /// Beside writers that call fsync all the time.
    pub const FSYNCS: Self = Self { mean: 1.6, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };
    /// Beside a storm of small files.
    pub const STORM: Self = Self { mean: 1.6, mean_on_flash: 1.3, p99: 2.0, neighbour_pct: 95.0 };

    /// Mean latency over that alone at most, on a disk with an arm or without.
    #[must_use]
    pub fn mean_on(&self, has_arm: bool) -> f64 {
        if has_arm { self.mean } else { self.mean_on_flash }
    }
}

/// The limits beside a neighbour of the probe.
#[must_use]
pub fn limits(neighbour: &str) -> Option<Limits> {
    match neighbour {
        "streams" => Some(Limits::STREAMS),
        "fsyncs" => Some(Limits::FSYNCS),
        "storm" => Some(Limits::STORM),
        _ => None,
    }
}

/// What the neighbour kept of its throughput, percent of what it gets alone.
#[must_use]
pub fn kept_pct(cell: &Cell) -> Option<Spread> {
    cell.ratio(f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_ALONE_BYTES_PER_S)
        .or_else(|| cell.ratio(f::NEIGHBOUR_OPS_PER_S, f::NEIGHBOUR_ALONE_OPS_PER_S))
        .map(|kept| Spread { min: kept.min * 100.0, median: kept.median * 100.0, max: kept.max * 100.0 })
}

/// The neighbour's throughput in percent of what A's share of the device leaves it.
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
