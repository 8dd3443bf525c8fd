//! The stream that `volume send` writes (docs/formats/stream.md): a header, then records in the order of their offsets. The checksum of
//! each record depends on all earlier ones, so that a changed, missing or moved record is detected.
//!
//! Owns: the encoding. Does not: read or write streams.

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::stream::StreamHeader;

/// Magic number of a stream.
const MAGIC: [u8; 8] = *b"BULKHEAD";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Size of the preamble: magic number, version, and length of the header's text.
pub const PREAMBLE_BYTES: usize = 16;

/// Size limit of the header's text.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Size of a record's head.
pub const HEAD_BYTES: usize = 24;

/// Size of a checksum (BLAKE3).
pub const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Size limit of the data of a record.
pub const MAX_DATA_BYTES: u64 = 1 << 20;

/// Why a stream cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It has another magic number.
    #[error("the input is not a snapshot stream")]
    Unknown,
    /// It has an unknown version.
    #[error("the stream has version {0}, but this program reads version {VERSION}")]
    Version(u32),
    /// Its header cannot be read.
    #[error("the header of the stream cannot be read: {0}")]
    Header(String),
    /// A checksum is wrong.
    #[error("the stream was altered in transit: a checksum is wrong, at {0} bytes of the volume")]
    Checksum(u64),
    /// A record is invalid.
    #[error("the stream is damaged: a record {0}")]
    Record(&'static str),
}

/// A record. Its range consists of whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// Data: `len` bytes follow, at most [`MAX_DATA_BYTES`].
    Data {
        /// Offset in the volume, in bytes.
        offset: u64,
        /// Length, in bytes.
        len: u64,
    },
    /// Zeroes.
    Zeroes {
        /// Offset in the volume, in bytes.
        offset: u64,
        /// Length, in bytes.
        len: u64,
    },
    /// The end of the stream.
    End,
}

/// Encodes a header with its checksum.
///
/// # Errors
/// [`StreamError::Header`] if it is too long.
pub fn encode_header(header: &StreamHeader) -> Result<Vec<u8>, StreamError> {
    let text = serde_json::to_vec(header).map_err(|error| StreamError::Header(error.to_string()))?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= MAX_HEADER_BYTES);
    let len = len.ok_or_else(|| StreamError::Header("it is too long".to_owned()))?;
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &len.to_le_bytes(), &text].concat();
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    Ok(bytes)
}

/// The length of the header's text, from the preamble.
///
/// # Errors
/// [`StreamError::Unknown`], [`StreamError::Version`]; [`StreamError::Header`] if it is too long.
pub fn header_len(preamble: &[u8; PREAMBLE_BYTES]) -> Result<usize, StreamError> {
    let number = |at: usize| u32::from_le_bytes([preamble[at], preamble[at + 1], preamble[at + 2], preamble[at + 3]]);
    if preamble[..8] != MAGIC {
        return Err(StreamError::Unknown);
    }
    match (number(8), number(12)) {
        (VERSION, len @ ..=MAX_HEADER_BYTES) => Ok(usize::try_from(len).unwrap_or(usize::MAX)),
        (VERSION, _) => Err(StreamError::Header("it is too long".to_owned())),
        (other, _) => Err(StreamError::Version(other)),
    }
}

/// Decodes a header; returns the start of the checksum chain, too.
///
/// # Errors
/// [`StreamError::Checksum`], [`StreamError::Header`].
pub fn decode_header(
    preamble: &[u8; PREAMBLE_BYTES],
    text: &[u8],
    sum: &[u8; CHECKSUM_BYTES],
) -> Result<(StreamHeader, ChecksumChain), StreamError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(preamble).update(text);
    if hasher.finalize() != *sum {
        return Err(StreamError::Checksum(0));
    }
    let bad = |error: &dyn std::fmt::Display| StreamError::Header(error.to_string());
    let header: StreamHeader = serde_json::from_slice(text).map_err(|error| bad(&error))?;
    let (size, start) = (header.size_bytes.0, header.start_bytes.0);
    if size == 0 || !size.is_multiple_of(BLOCK_BYTES) || !start.is_multiple_of(BLOCK_BYTES) || start > size {
        return Err(bad(&"its sizes are not those of a volume"));
    }
    Ok((header, ChecksumChain(*sum)))
}

/// Encodes the head of a record.
#[must_use]
pub fn encode_head(record: Record) -> [u8; HEAD_BYTES] {
    let (kind, offset, len) = match record {
        Record::Data { offset, len } => (1_u64, offset, len),
        Record::Zeroes { offset, len } => (2, offset, len),
        Record::End => (3, 0, 0),
    };
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&kind.to_le_bytes());
    head[8..16].copy_from_slice(&offset.to_le_bytes());
    head[16..].copy_from_slice(&len.to_le_bytes());
    head
}

/// Decodes the head of a record at or after offset `at`, in a volume of `size` bytes.
///
/// # Errors
/// [`StreamError::Record`].
pub fn decode_head(head: &[u8; HEAD_BYTES], at: u64, size: u64) -> Result<Record, StreamError> {
    let number = |n: usize| head[n..n + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (kind, offset, len) = (number(0), number(8), number(16));
    let bad = |what| Err(StreamError::Record(what));
    if kind == 3 {
        return if (offset, len) == (0, 0) { Ok(Record::End) } else { bad("that ends the stream is not empty") };
    }
    if !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) || len == 0 {
        return bad("is not aligned to blocks");
    }
    if offset < at {
        return bad("starts before the end of the previous one");
    }
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return bad("extends beyond the end of the volume");
    }
    match kind {
        1 if len > MAX_DATA_BYTES => bad("has too much data"),
        1 => Ok(Record::Data { offset, len }),
        2 => Ok(Record::Zeroes { offset, len }),
        _ => bad("has an unknown type"),
    }
}

/// The chain of checksums of a stream's records.
#[derive(Clone, Debug)]
pub struct ChecksumChain([u8; CHECKSUM_BYTES]);

impl ChecksumChain {
    /// The chain that starts at an encoded header.
    #[must_use]
    pub fn after(header: &[u8]) -> Self {
        Self(header.last_chunk().copied().unwrap_or_default())
    }

    /// The checksum of the next record.
    pub fn next(&mut self, head: &[u8; HEAD_BYTES], data: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(head).update(data);
        self.0 = hasher.finalize().into();
        self.0
    }
}

#[cfg(test)]
mod tests;
