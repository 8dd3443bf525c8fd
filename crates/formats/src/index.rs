//! The index of a base (docs/formats/index.md): which file of its file system has which of its blocks, and a hash of each. With it a
//! block can be read from another clone's page cache, and be told from what that clone has written since.
//!
//! Owns: what the bytes mean. Does not: read or write any.

use std::hash::Hasher as _;
use std::ops::Range;

use highway::{HighwayHash as _, HighwayHasher, Key};
use siphasher::sip128::{Hasher128 as _, SipHasher24};
use uuid::Uuid;

use bulkhead_core::cow::BLOCK_BYTES;

/// How an index begins.
const MAGIC: [u8; 8] = *b"BHINDEX\0";

/// The version that is written.
const VERSION: u32 = 2;

/// The version before it: its blocks are hashed with SipHash-2-4-128.
const VERSION_1: u32 = 1;

/// Bytes before the extents.
pub const HEAD_BYTES: usize = 64;

/// Bytes of an extent.
pub const EXTENT_BYTES: usize = 40;

/// Bytes of the checksum that follows the extents: BLAKE3 of all before.
pub const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// Bytes of the key that blocks are hashed with.
pub const KEY_BYTES: usize = 16;

/// Bytes of a block's hash.
pub const HASH_BYTES: usize = 16;

/// What the keys of HighwayHash, which are longer than those of indexes, are derived for.
const KEY_CONTEXT: &str = "bulkhead 2026-11 HighwayHash key of an index";

/// The most extents that are believed: those of a file for each block of 16 TiB.
const MAX_EXTENTS: u64 = 1 << 32;

/// What can be wrong with an index.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// It is something else.
    #[error("it is not an index")]
    Unknown,
    /// It is of a version that this program does not know.
    #[error("it is an index of version {0}, and this program reads versions {VERSION_1} to {VERSION}")]
    Version(u32),
    /// It is not as it was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// What an index is of, and how much is in it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct IndexHead {
    /// The version of its format, which decides how blocks are hashed; see [`IndexHead::new`].
    version: u32,
    /// The base.
    pub content: Uuid,
    /// Type of the file handles (`enum fid_type`): 1 for ext4 (32-bit inode, generation), 0x81 for XFS (64-bit inode, generation).
    pub handle_type: u32,
    /// What hashes are made with. Not to be known to whoever writes to a clone, or it could look for blocks of equal hash.
    pub key: [u8; KEY_BYTES],
    /// How many extents there are.
    pub extents: u64,
    /// How many blocks these have.
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

/// Which file: what a file handle is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// Its inode.
    pub inode: u64,
    /// Which file of those that had that inode one after the other.
    pub generation: u32,
}

impl FileId {
    /// The bytes of its handle (`struct file_handle.f_handle`).
    #[must_use]
    pub fn handle(&self, handle_type: u32) -> Option<Vec<u8>> {
        match handle_type {
            1 => Some([u32::try_from(self.inode).ok()?.to_ne_bytes(), self.generation.to_ne_bytes()].concat()),
            0x81 => Some([&self.inode.to_ne_bytes()[..], &self.generation.to_ne_bytes()].concat()),
            _ => None,
        }
    }

    /// What the bytes of a handle say; `None` for a type that no index has.
    #[must_use]
    pub fn of_handle(handle_type: u32, handle: &[u8]) -> Option<Self> {
        let small = |at: usize| Some(u32::from_ne_bytes(handle.get(at..at + 4)?.try_into().ok()?));
        match (handle_type, handle.len()) {
            (1, 8) => Some(Self { inode: small(0)?.into(), generation: small(4)? }),
            (0x81, 12) => {
                let inode = u64::from_ne_bytes(handle.get(..8)?.try_into().ok()?);
                Some(Self { inode, generation: small(8)? })
            }
            _ => None,
        }
    }
}

/// Blocks that follow each other both in the base and in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexExtent {
    /// The first, counted in the base.
    pub block: u64,
    /// How many.
    pub blocks: u32,
    /// The file.
    pub file: FileId,
    /// The first, counted in the file.
    pub file_block: u64,
    /// The place of the first one's hash among all hashes.
    pub hash: u64,
}

impl IndexHead {
    /// The head of an index that is to be written.
    #[must_use]
    pub fn new(content: Uuid, handle_type: u32, key: [u8; KEY_BYTES], extents: u64, blocks: u64) -> Self {
        Self { version: VERSION, content, handle_type, key, extents, blocks }
    }

    /// The head as bytes.
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

