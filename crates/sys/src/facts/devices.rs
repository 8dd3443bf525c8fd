//! Block devices, as facts.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use bulkhead_core::facts::{Device, DeviceKind, Image, Mount};
use bulkhead_core::identity::printable;
use bulkhead_core::units::{Bytes, DevNo};

use super::ImageOf;
use crate::block::{self, BlockDevice};
use crate::iocost::{self, Ctrl};
use crate::roots::Roots;

pub(super) fn read(roots: &Roots, image_of: &ImageOf, mounts: &[Mount]) -> Result<Vec<Device>, String> {
    let all = block::all(roots).map_err(|error| error.to_string())?;
    let names: HashMap<DevNo, String> = all.iter().map(|device| (device.dev, device.name.clone())).collect();
    Ok(all.into_iter().filter(is_of_interest).map(|device| fact_of(roots, device, &names, image_of, mounts)).collect())
}

/// Devices without a medium, such as unused loop devices, are left out.
fn is_of_interest(device: &BlockDevice) -> bool {
    device.size > Bytes(0)
}

fn fact_of(
    roots: &Roots,
    device: BlockDevice,
    names: &HashMap<DevNo, String>,
    image_of: &ImageOf,
    mounts: &[Mount],
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
        path: printable(&path.to_string_lossy()),
        direct: match kind {
            DeviceKind::Ublk => Some(true),
            _ => read(directory.join("loop/dio")).map(|text| text == "1"),
        },
    });
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
        dm_name: device.dm.as_ref().map(|dm| printable(&dm.name)),
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

/// Type of the file system that a path is on, by the mount table: the file itself is not opened.
fn fs_type_at(path: &Path, mounts: &[Mount]) -> Option<String> {
    let holding = mounts.iter().filter(|mount| path.starts_with(&mount.at));
    holding.max_by_key(|mount| mount.at.len()).map(|mount| mount.fs_type.clone())
}
