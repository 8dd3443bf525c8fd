//! Holding shares: who shares a device, as recorded, and once a second a step of the controller.
//!
//! Owns: what a name means, which controller's weights are used, the sample (observed bytes or device time, the device's and the
//! containers' waiting), leases, and carrying out what `bulkhead_core::control` decides. Weights are set on one device only, so
//! that taking them back restores what was there.
//! Does not: decide about weights, or fight over them: whoever else writes one is reported, and left alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_core::action::{Action, Record};
use bulkhead_core::control::usage::usages;
use bulkhead_core::control::{self, Params, Reason, Sample, Standing, State, TenantSample};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{HeldTenant, Hold, Policy};
use bulkhead_core::observe::identity::Identity;
use bulkhead_core::observe::view::Observation;
use bulkhead_core::volume::Plan;
use bulkhead_core::wire::{Done, HoldStart, HoldTenant, HoldView, StandingView};

use crate::devices::kernel_name;
use crate::engine::Engine;
use crate::host::BlockFacts;

/// How often a step is made.
pub const PERIOD: Duration = Duration::from_secs(1);
/// A million: what shares are recorded in parts of.
const PPM: f64 = 1e6;
/// BFQ with these holds shares of tenants that wait for each of their requests. By default it serves somebody else in the pause between
/// two requests (`bfq_inject_limit`, since 5.2), so that two such readers have the same whatever their weights are, and favours those
/// that began lately (kernel `Documentation/block/bfq-iosched.rst`). It waits for a tenant that thinks for no more than half of
/// `slice_idle`, ms (`bfq_update_has_short_ttime`); with the default of 8, weights did nothing in spells, as measured in the lab.
const STRICT: [(&str, &str); 3] = [("strict_guarantees", "1"), ("low_latency", "0"), ("slice_idle", "20")];
/// Weights are at least this on average: smaller ones are too coarse.
const MIN_MEAN_WEIGHT: u32 = 10;

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
    outcome: Option<Outcome>,
}

/// Counters at the last sample.
#[derive(Debug)]
struct Before {
    seen: Arc<Observation>,
    at_ns: u64,
    busy: Duration,
    cost_used: Duration,
    waited: BTreeMap<String, Duration>,
}

#[derive(Debug)]
struct Outcome {
    reason: Result<Reason, Fault>,
    standings: BTreeMap<String, Standing>,
    weights: BTreeMap<String, u32>,
}

