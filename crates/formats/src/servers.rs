//! What the ublk devices of ours serve: their servers tell it in `/run/bulkhead/blockd`, for whoever finds a device, with its server
//! or without.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::backend::device_owner;
use bulkhead_core::heat::Heat;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_sys::block::{self, BlockError, Stack};
use bulkhead_sys::file::{self, FileError, LockFile};
use bulkhead_sys::lvm::Lvm;
use bulkhead_sys::process::Handle;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::{Control, DeviceInfo, Owners, UblkError};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{FlockOperation, flock, inotify};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::peers::access;

/// The name of the peer reader's socket in the directory of servers.
pub const PEERS_SOCKET: &str = "siblings.sock";

/// The directory below that of servers in which they tell what they read from where.
const HEAT_DIR: &str = "heat";

/// The directory below that of servers whose files name the disks that udev must not probe (`packaging/60-bulkhead.rules`).
const UNPROBED_DIR: &str = "unprobed";

/// How many requests a volume can have under way, if nothing else is said: what two layers of usual devices keep busy.
pub const REQUESTS: u16 = 64;

/// The file that is told of a disk.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// A number that is given once for each disk since boot, so that what was told of another of the same name is not believed.
    disk_sequence: String,
    service: ServeSpec,
}

/// Where it is told.
#[must_use]
pub fn dir(roots: &Roots) -> PathBuf {
    roots.base.join("run/bulkhead/blockd")
}

/// The log of a volume's server.
#[must_use]
pub fn log_file(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(format!("{volume}.log"))
}

/// Where servers and the daemon find the peer reader.
#[must_use]
pub fn peers_socket(roots: &Roots) -> PathBuf {
    dir(roots).join(PEERS_SOCKET)
}

/// Where a volume's server tells what it has read from where.
#[must_use]
pub fn heat_file(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(heat_name(volume))
}

/// Its path from the directory of servers. It is in a directory of its own because it is replaced every second: whoever waits for servers
/// that come and go ([`Watch`]) would be woken each time.
#[must_use]
pub fn heat_name(volume: Uuid) -> PathBuf {
    Path::new(HEAT_DIR).join(volume.to_string())
}

/// What a volume's server has read from where; nothing when it has none, or read nothing so far.
///
/// # Errors
/// [`FileError`].
pub fn heat(roots: &Roots, volume: Uuid) -> Result<Heat, FileError> {
    let path = heat_file(roots, volume);
    match file::read_limited(&path, Bytes::mib(1)) {
        Err(error) if error.is_not_found() => Ok(Heat::default()),
        read => {
            let parsed = serde_json::from_slice::<Heat>(&read?).map_err(io::Error::from);
            let known = parsed.and_then(|heat| match heat.version {
                Heat::VERSION => Ok(heat),
                other => Err(io::Error::other(format!("it is of version {other}, and {} is read", Heat::VERSION))),
            });
            known.map_err(|source| FileError::io("understand", path, source))
        }
    }
}

/// Removes what a volume's server told of what it read, and what a server left that was killed while it did.
fn forget_heat(roots: &Roots, volume: Uuid) -> Result<(), FileError> {
    let directory = dir(roots).join(HEAT_DIR);
    let failed = |source| FileError::io("list", &directory, source);
    let listed = match fs::read_dir(&directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        listed => listed.map_err(failed)?,
    };
    for entry in listed {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if name == volume.to_string() || name.starts_with(&format!(".{volume}.")) {
            file::remove_durable(&directory.join(&name))?;
        }
    }
    Ok(())
}

/// Removes the access tables that no server uses.
///
/// # Errors
/// [`FileError::Io`].
pub fn sweep_tables(roots: &Roots) -> Result<(), FileError> {
    let failed = |source| FileError::io("list", dir(roots), source);
    for entry in fs::read_dir(dir(roots)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if !entry.file_name().to_string_lossy().starts_with(access::PREFIX) {
            continue;
        }
        let path = entry.path();
        let failed = |source| FileError::io("remove", &path, source);
        let table = match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened.map_err(failed)?,
        };
        if flock(&table, FlockOperation::NonBlockingLockExclusive).is_ok() {
            file::remove_durable(&path)?;
        }
    }
    Ok(())
}

