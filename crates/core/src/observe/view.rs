//! What was observed, as the API, the command line and the metrics show it: sums per container, not per cgroup.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Totals;
use super::blame::Cause;
use super::histogram::Histogram;
use super::limits;
use super::record::{CgroupId, Commit, Kind, ServiceClass, Tid};
use super::waits::{Longest, Part, Wait};
use crate::finding::Finding;
use crate::identity::{ContainerKind, Identity};
use crate::units::{DevNo, seconds};
use crate::wire::{HoldView, StandingView};

/// What the sums of containers are called that are gone for long.
pub const REMOVED: &str = "(removed containers)";

/// Whether this is the line for containers that are gone for long. It takes up the sums of each of them at once, so that its
/// differences are not what was done meanwhile. No container is called so: a cgroup without a better name is called by its path.
#[must_use]
pub fn is_removed(identity: &Identity) -> bool {
    identity.kind == ContainerKind::Cgroup && identity.name == REMOVED
}

/// Journal bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JournalBytes {
    /// Blocks of the journal.
    pub commit_bytes: u64,
    /// File data that the journal thread wrote inside commits.
    pub ordered_bytes: u64,
    /// Metadata written to its place in the file system.
    pub checkpoint_bytes: u64,
    /// Fast-commit blocks.
    pub fast_commit_bytes: u64,
}

impl JournalBytes {
    /// Those of one kind.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Commit => self.commit_bytes,
            Kind::Ordered => self.ordered_bytes,
            Kind::Checkpoint => self.checkpoint_bytes,
            Kind::FastCommit => self.fast_commit_bytes,
        }
    }

    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.of(*kind)).sum()
    }

    fn at(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Commit => &mut self.commit_bytes,
            Kind::Ordered => &mut self.ordered_bytes,
            Kind::Checkpoint => &mut self.checkpoint_bytes,
            Kind::FastCommit => &mut self.fast_commit_bytes,
        }
    }

    fn since(mut self, before: &Self) -> Self {
        for kind in Kind::ALL {
            *self.at(kind) = self.of(kind).saturating_sub(before.of(kind));
        }
        self
    }
}

/// Journal bytes that a container caused on one file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileSystemShare {
    /// The file system's device, as in [`FileSystemView`].
    #[schema(value_type = String)]
    pub device: String,
    /// What it caused there.
    #[serde(flatten)]
    pub journal: JournalBytes,
    /// Journal bytes that its own threads wrote there, whoever caused them: the kernel has charged it for those already.
    #[serde(default)]
    pub native_bytes: u64,
}

/// What a container has of a device, and is meant to have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceShare {
    /// The device's kernel name.
    pub device: String,
    /// Device time that its requests took.
    pub seconds: f64,
    /// Bytes that the device read for it, as the kernel charged them.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes that it wrote.
    #[serde(default)]
    pub written_bytes: u64,
    /// Device time that it would have had by the weights of those that were active with it, counted 5 times a second; `None`
    /// where its weight cannot be read, or none applies (the root cgroup).
    pub target_seconds: Option<f64>,
    /// Its part of the device time of all containers (0 to 1).
    pub achieved_share: f64,
    /// The part of that time that it is meant to have.
    pub target_share: Option<f64>,
}

/// One container, tenant, unit or other cgroup that did something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContainerView {
    /// Who it is.
    #[serde(flatten)]
    pub identity: Identity,
    /// Journal bytes that it caused, whoever wrote them.
    pub journal: Vec<FileSystemShare>,
    /// Bytes that devices read for it, as the kernel charged them.
    pub read_bytes: u64,
    /// Bytes that devices wrote for it, as the kernel charged them: without the journal writes of threads in other cgroups.
    pub written_bytes: u64,
    /// Device time that its requests took.
    pub device_seconds: f64,
    /// The same by device, with the share that it is meant to have.
    #[serde(default)]
    pub devices: Vec<DeviceShare>,
    /// Its calls of fsync, fdatasync, and `O_SYNC` writes.
    pub fsync: Histogram,
}

/// A file system that is observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileSystemView {
    /// Name of its device, for example `dm-3`.
    pub device: String,
    /// Where it is mounted; `None` when it is not mounted in the daemon's mount namespace.
    pub mount_point: Option<String>,
    /// Names of the physical devices below it.
    pub disks: Vec<String>,
    /// Commits.
    pub commits: u64,
    /// All its journal bytes, as the block layer saw them.
    pub journal: JournalBytes,
    /// The part of them that nobody can be named for.
    pub unattributed: JournalBytes,
    /// Bytes of the journal that are not in those yet: of commits that ended just now, and of its superblock, which is charged with
    /// the next commit.
    pub pending_bytes: u64,
}

