//! A simulated host for tests: files, images, their devices, logical volumes, file systems, mounts and cgroups in memory.
//!
//! It is stricter than a kernel: whatever would lose data (truncating an image below its file system, making a file system
//! over another one, removing an image that is attached) panics. [`Sim::crash_after`] stands for `kill -9` of the daemon.

pub(crate) mod worker;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bulkhead_core::action::{Action, Applied, DeviceRef, Record};
use bulkhead_core::backend::{NEW_SUFFIX, image_path};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::Finding;
use bulkhead_core::health::{Backing, Space};
use bulkhead_core::heat::{Heat, HeatSource};
use bulkhead_core::identity::{Identity, identify};
use bulkhead_core::journal;
use bulkhead_core::merge::{Layer, LayerTree};
use bulkhead_core::model::{FsKind, HeldTenant, Hold, IoMax, Mode, PoolSource, Provision, RateLimit, Unit};
use bulkhead_core::name::Name;
use bulkhead_core::observe::histogram::Histogram;
use bulkhead_core::observe::view::{
    BlameView, CausesView, CommitView, ContainerView, CulpritView, DeviceShare, FileSystemShare, FileSystemView,
    JournalBytes, Observation, WaitList, WaitView,
};
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::slices;
use bulkhead_core::stream::{PartLayer, PartState};
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_core::wire::{Accounting, HoldView, IoBytes, LayerView, LayersView, StandingView};
use bulkhead_core::work::WorkSpec;
use uuid::Uuid;

use self::worker::Play;
use crate::conditions::Conditions;
use crate::host::{
    BlockFacts, Host, JournalFacts, LogicalVolume, NamedDevice, OpenDevice, Proof, Records, ThinPool, Worker,
};
use crate::jobs::Job;
use crate::observe::Observe;
use crate::store;

/// A hold on that host, as it is shown.
pub(crate) fn held() -> HoldView {
    let tenant = HeldTenant {
        name: "db".to_owned(),
        share_ppm: 700_000,
        identity: identify("/bulkhead.slice/bulkhead-db.slice"),
        cgroup: "bulkhead.slice/bulkhead-db.slice".to_owned(),
        iops_before: RateLimit::default(),
        bytes_before: Some(RateLimit::default()),
        fsync_p99_us: Some(20_000),
        journal: None,
    };
    let standing = StandingView {
        name: "db".to_owned(),
        target_share: 0.7,
        achieved_share: 0.72,
        journal_share: 0.3,
        weight: 120,
        contends: true,
        infeasible: false,
        cap: Some(240),
        cap_bytes: Some(31_457_280),
        fsync_p99_seconds: Some(0.025),
    };
    HoldView {
        hold: Hold {
            device: "vda".to_owned(),
            unit: Unit::Bytes,
            mode: Mode::Correcting,
            weight_file: "io.weight".to_owned(),
            total_weight: 200,
            tenants: vec![tenant],
            tunables: BTreeMap::new(),
            lease_seconds: None,
        },
        state: "corrected".to_owned(),
        reason: "weights were changed".to_owned(),
        corrections: 7,
        standings: vec![standing],
    }
}

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
    /// What images that were copied lie on, and layers too; a layer is named by its UUID.
    below: BTreeMap<PathBuf, Option<Uuid>>,
    /// Images that hold nothing of their own since they became, or were made, empty.
    empty: BTreeSet<PathBuf>,
    /// What is being received.
    parts: BTreeMap<PathBuf, PartState>,
    /// Where the volumes are mounted whose siblings read from them.
    siblings: BTreeMap<Uuid, PathBuf>,
    /// Which image is served as the device of which volume.
    owners: BTreeMap<Uuid, PathBuf>,
    /// Images that have a block device, with the cgroup of what serves them.
    attached: BTreeMap<PathBuf, Option<String>>,
    groups: BTreeMap<String, BTreeSet<String>>,
    volumes: BTreeMap<(String, String), (LogicalVolume, Option<FileSystem>)>,
    mounts: BTreeMap<PathBuf, DeviceRef>,
    cgroups: BTreeMap<String, BTreeMap<String, String>>,
    /// Below which cgroups, `/` among them, the cpu controller is enabled.
    cpu_below: BTreeSet<String>,
    /// The kernel has no cpu controller.
    lacks_cpu: bool,
    /// Below which cgroup the kernel refuses to enable it.
    refuses_cpu: Option<String>,
    journals: BTreeMap<PathBuf, String>,
    /// Journal threads of file systems that are not ours, by their devices: where they are.
    adopted: BTreeMap<String, String>,
    processes: BTreeMap<u32, u64>,
    busy: BTreeSet<PathBuf>,
    /// Images and nodes whose blocks were all written in advance.
    written: BTreeSet<PathBuf>,
    /// From where on nodes of those have grown since.
    unfilled: BTreeMap<PathBuf, Bytes>,
    /// The size of each pool, if it is not as usual.
    total: Option<Bytes>,
    /// What is free in each pool, if it is not as usual, when nothing is allocated but what was when that was set.
    free: Option<Bytes>,
    /// What images, and the nodes of logical volumes, have taken of their pools, and how much of that is in `free` already.
    allocated: BTreeMap<PathBuf, (Bytes, Bytes)>,
    /// What takes room bit by bit, and how far it has got: it goes on when it is not in here any more.
    gradual: BTreeMap<PathBuf, Bytes>,
    /// The volume groups that answer nothing about their space, and whether somebody has asked.
    silent: BTreeMap<String, bool>,
    /// The file systems have no room for other journals.
    lacks_journal_room: bool,
    /// How much of the metadata of thin pools is used, if it is not as usual.
    metadata_pct: Option<f64>,
    /// Mounts whose data takes for ever to be written.
    slow: BTreeSet<PathBuf>,
    queue: BTreeMap<String, String>,
    lost_device: bool,
    /// For how long its device has been busy: a second more with each look.
    busy_for: Duration,
    steps_left: Option<usize>,
    /// How many steps were asked for.
    n_steps: usize,
    /// The directory whose records cannot be listed.
    unlistable: Option<PathBuf>,
    /// How workers behave.
    play: Play,
    /// What workers were started for.
    started: Vec<WorkSpec>,
    /// What came in the last stream that was read.
    came: Vec<u8>,
}

/// The host, shared between the engines that live and die on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sim(Arc<Mutex<World>>, Arc<Conditions>);

/// An observation of that host: each second the same happens, and each question comes a second later.
#[derive(Debug, Default)]
pub(crate) struct Observed(AtomicU32);