/// Waits until nobody starts or removes the server of a volume, and keeps others from it until the lock is dropped.
///
/// # Errors
/// [`FileError::AlreadyLocked`] after `limit`, [`FileError::Io`].
pub fn lock(roots: &Roots, volume: Uuid, limit: Duration) -> Result<LockFile, FileError> {
    let path = lock_file(roots, volume);
    fs::create_dir_all(dir(roots)).map_err(file::io_error("make the directory of", &path))?;
    file::lock_exclusive_within(&path, limit)
}

/// Removes what is left of a volume that has no device any more: the log, what was counted, tables that nobody else uses, and the lock,
/// which the caller has.
///
/// # Errors
/// [`FileError`].
pub fn clean_up(roots: &Roots, volume: Uuid) -> Result<(), FileError> {
    file::remove_durable(&log_file(roots, volume))?;
    forget_heat(roots, volume)?;
    sweep_tables(roots)?;
    renounce(roots, device_owner(volume))?;
    file::remove_durable(&lock_file(roots, volume)).map(drop)
}

fn lock_file(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(format!("{volume}.lock"))
}

/// What a disk serves, by its kernel name, when it is one of ours and told so.
#[must_use]
pub fn of(roots: &Roots, name: &str) -> Option<ServeSpec> {
    let told: Told = serde_json::from_slice(&fs::read(dir(roots).join(name)).ok()?).ok()?;
    (disk_sequence(roots, name)? == told.disk_sequence).then_some(told.service)
}

/// The same by the number of its device.
#[must_use]
pub fn of_device(roots: &Roots, id: u32) -> Option<ServeSpec> {
    of(roots, &format!("ublkb{id}"))
}

/// What a disk of ours serves when it is told to be another image than this.
#[must_use]
pub fn other_image(roots: &Roots, name: &str, image: &Path) -> Option<PathBuf> {
    of(roots, name).map(|told| told.image).filter(|told| told != image)
}

/// The stack of a device ([`block::stack`]), through the images that servers of ours serve.
///
/// # Errors
/// Those of [`block::stack`].
pub fn stack(roots: &Roots, dev: DevNo) -> Result<Stack, BlockError> {
    block::stack(roots, dev, &|name| of(roots, name).map(|told| told.image))
}

/// [`block::is_physical`], with devices that servers of ours serve known.
#[must_use]
pub fn is_physical(roots: &Roots, dev: DevNo) -> bool {
    block::is_physical(roots, dev, &|name| of(roots, name).map(|told| told.image))
}

/// LVM, kept away from the volumes that servers of ours serve.
#[must_use]
pub fn lvm() -> Lvm {
    Lvm::new(|| all(&Roots::host()).unwrap_or_default().into_iter().map(|(id, _)| id).collect())
}

/// The device that has `owner` written on it ([`Control::find`]); first the one that probably has.
///
/// # Errors
/// Those of [`Control::find`].
pub fn find(control: &mut Control, roots: &Roots, owner: u64, known: &Owners) -> Result<Option<DeviceInfo>, UblkError> {
    match probable(roots, owner).map(|id| control.info(id)).transpose()?.flatten() {
        Some(probable) if probable.owner == owner => Ok(Some(probable)),
        _ => control.find(roots, owner, known),
    }
}

/// [`find`] for a process without a memo of owners: `None` if no device of this owner was [announced](announce), in place of a query of
/// each device.
///
/// # Errors
/// Those of [`Control::find`].
pub fn find_announced(control: &mut Control, roots: &Roots, owner: u64) -> Result<Option<DeviceInfo>, UblkError> {
    if is_announced(roots, owner) { find(control, roots, owner, &Owners::default()) } else { Ok(None) }
}

