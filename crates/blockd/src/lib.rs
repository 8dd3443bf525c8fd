//! The block server: one process that serves one volume's image as a ublk device, with direct I/O.
//!
//! A loop device turns every flush into an fsync of the image, which commits the journal of the file system that contains the image
//! and that all volumes of the pool share. This server issues `fdatasync(2)` on an image whose blocks are all written, which commits
//! nothing (docs/DECISIONS.md, K2). It does all of a volume's I/O from its own cgroup, so that journal writes, flushes and checkpoints
//! are charged to the volume's tenant without moving a kernel thread.
//!
//! The crate also contains the parts of the daemon's workers that need layers: sending and receiving snapshots (`transfer`), and
//! completing an imported base (`base`).
//!
//! Owns: the order in which a device is created and taken over, and what each request does to the image. Does not: decide when that
//! happens (the daemon does), nor know the kernel's interface (`bulkhead_sys::ublk`).

#![forbid(unsafe_code)]

pub mod base;
mod fill;
mod flatten;
mod image;
pub mod index;
mod layer_reads;
mod layers;
pub mod peers;
mod startup;
pub mod transfer;
mod turns;
mod volume;

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bulkhead_core::backend::device_owner;
use bulkhead_core::error::chain;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_formats::read_counts;
use bulkhead_formats::servers::{self, RemovalError};
use bulkhead_sys::background::{self, BackgroundError};
use bulkhead_sys::block;
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
use layer_reads::LayerReader;
use layers::Layers;
use rustix::io::Errno;
pub use startup::StartError;
use startup::Startup;
use turns::Turns;
use volume::Volume;

/// Queues at most: each has a thread.
const MAX_QUEUES: u16 = 4;

/// The largest request. Multiplied by [`servers::DEFAULT_REQUESTS`] it is the memory that a server locks, 8 MiB, and at most as much
/// again for blocks from peers.
const MAX_IO_BYTES: u32 = 128 << 10;

/// Stack of a queue's thread; all of it is locked.
const STACK_BYTES: usize = 256 << 10;

/// How long the requests in flight of a killed server may take to complete, after which its device can be taken over.
const TAKE_OVER_LIMIT: Duration = Duration::from_secs(60);

/// Pause between two attempts.
const TAKE_OVER_PAUSE: Duration = Duration::from_millis(10);

