//! Loop devices: list, find, attach, detach, grow (kernel `drivers/block/loop.c`, loop(4)).
//!
//! Owns: the ioctls of `/dev/loop-control` and `/dev/loopN`, and `/sys/block/loopN/loop`. The direct I/O flag is read back after each
//! attach, so that its loss is always reported.
//! Does not: create or allocate image files, or decide whether a loop device is adequate (docs/DECISIONS.md, "Block servers").

mod error;
mod held;
mod sysfs;
mod uapi;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_core::error::PathError;
use bulkhead_core::units::{Bytes, DevNo};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, NoArg, Setter, ioctl};

pub use self::error::LoopError;
pub use self::held::{HeldDevice, attach_memory, attach_read_only};
pub use self::sysfs::{find_by_backing, list};
use self::sysfs::{info, is_still_attached, loop_number, parse_number, read_trimmed};
use self::uapi::{
    GetFree, LO_FLAGS_AUTOCLEAR, LO_FLAGS_DIRECT_IO, LO_FLAGS_READ_ONLY, LO_NAME_SIZE, LoopConfig, LoopInfo64, request,
};
use crate::block::{self, InUse};
use crate::file::flock_within;
use crate::process::pause;
use crate::roots::Roots;

/// Preferred logical block size in bytes, if the image permits it: a multiple of the block size of all common devices.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;

/// Time limit for [`detach`] until the kernel has released the file, and for [`attach`] until the device node exists or a concurrent
/// attach of the image has finished.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Poll interval.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// Attempts of [`attach`] to get a free device, in a race with other processes.
const MAX_RACES: u32 = 64;

/// Identity of a loop device's backing file, independent of names (`lo_device` and `lo_inode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingId {
    /// `st_dev` of the backing file.
    pub dev: DevNo,
    /// `st_ino` of the backing file.
    pub inode: u64,
}

/// An attached loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopInfo {
    /// Device node, `/dev/loopN`.
    pub dev_path: PathBuf,
    /// Device number.
    pub dev: DevNo,
    /// Backing file as the kernel reports it: a path in the reader's mount namespace, with ` (deleted)` after an unlink.
    pub backing_file: PathBuf,
    /// Device and inode of the backing file; `None` if the device node could not be queried.
    pub backing: Option<BackingId>,
    /// Offset of the device in the backing file.
    pub offset: Bytes,
    /// Size of the used part of the backing file; 0 means all (`lo_sizelimit`).
    pub size_limit: Bytes,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it accesses the backing file by direct I/O, as read back from the kernel.
    pub direct_io: bool,
    /// Why direct I/O is off although [`attach`] requested it; `None` if it is on or was not requested.
    pub direct_io_lost: Option<String>,
    /// Whether the kernel detaches it at its last close (`LO_FLAGS_AUTOCLEAR`).
    pub autoclear: bool,
    /// Logical block size in bytes.
    pub block_size: u32,
}

/// How to attach an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Access the image by direct I/O, bypassing the host's page cache. If that is not possible, [`LoopInfo::direct_io_lost`] has the
    /// reason.
    pub direct_io: bool,
    /// Logical block size in bytes: 512, 1024, 2048 or 4096. `None`: [`PREFERRED_BLOCK_BYTES`] if the image's size is a multiple of
    /// it, else 512. A file system created with smaller sectors (an imported image) needs the value it was created with.
    pub block_bytes: Option<u32>,
}

/// Attaches an image to a free loop device, or returns the device to which it is attached already.
///
/// Idempotent: an attached image keeps its device, and direct I/O is set as requested. Concurrent attaches of one image are serialised
/// by `flock(2)` on it. Afterwards the settings are read back from the kernel.
///
/// # Errors
/// [`LoopError::Conflict`] if it is attached with another access mode or block size than requested, and the other variants.
pub fn attach(roots: &Roots, image: &Path, options: AttachOptions) -> Result<LoopInfo, LoopError> {
    let image_error = |source: std::io::Error| LoopError::Image { image: image.to_owned(), source };
    let metadata = fs::metadata(image).map_err(image_error)?;
    if !metadata.is_file() {
        return Err(LoopError::Unsuitable { image: image.to_owned(), reason: "it is not a regular file" });
    }
    if metadata.len() < 512 {
        return Err(LoopError::Unsuitable { image: image.to_owned(), reason: "it is smaller than one sector" });
    }
    // A file description of its own: the kernel keeps the one it is given while the device is attached, and thereby the lock.
    let _lock = lock(image)?;
    let existing = match find_by_backing(roots, image)? {
        // A detach of a device in use has set autoclear: clear it, since the device is wanted again.
        Some(leaving) if leaving.autoclear => {
            clear_autoclear(&leaving)?;
            find_by_backing(roots, image)?
        }
        other => other,
    };
    let info = match existing {
        Some(existing) => {
            let conflict = |difference| LoopError::Conflict {
                image: image.to_owned(),
                device: existing.dev_path.clone(),
                difference,
            };
            if existing.read_only != options.read_only {
                return Err(conflict(if existing.read_only { "it is read-only" } else { "it is not read-only" }));
            }
            if options.block_bytes.is_some_and(|bytes| bytes != existing.block_size) {
                return Err(conflict("the block size"));
            }
            if existing.offset != Bytes(0) || existing.size_limit != Bytes(0) {
                return Err(conflict("it covers only a part of the image"));
            }
            existing
        }
        None => configure_free(roots, image, metadata.len(), options)?,
    };
    set_direct_io(roots, image, info, options.direct_io)
}

