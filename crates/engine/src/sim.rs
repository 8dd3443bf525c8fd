//! A simulated host for tests: files, images, their devices, logical volumes, file systems, mounts and cgroups in memory.
//!
//! It is stricter than a kernel: whatever would lose data (truncating an image below its file system, making a file system
//! over another one, removing an image that is attached) panics. [`Sim::crash_after`] stands for `kill -9` of the daemon.

mod cgroups;
mod devices;
mod file_systems;
mod images;
mod layers;
mod lvm;
mod mounts;
mod observed;
mod pools;
mod processes;
mod proof;
mod servers;
mod state;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bulkhead_core::action::{Action, Applied, DeviceRef, ImageAction, LvmAction, MountAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::devname::DevName;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal;
use bulkhead_core::model::{FsKind, MountOptions, Provision, SelinuxContext};
use bulkhead_core::units::Bytes;
use bulkhead_core::work::WorkSpec;
use bulkhead_formats::staging::{StagingLayer, StagingState};
use uuid::Uuid;

use self::lvm::{logical_volume, node, thin_pool};
pub(crate) use self::observed::Observed;
#[cfg(test)]
pub(crate) use self::observed::held;
use self::proof::Kept;
use self::worker::WorkerBehavior;
use crate::conditions::Conditions;
use crate::host::{Host, LogicalVolume, Proof, Worker};
use crate::jobs::Job;

#[derive(Clone, Debug, PartialEq, Eq)]
struct FileSystem {
    kind: FsKind,
    size: Bytes,
    /// Of an ext4; `None` while it has none.
    journal: Option<Bytes>,
}

impl FileSystem {
    fn new(kind: FsKind, size: Bytes) -> Self {
        Self { kind, size, journal: (kind == FsKind::Ext4).then(|| journal::size_for(size)) }
    }
}

#[derive(Clone, Debug, Default)]
struct World {
    files: BTreeMap<PathBuf, Vec<u8>>,
    dirs: BTreeSet<PathBuf>,
    images: BTreeMap<PathBuf, (Bytes, Option<FileSystem>)>,
    /// Backing layers of images that were copied, and of layers; a layer is named by its UUID.
    below: BTreeMap<PathBuf, Option<Uuid>>,
    /// Images without data of their own.
    empty: BTreeSet<PathBuf>,
    /// Staging files.
    staging_files: BTreeMap<PathBuf, StagingState>,
    /// Mount points of volumes that peers may read from.
    peers: BTreeMap<Uuid, PathBuf>,
    /// The image that is served as the device of a volume.
    owners: BTreeMap<Uuid, PathBuf>,
    /// Images with a block device, and the cgroup of the server.
    attached: BTreeMap<PathBuf, Option<CgroupPath>>,
    groups: BTreeMap<String, BTreeSet<String>>,
    volumes: BTreeMap<(String, String), (LogicalVolume, Option<FileSystem>)>,
    mounts: BTreeMap<PathBuf, DeviceRef>,
    /// Options and SELinux contexts of the mounts.
    mount_options: BTreeMap<PathBuf, (MountOptions, Option<SelinuxContext>)>,
    /// The kernel does not use SELinux.
    lacks_selinux: bool,
    cgroups: BTreeMap<CgroupPath, BTreeMap<String, String>>,
    /// Cgroups below which the cpu controller is enabled, including `/`.
    cpu_below: BTreeSet<CgroupPath>,
    /// The kernel has no cpu controller.
    lacks_cpu: bool,
    /// The cgroup below which the kernel refuses to enable it.
    refuses_cpu: Option<CgroupPath>,
    journals: BTreeMap<PathBuf, CgroupPath>,
    /// Cgroups of the journal threads of other file systems, by device.
    adopted: BTreeMap<DevName, CgroupPath>,
    processes: BTreeMap<u32, u64>,
    busy: BTreeSet<PathBuf>,
    /// Mount points whose file system is also mounted elsewhere.
    bound: BTreeSet<PathBuf>,
    /// Containers that see the file system of a mount point: that, and their cgroup.
    containers: Vec<(PathBuf, CgroupPath)>,
    /// Images and nodes that were written in full in advance.
    written: BTreeSet<PathBuf>,
    /// Offsets from which on such nodes have grown since.
    unfilled: BTreeMap<PathBuf, Bytes>,
    /// Nodes of thick volumes, and the offsets from which on they show what earlier volumes contained.
    stale: BTreeMap<PathBuf, Bytes>,
    /// Images and nodes that a tenant has had as a raw device, and their size then: all of it may be data.
    shown: BTreeMap<PathBuf, Bytes>,
    /// Nodes of logical volumes that were deactivated.
    inactive: BTreeSet<PathBuf>,
    /// Sizes of pools that differ from the default.
    total: Option<Bytes>,
    /// Free space of pools that differs from the default, at the time when it was set.
    free: Option<Bytes>,
    /// Space allocated by images and nodes of logical volumes, and the part of it that `free` takes into account.
    allocated: BTreeMap<PathBuf, (Bytes, Bytes)>,
    /// Allocations that are paused, and their progress: they continue once removed from here.
    gradual: BTreeMap<PathBuf, Bytes>,
    /// Volume groups that do not answer queries of their space, and whether a query is waiting.
    silent: BTreeMap<String, bool>,
    /// File systems have no room for larger journals.
    lacks_journal_room: bool,
    /// Used metadata of thin pools, if it differs from the default.
    metadata_pct: Option<f64>,
    /// Mounts whose data takes forever to be written.
    slow: BTreeSet<PathBuf>,
    queue: BTreeMap<String, String>,
    lost_device: bool,
    /// Busy time of its device: one second more at each query.
    busy_for: Duration,
    steps_left: Option<usize>,
    /// Number of steps requested.
    n_steps: usize,
    /// The directory whose records cannot be listed.
    unlistable: Option<PathBuf>,
    /// Behavior of workers.
    behavior: WorkerBehavior,
    /// Specifications of started workers.
    started: Vec<WorkSpec>,
    /// Bytes of the last stream that was read.
    received: Vec<u8>,
}

/// The host, shared between the engines that live and die on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sim(Arc<Mutex<World>>, Arc<Conditions>);

/// Objects that are left on a host, for assertions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub(crate) images: Vec<PathBuf>,
    pub(crate) volumes: Vec<String>,
    pub(crate) attached: Vec<PathBuf>,
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) cgroups: Vec<String>,
    pub(crate) unused_layers: BTreeSet<PathBuf>,
    /// Staging files whose content is a layer.
    pub(crate) staging_files: Vec<PathBuf>,
}

