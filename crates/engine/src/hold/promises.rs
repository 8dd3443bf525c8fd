//! Holds for promises: a device with volumes of a tenant whose fsyncs have a promised latency is held for all tenants with volumes on it.
//!
//! Owns: when such a hold starts, changes and ends, whose promise is not enforced and why, and the limits of held tenants. A hold that an
//! operator has started takes precedence: a device has one.
//! Does not: decide about weights or caps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bulkhead_core::action::{Action, Record, StateAction};
use bulkhead_core::control::MIN_SHARE;
use bulkhead_core::control::holding::PPM;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::identify;
use bulkhead_core::model::{HeldTenant, Hold, IoMax, Mode, RateLimit, Tenant, Unit};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::slices;
use bulkhead_core::tenant::ResolvedLimits;
use bulkhead_core::units::Share;
use bulkhead_core::volume::Plan;

use super::{ideal_weight, weight_file};
use crate::engine::Engine;
use crate::locks::{Claim, Object};
use crate::roster::Roster;

/// How often everything is looked up again while no record has changed: disks are added to pools, and controllers are enabled and disabled.
const INTERVAL: Duration = Duration::from_secs(30);

/// What is known of promises.
#[derive(Debug, Default)]
pub(crate) struct Promises {
    /// Held during a look-up, which may wait for LVM.
    turn: Mutex<()>,
    last: Mutex<LookUp>,
}

/// The last look-up.
#[derive(Debug, Default)]
struct LookUp {
    /// The records that it is based on, and its time; `None` if another one is due.
    done: Option<(Arc<Roster>, Instant)>,
    /// Why promises are not enforced.
    unkept: BTreeMap<Name, Fault>,
    /// The number of requests for another one.
    n_requested: u64,
}

impl Engine {
    /// Starts, changes and ends holds, so that promises are enforced. Does little while nothing has changed, and nothing while another look-up
    /// waits for LVM.
    ///
    /// # Errors
    /// When records cannot be read, or a hold cannot be ended. The next call tries again.
    pub(crate) fn follow_promises(&self, roster: &Arc<Roster>) -> Result<(), Fault> {
        let _turn = match self.shared.promises.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let is_current = |(seen, at): &(Arc<Roster>, Instant)| Arc::ptr_eq(seen, roster) && at.elapsed() < INTERVAL;
        let n_requested = {
            let last = self.last_look_up();
            if last.done.as_ref().is_some_and(is_current) {
                return Ok(());
            }
            last.n_requested
        };
        let devices = self.devices_with_promises(roster)?;
        let held = self.holds()?.into_iter().filter(|hold| hold.for_promises).map(|hold| hold.device.to_string());
        let all: BTreeSet<String> = held.chain(devices.keys().cloned()).collect();
        let (mut unkept, mut has_all, mut outcome) = (BTreeMap::new(), true, Ok(()));
        for device in all {
            let tenants = devices.get(&device).map_or(&[][..], Vec::as_slice);
            // An operation on the device may start or end a hold.
            let claim = Claim::default().changes(Object::Device(device.clone()));
            match self.unless_busy(claim, || self.settle_hold(&device, tenants)) {
                None => has_all = false,
                Some(Ok(())) => {}
                // A hold that nobody needs could not be ended.
                Some(Err(fault)) if tenants.is_empty() => (has_all, outcome) = (false, Err(fault)),
                Some(Err(fault)) => {
                    let promised = tenants.iter().filter(|tenant| tenant.fsync_p99_us.is_some());
                    unkept.extend(promised.map(|tenant| (tenant.name.clone(), fault.clone())));
                }
            }
        }
        let mut last = self.last_look_up();
        let is_done = has_all && last.n_requested == n_requested;
        (last.unkept, last.done) = (unkept, is_done.then(|| (Arc::clone(roster), Instant::now())));
        outcome
    }

