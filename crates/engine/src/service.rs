//! The operations of Bulkhead, without a front end: what HTTP, and every other door, translates to.
//!
//! Owns: that each operation is a job which has claimed what it changes, on a blocking thread; that look-ups, steps of holding
//! shares and the periodic check wait for no operation; and how all of it ends. A panic in an operation becomes [`Code::Internal`],
//! and the daemon goes on.
//! Does not: decide anything about pools, volumes, tenants or devices (the engine does), or know who asks.

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
use bulkhead_sys::bpf;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

pub(crate) use self::work::StartedJob;
use crate::conditions::Conditions;
use crate::engine::Engine;
use crate::hold::Holder;
use crate::jobs::{JobSpec, Running};
use crate::locks::{Claim, Held};
use crate::metrics;
use crate::observe::Observe;

/// Most questions about what goes on that are answered at a time.
const MAX_OBSERVATIONS: usize = 4;

/// A periodic check that takes longer is held up, by a tenant whose I/O is slow or by LVM: another one looks after the rest.
const HELD_UP: Duration = Duration::from_secs(10);

/// Most periodic checks at a time. When all of them are held up, nothing is looked after until one goes on.
const MAX_CHECKS: usize = 4;

/// What answers a request for a stream.
#[derive(Debug)]
pub(crate) enum Reply<T> {
    /// What would be done: it was a dry run.
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
    holder: Mutex<Holder>,
    /// As they were after the last step: who wants to see them does not wait for one.
    holds: Mutex<Vec<HoldView>>,
    /// A question blocks a thread while the observation starts: not more of them than this.
    observations: Arc<Semaphore>,
    /// When the periodic checks began that run.
    checks: Mutex<Vec<Instant>>,
}

impl Service {
    /// On this engine, which should be reconciled. `facts` is what [`Service::host`] tells about the host, `socket` where the
    /// daemon listens.
    #[must_use]
    pub fn new(engine: Engine, facts: serde_json::Value, observe: Arc<dyn Observe>, socket: PathBuf) -> Self {
        let holds = engine.holds().unwrap_or_else(|fault| {
            let evidence = format!("holds cannot be resumed: {fault}");
            let finding = Finding { evidence, ..Finding::of_fault(FindingId::RecordUnreadable, fault) };
            engine.host().conditions().set(finding);
            Vec::new()
        });
        let holder = Holder::new(holds);
        let (holds, holder) = (Mutex::new(holder.views()), Mutex::new(holder));
        let (observations, checks) = (Arc::new(Semaphore::new(MAX_OBSERVATIONS)), Mutex::default());
        Self(Arc::new(Inner { engine, facts, observe, socket, holder, holds, observations, checks }))
    }

