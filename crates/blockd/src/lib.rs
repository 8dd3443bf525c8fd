//! The block server: one process that serves one volume's image as a ublk device, with direct I/O.
//!
//! A loop device turns every flush into an fsync of the image, and each of those commits the journal of the file system that
//! the image is in, which all volumes of the pool share. This server issues `fdatasync(2)` on an image whose blocks are all
//! written, which commits nothing (docs/DECISIONS.md, K2); and it does all of a volume's I/O from its own cgroup, so that journal,
//! flushes and checkpoints are charged to the volume's tenant without touching a kernel thread.
//!
//! It also writes what a snapshot holds as a stream, and reads one, and completes a base that is imported, in the daemon's workers
//! (`transfer`, `base`).
//!
//! Owns: the order in which a device comes to be and is taken over, and what each request does to the image. Does not: decide
//! when that happens (the daemon does), nor know the kernel's interface (`bulkhead_sys::ublk`).

#![forbid(unsafe_code)]

pub mod base;
mod fill;
mod flatten;
mod image;
pub mod index;
mod layers;
pub mod peers;
mod share;
pub mod transfer;
mod volume;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bulkhead_core::backend::device_owner;
use bulkhead_core::error::chain;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::units::Bytes;
use bulkhead_formats::servers::{self, RemovalError};
use bulkhead_sys::background::{self, BackgroundError, Report, Side};
use bulkhead_sys::cgroup::{self, CgroupError};
use bulkhead_sys::file::{FileError, LockFile};
use bulkhead_sys::image::Filler;
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::thin;
use bulkhead_sys::ublk::queue::Prepared;
use bulkhead_sys::ublk::{self, Control, DeviceInfo, Owners, Spec, State, UblkError, sized};
use fill::Gate;
use image::Image;
pub use image::ImageError;
use layers::Layers;
use rustix::io::Errno;
use share::Share;
use volume::Volume;

/// Queues at most: each has a thread.
const MAX_QUEUES: u16 = 4;

/// The largest request. With [`servers::REQUESTS`] it is the memory that a server locks: 8 MiB, and up to as much for what peers
/// hand over.
const MAX_IO_BYTES: u32 = 128 << 10;

/// Stack of a queue's thread; all of it is locked.
const STACK_BYTES: usize = 256 << 10;

/// How long a killed server may need until all that it had under way has come to its end, and the device can be taken over.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two tries.
const TAKE_OVER_PAUSE: Duration = Duration::from_millis(10);

/// What the background says when its device is there; the node follows.
const READY: &str = "ready ";

