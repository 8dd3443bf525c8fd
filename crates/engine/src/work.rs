//! The daemon's side of workers, processes that do a job's work (`bulkhead_core::work`): their cgroups, the protocol, and their end.
//!
//! Owns: the cgroup of workers that no tenant pays for, and the exchange of messages with a worker. All of it runs on the thread that
//! started the worker; the worker ends with that thread.
//! Does not: know what a worker does, or how a process is started ([`crate::host::Host::start_worker`]).

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::PoisonError;
use std::time::Duration;

use bulkhead_api::wire::JobResult;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{
    MAX_MESSAGE_BYTES, Order, Outcome, Report, Staged, Task, WorkSpec, make_cgroup, remove_cgroup,
};
use bulkhead_sys::{packet, worker};

use crate::engine::Engine;
use crate::host::Worker;
use crate::jobs::Job;
use crate::locks::Claim;

/// How long a worker has to exit before it is killed.
const EXIT_LIMIT: Duration = Duration::from_secs(5);

/// A job whose work a worker does.
pub(crate) trait WorkerJob: Send + Sync + 'static {
    /// An imperative, as `bulkhead job ls` shows it.
    fn operation(&self) -> String;

    /// What is changed before the worker is ready, and after it is done. In between, other jobs may change it.
    fn claim(&self) -> Claim;

    /// The tenant that the request names as payer; it has to stay until the worker is ready.
    fn payer(&self) -> Option<&Name> {
        None
    }

    /// Prepares the work, and returns the worker's task and the tenant that pays.
    ///
    /// # Errors
    /// Why the job is impossible.
    fn prepare(&self, engine: &Engine) -> Result<(Task, Option<Name>), Fault>;

    /// Whether a client provides a stream. Without one, the claim is kept until the job ends.
    fn has_stream(&self) -> bool {
        true
    }

    /// How long its worker has to exit before it is killed.
    fn exit_limit(&self) -> Duration {
        EXIT_LIMIT
    }

    /// Whether it ends when its client disconnects, even after the stream is complete.
    fn ends_with_client(&self) -> bool {
        false
    }

    /// Prepares the import of what the worker has unpacked, and returns the order to go on.
    ///
    /// # Errors
    /// Why it cannot be prepared.
    fn staged(&self, _engine: &Engine, staged: &Staged) -> Result<Order, Fault> {
        Err(unexpected(&Report::Staged(*staged)))
    }

    /// Whether it leaves something to clean up when it fails with this error.
    fn needs_cleanup(&self, _fault: &Fault) -> bool {
        false
    }

    /// Cleans up.
    ///
    /// # Errors
    /// Why that fails now.
    fn clean_up(&self, _engine: &Engine) -> Result<(), Fault> {
        Ok(())
    }

    /// The step that follows the worker's part, if there is one.
    fn last_step(&self) -> Option<String>;

    /// Performs the last step.
    ///
    /// # Errors
    /// Those of the operation.
    fn finish(&self, engine: &Engine, outcome: Outcome) -> Result<JobResult, Fault>;
}

/// A client's connection, upgraded to a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: OwnedFd,
    /// Bytes read before the upgrade.
    pub(crate) ahead: Vec<u8>,
}

/// The payer of a worker, until this is dropped.
struct Payer {
    engine: Engine,
    cgroup: CgroupPath,
    /// Whether the cgroup is that of workers without a paying tenant.
    is_shared: bool,
}

impl Engine {
    /// Refuses a named payer that cannot pay.
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

    /// The payer: a tenant, or the shared cgroup of workers without one.
    fn payer(&self, tenant: Option<&Name>) -> Result<Payer, Fault> {
        let engine = self.without_fault_injection();
        if let Some(tenant) = tenant {
            return Ok(Payer { engine, cgroup: slices::server(tenant), is_shared: false });
        }
        let mut unpaid = self.shared.workers_without_payer.lock().unwrap_or_else(PoisonError::into_inner);
        if *unpaid == 0 {
            engine.executor.run_steps(make_cgroup(&self.host().weight_files()), false)?;
        }
        *unpaid += 1;
        Ok(Payer { engine, cgroup: slices::work(), is_shared: true })
    }

    /// Removes the cgroup of workers without a paying tenant, which a killed daemon leaves behind.
    pub(crate) fn remove_shared_cgroup(&self) {
        let is_last = self.tenants().is_ok_and(|tenants| tenants.is_empty());
        for action in remove_cgroup(is_last) {
            // A worker that is being killed may still be in it; then the next call removes it.
            if let Err(fault) = self.host().apply(&action, &Job::internal()) {
                tracing::debug!(step = %action, %fault, "not removed now");
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

/// A message of a worker that needs an answer, or its result.
pub(crate) enum Event {
    Staged(Staged),
    Done(Outcome),
}

/// A running worker.
pub(crate) struct RunningWorker<'a> {
    worker: Box<dyn Worker>,
    job: &'a Job,
    /// Shutting it down stops the worker, which reads or writes it.
    stream: Option<OwnedFd>,
    ends_with_client: bool,
    exit_limit: Duration,
    buffer: Vec<u8>,
    /// Dropped after the worker.
    _payer: Payer,
}

impl<'a> RunningWorker<'a> {
    /// Prepares the job, starts its worker, and waits until that is ready.
    ///
    /// # Errors
    /// Those of the preparation; the worker's reason not to start; the job's when it is cancelled.
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

    /// Passes the stream to it.
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
        // The worker's last report or its exit status is more useful than the failed send.
        handed.or_else(|_| self.next_event().map(drop))
    }

    /// Sends it an order.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn send_order(&mut self, order: &Order) -> Result<(), Fault> {
        let sent = serde_json::to_vec(order)
            .map_err(std::io::Error::from)
            .and_then(|order| packet::send(self.worker.control(), &order, None));
        sent.or_else(|_| self.next_event().map(drop))
    }

    /// Waits for its next event.
    ///
    /// # Errors
    /// The worker's; the job's when it is cancelled; `Internal` when the worker exits without a report.
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
        // Wait until it exits: its locks must be released when the job ends.
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

    /// Ends it: first through its stream, so that it records its progress, then by a signal, and finally by force.
    fn stop(&mut self) {
        if let Some(stream) = self.stream.take() {
            worker::shut_down_stream(&stream);
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

/// The error of a job whose client has gone.
pub(crate) fn client_disconnected(job: &Job) -> Fault {
    Fault::new(Code::Cancelled, format!("job {}", job.id()), "the client disconnected")
}

fn unexpected(report: &Report) -> Fault {
    Fault::new(Code::Internal, "worker", format!("it sent {report:?} out of turn"))
}