    /// Holds a device for the promises among these tenants, or ends that; also when it cannot be held.
    fn settle_hold(&self, device: &str, tenants: &[Tenant]) -> Result<(), Fault> {
        let before = self.holds()?.into_iter().find(|hold| hold.device.as_str() == device);
        let held = match tenants {
            [] => Err(None),
            tenants => self.hold_for_promises(device, tenants, before.as_ref()).map_err(Some),
        };
        let Err(fault) = held else { return Ok(()) };
        if let Some(hold) = before.filter(|hold| hold.for_promises) {
            self.executor.run_steps(self.steps_to_end(&hold), false)?;
        }
        fault.map_or(Ok(()), Err)
    }

    /// Lets the next call of [`Self::follow_promises`] look everything up: a hold has ended, or a controller was changed.
    pub(crate) fn look_up_promises_again(&self) {
        let mut last = self.last_look_up();
        last.done = None;
        last.n_requested += 1;
    }

    /// Why the promise of a tenant is not enforced.
    pub(crate) fn unkept_promise(&self, tenant: &Name) -> Option<Fault> {
        self.last_look_up().unkept.get(tenant).cloned()
    }

    fn last_look_up(&self) -> MutexGuard<'_, LookUp> {
        self.shared.promises.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The physical devices, by kernel name, with volumes of at least two tenants of which one has a promise, and these tenants.
    fn devices_with_promises(&self, roster: &Roster) -> Result<BTreeMap<String, Vec<Tenant>>, Fault> {
        let tenants: BTreeMap<Name, Tenant> =
            self.tenants()?.into_iter().flatten().map(|tenant| (tenant.name.clone(), tenant)).collect();
        if tenants.values().all(|tenant| tenant.fsync_p99_us.is_none()) {
            return Ok(BTreeMap::new());
        }
        let mut below: BTreeMap<&Name, Vec<String>> = BTreeMap::new();
        let mut on_device: BTreeMap<String, BTreeSet<&Name>> = BTreeMap::new();
        for slot in &roster.slots {
            let pool = &slot.volume.pool;
            let devices = below.entry(pool).or_insert_with(|| {
                // Of a pool that cannot be read, findings tell.
                self.pool(pool).map(|pool| self.host().physical_devices(&pool.source).0).unwrap_or_default()
            });
            for device in devices {
                on_device.entry(device.clone()).or_default().insert(&slot.tenant);
            }
        }
        let found = on_device.into_iter().filter_map(|(device, names)| {
            let found: Vec<Tenant> = names.into_iter().filter_map(|name| tenants.get(name).cloned()).collect();
            let has_promise = found.iter().any(|tenant| tenant.fsync_p99_us.is_some());
            (has_promise && found.len() > 1).then_some((device, found))
        });
        Ok(found.collect())
    }

    /// Holds a device for these tenants; `before` is the present hold on it. Weights of tenants that stay are those that were last corrected.
    fn hold_for_promises(&self, device: &str, tenants: &[Tenant], before: Option<&Hold>) -> Result<(), Fault> {
        let facts = self.facts(device)?;
        let file = weight_file(&facts)?.to_owned();
        if let Some(other) = before.filter(|hold| !hold.for_promises) {
            let cause = "an operator's hold is active on it, and a device has one hold";
            return Err(Fault::new(Code::InUse, format!("device {device}"), cause)
                .reason(Reason::HoldOfOperator { device: other.device.to_string() }));
        }
        let weight = |share: Share| if file == "io.bfq.weight" { share.bfq_weight() } else { share.weight() };
        let total_weight: u32 = tenants.iter().map(|tenant| weight(tenant.share)).sum();
        let mut held = Vec::new();
        for tenant in tenants {
            let cgroup = slices::tenant(&tenant.name);
            let part = f64::from(weight(tenant.share)) / f64::from(total_weight.max(1));
            let was = before.and_then(|hold| hold.tenants.iter().find(|was| was.cgroup == cgroup));
            let limits = match was {
                Some(was) => was.before(),
                None => self.host().io_max(&cgroup, facts.dev)?.unwrap_or_default(),
            };
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 1")]
            held.push(HeldTenant {
                name: tenant.name.to_string(),
                share_ppm: (part.max(MIN_SHARE) * PPM).round() as u32,
                identity: identify(&format!("/{cgroup}")),
                cgroup,
                iops_before: limits.ops,
                bytes_before: limits.bytes,
                fsync_p99_us: tenant.fsync_p99_us,
                journal: None,
            });
        }
        let hold = Hold {
            unit: Unit::Time,
            mode: Mode::Correcting,
            total_weight,
            tunables: self.tunables_before(before, &file, &facts),
            weight_file: file,
            tenants: held,
            lease_seconds: None,
            for_promises: true,
            device: facts.name,
        };
        if before == Some(&hold) {
            return Ok(());
        }
        // The weights of another controller are gone with it.
        let before = before.filter(|before| before.weight_file == hold.weight_file);
        self.executor.run(&self.plan_to_change(before, hold), false).map(drop)
    }