/// Why a device could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// The driver refuses, or its server does not end.
    #[error(transparent)]
    Ublk(#[from] UblkError),
    /// Its entry in the registry cannot be removed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Removes a device that is not in use, and its entry, and waits until its server has ended. Idempotent.
///
/// # Errors
/// [`RemovalError`], with [`UblkError::Busy`] while the device is mounted or held.
pub fn remove(control: &mut Control, roots: &Roots, device: &DeviceInfo) -> Result<(), RemovalError> {
    let stopped = control.stop(roots, device)?;
    // Its number is free once it is deleted.
    unmark(roots, device)?;
    control.delete(&stopped)?;
    forget(roots, device)?;
    Ok(stopped.wait_for_server()?)
}

/// What all disks of ours serve, by the numbers of their devices.
///
/// # Errors
/// When the directory cannot be read.
pub fn all(roots: &Roots) -> io::Result<Vec<(u32, ServeSpec)>> {
    let listed = match fs::read_dir(dir(roots)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        listed => listed?,
    };
    let mut all = Vec::new();
    for entry in listed {
        let name = entry?.file_name();
        all.extend(name.to_str().and_then(|name| Some((device_of(name)?, of(roots, name)?))));
    }
    Ok(all)
}

/// Tells what a started device serves, and where to look for a volume's device.
///
/// # Errors
/// [`FileError`]; `NotFound` when the disk is not there.
pub fn tell(roots: &Roots, device: &DeviceInfo, spec: &ServeSpec) -> Result<(), FileError> {
    let path = dir(roots).join(device.name());
    let failed = |operation| file::io_error(operation, &path);
    let gone = || failed("tell of the disk in")(io::ErrorKind::NotFound.into());
    let disk_sequence = disk_sequence(roots, &device.name()).ok_or_else(gone)?;
    let told = Told { disk_sequence, service: spec.clone() };
    let content = serde_json::to_vec(&told).map_err(|error| failed("write")(error.into()))?;
    write(&path, &content)?;
    write(&hint(roots, device_owner(spec.volume)), device.id.to_string().as_bytes())
}

/// Replaces a file atomically, and creates its directory if it is missing.
fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    if let Some(place) = path.parent() {
        fs::create_dir_all(place).map_err(file::io_error("make the directory of", path))?;
    }
    file::write_atomic(path, content)
}

/// Waits for servers that come and go. What a wait costs does not grow with their number.
#[derive(Debug)]
pub struct Watch {
    events: OwnedFd,
    changes: OwnedFd,
    woken: OwnedFd,
}

/// What has happened since the last wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// The devices of which something else is told, or nothing any more, and those whose servers have ended, by their numbers.
    pub at: BTreeSet<u32>,
    /// So much that not all of it is known: any device may be another.
    pub missed: bool,
}

/// What [`Watch`] waits for, beside the ends of servers, which have the numbers of their devices.
const CHANGES: u64 = u64::MAX;
const WOKEN: u64 = u64::MAX - 1;

/// So many events are taken at a time; more come with the next wait.
const EVENTS: usize = 64;

