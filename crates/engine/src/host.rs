//! What the engine needs of a host: to apply an action, and facts, in a trait for each facet. The kernel is one; tests have a simulated one.

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
    /// Whether it gives out blocks zeroed. Without it a new volume shows what an earlier one wrote.
    pub zeroes: bool,
}

/// An open block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    /// Its node.
    pub path: PathBuf,
    /// Its number.
    pub dev: DevNo,
    /// What makes it.
    pub backing: Backing,
    /// The smallest unit in which it can be written; `None` where the kernel does not say.
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
    /// Why it cannot be taken: mounted, used by another device, swap.
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
    /// Whether the kernel takes it for a rotating one.
    pub rotational: bool,
    /// The most that it takes in one operation (`max_sectors_kb`); `None` where the kernel does not say.
    pub largest_request: Option<Bytes>,
    /// The active scheduler; `None` for devices without a queue of their own.
    pub scheduler: Option<String>,
    /// The schedulers that can be had.
    pub schedulers: Vec<String>,
    /// Kernel names of the devices at the bottom of its stack; itself when it is physical.
    pub physical: Vec<String>,
    /// Serial number or other lasting identity; empty when it has none.
    pub identity: String,
    /// The line of `io.cost.model` without the device number, when there is one.
    pub cost_model: Option<String>,
    /// The line of `io.cost.qos` without the device number, when there is one.
    pub cost_qos: Option<String>,
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

    /// Asks it to end.
    fn terminate(&self);

    /// How it ended, for example `exit status: 101`; `None` when it has not within `limit`.
    fn ended(&mut self, limit: Duration) -> Option<String>;
}

/// How long receiving from a worker waits before its job's state is checked again.
pub const WORKER_POLL: Duration = Duration::from_millis(200);

/// State files with their paths, by name; each is whole, or damaged for itself. The same value twice while nothing changes, so that whoever
/// works something out of them can tell that it is still so.
pub type Records = Arc<Vec<(PathBuf, Result<Record, Fault>)>>;

/// Evidence that something is unchanged.
pub trait Proof: fmt::Debug + Send + Sync {
    /// Whether that is still so. Takes a handful of system calls, changes nothing, and waits for no I/O.
    fn holds(&self) -> bool;
}

/// State files, and the directories of pools.
pub trait StateFiles {
    /// The state files in a directory whose name ends with `suffix`; none when the directory is not there.
    /// A damaged file is an error of its own, not of the listing.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault>;

    /// One state file; `None` when it is not there.
    fn record(&self, path: &Path) -> Option<Result<Record, Fault>>;

    /// Everything in a directory that may become a pool, by name; `None` when it is not there.
    ///
    /// # Errors
    /// When it is not a directory or cannot be read.
    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault>;

    /// Which user other than root could replace a directory or its content; `None` if none can.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault>;
}

/// Volume groups and logical volumes.
pub trait VolumeGroups {
    /// The logical volumes of a group.
    ///
    /// # Errors
    /// When the group is not there or LVM fails.
    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault>;

    /// The tags of a volume group, `None` when there is no such group.
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
    /// Room in a pool.
    ///
    /// # Errors
    /// When the directory or group is not there.
    fn space(&self, source: &PoolSource) -> Result<Space, Fault>;

    /// What a volume has taken of its pool so far, rounded down where that is only known roughly; nothing when it is not there. Does not
    /// wait for what allocates it just now.
    ///
    /// # Errors
    /// When it cannot be told.
    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault>;

    /// Names of the physical devices below a pool, and why there may be others that are unknown.
    fn physical_devices(&self, source: &PoolSource) -> (Vec<String>, Vec<String>);
}

/// Image files of directory pools, their layers, and staging files.
pub trait Images {
    /// The size of an image file, `None` when it is not there.
    ///
    /// # Errors
    /// When it cannot be told.
    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault>;

    /// Where the data of a copied volume or of a copy is, by its device; `None` for others, and where the host does not know.
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
    /// When it cannot be told.
    fn staging_file(&self, path: &Path) -> Result<Option<StagingState>, Fault>;

    /// Whether a staging file has not been in use for that long.
    ///
    /// # Errors
    /// When it cannot be told.
    fn staging_file_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault>;
}

/// The block devices of volumes.
pub trait Volumes {
    /// The open device, `None` when it has no node now.
    ///
    /// # Errors
    /// When it cannot be told.
    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault>;

    /// What uses an open device: a mount in any mount namespace, another device, a program that claimed it; `None` if it is free, or has
    /// no node now.
    ///
    /// # Errors
    /// When it cannot be told.
    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault>;

    /// The size of the journal inside the ext4 on a volume's device, as far as that can be seen now: `None` for other file systems, and
    /// for a logical volume without a node.
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
    fn accounting(&self, device: &DeviceRef, fs: FsKind, tenant: &Name) -> Accounting;
}