    /// Reads a head.
    ///
    /// # Errors
    /// [`IndexError`].
    pub fn decode(bytes: &[u8; HEAD_BYTES]) -> Result<Self, IndexError> {
        if bytes[..8] != MAGIC {
            return Err(IndexError::Unknown);
        }
        let version = small(bytes, 8);
        if !matches!(version, VERSION_1 | VERSION) {
            return Err(IndexError::Version(version));
        }
        let (mut content, mut key) = ([0; 16], [0; KEY_BYTES]);
        content.copy_from_slice(&bytes[16..32]);
        key.copy_from_slice(&bytes[32..48]);
        let head = Self {
            version,
            content: Uuid::from_bytes(content),
            handle_type: small(bytes, 12),
            key,
            extents: large(bytes, 48),
            blocks: large(bytes, 56),
        };
        if !matches!(head.handle_type, 1 | 0x81) {
            return Err(IndexError::Damaged("its header is invalid"));
        }
        if head.extents > MAX_EXTENTS || head.blocks < head.extents || head.blocks > u64::MAX / BLOCK_BYTES {
            return Err(IndexError::Damaged("its header has impossible counts"));
        }
        Ok(head)
    }

    /// Where the hashes begin, in bytes.
    #[must_use]
    pub fn hashes_at(&self) -> u64 {
        let extents = self.extents * EXTENT_BYTES as u64;
        (HEAD_BYTES as u64 + extents + CHECKSUM_BYTES as u64).next_multiple_of(BLOCK_BYTES)
    }

    /// How large the index is, in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.hashes_at() + self.blocks * HASH_BYTES as u64
    }

    /// Whether there is nothing in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// What its blocks are hashed with.
    #[must_use]
    pub fn hasher(&self) -> BlockHasher {
        if self.version == VERSION_1 {
            return BlockHasher::Sip(SipHasher24::new_with_key(&self.key));
        }
        let key = blake3::derive_key(KEY_CONTEXT, &self.key);
        BlockHasher::Highway(Key([0, 8, 16, 24].map(|at| large(&key, at))))
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
    /// The extent as bytes.
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

    /// Reads an extent. What it says is as good as the checksum.
    #[must_use]
    pub fn decode(bytes: &[u8; EXTENT_BYTES]) -> Self {
        Self {
            block: large(bytes, 0),
            blocks: small(bytes, 36),
            file: FileId { inode: large(bytes, 8), generation: small(bytes, 32) },
            file_block: large(bytes, 16),
            hash: large(bytes, 24),
        }
    }

    /// Its blocks in the base.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.block..self.block.saturating_add(self.blocks.into())
    }
}

/// Goes through all extents of an index, and finds what is wrong with them.
#[derive(Debug)]
pub struct Checker {
    head: IndexHead,
    sum: blake3::Hasher,
    seen: u64,
    blocks: u64,
    end: u64,
}

impl Checker {
    /// Begins after the head.
    #[must_use]
    pub fn new(head: IndexHead) -> Self {
        let mut sum = blake3::Hasher::new();
        sum.update(&head.encode());
        Self { head, sum, seen: 0, blocks: 0, end: 0 }
    }

    /// The next extent.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn next(&mut self, bytes: &[u8; EXTENT_BYTES]) -> Result<IndexExtent, IndexError> {
        let extent = IndexExtent::decode(bytes);
        self.sum.update(bytes);
        let is_next = extent.block >= self.end && extent.blocks > 0 && extent.hash == self.blocks;
        let fits = extent.range().end <= u64::MAX / BLOCK_BYTES
            && extent.file_block.saturating_add(extent.blocks.into()) <= u64::MAX / BLOCK_BYTES;
        if !is_next || !fits {
            return Err(IndexError::Damaged("an extent is out of order"));
        }
        (self.end, self.blocks, self.seen) =
            (extent.range().end, self.blocks + u64::from(extent.blocks), self.seen + 1);
        Ok(extent)
    }

    /// What the checksum has to be after the last one.
    #[must_use]
    pub fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        *self.sum.finalize().as_bytes()
    }

    /// Ends with the checksum that was found.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn end(&self, found: &[u8; CHECKSUM_BYTES]) -> Result<(), IndexError> {
        if (self.seen, self.blocks) != (self.head.extents, self.head.blocks) {
            return Err(IndexError::Damaged("the counts in its header are wrong"));
        }
        if self.checksum() != *found {
            return Err(IndexError::Damaged("its checksum is wrong"));
        }
        Ok(())
    }
}

