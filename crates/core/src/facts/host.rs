//! Facts about file systems, cgroups, and what runs on a host.

use serde::{Deserialize, Serialize};

use crate::units::{Bytes, DevNo};

/// An ext4 file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ext4 {
    /// Its device.
    pub device: String,
    /// The number of errors that it has recorded.
    pub errors: u64,
    /// Whether it has a journal; `None` if unknown.
    pub has_journal: Option<bool>,
    /// Most blocks of a transaction, a fixed part of the journal (a quarter, in newer kernels a third); `None` if unknown.
    pub max_transaction_blocks: Option<u64>,
    /// The cgroup of its journal thread, to which its journal writes are charged; `None` if unknown.
    pub journal_cgroup: Option<String>,
}

/// A btrfs file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Btrfs {
    /// Its devices, by name.
    pub devices: Vec<String>,
    /// The number of I/O and checksum errors that it has recorded on all devices.
    pub errors: u64,
}

/// The space of a mounted file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Space {
    /// `st_dev` of its files.
    pub dev: DevNo,
    /// Its block size.
    pub block_bytes: u64,
    /// Its size.
    pub size_bytes: Bytes,
    /// Free space for unprivileged processes.
    pub free_bytes: Bytes,
    /// Its inodes; 0 if it creates them as needed.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// A swap area in use (proc(5), `/proc/swaps`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Swap {
    /// Its device or file.
    pub path: String,
    /// The device, or that of the file system with the file.
    pub dev: DevNo,
    /// What is swapped out.
    pub used_bytes: Bytes,
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
    /// Other cgroups with the same parent; `None` if unknown.
    pub siblings: Option<u64>,
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
    /// `st_dev` of the files there.
    pub dev: DevNo,
    /// Whether new files there are not copied on write (`chattr +C` on btrfs); `None` if unknown.
    pub no_copy_on_write: Option<bool>,
}

/// A container runtime, or the kubelet, whose daemon runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Runtime {
    /// `docker`, `containerd` or `kubelet`.
    pub name: String,
    /// The directory of its data.
    pub directory: String,
    /// `systemd` or `cgroupfs`; `None` if unknown.
    pub cgroup_driver: Option<String>,
    /// Its storage driver; `None` if unknown.
    pub storage_driver: Option<String>,
}

/// A running container with a log that its runtime writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerLog {
    /// The container's name.
    pub container: String,
    /// The log driver: `json-file`, `local` …
    pub driver: String,
    /// Whether its size is limited.
    pub limited: bool,
    /// The directory with its file.
    pub directory: String,
}
