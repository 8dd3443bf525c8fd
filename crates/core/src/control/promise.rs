//! Slowing down other tenants so that a tenant's fsyncs take no longer than promised.
//!
//! The effect of a step is visible once all fsyncs of [`WINDOW`] come after it, so there is one step per window: the
//! others are slowed down in proportion to how far the promise is missed. When it is kept with room to spare, they
//! recover: quickly, except near the rate at which it was last missed, or every burst would be admitted again.
//!
//! This need not help: on a hard disk a single request ahead of it delays an fsync, however few there are. If all
//! others are at their minimum and fsyncs are hardly faster than before, the caps are lifted, and set again after a
//! while. The same happens if all others do more than their caps allow: creating and removing files writes only
//! metadata, which bypasses caps.

use std::collections::{BTreeMap, BTreeSet};

use super::capping::{Limit, Rate, WAITS};
use super::{LatencyMiss, Params, Reason, Sample};

/// Time until the effect of a step is visible, s: the window of fsync latencies.
const WINDOW: f64 = 10.0;
/// Range of the factor by which a step reduces the others' rates.
const STEP: (f64, f64) = (0.5, 0.9);
/// Fraction of the promised latency below which the others recover.
const CALM_FACTOR: f64 = 0.7;
/// Factor of a recovery step.
const RECOVER: f64 = 1.25;
/// Factor of a recovery step near the rate at which the promise was last missed.
const PROBE: f64 = 1.05;
/// The range that counts as near, as factors of that rate.
const NEAR: (f64, f64) = (0.85, 1.1);
/// Smallest rate of each of the others, as a fraction of its share of its rate before the cap.
pub(super) const FLOOR: f64 = 0.25;
/// Caps help if fsyncs take at most this fraction of the time that they took before.
const HELPFUL_FACTOR: f64 = 0.75;
/// Pause after which caps that did not help are tried again, s.
const PAUSE: f64 = 300.0;
/// A tenant that exceeds its cap by this factor is not restricted by it: its I/O is metadata.
const BYPASS_FACTOR: f64 = 1.5;

/// The tenants that are slowed down for promises, and the progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Promises {
    throttled: BTreeMap<String, Throttled>,
    /// Time since the last step, s.
    since_step: f64,
    /// Latency at the first step, as a multiple of the promised one; `None` if unknown.
    before: Option<f64>,
    /// Remaining pause without caps (s), and why they did not help.
    paused: Option<(f64, LatencyMiss)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Throttled {
    /// Its rate before.
    rate_before: Limit,
    /// The fraction of that rate that it may use now.
    fraction: f64,
    /// The minimum of that fraction.
    floor: f64,
    /// The fraction at which the promise was last missed.
    missed_at: f64,
}

impl Promises {
    /// Starts from caps that are already set. The rates from before them are unknown, so these caps are not lowered.
    pub(super) fn resume(caps: impl Iterator<Item = (String, Limit)>) -> Self {
        let throttled = caps
            .map(|(name, rate_before)| (name, Throttled { rate_before, fraction: 1.0, floor: 1.0, missed_at: 1.0 }));
        Self { throttled: throttled.collect(), ..Self::default() }
    }

    /// The limit of a tenant, if it has one.
    pub(super) fn limit(&self, name: &str) -> Option<Limit> {
        self.throttled.get(name).map(|throttled| throttled.rate_before.scaled(throttled.fraction))
    }

    /// Removes tenants whose cgroups are gone.
    pub(super) fn retain(&mut self, there: &BTreeMap<String, u32>) {
        self.throttled.retain(|name, _| there.contains_key(name));
    }

    /// One step, `seconds` after the previous one. Returns a tenant whose promise is missed if nothing can be done
    /// about it.
    pub(super) fn step(
        &mut self,
        sample: &Sample,
        rates: &BTreeMap<String, Rate>,
        params: &Params,
        seconds: f64,
    ) -> Option<Reason> {
        self.since_step += seconds;
        self.paused = self.paused.map(|(left, why)| (left - seconds, why)).filter(|(left, _)| *left > 0.0);
        let missed = missed(sample, params);
        let worst = worst(sample, params);
        if missed.is_empty() {
            self.recover(worst, sample, rates);
            return None;
        }
        if let Some((_, why)) = self.paused {
            return latency_missed(&missed, why);
        }
        if self.since_step < WINDOW && !self.throttled.is_empty() {
            return None;
        }
        if self.is_bypassed(rates) {
            return self.give_up(&missed, LatencyMiss::PastCaps);
        }
        let spared: BTreeSet<&str> = missed.iter().map(|(name, ..)| *name).collect();
        if self.throttle(sample, rates, params, &spared, worst) {
            return None;
        }
        if self.before.is_some_and(|before| worst > HELPFUL_FACTOR * before) {
            return self.give_up(&missed, LatencyMiss::NoHelp);
        }
        latency_missed(&missed, LatencyMiss::AtFloor)
    }