/// What is mounted in the daemon's own mount namespace.
pub trait Mounts {
    /// Whether something is mounted at this very path, in the daemon's own mount namespace. What it costs does not grow with the number of
    /// mounts.
    ///
    /// # Errors
    /// When that cannot be told.
    fn is_mounted(&self, target: &Path) -> Result<bool, Fault>;

    /// All mount points in the daemon's own mount namespace. Costs next to nothing while nobody mounts and unmounts.
    ///
    /// # Errors
    /// When the mount table cannot be read.
    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault>;
}

/// The host's block devices and their request queues.
pub trait Devices {
    /// A block device that an operator named.
    ///
    /// # Errors
    /// When it is not there or not a block device.
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

    /// One of them, by its kernel name; `None` when it is not there.
    ///
    /// # Errors
    /// When it cannot be looked at.
    fn block_device(&self, name: &DevName) -> Result<Option<BlockFacts>, Fault>;

    /// A tunable of the active scheduler of a device; `None` if it has none of that name.
    fn tunable(&self, dev: DevNo, tunable: &str) -> Option<String>;

    /// For how long a device has been busy.
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
    /// When the file says something that is not understood.
    fn weight(&self, cgroup: &CgroupPath, file: &str, dev: DevNo) -> Result<Option<u32>, Fault>;

    /// A cgroup's limits on a device; `None` if it is gone, or the kernel has no limits.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn io_max(&self, cgroup: &CgroupPath, dev: DevNo) -> Result<Option<IoMax>, Fault>;

    /// Bytes that a cgroup read and wrote on physical devices.
    fn io_bytes(&self, cgroup: &CgroupPath) -> IoBytes;

    /// Bytes that a cgroup, and what is below it, has read and written on a device.
    fn moved_bytes(&self, cgroup: &CgroupPath, dev: DevNo) -> u64;

    /// How many operations a cgroup, and what is below it, has done on a device.
    fn operations(&self, cgroup: &CgroupPath, dev: DevNo) -> u64;

    /// For how long some task of a cgroup has waited for I/O (`io.pressure`); `None` where the kernel does not report it.
    fn io_waited(&self, cgroup: &CgroupPath) -> Option<Duration>;

    /// The ext4 that a path is in, or that is on the device which it names.
    ///
    /// # Errors
    /// `NotFound` when there is no such path, `Unsupported` where there is no ext4 with a journal thread.
    fn journal_at(&self, path: &Path) -> Result<JournalFacts, Fault>;
}

/// Processes, and the runs of commands in tenants.
pub trait Processes {
    /// The runs that have a cgroup below this `payload`, by the processes that wait for their commands, with their cgroups.
    fn runs(&self, payload: &CgroupPath) -> Vec<(u32, CgroupPath)>;

    /// Moves a command's first process into a new cgroup below this `payload`, and returns that; `pid` waits for the command.
    ///
    /// # Errors
    /// `NotFound` when there is no such process, `InvalidArgument` when it is not a child of `pid`, and those of cgroups or systemd.
    fn start_run(&self, payload: &CgroupPath, pid: u32, command_pid: u32) -> Result<CgroupPath, Fault>;

    /// Processes in a cgroup and below it.
    fn processes(&self, cgroup: &CgroupPath) -> Vec<u32>;

    /// Ends all processes in a cgroup and waits until they are gone.
    ///
    /// # Errors
    /// When they do not go.
    fn kill_all(&self, cgroup: &CgroupPath) -> Result<(), Fault>;

    /// Asks all processes in a cgroup, and below it, to end (`SIGTERM`).
    fn terminate(&self, cgroup: &CgroupPath);

    /// Start time of a process, `None` when there is none of that id.
    fn start_time(&self, pid: u32) -> Option<u64>;

    /// Whether the host is being shut down or rebooted, according to process 1.
    fn is_going_down(&self) -> bool;
}

/// A host to act on. Every method is synchronous and may take long; the caller runs it on a blocking thread.
pub trait Host:
    StateFiles + VolumeGroups + Pools + Images + Volumes + Mounts + Devices + Cgroups + Processes + Send + Sync
{
    /// Carries out one action. Idempotent. What may wait for long, and has changed nothing yet, asks the job whether to go on.
    ///
    /// # Errors
    /// A [`Fault`] that names object, cause and hint.
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault>;

    /// Starts a worker. It ends with the calling thread at the latest.
    ///
    /// # Errors
    /// When it cannot be started, or this host has no such processes.
    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault>;

    /// Lasting conditions on this host that cannot be looked up.
    fn conditions(&self) -> &Conditions;

    /// A proof that tells later, with one or two system calls, whether a mounted volume is still as these actions leave it, or, with fewer
    /// than ten, whether a tenant's cgroups are. `None` if that is not so now, or cannot be proved: then only the actions themselves can tell.
    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>>;
}
