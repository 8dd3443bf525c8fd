//! Mapped memory, unmapped when it is dropped. No reference into it is ever made: what others write there is copied.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Memory from `start` on, of `len` bytes, mapped for as long as this lives.
pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

impl Mapping {
    /// Memory of our own, zeroed.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free place, so that no memory in use is touched.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// A part of a file or device, shared with all who have it.
    pub(crate) fn of(fd: impl AsFd, len: usize, offset: u64, access: ProtFlags) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, fd, offset) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping, and no reference into it is ever made. Whatever the kernel may
        // still do with the memory it has pinned.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}
