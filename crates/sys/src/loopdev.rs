//! Loop devices: list, find, attach, detach, grow (kernel `drivers/block/loop.c`, loop(4)).
//!
//! Owns: the ioctls of `/dev/loop-control` and `/dev/loopN`, and `/sys/block/loopN/loop`. Direct I/O is read back after
//! each attach, so that it is never lost without a word.
//! Does not: create or allocate image files, nor decide whether a loop device is good enough (docs/DECISIONS.md, "Block servers").

use std::ffi::c_void;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bulkhead_core::error::PathError;
use bulkhead_core::units::{Bytes, DevNo};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::ioctl::{Getter, IntegerSetter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

use crate::block::{self, InUse, dev_from_raw};
use crate::file::flock_within;
use crate::process::pause;
use crate::roots::Roots;

/// Logical block size in bytes of a device whose image allows it: a multiple of every usual device's own.
pub const PREFERRED_BLOCK_BYTES: u32 = 4096;

/// How long [`detach`] waits for the kernel to let go, and [`attach`] for a device node or another attach of the image.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks.
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// How often [`attach`] may lose the race for a free device.
const MAX_RACES: u32 = 64;

/// Why a loop device could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The image cannot be opened or examined.
    #[error("cannot open the image {image}")]
    Image {
        /// The image file.
        image: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The image is not a regular file or block device, or is empty.
    #[error("cannot attach {image}: {reason}")]
    Unsuitable {
        /// The image file.
        image: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Loop devices are not there: no `/dev/loop-control` (module `loop` not loaded, or hidden in a container).
    #[error("cannot open {path}: is the loop module loaded?")]
    Unavailable {
        /// The control node.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A device node or sysfs file failed.
    #[error(transparent)]
    Device(#[from] PathError),
    /// A sysfs file holds something unexpected.
    #[error("{path}: cannot understand {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// The image is attached already, in another way than asked for.
    #[error("{image} is already attached to {device} with other settings: {difference}")]
    Conflict {
        /// The image file.
        image: PathBuf,
        /// The device node.
        device: PathBuf,
        /// Which setting differs.
        difference: &'static str,
    },
    /// Another process is attaching the same image and does not come to an end.
    #[error("another process holds the lock on the image {image}")]
    Locked {
        /// The image file.
        image: PathBuf,
    },
    /// Every free device was taken by somebody else first.
    #[error("no free loop device for {image} after {MAX_RACES} attempts")]
    NoneFree {
        /// The image file.
        image: PathBuf,
    },
    /// Something still holds the device.
    #[error("{device} is in use: {reason}")]
    Busy {
        /// The device node.
        device: PathBuf,
        /// Who holds it, as far as it is known.
        reason: String,
    },
    /// Its use could not be examined.
    #[error("cannot find out whether {device} is in use")]
    Usage {
        /// The device node.
        device: PathBuf,
        /// Why.
        #[source]
        source: Box<block::BlockError>,
    },
}

/// Which file lies behind a loop device, independent of names (`lo_device` and `lo_inode`).
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
    /// Backing file as the kernel shows it: as seen from the mount namespace of the reader, ` (deleted)` after an unlink.
    pub backing_file: PathBuf,
    /// Device and inode of the backing file; `None` when the device node could not be asked.
    pub backing: Option<BackingId>,
    /// Where the device begins in the backing file.
    pub offset: Bytes,
    /// How much of the backing file is used; 0 means all (`lo_sizelimit`).
    pub size_limit: Bytes,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Whether it reads and writes the backing file past the page cache, as read back from the kernel.
    pub direct_io: bool,
    /// Why direct I/O is off although [`attach`] was asked for it; `None` when it is on or was not asked for.
    pub direct_io_lost: Option<String>,
    /// Whether the kernel detaches it when the last user closes it (`LO_FLAGS_AUTOCLEAR`).
    pub autoclear: bool,
    /// Logical block size in bytes.
    pub block_size: u32,
}

/// How to attach an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Read and write the image past the host's page cache. When it cannot be had, [`LoopInfo::direct_io_lost`] says why.
    pub direct_io: bool,
    /// Logical block size in bytes: 512, 1024, 2048 or 4096. `None`: [`PREFERRED_BLOCK_BYTES`] when the image's size is a
    /// multiple of it, else 512. A file system made with smaller sectors (an imported image) needs the value it was made with.
    pub block_bytes: Option<u32>,
}

/// All attached loop devices, by number. Devices without a backing file are left out.
///
/// # Errors
/// [`LoopError::Device`] and [`LoopError::Malformed`] for sysfs files. No `/sys/block` means none.
pub fn list(roots: &Roots) -> Result<Vec<LoopInfo>, LoopError> {
    let dir = roots.sys.join("block");
    let error = |source| LoopError::Device(PathError::new("read", &dir, source));
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(source)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(error)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    let mut found = Vec::new();
    for number in numbers {
        found.extend(info(roots, number)?);
    }
    Ok(found)
}

/// The loop device behind which `image` lies, by device and inode; by name where one of the two cannot be examined.
///
/// A name is only believed when the image does not exist any more, or when the device node cannot be asked.
///
/// # Errors
/// Those of [`list`].
pub fn find_by_backing(roots: &Roots, image: &Path) -> Result<Option<LoopInfo>, LoopError> {
    let wanted = fs::metadata(image).ok().map(|m| BackingId { dev: dev_from_raw(m.dev()), inode: m.ino() });
    let canonical = fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
    Ok(list(roots)?.into_iter().find(|info| backs(info, wanted, &canonical)))
}

/// Attaches an image to a free loop device, or returns the device that it is attached to already.
///
/// Idempotent: an attached image keeps its device, and direct I/O is switched to what is asked for. Concurrent attaches of
/// one image are serialised by `flock(2)` on it. After the attach the settings are read back from the kernel.
///
/// # Errors
/// [`LoopError::Conflict`] when it is attached read-only or with a block size other than asked for, and the other variants.
pub fn attach(roots: &Roots, image: &Path, options: AttachOptions) -> Result<LoopInfo, LoopError> {
    let image_error = |source: std::io::Error| LoopError::Image { image: image.to_owned(), source };
    let metadata = fs::metadata(image).map_err(image_error)?;
    if !metadata.is_file() {
        return Err(LoopError::Unsuitable { image: image.to_owned(), reason: "it is not a regular file" });
    }
    if metadata.len() < 512 {
        return Err(LoopError::Unsuitable { image: image.to_owned(), reason: "it is smaller than one sector" });
    }
    // Its own file description: the one given to the kernel stays open as long as the device, and would keep the lock.
    let _lock = lock(image)?;
    let existing = match find_by_backing(roots, image)? {
        // A detach that found it in use left it to vanish at its last close: it is wanted again.
        Some(leaving) if leaving.autoclear => {
            keep_attached(&leaving)?;
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
                return Err(conflict("read-only or not"));
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
    settle_direct_io(roots, image, info, options.direct_io)
}

/// Detaches a loop device and waits until the kernel has let go of the backing file.
///
/// Idempotent: a device that is gone, or carries another file by now, is left alone. A device that is mounted, swap or
/// part of another device is not touched.
///
/// # Errors
/// [`LoopError::Busy`]: something holds it. When that is a program which has the node open, the kernel detaches it as soon
/// as that program closes it (`LO_FLAGS_AUTOCLEAR` is set by then).
pub fn detach(roots: &Roots, info: &LoopInfo) -> Result<(), LoopError> {
    if !still_attached(roots, info)? {
        return Ok(());
    }
    let busy = |reason: String| LoopError::Busy { device: info.dev_path.clone(), reason };
    let used = || {
        block::is_in_use(roots, info.dev)
            .map_err(|source| LoopError::Usage { device: info.dev_path.clone(), source: Box::new(source) })
    };
    // A claim without a visible reason may be udev's blkid of a moment ago: the wait below sorts it out.
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
        // Closing the node completes the detach: the kernel clears the device at its last close.
    }
    let deadline = Instant::now() + WAIT_LIMIT;
    while still_attached(roots, info)? {
        if Instant::now() >= deadline {
            let reason = used()?.map_or_else(|| "a program has it open".to_owned(), |reason| reason.to_string());
            return Err(busy(reason));
        }
        pause(POLL_PAUSE);
    }
    Ok(())
}

/// Tells the device that its image has grown or shrunk (`LOOP_SET_CAPACITY`); returns its size after that.
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

/// Which file lies behind a loop device node; `None` when it cannot be asked (no node, no permission, not attached).
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
    // SAFETY: `LoopInfo64` has the size and layout that LOOP_GET_STATUS64 writes (asserted below), and any bytes are valid.
    let request = unsafe { Getter::<{ request::LOOP_GET_STATUS64 }, LoopInfo64>::new() };
    // SAFETY: the kernel fills the whole struct when it succeeds; what is not a loop device refuses without writing.
    unsafe { ioctl(node, request) }
}

/// Takes `LO_FLAGS_AUTOCLEAR` away (kernel `LOOP_SET_STATUS_CLEARABLE_FLAGS`). A device that is gone meanwhile is no error.
fn keep_attached(info: &LoopInfo) -> Result<(), LoopError> {
    let result = open_node(&info.dev_path, !info.read_only).and_then(|node| {
        let mut status = get_status(&node).map_err(|error| device_error("LOOP_GET_STATUS64", &info.dev_path, error))?;
        status.lo_flags &= !LO_FLAGS_AUTOCLEAR;
        // SAFETY: `LoopInfo64` has the size and layout that LOOP_SET_STATUS64 reads (asserted below).
        let request = unsafe { Setter::<{ request::LOOP_SET_STATUS64 }, LoopInfo64>::new(status) };
        // SAFETY: `node` is a loop device node that we own, and the struct is the one that its driver gave us.
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

fn backs(info: &LoopInfo, wanted: Option<BackingId>, path: &Path) -> bool {
    match (info.backing, wanted) {
        (Some(found), Some(wanted)) => found == wanted,
        // The image is gone, or the node cannot be asked: only the name is left.
        (_, None) => strip_deleted(&info.backing_file) == path || info.backing_file == path,
        (None, Some(_)) => info.backing_file == path,
    }
}

/// What sysfs says about `/dev/loopN`; `None` when nothing is attached.
fn info(roots: &Roots, number: u32) -> Result<Option<LoopInfo>, LoopError> {
    let dir = roots.sys.join("block").join(format!("loop{number}"));
    let backing_path = dir.join("loop/backing_file");
    let Some(mut backing_file) = read_attached(&backing_path)? else { return Ok(None) };
    if backing_file.last() == Some(&b'\n') {
        backing_file.pop();
    }
    let text = |name: &str| -> Result<Option<(PathBuf, String)>, LoopError> {
        let path = dir.join(name);
        let bytes = read_attached(&path)?;
        Ok(bytes.map(|bytes| (path, String::from_utf8_lossy(&bytes).trim().to_owned())))
    };
    // Any of these may vanish when the device is detached meanwhile: then it is not attached.
    let values = (
        text("dev")?,
        text("loop/offset")?,
        text("loop/sizelimit")?,
        text("ro")?,
        text("loop/dio")?,
        text("loop/autoclear")?,
        text("queue/logical_block_size")?,
    );
    let (Some(dev), Some(offset), Some(limit), Some(ro), Some(dio), Some(autoclear), Some(block)) = values else {
        return Ok(None);
    };
    let flag = |(path, text): &(PathBuf, String)| parse_number::<u8>(path, text).map(|n| n != 0);
    let dev_path = roots.dev.join(format!("loop{number}"));
    Ok(Some(LoopInfo {
        dev: dev.1.parse().map_err(|_| LoopError::Malformed { path: dev.0.clone(), text: dev.1.clone() })?,
        backing_file: std::ffi::OsString::from_vec(backing_file).into(),
        backing: backing_id(&dev_path),
        offset: Bytes(parse_number(&offset.0, &offset.1)?),
        size_limit: Bytes(parse_number(&limit.0, &limit.1)?),
        read_only: flag(&ro)?,
        direct_io: flag(&dio)?,
        direct_io_lost: None,
        autoclear: flag(&autoclear)?,
        block_size: parse_number(&block.0, &block.1)?,
        dev_path,
    }))
}

fn still_attached(roots: &Roots, wanted: &LoopInfo) -> Result<bool, LoopError> {
    let Some(now) = loop_number(wanted).map(|number| info(roots, number)).transpose()?.flatten() else {
        return Ok(false);
    };
    Ok(match (now.backing, wanted.backing) {
        (Some(now), Some(then)) => now == then,
        // Asking may fail while the device goes away: the name decides, whether the image was deleted meanwhile or not.
        _ => strip_deleted(&now.backing_file) == strip_deleted(&wanted.backing_file),
    })
}

fn loop_number(info: &LoopInfo) -> Option<u32> {
    info.dev_path.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()
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

/// Gives a file to a free loop device. The file is borrowed to keep it open: the request has only its number.
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
            // Somebody removed the device again (LOOP_CTL_REMOVE).
            Err(LoopError::Device(PathError { source, .. }))
                if source.raw_os_error() == Some(Errno::NXIO.raw_os_error()) =>
            {
                continue;
            }
            other => other?,
        };
        // SAFETY: `LoopConfig` has the size and layout that LOOP_CONFIGURE reads (asserted below).
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

/// A loop device that goes with this value, and with the process when that is killed.
#[derive(Debug)]
pub struct HeldDevice {
    /// Its node in `/dev`.
    pub path: PathBuf,
    /// Its number.
    pub dev: DevNo,
    // Holds the device: it is cleared when the last one closes it.
    node: OwnedFd,
}

impl HeldDevice {
    /// Has what was written to its node written to the device itself.
    ///
    /// # Errors
    /// The operating system's reason.
    pub fn write_out(&self) -> std::io::Result<()> {
        Ok(rustix::fs::fsync(&self.node)?)
    }
}

/// Makes a block device of this size in memory (swappable, taken as it is written).
///
/// # Errors
/// [`LoopError`]; the image is called `memory` there.
pub fn in_memory(roots: &Roots, size: Bytes) -> Result<HeldDevice, LoopError> {
    let image = Path::new("memory");
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let memory = memfd_create("bulkhead", MemfdFlags::CLOEXEC).map_err(image_error)?;
    ftruncate(&memory, size.0).map_err(image_error)?;
    held(roots, &memory, image, size, AttachOptions::default())
}

/// Makes a block device of an image, only to be read from.
///
/// # Errors
/// [`LoopError`].
pub fn to_read(roots: &Roots, image: &Path) -> Result<HeldDevice, LoopError> {
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(image, flags, Mode::empty()).map_err(image_error)?;
    let size = u64::try_from(fstat(&file).map_err(image_error)?.st_size).unwrap_or(0);
    held(roots, &file, image, Bytes(size), AttachOptions { read_only: true, ..AttachOptions::default() })
}

fn held(
    roots: &Roots,
    file: &OwnedFd,
    image: &Path,
    size: Bytes,
    options: AttachOptions,
) -> Result<HeldDevice, LoopError> {
    let image_error = |error: Errno| LoopError::Image { image: image.to_owned(), source: error.into() };
    let mut config = config(file, image, block_bytes_for(size.0, None), options)?;
    config.info.lo_flags |= LO_FLAGS_AUTOCLEAR;
    let (_, node) = configure(roots, image, file, config)?;
    let dev = dev_from_raw(fstat(&node.fd).map_err(image_error)?.st_rdev);
    Ok(HeldDevice { path: node.path, dev, node: node.fd })
}

fn config(image_fd: &OwnedFd, image: &Path, block_bytes: u32, options: AttachOptions) -> Result<LoopConfig, LoopError> {
    let fd = u32::try_from(image_fd.as_raw_fd())
        .map_err(|_| LoopError::Unsuitable { image: image.to_owned(), reason: "its file descriptor is negative" })?;
    let mut config = LoopConfig { fd, block_size: block_bytes, ..LoopConfig::ZERO };
    // Only for old tools: the kernel keeps the file itself. Cut to fit, with a terminating zero.
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

/// Makes direct I/O what was asked for, and says why where it cannot be.
fn settle_direct_io(roots: &Roots, image: &Path, info: LoopInfo, wanted: bool) -> Result<LoopInfo, LoopError> {
    if info.direct_io == wanted {
        return Ok(info);
    }
    let node = open_node(&info.dev_path, true).or_else(|_| open_node(&info.dev_path, false))?;
    // SAFETY: LOOP_SET_DIRECT_IO takes 0 or 1 as its argument, not a pointer (include/uapi/linux/loop.h).
    let request = unsafe { IntegerSetter::<{ request::LOOP_SET_DIRECT_IO }>::new_usize(usize::from(wanted)) };
    // SAFETY: `node` is a loop device node that we own, and the request is one of the loop driver's.
    let answer = unsafe { ioctl(&node, request) };
    let number = loop_number(&info);
    let now = match number.map(|number| self::info(roots, number)).transpose()?.flatten() {
        Some(now) => now.direct_io,
        None => return Err(device_error("LOOP_SET_DIRECT_IO", &info.dev_path, Errno::NXIO)),
    };
    let direct_io_lost = (wanted && !now).then(|| why_no_direct_io(image, info.block_size, answer.err()));
    Ok(LoopInfo { direct_io: now, direct_io_lost, ..info })
}

fn why_no_direct_io(image: &Path, block_bytes: u32, refused: Option<Errno>) -> String {
    match rustix::fs::open(image, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()) {
        Err(error) => format!("the file system of the image does not do direct I/O ({error})"),
        Ok(_) if block_bytes < PREFERRED_BLOCK_BYTES => format!(
            "the loop device has blocks of {block_bytes} bytes, which the device below may not take (an image whose size is a \
             multiple of {PREFERRED_BLOCK_BYTES} gets blocks of that size)"
        ),
        Ok(_) => match refused {
            Some(error) => format!("the kernel refused it ({error})"),
            None => "the kernel switched it off without an error".to_owned(),
        },
    }
}

fn open_node(path: &Path, write: bool) -> Result<OwnedFd, LoopError> {
    let mode = if write { OFlags::RDWR } else { OFlags::RDONLY };
    rustix::fs::open(path, mode | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())
        .map_err(|error| device_error("open", path, error))
}

/// Opens the node of a device that was just made; devtmpfs or udev may need a moment.
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

/// Reads a sysfs file; `None` when it is not there, or the device was detached while we read (ENODEV, ENXIO).
fn read_attached(path: &Path) -> Result<Option<Vec<u8>>, LoopError> {
    let gone = [Errno::NOENT, Errno::NODEV, Errno::NXIO, Errno::NOTDIR].map(|errno| Some(errno.raw_os_error()));
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if gone.contains(&source.raw_os_error()) => Ok(None),
        Err(source) => Err(PathError::new("read", path, source).into()),
    }
}

fn read_trimmed(path: &Path) -> Result<String, LoopError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(PathError::new("read", path, source).into()),
    }
}

fn parse_number<T: std::str::FromStr>(path: &Path, text: &str) -> Result<T, LoopError> {
    text.parse().map_err(|_| LoopError::Malformed { path: path.to_owned(), text: text.to_owned() })
}

/// `new_decode_dev` of the kernel (include/linux/kdev_t.h), the form in which `lo_device` comes.
fn decode_dev(encoded: u64) -> DevNo {
    let field = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    DevNo::new(field((encoded & 0xf_ff00) >> 8), field((encoded & 0xff) | ((encoded >> 12) & 0xf_ff00)))
}

/// Request numbers (include/uapi/linux/loop.h).
mod request {
    use rustix::ioctl::Opcode;

    pub(super) const LOOP_CLR_FD: Opcode = 0x4C01;
    pub(super) const LOOP_SET_STATUS64: Opcode = 0x4C04;
    pub(super) const LOOP_GET_STATUS64: Opcode = 0x4C05;
    pub(super) const LOOP_SET_CAPACITY: Opcode = 0x4C07;
    pub(super) const LOOP_SET_DIRECT_IO: Opcode = 0x4C08;
    pub(super) const LOOP_CONFIGURE: Opcode = 0x4C0A;
    pub(super) const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
}

/// `LO_FLAGS_READ_ONLY` (include/uapi/linux/loop.h).
const LO_FLAGS_READ_ONLY: u32 = 1;
/// `LO_FLAGS_AUTOCLEAR` (include/uapi/linux/loop.h).
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// `LO_FLAGS_DIRECT_IO` (include/uapi/linux/loop.h).
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// `LO_NAME_SIZE` (include/uapi/linux/loop.h).
const LO_NAME_SIZE: usize = 64;

/// `struct loop_info64` (include/uapi/linux/loop.h).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct LoopInfo64 {
    lo_device: u64,
    lo_inode: u64,
    lo_rdevice: u64,
    lo_offset: u64,
    lo_sizelimit: u64,
    lo_number: u32,
    lo_encrypt_type: u32,
    lo_encrypt_key_size: u32,
    lo_flags: u32,
    lo_file_name: [u8; LO_NAME_SIZE],
    lo_crypt_name: [u8; LO_NAME_SIZE],
    lo_encrypt_key: [u8; 32],
    lo_init: [u64; 2],
}

/// `struct loop_config` (include/uapi/linux/loop.h), since Linux 5.8.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

impl LoopConfig {
    const ZERO: LoopConfig = LoopConfig {
        fd: 0,
        block_size: 0,
        info: LoopInfo64 {
            lo_device: 0,
            lo_inode: 0,
            lo_rdevice: 0,
            lo_offset: 0,
            lo_sizelimit: 0,
            lo_number: 0,
            lo_encrypt_type: 0,
            lo_encrypt_key_size: 0,
            lo_flags: 0,
            lo_file_name: [0; LO_NAME_SIZE],
            lo_crypt_name: [0; LO_NAME_SIZE],
            lo_encrypt_key: [0; 32],
            lo_init: [0; 2],
        },
        reserved: [0; 8],
    };
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<LoopInfo64>() == 232);
    assert!(offset_of!(LoopInfo64, lo_sizelimit) == 32);
    assert!(offset_of!(LoopInfo64, lo_number) == 40);
    assert!(offset_of!(LoopInfo64, lo_flags) == 52);
    assert!(offset_of!(LoopInfo64, lo_file_name) == 56);
    assert!(offset_of!(LoopInfo64, lo_init) == 216);
    assert!(size_of::<LoopConfig>() == 304);
    assert!(offset_of!(LoopConfig, info) == 8);
    assert!(offset_of!(LoopConfig, reserved) == 240);
};

/// `LOOP_CTL_GET_FREE`: no argument, the number of a free device is the return value.
struct GetFree;

// SAFETY: the request takes no argument (the pointer is null and not followed), changes no memory of ours, and its return
// value is read as the plain number that it is.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        request::LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::RANGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: PathBuf, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn fake_loop(roots: &Roots, number: u32, backing: Option<&str>) {
        let dir = roots.sys.join(format!("block/loop{number}"));
        write(dir.join("dev"), &format!("7:{number}\n"));
        write(dir.join("ro"), "0\n");
        write(dir.join("queue/logical_block_size"), "4096\n");
        if let Some(backing) = backing {
            for (name, text) in [("offset", "0"), ("sizelimit", "0"), ("autoclear", "0"), ("dio", "1")] {
                write(dir.join("loop").join(name), &format!("{text}\n"));
            }
            write(dir.join("loop/backing_file"), &format!("{backing}\n"));
        }
    }

    #[test]
    fn attached_devices_are_listed_by_number() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        assert_eq!(list(&roots).unwrap(), []);
        fake_loop(&roots, 10, Some("/srv/b c.img"));
        fake_loop(&roots, 2, Some("/srv/a.img (deleted)"));
        fake_loop(&roots, 3, None);
        fs::create_dir_all(roots.sys.join("block/loopback")).unwrap();
        let found = list(&roots).unwrap();
        assert_eq!(found.iter().map(|info| info.dev.minor).collect::<Vec<_>>(), [2, 10]);
        let info = &found[1];
        assert_eq!(info.backing_file, Path::new("/srv/b c.img"));
        assert_eq!((info.dev_path.as_path(), info.backing), (roots.dev.join("loop10").as_path(), None));
        assert_eq!((info.direct_io, info.read_only, info.autoclear, info.block_size), (true, false, false, 4096));
    }

    #[test]
    fn a_backing_file_is_found_by_name_where_the_node_cannot_be_asked() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        let image = dir.path().join("a.img");
        let image = fs::canonicalize(dir.path()).unwrap().join(image.file_name().unwrap());
        fake_loop(&roots, 1, Some(&format!("{} (deleted)", image.display())));
        // The image does not exist: the deleted one is meant.
        assert_eq!(find_by_backing(&roots, &image).unwrap().unwrap().dev.minor, 1);
        // A new file of that name is not the deleted one.
        fs::write(&image, "x").unwrap();
        assert_eq!(find_by_backing(&roots, &image).unwrap(), None);
        fake_loop(&roots, 4, Some(&image.display().to_string()));
        assert_eq!(find_by_backing(&roots, &image).unwrap().unwrap().dev.minor, 4);
    }

    #[test]
    fn identity_beats_the_name() {
        let id = |inode| BackingId { dev: DevNo::new(254, 0), inode };
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        fake_loop(&roots, 0, Some("/a"));
        let info = LoopInfo { backing: Some(id(5)), ..list(&roots).unwrap().remove(0) };
        assert!(backs(&info, Some(id(5)), Path::new("/other/name")));
        assert!(!backs(&info, Some(id(6)), Path::new("/a")));
        assert!(backs(&info, None, Path::new("/a")));
    }

    #[test]
    fn detaching_what_is_gone_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        fake_loop(&roots, 0, Some("/a"));
        let info = list(&roots).unwrap().remove(0);
        fs::remove_dir_all(roots.sys.join("block/loop0/loop")).unwrap();
        detach(&roots, &info).unwrap();
        // Another file is attached by now: it is not touched (there is no node that could be).
        fake_loop(&roots, 0, Some("/b"));
        detach(&roots, &info).unwrap();
    }

    #[test]
    fn block_sizes_follow_the_image() {
        assert_eq!(block_bytes_for(1 << 20, None), 4096);
        assert_eq!(block_bytes_for((1 << 20) + 512, None), 512);
        assert_eq!(block_bytes_for(1 << 20, Some(512)), 512);
    }

    #[test]
    fn unsuitable_images_are_refused_before_the_kernel_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::under(dir.path());
        let image = dir.path().join("image");
        assert!(matches!(attach(&roots, &image, AttachOptions::default()), Err(LoopError::Image { .. })));
        fs::write(&image, "").unwrap();
        assert!(matches!(attach(&roots, &image, AttachOptions::default()), Err(LoopError::Unsuitable { .. })));
        assert!(matches!(attach(&roots, dir.path(), AttachOptions::default()), Err(LoopError::Unsuitable { .. })));
        fs::write(&image, [0; 4096]).unwrap();
        let error = attach(&roots, &image, AttachOptions::default()).unwrap_err();
        assert!(matches!(error, LoopError::Unavailable { .. }), "{error}");
    }

    #[test]
    fn encoded_device_numbers_are_decoded() {
        // new_encode_dev(253, 3), and a minor above 255.
        assert_eq!(decode_dev(0xfd03), DevNo::new(253, 3));
        assert_eq!(decode_dev((259 << 8) | 0x01 | (0x100 << 12)), DevNo::new(259, 0x101));
    }

    /// Runs against the real kernel where loop devices can be attached; says why where not.
    #[test]
    fn root_attach_grow_and_detach_on_this_host() {
        let roots = Roots::host();
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        let options = AttachOptions { direct_io: true, ..AttachOptions::default() };
        let info = match attach(&roots, &image, options) {
            Ok(info) => info,
            Err(LoopError::Unavailable { source, .. } | LoopError::Device(PathError { source, .. })) => {
                eprintln!("skipped: no loop devices here ({source})");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!(info.direct_io, info.direct_io_lost.is_none(), "{info:?}");
        assert_eq!(info.block_size, 4096);
        let again = attach(&roots, &image, options).unwrap();
        assert_eq!(again, info);
        let buffered = attach(&roots, &image, AttachOptions::default()).unwrap();
        assert!(!buffered.direct_io && buffered.dev == info.dev);
        let other = attach(&roots, &image, AttachOptions { read_only: true, ..options });
        assert!(matches!(other, Err(LoopError::Conflict { .. })), "{other:?}");
        fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(16 << 20).unwrap();
        assert_eq!(set_capacity(&roots, &info).unwrap(), Bytes::mib(16));
        // A device that would vanish at its last close is kept when the image is attached again.
        let holder = fs::File::open(&info.dev_path).unwrap();
        set_autoclear(&info);
        assert!(find_by_backing(&roots, &image).unwrap().unwrap().autoclear);
        let kept = attach(&roots, &image, options).unwrap();
        assert!(!kept.autoclear && kept.dev == info.dev, "{kept:?}");
        drop(holder);
        assert_eq!(find_by_backing(&roots, &image).unwrap().map(|found| found.dev), Some(info.dev));
        detach(&roots, &info).unwrap();
        detach(&roots, &info).unwrap();
        assert_eq!(find_by_backing(&roots, &image).unwrap(), None);
    }

    /// What a detach of a device in use leaves behind: LOOP_CLR_FD while another has it open.
    fn set_autoclear(info: &LoopInfo) {
        let node = open_node(&info.dev_path, true).unwrap();
        // SAFETY: LOOP_CLR_FD takes no argument.
        let request = unsafe { NoArg::<{ request::LOOP_CLR_FD }>::new() };
        // SAFETY: `node` is the node of a loop device that this test attached.
        unsafe { ioctl(&node, request) }.unwrap();
    }
}
