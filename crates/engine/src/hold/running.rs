//! Running holds: once a second a reading of the host, a step of the controller, and the actions that follow.
//!
//! Owns: the reading (the observation, the device's busy time, and the containers' wait times, operations, weights and limits),
//! leases, and the outcome of the last step. Does not: decide ([`Holding`] does). A hold that cannot continue lifts its caps:
//! they would restrict tenants without supervision.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_api::wire::{HoldView, StandingView};
use bulkhead_core::action::Action;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::control::actions::move_journal;
use bulkhead_core::control::holding::{HoldStep, Holding};
use bulkhead_core::control::reading::{Counters, Reading};
use bulkhead_core::control::{Reason, Standing};
use bulkhead_core::devname::DevName;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::health;
use bulkhead_core::model::{HeldTenant, Hold, RateLimit};
use bulkhead_core::observe::activity::Activity;
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;

use super::reasons::{explanation, state_name};
use super::weight_file;
use crate::conditions;
use crate::devices::kernel_name;
use crate::engine::Engine;

/// How often journal threads are moved again: a remount makes the kernel start another one.
const JOURNAL_INTERVAL: Duration = Duration::from_secs(10);

/// The running holds and the state of their controllers.
#[derive(Debug, Default)]
pub struct RunningHolds {
    running: BTreeMap<DevName, Running>,
}

#[derive(Debug)]
struct Running {
    holding: Holding,
    renewed: Instant,
    corrections: u64,
    placed: Instant,
    outcome: Option<Outcome>,
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
        Self { holding: Holding::new(hold), renewed: now, corrections: 0, placed: now, outcome: None }
    }

    fn has_expired(&self, now: Instant) -> bool {
        let lease = self.holding.hold().lease_seconds.map(|seconds| Duration::from_secs(u64::from(seconds)));
        lease.is_some_and(|lease| now.saturating_duration_since(self.renewed) > lease)
    }

    /// Reads the host.
    fn read(&self, engine: &Engine, seen: &Arc<Activity>, at_ns: u64) -> Result<Reading, Fault> {
        let (host, hold) = (engine.host(), self.holding.hold());
        let facts = engine.facts(hold.device.as_str())?;
        if weight_file(&facts)? != hold.weight_file {
            let cause = format!("its controller was changed: {} has no effect any more", hold.weight_file);
            return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                .hint("start the hold again, for the controller that is active now"));
        }
        let (busy, cost_used) = (host.device_busy(&facts.name)?, host.cost_used(facts.dev));
        let tenants = self.counters(engine, facts.dev)?;
        // A seek takes as long for a small request as for a large one.
        let largest = facts.largest_request.filter(|_| !facts.rotational);
        let volumes = self.volumes(engine);
        Ok(Reading { at_ns, seen: Arc::clone(seen), busy, cost_used, largest, tenants, volumes })
    }

    /// The devices of the held tenants' mounted volumes. One that is being unmounted is left out.
    fn volumes(&self, engine: &Engine) -> BTreeMap<String, Vec<String>> {
        let held: BTreeMap<&CgroupPath, &str> =
            self.holding.hold().tenants.iter().map(|tenant| (&tenant.cgroup, tenant.name.as_str())).collect();
        let theirs: Vec<(&str, PathBuf)> = {
            let mounted = engine.mounted_volumes();
            let watched = mounted.volumes().filter_map(|volume| mounted.get(volume));
            watched.filter_map(|one| Some((*held.get(&slices::tenant(&one.tenant))?, one.target.clone()))).collect()
        };
        let mut devices: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tenant, target) in theirs {
            if let Ok(Some(device)) = engine.host().mounted_device(&target) {
                devices.entry(tenant.to_owned()).or_default().push(device);
            }
        }
        devices
    }

    /// The counters of tenants whose cgroups exist; others take no part.
    fn counters(&self, engine: &Engine, dev: DevNo) -> Result<BTreeMap<String, Counters>, Fault> {
        let (host, hold) = (engine.host(), self.holding.hold());
        let file = &hold.weight_file;
        let mut all = BTreeMap::new();
        for HeldTenant { name, cgroup, journal, .. } in &hold.tenants {
            let Some(weight) = host.weight(cgroup, file, dev)? else { continue };
            let mut counters = Counters {
                weight,
                limit: host.io_max(cgroup, dev)?,
                waited: host.io_waited(cgroup).unwrap_or_default(),
                operations: host.operations(cgroup, dev),
                moved_bytes: host.moved_bytes(cgroup, dev),
                journal_bytes: 0,
                has_journal: false,
            };
            if let Some(journal) = journal {
                counters.weight += host.weight(&journal.cgroup, file, dev)?.unwrap_or(0);
                counters.journal_bytes = host.moved_bytes(&journal.cgroup, dev);
                counters.has_journal = true;
            }
            all.insert(name.clone(), counters);
        }
        Ok(all)
    }

    /// The moves of journal threads that are due.
    fn due_journal_moves(&mut self) -> Vec<Action> {
        if self.placed.elapsed() <= JOURNAL_INTERVAL {
            return Vec::new();
        }
        self.placed = Instant::now();
        self.holding.hold().tenants.iter().filter_map(|tenant| tenant.journal.as_ref()).map(move_journal).collect()
    }

    fn step(&mut self, engine: &Engine, seen: &Arc<Activity>, at_ns: u64) -> Result<(), Fault> {
        let reading = self.read(engine, seen, at_ns)?;
        let Some(HoldStep { actions, step, weights, fsync_p99 }) = self.holding.step(reading) else { return Ok(()) };
        // A cgroup that was removed meanwhile does not affect the other actions.
        for action in actions.into_iter().chain(self.due_journal_moves()) {
            match engine.executor.run_steps(vec![action], false) {
                Err(fault) if fault.code != Code::NotFound => return Err(fault),
                _ => {}
            }
        }
        self.holding.carried_out(&step);
        self.corrections += u64::from(!step.changes.is_empty());
        let was = self.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().ok()).map(state_name);
        if was != Some(state_name(&step.reason)) {
            tracing::info!(device = %self.holding.hold().device, reason = %explanation(&step.reason), "enforcing shares");
        }
        self.outcome = Some(Outcome { reason: Ok(step.reason), standings: step.tenants, weights, fsync_p99 });
        Ok(())
    }

    /// Continues with a changed record.
    fn continue_with(&mut self, engine: &Engine, hold: Hold) {
        for action in self.holding.continue_with(hold) {
            // The next step reports a limit that is not as it should be.
            if let Err(fault) = engine.executor.run_steps(vec![action], false) {
                tracing::warn!(%fault, "cannot apply a cap to a changed limit");
            }
        }
    }

    /// Resets the controller's state, and lifts all caps.
    fn fail(&mut self, engine: &Engine, fault: Fault) {
        let device = &self.holding.hold().device;
        let was = self.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().err());
        if was != Some(&fault) {
            conditions::log(&health::hold_failed(device, &fault));
        }
        match engine.executor.run_steps(self.holding.lift(), false) {
            Ok(_) => self.holding.lifted(),
            Err(fault) => tracing::error!(%device, %fault, "cannot lift the caps"),
        }
        self.holding.reset();
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
                cap: self.holding.cap(&tenant.name).and_then(|cap| cap.ops),
                cap_bytes: self.holding.cap(&tenant.name).and_then(|cap| cap.bytes),
                fsync_p99_seconds: outcome.fsync_p99.get(&tenant.name).copied(),
            })
        };
        let (state, reason) = match self.outcome.as_ref().map(|outcome| &outcome.reason) {
            None => (state_name(&Reason::Starting).to_owned(), explanation(&Reason::Starting)),
            Some(Ok(reason)) => (state_name(reason).to_owned(), explanation(reason)),
            Some(Err(fault)) => (health::HOLD_FAILED.to_owned(), fault.to_string()),
        };
        let hold = self.holding.hold();
        let standings = hold.tenants.iter().filter_map(standing).collect();
        HoldView { hold: hold.clone(), state, reason, corrections: self.corrections, standings }
    }
}

