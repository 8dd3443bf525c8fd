//! The index of a base (docs/formats/index.md): which file has which block, and a hash of each block. It allows a block to be read from
//! the page cache of another clone, and a block that this clone has changed to be detected.
//!
//! Owns: the encoding. Does not: read or write files.

use std::hash::Hasher as _;
use std::ops::Range;

use highway::{HighwayHash as _, HighwayHasher, Key};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use uuid::Uuid;

use bulkhead_core::cow::BLOCK_BYTES;

/// Magic number of an index.
const MAGIC: [u8; 8] = *b"BHINDEX\0";

/// The version that is written.
const VERSION: u32 = 2;

/// The previous version, which hashes blocks with SipHash-2-4-128.
const VERSION_1: u32 = 1;

/// Size of the head.
pub const HEAD_BYTES: usize = 64;

/// Size of an encoded extent.
pub const EXTENT_BYTES: usize = 40;

/// Size of the checksum that follows the extents: BLAKE3 of everything before.
pub const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Size of the hash key.
pub const KEY_BYTES: usize = 16;

/// Size of a hash.
pub const HASH_BYTES: usize = 16;

/// BLAKE3 context by which the 32-byte key of HighwayHash is derived from the key of an index.
const KEY_CONTEXT: &str = "bulkhead 2026-11 HighwayHash key of an index";

/// Plausibility limit of the number of extents: one for each block of 16 TiB.
const MAX_EXTENTS: u64 = 1 << 32;

/// Why an index cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It has another magic number.
    #[error("it is not an index")]
    Unknown,
    /// It has an unknown version.
    #[error("it is an index of version {0}, and this program reads versions {VERSION_1} to {VERSION}")]
    Version(u32),
    /// It is damaged.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// The head of an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexHead {
    /// The version, which selects the hash function; set by [`IndexHead::new`].
    version: u32,
    /// The base.
    pub content: Uuid,
    /// Type of the file handles (`enum fid_type`): 1 for ext4 (32-bit inode, generation), 0x81 for XFS (64-bit inode, generation).
    pub handle_type: u32,
    /// The key of the hashes. It is secret: with it, blocks with colliding hashes could be written to a clone.
    pub key: [u8; KEY_BYTES],
    /// Number of extents.
    pub extents: u64,
    /// Number of blocks in all extents.
    pub blocks: u64,
}

impl std::fmt::Debug for IndexHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, content, handle_type, extents, blocks, .. } = self;
        f.debug_struct("IndexHead")
            .field("version", version)
            .field("content", content)
            .field("handle_type", handle_type)
            .field("extents", extents)
            .field("blocks", blocks)
            .finish_non_exhaustive()
    }
}

/// A file, as its file handle identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Its inode.
    pub inode: u64,
    /// The generation, which differs between files that successively have the same inode.
    pub generation: u32,
}

impl FileId {
    /// Encodes its handle (`struct file_handle.f_handle`); `None` for an unknown type.
    #[must_use]
    pub fn handle(&self, handle_type: u32) -> Option<Vec<u8>> {
        match handle_type {
            1 => Some([u32::try_from(self.inode).ok()?.to_ne_bytes(), self.generation.to_ne_bytes()].concat()),
            0x81 => Some([&self.inode.to_ne_bytes()[..], &self.generation.to_ne_bytes()].concat()),
            _ => None,
        }
    }

    /// Decodes a handle; `None` for an unknown type.
    #[must_use]
    pub fn from_handle(handle_type: u32, handle: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(handle.get(at..at + 4)?.try_into().ok()?));
        match (handle_type, handle.len()) {
            (1, 8) => Some(Self { inode: u32_at(0)?.into(), generation: u32_at(4)? }),
            (0x81, 12) => {
                let inode = u64::from_ne_bytes(handle.get(..8)?.try_into().ok()?);
                Some(Self { inode, generation: u32_at(8)? })
            }
            _ => None,
        }
    }
}

/// Blocks that are contiguous both in the base and in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexExtent {
    /// The first block, counted in the base.
    pub block: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// The file.
    pub file: FileId,
    /// The first block, counted in the file.
    pub file_block: u64,
    /// Index of the first block's hash.
    pub hash: u64,
}

impl IndexHead {
    /// The head of a new index.
    #[must_use]
    pub fn new(content: Uuid, handle_type: u32, key: [u8; KEY_BYTES], extents: u64, blocks: u64) -> Self {
        Self { version: VERSION, content, handle_type, key, extents, blocks }
    }

