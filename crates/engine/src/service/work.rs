//! Jobs with workers, from the claim to the end, whether or not their client is still connected.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_api::wire::JobResult;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::work::Outcome;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Service, Terms};
use crate::engine::Engine;
use crate::jobs::{JobSpec, Running};
use crate::locks::{Claim, Held};
use crate::work::{Event, RunningWorker, Stream, WorkerJob, client_disconnected};

/// How long a client may take to accept the upgrade of its connection to a stream.
const STREAM_LIMIT: Duration = Duration::from_secs(30);

/// A job whose worker is ready and waits for its stream. Dropping this cancels it.
#[derive(Debug)]
pub(crate) struct StartedJob {
    pub(crate) job: u64,
    stream: oneshot::Sender<Stream>,
}

impl StartedJob {
    /// Starts the transfer.
    pub(crate) fn stream(self, stream: Stream) {
        // The job may have been cancelled meanwhile; then the stream ends here.
        drop(self.stream.send(stream));
    }
}

/// The channels between a job's thread and the request.
struct Channels {
    ready: Option<oneshot::Sender<Result<(), Fault>>>,
    stream: oneshot::Receiver<Stream>,
}

impl Service {
    /// Starts a job with a worker, and returns when the worker is ready.
    ///
    /// # Errors
    /// Those of the job; `Unavailable` when the daemon is stopping, `InUse` when its time limit is reached.
    pub(crate) async fn start_worker_job(&self, worker_job: impl WorkerJob, terms: Terms) -> Result<StartedJob, Fault> {
        let spec = JobSpec { operation: worker_job.operation(), request: terms.request, wait_limit: Some(terms.wait) };
        let running = self.0.engine.shared.jobs.begin(spec)?;
        let engine = self.0.engine.for_job(running.job());
        let claim = worker_job.payer().into_iter().fold(worker_job.claim(), Claim::tenant_stays);
        let held = match self.claim_objects(&running, &engine, claim).await {
            Ok(held) => held,
            Err(fault) => {
                running.end::<()>(&Err(fault.clone()));
                return Err(fault);
            }
        };
        let (ready, is_ready) = oneshot::channel();
        let (stream, stream_receiver) = oneshot::channel();
        let (service, runtime, job) = (self.clone(), Handle::current(), running.job().id());
        drop(spawn_blocking(move || {
            let running = running.begun();
            let mut channels = Channels { ready: Some(ready), stream: stream_receiver };
            let outcome = service.run_worker(&runtime, &engine, &running, &worker_job, held, &mut channels);
            running.end_with(outcome.clone().map(Some));
            if let (Some(ready), Err(fault)) = (channels.ready, outcome) {
                // The client may have disconnected.
                drop(ready.send(Err(fault)));
            }
        }));
        is_ready.await.unwrap_or_else(|_| {
            Err(Fault::new(Code::Internal, format!("job {job}"), "it was aborted by a bug in Bulkhead"))
        })?;
        Ok(StartedJob { job, stream })
    }

    /// Runs the job on a thread that waits for the worker until it exits.
    fn run_worker(
        &self,
        runtime: &Handle,
        engine: &Engine,
        running: &Running,
        worker_job: &impl WorkerJob,
        held: Held,
        channels: &mut Channels,
    ) -> Result<JobResult, Fault> {
        let job = running.job();
        let mut worker = RunningWorker::start(engine, job, worker_job)?;
        // The worker has opened its files.
        let held = Some(held).filter(|_| !worker_job.has_stream());
        let is_awaited = channels.ready.take().is_some_and(|ready| ready.send(Ok(())).is_ok());
        let begun = match worker_job.has_stream() {
            true => {
                let stream =
                    if is_awaited { runtime.block_on(timeout(STREAM_LIMIT, &mut channels.stream)).ok() } else { None };
                let stream = stream.and_then(Result::ok).ok_or_else(|| client_disconnected(job));
                stream.and_then(|stream| worker.send_stream(stream))
            }
            false => Ok(()),
        };
        let outcome = begun.and_then(|()| self.drive_worker(runtime, engine, running, worker_job, &mut worker));
        // The worker has closed its files.
        drop(worker);
        let outcome = outcome.and_then(|outcome| match worker_job.last_step() {
            None => worker_job.finish(engine, outcome),
            Some(step) => {
                let _held = match held {
                    Some(held) => held,
                    None => runtime.block_on(self.reclaim(running, engine, worker_job, &step))?,
                };
                worker_job.finish(engine, outcome)
            }
        });
        if outcome.as_ref().is_err_and(|fault| worker_job.needs_cleanup(fault)) {
            let held = runtime.block_on(self.claim_objects(running, engine, worker_job.claim()));
            if let Err(fault) = held.and_then(|_held| worker_job.clean_up(engine)) {
                tracing::warn!(job = job.id(), %fault, "cannot discard its leftovers now");
            }
        }
        outcome
    }

    /// Answers the worker until it is done.
    fn drive_worker(
        &self,
        runtime: &Handle,
        engine: &Engine,
        running: &Running,
        worker_job: &impl WorkerJob,
        worker: &mut RunningWorker<'_>,
    ) -> Result<Outcome, Fault> {
        loop {
            match worker.next_event()? {
                Event::Done(outcome) => return Ok(outcome),
                Event::Staged(staged) => {
                    let held =
                        runtime.block_on(self.reclaim(running, engine, worker_job, "create its staging file"))?;
                    let order = worker_job.staged(engine, &staged)?;
                    drop(held);
                    worker.send_order(&order)?;
                }
            }
        }
    }

    /// Claims the job's objects again, which were released while the worker ran.
    async fn reclaim(
        &self,
        running: &Running,
        engine: &Engine,
        worker_job: &impl WorkerJob,
        step: &str,
    ) -> Result<Held, Fault> {
        let job = running.job();
        job.check_cancelled()?;
        // The transfer counts as a change, so that the next step has its own time limit.
        job.mark_changed();
        job.begin_step(&step, false)?;
        self.claim_objects(running, engine, worker_job.claim()).await
    }

    async fn claim_objects(&self, running: &Running, engine: &Engine, claim: Claim) -> Result<Held, Fault> {
        self.claim(running, engine, Arc::new(move |_: &Engine| Ok(claim.clone()))).await
    }
}