impl Observe for Observed {
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let n = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let db = identify("/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice");
        let noise = identify("/system.slice/noise\u{1b}[2J.service");
        let journal = |commit_bytes: u64, ordered_bytes: u64| JournalBytes {
            commit_bytes: commit_bytes * u64::from(n),
            ordered_bytes: ordered_bytes * u64::from(n),
            ..JournalBytes::default()
        };
        let container =
            |identity: &Identity, journal: JournalBytes, written_bytes: u64, device_seconds: f64| ContainerView {
                identity: identity.clone(),
                journal: vec![FileSystemShare { device: "vda1".to_owned(), journal, native_bytes: 0 }],
                read_bytes: 0,
                written_bytes: written_bytes * u64::from(n),
                device_seconds: device_seconds * f64::from(n),
                devices: vec![DeviceShare {
                    device: "vda".to_owned(),
                    seconds: device_seconds * f64::from(n),
                    read_bytes: 0,
                    written_bytes: written_bytes * u64::from(n),
                    target_seconds: (identity.name == "db").then(|| 0.76 * f64::from(n)),
                    achieved_share: device_seconds / 0.95,
                    target_share: (identity.name == "db").then_some(0.8),
                }],
                fsync: Histogram::default(),
            };
        let mut waiting = container(&db, journal(40 << 10, 0), 160 << 10, 0.05);
        for _ in 0..n * 10 {
            waiting.fsync.record(30_000);
        }
        waiting.fsync.record(900_000);
        let blame = |culprit: Option<&Identity>, seconds: f64| BlameView {
            victim: db.clone(),
            culprit: culprit.cloned(),
            seconds: seconds * f64::from(n),
        };
        Ok(Observation {
            observed_seconds: f64::from(n),
            method: "tp_btf".to_owned(),
            containers: vec![waiting, container(&noise, journal(2 << 20, 1 << 20), 90 << 20, 0.9)],
            file_systems: vec![FileSystemView {
                device: "vda1".to_owned(),
                mount_point: Some("/".to_owned()),
                disks: vec!["vda".to_owned()],
                commits: u64::from(n) * 11,
                journal: journal((40 << 10) + (2 << 20) + 4096, 1 << 20),
                unattributed: journal(4096, 0),
                pending_bytes: 0,
            }],
            blame: vec![blame(Some(&db), 0.02), blame(Some(&noise), 0.27), blame(None, 0.01)],
            waits: (!waits.is_zero()).then(|| WaitList {
                waits: vec![long_wait(&db, &noise), short_wait(&noise)],
                left_out: 9,
                left_out_seconds: 0.03,
            }),
            ..Observation::default()
        })
    }
}

/// A wait for two commits, mostly because of somebody else.
fn long_wait(victim: &Identity, noise: &Identity) -> WaitView {
    let commit = |tid, seconds: f64, requester: Option<&Identity>| CommitView {
        tid,
        requester: requester.cloned(),
        locked_seconds: Some(0.0002),
        flushing_seconds: Some(seconds / 4.0),
        logging_seconds: requester.map(|_| seconds * 0.7),
        seconds,
        journal_bytes: 2 << 20,
        ordered_bytes: 1 << 20,
    };
    let culprit = |culprit: Option<&Identity>, [journal_seconds, queue_seconds]: [f64; 2]| CulpritView {
        culprit: culprit.cloned(),
        causes: CausesView {
            seconds: journal_seconds + queue_seconds,
            journal_seconds,
            queue_seconds,
            ..CausesView::default()
        },
    };
    WaitView {
        victim: victim.clone(),
        device: "vda1".to_owned(),
        mount_point: Some("/".to_owned()),
        began_seconds_ago: 12.5,
        seconds: 0.9,
        device_seconds: 0.72,
        commit_seconds: 0.17,
        tid: 4711,
        commits: vec![commit(4710, 0.4, None), commit(4711, 0.5, Some(victim))],
        n_commits: 2,
        culprits: vec![
            culprit(Some(noise), [0.15, 0.65]),
            culprit(Some(victim), [0.09, 0.0]),
            culprit(None, [0.0, 0.01]),
        ],
        n_others: 0,
        others: CausesView::default(),
    }
}

/// A wait that needed no commit, on a file system that is not mounted here.
fn short_wait(victim: &Identity) -> WaitView {
    let causes = CausesView { seconds: 0.04, flush_seconds: 0.04, ..CausesView::default() };
    WaitView {
        victim: victim.clone(),
        device: "vdb".to_owned(),
        mount_point: None,
        began_seconds_ago: 70.0,
        seconds: 0.04,
        device_seconds: 0.04,
        commit_seconds: 0.0,
        tid: 7,
        commits: Vec::new(),
        n_commits: 0,
        culprits: vec![CulpritView { culprit: Some(victim.clone()), causes }],
        n_others: 0,
        others: CausesView::default(),
    }
}