/// A device whose requests were observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeviceTime {
    /// Its kernel name, for example `sda`; its number when that is not known.
    pub device: String,
    /// Time that it was busy with file data.
    pub data_seconds: f64,
    /// With metadata: the journal and checkpoints.
    pub metadata_seconds: f64,
    /// With flushes of its cache.
    pub flush_seconds: f64,
}

/// How long one container waited in fsync because of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BlameView {
    /// Who waited.
    pub victim: Identity,
    /// Because of whom (of itself, too); `None` for time that nobody can be named for.
    pub culprit: Option<Identity>,
    /// How long.
    pub seconds: f64,
}

/// By what somebody makes others wait, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CausesView {
    /// All of it.
    pub seconds: f64,
    /// Blocks in the journal: device time for them and other metadata, and the commit's own for handles and requests.
    pub journal_seconds: f64,
    /// File data that had to be written inside the commit.
    pub ordered_seconds: f64,
    /// Other requests for file data that the device served meanwhile.
    pub queue_seconds: f64,
    /// Bytes in the device's cache when it was flushed.
    pub flush_seconds: f64,
    /// Bytes of journal that it is charged in the commits that were waited for.
    pub journal_bytes: u64,
    /// Bytes of its file data in them.
    pub ordered_bytes: u64,
}

/// A container that made another one wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CulpritView {
    /// Who it is, the one that waited as well; `None` for what nobody can be named for.
    pub culprit: Option<Identity>,
    /// How it made it wait.
    #[serde(flatten)]
    pub causes: CausesView,
}

/// A commit that somebody waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitView {
    /// Number of the transaction.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// Who forced it; `None` if the timer did, or if that was not seen.
    pub requester: Option<Identity>,
    /// How long the transaction waited for its handles to end; `None` if that was not seen, like the next two.
    pub locked_seconds: Option<f64>,
    /// How long file data was sent to the device.
    pub flushing_seconds: Option<f64>,
    /// How long metadata was written to the journal, until all of it was on the device.
    pub logging_seconds: Option<f64>,
    /// All of it.
    pub seconds: f64,
    /// What was written to the journal.
    pub journal_bytes: u64,
    /// File data that was written inside it.
    pub ordered_bytes: u64,
}

/// One wait in fsync, fdatasync or an `O_SYNC` write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitView {
    /// Who waited.
    pub victim: Identity,
    /// The file system's device, as in [`FileSystemView`].
    pub device: String,
    /// Where that is mounted; `None` when it is not mounted in the daemon's mount namespace.
    pub mount_point: Option<String>,
    /// How long ago it began.
    pub began_seconds_ago: f64,
    /// How long it took.
    pub seconds: f64,
    /// The part of it in which the device was busy.
    pub device_seconds: f64,
    /// The part that the commits account for while the device was idle; what is left nothing explains.
    pub commit_seconds: f64,
    /// Number of the transaction that it needed: the last one that changed the file.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// The last of the commits that it waited for, oldest first. None where the transaction was committed before, or the
    /// fsync was served by a fast commit.
    pub commits: Vec<CommitView>,
    /// How many it waited for.
    pub n_commits: usize,
    /// Who made it wait, the largest part first.
    pub culprits: Vec<CulpritView>,
    /// How many others had a part.
    pub n_others: usize,
    /// Theirs together.
    pub others: CausesView,
}

/// The longest waits, at most 64, and at most 16 of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitList {
    /// The longest first.
    pub waits: Vec<WaitView>,
    /// How many others there were in this time, in steps of 10 s.
    pub left_out: u64,
    /// The longest of those.
    pub left_out_seconds: f64,
}

impl BlameView {
    /// Whom it is about.
    fn pair(&self) -> ((ContainerKind, &str), Option<(ContainerKind, &str)>) {
        (self.victim.key(), self.culprit.as_ref().map(Identity::key))
    }
}

/// What the tracer had no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LossView {
    /// Commits and fsyncs that are missing.
    pub records: u64,
    /// Counts of blocks that are kept as unattributed.
    pub owners: u64,
    /// Counts of blocks and writes that are missing.
    pub counts: u64,
    /// Requests to devices that are missing.
    pub requests: u64,
    /// Transactions whose commit was not seen.
    pub unseen_commits: u64,
}

/// Sums since the observation began. The difference of two observations ([`Observation::since`]) is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Observation {
    /// How long was observed.
    pub observed_seconds: f64,
    /// The way of tracing that is in force.
    pub method: String,
    /// Why it is not a better one, and what else limits the figures; not what was lost ([`Observation::limits`]).
    pub findings: Vec<Finding>,
    /// Whether something was lost, so that the figures are too small.
    pub partial: bool,
    /// What was lost.
    pub losses: LossView,
    /// Entries in the tables of the programs at the last look; it follows what goes on, and must not only grow.
    pub table_entries: u64,
    /// Who did something, by name.
    pub containers: Vec<ContainerView>,
    /// The devices that did something.
    pub devices: Vec<DeviceTime>,
    /// The file systems that are observed.
    pub file_systems: Vec<FileSystemView>,
    /// Who waited for whom.
    pub blame: Vec<BlameView>,
    /// The longest waits, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitList>,
    /// Shares that the daemon holds, and where they stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldView>,
}