/// Whether a hold changes to another record without new weights, so that what was learnt remains true.
fn continues(running: &Hold, changed: &Hold) -> bool {
    let method = |hold: &Hold| (hold.unit, hold.mode, hold.weight_file.clone());
    let without_limits =
        |tenant: &HeldTenant| HeldTenant { iops_before: RateLimit::default(), bytes_before: None, ..tenant.clone() };
    let tenants = |hold: &Hold| hold.tenants.iter().map(without_limits).collect::<Vec<_>>();
    running != changed
        && method(running) == method(changed)
        && (running.for_promises && changed.for_promises || tenants(running) == tenants(changed))
}

impl RunningHolds {
    /// Resumes the recorded holds. Their leases restart.
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

    /// Starts a hold that has just been recorded, or renews its lease.
    pub fn begin(&mut self, engine: &Engine, hold: Hold) -> HoldView {
        let running = self.take_over(engine, hold);
        running.renewed = Instant::now();
        running.view()
    }

    /// Takes over what was changed in the records: holds for promises, and limits of held tenants.
    pub fn take_over_records(&mut self, engine: &Engine) {
        let Ok(recorded) = engine.holds() else { return };
        self.running.retain(|device, _| recorded.iter().any(|hold| hold.device == *device));
        for hold in recorded {
            self.take_over(engine, hold);
        }
    }

    fn take_over(&mut self, engine: &Engine, hold: Hold) -> &mut Running {
        let now = Instant::now();
        let running = self.running.entry(hold.device.clone()).or_insert_with(|| Running::new(hold.clone(), now));
        if continues(running.holding.hold(), &hold) {
            running.continue_with(engine, hold);
        } else if *running.holding.hold() != hold {
            *running = Running::new(hold, now);
        }
        running
    }

    pub fn end(&mut self, device: &str) {
        self.running.retain(|held, _| held.as_str() != kernel_name(device));
    }

    /// One step of each hold. `at_ns` is the time of the observation (monotonic).
    pub fn step(&mut self, engine: &Engine, seen: Result<Activity, Fault>, at_ns: u64) {
        let seen = seen.map(Arc::new);
        let now = Instant::now();
        self.running.retain(|device, running| {
            let expired = running.has_expired(now);
            if expired {
                tracing::info!(%device, "the lease of the hold has expired");
                if let Err(fault) = engine.hold_stop(device.as_str(), false) {
                    tracing::error!(%fault, "cannot end the hold");
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
