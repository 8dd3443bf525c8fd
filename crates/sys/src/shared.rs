//! Memory shared by two processes: one creates it and passes its descriptor to the other.
//!
//! Neither trusts the other's content. No reference into it is ever created; bytes are copied in and out.

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

/// Shared memory, unmapped on drop.
pub struct Shared(Mapping);

// SAFETY: it is the address of memory that stays mapped during the lifetime of this value, and is accessed only by copying
// bytes, which any thread or process may do at any time.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("len", &self.0.len).finish_non_exhaustive()
    }
}

impl Shared {
    /// Creates `len` zeroed bytes, and a descriptor for the other process.
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

    /// Maps memory that another process created.
    ///
    /// # Errors
    /// `InvalidInput` if its size is not `len`, or is not sealed against shrinking (access beyond the end would kill this process
    /// with SIGBUS); the operating system's.
    pub fn open(fd: impl AsFd, len: usize) -> io::Result<Self> {
        let has_size = usize::try_from(fstat(&fd)?.st_size) == Ok(len);
        if !has_size || !fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(fd, len)
    }

    /// Maps the memory of a PCI device (`resourceN` of the device in sysfs): the host's memory, in a virtual machine with `ivshmem`.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` if the device has less.
    pub fn open_pci(resource: &Path, len: usize) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(resource)?;
        if usize::try_from(file.metadata()?.len()).is_ok_and(|size| size < len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(&file, len)
    }

    /// Fills a part with zeroes.
    ///
    /// # Errors
    /// `InvalidInput` for a part out of bounds.
    pub fn zero(&self, part: Range<usize>) -> io::Result<()> {
        let len = part.len();
        let start = self.part(part)?;
        // SAFETY: `len` bytes are mapped at `start`, to which no reference is ever created.
        unsafe { std::ptr::write_bytes(start.as_ptr(), 0, len) };
        Ok(())
    }

    fn map(fd: impl AsFd, len: usize) -> io::Result<Self> {
        Ok(Self(Mapping::shared(fd, len, 0, ProtFlags::READ | ProtFlags::WRITE)?))
    }

    /// Reads at offset `at`.
    ///
    /// # Errors
    /// `InvalidInput` beyond its end.
    pub fn get_at(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        let from = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: `bytes.len()` bytes are mapped at `from`, to which no reference is ever created, so `bytes` does not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes at offset `at`.
    ///
    /// # Errors
    /// `InvalidInput` beyond its end.
    pub fn put_at(&self, at: usize, bytes: &[u8]) -> io::Result<()> {
        let to = self.part(at..at.saturating_add(bytes.len()))?;
        // SAFETY: as in `get_at`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// Writes at offset 0.
    ///
    /// # Errors
    /// `InvalidInput` beyond its end.
    pub fn put(&self, bytes: &[u8]) -> io::Result<()> {
        self.put_at(0, bytes)
    }

    /// Address of a part, valid for reads and writes during the lifetime of this value.
    ///
    /// # Errors
    /// `InvalidInput` for a part out of bounds.
    pub(crate) fn part(&self, part: Range<usize>) -> io::Result<NonNull<u8>> {
        if part.start > part.end || part.end > self.0.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the part is within the mapping, as was just checked.
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
    fn writes_are_visible_through_the_other_mapping() {
        let (one, fd) = Shared::create(8192).unwrap();
        let other = Shared::open(&fd, 8192).unwrap();
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
    fn memory_that_could_shrink_is_refused() {
        let (_memory, fd) = Shared::create(8192).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(Shared::open(&fd, 4096).is_err());
        let unsealed = memfd_create("unsealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&unsealed, 8192).unwrap();
        assert!(Shared::open(&unsealed, 8192).is_err());
        assert!(Shared::open(std::fs::File::open("/proc/self/exe").unwrap(), 8192).is_err());
    }
}
