//! Intentional overwriting of devices: erasing signatures on an operator's request, and filling a thin volume.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bulkhead_core::units::Bytes;
use rustix::fs::OFlags;

use super::mkfs::device_size;
use super::{FsError, refuse_in_use, run};
use crate::tool::Tool;

/// Size of a write.
const CHUNK_BYTES: usize = 1 << 20;

/// Alignment sufficient for direct I/O on all devices.
const ALIGN_BYTES: usize = 4096;

/// Erases all signatures on an unused device (wipefs(8), `--all`). Confirmation is up to the caller.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Tool`].
pub fn wipe(device: &Path) -> Result<(), FsError> {
    refuse_in_use("erase", device)?;
    let tool = Tool::new("wipefs").args(["--all", "--"]).arg(device);
    run("erase", device, tool).map(drop)
}

/// Writes zeroes to a device from offset `from`, rounded up to 4 KiB, to its end, by direct I/O. If `from` is 0, the device must be unused;
/// otherwise the data on it, such as a file system, must end before `from`, and may be in use.
///
/// # Errors
/// [`FsError::InUse`], [`FsError::Write`].
pub fn write_zeroes(device: &Path, from: Bytes) -> Result<(), FsError> {
    if from == Bytes(0) {
        refuse_in_use("fill", device)?;
    }
    let size = device_size(device)?.0;
    let error = |source| FsError::Write { device: device.to_owned(), source };
    let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
    let file = OpenOptions::new().write(true).custom_flags(direct).open(device).map_err(error)?;
    let buffer = vec![0u8; CHUNK_BYTES + ALIGN_BYTES];
    let start = buffer.as_ptr().align_offset(ALIGN_BYTES);
    let zeroes = buffer.get(start..start + CHUNK_BYTES).unwrap_or(&buffer[..0]);
    let mut at = from.0.next_multiple_of(ALIGN_BYTES as u64);
    while at < size {
        let length = usize::try_from(size - at).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
        file.write_all_at(&zeroes[..length], at).map_err(error)?;
        at += length as u64;
    }
    file.sync_all().map_err(error)
}

#[cfg(test)]
mod tests {
    use std::{fs, io};

    use super::*;

    #[test]
    fn only_data_beyond_the_offset_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        fs::write(&path, vec![7; 2 * CHUNK_BYTES + ALIGN_BYTES]).unwrap();
        match write_zeroes(&path, Bytes(CHUNK_BYTES as u64 - 1)) {
            Err(FsError::Write { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
                println!("skipped: no direct I/O here");
                return;
            }
            outcome => outcome.unwrap(),
        }
        let bytes = fs::read(&path).unwrap();
        let (kept, filled) = bytes.split_at(CHUNK_BYTES);
        assert_eq!(bytes.len(), 2 * CHUNK_BYTES + ALIGN_BYTES);
        assert!(kept.iter().all(|byte| *byte == 7) && filled.iter().all(|byte| *byte == 0));
    }
}
