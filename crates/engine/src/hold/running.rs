//! A hold that runs: once a second a sample, a step of the controller, and what follows from it.
//!
//! Owns: the sample (observed bytes or device time, the device's and the containers' waiting, operations and fsyncs), leases, and what the
//! controller remembers. A hold that cannot be continued lifts its caps: they would keep tenants from a disk that nobody watches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_core::action::Action;
use bulkhead_core::control::latencies::Latencies;
use bulkhead_core::control::own_caps::{OwnCaps, limit};
use bulkhead_core::control::sharing::Sharing;
use bulkhead_core::control::splitting::{JournalPart, LEAST_SPLIT};
use bulkhead_core::control::strictness::{Strictness, strict_value};
use bulkhead_core::control::usage::{share_a_journal, usages};
use bulkhead_core::control::{self, Params, Reason, Sample, Standing, State, TenantSample};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{HeldJournal, HeldTenant, Hold, IopsLimit};
use bulkhead_core::observe::histogram::Histogram;
use bulkhead_core::observe::identity::Identity;
use bulkhead_core::observe::view::{ContainerView, Observation};
use bulkhead_core::units::DevNo;
use bulkhead_core::wire::{HoldView, StandingView};

use super::words::{sentence, word};
use super::{PPM, largest_weight, limit_iops, set_tunable, set_weight, weight_file};
use crate::devices::kernel_name;
use crate::engine::Engine;

/// How often a journal thread is looked for that the kernel made anew (after a remount).
const REPLACE: Duration = Duration::from_secs(10);

/// The holds that run, with what the controller remembers of them.
#[derive(Debug, Default)]
pub struct Holder {
    running: BTreeMap<String, Running>,
}

#[derive(Debug)]
struct Running {
    hold: Hold,
    params: Params,
    state: State,
    before: Option<Before>,
    renewed: Instant,
    corrections: u64,
    caps: OwnCaps,
    sharing: Sharing,
    latencies: Latencies,
    strictness: Strictness,
    /// Of containers whose journal thread runs beside them.
    parts: BTreeMap<String, JournalPart>,
    placed: Instant,
    outcome: Option<Outcome>,
}

/// Counters at the last sample.
#[derive(Debug)]
struct Before {
    seen: Arc<Observation>,
    at_ns: u64,
    busy: Duration,
    cost_used: Duration,
    tenants: BTreeMap<String, Counters>,
}

/// What the kernel says of a tenant's cgroup.
#[derive(Clone, Copy, Debug)]
struct Counters {
    /// With that of the journal thread beside it.
    weight: u32,
    limit: Option<IopsLimit>,
    waited: Duration,
    operations: u64,
    /// Bytes that the journal thread beside it moved, and it and the thread together.
    of_journal: u64,
    with_journal: u64,
}

#[derive(Debug)]
struct Outcome {
    reason: Result<Reason, Fault>,
    standings: BTreeMap<String, Standing>,
    weights: BTreeMap<String, u32>,
    fsync_p99: BTreeMap<String, f64>,
}

impl Running {
    fn new(hold: Hold, now: Instant) -> Self {
        let part = |tenant: &HeldTenant| (tenant.name.clone(), f64::from(tenant.share_ppm) / PPM);
        let promise = |tenant: &HeldTenant| Some((tenant.name.clone(), micros(tenant.fsync_p99_us?)));
        let is_split = hold.tenants.iter().any(|tenant| tenant.journal.is_some());
        let params = Params {
            parts: hold.tenants.iter().map(part).collect(),
            total_weight: f64::from(hold.total_weight),
            range: if is_split { LEAST_SPLIT } else { 1 }..=largest_weight(&hold.weight_file),
            fsync_p99: hold.tenants.iter().filter_map(promise).collect(),
        };
        let state = State::new(hold.mode);
        Self {
            hold,
            params,
            state,
            before: None,
            renewed: now,
            corrections: 0,
            caps: OwnCaps::default(),
            sharing: Sharing::default(),
            latencies: Latencies::default(),
            strictness: Strictness::default(),
            parts: BTreeMap::new(),
            placed: now,
            outcome: None,
        }
    }

    fn has_expired(&self, now: Instant) -> bool {
        let lease = self.hold.lease_seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        lease.is_some_and(|lease| now.saturating_duration_since(self.renewed) > lease)
    }