    /// Whether all slowed-down tenants that do I/O exceed their caps.
    fn is_bypassed(&self, rates: &BTreeMap<String, Rate>) -> bool {
        let used = |(name, throttled): (&String, &Throttled)| {
            let does = rates.get(name).filter(|does| does.ops > 0.0)?;
            Some(throttled.rate_before.scaled(throttled.fraction).utilisation(*does))
        };
        let mut used = self.throttled.iter().filter_map(used).peekable();
        used.peek().is_some() && used.all(|used| used > BYPASS_FACTOR)
    }

    /// Lifts all caps for a while.
    fn give_up(&mut self, missed: &[(&str, f64, f64)], why: LatencyMiss) -> Option<Reason> {
        *self = Self { paused: Some((PAUSE, why)), ..Self::default() };
        latency_missed(missed, why)
    }

    /// Slows down all others that do I/O by one step. Returns whether any of them was above its minimum.
    fn throttle(
        &mut self,
        sample: &Sample,
        rates: &BTreeMap<String, Rate>,
        params: &Params,
        spared: &BTreeSet<&str>,
        worst: f64,
    ) -> bool {
        let mut is_step = false;
        for name in sample.tenants.keys().filter(|name| !spared.contains(name.as_str())) {
            let Some(rate_before) = rates.get(name).copied().filter(|does| does.ops > 0.0) else { continue };
            let share = params.parts.get(name).copied().unwrap_or(0.0);
            let rate_before = Limit::for_rate(rate_before, sample.largest);
            let floor = (FLOOR * share).max(rate_before.min_fraction());
            let new = || Throttled { rate_before, fraction: 1.0, floor, missed_at: 1.0 };
            let throttled = self.throttled.entry(name.clone()).or_insert_with(new);
            is_step |= throttled.fraction > throttled.floor;
            throttled.missed_at = throttled.fraction;
            throttled.fraction = (throttled.fraction * (1.0 / worst).clamp(STEP.0, STEP.1)).max(throttled.floor);
        }
        if is_step {
            self.since_step = 0.0;
            self.before.get_or_insert(worst);
        }
        is_step
    }

    /// Lets the others recover by one step.
    fn recover(&mut self, worst: f64, sample: &Sample, rates: &BTreeMap<String, Rate>) {
        if worst >= CALM_FACTOR || self.since_step < WINDOW {
            return;
        }
        self.since_step = 0.0;
        for throttled in self.throttled.values_mut() {
            let (low, high) = (NEAR.0 * throttled.missed_at, NEAR.1 * throttled.missed_at);
            let is_near = throttled.fraction * RECOVER > low && throttled.fraction < high;
            throttled.fraction *= if is_near { PROBE } else { RECOVER };
        }
        let does = |name: &str| rates.get(name).copied().unwrap_or_default();
        let waits = |name: &str| sample.tenants.get(name).is_some_and(|tenant| tenant.waiting >= WAITS);
        self.throttled.retain(|name, throttled| {
            throttled.rate_before.scaled(throttled.fraction).may_restrict(does(name), waits(name))
        });
        if self.throttled.is_empty() {
            self.before = None;
        }
    }
}

/// Tenants whose promise is missed, with the measured and the promised 99th percentile, s.
pub(super) fn missed<'a>(sample: &Sample, params: &'a Params) -> Vec<(&'a str, f64, f64)> {
    promised(sample, params).filter(|(_, found, promised)| found > promised).collect()
}

/// The reason for the first tenant whose promise is missed.
pub(super) fn latency_missed(missed: &[(&str, f64, f64)], why: LatencyMiss) -> Option<Reason> {
    let (tenant, found, promised) = *missed.first()?;
    Some(Reason::LatencyMissed { tenant: tenant.to_owned(), found, promised, why })
}

/// The largest latency as a multiple of the promised one.
fn worst(sample: &Sample, params: &Params) -> f64 {
    promised(sample, params).map(|(_, found, promised)| found / promised).fold(0.0, f64::max)
}

fn promised<'a>(sample: &Sample, params: &'a Params) -> impl Iterator<Item = (&'a str, f64, f64)> {
    params
        .fsync_p99
        .iter()
        .filter_map(|(name, promised)| Some((name.as_str(), sample.tenants.get(name)?.fsync_p99?, *promised)))
}

#[cfg(test)]
mod tests;
