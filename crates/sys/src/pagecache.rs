//! What of a file is in the page cache (`cachestat(2)`), asked without starting I/O: a read that must not wait
//! (`RWF_NOWAIT`) starts readahead before it says that it would have to.

use std::io;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

/// The number of `cachestat(2)`, the same on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range`.
#[repr(C)]
struct Asked {
    offset: u64,
    len: u64,
}

/// `struct cachestat`: numbers of pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// In the cache.
    pub cached: u64,
    /// Of these, changed and not yet written.
    pub dirty: u64,
    /// Of these, being written.
    pub writeback: u64,
    /// Not in the cache any more.
    pub evicted: u64,
    /// Of these, not long ago.
    pub recently_evicted: u64,
}

const _: () = assert!(size_of::<Asked>() == 16 && size_of::<CacheStat>() == 40);

/// What of a range of bytes is in the page cache.
///
/// # Errors
/// The operating system's: `ENOSYS` before Linux 6.5, `EOPNOTSUPP` for what has no page cache.
pub fn stat(file: impl AsFd, range: &Range<u64>) -> io::Result<CacheStat> {
    let asked = Asked { offset: range.start, len: range.end.saturating_sub(range.start) };
    let mut stat = CacheStat::default();
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: the kernel reads one `struct cachestat_range` and writes one `struct cachestat`, both of which live through the call.
    let done = unsafe { libc::syscall(SYS_CACHESTAT, fd, &raw const asked, &raw mut stat, 0) };
    if done == 0 { Ok(stat) } else { Err(io::Error::last_os_error()) }
}

/// Whether the kernel can be asked.
#[must_use]
pub fn is_available() -> bool {
    // It looks for the file before it looks at what is asked.
    let standard_input = std::io::stdin();
    !matches!(stat(&standard_input, &(0..1)), Err(error) if error.raw_os_error() == Some(libc::ENOSYS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn what_was_written_is_cached_and_what_was_not_is_not() {
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
