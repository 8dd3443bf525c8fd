//! The first block of an image with layers, which contains the superblock of ext4: read and changed without a block device.

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

/// Sets the UUID of the ext4 in an image with layers: writes the first block into the image, durably. Returns `false` without a change
/// if more than the superblock depends on the UUID, or the file system needs a check first; `tune2fs` handles these cases.
///
/// The backup superblocks keep the old UUID until the next `e2fsck` that may write.
///
/// # Errors
/// [`LayerError`]: also if the image is served.
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

/// The size of the internal journal of the ext4 on a device or in an image that is not served, including the fast commit area; `None`
/// without ext4 or without an internal journal. The file system may be mounted, because that does not change the size.
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

/// The first block of an image, from itself or from a layer; zeroes if none has it.
fn first_block(image: &File, path: &Path) -> Result<[u8; BLOCK_BYTES], LayerError> {
    let mut block = [0; BLOCK_BYTES];
    if read_first(image, path, &mut block)? {
        return Ok(block);
    }
    for layer_path in layer::chain(path)?.unwrap_or_default() {
        if read_first(&layer::open(&layer_path, OFlags::RDONLY)?, &layer_path, &mut block)? {
            break;
        }
    }
    Ok(block)
}

/// Reads the first block of a file unless it is a hole; returns whether it was read.
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
mod tests;
