//! Jobs that workers do: from the claim to the end, whether or not who asked for one is still there.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::wire::JobResult;
use bulkhead_core::work::Outcome;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Service, Terms};
use crate::engine::Engine;
use crate::jobs::{Asked, Running};
use crate::locks::{Claim, Held};
use crate::work::{Errand, Event, Stream, Working, went_away};

/// How long a client may take to take the answer that its connection is a stream now.
const ARRIVES: Duration = Duration::from_secs(30);

/// A job whose worker is ready, and waits for its stream. Without one it is cancelled.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) job: u64,
    stream: oneshot::Sender<Stream>,
}

impl Begun {
    /// Has it begin.
    pub(crate) fn stream(self, stream: Stream) {
        // The job may have been cancelled meanwhile; then the stream ends here.
        drop(self.stream.send(stream));
    }
}

/// What a job's thread is told and tells.
struct Ends {
    ready: Option<oneshot::Sender<Result<(), Fault>>>,
    stream: oneshot::Receiver<Stream>,
}

impl Service {
    /// Begins a job that a worker does, and returns when that is ready.
    ///
    /// # Errors
    /// Those of the errand; `Unavailable` when the daemon stops, `InUse` when its time to wait is over.
    pub(crate) async fn begin(&self, errand: impl Errand, terms: Terms) -> Result<Begun, Fault> {
        let asked = Asked { operation: errand.operation(), request: terms.request, patience: Some(terms.wait) };
        let running = self.0.engine.shared.jobs.begin(asked)?;
        let engine = self.0.engine.for_job(running.job());
        let claim = errand.payer().into_iter().fold(errand.claim(), Claim::tenant_stays);
        let held = match self.claim_now(&running, &engine, claim).await {
            Ok(held) => held,
            Err(fault) => {
                running.end::<()>(&Err(fault.clone()));
                return Err(fault);
            }
        };
        let (ready, is_ready) = oneshot::channel();
        let (stream, comes) = oneshot::channel();
        let (service, runtime, job) = (self.clone(), Handle::current(), running.job().id());
        drop(spawn_blocking(move || {
            let running = running.begun();
            let mut ends = Ends { ready: Some(ready), stream: comes };
            let outcome = service.attend(&runtime, &engine, &running, &errand, held, &mut ends);
            running.end_with(outcome.clone().map(Some));
            if let (Some(ready), Err(fault)) = (ends.ready, outcome) {
                // Who asked may be gone.
                drop(ready.send(Err(fault)));
            }
        }));
        is_ready.await.unwrap_or_else(|_| {
            Err(Fault::new(Code::Internal, format!("job {job}"), "it was aborted by a bug in Bulkhead"))
        })?;
        Ok(Begun { job, stream })
    }

    /// On a thread that waits for the worker to its end.
    fn attend(
        &self,
        runtime: &Handle,
        engine: &Engine,
        running: &Running,
        errand: &impl Errand,
        held: Held,
        ends: &mut Ends,
    ) -> Result<JobResult, Fault> {
        let job = running.job();
        let mut working = Working::start(engine, job, errand)?;
        // What comes in or goes out through a stream is open.
        let held = Some(held).filter(|_| !errand.has_stream());
        let is_heard = ends.ready.take().is_some_and(|ready| ready.send(Ok(())).is_ok());
        let begun = match errand.has_stream() {
            true => {
                let stream = if is_heard { runtime.block_on(timeout(ARRIVES, &mut ends.stream)).ok() } else { None };
                let stream = stream.and_then(Result::ok).ok_or_else(|| went_away(job));
                stream.and_then(|stream| working.hand_over(stream))
            }
            false => Ok(()),
        };
        let outcome = begun.and_then(|()| self.converse(runtime, engine, running, errand, &mut working));
        // It has nothing open any more.
        drop(working);
        let outcome = outcome.and_then(|outcome| match errand.last_step() {
            None => errand.finish(engine, outcome),
            Some(step) => {
                let _held = match held {
                    Some(held) => held,
                    None => runtime.block_on(self.claim_again(running, engine, errand, &step))?,
                };
                errand.finish(engine, outcome)
            }
        });
        if outcome.as_ref().is_err_and(|fault| errand.leaves_something(fault)) {
            let held = runtime.block_on(self.claim_now(running, engine, errand.claim()));
            if let Err(fault) = held.and_then(|_held| errand.give_up(engine)) {
                tracing::warn!(job = job.id(), %fault, "what it left is discarded later");
            }
        }
        outcome
    }

    /// Does what the worker asks for, until it is done.
    fn converse(
        &self,
        runtime: &Handle,
        engine: &Engine,
        running: &Running,
        errand: &impl Errand,
        working: &mut Working<'_>,
    ) -> Result<Outcome, Fault> {
        loop {
            match working.next()? {
                Event::Done(outcome) => return Ok(outcome),
                Event::Staged(staged) => {
                    let held =
                        runtime.block_on(self.claim_again(running, engine, errand, "create its staging file"))?;
                    let order = errand.staged(engine, &staged)?;
                    drop(held);
                    working.tell(&order)?;
                }
            }
        }
    }

    /// Claims what it did not need meanwhile.
    async fn claim_again(
        &self,
        running: &Running,
        engine: &Engine,
        errand: &impl Errand,
        step: &str,
    ) -> Result<Held, Fault> {
        let job = running.job();
        job.goes_on()?;
        // What was moved is a change, and what follows has its own time to wait.
        job.has_changed();
        job.begin_step(&step, false)?;
        self.claim_now(running, engine, errand.claim()).await
    }

    async fn claim_now(&self, running: &Running, engine: &Engine, claim: Claim) -> Result<Held, Fault> {
        self.claim(running, engine, Arc::new(move |_: &Engine| Ok(claim.clone()))).await
    }
}