/// A cgroup path in tests.
fn path_of(text: impl fmt::Display) -> CgroupPath {
    text.to_string().parse().expect("tests name cgroups by their paths")
}

impl Sim {
    pub(crate) fn with_group(self, vg: &str, lvs: &[&str]) -> Self {
        let mut world = self.world();
        world.groups.insert(vg.to_owned(), BTreeSet::new());
        for lv in lvs {
            world.volumes.insert((vg.to_owned(), (*lv).to_owned()), (thin_pool(lv), None));
        }
        drop(world);
        self
    }

    pub(crate) fn set_process(&self, pid: u32, start: Option<u64>) {
        match start {
            Some(start) => self.world().processes.insert(pid, start),
            None => self.world().processes.remove(&pid),
        };
    }

    /// Number of steps requested so far.
    pub(crate) fn n_steps(&self) -> usize {
        self.world().n_steps
    }

    /// Kills the daemon after that many steps: its later actions have no effect. `None` revives it.
    pub(crate) fn crash_after(&self, steps: Option<usize>) {
        self.world().steps_left = steps;
    }

    /// Creates a file with the name of an image.
    pub(crate) fn put_image(&self, path: &str) {
        self.world().images.insert(path.into(), (Bytes(Bytes::GIB), None));
    }

    /// The cgroup of a `bulkhead run`.
    pub(crate) fn put_run(&self, tenant: &str, name: &str) {
        self.world()
            .cgroups
            .entry(path_of(format!("bulkhead.slice/bulkhead-{tenant}.slice/bulkhead-{tenant}-payload.slice/{name}")))
            .or_default();
    }

    /// Mounts the file system of a directory elsewhere.
    pub(crate) fn move_dir(&self, from: &Path, to: &Path) {
        let mut world = self.world();
        let moved = |path: &PathBuf| path.strip_prefix(from).map_or_else(|_| path.clone(), |below| to.join(below));
        world.dirs = world.dirs.iter().filter(|path| path.as_path() != from).map(moved).collect();
        world.dirs.insert(to.to_owned());
        world.files =
            std::mem::take(&mut world.files).into_iter().map(|(path, content)| (moved(&path), content)).collect();
        world.images =
            std::mem::take(&mut world.images).into_iter().map(|(path, image)| (moved(&path), image)).collect();
    }

