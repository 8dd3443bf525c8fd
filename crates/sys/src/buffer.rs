//! Memory that direct I/O can use.

use bulkhead_core::cow::BLOCK_BYTES;

/// What is copied at a time, in bytes.
pub const CHUNK: u64 = 1 << 20;

/// Memory for direct I/O.
#[derive(Debug)]
pub struct Buffer {
    bytes: Box<[u8]>,
    /// Where the aligned part starts.
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

    /// The first so many bytes, at most [`CHUNK`].
    pub fn first(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

/// A number of bytes or blocks of what is in memory.
#[must_use]
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}
