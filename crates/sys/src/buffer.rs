//! Aligned memory for direct I/O.

use bulkhead_core::cow::BLOCK_BYTES;

/// Size of a buffer, and the unit of copying, in bytes.
pub const CHUNK: u64 = 1 << 20;

/// An aligned buffer of [`CHUNK`] bytes.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    /// Offset of the aligned part.
    start: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Buffer {
    /// Zeroed.
    #[must_use]
    pub fn new() -> Self {
        let bytes = vec![0; to_usize(CHUNK + BLOCK_BYTES)].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(to_usize(BLOCK_BYTES));
        Self { bytes, start }
    }

    /// The first `len` bytes, at most [`CHUNK`].
    pub fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// Converts a count of bytes or blocks in memory; saturates.
#[must_use]
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