impl Running {
    fn new(hold: Hold, now: Instant) -> Self {
        let part = |tenant: &HeldTenant| (tenant.name.clone(), f64::from(tenant.share_ppm) / PPM);
        let params = Params {
            parts: hold.tenants.iter().map(part).collect(),
            total_weight: f64::from(hold.total_weight),
            range: 1..=largest_weight(&hold.weight_file),
        };
        let state = State::new(hold.mode);
        Self { hold, params, state, before: None, renewed: now, corrections: 0, outcome: None }
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
        let (mut weights, mut waited) = (BTreeMap::new(), BTreeMap::new());
        for tenant in &self.hold.tenants {
            // Whose cgroup is gone takes no part.
            let Some(weight) = host.weight(&tenant.cgroup, file, facts.dev)? else { continue };
            weights.insert(tenant.name.clone(), weight);
            waited.insert(tenant.name.clone(), host.io_waited(&tenant.cgroup).unwrap_or_default());
        }
        let now = Before { seen: Arc::clone(seen), at_ns, busy, cost_used, waited };
        let Some(before) = self.before.take() else {
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
        let usages = usages(&seen.since(&before.seen), &self.hold.device, self.hold.unit, &identities);
        let tenants = weights.into_iter().map(|(name, weight)| {
            let waited = |of: &Before| of.waited.get(&name).copied().unwrap_or_default();
            let waiting = part(waited(&now), waited(&before));
            let usage = usages.get(&name).copied().unwrap_or_default();
            (name, TenantSample { usage, waiting, weight })
        });
        let sample = Sample {
            at_ns,
            busy: part(busy, before.busy).max(part(cost_used, before.cost_used)),
            is_partial: seen.losses != before.seen.losses || seen.observed_seconds < before.seen.observed_seconds,
            tenants: tenants.collect(),
        };
        self.before = Some(now);
        Ok(Some(sample))
    }

    fn step(&mut self, engine: &Engine, seen: &Arc<Observation>, at_ns: u64) -> Result<(), Fault> {
        let Some(sample) = self.sample(engine, seen, at_ns)? else { return Ok(()) };
        let step = control::step(&mut self.state, &sample, &self.params);
        let mut weights: BTreeMap<String, u32> =
            sample.tenants.into_iter().map(|(name, tenant)| (name, tenant.weight)).collect();
        let steps = self
            .hold
            .tenants
            .iter()
            .filter_map(|tenant| Some(set_weight(&self.hold, tenant, *step.changes.get(&tenant.name)?)));
        // One whose cgroup went in between does not keep the others from theirs.
        for action in steps.collect::<Vec<_>>() {
            match engine.executor.run_steps(vec![action], false) {
                Err(fault) if fault.code != Code::NotFound => return Err(fault),
                _ => {}
            }
        }
        self.corrections += u64::from(!step.changes.is_empty());
        weights.extend(step.changes);
        let was = self.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().ok()).map(word);
        if was != Some(word(&step.reason)) {
            tracing::info!(device = self.hold.device, reason = %sentence(&step.reason), "holding shares");
        }
        self.outcome = Some(Outcome { reason: Ok(step.reason), standings: step.tenants, weights });
        Ok(())
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
                let was = running.outcome.as_ref().and_then(|outcome| outcome.reason.as_ref().err());
                if was != Some(&fault) {
                    tracing::warn!(device = running.hold.device, %fault, "shares are not held");
                }
                // Whatever was summed up does not belong together with what comes.
                running.before = None;
                running.state = State::new(running.hold.mode);
                let (standings, weights) = (BTreeMap::new(), BTreeMap::new());
                running.outcome = Some(Outcome { reason: Err(fault), standings, weights });
            }
        }
    }
}