    /// What was measured since the last sample; `None` for the first one.
    fn sample(&mut self, engine: &Engine, seen: &Arc<Observation>, at_ns: u64) -> Result<Option<Sample>, Fault> {
        let host = engine.host();
        let file = &self.hold.weight_file;
        let facts = engine.facts(&self.hold.device)?;
        if weight_file(&facts)? != file {
            let cause = format!("{file} has no effect on it any more");
            return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                .cure("hold the shares anew, for the controller that is in force now"));
        }
        let (busy, cost_used) = (host.device_busy(&facts.name)?, host.cost_used(facts.dev));
        let tenants = self.counters(engine, facts.dev)?;
        let now = Before { seen: Arc::clone(seen), at_ns, busy, cost_used, tenants };
        let Some(before) = self.before.take() else {
            // A daemon that began anew goes on with the caps that it left.
            for HeldTenant { name, iops_before, .. } in &self.hold.tenants {
                if let Some(limit) = now.tenants.get(name).and_then(|now| now.limit) {
                    self.caps.take_over(name, limit, *iops_before);
                }
            }
            self.before = Some(now);
            return Ok(None);
        };
        let elapsed = Duration::from_nanos(at_ns.saturating_sub(before.at_ns)).as_secs_f64();
        let part = |now: Duration, before: Duration| match elapsed > 0.0 {
            true => (now.saturating_sub(before).as_secs_f64() / elapsed).min(1.0),
            false => 0.0,
        };
        let identities: BTreeMap<String, Identity> =
            self.hold.tenants.iter().map(|tenant| (tenant.name.clone(), tenant.identity.clone())).collect();
        let lately = seen.since(&before.seen);
        let can_cap = self.sharing.allows_caps(at_ns, share_a_journal(&lately, &identities));
        let is_held =
            |view: &&ContainerView| self.hold.tenants.iter().any(|tenant| tenant.identity.key() == view.identity.key());
        let syncs = lately.containers.iter().filter(is_held).map(|view| per_second(view.fsync.count(), elapsed));
        self.strictness.saw(at_ns, syncs);
        let usages = usages(&lately, &self.hold.device, self.hold.unit, &identities);
        let fsync_p99 = self.fsync_p99(seen, at_ns, &identities);
        let mut sample = Sample {
            at_ns,
            busy: part(busy, before.busy).max(part(cost_used, before.cost_used)),
            is_partial: seen.losses != before.seen.losses || seen.observed_seconds < before.seen.observed_seconds,
            can_cap: can_cap && now.tenants.values().all(|counters| counters.limit.is_some()),
            tenants: BTreeMap::new(),
        };
        for HeldTenant { name, iops_before, .. } in &self.hold.tenants {
            let Some(counters) = now.tenants.get(name) else { continue };
            // Who came just now has done nothing yet.
            let old = before.tenants.get(name).unwrap_or(counters);
            let per_second = |now: u64, old: u64| per_second(now.saturating_sub(old), elapsed);
            if counters.with_journal > 0 {
                let [journal, both] = [
                    per_second(counters.of_journal, old.of_journal),
                    per_second(counters.with_journal, old.with_journal),
                ];
                self.parts.entry(name.clone()).or_default().saw(journal, both);
            }
            let tenant = TenantSample {
                usage: usages.get(name).copied().unwrap_or_default(),
                waiting: part(counters.waited, old.waited),
                weight: counters.weight,
                ops: per_second(counters.operations, old.operations),
                cap: counters.limit.and_then(|limit| self.caps.found(name, limit, *iops_before)),
                fsync_p99: fsync_p99.get(name).copied(),
            };
            sample.tenants.insert(name.clone(), tenant);
        }
        self.before = Some(now);
        Ok(Some(sample))
    }

    /// Of those whose cgroups are there: whose is gone takes no part.
    fn counters(&self, engine: &Engine, dev: DevNo) -> Result<BTreeMap<String, Counters>, Fault> {
        let (host, file) = (engine.host(), &self.hold.weight_file);
        let mut all = BTreeMap::new();
        for HeldTenant { name, cgroup, journal, .. } in &self.hold.tenants {
            let Some(weight) = host.weight(cgroup, file, dev)? else { continue };
            let mut counters = Counters {
                weight,
                limit: host.iops_limit(cgroup, dev)?,
                waited: host.io_waited(cgroup).unwrap_or_default(),
                operations: host.operations(cgroup, dev),
                of_journal: 0,
                with_journal: 0,
            };
            if let Some(journal) = journal {
                counters.weight += host.weight(&journal.cgroup, file, dev)?.unwrap_or(0);
                counters.of_journal = host.moved_bytes(&journal.cgroup, dev);
                counters.with_journal = counters.of_journal.saturating_add(host.moved_bytes(cgroup, dev));
            }
            all.insert(name.clone(), counters);
        }
        Ok(all)
    }

    /// Makes BFQ strict, or as it was before, whichever suits what tenants do.
    fn tune(&mut self, at_ns: u64) -> Vec<Action> {
        let Some(is_strict) = self.strictness.change(at_ns) else { return Vec::new() };
        let tunable = |(tunable, before): (&String, &String)| {
            let strict = strict_value(tunable).filter(|_| is_strict);
            set_tunable(&self.hold.device, tunable, strict.unwrap_or(before))
        };
        self.hold.tunables.iter().map(tunable).collect()
    }

    /// How long 99 % of the fsyncs in the last seconds took at most, s, of those to whom that was promised.
    fn fsync_p99(
        &mut self,
        seen: &Observation,
        at_ns: u64,
        identities: &BTreeMap<String, Identity>,
    ) -> BTreeMap<String, f64> {
        let fsyncs = |name: &String| {
            let identity = identities.get(name)?;
            let view = seen.containers.iter().find(|view| view.identity.key() == identity.key())?;
            Some((name.clone(), view.fsync.clone()))
        };
        let now: BTreeMap<String, Histogram> = self.params.fsync_p99.keys().filter_map(fsyncs).collect();
        self.latencies.p99(at_ns, now)
    }

    fn step(&mut self, engine: &Engine, seen: &Arc<Observation>, at_ns: u64) -> Result<(), Fault> {
        let Some(sample) = self.sample(engine, seen, at_ns)? else { return Ok(()) };
        let step = control::step(&mut self.state, &sample, &self.params);
        let (mut weights, mut fsync_p99) = (BTreeMap::new(), BTreeMap::new());
        for (name, tenant) in sample.tenants {
            weights.insert(name.clone(), tenant.weight);
            fsync_p99.extend(tenant.fsync_p99.map(|p99| (name, p99)));
        }
        let mut actions = self.tune(at_ns);
        for tenant in &self.hold.tenants {
            let found = weights.get(&tenant.name).copied().unwrap_or(0);
            let changes = step.changes.get(&tenant.name).copied();
            let (weight, part) = match self.parts.get_mut(&tenant.name) {
                Some(part) => (part.write(changes, found, !step.reason.is_other_writer()), part.part()),
                None => (changes, 0.0),
            };
            actions.extend(weight.into_iter().flat_map(|weight| set_weight(&self.hold, tenant, weight, part)));
            let cap = step.caps.get(&tenant.name);
            actions.extend(cap.map(|cap| limit_iops(&self.hold, tenant, limit(tenant.iops_before, *cap))));
        }
        if self.placed.elapsed() > REPLACE {
            self.placed = Instant::now();
            let place = |journal: &HeldJournal| {
                let (device, cgroup) = (journal.device.clone(), journal.cgroup.clone());
                Action::MoveJournal { device, cgroup }
            };
            actions.extend(self.hold.tenants.iter().filter_map(|tenant| tenant.journal.as_ref()).map(place));
        }
        // One whose cgroup went in between does not keep the others from theirs.
        for action in actions {
            match engine.executor.run_steps(vec![action], false) {
                Err(fault) if fault.code != Code::NotFound => return Err(fault),
                _ => {}
            }
        }
        self.caps.carried_out(&step.caps);
        self.corrections += u64::from(!step.changes.is_empty());
        weights.extend(step.changes);
        let was = self.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().ok()).map(word);
        if was != Some(word(&step.reason)) {
            tracing::info!(device = self.hold.device, reason = %sentence(&step.reason), "holding shares");
        }
        self.outcome = Some(Outcome { reason: Ok(step.reason), standings: step.tenants, weights, fsync_p99 });
        Ok(())
    }

    /// Nothing is known any more: whatever was summed up does not belong together with what comes, and nobody is held to a cap.
    fn fail(&mut self, engine: &Engine, fault: Fault) {
        let was = self.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().err());
        if was != Some(&fault) {
            tracing::warn!(device = self.hold.device, %fault, "shares are not held");
        }
        let free = |tenant: &HeldTenant| limit_iops(&self.hold, tenant, tenant.iops_before);
        let steps = self.hold.tenants.iter().filter(|tenant| self.caps.of(&tenant.name).is_some()).map(free);
        match engine.executor.run_steps(steps.collect(), false) {
            Ok(_) => self.caps.clear(),
            Err(fault) => tracing::error!(device = self.hold.device, %fault, "caps could not be lifted"),
        }
        self.before = None;
        self.latencies.clear();
        self.state = State::new(self.hold.mode);
        self.outcome = Some(Outcome {
            reason: Err(fault),
            standings: BTreeMap::new(),
            weights: BTreeMap::new(),
            fsync_p99: BTreeMap::new(),
        });
    }

    fn view(&self) -> HoldView {
        let standing = |tenant: &HeldTenant| {
            let outcome = self.outcome.as_ref()?;
            let standing = outcome.standings.get(&tenant.name)?;
            Some(StandingView {
                name: tenant.name.clone(),
                target_share: standing.target,
                achieved_share: standing.achieved,
                journal_share: standing.journal,
                weight: outcome.weights.get(&tenant.name).copied()?,
                contends: standing.contends,
                infeasible: standing.infeasible,
                cap: self.caps.of(&tenant.name),
                fsync_p99_seconds: outcome.fsync_p99.get(&tenant.name).copied(),
            })
        };
        let (state, reason) = match self.outcome.as_ref().map(|outcome| &outcome.reason) {
            None => (word(&Reason::Starting).to_owned(), sentence(&Reason::Starting)),
            Some(Ok(reason)) => (word(reason).to_owned(), sentence(reason)),
            Some(Err(fault)) => ("failed".to_owned(), fault.to_string()),
        };
        let standings = self.hold.tenants.iter().filter_map(standing).collect();
        HoldView { hold: self.hold.clone(), state, reason, corrections: self.corrections, standings }
    }
}

