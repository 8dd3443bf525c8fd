//! Before the host goes down: unmounts all volumes and closes their devices, so that what they lie on can be unmounted as well. What is
//! recorded stays as it is; the next start mounts them again.
//!
//! Owns: in which order, how long, and what becomes of processes that keep a volume in use. Does not know why the host goes down.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_core::error::Fault;
use bulkhead_core::model::{IoLimit, Tenant, VolumeRef};
use bulkhead_core::tenant;

use crate::engine::Engine;
use crate::jobs::{Asked, Jobs};

/// How long processes that `bulkhead run` started have to end after SIGTERM, before they are killed.
const TERMINATION: Duration = Duration::from_secs(10);

/// How many volumes are unmounted at a time.
const AT_A_TIME: usize = 8;

/// Between two tries to unmount what is in use. Units in tenants' slices are ended by systemd meanwhile.
const TRY_AGAIN: Duration = Duration::from_millis(500);

impl Engine {
    /// Unmounts the volumes of all tenants, for at most so long; returns why the rest could not be.
    pub(crate) fn release(&self, limit: Duration) -> Vec<Fault> {
        let began = Instant::now();
        let engine = Self { executor: self.executor.uncounted(), ..self.clone() };
        let tenants: Vec<Tenant> = match engine.tenants() {
            Ok(tenants) => tenants.into_iter().filter_map(Result::ok).collect(),
            Err(fault) => return vec![fault],
        };
        for tenant in &tenants {
            engine.host().terminate(&tenant::payload(&tenant.name));
            engine.lift_limits(tenant);
        }
        let volumes = |tenant: &Tenant| engine.volumes_of(tenant).unwrap_or_else(|_| tenant.volumes.clone());
        let mut left: Vec<VolumeRef> = tenants.iter().flat_map(volumes).collect();
        let mut is_killed = false;
        loop {
            let failed = engine.release_all_of(&left, began + limit);
            if failed.is_empty() || began.elapsed() >= limit {
                return failed.into_iter().map(|(_, fault)| fault).collect();
            }
            left = failed.into_iter().map(|(volume, _)| volume).collect();
            if !is_killed && began.elapsed() >= TERMINATION {
                is_killed = true;
                for tenant in &tenants {
                    // What does not go keeps its volume in use, which is told.
                    let _ = engine.host().kill_all(&tenant::payload(&tenant.name));
                }
            }
            bulkhead_sys::process::pause(TRY_AGAIN);
        }
    }

    /// Unmounts volumes, several at a time; returns those that could not be.
    fn release_all_of(&self, volumes: &[VolumeRef], end: Instant) -> Vec<(VolumeRef, Fault)> {
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some(volume) = volumes.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Err(fault) = self.release_one(volume, end) {
                    failed.lock().unwrap_or_else(PoisonError::into_inner).push((volume.clone(), fault));
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..AT_A_TIME.min(volumes.len())).map(|_| scope.spawn(work)).collect();
            for worker in workers {
                worker.join().unwrap_or_else(|why| resume_unwind(why));
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_one(&self, volume: &VolumeRef, end: Instant) -> Result<(), Fault> {
        let patience = Some(end.saturating_duration_since(Instant::now()));
        // Not one of the daemon's, which has none any more.
        let jobs = Arc::new(Jobs::default());
        let running = jobs.begin(Asked { operation: format!("unmount volume {volume}"), request: None, patience })?;
        let released = self.for_job(running.job()).unmount(volume, false).map(drop);
        running.end(&released);
        released
    }

    /// Nobody is left whom a tenant's limits protect, and what it has dirty is to be written soon.
    fn lift_limits(&self, tenant: &Tenant) {
        let free = |limit: &IoLimit| {
            let dev = self.host().limited_device(std::path::Path::new(&limit.device)).ok()?;
            Some((dev, IoLimit { device: limit.device.clone(), ..IoLimit::default() }))
        };
        let free = tenant.limits.iter().filter_map(free).collect();
        if let Err(fault) = self.executor.run_steps(tenant::io_max(tenant, &free), false) {
            tracing::warn!(tenant = %tenant.name, %fault, "its limits stay");
        }
    }
}