    fn plan_to_change(&self, before: Option<&Hold>, hold: Hold) -> Plan {
        let has = |hold: &Hold, tenant: &HeldTenant| hold.tenants.iter().any(|other| other.cgroup == tenant.cgroup);
        let mut steps = vec![self.write_hold(&hold)];
        if let Some(before) = before {
            let dropped = before.tenants.iter().filter(|tenant| !has(&hold, tenant));
            steps.extend(dropped.flat_map(|tenant| super::restore_steps(before, tenant)));
        } else {
            steps.extend(super::strict_tunables(&hold));
        }
        let added = hold.tenants.iter().filter(|tenant| before.is_none_or(|before| !has(before, tenant)));
        steps.extend(added.flat_map(|tenant| super::set_weight(&hold, tenant, ideal_weight(&hold, tenant), 0.0)));
        let on_failure = self.steps_to_end(&hold);
        Plan { steps, on_failure, can_be_undone: true }
    }

    /// Separates a tenant's limits into those to write to `io.max`, and those on devices whose hold writes it: the steps record these in the
    /// hold, which applies them with its own caps.
    pub(crate) fn without_held_limits(&self, tenant: &Name, limits: ResolvedLimits) -> (ResolvedLimits, Vec<Action>) {
        let cgroup = slices::tenant(tenant);
        let mut holds = self.holds().unwrap_or_default();
        let (mut free, mut steps) = (ResolvedLimits::new(), Vec::new());
        for (dev, limit) in limits {
            let is_held = |hold: &&mut Hold| {
                self.facts(hold.device.as_str()).is_ok_and(|facts| facts.dev == dev)
                    && hold.tenants.iter().any(|held| held.cgroup == cgroup)
            };
            let Some(hold) = holds.iter_mut().find(is_held) else {
                free.push((dev, limit));
                continue;
            };
            let now = IoMax {
                ops: RateLimit { read: limit.read_iops, write: limit.write_iops },
                bytes: Some(RateLimit { read: limit.read_bytes_per_second, write: limit.write_bytes_per_second }),
            };
            let mut is_changed = false;
            for held in hold.tenants.iter_mut().filter(|held| held.cgroup == cgroup && held.before() != now) {
                (held.iops_before, held.bytes_before, is_changed) = (now.ops, now.bytes, true);
            }
            if is_changed {
                steps.push(self.write_hold(hold));
            }
        }
        (free, steps)
    }

    pub(super) fn write_hold(&self, hold: &Hold) -> Action {
        let (path, record) = (self.hold_record(&hold.device), Box::new(Record::Hold(hold.clone())));
        Action::State(StateAction::WriteRecord { path, record })
    }
}

/// Refuses a promise that nothing can keep.
///
/// # Errors
/// `InvalidArgument` for zero.
pub(crate) fn check_promise(object: &str, us: Option<u64>) -> Result<(), Fault> {
    if us != Some(0) {
        return Ok(());
    }
    Err(Fault::new(Code::InvalidArgument, object, "the latency of its fsyncs cannot be zero")
        .hint("choose a latency that the device achieves without other load, for example 20ms"))
}

#[cfg(test)]
mod tests;