impl Watch {
    /// Watches the directory, which is made if need be.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(roots: &Roots) -> io::Result<Self> {
        fs::create_dir_all(dir(roots))?;
        let changes = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&changes, dir(roots), inotify::WatchFlags::MOVED_TO | inotify::WatchFlags::DELETE)?;
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (fd, key) in [(&changes, CHANGES), (&woken, WOKEN)] {
            epoll::add(&events, fd, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?;
        }
        Ok(Self { events, changes, woken })
    }

    /// Waits for the end of the server of a device as well, until the handle is dropped.
    ///
    /// # Errors
    /// The operating system's.
    pub fn add(&self, id: u32, server: &Handle) -> io::Result<()> {
        Ok(epoll::add(&self.events, server, epoll::EventData::new_u64(id.into()), epoll::EventFlags::IN)?)
    }

    /// Waits until something else is told, or a server has ended, or somebody woke it, or `limit`; it may return for nothing. That a
    /// server has ended is said each time, until its handle is dropped.
    pub fn wait(&self, limit: Option<Duration>) -> Happened {
        let mut happened = Happened::default();
        let mut events = Vec::with_capacity(EVENTS);
        let limit = limit.map(|limit| Timespec::try_from(limit).unwrap_or_default());
        // A signal: whoever waits looks again.
        let _ = epoll::wait(&self.events, spare_capacity(&mut events), limit.as_ref());
        for event in events {
            match event.data.u64() {
                CHANGES => self.read_changes(&mut happened),
                WOKEN => {
                    // The counter of an eventfd: one read takes all of it.
                    let _ = rustix::io::read(&self.woken, &mut [0; 8]);
                }
                id => happened.at.extend(u32::try_from(id).ok()),
            }
        }
        happened
    }

    fn read_changes(&self, happened: &mut Happened) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut changes = inotify::Reader::new(&self.changes, &mut buffer);
        // Until there are none left.
        while let Ok(change) = changes.next() {
            happened.missed |= change.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW);
            happened.at.extend(change.file_name().and_then(|name| device_of(name.to_str().ok()?)));
        }
    }

    /// Has [`Watch::wait`] return, now or when it is called next.
    pub fn wake(&self) {
        // Fails only when so many have done it that it is awake anyway.
        let _ = rustix::io::write(&self.woken, &1u64.to_ne_bytes());
    }
}

/// The number of the device of which a file of this name tells.
fn device_of(name: &str) -> Option<u32> {
    name.strip_prefix("ublkb")?.parse().ok()
}

/// Excludes the disk of a device from udev's probing. To be called before the disk exists, and with it udev's first event.
///
/// # Errors
/// [`FileError`].
pub fn mark_unprobed(roots: &Roots, device: &DeviceInfo) -> Result<(), FileError> {
    write(&unprobed(roots, device), b"")
}

/// Undoes [`mark_unprobed`]. To be called before the device is deleted, which frees its number for devices that are not ours.
///
/// # Errors
/// [`FileError`].
fn unmark(roots: &Roots, device: &DeviceInfo) -> Result<(), FileError> {
    file::remove_durable(&unprobed(roots, device)).map(drop)
}

fn unprobed(roots: &Roots, device: &DeviceInfo) -> PathBuf {
    dir(roots).join(UNPROBED_DIR).join(device.name())
}

/// Forgets what was told of a device.
///
/// # Errors
/// [`FileError`].
fn forget(roots: &Roots, device: &DeviceInfo) -> Result<(), FileError> {
    file::remove_durable(&dir(roots).join(device.name()))?;
    renounce(roots, device.owner)
}

/// Announces a device of this owner, before its creation; [`tell`] adds its number. Without an announcement, a server need not query all
/// devices for their owners.
///
/// # Errors
/// [`FileError`].
pub fn announce(roots: &Roots, owner: u64) -> Result<(), FileError> {
    write(&hint(roots, owner), b"")
}

/// Removes the announcement.
///
/// # Errors
/// [`FileError`].
pub fn renounce(roots: &Roots, owner: u64) -> Result<(), FileError> {
    file::remove_durable(&hint(roots, owner)).map(drop)
}

/// Whether a device of this owner is announced: it exists, or its creation or removal was cut off.
#[must_use]
pub fn is_announced(roots: &Roots, owner: u64) -> bool {
    hint(roots, owner).exists()
}

/// The number of the device that probably has this owner: with many devices, asking each would take long.
fn probable(roots: &Roots, owner: u64) -> Option<u32> {
    fs::read_to_string(hint(roots, owner)).ok()?.trim().parse().ok()
}

fn hint(roots: &Roots, owner: u64) -> PathBuf {
    dir(roots).join(format!("owner-{owner:016x}"))
}

fn disk_sequence(roots: &Roots, name: &str) -> Option<String> {
    let text = fs::read_to_string(roots.sys.join("block").join(name).join("diskseq")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
