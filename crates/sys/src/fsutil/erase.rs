//! Writing over devices on purpose: erasing signatures that an operator gave up, and filling a thin volume.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::{FsError, device_size, refuse_in_use, run};
use crate::tool::Tool;

/// How much is written at once.
const CHUNK_BYTES: usize = 1 << 20;

/// Alignment that direct I/O is satisfied with on every device.
const ALIGN_BYTES: usize = 4096;

/// Erases all signatures on a device that nothing uses (wipefs(8), `--all`). What the caller had confirmed is his business.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Tool`].
pub fn wipe(device: &Path) -> Result<(), FsError> {
    refuse_in_use("erase", device)?;
    let tool = Tool::new("wipefs").args(["--all", "--"]).arg(device);
    run("erase", device, tool).map(drop)
}

/// Writes zeroes over a whole device that nothing uses, past the page cache.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Write`].
pub fn write_zeroes(device: &Path) -> Result<(), FsError> {
    refuse_in_use("fill", device)?;
    let size = device_size(device)?.0;
    let error = |source| FsError::Write { device: device.to_owned(), source };
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    let file = OpenOptions::new().write(true).custom_flags(direct).open(device).map_err(error)?;
    let buffer = vec![0u8; CHUNK_BYTES + ALIGN_BYTES];
    let start = buffer.as_ptr().align_offset(ALIGN_BYTES);
    let zeroes = buffer.get(start..start + CHUNK_BYTES).unwrap_or(&buffer[..0]);
    let mut at = 0;
    while at < size {
        let length = usize::try_from(size - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.write_all_at(&zeroes[..length], at).map_err(error)?;
        at += length as u64;
    }
    file.sync_all().map_err(error)
}
