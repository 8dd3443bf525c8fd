//! Discards what a mounted file system has free (ioctl `FITRIM`, `<linux/fs.h>`).
//!
//! Nothing is said about the shortest range that is worth it: ext4 and XFS take the device's discard granularity, which of a thin
//! volume is the chunk of its pool. Does not: know for whom that is of use.

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
    /// In: how long the range is. Out: how much was discarded.
    len: u64,
    minlen: u64,
}

const _: () = assert!(size_of::<Range>() == 24 && offset_of!(Range, len) == 8 && offset_of!(Range, minlen) == 16);

/// A file system could not be trimmed.
#[derive(Debug, thiserror::Error)]
pub enum TrimError {
    /// Its device takes no discards: the driver has none, or they were switched off (`lvchange --discards ignore`).
    #[error("the device of the file system at {path} takes no discards")]
    NoDiscards {
        /// Where it is mounted.
        path: PathBuf,
    },
    /// Something else.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Discards what the file system at `path` has free between `start` and `start + length`, in bytes of its own range. Returns how much
/// that was; nothing beyond its end. `SIGKILL` ends it after the discard that is under way.
///
/// # Errors
/// [`TrimError`].
pub fn trim(path: &Path, start: Bytes, length: Bytes) -> Result<Bytes, TrimError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    match fitrim(&file, start, length) {
        Ok(discarded) => Ok(discarded),
        Err(Errno::OPNOTSUPP) => Err(TrimError::NoDiscards { path: path.to_owned() }),
        // The kernel's answer for a range behind the end: a device that was made larger, and its file system was not yet.
        Err(Errno::INVAL) if start >= size(&file, path)? => Ok(Bytes(0)),
        Err(errno) => Err(io_error("trim the file system at", path)(errno.into()).into()),
    }
}

fn fitrim(file: impl AsFd, start: Bytes, length: Bytes) -> Result<Bytes, Errno> {
    let mut range = Range { start: start.0, len: length.0, minlen: 0 };
    // SAFETY: FITRIM reads a `struct fstrim_range` and writes one in its place, which `Range` is (asserted above).
    let request = unsafe { Updater::<FITRIM, Range>::new(&mut range) };
    // SAFETY: as above; the request borrows the range for as long as the call takes.
    unsafe { ioctl(file, request) }?;
    Ok(Bytes(range.len))
}

/// The size of a file system, or less by what its own structures take (ext4).
fn size(file: &File, path: &Path) -> Result<Bytes, FileError> {
    let found = fstatvfs(file).map_err(|errno| io_error("look at the file system of", path)(io::Error::from(errno)))?;
    Ok(Bytes(found.f_blocks.saturating_mul(found.f_frsize)))
}

#[cfg(test)]
mod tests;
