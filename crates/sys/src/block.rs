//! Block devices as sysfs shows them: what they are, what lies under them, what is on them, and whether they are in use.
//!
//! Owns: `/sys/dev/block/M:m/…` (kernel `Documentation/ABI/stable/sysfs-block`), the way from a device or a directory
//! down to the physical devices, and the look for signatures with `wipefs` and `blkid`.
//! Does not: attach loop devices (`loopdev`), make volumes (`lvm`) or file systems (`fsutil`).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::units::{Bytes, DevNo};

use crate::mount::MountError;
use crate::roots::Roots;
use crate::tool::{Tool, ToolError};

mod all;
pub mod partition;
mod signature;
mod stack;
mod usage;

pub use all::{all, identity};
pub use signature::{Signature, signatures};
pub use stack::{DeadEnd, Holder, ImageOf, Layer, LayerKind, Stack, holder_of, is_physical, stack};
pub use usage::{InUse, claimed, is_in_use};

/// Why something about a block device could not be found out or set.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The kernel does not know the device number.
    #[error("there is no block device {dev}")]
    NotFound {
        /// The device number.
        dev: DevNo,
    },
    /// The path is something else.
    #[error("{path} is not a block device")]
    NotABlockDevice {
        /// The path.
        path: PathBuf,
    },
    /// A file of sysfs or procfs could not be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// The mount table could not be read.
    #[error("cannot find out what is mounted")]
    Mounts {
        /// Why; boxed because it is much larger than the other reasons.
        #[source]
        source: Box<MountError>,
    },
    /// A file of sysfs could not be written.
    #[error("cannot write {value:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What was written.
        value: String,
        /// The kernel's reason.
        #[source]
        source: std::io::Error,
    },
    /// A file of sysfs holds something unexpected.
    #[error("{path}: cannot understand {text:?}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it holds.
        text: String,
    },
    /// The device has no such I/O scheduler.
    #[error("device {dev} has no I/O scheduler {wanted:?}; it offers: {}", available.join(" "))]
    SchedulerUnavailable {
        /// The device whose queue it is.
        dev: DevNo,
        /// The scheduler asked for.
        wanted: String,
        /// What the device offers; empty for a device without a request queue of its own.
        available: Vec<String>,
        /// Why the module could not be loaded, when that was tried.
        #[source]
        source: Option<Box<ToolError>>,
    },
    /// The kernel accepted the write and shows another scheduler.
    #[error("device {dev}: the scheduler is {found:?} after {wanted:?} was set")]
    SchedulerNotInForce {
        /// The device whose queue it is.
        dev: DevNo,
        /// What was written.
        wanted: String,
        /// What was read back.
        found: String,
    },
    /// A helper program failed.
    #[error("cannot look for signatures on {path}")]
    Probe {
        /// The device.
        path: PathBuf,
        /// The program's failure.
        #[source]
        source: ToolError,
    },
    /// `wipefs` printed something unexpected.
    #[error("cannot read what wipefs said about {path}")]
    ProbeOutput {
        /// The device.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl BlockError {
    fn mounts(source: MountError) -> Self {
        Self::Mounts { source: Box::new(source) }
    }
}

/// The I/O schedulers of a request queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduler {
    /// The one in force; `none` is a scheduler too.
    pub active: String,
    /// All that can be set without loading a module, `active` among them.
    pub available: Vec<String>,
}

/// Name and uuid of a device-mapper device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DmId {
    /// Name below `/dev/mapper`, with `-` doubled inside LVM's names.
    pub name: String,
    /// Uuid; starts with `LVM-`, `CRYPT-` … for the owner of the device.
    pub uuid: String,
}

/// One block device. The values about its queue are those of the whole disk for a partition, which has none itself.
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
    /// Whether the kernel takes it for a spinning disk. Virtual disks often claim to be one.
    pub rotational: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// The whole disk, for a partition.
    pub partition_of: Option<DevNo>,
    /// I/O schedulers; `None` without a request queue.
    pub scheduler: Option<Scheduler>,
    /// Device-mapper identity.
    pub dm: Option<DmId>,
    /// Backing file of a loop device, as the kernel shows it (may end in ` (deleted)`).
    pub loop_backing: Option<PathBuf>,
    /// Devices directly below a dm, md or bcache device, sorted.
    pub slaves: Vec<DevNo>,
    /// Requests the queue holds (`queue/nr_requests`); `None` without a request queue.
    pub nr_requests: Option<u32>,
    /// The most that it takes in one request (`queue/max_sectors_kb`); `None` where the kernel does not say.
    pub largest_request: Option<Bytes>,
    /// Model, for devices that say one.
    pub model: Option<String>,
}