/// What is known about a file system apart from its figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSystemFacts {
    /// Name of its device.
    pub device: String,
    /// Where it is mounted, printable.
    pub mount_point: Option<String>,
    /// Names of the physical devices below it.
    pub disks: Vec<String>,
}

/// Names for the numbers in [`Totals`].
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Whose cgroup it is.
    pub cgroups: HashMap<CgroupId, Identity>,
    /// Which file system it is.
    pub file_systems: HashMap<DevNo, FileSystemFacts>,
    /// Kernel names of devices.
    pub devices: HashMap<DevNo, String>,
}

/// What a cgroup is called that was gone before it could be named.
#[must_use]
pub fn unnamed(id: CgroupId) -> Identity {
    Identity { kind: ContainerKind::Cgroup, name: format!("cgroup {} (gone)", id.0), id: None, pod_uid: None }
}

impl Names {
    fn cgroup(&self, id: CgroupId) -> Identity {
        self.cgroups.get(&id).cloned().unwrap_or_else(|| unnamed(id))
    }

    fn device(&self, dev: DevNo) -> String {
        self.devices.get(&dev).cloned().unwrap_or_else(|| dev.to_string())
    }

    fn file_system(&self, dev: DevNo) -> FileSystemFacts {
        self.file_systems
            .get(&dev)
            .cloned()
            .unwrap_or_else(|| FileSystemFacts { device: dev.to_string(), ..FileSystemFacts::default() })
    }
}

/// Puts names to sums. `pending` are the bytes of each journal that wait for a commit to be charged.
#[must_use]
pub fn observation(totals: &Totals, pending: impl Iterator<Item = (DevNo, u64)>, names: &Names) -> Observation {
    let mut containers: BTreeMap<Identity, ContainerView> = BTreeMap::new();
    let mut file_systems: BTreeMap<String, FileSystemView> = BTreeMap::new();
    let mut container = |identity: Identity, change: &mut dyn FnMut(&mut ContainerView)| {
        let new = ContainerView {
            identity: identity.clone(),
            journal: Vec::new(),
            read_bytes: 0,
            written_bytes: 0,
            device_seconds: 0.0,
            devices: Vec::new(),
            fsync: Histogram::default(),
        };
        change(containers.entry(identity).or_insert(new));
    };
    for (dev, commits) in &totals.commits {
        file_system(&mut file_systems, names.file_system(*dev)).commits += commits;
    }
    for (dev, bytes) in pending.filter(|(_, bytes)| *bytes > 0) {
        file_system(&mut file_systems, names.file_system(dev)).pending_bytes += bytes;
    }
    for (&(owner, dev, kind), bytes) in &totals.journal_bytes {
        let facts = names.file_system(dev);
        let device = facts.device.clone();
        let view = file_system(&mut file_systems, facts);
        *view.journal.at(kind) += bytes;
        let Some(owner) = owner else {
            *view.unattributed.at(kind) += bytes;
            continue;
        };
        container(names.cgroup(owner), &mut |view| *view.file_system(&device).journal.at(kind) += bytes);
    }
    for (&(writer, dev), bytes) in &totals.native_bytes {
        let device = names.file_system(dev).device;
        container(names.cgroup(writer), &mut |view| view.file_system(&device).native_bytes += bytes);
    }
    for (&(owner, dev), service) in &totals.service {
        // Flushes have no owner; their device time shows in the blame.
        let Some(owner) = owner else { continue };
        container(names.cgroup(owner), &mut |view| {
            view.read_bytes += service.read_bytes;
            view.written_bytes += service.written_bytes;
            view.device_seconds += seconds(service.busy_ns);
            let device = view.device(names.device(dev));
            device.seconds += seconds(service.busy_ns);
            device.read_bytes += service.read_bytes;
            device.written_bytes += service.written_bytes;
        });
    }
    for (&(owner, dev), &ns) in &totals.target_ns {
        container(names.cgroup(owner), &mut |view| {
            *view.device(names.device(dev)).target_seconds.get_or_insert_default() += seconds(ns);
        });
    }
    for (&cgroup, histogram) in &totals.syncs {
        container(names.cgroup(cgroup), &mut |view| view.fsync.merge(histogram));
    }
    let mut containers: Vec<ContainerView> = containers.into_values().collect();
    work_out_shares(&mut containers);
    let losses = limits::losses(totals);
    Observation {
        partial: losses.any(),
        losses,
        containers,
        devices: devices(totals, names),
        file_systems: file_systems.into_values().collect(),
        blame: blame(totals, names),
        ..Observation::default()
    }
}

