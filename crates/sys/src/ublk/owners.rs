//! A cache of the owners of devices.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::{DeviceInfo, UblkError, is};

/// Cached owners of devices, by inode number in sysfs. A device never changes its owner, and its inode number (unlike its device
/// number) is not reused. `None`: unknown, because the driver refuses to report it. Shared by threads, none of which waits for
/// another's query.
#[derive(Debug, Default)]
pub struct Owners(Mutex<BTreeMap<u64, Option<u64>>>);

impl Owners {
    /// The device of an owner among all existing devices (inode number in sysfs, device number). Queries only devices that are not
    /// known to belong to another owner. Evicts removed devices.
    pub(super) fn find(
        &self,
        devices: &[(u64, u32)],
        owner: u64,
        mut query: impl FnMut(u32) -> Result<Option<DeviceInfo>, UblkError>,
    ) -> Result<Option<DeviceInfo>, UblkError> {
        for (inode, id) in self.candidates(devices, owner) {
            let found = match query(id) {
                Ok(Some(info)) if info.owner == owner => {
                    self.known().insert(inode, Some(owner));
                    return Ok(Some(info));
                }
                Ok(Some(info)) => Some(info.owner),
                Ok(None) => continue,
                // Information about an unprivileged user's device is available to that user only.
                Err(UblkError::Command { source, .. })
                    if [Errno::INVAL, Errno::PERM, Errno::ACCESS].iter().any(|errno| is(&source, *errno)) =>
                {
                    None
                }
                Err(error) => return Err(error),
            };
            self.known().insert(inode, found);
        }
        Ok(None)
    }

    /// The devices that are not known to belong to another owner.
    fn candidates(&self, devices: &[(u64, u32)], owner: u64) -> Vec<(u64, u32)> {
        let mut known = self.known();
        // Evict removed devices once there are more entries than devices.
        if known.len() > devices.len() {
            let existing: HashSet<u64> = devices.iter().map(|(inode, _)| *inode).collect();
            known.retain(|inode, _| existing.contains(inode));
        }
        let is_others = |inode: &u64| known.get(inode).is_some_and(|other| *other != Some(owner));
        devices.iter().filter(|(inode, _)| !is_others(inode)).copied().collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
