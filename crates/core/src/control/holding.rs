//! A hold from second to second: a reading of the host becomes a sample, a step of the controller, and the resulting
//! actions.
//!
//! Owns: the state between readings, and which policy decides what: [`super::strictness`] the tunables of BFQ,
//! [`super::splitting`] the split of a weight between a container and its journal thread, [`super::sharing`] whether
//! tenants may be capped, [`super::usage`] what a share is counted in, [`super::correcting`] weights (or
//! [`super::published`], the paper's equation), [`super::capping`] and [`super::promise`] caps, [`super::latencies`] the latency that is compared with a promise, [`super::own_caps`] whose a
//! cap is. Does not: read the host, carry out an action, or read a clock.

use std::collections::BTreeMap;

use super::actions::{set_cap, set_tunable, set_weight};
use super::latencies::{Latencies, micros};
use super::own_caps::OwnCaps;
use super::reading::{Interval, Reading};
use super::sharing::Sharing;
use super::splitting::{JournalSplit, MIN_SPLIT_WEIGHT};
use super::strictness::{Strictness, strict_value};
use super::usage::{share_a_journal, usages};
use super::{Cap, Params, Sample, State, Step, TenantSample};
use crate::action::Action;
use crate::identity::Identity;
use crate::model::{HeldTenant, Hold};
use crate::observe::activity::{Activity, FileSystemView};
use crate::observe::cost::as_f64;
use crate::observe::histogram::Histogram;

/// Shares are recorded in parts per million.
pub const PPM: f64 = 1e6;

/// The largest weight that a cgroup file accepts.
#[must_use]
pub fn largest_weight(file: &str) -> u32 {
    if file == "io.bfq.weight" { 1000 } else { 10_000 }
}

/// A hold with its state.
#[derive(Clone, Debug, PartialEq)]
pub struct Holding {
    hold: Hold,
    params: Params,
    state: State,
    before: Option<Reading>,
    caps: OwnCaps,
    sharing: Sharing,
    latencies: Latencies,
    strictness: Strictness,
    /// Of containers whose journal thread has a cgroup of its own.
    splits: BTreeMap<String, JournalSplit>,
}

/// The result of a reading.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldStep {
    /// The actions, in order. One that fails because its cgroup is gone does not affect the others.
    pub actions: Vec<Action>,
    /// The controller's decision.
    pub step: Step,
    /// The weights of the current tenants after the actions.
    pub weights: BTreeMap<String, u32>,
    /// 99th percentile of recent fsync latencies, s, of tenants with a promise.
    pub fsync_p99: BTreeMap<String, f64>,
}

impl Holding {
    /// From the recorded hold. It starts from the weights and caps that it finds.
    #[must_use]
    pub fn new(hold: Hold) -> Self {
        Self {
            state: State::new(hold.mode),
            params: params(&hold),
            hold,
            before: None,
            caps: OwnCaps::default(),
            sharing: Sharing::default(),
            latencies: Latencies::default(),
            strictness: Strictness::default(),
            splits: BTreeMap::new(),
        }
    }

    /// Continues with other tenants, shares, promises or limits, on the same device and by the same method. What was
    /// learnt of tenants that stay is kept. Returns the actions that apply the caps to their limits where these have
    /// changed.
    #[must_use]
    pub fn continue_with(&mut self, hold: Hold) -> Vec<Action> {
        let was = std::mem::replace(&mut self.hold, hold);
        self.params = params(&self.hold);
        self.caps.retain(|name| self.hold.tenants.iter().any(|tenant| tenant.name == name));
        let is_other = |tenant: &&HeldTenant| {
            was.tenants.iter().any(|old| old.name == tenant.name && old.before() != tenant.before())
        };
        let changed = self.hold.tenants.iter().filter(is_other);
        changed.map(|tenant| set_cap(&self.hold, tenant, self.cap(&tenant.name))).collect()
    }

    /// The recorded hold.
    #[must_use]
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// The cap of this hold on a tenant.
    #[must_use]
    pub fn cap(&self, tenant: &str) -> Option<Cap> {
        self.caps.get(tenant)
    }

