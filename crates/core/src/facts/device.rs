//! Facts about block devices.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, DevNo};

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
    /// The type of its first device-mapper target: `linear`, `crypt`, `thin` …; `None` if it is unknown.
    pub dm_target: Option<String>,
    /// Its state, if it is a thin pool.
    pub thin_pool: Option<ThinPool>,
    /// Its paths, if it is a multipath device.
    pub paths: Option<Paths>,
    /// The level of a RAID: `raid1`, `raid5` …
    pub raid_level: Option<String>,
    /// What a RAID is doing: `idle`, `resync`, `recover`, `check` …
    pub raid_action: Option<String>,
    /// Its model, if it reports one.
    pub model: Option<String>,
    /// Largest readahead; `None` without a queue.
    pub readahead_bytes: Option<Bytes>,
    /// Commands that have timed out since the disk appeared; 0 if the driver does not count them.
    pub timeouts: u64,
    /// Why it reports that it fails (SMART); `None` if it does not, or nobody has asked it.
    pub failing: Option<String>,
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
    /// Whether it has been deleted: it exists as long as it is in use.
    pub deleted: bool,
    /// Its size; `None` if unknown.
    pub size_bytes: Option<Bytes>,
    /// What is allocated of it on its file system; `None` if unknown.
    pub allocated_bytes: Option<Bytes>,
    /// What is in the page cache of its file system; `None` if unknown.
    pub cached_bytes: Option<Bytes>,
}

/// The state of a thin pool (kernel `Documentation/admin-guide/device-mapper/thin-provisioning.rst`, Status).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThinPool {
    /// Used and total blocks of data.
    pub data: (u64, u64),
    /// Used and total blocks of metadata.
    pub metadata: (u64, u64),
    /// `rw`, `ro`, `out_of_data_space`, `Fail` or `Error`.
    pub state: String,
    /// Whether its metadata has to be checked.
    pub needs_check: bool,
    /// Whether writes wait for space when there is none, instead of failing.
    pub queues: bool,
}

/// The paths of a multipath device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Paths {
    /// Paths that are used, or can be.
    pub usable: u32,
    /// Paths that have failed.
    pub failed: u32,
}

impl Device {
    /// Whether the kernel schedules no queue below its own.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        let is_last = matches!(self.kind, DeviceKind::Disk | DeviceKind::Nbd | DeviceKind::Ublk);
        is_last && self.below.is_empty() && self.image.is_none()
    }
}