/// Detaches a loop device and waits until the kernel has released the backing file.
///
/// Idempotent: does nothing if the device is gone or has another backing file by now. A device that is mounted, swap or part of another
/// device is not changed.
///
/// # Errors
/// [`LoopError::Busy`] if the device is in use. If a program has the node open, the kernel detaches the device when that program closes
/// it (`LO_FLAGS_AUTOCLEAR` is set then).
pub fn detach(roots: &Roots, info: &LoopInfo) -> Result<(), LoopError> {
    if !is_still_attached(roots, info)? {
        return Ok(());
    }
    let busy = |reason: String| LoopError::Busy { device: info.dev_path.clone(), reason };
    let used = || {
        block::is_in_use(roots, info.dev)
            .map_err(|source| LoopError::Usage { device: info.dev_path.clone(), source: Box::new(source) })
    };
    // A claim without a visible reason may be a blkid run by udev, which ends while we wait below.
    if let Some(reason) = used()?.filter(|reason| !matches!(reason, InUse::Claimed)) {
        return Err(busy(reason.to_string()));
    }
    {
        let node = open_node(&info.dev_path, true)?;
        // SAFETY: LOOP_CLR_FD takes no argument (include/uapi/linux/loop.h), so no memory is shared with the kernel.
        let request = unsafe { NoArg::<{ request::LOOP_CLR_FD }>::new() };
        // SAFETY: `node` is a loop device node that we own, and the request is one of the loop driver's.
        match unsafe { ioctl(&node, request) } {
            Ok(()) | Err(Errno::NXIO) => {}
            Err(error) => return Err(device_error("LOOP_CLR_FD", &info.dev_path, error)),
        }
        // Closing the node completes the detach: the kernel clears a device at its last close.
    }
    let deadline = Instant::now() + WAIT_LIMIT;
    while is_still_attached(roots, info)? {
        if Instant::now() >= deadline {
            let reason = used()?.map_or_else(|| "a program has it open".to_owned(), |reason| reason.to_string());
            return Err(busy(reason));
        }
        pause(POLL_PAUSE);
    }
    Ok(())
}

/// Adjusts the device to a changed size of its image (`LOOP_SET_CAPACITY`); returns the new size.
///
/// # Errors
/// [`LoopError::Device`].
pub fn set_capacity(roots: &Roots, info: &LoopInfo) -> Result<Bytes, LoopError> {
    let node = open_node(&info.dev_path, true)?;
    // SAFETY: LOOP_SET_CAPACITY takes no argument (include/uapi/linux/loop.h), so no memory is shared with the kernel.
    let request = unsafe { NoArg::<{ request::LOOP_SET_CAPACITY }>::new() };
    // SAFETY: `node` is a loop device node that we own, and the request is one of the loop driver's.
    unsafe { ioctl(&node, request) }.map_err(|error| device_error("LOOP_SET_CAPACITY", &info.dev_path, error))?;
    let path = roots.sys.join("dev/block").join(info.dev.to_string()).join("size");
    let sectors: u64 = parse_number(&path, &read_trimmed(&path)?)?;
    Ok(Bytes(sectors.saturating_mul(512)))
}

/// Identity of the backing file of a loop device node; `None` if it cannot be queried (no node, no permission, not attached).
pub(crate) fn backing_id(node: &Path) -> Option<BackingId> {
    let status = get_status(&open_node(node, false).ok()?).ok()?;
    Some(BackingId { dev: decode_dev(status.lo_device), inode: status.lo_inode })
}

/// The path without the kernel's ` (deleted)` (kernel `d_path`).
pub(crate) fn strip_deleted(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    match bytes.strip_suffix(b" (deleted)") {
        Some(stripped) => Path::new(std::ffi::OsStr::from_bytes(stripped)),
        None => path,
    }
}

fn get_status(node: &OwnedFd) -> rustix::io::Result<LoopInfo64> {
    // SAFETY: `LoopInfo64` has the size and layout that LOOP_GET_STATUS64 writes (asserted in `uapi`), and any bytes are valid.
    let request = unsafe { Getter::<{ request::LOOP_GET_STATUS64 }, LoopInfo64>::new() };
    // SAFETY: the kernel fills the whole struct on success; other devices refuse the request without writing.
    unsafe { ioctl(node, request) }
}

