//! Resolving a device or a directory to its physical devices.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use bulkhead_core::facts::DeviceKind;
use bulkhead_core::units::DevNo;

use super::{BlockDevice, BlockError, dev_from_raw, devno_of, inspect, list, name_of, related};
use crate::loopdev;
use crate::mount;
use crate::roots::Roots;

/// One device of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Device number.
    pub dev: DevNo,
    /// Kernel name.
    pub name: String,
    /// Its kind.
    pub kind: DeviceKind,
}

/// A branch of a stack that ends without a physical device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadEnd {
    /// The lowest device that was reached.
    pub dev: DevNo,
    /// Why it has no known device below it.
    pub reason: String,
}

/// A device and everything below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stack {
    /// All devices, top first, each once.
    pub layers: Vec<Layer>,
    /// The physical devices at the bottom, sorted. More than one for RAID or a volume group over several disks.
    pub physical: Vec<DevNo>,
    /// Branches without a physical device, with the reason.
    pub dead_ends: Vec<DeadEnd>,
}

/// The devices that a file is stored on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Block devices (several for btrfs).
    Devices(Vec<DevNo>),
    /// No known device: tmpfs, 9p, nfs, an overlay whose upper directory is hidden …
    None {
        /// The reason.
        reason: String,
    },
}

/// The image of a ublk device, by the device's kernel name; `None` for a device that another program serves.
pub type ImageOf<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// The device and all devices below it.
///
/// A partition resolves to its disk, dm, md and bcache devices to all their slaves, a loop device to the file system of its backing
/// file, a ublk device to that of its image. A branch that cannot be resolved is reported in [`Stack::dead_ends`].
///
/// # Errors
/// Those of [`inspect`], for any device of the stack.
pub fn stack(roots: &Roots, dev: DevNo, image_of: ImageOf<'_>) -> Result<Stack, BlockError> {
    let mut stack = Stack::default();
    let mut todo = vec![dev];
    let mut seen = BTreeSet::new();
    while let Some(dev) = todo.pop() {
        if !seen.insert(dev) {
            continue;
        }
        let device = inspect(roots, dev)?;
        stack.layers.push(Layer { dev, name: device.name.clone(), kind: kind_of(&device) });
        let below = below(roots, &device, image_of)?;
        if below.is_last {
            stack.physical.push(dev);
        }
        stack.dead_ends.extend(below.reason.map(|reason| DeadEnd { dev, reason }));
        todo.extend(below.devices.into_iter().rev());
    }
    stack.physical.sort_unstable();
    Ok(stack)
}

/// What is directly below a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// The devices.
    pub devices: Vec<DevNo>,
    /// Whether it is a physical device.
    pub is_last: bool,
    /// Why no device below it is known, although it is not a physical one.
    pub reason: Option<String>,
}

/// What is directly below a device: see [`stack`].
///
/// # Errors
/// [`BlockError::Read`] if a holder of an image, or the mount table, cannot be read.
pub fn below(roots: &Roots, device: &BlockDevice, image_of: ImageOf<'_>) -> Result<Below, BlockError> {
    let mut devices = device.slaves.clone();
    devices.extend(device.partition_of);
    let (mut is_last, mut reason) = (false, None);
    let mut held_by = |holder: Holder| match holder {
        Holder::Devices(holders) => devices.extend(holders),
        Holder::None { reason: why } => reason = Some(why),
    };
    match kind_of(device) {
        DeviceKind::Loop => held_by(loop_holder(roots, device)?),
        DeviceKind::Ublk if device.slaves.is_empty() => match image_of(&device.name) {
            Some(image) => held_by(image_holder(roots, &image)?),
            None => is_last = true,
        },
        DeviceKind::Memory => reason = Some("it is in memory".into()),
        DeviceKind::Dm if devices.is_empty() => reason = Some("its dm table has no device below it".into()),
        DeviceKind::Md | DeviceKind::Bcache if devices.is_empty() => reason = Some("it has no members".into()),
        _ => is_last = devices.is_empty(),
    }
    Ok(Below { devices, is_last, reason })
}

/// Whether the [`stack`] of a device has this device as its only physical one, without resolving it. `false` for a device that does not
/// exist.
#[must_use]
pub fn is_physical(roots: &Roots, dev: DevNo, image_of: ImageOf<'_>) -> bool {
    let dir = roots.sys.join("dev/block").join(dev.to_string());
    let Ok(name) = name_of(roots, dev) else { return false };
    if dir.join("partition").exists() {
        return false;
    }
    let may_be = match kind_by_name(&name) {
        DeviceKind::Ublk => image_of(&name).is_none(),
        kind => matches!(kind, DeviceKind::Disk | DeviceKind::Nbd),
    };
    may_be && list(&dir.join("slaves")).is_ok_and(|below| below.is_empty())
}