    /// The options of a mount; `None` if nothing is mounted.
    pub(crate) fn mounted_with(&self, target: &Path) -> Option<MountOptions> {
        let world = self.world();
        world.mounts.get(target).and_then(|_| world.mount_options.get(target)).map(|(options, _)| options.clone())
    }

    /// The SELinux context of a mount.
    pub(crate) fn context_of(&self, target: &Path) -> Option<SelinuxContext> {
        let world = self.world();
        world.mounts.get(target).and_then(|_| world.mount_options.get(target)).and_then(|(_, context)| context.clone())
    }

    pub(crate) fn disable_selinux(&self) {
        self.world().lacks_selinux = true;
    }

    /// Unmounts something, as an operator does by hand.
    pub(crate) fn unmount(&self, target: &Path) {
        self.world().mounts.remove(target);
    }

    pub(crate) fn fill_file_systems(&self, full: bool) {
        self.world().lacks_journal_room = full;
    }

    pub(crate) fn set_metadata_pct(&self, pct: f64) {
        self.world().metadata_pct = Some(pct);
    }

    /// Sets the size of all pools.
    pub(crate) fn set_total(&self, total: Bytes) {
        self.world().total = Some(total);
    }

    pub(crate) fn set_free(&self, free: Bytes) {
        let mut world = self.world();
        world.free = Some(free);
        world.allocated.values_mut().for_each(|(now, in_free)| *in_free = *now);
    }

    /// Pauses the allocation of an image or logical volume when it has allocated so much, or resumes it.
    pub(crate) fn pause_allocation(&self, path: &str, taken: Option<Bytes>) {
        match taken {
            Some(taken) => self.world().gradual.insert(path.into(), taken),
            None => self.world().gradual.remove(Path::new(path)),
        };
    }

    /// Space allocated by a volume, by its image or node.
    pub(crate) fn allocated_to(&self, path: &str) -> Bytes {
        self.world().allocated.get(Path::new(path)).map_or(Bytes(0), |(now, _)| *now)
    }

    /// Makes queries of the space of a volume group hang, or work again.
    pub(crate) fn set_silent(&self, vg: &str, silent: bool) {
        if silent {
            self.world().silent.insert(vg.to_owned(), false);
        } else {
            self.world().silent.remove(vg);
        }
    }

    /// Whether a query of a silent volume group is waiting.
    pub(crate) fn has_waiting_query(&self, vg: &str) -> bool {
        self.world().silent.get(vg).is_some_and(|asked| *asked)
    }

    /// Makes the write-back of a mounted file system take forever, or no time.
    pub(crate) fn set_slow(&self, target: &Path, slow: bool) {
        if slow {
            self.world().slow.insert(target.to_owned());
        } else {
            self.world().slow.remove(target);
        }
    }

    /// Has a container see the file system of a mount point.
    pub(crate) fn put_container(&self, target: &Path, cgroup: &str) {
        let cgroup = cgroup.parse().expect("a test names valid cgroups");
        self.world().containers.push((target.to_owned(), cgroup));
    }

    /// Mounts the file system of a mount point elsewhere as well.
    pub(crate) fn bind(&self, target: &Path) {
        self.world().bound.insert(target.to_owned());
    }

    /// Makes unmounting a directory, or closing an image or logical volume, fail as if a process had it open.
    pub(crate) fn set_busy(&self, target: &Path, busy: bool) {
        if busy {
            self.world().busy.insert(target.to_owned());
        } else {
            self.world().busy.remove(target);
        }
    }

    /// Reboots: devices, mounts, cgroups, processes and the runtime directory are gone.
    pub(crate) fn reboot(&self) {
        let mut world = self.world();
        world.owners.clear();
        world.attached.clear();
        world.mounts.clear();
        world.cgroups.clear();
        world.cpu_below.clear();
        world.journals.clear();
        world.processes.clear();
        world.queue.clear();
        world.inactive.clear();
        world.files.retain(|path, _| !path.starts_with("/run"));
    }

    /// Makes listing the records of a directory fail, or work again.
    pub(crate) fn set_unlistable(&self, dir: Option<&str>) {
        self.world().unlistable = dir.map(PathBuf::from);
    }

    /// Replaces journal threads by new ones in the root cgroup, as a remount does.
    pub(crate) fn lose_journals(&self) {
        self.world().journals.clear();
    }

    pub(crate) fn journal_of(&self, target: &Path) -> Option<CgroupPath> {
        self.world().journals.get(target).cloned()
    }

