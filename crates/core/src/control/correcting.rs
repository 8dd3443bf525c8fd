//! Bulkhead's correction of weights: same goal as the published one, for real devices and tenants.
//!
//! A tenant's target for its own I/O follows from its journal I/O: its share of the I/O of all contenders, minus its
//! journal I/O (feed-forward). Weights in these proportions would suffice if the controller divided what is counted
//! here. It divides something else (io.cost a model's cost, BFQ sectors), so each tenant also has a factor that is
//! learnt from the effect of its weights in the window (trim).
//!
//! * Only tenants that contend take part: those that wait for I/O most of the time, or have reached their share. Others
//!   get their ideal weight, and their part is free for the rest.
//! * Journal I/O comes in bursts, 5 to 6 s apart with ext4's timer, so it is averaged over a window of several bursts.
//!   Contention and the effect of weights are taken from the last seconds.
//! * A weight at most doubles or halves each second, and is left alone if it would change by less than 1 %.
//! * If a tenant's journal I/O alone exceeds its share, no weight helps: it gets the minimum, the others share the
//!   rest, and its standing reports it (`infeasible`).
//! * Where weights have no effect, and for promised latencies, tenants are capped ([`super::capping`]).

use std::collections::{BTreeMap, BTreeSet};

use super::capping::{Caps, Rate, Recent};
use super::{
    Cap, LATE_NS, LatencyMiss, Params, Reason, Sample, Standing, Step, TenantSample, Usage, fraction_of, other_writer,
    promise, weights_of,
};
use crate::units::seconds;

/// Length of the window, ns: three periods of ext4's commit timer.
const WINDOW_NS: u64 = 15_000_000_000;
/// The recent part of the window, ns, which decides about contention and trim. No step is made before the window has
/// this length.
const RECENT_NS: u64 = 5_000_000_000;
/// Utilisation below which a device is not contended.
const CONTENDED: f64 = 0.8;
/// Fraction of time waiting for I/O above which a tenant contends. That includes tenants which wait only for their own
/// requests: more weight than they can use does no harm.
const WAITS: f64 = 0.3;
/// A tenant that gets this fraction of its share contends, too.
const SHARE_REACHED: f64 = 0.95;
/// Minimum of a tenant's own I/O, as a fraction of all I/O: without any weight it would starve.
const FLOOR: f64 = 0.01;
/// Gain of the trim per sample. Weights have no effect for periods of time: what is learnt in such a period is wrong
/// after it.
const GAIN: f64 = 0.2;
/// The trim stays between 1/LIMIT and LIMIT.
const TRIM_LIMIT: f64 = 2.0;
/// Deviation of own I/O from what weights should give, as a fraction of all own I/O, above which weights count as
/// ineffective.
const INEFFECTIVE_DEVIATION: f64 = 0.05;
/// Largest factor by which a weight changes per second.
const MAX_CHANGE_PER_SECOND: f64 = 2.0;
/// Smaller changes of weights, as a fraction, are not made.
const DEAD_BAND: f64 = 0.01;

/// The controller's state between samples. A new one starts from the weights that it finds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    at_ns: Option<u64>,
    window: Vec<Entry>,
    /// The weights as last found or set.
    weights: BTreeMap<String, u32>,
    /// How much more weight than others a tenant needs for the same own I/O.
    trim: BTreeMap<String, f64>,
    caps: Caps,
    /// The caps as last found or set.
    capped: BTreeMap<String, Cap>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    ns: u64,
    busy: f64,
    tenants: BTreeMap<String, TenantSample>,
}

/// Evaluates a sample. The returned changes are assumed to be applied before the next sample.
pub fn step(state: &mut State, sample: &Sample, params: &Params) -> Step {
    let still = |reason| Step { reason, ..Step::default() };
    let before = state.at_ns.replace(sample.at_ns);
    let ns = match before.map(|before| sample.at_ns.checked_sub(before)) {
        None => {
            state.weights = weights_of(sample);
            state.caps = Caps::resume(sample, params);
            state.capped = current_caps(sample);
            return still(Reason::Starting);
        }
        Some(None) => {
            state.window.clear();
            return still(Reason::ClockWentBack);
        }
        Some(Some(ns)) if ns > LATE_NS => {
            state.window.clear();
            return still(Reason::Late { ns });
        }
        Some(Some(ns)) => ns,
    };
    if sample.is_partial {
        state.window.clear();
        return still(Reason::Partial);
    }
    if let Some(reason) = other_writer(sample, &state.weights).or_else(|| other_cap(sample, state)) {
        state.window.clear();
        return still(reason);
    }
    // Includes tenants that are new, and none that are gone.
    state.weights = weights_of(sample);
    state.capped = current_caps(sample);
    state.push(ns, sample);
    let now = state.situation(params);
    let mut step = state.decide_weights(&now, ns, params);
    state.decide_caps(&mut step, &now, ns, sample, params);
    step
}

