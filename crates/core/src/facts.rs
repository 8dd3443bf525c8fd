//! Facts about the storage of a host, as the kernel reports them: what the doctor's rules judge.
//!
//! Owns: their form, which is also that of a captured file, and the way down a storage stack. Does not: read a host
//! (`bulkhead_sys::facts`), or judge (`bulkhead_advise`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

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
    /// cgroup v2; `None` where it is not mounted.
    pub cgroups: Option<Cgroups>,
    /// Processes of databases.
    pub databases: Vec<Database>,
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

/// The kind of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// A disk: an I/O controller works on its queue.
    #[default]
    Disk,
    /// A partition.
    Partition,
    /// Device mapper: LVM, crypt, thin …
    Dm,
    /// Loop device.
    Loop,
    /// Software RAID.
    Md,
    /// Served by a program through ublk. Ours resolve to their image; one of another program counts as a disk, because its queue is
    /// the last one that the kernel schedules.
    Ublk,
    /// Served over the network; counts as a disk, because its queue is local.
    Nbd,
    /// Memory (`zram`, `ram`): no device below it.
    Memory,
    /// bcache.
    Bcache,
}

/// A block device. A partition has the queue of its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    /// Its kernel name.
    pub name: String,
    /// Its number.
    pub dev: DevNo,
    /// Its kind.
    pub kind: DeviceKind,
    /// Its size.
    pub size_bytes: Bytes,
    /// The devices directly below it, by name: members, the disk of a partition, those that hold an image.
    pub below: Vec<String>,
    /// The image of a loop device, or of a block server of Bulkhead's.
    pub image: Option<Image>,
    /// Whether the kernel treats it as a rotating disk.
    pub rotational: bool,
    /// Whether it refuses writes.
    pub read_only: bool,
    /// Its active I/O scheduler; `None` without a queue.
    pub scheduler: Option<String>,
    /// Whether io.cost is enabled on it.
    pub io_cost: bool,
    /// Whether io.cost has a model from its administrator, not the kernel's default.
    pub io_cost_model: bool,
    /// `queue/write_cache`: `write back` or `write through`.
    pub write_cache: Option<String>,
    /// Smallest addressable unit.
    pub logical_block_bytes: u32,
    /// Smallest unit that is written without reading.
    pub physical_block_bytes: u32,
    /// Distance of its begin from a physical block of the disk, bytes; negative if the alignment is unknown to the kernel.
    pub alignment_offset: i64,
    /// Largest discard; 0 if it has none.
    pub discard_bytes: Bytes,
    /// Missing members of a RAID.
    pub missing_members: u32,
    /// Its device-mapper name.
    pub dm_name: Option<String>,
}

/// An image file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Image {
    /// Its path.
    pub path: String,
    /// Type of the file system that it is on, if known.
    pub fs_type: Option<String>,
    /// Whether it is read and written by direct I/O; `None` if unknown.
    pub direct: Option<bool>,
}

/// An ext4 file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ext4 {
    /// Its device.
    pub device: String,
    /// The number of errors that it has recorded.
    pub errors: u64,
}

/// The I/O settings of cgroup v2.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroups {
    /// Controllers that are enabled for the children of the root.
    pub enabled: Vec<String>,
    /// Cgroups with weights or limits of their own.
    pub settings: Vec<CgroupSettings>,
}

/// The I/O settings of a cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupSettings {
    /// Its path, with a slash at the begin.
    pub path: String,
    /// Its default `io.weight`, if that is not 100.
    pub weight: Option<u32>,
    /// Its default `io.bfq.weight`, if that is not 100.
    pub bfq_weight: Option<u32>,
    /// Devices with limits in `io.max`.
    pub limited: Vec<DevNo>,
}

/// A process of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Database {
    /// Its process id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its cgroup.
    pub cgroup: String,
    /// Its working directory, which is that of its data, as the process sees it.
    pub directory: String,
    /// Type of the file system there.
    pub fs_type: String,
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

    /// The device of a file system.
    #[must_use]
    pub fn device_of(&self, mount: &Mount) -> Option<&Device> {
        self.devices.iter().find(|device| device.dev == mount.dev)
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

    /// File systems on block devices, each once, at the place with the shortest path.
    #[must_use]
    pub fn file_systems(&self) -> Vec<&Mount> {
        let mut found: Vec<&Mount> = self.mounts.iter().filter(|mount| self.device_of(mount).is_some()).collect();
        found.sort_by_key(|mount| (mount.dev, mount.root.len(), mount.at.len()));
        found.dedup_by_key(|mount| mount.dev);
        found
    }
}

impl Device {
    /// Whether the kernel schedules no queue below its own.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        let is_last = matches!(self.kind, DeviceKind::Disk | DeviceKind::Nbd | DeviceKind::Ublk);
        is_last && self.below.is_empty() && self.image.is_none()
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