impl Engine {
    /// All holds with a readable record. They do not survive a reboot, and neither do the cgroups: a damaged one is only logged.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub fn holds(&self) -> Result<Vec<Hold>, Fault> {
        let records = self.host().records(&self.dirs.run.join("holds"), "")?;
        let holds = records.into_iter().filter_map(|(path, record)| match record {
            Ok(Record::Hold(hold)) if path == self.hold_record(&hold.device) => Some(hold),
            Ok(_) => None,
            Err(fault) => {
                tracing::warn!(path = %path.display(), %fault, "damaged hold");
                None
            }
        });
        Ok(holds.collect())
    }

    /// Records a hold, and sets the weights that it begins with. What was held on the device before is replaced. Idempotent.
    ///
    /// # Errors
    /// `InvalidArgument` for shares that are none, and for a name that means nobody or several; `Unsupported` where no controller
    /// makes weights work, and for containers that are not siblings.
    pub fn hold_start(&self, request: &HoldStart, dry_run: bool) -> Result<Done<Hold>, Fault> {
        let facts = self.held_device(request.device.as_deref())?;
        let file = weight_file(&facts)?.to_owned();
        let tenants = self.held_tenants(request)?;
        let path = self.hold_record(&facts.name);
        let before = self.holds()?.into_iter().find(|hold| hold.device == facts.name);
        let is_same = before.as_ref().is_some_and(|hold| {
            (&hold.tenants, hold.unit, hold.mode, &hold.weight_file) == (&tenants, request.unit, request.mode, &file)
        });
        let total_weight = match &before {
            Some(before) if is_same => before.total_weight,
            _ => self.total_weight(&tenants, &file, &facts)?,
        };
        let tunables = self.tunables_before(before.as_ref(), &file, &facts);
        let hold = Hold {
            device: facts.name,
            unit: request.unit,
            mode: request.mode,
            weight_file: file,
            total_weight,
            tenants,
            tunables,
            lease_seconds: request.lease_seconds,
        };
        let mut steps = Vec::new();
        if before.as_ref() != Some(&hold) {
            steps.push(Action::WriteRecord { path, record: Box::new(Record::Hold(hold.clone())) });
        }
        let mut on_failure = Vec::new();
        if !is_same {
            let is_kept = |old: &&HeldTenant| hold.tenants.iter().any(|tenant| tenant.cgroup == old.cgroup);
            if let Some(before) = &before {
                let dropped =
                    before.tenants.iter().filter(|old| before.weight_file != hold.weight_file || !is_kept(old));
                steps.extend(dropped.map(|tenant| reset_weight(before, tenant)));
            }
            steps.extend(hold.tunables.keys().filter_map(|tunable| {
                let (_, value) = STRICT.into_iter().find(|(name, _)| name == tunable)?;
                Some(set_tunable(&hold.device, tunable, value))
            }));
            let ideal = |tenant: &HeldTenant| set_weight(&hold, tenant, ideal_weight(&hold, tenant));
            steps.extend(hold.tenants.iter().map(ideal));
            on_failure = self.steps_to_end(&hold);
        }
        let steps = self.executor.run(&Plan { steps, on_failure }, dry_run)?;
        Ok(Done { object: Some(hold), steps, dry_run })
    }

    /// Ends the hold on a device: its weights are taken back. Idempotent.
    ///
    /// # Errors
    /// Those of the steps.
    pub fn hold_stop(&self, device: &str, dry_run: bool) -> Result<Done<Hold>, Fault> {
        let hold = self.holds()?.into_iter().find(|hold| hold.device == kernel_name(device));
        let steps = hold.as_ref().map(|hold| self.steps_to_end(hold)).unwrap_or_default();
        let steps = self.executor.run_steps(steps, dry_run)?;
        Ok(Done { object: None, steps, dry_run })
    }

    fn steps_to_end(&self, hold: &Hold) -> Vec<Action> {
        let mut steps: Vec<Action> = hold.tenants.iter().map(|tenant| reset_weight(hold, tenant)).collect();
        steps.extend(hold.tunables.iter().map(|(tunable, value)| set_tunable(&hold.device, tunable, value)));
        steps.push(Action::RemoveRecord { path: self.hold_record(&hold.device) });
        steps
    }

    /// What has to be put back in the end: what is there now, or what was there before an earlier hold.
    fn tunables_before(&self, earlier: Option<&Hold>, file: &str, facts: &BlockFacts) -> BTreeMap<String, String> {
        let wanted = STRICT.into_iter().filter(|_| file == "io.bfq.weight");
        let before = wanted.filter_map(|(tunable, value)| {
            let now = self.host().tunable(facts.dev, tunable)?;
            match earlier.and_then(|hold| hold.tunables.get(tunable)) {
                Some(before) => Some((tunable.to_owned(), before.clone())),
                None => (now != value).then(|| (tunable.to_owned(), now)),
            }
        });
        before.collect()
    }

    fn hold_record(&self, device: &str) -> PathBuf {
        // As in sysfs, where a kernel name may have slashes.
        self.dirs.run.join("holds").join(device.replace('/', "!"))
    }

    fn held_device(&self, device: Option<&str>) -> Result<BlockFacts, Fault> {
        let is_physical = |facts: &BlockFacts| facts.physical == [facts.name.clone()];
        let Some(device) = device else {
            let devices = self.host().block_devices()?.into_iter();
            let mut controlled = devices.filter(|facts| is_physical(facts) && facts.policy() != Policy::None);
            return match (controlled.next(), controlled.next()) {
                (Some(only), None) => Ok(only),
                (None, _) => {
                    Err(Fault::new(Code::Unsupported, "hold", "no device has a controller that weights work with")
                        .cure(
                            "`bulkhead device ls` says why; `bulkhead device control DEV --policy iocost` sets one up",
                        ))
                }
                (Some(_), Some(_)) => {
                    Err(Fault::new(Code::InvalidArgument, "hold", "several devices have a controller")
                        .cure("say which one is meant: `--device DEV`, as in `bulkhead device ls`"))
                }
            };
        };
        let facts = self.facts(device)?;
        if !is_physical(&facts) {
            let cause = format!("it is stacked on {}: weights work on physical devices", facts.physical.join(", "));
            let below = facts.physical.first().map_or("DEV", String::as_str);
            return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                .cure(format!("hold shares of the physical device: `--device {below}`")));
        }
        Ok(facts)
    }

    /// Who is meant, with shares as parts of a million.
    fn held_tenants(&self, request: &HoldStart) -> Result<Vec<HeldTenant>, Fault> {
        let invalid = |object: String, cause: String| Fault::new(Code::InvalidArgument, object, cause);
        let mut asked = BTreeMap::new();
        for HoldTenant { tenant, share } in &request.tenants {
            if asked.insert(tenant.clone(), *share).is_some() {
                return Err(invalid(format!("tenant {tenant}"), "it is given twice".to_owned())
                    .cure("give each tenant one share"));
            }
        }
        let parts = control::parts(&asked).map_err(|error| {
            invalid("hold".to_owned(), error.to_string()).cure("for example `--tenant a=70 --tenant b=30`")
        })?;
        let containers = self.host().containers()?;
        let mut tenants: Vec<HeldTenant> = Vec::new();
        for (name, part) in parts {
            let (cgroup, identity) = find(&containers, &name)?;
            if let Some(other) = tenants.iter().find(|tenant| tenant.cgroup == cgroup) {
                let cause = format!("{} and {name} are the same container", other.name);
                return Err(invalid(format!("tenant {name}"), cause).cure("give each tenant one share"));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 1")]
            let share_ppm = (part * PPM).round() as u32;
            tenants.push(HeldTenant { name, share_ppm, identity, cgroup });
        }
        let parent = |cgroup: &str| cgroup.rsplit_once('/').map_or(String::new(), |(parent, _)| parent.to_owned());
        if let [first, others @ ..] = &tenants[..]
            && let Some(other) = others.iter().find(|other| parent(&other.cgroup) != parent(&first.cgroup))
        {
            let cause = format!(
                "weights arbitrate between siblings, and {} is not beside {} in the hierarchy",
                other.cgroup, first.cgroup
            );
            return Err(Fault::new(Code::Unsupported, format!("tenant {}", other.name), cause)
                .cure("put them under one parent (`--cgroup-parent`, `Slice=`), or hold the cgroups above them"));
        }
        Ok(tenants)
    }

    /// The sum of the weights that they have now, so that nobody beside them has more or less than before.
    fn total_weight(&self, tenants: &[HeldTenant], file: &str, facts: &BlockFacts) -> Result<u32, Fault> {
        let mut total = 0u32;
        for tenant in tenants {
            let weight = self.host().weight(&tenant.cgroup, file, facts.dev)?;
            total = total.saturating_add(weight.ok_or_else(|| {
                let cause = format!("its cgroup {} has no {file}", tenant.cgroup);
                Fault::new(Code::Unsupported, format!("tenant {}", tenant.name), cause)
                    .cure("enable the io controller for it: `+io` in `cgroup.subtree_control` of the cgroup above")
            })?);
        }
        Ok(total.max(MIN_MEAN_WEIGHT * u32::try_from(tenants.len()).unwrap_or(u32::MAX)))
    }
}

