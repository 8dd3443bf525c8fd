//! Attached loop devices in `/sys/block/loopN`.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bulkhead_core::error::PathError;
use bulkhead_core::units::Bytes;
use rustix::io::Errno;

use super::{BackingId, LoopError, LoopInfo, backing_id, strip_deleted};
use crate::block::dev_from_raw;
use crate::roots::Roots;

/// All attached loop devices, by number. Devices without a backing file are omitted.
///
/// # Errors
/// [`LoopError::Device`] and [`LoopError::Malformed`] for sysfs files. No `/sys/block` means none.
pub fn list(roots: &Roots) -> Result<Vec<LoopInfo>, LoopError> {
    let dir = roots.sys.join("block");
    let error = |source| LoopError::Device(PathError::new("read", &dir, source));
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(source)),
    };
    let mut numbers = Vec::new();
    for entry in entries {
        let name = entry.map_err(error)?.file_name();
        numbers.extend(name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    let mut found = Vec::new();
    for number in numbers {
        found.extend(info(roots, number)?);
    }
    Ok(found)
}

/// The loop device that `image` is attached to, by device and inode, or by name if either cannot be examined.
///
/// The name decides only if the image does not exist any more, or if the device node cannot be queried.
///
/// # Errors
/// Those of [`list`].
pub fn find_by_backing(roots: &Roots, image: &Path) -> Result<Option<LoopInfo>, LoopError> {
    let wanted = fs::metadata(image).ok().map(|m| BackingId { dev: dev_from_raw(m.dev()), inode: m.ino() });
    let canonical = fs::canonicalize(image).unwrap_or_else(|_| image.to_owned());
    Ok(list(roots)?.into_iter().find(|info| is_backed_by(info, wanted, &canonical)))
}

pub(super) fn is_backed_by(info: &LoopInfo, wanted: Option<BackingId>, path: &Path) -> bool {
    match (info.backing, wanted) {
        (Some(found), Some(wanted)) => found == wanted,
        // The image is gone, or the node cannot be queried: only the name is known.
        (_, None) => strip_deleted(&info.backing_file) == path || info.backing_file == path,
        (None, Some(_)) => info.backing_file == path,
    }
}

/// The attributes of `/dev/loopN` in sysfs; `None` if nothing is attached.
pub(super) fn info(roots: &Roots, number: u32) -> Result<Option<LoopInfo>, LoopError> {
    let dir = roots.sys.join("block").join(format!("loop{number}"));
    let backing_path = dir.join("loop/backing_file");
    let Some(mut backing_file) = read_attached(&backing_path)? else { return Ok(None) };
    if backing_file.last() == Some(&b'\n') {
        backing_file.pop();
    }
    let text = |name: &str| -> Result<Option<(PathBuf, String)>, LoopError> {
        let path = dir.join(name);
        let bytes = read_attached(&path)?;
        Ok(bytes.map(|bytes| (path, String::from_utf8_lossy(&bytes).trim().to_owned())))
    };
    // Any of these files may vanish if the device is detached meanwhile; then it counts as not attached.
    let values = (
        text("dev")?,
        text("loop/offset")?,
        text("loop/sizelimit")?,
        text("ro")?,
        text("loop/dio")?,
        text("loop/autoclear")?,
        text("queue/logical_block_size")?,
    );
    let (Some(dev), Some(offset), Some(limit), Some(ro), Some(dio), Some(autoclear), Some(block)) = values else {
        return Ok(None);
    };
    let flag = |(path, text): &(PathBuf, String)| parse_number::<u8>(path, text).map(|n| n != 0);
    let dev_path = roots.dev.join(format!("loop{number}"));
    Ok(Some(LoopInfo {
        dev: dev.1.parse().map_err(|_| LoopError::Malformed { path: dev.0.clone(), text: dev.1.clone() })?,
        backing_file: std::ffi::OsString::from_vec(backing_file).into(),
        backing: backing_id(&dev_path),
        offset: Bytes(parse_number(&offset.0, &offset.1)?),
        size_limit: Bytes(parse_number(&limit.0, &limit.1)?),
        read_only: flag(&ro)?,
        direct_io: flag(&dio)?,
        direct_io_lost: None,
        autoclear: flag(&autoclear)?,
        block_size: parse_number(&block.0, &block.1)?,
        dev_path,
    }))
}

pub(super) fn is_still_attached(roots: &Roots, wanted: &LoopInfo) -> Result<bool, LoopError> {
    let Some(now) = loop_number(wanted).map(|number| info(roots, number)).transpose()?.flatten() else {
        return Ok(false);
    };
    Ok(match (now.backing, wanted.backing) {
        (Some(now), Some(then)) => now == then,
        // The query may fail while the device is being detached: the name decides, with or without ` (deleted)`.
        _ => strip_deleted(&now.backing_file) == strip_deleted(&wanted.backing_file),
    })
}

pub(super) fn loop_number(info: &LoopInfo) -> Option<u32> {
    info.dev_path.file_name()?.to_str()?.strip_prefix("loop")?.parse().ok()
}

/// Reads a sysfs file; `None` if it does not exist, or if the device was detached while reading (ENODEV, ENXIO).
fn read_attached(path: &Path) -> Result<Option<Vec<u8>>, LoopError> {
    let gone = [Errno::NOENT, Errno::NODEV, Errno::NXIO, Errno::NOTDIR].map(|errno| Some(errno.raw_os_error()));
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(source) if gone.contains(&source.raw_os_error()) => Ok(None),
        Err(source) => Err(PathError::new("read", path, source).into()),
    }
}

pub(super) fn read_trimmed(path: &Path) -> Result<String, LoopError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(PathError::new("read", path, source).into()),
    }
}

pub(super) fn parse_number<T: std::str::FromStr>(path: &Path, text: &str) -> Result<T, LoopError> {
    text.parse().map_err(|_| LoopError::Malformed { path: path.to_owned(), text: text.to_owned() })
}
