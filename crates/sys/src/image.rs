//! Image files: creating, growing and shrinking them, and writing their blocks in advance, so that later writes change data only.
//!
//! Owns the allocation of an image's blocks in the host's file system. Does not interpret an image's content.

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

/// Size of a write of [`Filler`], in bytes.
pub const CHUNK: u64 = 1 << 20;

/// Alignment of buffer, offset and length for direct I/O, in bytes. Common devices have no larger logical blocks.
const DIRECT_ALIGN: u64 = 4096;

/// Creates an image of `size` with mode 0600 and makes it durable. With [`Provision::Full`] its blocks are allocated but unwritten
/// ([`Filler`] writes them).
///
/// # Errors
/// [`FileError::Exists`], [`FileError::NoSpace`] or [`FileError::Io`]; the file is then removed (except for `Exists`).
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

/// The size of an image, or of a device used as an image.
///
/// # Errors
/// The operating system's.
pub fn size(path: &Path) -> io::Result<Bytes> {
    Ok(Bytes(seek(File::open(path)?, SeekFrom::End(0))?))
}

/// Grows an image to `size`, with the same provisioning as [`create`]; does nothing if it is not smaller. Returns the old size.
///
/// # Errors
/// [`FileError::NoSpace`] or [`FileError::Io`]; the old size is then restored.
pub fn grow(path: &Path, size: Bytes, provision: Provision) -> Result<Bytes, FileError> {
    let (file, old) = open(path)?;
    if old >= size {
        return Ok(old);
    }
    let grown =
        extend(path, &file, old, size, provision).and_then(|()| file.sync_all().map_err(io_error("sync", path)));
    if grown.is_err() {
        // The first error is the relevant one; the caller reads the size anyway.
        let _ = ftruncate(&file, old.0);
    }
    grown.map(|()| old)
}

/// Truncates an image to `size`; the file system in it must have been shrunk before. Does nothing if it is not larger. Returns the old
/// size.
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

/// Space allocated to an image; 0 if it does not exist. Includes the present part of an allocation in progress, without waiting for it.
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

/// Size of the unwritten part of an image: holes and unwritten extents.
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

/// Deallocates unwritten extents in the first `len` bytes of an image. A power failure leaves such extents where writes were in progress; a
/// file system without free space may convert them to zeroes, which would count as data. The image must not be written meanwhile.
///
/// # Errors
/// The operating system's.
pub fn punch_unwritten(image: &File, len: u64) -> io::Result<()> {
    extents::extents(image, 0..len, |range, kind| {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match kind {
            Kind::Data => Ok(()),
            Kind::Unwritten => Ok(fallocate(image, punch, range.start, range.end - range.start)?),
        }
    })
}

/// Writes zeroes to the unwritten parts of an image.
///
/// The first write to an unwritten extent is a transaction of the host's file system, so the next flush commits its journal. Written
/// data is kept, so that an interrupted fill can be resumed; but a concurrent write to the same part is lost.
#[derive(Debug)]
pub struct Filler {
    path: PathBuf,
    file: File,
    zeroes: Box<[u8]>,
    /// Offset of the aligned part of the zeroes.
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

    /// The first part at or after `from` that has to be written, of at most [`CHUNK`]; `None` if everything is written up to `end` or
    /// the end of the image.
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

    /// Writes zeroes to the unwritten extents of a part; returns the number of bytes written.
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
    pub fn error(&self, operation: &'static str, source: io::Error) -> FileError {
        io_error(operation, &self.path)(source)
    }

    fn first_gap(&self, range: Range<u64>) -> Result<Option<Range<u64>>, FileError> {
        extents::first_gap(&self.file, range).map_err(io_error("map", &self.path))
    }

    /// Makes the written zeroes durable, including the metadata needed to read them (`fdatasync(2)`).
    ///
    /// # Errors
    /// [`FileError::Io`].
    pub fn finish(&self) -> Result<(), FileError> {
        fdatasync(&self.file).map_err(|errno| io_error("sync", &self.path)(errno.into()))
    }
}

/// Opens an image without following a symbolic link.
fn open_with(options: &mut OpenOptions, path: &Path) -> Result<File, FileError> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).map_err(io_error("open", path))
}

fn open(path: &Path) -> Result<(File, Bytes), FileError> {
    let file = open_with(OpenOptions::new().read(true).write(true), path)?;
    let size = Bytes(file.metadata().map_err(io_error("stat", path))?.len());
    Ok((file, size))
}

/// Extends a file from `old` to `size`. On failure its size may be in between.
fn extend(path: &Path, file: &File, old: Bytes, size: Bytes, provision: Provision) -> Result<(), FileError> {
    if provision == Provision::Full && size > old {
        // Checked first: an allocation that fails half-way would have filled the file system for all users.
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
