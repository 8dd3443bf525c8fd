//! The host as the engine sees it: actions and facts, in a trait for each facet. Implemented by the kernel, and by a simulation for tests.

use std::collections::BTreeSet;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_api::wire::IoBytes;
use bulkhead_core::action::{Action, Applied, DeviceRef, Record};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::cow::LayersView;
use bulkhead_core::devname::DevName;
use bulkhead_core::error::Fault;
use bulkhead_core::health::{Backing, Space};
use bulkhead_core::heat::ReadCounts;
use bulkhead_core::identity::Identity;
use bulkhead_core::journal::Accounting;
use bulkhead_core::merge::LayerTree;
use bulkhead_core::model::{FsKind, IoMax, PoolSource};
use bulkhead_core::name::Name;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_core::work::WorkSpec;
use bulkhead_formats::staging::StagingState;
use uuid::Uuid;

use crate::conditions::Conditions;
use crate::jobs::Job;

/// A logical volume, as far as pools care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogicalVolume {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size: Bytes,
    /// Its tags.
    pub tags: Vec<String>,
    /// Set for a thin pool.
    pub thin_pool: Option<ThinPool>,
    /// Whether it refuses writes.
    pub read_only: bool,
}

/// A thin pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Whether new blocks are zeroed. If not, a new volume exposes data of earlier ones.
    pub zeroes: bool,
}

/// An open block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    /// Its node.
    pub path: PathBuf,
    /// Its number.
    pub dev: DevNo,
    /// What provides it.
    pub backing: Backing,
    /// Its logical block size; `None` if the kernel does not report it.
    pub logical_block_bytes: Option<u32>,
}

/// A block device that an operator named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Its number.
    pub dev: DevNo,
    /// Its size.
    pub size: Bytes,
    /// What is on it: signatures of file systems, RAID, LVM, partition tables.
    pub signatures: Vec<String>,
    /// What uses it: a mount, another device, swap.
    pub in_use: Option<String>,
}

/// A block device and its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFacts {
    /// Kernel name.
    pub name: DevName,
    /// Number.
    pub dev: DevNo,
    /// Size.
    pub size: Bytes,
    /// Whether it is rotational according to the kernel.
    pub rotational: bool,
    /// Size of the largest request (`max_sectors_kb`); `None` if the kernel does not report it.
    pub largest_request: Option<Bytes>,
    /// The active scheduler; `None` for devices without a queue of their own.
    pub scheduler: Option<String>,
    /// The available schedulers.
    pub schedulers: Vec<String>,
    /// Kernel names of the devices at the bottom of its stack; itself when it is physical.
    pub physical: Vec<String>,
    /// Serial number or other lasting identity; empty when it has none.
    pub identity: String,
    /// The line of `io.cost.model` without the device number, when there is one.
    pub cost_model: Option<String>,
    /// The line of `io.cost.qos` without the device number, when there is one.
    pub cost_qos: Option<String>,
    /// Whether block servers take turns on it.
    pub arbiter: bool,
}

/// How large a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostSize {
    /// Number of processors that are online.
    pub cpus: u32,
    /// Memory.
    pub memory_bytes: Bytes,
}

/// An ext4 and its journal thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalFacts {
    /// Kernel name of the file system's device.
    pub device: DevName,
    /// Kernel names of the devices at the bottom of its stack.
    pub physical: Vec<String>,
    /// The cgroup that its journal thread is in.
    pub cgroup: CgroupPath,
}

/// A process that does work for the daemon (`bulkhead_core::work`). It ends when this is dropped.
pub trait Worker {
    /// The daemon's end of the socket between the two; receiving from it waits for at most [`WORKER_POLL`].
    fn control(&self) -> BorrowedFd<'_>;

    /// Asks it to exit.
    fn terminate(&self);

    /// Its exit status, for example `exit status: 101`; `None` if it has not exited within `limit`.
    fn ended(&mut self, limit: Duration) -> Option<String>;
}