/// Why a volume cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum BlockdError {
    /// Its image cannot be used.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The driver refuses.
    #[error(transparent)]
    Ublk(#[from] UblkError),
    /// This process cannot be started, or lacks a file or thread.
    #[error(transparent)]
    Start(#[from] StartError),
    /// This process cannot become a server.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Its cgroup cannot be joined.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The image was truncated while it was not served.
    #[error("{image} was truncated: it has {found}, but its device has {wanted}")]
    Truncated {
        /// The image.
        image: PathBuf,
        /// Its size.
        found: Bytes,
        /// The size of the volume.
        wanted: Bytes,
    },
    /// The device to take over no longer exists.
    #[error("the device of {image} is gone")]
    DeviceGone {
        /// The image.
        image: PathBuf,
    },
    /// The volume's device serves another image.
    #[error("cannot serve {image}: {device}, the device of its volume, serves {other}")]
    OtherImage {
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
    /// A device left by an earlier server cannot be removed.
    #[error(transparent)]
    Remove(#[from] RemovalError),
}

/// Starts a server in the background, which creates the volume's device, or takes it over if it has no server. Returns the device's
/// node when it can be used, also if another process serves it already; `None` in the background process.
///
/// A new device accepts `requests` requests in flight in all its queues together. A `successor` only takes a device over: if there is
/// none, it was removed.
///
/// `start_log` is called in the background process before anything else.
///
/// # Errors
/// [`BlockdError`]; nothing is left behind then. Call it before any thread is started.
pub fn start(
    roots: &Roots,
    spec: &ServeSpec,
    requests: u16,
    successor: bool,
    start_log: impl FnOnce(),
) -> Result<Option<PathBuf>, BlockdError> {
    let log = servers::log_file(roots, spec.volume);
    std::fs::create_dir_all(servers::dir(roots)).map_err(StartError::at("make the directory of servers"))?;
    let node = startup::start(roots, &log, start_log, |startup| serve(roots, spec, requests, successor, startup))?;
    Ok(node.map(PathBuf::from))
}

fn serve(
    roots: &Roots,
    spec: &ServeSpec,
    requests: u16,
    successor: bool,
    startup: &mut Startup,
) -> Result<(), BlockdError> {
    if let Some(cgroup) = &spec.cgroup {
        cgroup::move_pid(roots, std::process::id(), cgroup)?;
    }
    background::become_server(roots)?;
    // Until the volume is served, no other process starts a server for it or removes its device.
    let lock = servers::lock(roots, spec.volume, TAKE_OVER_LIMIT * 2)?;
    let mut control = Control::open(roots)?;
    let features = control.features()?;
    let owner = device_owner(spec.volume);
    // A successor's device exists. Before the daemon starts any other server, it announces the volume's device if it finds one.
    let found = match successor {
        true => servers::find(&mut control, roots, owner, &Owners::default()),
        false => servers::find_announced(&mut control, roots, owner),
    }?;
    if let Some(device) = found.filter(|device| device.state != State::Dead) {
        if let Some(other) = servers::other_image(roots, &device.name(), &spec.image) {
            return Err(BlockdError::OtherImage { image: spec.image.clone(), device: device.node(roots), other });
        }
        let Some(node) = take_over(roots, &mut control, &device)? else {
            startup.ready(sized::node(roots, &device).display());
            return Ok(());
        };
        let image = Image::open(roots, &spec.image, spec.below.is_some())?;
        if let Some(wanted) = sized::size(roots, &device).filter(|wanted| *wanted > image.size()) {
            return Err(BlockdError::Truncated { image: spec.image.clone(), found: image.size(), wanted });
        }
        // Until the recovery ends, the I/O of the device waits.
        let ready = prepare(roots, spec, &device, node, image, COMPARE_LIMIT)?;
        control.end_recovery(device.id)?;
        // I/O continues: no later error is a reason to stop serving.
        match publish(roots, spec, &device, ready.size, true) {
            Ok(node) => run(roots, spec, ready, lock, || startup.ready(node.display())),
            Err(error) => {
                tracing::error!(why = chain(&error), "the device is served, but not registered");
                run(roots, spec, ready, lock, || startup.ready(sized::node(roots, &device).display()));
            }
        }
        return Ok(());
    }
    if successor {
        return Err(BlockdError::DeviceGone { image: spec.image.clone() });
    }
    let image = Image::open(roots, &spec.image, spec.below.is_some())?;
    // A server died before it started its device.
    if let Some(unstarted) = found {
        servers::remove(&mut control, roots, &unstarted)?;
    }
    let queues = thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(MAX_QUEUES));
    // Servers with one queue take turns; more are for disks that serve several requests at a time, which the kernel may take for an arm.
    let queues = if image.arm().is_some_and(|disk| turns::are_taken(roots, disk)) {
        1
    } else {
        queues.min(MAX_QUEUES).min(requests)
    };
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
        .and_then(|node| prepare(roots, spec, &device, node, image, thin::COMPARE_LIMIT))
        .and_then(|ready| {
            servers::mark_unprobed(roots, &device)?;
            control.start(device.id)?;
            remove_scheduler(roots, &device);
            let node = publish(roots, spec, &device, ready.size, false)?;
            Ok((ready, node))
        });
    match started {
        Ok((ready, node)) => {
            run(roots, spec, ready, lock, || startup.ready(node.display()));
            Ok(())
        }
        Err(error) => {
            // Only the first error is returned; if the device cannot be removed, the next server removes it.
            let _ = servers::remove(&mut control, roots, &device);
            Err(error)
        }
    }
}

/// Starts the recovery of a device without a server, after the requests in flight of the last one have completed. Returns the node
/// through which its requests come; `None` if another process serves it.
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

/// Time limit of a successor, applied twice, for comparing a thin volume with its base: the volume's I/O waits meanwhile. After that
/// it reads all of the volume from the volume itself.
const COMPARE_LIMIT: Duration = Duration::from_secs(5);

/// Work on an image while it is served.
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
    /// The directory of servers, opened before the process drops its mounts.
    directory: File,
}

/// Opens the files that requests need, and starts the queues' threads, which fetch requests. After an error this process has to exit,
/// because threads of it may be waiting for requests.
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
        Some(below) => Layers::shared_with_base(roots, below, &spec.image, patience),
        None => Layers::open(&image, &spec.image, spec.layered, spec.read_from.caches_layers())?,
    };
    let layers = match layers {
        None => None,
        Some(layers) => {
            let reader = LayerReader::open(roots, spec, device.id, layers.paths())?;
            Some((layers, reader))
        }
    };
    // Blocks that an image does not own must not be filled with zeroes.
    let work = match &layers {
        Some(_) => spec.flatten.then_some(Work::Flatten),
        None => (!spec.discards && spec.below.is_none()).then_some(Work::Fill),
    };
    let work = work.map(|work| (work, Arc::new(Gate::new(size))));
    let gate = work.as_ref().map(|(_, gate)| Arc::clone(gate));
    let turns = image.arm().filter(|_| device.queues == 1).and_then(|disk| join_turns(roots, spec, disk));
    let target = Arc::new(Volume::new(image, layers, spec.discards, gate, turns));
    let directory = File::open(servers::dir(roots)).map_err(StartError::at("open the directory of servers"))?;
    // From here until `detach_mounts`, this process keeps the host's mounts busy.
    background::unshare_mounts()?;
    let node = Arc::new(node);
    let (done, outcomes) = channel();
    let (mut threads, mut steps) = (Vec::new(), Vec::new());
    for idx in 0..device.queues {
        let (step, next) = channel();
        let (done, node, target, device) = (done.clone(), Arc::clone(&node), Arc::clone(&target), *device);
        threads.push(spawn(&format!("queue-{idx}"), move || {
            let outcome = run_queue(&node, &device, idx, target.as_ref(), &done, &next);
            // The receiver is gone if another queue has failed.
            let _ = outcome.map_err(|error| done.send(Err(error)));
        })?);
        steps.push(step);
    }
    drop(done);
    // All prepare, then all attach, then all fetch.
    for _ in 0..2 {
        outcomes.iter().take(steps.len()).collect::<Result<Vec<()>, BlockdError>>()?;
        for step in &steps {
            // Fails if the thread has exited; its error was received, or the process ends.
            let _ = step.send(());
        }
    }
    Ok(Ready { size, target, work, threads, directory })
}