/// What is left on a host, for assertions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftovers {
    pub(crate) images: Vec<PathBuf>,
    pub(crate) volumes: Vec<String>,
    pub(crate) attached: Vec<PathBuf>,
    pub(crate) mounts: Vec<PathBuf>,
    pub(crate) cgroups: Vec<String>,
    pub(crate) unused_layers: BTreeSet<PathBuf>,
    /// Parts of which there are layers.
    pub(crate) parts: Vec<PathBuf>,
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

    /// How many steps it has been asked for so far.
    pub(crate) fn n_steps(&self) -> usize {
        self.world().n_steps
    }

    /// Kills the daemon after that many steps: from then on nothing that it does has an effect. `None`: it lives.
    pub(crate) fn crash_after(&self, steps: Option<usize>) {
        self.world().steps_left = steps;
    }

    /// Puts a file where an image of a pool would be.
    pub(crate) fn put_image(&self, path: &str) {
        self.world().images.insert(path.into(), (Bytes(Bytes::GIB), None));
    }

    /// The cgroup of a `bulkhead run`.
    pub(crate) fn put_run(&self, tenant: &str, name: &str) {
        self.world()
            .cgroups
            .entry(format!("bulkhead.slice/bulkhead-{tenant}.slice/bulkhead-{tenant}-payload.slice/{name}"))
            .or_default();
    }

    /// The file system that a directory was on is mounted elsewhere.
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

    /// An operator unmounts something by hand.
    pub(crate) fn unmount(&self, target: &Path) {
        self.world().mounts.remove(target);
    }

    pub(crate) fn fill_file_systems(&self, full: bool) {
        self.world().lacks_journal_room = full;
    }

    pub(crate) fn set_metadata_pct(&self, pct: f64) {
        self.world().metadata_pct = Some(pct);
    }

    /// Makes all pools so large.
    pub(crate) fn set_total(&self, total: Bytes) {
        self.world().total = Some(total);
    }

    pub(crate) fn set_free(&self, free: Bytes) {
        let mut world = self.world();
        world.free = Some(free);
        world.allocated.values_mut().for_each(|(now, in_free)| *in_free = *now);
    }

    /// Has the allocation of an image, or the filling of a logical volume by its node, stop when it has taken so much, or go on.
    pub(crate) fn set_gradual(&self, path: &str, taken: Option<Bytes>) {
        match taken {
            Some(taken) => self.world().gradual.insert(path.into(), taken),
            None => self.world().gradual.remove(Path::new(path)),
        };
    }

    /// How much a volume has taken, by its image or node.
    pub(crate) fn allocated_to(&self, path: &str) -> Bytes {
        self.world().allocated.get(Path::new(path)).map_or(Bytes(0), |(now, _)| *now)
    }

    /// Has a volume group not answer how much space it has, or answer again.
    pub(crate) fn set_silent(&self, vg: &str, silent: bool) {
        if silent {
            self.world().silent.insert(vg.to_owned(), false);
        } else {
            self.world().silent.remove(vg);
        }
    }

    /// Whether somebody waits for a silent volume group.
    pub(crate) fn is_asked(&self, vg: &str) -> bool {
        self.world().silent.get(vg).is_some_and(|asked| *asked)
    }

    /// Has it take for ever to write what is dirty in a mounted file system, or no time.
    pub(crate) fn set_slow(&self, target: &Path, slow: bool) {
        if slow {
            self.world().slow.insert(target.to_owned());
        } else {
            self.world().slow.remove(target);
        }
    }

    /// Makes unmounting a directory, or letting go of an image or logical volume, fail as a process that has it open does.
    pub(crate) fn set_busy(&self, target: &Path, busy: bool) {
        if busy {
            self.world().busy.insert(target.to_owned());
        } else {
            self.world().busy.remove(target);
        }
    }

    /// What a reboot leaves: devices, mounts, cgroups, processes and the runtime directory are gone.
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
        world.files.retain(|path, _| !path.starts_with("/run"));
    }

    /// Has no records listed in a directory, or all again.
    pub(crate) fn set_unlistable(&self, dir: Option<&str>) {
        self.world().unlistable = dir.map(PathBuf::from);
    }

    /// The kernel made the journal thread anew, in the root cgroup (after a remount).
    pub(crate) fn lose_journals(&self) {
        self.world().journals.clear();
    }

    pub(crate) fn journal_of(&self, target: &Path) -> Option<String> {
        self.world().journals.get(target).cloned()
    }

    /// The kernel has no cpu controller.
    pub(crate) fn lose_cpu(&self) {
        self.world().lacks_cpu = true;
    }

    /// The kernel refuses to enable the cpu controller below a cgroup, or does so again.
    pub(crate) fn refuse_cpu(&self, cgroup: Option<&str>) {
        self.world().refuses_cpu = cgroup.map(str::to_owned);
    }

    /// Somebody disables the cpu controller below a cgroup and, as the kernel demands, below those in it before.
    pub(crate) fn disable_cpu(&self, cgroup: &str) {
        let mut world = self.world();
        let prefix = format!("{cgroup}/");
        world.cpu_below.retain(|path| path != cgroup && !path.starts_with(&prefix));
        for (path, files) in &mut world.cgroups {
            if path.starts_with(&prefix) {
                files.remove("cpu.weight");
            }
        }
    }

    pub(crate) fn cgroup_file(&self, cgroup: &str, file: &str) -> Option<String> {
        self.world().cgroups.get(cgroup)?.get(file).cloned()
    }

    /// Another program writes to a file of a cgroup.
    pub(crate) fn set_cgroup_file(&self, cgroup: &str, file: &str, value: &str) {
        let mut world = self.world();
        world.cgroups.get_mut(cgroup).expect("the cgroup is there").insert(file.to_owned(), value.to_owned());
    }

    pub(crate) fn corrupt(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.world().files.get_mut(path).expect("the file is there"));
    }

    /// The disk `/dev/sdb` is gone.
    pub(crate) fn lose_device(&self) {
        self.world().lost_device = true;
    }

    pub(crate) fn lose_file(&self, path: &str) {
        self.world().files.remove(Path::new(path));
    }

    /// The sibling reader is killed.
    pub(crate) fn forget_siblings(&self) {
        self.world().siblings.clear();
    }

    /// Something was written to an image.
    pub(crate) fn write(&self, image: &str) {
        self.world().empty.remove(Path::new(image));
    }

    /// All of a stream came in.
    pub(crate) fn fill_part(&self, path: &Path) {
        self.world().parts.get_mut(path).expect("it is being received").received = None;
    }

    /// Has workers behave in this way from now on.
    pub(crate) fn set_play(&self, play: Play) {
        self.world().play = play;
    }

    /// Makes a base in a part.
    fn import_into(&self, path: &Path, content: Uuid) {
        let mut world = self.world();
        let part = world.parts.get_mut(path).expect("a part was made for it");
        (part.content, part.received) = (content, None);
    }

    fn has_come(&self, stream: Vec<u8>) {
        self.world().came = stream;
    }

    /// What came in the last stream that was read.
    pub(crate) fn came(&self) -> Vec<u8> {
        self.world().came.clone()
    }

    /// What workers were started for.
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
            cgroups: world.cgroups.keys().cloned().collect(),
            unused_layers: world.unused_layers(),
            parts: world
                .parts
                .keys()
                .filter(|path| world.part(path).is_some_and(|part| part.layer != PartLayer::Missing))
                .cloned()
                .collect(),
        }
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }
}

fn thin_pool(name: &str) -> LogicalVolume {
    let thin_pool = Some(ThinPool { zeroes: true });
    LogicalVolume { name: name.to_owned(), size: Bytes(Bytes::GIB), tags: vec![], thin_pool, read_only: false }
}

fn node(vg: &str, lv: &str) -> PathBuf {
    Path::new("/dev").join(vg).join(lv)
}

/// Where a pool's volumes are, as images or nodes.
fn directory_of(source: &PoolSource) -> PathBuf {
    match source {
        PoolSource::File { directory, .. } => directory.clone(),
        PoolSource::Lvm { vg, .. } => Path::new("/dev").join(vg),
    }
}