/// How long receiving from a worker waits before its job's state is checked again.
pub const WORKER_POLL: Duration = Duration::from_millis(200);

/// State files with their paths, by name; each is intact or damaged by itself. While nothing changes, the same `Arc` is returned, by which
/// a caller detects that a result derived from it is still valid.
pub type Records = Arc<Vec<(PathBuf, Result<Record, Fault>)>>;

/// Evidence that something is unchanged.
pub trait Proof: fmt::Debug + Send + Sync {
    /// Whether that still holds. Makes a few system calls, changes nothing, and waits for no I/O.
    fn holds(&self) -> bool;
}

/// State files, and the directories of pools.
pub trait StateFiles {
    /// The state files in a directory whose name ends with `suffix`; none if the directory does not exist.
    /// A damaged file is an error of its own, not of the listing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault>;

    /// One state file; `None` if it does not exist.
    fn record(&self, path: &Path) -> Option<Result<Record, Fault>>;

    /// Everything in a directory that may become a pool, by name; `None` if it does not exist.
    ///
    /// # Errors
    /// When it is not a directory or cannot be read.
    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault>;

    /// Which user other than root could replace a directory or its content; `None` if none can.
    ///
    /// # Errors
    /// When it cannot be examined.
    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault>;
}

/// Volume groups and logical volumes.
pub trait VolumeGroups {
    /// The logical volumes of a group.
    ///
    /// # Errors
    /// When the group does not exist or LVM fails.
    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault>;

    /// The tags of a volume group; `None` if it does not exist.
    ///
    /// # Errors
    /// When LVM fails.
    fn vg_tags(&self, vg: &str) -> Result<Option<Vec<String>>, Fault>;

    /// The devices that a volume group is on.
    ///
    /// # Errors
    /// When LVM fails.
    fn vg_devices(&self, vg: &str) -> Result<Vec<DevNo>, Fault>;
}

/// The space of pools, and the devices below them.
pub trait Pools {
    /// The space in a pool.
    ///
    /// # Errors
    /// When the directory or group does not exist.
    fn space(&self, source: &PoolSource) -> Result<Space, Fault>;

    /// The space that a volume has allocated in its pool, rounded down if it is only known approximately; zero if it does not exist. Does
    /// not wait for an allocation in progress.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault>;

    /// Names of the physical devices below a pool, and the reasons why some may be unknown.
    fn physical_devices(&self, source: &PoolSource) -> (Vec<String>, Vec<String>);
}

/// Image files of directory pools, their layers, and staging files.
pub trait Images {
    /// The size of an image file; `None` if it does not exist.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault>;

    /// The layers of a volume, by its device; `None` if it has none, or the host does not know.
    ///
    /// # Errors
    /// When a file cannot be read, or is missing.
    fn layers(&self, device: &DeviceRef) -> Result<Option<LayersView>, Fault>;

    /// The layers in a pool's directory, and which depend on which.
    ///
    /// # Errors
    /// When one file cannot be read.
    fn layer_tree(&self, directory: &Path) -> Result<LayerTree, Fault>;

    /// The state of a staging file; `None` if there is none.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn staging_file(&self, path: &Path) -> Result<Option<StagingState>, Fault>;

    /// Whether a staging file has not been in use for that long.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn staging_file_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault>;
}

/// The block devices of volumes.
pub trait Volumes {
    /// The open device; `None` if it has no node.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault>;

    /// What uses an open device: a mount in any mount namespace, another device, a program that claimed it; `None` if it is free, or has
    /// no node.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault>;

    /// The size of the internal journal of the ext4 on a volume's device; `None` for other file systems, and for a logical volume without
    /// a node.
    ///
    /// # Errors
    /// When it cannot be read.
    fn journal_bytes(&self, device: &DeviceRef) -> Result<Option<Bytes>, Fault>;