fn file_system(views: &mut BTreeMap<String, FileSystemView>, facts: FileSystemFacts) -> &mut FileSystemView {
    views.entry(facts.device.clone()).or_insert_with(|| FileSystemView {
        device: facts.device,
        mount_point: facts.mount_point,
        disks: facts.disks,
        commits: 0,
        journal: JournalBytes::default(),
        unattributed: JournalBytes::default(),
        pending_bytes: 0,
    })
}

fn devices(totals: &Totals, names: &Names) -> Vec<DeviceTime> {
    // By name: a device that was taken out and put in again may have another number than before.
    let mut views: BTreeMap<String, DeviceTime> = BTreeMap::new();
    for (&(dev, class), &ns) in &totals.device_ns {
        let name = names.device(dev);
        let view = views.entry(name.clone()).or_insert_with(|| DeviceTime {
            device: name,
            data_seconds: 0.0,
            metadata_seconds: 0.0,
            flush_seconds: 0.0,
        });
        *match class {
            ServiceClass::Data => &mut view.data_seconds,
            ServiceClass::Meta => &mut view.metadata_seconds,
            ServiceClass::Flush => &mut view.flush_seconds,
        } += seconds(ns);
    }
    views.into_values().collect()
}

fn blame(totals: &Totals, names: &Names) -> Vec<BlameView> {
    let mut sums: BTreeMap<(Identity, Option<Identity>), u64> = BTreeMap::new();
    for (&(victim, culprit), ns) in &totals.blame_ns {
        *sums.entry((names.cgroup(victim), culprit.map(|culprit| names.cgroup(culprit)))).or_default() += ns;
    }
    sums.into_iter().map(|((victim, culprit), ns)| BlameView { victim, culprit, seconds: seconds(ns) }).collect()
}

/// Puts names to waits. `now_ns` is the time of the question (monotonic).
#[must_use]
pub fn wait_list(longest: &Longest<'_>, now_ns: u64, names: &Names) -> WaitList {
    WaitList {
        waits: longest.waits.iter().map(|wait| wait_view(wait, now_ns, names)).collect(),
        left_out: longest.n_left_out,
        left_out_seconds: seconds(longest.left_out_ns),
    }
}

fn wait_view(wait: &Wait, now_ns: u64, names: &Names) -> WaitView {
    let facts = names.file_system(wait.sync.dev);
    // A container may have several cgroups.
    let mut culprits: Vec<(Option<Identity>, Part)> = Vec::new();
    for culprit in &wait.culprits {
        let identity = culprit.cgroup.map(|cgroup| names.cgroup(cgroup));
        match culprits.iter_mut().find(|(other, _)| *other == identity) {
            Some((_, part)) => part.add(&culprit.part),
            None => culprits.push((identity, culprit.part)),
        }
    }
    culprits.sort_by_key(|(_, part)| std::cmp::Reverse(part.total_ns()));
    let culprits = culprits.into_iter().map(|(culprit, part)| CulpritView { culprit, causes: causes(&part) });
    WaitView {
        victim: names.cgroup(wait.sync.cgroup),
        device: facts.device,
        mount_point: facts.mount_point,
        began_seconds_ago: seconds(now_ns.saturating_sub(wait.sync.start_ns)),
        seconds: seconds(wait.duration_ns()),
        device_seconds: seconds(wait.device_ns),
        commit_seconds: seconds(wait.commit_ns),
        tid: wait.sync.tid,
        commits: wait.commits.iter().map(|commit| commit_view(commit, names)).collect(),
        n_commits: wait.n_commits,
        culprits: culprits.collect(),
        n_others: wait.n_others,
        others: causes(&wait.others),
    }
}

fn commit_view(commit: &Commit, names: &Names) -> CommitView {
    let phase = |from_ns: u64, to_ns: u64| (from_ns > 0 && to_ns > 0).then(|| seconds(to_ns.saturating_sub(from_ns)));
    CommitView {
        tid: commit.tid,
        requester: commit.requester.map(|requester| names.cgroup(requester)),
        locked_seconds: phase(commit.start_ns, commit.flush_ns),
        flushing_seconds: phase(commit.flush_ns, commit.log_ns),
        logging_seconds: phase(commit.log_ns, commit.end_ns),
        seconds: seconds(commit.end_ns.saturating_sub(commit.start_ns)),
        journal_bytes: commit.journal_bytes,
        ordered_bytes: commit.ordered_bytes,
    }
}

fn causes(part: &Part) -> CausesView {
    let of = |cause: Cause| seconds(part.ns[cause as usize]);
    CausesView {
        seconds: seconds(part.total_ns()),
        journal_seconds: of(Cause::Journal),
        ordered_seconds: of(Cause::Ordered),
        queue_seconds: of(Cause::Queue),
        flush_seconds: of(Cause::Flush),
        journal_bytes: part.journal_bytes,
        ordered_bytes: part.ordered_bytes,
    }
}