/// The devices of the file system that contains `path` (an existing file or directory), or the device if it is a device node.
///
/// By `st_dev`; if that is anonymous (major 0: btrfs, overlay, tmpfs, network file systems), by the source in
/// `/proc/self/mountinfo`. For btrfs these are all members (`/sys/fs/btrfs`), for overlay those of the upper directory.
///
/// # Errors
/// [`BlockError::Read`] if the path or the mount table cannot be read.
pub fn holder_of(roots: &Roots, path: &Path) -> Result<Holder, BlockError> {
    let canonical = fs::canonicalize(path).map_err(|source| BlockError::Read { path: path.to_owned(), source })?;
    let metadata = fs::metadata(&canonical).map_err(|source| BlockError::Read { path: path.to_owned(), source })?;
    if metadata.file_type().is_block_device() {
        return Ok(Holder::Devices(vec![dev_from_raw(metadata.rdev())]));
    }
    holder_by_dev(roots, &canonical, dev_from_raw(metadata.dev()), 0)
}

/// The kind of a device, by its name.
#[must_use]
pub fn kind_of(device: &BlockDevice) -> DeviceKind {
    if device.partition_of.is_some() { DeviceKind::Partition } else { kind_by_name(&device.name) }
}

/// The kind of a device that is not a partition.
fn kind_by_name(name: &str) -> DeviceKind {
    match name {
        _ if name.starts_with("dm-") => DeviceKind::Dm,
        _ if name.starts_with("loop") => DeviceKind::Loop,
        _ if name.starts_with("md") => DeviceKind::Md,
        _ if name.starts_with("ublkb") => DeviceKind::Ublk,
        _ if name.starts_with("nbd") => DeviceKind::Nbd,
        _ if name.starts_with("bcache") => DeviceKind::Bcache,
        _ if name.starts_with("zram") || name.starts_with("ram") || name.starts_with("pmem") => DeviceKind::Memory,
        _ => DeviceKind::Disk,
    }
}

fn loop_holder(roots: &Roots, device: &BlockDevice) -> Result<Holder, BlockError> {
    let Some(backing) = &device.loop_backing else {
        return Ok(Holder::None { reason: "it is a loop device without a backing file".into() });
    };
    // The kernel's answer is also correct if the file was deleted or is in another mount namespace.
    let path = loopdev::strip_deleted(backing);
    if let Some(id) = loopdev::backing_id(&roots.dev.join(&device.name)) {
        return holder_by_dev(roots, path, id.dev, 0);
    }
    match fs::metadata(path) {
        Ok(metadata) => holder_by_dev(roots, path, dev_from_raw(metadata.dev()), 0),
        Err(error) => {
            Ok(Holder::None { reason: format!("its backing file {} cannot be examined: {error}", path.display()) })
        }
    }
}

fn image_holder(roots: &Roots, image: &Path) -> Result<Holder, BlockError> {
    if image.exists() {
        return holder_of(roots, image);
    }
    Ok(Holder::None { reason: format!("its image {} does not exist", image.display()) })
}

/// Maximum nesting of overlays that is resolved.
const MAX_OVERLAYS: u32 = 4;

pub(super) fn holder_by_dev(roots: &Roots, path: &Path, dev: DevNo, depth: u32) -> Result<Holder, BlockError> {
    if dev.major != 0 {
        return Ok(Holder::Devices(vec![dev]));
    }
    let mounts = mount::mountinfo(roots).map_err(BlockError::mounts)?;
    // btrfs gives each subvolume its own st_dev: if the number is not listed, the mount point decides.
    let by_dev = mounts.iter().rev().find(|mount| mount.dev == dev);
    let by_path = || {
        let fits = mounts.iter().filter(|mount| path.starts_with(&mount.mount_point));
        fits.max_by_key(|mount| mount.mount_point.components().count())
    };
    let Some(mount) = by_dev.or_else(by_path) else {
        return Ok(Holder::None { reason: format!("the file system of {} is not mounted here", path.display()) });
    };
    let shown = format!("{} is on {}", path.display(), mount.fs_type);
    match mount.fs_type.as_str() {
        "overlay" => {
            let upper = mount.super_options.split(',').find_map(|option| option.strip_prefix("upperdir="));
            match upper.map(Path::new).and_then(|dir| Some((dir, fs::metadata(dir).ok()?))) {
                Some((dir, metadata)) if depth < MAX_OVERLAYS => {
                    holder_by_dev(roots, dir, dev_from_raw(metadata.dev()), depth + 1)
                }
                _ => Ok(Holder::None { reason: format!("{shown}, whose upper directory is not visible here") }),
            }
        }
        _ => match devno_of(&mount.source) {
            Ok(source) if mount.fs_type == "btrfs" => Ok(Holder::Devices(btrfs_members(roots, source)?)),
            Ok(source) => Ok(Holder::Devices(vec![source])),
            Err(_) => Ok(Holder::None { reason: format!("{shown}, which has no block device of its own") }),
        },
    }
}

/// All devices of the btrfs that `dev` belongs to (`/sys/fs/btrfs/UUID/devices`); `dev` alone if sysfs does not list it.
fn btrfs_members(roots: &Roots, dev: DevNo) -> Result<Vec<DevNo>, BlockError> {
    for file_system in list(&roots.sys.join("fs/btrfs"))? {
        let members: Vec<DevNo> = related(&file_system.join("devices"))?.into_iter().map(|(dev, _)| dev).collect();
        if members.contains(&dev) {
            return Ok(members);
        }
    }
    Ok(vec![dev])
}