    /// How much a volume has read of shared blocks, by source.
    ///
    /// # Errors
    /// When the file of its counts cannot be read.
    fn read_counts(&self, volume: Uuid) -> Result<ReadCounts, Fault>;

    /// How the journal of a tenant's mounted volume is charged.
    fn accounting(&self, device: &DeviceRef, fs: Option<FsKind>, tenant: &Name) -> Accounting;
}

/// What is mounted in the daemon's own mount namespace.
pub trait Mounts {
    /// Whether something is mounted at exactly this path, in the daemon's own mount namespace. The cost does not grow with the number of
    /// mounts.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn is_mounted(&self, target: &Path) -> Result<bool, Fault>;

    /// The kernel's name of the device that is mounted at `target`; `None` if nothing is, or no block device.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn mounted_device(&self, target: &Path) -> Result<Option<String>, Fault>;

    /// Whether the kernel uses SELinux, so that a mount can have a context.
    ///
    /// # Errors
    /// When that cannot be determined.
    fn has_selinux(&self) -> Result<bool, Fault>;

    /// All mount points in the daemon's own mount namespace. Cheap while no mounts change.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault>;

    /// Unmounts the file system mounted at `target` wherever else it is mounted in the daemon's own mount namespace: binds that a front end or
    /// an operator has made.
    ///
    /// # Errors
    /// `InUse` if one of them is; or when the mount table cannot be read.
    fn unmount_binds(&self, target: &Path) -> Result<(), Fault>;

    /// The cgroups of processes that have one of these file systems, each named by its mount point, mounted at another place in a mount
    /// namespace of their own; those of logical volumes only, whose I/O is that of the processes. Not among them: a mount that came with
    /// one of the directory above, as in a service with a private mount namespace or a container that sees the whole host.
    ///
    /// # Errors
    /// When the mount tables cannot be read.
    fn mounted_elsewhere(&self, targets: &[PathBuf]) -> Result<Vec<(PathBuf, CgroupPath)>, Fault>;
}

/// The host's block devices and their request queues.
pub trait Devices {
    /// A block device that an operator named.
    ///
    /// # Errors
    /// When it does not exist or is not a block device.
    fn named_device(&self, path: &Path) -> Result<NamedDevice, Fault>;

    /// The number of a block device that can have I/O limits.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` when it is not a block device, or a partition.
    fn limited_device(&self, path: &Path) -> Result<DevNo, Fault>;

    /// All block devices with a size: physical, stacked and partitions.
    ///
    /// # Errors
    /// When `/sys/class/block` cannot be read.
    fn block_devices(&self) -> Result<Vec<BlockFacts>, Fault>;

    /// A block device by its kernel name; `None` if it does not exist.
    ///
    /// # Errors
    /// When it cannot be examined.
    fn block_device(&self, name: &DevName) -> Result<Option<BlockFacts>, Fault>;

    /// A tunable of the active scheduler of a device; `None` if it has none of that name.
    fn tunable(&self, dev: DevNo, tunable: &str) -> Option<String>;

    /// The total time for which a device has been busy.
    ///
    /// # Errors
    /// When it is gone.
    fn device_busy(&self, device: &DevName) -> Result<Duration, Fault>;

    /// The device time that io.cost has granted; zero where it is not enabled. With io.cost a device is never busy all of
    /// the time.
    fn cost_used(&self, dev: DevNo) -> Duration;
}

/// Cgroups: weights, limits and counters, and the journal threads in them.
pub trait Cgroups {
    /// The weight files of `bulkhead_core::tenant::WEIGHT_FILES` that the kernel has.
    fn weight_files(&self) -> Vec<&'static str>;

    /// The controllers that the cgroup v2 hierarchy offers at its root; none when they cannot be read.
    fn controllers(&self) -> BTreeSet<String>;

    /// All cgroups, with their identities.
    ///
    /// # Errors
    /// When the hierarchy cannot be read.
    fn containers(&self) -> Result<Vec<(CgroupPath, Identity)>, Fault>;

