//! The server of a disk: a ublk device whose requests take as long as the model computes.
//!
//! Owns: the device, the thread of its queue and the control socket.
//! Does not: compute latencies ([`bulkhead_disk`]) or store data (`medium`). It depends on nothing that could wait for
//! the disk: its memory is locked, and its thread has real-time priority.

mod cache;
mod medium;

use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::Bytes;
use bulkhead_disk::{Disk, Event, Kind, Nanos, Parameters};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::queue::{Op, Prepared, Request, Target};
use bulkhead_sys::ublk::{self, Control, DeviceInfo, Params, Spec};
use bulkhead_sys::{background, process};
use clap::ValueEnum as _;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::Serve;
use medium::Medium;

/// Real-time priority: above all but the kernel's own real-time threads.
const PRIORITY: u8 = 50;
/// Logical block size.
const BLOCK_BYTES: u32 = 512;
/// Most requests in flight, and the size of the largest: their buffers take 64 MiB.
const MAX_DEPTH: u16 = 128;
const MAX_IO_BYTES: u32 = 512 << 10;
/// Seed of the model: the position of the platter and of the flash stripes.
const SEED: u64 = 1;
/// Software path of a request from the block layer to the model and back, in nanoseconds of virtual time (part of the
/// 28 us that fio takes for a request to a disk without delay). Published latencies were measured on hosts with a
/// shorter path, so completions are sent this much earlier.
const PATH_NANOS: u64 = 20_000;
/// Largest range that one request discards.
const MAX_DISCARD: Bytes = Bytes::mib(1024);
/// Directory of the control sockets.
const SOCKETS: &str = "/run/bulkhead-lab-disk";
/// How long a server may take to answer a command.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Answer to a command that a server does not know.
const UNKNOWN: &str = "unknown command";

/// Commands that a server accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Command {
    /// Fail all requests with EIO from now on
    Fail,
    /// Serve requests again
    Work,
    /// Treat the memory as empty, because it is being emptied: the disk reads as zeroes
    Reset,
    /// Report the requests served
    Stats,
}

/// Serves a disk until the process is killed.
pub(crate) fn serve(spec: &Serve) -> Result<()> {
    let roots = Roots::host();
    let model = match spec.model.as_str() {
        "fast" | "faulty" => None,
        name => Some(Parameters::of_lab(name).with_context(|| format!("no disk model {name}"))?),
    };
    let has_cache = model.as_ref().is_none_or(Parameters::has_volatile_cache);
    if spec.loses.is_some() && !has_cache {
        bail!("{} has no volatile cache: --loses does not apply", spec.model);
    }
    let medium = Medium::open(&spec.memory, spec.bytes, spec.new, spec.loses)
        .with_context(|| format!("cannot use {} as the medium of {}", spec.memory.display(), spec.name))?;
    let listener = listen(&spec.name)?;
    background::become_server(&roots)?;
    let depth = model.as_ref().map_or(MAX_DEPTH, |model| model.queue_depth().try_into().unwrap_or(MAX_DEPTH));
    let depth = depth.min(MAX_DEPTH);
    let mut control = Control::open(&roots)?;
    let features = control.features()?;
    let device = control.add(&Spec { owner: 0, queues: 1, depth, max_io_bytes: MAX_IO_BYTES }, features)?;
    let params = Params {
        size: Bytes(spec.bytes),
        block_bytes: BLOCK_BYTES,
        read_only: false,
        rotational: model.as_ref().is_some_and(Parameters::is_rotational),
        volatile_cache: has_cache,
        max_discard: MAX_DISCARD,
        max_zeroes: MAX_DISCARD,
    };
    control.set_params(&device, &params)?;
    let shared = Arc::new(Server {
        medium,
        started: Instant::now(),
        state: Mutex::new(State {
            disk: model.map(|model| Disk::new(&model, spec.bytes, SEED)),
            modelled_until: Nanos(0),
            is_faulty: false,
            done: vec![false; usize::from(depth)],
            events: Vec::new(),
            served: Served::default(),
        }),
    });
    let (ready, is_ready) = channel();
    let (target, opened) = (Arc::clone(&shared), ublk::open_device(&roots, device.id)?);
    let queue = thread::Builder::new()
        .name("queue".to_owned())
        .spawn(move || run_queue(&opened, &device, target.as_ref(), &ready))
        .context("cannot start the thread of the queue")?;
    is_ready.recv().context("the queue's thread ended")??;
    control.start(device.id)?;
    writeln!(io::stdout(), "{}", device.node(&roots).display()).context("cannot print the device node")?;
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| answer(stream, &shared)));
    match queue.join() {
        Ok(()) => bail!("the device was stopped"),
        Err(_) => bail!("the queue's thread panicked"),
    }
}

fn run_queue(node: &std::fs::File, device: &DeviceInfo, target: &Server, ready: &Sender<Result<()>>) {
    let prepared = process::set_realtime(PRIORITY)
        .context("cannot run at real-time priority")
        .and_then(|()| Ok(background::check_io_flusher()?))
        .and_then(|()| Ok(Prepared::new(device)?.attach(node, device, 0)?));
    match prepared {
        Ok(queue) => {
            // Starting the device waits until its requests are fetched.
            let _ = ready.send(Ok(()));
            queue.run(target);
        }
        Err(error) => drop(ready.send(Err(error))),
    }
}

