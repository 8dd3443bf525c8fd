//! Block devices, as facts.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_core::facts::{Device, DeviceKind, Image, Mount};
use bulkhead_core::identity::printable;
use bulkhead_core::units::{Bytes, DevNo};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::param::page_size;

use super::ImageOf;
use super::dm::Status;
use crate::block::{self, BlockDevice};
use crate::iocost::{self, Ctrl};
use crate::pagecache;
use crate::roots::Roots;

/// What the kernel appends to the path of a file without a name.
const DELETED: &str = " (deleted)";

/// What facts about devices refer to.
pub(super) struct Context {
    pub(super) image_of: ImageOf,
    pub(super) mounts: Vec<Mount>,
    /// The state of device-mapper devices, by name.
    pub(super) dm: HashMap<String, Status>,
    /// What is wrong with disks, by name.
    pub(super) failing: HashMap<String, String>,
}

pub(super) fn read(roots: &Roots, context: &Context) -> Result<Vec<Device>, String> {
    let all = block::all(roots).map_err(|error| error.to_string())?;
    let names: HashMap<DevNo, String> = all.iter().map(|device| (device.dev, device.name.clone())).collect();
    Ok(all.into_iter().filter(is_of_interest).map(|device| fact_of(roots, device, &names, context)).collect())
}

/// Devices without a medium, such as unused loop devices, are left out.
fn is_of_interest(device: &BlockDevice) -> bool {
    device.size > Bytes(0)
}

fn fact_of(
    roots: &Roots,
    device: BlockDevice,
    names: &HashMap<DevNo, String>,
    Context { image_of, mounts, dm, failing }: &Context,
) -> Device {
    let directory = roots.sys.join("class/block").join(device.name.replace('/', "!"));
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| printable(text.trim()));
    let disk = device.partition_of.and_then(|disk| names.get(&disk));
    let queue =
        disk.map_or_else(|| directory.clone(), |disk| roots.sys.join("class/block").join(disk.replace('/', "!")));
    let queue = |file: &str| read(queue.join("queue").join(file));
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
    let kind = block::kind_of(&device);
    let path = match kind {
        DeviceKind::Loop => device.loop_backing.clone(),
        DeviceKind::Ublk => image_of(&device.name),
        _ => None,
    };
    let below = block::below(roots, &device, &**image_of).map(|below| below.devices).unwrap_or_default();
    let image = path.map(|path| Image {
        fs_type: fs_type_at(&path, mounts),
        deleted: path.to_string_lossy().ends_with(DELETED),
        path: printable(path.to_string_lossy().trim_end_matches(DELETED)),
        direct: match kind {
            DeviceKind::Ublk => Some(true),
            _ => read(directory.join("loop/dio")).map(|text| text == "1"),
        },
        ..Image::default()
    });
    let status = device.dm.as_ref().and_then(|id| dm.get(&id.name));
    let model = device.model.as_deref().map(printable);
    let cost = iocost::read(roots, device.dev).ok().flatten();
    Device {
        kind,
        below: below.iter().filter_map(|dev| names.get(dev).cloned()).collect(),
        image,
        io_cost: cost.as_ref().is_some_and(|(qos, _)| qos.enable),
        io_cost_model: cost.is_some_and(|(_, model)| model.ctrl == Ctrl::User),
        write_cache: queue("write_cache"),
        alignment_offset: read(directory.join("alignment_offset")).and_then(|text| text.parse().ok()).unwrap_or(0),
        discard_bytes: Bytes(number(queue("discard_max_bytes")).unwrap_or(0)),
        missing_members: number(read(directory.join("md/degraded"))).and_then(|n| n.try_into().ok()).unwrap_or(0),
        dm_target: status.map(|status| status.target.clone()),
        thin_pool: status.and_then(|status| status.thin_pool.clone()),
        paths: status.and_then(|status| status.paths),
        dm_name: device.dm.as_ref().map(|dm| printable(&dm.name)),
        raid_level: read(directory.join("md/level")).filter(|level| !level.is_empty()),
        raid_action: read(directory.join("md/sync_action")),
        model,
        readahead_bytes: number(queue("read_ahead_kb")).and_then(|kib| kib.checked_mul(1024)).map(Bytes),
        failing: failing.get(&device.name).cloned(),
        timeouts: read(directory.join("device/iotmo_cnt")).as_deref().and_then(hexadecimal).unwrap_or(0),
        scheduler: device.scheduler.map(|scheduler| printable(&scheduler.active)),
        name: printable(&device.name),
        dev: device.dev,
        size_bytes: device.size,
        rotational: device.rotational,
        read_only: device.read_only,
        logical_block_bytes: device.logical_block_bytes,
        physical_block_bytes: device.physical_block_bytes,
    }
}

/// A number as SCSI writes it: `0x1f`.
fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// Adds to the images of loop devices what their files are.
pub(super) fn examine_images(devices: &mut [Device]) {
    for device in devices.iter_mut().filter(|device| device.kind == DeviceKind::Loop) {
        let Some(image) = device.image.as_mut().filter(|image| !image.deleted) else { continue };
        // A path that is not printable, or is hidden by a mount, is not found.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(file) = open(image.path.as_str(), flags, Mode::empty()) else { continue };
        let Ok(facts) = fstat(&file) else { continue };
        if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
            continue;
        }
        let bytes = |count: i64, unit: u64| u64::try_from(count).ok()?.checked_mul(unit).map(Bytes);
        image.size_bytes = bytes(facts.st_size, 1);
        image.allocated_bytes = bytes(facts.st_blocks, 512);
        let page = u64::try_from(page_size()).unwrap_or(u64::MAX);
        image.cached_bytes =
            pagecache::stat(&file, &(0..0)).ok().and_then(|stat| stat.cached.checked_mul(page)).map(Bytes);
    }
}

/// Type of the file system that a path is on, by the mount table: the file itself is not opened.
fn fs_type_at(path: &Path, mounts: &[Mount]) -> Option<String> {
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    holding.max_by_key(|mount| mount.at.len()).map(|mount| mount.fs_type.clone())
}
