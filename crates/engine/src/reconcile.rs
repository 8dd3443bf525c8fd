//! Brings the host to the recorded state: at start, after any crash; and in between, whatever may drift.
//!
//! Order: complete or undo interrupted volume operations, complete removals of tenants, end leases of processes that are
//! gone, make cgroups, mount what tenants keep mounted, unmount and close what nobody holds.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::action::Action;
use bulkhead_core::backend::{self, Backend};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Lease, Pool, Tenant, Volume, VolumeRef, VolumeState};
use bulkhead_core::name::Name;
use bulkhead_core::tenant;
use bulkhead_core::volume::{self, mount_point, scratch_mount_point};

use crate::engine::{Engine, InUse, Located, Seen};
use crate::locks::Claim;
use crate::parallel;
use crate::problems::Place;

/// How many tenants are brought to what is recorded of them at a time when the daemon starts, and volumes unmounted when the host goes down.
pub(crate) const AT_A_TIME: usize = 8;

/// How many tenants a periodic check looks at in all detail. With more than that they take turns; that a mount is gone is seen at once.
const IN_DETAIL: usize = 50;

/// After how long it is tried again to close what was in use.
const CLOSE_AGAIN: Duration = Duration::from_secs(30);

impl Engine {
    /// Reaches the recorded state. What cannot be done is kept as a problem, and does not stop the rest.
    pub fn reconcile(&self) {
        let engine = self.uncounted();
        let (mut at_start, mut of_records) = (Vec::new(), Vec::new());
        let pools = collect(engine.pools(), &mut of_records);
        for pool in &pools {
            if let Err(fault) = engine.recover_pool(pool, &mut at_start) {
                at_start.push(fault);
            }
        }
        engine.restore_devices(&mut at_start);
        let looked_at = engine.settle_tenants(of_records, true);
        engine.forget_others(&looked_at);
        for pool in &pools {
            if let Err(fault) = engine.close_unheld(pool, &mut at_start) {
                at_start.push(fault);
            }
        }
        engine.found(Place::Start, at_start);
        engine.look_at_all_layers(&pools);
    }

    /// Checks what may drift while the daemon runs: leases whose process is gone, journal threads that a remount made
    /// anew, weights that a module load added, volumes that could not be closed at the start. Called every few seconds.
    ///
    /// What somebody else works on is passed over: the next call looks at it. So a call waits for nobody, and while one is held up by
    /// a tenant whose I/O is slow, another looks after the others.
    pub fn tick(&self) {
        let engine = self.uncounted();
        let mut of_records = Vec::new();
        collect(engine.pools(), &mut of_records);
        let mut looked_at = engine.settle_tenants(of_records, false);
        engine.close_what_was_in_use();
        let watched = engine.watched().clone();
        for (reference, _) in watched.iter().filter(|(_, watched)| watched.flatten) {
            let place = Place::Flattening(reference.clone());
            looked_at.insert(place.clone());
            let ended = engine.unless_busy(Claim::default().volume(reference), || engine.end_flattening(reference));
            if let Some(ended) = ended {
                engine.found(place, ended.err().into_iter().collect());
            }
        }
        engine.forget_others(&looked_at);
        engine.renew_servers();
    }

    pub(crate) fn uncounted(&self) -> Self {
        Self { executor: self.executor.uncounted(), ..self.clone() }
    }

    /// Does something to objects that nobody else works on; `None` when somebody does.
    pub(crate) fn unless_busy<T>(&self, claim: Claim, work: impl FnOnce() -> T) -> Option<T> {
        let _held = self.shared.locks.try_claim(self.executor.job(), claim)?;
        Some(work())
    }

