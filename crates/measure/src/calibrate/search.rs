//! The candidates, and the choice among them: io.cost's speed (vrate), its latency targets, and the cost of an operation relative to a byte.
//!
//! Pure. Measuring a latency-sensitive load next to a greedy one over a range of vrates is the method of resctl-bench's `iocost-tune`: six
//! homogeneous fio runs say little about how much of a mixed load to admit.

use std::time::Duration;

use bulkhead_sys::iocost::{Ctrl, ModelLine, Percent, QosLine};

/// Pinned vrates that are tried first, percent, until the device is saturated: fio measures one kind of I/O at a time, and a mixture can differ
/// much in both directions.
pub(super) const VRATES_PCT: [u32; 9] = [50, 65, 80, 100, 130, 170, 220, 290, 380];
/// A candidate is saturated if a write is in the device for this many times the minimum: it admits more than the device can do, and the excess
/// waits in the device's queue, where shares have no effect.
const SATURATED: f64 = 4.0;
/// Minimum throughput of the greedy load, as a fraction of the fair one: isolation must not cost throughput.
const KEPT_MIN: f64 = 0.95;
/// Factor of latency that a range of vrates is worth: under a pinned vrate, a load whose cost the model underestimates fills the device's
/// queue, and nothing throttles it.
const RANGE_WORTH: f64 = 1.25;

/// Parameters of io.cost to try.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    /// Percent of the four measured IOPS coefficients: below 100, an operation costs more against its bytes.
    pub(super) iops_pct: u32,
    /// Lower bound of vrate, percent.
    pub(super) min_pct: u32,
    /// Upper bound of vrate, percent.
    pub(super) max_pct: u32,
    /// Target of the 95th percentile of completion latency, which moves vrate between its bounds.
    pub(super) latency_us: u64,
}

impl Candidate {
    /// One speed, independent of latency.
    pub(super) fn pinned(vrate_pct: u32) -> Self {
        Self { iops_pct: 100, min_pct: vrate_pct, max_pct: vrate_pct, latency_us: 100_000 }
    }

    fn is_pinned(&self) -> bool {
        self.min_pct == self.max_pct
    }

    /// The model, from the measured one.
    pub(super) fn model(&self, measured: &ModelLine) -> ModelLine {
        let scaled = |iops: u64| (iops.saturating_mul(self.iops_pct.into()) / 100).max(1);
        ModelLine {
            rseqiops: scaled(measured.rseqiops),
            rrandiops: scaled(measured.rrandiops),
            wseqiops: scaled(measured.wseqiops),
            wrandiops: scaled(measured.wrandiops),
            ..*measured
        }
    }

    /// The latency targets and bounds.
    pub(super) fn qos(&self) -> QosLine {
        let pct = Percent::whole(95);
        QosLine {
            enable: true,
            ctrl: Ctrl::User,
            rpct: pct,
            rlat_us: self.latency_us,
            wpct: pct,
            wlat_us: self.latency_us,
            min_pct: Percent::whole(self.min_pct),
            max_pct: Percent::whole(self.max_pct),
        }
    }
}

impl std::fmt::Display for Candidate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_pinned() {
            write!(f, "vrate {} %", self.min_pct)?;
        } else {
            let latency_ms = self.latency_us as f64 / 1000.0;
            write!(f, "vrate {}-{} %, latency target {latency_ms:.0} ms", self.min_pct, self.max_pct)?;
        }
        if self.iops_pct != 100 {
            write!(f, ", {} % of the IOPS", self.iops_pct)?;
        }
        Ok(())
    }
}

/// The measurements of a candidate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    pub(super) candidate: Candidate,
    /// The probe's mean fsync latency.
    pub(super) mean_ms: f64,
    /// Its 99th percentile.
    pub(super) p99_ms: f64,
    /// The greedy load's throughput on the device.
    pub(super) bytes_per_s: f64,
    /// Mean time of a write in the device, its queue included.
    pub(super) device_ms: f64,
}

/// Whether a trial filled the device's queue, relative to the shortest time in the device of all trials.
pub(super) fn is_saturated(trial: &Trial, all: &[Trial]) -> bool {
    let least_ms = all.iter().map(|trial| trial.device_ms).fold(f64::INFINITY, f64::min);
    trial.device_ms > SATURATED * least_ms
}

/// Number of [`around`]'s candidates.
pub(super) const N_AROUND: usize = 5;