/// The situation of the last seconds.
struct Situation {
    /// Whether the window is long enough.
    is_known: bool,
    busy: f64,
    contenders: BTreeSet<String>,
    amounts: BTreeMap<String, Usage>,
    waiting: BTreeMap<String, f64>,
}

/// The current caps.
fn current_caps(sample: &Sample) -> BTreeMap<String, Cap> {
    sample.tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), tenant.cap?))).collect()
}

/// The first cap that differs from the one that was last set or found. A new cgroup may have any.
fn other_cap(sample: &Sample, state: &State) -> Option<Reason> {
    sample.tenants.iter().filter(|(name, _)| state.weights.contains_key(*name)).find_map(|(name, tenant)| {
        let (found, expected) = (tenant.cap, state.capped.get(name).copied());
        (found != expected).then(|| Reason::OtherCap { tenant: name.clone(), found, expected })
    })
}

impl State {
    fn situation(&self, params: &Params) -> Situation {
        let recent = last(&self.window, RECENT_NS);
        let (amounts, waiting) = (amounts(recent, &self.weights), waiting(recent, &self.weights));
        Situation {
            is_known: length_ns(&self.window) >= RECENT_NS,
            busy: mean(recent, |entry| Some(entry.busy)),
            contenders: contenders(&amounts, &waiting, params),
            amounts,
            waiting,
        }
    }

    /// Decides about weights.
    fn decide_weights(&mut self, now: &Situation, ns: u64, params: &Params) -> Step {
        let mut tenants = standings(&amounts(&self.window, &self.weights), &now.contenders, params);
        let reason = match now {
            Situation { is_known: false, .. } => Some(Reason::Starting),
            Situation { busy, .. } if *busy < CONTENDED => Some(Reason::NotContended { busy: *busy }),
            Situation { contenders, .. } if contenders.len() < 2 => Some(Reason::NoContenders),
            _ => None,
        };
        if let Some(reason) = reason {
            return Step { reason, tenants, ..Step::default() };
        }
        let own = own_fractions(&mut tenants);
        // A cap does for these tenants what no weight did: their trim would learn nothing, and what it learnt before
        // would add to the cap.
        self.trim.retain(|name, _| !self.capped.contains_key(name));
        let weighed = now.contenders.iter().filter(|name| !self.capped.contains_key(*name)).cloned().collect();
        let ineffective = learn(&mut self.trim, last(&self.window, RECENT_NS), &weighed);
        let changes = self.weigh(&own, ns, params);
        let reason = match ineffective {
            Some(reason) => reason,
            None if changes.is_empty() => Reason::WithinBand,
            None => Reason::Corrected,
        };
        Step { changes, reason, tenants, ..Step::default() }
    }

    /// Decides about caps.
    fn decide_caps(&mut self, step: &mut Step, now: &Situation, ns: u64, sample: &Sample, params: &Params) {
        let mut missed = None;
        if !sample.can_cap {
            self.caps.lift();
            missed = promise::latency_missed(&promise::missed(sample, params), LatencyMiss::NoCaps);
        } else if now.is_known {
            let window = last(&self.window, RECENT_NS);
            let rate = |name: &String| Rate {
                ops: mean(window, |entry| entry.tenants.get(name).map(|tenant| tenant.ops)),
                bytes: mean(window, |entry| entry.tenants.get(name).map(|tenant| tenant.bytes)),
            };
            let rates: BTreeMap<String, Rate> = self.weights.keys().map(|name| (name.clone(), rate(name))).collect();
            let recent = Recent {
                busy: now.busy,
                rates: &rates,
                largest: sample.largest,
                standings: &standings(&now.amounts, &now.contenders, params),
                waiting: &now.waiting,
                is_ineffective: matches!(step.reason, Reason::Ineffective { .. }),
                seconds: seconds(ns),
            };
            self.caps.retain(&self.weights);
            self.caps.adjust_to_shares(&recent);
            missed = self.caps.promises.step(sample, recent.rates, params, recent.seconds);
        }
        let (changes, capped) = self.caps.changes(sample);
        for (name, cap) in &changes {
            match cap {
                Some(cap) => self.capped.insert(name.clone(), *cap),
                None => self.capped.remove(name),
            };
        }
        step.caps = changes;
        if let Some(reason) = missed.or(capped) {
            step.reason = reason;
        }
    }
}