impl Observation {
    /// Where a container stands on a device whose shares are held, if it is one of those.
    #[must_use]
    pub fn standing(&self, container: &Identity, device: &str) -> Option<&StandingView> {
        let view = self.holds.iter().find(|view| view.hold.device == device)?;
        let tenant = view.hold.tenants.iter().find(|tenant| tenant.identity == *container)?;
        view.standings.iter().find(|standing| standing.name == tenant.name)
    }

    /// What happened since an earlier observation of the same observer. Who did nothing is left out.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut new = self.clone();
        if self.observed_seconds < before.observed_seconds {
            // Another observer, which began after the earlier observation: all of it is new.
            return new;
        }
        new.containers.retain(|view| !is_removed(&view.identity));
        new.blame.retain(|view| !is_removed(&view.victim) && !view.culprit.as_ref().is_some_and(is_removed));
        new.observed_seconds -= before.observed_seconds;
        let old = by_key(&before.containers, |view| view.identity.key());
        for view in &mut new.containers {
            let Some(old) = old.get(&view.identity.key()) else { continue };
            let shares = by_key(&old.journal, |share| share.device.as_str());
            for share in &mut view.journal {
                if let Some(old) = shares.get(share.device.as_str()) {
                    share.journal = share.journal.since(&old.journal);
                    share.native_bytes = share.native_bytes.saturating_sub(old.native_bytes);
                }
            }
            view.journal.retain(|share| share.journal.total() + share.native_bytes > 0);
            view.read_bytes = view.read_bytes.saturating_sub(old.read_bytes);
            view.written_bytes = view.written_bytes.saturating_sub(old.written_bytes);
            view.device_seconds = (view.device_seconds - old.device_seconds).max(0.0);
            view.fsync = view.fsync.since(&old.fsync);
            let devices = by_key(&old.devices, |device| device.device.as_str());
            for device in &mut view.devices {
                let Some(old) = devices.get(device.device.as_str()) else { continue };
                device.seconds = (device.seconds - old.seconds).max(0.0);
                device.read_bytes = device.read_bytes.saturating_sub(old.read_bytes);
                device.written_bytes = device.written_bytes.saturating_sub(old.written_bytes);
                let before = old.target_seconds.unwrap_or(0.0);
                device.target_seconds = device.target_seconds.map(|target| (target - before).max(0.0));
            }
            view.devices.retain(|device| {
                let did_something = device.seconds > 0.0 || device.read_bytes + device.written_bytes > 0;
                did_something || device.target_seconds > Some(0.0)
            });
        }
        work_out_shares(&mut new.containers);
        new.containers.retain(ContainerView::did_something);
        let old = by_key(&before.file_systems, |view| view.device.as_str());
        for view in &mut new.file_systems {
            let Some(old) = old.get(view.device.as_str()) else { continue };
            view.commits = view.commits.saturating_sub(old.commits);
            view.journal = view.journal.since(&old.journal);
            view.unattributed = view.unattributed.since(&old.unattributed);
        }
        let old = by_key(&before.devices, |view| view.device.as_str());
        for view in &mut new.devices {
            let Some(old) = old.get(view.device.as_str()) else { continue };
            view.data_seconds -= old.data_seconds;
            view.metadata_seconds -= old.metadata_seconds;
            view.flush_seconds -= old.flush_seconds;
        }
        let old = by_key(&before.blame, BlameView::pair);
        for view in &mut new.blame {
            let seconds = old.get(&view.pair()).map_or(0.0, |old| old.seconds);
            view.seconds -= seconds;
        }
        // Less is rounding.
        new.blame.retain(|view| view.seconds > 1e-9);
        new
    }

    /// Who made a container wait most, apart from itself, and for how long; `None` when nobody did.
    #[must_use]
    pub fn top_culprit(&self, victim: &Identity) -> Option<(&Identity, f64)> {
        let others = self.blame.iter().filter(|view| view.victim == *victim && view.culprit.as_ref() != Some(victim));
        let named = others.filter_map(|view| Some((view.culprit.as_ref()?, view.seconds)));
        named.max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// Sets the shares of each device, which are parts of the time that it spent for all of these.
fn work_out_shares(containers: &mut [ContainerView]) {
    let mut sums: HashMap<String, f64> = HashMap::new();
    for device in containers.iter().flat_map(|view| &view.devices) {
        *sums.entry(device.device.clone()).or_default() += device.seconds;
    }
    for device in containers.iter_mut().flat_map(|view| &mut view.devices) {
        let sum = sums.get(&device.device).copied().unwrap_or(0.0);
        // Of nothing everybody has 0.
        let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        device.achieved_share = device.seconds * scale;
        device.target_share = device.target_seconds.map(|seconds| seconds * scale);
    }
}

/// Views by what tells them apart: there may be thousands of them.
fn by_key<'a, T, K: std::hash::Hash + Eq>(views: &'a [T], key: impl Fn(&'a T) -> K) -> HashMap<K, &'a T> {
    views.iter().map(|view| (key(view), view)).collect()
}

impl ContainerView {
    /// All journal bytes that it caused.
    #[must_use]
    pub fn journal_total(&self) -> JournalBytes {
        let mut total = JournalBytes::default();
        for share in &self.journal {
            for kind in Kind::ALL {
                *total.at(kind) += share.journal.of(kind);
            }
        }
        total
    }

    /// What it has of the device that spent most time for it.
    #[must_use]
    pub fn main_device(&self) -> Option<&DeviceShare> {
        self.devices.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    fn device(&mut self, name: String) -> &mut DeviceShare {
        let at = self.devices.iter().position(|share| share.device == name).unwrap_or_else(|| {
            self.devices.push(DeviceShare { device: name, ..DeviceShare::default() });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    fn file_system(&mut self, device: &str) -> &mut FileSystemShare {
        let at = self.journal.iter().position(|share| share.device == device).unwrap_or_else(|| {
            let device = device.to_owned();
            self.journal.push(FileSystemShare { device, journal: JournalBytes::default(), native_bytes: 0 });
            self.journal.len() - 1
        });
        &mut self.journal[at]
    }

    fn did_something(&self) -> bool {
        self.read_bytes + self.written_bytes + self.journal_total().total() + self.fsync.count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Service, Sync};
    use super::super::waits::Culprit;
    use super::*;
    use crate::identity::identify;

    const FS: DevNo = DevNo::new(254, 1);

    fn names() -> Names {
        let cgroup = |id, path| (CgroupId(id), identify(path));
        Names {
            cgroups: HashMap::from([
                cgroup(1, "/"),
                cgroup(2, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice"),
                cgroup(3, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice"),
                cgroup(4, "/system.slice/noise.service"),
            ]),
            file_systems: HashMap::from([(
                FS,
                FileSystemFacts { device: "dm-1".into(), mount_point: Some("/srv".into()), disks: vec!["sda".into()] },
            )]),
            devices: HashMap::from([(DevNo::new(8, 0), "sda".to_owned())]),
        }
    }

    fn totals() -> Totals {
        let cgroup = |id| Some(CgroupId(id));
        let mut syncs = Histogram::default();
        syncs.record(9000);
        Totals {
            journal_bytes: BTreeMap::from([
                ((cgroup(2), FS, Kind::Commit), 4096),
                ((cgroup(2), FS, Kind::Checkpoint), 100),
                ((cgroup(9), FS, Kind::Commit), 10),
                ((None, FS, Kind::Checkpoint), 7),
            ]),
            native_bytes: BTreeMap::from([((CgroupId(2), FS), 30), ((CgroupId(3), FS), 4)]),
            service: BTreeMap::from([
                ((cgroup(2), FS), Service { busy_ns: 500_000_000, read_bytes: 1, written_bytes: 2, requests: 1 }),
                ((cgroup(3), FS), Service { busy_ns: 250_000_000, read_bytes: 0, written_bytes: 5, requests: 1 }),
                ((None, FS), Service { busy_ns: 1, read_bytes: 0, written_bytes: 0, requests: 1 }),
            ]),
            device_ns: BTreeMap::from([((DevNo::new(8, 0), ServiceClass::Flush), 250_000_000)]),
            syncs: BTreeMap::from([(CgroupId(2), syncs)]),
            blame_ns: BTreeMap::from([
                ((CgroupId(2), cgroup(4)), 7_000_000),
                ((CgroupId(2), cgroup(3)), 1_000_000),
                ((CgroupId(2), None), 9_000_000),
            ]),
            commits: BTreeMap::from([(FS, 3)]),
            ..Totals::default()
        }
    }

    #[test]
    fn the_cgroups_of_a_container_are_one_line() {
        let seen = observation(&totals(), [(FS, 5)].into_iter(), &names());
        let shown: Vec<&str> = seen.containers.iter().map(|view| view.identity.name.as_str()).collect();
        assert_eq!(shown, ["db", "cgroup 9 (gone)"]);
        let db = &seen.containers[0];
        assert_eq!((db.read_bytes, db.written_bytes, db.device_seconds), (1, 7, 0.75));
        assert_eq!(db.journal[0].native_bytes, 34);
        assert_eq!(
            db.journal_total(),
            JournalBytes { commit_bytes: 4096, checkpoint_bytes: 100, ..Default::default() }
        );
        let fs = &seen.file_systems[0];
        assert_eq!((fs.device.as_str(), fs.commits, fs.journal.total(), fs.unattributed.total()), ("dm-1", 3, 4213, 7));
        assert_eq!(fs.pending_bytes, 5);
        let (culprit, seconds) = seen.top_culprit(&db.identity).unwrap();
        assert_eq!((culprit.name.as_str(), seconds), ("noise.service", 0.007));
        assert!(!seen.partial);
        assert_eq!((seen.devices[0].device.as_str(), seen.devices[0].flush_seconds), ("sda", 0.25));
    }

    #[test]
    fn a_device_that_comes_back_under_another_number_is_one_line() {
        let (old, new) = (DevNo::new(259, 0), DevNo::new(259, 3));
        let device_ns = BTreeMap::from([
            ((old, ServiceClass::Data), 1_000_000_000),
            ((new, ServiceClass::Data), 500_000_000),
            ((new, ServiceClass::Flush), 250_000_000),
        ]);
        let devices = HashMap::from([(old, "nvme0n1".to_owned()), (new, "nvme0n1".to_owned())]);
        let totals = Totals { device_ns, ..Totals::default() };
        let seen = observation(&totals, std::iter::empty(), &Names { devices, ..Names::default() });
        let shown: Vec<_> =
            seen.devices.iter().map(|view| (view.device.as_str(), view.data_seconds, view.flush_seconds)).collect();
        assert_eq!(shown, [("nvme0n1", 1.5, 0.25)]);
    }

    #[test]
    fn differences_leave_out_what_did_not_happen() {
        let (mut totals, names) = (totals(), names());
        let before = Observation { observed_seconds: 2.0, ..observation(&totals, std::iter::empty(), &names) };
        totals.journal_bytes.insert((Some(CgroupId(4)), FS, Kind::Ordered), 512);
        totals.syncs.get_mut(&CgroupId(2)).unwrap().record(10);
        let after = Observation { observed_seconds: 3.5, ..observation(&totals, std::iter::empty(), &names) };
        let new = after.since(&before);
        assert_eq!(new.observed_seconds, 1.5);
        let shown: Vec<_> =
            new.containers.iter().map(|view| (view.identity.name.as_str(), view.fsync.count())).collect();
        assert_eq!(shown, [("db", 1), ("noise.service", 0)]);
        assert_eq!((new.file_systems[0].commits, new.file_systems[0].journal.total()), (0, 512));
        assert_eq!(new.blame, []);
        assert_eq!(after.since(&after).containers, []);
    }

    #[test]
    fn a_wait_is_told_with_its_commits_and_by_container() {
        let commit = Commit {
            dev: FS,
            tid: 4711,
            begin_ns: 0,
            start_ns: 1_000_000_000,
            flush_ns: 0,
            log_ns: 1_500_000_000,
            end_ns: 2_000_000_000,
            journal_bytes: 8192,
            ordered_bytes: 512,
            requester: Some(CgroupId(2)),
            writer: None,
            block_bytes: 4096,
        };
        let culprit = |id, journal_ns, queue_ns, journal_bytes| Culprit {
            cgroup: id,
            part: Part { ns: [journal_ns, 0, queue_ns, 0, 0], journal_bytes, ordered_bytes: 0 },
        };
        let noise = culprit(Some(CgroupId(4)), 0, 500_000_000, 0);
        let halves =
            [culprit(Some(CgroupId(2)), 300_000_000, 0, 4096), culprit(Some(CgroupId(3)), 0, 250_000_000, 100)];
        let wait = Wait {
            sync: Sync { dev: FS, tid: 4711, start_ns: 900_000_000, end_ns: 2_000_000_000, cgroup: CgroupId(2) },
            device_ns: 750_000_000,
            commit_ns: 300_000_000,
            commits: vec![commit],
            n_commits: 3,
            culprits: vec![noise, halves[0], halves[1], culprit(None, 0, 50_000_000, 0)],
            others: Part::default(),
            n_others: 0,
        };
        let longest = Longest { waits: vec![&wait], n_left_out: 9, left_out_ns: 1_000_000 };
        let list = wait_list(&longest, 3_000_000_000, &names());
        assert_eq!((list.left_out, list.left_out_seconds), (9, 0.001));
        let view = &list.waits[0];
        assert_eq!((view.victim.name.as_str(), view.mount_point.as_deref()), ("db", Some("/srv")));
        assert_eq!((view.began_seconds_ago, view.seconds, view.n_commits), (2.1, 1.1, 3));
        // The phase whose end was not seen is unknown, and so is the next.
        let commit = &view.commits[0];
        assert_eq!((commit.locked_seconds, commit.flushing_seconds, commit.logging_seconds), (None, None, Some(0.5)));
        assert_eq!(commit.requester.as_ref().map(|requester| requester.name.as_str()), Some("db"));
        let shown: Vec<_> = view
            .culprits
            .iter()
            .map(|view| (view.culprit.as_ref().map(|id| id.name.as_str()), view.causes.seconds))
            .collect();
        assert_eq!(shown, [(Some("db"), 0.55), (Some("noise.service"), 0.5), (None, 0.05)]);
        let db = &view.culprits[0].causes;
        assert_eq!((db.journal_seconds, db.queue_seconds, db.journal_bytes), (0.3, 0.25, 4196));
    }

    #[test]
    fn shares_are_parts_of_the_devices_time_in_the_interval() {
        let (mut totals, names) = (totals(), names());
        totals.target_ns = BTreeMap::from([((CgroupId(2), FS), 300_000_000), ((CgroupId(3), FS), 75_000_000)]);
        let before = observation(&totals, std::iter::empty(), &names);
        let db = &before.containers[0].devices[0];
        assert_eq!((db.device.as_str(), db.seconds, db.target_seconds), ("254:1", 0.75, Some(0.375)));
        assert_eq!((db.achieved_share, db.target_share), (1.0, Some(0.5)));
        // Another 2 s, of which db gets a quarter of what it is meant to have, and a container without a weight the rest.
        totals.service.get_mut(&(Some(CgroupId(2)), FS)).unwrap().add(Service {
            busy_ns: 500_000_000,
            read_bytes: 1,
            ..Service::default()
        });
        totals
            .service
            .insert((Some(CgroupId(4)), FS), Service { busy_ns: 1_500_000_000, read_bytes: 1, ..Service::default() });
        *totals.target_ns.get_mut(&(CgroupId(2), FS)).unwrap() += 2_000_000_000;
        let new = observation(&totals, std::iter::empty(), &names).since(&before);
        let shares: Vec<_> = new
            .containers
            .iter()
            .map(|view| (view.identity.name.as_str(), view.main_device().unwrap()))
            .map(|(name, device)| (name, device.achieved_share, device.target_share))
            .collect();
        assert_eq!(shares, [("db", 0.25, Some(1.0)), ("noise.service", 0.75, None)]);
    }

    #[test]
    fn a_name_that_becomes_known_changes_no_sums() {
        let id = "0123456789abcdef".repeat(4);
        let mut names = names();
        names.cgroups.insert(CgroupId(2), identify(&format!("/docker/{id}")));
        names.cgroups.insert(CgroupId(4), identify(&format!("/docker/{}", id.replace('0', "f"))));
        let before = observation(&totals(), std::iter::empty(), &names);
        for cgroup in [2, 4] {
            names.cgroups.get_mut(&CgroupId(cgroup)).unwrap().name = "web".to_owned();
        }
        let mut totals = totals();
        totals
            .service
            .insert((Some(CgroupId(4)), FS), Service { busy_ns: 1, read_bytes: 3, written_bytes: 0, requests: 1 });
        let after = observation(&totals, std::iter::empty(), &names);
        // Two containers of one name stay two.
        assert_eq!(after.containers.iter().filter(|view| view.identity.name == "web").count(), 2);
        let new = after.since(&before);
        let shown: Vec<_> = new.containers.iter().map(|view| (view.identity.name.as_str(), view.read_bytes)).collect();
        assert_eq!((shown, new.blame), (vec![("web", 3)], vec![]));
    }

    #[test]
    fn differences_of_many_containers_are_found_in_time() {
        // Ten thousand containers: a search for each would take minutes.
        let view = |n: u64, written_bytes| ContainerView {
            identity: identify(&format!("/system.slice/{n}.service")),
            journal: Vec::new(),
            read_bytes: 0,
            written_bytes,
            device_seconds: 0.0,
            devices: Vec::new(),
            fsync: Histogram::default(),
        };
        let blame = |n: u64, seconds| BlameView {
            victim: identify(&format!("/system.slice/{}.service", n / 10)),
            culprit: Some(identify(&format!("/system.slice/{n}.service"))),
            seconds,
        };
        let seen = |written_bytes, seconds| Observation {
            containers: (0..10_000).map(|n| view(n, written_bytes + n)).collect(),
            blame: (0..100_000).map(|n| blame(n, seconds)).collect(),
            ..Observation::default()
        };
        let new = seen(5, 3.0).since(&seen(4, 1.0));
        assert_eq!((new.containers.len(), new.blame.len()), (10_000, 100_000));
        assert!(new.containers.iter().all(|view| view.written_bytes == 1));
        assert!(new.blame.iter().all(|view| view.seconds == 2.0));
    }

    #[test]
    fn json_carries_units_and_comes_back() {
        let seen = observation(&totals(), [(FS, 5)].into_iter(), &names());
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json["containers"][0]["journal"][0]["commit_bytes"], 4096);
        assert_eq!(json["containers"][0]["fsync"]["sum_us"], 9000);
        assert_eq!(serde_json::from_value::<Observation>(json).unwrap(), seen);
    }
}