    fn found(&self, place: Place, faults: Vec<Fault>) {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).found(place, faults);
    }

    fn forget_others(&self, looked_at: &BTreeSet<Place>) {
        self.shared.problems.lock().unwrap_or_else(PoisonError::into_inner).keep(looked_at);
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
        self.give_up_imports(pool, Duration::ZERO);
        self.executor.run_steps(backend.tidy(), false).map(drop)
    }

    /// Brings all tenants to what is recorded of them, all of them or those whose turn it is, and ends the leases of processes that are
    /// gone. Returns what was looked at.
    fn settle_tenants(&self, mut of_records: Vec<Fault>, all_in_detail: bool) -> BTreeSet<Place> {
        let tenants = collect(self.tenants(), &mut of_records);
        let leases = self.leases().unwrap_or_else(|fault| {
            of_records.push(fault);
            Vec::new()
        });
        let alive = |lease: &Lease| self.host().start_time(lease.pid) == Some(lease.start_time_ticks);
        let (held, gone): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(alive);
        self.found(Place::Records, of_records);
        let mut looked_at = BTreeSet::new();
        for tenant in tenants.iter().filter(|tenant| tenant.removing) {
            let place = Place::Tenant(tenant.name.clone());
            looked_at.insert(place.clone());
            if let Some(removed) = self.settle_removal(&tenant.name) {
                self.found(place, removed.err().into_iter().collect());
            }
        }
        for lease in &gone {
            let place = Place::Lease(lease.id);
            looked_at.insert(place.clone());
            // A pid that was given to another run is not taken for the one that ended.
            let reused = held.iter().any(|other| other.pid == lease.pid);
            let claim = Claim::default().tenant(&lease.tenant).volume(&lease.volume);
            if let Some(ended) = self.unless_busy(claim, || self.end_lease(lease, !reused)) {
                self.found(place, ended.err().into_iter().collect());
            }
        }
        let mounts = self.host().mounts_below(&self.dirs.run).unwrap_or_else(|fault| {
            // All volumes are looked at one by one then, and say so.
            tracing::warn!(%fault, "the mount table cannot be read");
            Vec::new()
        });
        let seen = Seen { mounts: mounts.into_iter().collect(), ..Seen::default() };
        let present: Vec<&Tenant> = tenants.iter().filter(|tenant| !tenant.removing).collect();
        let turn = if all_in_detail { 0..present.len() } else { self.turn(present.len()) };
        // At the start most of the time goes by waiting for disks: a log that is replayed, a server that begins.
        let n_threads = if all_in_detail { AT_A_TIME } else { 1 };
        let settled = parallel::each(&present, n_threads, |n, tenant| {
            self.settle_tenant(tenant, &held, &seen, turn.contains(&n))
        });
        looked_at.extend(settled.into_iter().flatten());
        looked_at
    }

    /// Whose turn it is of so many to be looked at in all detail: what a look costs does not grow with their number.
    fn turn(&self, count: usize) -> Range<usize> {
        if count <= IN_DETAIL {
            return 0..count;
        }
        let start = self.shared.next_turn.fetch_add(IN_DETAIL, Ordering::Relaxed) % count.next_multiple_of(IN_DETAIL);
        start..(start + IN_DETAIL).min(count)
    }

    /// Completes a removal whose processes have ended; `None` when somebody works on the tenant or on one of its volumes.
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

    /// Brings a tenant to what is recorded of it: its cgroups, and then each of its volumes by itself, so that one that somebody
    /// works on, or that cannot be mounted, does not keep the others from being looked after. Without `in_detail` only what is not
    /// mounted is. Returns what was looked at.
    fn settle_tenant(&self, tenant: &Tenant, leases: &[Lease], seen: &Seen, in_detail: bool) -> Vec<Place> {
        let name = &tenant.name;
        let mut looked_at = vec![Place::Tenant(name.clone())];
        let cgroups = || -> Result<Vec<Fault>, Fault> {
            // As it is now.
            let tenant = self.tenant(name)?;
            let faults = [self.end_runs(&tenant).err(), self.restore_cgroups(&tenant).err()];
            Ok(faults.into_iter().flatten().collect())
        };
        let found = if in_detail { self.unless_busy(Claim::default().tenant(name), cgroups) } else { None };
        match found {
            Some(Err(fault)) if fault.code == Code::NotFound => return looked_at,
            Some(faults) => {
                self.found(Place::Tenant(name.clone()), faults.unwrap_or_else(|fault| vec![fault]));
            }
            None => {}
        }
        let leased: Vec<&Lease> = leases.iter().filter(|lease| lease.tenant == *name).collect();
        let volumes: BTreeSet<&VolumeRef> =
            tenant.volumes.iter().chain(leased.iter().map(|lease| &lease.volume)).collect();
        for reference in volumes {
            let place = Place::Volume(reference.clone());
            looked_at.push(place.clone());
            let watched = self.watched().get(reference).cloned();
            let is_mounted =
                watched.is_some_and(|watched| watched.tenant == *name && seen.mounts.contains(&watched.target));
            if is_mounted && !in_detail {
                continue;
            }
            let keep = || {
                // It may have been taken from the tenant since the records were read.
                let is_kept = self.tenant(name).is_ok_and(|tenant| tenant.volumes.contains(reference));
                let is_lent = leased.iter().any(|lease| {
                    lease.volume == *reference && self.host().record(&self.dirs.lease_record(lease)).is_some()
                });
                if !is_kept && !is_lent {
                    return Ok(());
                }
                let watched = self.watched().get(reference).cloned().filter(|_| is_mounted);
                match watched {
                    Some(watched) => self.executor.run_steps(watched.keep, false).map(drop),
                    None => self.mount_for(name, reference, false).map(drop),
                }
            };
            if let Some(kept) = self.unless_busy(Claim::default().volume(reference), keep) {
                self.found(place, kept.err().into_iter().collect());
            }
        }
        looked_at
    }

    /// Ends what runs left behind that died without a lease, because they had no volume.
    fn end_runs(&self, tenant: &Tenant) -> Result<(), Fault> {
        for pid in self.host().runs(&tenant::payload(&tenant.name)) {
            if self.host().start_time(pid).is_none() {
                let cgroup = tenant::run(&tenant.name, pid);
                tracing::info!(tenant = %tenant.name, pid, "ending what a run left behind");
                self.host().kill_all(&cgroup)?;
                self.executor.run_steps(vec![Action::RemoveCgroup { cgroup }], false)?;
            }
        }
        Ok(())
    }

    /// Takes back what a `bulkhead run` that died held: what its command left running is ended, so that the volume can go.
    fn end_lease(&self, lease: &Lease, kill: bool) -> Result<(), Fault> {
        let cgroup = tenant::run(&lease.tenant, lease.pid);
        if kill && !self.host().processes(&cgroup).is_empty() {
            tracing::info!(volume = %lease.volume, pid = lease.pid, "ending what a run left behind");
            self.host().kill_all(&cgroup)?;
        }
        self.lease_remove(lease.id)?;
        if kill {
            self.executor.run_steps(vec![Action::RemoveCgroup { cgroup }], false)?;
        }
        Ok(())
    }

    /// Unmounts and closes volumes that no tenant and no lease holds: left by a crash between two steps. Does nothing while a
    /// tenant's record is damaged. What is in use is only a problem until a tick can close it.
    fn close_unheld(&self, pool: &Pool, at_start: &mut Vec<Fault>) -> Result<(), Fault> {
        if self.check_tenants_readable().is_err() {
            return Ok(());
        }
        let backend = backend::backend(pool);
        let mounts: Vec<PathBuf> = self.host().mounts_below(&self.dirs.run)?;
        // When they cannot be read, that is one problem, not one for each volume.
        self.leases()?;
        for volume in self.volumes_in(pool)?.into_iter().filter_map(Result::ok) {
            match self.close_if_unheld(backend.as_ref(), &volume, &mounts) {
                Err(fault) if fault.code == Code::InUse => {
                    self.found(Place::InUse(volume.reference()), vec![fault]);
                    self.in_use_at_start().push(InUse { volume: volume.reference(), tried: Instant::now() });
                }
                closed => at_start.extend(closed.err()),
            }
        }
        Ok(())
    }

    fn in_use_at_start(&self) -> MutexGuard<'_, Vec<InUse>> {
        self.shared.in_use_at_start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes what could not be closed at the start, and has no holder since then; not at each tick, because each try is logged.
    fn close_what_was_in_use(&self) {
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
                self.close_if_unheld(backend.as_ref(), &volume, &self.host().mounts_below(&self.dirs.run)?)
            };
            match self.unless_busy(Claim::default().volume(&reference), close) {
                None => {}
                Some(Err(fault)) if fault.code != Code::NotFound => {
                    self.found(Place::InUse(reference), vec![fault]);
                }
                Some(_) => {
                    self.in_use_at_start().retain(|in_use| in_use.volume != reference);
                    self.found(Place::InUse(reference), Vec::new());
                }
            }
        }
    }

    fn close_if_unheld(&self, backend: &dyn Backend, volume: &Volume, mounts: &[PathBuf]) -> Result<(), Fault> {
        let is_held = self.holders(&volume.reference())?.0.is_some() || self.is_mapped(volume);
        if volume.state != VolumeState::Ready || is_held {
            return Ok(());
        }
        let target = mount_point(&self.dirs.run, volume);
        let steps =
            if mounts.contains(&target) { volume::unmount(backend, volume, &target) } else { backend.close(volume) };
        if self.executor.run_steps(steps, false)?.iter().any(|step| step.changed) {
            // What was open could not be tidied up before.
            self.executor.run_steps(backend.tidy(), false)?;
        }
        Ok(())
    }
}

/// The readable items; what is not readable becomes a problem.
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