/// State of one disk's server.
#[derive(Debug)]
struct Server {
    medium: Medium,
    started: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` for a disk without delay.
    disk: Option<Disk>,
    /// Time up to which the model has been advanced.
    modelled_until: Nanos,
    is_faulty: bool,
    /// Whether the request is done, by tag.
    done: Vec<bool>,
    events: Vec<Event>,
    served: Served,
}

/// Counts of the requests served.
#[derive(Clone, Copy, Debug, Default)]
struct Served {
    reads: u64,
    writes: u64,
    flushes: u64,
    read_bytes: u64,
    write_bytes: u64,
}

impl Server {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Submits a request to the model; returns whether it takes time.
    fn submit(&self, request: &Request<'_>) -> io::Result<bool> {
        let mut state = self.state();
        if state.is_faulty {
            return Err(Errno::IO.into());
        }
        let kind = match request.op {
            Op::Read => {
                state.served.reads += 1;
                state.served.read_bytes += request.len;
                Kind::Read
            }
            Op::Write => {
                state.served.writes += 1;
                state.served.write_bytes += request.len;
                Kind::Write { fua: request.fua }
            }
            Op::Flush => {
                state.served.flushes += 1;
                Kind::Flush
            }
            Op::Discard | Op::WriteZeroes => Kind::Discard,
            Op::Other(_) => return Err(Errno::OPNOTSUPP.into()),
        };
        let now = self.now().max(state.modelled_until);
        let Some(disk) = &mut state.disk else { return Ok(false) };
        let (tag, offset, len) = (request.tag(), request.offset, request.len);
        disk.submit(now, bulkhead_disk::Request { tag, kind, offset, len });
        Ok(true)
    }
}

impl Target for Server {
    async fn serve(&self, request: &Request<'_>) -> io::Result<()> {
        let takes_time = self.submit(request)?;
        // Copying counts towards the time that the model computes.
        match request.op {
            Op::Read => self.medium.read(request)?,
            Op::Write => self.medium.write(request)?,
            Op::Discard | Op::WriteZeroes => self.medium.zero(request.offset, request.len)?,
            Op::Flush | Op::Other(_) => {}
        }
        if takes_time {
            let tag = usize::from(request.tag());
            poll_fn(|_| if std::mem::take(&mut self.state().done[tag]) { Poll::Ready(()) } else { Poll::Pending })
                .await;
        }
        // Writes that complete during the flush may become durable with it.
        if request.op == Op::Flush { self.medium.flush() } else { Ok(()) }
    }

    fn before_wait(&self, ready: &mut Vec<u16>) -> Option<Duration> {
        let mut state = self.state();
        let State { disk: Some(disk), done, events, modelled_until, .. } = &mut *state else { return None };
        *modelled_until = Nanos(self.now().0 + PATH_NANOS).max(*modelled_until);
        disk.advance(*modelled_until, events);
        for event in events.drain(..) {
            if let Event::Completed { tag } = event {
                done[usize::from(tag)] = true;
                ready.push(tag);
            }
        }
        let next = disk.next_event()?;
        // Zero would mean not to wait at all.
        Some(Duration::from_nanos(next.0.saturating_sub(self.now().0 + PATH_NANOS).max(1)))
    }
}

fn socket(name: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{name}.sock"))
}

fn listen(name: &str) -> Result<UnixListener> {
    std::fs::create_dir_all(SOCKETS).with_context(|| format!("cannot make {SOCKETS}"))?;
    let path = socket(name);
    UnixListener::bind(&path).with_context(|| format!("cannot listen on {}: is {name} served already?", path.display()))
}

/// Executes the command of one connection.
fn answer(mut stream: UnixStream, server: &Server) {
    let mut name = String::new();
    if (&stream).take(64).read_to_string(&mut name).is_err() {
        return;
    }
    let reply = match Command::from_str(&name, false).ok() {
        Some(Command::Reset) => {
            server.medium.reset();
            String::new()
        }
        Some(Command::Stats) => stats(server),
        Some(command) => {
            server.state().is_faulty = command == Command::Fail;
            String::new()
        }
        None => UNKNOWN.to_owned(),
    };
    // The client may have closed the connection.
    let _ = stream.write_all(reply.as_bytes());
}

fn stats(server: &Server) -> String {
    let cpu = clock_gettime(ClockId::ProcessCPUTime);
    let Served { reads, writes, flushes, read_bytes, write_bytes } = server.state().served;
    let seconds = server.started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "seconds of processor time are few")]
    let cpu = cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9;
    format!(
        "{{\"seconds\":{seconds:.3},\"cpu_seconds\":{cpu:.3},\"reads\":{reads},\"read_bytes\":{read_bytes},\
         \"writes\":{writes},\"write_bytes\":{write_bytes},\"flushes\":{flushes}}}"
    )
}

/// Sends a command to a server, and prints its answer.
pub(crate) fn send(name: &str, command: Command) -> Result<()> {
    let path = socket(name);
    let command = command.to_possible_value().context("a command without a name")?;
    let mut stream = UnixStream::connect(&path).with_context(|| format!("no server of disk {name} is running"))?;
    stream.set_read_timeout(Some(ANSWER_LIMIT)).context("cannot set a time limit")?;
    stream
        .write_all(command.get_name().as_bytes())
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .context("cannot send the command")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).with_context(|| format!("the server of disk {name} does not answer"))?;
    if reply == UNKNOWN {
        bail!("the server of disk {name} does not know the command {}", command.get_name());
    }
    writeln!(io::stdout(), "{reply}").context("cannot print the answer")
}
