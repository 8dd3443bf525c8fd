//! Block devices in sysfs: their properties, the stack below them, their signatures, and whether they are in use.
//!
//! Owns: `/sys/dev/block/M:m/…` (kernel `Documentation/ABI/stable/sysfs-block`), resolving a device or directory to its physical
//! devices, and probing for signatures with `wipefs` and `blkid`.
//! Does not: attach loop devices (`loopdev`), create volumes (`lvm`) or file systems (`fsutil`).

mod all;
mod diskstat;
mod error;
pub mod partition;
mod scheduler;
mod signature;
mod stack;
mod usage;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bulkhead_core::units::{Bytes, DevNo};

pub use self::all::{all, identity};
pub use self::diskstat::{Diskstat, busy, diskstat};
pub use self::error::BlockError;
use self::scheduler::parse_scheduler;
pub use self::scheduler::{Scheduler, set_scheduler};
pub use self::signature::{Signature, signatures};
pub use self::stack::{Below, DeadEnd, Holder, ImageOf, Layer, Stack, below, holder_of, is_physical, kind_of, stack};
pub use self::usage::{InUse, claimed, is_in_use, openers, sync};
use crate::roots::Roots;

/// Name and uuid of a device-mapper device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmId {
    /// Name below `/dev/mapper`, with `-` doubled inside LVM's names.
    pub name: String,
    /// Uuid; starts with `LVM-`, `CRYPT-` … for the owner of the device.
    pub uuid: String,
}

/// A block device. A partition has no queue; its queue attributes are those of the whole disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Device number.
    pub dev: DevNo,
    /// Kernel name: `vda`, `dm-3`, `loop0`.
    pub name: String,
    /// Size.
    pub size: Bytes,
    /// Smallest addressable unit in bytes (`queue/logical_block_size`).
    pub logical_block_bytes: u32,
    /// Smallest unit written without read-modify-write, in bytes (`queue/physical_block_size`).
    pub physical_block_bytes: u32,
    /// Whether the kernel treats it as a rotating disk. Virtual disks often claim to be one.
    pub rotational: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// The whole disk, for a partition.
    pub partition_of: Option<DevNo>,
    /// I/O schedulers; `None` without a request queue.
    pub scheduler: Option<Scheduler>,
    /// Device-mapper identity.
    pub dm: Option<DmId>,
    /// Backing file of a loop device, as the kernel reports it (may end in ` (deleted)`).
    pub loop_backing: Option<PathBuf>,
    /// Devices directly below a dm, md or bcache device, sorted.
    pub slaves: Vec<DevNo>,
    /// Size of the request queue (`queue/nr_requests`); `None` without a request queue.
    pub nr_requests: Option<u32>,
    /// Size of the largest request (`queue/max_sectors_kb`); `None` if the kernel does not report it.
    pub largest_request: Option<Bytes>,
    /// Model, for devices that report one.
    pub model: Option<String>,
}

/// The attributes of a device in sysfs.
///
/// # Errors
/// [`BlockError::NotFound`] if there is no such device; [`BlockError::Read`] or [`BlockError::Malformed`] for sysfs files.
pub fn inspect(roots: &Roots, dev: DevNo) -> Result<BlockDevice, BlockError> {
    let dir = device_dir(roots, dev)?;
    let partition_of = parent_disk(&dir)?;
    let queue = match partition_of {
        Some(disk) => device_dir(roots, disk)?.join("queue"),
        None => dir.join("queue"),
    };
    let dm = match read_optional(&dir.join("dm/name"))? {
        Some(name) => Some(DmId { name, uuid: read_optional(&dir.join("dm/uuid"))?.unwrap_or_default() }),
        None => None,
    };
    let scheduler = read_optional(&queue.join("scheduler"))?.and_then(|text| parse_scheduler(&text));
    let sectors: u64 = read_number(&dir.join("size"))?;
    Ok(BlockDevice {
        dev,
        name: kernel_name(&dir)?,
        size: Bytes(sectors.saturating_mul(512)),
        logical_block_bytes: read_number(&queue.join("logical_block_size"))?,
        physical_block_bytes: read_number(&queue.join("physical_block_size"))?,
        rotational: read_number::<u8>(&queue.join("rotational"))? != 0,
        read_only: read_number::<u8>(&dir.join("ro"))? != 0,
        partition_of,
        scheduler,
        dm,
        loop_backing: read_optional(&dir.join("loop/backing_file"))?.map(PathBuf::from),
        slaves: related(&dir.join("slaves"))?.into_iter().map(|(dev, _)| dev).collect(),
        nr_requests: read_optional(&queue.join("nr_requests"))?.and_then(|text| text.parse().ok()),
        largest_request: read_optional(&queue.join("max_sectors_kb"))?
            .and_then(|text| text.parse::<u64>().ok()?.checked_mul(1024).map(Bytes)),
        model: read_optional(&dir.join("device/model"))?.filter(|text| !text.is_empty()),
    })
}

/// The logical block size of a device (`queue/logical_block_size`), to which direct I/O must be aligned.
///
/// # Errors
/// Those of [`inspect`].
pub fn logical_block_bytes(roots: &Roots, dev: DevNo) -> Result<u32, BlockError> {
    let dir = device_dir(roots, dev)?;
    let disk = match parent_disk(&dir)? {
        Some(disk) => device_dir(roots, disk)?,
        None => dir,
    };
    read_number(&disk.join("queue/logical_block_size"))
}

