//! Resizable volumes on a ublk disk.
//!
//! A live device can be resized only since Linux 6.16 (`UBLK_F_UPDATE_SIZE`). On older kernels the disk is larger than any volume, and
//! the volume is its first partition, created by ioctl, which can grow at any time. The server handles requests beyond the volume.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bulkhead_core::units::Bytes;
use rustix::io::Errno;

use super::{Control, DeviceInfo, Features, NODE_LIMIT, POLL_PAUSE, UblkError};
use crate::block::partition;
use crate::process;
use crate::roots::Roots;

/// Size of a disk whose volume is a partition.
const OVERSIZE: Bytes = Bytes(1 << 50);

/// The size of the disk for a volume of this size.
#[must_use]
pub fn disk_size(features: Features, volume: Bytes) -> Bytes {
    if features.can_resize() { volume } else { OVERSIZE }
}

/// The volume's node, that of the disk or of its partition. It may not exist yet.
#[must_use]
pub fn node(roots: &Roots, device: &DeviceInfo) -> PathBuf {
    roots.dev.join(if is_partition(roots, device) { partition_name(device) } else { device.name() })
}

/// The size of the volume; `None` if the device was not started, or not exposed.
#[must_use]
pub fn size(roots: &Roots, device: &DeviceInfo) -> Option<Bytes> {
    size_of(roots, &if is_partition(roots, device) { partition_name(device) } else { device.name() })
}

/// Creates the node of a started disk's volume, if it does not exist, and returns it.
///
/// # Errors
/// [`UblkError::Node`].
pub fn expose(roots: &Roots, device: &DeviceInfo, volume: Bytes) -> Result<PathBuf, UblkError> {
    let disk = device.node(roots);
    let failed = |source| UblkError::node("change the partitions of", &disk, source);
    if !is_partition(roots, device) {
        // Partitions that the kernel found in a table in the data are unwanted.
        open(&disk).and_then(|disk| partition::remove_all(&disk)).map_err(failed)?;
    } else if size(roots, device).is_none() {
        open(&disk).and_then(|disk| partition::make_only(&disk, volume)).map_err(failed)?;
    }
    let node = node(roots, device);
    let give_up = Instant::now() + NODE_LIMIT;
    while !node.exists() {
        if Instant::now() >= give_up {
            return Err(UblkError::node("find", node, Errno::NOENT));
        }
        process::pause(POLL_PAUSE);
    }
    Ok(node)
}

/// Grows the volume of a live device to this size, if it is smaller; returns the old size.
///
/// # Errors
/// [`UblkError::Node`], [`UblkError::Command`].
pub fn grow(roots: &Roots, control: &mut Control, device: &DeviceInfo, to: Bytes) -> Result<Bytes, UblkError> {
    let node = device.node(roots);
    let failed = |source| UblkError::node("grow", &node, source);
    let old = size(roots, device).ok_or_else(|| failed(Errno::NODEV.into()))?;
    if old < to {
        if is_partition(roots, device) {
            open(&node).and_then(|disk| partition::resize(&disk, to)).map_err(failed)?;
        } else {
            control.resize(device.id, to)?;
        }
    }
    Ok(old)
}

fn is_partition(roots: &Roots, device: &DeviceInfo) -> bool {
    size_of(roots, &device.name()) == Some(OVERSIZE)
}

fn partition_name(device: &DeviceInfo) -> String {
    format!("{}p1", device.name())
}

fn size_of(roots: &Roots, name: &str) -> Option<Bytes> {
    let sectors: u64 =
        fs::read_to_string(roots.sys.join("class/block").join(name).join("size")).ok()?.trim().parse().ok()?;
    Some(Bytes(sectors * 512))
}

fn open(disk: &Path) -> io::Result<fs::File> {
    OpenOptions::new().read(true).open(disk)
}