    /// Removes the cpu controller from the kernel.
    pub(crate) fn lose_cpu(&self) {
        self.world().lacks_cpu = true;
    }

    /// Makes the kernel refuse to enable the cpu controller below a cgroup, or allow it again.
    pub(crate) fn refuse_cpu(&self, cgroup: Option<&str>) {
        self.world().refuses_cpu = cgroup.map(|path| path.parse().unwrap());
    }

    /// Disables the cpu controller below a cgroup and, as the kernel requires, below its descendants first.
    pub(crate) fn disable_cpu(&self, cgroup: impl fmt::Display) {
        let cgroup = path_of(cgroup);
        let mut world = self.world();
        world.cpu_below.retain(|path| !path.starts_with(&cgroup));
        for (path, files) in &mut world.cgroups {
            if *path != cgroup && path.starts_with(&cgroup) {
                files.remove("cpu.weight");
            }
        }
    }

    pub(crate) fn cgroup_file(&self, cgroup: impl fmt::Display, file: &str) -> Option<String> {
        self.world().cgroups.get(&path_of(cgroup))?.get(file).cloned()
    }

    /// Writes to a file of a cgroup, as another program does.
    pub(crate) fn set_cgroup_file(&self, cgroup: impl fmt::Display, file: &str, value: &str) {
        let mut world = self.world();
        world.cgroups.get_mut(&path_of(cgroup)).expect("the cgroup exists").insert(file.to_owned(), value.to_owned());
    }