/// Group and name of a logical volume that is served.
fn logical_volume(image: &Path) -> Option<(String, String)> {
    let (vg, lv) = image.strip_prefix("/dev").ok()?.to_str()?.split_once('/')?;
    Some((vg.to_owned(), lv.to_owned()))
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

    fn unused_layers(&self) -> BTreeSet<PathBuf> {
        let mut needed: Vec<Uuid> =
            self.images.keys().filter_map(|image| self.below.get(image).copied().flatten()).collect();
        needed.extend(self.parts.values().filter_map(|part| part.base));
        let mut unused: BTreeSet<PathBuf> =
            self.below.keys().filter(|path| !self.images.contains_key(*path)).cloned().collect();
        while let Some(layer) = needed.pop() {
            let path = PathBuf::from(layer.to_string());
            needed.extend(self.below[&path]);
            unused.remove(&path);
        }
        unused
    }

    fn layer_tree(&self) -> LayerTree {
        let mut tree = LayerTree::default();
        for (path, below) in &self.below {
            match path.to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                Some(layer) => drop(tree.layers.insert(layer, Layer { below: *below, bytes: Bytes::mib(2) })),
                None => tree.needed.extend(*below),
            }
        }
        tree.needed.extend(self.parts.values().filter_map(|part| part.base));
        tree
    }

    fn part(&self, path: &Path) -> Option<PartState> {
        let part = self.parts.get(path)?;
        let has_layer = self.below.contains_key(&PathBuf::from(part.content.to_string()));
        let layer = match part.layer {
            _ if !has_layer => PartLayer::Missing,
            PartLayer::Same => PartLayer::Same,
            _ => PartLayer::Other,
        };
        Some(PartState { layer, ..*part })
    }

    fn is_mounted(&self, device: &DeviceRef) -> bool {
        self.mounts.values().any(|mounted| mounted == device)
    }

    fn resize_under(fs: Option<&FileSystem>, to: Bytes) {
        assert!(fs.is_none_or(|fs| fs.size <= to), "a device became smaller than its file system: data lost");
    }

    fn set_queue(&mut self, key: &str, value: &str) -> bool {
        self.queue.insert(key.to_owned(), value.to_owned()).as_deref() != Some(value)
    }

    fn tags(set: &mut Vec<String>, add: &[String], remove: &[String]) -> bool {
        let before = set.clone();
        set.retain(|tag| !remove.contains(tag));
        for tag in add {
            if !set.contains(tag) {
                set.push(tag.clone());
            }
        }
        *set != before
    }

    fn allocate(&mut self, path: &Path, bytes: Bytes) {
        self.allocated.entry(path.to_owned()).or_default().0 = bytes;
    }

    /// What an action takes of its pool in the end, by the image or node that takes it.
    fn takes(&self, action: &Action) -> Option<(PathBuf, Bytes)> {
        match action {
            Action::CreateImage { path, size_bytes, provision: Provision::Full }
            | Action::GrowImage { path, size_bytes, provision: Provision::Full }
            | Action::ShrinkImage { path, size_bytes } => Some((path.clone(), *size_bytes)),
            Action::CreateLv { vg, lv, thin_pool: None, size_bytes, .. } | Action::ShrinkLv { vg, lv, size_bytes } => {
                Some((node(vg, lv), *size_bytes))
            }
            Action::GrowLv { vg, lv, size_bytes } => {
                let path = node(vg, lv);
                let is_thick = self.allocated.contains_key(&path) && !self.written.contains(&path);
                is_thick.then_some((path, *size_bytes))
            }
            Action::FillLv { vg, lv, .. } => {
                let (volume, _) = &self.volumes[&(vg.clone(), lv.clone())];
                Some((node(vg, lv), volume.size))
            }
            Action::RemoveImage { path } => Some((path.clone(), Bytes(0))),
            Action::RemoveLv { vg, lv, .. } => Some((node(vg, lv), Bytes(0))),
            _ => None,
        }
    }

    /// Returns whether anything changed.
    fn act(&mut self, action: &Action) -> Result<bool, Fault> {
        use Action as A;
        let changed = match action {
            A::MakeDir { path } => self.dirs.insert(path.clone()),
            A::RemoveDir { path } => self.dirs.remove(path),
            A::WriteRecord { path, record } => {
                let content = store::encode(record);
                self.files.insert(path.clone(), content.clone()) != Some(content)
            }
            A::RemoveRecord { path } => self.files.remove(path).is_some(),
            A::CreateImage { path, size_bytes, provision } => {
                if self.images.contains_key(path) {
                    return Err(Fault::new(Code::AlreadyExists, path.display(), "it already exists"));
                }
                if *provision == Provision::Full {
                    self.written.insert(path.clone());
                }
                self.images.insert(path.clone(), (*size_bytes, None)).is_none()
            }
            A::GrowImage { path, size_bytes, .. } => {
                let (size, _) = self.images.get_mut(path).expect("the image is there");
                let larger = (*size).max(*size_bytes);
                std::mem::replace(size, larger) < *size_bytes
            }
            A::ShrinkImage { path, size_bytes } => {
                let (size, fs) = self.images.get_mut(path).expect("the image is there");
                Self::resize_under(fs.as_ref(), *size_bytes);
                let smaller = (*size).min(*size_bytes);
                std::mem::replace(size, smaller) > *size_bytes
            }
            A::RemoveImage { path } => {
                assert!(!self.attached.contains_key(path), "an attached image was removed");
                self.below.remove(path);
                self.empty.remove(path);
                self.written.remove(path);
                self.images.remove(path).is_some()
            }
            A::FreezeImage { image, layer, .. } => {
                assert!(self.images.contains_key(image), "a missing image became a layer");
                let path = PathBuf::from(layer.to_string());
                if !self.empty.insert(image.clone()) {
                    return Ok(false);
                }
                let was_below = self.below.insert(image.clone(), Some(*layer));
                self.below.insert(path, was_below.flatten());
                true
            }
            A::CopyImage { path, of } => {
                let on = self.below.get(of).copied().flatten();
                assert!(on.is_some(), "an image was copied that lies on nothing");
                let copy = self.images[of].clone();
                self.empty.insert(path.clone());
                self.below.insert(path.clone(), on);
                self.images.insert(path.clone(), copy).is_none()
            }
            A::ReplaceImage { path, by } => {
                assert!(
                    ![path, by].iter().any(|image| self.attached.contains_key(*image)),
                    "a served image was replaced"
                );
                let Some(image) = self.images.remove(by) else { return Ok(false) };
                self.empty.remove(by);
                self.empty.remove(path);
                let below = self.below.remove(by).expect("what replaces an image lies on a layer");
                self.below.insert(path.clone(), below);
                self.images.insert(path.clone(), image).is_some()
            }
            A::CreatePart { path, content, base, size_bytes } => {
                let missing = base.filter(|base| !self.below.contains_key(&PathBuf::from(base.to_string())));
                if missing.is_some() {
                    return Err(Fault::new(Code::NotFound, path.display(), "its base is missing"));
                }
                let new = PartState {
                    content: *content,
                    base: *base,
                    size: *size_bytes,
                    received: Some(Bytes(0)),
                    layer: PartLayer::Missing,
                };
                let is_new = self.part(path).is_none_or(|part| part.layer == PartLayer::Same);
                if is_new {
                    self.parts.insert(path.clone(), new);
                }
                is_new
            }
            A::PublishPart { path, image } => {
                let part = self.parts.get_mut(path).expect("it is being received");
                assert!(part.received.is_none(), "a part was published that is not whole");
                let layer = self.below.entry(PathBuf::from(part.content.to_string()));
                part.layer = if matches!(layer, Entry::Vacant(_)) { PartLayer::Same } else { PartLayer::Other };
                layer.or_insert(part.base);
                self.below.insert(image.clone(), Some(part.content));
                let fs = Some(FileSystem::new(FsKind::Ext4, part.size));
                self.images.insert(image.clone(), (part.size, fs)).is_none()
            }
            A::RemovePart { path } => self.parts.remove(path).is_some(),
            A::SetLayersApart { layers, names, .. } => {
                if !self.layer_tree().has_run(layers) {
                    return Err(Fault::new(Code::InUse, "layers", "something lies on them"));
                }
                let path = |id: &Uuid| PathBuf::from(id.to_string());
                for (above, (old, new)) in names.iter().zip(layers.iter().zip(names).skip(1)) {
                    let below = self.below.remove(&path(old)).expect("it is there");
                    self.below.insert(path(new), below);
                    self.below.insert(path(above), Some(*new));
                }
                true
            }
            A::MergeLayers { layers, into, cgroup, .. } => {
                assert!(layers.contains(into));
                assert!(cgroup.as_ref().is_none_or(|cgroup| self.cgroups.contains_key(cgroup)));
                true
            }
            A::ReplaceLayers { layers, below, .. } => {
                assert!(self.layer_tree().has_run(layers), "a layer was replaced that something else needs");
                self.below.insert(PathBuf::from(layers[0].to_string()), *below);
                true
            }
            A::RenewServer { image, .. } => self.attached.contains_key(image),
            A::SweepLayers { .. } => {
                self.images.retain(|image, _| image.extension().is_none_or(|extension| extension != NEW_SUFFIX));
                let unused = self.unused_layers();
                self.below.retain(|path, _| !unused.contains(path));
                !unused.is_empty()
            }
            A::AttachImage { spec: ServeSpec { image, volume, flatten, cgroup, .. }, .. } => {
                if *flatten {
                    // It takes no time here.
                    self.empty.remove(image);
                    self.below.insert(image.clone(), None);
                }
                let served = self.owners.entry(*volume).or_insert_with(|| image.clone());
                assert_eq!(served, image, "a volume's device is that of another image");
                let is_there = match logical_volume(image) {
                    Some(key) => self.volumes.contains_key(&key),
                    None => self.images.contains_key(image),
                };
                assert!(is_there, "a missing image was attached");
                assert!(
                    cgroup.as_ref().is_none_or(|cgroup| self.cgroups.contains_key(cgroup)),
                    "a server was started in a missing cgroup"
                );
                let place = self.attached.entry(image.clone());
                let is_new = matches!(place, Entry::Vacant(_));
                let place = place.or_default();
                let is_elsewhere = cgroup.is_some() && place != cgroup;
                if is_elsewhere {
                    place.clone_from(cgroup);
                }
                is_new || is_elsewhere
            }
            A::RefreshImage { .. } => true,
            A::DetachImage { image, volume } => {
                let device = DeviceRef::Image { image: image.clone(), volume: *volume };
                if self.is_mounted(&device) || self.busy.contains(image) {
                    return Err(Fault::new(Code::InUse, image.display(), "its device is mounted"));
                }
                self.owners.remove(volume).is_some_and(|image| self.attached.remove(&image).is_some())
            }
            A::CreateVg { vg, tags, .. } => self.groups.insert(vg.clone(), tags.iter().cloned().collect()).is_none(),
            A::RemoveVg { vg, owner_tag, thin_pool, .. } => {
                if !self.groups.get(vg).is_some_and(|tags| tags.contains(owner_tag)) {
                    return Ok(false);
                }
                let is_other = |(group, lv): &(String, String)| group == vg && Some(lv) != thin_pool.as_ref();
                assert!(!self.volumes.keys().any(is_other), "a group with volumes was removed");
                self.volumes.retain(|(group, _), _| group != vg);
                self.groups.remove(vg).is_some()
            }
            A::TagVg { vg, add, remove } => {
                let tags = self.groups.get_mut(vg).expect("the group is there");
                remove.iter().for_each(|tag| {
                    tags.remove(tag);
                });
                let before = tags.len();
                tags.extend(add.iter().cloned());
                tags.len() != before
            }
            A::CreateLv { vg, lv, size_bytes, tags, .. } => {
                if self.volumes.contains_key(&(vg.clone(), lv.clone())) {
                    return Err(Fault::new(Code::AlreadyExists, lv, "it already exists"));
                }
                let (name, tags) = (lv.clone(), tags.clone());
                let volume = LogicalVolume { name, size: *size_bytes, tags, thin_pool: None, read_only: false };
                self.volumes.insert((vg.clone(), lv.clone()), (volume, None)).is_none()
            }
            A::CreateThinPool { vg, lv } => {
                self.volumes.insert((vg.clone(), lv.clone()), (thin_pool(lv), None)).is_none()
            }
            A::SnapshotLv { vg, origin, lv, tags } => {
                let (mut volume, fs) = self.volumes[&(vg.clone(), origin.clone())].clone();
                (volume.name, volume.tags, volume.read_only) = (lv.clone(), tags.clone(), false);
                self.volumes.insert((vg.clone(), lv.clone()), (volume, fs)).is_none()
            }
            A::TagLv { vg, lv, add, remove } => {
                let found = self.volumes.get_mut(&(vg.clone(), lv.clone()));
                let (volume, _) = found.ok_or_else(|| Fault::new(Code::NotFound, lv, "no such logical volume"))?;
                Self::tags(&mut volume.tags, add, remove)
            }
            A::GrowLv { vg, lv, size_bytes } => {
                let path = node(vg, lv);
                let (volume, _) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume is there");
                let larger = volume.size.max(*size_bytes);
                let before = std::mem::replace(&mut volume.size, larger);
                if before < *size_bytes && self.written.contains(&path) {
                    self.unfilled.entry(path).or_insert(before);
                }
                before < *size_bytes
            }
            A::ShrinkLv { vg, lv, size_bytes } => {
                let (volume, fs) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume is there");
                Self::resize_under(fs.as_ref(), *size_bytes);
                let smaller = volume.size.min(*size_bytes);
                let changed = std::mem::replace(&mut volume.size, smaller) > *size_bytes;
                self.unfilled.retain(|path, from| *path != node(vg, lv) || *from < *size_bytes);
                changed
            }
            A::RemoveLv { vg, lv, owner_tag } => {
                let key = (vg.clone(), lv.clone());
                if !self.volumes.get(&key).is_some_and(|(volume, _)| volume.tags.contains(owner_tag)) {
                    return Ok(false);
                }
                assert!(
                    !self.is_mounted(&DeviceRef::Lv { vg: vg.clone(), lv: lv.clone() }),
                    "a mounted LV was removed"
                );
                let node = format!("/dev/{vg}/{lv}");
                assert!(!self.attached.contains_key(Path::new(&node)), "a served LV was removed");
                if self.busy.contains(Path::new(&node)) {
                    return Err(Fault::new(Code::InUse, lv, "a program has it open"));
                }
                self.written.remove(Path::new(&node));
                self.unfilled.remove(Path::new(&node));
                self.volumes.remove(&key).is_some()
            }
            A::Mkfs { device, fs, .. } => {
                let (slot, size) = self.fs(device)?;
                assert!(slot.is_none(), "a file system was made over another one: data lost");
                *slot = Some(FileSystem::new(*fs, size));
                true
            }
            A::CheckFs { device, .. } | A::NewFsUuid { device, .. } => {
                if let (A::NewFsUuid { .. }, DeviceRef::Image { image, .. }) = (action, device) {
                    self.empty.remove(image);
                }
                assert!(!self.is_mounted(device), "a mounted file system was checked");
                self.fs(device)?.0.as_ref().ok_or_else(|| Fault::new(Code::Corrupt, device, "no file system"))?;
                true
            }
            A::StampFsUuid { image, .. } => {
                assert!(!self.attached.contains_key(image), "a served image was written to");
                self.empty.remove(image);
                self.images.get(image).and_then(|(_, fs)| fs.as_ref()).expect("there is a file system");
                true
            }
            A::GrowFs { device, fs, mounted_at } => {
                assert_eq!(self.is_mounted(device), mounted_at.is_some());
                assert!(*fs == FsKind::Ext4 || mounted_at.is_some(), "XFS was grown unmounted");
                if let DeviceRef::Lv { vg, lv } = device {
                    let is_unfilled = self.unfilled.contains_key(&node(vg, lv));
                    assert!(!is_unfilled, "a file system grew into what had yet to be taken from the pool");
                }
                let (slot, size) = self.fs(device)?;
                let fs = slot.as_mut().expect("there is a file system");
                std::mem::replace(&mut fs.size, size) != size
            }
            A::ShrinkFs { device, size_bytes } => {
                assert!(!self.is_mounted(device), "a mounted file system was shrunk");
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                if *size_bytes < Bytes::mib(20) {
                    return Err(Fault::new(Code::NoSpace, device, "its files need more"));
                }
                fs.size = *size_bytes;
                true
            }
            A::RemoveJournal { device, wanted_bytes } => {
                assert!(!self.is_mounted(device), "the journal of a mounted file system was removed");
                let lacks_room = self.lacks_journal_room;
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                assert_eq!(fs.kind, FsKind::Ext4, "the log of an XFS was removed");
                if fs.journal == Some(*wanted_bytes) {
                    return Ok(false);
                }
                if lacks_room {
                    return Err(Fault::new(Code::NoSpace, device, "there is no room for such a journal"));
                }
                fs.journal.take().is_some()
            }
            A::MakeJournal { device, size_bytes } => {
                assert!(!self.is_mounted(device), "a journal was made in a mounted file system");
                let fs = self.fs(device)?.0.as_mut().expect("there is a file system");
                let is_new = fs.journal.is_none();
                fs.journal.get_or_insert(*size_bytes);
                is_new
            }
            A::Mount { device, target, read_only, .. } => {
                if let (false, DeviceRef::Image { image, .. }) = (read_only, device) {
                    self.empty.remove(image);
                }
                let fs = self.fs(device)?.0.as_ref().expect("there is a file system to mount");
                assert!(
                    fs.kind == FsKind::Xfs || fs.journal.is_some(),
                    "a file system without its journal was mounted"
                );
                assert!(!self.is_mounted(device), "a volume was mounted twice");
                self.mounts.insert(target.clone(), device.clone()).is_none()
            }
            A::AttachSibling { volume, target, .. } => {
                assert!(self.mounts.contains_key(target), "what is not mounted was lent to siblings");
                self.siblings.insert(*volume, target.clone()).as_ref() != Some(target)
            }
            A::DetachSibling { volume } => self.siblings.remove(volume).is_some(),
            A::SyncFs { target } => {
                assert!(self.mounts.contains_key(target), "what is not mounted was synced");
                true
            }
            A::TrimFs { target, cgroup, start_bytes, length_bytes } => {
                assert!(self.cgroups.contains_key(cgroup), "a file system was trimmed in a missing cgroup");
                let device = self.mounts.get(target).cloned().expect("what is trimmed is mounted");
                let (_, size) = self.fs(&device)?;
                assert!(start_bytes.0 + length_bytes.0 <= size.0, "more than a volume was trimmed");
                let path = match device {
                    DeviceRef::Image { image, .. } => image,
                    DeviceRef::Lv { vg, lv } => node(&vg, &lv),
                };
                assert!(!self.written.contains(&path), "what was written in advance was trimmed");
                true
            }
            A::Unmount { target } => {
                if self.busy.contains(target) {
                    return Err(Fault::new(Code::InUse, target.display(), "a process keeps it busy"));
                }
                assert!(self.siblings.values().all(|lent| lent != target), "siblings keep it from being unmounted");
                self.journals.remove(target);
                self.mounts.remove(target).is_some()
            }
            A::CreateCgroup { cgroup } => {
                let is_new = !self.cgroups.contains_key(cgroup);
                let mut path = PathBuf::new();
                for part in Path::new(cgroup) {
                    path.push(part);
                    self.cgroups.entry(path.display().to_string()).or_default();
                }
                is_new
            }
            // Processes are not simulated.
            A::MoveProcesses { .. } => false,
            A::EnableController { cgroup, controller } => {
                assert_eq!(controller, "cpu", "io and memory come with a cgroup");
                let above = cgroup.rsplit_once('/').map_or("/", |(above, _)| above);
                if self.lacks_cpu || (cgroup != "/" && !self.cpu_below.contains(above)) {
                    return Err(Fault::new(Code::Unsupported, format!("cgroup {cgroup}"), "cpu is not available"));
                }
                if self.refuses_cpu.as_ref() == Some(cgroup) {
                    return Err(Fault::new(
                        Code::Unsupported,
                        format!("cgroup {cgroup}"),
                        "a realtime process is below it",
                    ));
                }
                assert!(cgroup == "/" || self.cgroups.contains_key(cgroup), "cpu was enabled below a missing cgroup");
                self.cpu_below.insert(cgroup.clone())
            }
            A::WriteCgroup { cgroup, file, value } => {
                let above = cgroup.rsplit_once('/').map_or("/", |(above, _)| above);
                assert!(file != "cpu.weight" || self.cpu_below.contains(above), "there is no cpu.weight in {cgroup}");
                let files = self.cgroups.get_mut(cgroup).expect("the cgroup is there");
                files.insert(file.clone(), value.clone()).as_ref() != Some(value)
            }
            A::SetWeight { cgroup, file, device, weight } => {
                let files = self.cgroups.get_mut(cgroup);
                let files =
                    files.ok_or_else(|| Fault::new(Code::NotFound, format!("cgroup {cgroup}"), "it is gone"))?;
                files.insert(format!("{file} {device}"), weight.to_string()) != Some(weight.to_string())
            }
            A::ResetWeight { cgroup, file, device } => {
                self.cgroups.get_mut(cgroup).is_some_and(|files| files.remove(&format!("{file} {device}")).is_some())
            }
            A::LimitIo { cgroup, device, limit } => match self.cgroups.get_mut(cgroup) {
                Some(files) if *limit == IoMax { ops: RateLimit::default(), bytes: Some(RateLimit::default()) } => {
                    files.remove(&format!("io.max {device}")).is_some()
                }
                Some(files) => files.insert(format!("io.max {device}"), limit.to_string()) != Some(limit.to_string()),
                None => false,
            },
            A::RemoveCgroup { cgroup } => {
                let below = format!("{cgroup}/");
                assert!(
                    !self.cgroups.keys().any(|path| path.starts_with(&below)),
                    "a cgroup with children was removed"
                );
                let threads = self.journals.values().chain(self.adopted.values());
                let mut inside = threads.chain(self.attached.values().flatten());
                assert!(!inside.any(|c| c == cgroup), "a cgroup with a thread or a server was removed");
                self.cpu_below.remove(cgroup);
                self.cgroups.remove(cgroup).is_some()
            }
            A::PlaceJournal { device, cgroup, .. } => {
                assert!(self.cgroups.contains_key(cgroup), "a journal was put into a missing cgroup");
                let target =
                    self.mounts.iter().find(|(_, mounted)| *mounted == device).map(|(target, _)| target.clone());
                let target = target.ok_or_else(|| Fault::new(Code::Internal, device, "no journal thread"))?;
                self.journals.insert(target, cgroup.clone()).as_ref() != Some(cgroup)
            }
            A::MoveJournal { device, cgroup } => {
                assert!(cgroup == "/" || self.cgroups.contains_key(cgroup), "a journal was put into a missing cgroup");
                self.adopted.insert(device.clone(), cgroup.clone()).as_ref() != Some(cgroup)
            }
            A::ProtectLv { vg, lv } => {
                let (volume, _) = self.volumes.get_mut(&(vg.clone(), lv.clone())).expect("the volume is there");
                !std::mem::replace(&mut volume.read_only, true)
            }
            A::ActivateLv { .. } => true,
            A::FillLv { vg, lv, from_bytes } => {
                let (_, fs) = &self.volumes[&(vg.clone(), lv.clone())];
                assert!(
                    fs.as_ref().is_none_or(|fs| fs.size <= *from_bytes),
                    "a file system was written over: data lost"
                );
                let path = node(vg, lv);
                assert!(self.unfilled.get(&path).is_none_or(|from| from_bytes <= from), "a part was left out");
                self.unfilled.remove(&path);
                self.written.insert(path);
                true
            }
            A::SetScheduler { scheduler: value, .. } => self.set_queue("scheduler", value),
            A::SetTunable { tunable, value, .. } => self.set_queue(tunable, value),
            A::SetCostModel { line, .. } => self.set_queue("model", line),
            A::SetCostQos { line, .. } => self.set_queue("qos", line),
            A::DisableCost { .. } => self.set_queue("qos", "enable=0"),
        };
        Ok(changed)
    }
}

