//! `bulkhead work`: a process that works for the daemon (`bulkhead_core::work`), as root and in the cgroup that is charged.
//!
//! Owns: the worker's side of the protocol. The content of a stream is untrusted; paths come from the daemon, never from a client.

mod import;
mod measure;
mod receive;
mod send;
mod transfer;

use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{JobProgress, MAX_MESSAGE_BYTES, Order, Outcome, Report, Task, WorkSpec};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{cgroup, packet, worker};

pub(crate) use self::transfer::fault as transfer_fault;
use crate::args::LogFormat;
use crate::daemon::start_log;

/// Shortest interval between progress reports to the daemon.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Performs the task that the daemon started this process for, and reports the outcome.
///
/// # Errors
/// `InvalidArgument` for a malformed task; `Unavailable` if the connection to the daemon fails.
pub(crate) fn run(text: &str) -> Result<(), Fault> {
    let spec: WorkSpec = serde_json::from_str(text)
        .map_err(|error| Fault::new(Code::InvalidArgument, "worker", format!("cannot parse the task ({error})")))?;
    // A worker works without a log if none can be written.
    let _ = start_log(LogFormat::Text);
    join(&spec.cgroup);
    let mut daemon = Daemon::new(worker::control(&Roots::host()).map_err(|error| disconnected(&error))?);
    let report = match carry_out(spec.task, &mut daemon) {
        Ok(outcome) => Report::Done(outcome),
        Err(fault) => Report::Failed(fault),
    };
    daemon.say(&report)
}

fn carry_out(task: Task, daemon: &mut Daemon) -> Result<Outcome, Fault> {
    match task {
        Task::Send(task) => send::run(task, daemon),
        Task::Receive(task) => receive::run(&task, daemon),
        Task::Import(task) => import::run(task, daemon),
        Task::Measure(task) => measure::run(task, daemon),
    }
}

/// Enters the cgroup that is charged. Called before any I/O.
fn join(cgroup: &CgroupPath) {
    if cgroup::move_pid(&Roots::host(), std::process::id(), cgroup).is_err() {
        // The tenant may be gone; then the daemon's cgroup is charged.
        tracing::info!(%cgroup, "the work is not charged to it");
    }
}

fn disconnected(error: &io::Error) -> Fault {
    Fault::new(Code::Unavailable, "daemon", format!("communication with it failed ({error})"))
}

/// The connection to the daemon.
struct Daemon {
    control: OwnedFd,
    last_report: Option<Instant>,
}

impl Daemon {
    fn new(control: OwnedFd) -> Self {
        Self { control, last_report: None }
    }

    fn say(&self, report: &Report) -> Result<(), Fault> {
        let sent = serde_json::to_vec(report)
            .map_err(io::Error::from)
            .and_then(|text| packet::send(self.control.as_fd(), &text, None));
        sent.map_err(|error| disconnected(&error))
    }

    /// Reports progress, at most once per interval. A failure is ignored: if the daemon is gone, this process is killed anyway.
    fn report_progress(&mut self, done_bytes: Bytes, of_bytes: Option<Bytes>) {
        if self.last_report.is_none_or(|last| last.elapsed() >= REPORT_INTERVAL) {
            self.last_report = Some(Instant::now());
            let _ = self.say(&Report::Progress(JobProgress { done_bytes, of_bytes }));
        }
    }

    /// Waits for the next order.
    fn next_order(&self) -> Result<Order, Fault> {
        let received = || -> io::Result<Order> {
            let mut buffer = vec![0; MAX_MESSAGE_BYTES];
            let (order, _) = packet::receive(self.control.as_fd(), &mut buffer)?;
            Ok(serde_json::from_slice(order)?)
        };
        received().map_err(|error| disconnected(&error))
    }

    /// Reports that everything is open, and waits for the stream.
    fn stream(&self) -> Result<Stream, Fault> {
        self.say(&Report::Ready)?;
        let received = || -> io::Result<Stream> {
            let mut buffer = vec![0; MAX_MESSAGE_BYTES];
            let (order, descriptor) = packet::receive(self.control.as_fd(), &mut buffer)?;
            let Order::Stream { ahead_bytes } = serde_json::from_slice(order)? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let socket = descriptor.ok_or(io::ErrorKind::InvalidData)?;
            let mut ahead = Vec::new();
            while (ahead.len() as u64) < ahead_bytes.0 {
                let (part, _) = packet::receive(self.control.as_fd(), &mut buffer)?;
                if part.is_empty() {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                ahead.extend_from_slice(part);
            }
            Ok(Stream { ahead: Cursor::new(ahead), socket: socket.into() })
        };
        received().map_err(|error| disconnected(&error))
    }
}

/// A client's stream.
struct Stream {
    /// The bytes that the daemon had read before it passed the socket on.
    ahead: Cursor<Vec<u8>>,
    socket: UnixStream,
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.ahead.read(buffer)? {
            0 => self.socket.read(buffer),
            n => Ok(n),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}