    /// A cgroup's weight on a device; `None` when the cgroup is gone or has no such file.
    ///
    /// # Errors
    /// When the content of the file cannot be parsed.
    fn weight(&self, cgroup: &CgroupPath, file: &str, dev: DevNo) -> Result<Option<u32>, Fault>;

    /// A cgroup's limits on a device; `None` if it is gone, or the kernel has no limits.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn io_max(&self, cgroup: &CgroupPath, dev: DevNo) -> Result<Option<IoMax>, Fault>;

    /// Bytes that a cgroup read and wrote on physical devices.
    fn io_bytes(&self, cgroup: &CgroupPath) -> IoBytes;

    /// Bytes that a cgroup and its descendants have read and written on a device.
    fn moved_bytes(&self, cgroup: &CgroupPath, dev: DevNo) -> u64;

    /// Operations of a cgroup and its descendants on a device.
    fn operations(&self, cgroup: &CgroupPath, dev: DevNo) -> u64;

    /// For how long some task of a cgroup has waited for I/O (`io.pressure`); `None` where the kernel does not report it.
    fn io_waited(&self, cgroup: &CgroupPath) -> Option<Duration>;

    /// The ext4 that contains a path, or that is on the device of this path.
    ///
    /// # Errors
    /// `NotFound` if the path does not exist, `Unsupported` without an ext4 with a journal thread.
    fn journal_at(&self, path: &Path) -> Result<JournalFacts, Fault>;
}

/// Processes, and the runs of commands in tenants.
pub trait Processes {
    /// The runs with a cgroup below this `payload`: the process that waits for the command, and the cgroup.
    fn runs(&self, payload: &CgroupPath) -> Vec<(u32, CgroupPath)>;

    /// Moves a command's first process into a new cgroup below this `payload`, and returns that; `pid` waits for the command.
    ///
    /// # Errors
    /// `NotFound` if the process does not exist, `InvalidArgument` if it is not a child of `pid`, and those of cgroups or systemd.
    fn start_run(&self, payload: &CgroupPath, pid: u32, command_pid: u32) -> Result<CgroupPath, Fault>;

    /// Processes in a cgroup and below it.
    fn processes(&self, cgroup: &CgroupPath) -> Vec<u32>;

    /// Kills all processes in a cgroup and waits until they have exited.
    ///
    /// # Errors
    /// When they do not exit.
    fn kill_all(&self, cgroup: &CgroupPath) -> Result<(), Fault>;

    /// Sends `SIGTERM` to all processes in a cgroup and below it.
    fn terminate(&self, cgroup: &CgroupPath);

    /// Start time of a process; `None` if it does not exist.
    fn start_time(&self, pid: u32) -> Option<u64>;

    /// Processors and memory.
    ///
    /// # Errors
    /// When they cannot be read.
    fn size(&self) -> Result<HostSize, Fault>;

    /// Whether the host is being shut down or rebooted, according to process 1.
    fn is_going_down(&self) -> bool;
}

/// A host to act on. Every method is synchronous and may take long; the caller runs it on a blocking thread.
pub trait Host:
    StateFiles + VolumeGroups + Pools + Images + Volumes + Mounts + Devices + Cgroups + Processes + Send + Sync
{
    /// Carries out one action. Idempotent. An action that may wait for long checks with the job whether to continue, until it has changed
    /// something.
    ///
    /// # Errors
    /// A [`Fault`] that names object, cause and hint.
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault>;

    /// Starts a worker. It ends with the calling thread at the latest.
    ///
    /// # Errors
    /// When it cannot be started, or this host has no such processes.
    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault>;

    /// Lasting conditions on this host, which cannot be determined by a look-up.
    fn conditions(&self) -> &Conditions;

    /// A proof by which it can be checked later, with one or two system calls, that a mounted volume is still as these actions left it, or
    /// with fewer than ten, that a tenant's cgroups are. `None` if that does not hold now, or cannot be proved; then the actions have to be
    /// repeated.
    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>>;
}