/// What has to be as these actions left it.
#[derive(Debug)]
struct Kept {
    sim: Sim,
    kept: Vec<Action>,
}

impl Proof for Kept {
    fn holds(&self) -> bool {
        let world = self.sim.world();
        self.kept.iter().all(|action| match action {
            Action::AttachImage { spec, .. } => world.attached.get(&spec.image) == Some(&spec.cgroup),
            Action::PlaceJournal { device, cgroup, .. } => {
                let target = world.mounts.iter().find(|(_, mounted)| *mounted == device).map(|(target, _)| target);
                target.and_then(|target| world.journals.get(target)) == Some(cgroup)
            }
            Action::AttachSibling { volume, target, .. } => world.siblings.get(volume) == Some(target),
            Action::CreateCgroup { cgroup } => world.cgroups.contains_key(cgroup),
            Action::EnableController { cgroup, .. } => world.cpu_below.contains(cgroup),
            Action::WriteCgroup { cgroup, file, value } => {
                world.cgroups.get(cgroup).and_then(|files| files.get(file)) == Some(value)
            }
            _ => true,
        })
    }
}

impl Host for Sim {
    fn apply(&self, action: &Action, job: &Job) -> Result<Applied, Fault> {
        if let Action::SyncFs { target } | Action::Unmount { target } | Action::TrimFs { target, .. } = action {
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
        if let Some((path, _)) = world.takes(action) {
            while let Some(taken) = world.gradual.get(&path).copied() {
                world.allocate(&path, taken);
                drop(world);
                std::thread::yield_now();
                world = self.world();
            }
        }
        let takes = world.takes(action);
        let changed = world.act(action)?;
        if let Some((path, bytes)) = takes {
            world.allocate(&path, bytes);
        }
        let discarded_bytes = matches!(action, Action::TrimFs { .. }).then(|| Bytes::mib(1));
        Ok(Applied { action: action.clone(), old: None, changed, discarded_bytes })
    }

    fn start_worker(&self, spec: &WorkSpec) -> Result<Box<dyn Worker>, Fault> {
        let mut world = self.world();
        assert!(world.cgroups.contains_key(&spec.cgroup), "a worker was started in a missing cgroup");
        world.started.push(spec.clone());
        Ok(worker::start(self.clone(), spec.clone(), world.play.clone()))
    }

    fn records(&self, dir: &Path, suffix: &str) -> Result<Records, Fault> {
        let world = self.world();
        if world.unlistable.as_deref() == Some(dir) {
            return Err(Fault::new(Code::Internal, format!("directory {}", dir.display()), "cannot list it (EIO)"));
        }
        let here = world
            .files
            .iter()
            .filter(|(path, _)| path.parent() == Some(dir) && path.to_string_lossy().ends_with(suffix));
        Ok(Arc::new(here.map(|(path, content)| (path.clone(), store::decode(path, content))).collect()))
    }

    fn record(&self, path: &Path) -> Option<Result<Record, Fault>> {
        self.world().files.get(path).map(|content| store::decode(path, content))
    }

    fn logical_volumes(&self, vg: &str) -> Result<Vec<LogicalVolume>, Fault> {
        let world = self.world();
        Ok(world.volumes.iter().filter(|((group, _), _)| group == vg).map(|(_, (volume, _))| volume.clone()).collect())
    }

    fn vg_tags(&self, vg: &str) -> Result<Option<Vec<String>>, Fault> {
        Ok(self.world().groups.get(vg).map(|tags| tags.iter().cloned().collect()))
    }

    fn vg_devices(&self, _vg: &str) -> Result<Vec<DevNo>, Fault> {
        Ok(vec![DevNo::new(8, 16)])
    }

    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault> {
        Ok(self.world().images.get(image).map(|(size, _)| *size))
    }

    fn space(&self, source: &PoolSource) -> Result<Space, Fault> {
        let extent = if matches!(source, PoolSource::File { .. }) { Bytes(4096) } else { Bytes::mib(4) };
        if let PoolSource::Lvm { vg, .. } = source {
            while let Some(asked) = self.world().silent.get_mut(vg) {
                *asked = true;
                std::thread::yield_now();
            }
        }
        let world = self.world();
        let here = directory_of(source);
        let in_pool = world.allocated.iter().filter(|(path, _)| path.parent() == Some(&here));
        let (taken, in_free) = in_pool.fold((0, 0), |(a, b), (_, (now, in_free))| (a + now.0, b + in_free.0));
        let is_thin = matches!(source, PoolSource::Lvm { thin_pool: Some(_), .. });
        Ok(Space {
            total: world.total.unwrap_or(Bytes(Bytes::GIB)),
            free: Bytes((world.free.unwrap_or(Bytes::mib(512)).0 + in_free).saturating_sub(taken)),
            extent,
            data_pct: is_thin.then_some(50.0),
            metadata_pct: is_thin.then(|| world.metadata_pct.unwrap_or(10.0)),
            health: String::new(),
            is_partial: false,
        })
    }

    fn journal_bytes(&self, device: &DeviceRef) -> Result<Option<Bytes>, Fault> {
        let mut world = self.world();
        let of = |fs: &Option<FileSystem>| fs.as_ref().and_then(|fs| fs.journal);
        if let DeviceRef::Image { image, .. } = device
            && let Some((_, fs)) = world.images.get(image)
        {
            return Ok(of(fs));
        }
        Ok(world.fs(device).ok().and_then(|(fs, _)| of(fs)))
    }

    fn allocated(&self, source: &PoolSource, volume: &Name) -> Result<Bytes, Fault> {
        let here = directory_of(source);
        let path = match source {
            PoolSource::File { .. } => image_path(&here, volume),
            PoolSource::Lvm { .. } => here.join(volume.as_str()),
        };
        Ok(self.world().allocated.get(&path).map_or(Bytes(0), |(now, _)| *now))
    }

    fn list_dir(&self, dir: &Path) -> Result<Option<Vec<String>>, Fault> {
        let world = self.world();
        if !world.dirs.contains(dir) {
            return Ok(None);
        }
        let names = world
            .files
            .keys()
            .chain(world.images.keys())
            .chain(world.parts.keys())
            .filter(|path| path.parent() == Some(dir));
        Ok(Some(names.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()))
    }

    fn who_can_replace(&self, directory: &Path) -> Result<Option<String>, Fault> {
        Ok(directory.starts_with("/home").then(|| "/home/alice belongs to user 1000".to_owned()))
    }

    fn named_device(&self, path: &Path) -> Result<NamedDevice, Fault> {
        if path != Path::new("/dev/sdb") || self.world().lost_device {
            return Err(Fault::new(Code::NotFound, path.display(), "there is no such device"));
        }
        Ok(NamedDevice {
            dev: DevNo::new(8, 16),
            size: Bytes(Bytes::GIB),
            signatures: vec!["ext4".to_owned()],
            in_use: None,
        })
    }

    fn limited_device(&self, path: &Path) -> Result<DevNo, Fault> {
        self.named_device(path).map(|device| device.dev)
    }

    fn block_devices(&self) -> Result<Vec<BlockFacts>, Fault> {
        let world = self.world();
        let queue = |key: &str| world.queue.get(key).cloned();
        let facts = |name: &str, dev, scheduler| BlockFacts {
            name: name.to_owned(),
            dev,
            size: Bytes(Bytes::GIB),
            rotational: true,
            largest_request: Some(Bytes(524_288)),
            scheduler,
            schedulers: ["none", "mq-deadline", "bfq"].map(str::to_owned).to_vec(),
            physical: vec!["sda".to_owned()],
            identity: "serial-1".to_owned(),
            cost_model: queue("model"),
            cost_qos: queue("qos"),
        };
        let scheduler = queue("scheduler").or_else(|| Some("mq-deadline".to_owned()));
        Ok(vec![facts("sda", DevNo::new(8, 0), scheduler), facts("dm-0", DevNo::new(252, 0), None)])
    }

    fn block_device(&self, name: &str) -> Result<Option<BlockFacts>, Fault> {
        Ok(self.block_devices()?.into_iter().find(|facts| facts.name == name))
    }

    fn open_device(&self, device: &DeviceRef) -> Result<Option<OpenDevice>, Fault> {
        let open = self.world().fs(device).is_ok();
        let path = PathBuf::from("/dev").join(device.to_string().replace(' ', "-"));
        Ok(open.then(|| OpenDevice { path, dev: DevNo::new(7, 0), backing: Backing::LogicalVolume }))
    }

    fn in_use(&self, device: &DeviceRef) -> Result<Option<String>, Fault> {
        let mut world = self.world();
        let is_held = matches!(device, DeviceRef::Image { image, .. } if world.busy.contains(image));
        let is_used = is_held && world.fs(device).is_ok() || world.is_mounted(device);
        Ok(is_used.then(|| "sda1 is mounted on /elsewhere in the mount namespace of process 7".to_owned()))
    }

    fn conditions(&self) -> &Conditions {
        &self.1
    }

    fn physical_devices(&self, _source: &PoolSource) -> (Vec<String>, Vec<String>) {
        (vec!["sda".to_owned()], vec![])
    }

    fn is_mounted(&self, target: &Path) -> Result<bool, Fault> {
        Ok(self.world().mounts.contains_key(target))
    }

    fn mount_points(&self) -> Result<Arc<BTreeSet<PathBuf>>, Fault> {
        Ok(Arc::new(self.world().mounts.keys().cloned().collect()))
    }

    fn proof(&self, kept: &[Action]) -> Option<Arc<dyn Proof>> {
        let proof = Kept { sim: self.clone(), kept: kept.to_vec() };
        proof.holds().then(|| Arc::new(proof) as Arc<dyn Proof>)
    }

    fn part(&self, path: &Path) -> Result<Option<PartState>, Fault> {
        Ok(self.world().part(path))
    }

    fn part_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault> {
        // Here nobody holds one, and no time passes.
        Ok(for_at_least.is_zero() && self.world().parts.contains_key(path))
    }

    fn layers(&self, device: &DeviceRef) -> Result<Option<LayersView>, Fault> {
        let DeviceRef::Image { image, .. } = device else { return Ok(None) };
        let world = self.world();
        let Some(mut next) = world.below.get(image).copied() else { return Ok(None) };
        let mut below = Vec::new();
        while let Some(id) = next {
            below.push(LayerView { id, bytes: Bytes::mib(2) });
            next = world.below[&PathBuf::from(id.to_string())];
        }
        Ok(Some(LayersView { own_bytes: Bytes::mib(1), below }))
    }

    fn layer_tree(&self, _directory: &Path) -> Result<LayerTree, Fault> {
        Ok(self.world().layer_tree())
    }

    fn heat(&self, volume: Uuid) -> Result<Heat, Fault> {
        let mut heat = Heat { version: Heat::VERSION, counts: Vec::new() };
        // Who lends has borrowed.
        if self.world().siblings.contains_key(&volume) {
            heat.count(HeatSource::Sibling(volume), 4096);
        }
        Ok(heat)
    }

    fn accounting(&self, _device: &DeviceRef, _fs: FsKind, tenant: &Name) -> Accounting {
        Accounting::JournalThread { pid: 1, cgroup: slices::journal(tenant) }
    }

    fn weight_files(&self) -> Vec<&'static str> {
        vec!["io.weight"]
    }

