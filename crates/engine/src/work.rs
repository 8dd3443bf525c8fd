//! Work that processes of their own do for a job (`bulkhead_core::work`): who pays for it, what is said, and how it ends.
//!
//! Owns: the cgroup of work that no tenant pays for, and the daemon's side of the conversation with a worker. All of it is on the thread
//! that started the worker, which ends with that thread.
//! Does not: know what a worker does, or how a process is started ([`crate::host::Host::start_worker`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::PoisonError;
use std::time::Duration;

use bulkhead_api::wire::JobResult;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{
    CGROUP, MAX_MESSAGE_BYTES, Order, Outcome, Report, Staged, Task, WorkSpec, make_cgroup, remove_cgroup,
};
use bulkhead_sys::{packet, worker};

use crate::engine::Engine;
use crate::host::Worker;
use crate::jobs::Job;
use crate::locks::Claim;

/// How long a worker that is to end has for that, before it is killed.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// A job that a worker does.
pub(crate) trait WorkerJob: Send + Sync + 'static {
    /// As a sentence without a subject.
    fn operation(&self) -> String;

    /// What is changed before the worker is ready, and after it is done. Meanwhile others may change it.
    fn claim(&self) -> Claim;

    /// The tenant that was named to pay, which has to stay until the worker is ready.
    fn payer(&self) -> Option<&Name> {
        None
    }

    /// Does what has to be done before, and says what the worker is to do and which tenant pays.
    ///
    /// # Errors
    /// Why it cannot be done at all.
    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault>;

    /// Whether a client has a stream for it. Without one, what is claimed stays claimed until its end.
    fn has_stream(&self) -> bool {
        true
    }

    /// How long its worker has for its end, before it is killed.
    fn exit_limit(&self) -> Duration {
        EXIT_LIMIT
    }

    /// Whether it ends with its client, also when that has said all.
    fn ends_with_client(&self) -> bool {
        false
    }

    /// Does what has to be done before what is unpacked can be imported.
    ///
    /// # Errors
    /// Why it cannot be.
    fn staged(&self, _engine: &Engine, staged: &Staged) -> Result<Order, Fault> {
        Err(unexpected(&Report::Staged(*staged)))
    }

    /// Whether it leaves something that is of no use when it fails in this way.
    fn needs_cleanup(&self, _fault: &Fault) -> bool {
        false
    }

    /// Gives that up.
    ///
    /// # Errors
    /// Why it cannot be now.
    fn clean_up(&self, _engine: &Engine) -> Result<(), Fault> {
        Ok(())
    }

    /// What is left to do when the worker is done; `None` when that is nothing.
    fn last_step(&self) -> Option<String>;

    /// Does that.
    ///
    /// # Errors
    /// Those of the operation.
    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault>;
}

/// A client's connection, which is a stream from now on.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: OwnedFd,
    /// What was read of it before it became one.
    pub(crate) ahead: Vec<u8>,
}

/// Who pays for a worker, until this is dropped.
struct Payer {
    engine: Engine,
    cgroup: String,
    /// Whether it is the cgroup of work that no tenant pays for.
    is_shared: bool,
}

impl Engine {
    /// Refuses a tenant that was named to pay for work and cannot.
    ///
    /// # Errors
    /// `NotFound`; `InUse` for one that is being removed.
    pub(crate) fn check_can_pay(&self, named: Option<&Name>) -> Result<(), Fault> {
        let Some(name) = named else { return Ok(()) };
        if self.tenant(name)?.removing {
            return Err(Fault::new(Code::InUse, format!("tenant {name}"), "it is being removed")
                .hint("name another tenant, or none"));
        }
        Ok(())
    }

    /// Has a tenant pay, or nobody.
    fn payer(&self, tenant: Option<&Name>) -> Result<Payer, Fault> {
        let engine = self.uncounted();
        if let Some(tenant) = tenant {
            return Ok(Payer { engine, cgroup: slices::server(tenant), is_shared: false });
        }
        let mut unpaid = self.shared.workers_without_payer.lock().unwrap_or_else(PoisonError::into_inner);
        if *unpaid == 0 {
            engine.executor.run_steps(make_cgroup(&self.host().weight_files()), false)?;
        }
        *unpaid += 1;
        Ok(Payer { engine, cgroup: CGROUP.to_owned(), is_shared: true })
    }

    /// Removes the cgroup of work that no tenant pays for: a daemon that was killed leaves it.
    pub(crate) fn remove_shared_cgroup(&self) {
        let is_last = self.tenants().is_ok_and(|tenants| tenants.is_empty());
        for action in remove_cgroup(is_last) {
            // It may still have the process of a worker that is being killed: then the next one finds it.
            if let Err(fault) = self.host().apply(&action, &Job::internal()) {
                tracing::debug!(step = %action, %fault, "not now");
                break;
            }
        }
    }
}

impl Drop for Payer {
    fn drop(&mut self) {
        if !self.is_shared {
            return;
        }
        let mut unpaid = self.engine.shared.workers_without_payer.lock().unwrap_or_else(PoisonError::into_inner);
        *unpaid -= 1;
        if *unpaid == 0 {
            self.engine.remove_shared_cgroup();
        }
    }
}

/// What a worker comes to.
pub(crate) enum Event {
    Staged(Staged),
    Done(Outcome),
}

