//! Page cache residency of a file (`cachestat(2)`), without starting I/O. A non-blocking read (`RWF_NOWAIT`) of uncached data would start
//! readahead before it fails.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// The number of `cachestat(2)`, the same on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`.
#[repr(C)]
struct CacheStatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat`: page counts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// Cached pages.
    pub cached: u64,
    /// Cached pages that are dirty.
    pub dirty: u64,
    /// Cached pages under writeback.
    pub writeback: u64,
    /// Evicted pages.
    pub evicted: u64,
    /// Evicted pages that were evicted recently.
    pub recently_evicted: u64,
}

const _: () = assert!(size_of::<CacheStatRange>() == 16 && size_of::<CacheStat>() == 40);

/// Page cache residency of a range of bytes.
///
/// # Errors
/// The operating system's: `ENOSYS` before Linux 6.5, `EOPNOTSUPP` for files without page cache.
pub fn stat(file: impl AsFd, range: &Range<u64>) -> io::Result<CacheStat> {
    let request = CacheStatRange { offset: range.start, len: range.end.saturating_sub(range.start) };
    let mut stat = CacheStat::default();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one `struct cachestat_range` and writes one `struct cachestat`, both of which outlive the call.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const request, &raw mut stat, 0) };
    if done == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel supports `cachestat(2)`.
#[must_use]
pub fn is_available() -> bool {
    // Any descriptor will do: only ENOSYS means that the call is missing.
    let standard_input = std::io::stdin();
    !matches!(stat(&standard_input, &(0..1)), Err(error) if error.raw_os_error() == Some(libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn written_pages_are_cached_and_holes_are_not() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&[1; 8192], 4096).unwrap();
        if !is_available() {
            println!("Skipped: the kernel has no cachestat");
            return;
        }
        assert_eq!(stat(&file, &(4096..12288)).unwrap().cached, 2);
        assert_eq!(stat(&file, &(65536..131_072)).unwrap().cached, 0);
    }
}