/// The last entries that cover `ns`.
fn last(window: &[Entry], ns: u64) -> &[Entry] {
    let mut left = ns;
    let is_needed = |entry: &&Entry| {
        let is_needed = left > 0;
        left = left.saturating_sub(entry.ns);
        is_needed
    };
    let n_needed = window.iter().rev().take_while(is_needed).count();
    &window[window.len() - n_needed..]
}

fn length_ns(window: &[Entry]) -> u64 {
    window.iter().map(|entry| entry.ns).sum()
}

/// Mean over time.
fn mean(window: &[Entry], value: impl Fn(&Entry) -> Option<f64>) -> f64 {
    let sum: f64 = window.iter().map(|entry| value(entry).unwrap_or(0.0) * seconds(entry.ns)).sum();
    fraction_of(sum, seconds(length_ns(window)))
}

/// Total I/O of the current tenants.
fn amounts(window: &[Entry], there: &BTreeMap<String, u32>) -> BTreeMap<String, Usage> {
    let sum = |name: &String| {
        let mut sum = Usage::default();
        window.iter().filter_map(|entry| entry.tenants.get(name)).for_each(|tenant| sum += tenant.usage);
        sum
    };
    there.keys().map(|name| (name.clone(), sum(name))).collect()
}

fn waiting(window: &[Entry], there: &BTreeMap<String, u32>) -> BTreeMap<String, f64> {
    let mean = |name: &String| mean(window, |entry| entry.tenants.get(name).map(|tenant| tenant.waiting));
    there.keys().map(|name| (name.clone(), mean(name))).collect()
}

/// Adapts the trim to the effect of weights: own I/O is expected in proportion to weight / trim. Reports a tenant whose
/// own I/O does not depend on its weight: its trim is at the limit, and its own I/O is still far from expected.
fn learn(trim: &mut BTreeMap<String, f64>, window: &[Entry], contenders: &BTreeSet<String>) -> Option<Reason> {
    let trim_of = |name: &String| trim.get(name).copied().unwrap_or(1.0);
    let native = |name: &String| -> f64 {
        window.iter().filter_map(|entry| entry.tenants.get(name)).map(|tenant| tenant.usage.native).sum()
    };
    let all: f64 = contenders.iter().map(native).sum();
    let expected = |entry: &Entry, name: &String| {
        let of = |name: &String| Some(f64::from(entry.tenants.get(name)?.weight) / trim_of(name));
        let sum: f64 = contenders.iter().filter_map(of).sum();
        Some(of(name)? / sum)
    };
    let lesson = |name: &String| {
        let (expected, had) = (mean(window, |entry| expected(entry, name)), fraction_of(native(name), all));
        // A ratio, not a logarithm: a logarithm would weigh a deficit more than an equal excess, and favour tenants
        // with a smaller part on an uneven disk. A tenant without own I/O teaches nothing.
        let error = if had > 0.0 { (1.0 - had / expected).max(-1.0) } else { 0.0 };
        (name.clone(), expected, had, trim_of(name).ln() + GAIN * error)
    };
    let lessons: Vec<_> = contenders.iter().map(lesson).collect();
    // Only their proportions matter. A tenant with a large share would hardly learn from its own error, which is small.
    let wanted = || lessons.iter().map(|(.., wanted)| *wanted);
    let centre = f64::midpoint(wanted().fold(f64::INFINITY, f64::min), wanted().fold(f64::NEG_INFINITY, f64::max));
    let mut ineffective = None;
    let mut learnt = BTreeMap::new();
    for (name, expected, had, wanted) in lessons {
        let wanted = (wanted - centre).exp();
        let kept = wanted.clamp(1.0 / TRIM_LIMIT, TRIM_LIMIT);
        if (had - expected).abs() > INEFFECTIVE_DEVIATION && (wanted / kept - 1.0).abs() > DEAD_BAND {
            ineffective = Some(Reason::Ineffective { tenant: name.clone(), had, expected });
        }
        learnt.insert(name, kept);
    }
    trim.extend(learnt);
    ineffective
}

impl State {
    fn push(&mut self, ns: u64, sample: &Sample) {
        self.window.push(Entry { ns, busy: sample.busy, tenants: sample.tenants.clone() });
        let n_old = self.window.len() - last(&self.window, WINDOW_NS).len();
        self.window.drain(..n_old);
        self.trim.retain(|name, _| self.weights.contains_key(name));
    }