    /// Encodes the head.
    #[must_use]
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let parts: [(usize, &[u8]); 7] = [
            (0, &MAGIC),
            (8, &self.version.to_le_bytes()),
            (12, &self.handle_type.to_le_bytes()),
            (16, self.content.as_bytes()),
            (32, &self.key),
            (48, &self.extents.to_le_bytes()),
            (56, &self.blocks.to_le_bytes()),
        ];
        for (at, part) in parts {
            bytes[at..at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    /// Decodes a head.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, IndexError> {
        if bytes[..8] != MAGIC {
            return Err(IndexError::Unknown);
        }
        let version = u32_at(bytes, 8);
        if !matches!(version, VERSION_1 | VERSION) {
            return Err(IndexError::Version(version));
        }
        let (mut content, mut key) = ([0; 16], [0; KEY_BYTES]);
        content.copy_from_slice(&bytes[16..32]);
        key.copy_from_slice(&bytes[32..48]);
        let head = Self {
            version,
            content: Uuid::from_bytes(content),
            handle_type: u32_at(bytes, 12),
            key,
            extents: u64_at(bytes, 48),
            blocks: u64_at(bytes, 56),
        };
        if !matches!(head.handle_type, 1 | 0x81) {
            return Err(IndexError::Damaged("its header is invalid"));
        }
        if head.extents > MAX_EXTENTS || head.blocks < head.extents || head.blocks > u64::MAX / BLOCK_BYTES {
            return Err(IndexError::Damaged("its header has impossible counts"));
        }
        Ok(head)
    }

    /// Offset of the hashes, in bytes.
    #[must_use]
    pub fn hashes_offset(&self) -> u64 {
        let extents = self.extents * EXTENT_BYTES as u64;
        (HEAD_BYTES as u64 + extents + CHECKSUM_BYTES as u64).next_multiple_of(BLOCK_BYTES)
    }

    /// Size of the index, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.hashes_offset() + self.blocks * HASH_BYTES as u64
    }

    /// Whether it has no extents.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// The keyed hash function of its version.
    #[must_use]
    pub fn hasher(&self) -> BlockHasher {
        if self.version == VERSION_1 {
            return BlockHasher::Sip(SipHasher24::new_with_key(&self.key));
        }
        let key = blake3::derive_key(KEY_CONTEXT, &self.key);
        BlockHasher::Highway(Key([0, 8, 16, 24].map(|at| u64_at(&key, at))))
    }
}

/// A keyed hash of blocks.
#[derive(Clone, Copy)]
pub enum BlockHasher {
    /// SipHash-2-4 with 128 bits, of version 1: 4.3 instructions a byte.
    Sip(SipHasher24),
    /// HighwayHash with 128 bits: 0.6 instructions a byte with AVX2, 1.5 with SSE 4.1.
    Highway(Key),
}

impl std::fmt::Debug for BlockHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, Self::Sip(_)) { "SipHash-2-4-128" } else { "HighwayHash-128" })
    }
}

impl BlockHasher {
    /// The hash of a block.
    #[must_use]
    pub fn hash(&self, block: &[u8]) -> [u8; HASH_BYTES] {
        match *self {
            Self::Sip(mut hasher) => {
                hasher.write(block);
                hasher.finish128().as_bytes()
            }
            Self::Highway(key) => {
                let [low, high] = HighwayHasher::new(key).hash128(block);
                (u128::from(low) | u128::from(high) << 64).to_le_bytes()
            }
        }
    }
}

impl IndexExtent {
    /// Encodes the extent.
    #[must_use]
    pub fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        bytes[..8].copy_from_slice(&self.block.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.file.inode.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.file_block.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.hash.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.file.generation.to_le_bytes());
        bytes[36..].copy_from_slice(&self.blocks.to_le_bytes());
        bytes
    }

    /// Decodes an extent without validation; [`Checker`] validates it.
    #[must_use]
    pub fn decode(bytes: &[u8; EXTENT_BYTES]) -> Self {
        Self {
            block: u64_at(bytes, 0),
            blocks: u32_at(bytes, 36),
            file: FileId { inode: u64_at(bytes, 8), generation: u32_at(bytes, 32) },
            file_block: u64_at(bytes, 16),
            hash: u64_at(bytes, 24),
        }
    }

    /// Its blocks in the base.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.block..self.block.saturating_add(self.blocks.into())
    }
}

/// Validates the extents of an index one after the other.
#[derive(Debug)]
pub struct Checker {
    head: IndexHead,
    sum: blake3::Hasher,
    n_extents: u64,
    n_blocks: u64,
    end: u64,
}

impl Checker {
    /// Starts after the head.
    #[must_use]
    pub fn new(head: IndexHead) -> Self {
        let mut sum = blake3::Hasher::new();
        sum.update(&head.encode());
        Self { head, sum, n_extents: 0, n_blocks: 0, end: 0 }
    }

    /// Decodes and checks the next extent.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn next(&mut self, bytes: &[u8; EXTENT_BYTES]) -> Result<IndexExtent, IndexError> {
        let extent = IndexExtent::decode(bytes);
        self.sum.update(bytes);
        let is_next = extent.block >= self.end && extent.blocks > 0 && extent.hash == self.n_blocks;
        let fits = extent.range().end <= u64::MAX / BLOCK_BYTES
            && extent.file_block.saturating_add(extent.blocks.into()) <= u64::MAX / BLOCK_BYTES;
        if !is_next || !fits {
            return Err(IndexError::Damaged("an extent is out of order"));
        }
        (self.end, self.n_blocks, self.n_extents) =
            (extent.range().end, self.n_blocks + u64::from(extent.blocks), self.n_extents + 1);
        Ok(extent)
    }

    /// The checksum of the head and the extents so far.
    #[must_use]
    pub fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        *self.sum.finalize().as_bytes()
    }

    /// Checks the counts, and the checksum that follows the last extent.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn end(&self, found: &[u8; CHECKSUM_BYTES]) -> Result<(), IndexError> {
        if (self.n_extents, self.n_blocks) != (self.head.extents, self.head.blocks) {
            return Err(IndexError::Damaged("the counts in its header are wrong"));
        }
        if self.checksum() != *found {
            return Err(IndexError::Damaged("its checksum is wrong"));
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests;