    fn controllers(&self) -> BTreeSet<String> {
        let all = ["cpu", "io", "memory"].into_iter().filter(|name| *name != "cpu" || !self.world().lacks_cpu);
        all.map(str::to_owned).collect()
    }

    fn journal_at(&self, path: &Path) -> Result<JournalFacts, Fault> {
        let device = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        if !device.starts_with("sda") {
            return Err(Fault::new(Code::Unsupported, device, "it has no journal thread"));
        }
        let cgroup = self.world().adopted.get(&device).cloned().unwrap_or_default();
        Ok(JournalFacts { physical: vec!["sda".to_owned()], device, cgroup: cgroup.trim_start_matches('/').to_owned() })
    }

    fn moved_bytes(&self, cgroup: &str, _dev: DevNo) -> u64 {
        // A quarter is journal.
        let ms = u64::try_from(self.world().busy_for.as_millis()).unwrap_or(u64::MAX);
        if cgroup.contains("journal:") { ms } else { 3 * ms }
    }

    fn runs(&self, payload: &str) -> Vec<(u32, String)> {
        let run = |path: &String| Some((slices::run_of(path.strip_prefix(payload)?.strip_prefix('/')?)?, path.clone()));
        self.world().cgroups.keys().filter_map(run).collect()
    }

    fn start_run(&self, payload: &str, pid: u32, _command_pid: u32) -> Result<String, Fault> {
        let cgroup = format!("{payload}/{}", slices::run(pid, true));
        self.world().cgroups.entry(cgroup.clone()).or_default();
        Ok(cgroup)
    }

