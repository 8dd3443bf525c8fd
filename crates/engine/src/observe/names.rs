//! Names of cgroups and file systems, and which of them are gone.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::identity::{ContainerKind, Identity, identify, printable};
use bulkhead_core::observe::activity::REMOVED;
use bulkhead_core::observe::blame::ROOT;
use bulkhead_core::observe::limits::finding;
use bulkhead_core::observe::naming::{FileSystemFacts, Names, unnamed};
use bulkhead_core::observe::record::{Batch, CgroupId, Record};
use bulkhead_core::observe::shares::{Tree, Weights};
use bulkhead_core::slices;
use bulkhead_core::units::DevNo;
use bulkhead_formats::servers;
use bulkhead_sys::bpf::xfs;
use bulkhead_sys::mount::MountInfo;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup, jbd2, mount};

use super::runtimes::RuntimeNames;

/// How long a removed container keeps an entry of its own.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Maximum number of such entries.
const MAX_GONE: usize = 1000;
/// How many mount points a finding names.
const MAX_NAMED: usize = 3;
/// The number under which the sums of evicted containers are kept. No cgroup has it.
const FORGOTTEN: CgroupId = CgroupId(u64::MAX);

/// Resolves names.
#[derive(Debug)]
pub(super) struct Namer {
    roots: Roots,
    cgroups: HashMap<CgroupId, Known>,
    runtimes: RuntimeNames,
    file_systems: HashMap<DevNo, (FileSystemFacts, Vec<DevNo>)>,
    devices: HashMap<DevNo, String>,
}

#[derive(Debug)]
struct Known {
    identity: Identity,
    /// Whether it is that of a tenant's block server.
    is_server: bool,
    gone_since: Option<Instant>,
}

impl Known {
    fn at(path: &str) -> Self {
        Self { identity: identify(path), is_server: slices::is_of_server(path), gone_since: None }
    }
}

/// The changes that a look-up found.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Cgroups that are gone.
    pub(super) gone: HashSet<CgroupId>,
    /// Numbers whose sums move to another number.
    pub(super) fold: Vec<(CgroupId, CgroupId)>,
    /// Paths and weights of the cgroups that occur in the sums; `None` if they could not be listed.
    pub(super) tree: Option<Tree>,
    /// Devices that hold a journal.
    pub(super) journals: Vec<DevNo>,
    /// XFS file systems.
    pub(super) xfs: Vec<DevNo>,
    /// What cannot be observed on this host, and failed look-ups.
    pub(super) findings: Vec<Finding>,
    /// Physical devices by file system.
    pub(super) disks: HashMap<DevNo, Vec<DevNo>>,
}

/// All cgroups, with their identities.
pub(crate) fn containers(roots: &Roots) -> std::io::Result<Vec<(CgroupPath, Identity)>> {
    let mut namer = Namer::new(roots.clone());
    let all = cgroup::all_ids(roots)?;
    namer.cgroups = all.iter().map(|(id, path)| (*id, Known::at(path))).collect();
    namer.name_containers(Instant::now());
    let identity = |id: &CgroupId| Some(namer.cgroups.get(id)?.identity.clone());
    Ok(all.iter().filter_map(|(id, path)| Some((path.parse().ok()?, identity(id)?))).collect())
}

impl Namer {
    pub(super) fn new(roots: Roots) -> Self {
        let identity = Identity { kind: ContainerKind::Cgroup, name: REMOVED.to_owned(), id: None, pod_uid: None };
        let forgotten = Known { identity, is_server: false, gone_since: None };
        Self {
            roots,
            cgroups: HashMap::from([(FORGOTTEN, forgotten)]),
            runtimes: RuntimeNames::default(),
            file_systems: HashMap::new(),
            devices: HashMap::new(),
        }
    }

