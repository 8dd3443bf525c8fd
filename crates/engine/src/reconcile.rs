//! Brings the host to the recorded state: at start, after any crash; and in between, whatever may drift.
//!
//! Order: complete or undo interrupted volume operations, complete removals of tenants, end leases of processes that are
//! gone, make cgroups, mount what tenants keep mounted, unmount and close what nobody holds.

use std::mem;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bulkhead_core::action::Action;
use bulkhead_core::backend::{self, Backend};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Lease, Pool, Tenant, Volume, VolumeState};
use bulkhead_core::tenant;
use bulkhead_core::volume::{self, mount_point, scratch_mount_point};

use crate::engine::{Engine, InUse, Located};

/// After how long it is tried again to close what was in use.
const CLOSE_AGAIN: Duration = Duration::from_secs(30);

impl Engine {
    /// Reaches the recorded state. What cannot be done is kept as a problem, and does not stop the rest.
    pub fn reconcile(&mut self) {
        self.executor.set_exempt(true);
        let (mut at_start, mut problems) = (Vec::new(), Vec::new());
        let pools = collect(self.pools(), &mut problems);
        for pool in &pools {
            if let Err(fault) = self.recover_pool(pool, &mut at_start) {
                at_start.push(fault);
            }
        }
        self.restore_devices(&mut at_start);
        self.settle_tenants(&mut problems);
        for pool in &pools {
            if let Err(fault) = self.close_unheld(pool, &mut at_start, &mut problems) {
                at_start.push(fault);
            }
        }
        self.found_at_start = at_start;
        self.report(problems);
    }

    /// Checks what may drift while the daemon runs: leases whose process is gone, journal threads that a remount made
    /// anew, weights that a module load added, volumes that could not be closed at the start. Called every few seconds.
    pub fn tick(&mut self) {
        self.executor.set_exempt(true);
        let mut problems: Vec<Fault> = Vec::new();
        collect(self.pools(), &mut problems);
        self.settle_tenants(&mut problems);
        let watched = self.watched().clone();
        self.close_what_was_in_use(&mut problems);
        for (reference, _) in watched.iter().filter(|(_, watched)| watched.flatten) {
            problems.extend(self.end_flattening(reference).err());
        }
        self.report(problems);
    }

    fn report(&mut self, mut problems: Vec<Fault>) {
        let earlier: Vec<Fault> =
            self.found_at_start.iter().filter(|fault| !problems.contains(fault)).cloned().collect();
        problems.extend(earlier);
        for fault in problems.iter().filter(|fault| !self.problems.contains(fault)) {
            tracing::error!(object = %fault.object, cause = %fault.cause, cure = %fault.cure, "problem");
        }
        self.problems = problems;
        self.executor.set_exempt(false);
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

    fn settle_tenants(&self, problems: &mut Vec<Fault>) {
        let (removing, tenants): (Vec<Tenant>, Vec<Tenant>) =
            collect(self.tenants(), problems).into_iter().partition(|tenant| tenant.removing);
        for tenant in &removing {
            if self.host().processes(&tenant::payload(&tenant.name)).is_empty() {
                problems.extend(self.complete_removal(tenant, false).err());
            }
        }
        match self.leases() {
            Err(fault) => problems.push(fault),
            Ok(leases) => {
                let alive = |lease: &Lease| self.host().start_time(lease.pid) == Some(lease.start_time_ticks);
                let (held, gone): (Vec<Lease>, Vec<Lease>) = leases.into_iter().partition(alive);
                for lease in gone {
                    // A pid that was given to another run is not taken for the one that ended.
                    let reused = held.iter().any(|other| other.pid == lease.pid);
                    problems.extend(self.end_lease(&lease, !reused).err());
                }
            }
        }
        for tenant in &tenants {
            problems.extend(self.end_runs(tenant).err());
            problems.extend(self.restore_cgroups(tenant).err());
            match self.volumes_of(tenant) {
                Err(fault) => problems.push(fault),
                // What is wrong with one of them does not keep the others from being mounted.
                Ok(volumes) => problems.extend(
                    volumes.iter().filter_map(|reference| self.mount_for(&tenant.name, reference, false).err()),
                ),
            }
        }
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
    fn close_unheld(&mut self, pool: &Pool, at_start: &mut Vec<Fault>, problems: &mut Vec<Fault>) -> Result<(), Fault> {
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
                    problems.push(fault.clone());
                    self.in_use_at_start.push(InUse { volume: volume.reference(), fault, tried: Instant::now() });
                }
                closed => at_start.extend(closed.err()),
            }
        }
        Ok(())
    }

    /// Closes what could not be closed at the start, and has no holder since then; not at each tick, because each try is logged.
    fn close_what_was_in_use(&mut self, problems: &mut Vec<Fault>) {
        for mut in_use in mem::take(&mut self.in_use_at_start) {
            if in_use.tried.elapsed() >= CLOSE_AGAIN {
                let closed = self.locate(&in_use.volume).and_then(|Located { backend, volume, .. }| {
                    self.close_if_unheld(backend.as_ref(), &volume, &self.host().mounts_below(&self.dirs.run)?)
                });
                match closed {
                    Err(fault) if fault.code != Code::NotFound => {
                        (in_use.fault, in_use.tried) = (fault, Instant::now())
                    }
                    _ => continue,
                }
            }
            problems.push(in_use.fault.clone());
            self.in_use_at_start.push(in_use);
        }
    }

    fn close_if_unheld(&self, backend: &dyn Backend, volume: &Volume, mounts: &[PathBuf]) -> Result<(), Fault> {
        if volume.state != VolumeState::Ready || self.holders(&volume.reference())?.0.is_some() {
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
