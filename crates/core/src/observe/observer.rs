//! The observer: turns batches of the tracer into totals per cgroup.
//!
//! Owns: the order in which a batch is evaluated ([`Observer::step`]), and the state between batches. Does not: decide
//! who is charged for a commit ([`super::charge`], [`super::log`]) or why an fsync waited ([`super::blame`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::blame::{Cause, Causers, Causes};
use super::charge::{Charge, Journal, Parts, Transaction, Waiters, carried};
use super::histogram::Histogram;
use super::log::Log;
use super::record::{
    Batch, CgroupId, Commit, Kind, LogWrite, Losses, Record, Service, ServiceClass, ServiceKey, ShareKey, ShareKind,
    Sync, Tid, WriteKey, WriteKind,
};
use super::shares::Tree;
use super::waits::{Longest, Waits};
use crate::units::DevNo;

/// How long after the end of a commit records of its waiters may still arrive (ns).
const AWAIT_NS: u64 = 100_000_000;
/// How long after a later commit the commit of a transaction is still expected (ns).
const GIVE_UP_NS: u64 = 60_000_000_000;

/// Sums since the start of the observation.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Journal bytes by payer, file system and kind.
    pub journal_bytes: BTreeMap<(Option<CgroupId>, DevNo, Kind), u64>,
    /// Journal bytes that the kernel charged, by charged cgroup and file system: that cgroup's threads wrote them,
    /// whichever cgroup caused them.
    pub native_bytes: BTreeMap<(CgroupId, DevNo), u64>,
    /// Service of devices, by the cgroup that the kernel charged.
    pub service: BTreeMap<(Option<CgroupId>, DevNo), Service>,
    /// Target device time of cgroups, by their weights (ns).
    pub target_ns: BTreeMap<(CgroupId, DevNo), u64>,
    /// Busy time of devices (ns), by class of request.
    pub device_ns: BTreeMap<(DevNo, ServiceClass), u64>,
    /// Latencies of fsync, by caller.
    pub syncs: BTreeMap<CgroupId, Histogram>,
    /// The same, by file system.
    pub file_system_syncs: BTreeMap<DevNo, Histogram>,
    /// Time that the first cgroup waited in fsync because of the second (ns).
    pub blame_ns: BTreeMap<(CgroupId, Option<CgroupId>), u64>,
    /// Commits by file system.
    pub commits: BTreeMap<DevNo, u64>,
    /// Events that could not be recorded.
    pub losses: Losses,
    /// Transactions whose commit was not observed; their blocks are not charged.
    pub unseen_commits: u64,
}

/// Turns batches of records and sums into [`Totals`].
#[derive(Debug, Default)]
pub struct Observer {
    totals: Totals,
    journals: HashMap<DevNo, Journal>,
    logs: HashMap<DevNo, Log>,
    /// Records that are so recent that records of waiters may still be missing.
    recent: VecDeque<Record>,
    /// The last transaction of each journal whose commit was observed.
    last_tids: HashMap<DevNo, Tid>,
    /// When a later transaction than these was first known to be committed (ns, monotonic).
    overdue_since: HashMap<(DevNo, Tid), u64>,
    /// The physical devices of each file system, and the file systems that share one of them (including itself).
    below: HashMap<DevNo, (Vec<DevNo>, Arc<[DevNo]>)>,
    causes: Causes,
    waits: Waits,
    tree: Tree,
    last_ns: Option<u64>,
    /// Start of complete observation (ns, monotonic).
    began_ns: u64,
    writes: HashMap<WriteKey, u64>,
    services: HashMap<ServiceKey, Service>,
}

