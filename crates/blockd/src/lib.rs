//! The block server: one process that serves one volume's image as a ublk device, with direct I/O.
//!
//! A loop device turns every flush into an fsync of the image, and each of those commits the journal of the file system that
//! the image is in, which all volumes of the pool share. This server issues `fdatasync(2)` on an image whose blocks are all
//! written, which commits nothing (FACTS.md §2); and it does all of a volume's I/O from its own cgroup, so that journal,
//! flushes and checkpoints are charged to the volume's tenant without touching a kernel thread.
//!
//! Owns: the order in which a device comes to be and is taken over, and what each request does to the image. Does not: decide
//! when that happens (the daemon does), nor know the kernel's interface (`bulkhead_sys::ublk`).

#![forbid(unsafe_code)]

mod fill;
mod image;
mod layers;
mod volume;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bulkhead_core::backend::device_owner;
use bulkhead_core::error::chain;
use bulkhead_core::units::Bytes;
use bulkhead_sys::background::{self, BackgroundError, Report, Side};
use bulkhead_sys::cgroup::{self, CgroupError, CgroupPathError};
use bulkhead_sys::image::Filler;
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::queue::Queue;
use bulkhead_sys::ublk::service::{self, Service};
use bulkhead_sys::ublk::{self, Control, DeviceInfo, Spec, State, UblkError, sized};
use fill::Gate;
use image::{Image, ImageError};
use layers::Layers;
use volume::Volume;

/// Requests under way in all queues together: what two layers of usual devices keep busy.
const REQUESTS: u16 = 64;

/// Queues at most: each has a thread.
const MAX_QUEUES: u16 = 4;