/// A worker at work.
pub(crate) struct RunningWorker<'a> {
    worker: Box<dyn Worker>,
    job: &'a Job,
    /// By which it is stopped: who reads or writes it, comes to its end.
    stream: Option<OwnedFd>,
    ends_with_client: bool,
    exit_limit: Duration,
    buffer: Vec<u8>,
    /// Dropped after the worker.
    _payer: Payer,
}

impl<'a> RunningWorker<'a> {
    /// Does what has to be done before, starts the worker, and waits until it is ready.
    ///
    /// # Errors
    /// Those of the errand; what keeps it from its work; the job's when that is not to go on.
    pub(crate) fn start(engine: &Engine, job: &'a Job, worker_job: &impl WorkerJob) -> Result<Self, Fault> {
        engine.check_can_pay(worker_job.payer())?;
        let (task, tenant) = worker_job.prepare(engine)?;
        let payer = engine.payer(tenant.as_ref())?;
        let worker = engine.host().start_worker(&WorkSpec { cgroup: payer.cgroup.clone(), task })?;
        let ends_with_client = worker_job.ends_with_client();
        let mut running = Self {
            worker,
            job,
            stream: None,
            ends_with_client,
            exit_limit: worker_job.exit_limit(),
            buffer: vec![0; MAX_MESSAGE_BYTES],
            _payer: payer,
        };
        match running.receive_report()? {
            Report::Ready => Ok(running),
            Report::Failed(fault) => Err(fault),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives it its stream.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn send_stream(&mut self, stream: Stream) -> Result<(), Fault> {
        let order = Order::Stream { ahead_bytes: Bytes(stream.ahead.len() as u64) };
        let handed = serde_json::to_vec(&order).map_err(std::io::Error::from).and_then(|order| {
            packet::send(self.worker.control(), &order, Some(stream.socket.as_fd()))?;
            stream.ahead.chunks(MAX_MESSAGE_BYTES).try_for_each(|part| packet::send(self.worker.control(), part, None))
        });
        self.stream = Some(stream.socket);
        // What it says last, or how it ended, tells more than that it cannot be told anything.
        handed.or_else(|_| self.next_event().map(drop))
    }

    /// Tells it to go on.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn send_order(&mut self, order: &Order) -> Result<(), Fault> {
        let sent = serde_json::to_vec(order)
            .map_err(std::io::Error::from)
            .and_then(|order| packet::send(self.worker.control(), &order, None));
        sent.or_else(|_| self.next_event().map(drop))
    }

    /// Waits until it is done, or asks something.
    ///
    /// # Errors
    /// Its own; the job's when that is not to go on; `Internal` when it ends without a word.
    pub(crate) fn next_event(&mut self) -> Result<Event, Fault> {
        let outcome = loop {
            match self.receive_report()? {
                Report::Progress(progress) => self.job.set_progress(progress),
                Report::Step(steps, doing) => self.job.set_step(steps, doing),
                Report::Figure(figure) => self.job.add_figure(figure),
                Report::Staged(staged) => return Ok(Event::Staged(staged)),
                Report::Done(outcome) => break Ok(Event::Done(outcome)),
                Report::Failed(fault) => break Err(fault),
                other @ Report::Ready => break Err(unexpected(&other)),
            }
        };
        // It has nothing more to do but to end; what has locks must not have them any more when its job has ended.
        self.worker.ended(EXIT_LIMIT);
        outcome
    }

    fn receive_report(&mut self) -> Result<Report, Fault> {
        loop {
            if let Err(fault) = self.job.check_cancelled().and_then(|()| self.check_client()) {
                self.stop();
                return Err(fault);
            }
            match packet::receive(self.worker.control(), &mut self.buffer) {
                Ok((packet @ [_, ..], _)) => {
                    return serde_json::from_slice(packet).map_err(|error| {
                        Fault::new(Code::Internal, "worker", format!("its message cannot be parsed ({error})"))
                    });
                }
                Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock) => {}
                Ok(_) | Err(_) => return Err(self.exit_fault()),
            }
        }
    }

    fn check_client(&self) -> Result<(), Fault> {
        match &self.stream {
            Some(stream) if self.ends_with_client && worker::is_closed(stream) => Err(client_disconnected(self.job)),
            _ => Ok(()),
        }
    }

    /// Has it end: by its stream, so that it notes how far it is, by a signal, and in the end by force.
    fn stop(&mut self) {
        if let Some(stream) = self.stream.take() {
            worker::end_stream(&stream);
            if self.worker.ended(EXIT_LIMIT).is_some() {
                return;
            }
        }
        self.worker.terminate();
        self.worker.ended(self.exit_limit);
    }

    fn exit_fault(&mut self) -> Fault {
        let how = self.worker.ended(EXIT_LIMIT).unwrap_or_else(|| "it is still running".to_owned());
        Fault::new(Code::Internal, "worker", format!("the worker process exited without a report ({how})"))
            .hint("the daemon's log may say why; try again")
    }
}

/// That nobody is there any more for whom it would be done.
pub(crate) fn client_disconnected(job: &Job) -> Fault {
    Fault::new(Code::Cancelled, format!("job {}", job.id()), "the client disconnected")
}

fn unexpected(report: &Report) -> Fault {
    Fault::new(Code::Internal, "worker", format!("it sent {report:?} out of turn"))
}