/// The device at a path such as `/dev/vg/lv`.
///
/// # Errors
/// [`BlockError::NotABlockDevice`], [`BlockError::Read`] if the path cannot be examined, and those of [`inspect`].
pub fn by_path(roots: &Roots, path: &Path) -> Result<BlockDevice, BlockError> {
    inspect(roots, devno_of(path)?)
}

/// The device number of a device node.
///
/// # Errors
/// [`BlockError::NotABlockDevice`], or [`BlockError::Read`] when the path cannot be examined.
pub fn devno_of(path: &Path) -> Result<DevNo, BlockError> {
    let metadata = fs::metadata(path).map_err(|source| BlockError::Read { path: path.to_owned(), source })?;
    if !metadata.file_type().is_block_device() {
        return Err(BlockError::NotABlockDevice { path: path.to_owned() });
    }
    Ok(dev_from_raw(metadata.rdev()))
}

/// The number of the block device at a path, or else of the file system that contains it (not a block device for btrfs, overlay or
/// tmpfs).
///
/// # Errors
/// [`BlockError::Read`] when the path cannot be examined.
pub fn devno_below(path: &Path) -> Result<DevNo, BlockError> {
    let metadata = fs::metadata(path).map_err(|source| BlockError::Read { path: path.to_owned(), source })?;
    let is_device = metadata.file_type().is_block_device();
    Ok(dev_from_raw(if is_device { metadata.rdev() } else { metadata.dev() }))
}

/// The kernel name (`vda1`, `dm-3`) of a device.
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`].
pub fn name_of(roots: &Roots, dev: DevNo) -> Result<String, BlockError> {
    let link = roots.sys.join("dev/block").join(dev.to_string());
    match fs::read_link(&link) {
        Ok(dir) => kernel_name(&dir),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(BlockError::NotFound { dev }),
        Err(source) => Err(BlockError::Read { path: link, source }),
    }
}

/// Kernel names of all block devices, by number. Devices that vanish meanwhile are omitted.
#[must_use]
pub fn names(roots: &Roots) -> HashMap<DevNo, String> {
    let Ok(entries) = fs::read_dir(roots.sys.join("class/block")) else { return HashMap::new() };
    let names = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Some((devno_of_name(roots, &name)?, name.replace('!', "/")))).collect()
}

/// The number of the device with this kernel name; `None` if there is none.
#[must_use]
pub fn devno_of_name(roots: &Roots, name: &str) -> Option<DevNo> {
    let name = name.replace('/', "!");
    fs::read_to_string(roots.sys.join("class/block").join(name).join("dev")).ok()?.trim().parse().ok()
}

/// Splits a `dev_t` of `stat(2)`.
pub(crate) fn dev_from_raw(raw: u64) -> DevNo {
    DevNo::new(rustix::fs::major(raw), rustix::fs::minor(raw))
}

/// Devices built directly on this one (dm, md, bcache; `/sys/…/holders`), sorted.
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`].
pub fn holders(roots: &Roots, dev: DevNo) -> Result<Vec<DevNo>, BlockError> {
    Ok(related(&device_dir(roots, dev)?.join("holders"))?.into_iter().map(|(dev, _)| dev).collect())
}

fn device_dir(roots: &Roots, dev: DevNo) -> Result<PathBuf, BlockError> {
    let link = roots.sys.join("dev/block").join(dev.to_string());
    match fs::canonicalize(&link) {
        Ok(dir) => Ok(dir),
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(BlockError::NotFound { dev }),
        Err(source) => Err(BlockError::Read { path: link, source }),
    }
}

fn kernel_name(dir: &Path) -> Result<String, BlockError> {
    match dir.file_name() {
        // sysfs writes '!' for '/' in names such as cciss/c0d0.
        Some(name) => Ok(name.to_string_lossy().replace('!', "/")),
        None => Err(BlockError::Malformed { path: dir.to_owned(), text: String::new() }),
    }
}

fn parent_disk(dir: &Path) -> Result<Option<DevNo>, BlockError> {
    match dir.parent() {
        Some(parent) if dir.join("partition").exists() => read_dev(parent).map(Some),
        _ => Ok(None),
    }
}

/// Devices linked from a `slaves` or `holders` directory, sorted by number.
fn related(dir: &Path) -> Result<Vec<(DevNo, String)>, BlockError> {
    let mut found = Vec::new();
    for entry in list(dir)? {
        found.push((read_dev(&entry)?, kernel_name(&entry)?));
    }
    found.sort();
    Ok(found)
}

fn list(dir: &Path) -> Result<Vec<PathBuf>, BlockError> {
    let error = |source| BlockError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(error(source)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(error)).collect()
}

fn read_dev(dir: &Path) -> Result<DevNo, BlockError> {
    let path = dir.join("dev");
    let text = read(&path)?;
    text.parse().map_err(|_| BlockError::Malformed { path, text })
}

fn read(path: &Path) -> Result<String, BlockError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(source) => Err(BlockError::Read { path: path.to_owned(), source }),
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, BlockError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned())),
        // EINVAL and EOPNOTSUPP: the attribute exists, but the device does not have the property.
        Err(source) => match source.kind() {
            std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidInput | std::io::ErrorKind::Unsupported => {
                Ok(None)
            }
            _ => Err(BlockError::Read { path: path.to_owned(), source }),
        },
    }
}

fn read_number<T: std::str::FromStr>(path: &Path) -> Result<T, BlockError> {
    let text = read(path)?;
    text.parse().map_err(|_| BlockError::Malformed { path: path.to_owned(), text })
}

#[cfg(test)]
mod tests;