/// The largest request. With [`REQUESTS`] it is the memory that a server locks: 8 MiB.
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
    /// Its cgroup is none.
    #[error(transparent)]
    CgroupPath(#[from] CgroupPathError),
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
/// `begin` is called in the server's process before anything else, for its log.
///
/// # Errors
/// [`BlockdError`]; nothing is left behind then. Call it before any thread is started.
pub fn start(roots: &Roots, service: &Service, begin: impl FnOnce()) -> Result<Option<PathBuf>, BlockdError> {
    let log = service::log_file(roots, service.volume);
    std::fs::create_dir_all(service::dir(roots))
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
            if let Err(error) = serve(roots, service, &mut report) {
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

fn serve(roots: &Roots, service: &Service, report: &mut Option<Report>) -> Result<(), BlockdError> {
    if let Some(cgroup) = &service.cgroup {
        cgroup::move_pid(roots, std::process::id(), &cgroup.parse()?)?;
    }
    background::become_server(roots)?;
    let mut control = Control::open(roots)?;
    let features = control.features()?;
    let owner = device_owner(service.volume);
    let found = control.find(roots, owner)?;
    if let Some(device) = found.filter(|device| device.state != State::Dead) {
        let Some(node) = take_over(roots, &mut control, &device)? else {
            tell_ready(report, &sized::node(roots, &device));
            return Ok(());
        };
        let image = Image::open(roots, &service.image)?;
        if let Some(wanted) = sized::size(roots, &device).filter(|wanted| *wanted > image.size()) {
            return Err(BlockdError::CutOff { image: service.image.clone(), found: image.size(), wanted });
        }
        return run(roots, service, &mut control, &device, node, image, true, report);
    }
    let image = Image::open(roots, &service.image)?;
    // Left by a server that died before its device was started.
    if let Some(left) = found {
        control.remove(roots, &left)?;
    }
    let queues = thread::available_parallelism().map_or(1, |n| u16::try_from(n.get()).unwrap_or(MAX_QUEUES));
    let queues = queues.min(MAX_QUEUES);
    let device = control.add(&Spec { owner, queues, depth: REQUESTS / queues, max_io_bytes: MAX_IO_BYTES })?;
    let params = image.params(sized::disk_size(features, image.size()), service.discards);
    let served = control
        .set_params(&device, &params)
        .and_then(|()| ublk::open_device(roots, device.id))
        .map_err(BlockdError::from)
        .and_then(|node| run(roots, service, &mut control, &device, node, image, false, report));
    if served.is_err() {
        // The first error is the one to tell; what is left without a server is removed by the next.
        let _ = control.remove(roots, &device);
    }
    served
}

/// Begins to take over a device whose server is gone, when all that it had under way has come to its end: returns the node through
/// which its requests come. `None` when somebody serves it.
fn take_over(roots: &Roots, control: &mut Control, device: &DeviceInfo) -> Result<Option<File>, UblkError> {
    let give_up = Instant::now() + TAKE_OVER_LIMIT;
    loop {
        let now = control.info(device.id)?.unwrap_or(*device);
        let unknown =
            |source| UblkError::Node { operation: "look for the server of", path: device.node(roots), source };
        if now.server().map_err(unknown)?.is_some() {
            return Ok(None);
        }
        match control.start_recovery(device.id).and_then(|()| ublk::open_device(roots, device.id)) {
            Err(error) if error.is_busy() && Instant::now() < give_up => process::pause(TAKE_OVER_PAUSE),
            taken => return taken.map(Some),
        }
    }
}

/// Serves a device that was added or is being taken over, until it is stopped. After an error this process has to end: threads
/// of it may still wait for requests.
#[expect(clippy::too_many_arguments, reason = "what was found out on the way here, and all of it is needed")]
fn run(
    roots: &Roots,
    service: &Service,
    control: &mut Control,
    device: &DeviceInfo,
    node: File,
    image: Image,
    taken_over: bool,
    report: &mut Option<Report>,
) -> Result<(), BlockdError> {
    let node = Arc::new(node);
    let size = image.size();
    let layers = Layers::open(&image, &service.image, service.layered)?;
    // What an image does not own is not to be filled with zeroes.
    let gate = (!service.discards && layers.is_none()).then(|| Arc::new(Gate::new()));
    let target = Arc::new(Volume::new(image, layers, service.discards, gate.clone()));
    let (made, hears) = channel();
    let mut threads = Vec::new();
    for idx in 0..device.queues {
        let (made, node, target, device) = (made.clone(), Arc::clone(&node), Arc::clone(&target), *device);
        threads.push(spawn(&format!("queue-{idx}"), move || run_queue(&node, &device, idx, target.as_ref(), made))?);
    }
    drop(made);
    hears.iter().collect::<Result<Vec<()>, BlockdError>>()?;
    if taken_over {
        control.end_recovery(device.id)?;
    } else {
        control.start(device.id)?;
    }
    service::tell(roots, device, service).map_err(UblkError::from)?;
    let exposed = sized::expose(roots, device, size)?;
    if let Some(gate) = gate {
        // One that cannot be prepared can be used all the same.
        match Filler::open(&service.image) {
            Ok(filler) => spawn("filler", move || fill::run(&gate, &filler)).map(drop)?,
            Err(error) => tracing::error!(why = chain(&error), "the image cannot be prepared"),
        }
    }
    background::forget_mounts(&service::dir(roots))?;
    tracing::info!(image = %service.image.display(), device = device.id, taken_over, "serving");
    tell_ready(report, &exposed);
    for thread in threads {
        // A thread that panicked has ended the process already (see `Queue::run`).
        let _ = thread.join();
    }
    Ok(())
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

fn run_queue(node: &File, device: &DeviceInfo, idx: u16, target: &Volume, made: Sender<Result<(), BlockdError>>) {
    match background::check_flusher().map_err(BlockdError::from).and_then(|()| Ok(Queue::new(node, device, idx)?)) {
        // Nobody listens when another queue has failed already.
        Err(error) => drop(made.send(Err(error))),
        Ok(queue) => {
            let wanted = made.send(Ok(())).is_ok();
            drop(made);
            if wanted {
                queue.run(target);
            }
        }
    }
}