    pub(crate) fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.world().files.get_mut(path).expect("the file exists"));
    }

    /// Removes the disk `/dev/sdb`.
    pub(crate) fn lose_device(&self) {
        self.world().lost_device = true;
    }

    pub(crate) fn lose_file(&self, path: &str) {
        self.world().files.remove(Path::new(path));
    }

    /// Kills the peer reader.
    pub(crate) fn kill_peer_reader(&self) {
        self.world().peers.clear();
    }

    /// Writes to an image.
    pub(crate) fn write(&self, image: &str) {
        self.world().empty.remove(Path::new(image));
    }

    /// Completes a staging file.
    pub(crate) fn fill_staging_file(&self, path: &Path) {
        self.world().staging_files.get_mut(path).expect("it is being received").received = None;
    }

    /// Sets the behavior of workers from now on.
    pub(crate) fn set_behavior(&self, behavior: WorkerBehavior) {
        self.world().behavior = behavior;
    }

    /// Creates a base in a staging file.
    fn import_into(&self, path: &Path, content: Uuid) {
        let mut world = self.world();
        let staging = world.staging_files.get_mut(path).expect("its staging file exists");
        (staging.content, staging.received) = (content, None);
    }

    fn set_received(&self, stream: Vec<u8>) {
        self.world().received = stream;
    }

    /// Bytes of the last stream that was read.
    pub(crate) fn received(&self) -> Vec<u8> {
        self.world().received.clone()
    }

    /// Specifications of started workers.
    pub(crate) fn started(&self) -> Vec<WorkSpec> {
        self.world().started.clone()
    }

    pub(crate) fn leftovers(&self) -> Leftovers {
        let world = self.world();
        let ours = |(_, (volume, _)): &(&(String, String), &(LogicalVolume, _))| {
            volume.tags.iter().any(|tag| tag.starts_with("bulkhead.volume="))
        };
        Leftovers {
            images: world.images.keys().cloned().collect(),
            volumes: world.volumes.iter().filter(ours).map(|((vg, lv), _)| format!("{vg}/{lv}")).collect(),
            attached: world.attached.keys().cloned().collect(),
            mounts: world.mounts.keys().cloned().collect(),
            cgroups: world.cgroups.keys().map(ToString::to_string).collect(),
            unused_layers: world.unused_layers(),
            staging_files: world
                .staging_files
                .keys()
                .filter(|path| world.staging_file(path).is_some_and(|part| part.layer != StagingLayer::Missing))
                .cloned()
                .collect(),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

impl World {
    fn fs(&mut self, device: &DeviceRef) -> Result<(&mut Option<FileSystem>, Bytes), Fault> {
        let gone = || Fault::new(Code::Internal, device, "there is no such device");
        match device {
            DeviceRef::Image { image, .. } if self.attached.contains_key(image) => {
                if let Some((volume, fs)) = logical_volume(image).and_then(|key| self.volumes.get_mut(&key)) {
                    return Ok((fs, volume.size));
                }
                let (size, fs) = self.images.get_mut(image).ok_or_else(gone)?;
                Ok((fs, *size))
            }
            DeviceRef::Image { .. } => Err(gone()),
            DeviceRef::Lv { vg, lv } => {
                let (volume, fs) = self.volumes.get_mut(&(vg.clone(), lv.clone())).ok_or_else(gone)?;
                Ok((fs, volume.size))
            }
        }
    }

    fn allocate(&mut self, path: &Path, bytes: Bytes) {
        self.allocated.entry(path.to_owned()).or_default().0 = bytes;
    }

    /// The space that an action allocates in the end, and the image or node.
    fn allocation_of(&self, action: &Action) -> Option<(PathBuf, Bytes)> {
        match action {
            Action::Image(ImageAction::CreateImage { path, size_bytes, provision: Provision::Full })
            | Action::Image(ImageAction::GrowImage { path, size_bytes, provision: Provision::Full })
            | Action::Image(ImageAction::ShrinkImage { path, size_bytes }) => Some((path.clone(), *size_bytes)),
            Action::Lvm(LvmAction::CreateLv { vg, lv, thin_pool: None, size_bytes, .. })
            | Action::Lvm(LvmAction::ShrinkLv { vg, lv, size_bytes }) => Some((node(vg, lv), *size_bytes)),
            Action::Lvm(LvmAction::GrowLv { vg, lv, size_bytes }) => {
                let path = node(vg, lv);
                let is_thick = self.allocated.contains_key(&path) && !self.written.contains(&path);
                is_thick.then_some((path, *size_bytes))
            }
            Action::Lvm(LvmAction::FillLv { vg, lv, .. } | LvmAction::ZeroLv { vg, lv, .. }) => {
                let (volume, _) = &self.volumes[&(vg.clone(), lv.clone())];
                Some((node(vg, lv), volume.size))
            }
            Action::Image(ImageAction::RemoveImage { path }) => Some((path.clone(), Bytes(0))),
            Action::Lvm(LvmAction::RemoveLv { vg, lv, .. }) => Some((node(vg, lv), Bytes(0))),
            _ => None,
        }
    }

    /// Returns whether anything changed.
    fn act(&mut self, action: &Action) -> Result<bool, Fault> {
        match action {
            Action::State(action) => self.act_on_state(action),
            Action::Image(action) => self.act_on_image(action),
            Action::Layer(action) => self.act_on_layer(action),
            Action::Server(action) => self.act_on_server(action),
            Action::Lvm(action) => self.act_on_lvm(action),
            Action::Fs(action) => self.act_on_fs(action),
            Action::Mount(action) => self.act_on_mount(action),
            Action::Cgroup(action) => self.act_on_cgroup(action),
            Action::Queue(action) => self.act_on_queue(action),
        }
    }
}

impl Host for Sim {
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault> {
        if let Action::Mount(MountAction::SyncFs { target })
        | Action::Mount(MountAction::Unmount { target })
        | Action::Mount(MountAction::TrimFs { target, .. }) = action
        {
            while self.world().slow.contains(target) {
                job.keep_waiting()?;
                std::thread::yield_now();
            }
        }
        let mut world = self.world();
        world.n_steps += 1;
        if let Some(left) = &mut world.steps_left {
            if *left == 0 {
                return Err(Fault::new(Code::Internal, "daemon", "killed"));
            }
            *left -= 1;
        }
        if let Some((path, _)) = world.allocation_of(action) {
            while let Some(taken) = world.gradual.get(&path).copied() {
                world.allocate(&path, taken);
                drop(world);
                std::thread::yield_now();
                world = self.world();
            }
        }
        let takes = world.allocation_of(action);
        let changed = world.act(action)?;
        if let Some((path, bytes)) = takes {
            world.allocate(&path, bytes);
        }
        let discarded_bytes = matches!(action, Action::Mount(MountAction::TrimFs { .. })).then(|| Bytes::mib(1));
        Ok(Applied { action: action.clone(), old: None, changed, discarded_bytes })
    }

    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault> {
        let mut world = self.world();
        assert!(world.cgroups.contains_key(&spec.cgroup), "a worker was started in a missing cgroup");
        world.started.push(spec.clone());
        Ok(worker::start(self.clone(), spec.clone(), world.behavior.clone()))
    }

    fn conditions(&self) -> &Conditions {
        &self.1
    }

    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>> {
        let proof = Kept { sim: self.clone(), kept: kept.to_vec() };
        proof.holds().then(|| Arc::new(proof) as Arc<dyn Proof>)
    }
}
