//! Facts about the storage of a host, as the kernel reports them: what the doctor's rules judge.
//!
//! Owns: their form, which is also that of a captured file, and the way down a storage stack. Does not: read a host
//! (`bulkhead_sys::facts`), or judge (`bulkhead_advise`).

mod device;
mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

pub use self::device::{Device, DeviceKind, Image, Paths, ThinPool};
pub use self::host::{Btrfs, CgroupSettings, Cgroups, ContainerLog, Database, Ext4, Runtime, Space, Swap};
use crate::units::{Bytes, DevNo};

/// The version of the form. A reader accepts older ones: a missing fact was not looked for.
pub const FORMAT: u32 = 1;

/// The facts. Names and paths are printable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// The version of the form.
    pub format: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Mounts of file systems on block devices, and others that hold files of containers, in the order of the mount table.
    pub mounts: Vec<Mount>,
    /// Block devices, by name.
    pub devices: Vec<Device>,
    /// Mounted ext4 file systems.
    pub ext4: Vec<Ext4>,
    /// Mounted btrfs file systems.
    pub btrfs: Vec<Btrfs>,
    /// The space of file systems on block devices.
    pub spaces: Vec<Space>,
    /// Whether the kernel is initialising inode tables of ext4 (`ext4lazyinit`).
    pub lazy_init: bool,
    /// Swap areas.
    pub swaps: Vec<Swap>,
    /// Dirty data from which on writers are throttled (`nr_dirty_threshold`); `None` if unknown.
    pub dirty_limit: Option<Bytes>,
    /// cgroup v2; `None` where it is not mounted.
    pub cgroups: Option<Cgroups>,
    /// Whether the io controller is cgroup v1's (`blkio`).
    pub cgroup_v1_io: bool,
    /// Whether the init process is systemd.
    pub systemd: bool,
    /// Processes of databases.
    pub databases: Vec<Database>,
    /// Container runtimes.
    pub runtimes: Vec<Runtime>,
    /// Logs of containers.
    pub logs: Vec<ContainerLog>,
    /// Whether LVM extends thin pools before they are full; `None` if that is unknown.
    pub thin_autoextend: Option<bool>,
    /// Whether free space is trimmed periodically (`fstrim.timer` is enabled); `None` if that is unknown.
    pub trims: Option<bool>,
    /// What could not be looked at.
    pub unseen: Vec<Unseen>,
}

/// A mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// `st_dev` of its files.
    pub dev: DevNo,
    /// Type of the file system.
    pub fs_type: String,
    /// Its mount point.
    pub at: String,
    /// The directory of the file system that is mounted.
    pub root: String,
    /// Options of the mount.
    pub options: Vec<String>,
    /// Options of the file system.
    pub fs_options: Vec<String>,
}

/// What could not be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unseen {
    /// What it is.
    pub what: String,
    /// Why not.
    pub why: String,
}

impl Facts {
    /// The device with a name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&Device> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// The device with a number.
    #[must_use]
    pub fn device_at(&self, dev: DevNo) -> Option<&Device> {
        self.devices.iter().find(|device| device.dev == dev)
    }

    /// The space of the file system with these files.
    #[must_use]
    pub fn space_of(&self, dev: DevNo) -> Option<&Space> {
        self.spaces.iter().find(|space| space.dev == dev)
    }

    /// The device of a file system.
    #[must_use]
    pub fn device_of(&self, mount: &Mount) -> Option<&Device> {
        self.device_at(mount.dev)
    }

    /// A device and all below it, top first, each once.
    #[must_use]
    pub fn stack<'a>(&'a self, top: &'a Device) -> Vec<&'a Device> {
        let (mut found, mut seen, mut todo) = (Vec::new(), BTreeSet::new(), vec![top]);
        while let Some(device) = todo.pop() {
            if seen.insert(device.name.as_str()) {
                found.push(device);
                todo.extend(device.below.iter().rev().filter_map(|name| self.device(name)));
            }
        }
        found
    }

    /// The disks at the bottom of a stack.
    #[must_use]
    pub fn disks<'a>(&'a self, top: &'a Device) -> Vec<&'a Device> {
        self.stack(top).into_iter().filter(|device| device.is_disk()).collect()
    }