/// The counters of `/sys/dev/block/M:m/stat` (kernel `Documentation/block/stat.rst`), since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diskstat {
    /// Reads completed.
    pub reads: u64,
    /// Reads merged into others.
    pub read_merges: u64,
    /// 512-byte sectors read.
    pub read_sectors: u64,
    /// Milliseconds that reads took, summed over requests.
    pub read_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes merged into others.
    pub write_merges: u64,
    /// 512-byte sectors written.
    pub write_sectors: u64,
    /// Milliseconds that writes took, summed over requests.
    pub write_ms: u64,
    /// Requests under way now (the only value that falls).
    pub in_flight: u64,
    /// Milliseconds with at least one request under way.
    pub io_ms: u64,
    /// Milliseconds weighted by requests under way.
    pub weighted_ms: u64,
    /// Discards completed.
    pub discards: u64,
    /// Discards merged into others.
    pub discard_merges: u64,
    /// 512-byte sectors discarded.
    pub discard_sectors: u64,
    /// Milliseconds that discards took.
    pub discard_ms: u64,
    /// Flushes completed; not counted for partitions.
    pub flushes: u64,
    /// Milliseconds that flushes took.
    pub flush_ms: u64,
}

/// Everything sysfs says about a device.
///
/// # Errors
/// [`BlockError::NotFound`] when there is no such device; [`BlockError::Read`] or [`BlockError::Malformed`] for sysfs files.
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

/// The smallest unit in which a device can be written (`queue/logical_block_size`), which direct I/O has to be a multiple of.
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

/// The device behind a path such as `/dev/vg/lv`.
///
/// # Errors
/// [`BlockError::NotABlockDevice`] for anything else, [`BlockError::Read`] when the path cannot be examined, and those of
/// [`inspect`].
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

/// The number of the device that a path names, or of the file system that it is in; that is no block device for btrfs, overlay or tmpfs.
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

/// Kernel names of all block devices, by number. Those that go away meanwhile are left out.
#[must_use]
pub fn names(roots: &Roots) -> HashMap<DevNo, String> {
    let Ok(entries) = fs::read_dir(roots.sys.join("class/block")) else { return HashMap::new() };
    let names = entries.filter_map(Result::ok).filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| Some((devno_of_name(roots, &name)?, name.replace('!', "/")))).collect()
}

/// The number of the device with this kernel name; `None` when there is none.
#[must_use]
pub fn devno_of_name(roots: &Roots, name: &str) -> Option<DevNo> {
    let name = name.replace('/', "!");
    fs::read_to_string(roots.sys.join("class/block").join(name).join("dev")).ok()?.trim().parse().ok()
}

/// For how long the device with this kernel name has had requests under way (`io_ticks` of its `stat` file).
///
/// # Errors
/// [`BlockError::Read`] when it is gone, or says something that is not understood.
pub fn busy(roots: &Roots, name: &str) -> Result<Duration, BlockError> {
    /// Where it is among the numbers (kernel `Documentation/block/stat.rst`).
    const IO_TICKS: usize = 9;
    let path = roots.sys.join("class/block").join(name.replace('/', "!")).join("stat");
    let text = fs::read_to_string(&path).map_err(|source| BlockError::Read { path: path.clone(), source })?;
    let ticks = text.split_ascii_whitespace().nth(IO_TICKS).and_then(|word| word.parse().ok());
    ticks.map(Duration::from_millis).ok_or_else(|| {
        let source = std::io::Error::new(std::io::ErrorKind::InvalidData, format!("it says {text:?}"));
        BlockError::Read { path, source }
    })
}

/// Splits a `dev_t` of `stat(2)`.
pub(crate) fn dev_from_raw(raw: u64) -> DevNo {
    DevNo::new(rustix::fs::major(raw), rustix::fs::minor(raw))
}