    /// Devices that hold a journal; of a file system with an external journal that is the journal's alone.
    fn journals(&self) -> Vec<DevNo> {
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
            Record::Log(write) => !self.file_systems.contains_key(&write.dev),
            Record::Dropped { .. } => false,
        };
        batch.records.iter().any(of_record) || cgroups.into_iter().any(|id| !self.cgroups.contains_key(&id))
    }

    pub(super) fn names(&self) -> Names {
        Names {
            cgroups: self.cgroups.iter().map(|(id, known)| (*id, known.identity.clone())).collect(),
            servers: self.cgroups.iter().filter(|(_, known)| known.is_server).map(|(id, _)| *id).collect(),
            file_systems: self.file_systems.iter().map(|(dev, (facts, _))| (*dev, facts.clone())).collect(),
            devices: self.devices.clone(),
        }
    }

    /// Reads the host. `devices` are file systems that the tracer has seen, wherever they may be mounted, and `cgroups` those
    /// that occur in the sums.
    pub(super) fn refresh(&mut self, devices: &[DevNo], cgroups: &HashSet<CgroupId>) -> Changes {
        let mut changes = Changes::default();
        self.refresh_cgroups(cgroups, &mut changes);
        changes.journals = self.journals();
        changes.xfs = xfs::file_systems(&self.roots);
        let mounts = mount::mountinfo(&self.roots).unwrap_or_else(|error| {
            changes.findings.push(unlisted("the mounts", &error));
            Vec::new()
        });
        changes.findings.extend(self.findings(&mounts));
        let others: Vec<DevNo> = changes.journals.iter().chain(&changes.xfs).chain(devices).copied().collect();
        changes.disks = self.refresh_file_systems(mounts, &others);
        // A device that is gone keeps its name, by which its sums are identified.
        self.devices.extend(block::names(&self.roots));
        changes
    }

    /// What cannot be observed on this host.
    fn findings(&self, mounts: &[MountInfo]) -> Vec<Finding> {
        let is_v1 = cgroup::controllers(&self.roots).is_ok_and(|controllers| !controllers.contains("io"));
        let v1 = "cgroup v2 has no io controller on this host (cgroup v1 has blkio): data, device time, and who waited for whose \
                  requests are not known";
        let without_journal = |mount: &&MountInfo| {
            let name = block::name_of(&self.roots, mount.dev).ok().filter(|_| mount.fs_type == "ext4");
            name.is_some_and(|name| jbd2::is_without_journal(&self.roots, &name))
        };
        let btrfs = where_mounted(
            "btrfs: not attributed (copy-on-write log trees are not journal commits)",
            mounts.iter().filter(|mount| mount.fs_type == "btrfs"),
        );
        let ext4 =
            where_mounted("ext4 without a journal: nothing is attributed", mounts.iter().filter(without_journal));
        let findings = [
            is_v1.then(|| finding(FindingId::IoControllerMissing, v1)),
            btrfs.map(|evidence| finding(FindingId::BtrfsNotObserved, evidence)),
            ext4.map(|evidence| finding(FindingId::Ext4WithoutJournal, evidence)),
        ];
        findings.into_iter().flatten().collect()
    }

    fn refresh_cgroups(&mut self, seen: &HashSet<CgroupId>, changes: &mut Changes) {
        let all = match cgroup::all_ids(&self.roots) {
            Ok(all) => all,
            Err(error) => return changes.findings.push(unlisted("the cgroups", &error)),
        };
        let now = Instant::now();
        let present: HashMap<CgroupId, String> = all.into_iter().collect();
        for (id, known) in &mut self.cgroups {
            if *id != FORGOTTEN && !present.contains_key(id) {
                known.gone_since.get_or_insert(now);
            }
        }
        for (id, path) in &present {
            self.cgroups.entry(*id).or_insert_with(|| Known::at(path));
        }
        self.name_containers(now);
        changes.tree = Some(self.tree(seen, &present));
        let living = present.keys().filter_map(|id| Some((self.cgroups.get(id)?.identity.clone(), *id)));
        let living: HashMap<Identity, CgroupId> = living.collect();
        // A cgroup that was gone before it could be named.
        for id in seen {
            self.cgroups.entry(*id).or_insert_with(|| Known {
                identity: unnamed(*id),
                is_server: false,
                gone_since: Some(now),
            });
        }
        let mut gone: Vec<(Instant, CgroupId)> =
            self.cgroups.iter().filter_map(|(id, known)| Some((known.gone_since?, *id))).collect();
        gone.sort();
        let too_many = gone.len().saturating_sub(MAX_GONE);
        for (at, (since, id)) in gone.into_iter().enumerate() {
            changes.gone.insert(id);
            // A unit that was started again, or a container with several cgroups, keeps all its sums.
            let successor = self.cgroups.get(&id).and_then(|known| living.get(&known.identity)).copied();
            let is_old = at < too_many || now - since >= REMEMBERED;
            if let Some(into) = successor.or(is_old.then_some(FORGOTTEN))
                && seen.contains(&id)
            {
                changes.fold.push((id, into));
            }
            if is_old {
                self.cgroups.remove(&id);
            }
        }
    }

    /// Cgroups that occur in the sums, and their ancestors, with their weights.
    fn tree(&self, seen: &HashSet<CgroupId>, present: &HashMap<CgroupId, String>) -> Tree {
        let by_path: HashMap<&str, CgroupId> = present.iter().map(|(id, path)| (path.as_str(), *id)).collect();
        let mut tree = Tree::default();
        let mut entered: HashSet<&str> = HashSet::new();
        for path in seen.iter().filter_map(|id| present.get(id)) {
            let mut at = path.as_str();
            while let Some((above, _)) = at.rsplit_once('/').filter(|_| at != "/")
                && entered.insert(at)
            {
                let parent = if above.is_empty() { Some(ROOT) } else { by_path.get(above).copied() };
                let (Some(id), Some(parent)) = (by_path.get(at), parent) else { break };
                let weights = cgroup::io_weights(&self.roots, at).and_then(|text| Weights::parse(&text));
                tree.insert(*id, parent, weights);
                at = above;
            }
        }
        tree
    }

    /// Sets containers' names from their runtimes. Removed containers, which have no files any more, keep their names.
    fn name_containers(&mut self, now: Instant) {
        let living = self.cgroups.values().filter(|known| known.gone_since.is_none() && known.identity.id.is_some());
        let living: HashSet<Identity> = living.map(|known| known.identity.clone()).collect();
        self.runtimes.refresh(&self.roots, &living, now);
        for known in self.cgroups.values_mut() {
            if let Some(name) = self.runtimes.name(&known.identity) {
                name.clone_into(&mut known.identity.name);
            }
        }
    }

    /// Returns the physical devices of the existing file systems. Others keep their names, by which their sums are identified.
    fn refresh_file_systems(&mut self, mounts: Vec<MountInfo>, others: &[DevNo]) -> HashMap<DevNo, Vec<DevNo>> {
        let is_ours = |mount: &MountInfo| ["ext4", "xfs"].contains(&mount.fs_type.as_str());
        let ours: Vec<_> = mounts.into_iter().filter(is_ours).collect();
        let devices: BTreeSet<DevNo> = ours.iter().map(|mount| mount.dev).chain(others.iter().copied()).collect();
        let mut present = HashMap::new();
        for dev in devices {
            // The file system disappears with its device.
            let Ok(device) = block::name_of(&self.roots, dev) else { continue };
            // The whole file system if possible, not a directory of it that is mounted elsewhere; then the shortest path.
            let mounted = ours.iter().filter(|mount| mount.dev == dev);
            let best =
                mounted.min_by_key(|mount| (mount.root.components().count(), mount.mount_point.as_os_str().len()));
            let mount_point = best.map(|mount| printable(&mount.mount_point.to_string_lossy()));
            let known = self
                .file_systems
                .get(&dev)
                .filter(|(facts, _)| facts.device == device && facts.mount_point == mount_point);
            let entry = known.cloned().unwrap_or_else(|| {
                let disks = self.disks_of(dev);
                let names = disks.iter().filter_map(|disk| block::name_of(&self.roots, *disk).ok()).collect();
                (FileSystemFacts { device, mount_point, disks: names }, disks)
            });
            present.insert(dev, entry.1.clone());
            self.file_systems.insert(dev, entry);
        }
        present
    }

    /// The devices at the bottom of the stack. One without named devices below it (a loop device over memory) is its own bottom.
    fn disks_of(&self, dev: DevNo) -> Vec<DevNo> {
        match servers::stack(&self.roots, dev) {
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

/// A failed listing, because of which names or devices are missing.
fn unlisted(what: &str, error: &dyn std::error::Error) -> Finding {
    finding(FindingId::LookupFailed, format!("{what} cannot be listed ({error})"))
}

/// A finding with the mount points of such file systems, if they are mounted. Several subvolumes of one are several mounts.
fn where_mounted<'a>(what: &str, mounts: impl Iterator<Item = &'a MountInfo>) -> Option<String> {
    let points: Vec<String> = mounts.map(|mount| printable(&mount.mount_point.to_string_lossy())).collect();
    let named = points.get(..MAX_NAMED).unwrap_or(&points).join(", ");
    let more = match points.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    (!points.is_empty()).then(|| format!("{what}: {named}{more}"))
}

#[cfg(test)]
mod tests;
