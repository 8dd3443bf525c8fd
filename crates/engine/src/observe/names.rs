//! Names of cgroups and file systems, and which of them are gone.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bulkhead_core::observe::identity::{ContainerKind, Identity, identify};
use bulkhead_core::observe::record::{Batch, CgroupId, Record};
use bulkhead_core::observe::view::{FileSystemFacts, Names};
use bulkhead_core::units::DevNo;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup, jbd2, mount};

/// How long a container that is gone keeps a line of its own.
const REMEMBERED: Duration = Duration::from_secs(600);
/// And how many of them do at most.
const MAX_GONE: usize = 1000;
/// Under this number the sums of those are kept that are forgotten. No cgroup has it.
const FORGOTTEN: CgroupId = CgroupId(u64::MAX);

/// Looks names up.
#[derive(Debug)]
pub(super) struct Namer {
    roots: Roots,
    cgroups: HashMap<CgroupId, Known>,
    file_systems: HashMap<DevNo, (FileSystemFacts, Vec<DevNo>)>,
    devices: HashMap<DevNo, String>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    gone_since: Option<Instant>,
}

/// What a look at the host changed.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Cgroups that are gone now.
    pub(super) gone: Vec<CgroupId>,
    /// Whose sums are to be kept under which other number.
    pub(super) fold: Vec<(CgroupId, CgroupId)>,
    /// Physical devices by file system.
    pub(super) disks: HashMap<DevNo, Vec<DevNo>>,
}

impl Namer {
    pub(super) fn new(roots: Roots) -> Self {
        let identity =
            Identity { kind: ContainerKind::Cgroup, name: "(removed containers)".to_owned(), id: None, pod_uid: None };
        let forgotten = Known { identity, gone_since: None };
        Self {
            roots,
            cgroups: HashMap::from([(FORGOTTEN, forgotten)]),
            file_systems: HashMap::new(),
            devices: HashMap::new(),
        }
    }

    /// Devices that hold a journal; of a file system with an external journal that is the journal's alone.
    pub(super) fn journals(&self) -> Vec<DevNo> {
        let names = jbd2::journal_devices(&self.roots);
        names.iter().filter_map(|name| block::devno_of_name(&self.roots, name)).collect()
    }

    /// Whether a cgroup or file system occurs that has no name yet.
    pub(super) fn has_unknown(&self, batch: &Batch) -> bool {
        let cgroups = batch.shares.iter().filter_map(|(key, _)| key.cgroup);
        let of_record = |record: &Record| match record {
            Record::Sync(sync) => {
                !self.cgroups.contains_key(&sync.cgroup) || !self.file_systems.contains_key(&sync.dev)
            }
            Record::Commit(commit) => !self.file_systems.contains_key(&commit.dev),
            Record::Dropped { .. } => false,
        };
        batch.records.iter().any(of_record) || cgroups.into_iter().any(|id| !self.cgroups.contains_key(&id))
    }

    pub(super) fn names(&self) -> Names {
        Names {
            cgroups: self.cgroups.iter().map(|(id, known)| (*id, known.identity.clone())).collect(),
            file_systems: self.file_systems.iter().map(|(dev, (facts, _))| (*dev, facts.clone())).collect(),
            devices: self.devices.clone(),
        }
    }

    /// Looks at the host. `seen` are file systems that the tracer has met, wherever they may be mounted.
    pub(super) fn refresh(&mut self, seen: &[DevNo]) -> Changes {
        let mut changes = Changes::default();
        self.refresh_cgroups(&mut changes);
        self.refresh_file_systems(seen);
        self.devices = block::names(&self.roots);
        changes.disks = self.file_systems.iter().map(|(dev, (_, disks))| (*dev, disks.clone())).collect();
        changes
    }

    fn refresh_cgroups(&mut self, changes: &mut Changes) {
        let all = match cgroup::all_ids(&self.roots) {
            Ok(all) => all,
            Err(error) => return tracing::warn!(%error, "the cgroups cannot be listed"),
        };
        let now = Instant::now();
        let present: HashMap<CgroupId, String> = all.into_iter().collect();
        for (id, known) in &mut self.cgroups {
            if *id != FORGOTTEN && known.gone_since.is_none() && !present.contains_key(id) {
                known.gone_since = Some(now);
                changes.gone.push(*id);
            }
        }
        for (id, path) in present {
            self.cgroups.entry(id).or_insert_with(|| Known { identity: identify(&path), gone_since: None });
        }
        let mut gone: Vec<(Instant, CgroupId)> =
            self.cgroups.iter().filter_map(|(id, known)| Some((known.gone_since?, *id))).collect();
        gone.sort();
        let too_many = gone.len().saturating_sub(MAX_GONE);
        for (at, (since, id)) in gone.into_iter().enumerate() {
            if at < too_many || now - since >= REMEMBERED {
                self.cgroups.remove(&id);
                changes.fold.push((id, FORGOTTEN));
            }
        }
    }

    fn refresh_file_systems(&mut self, seen: &[DevNo]) {
        let mounts = mount::mountinfo(&self.roots).unwrap_or_else(|error| {
            tracing::warn!(%error, "the mounts cannot be listed");
            Vec::new()
        });
        let ext4: Vec<_> = mounts.into_iter().filter(|mount| mount.fs_type == "ext4").collect();
        let elsewhere = jbd2::journal_devices(&self.roots);
        let elsewhere = elsewhere.iter().filter_map(|name| block::devno_of_name(&self.roots, name));
        let devices: BTreeSet<DevNo> =
            ext4.iter().map(|mount| mount.dev).chain(elsewhere).chain(seen.iter().copied()).collect();
        let before = std::mem::take(&mut self.file_systems);
        for dev in devices {
            // A device that is gone takes its file system along.
            let Ok(device) = block::name_of(&self.roots, dev) else { continue };
            // The whole file system if possible, not a directory of it that is mounted elsewhere; then the shortest path.
            let mounted = ext4.iter().filter(|mount| mount.dev == dev);
            let best =
                mounted.min_by_key(|mount| (mount.root.components().count(), mount.mount_point.as_os_str().len()));
            let mount_point = best.map(|mount| mount.mount_point.clone());
            let known =
                before.get(&dev).filter(|(facts, _)| facts.device == device && facts.mount_point == mount_point);
            let entry = known.cloned().unwrap_or_else(|| {
                let disks = self.disks_of(dev);
                let names = disks.iter().filter_map(|disk| block::name_of(&self.roots, *disk).ok()).collect();
                (FileSystemFacts { device, mount_point, disks: names }, disks)
            });
            self.file_systems.insert(dev, entry);
        }
    }

    /// The devices at the bottom. One that lies on nothing that can be named (a loop device over memory) is its own bottom.
    fn disks_of(&self, dev: DevNo) -> Vec<DevNo> {
        match block::stack(&self.roots, dev) {
            Ok(stack) => {
                stack.physical.into_iter().chain(stack.dead_ends.into_iter().map(|dead_end| dead_end.dev)).collect()
            }
            Err(error) => {
                tracing::debug!(%dev, %error, "its physical devices are not known");
                vec![dev]
            }
        }
    }
}
