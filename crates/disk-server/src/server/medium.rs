//! The medium of a disk: the memory of a PCI device, with a record of the chunks that were ever written.
//!
//! Without the record, discarding a whole disk would write zeroes to all of it, and take as much memory of the host.
//! Owns: the memory, the record, and the cache in front of both. Does not: compute latencies.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_sys::shared::Shared;
use bulkhead_sys::ublk::queue::Request;

use super::cache::{BLOCK, Cache};

/// Granularity of the record of written chunks.
const CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug)]
pub(super) struct Medium {
    memory: Shared,
    /// Whether a chunk may contain anything but zeroes, by chunk.
    written: Mutex<Vec<bool>>,
    /// Blocks that a power cut loses; `None` for a disk that loses nothing.
    cache: Option<Mutex<Cache>>,
}

impl Medium {
    /// Opens a medium of `bytes`; a new one reads as zeroes. With a seed, unflushed blocks may be lost.
    pub(super) fn open(resource: &Path, bytes: u64, is_new: bool, loses: Option<u64>) -> io::Result<Self> {
        let memory = Shared::open_pci(resource, to_usize(bytes)?)?;
        let written = Mutex::new(vec![!is_new; to_usize(bytes.div_ceil(CHUNK_BYTES))?]);
        Ok(Self { memory, written, cache: loses.map(|seed| Mutex::new(Cache::new(seed))) })
    }

    pub(super) fn read(&self, request: &Request<'_>) -> io::Result<()> {
        request.put_shared(0..to_usize(request.len)?, &self.memory, to_usize(request.offset)?)?;
        let Some(cache) = self.cache() else { return Ok(()) };
        for block in Block::of(request.offset, request.len)? {
            if let Some(content) = cache.get(block.number) {
                request.put(block.in_request.start, &content[block.inside])?;
            }
        }
        Ok(())
    }

    pub(super) fn write(&self, request: &Request<'_>) -> io::Result<()> {
        for chunk in chunks(request.offset, request.len)? {
            // The driver sends no request beyond the end.
            if let Some(written) = self.written().get_mut(chunk) {
                *written = true;
            }
        }
        let Some(mut cache) = self.cache() else {
            return request.get_shared(0..to_usize(request.len)?, &self.memory, to_usize(request.offset)?);
        };
        for block in Block::of(request.offset, request.len)? {
            let at = to_usize(block.number)? * BLOCK;
            let mut content = [0; BLOCK];
            match cache.get(block.number) {
                Some(cached) => content.copy_from_slice(cached),
                None => self.memory.get_at(at, &mut content)?,
            }
            content[block.inside].copy_from_slice(&request.get(block.in_request)?);
            if !request.fua && cache.keeps() {
                cache.put(block.number, &content);
            } else {
                self.memory.put_at(at, &content)?;
                cache.remove(block.number);
            }
        }
        Ok(())
    }

    /// Makes all completed writes durable.
    pub(super) fn flush(&self) -> io::Result<()> {
        let Some(mut cache) = self.cache() else { return Ok(()) };
        for (number, content) in cache.blocks() {
            self.memory.put_at(to_usize(number)? * BLOCK, content)?;
        }
        cache.clear();
        Ok(())
    }

    /// Makes a range read as zeroes.
    pub(super) fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        if let Some(mut cache) = self.cache() {
            // At once, flushed or not: discarded data is undefined.
            for block in Block::of(offset, len)? {
                let Some(cached) = cache.get(block.number) else { continue };
                let mut content = [0; BLOCK];
                content.copy_from_slice(cached);
                content[block.inside].fill(0);
                self.memory.put_at(to_usize(block.number)? * BLOCK, &content)?;
                cache.remove(block.number);
            }
        }
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

    /// Records that the memory was emptied.
    pub(super) fn reset(&self) {
        if let Some(mut cache) = self.cache() {
            cache.clear();
        }
        self.written().fill(false);
    }

    fn cache(&self) -> Option<MutexGuard<'_, Cache>> {
        Some(self.cache.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn written(&self) -> MutexGuard<'_, Vec<bool>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of a request that lies in one block of the cache.
struct Block {
    number: u64,
    /// Its range in the block.
    inside: Range<usize>,
    /// Its range in the request.
    in_request: Range<usize>,
}

impl Block {
    /// Splits a request at block boundaries.
    fn of(offset: u64, len: u64) -> io::Result<impl Iterator<Item = Self>> {
        let (start, end) = (to_usize(offset)?, to_usize(offset + len)?);
        Ok((start / BLOCK..end.div_ceil(BLOCK)).map(move |number| {
            let first = number * BLOCK;
            let part = start.max(first)..end.min(first + BLOCK);
            Self {
                number: number as u64,
                inside: part.start - first..part.end - first,
                in_request: part.start - start..part.end - start,
            }
        }))
    }
}

fn chunks(offset: u64, len: u64) -> io::Result<Range<usize>> {
    Ok(to_usize(offset / CHUNK_BYTES)?..to_usize((offset + len).div_ceil(CHUNK_BYTES))?)
}

fn to_usize(n: u64) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_split_at_block_boundaries() {
        let parts: Vec<_> = Block::of(4096 - 512, 512 + 4096 + 1024)
            .unwrap()
            .map(|block| (block.number, block.inside, block.in_request))
            .collect();
        assert_eq!(parts, [(0, 3584..4096, 0..512), (1, 0..4096, 512..4608), (2, 0..1024, 4608..5632)]);
    }
}
