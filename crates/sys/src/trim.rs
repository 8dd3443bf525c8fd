//! Discarding the free space of a mounted file system (ioctl `FITRIM`, `<linux/fs.h>`).
//!
//! The minimum length of a range is left to the file system: ext4 and XFS use the device's discard granularity, which for a thin volume
//! is the chunk size of its pool. Does not: decide which volumes are trimmed.

use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use bulkhead_core::units::Bytes;
use rustix::fs::fstatvfs;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use crate::file::{FileError, io_error};

/// `FITRIM`.
const FITRIM: Opcode = opcode::read_write::<Range>(b'X', 121);

/// `struct fstrim_range`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    start: u64,
    /// In: length of the range. Out: number of bytes discarded.
    len: u64,
    minlen: u64,
}

const _: () = assert!(size_of::<Range>() == 24 && offset_of!(Range, len) == 8 && offset_of!(Range, minlen) == 16);

/// A file system could not be trimmed.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// Its device does not support discards: the driver has none, or they are disabled (`lvchange --discards ignore`).
    #[error("the device of the file system at {path} does not support discards")]
    NoDiscards {
        /// The mount point.
        path: PathBuf,
    },
    /// Another error.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Discards the free space between `start` and `start + length`, in bytes, of the file system at `path`. Returns the number of bytes
/// discarded; 0 beyond its end. `SIGKILL` interrupts it after the discard in progress.
///
/// # Errors
/// [`TrimError`].
pub fn trim(path: &Path, start: Bytes, length: Bytes) -> Result<Bytes, TrimError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    match fitrim(&file, start, length) {
        Ok(discarded) => Ok(discarded),
        Err(Errno::OPNOTSUPP) => Err(TrimError::NoDiscards { path: path.to_owned() }),
        // A range beyond the end, as on a device that was grown before its file system.
        Err(Errno::INVAL) if start >= size(&file, path)? => Ok(Bytes(0)),
        Err(errno) => Err(io_error("trim the file system at", path)(errno.into()).into()),
    }
}

fn fitrim(file: impl AsFd, start: Bytes, length: Bytes) -> Result<Bytes, Errno> {
    let mut range = Range { start: start.0, len: length.0, minlen: 0 };
    // SAFETY: FITRIM reads and overwrites a `struct fstrim_range`, whose layout `Range` has (asserted above).
    let request = unsafe { Updater::<FITRIM, Range>::new(&mut range) };
    // SAFETY: as above; the request borrows the range during the call.
    unsafe { ioctl(file, request) }?;
    Ok(Bytes(range.len))
}

/// The size of a file system; for ext4 without its own metadata.
fn size(file: &File, path: &Path) -> Result<Bytes, FileError> {
    let found = fstatvfs(file).map_err(|errno| io_error("examine the file system of", path)(io::Error::from(errno)))?;
    Ok(Bytes(found.f_blocks.saturating_mul(found.f_frsize)))
}

#[cfg(test)]
mod tests;
