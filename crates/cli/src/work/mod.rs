//! `bulkhead work`: a process that does work for the daemon (`bulkhead_core::work`), as root and in the cgroup of who pays.
//!
//! Owns: the worker's side of the conversation. What a stream brings is untrusted; paths are the daemon's, and none comes from a client.

mod import;
mod measure;
mod receive;
mod send;
mod transfer;

use std::io::{self, Cursor, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::units::Bytes;
use bulkhead_core::work::{JobProgress, MAX_MESSAGE_BYTES, Order, Outcome, Report, Task, WorkSpec};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{cgroup, packet, worker};

pub(crate) use self::transfer::fault as transfer_fault;
use crate::args::LogFormat;
use crate::daemon::start_log;

/// How often the daemon hears how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// Does what the daemon started this process for, and says what came of it.
///
/// # Errors
/// `InvalidArgument` for what is no work; `Unavailable` when the daemon does not listen.
pub(crate) fn run(text: &str) -> Result<(), Fault> {
    let spec: WorkSpec = serde_json::from_str(text)
        .map_err(|error| Fault::new(Code::InvalidArgument, "worker", format!("cannot parse the work ({error})")))?;
    // Without a log it works all the same.
    let _ = start_log(LogFormat::Text);
    join(&spec.cgroup);
    let mut daemon = Daemon::new(worker::control(&Roots::host()).map_err(|error| silent(&error))?);
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

/// Before anything is read or written.
fn join(cgroup: &str) {
    let joined = cgroup.parse().map(|path| cgroup::move_pid(&Roots::host(), std::process::id(), &path));
    if !matches!(joined, Ok(Ok(()))) {
        // The tenant may be gone; then the daemon's cgroup pays.
        tracing::info!(cgroup, "the work is not charged to it");
    }
}

fn silent(error: &io::Error) -> Fault {
    Fault::new(Code::Unavailable, "daemon", format!("communication with it failed ({error})"))
}

/// The other end of the conversation.
struct Daemon {
    control: OwnedFd,
    told: Option<Instant>,
}

impl Daemon {
    fn new(control: OwnedFd) -> Self {
        Self { control, told: None }
    }

    fn say(&self, report: &Report) -> Result<(), Fault> {
        let sent = serde_json::to_vec(report)
            .map_err(io::Error::from)
            .and_then(|text| packet::send(self.control.as_fd(), &text, None));
        sent.map_err(|error| silent(&error))
    }

    /// Says how far it is, now and then. Who does not listen any more has this process ended, too.
    fn has_come(&mut self, done_bytes: Bytes, of_bytes: Option<Bytes>) {
        if self.told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            self.told = Some(Instant::now());
            let _ = self.say(&Report::Progress(JobProgress { done_bytes, of_bytes }));
        }
    }

    /// Waits for what it is told next.
    fn hear(&self) -> Result<Order, Fault> {
        let heard = || -> io::Result<Order> {
            let mut buffer = vec![0; MAX_MESSAGE_BYTES];
            let (order, _) = packet::receive(self.control.as_fd(), &mut buffer)?;
            Ok(serde_json::from_slice(order)?)
        };
        heard().map_err(|error| silent(&error))
    }

    /// Says that all is open, and waits for the stream.
    fn stream(&self) -> Result<Stream, Fault> {
        self.say(&Report::Ready)?;
        let taken = || -> io::Result<Stream> {
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
        taken().map_err(|error| silent(&error))
    }
}

/// A client's stream.
struct Stream {
    /// What was read of it before it was handed on.
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