    /// Evaluates a reading. `None` for the first one, and the first one after [`Self::reset`], since sums have to be
    /// compared. Call [`Self::carried_out`] once all actions are carried out.
    pub fn step(&mut self, now: Reading) -> Option<HoldStep> {
        let at_ns = now.at_ns;
        let sample = self.sample(now)?;
        let step = super::step(&mut self.state, &sample, &self.params);
        let mut actions = self.tunable_actions(at_ns);
        actions.extend(self.weight_and_cap_actions(&sample, &step));
        let mut weights: BTreeMap<String, u32> = BTreeMap::new();
        let mut fsync_p99 = BTreeMap::new();
        for (name, tenant) in sample.tenants {
            weights.insert(name.clone(), tenant.weight);
            fsync_p99.extend(tenant.fsync_p99.map(|p99| (name, p99)));
        }
        weights.extend(step.changes.clone());
        Some(HoldStep { actions, step, weights, fsync_p99 })
    }

    /// Records that the actions of a step are carried out.
    pub fn carried_out(&mut self, step: &Step) {
        self.caps.carried_out(&step.caps);
    }

    /// The actions that lift all caps of this hold.
    #[must_use]
    pub fn lift(&self) -> Vec<Action> {
        let capped = self.hold.tenants.iter().filter(|tenant| self.cap(&tenant.name).is_some());
        capped.map(|tenant| set_cap(&self.hold, tenant, None)).collect()
    }

    /// Records that all caps are lifted.
    pub fn lifted(&mut self) {
        self.caps.clear();
    }

    /// Discards all measurements: sums so far and later ones are not comparable.
    pub fn reset(&mut self) {
        self.before = None;
        self.latencies.clear();
        self.state = State::new(self.hold.mode);
    }

