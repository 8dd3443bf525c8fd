//! Nodes of block devices at paths of their own: bind mounts of a node in `/dev` on a file.
//!
//! Owns: making and removing the bind and the file below it, and finding others of the same node. Does not: decide who may open the device.
//! A bind holds neither the device nor its number: whoever removes the device removes the bind first.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bulkhead_core::units::DevNo;
use rustix::fs::OFlags;

use super::{MountError, MountInfo, bind, mounted_at, unmount, unmount_where};
use crate::block::dev_from_raw;
use crate::roots::Roots;

/// The block device whose node is bound at a path; `None` if nothing is mounted there, or something else.
///
/// # Errors
/// Those of [`mounted_at`].
pub fn bound_node(roots: &Roots, target: &Path) -> Result<Option<DevNo>, MountError> {
    if mounted_at(roots, target)?.is_none() {
        return Ok(None);
    }
    Ok(fs::symlink_metadata(target)
        .ok()
        .filter(|found| found.file_type().is_block_device())
        .map(|found| dev_from_raw(found.rdev())))
}

/// Binds a device's node at a path, on a file that is created if it is missing. The directory above must exist. The node of another device
/// there is replaced; returns whether anything was changed.
///
/// # Errors
/// [`MountError::Place`] if something else than a node is mounted or stored there, and as [`bind`].
pub fn bind_node(roots: &Roots, node: &Path, device: DevNo, target: &Path) -> Result<bool, MountError> {
    let refused = |reason| MountError::Place { path: target.to_owned(), reason };
    loop {
        match bound_node(roots, target)? {
            Some(found) if found == device => return Ok(false),
            // The device was removed and made again.
            Some(_) => unmount(target)?,
            None if mounted_at(roots, target)?.is_some() => return Err(refused("something else is mounted there")),
            None => break,
        }
    }
    let open = |source| MountError::Open { path: target.to_owned(), source };
    let no_follow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == 0 => {}
        Ok(_) => return Err(refused("something is stored there that is not an empty file")),
        Err(_) => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(no_follow)
            .open(target)
            .map(drop)
            .map_err(open)?,
    }
    bind(node, target, false)?;
    if bound_node(roots, target)? == Some(device) {
        return Ok(true);
    }
    unbind_node(roots, target)?;
    Err(MountError::Place { path: node.to_owned(), reason: "it is not the node of the device any more" })
}

/// Removes a node that was bound at a path, and the file below it; also the file alone. Returns whether anything was changed.
///
/// # Errors
/// [`MountError::Place`] if something else is mounted there; [`MountError::Open`] if the file cannot be removed; as [`unmount`].
pub fn unbind_node(roots: &Roots, target: &Path) -> Result<bool, MountError> {
    let mut changed = false;
    while mounted_at(roots, target)?.is_some() {
        if bound_node(roots, target)?.is_none() {
            return Err(MountError::Place { path: target.to_owned(), reason: "something else is mounted there" });
        }
        unmount(target)?;
        changed = true;
    }
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() && found.len() == 0 => {
            fs::remove_file(target).map_err(|source| MountError::Open { path: target.to_owned(), source })?;
            Ok(true)
        }
        _ => Ok(changed),
    }
}

/// Where else in a mount table the node that is bound at a path is bound. Mounts that came along when the directories above it were bound
/// elsewhere, as for a chroot environment, are omitted: unmounting propagates to them.
#[must_use]
pub fn other_binds(table: &[MountInfo], target: &Path) -> Vec<PathBuf> {
    let Some(found) = table.iter().rfind(|mount| mount.mount_point == target) else { return Vec::new() };
    let below_root = target.strip_prefix("/").unwrap_or(target);
    let came_along = |mount: &MountInfo| mount.mount_point.ends_with(below_root);
    let is_other = |mount: &&MountInfo| is_same_node(mount, found) && !came_along(mount);
    table.iter().filter(is_other).map(|mount| mount.mount_point.clone()).collect()
}

/// Unmounts the binds of [`other_binds`], the latest first. Never lazily.
///
/// # Errors
/// [`MountError::Busy`] or [`MountError::Unmount`]; later ones are unmounted then, earlier ones are not.
pub fn unmount_other_binds(table: &[MountInfo], target: &Path) -> Result<(), MountError> {
    let Some(found) = table.iter().rfind(|mount| mount.mount_point == target) else { return Ok(()) };
    unmount_where(table, found.dev, target, |mount| is_same_node(mount, found))
}

/// All nodes in `/dev` are in one file system: the path in it tells them apart.
fn is_same_node(mount: &MountInfo, other: &MountInfo) -> bool {
    (mount.dev, &mount.root) == (other.dev, &other.root)
}