    /// The [`Self::file_systems`] on or above each device, by its name. Devices with none are left out.
    #[must_use]
    pub fn mounts_above(&self) -> BTreeMap<&str, Vec<&Mount>> {
        let mut above: BTreeMap<&str, Vec<&Mount>> = BTreeMap::new();
        for mount in self.file_systems() {
            for device in self.device_of(mount).into_iter().flat_map(|top| self.stack(top)) {
                above.entry(device.name.as_str()).or_default().push(mount);
            }
        }
        above
    }

    /// The mount that a path is on.
    #[must_use]
    pub fn mount_at(&self, path: &str) -> Option<&Mount> {
        let holds = |mount: &&Mount| Path::new(path).starts_with(&mount.at);
        // The last one in the table hides those below it.
        self.mounts.iter().filter(holds).max_by_key(|mount| mount.at.len())
    }

    /// The number of overlays whose upper directory is on each file system, by `st_dev`: containers that write there.
    #[must_use]
    pub fn containers(&self) -> BTreeMap<DevNo, usize> {
        let mut found = BTreeMap::new();
        for overlay in self.mounts.iter().filter(|mount| mount.fs_type == "overlay") {
            let upper = overlay.fs_options.iter().find_map(|option| option.strip_prefix("upperdir="));
            if let Some(mount) = upper.and_then(|upper| self.mount_at(upper)) {
                *found.entry(mount.dev).or_default() += 1;
            }
        }
        found
    }

    /// The disks below the file system with these files.
    #[must_use]
    pub fn disks_of(&self, dev: DevNo) -> Vec<&Device> {
        self.device_at(dev).map(|top| self.disks(top)).unwrap_or_default()
    }

    /// File systems on block devices, each once, at the place with the shortest path.
    #[must_use]
    pub fn file_systems(&self) -> Vec<&Mount> {
        let mut found: Vec<&Mount> = self.mounts.iter().filter(|mount| self.device_of(mount).is_some()).collect();
        found.sort_by_key(|mount| (mount.dev, mount.root.len(), mount.at.len()));
        found.dedup_by_key(|mount| mount.dev);
        found
    }
}

impl Mount {
    /// Whether it has an option, of the mount or of the file system.
    #[must_use]
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().chain(&self.fs_options).any(|has| has == option)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, minor: u32, below: &[&str]) -> Device {
        let below = below.iter().map(|name| (*name).to_owned()).collect();
        Device { name: name.to_owned(), dev: DevNo::new(8, minor), below, ..Device::default() }
    }

    #[test]
    fn a_stack_is_followed_to_its_disks_also_in_a_circle() {
        let facts = Facts {
            devices: vec![
                device("dm-0", 1, &["sda1", "sdb", "gone"]),
                device("sda1", 2, &["sda"]),
                device("sda", 3, &[]),
                device("sdb", 4, &[]),
                device("loop0", 5, &["loop1"]),
                device("loop1", 6, &["loop0"]),
            ],
            ..Facts::default()
        };
        let names = |devices: Vec<&Device>| devices.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(facts.stack(&facts.devices[0])), ["dm-0", "sda1", "sda", "sdb"]);
        assert_eq!(names(facts.disks(&facts.devices[0])), ["sda", "sdb"]);
        assert_eq!(names(facts.stack(&facts.devices[4])), ["loop0", "loop1"]);
        assert!(facts.disks(&facts.devices[4]).is_empty());
    }

    #[test]
    fn a_file_system_counts_once_at_its_shortest_path() {
        let mount = |minor, at: &str, root: &str| Mount {
            dev: DevNo::new(8, minor),
            at: at.to_owned(),
            root: root.to_owned(),
            ..Mount::default()
        };
        let facts = Facts {
            devices: vec![device("sda1", 2, &["sda"]), device("sda", 3, &[])],
            mounts: vec![mount(2, "/x", "/dir"), mount(2, "/srv/data", "/"), mount(2, "/srv", "/"), mount(9, "/", "/")],
            ..Facts::default()
        };
        let above = facts.mounts_above();
        let at = |device: &str| above[device].iter().map(|mount| &*mount.at).collect::<Vec<_>>();
        assert_eq!((at("sda1"), at("sda")), (vec!["/srv"], vec!["/srv"]));
    }

    #[test]
    fn facts_of_an_older_form_are_read() {
        let facts: Facts =
            serde_json::from_str(r#"{"format":1,"devices":[{"name":"sda","dev":"8:0"}],"new":1}"#).unwrap();
        assert_eq!(facts.devices[0].kind, DeviceKind::Disk);
    }
}
