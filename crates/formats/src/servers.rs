//! The registry of block servers, `/run/bulkhead/blockd`: which ublk device serves which volume. A server writes its entry, and any
//! process that finds a device reads it, whether the server still runs or not.
//!
//! Owns: the entries, the owner files, the lock of each volume's server, and the names of the other files there. Does not: start
//! servers or decide when a device is removed (the engine does).

mod watcher;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::backend::device_owner;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::units::DevNo;
use bulkhead_sys::block::{self, BlockError, Stack};
use bulkhead_sys::file::{self, FileError, LockFile};
use bulkhead_sys::lvm::Lvm;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::{Control, DeviceInfo, Owners, UblkError};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use self::watcher::{RegistryChanges, RegistryWatcher};
use crate::peers::access;
use crate::{arbiter, read_counts};

/// Name of the peer reader's socket in the registry. Block servers of earlier versions, which keep running across an upgrade, connect
/// to this name.
pub const PEERS_SOCKET: &str = "siblings.sock";

/// Name of the lock that the peer reader holds while it runs; the same in all versions, so that there is one reader on a host.
pub const PEERS_LOCK: &str = "siblings.lock";

/// Name of the peer reader's log.
pub const PEERS_LOG: &str = "peers.log";

/// Directory in the registry whose files name the disks that udev must not probe (`packaging/60-bulkhead.rules`).
const UNPROBED_DIR: &str = "unprobed";

/// Requests that a volume can have in flight by default: enough to saturate two layers of common devices.
pub const DEFAULT_REQUESTS: u16 = 64;

/// The entry of a disk.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    /// The disk's sequence number (`diskseq`), which is unique since boot: an entry of an earlier disk with the same name is ignored.
    disk_sequence: String,
    service: ServeSpec,
}

/// The directory of the registry.
#[must_use]
pub fn dir(roots: &Roots) -> PathBuf {
    roots.base.join("run/bulkhead/blockd")
}

/// The log of a volume's server.
#[must_use]
pub fn log_file(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(format!("{volume}.log"))
}

/// The socket of the peer reader.
#[must_use]
pub fn peers_socket(roots: &Roots) -> PathBuf {
    dir(roots).join(PEERS_SOCKET)
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

/// Takes the lock under which a volume's server is started or removed, and waits for it for at most `limit`.
///
/// # Errors
/// [`FileError::AlreadyLocked`] after `limit`, [`FileError::Io`].
pub fn lock(roots: &Roots, volume: Uuid, limit: Duration) -> Result<LockFile, FileError> {
    let path = lock_file(roots, volume);
    fs::create_dir_all(dir(roots)).map_err(file::io_error("make the directory of", &path))?;
    file::lock_exclusive_within(&path, limit)
}

/// Removes the files of a volume that no longer has a device: its log, its read counts, unused access tables, and the lock, which the
/// caller holds.
///
/// # Errors
/// [`FileError`].
pub fn clean_up(roots: &Roots, volume: Uuid) -> Result<(), FileError> {
    file::remove_durable(&log_file(roots, volume))?;
    read_counts::remove(roots, volume)?;
    arbiter::remove_pipe(roots, volume)?;
    sweep_tables(roots)?;
    renounce(roots, device_owner(volume))?;
    file::remove_durable(&lock_file(roots, volume)).map(drop)
}

fn lock_file(roots: &Roots, volume: Uuid) -> PathBuf {
    dir(roots).join(format!("{volume}.lock"))
}

/// What a disk serves, by its kernel name; `None` if it has no valid entry.
#[must_use]
pub fn spec_of_disk(roots: &Roots, name: &str) -> Option<ServeSpec> {
    let entry: Entry = serde_json::from_slice(&fs::read(dir(roots).join(name)).ok()?).ok()?;
    (disk_sequence(roots, name)? == entry.disk_sequence).then_some(entry.service)
}

/// [`spec_of_disk`] by the number of the ublk device.
#[must_use]
pub fn spec_of_device(roots: &Roots, id: u32) -> Option<ServeSpec> {
    spec_of_disk(roots, &format!("ublkb{id}"))
}

/// The image that a disk serves, if it is not `image`.
#[must_use]
pub fn other_image(roots: &Roots, name: &str, image: &Path) -> Option<PathBuf> {
    spec_of_disk(roots, name).map(|spec| spec.image).filter(|served| served != image)
}

/// The stack of a device ([`block::stack`]), followed through the images that block servers serve.
///
/// # Errors
/// Those of [`block::stack`].
pub fn stack(roots: &Roots, dev: DevNo) -> Result<Stack, BlockError> {
    block::stack(roots, dev, &|name| spec_of_disk(roots, name).map(|spec| spec.image))
}

/// [`block::is_physical`], which is false for the devices of block servers.
#[must_use]
pub fn is_physical(roots: &Roots, dev: DevNo) -> bool {
    block::is_physical(roots, dev, &|name| spec_of_disk(roots, name).map(|spec| spec.image))
}

/// LVM, which must not scan the volumes that block servers serve.
#[must_use]
pub fn lvm() -> Lvm {
    Lvm::new(|| list(&Roots::host()).unwrap_or_default().into_iter().map(|(id, _)| id).collect())
}

/// Finds the device that belongs to `owner` ([`Control::find`]), and queries the device in the owner file first.
///
/// # Errors
/// Those of [`Control::find`].
pub fn find(control: &mut Control, roots: &Roots, owner: u64, known: &Owners) -> Result<Option<DeviceInfo>, UblkError> {
    match registered_device(roots, owner).map(|id| control.info(id)).transpose()?.flatten() {
        Some(device) if device.owner == owner => Ok(Some(device)),
        _ => control.find(roots, owner, known),
    }
}

/// [`find`] for a process that has not cached the owners of devices: returns `None` without a query of each device if no device of this
/// owner was [announced](announce).
///
/// # Errors
/// Those of [`Control::find`].
pub fn find_announced(control: &mut Control, roots: &Roots, owner: u64) -> Result<Option<DeviceInfo>, UblkError> {
    if is_announced(roots, owner) { find(control, roots, owner, &Owners::default()) } else { Ok(None) }
}

/// Why a device could not be removed.
#[derive(Debug, thiserror::Error)]
pub enum RemovalError {
    /// The driver refuses, or the server does not exit.
    #[error(transparent)]
    Ublk(#[from] UblkError),
    /// Its entry cannot be removed.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Removes a device that is not in use, with its entry, and waits until its server has exited. Idempotent.
///
/// # Errors
/// [`RemovalError`], with [`UblkError::Busy`] while the device is mounted or open.
pub fn remove(control: &mut Control, roots: &Roots, device: &DeviceInfo) -> Result<(), RemovalError> {
    let stopped = control.stop(roots, device)?;
    // Once it is deleted, its number is free for others, and who repeats the removal no longer finds it.
    unregister(roots, device)?;
    control.delete(&stopped)?;
    renounce(roots, device.owner)?;
    Ok(stopped.wait_for_server()?)
}

/// All entries, by the numbers of their devices.
///
/// # Errors
/// When the directory cannot be read.
pub fn list(roots: &Roots) -> io::Result<Vec<(u32, ServeSpec)>> {
    let files = match fs::read_dir(dir(roots)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        files => files?,
    };
    let mut entries = Vec::new();
    for file in files {
        let name = file?.file_name();
        entries.extend(name.to_str().and_then(|name| Some((device_number(name)?, spec_of_disk(roots, name)?))));
    }
    Ok(entries)
}

/// Writes the entry of a started device, and its number into the owner file.
///
/// # Errors
/// [`FileError`]; `NotFound` if the disk does not exist.
pub fn register(roots: &Roots, device: &DeviceInfo, spec: &ServeSpec) -> Result<(), FileError> {
    let path = dir(roots).join(device.name());
    let failed = |operation| file::io_error(operation, &path);
    let gone = || failed("register the disk in")(io::ErrorKind::NotFound.into());
    let disk_sequence = disk_sequence(roots, &device.name()).ok_or_else(gone)?;
    let entry = Entry { disk_sequence, service: spec.clone() };
    let content = serde_json::to_vec(&entry).map_err(|error| failed("write")(error.into()))?;
    write(&path, &content)?;
    write(&owner_file(roots, device_owner(spec.volume)), device.id.to_string().as_bytes())
}

/// Replaces a file atomically, and creates its directory if necessary.
fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).map_err(file::io_error("make the directory of", path))?;
    }
    file::write_atomic(path, content)
}

