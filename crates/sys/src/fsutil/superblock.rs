//! The superblock of ext4 (`struct ext4_super_block`): giving a copy a UUID of its own, and how large the journal is.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::time::Duration;

use bulkhead_core::units::Bytes;
use rustix::fs::OFlags;
use uuid::Uuid;

use crate::file::io_error;
use crate::layer::{self, LayerError};

/// Where the superblock lies in a file system whose blocks are of 4096 bytes, and how long it is.
const START: usize = 1024;
const LEN: usize = 1024;

const MAGIC: u16 = 0xef53;
/// `s_log_block_size` of blocks of 4096 bytes.
const LOG_BLOCK_SIZE: u32 = 2;
/// `EXT4_VALID_FS`, without `EXT4_ERROR_FS` and the like.
const CLEAN: u16 = 1;
/// `EXT4_FEATURE_COMPAT_STABLE_INODES`: what is encrypted depends on the UUID.
const STABLE_INODES: u32 = 0x800;
/// `EXT4_FEATURE_INCOMPAT_RECOVER`, `_JOURNAL_DEV`, `_MMP`.
const HINDRANCES: u32 = 0x4 | 0x8 | 0x100;
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

/// Places in the superblock.
mod at {
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

/// Gives the ext4 in an image on layers a UUID, by writing its first block into the image, durably. Returns `false`, and leaves the
/// image as it is, where more than the superblock depends on the UUID, or it has to be checked before: `tune2fs` is for that.
///
/// Copies of the superblock elsewhere keep the old UUID until the next `e2fsck` that may write.
///
/// # Errors
/// [`LayerError`]: also when somebody serves the image.
pub fn stamp_uuid(image: &Path, uuid: Uuid) -> Result<bool, LayerError> {
    let file = layer::open(image, OFlags::RDWR)?;
    layer::lock(&file, image, Duration::ZERO, || ())?;
    let mut block = layer::first_block(&file, image)?;
    if !stamp(&mut block, uuid) {
        return Ok(false);
    }
    file.write_all_at(&block, 0).and_then(|()| file.sync_data()).map_err(io_error("write", image))?;
    Ok(true)
}

/// The size of the journal inside the ext4 on a device, or in an image that nobody serves, with what is set aside for fast commits;
/// `None` where there is no ext4, or none with such a journal. It may be mounted: that changes no journal's size.
///
/// # Errors
/// [`LayerError`].
pub fn journal_bytes(path: &Path) -> Result<Option<Bytes>, LayerError> {
    let mut block = [0; layer::FIRST_BLOCK_BYTES];
    if std::fs::metadata(path).map_err(io_error("stat", path))?.file_type().is_block_device() {
        let device = File::open(path).map_err(io_error("open", path))?;
        device.read_exact_at(&mut block, 0).map_err(io_error("read", path))?;
    } else {
        block = layer::first_block(&layer::open(path, OFlags::RDONLY)?, path)?;
    }
    Ok(journal_in(&block[START..START + LEN]))
}

fn journal_in(superblock: &[u8]) -> Option<Bytes> {
    let small = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
    let number = |at: usize| u32::from(small(at + 2)) << 16 | u32::from(small(at));
    let is_inside = small(at::MAGIC) == MAGIC
        && number(at::COMPAT) & HAS_JOURNAL != 0
        && number(at::JOURNAL_DEVICE) == 0
        && superblock[at::JOURNAL_BACKUP] == INODE_COPY;
    is_inside.then(|| Bytes(u64::from(number(at::JOURNAL_SIZE_HIGH)) << 32 | u64::from(number(at::JOURNAL_SIZE))))
}

/// Writes a UUID into the superblock in a first block.
fn stamp(block: &mut [u8; layer::FIRST_BLOCK_BYTES], uuid: Uuid) -> bool {
    let superblock = &mut block[START..START + LEN];
    if !depends_on_nothing_else(superblock) {
        return false;
    }
    superblock[at::UUID..at::UUID + 16].copy_from_slice(uuid.as_bytes());
    let sum = checksum(superblock);
    superblock[at::CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    true
}

fn depends_on_nothing_else(superblock: &[u8]) -> bool {
    let small = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
    let number = |at: usize| u32::from(small(at + 2)) << 16 | u32::from(small(at));
    small(at::MAGIC) == MAGIC
        && number(at::LOG_BLOCK_SIZE) == LOG_BLOCK_SIZE
        && small(at::STATE) == CLEAN
        && number(at::COMPAT) & STABLE_INODES == 0
        && number(at::INCOMPAT) & (HINDRANCES | CSUM_SEED) == CSUM_SEED
        && number(at::RO_COMPAT) & METADATA_CSUM != 0
        && number(at::JOURNAL_DEVICE) == 0
        && superblock[at::CHECKSUM_TYPE] == CRC32C
        && number(at::CHECKSUM) == checksum(superblock)
}

/// As `ext4_superblock_csum` has it: CRC-32C without its last step.
fn checksum(superblock: &[u8]) -> u32 {
    !crc32c::crc32c(&superblock[..at::CHECKSUM])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fsutil::{CheckOutcome, Repair, check, info};
    use crate::tool::Tool;
    use bulkhead_core::model::FsKind;

    const SIZE: u64 = 64 << 20;

    /// An ext4 in a file, with these features beside the usual ones.
    fn made(dir: &Path, features: &str) -> std::path::PathBuf {
        let path = dir.join("v.img");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        let mkfs = Tool::new("mkfs.ext4").args(["-q", "-b", "4096", "-O", features]).arg(&path);
        mkfs.run().unwrap();
        path
    }

    #[test]
    fn a_stamped_file_system_is_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = made(dir.path(), "metadata_csum,metadata_csum_seed");
        let uuid = Uuid::from_u128(0x1234);
        assert!(stamp_uuid(&path, uuid).unwrap());
        assert_eq!(info(&path).unwrap().uuid, uuid.to_string());
        assert_eq!(check(&path, FsKind::Ext4, Repair::No).unwrap(), CheckOutcome::Clean);
        // The next check that may write brings the copies of the superblock along.
        assert!(matches!(
            check(&path, FsKind::Ext4, Repair::Preen).unwrap(),
            CheckOutcome::Clean | CheckOutcome::Repaired
        ));
        assert_eq!(info(&path).unwrap().uuid, uuid.to_string());
    }

    #[test]
    fn where_more_depends_on_the_uuid_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        for features in
            ["metadata_csum,^metadata_csum_seed", "^metadata_csum,^metadata_csum_seed", "metadata_csum_seed,mmp"]
        {
            let path = made(dir.path(), features);
            let before = std::fs::read(&path).unwrap();
            assert!(!stamp_uuid(&path, Uuid::from_u128(1)).unwrap(), "{features}");
            assert!(std::fs::read(&path).unwrap() == before, "{features}: the file was changed");
        }
    }

    #[test]
    fn what_is_damaged_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = made(dir.path(), "metadata_csum,metadata_csum_seed");
        let whole = std::fs::read(&path).unwrap();
        for at in [at::MAGIC, at::STATE, at::INCOMPAT, at::UUID, at::CHECKSUM] {
            let mut block: [u8; 4096] = *whole.first_chunk().unwrap();
            block[START + at] ^= 4;
            assert!(!stamp(&mut block, Uuid::nil()), "{at:#x}");
        }
        assert!(!stamp(&mut [0; 4096], Uuid::nil()));
    }
}
