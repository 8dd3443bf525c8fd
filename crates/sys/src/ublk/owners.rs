//! Which devices belong to whom.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::{DeviceInfo, UblkError, is};

/// The owners of devices, by what `/sys` numbers them with: a device never changes its owner, and its number in `/sys` (unlike its own) is
/// not given to another. `None`: unknown, as the driver refuses to say. Shared by threads; none waits for the query of another.
#[derive(Debug, Default)]
pub struct Owners(Mutex<BTreeMap<u64, Option<u64>>>);

impl Owners {
    /// The device of an owner among all that there are, by their numbers in `/sys` and their own; asks those of which it is not known that
    /// they are somebody else's. Forgets those that are gone.
    pub(super) fn find(
        &self,
        devices: &[(u64, u32)],
        owner: u64,
        mut ask: impl FnMut(u32) -> Result<Option<DeviceInfo>, UblkError>,
    ) -> Result<Option<DeviceInfo>, UblkError> {
        for (number, id) in self.perhaps(devices, owner) {
            let of = match ask(id) {
                Ok(Some(info)) if info.owner == owner => {
                    self.known().insert(number, Some(owner));
                    return Ok(Some(info));
                }
                Ok(Some(info)) => Some(info.owner),
                Ok(None) => continue,
                // Of a device that somebody without privileges made, nobody else is told.
                Err(UblkError::Command { source, .. })
                    if [Errno::INVAL, Errno::PERM, Errno::ACCESS].iter().any(|errno| is(&source, *errno)) =>
                {
                    None
                }
                Err(error) => return Err(error),
            };
            self.known().insert(number, of);
        }
        Ok(None)
    }

    /// Those of the devices that are not known to be somebody else's.
    fn perhaps(&self, devices: &[(u64, u32)], owner: u64) -> Vec<(u64, u32)> {
        let mut known = self.known();
        // Entries of removed devices: never more than there are devices.
        if known.len() > devices.len() {
            let there: HashSet<u64> = devices.iter().map(|(number, _)| *number).collect();
            known.retain(|number, _| there.contains(number));
        }
        let is_others = |number: &u64| known.get(number).is_some_and(|other| *other != Some(owner));
        devices.iter().filter(|(number, _)| !is_others(number)).copied().collect()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u64, Option<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
