//! The correction that Bulkhead makes: the goal of the published one, for devices and tenants as they are.
//!
//! What a tenant may have of its own is known as soon as its journal I/O is: its share of what all contenders did, less that
//! (feed-forward). Weights in those proportions would do if the controller shared out what is counted here; it shares out something
//! of its own (io.cost a model's cost, BFQ sectors), so that each tenant has a factor beside, learnt from what its weights made of
//! the window (trim).
//!
//! * Only tenants that contend take part: those that wait for I/O most of the time, or have their share already. Others
//!   have their ideal weight, and their part is free for the rest.
//! * Amounts are those of a window as long as the period of ext4's timer: journal I/O comes in bursts of that period.
//! * A weight at most doubles or halves each second, and one that would change by less than 1 % is left.
//! * Where a tenant's journal I/O alone exceeds its share, no weight helps: it has the least that is possible, the others share
//!   the rest, and the report says so.

use std::collections::{BTreeMap, VecDeque};

use super::{LATE_NS, Params, Reason, Sample, Standing, Step, TenantSample, Usage, other_writer, part_of, weights_of};
use crate::observe::view::seconds;

/// What is summed up, ns: the period of ext4's commits.
const WINDOW_NS: u64 = 5_000_000_000;
/// A device that is busy for less of the time is not contended.
const CONTENDED: f64 = 0.8;
/// A tenant that waits for more of the time contends. Those that wait for their own requests alone do so, too: more weight than they
/// can use does no harm.
const WAITS: f64 = 0.3;
/// One that has this much of its share contends, too.
const HAS_ITS_SHARE: f64 = 0.95;
/// The least that a tenant has of its own, of all: with no weight at all it would starve.
const FLOOR: f64 = 0.01;
/// How much of what the window says about the trim is believed with each sample.
const GAIN: f64 = 0.5;
/// The trim stays between 1/LIMIT and LIMIT.
const TRIM_LIMIT: f64 = 4.0;
/// Factor by which a weight changes in a second, at most.
const PER_SECOND: f64 = 2.0;
/// Changes of weights that are smaller are not made.
const DEAD_BAND: f64 = 0.01;

/// What is remembered between samples. A new one begins with the weights that it finds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    at_ns: Option<u64>,
    window: VecDeque<Entry>,
    /// The weights that were last found or set.
    weights: BTreeMap<String, u32>,
    /// How much more weight a tenant needs for the same own I/O than others do.
    trim: BTreeMap<String, f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    ns: u64,
    busy: f64,
    tenants: BTreeMap<String, TenantSample>,
}

