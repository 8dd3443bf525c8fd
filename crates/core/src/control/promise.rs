//! Holding others back so that a tenant's fsyncs take no longer than was promised.
//!
//! A step shows when the fsyncs of [`WINDOW`] are all from after it, so that there is one in each of these: others are held back by as
//! much as the promise is missed. Where it is kept with room to spare they get back what they had, quickly but for the rates
//! round the one at which it was missed last: every burst that was held back would be let in again.
//!
//! It need not help: on a disk with one arm a single request in the way makes an fsync late, however few there are. Where all others
//! are at their floor and fsyncs take hardly less than before, nobody is held back for nothing: that is tried again after a while. So it
//! is where all others do more than their caps allow: what creates and removes files writes nothing but metadata, which passes them.

use std::collections::{BTreeMap, BTreeSet};

use super::capping::{Limit, Rate, WAITS};
use super::{LatencyMiss, Params, Reason, Sample};

/// Until a step shows, s: fsyncs are counted over so long.
const WINDOW: f64 = 10.0;
/// A step leaves others no less and no more than these parts of what they had.
const STEP: (f64, f64) = (0.5, 0.9);
/// They recover when latencies are below this part of what was promised.
const CALM: f64 = 0.7;
/// By how much in a step.
const RECOVER: f64 = 1.25;
/// By how much where the promise was missed before.
const PROBE: f64 = 1.05;
/// What counts as there, of the rate at which it was missed.
const NEAR: (f64, f64) = (0.85, 1.1);
/// What is left to each of the others, of its share of what it did before there was a cap.
pub(super) const FLOOR: f64 = 0.25;
/// It helps to hold others back when fsyncs take no more than this part of what they took before.
const HELPS: f64 = 0.75;
/// Where it does not, it is tried again after so long, s.
const PAUSE: f64 = 300.0;
/// Who does so many times what its cap allows is not held by it: its I/O is metadata.
const PASSES: f64 = 1.5;

/// Who is held back for promises, and how that goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Promises {
    held_back: BTreeMap<String, HeldBack>,
    /// Since the step before, s.
    since_step: f64,
    /// What fsyncs took when it began, of what was promised; none when it is not known.
    before: Option<f64>,
    /// How long nobody is held back yet (s), because it did not help, and why it did not.
    paused: Option<(f64, LatencyMiss)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct HeldBack {
    /// What it did before.
    did: Limit,
    /// What it has left of that.
    part: f64,
    /// The least of it.
    floor: f64,
    /// What it had when the promise was missed last.
    missed_at: f64,
}

impl Promises {
    /// With caps that are there already. How much there was before is not known any more: they do not become lower.
    pub(super) fn found(caps: impl Iterator<Item = (String, Limit)>) -> Self {
        let held_back = caps.map(|(name, did)| (name, HeldBack { did, part: 1.0, floor: 1.0, missed_at: 1.0 }));
        Self { held_back: held_back.collect(), ..Self::default() }
    }

    /// What a tenant is held to.
    pub(super) fn of(&self, name: &str) -> Option<Limit> {
        self.held_back.get(name).map(|held_back| held_back.did.times(held_back.part))
    }

    /// Forgets those who have gone.
    pub(super) fn keep(&mut self, there: &BTreeMap<String, u32>) {
        self.held_back.retain(|name, _| there.contains_key(name));
    }

    /// Goes on after so many seconds, with what tenants do now. Says who waits for longer than was promised when nothing can be done
    /// about it.
    pub(super) fn hold(
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
            return told(&missed, why);
        }
        if self.since_step < WINDOW && !self.held_back.is_empty() {
            return None;
        }
        if self.is_passed(rates) {
            return self.give_up(&missed, LatencyMiss::PastCaps);
        }
        let spared: BTreeSet<&str> = missed.iter().map(|(name, ..)| *name).collect();
        if self.hold_back(sample, rates, params, &spared, worst) {
            return None;
        }
        if self.before.is_some_and(|before| worst > HELPS * before) {
            return self.give_up(&missed, LatencyMiss::NoHelp);
        }
        told(&missed, LatencyMiss::AtFloor)
    }

    /// Whether all who are held back and do I/O do more than their caps allow.
    fn is_passed(&self, rates: &BTreeMap<String, Rate>) -> bool {
        let used = |(name, held_back): (&String, &HeldBack)| {
            let does = rates.get(name).filter(|does| does.ops > 0.0)?;
            Some(held_back.did.times(held_back.part).used(*does))
        };
        let mut used = self.held_back.iter().filter_map(used).peekable();
        used.peek().is_some() && used.all(|used| used > PASSES)
    }

    /// Holds nobody back for a while.
    fn give_up(&mut self, missed: &[(&str, f64, f64)], why: LatencyMiss) -> Option<Reason> {
        *self = Self { paused: Some((PAUSE, why)), ..Self::default() };
        told(missed, why)
    }

    /// One step for all others that do I/O; whether there was one to take.
    fn hold_back(
        &mut self,
        sample: &Sample,
        rates: &BTreeMap<String, Rate>,
        params: &Params,
        spared: &BTreeSet<&str>,
        worst: f64,
    ) -> bool {
        let mut is_step = false;
        for name in sample.tenants.keys().filter(|name| !spared.contains(name.as_str())) {
            let Some(did) = rates.get(name).copied().filter(|does| does.ops > 0.0) else { continue };
            let share = params.parts.get(name).copied().unwrap_or(0.0);
            let did = Limit::of(did, sample.largest);
            let floor = (FLOOR * share).max(did.least());
            let new = || HeldBack { did, part: 1.0, floor, missed_at: 1.0 };
            let held_back = self.held_back.entry(name.clone()).or_insert_with(new);
            is_step |= held_back.part > held_back.floor;
            held_back.missed_at = held_back.part;
            held_back.part = (held_back.part * (1.0 / worst).clamp(STEP.0, STEP.1)).max(held_back.floor);
        }
        if is_step {
            self.since_step = 0.0;
            self.before.get_or_insert(worst);
        }
        is_step
    }

    /// Gives others back what they had.
    fn recover(&mut self, worst: f64, sample: &Sample, rates: &BTreeMap<String, Rate>) {
        if worst >= CALM || self.since_step < WINDOW {
            return;
        }
        self.since_step = 0.0;
        for held_back in self.held_back.values_mut() {
            let (low, high) = (NEAR.0 * held_back.missed_at, NEAR.1 * held_back.missed_at);
            let is_near = held_back.part * RECOVER > low && held_back.part < high;
            held_back.part *= if is_near { PROBE } else { RECOVER };
        }
        let does = |name: &str| rates.get(name).copied().unwrap_or_default();
        let waits = |name: &str| sample.tenants.get(name).is_some_and(|tenant| tenant.waiting >= WAITS);
        self.held_back.retain(|name, held_back| held_back.did.times(held_back.part).holds(does(name), waits(name)));
        if self.held_back.is_empty() {
            self.before = None;
        }
    }
}

/// Who waits for longer than was promised: what 99 % of its fsyncs took at most, and what was promised, s.
pub(super) fn missed<'a>(sample: &Sample, params: &'a Params) -> Vec<(&'a str, f64, f64)> {
    promised(sample, params).filter(|(_, found, promised)| found > promised).collect()
}

/// Tells that nothing can be done for the first of those who wait, and why.
pub(super) fn told(missed: &[(&str, f64, f64)], why: LatencyMiss) -> Option<Reason> {
    let (tenant, found, promised) = *missed.first()?;
    Some(Reason::LatencyMissed { tenant: tenant.to_owned(), found, promised, why })
}

/// What fsyncs took of what was promised, where that is most.
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