    /// What goes on on the host, with the longest waits of the last `waits`; operations do not hold it up.
    ///
    /// # Errors
    /// Those of [`Observe::observe`].
    pub async fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let permit = Arc::clone(&self.0.observations).acquire_owned().await;
        let observe = Arc::clone(&self.0.observe);
        // The thread is blocked until there is an answer, also when nobody waits for it any more.
        let seen = spawn_blocking(move || {
            let _permit = permit;
            observe.observe(waits)
        })
        .await;
        seen.unwrap_or_else(|error| Err(Fault::new(Code::Internal, "observation", error)))
    }

    /// The same, with the shares that are held.
    ///
    /// # Errors
    /// Those of [`Observe::observe`].
    pub async fn observation(&self, waits: Duration) -> Result<Observation, Fault> {
        let seen = self.observe(waits).await?;
        Ok(Observation { holds: self.hold_list(), ..seen })
    }

    /// What a scrape of metrics shows.
    pub(crate) async fn metrics(&self) -> metrics::Seen {
        let holds = self.hold_list();
        // What cannot be listed now is there at the next scrape.
        let list = |engine: &Engine| {
            (engine.heatmap().unwrap_or_default(), engine.room().unwrap_or_default(), engine.findings())
        };
        let (heat, pools, mut findings) = self.read(move |engine| Ok(list(engine))).await.unwrap_or_default();
        findings.extend(self.service_findings());
        let problems = self.0.engine.problem_counts();
        let trimmed = self.0.engine.trimmed().clone();
        let observed = self.observe(Duration::ZERO).await;
        metrics::Seen { observed, holds, heat, pools, trimmed, problems, findings }
    }

    /// What the daemon is and sees.
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

    /// What lasts on the host.
    pub(crate) fn conditions(&self) -> &Conditions {
        self.0.engine.host().conditions()
    }

    /// Periodic checks that have not ended for a while, and holds that ended with a fault.
    fn service_findings(&self) -> Vec<Finding> {
        let holds = self.hold_list();
        let failed = holds.iter().filter_map(|view| health::of_hold(&view.hold.device, &view.state, &view.reason));
        self.held_up_checks().into_iter().chain(failed).collect()
    }

    fn held_up_checks(&self) -> Option<Finding> {
        let n_held_up = self.checks().iter().filter(|began| began.elapsed() >= HELD_UP).count();
        let evidence = format!("{n_held_up} periodic checks have not finished after {} s", HELD_UP.as_secs());
        let finding = Finding::new(FindingId::CheckHeldUp, HOST, evidence);
        (n_held_up > 0).then(|| finding.reason(Reason::ChecksHeldUp))
    }

    /// The jobs that run, and those that ended lately.
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

    /// Has a job undone, as soon as that is possible. Idempotent.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn job_cancel(&self, id: u64) -> Result<JobView, Fault> {
        self.0.engine.shared.jobs.cancel(id)
    }

    /// Begins to look after what may drift, on a thread of its own; does nothing while that goes on from the last time, unless that
    /// is held up.
    pub fn tick(&self) {
        self.merge_layers();
        let began = Instant::now();
        {
            let mut checks = self.checks();
            if checks.len() >= MAX_CHECKS || checks.iter().any(|began| began.elapsed() < HELD_UP) {
                return;
            }
            if !checks.is_empty() {
                tracing::warn!(
                    held_up = checks.len(),
                    "a periodic check is held up: another one takes care of the rest"
                );
            }
            checks.push(began);
        }
        // Gone when it ends, however that is.
        let check = Check { service: self.clone(), began };
        let Ok(running) = self.0.engine.shared.jobs.begin_check("check for drift") else { return };
        let engine = self.0.engine.for_job(running.job());
        drop(spawn_blocking(move || {
            let _check = check;
            engine.tick();
            running.end(&Ok(()));
        }));
    }

    /// Merges layers, on a thread of its own, where there may be any to merge; does nothing while that goes on from the last time.
    fn merge_layers(&self) {
        let Some(turn) = self.0.engine.turn_to_merge() else { return };
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

    /// Makes a step of all holds, if there are any; does nothing once closed.
    pub async fn hold_step(&self) {
        if self.hold_list().is_empty() {
            return;
        }
        let seen = self.observe(Duration::ZERO).await.map(Observation::into_activity);
        let Ok(running) = self.0.engine.shared.jobs.begin_check("hold shares") else { return };
        let (at_ns, service) = (bpf::now_ns(), self.clone());
        let stepped = blocking(move || {
            let engine = service.0.engine.for_job(running.job());
            service.with_holder(|holder| holder.step(&engine, seen, at_ns));
            running.end(&Ok(()));
            Ok(())
        });
        if let Err(fault) = stepped.await {
            tracing::error!(%fault, "a step of a hold failed");
        }
    }

    /// Does something to the holds, and shows them as they are then. A panic in a step leaves at worst a hold that begins anew with
    /// the next one.
    fn with_holder<T>(&self, work: impl FnOnce(&mut Holder) -> T) -> T {
        let mut holder = self.0.holder.lock().unwrap_or_else(PoisonError::into_inner);
        let done = work(&mut holder);
        *self.0.holds.lock().unwrap_or_else(PoisonError::into_inner) = holder.views();
        done
    }

    /// Begins no further operation, has those give up that only wait, and resolves when all have ended. What cannot end is safe to be
    /// cut off: reconcile completes or undoes it.
    pub async fn close(&self) {
        self.0.observe.stop();
        self.0.engine.shared.jobs.close().await;
    }

    /// Unmounts all volumes, for at most so long, once closed; returns why the rest could not be.
    pub async fn release(&self, limit: Duration) -> Vec<Fault> {
        let engine = self.0.engine.clone();
        let released = spawn_blocking(move || engine.release(limit)).await;
        released.unwrap_or_else(|error| vec![Fault::new(Code::Internal, "volumes", error)])
    }

    /// What still runs, as words.
    #[must_use]
    pub fn running(&self) -> Vec<String> {
        self.0.engine.shared.jobs.running()
    }

    /// Looks at something. Waits for no operation, and shows one that is under way as far as it is.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let engine = self.0.engine.clone();
        blocking(move || read(&engine)).await
    }

    /// Carries out an operation as soon as it has what it changes. Once begun it is finished, also when the one who asked has gone.
    async fn change<T: Send + 'static>(
        &self,
        terms: Terms,
        operation: String,
        claim: Claim,
        work: impl FnOnce(&Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.change_with(terms, operation, move |_| Ok(claim.clone()), work).await
    }

    /// The same where it has to be looked up what it changes. That is done again when it has it all: it may have changed meanwhile.
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
                // What nobody has is had at once, however little time there is.
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

/// A periodic check that runs.
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

/// Runs something that blocks on a thread of its own; a panic in it is a fault.
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
