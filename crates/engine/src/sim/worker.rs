//! Workers of the simulated host: threads that speak the protocol of a worker, and misbehave as a test requires.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bulkhead_core::error::Fault;
use bulkhead_core::model::Calibration;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{JobProgress, JobSteps, MAX_MESSAGE_BYTES, Order, Outcome, Report, Staged, Task, WorkSpec};
use bulkhead_sys::{packet, worker};
use uuid::Uuid;

use crate::host::{WORKER_POLL, Worker};
use crate::sim::Sim;

/// The behavior of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum WorkerBehavior {
    /// It succeeds.
    #[default]
    Works,
    /// It fails to start.
    Refuses(Fault),
    /// It exits without a report once it has its stream.
    Dies,
    /// It fails at the end of its stream.
    Fails(Fault),
    /// It runs until its stream ends.
    Hangs,
}

/// What a sending worker writes, before it echoes the bytes that came with the stream.
pub(crate) const SENT: &[u8] = b"what the snapshot holds\n";

/// The content that an importing worker creates from any archive.
pub(crate) const BASE: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0001);

/// The result of measuring any device.
pub(crate) fn calibration() -> Calibration {
    let (model, qos) = ("ctrl=user model=linear".to_owned(), "enable=1 ctrl=user".to_owned());
    Calibration { model, qos, measured: Vec::new(), isolation: None }
}

struct Thread {
    control: OwnedFd,
    thread: JoinHandle<()>,
}

impl Worker for Thread {
    fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn terminate(&self) {
        worker::shut_down_stream(&self.control);
    }

    fn ended(&mut self, limit: Duration) -> Option<String> {
        let began = Instant::now();
        while !self.thread.is_finished() {
            if began.elapsed() >= limit {
                return None;
            }
            thread::yield_now();
        }
        Some("signal: 9 (SIGKILL)".to_owned())
    }
}

pub(super) fn start(sim: Sim, spec: WorkSpec, behavior: WorkerBehavior) -> Box<dyn Worker> {
    let (control, theirs) = packet::pair().unwrap();
    packet::set_receive_timeout(&control, WORKER_POLL).unwrap();
    let thread = thread::spawn(move || {
        // Fails if the daemon has closed the connection.
        drop(work(&sim, &theirs, spec, behavior));
    });
    Box::new(Thread { control, thread })
}

fn work(sim: &Sim, control: &OwnedFd, spec: WorkSpec, behavior: WorkerBehavior) -> std::io::Result<()> {
    let say = |report: &Report| packet::send(control, &serde_json::to_vec(report).unwrap(), None);
    if let WorkerBehavior::Refuses(fault) = behavior {
        return say(&Report::Failed(fault));
    }
    say(&Report::Ready)?;
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    if let Task::Measure(task) = &spec.task {
        say(&Report::Step(JobSteps { done: 1, of: 2 }, "the small load alone".to_owned()))?;
        say(&Report::Figure("small load alone: fsync 5.0 ms".to_owned()))?;
        return match (behavior, &task.verify) {
            // Until the connection is closed.
            (WorkerBehavior::Hangs, _) => packet::receive(control, &mut buffer).map(drop),
            (_, Some(_)) => say(&Report::Done(Outcome::Verified(Vec::new()))),
            (_, None) => say(&Report::Done(Outcome::Calibrated(calibration()))),
        };
    }
    let (order, descriptor) = packet::receive(control, &mut buffer)?;
    if order.is_empty() {
        return Ok(());
    }
    let Order::Stream { ahead_bytes } = serde_json::from_slice(order).unwrap() else { return Ok(()) };
    let mut stream = File::from(descriptor.unwrap());
    let mut ahead = Vec::new();
    while (ahead.len() as u64) < ahead_bytes.0 {
        ahead.extend_from_slice(packet::receive(control, &mut buffer)?.0);
    }
    if behavior == WorkerBehavior::Dies {
        return Ok(());
    }
    let task = match spec.task {
        Task::Send(task) => task,
        Task::Receive(task) => {
            stream.read_to_end(&mut ahead)?;
            sim.set_received(ahead);
            if let WorkerBehavior::Fails(fault) = behavior {
                return say(&Report::Failed(fault));
            }
            sim.fill_staging_file(&task.staging_file);
            return say(&Report::Done(Outcome::Received));
        }
        // A job without a stream.
        Task::Measure(_) => return Ok(()),
        Task::Import(_) => {
            stream.read_to_end(&mut ahead)?;
            sim.set_received(ahead);
            say(&Report::Staged(Staged { size_bytes: Bytes::mib(512), data_bytes: Bytes::mib(1) }))?;
            let (order, _) = packet::receive(control, &mut buffer)?;
            let Ok(Order::Make { staging_file: part }) = serde_json::from_slice(order) else { return Ok(()) };
            match behavior {
                WorkerBehavior::Fails(fault) => return say(&Report::Failed(fault)),
                // Until the connection is closed.
                WorkerBehavior::Hangs => return packet::receive(control, &mut buffer).map(drop),
                _ => {}
            }
            sim.import_into(&part, BASE);
            return say(&Report::Done(Outcome::Imported { content: BASE, entries: 7, left_out: Vec::new() }));
        }
    };
    stream.write_all(SENT)?;
    stream.write_all(&ahead)?;
    let read_bytes = Bytes(SENT.len() as u64);
    say(&Report::Progress(JobProgress { done_bytes: read_bytes, of_bytes: Some(task.header.size_bytes) }))?;
    if behavior == WorkerBehavior::Hangs {
        // Until the client disconnects, or the daemon ends the stream.
        while stream.read(&mut buffer)? > 0 {}
        return Ok(());
    }
    say(&Report::Done(Outcome::Sent { read_bytes }))
}