    /// The weights that give contenders their fractions of own I/O.
    fn weigh(&mut self, own: &BTreeMap<String, f64>, ns: u64, params: &Params) -> BTreeMap<String, u32> {
        let trimmed = |name: &str, part: f64| part * self.trim.get(name).copied().unwrap_or(1.0);
        let sum: f64 = own.iter().map(|(name, part)| trimmed(name, *part)).sum();
        let total: f64 = own.keys().map(|name| params.ideal(name)).sum();
        let most = MAX_CHANGE_PER_SECOND.powf(seconds(ns).min(1.0));
        let mut changes = BTreeMap::new();
        for (name, before) in &self.weights {
            let wanted = own.get(name).map_or(params.ideal(name), |part| total * trimmed(name, *part) / sum);
            let weight = wanted.clamp(f64::from(*before) / most, f64::from(*before) * most);
            let weight = params.round(weight);
            let change = (f64::from(weight) / f64::from(*before) - 1.0).abs();
            if change >= DEAD_BAND {
                changes.insert(name.clone(), weight);
            }
        }
        self.weights.extend(changes.clone());
        changes
    }
}

/// A tenant's share among the current tenants.
fn part(params: &Params, there: &BTreeMap<String, Usage>, name: &str) -> f64 {
    let known: f64 = there.keys().filter_map(|name| params.parts.get(name)).sum();
    params.parts.get(name).copied().unwrap_or(0.0) / known.max(f64::MIN_POSITIVE)
}

fn contenders(amounts: &BTreeMap<String, Usage>, waiting: &BTreeMap<String, f64>, params: &Params) -> BTreeSet<String> {
    let all: f64 = amounts.values().map(|usage| usage.total()).sum();
    let contends = |(name, usage): &(&String, &Usage)| {
        usage.total() > 0.0
            && (waiting.get(*name).is_some_and(|waiting| *waiting >= WAITS)
                || fraction_of(usage.total(), all) >= SHARE_REACHED * part(params, amounts, name))
    };
    amounts.iter().filter(contends).map(|(name, _)| name.clone()).collect()
}

/// The standings of tenants, before feasibility is known.
fn standings(
    amounts: &BTreeMap<String, Usage>,
    contenders: &BTreeSet<String>,
    params: &Params,
) -> BTreeMap<String, Standing> {
    let part = |name: &String| part(params, amounts, name);
    let all: f64 = amounts.values().map(|usage| usage.total()).sum();
    let theirs: f64 = contenders.iter().filter_map(|name| amounts.get(name)).map(|usage| usage.total()).sum();
    let their_parts: f64 = contenders.iter().map(part).sum();
    let standing = |(name, usage): (&String, &Usage)| {
        let contends = contenders.contains(name);
        let (all, parts) = if contends { (theirs, their_parts) } else { (all, 1.0) };
        let (achieved, journal) = (fraction_of(usage.total(), all), fraction_of(usage.journal, all));
        (name.clone(), Standing { target: part(name) / parts, achieved, journal, contends, infeasible: false })
    };
    amounts.iter().map(standing).collect()
}

/// Each contender's fraction of all own I/O of contenders: its target minus its journal I/O.
fn own_fractions(tenants: &mut BTreeMap<String, Standing>) -> BTreeMap<String, f64> {
    let mut contenders: BTreeMap<String, &mut Standing> =
        tenants.iter_mut().filter(|(_, t)| t.contends).map(|(name, t)| (name.clone(), t)).collect();
    loop {
        let (mut left, mut parts) = (1.0, 0.0);
        for tenant in contenders.values() {
            match tenant.infeasible {
                true => left -= tenant.journal + FLOOR,
                false => parts += tenant.target,
            }
        }
        let own = |tenant: &Standing| match tenant.infeasible {
            true => FLOOR,
            false => left * tenant.target / parts - tenant.journal,
        };
        // Tenants whose journal I/O leaves too little get the floor, and the others share the rest.
        let short: Vec<String> = contenders
            .iter()
            .filter(|(_, tenant)| !tenant.infeasible && own(tenant) < FLOOR)
            .map(|(name, _)| name.clone())
            .collect();
        if short.is_empty() {
            let sum: f64 = contenders.values().map(|tenant| own(tenant)).sum();
            return contenders.iter().map(|(name, tenant)| (name.clone(), own(tenant) / sum)).collect();
        }
        for name in short {
            contenders.get_mut(&name).expect("it is one of them").infeasible = true;
        }
    }
}

#[cfg(test)]
mod tests;
