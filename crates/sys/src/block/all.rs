//! Listing block devices, and their persistent identity.

use std::path::Path;

use bulkhead_core::units::DevNo;

use super::{BlockDevice, BlockError, device_dir, inspect, list, read_dev, read_optional};
use crate::roots::Roots;

/// All block devices, partitions included, by name. Devices that vanish meanwhile are omitted.
///
/// # Errors
/// [`BlockError::Read`] if `/sys/class/block` cannot be listed.
pub fn all(roots: &Roots) -> Result<Vec<BlockDevice>, BlockError> {
    let dirs = list(&roots.sys.join("class/block"))?;
    let mut devices: Vec<BlockDevice> =
        dirs.iter().filter_map(|dir| inspect(roots, read_dev(dir).ok()?).ok()).collect();
    devices.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(devices)
}

/// The identity of a device across reboots: WWID, serial number or device-mapper UUID; empty if it has none of them.
#[must_use]
pub fn identity(roots: &Roots, dev: DevNo) -> String {
    let Ok(dir) = device_dir(roots, dev) else { return String::new() };
    let read = |name: &&str| read_optional(Path::new(&dir.join(name))).ok().flatten().filter(|text| !text.is_empty());
    ["wwid", "device/wwid", "device/serial", "serial", "dm/uuid"].iter().find_map(read).unwrap_or_default()
}
