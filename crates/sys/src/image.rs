//! Image files: made, grown, shrunk, and prepared, so that a write to them changes nothing but data.
//!
//! Owns how the blocks of an image are allocated in the host's file system. Does not know what is in an image.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bulkhead_core::model::Provision;
use bulkhead_core::units::Bytes;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, fdatasync, ftruncate, seek};

use crate::extents::{self, Kind};
use crate::file::{FileError, free_space, io_error, sync_dir_of};

/// What [`Filler`] writes at a time, in bytes.
pub const CHUNK: u64 = 1 << 20;

/// Alignment of buffer, offset and length for direct I/O, in bytes: no common device has larger logical blocks.
const DIRECT_ALIGN: u64 = 4096;

/// Creates an image of `size` with mode 0600 and makes it durable. With [`Provision::Full`] its blocks are allocated, not written
/// ([`Filler`] does that).
///
/// # Errors
/// [`FileError::Exists`], [`FileError::NoSpace`] or [`FileError::Io`]; the file is then removed again (except for `Exists`).
pub fn create(path: &Path, size: Bytes, provision: Provision) -> Result<(), FileError> {
    let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => FileError::Exists { path: path.to_owned() },
        _ => io_error("create", path)(source),
    })?;
    let made = extend(path, &file, Bytes(0), size, provision)
        .and_then(|()| file.sync_all().map_err(io_error("sync", path)))
        .and_then(|()| sync_dir_of(path));
    if made.is_err() {
        let _ = fs::remove_file(path);
    }
    made
}

/// The size of an image, or of a device that is served as one.
///
/// # Errors
/// The operating system's.
pub fn size(path: &Path) -> io::Result<Bytes> {
    Ok(Bytes(seek(File::open(path)?, SeekFrom::End(0))?))
}

/// Makes an image as large as `size`, as [`create`] does; one that is as large already is left alone. Returns the old size.
///
/// # Errors
/// [`FileError::NoSpace`] or [`FileError::Io`]; the file has its old size again.
pub fn grow(path: &Path, size: Bytes, provision: Provision) -> Result<Bytes, FileError> {
    let (file, old) = open(path)?;
    if old >= size {
        return Ok(old);
    }
    let grown =
        extend(path, &file, old, size, provision).and_then(|()| file.sync_all().map_err(io_error("sync", path)));
    if grown.is_err() {
        // The first error is the one to tell; the caller sees the size anyway.
        let _ = ftruncate(&file, old.0);
    }
    grown.map(|()| old)
}

/// Cuts off what is beyond `size` for good: the file system inside must have been shrunk before. An image that is as small already
/// is left alone. Returns the old size.
///
/// # Errors
/// [`FileError::Io`].
pub fn shrink(path: &Path, size: Bytes) -> Result<Bytes, FileError> {
    let (file, old) = open(path)?;
    if old > size {
        ftruncate(&file, size.0).map_err(|errno| io_error("shrink", path)(errno.into()))?;
        file.sync_all().map_err(io_error("sync", path))?;
    }
    Ok(old)
}

/// How much of its file system an image takes; nothing when it is not there. An allocation that is under way is seen as far as it is, and
/// not waited for.
///
/// # Errors
/// [`FileError::Io`].
pub fn allocated(path: &Path) -> Result<Bytes, FileError> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Bytes(found.blocks().saturating_mul(512))),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(Bytes(0)),
        Err(source) => Err(io_error("stat", path)(source)),
    }
}

/// How much of an image has no written data: holes, and blocks that are only allocated.
///
/// # Errors
/// [`FileError::Io`].
pub fn unwritten(path: &Path) -> Result<Bytes, FileError> {
    let file = open_with(OpenOptions::new().read(true), path)?;
    let size = file.metadata().map_err(io_error("stat", path))?.len();
    let mut unwritten = size;
    let found = extents::extents(&file, 0..size, |range, kind| {
        if kind == Kind::Data {
            unwritten -= range.end - range.start;
        }
        Ok(())
    });
    found.map_err(io_error("map", path))?;
    Ok(Bytes(unwritten))
}

/// Gives back what is allocated in the first `len` bytes of an image and was never written. A power cut leaves such blocks where
/// writes were under way; a file system that runs out of room may make zeroes of them, which would count as data.
///
/// # Errors
/// The operating system's. Nobody may write to the image meanwhile.
pub fn give_back_unwritten(image: &File, len: u64) -> io::Result<()> {
    extents::extents(image, 0..len, |range, kind| {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match kind {
            Kind::Data => Ok(()),
            Kind::Unwritten => Ok(fallocate(image, punch, range.start, range.end - range.start)?),
        }
    })
}

