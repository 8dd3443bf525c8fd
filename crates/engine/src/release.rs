//! Before the host shuts down: unmounts all volumes and closes their devices, so that the file systems of their pools can be unmounted as
//! well. Records stay as they are; the next start mounts the volumes again.
//!
//! Owns: the order, the time limits, and the end of processes that keep a volume in use. Does not know why the host shuts down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Tenant, VolumeRef};
use bulkhead_core::slices;
use bulkhead_core::{tenant, volume};

use crate::engine::Engine;
use crate::jobs::{JobSpec, Jobs};
use crate::parallel;
use crate::reconcile::MAX_PARALLEL;

/// How long processes of `bulkhead run` have to exit after SIGTERM, before they are killed.
const TERMINATION: Duration = Duration::from_secs(10);

/// The interval between attempts to unmount volumes in use. Meanwhile systemd stops the units in tenants' slices.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

impl Engine {
    /// Unmounts the volumes of all tenants within `limit`; returns the errors of those that could not be unmounted.
    pub(crate) fn release(&self, limit: Duration) -> Vec<Fault> {
        let began = Instant::now();
        let engine = self.without_fault_injection();
        let tenants: Vec<Tenant> = match engine.tenants() {
            Ok(tenants) => tenants.into_iter().filter_map(Result::ok).collect(),
            Err(fault) => return vec![fault],
        };
        for tenant in &tenants {
            engine.host().terminate(&slices::payload(&tenant.name));
            engine.lift_limits(tenant);
        }
        let volumes = |tenant: &Tenant| engine.volumes_of(tenant).unwrap_or_else(|_| tenant.volumes.clone());
        let mut left: Vec<VolumeRef> = tenants.iter().flat_map(volumes).collect();
        let mut is_killed = false;
        loop {
            let released = parallel::each(&left, MAX_PARALLEL, |_, volume| {
                engine.release_one(volume, began + limit).err().map(|fault| (volume.clone(), fault))
            });
            let failed: Vec<(VolumeRef, Fault)> = released.into_iter().flatten().collect();
            if failed.is_empty() || began.elapsed() >= limit {
                return failed.into_iter().map(|(_, fault)| fault).collect();
            }
            left = failed.into_iter().map(|(volume, _)| volume).collect();
            if !is_killed && began.elapsed() >= TERMINATION {
                is_killed = true;
                for tenant in &tenants {
                    // A process that survives keeps its volume in use, which is reported.
                    let _ = engine.host().kill_all(&slices::payload(&tenant.name));
                }
            }
            bulkhead_sys::process::pause(RETRY_INTERVAL);
        }
    }

    fn release_one(&self, volume: &VolumeRef, end: Instant) -> Result<(), Fault> {
        let wait_limit = Some(end.saturating_duration_since(Instant::now()));
        // Its own list of jobs: that of the daemon is closed.
        let jobs = Arc::new(Jobs::default());
        let running =
            jobs.begin(JobSpec { operation: format!("unmount volume {volume}"), request: None, wait_limit })?;
        let engine = self.for_job(running.job());
        let released = engine.unmount_binds(volume).and_then(|()| engine.unmount(volume, false).map(drop));
        running.end(&released);
        released
    }

    /// Unmounts a volume wherever somebody else has mounted it, as CSI drivers do for pods: systemd would do so only after the daemon has ended,
    /// and then neither the volume's device nor the file system of its pool could be closed.
    fn unmount_binds(&self, volume: &VolumeRef) -> Result<(), Fault> {
        match self.locate(volume) {
            Ok(located) => self.host().unmount_binds(&volume::mount_point(&self.dirs.run, &located.volume)),
            Err(fault) if fault.code == Code::NotFound => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    /// Removes a tenant's I/O limits, so that its dirty data is written at full speed; no other tenant is left to be protected.
    fn lift_limits(&self, tenant: &Tenant) {
        let free = tenant.limits.iter().filter_map(|limit| self.without_limit(limit)).collect();
        if let Err(fault) = self.executor.run_steps(tenant::io_max(tenant, &free), false) {
            tracing::warn!(tenant = %tenant.name, %fault, "its limits stay");
        }
    }
}