/// Joins the servers that take turns on a disk with an arm. A volume works without: in the order of arrival.
fn join_turns(roots: &Roots, spec: &ServeSpec, disk: DevNo) -> Option<Turns> {
    match Turns::join(roots, disk, spec.volume) {
        Ok(None) => {
            tracing::warn!(%disk, "the volume takes no turns: all slots of the disk are taken");
            None
        }
        Err(error) => {
            tracing::warn!(%disk, why = chain(&error), "the volume takes no turns");
            None
        }
        Ok(joined) => joined,
    }
}

fn run_queue(
    node: &File,
    device: &DeviceInfo,
    idx: u16,
    target: &Volume,
    done: &Sender<Result<(), BlockdError>>,
    next: &Receiver<()>,
) -> Result<(), BlockdError> {
    let barrier = || done.send(Ok(())).is_ok() && next.recv().is_ok();
    background::check_io_flusher()?;
    let prepared = Prepared::new(device)?;
    if barrier() {
        let queue = prepared.attach(node, device, idx)?;
        if barrier() {
            queue.run(target);
        }
    }
    Ok(())
}

/// Removes the I/O scheduler of a device that was just started: for one with a single queue the kernel chooses `mq-deadline`
/// (`elevator_set_default`), and the disk below has one of its own, which knows all volumes. The device works with one, too.
fn remove_scheduler(roots: &Roots, device: &DeviceInfo) {
    let removed = block::devno_of(&device.node(roots)).and_then(|dev| block::set_scheduler(roots, dev, "none"));
    if let Err(error) = removed {
        tracing::warn!(device = device.name(), why = chain(&error), "the volume's device keeps its I/O scheduler");
    }
}

/// Registers a device and creates its node, unless the node of a device that was taken over exists.
fn publish(
    roots: &Roots,
    spec: &ServeSpec,
    device: &DeviceInfo,
    size: Bytes,
    taken_over: bool,
) -> Result<PathBuf, BlockdError> {
    servers::register(roots, device, spec)?;
    if taken_over && sized::size(roots, device).is_some() {
        return Ok(sized::node(roots, device));
    }
    Ok(sized::expose(roots, device, size)?)
}

/// Starts the background work, calls `report_ready`, and serves until the device is stopped.
fn run(roots: &Roots, spec: &ServeSpec, ready: Ready, lock: LockFile, report_ready: impl FnOnce()) {
    drop(lock);
    let Ready { target, work, threads, directory, .. } = ready;
    let path = spec.image.clone();
    // The volume works without any of this.
    let (counted, served) = (Arc::clone(&target), Arc::clone(&target));
    let started = match work {
        Some((Work::Fill, gate)) => {
            let file = target.parts().0.file().try_clone();
            file.map_err(|source| StartError::at("duplicate the descriptor of the image")(source).into())
                .map(|file| Filler::new(file, &path))
                .and_then(|filler| spawn("filler", move || fill::run(&gate, &filler)))
                .map(drop)
        }
        Some((Work::Flatten, gate)) => spawn("flattener", move || flatten::run(&gate, &target, &path)).map(drop),
        None => Ok(()),
    };
    let started = started
        .and_then(|()| Ok(background::detach_mounts(&servers::dir(roots))?))
        .and_then(|()| Ok(background::change_dir(&directory)?))
        .and_then(|()| {
            let path = read_counts::relative_path(spec.volume);
            let write = move || counted.layer_reader().into_iter().for_each(|reader| reader.write_counts(&path));
            spawn("counts", write).map(drop)
        });
    if let Err(error) = started {
        tracing::error!(why = chain(&error), "the volume is served, but its background work does not run");
    }
    tracing::info!(image = %spec.image.display(), "serving");
    report_ready();
    for thread in threads {
        // A panic of a queue aborts the process (`Queue::run`).
        let _ = thread.join();
    }
    if let Some(turns) = served.turns() {
        turns.leave();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, BlockdError> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    Ok(thread.spawn(run).map_err(StartError::at("start a thread"))?)
}
