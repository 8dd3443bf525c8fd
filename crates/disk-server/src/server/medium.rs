//! Where the bytes of a disk lie: memory of a PCI device, of which is known which parts were ever written.
//!
//! Discarding a whole disk would otherwise write zeroes to all of it, and take as much memory of the host.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_sys::shared::Shared;
use bulkhead_sys::ublk::queue::Request;

/// The unit in which is known what was written.
const CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Medium {
    memory: Shared,
    /// By chunk: whether something else than zeroes may be there.
    written: Mutex<Vec<bool>>,
}

impl Medium {
    /// A medium of so many bytes; a new one reads as zeroes.
    pub(super) fn open(resource: &Path, bytes: u64, is_new: bool) -> io::Result<Self> {
        let memory = Shared::of_pci(resource, to_usize(bytes)?)?;
        Ok(Self { memory, written: Mutex::new(vec![!is_new; to_usize(bytes.div_ceil(CHUNK_BYTES))?]) })
    }

    pub(super) fn read(&self, request: &Request<'_>) -> io::Result<()> {
        request.put_shared(0..to_usize(request.len)?, &self.memory, to_usize(request.offset)?)
    }

    pub(super) fn write(&self, request: &Request<'_>) -> io::Result<()> {
        for chunk in chunks(request.offset, request.len)? {
            // The driver sends nothing beyond the end.
            if let Some(written) = self.written().get_mut(chunk) {
                *written = true;
            }
        }
        request.get_shared(0..to_usize(request.len)?, &self.memory, to_usize(request.offset)?)
    }

    /// Makes a range read as zeroes.
    pub(super) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        let (start, end) = (offset, offset + len);
        for chunk in chunks(offset, len)? {
            let Some(true) = self.written().get(chunk).copied() else { continue };
            let whole = chunk as u64 * CHUNK_BYTES..(chunk as u64 + 1) * CHUNK_BYTES;
            let part = whole.start.max(start)..whole.end.min(end);
            self.memory.zero(to_usize(part.start)?..to_usize(part.end)?)?;
            if part == whole {
                self.written()[chunk] = false;
            }
        }
        Ok(())
    }

    /// Somebody emptied the memory.
    pub(super) fn forget(&self) {
        self.written().fill(false);
    }

    fn written(&self) -> MutexGuard<'_, Vec<bool>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn chunks(offset: u64, len: u64) -> io::Result<Range<usize>> {
    Ok(to_usize(offset / CHUNK_BYTES)?..to_usize((offset + len).div_ceil(CHUNK_BYTES))?)
}

fn to_usize(n: u64) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::ErrorKind::InvalidInput.into())
}