impl Observer {
    /// The totals.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The longest waits that ended in the last `within_ns` before `now_ns` (monotonic).
    #[must_use]
    pub fn longest_waits(&self, now_ns: u64, within_ns: u64) -> Longest<'_> {
        self.waits.longest(now_ns, within_ns)
    }

    /// Journal bytes that are not charged yet: those of the last commits, and of superblocks, which are charged with
    /// the next commit. A file system may occur more than once.
    pub fn pending_bytes(&self) -> impl Iterator<Item = (DevNo, u64)> {
        let commits = self.recent.iter().filter_map(|record| match record {
            Record::Commit(commit) => Some((commit.dev, commit.journal_bytes)),
            Record::Log(write) => Some((write.dev, write.bytes)),
            Record::Sync(_) | Record::Dropped { .. } => None,
        });
        self.journals.iter().map(|(dev, journal)| (*dev, journal.pending_bytes())).chain(commits)
    }

    /// Mounted file systems with observed journal writes.
    #[must_use]
    pub fn devices(&self) -> Vec<DevNo> {
        self.journals.keys().chain(self.logs.keys()).copied().collect()
    }

    /// Sets the mounted file systems, with the physical devices of each. The state of others is dropped.
    pub fn set_file_systems(&mut self, disks: HashMap<DevNo, Vec<DevNo>>) {
        let gone: Vec<DevNo> = self.journals.keys().filter(|dev| !disks.contains_key(dev)).copied().collect();
        for dev in gone {
            if let Some(charge) = self.journals.remove(&dev).and_then(|mut journal| journal.close()) {
                self.add_charges(dev, &[charge]);
            }
            self.last_tids.remove(&dev);
        }
        self.logs.retain(|dev, _| disks.contains_key(dev));
        let mut on_disk: HashMap<DevNo, Vec<DevNo>> = HashMap::new();
        for (dev, disk) in disks.iter().flat_map(|(dev, disks)| disks.iter().map(|disk| (*dev, *disk))) {
            on_disk.entry(disk).or_default().push(dev);
        }
        // File systems on the same disks share one list: there may be a thousand of them.
        let mut on_all: HashMap<Vec<DevNo>, Arc<[DevNo]>> = HashMap::new();
        let with_neighbours = disks.into_iter().map(|(dev, disks)| {
            if disks.is_empty() {
                return (dev, (disks, Arc::from([dev])));
            }
            let neighbours = on_all.entry(disks.clone()).or_insert_with(|| {
                let all: BTreeSet<DevNo> =
                    disks.iter().filter_map(|disk| on_disk.get(disk)).flatten().copied().collect();
                all.into_iter().collect()
            });
            (dev, (disks, Arc::clone(neighbours)))
        });
        self.below = with_neighbours.collect();
    }

    /// Sets the hierarchy and the weights of the cgroups in the sums.
    pub fn set_tree(&mut self, tree: Tree) {
        self.tree = tree;
    }

    /// Evaluates a batch, except for commits that have only just ended. Returns the shares that are used up, which the
    /// tracer can evict.
    pub fn step(&mut self, batch: Batch) -> Vec<ShareKey> {
        let horizon_ns = batch.now_ns.saturating_sub(AWAIT_NS);
        self.step_until(batch, horizon_ns)
    }

    /// Evaluates the last batch, and all that is left of earlier ones.
    pub fn finish(&mut self, batch: Batch) -> Vec<ShareKey> {
        self.step_until(batch, u64::MAX)
    }

    /// Each step relies on the previous ones:
    ///
    /// * A write of the journal's superblock is charged with the next commit, so these are counted before commits.
    /// * A block is checkpointed after its commit and before its transaction is dropped, so checkpoint writes are
    ///   counted between the two.
    /// * An fsync is blamed on the device's service and on concurrent commits, so fsyncs come after both.
    /// * A transaction is given up only if its commit is not in this batch, either.
    fn step_until(&mut self, batch: Batch, horizon_ns: u64) -> Vec<ShareKey> {
        let mut owners = OpenShares::from_shares(&batch.shares);
        self.recent.extend(batch.records);
        // Including fsyncs that are not due: they may have waited for a commit that is.
        let fsyncs = Fsyncs::from_records(&self.recent);
        let due = self.take_due(horizon_ns);

        self.count_writes(&batch.writes, |kind| kind != WriteKind::Checkpoint);
        let mut ended = self.charge_journals(&due, &mut owners, &fsyncs);
        self.count_writes(&batch.writes, |kind| kind == WriteKind::Checkpoint);
        self.drop_transactions(&due);
        self.count_services(batch.now_ns, &batch.services);
        self.blame_fsyncs(&due);
        ended.extend(self.give_up(batch.now_ns, owners.open.into_keys()));
        self.totals.losses = batch.losses;

        batch.shares.into_iter().map(|(key, _)| key).filter(|key| ended.contains(&(key.dev, key.tid))).collect()
    }

    /// Removes the records, in order, up to the first one that missing records may refer to.
    fn take_due(&mut self, horizon_ns: u64) -> Vec<Record> {
        let is_due = |record: &Record| match record {
            Record::Commit(Commit { end_ns, .. }) | Record::Sync(Sync { end_ns, .. }) => *end_ns <= horizon_ns,
            Record::Log(_) | Record::Dropped { .. } => true,
        };
        let n_due = self.recent.iter().position(|record| !is_due(record)).unwrap_or(self.recent.len());
        self.recent.drain(..n_due).collect()
    }

    /// Charges commits and log writes to the cgroups that caused them. Returns the finished transactions.
    fn charge_journals(&mut self, due: &[Record], owners: &mut OpenShares, fsyncs: &Fsyncs) -> BTreeSet<(DevNo, Tid)> {
        let mut ended = BTreeSet::new();
        for record in due {
            match record {
                Record::Commit(commit) => {
                    let transaction = owners.open.remove(&(commit.dev, commit.tid)).unwrap_or_default();
                    ended.insert((commit.dev, commit.tid));
                    let (requester, waiters) = fsyncs.waiters(commit);
                    self.charge_commit(&Commit { requester, ..*commit }, transaction, waiters);
                }
                Record::Log(write) => ended.extend(self.charge_log_write(write, &mut owners.logged)),
                Record::Sync(_) | Record::Dropped { .. } => {}
            }
        }
        ended
    }

    fn drop_transactions(&mut self, due: &[Record]) {
        for record in due {
            if let Record::Dropped { dev, tid } = record {
                self.journals.entry(*dev).or_default().drop_transaction(*tid);
            }
        }
    }

    fn blame_fsyncs(&mut self, due: &[Record]) {
        for record in due {
            if let Record::Sync(sync) = record {
                self.blame_fsync(sync);
            }
        }
    }

    /// Adds the sums of a removed cgroup to those of another one; the totals stay the same.
    pub fn fold(&mut self, gone: CgroupId, into: CgroupId) {
        let moved = |cgroup: Option<CgroupId>| if cgroup == Some(gone) { Some(into) } else { cgroup };
        let totals = &mut self.totals;
        totals.journal_bytes =
            fold_keys(std::mem::take(&mut totals.journal_bytes), |(owner, dev, kind)| (moved(owner), dev, kind));
        totals.native_bytes = fold_keys(std::mem::take(&mut totals.native_bytes), |(writer, dev)| {
            (if writer == gone { into } else { writer }, dev)
        });
        totals.blame_ns = fold_keys(std::mem::take(&mut totals.blame_ns), |(victim, culprit)| {
            (if victim == gone { into } else { victim }, moved(culprit))
        });
        if let Some(histogram) = totals.syncs.remove(&gone) {
            totals.syncs.entry(into).or_default().merge(&histogram);
        }
        let of_gone: Vec<_> = totals.service.keys().filter(|(owner, _)| *owner == Some(gone)).copied().collect();
        for key in of_gone {
            let service = totals.service.remove(&key).unwrap_or_default();
            totals.service.entry((Some(into), key.1)).or_default().add(service);
            if let Some(target_ns) = totals.target_ns.remove(&(gone, key.1)) {
                *totals.target_ns.entry((into, key.1)).or_default() += target_ns;
            }
        }
    }

    /// The tracer has evicted the sums of these cgroups, which restart at 0.
    pub fn sums_evicted(&mut self, gone: &HashSet<CgroupId>) {
        let is_kept = |cgroup: Option<CgroupId>| cgroup.is_none_or(|cgroup| !gone.contains(&cgroup));
        self.writes.retain(|key, _| is_kept(key.cgroup));
        self.services.retain(|key, _| is_kept(key.cgroup));
    }

    /// The tracer was loaded, so that its sums are 0.
    pub fn tracer_loaded(&mut self) {
        self.writes.clear();
        self.services.clear();
    }

    /// The tracer starts (ns, monotonic), after a time without observation.
    pub fn observation_started(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.last_ns = None;
        self.overdue_since.clear();
        for journal in self.journals.values_mut() {
            journal.clear_uncheckpointed();
        }
        for log in self.logs.values_mut() {
            *log = Log::default();
        }
    }

    /// All cgroups in the sums.
    #[must_use]
    pub fn cgroups(&self) -> HashSet<CgroupId> {
        let totals = &self.totals;
        let payers = totals.journal_bytes.keys().filter_map(|(owner, _, _)| *owner);
        let served = totals.service.keys().filter_map(|(owner, _)| *owner);
        let culprits = totals.blame_ns.keys().filter_map(|(_, culprit)| *culprit);
        let native = totals.native_bytes.keys().map(|(owner, _)| *owner);
        payers.chain(native).chain(served).chain(culprits).chain(totals.syncs.keys().copied()).collect()
    }

    fn charge_commit(&mut self, commit: &Commit, transaction: Transaction, waiters: Waiters) {
        self.logs.remove(&commit.dev);
        let seen_whole = commit.begin_ns >= self.began_ns;
        let carried = carried(commit, &transaction, &waiters, seen_whole);
        let charges = self.journals.entry(commit.dev).or_default().commit(commit, transaction, waiters, seen_whole);
        self.add_charges(commit.dev, &charges);
        let mut bytes: Causers = carried.into_iter().map(|(owner, bytes)| ((owner, Cause::Journal), bytes)).collect();
        for charge in charges.into_iter().filter(|charge| charge.kind == Kind::Ordered) {
            *bytes.entry((charge.cgroup, Cause::Ordered)).or_default() += charge.bytes;
        }
        if let Some(writer) = commit.writer {
            let bytes = commit.journal_bytes + commit.ordered_bytes;
            *self.totals.native_bytes.entry((writer, commit.dev)).or_default() += bytes;
        }
        self.causes.commit(*commit, bytes);
        *self.totals.commits.entry(commit.dev).or_default() += 1;
        self.last_tids.insert(commit.dev, commit.tid);
    }

    /// Charges a log write to the checkpoints that it may belong to. Returns those whose shares are used up.
    fn charge_log_write(&mut self, write: &LogWrite, logged: &mut HashMap<(DevNo, Tid), Parts>) -> Vec<(DevNo, Tid)> {
        let log = self.logs.entry(write.dev).or_default();
        let age = |tid: Tid| write.checkpoint.wrapping_sub(tid);
        let is_closed = |(dev, tid): &&(DevNo, Tid)| *dev == write.dev && age(*tid) < Tid::MAX / 2;
        let mut closed: Vec<(DevNo, Tid)> = logged.keys().filter(is_closed).copied().collect();
        closed.sort_by_key(|(_, tid)| std::cmp::Reverse(age(*tid)));
        for key in &closed {
            log.close(key.1, logged.remove(key).unwrap_or_default(), write);
        }
        let charges = log.write(write);
        self.add_charges(write.dev, &charges);
        let bytes = charges.iter().map(|charge| ((charge.cgroup, Cause::Journal), charge.bytes));
        self.causes.log_write(write, bytes.collect());
        *self.totals.commits.entry(write.dev).or_default() += u64::try_from(closed.len()).unwrap_or(u64::MAX);
        closed
    }

    fn blame_fsync(&mut self, sync: &Sync) {
        let wait_us = sync.end_ns.saturating_sub(sync.start_ns) / 1000;
        self.totals.syncs.entry(sync.cgroup).or_default().record(wait_us);
        self.totals.file_system_syncs.entry(sync.dev).or_default().record(wait_us);
        let (disks, neighbours): (&[DevNo], &[DevNo]) = match self.below.get(&sync.dev) {
            Some((disks, neighbours)) => (disks, neighbours),
            None => (&[], std::slice::from_ref(&sync.dev)),
        };
        let blame = self.causes.blame(sync, disks, neighbours);
        for (&(culprit, _), ns) in &blame.causes {
            *self.totals.blame_ns.entry((sync.cgroup, culprit)).or_default() += ns;
        }
        self.waits.record(sync, &blame, self.causes.commits_of(sync));
    }

    /// Charges the writes since the previous batch, of the wanted kinds.
    fn count_writes(&mut self, writes: &[(WriteKey, u64)], wanted: impl Fn(WriteKind) -> bool) {
        for (key, sum) in writes.iter().filter(|(key, _)| wanted(key.kind)) {
            let before = self.writes.insert(*key, *sum).unwrap_or(0);
            // A sum that decreased was restarted.
            let bytes = if *sum < before { *sum } else { sum - before };
            if bytes == 0 {
                continue;
            }
            if let Some(writer) = key.cgroup {
                *self.totals.native_bytes.entry((writer, key.dev)).or_default() += bytes;
            }
            let charges = match key.kind {
                // Its bytes are charged with the log writes.
                WriteKind::Log => continue,
                WriteKind::Superblock => {
                    self.journals.entry(key.dev).or_default().superblock(bytes);
                    continue;
                }
                WriteKind::FastCommit => {
                    self.journals.entry(key.dev).or_default();
                    vec![Charge { cgroup: key.cgroup, kind: Kind::FastCommit, bytes }]
                }
                WriteKind::Checkpoint => match self.logs.get(&key.dev) {
                    Some(log) => log.checkpoint(bytes),
                    None => self.journals.entry(key.dev).or_default().checkpoint(bytes),
                },
            };
            self.add_charges(key.dev, &charges);
        }
    }

    /// Adds the service of devices since the previous batch.
    fn count_services(&mut self, now_ns: u64, services: &[(ServiceKey, Service)]) {
        let mut done = Vec::new();
        for (key, sum) in services {
            let new = sum.since(self.services.insert(*key, *sum).unwrap_or_default());
            if new == Service::default() {
                continue;
            }
            self.totals.service.entry((key.cgroup, key.dev)).or_default().add(new);
            *self.totals.device_ns.entry((key.dev, key.class)).or_default() += new.busy_ns;
            done.push((*key, new));
        }
        self.add_targets(&done);
        if let Some(last_ns) = self.last_ns.replace(now_ns) {
            self.causes.interval(last_ns, now_ns, &done);
        }
    }

    /// Splits each device's busy time since the last poll among the cgroups that it served, by their weights.
    fn add_targets(&mut self, done: &[(ServiceKey, Service)]) {
        let mut of_device: BTreeMap<DevNo, (u64, BTreeSet<CgroupId>)> = BTreeMap::new();
        for (key, new) in done {
            let Some(cgroup) = key.cgroup else { continue };
            let (busy_ns, active) = of_device.entry(key.dev).or_default();
            *busy_ns += new.busy_ns;
            active.insert(cgroup);
        }
        for (dev, (busy_ns, active)) in of_device {
            for (cgroup, ns) in self.tree.split(dev, busy_ns, &active) {
                *self.totals.target_ns.entry((cgroup, dev)).or_default() += ns;
            }
        }
    }

    fn add_charges(&mut self, dev: DevNo, charges: &[Charge]) {
        for charge in charges {
            *self.totals.journal_bytes.entry((charge.cgroup, dev, charge.kind)).or_default() += charge.bytes;
        }
    }

    /// Gives up transactions whose commit is overdue, because a later one was committed long ago, and returns them. Not
    /// at once: a file system that is recreated on a device starts with small numbers again.
    fn give_up(&mut self, now_ns: u64, open: impl Iterator<Item = (DevNo, Tid)>) -> Vec<(DevNo, Tid)> {
        let before = std::mem::take(&mut self.overdue_since);
        let overdue = open.filter(|(dev, tid)| self.is_over(*dev, *tid));
        let since = overdue.map(|key| (key, before.get(&key).copied().unwrap_or(now_ns)));
        let (given_up, waiting): (HashMap<_, _>, _) = since.partition(|(_, since)| now_ns - since >= GIVE_UP_NS);
        self.overdue_since = waiting;
        self.totals.unseen_commits += u64::try_from(given_up.len()).unwrap_or(u64::MAX);
        given_up.into_keys().collect()
    }

    /// Whether a later transaction of the journal has been committed. Transaction numbers wrap around.
    fn is_over(&self, dev: DevNo, tid: Tid) -> bool {
        self.last_tids.get(&dev).is_some_and(|last| last.wrapping_sub(tid).wrapping_sub(1) < Tid::MAX / 2)
    }
}