/// Clears `LO_FLAGS_AUTOCLEAR` (kernel `LOOP_SET_STATUS_CLEARABLE_FLAGS`). Succeeds if the device was detached meanwhile.
fn clear_autoclear(info: &LoopInfo) -> Result<(), LoopError> {
    let result = open_node(&info.dev_path, !info.read_only).and_then(|node| {
        let mut status = get_status(&node).map_err(|error| device_error("LOOP_GET_STATUS64", &info.dev_path, error))?;
        status.lo_flags &= !LO_FLAGS_AUTOCLEAR;
        // SAFETY: `LoopInfo64` has the size and layout that LOOP_SET_STATUS64 reads (asserted in `uapi`).
        let request = unsafe { Setter::<{ request::LOOP_SET_STATUS64 }, LoopInfo64>::new(status) };
        // SAFETY: `node` is a loop device node that we own, and the struct is the one that its driver returned.
        unsafe { ioctl(&node, request) }.map_err(|error| device_error("LOOP_SET_STATUS64", &info.dev_path, error))
    });
    match result {
        Err(LoopError::Device(PathError { source, .. }))
            if source.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn lock(image: &Path) -> Result<OwnedFd, LoopError> {
    let error = |source| LoopError::Image { image: image.to_owned(), source };
    let fd = rustix::fs::open(image, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
    let fd = fd.map_err(|errno| error(errno.into()))?;
    match flock_within(&fd, FlockOperation::NonBlockingLockExclusive, WAIT_LIMIT, || ()) {
        Ok(true) => Ok(fd),
        Ok(false) => Err(LoopError::Locked { image: image.to_owned() }),
        Err(source) => Err(error(source)),
    }
}

/// Logical block size for an image of this size.
fn block_bytes_for(image_bytes: u64, wanted: Option<u32>) -> u32 {
    match wanted {
        Some(bytes) => bytes,
        None if image_bytes.is_multiple_of(u64::from(PREFERRED_BLOCK_BYTES)) => PREFERRED_BLOCK_BYTES,
        None => 512,
    }
}

fn configure_free(
    roots: &Roots,
    image: &Path,
    image_bytes: u64,
    options: AttachOptions,
) -> Result<LoopInfo, LoopError> {
    let mode = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let image_fd = rustix::fs::open(image, mode | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| LoopError::Image { image: image.to_owned(), source: error.into() })?;
    let config = config(&image_fd, image, block_bytes_for(image_bytes, options.block_bytes), options)?;
    let (number, node) = configure(roots, image, &image_fd, config)?;
    let vanished = || PathError::new("read the settings of", &node.path, std::io::ErrorKind::NotFound);
    Ok(info(roots, number)?.ok_or_else(vanished)?)
}

/// An open loop device node.
struct Node {
    path: PathBuf,
    fd: OwnedFd,
}

/// Attaches a file to a free loop device. The file is borrowed to keep it open, as the request has only its number.
fn configure(roots: &Roots, image: &Path, _image_fd: &OwnedFd, config: LoopConfig) -> Result<(u32, Node), LoopError> {
    let control_path = roots.dev.join("loop-control");
    let control = rustix::fs::open(&control_path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| LoopError::Unavailable { path: control_path.clone(), source: error.into() })?;
    for _ in 0..MAX_RACES {
        // SAFETY: `control` is the loop control node, and LOOP_CTL_GET_FREE takes no argument and returns a number.
        let number = unsafe { ioctl(&control, GetFree) }
            .map_err(|error| device_error("LOOP_CTL_GET_FREE", &control_path, error))?;
        let path = roots.dev.join(format!("loop{number}"));
        let fd = match wait_for_node(&path, config.info.lo_flags & LO_FLAGS_READ_ONLY == 0) {
            // Another process removed the device (LOOP_CTL_REMOVE).
            Err(LoopError::Device(PathError { source, .. }))
                if source.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
            {
                continue;
            }
            other => other?,
        };
        // SAFETY: `LoopConfig` has the size and layout that LOOP_CONFIGURE reads (asserted in `uapi`).
        let request = unsafe { Setter::<{ request::LOOP_CONFIGURE }, LoopConfig>::new(config) };
        // SAFETY: `fd` is a loop device node; the file whose number is in the request is borrowed, hence open, for the call.
        match unsafe { ioctl(&fd, request) } {
            Ok(()) => return Ok((number, Node { path, fd })),
            // Another process configured it first.
            Err(Errno::BUSY) => {}
            Err(error) => return Err(device_error("LOOP_CONFIGURE", &path, error)),
        }
    }
    Err(LoopError::NoneFree { image: image.to_owned() })
}

fn config(image_fd: &OwnedFd, image: &Path, block_bytes: u32, options: AttachOptions) -> Result<LoopConfig, LoopError> {
    let fd = u32::try_from(image_fd.as_raw_fd())
        .map_err(|_| LoopError::Unsuitable { image: image.to_owned(), reason: "its file descriptor is negative" })?;
    let mut config = LoopConfig { fd, block_size: block_bytes, ..LoopConfig::ZERO };
    // Only for old tools, as the kernel keeps the file itself. Truncated, with a terminating zero.
    let name = image.as_os_str().as_bytes();
    let length = name.len().min(LO_NAME_SIZE - 1);
    config.info.lo_file_name[..length].copy_from_slice(&name[..length]);
    if options.read_only {
        config.info.lo_flags |= LO_FLAGS_READ_ONLY;
    }
    if options.direct_io {
        config.info.lo_flags |= LO_FLAGS_DIRECT_IO;
    }
    Ok(config)
}

/// Sets direct I/O as requested, and records the reason if that fails.
fn set_direct_io(roots: &Roots, image: &Path, info: LoopInfo, wanted: bool) -> Result<LoopInfo, LoopError> {
    if info.direct_io == wanted {
        return Ok(info);
    }
    let node = open_node(&info.dev_path, true).or_else(|_| open_node(&info.dev_path, false))?;
    let answer = request_direct_io(&node, wanted);
    let number = loop_number(&info);
    let now = match number.map(|number| self::info(roots, number)).transpose()?.flatten() {
        Some(now) => now.direct_io,
        None => return Err(device_error("LOOP_SET_DIRECT_IO", &info.dev_path, Errno::NXIO)),
    };
    let direct_io_lost = (wanted && !now).then(|| direct_io_obstacle(image, info.block_size, answer.err()));
    Ok(LoopInfo { direct_io: now, direct_io_lost, ..info })
}

/// Switches direct I/O of the loop device at a path on or off.
///
/// # Errors
/// The operating system's: `EINVAL` if the image's file system does not support direct I/O, or the device's blocks are too small for it.
pub fn switch_direct_io(device: &Path, on: bool) -> io::Result<()> {
    let node = rustix::fs::open(device, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    Ok(request_direct_io(&node, on)?)
}

fn request_direct_io(node: &OwnedFd, on: bool) -> Result<(), Errno> {
    // SAFETY: LOOP_SET_DIRECT_IO takes 0 or 1 as its argument, not a pointer (include/uapi/linux/loop.h).
    let request = unsafe { IntegerSetter::<{ request::LOOP_SET_DIRECT_IO }>::new_usize(usize::from(on)) };
    // SAFETY: `node` is a descriptor that we own. Of a device of another driver, the request is unknown.
    unsafe { ioctl(node, request) }
}

fn direct_io_obstacle(image: &Path, block_bytes: u32, refused: Option<Errno>) -> String {
    match rustix::fs::open(image, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
        Err(error) => format!("the file system of the image does not support direct I/O ({error})"),
        Ok(_) if block_bytes < PREFERRED_BLOCK_BYTES => format!(
            "the loop device has blocks of {block_bytes} bytes, which the underlying device may not support (an image whose size is a \
             multiple of {PREFERRED_BLOCK_BYTES} gets blocks of that size)"
        ),
        Ok(_) => match refused {
            Some(error) => format!("the kernel refused it ({error})"),
            None => "the kernel disabled it without an error".to_owned(),
        },
    }
}

fn open_node(path: &Path, write: bool) -> Result<OwnedFd, LoopError> {
    let mode = if write { OFlags::RDWR } else { OFlags::RDONLY };
    rustix::fs::open(path, mode | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|error| device_error("open", path, error))
}

/// Opens the node of a new device, which devtmpfs or udev may create with a delay.
fn wait_for_node(path: &Path, write: bool) -> Result<OwnedFd, LoopError> {
    let deadline = Instant::now() + WAIT_LIMIT;
    loop {
        match open_node(path, write) {
            Err(LoopError::Device(PathError { source, .. }))
                if source.kind() == std::io::ErrorKind::NotFound && Instant::now() < deadline =>
            {
                pause(POLL_PAUSE);
            }
            other => return other,
        }
    }
}

fn device_error(operation: &'static str, path: &Path, error: Errno) -> LoopError {
    PathError::new(operation, path, error).into()
}

/// Decodes `lo_device`: `new_decode_dev` of the kernel (include/linux/kdev_t.h).
fn decode_dev(encoded: u64) -> DevNo {
    let field = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    DevNo::new(field((encoded & 0xf_ff00) >> 8), field((encoded & 0xff) | ((encoded >> 12) & 0xf_ff00)))
}

#[cfg(test)]
mod tests;
