//! Bulkhead's operations, independent of the front end: what HTTP requests translate to.
//!
//! Owns: running each operation as a job that has claimed what it changes, on a blocking thread; keeping look-ups, steps of
//! holds and periodic checks independent of operations; and shutting down. A panic in an operation becomes [`Code::Internal`],
//! and the daemon continues.
//! Does not: decide anything about pools, volumes, tenants or devices (the engine does), or authenticate clients.

mod devices;
mod import;
mod measure;
mod pools;
mod tenants;
mod transfer;
mod trim;
mod volumes;
mod work;

use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use bulkhead_api::terms::Terms;
use bulkhead_api::wire::{HoldView, HostView, JobView, Observation};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId, in_order};
use bulkhead_core::health::{self, HOST};
use bulkhead_core::reason::Reason;
use bulkhead_sys::process;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub(crate) use self::work::StartedJob;
use crate::conditions::Conditions;
use crate::engine::Engine;
use crate::hold::RunningHolds;
use crate::jobs::{JobSpec, Running};
use crate::locks::{Claim, Held};
use crate::metrics;
use crate::observe::Observe;

/// Most observations that are answered at a time.
const MAX_OBSERVATIONS: usize = 4;

/// A periodic check that takes longer is stuck, on a tenant's slow I/O or on LVM: another one is started for the rest.
const STUCK_AFTER: Duration = Duration::from_secs(10);

/// Most periodic checks at a time. While all of them are stuck, nothing is checked.
const MAX_CHECKS: usize = 4;

/// The answer to a request for a stream.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// The plan, for a dry run.
    Planned(T),
    /// A job that waits for the stream.
    Stream(StartedJob),
}

/// The daemon's operations. Clones are the same service.
#[derive(Clone, Debug)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Engine,
    facts: serde_json::Value,
    observe: Arc<dyn Observe>,
    /// Where the daemon listens, for its workers.
    socket: PathBuf,
    running_holds: Mutex<RunningHolds>,
    /// Their state after the last step, which can be shown without waiting for the next one.
    hold_views: Mutex<Vec<HoldView>>,
    /// Limits observations: each one blocks a thread while the tracer starts.
    observations: Arc<Semaphore>,
    /// The start times of running periodic checks.
    checks: Mutex<Vec<Instant>>,
}

impl Service {
    /// On this engine, which should be reconciled. `facts` are the host's, for [`Service::host`]; `socket` is the path that the
    /// daemon listens on.
    #[must_use]
    pub fn new(engine: Engine, facts: serde_json::Value, observe: Arc<dyn Observe>, socket: PathBuf) -> Self {
        let holds = engine.holds().unwrap_or_else(|fault| {
            let evidence = format!("holds cannot be resumed: {fault}");
            let finding = Finding { evidence, ..Finding::from_fault(FindingId::RecordUnreadable, fault) };
            engine.host().conditions().set(finding);
            Vec::new()
        });
        let holds = RunningHolds::new(holds);
        let (hold_views, running_holds) = (Mutex::new(holds.views()), Mutex::new(holds));
        let (observations, checks) = (Arc::new(Semaphore::new(MAX_OBSERVATIONS)), Mutex::default());
        Self(Arc::new(Inner { engine, facts, observe, socket, running_holds, hold_views, observations, checks }))
    }

