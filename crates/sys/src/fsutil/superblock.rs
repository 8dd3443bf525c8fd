//! The superblock of ext4 (`struct ext4_super_block`): setting the UUID of a copy, and the size of the journal.

use bulkhead_core::units::Bytes;
use uuid::Uuid;

/// Size of the block that contains the superblock: the first one of a file system with 4096-byte blocks.
pub const BLOCK_BYTES: usize = 4096;

/// Offset and length of the superblock in that block.
const START: usize = 1024;
const LEN: usize = 1024;

const MAGIC: u16 = 0xef53;
/// `s_log_block_size` of 4096-byte blocks.
const LOG_BLOCK_SIZE: u32 = 2;
/// `EXT4_VALID_FS`, without `EXT4_ERROR_FS` and the like.
const CLEAN: u16 = 1;
/// `EXT4_FEATURE_COMPAT_STABLE_INODES`: encryption depends on the UUID.
const STABLE_INODES: u32 = 0x800;
/// `EXT4_FEATURE_INCOMPAT_RECOVER`, `_JOURNAL_DEV`, `_MMP`.
const UNSUPPORTED: u32 = 0x4 | 0x8 | 0x100;
/// `EXT4_FEATURE_INCOMPAT_CSUM_SEED`: checksums of metadata do not depend on the UUID.
const CSUM_SEED: u32 = 0x2000;
/// `EXT4_FEATURE_RO_COMPAT_METADATA_CSUM`.
const METADATA_CSUM: u32 = 0x400;
/// `EXT4_CRC32C_CHKSUM`.
const CRC32C: u8 = 1;

/// `EXT4_FEATURE_COMPAT_HAS_JOURNAL`.
const HAS_JOURNAL: u32 = 0x4;
/// `EXT3_JNL_BACKUP_BLOCKS`: the superblock has a copy of the journal's inode.
const INODE_COPY: u8 = 1;

/// Offsets in the superblock.
mod offset {
    pub(super) const LOG_BLOCK_SIZE: usize = 0x18;
    pub(super) const MAGIC: usize = 0x38;
    pub(super) const STATE: usize = 0x3a;
    pub(super) const COMPAT: usize = 0x5c;
    pub(super) const INCOMPAT: usize = 0x60;
    pub(super) const RO_COMPAT: usize = 0x64;
    pub(super) const UUID: usize = 0x68;
    pub(super) const JOURNAL_DEVICE: usize = 0xe4;
    pub(super) const JOURNAL_BACKUP: usize = 0xfd;
    /// The last two of `s_jnl_blocks`: the size of the journal's inode.
    pub(super) const JOURNAL_SIZE_HIGH: usize = 0x10c + 15 * 4;
    pub(super) const JOURNAL_SIZE: usize = 0x10c + 16 * 4;
    pub(super) const CHECKSUM_TYPE: usize = 0x175;
    pub(super) const CHECKSUM: usize = 0x3fc;
}

/// Size of the internal journal of the ext4 whose first block this is, including the fast-commit area; `None` if it is not an ext4 or
/// has no internal journal.
#[must_use]
pub fn journal_bytes(block: &[u8; BLOCK_BYTES]) -> Option<Bytes> {
    let superblock = &block[START..START + LEN];
    let u16_at = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at + 2)) << 16 | u32::from(u16_at(at));
    let is_inside = u16_at(offset::MAGIC) == MAGIC
        && u32_at(offset::COMPAT) & HAS_JOURNAL != 0
        && u32_at(offset::JOURNAL_DEVICE) == 0
        && superblock[offset::JOURNAL_BACKUP] == INODE_COPY;
    is_inside
        .then(|| Bytes(u64::from(u32_at(offset::JOURNAL_SIZE_HIGH)) << 32 | u64::from(u32_at(offset::JOURNAL_SIZE))))
}

/// Sets the UUID of the ext4 whose first block this is. Returns `false` and keeps the block unchanged if more than the superblock
/// depends on the UUID, or if the file system has to be checked first: use `tune2fs` then.
///
/// Copies of the superblock elsewhere keep the old UUID until the next `e2fsck` that may write.
pub fn stamp_uuid(block: &mut [u8; BLOCK_BYTES], uuid: Uuid) -> bool {
    let superblock = &mut block[START..START + LEN];
    if !depends_on_nothing_else(superblock) {
        return false;
    }
    superblock[offset::UUID..offset::UUID + 16].copy_from_slice(uuid.as_bytes());
    let sum = checksum(superblock);
    superblock[offset::CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    true
}

fn depends_on_nothing_else(superblock: &[u8]) -> bool {
    let u16_at = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at + 2)) << 16 | u32::from(u16_at(at));
    u16_at(offset::MAGIC) == MAGIC
        && u32_at(offset::LOG_BLOCK_SIZE) == LOG_BLOCK_SIZE
        && u16_at(offset::STATE) == CLEAN
        && u32_at(offset::COMPAT) & STABLE_INODES == 0
        && u32_at(offset::INCOMPAT) & (UNSUPPORTED | CSUM_SEED) == CSUM_SEED
        && u32_at(offset::RO_COMPAT) & METADATA_CSUM != 0
        && u32_at(offset::JOURNAL_DEVICE) == 0
        && superblock[offset::CHECKSUM_TYPE] == CRC32C
        && u32_at(offset::CHECKSUM) == checksum(superblock)
}

/// `ext4_superblock_csum`: CRC-32C without the final inversion.
fn checksum(superblock: &[u8]) -> u32 {
    !crc32c::crc32c(&superblock[..offset::CHECKSUM])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Tool;

    #[test]
    fn a_damaged_superblock_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        let features = "metadata_csum,metadata_csum_seed";
        Tool::new("mkfs.ext4").args(["-q", "-b", "4096", "-O", features]).arg(&path).run().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for field in [offset::MAGIC, offset::STATE, offset::INCOMPAT, offset::UUID, offset::CHECKSUM] {
            let mut block: [u8; 4096] = *whole.first_chunk().unwrap();
            block[START + field] ^= 4;
            assert!(!stamp_uuid(&mut block, Uuid::nil()), "{field:#x}");
        }
        assert!(!stamp_uuid(&mut [0; 4096], Uuid::nil()));
    }
}