/// Sets the I/O scheduler of a device's queue (the disk's, for a partition), and reads it back; returns the old one.
///
/// When the kernel does not list it, its module is loaded first (`bfq`, `kyber-iosched`, `mq-deadline`).
///
/// # Errors
/// [`BlockError::SchedulerUnavailable`], [`BlockError::SchedulerNotInForce`], [`BlockError::Write`], and those of [`inspect`].
pub fn set_scheduler(roots: &Roots, dev: DevNo, wanted: &str) -> Result<String, BlockError> {
    let disk = parent_disk(&device_dir(roots, dev)?)?.unwrap_or(dev);
    let path = device_dir(roots, disk)?.join("queue/scheduler");
    let unavailable = |available: Vec<String>, source| BlockError::SchedulerUnavailable {
        dev: disk,
        wanted: wanted.to_owned(),
        available,
        source,
    };
    let current = || -> Result<Scheduler, BlockError> {
        let text = read_optional(&path)?.unwrap_or_default();
        parse_scheduler(&text).ok_or_else(|| unavailable(Vec::new(), None))
    };
    let mut before = current()?;
    if before.active == wanted {
        return Ok(before.active);
    }
    if !before.available.iter().any(|name| name == wanted) {
        let module = match wanted {
            "bfq" => "bfq",
            "kyber" => "kyber-iosched",
            "mq-deadline" => "mq-deadline",
            _ => return Err(unavailable(before.available, None)),
        };
        if let Err(error) = Tool::new("modprobe").arg(module).run() {
            return Err(unavailable(before.available, Some(Box::new(error))));
        }
        before = current()?;
        if !before.available.iter().any(|name| name == wanted) {
            return Err(unavailable(before.available, None));
        }
    }
    fs::write(&path, wanted).map_err(|source| BlockError::Write {
        path: path.clone(),
        value: wanted.to_owned(),
        source,
    })?;
    let now = current()?.active;
    if now == wanted {
        Ok(before.active)
    } else {
        Err(BlockError::SchedulerNotInForce { dev: disk, wanted: wanted.to_owned(), found: now })
    }
}

/// A device's I/O counters.
///
/// # Errors
/// [`BlockError::NotFound`], [`BlockError::Read`], [`BlockError::Malformed`] (kernels before 5.5 have fewer counters).
pub fn diskstat(roots: &Roots, dev: DevNo) -> Result<Diskstat, BlockError> {
    let path = device_dir(roots, dev)?.join("stat");
    let text = read(&path)?;
    parse_diskstat(&text).ok_or(BlockError::Malformed { path, text })
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
        // EINVAL and EOPNOTSUPP: the attribute exists but the device does not have the property.
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

/// `mq-deadline [none]`; a device without choice shows one word without brackets.
fn parse_scheduler(text: &str) -> Option<Scheduler> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let bracketed = words.iter().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    let active = match (bracketed, words.as_slice()) {
        (Some(active), _) => active,
        (None, [only]) => only,
        _ => return None,
    };
    let available = words.iter().map(|word| word.trim_matches(['[', ']']).to_owned()).collect();
    Some(Scheduler { active: active.to_owned(), available })
}

fn parse_diskstat(text: &str) -> Option<Diskstat> {
    let fields: Vec<u64> = text.split_whitespace().map(|word| word.parse().ok()).collect::<Option<_>>()?;
    // Newer kernels may append fields.
    let &[
        reads,
        read_merges,
        read_sectors,
        read_ms,
        writes,
        write_merges,
        write_sectors,
        write_ms,
        in_flight,
        io_ms,
        weighted_ms,
        discards,
        discard_merges,
        discard_sectors,
        discard_ms,
        flushes,
        flush_ms,
        ..,
    ] = fields.as_slice()
    else {
        return None;
    };
    Some(Diskstat {
        reads,
        read_merges,
        read_sectors,
        read_ms,
        writes,
        write_merges,
        write_sectors,
        write_ms,
        in_flight,
        io_ms,
        weighted_ms,
        discards,
        discard_merges,
        discard_sectors,
        discard_ms,
        flushes,
        flush_ms,
    })
}

#[cfg(test)]
mod tests;