/// Why a volume cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BlockdError {
    /// Its image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The driver refuses.
    #[error(transparent)]
    Ublk(#[from] UblkError),
    /// This process cannot become a server.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Its cgroup cannot be joined.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Somebody cut the image off while nobody served it.
    #[error("{image} has only {found} of the {wanted} that its device has")]
    CutOff {
        /// The image.
        image: PathBuf,
        /// Its size.
        found: Bytes,
        /// The size of the volume.
        wanted: Bytes,
    },
    /// The device that was to be taken over is not there any more.
    #[error("the device of {image} is gone")]
    Gone {
        /// The image.
        image: PathBuf,
    },
    /// The volume's device serves another image.
    #[error("{image} is to be served, and {device} serves {other}")]
    OfAnother {
        /// The image.
        image: PathBuf,
        /// The device.
        device: PathBuf,
        /// The other image.
        other: PathBuf,
    },
    /// The registry of servers cannot be locked, or written to.
    #[error(transparent)]
    File(#[from] FileError),
    /// A device that an earlier server left cannot be removed.
    #[error(transparent)]
    Remove(#[from] RemovalError),
    /// A thread or file of the server's own failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The server, in the background, says why it could not start, or ended without a word.
    #[error("{said}")]
    Start {
        /// What it said.
        said: String,
    },
}

/// Starts a server in the background, which takes over the volume's device when there is one without a server. Returns the
/// device's node when it can be used; also when another process serves it already.
///
/// Of a new device so many `requests` can be under way in all queues together. A `successor` only takes a device over: when there
/// is none any more, somebody removed it.
///
/// `begin` is called in the server's process before anything else, for its log.
///
/// # Errors
/// [`BlockdError`]; nothing is left behind then. Call it before any thread is started.
pub fn start(
    roots: &Roots,
    spec: &ServeSpec,
    requests: u16,
    successor: bool,
    begin: impl FnOnce(),
) -> Result<Option<PathBuf>, BlockdError> {
    let log = servers::log_file(roots, spec.volume);
    std::fs::create_dir_all(servers::dir(roots))
        .map_err(|source| BlockdError::Step { step: "make the directory of servers", source })?;
    match background::split(roots, &log)? {
        Side::Foreground { said } => match said.strip_prefix(READY) {
            Some(node) => Ok(Some(PathBuf::from(node))),
            None if said.is_empty() => {
                Err(BlockdError::Start { said: format!("the server ended; {} may say why", log.display()) })
            }
            None => Err(BlockdError::Start { said }),
        },
        Side::Background(report) => {
            begin();
            let mut report = Some(report);
            if let Err(error) = serve(roots, spec, requests, successor, &mut report) {
                let why = chain(&error);
                tracing::error!(%why, "cannot serve");
                if let Some(report) = report {
                    // Who waited may be gone; the log has it.
                    let _ = report.say(&why);
                }
            }
            Ok(None)
        }
    }
}

fn serve(
    roots: &Roots,
    spec: &ServeSpec,
    requests: u16,
    successor: bool,
    report: &mut Option<Report>,
) -> Result<(), BlockdError> {
    if let Some(cgroup) = &spec.cgroup {
        cgroup::move_pid(roots, std::process::id(), cgroup)?;
    }
    background::become_server(roots)?;
    // Until the volume is served, nobody else starts a server of it, or removes its device.
    let starting = servers::lock(roots, spec.volume, TAKE_OVER_LIMIT * 2)?;
    let mut control = Control::open(roots)?;
    let features = control.features()?;
    let owner = device_owner(spec.volume);
    // A successor's device exists. Before it starts any other server, the daemon announces the volume's device if it finds one.
    let found = match successor {
        true => servers::find(&mut control, roots, owner, &Owners::default()),
        false => servers::find_announced(&mut control, roots, owner),
    }?;
    if let Some(device) = found.filter(|device| device.state != State::Dead) {
        if let Some(other) = servers::other_image(roots, &device.name(), &spec.image) {
            return Err(BlockdError::OfAnother { image: spec.image.clone(), device: device.node(roots), other });
        }
        let Some(node) = take_over(roots, &mut control, &device)? else {
            tell_ready(report, &sized::node(roots, &device));
            return Ok(());
        };
        let image = Image::open(roots, &spec.image, spec.below.is_some())?;
        if let Some(wanted) = sized::size(roots, &device).filter(|wanted| *wanted > image.size()) {
            return Err(BlockdError::CutOff { image: spec.image.clone(), found: image.size(), wanted });
        }
        // I/O waits.
        let ready = prepare(roots, spec, &device, node, image, COMPARE_LIMIT)?;
        control.end_recovery(device.id)?;
        // I/O goes on: whatever fails now is worth less than that.
        match expose(roots, spec, &device, ready.size, true) {
            Ok(exposed) => keep(roots, spec, ready, starting, || tell_ready(report, &exposed)),
            Err(error) => {
                tracing::error!(why = chain(&error), "the device is served, and not all is told of it");
                keep(roots, spec, ready, starting, || tell_ready(report, &sized::node(roots, &device)));
            }
        }
        return Ok(());
    }
    if successor {
        return Err(BlockdError::Gone { image: spec.image.clone() });
    }
    let image = Image::open(roots, &spec.image, spec.below.is_some())?;
    // Left by a server that died before its device was started.
    if let Some(left) = found {
        servers::remove(&mut control, roots, &left)?;
    }
    let queues = thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(MAX_QUEUES));
    let queues = queues.min(MAX_QUEUES).min(requests);
    let wanted = Spec { owner, queues, depth: requests / queues, max_io_bytes: MAX_IO_BYTES };
    servers::announce(roots, owner)?;
    let device = control.add(&wanted, features).inspect_err(|_| {
        // A stale announcement makes the next server query all devices.
        let _ = servers::renounce(roots, owner);
    })?;
    let params = image.params(sized::disk_size(features, image.size()), spec.discards);
    let started = control
        .set_params(&device, &params)
        .and_then(|()| ublk::open_device(roots, device.id))
        .map_err(BlockdError::from)
        .and_then(|node| prepare(roots, spec, &device, node, image, thin::PATIENCE))
        .and_then(|ready| {
            servers::mark_unprobed(roots, &device)?;
            control.start(device.id)?;
            let exposed = expose(roots, spec, &device, ready.size, false)?;
            Ok((ready, exposed))
        });
    match started {
        Ok((ready, exposed)) => {
            keep(roots, spec, ready, starting, || tell_ready(report, &exposed));
            Ok(())
        }
        Err(error) => {
            // The first error is the one to tell; what is left without a server is removed by the next.
            let _ = servers::remove(&mut control, roots, &device);
            Err(error)
        }
    }
}

/// Begins to take over a device whose server is gone, when all that it had under way has come to its end: returns the node through
/// which its requests come. `None` when somebody serves it.
fn take_over(roots: &Roots, control: &mut Control, device: &DeviceInfo) -> Result<Option<File>, UblkError> {
    let give_up = Instant::now() + TAKE_OVER_LIMIT;
    loop {
        let gone = || UblkError::node("find", device.node(roots), Errno::NODEV);
        let now = control.info(device.id)?.filter(|now| now.owner == device.owner).ok_or_else(gone)?;
        let unknown = |source| UblkError::node("look for the server of", device.node(roots), source);
        if now.server().map_err(unknown)?.is_some() {
            return Ok(None);
        }
        match control.start_recovery(device.id).and_then(|()| ublk::open_device(roots, device.id)) {
            Err(error) if error.is_busy() && Instant::now() < give_up => process::pause(TAKE_OVER_PAUSE),
            taken => return taken.map(Some),
        }
    }
}

/// How long a successor of a dead server takes at most, twice, to find out what a thin volume has in common with another: its I/O waits,
/// and without that it reads all of it from the volume itself.
const COMPARE_LIMIT: Duration = Duration::from_secs(5);

/// What is done to an image in the background.
enum Work {
    Fill,
    Flatten,
}

/// A volume whose queues fetch requests.
struct Ready {
    size: Bytes,
    target: Arc<Volume>,
    work: Option<(Work, Arc<Gate>)>,
    threads: Vec<JoinHandle<()>>,
    /// The directory of servers, which stays within reach.
    place: File,
}

/// Opens all that requests need, and has the queues' threads fetch them. After an error this process has to end: threads of it may
/// wait for requests.
fn prepare(
    roots: &Roots,
    spec: &ServeSpec,
    device: &DeviceInfo,
    node: File,
    image: Image,
    patience: Duration,
) -> Result<Ready, BlockdError> {
    let size = image.size();
    let layers = match &spec.below {
        Some(below) => Layers::in_common(roots, below, &spec.image, patience),
        None => Layers::open(&image, &spec.image, spec.layered, spec.read_from.caches_layers())?,
    };
    let layers = match layers {
        None => None,
        Some(layers) => {
            let share = Share::open(roots, spec, device.id, layers.paths())?;
            Some((layers, share))
        }
    };
    // What an image does not own is not to be filled with zeroes.
    let work = match &layers {
        Some(_) => spec.flatten.then_some(Work::Flatten),
        None => (!spec.discards && spec.below.is_none()).then_some(Work::Fill),
    };
    let work = work.map(|work| (work, Arc::new(Gate::new(size))));
    let gate = work.as_ref().map(|(_, gate)| Arc::clone(gate));
    let target = Arc::new(Volume::new(image, layers, spec.discards, gate));
    let place = File::open(servers::dir(roots))
        .map_err(|source| BlockdError::Step { step: "open the directory of servers", source })?;
    // From here on mounts of others are kept from going.
    background::own_mounts()?;
    let node = Arc::new(node);
    let (done, hears) = channel();
    let (mut threads, mut steps) = (Vec::new(), Vec::new());
    for idx in 0..device.queues {
        let (step, next) = channel();
        let (done, node, target, device) = (done.clone(), Arc::clone(&node), Arc::clone(&target), *device);
        threads.push(spawn(&format!("queue-{idx}"), move || {
            let outcome = run_queue(&node, &device, idx, target.as_ref(), &done, &next);
            // Nobody listens when another queue has failed already.
            let _ = outcome.map_err(|error| done.send(Err(error)));
        })?);
        steps.push(step);
    }
    drop(done);
    // All prepare, then all attach, then all fetch.
    for _ in 0..2 {
        hears.iter().take(steps.len()).collect::<Result<Vec<()>, BlockdError>>()?;
        for step in &steps {
            // A thread that is gone has said why, or ended the process.
            let _ = step.send(());
        }
    }
    Ok(Ready { size, target, work, threads, place })
}

fn run_queue(
    node: &File,
    device: &DeviceInfo,
    idx: u16,
    target: &Volume,
    done: &Sender<Result<(), BlockdError>>,
    next: &Receiver<()>,
) -> Result<(), BlockdError> {
    let all_done = || done.send(Ok(())).is_ok() && next.recv().is_ok();
    background::check_flusher()?;
    let prepared = Prepared::new(device)?;
    if all_done() {
        let queue = prepared.attach(node, device, idx)?;
        if all_done() {
            queue.run(target);
        }
    }
    Ok(())
}

/// Tells what is served, and makes its node, which one that was taken over may have.
fn expose(
    roots: &Roots,
    spec: &ServeSpec,
    device: &DeviceInfo,
    size: Bytes,
    taken_over: bool,
) -> Result<PathBuf, BlockdError> {
    servers::tell(roots, device, spec)?;
    if taken_over && sized::size(roots, device).is_some() {
        return Ok(sized::node(roots, device));
    }
    Ok(sized::expose(roots, device, size)?)
}

/// Serves until the device is stopped. `tell` says that it is served.
fn keep(roots: &Roots, spec: &ServeSpec, ready: Ready, starting: LockFile, tell: impl FnOnce()) {
    drop(starting);
    let Ready { target, work, threads, place, .. } = ready;
    let path = spec.image.clone();
    // What cannot be prepared can be used all the same.
    let counted = Arc::clone(&target);
    let begun = match work {
        Some((Work::Fill, gate)) => {
            let file = target.parts().0.file().try_clone();
            file.map_err(|source| BlockdError::Step { step: "open the image again", source })
                .map(|file| Filler::new(file, &path))
                .and_then(|filler| spawn("filler", move || fill::run(&gate, &filler)))
                .map(drop)
        }
        Some((Work::Flatten, gate)) => spawn("flattener", move || flatten::run(&gate, &target, &path)).map(drop),
        None => Ok(()),
    };
    let begun = begun
        .and_then(|()| Ok(background::forget_mounts(&servers::dir(roots))?))
        .and_then(|()| Ok(background::work_in(&place)?))
        .and_then(|()| {
            let heat = servers::heat_name(spec.volume);
            let tell = move || counted.share().into_iter().for_each(|share| share.tell(&heat));
            spawn("counts", tell).map(drop)
        });
    if let Err(error) = begun {
        tracing::error!(why = chain(&error), "the volume is served, and not all is as it should be");
    }
    tracing::info!(image = %spec.image.display(), "serving");
    tell();
    for thread in threads {
        // A thread that panicked has ended the process already (see `Queue::run`).
        let _ = thread.join();
    }
}

/// Who waited may have been killed; the device is there all the same.
fn tell_ready(report: &mut Option<Report>, node: &Path) {
    if let Some(report) = report.take() {
        let _ = report.say(&format!("{READY}{}", node.display()));
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, BlockdError> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    thread.spawn(run).map_err(|source| BlockdError::Step { step: "start a thread", source })
}