/// Shares of unfinished transactions, by owner.
#[derive(Default)]
struct OpenShares {
    /// Transactions of journals.
    open: HashMap<(DevNo, Tid), Transaction>,
    /// Checkpoints of logs, in bytes.
    logged: HashMap<(DevNo, Tid), Parts>,
}

impl OpenShares {
    fn from_shares(shares: &[(ShareKey, u64)]) -> Self {
        let mut owners = Self::default();
        for (key, amount) in shares.iter().filter(|(_, amount)| *amount > 0) {
            let number = (key.dev, key.tid);
            let Self { open, logged } = &mut owners;
            let parts = match key.kind {
                ShareKind::LoggedBytes => logged.entry(number).or_default(),
                ShareKind::OrderedBytes => &mut open.entry(number).or_default().ordered_bytes,
                ShareKind::DirtiedBlocks | ShareKind::LostBlocks => &mut open.entry(number).or_default().dirtied_blocks,
                ShareKind::AgainBlocks { since } => {
                    open.entry(number).or_default().again_blocks.entry(since).or_default()
                }
                ShareKind::CededSixths => &mut open.entry(number).or_default().ceded_sixths,
                ShareKind::JoinedSixths => &mut open.entry(number).or_default().joined_sixths,
            };
            *parts.entry(key.cgroup).or_default() += amount;
        }
        owners
    }
}