    fn processes(&self, _cgroup: &str) -> Vec<u32> {
        Vec::new()
    }

    fn kill_all(&self, _cgroup: &str) -> Result<(), Fault> {
        Ok(())
    }

    fn terminate(&self, _cgroup: &str) {}

    fn is_going_down(&self) -> bool {
        false
    }

    fn io_bytes(&self, _cgroup: &str) -> IoBytes {
        IoBytes::default()
    }

    fn containers(&self) -> Result<Vec<(String, Identity)>, Fault> {
        Ok(self.world().cgroups.keys().map(|path| (path.clone(), identify(path))).collect())
    }

    fn weight(&self, cgroup: &str, file: &str, _dev: DevNo) -> Result<Option<u32>, Fault> {
        let world = self.world();
        let weight = |files: &BTreeMap<String, String>| {
            let own = files.get(&format!("{file} sda")).map(String::as_str);
            own.map_or(100, |weight| weight.parse().unwrap())
        };
        Ok(world.cgroups.get(cgroup).map(weight))
    }

    fn tunable(&self, _dev: DevNo, tunable: &str) -> Option<String> {
        let world = self.world();
        let default = match tunable {
            "low_latency" => "1",
            "strict_guarantees" => "0",
            "slice_idle" => "8",
            _ => return None,
        };
        (world.queue.get("scheduler")? == "bfq")
            .then(|| world.queue.get(tunable).map_or_else(|| default.to_owned(), Clone::clone))
    }

