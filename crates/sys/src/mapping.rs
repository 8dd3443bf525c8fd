//! Mapped memory, unmapped on drop. No reference into it is ever created; concurrently written content is copied out.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// `len` bytes of memory at `start`, mapped during the lifetime of this value.
pub(crate) struct Mapping {
    pub(crate) start: NonNull<u8>,
    pub(crate) len: usize,
}

impl Mapping {
    /// Zeroed private memory.
    pub(crate) fn anonymous(len: usize) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses a free address range, so no memory in use is affected.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }

    /// A shared mapping of part of a file or device.
    pub(crate) fn shared(fd: impl AsFd, len: usize, offset: u64, access: ProtFlags) -> Result<Self, Errno> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: as above.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, fd, offset) }?;
        Ok(Self { start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the mapping, and no reference into it is ever created. The kernel has pinned
        // any pages that it may still write to.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapping can be unmapped");
    }
}