/// Finished calls of fsync, by the transaction that they needed.
struct Fsyncs(HashMap<(DevNo, Tid), Vec<Sync>>);

impl Fsyncs {
    fn from_records(records: &VecDeque<Record>) -> Self {
        let mut by_transaction: HashMap<_, Vec<Sync>> = HashMap::new();
        for record in records {
            if let Record::Sync(sync) = record {
                by_transaction.entry((sync.dev, sync.tid)).or_default().push(*sync);
            }
        }
        Self(by_transaction)
    }

    /// The cgroup that forced a commit, and all cgroups whose fsync waited for it; none if no fsync started before it.
    fn waiters(&self, commit: &Commit) -> (Option<CgroupId>, Waiters) {
        let needed = self.0.get(&(commit.dev, commit.tid)).into_iter().flatten();
        let meanwhile = needed.filter(|sync| sync.start_ns < commit.end_ns && sync.end_ns > commit.start_ns);
        let first = meanwhile.clone().filter(|sync| sync.start_ns < commit.start_ns).min_by_key(|sync| sync.start_ns);
        let waiters = first.map(|_| meanwhile.map(|sync| sync.cgroup).collect()).unwrap_or_default();
        (first.map(|sync| sync.cgroup), waiters)
    }
}

fn fold_keys<K: Ord>(sums: BTreeMap<K, u64>, key: impl Fn(K) -> K) -> BTreeMap<K, u64> {
    let mut folded = BTreeMap::new();
    for (old, sum) in sums {
        *folded.entry(key(old)).or_default() += sum;
    }
    folded
}

#[cfg(test)]
mod tests;