fn small(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

fn large(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, proptest};

    fn head(extents: &[IndexExtent]) -> IndexHead {
        let blocks = extents.iter().map(|extent| u64::from(extent.blocks)).sum();
        IndexHead::new(Uuid::from_u128(7), 1, [3; KEY_BYTES], extents.len() as u64, blocks)
    }

    fn some() -> Vec<IndexExtent> {
        let file = FileId { inode: 12, generation: 99 };
        let extent = |block, blocks, file_block, hash| IndexExtent { block, blocks, file, file_block, hash };
        vec![extent(5, 3, 0, 0), extent(8, 1, 7, 3), extent(1000, 20, 3, 4)]
    }

    fn written(extents: &[IndexExtent]) -> Vec<u8> {
        let head = head(extents);
        let mut checker = Checker::new(head);
        let mut bytes = head.encode().to_vec();
        for extent in extents {
            checker.next(&extent.encode()).unwrap();
            bytes.extend(extent.encode());
        }
        bytes.extend(checker.checksum());
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Vec<IndexExtent>, IndexError> {
        let cut = || IndexError::Damaged("cut off");
        let head = IndexHead::decode(bytes.first_chunk().ok_or_else(cut)?)?;
        let mut checker = Checker::new(head);
        let mut extents = Vec::new();
        let mut at = HEAD_BYTES;
        for _ in 0..head.extents {
            let extent = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(cut)?;
            extents.push(checker.next(extent)?);
            at += EXTENT_BYTES;
        }
        checker.end(bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or_else(cut)?)?;
        Ok(extents)
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(read(&written(&some())), Ok(some()));
        assert_eq!(read(&written(&[])), Ok(Vec::new()));
        let head = head(&some());
        assert_eq!((head.hashes_at(), head.len()), (4096, 4096 + 24 * 16));
        assert_ne!(head.hasher().hash(&[1; 4096]), head.hasher().hash(&[2; 4096]));
        assert!(!format!("{head:?} {:?}", head.hasher()).to_lowercase().contains("key"));
    }

    /// As docs/formats/index.md has it, byte by byte.
    #[test]
    fn both_versions_are_read() {
        let mut head = *b"BHINDEX\0\x02\0\0\0\x81\0\0\0\
            \x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff\x01\
            0123456789abcdef\x02\0\0\0\0\0\0\0\x05\x01\0\0\0\0\0\0";
        let content = Uuid::from_u128(0x1122_3344_5566_7788_99aa_bbcc_ddee_ff01);
        let expected = IndexHead::new(content, 0x81, *b"0123456789abcdef", 2, 0x105);
        let read = IndexHead::decode(&head).unwrap();
        assert_eq!((read, read.encode()), (expected, head));
        head[8] = 1;
        let read = IndexHead::decode(&head).unwrap();
        assert_eq!((read, read.encode()), (IndexHead { version: 1, ..expected }, head));
        let extent = *b"\x08\x07\x06\x05\x04\x03\x02\x01\x01\x02\0\0\0\0\0\0\
            \x03\0\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\x09\x08\x07\x06\x11\0\0\0";
        let read = IndexExtent::decode(&extent);
        let file = FileId { inode: 0x201, generation: 0x0607_0809 };
        let expected = IndexExtent { block: 0x0102_0304_0506_0708, blocks: 17, file, file_block: 3, hash: 0x104 };
        assert_eq!((read, read.encode()), (expected, extent));
    }

    /// The first of the reference implementation's vectors for 128 bits: of nothing, with the key 00 01 … 0f.
    #[test]
    fn hashes_are_those_of_siphash() {
        let key = *b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f";
        let expected = *b"\xa3\x81\x7f\x04\xba\x25\xa8\xe6\x6d\xf6\x72\x14\xc7\x55\x02\x93";
        assert_eq!(IndexHead { version: 1, key, ..head(&[]) }.hasher().hash(&[]), expected);
    }

    /// The first of the reference implementation's vectors for 128 bits: of nothing, with the key 00 01 … 1f.
    #[test]
    fn hashes_are_those_of_highwayhash() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908, 0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918];
        let expected = [0x0fed_268f_9d8f_fec7_u64, 0x3356_5e76_7f09_3e6f].map(u64::to_le_bytes).concat();
        assert_eq!(BlockHasher::Highway(Key(key)).hash(&[]), *expected);
        // Of a block, with the key of an index: what is on disk stays readable.
        assert_eq!(hex(&head(&[]).hasher().hash(&[7; 4096])), "fce9b144d25611599939aac5dac16499");
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn what_no_index_has_is_refused() {
        let mut newer = written(&some());
        newer[8] = 3;
        assert_eq!(read(&newer), Err(IndexError::Version(3)));
        assert_eq!(read(&[0; 200]), Err(IndexError::Unknown));
        let mut overlapping = some();
        overlapping[1].block = 7;
        let mut checker = Checker::new(head(&overlapping));
        checker.next(&overlapping[0].encode()).unwrap();
        assert!(matches!(checker.next(&overlapping[1].encode()), Err(IndexError::Damaged(_))));
    }

    #[test]
    fn handles_are_those_of_the_kernel() {
        let file = FileId { inode: 0x0102_0304, generation: 9 };
        for handle_type in [1, 0x81] {
            let handle = file.handle(handle_type).unwrap();
            assert_eq!(FileId::of_handle(handle_type, &handle), Some(file));
        }
        assert_eq!(FileId { inode: 1 << 32, generation: 0 }.handle(1), None);
        assert_eq!(FileId::of_handle(1, &[0; 12]), None);
    }

    proptest! {
        #[test]
        fn every_flipped_bit_is_noticed(at in 0usize..64 + 3 * 40 + 32, bit in 0u8..8) {
            let mut bytes = written(&some());
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn noise_does_no_harm(noise in proptest::collection::vec(any::<u8>(), 0..400), keep in 0usize..65) {
            let mut bytes = written(&some());
            bytes.truncate(keep);
            bytes.extend(noise);
            let _ = read(&bytes);
        }
    }
}