/// The number of the device whose entry has this file name.
fn device_number(name: &str) -> Option<u32> {
    name.strip_prefix("ublkb")?.parse().ok()
}

/// Excludes the disk of a device from udev's probing. Call it before the disk exists, because udev's first event follows at once.
///
/// # Errors
/// [`FileError`].
pub fn mark_unprobed(roots: &Roots, device: &DeviceInfo) -> Result<(), FileError> {
    write(&unprobed_file(roots, device), b"")
}

/// Removes the files that bear the number of a device: its entry, and the mark of its disk.
///
/// # Errors
/// [`FileError`].
fn unregister(roots: &Roots, device: &DeviceInfo) -> Result<(), FileError> {
    file::remove_durable(&unprobed_file(roots, device))?;
    file::remove_durable(&dir(roots).join(device.name())).map(drop)
}

fn unprobed_file(roots: &Roots, device: &DeviceInfo) -> PathBuf {
    dir(roots).join(UNPROBED_DIR).join(device.name())
}

/// Announces a device of this owner before its creation: writes an empty owner file, to which [`register`] adds the device's number.
/// If there is no owner file, a server need not query all devices for their owners.
///
/// # Errors
/// [`FileError`].
pub fn announce(roots: &Roots, owner: u64) -> Result<(), FileError> {
    write(&owner_file(roots, owner), b"")
}

/// Removes the owner file.
///
/// # Errors
/// [`FileError`].
pub fn renounce(roots: &Roots, owner: u64) -> Result<(), FileError> {
    file::remove_durable(&owner_file(roots, owner)).map(drop)
}

/// Whether a device of this owner is announced: it exists, or its creation or removal was interrupted.
#[must_use]
pub fn is_announced(roots: &Roots, owner: u64) -> bool {
    owner_file(roots, owner).exists()
}

/// The device number in the owner file. With many devices it takes long to query each for its owner.
fn registered_device(roots: &Roots, owner: u64) -> Option<u32> {
    fs::read_to_string(owner_file(roots, owner)).ok()?.trim().parse().ok()
}

fn owner_file(roots: &Roots, owner: u64) -> PathBuf {
    dir(roots).join(format!("owner-{owner:016x}"))
}

fn disk_sequence(roots: &Roots, name: &str) -> Option<String> {
    let text = fs::read_to_string(roots.sys.join("block").join(name).join("diskseq")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests;