/// The file that weights are written to for the controller that is in force on a device.
fn weight_file(facts: &BlockFacts) -> Result<&'static str, Fault> {
    match facts.policy() {
        Policy::Iocost => Ok("io.weight"),
        Policy::Bfq => Ok("io.bfq.weight"),
        Policy::None => Err(Fault::new(
            Code::Unsupported,
            format!("device {}", facts.name),
            "no controller makes weights work on it",
        )
        .cure(format!("set one up: `bulkhead device control {} --policy iocost`, or bfq", facts.name))),
    }
}

fn largest_weight(file: &str) -> u32 {
    if file == "io.bfq.weight" { 1000 } else { 10_000 }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of the total weight, which is an u32"
)]
fn ideal_weight(hold: &Hold, tenant: &HeldTenant) -> u32 {
    let weight = f64::from(hold.total_weight) * f64::from(tenant.share_ppm) / PPM;
    (weight.round() as u32).clamp(1, largest_weight(&hold.weight_file))
}

fn set_weight(hold: &Hold, tenant: &HeldTenant, weight: u32) -> Action {
    Action::SetWeight {
        cgroup: tenant.cgroup.clone(),
        file: hold.weight_file.clone(),
        device: hold.device.clone(),
        weight,
    }
}

fn set_tunable(device: &str, tunable: &str, value: &str) -> Action {
    Action::SetTunable { device: device.to_owned(), tunable: tunable.to_owned(), value: value.to_owned() }
}