/// Candidates around the fastest pinned one that does not saturate the device: ranges of vrate, within which the kernel adapts to the observed
/// latency, so that misjudged loads are not limited to a speed found with other loads; and a higher cost of operations relative to bytes.
pub(super) fn around(fastest: &Trial) -> [Candidate; N_AROUND] {
    let center = fastest.candidate;
    let scaled = |pct: u32, by: u32| (pct * by / 100).max(1);
    // In multiples of the device's latency at this speed.
    let device = Duration::try_from_secs_f64(fastest.device_ms / 1000.0).unwrap_or_default();
    let target = |times: u32| u64::try_from((device * times).as_micros()).unwrap_or(u64::MAX).clamp(500, 1_000_000);
    let range = |low: u32, high: u32, times: u32| Candidate {
        min_pct: scaled(center.min_pct, low),
        max_pct: scaled(center.max_pct, high),
        latency_us: target(times),
        ..center
    };
    [
        range(75, 100, 4),
        range(75, 115, 4),
        range(90, 115, 8),
        range(75, 130, 12),
        Candidate { iops_pct: 50, ..range(90, 130, 8) },
    ]
}

/// The best of the trials that do not saturate the device: the lowest latency among those with enough throughput, or a range of vrates with a
/// latency not much higher; if none has enough, the one with the highest throughput. `None` without trials.
pub(super) fn choose(trials: &[Trial], fair_bytes_per_s: f64) -> Option<Trial> {
    let calm: Vec<&Trial> = trials.iter().filter(|trial| !is_saturated(trial, trials)).collect();
    let enough: Vec<&Trial> =
        calm.iter().copied().filter(|trial| trial.bytes_per_s >= KEPT_MIN * fair_bytes_per_s).collect();
    let quickest = |a: &&Trial, b: &&Trial| a.mean_ms.total_cmp(&b.mean_ms);
    let Some(best) = enough.iter().copied().min_by(quickest) else {
        return calm.into_iter().max_by(|a, b| a.bytes_per_s.total_cmp(&b.bytes_per_s)).copied();
    };
    let ranges = enough.into_iter().filter(|trial| !trial.candidate.is_pinned());
    let worth = ranges.filter(|trial| trial.mean_ms <= best.mean_ms * RANGE_WORTH);
    Some(*worth.min_by(quickest).unwrap_or(best))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(candidate: Candidate, mean_ms: f64, bytes_per_s: f64) -> Trial {
        Trial { candidate, mean_ms, p99_ms: 3.0 * mean_ms, bytes_per_s, device_ms: mean_ms / 2.0 }
    }

    #[test]
    fn throughput_comes_first_then_latency_then_a_range() {
        let pinned = |vrate, mean_ms, bytes| trial(Candidate::pinned(vrate), mean_ms, bytes);
        let trials = [pinned(60, 10.0, 50.0), pinned(100, 20.0, 96.0), pinned(130, 40.0, 99.0)];
        assert_eq!(choose(&trials, 100.0).unwrap().candidate.max_pct, 100);
        assert_eq!(
            choose(&trials, 200.0).unwrap().candidate.max_pct,
            130,
            "none keeps enough: the one that keeps most"
        );
        let range = Candidate { min_pct: 75, ..Candidate::pinned(130) };
        let with_range = [&trials[..], &[trial(range, 24.5, 95.5)]].concat();
        assert_eq!(choose(&with_range, 100.0).unwrap().candidate, range);
        let slower = [&trials[..], &[trial(range, 26.0, 99.0)]].concat();
        assert_eq!(choose(&slower, 100.0).unwrap().candidate.max_pct, 100);
        assert_eq!(choose(&[], 100.0), None);
    }

    #[test]
    fn candidates_are_valid_lines() {
        let measured =
            ModelLine { ctrl: Ctrl::User, rbps: 30, rseqiops: 9, rrandiops: 1, wbps: 20, wseqiops: 8, wrandiops: 2 };
        for candidate in around(&trial(Candidate::pinned(220), 10.0, 1.0)) {
            let (model, qos) = (candidate.model(&measured), candidate.qos());
            assert!(model.rrandiops >= 1 && model.rbps == 30, "{model:?}");
            assert!(qos.min_pct <= qos.max_pct && qos.min_pct >= Percent::VRATE_MIN, "{qos:?}");
            assert!(qos.max_pct <= Percent::VRATE_MAX && qos.wlat_us > 0, "{qos:?}");
        }
        assert_eq!(Candidate::pinned(80).to_string(), "vrate 80 %");
        let slow = Candidate { iops_pct: 50, min_pct: 60, ..Candidate::pinned(80) };
        assert_eq!(slow.to_string(), "vrate 60-80 %, latency target 100 ms, 50 % of the IOPS");
    }
}
