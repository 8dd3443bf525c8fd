//! The first block of an image on layers, which has the superblock of ext4 in it: read and changed without a device.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _};
use std::path::Path;
use std::time::Duration;

use bulkhead_core::units::Bytes;
use bulkhead_sys::extents::{self, Kind};
use bulkhead_sys::file::io_error;
use bulkhead_sys::fsutil::superblock::{self, BLOCK_BYTES};
use rustix::fs::OFlags;
use uuid::Uuid;

use crate::layer::{self, LayerError};

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
    let mut block = first_block(&file, image)?;
    if !superblock::stamp_uuid(&mut block, uuid) {
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
    let mut block = [0; BLOCK_BYTES];
    if std::fs::metadata(path).map_err(io_error("stat", path))?.file_type().is_block_device() {
        let device = File::open(path).map_err(io_error("open", path))?;
        device.read_exact_at(&mut block, 0).map_err(io_error("read", path))?;
    } else {
        block = first_block(&layer::open(path, OFlags::RDONLY)?, path)?;
    }
    Ok(superblock::journal_bytes(&block))
}

/// What an image has in its first block, by itself or from a layer; zeroes where nothing has it.
fn first_block(image: &File, path: &Path) -> Result<[u8; BLOCK_BYTES], LayerError> {
    let mut block = [0; BLOCK_BYTES];
    if read_first(image, path, &mut block)? {
        return Ok(block);
    }
    for below in layer::chain(path)?.unwrap_or_default() {
        if read_first(&layer::open(&below, OFlags::RDONLY)?, &below, &mut block)? {
            break;
        }
    }
    Ok(block)
}

/// Reads the first block of a file, if it has data there.
fn read_first(file: &File, path: &Path, block: &mut [u8; BLOCK_BYTES]) -> Result<bool, LayerError> {
    let mut has_data = false;
    extents::extents(file, 0..BLOCK_BYTES as u64, |_, kind| {
        has_data |= kind == Kind::Data;
        Ok(())
    })
    .map_err(io_error("look for data in", path))?;
    if has_data {
        file.read_exact_at(block, 0).map_err(io_error("read", path))?;
    }
    Ok(has_data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::model::FsKind;
    use bulkhead_sys::fsutil::{CheckOutcome, Repair, check, info};
    use bulkhead_sys::tool::Tool;

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
}