fn reset_weight(hold: &Hold, tenant: &HeldTenant) -> Action {
    Action::ResetWeight { cgroup: tenant.cgroup.clone(), file: hold.weight_file.clone(), device: hold.device.clone() }
}

/// The one cgroup that is called so: by the path of a cgroup, or by the name or id of a container.
fn find(containers: &[(String, Identity)], name: &str) -> Result<(String, Identity), Fault> {
    let path = name.trim_matches('/');
    let object = format!("tenant {name}");
    let mut found: Vec<&(String, Identity)> = containers.iter().filter(|(cgroup, _)| cgroup == path).collect();
    if found.is_empty() {
        found = containers.iter().filter(|(_, identity)| identity.is_called(name)).collect();
        // A container has cgroups below its own.
        found.sort_by_key(|(cgroup, _)| cgroup.len());
        let mut kept: Vec<&(String, Identity)> = Vec::new();
        for one in found {
            if !kept.iter().any(|other| other.1 == one.1) {
                kept.push(one);
            }
        }
        found = kept;
    }
    match &found[..] {
        [] => Err(Fault::new(Code::NotFound, object, "no container, unit, tenant or cgroup is called so")
            .cure("`bulkhead top` shows what those are called that do I/O")),
        [(cgroup, _)] if cgroup.is_empty() => {
            Err(Fault::new(Code::InvalidArgument, object, "the root cgroup has no weight")
                .cure("hold what is below it"))
        }
        [one] => Ok((*one).clone()),
        several => {
            let paths: Vec<&str> = several.iter().map(|(cgroup, _)| cgroup.as_str()).collect();
            Err(Fault::new(Code::InvalidArgument, object, format!("several are called so: {}", paths.join(", ")))
                .cure("give the path of the cgroup that is meant"))
        }
    }
}

const fn word(reason: &Reason) -> &'static str {
    match reason {
        Reason::Corrected => "corrected",
        Reason::WithinBand => "within_band",
        Reason::Starting => "starting",
        Reason::NotContended { .. } => "not_contended",
        Reason::NoContenders => "no_contenders",
        Reason::Ineffective { .. } => "ineffective",
        Reason::Partial => "partial",
        Reason::Late { .. } => "late",
        Reason::ClockWentBack => "clock_went_back",
        Reason::OtherWriter { .. } => "other_writer",
    }
}

fn sentence(reason: &Reason) -> String {
    match reason {
        Reason::Corrected => "weights were changed".to_owned(),
        Reason::WithinBand => "weights are right".to_owned(),
        Reason::Starting => "the last seconds are not known yet".to_owned(),
        Reason::NotContended { busy } => {
            format!("the device is not contended: busy for {:.0} % of the time", busy * 100.0)
        }
        Reason::NoContenders => "fewer than two want more than they have".to_owned(),
        Reason::Ineffective { tenant, had, expected } => format!(
            "weights do nothing for {tenant}: it has {:.0} % of what is charged to all, where its weight is worth {:.0} %",
            had * 100.0,
            expected * 100.0
        ),
        Reason::Partial => "records were lost, so that the figures are too small".to_owned(),
        Reason::Late { ns } => {
            format!("the last sample is {:.1} s old", Duration::from_nanos(*ns).as_secs_f64())
        }
        Reason::ClockWentBack => "the clock went backwards".to_owned(),
        Reason::OtherWriter { tenant, found, expected } => {
            format!(
                "another program set the weight of {tenant} from {expected} to {found}: nothing is changed until it is back"
            )
        }
    }
}

#[cfg(test)]
mod tests;
