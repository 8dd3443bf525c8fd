//! Reconciliation: brings the host to the recorded state at the start, after any crash, and corrects drift in between.
//!
//! Order: complete or undo interrupted volume operations, complete removals of tenants, end leases of processes that are
//! gone, create cgroups, mount tenants' volumes, unmount and close volumes without a holder.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::action::{Action, Record};
use bulkhead_core::backend::{self, Backend};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::HOST;
use bulkhead_core::model::{Holder, Lease, Pool, Tenant, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::volume::{self, mount_point, scratch_mount_point};

use crate::attach::context_of;
use crate::check::{Depth, MountState, Round};
use crate::engine::{Engine, InUse, Located, MountedVolume, Occupancy};
use crate::findings::lookup_failed;
use crate::locks::Claim;
use crate::parallel;
use crate::problems::Place;
use crate::roster::{Roster, Slot};

/// How many tenants, and then volumes, are reconciled in parallel when the daemon starts, and how many volumes are unmounted in parallel when
/// the host shuts down.
pub(crate) const MAX_PARALLEL: usize = 8;

/// The interval between attempts to close devices in use.
const CLOSE_AGAIN: Duration = Duration::from_secs(30);

impl Engine {
    /// Reconciles everything. An error becomes a problem, and does not stop the rest.
    pub fn reconcile(&self) {
        let engine = self.without_fault_injection();
        let (mut start_faults, mut record_faults) = (Vec::new(), Vec::new());
        let pools = collect(engine.pools(), &mut record_faults);
        for pool in &pools {
            if let Err(fault) = engine.recover_pool(pool, &mut start_faults) {
                start_faults.push(fault);
            }
        }
        engine.set_problems(Place::Devices, engine.restore_devices());
        let roster = engine.settle_tenants(record_faults, true);
        engine.drop_stale_problems(&roster);
        engine.remove_shared_cgroup();
        for pool in &pools {
            if let Err(fault) = engine.close_unheld(pool, &mut start_faults) {
                start_faults.push(fault);
            }
        }
        engine.set_problems(Place::Start, start_faults);
        engine.check_all_layers(&pools);
    }

    /// Corrects drift while the daemon runs: leases whose process is gone, journal threads that a remount has
    /// replaced, weight files that a module load added, volumes that could not be closed at the start. Called every few seconds.
    ///
    /// Objects that an operation has claimed are left to the next call. So a call waits for no operation, and while one is stuck on
    /// a tenant's slow I/O, another can check the rest.
    pub fn tick(&self) {
        let engine = self.without_fault_injection();
        let mut record_faults = Vec::new();
        collect(engine.pools(), &mut record_faults);
        let roster = engine.settle_tenants(record_faults, false);
        engine.close_devices_in_use();
        let fault = engine.follow_promises(&roster).err();
        let finding = fault.map(|fault| Finding::from_fault(FindingId::PromiseNotEnforced, fault));
        engine.host().conditions().set_or_clear(FindingId::PromiseNotEnforced, HOST, finding);
        let flattened = engine.mounted_volumes().flattening().clone();
        for reference in &flattened {
            let place = Place::Flattening(reference.clone());
            let ended = engine.unless_busy(Claim::default().volume(reference), || engine.end_flattening(reference));
            if let Some(ended) = ended {
                engine.set_problems(place, ended.err().into_iter().collect());
            }
        }
        engine.drop_stale_problems(&roster);
        engine.renew_servers();
    }

    pub(crate) fn without_fault_injection(&self) -> Self {
        Self { executor: self.executor.without_fault_injection(), ..self.clone() }
    }

    /// Changes objects that no operation has claimed; `None` if one has.
    pub(crate) fn unless_busy<T>(&self, claim: Claim, work: impl FnOnce() -> T) -> Option<T> {
        let _held = self.shared.locks.try_claim(self.executor.job(), claim)?;
        Some(work())
    }

    fn set_problems(&self, place: Place, faults: Vec<Fault>) {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).set(place, faults);
    }

    /// Drops the problems of objects that are gone, or no longer checked.
    fn drop_stale_problems(&self, roster: &Roster) {
        let flattening = self.mounted_volumes().flattening().clone();
        let is_checked = |place: &Place| match place {
            Place::Records | Place::InUse(_) | Place::Devices | Place::Start => true,
            Place::Tenant(name) => roster.has_tenant(name),
            Place::Volume(volume) => roster.has_volume(volume),
            Place::Lease(id) => roster.has_lease(id),
            Place::Flattening(volume) => flattening.contains(volume),
        };
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).retain(is_checked);
    }

    fn recover_pool(&self, pool: &Pool, problems: &mut Vec<Fault>) -> Result<(), Fault> {
        let (unfinished, faults) = Self::unfinished(self.volumes_in(pool)?);
        problems.extend(faults);
        let backend = backend::backend(pool);
        for volume in unfinished {
            tracing::info!(volume = %volume.reference(), state = ?volume.state, "completing an interrupted operation");
            let scratch = scratch_mount_point(&self.dirs.run, volume.uuid);
            let plan = self
                .mounted_at(&volume)
                .and_then(|at| volume::recover(backend.as_ref(), &volume, at.as_deref(), &scratch));
            let outcome = plan.and_then(|plan| plan.map_or(Ok(Vec::new()), |plan| self.executor.run(&plan, false)));
            problems.extend(outcome.err());
        }
        if let Err(fault) = self.complete_received(pool, problems) {
            problems.push(fault);
        }
        self.discard_interrupted_imports(pool, Duration::ZERO);
        self.executor.run_steps(backend.sweep(), false).map(drop)
    }

    /// Reconciles all tenants, or those whose turn it is, and ends the leases of processes that are gone. Returns the
    /// roster.
    fn settle_tenants(&self, mut record_faults: Vec<Fault>, full: bool) -> Arc<Roster> {
        let roster = self.roster(&mut record_faults);
        record_faults.extend(self.damaged_holds());
        self.set_problems(Place::Records, record_faults);
        for name in &roster.removing {
            if let Some(removed) = self.settle_removal(name) {
                self.set_problems(Place::Tenant(name.clone()), removed.err().into_iter().collect());
            }
        }
        // Before the mount table: later mounts and unmounts are seen by the next check.
        let changes = self.mounted_volumes().changes();
        let mounts = self.host().mount_points();
        let unreadable = mounts.as_ref().err().cloned().map(lookup_failed);
        self.host().conditions().set_or_clear(FindingId::LookupFailed, "mount table", unreadable);
        // Without it, each volume is checked by itself, and reports the error.
        let now = MountState { roster: Arc::clone(&roster), mounts: mounts.unwrap_or_default(), changes };
        let round = if full { Round::all(&roster) } else { self.next_round(&now) };
        for lease in &round.leases {
            self.settle_lease(lease, &roster.leases);
        }
        // The start mostly waits for disks, which replay logs, and for servers.
        let n_threads = if full { MAX_PARALLEL } else { 1 };
        self.discard_stale_proofs(&roster);
        let settled = parallel::each(&round.tenants, n_threads, |_, (name, depth)| {
            (!self.settle_cgroups(name, *depth)).then_some(*name)
        });
        let gone: BTreeSet<&Name> = settled.into_iter().flatten().collect();
        let were_mounted = parallel::each(&round.slots, n_threads, |_, (slot, depth)| {
            !gone.contains(&slot.tenant) && self.settle_volume(slot, &now, *depth)
        });
        if round.has_all_slots {
            self.record_all_mounted(now.clone(), were_mounted.into_iter().all(|was_mounted| was_mounted));
        }
        roster
    }

    /// Ends a lease whose process is gone, or that its front end has returned.
    fn settle_lease(&self, lease: &Lease, all: &[Lease]) {
        let is_alive = |lease: &Lease| match lease.holder {
            Holder::Process { pid, start_time_ticks } => self.host().start_time(pid) == Some(start_time_ticks),
            Holder::FrontEnd { mounts, .. } => mounts > 0,
        };
        let is_gone = !is_alive(lease);
        self.set_gone(lease.id, is_gone);
        if !is_gone {
            return;
        }
        // The pid may have been reused by another run.
        let reused = all.iter().any(|other| other.holder.pid() == lease.holder.pid() && is_alive(other));
        let claim = Claim::default().tenant(&lease.tenant).volume(&lease.volume);
        if let Some(ended) = self.unless_busy(claim, || self.end_lease(lease, !reused)) {
            self.set_problems(Place::Lease(lease.id), ended.err().into_iter().collect());
        }
    }

    /// Completes a removal whose processes have ended; `None` if an operation has claimed the tenant or one of its volumes.
    fn settle_removal(&self, name: &Name) -> Option<Result<(), Fault>> {
        let claim = self.tenant(name).and_then(|tenant| self.volumes_of(&tenant));
        let claim = claim.map(|volumes| Claim::default().tenant(name).volumes(&volumes));
        let complete = || match self.tenant(name) {
            Ok(tenant) if tenant.removing && self.processes_of(name).is_empty() => {
                self.complete_removal(&tenant, false).map(drop)
            }
            Err(fault) if fault.code != Code::NotFound => Err(fault),
            _ => Ok(()),
        };
        match claim {
            Ok(claim) => self.unless_busy(claim, complete),
            Err(fault) if fault.code == Code::NotFound => Some(Ok(())),
            Err(fault) => Some(Err(fault)),
        }
    }

    /// Reconciles the cgroups of a tenant, as thoroughly as its turn requires. Returns whether the tenant exists.
    fn settle_cgroups(&self, name: &Name, depth: Depth) -> bool {
        // Leftovers of runs are not covered by the proof.
        let has_runs = || !self.host().runs(&slices::payload(name)).is_empty();
        if depth == Depth::Proved && self.tenant_proof(name).is_some() && !has_runs() {
            self.set_problems(Place::Tenant(name.clone()), Vec::new());
            return true;
        }
        let settle = || -> Result<Vec<Fault>, Fault> {
            // Read again, now that it is claimed.
            let tenant = self.tenant(name)?;
            let (ended, restored) = (self.end_runs(&tenant).err(), self.restore_cgroups(&tenant));
            let proof = restored.as_ref().ok().filter(|_| ended.is_none()).and_then(|steps| {
                let kept: Vec<Action> = steps.iter().map(|step| step.action.clone()).collect();
                self.tenant_proof(name).or_else(|| self.host().proof(&kept))
            });
            self.set_tenant_proof(name, proof);
            Ok([ended, restored.err()].into_iter().flatten().collect())
        };
        match self.unless_busy(Claim::default().tenant(name), settle) {
            Some(Err(fault)) if fault.code == Code::NotFound => return false,
            Some(faults) => {
                self.set_problems(Place::Tenant(name.clone()), faults.unwrap_or_else(|fault| vec![fault]));
            }
            None => {}
        }
        true
    }

    /// Reconciles one volume of a tenant, its own or one of a lease: each by itself, so that one that an operation has claimed, or that
    /// cannot be mounted, does not affect the others. A mounted one is checked as thoroughly as its turn requires. Returns whether it was
    /// mounted before.
    fn settle_volume(&self, slot: &Slot, now: &MountState, depth: Depth) -> bool {
        let Slot { volume: reference, tenant: name } = slot;
        let place = Place::Volume(reference.clone());
        let is_mounted = |watched: &&MountedVolume| watched.tenant == *name && now.mounts.contains(&watched.target);
        let mounted = self.mounted_volumes().get(reference).filter(is_mounted).map(|watched| watched.proof.clone());
        match (&mounted, depth) {
            (Some(_), Depth::Mounted) => return true,
            (Some(Some(proof)), Depth::Proved) if proof.holds() => {
                self.set_problems(place, Vec::new());
                return true;
            }
            _ => {}
        }
        let keep = || {
            // The volume may have been detached since the records were read.
            let is_kept = self.is_kept(name, reference);
            let known = now.roster.leases.iter().filter(|lease| lease.tenant == *name && lease.volume == *reference);
            let leases = known.filter(|lease| !self.is_known_gone(lease.id)).filter_map(|lease| {
                match self.host().record(&self.dirs.lease_record(lease))? {
                    Ok(Record::Lease(now)) => Some(now),
                    _ => Some(lease.clone()),
                }
            });
            let leases: Vec<Lease> = leases.collect();
            if !is_kept && leases.is_empty() {
                return Ok(());
            }
            let context = if is_kept { None } else { context_of(&leases) };
            // Outside the `match`, which would hold the lock.
            let watched = self.mounted_volumes().get(reference).cloned().filter(|_| mounted.is_some());
            match watched {
                Some(watched) => self.keep(reference, watched),
                None => self.mount_for(name, reference, context, false).map(drop),
            }
        };
        if let Some(kept) = self.unless_busy(Claim::default().volume(reference), keep) {
            self.set_problems(place, kept.err().into_iter().collect());
        }
        mounted.is_some()
    }

    /// Ends the leftovers of runs that died without a lease, because they had no volume.
    fn end_runs(&self, tenant: &Tenant) -> Result<(), Fault> {
        for (pid, cgroup) in self.host().runs(&slices::payload(&tenant.name)) {
            if self.host().start_time(pid).is_none() {
                let remove = self.kill_run_cgroup(&tenant.name, pid, cgroup)?;
                self.executor.run_steps(vec![remove], false)?;
            }
        }
        Ok(())
    }

    /// Cleans up after a `bulkhead run` that died: its command's remaining processes are ended, so that the volume can be unmounted.
    fn end_lease(&self, lease: &Lease, kill: bool) -> Result<(), Fault> {
        let cgroups = match lease.holder.pid().filter(|_| kill) {
            Some(pid) => self.kill_run(&lease.tenant, pid)?,
            None => Vec::new(),
        };
        self.lease_remove(lease.id, None)?;
        self.executor.run_steps(cgroups, false).map(drop)
    }

    /// Unmounts and closes volumes without a tenant or lease, which a crash between two steps has left. Does nothing while a
    /// tenant's record is damaged. One that is in use is a problem until a later check can close it.
    fn close_unheld(&self, pool: &Pool, start_faults: &mut Vec<Fault>) -> Result<(), Fault> {
        if self.check_tenants_readable().is_err() {
            return Ok(());
        }
        let backend = backend::backend(pool);
        // Listed once for all volumes: of a thousand, nearly all have a holder, and a failed listing is one problem, not a thousand.
        let Occupancy { holders, mounts, .. } = self.occupancy()?;
        let is_unheld = |volume: &Volume| !holders.contains_key(&volume.reference());
        for volume in self.volumes_in(pool)?.into_iter().filter_map(Result::ok).filter(is_unheld) {
            match self.close_if_unheld(backend.as_ref(), &volume, &mounts) {
                Err(fault) if fault.code == Code::InUse => {
                    self.set_problems(Place::InUse(volume.reference()), vec![fault]);
                    self.in_use_at_start().push(InUse { volume: volume.reference(), tried: Instant::now() });
                }
                closed => start_faults.extend(closed.err()),
            }
        }
        Ok(())
    }

    fn in_use_at_start(&self) -> MutexGuard<'_, Vec<InUse>> {
        self.shared.in_use_at_start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes devices that could not be closed at the start, and still have no holder; not at each check, because each attempt is logged.
    fn close_devices_in_use(&self) {
        let due: Vec<VolumeRef> = {
            let mut all = self.in_use_at_start();
            let due = all.iter_mut().filter(|in_use| in_use.tried.elapsed() >= CLOSE_AGAIN);
            due.map(|in_use| {
                in_use.tried = Instant::now();
                in_use.volume.clone()
            })
            .collect()
        };
        for reference in due {
            let close = || {
                let Located { backend, volume, .. } = self.locate(&reference)?;
                let mounts = self.host().mount_points()?;
                self.close_if_unheld(backend.as_ref(), &volume, &mounts)
            };
            match self.unless_busy(Claim::default().volume(&reference), close) {
                None => {}
                Some(Err(fault)) if fault.code != Code::NotFound => {
                    self.set_problems(Place::InUse(reference), vec![fault]);
                }
                Some(_) => {
                    self.in_use_at_start().retain(|in_use| in_use.volume != reference);
                    self.set_problems(Place::InUse(reference), Vec::new());
                }
            }
        }
    }

    fn close_if_unheld(&self, backend: &dyn Backend, volume: &Volume, mounts: &BTreeSet<PathBuf>) -> Result<(), Fault> {
        let is_held = self.holders(&volume.reference())?.0.is_some() || self.is_mapped(volume);
        if volume.state != VolumeState::Ready || is_held {
            return Ok(());
        }
        let target = mount_point(&self.dirs.run, volume);
        // Of a raw volume, a crash can leave the file below its node.
        let is_mounted = volume.is_raw() || mounts.contains(&target);
        let steps = if is_mounted { volume::unmount(backend, volume, &target) } else { backend.close(volume) };
        if self.executor.run_steps(steps, false)?.iter().any(|step| step.changed) {
            // Unused layers could not be removed while it was open.
            self.executor.run_steps(backend.sweep(), false)?;
        }
        Ok(())
    }
}

/// The readable items; an unreadable one becomes a problem.
fn collect<T>(items: Result<Vec<Result<T, Fault>>, Fault>, problems: &mut Vec<Fault>) -> Vec<T> {
    let mut readable = Vec::new();
    match items {
        Err(fault) => problems.push(fault),
        Ok(items) => {
            for item in items {
                match item {
                    Ok(item) => readable.push(item),
                    Err(fault) => problems.push(fault),
                }
            }
        }
    }
    readable
}