    /// Observes the host, with the longest waits of the last `waits`. Operations do not delay it.
    ///
    /// # Errors
    /// Those of [`Observe::observe`].
    pub async fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let permit = Arc::clone(&self.0.observations).acquire_owned().await;
        let observe = Arc::clone(&self.0.observe);
        // The thread is blocked until the answer, even if the client has disconnected.
        let seen = spawn_blocking(move || {
            let _permit = permit;
            observe.observe(waits)
        })
        .await;
        seen.unwrap_or_else(|error| Err(Fault::new(Code::Internal, "observation", error)))
    }

    /// The same, with the enforced shares.
    ///
    /// # Errors
    /// Those of [`Observe::observe`].
    pub async fn observation(&self, waits: Duration) -> Result<Observation, Fault> {
        let seen = self.observe(waits).await?;
        Ok(Observation { holds: self.hold_list(), ..seen })
    }

    /// The content of a scrape of metrics.
    pub(crate) async fn metrics(&self) -> metrics::Scrape {
        let holds = self.hold_list();
        // A failed listing is omitted until the next scrape.
        let list = |engine: &Engine| {
            (engine.heatmap().unwrap_or_default(), engine.room().unwrap_or_default(), engine.findings())
        };
        let (shared_reads, pools, mut findings) = self.read(move |engine| Ok(list(engine))).await.unwrap_or_default();
        findings.extend(self.service_findings());
        let problems = self.0.engine.problem_counts();
        let trimmed = self.0.engine.trimmed().clone();
        let observed = self.observe(Duration::ZERO).await;
        metrics::Scrape { observed, holds, shared_reads, pools, trimmed, problems, findings }
    }

    /// The daemon's version, and facts and findings about the host.
    ///
    /// # Errors
    /// None but a bug.
    pub async fn host(&self) -> Result<HostView, Fault> {
        let (version, facts) = (env!("CARGO_PKG_VERSION").to_owned(), self.0.facts.clone());
        let mut findings = self.read(|engine| Ok(engine.findings())).await?;
        findings.extend(self.0.observe.findings());
        findings.extend(self.service_findings());
        Ok(HostView { version, facts, findings: in_order(findings) })
    }

    /// The host's lasting conditions.
    pub(crate) fn conditions(&self) -> &Conditions {
        self.0.engine.host().conditions()
    }

    /// Findings about stuck periodic checks and failed holds.
    fn service_findings(&self) -> Vec<Finding> {
        let holds = self.hold_list();
        let failed = holds.iter().filter_map(|view| health::hold_finding(&view.hold.device, &view.state, &view.reason));
        self.stuck_checks().into_iter().chain(failed).collect()
    }

    fn stuck_checks(&self) -> Option<Finding> {
        let n_stuck = self.checks().iter().filter(|began| began.elapsed() >= STUCK_AFTER).count();
        let who =
            if n_stuck == 1 { "1 periodic check has".to_owned() } else { format!("{n_stuck} periodic checks have") };
        let evidence = format!("{who} not finished after {} s", STUCK_AFTER.as_secs());
        let finding = Finding::new(FindingId::CheckHeldUp, HOST, evidence);
        (n_stuck > 0).then(|| finding.reason(Reason::ChecksHeldUp))
    }

    /// Running and recently ended jobs.
    #[must_use]
    pub fn job_list(&self) -> Vec<JobView> {
        self.0.engine.shared.jobs.views()
    }

    /// One job.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn job_inspect(&self, id: u64) -> Result<JobView, Fault> {
        self.0.engine.shared.jobs.view(id)
    }

    /// One job, once it has ended, or `limit` is over.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn job_at_end(&self, id: u64, limit: Duration) -> Result<JobView, Fault> {
        self.0.engine.shared.jobs.view_at_end(id, limit).await
    }

    /// Cancels a job, which is undone as soon as possible. Idempotent.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn job_cancel(&self, id: u64) -> Result<JobView, Fault> {
        self.0.engine.shared.jobs.cancel(id)
    }

    /// Starts a periodic check for drift, on a thread of its own. Does nothing while the last one is running, unless that is
    /// stuck.
    pub fn tick(&self) {
        self.merge_layers();
        let began = Instant::now();
        {
            let mut checks = self.checks();
            if checks.len() >= MAX_CHECKS || checks.iter().any(|began| began.elapsed() < STUCK_AFTER) {
                return;
            }
            if !checks.is_empty() {
                tracing::warn!(held_up = checks.len(), "a periodic check is stuck: starting another one for the rest");
            }
            checks.push(began);
        }
        // Removed when the check ends, in whatever way.
        let check = Check { service: self.clone(), began };
        let Ok(running) = self.0.engine.shared.jobs.begin_check("check for drift") else { return };
        let (engine, service) = (self.0.engine.for_job(running.job()), self.clone());
        drop(spawn_blocking(move || {
            let _check = check;
            engine.tick();
            service.with_holds(|holds| holds.take_over_records(&engine));
            running.end(&Ok(()));
        }));
    }

    /// Merges layers, if any are due, on a thread of its own. Does nothing while the last merge is running.
    fn merge_layers(&self) {
        let Some(turn) = self.0.engine.try_start_merge() else { return };
        let Ok(running) = self.0.engine.shared.jobs.begin_check("merge layers") else { return };
        let engine = self.0.engine.for_job(running.job());
        drop(spawn_blocking(move || {
            let outcome = engine.merge_layers(turn);
            running.end(&outcome);
        }));
    }

    fn checks(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.0.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a step of all holds. Does nothing once closed.
    pub async fn hold_step(&self) {
        if self.hold_list().is_empty() {
            return;
        }
        let seen = self.observe(Duration::ZERO).await.map(Observation::into_activity);
        let Ok(running) = self.0.engine.shared.jobs.begin_check("hold shares") else { return };
        let (at_ns, service) = (process::monotonic_ns(), self.clone());
        let stepped = blocking(move || {
            let engine = service.0.engine.for_job(running.job());
            service.with_holds(|holds| holds.step(&engine, seen, at_ns));
            running.end(&Ok(()));
            Ok(())
        });
        if let Err(fault) = stepped.await {
            tracing::error!(%fault, "a step of a hold failed");
        }
    }

    /// Changes the holds, and updates the views of them. After a panic in a step, a hold at worst restarts with the next
    /// step.
    fn with_holds<T>(&self, work: impl FnOnce(&mut RunningHolds) -> T) -> T {
        let mut holds = self.0.running_holds.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut holds);
        *self.0.hold_views.lock().unwrap_or_else(PoisonError::into_inner) = holds.views();
        done
    }

    /// Refuses further operations, ends those that only wait, and resolves when all have ended. Interrupting the rest is safe:
    /// reconciliation completes or undoes them.
    pub async fn close(&self) {
        self.0.observe.stop();
        self.0.engine.shared.jobs.close().await;
    }

    /// Unmounts all volumes within `limit`, once closed; returns the errors of those that could not be unmounted.
    pub async fn release(&self, limit: Duration) -> Vec<Fault> {
        let engine = self.0.engine.clone();
        let released = spawn_blocking(move || engine.release(limit)).await;
        released.unwrap_or_else(|error| vec![Fault::new(Code::Internal, "volumes", error)])
    }

    /// Descriptions of the running jobs.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        self.0.engine.shared.jobs.running()
    }

    /// Reads something. Waits for no operation, and shows running ones in their current state.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let engine = self.0.engine.clone();
        blocking(move || read(&engine)).await
    }

    /// Carries out an operation once its claim is granted. From then on it is completed even if the client disconnects.
    async fn change<T: Send + 'static>(
        &self,
        terms: Terms,
        operation: String,
        claim: Claim,
        work: impl FnOnce(&Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.change_with(terms, operation, move |_| Ok(claim.clone()), work).await
    }

    /// The same where the claim has to be looked up. The look-up is repeated once the claim is granted: it may have changed meanwhile.
    async fn change_with<T: Send + 'static>(
        &self,
        terms: Terms,
        operation: String,
        find: impl Fn(&Engine) -> Result<Claim, Fault> + Send + Sync + 'static,
        work: impl FnOnce(&Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let spec = JobSpec { operation, request: terms.request, wait_limit: Some(terms.wait) };
        let running = self.0.engine.shared.jobs.begin(spec)?;
        let engine = self.0.engine.for_job(running.job());
        let held = match self.claim(&running, &engine, Arc::new(find)).await {
            Ok(held) => held,
            Err(fault) => {
                running.end::<()>(&Err(fault.clone()));
                return Err(fault);
            }
        };
        blocking(move || {
            let running = running.begun();
            let outcome = work(&engine);
            drop(held);
            running.end(&outcome);
            outcome
        })
        .await
    }

    async fn claim(
        &self,
        running: &Running,
        engine: &Engine,
        find: Arc<impl Fn(&Engine) -> Result<Claim, Fault> + Send + Sync + 'static>,
    ) -> Result<Held, Fault> {
        let find = || {
            let (engine, find) = (engine.clone(), Arc::clone(&find));
            blocking(move || find(&engine))
        };
        loop {
            let claim = find().await?;
            running.job().set_objects(claim.object_names());
            let held = tokio::select! {
                // Objects that are free are claimed at once, whatever the time limit.
                biased;
                held = self.0.engine.shared.locks.claim(running.job(), claim) => held,
                fault = running.job().wait_ended() => return Err(fault),
            };
            if held.covers(&find().await?) {
                return Ok(held);
            }
        }
    }
}

/// A running periodic check.
struct Check {
    service: Service,
    began: Instant,
}

impl Drop for Check {
    fn drop(&mut self) {
        let mut checks = self.service.checks();
        if let Some(at) = checks.iter().position(|began| *began == self.began) {
            checks.swap_remove(at);
        }
    }
}

/// Runs blocking work on a thread of its own; a panic in it becomes an error.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    spawn_blocking(work).await.unwrap_or_else(|error| {
        let cause = error.try_into_panic().map_or_else(|error| error.to_string(), |panic| panic_message(&*panic));
        tracing::error!(%cause, "an operation panicked");
        Err(Fault::new(Code::Internal, "daemon", format!("the operation was aborted by a bug in Bulkhead: {cause}"))
            .hint("examine the object with `inspect` before trying again, and report this with the daemon's log"))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests;
