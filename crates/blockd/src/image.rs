//! An image: a file or the device of a thin volume, opened for direct I/O and locked for this process.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bulkhead_core::cow;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_formats::layer::LayerError;
use bulkhead_formats::servers;
use bulkhead_sys::block::{self, BlockDevice};
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::ublk::Params;
use rustix::fs::{FlockOperation, Mode, OFlags, SeekFrom, open, seek};
use rustix::io::Errno;

/// Logical block size of a volume: the block size of common file systems, and a multiple of the logical block size of common devices.
const BLOCK_BYTES: u32 = 4096;

const _: () = assert!(cow::BLOCK_BYTES == BLOCK_BYTES as u64);

/// How long a killed server may take to release the image.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The largest range that one request zeroes or discards: about a second on a slow disk.
const MAX_RANGE: Bytes = Bytes::mib(32);

/// Why an image cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It cannot be opened or examined.
    #[error("cannot {operation} the image {image}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The image.
        image: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// It is not a file or device that can be served.
    #[error("{image} cannot be served: {reason}")]
    Unsuitable {
        /// The image.
        image: PathBuf,
        /// Why.
        reason: String,
    },
    /// Its layers cannot be used.
    #[error(transparent)]
    Layers(#[from] LayerError),
    /// A file cannot be examined.
    #[error(transparent)]
    File(#[from] FileError),
}

/// An image.
#[derive(Debug)]
pub(crate) struct Image {
    file: File,
    is_device: bool,
    /// The largest size seen so far, in whole blocks.
    size: AtomicU64,
    rotational: bool,
    arm: Option<DevNo>,
}

impl Image {
    /// Opens an image and locks it against other servers; a device also against being mounted.
    pub(crate) fn open(roots: &Roots, path: &Path, is_device: bool) -> Result<Self, ImageError> {
        let failed = |operation| move |source: io::Error| ImageError::Io { operation, image: path.to_owned(), source };
        let unsuitable = |reason: &str| ImageError::Unsuitable { image: path.to_owned(), reason: reason.to_owned() };
        let file = if is_device { open_device(path)? } else { open_file(path)? };
        let disks = disks_of(roots, path);
        let rotational = disks.iter().flatten().any(|disk| disk.rotational);
        let arm = if let [Some(disk)] = &disks[..] { disk.rotational.then_some(disk.dev) } else { None };
        let image = Self { file, is_device, size: AtomicU64::new(0), rotational, arm };
        if image.update_size(|_| ()).map_err(failed("examine"))? == 0 {
            return Err(unsuitable("it is smaller than one block of 4096 bytes"));
        }
        Ok(image)
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The disk with an arm on which all of it is; `None` if there is none, or more than one.
    pub(crate) fn arm(&self) -> Option<DevNo> {
        self.arm
    }

    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.size.load(Ordering::Acquire))
    }

    /// How much of a range lies within the image. If the image has grown, `before_growth` is called before any request uses the new
    /// size. The size of a truncated image stays, and reads beyond its end fail.
    ///
    /// # Errors
    /// When its size cannot be read.
    pub(crate) fn available(&self, offset: u64, len: u64, before_growth: impl FnOnce(Bytes)) -> io::Result<u64> {
        let end = offset.saturating_add(len);
        let size = match self.size().0 {
            size if end <= size => size,
            _ => self.update_size(before_growth)?,
        };
        Ok(size.saturating_sub(offset).min(len))
    }

    pub(crate) fn params(&self, size: Bytes, discards: bool) -> Params {
        Params {
            size,
            block_bytes: BLOCK_BYTES,
            read_only: false,
            rotational: self.rotational,
            volatile_cache: true,
            max_discard: if discards { MAX_RANGE } else { Bytes(0) },
            max_zeroes: MAX_RANGE,
        }
    }

    fn update_size(&self, before_growth: impl FnOnce(Bytes)) -> io::Result<u64> {
        let block = u64::from(BLOCK_BYTES);
        let now = if self.is_device { seek(&self.file, SeekFrom::End(0))? } else { self.file.metadata()?.len() };
        let now = now / block * block;
        if now > self.size.load(Ordering::Acquire) {
            before_growth(Bytes(now));
        }
        Ok(self.size.fetch_max(now, Ordering::AcqRel).max(now))
    }
}

fn open_file(path: &Path) -> Result<File, ImageError> {
    let failed = |operation| move |source: io::Error| ImageError::Io { operation, image: path.to_owned(), source };
    let unsuitable = |reason: &str| ImageError::Unsuitable { image: path.to_owned(), reason: reason.to_owned() };
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        let file = match open(path, flags, Mode::empty()) {
            Err(Errno::INVAL) => return Err(unsuitable("its file system does not support direct I/O")),
            opened => File::from(opened.map_err(|errno| failed("open")(errno.into()))?),
        };
        if !file.metadata().map_err(failed("examine"))?.is_file() {
            return Err(unsuitable("it is not a regular file"));
        }
        lock(&file, path, FlockOperation::NonBlockingLockExclusive)?;
        // It may have become a layer meanwhile, and another file the image.
        if file::is_at(&file, path)? {
            return Ok(file);
        }
    }
}

/// Opens a device exclusively (`O_EXCL`), so that it cannot be mounted.
fn open_device(path: &Path) -> Result<File, ImageError> {
    let failed = |operation| move |source: io::Error| ImageError::Io { operation, image: path.to_owned(), source };
    let not_a_device =
        || ImageError::Unsuitable { image: path.to_owned(), reason: "it is not a block device".to_owned() };
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::EXCL;
    let give_up = Instant::now() + LOCK_LIMIT;
    loop {
        match open(path, flags, Mode::empty()) {
            Ok(opened) => {
                let file = File::from(opened);
                let kind = file.metadata().map_err(failed("examine"))?.file_type();
                return if kind.is_block_device() { Ok(file) } else { Err(not_a_device()) };
            }
            Err(Errno::BUSY) if Instant::now() < give_up => process::pause(LOCK_PAUSE),
            Err(errno) => return Err(failed("open")(errno.into())),
        }
    }
}

/// Locks a file, and waits for up to [`LOCK_LIMIT`].
pub(crate) fn lock(file: &File, path: &Path, how: FlockOperation) -> Result<(), ImageError> {
    match file::flock_within(file, how, LOCK_LIMIT, || ()) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let reason = "another process has it locked".to_owned();
            Err(ImageError::Unsuitable { image: path.to_owned(), reason })
        }
        Err(source) => Err(ImageError::Io { operation: "lock", image: path.to_owned(), source }),
    }
}

/// The physical devices below an image, as far as they can be determined; `None` for one that cannot be inspected.
fn disks_of(roots: &Roots, path: &Path) -> Vec<Option<BlockDevice>> {
    let Ok(block::Holder::Devices(devices)) = block::holder_of(roots, path) else { return Vec::new() };
    let stacks = devices.iter().filter_map(|dev| servers::stack(roots, *dev).ok());
    let mut disks: Vec<_> = stacks.flat_map(|stack| stack.physical).collect();
    disks.sort_unstable();
    disks.dedup();
    disks.into_iter().map(|dev| block::inspect(roots, dev).ok()).collect()
}