impl Holder {
    /// With what is recorded. Leases begin anew.
    #[must_use]
    pub fn new(holds: Vec<Hold>) -> Self {
        let now = Instant::now();
        Self { running: holds.into_iter().map(|hold| (hold.device.clone(), Running::new(hold, now))).collect() }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    #[must_use]
    pub fn views(&self) -> Vec<HoldView> {
        self.running.values().map(Running::view).collect()
    }

    /// Takes a hold over that was recorded just now, or renews its lease.
    pub fn begin(&mut self, hold: Hold) -> HoldView {
        let now = Instant::now();
        let running = self.running.entry(hold.device.clone()).or_insert_with(|| Running::new(hold.clone(), now));
        if running.hold != hold {
            *running = Running::new(hold, now);
        }
        running.renewed = now;
        running.view()
    }

    pub fn end(&mut self, device: &str) {
        self.running.remove(kernel_name(device));
    }

    /// One step of each hold. `at_ns` is the time of the observation (monotonic).
    pub fn step(&mut self, engine: &Engine, seen: Result<Observation, Fault>, at_ns: u64) {
        let seen = seen.map(Arc::new);
        let now = Instant::now();
        self.running.retain(|device, running| {
            let expired = running.has_expired(now);
            if expired {
                tracing::info!(device, "nobody asks for the hold any more");
                if let Err(fault) = engine.hold_stop(device, false) {
                    tracing::error!(%fault, "the hold could not be ended");
                }
            }
            !expired
        });
        for running in self.running.values_mut() {
            let stepped = match &seen {
                Ok(seen) => running.step(engine, seen, at_ns),
                Err(fault) => Err(fault.clone()),
            };
            if let Err(fault) = stepped {
                running.fail(engine, fault);
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a latency is far below 2^52 us")]
fn micros(us: u64) -> f64 {
    us as f64 / 1e6
}

#[expect(clippy::cast_precision_loss, reason = "operations of a second are far below 2^52")]
fn per_second(n: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { n as f64 / seconds } else { 0.0 }
}