/// Writes zeroes where an image has no written data.
///
/// In a block that is allocated and was never written, the first write is a transaction of the host's file system, and the next flush
/// commits its journal. What is there already is left alone, so that a fill which was interrupted can go on; but who writes to the
/// same part at the same time loses what it writes.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
    file: File,
    zeroes: Box<[u8]>,
    /// Where the aligned part of the zeroes starts.
    start: usize,
}

impl Filler {
    /// Fills an image that is open for direct I/O.
    #[must_use]
    pub fn new(file: File, path: &Path) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "a MiB and a page")]
        let zeroes = vec![0u8; (CHUNK + DIRECT_ALIGN) as usize].into_boxed_slice();
        #[expect(clippy::cast_possible_truncation, reason = "the alignment of a page")]
        let start = zeroes.as_ptr().align_offset(DIRECT_ALIGN as usize);
        Self { path: path.to_owned(), file, zeroes, start }
    }

    /// The first part at or after `from` that is to be written, of at most [`CHUNK`]; `None` when all is written up to `end`, as far
    /// as the image has that.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn next(&self, from: u64, end: Bytes) -> Result<Option<Range<u64>>, FileError> {
        let size = self.file.metadata().map_err(io_error("stat", &self.path))?.len().min(end.0);
        let gap = self.first_gap(from..size / DIRECT_ALIGN * DIRECT_ALIGN)?;
        Ok(gap.map(|gap| {
            let start = gap.start / DIRECT_ALIGN * DIRECT_ALIGN;
            start..gap.end.min(start + CHUNK)
        }))
    }

    /// Writes zeroes where a part of the image has no written data; returns how much it wrote.
    ///
    /// # Errors
    /// [`FileError::NoSpace`], [`FileError::Io`].
    pub fn fill(&self, part: Range<u64>) -> Result<Bytes, FileError> {
        let (mut at, mut sum) = (part.start, 0);
        while let Some(gap) = self.first_gap(at..part.end)? {
            let n = (gap.end - gap.start).min(CHUNK);
            let zeroes = self.start..self.start + usize::try_from(n).unwrap_or(0);
            self.file
                .write_all_at(&self.zeroes[zeroes], gap.start)
                .map_err(|source| space_error("write", &self.path, Bytes(part.end), source))?;
            sum += n;
            at = gap.start + n;
        }
        Ok(Bytes(sum))
    }

    /// The error of an operation on the image.
    #[must_use]
    pub fn failed(&self, operation: &'static str, source: io::Error) -> FileError {
        io_error(operation, &self.path)(source)
    }

    fn first_gap(&self, range: Range<u64>) -> Result<Option<Range<u64>>, FileError> {
        extents::first_gap(&self.file, range).map_err(io_error("map", &self.path))
    }

    /// Makes what was written durable, with all that is needed to find it.
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn finish(&self) -> Result<(), FileError> {
        fdatasync(&self.file).map_err(|errno| io_error("sync", &self.path)(errno.into()))
    }
}

/// Opens an image, and nothing that a link in its place leads to.
fn open_with(options: &mut OpenOptions, path: &Path) -> Result<File, FileError> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(io_error("open", path))
}

fn open(path: &Path) -> Result<(File, Bytes), FileError> {
    let file = open_with(OpenOptions::new().read(true).write(true), path)?;
    let size = Bytes(file.metadata().map_err(io_error("stat", path))?.len());
    Ok((file, size))
}

/// Brings a file from `old` to `size`. On failure its size may be anything in between.
fn extend(path: &Path, file: &File, old: Bytes, size: Bytes, provision: Provision) -> Result<(), FileError> {
    if provision == Provision::Full && size > old {
        // Asked before it is tried: an allocation that fails half-way has filled the file system for everybody else.
        if free_space(path)?.free.0 < size.0 - old.0 {
            return Err(FileError::NoSpace { path: path.to_owned(), size });
        }
        fallocate(file, FallocateFlags::empty(), old.0, size.0 - old.0)
            .map_err(|errno| space_error("allocate", path, size, errno.into()))?;
    }
    ftruncate(file, size.0).map_err(|errno| space_error("size", path, size, errno.into()))
}

fn space_error(operation: &'static str, path: &Path, size: Bytes, source: io::Error) -> FileError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FileError::NoSpace { path: path.to_owned(), size },
        _ => io_error(operation, path)(source),
    }
}

#[cfg(test)]
mod tests;
