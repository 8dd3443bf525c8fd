//! Memory that two processes have: one makes it, and gives the other its descriptor.
//!
//! Neither trusts what the other writes there. No reference into it is ever made: what it holds is copied.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::ProtFlags;

use crate::mapping::Mapping;

/// Memory, unmapped when it is dropped.
pub struct Shared(Mapping);

// SAFETY: it is an address of memory that is mapped for as long as this lives, and accessed by copies of bytes alone, which any
// thread or process may make at any time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("len", &self.0.len).finish_non_exhaustive()
    }
}

impl Shared {
    /// Makes memory of so many bytes, zeroed, and a descriptor for the other process.
    ///
    /// # Errors
    /// The operating system's.
    pub fn create(len: usize) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match memfd_create("bulkhead", flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3.
            Err(Errno::INVAL) => memfd_create("bulkhead", flags),
            made => made,
        }?;
        ftruncate(&fd, len as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(&fd, len)?, fd))
    }

    /// Memory that another process made.
    ///
    /// # Errors
    /// `InvalidInput` for what is none of so many bytes, or could be cut off, which would end this process; the operating system's.
    pub fn of(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let is_whole = usize::try_from(fstat(&fd)?.st_size) == Ok(len);
        if !is_whole || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(fd, len)
    }

    /// The memory of a PCI device (`resourceN` of the device in sysfs): that of the host, in a virtual machine with `ivshmem`.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` where the device has less.
    pub fn of_pci(resource: &Path, len: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(resource)?;
        if usize::try_from(file.metadata()?.len()).is_ok_and(|size| size < len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(&file, len)
    }

    /// Fills a part with zeroes.
    ///
    /// # Errors
    /// `InvalidInput` for what it does not have.
    pub fn zero(&self, part: Range<usize>) -> io::Result<()> {
        let len = part.len();
        let start = self.part(part)?;
        // SAFETY: `len` bytes are mapped at `start`, to which no reference is ever made.
        unsafe { std::ptr::write_bytes(start.as_ptr(), 0, len) };
        Ok(())
    }

    fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Ok(Self(Mapping::of(fd, len, 0, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// Reads from `at` on.
    ///
    /// # Errors
    /// `InvalidInput` for more than it has.
    pub fn get_at(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        let from = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: `bytes.len()` bytes are mapped at `from`, to which no reference is ever made, so that `bytes` is something else.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes from `at` on.
    ///
    /// # Errors
    /// `InvalidInput` for more than it has.
    pub fn put_at(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: as in `get_at`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes to its beginning.
    ///
    /// # Errors
    /// `InvalidInput` for more than it has.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.put_at(0, bytes)
    }

    /// Where a part of it lies, which can be read and written as long as this lives.
    ///
    /// # Errors
    /// `InvalidInput` for what it does not have.
    pub(crate) fn part(&self, part: Range<usize>) -> io::Result<NonNull<u8>> {
        if part.start > part.end || part.end > self.0.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the part lies within what is mapped.
        Ok(unsafe { self.0.start.add(part.start) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(memory: &Shared, part: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; part.len()];
        memory.get_at(part.start, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_one_writes_the_other_has() {
        let (one, fd) = Shared::create(8192).unwrap();
        let other = Shared::of(&fd, 8192).unwrap();
        drop(fd);
        one.put(&[7; 5000]).unwrap();
        assert_eq!(bytes_of(&other, 4998..5002), [7, 7, 0, 0]);
        one.put_at(8190, &[8; 2]).unwrap();
        assert_eq!(bytes_of(&other, 8189..8192), [0, 8, 8]);
        assert!(one.put_at(8191, &[0; 2]).is_err() && one.get_at(usize::MAX, &mut [0]).is_err());
        assert!(one.put(&[0; 8193]).is_err() && other.part(1..8193).is_err());
        drop(one);
        assert_eq!(bytes_of(&other, 0..1), [7]);
    }

    #[test]
    fn what_could_be_cut_off_is_refused() {
        let (_memory, fd) = Shared::create(8192).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(Shared::of(&fd, 4096).is_err());
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 8192).unwrap();
        assert!(Shared::of(&unsealed, 8192).is_err());
        assert!(Shared::of(std::fs::File::open("/proc/self/exe").unwrap(), 8192).is_err());
    }
}