/// One step: takes a sample, and says which weights are to change. They are taken to be in force from the next sample on.
pub fn step(state: &mut State, sample: &Sample, params: &Params) -> Step {
    let still = |reason| Step { changes: BTreeMap::new(), reason, tenants: BTreeMap::new() };
    let before = state.at_ns.replace(sample.at_ns);
    let ns = match before.map(|before| sample.at_ns.checked_sub(before)) {
        None => {
            state.weights = weights_of(sample);
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
    if let Some(reason) = other_writer(sample, &state.weights) {
        state.window.clear();
        return still(reason);
    }
    // Those who came since, and without those who went.
    state.weights = weights_of(sample);
    state.enter(ns, sample);
    let window_ns: u64 = state.window.iter().map(|entry| entry.ns).sum();
    let amounts = state.amounts();
    let busy = state.mean(|entry| Some(entry.busy));
    let mut tenants = standings(&amounts, &state.waiting(), params);
    let contenders: Vec<String> = tenants.iter().filter(|(_, t)| t.contends).map(|(name, _)| name.clone()).collect();
    let reason = if window_ns < WINDOW_NS {
        Some(Reason::Starting)
    } else if busy < CONTENDED {
        Some(Reason::NotContended { busy })
    } else if contenders.len() < 2 {
        Some(Reason::NoContenders)
    } else {
        None
    };
    if let Some(reason) = reason {
        return Step { changes: BTreeMap::new(), reason, tenants };
    }
    let own = own_parts(&mut tenants);
    state.learn(&amounts, &contenders);
    let changes = state.weigh(&own, ns, params);
    let reason = if changes.is_empty() { Reason::WithinBand } else { Reason::Corrected };
    Step { changes, reason, tenants }
}

impl State {
    fn enter(&mut self, ns: u64, sample: &Sample) {
        self.window.push_back(Entry { ns, busy: sample.busy, tenants: sample.tenants.clone() });
        let mut ns: u64 = self.window.iter().map(|entry| entry.ns).sum();
        while let Some(first) = self.window.front()
            && ns - first.ns >= WINDOW_NS
        {
            ns -= first.ns;
            self.window.pop_front();
        }
    }

    /// Of the tenants that are there now.
    fn amounts(&self) -> BTreeMap<String, Usage> {
        let sum = |name: &String| {
            let mut sum = Usage::default();
            self.window.iter().filter_map(|entry| entry.tenants.get(name)).for_each(|tenant| sum += tenant.usage);
            sum
        };
        self.weights.keys().map(|name| (name.clone(), sum(name))).collect()
    }

    fn waiting(&self) -> BTreeMap<String, f64> {
        let mean = |name: &String| self.mean(|entry| entry.tenants.get(name).map(|tenant| tenant.waiting));
        self.weights.keys().map(|name| (name.clone(), mean(name))).collect()
    }

    /// By time.
    fn mean(&self, value: impl Fn(&Entry) -> Option<f64>) -> f64 {
        let (sum, ns) = self.window.iter().fold((0.0, 0.0), |(sum, ns), entry| {
            (sum + value(entry).unwrap_or(0.0) * seconds(entry.ns), ns + seconds(entry.ns))
        });
        part_of(sum, ns)
    }

    /// Lets the trim follow what the weights of the window made of it: own I/O in proportion to weight / trim is expected.
    fn learn(&mut self, amounts: &BTreeMap<String, Usage>, contenders: &[String]) {
        let native: f64 = contenders.iter().filter_map(|name| amounts.get(name)).map(|usage| usage.native).sum();
        let trim = |name: &String| self.trim.get(name).copied().unwrap_or(1.0);
        let expected = |entry: &Entry, name: &String| {
            let of = |name: &String| Some(f64::from(entry.tenants.get(name)?.weight) / trim(name));
            let sum: f64 = contenders.iter().filter_map(of).sum();
            Some(of(name)? / sum)
        };
        let learnt = |name: &String| {
            let had = amounts.get(name).map_or(0.0, |usage| usage.native) / native;
            let error = (self.mean(|entry| expected(entry, name)) / had).ln();
            // Who had nothing of its own teaches nothing.
            let factor = if error.is_finite() { (GAIN * error).exp() } else { 1.0 };
            (name.clone(), (trim(name) * factor).clamp(1.0 / TRIM_LIMIT, TRIM_LIMIT))
        };
        let learnt: Vec<(String, f64)> = contenders.iter().map(learnt).collect();
        self.trim.extend(learnt);
        self.trim.retain(|name, _| self.weights.contains_key(name));
    }

    /// The weights for what contenders are to have of their own.
    fn weigh(&mut self, own: &BTreeMap<String, f64>, ns: u64, params: &Params) -> BTreeMap<String, u32> {
        let trimmed = |name: &str, part: f64| part * self.trim.get(name).copied().unwrap_or(1.0);
        let sum: f64 = own.iter().map(|(name, part)| trimmed(name, *part)).sum();
        let total: f64 = own.keys().map(|name| params.ideal(name)).sum();
        let most = PER_SECOND.powf(seconds(ns).min(1.0));
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

/// Where tenants stand, without what is feasible.
fn standings(
    amounts: &BTreeMap<String, Usage>,
    waiting: &BTreeMap<String, f64>,
    params: &Params,
) -> BTreeMap<String, Standing> {
    let all: f64 = amounts.values().map(|usage| usage.total()).sum();
    let known: f64 = amounts.keys().filter_map(|name| params.parts.get(name)).sum();
    let part = |name: &str| params.parts.get(name).copied().unwrap_or(0.0) / known.max(f64::MIN_POSITIVE);
    let contends = |name: &str, usage: &Usage| {
        usage.total() > 0.0
            && (waiting.get(name).is_some_and(|waiting| *waiting >= WAITS)
                || part_of(usage.total(), all) >= HAS_ITS_SHARE * part(name))
    };
    let contenders: Vec<&String> =
        amounts.iter().filter(|(name, usage)| contends(name, usage)).map(|(n, _)| n).collect();
    let theirs: f64 = contenders.iter().map(|name| amounts[*name].total()).sum();
    let their_parts: f64 = contenders.iter().map(|name| part(name)).sum();
    let standing = |(name, usage): (&String, &Usage)| {
        let contends = contenders.contains(&name);
        let (all, parts) = if contends { (theirs, their_parts) } else { (all, 1.0) };
        let (achieved, journal) = (part_of(usage.total(), all), part_of(usage.journal, all));
        (name.clone(), Standing { target: part(name) / parts, achieved, journal, contends, infeasible: false })
    };
    amounts.iter().map(standing).collect()
}

/// What each contender is to have of its own, of all own I/O of contenders: its target less its journal I/O.
fn own_parts(tenants: &mut BTreeMap<String, Standing>) -> BTreeMap<String, f64> {
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
        // Those whose journal leaves too little have the floor, and the others share the rest.
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