    fn io_max(&self, cgroup: &str, _dev: DevNo) -> Result<Option<IoMax>, Fault> {
        let limit = |files: &BTreeMap<String, String>| {
            let line = files.get("io.max sda").map_or("", String::as_str);
            let of = |key: &str| line.split(' ').find_map(|word| word.strip_prefix(key)?.parse().ok());
            let limit = |direction: char, unit: &str| of(&format!("{direction}{unit}="));
            let [bytes, ops] =
                ["bps", "iops"].map(|unit| RateLimit { read: limit('r', unit), write: limit('w', unit) });
            IoMax { ops, bytes: Some(bytes) }
        };
        Ok(self.world().cgroups.get(cgroup).map(limit))
    }

    fn operations(&self, _cgroup: &str, _dev: DevNo) -> u64 {
        // One in a millisecond.
        u64::try_from(self.world().busy_for.as_millis()).unwrap_or(u64::MAX)
    }

    fn io_waited(&self, _cgroup: &str) -> Option<Duration> {
        Some(self.world().busy_for)
    }

    fn device_busy(&self, _device: &str) -> Result<Duration, Fault> {
        let mut world = self.world();
        world.busy_for += Duration::from_secs(1);
        Ok(world.busy_for)
    }

    fn cost_used(&self, _dev: DevNo) -> Duration {
        Duration::ZERO
    }

    fn start_time(&self, pid: u32) -> Option<u64> {
        self.world().processes.get(&pid).copied()
    }
}