    /// The measurements since the last reading.
    fn sample(&mut self, now: Reading) -> Option<Sample> {
        let Some(before) = self.before.take() else {
            // A restarted daemon continues with the caps that it left.
            for tenant in &self.hold.tenants {
                if let Some(limit) = now.tenants.get(&tenant.name).and_then(|counters| counters.limit) {
                    self.caps.adopt(&tenant.name, limit, tenant.before());
                }
            }
            self.before = Some(now);
            return None;
        };
        let (at_ns, interval) = (now.at_ns, Interval::between(before.at_ns, now.at_ns));
        let identities: BTreeMap<String, Identity> =
            self.hold.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.identity.clone())).collect();
        let lately = Activity::clone(&now.seen).since(&before.seen);
        let can_cap = self.sharing.allows_caps(at_ns, share_a_journal(&lately, &identities));
        let fsync_rate = |fsyncs: &Histogram| interval.per_second(fsyncs.count());
        self.strictness.record(at_ns, self.fsyncs(&self.hold.tenants, &lately, &now.volumes).values().map(fsync_rate));
        let usages = usages(&lately, &self.hold.device, self.hold.unit, &identities);
        let promised = self.hold.tenants.iter().filter(|tenant| self.params.fsync_p99.contains_key(&tenant.name));
        let fsync_p99 = self.latencies.p99(at_ns, self.fsyncs(promised, &now.seen, &now.volumes));
        let cost = interval.part(now.cost_used, before.cost_used);
        let knows_bytes = self.hold.tenants.iter().all(|tenant| tenant.bytes_before.is_some());
        let mut sample = Sample {
            at_ns,
            busy: interval.part(now.busy, before.busy).max(cost),
            is_partial: is_partial(&now.seen, &before.seen),
            largest: now.largest.filter(|_| knows_bytes).map(|largest| as_f64(largest.0)),
            can_cap: can_cap && now.tenants.values().all(|counters| counters.limit.is_some()),
            tenants: BTreeMap::new(),
        };
        for held in &self.hold.tenants {
            let name = &held.name;
            let Some(counters) = now.tenants.get(name) else { continue };
            // A new tenant has done nothing yet.
            let old = before.tenants.get(name).unwrap_or(counters);
            let bytes = interval.growth(counters.moved_bytes, old.moved_bytes);
            if counters.has_journal {
                let journal = interval.growth(counters.journal_bytes, old.journal_bytes);
                self.splits.entry(name.clone()).or_default().record(journal, journal + bytes);
            }
            let tenant = TenantSample {
                usage: usages.get(name).copied().unwrap_or_default(),
                waiting: interval.part(counters.waited, old.waited),
                weight: counters.weight,
                ops: interval.growth(counters.operations, old.operations),
                bytes,
                cap: counters.limit.and_then(|limit| self.caps.current(name, limit, held.before())),
                fsync_p99: fsync_p99.get(name).copied(),
            };
            sample.tenants.insert(name.clone(), tenant);
        }
        self.before = Some(now);
        Some(sample)
    }

    /// The latencies of the fsyncs of each of these tenants: those on its volumes on the device, by whichever process, because a container need not run in
    /// its tenant's cgroup; those of its container if it has no such volumes.
    fn fsyncs<'a>(
        &self,
        tenants: impl IntoIterator<Item = &'a HeldTenant>,
        seen: &Activity,
        volumes: &BTreeMap<String, Vec<String>>,
    ) -> BTreeMap<String, Histogram> {
        let of_container = |tenant: &HeldTenant| {
            let view = seen.containers.iter().find(|view| view.identity.key() == tenant.identity.key())?;
            Some(view.fsync.clone())
        };
        let of_volumes = |devices: &Vec<String>| {
            let is_here = |fs: &&FileSystemView| fs.disks.iter().any(|disk| disk == self.hold.device.as_str());
            let theirs = seen.file_systems.iter().filter(is_here).filter(|fs| devices.contains(&fs.device));
            theirs.map(|fs| fs.fsync.clone()).reduce(|mut all, one| {
                all.merge(&one);
                all
            })
        };
        let fsyncs = |tenant: &HeldTenant| {
            let found = volumes.get(&tenant.name).and_then(of_volumes).or_else(|| of_container(tenant))?;
            Some((tenant.name.clone(), found))
        };
        tenants.into_iter().filter_map(fsyncs).collect()
    }

    /// Sets BFQ's strict tunables, or those from before, whichever suits the tenants' load.
    fn tunable_actions(&mut self, at_ns: u64) -> Vec<Action> {
        let Some(is_strict) = self.strictness.change(at_ns) else { return Vec::new() };
        let tunable = |(tunable, before): (&String, &String)| {
            let strict = strict_value(tunable).filter(|_| is_strict);
            set_tunable(&self.hold.device, tunable, strict.unwrap_or(before))
        };
        self.hold.tunables.iter().map(tunable).collect()
    }

    /// The actions for weights and caps, tenant by tenant.
    fn weight_and_cap_actions(&mut self, sample: &Sample, step: &Step) -> Vec<Action> {
        let mut actions = Vec::new();
        for tenant in &self.hold.tenants {
            let found = sample.tenants.get(&tenant.name).map_or(0, |tenant| tenant.weight);
            let changes = step.changes.get(&tenant.name).copied();
            let (weight, part) = match self.splits.get_mut(&tenant.name) {
                Some(split) => {
                    (split.weight_to_write(changes, found, !step.reason.is_other_writer()), split.fraction())
                }
                None => (changes, 0.0),
            };
            actions.extend(weight.into_iter().flat_map(|weight| set_weight(&self.hold, tenant, weight, part)));
            actions.extend(step.caps.get(&tenant.name).map(|cap| set_cap(&self.hold, tenant, *cap)));
        }
        actions
    }
}

fn params(hold: &Hold) -> Params {
    let part = |tenant: &HeldTenant| (tenant.name.clone(), f64::from(tenant.share_ppm) / PPM);
    let promise = |tenant: &HeldTenant| Some((tenant.name.clone(), micros(tenant.fsync_p99_us?)));
    let is_split = hold.tenants.iter().any(|tenant| tenant.journal.is_some());
    Params {
        parts: hold.tenants.iter().map(part).collect(),
        total_weight: f64::from(hold.total_weight),
        range: if is_split { MIN_SPLIT_WEIGHT } else { 1 }..=largest_weight(&hold.weight_file),
        fsync_p99: hold.tenants.iter().filter_map(promise).collect(),
    }
}

/// Whether events were lost between two observations, or the observer was restarted.
fn is_partial(now: &Activity, before: &Activity) -> bool {
    now.losses != before.losses || now.observed_seconds < before.observed_seconds
}

#[cfg(test)]
mod tests;
