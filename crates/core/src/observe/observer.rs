//! Keeps the sums: looks at the tracer come in, totals per cgroup come out.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::blame::{Cause, Causers, Causes};
use super::charge::{Charge, Journal, Parts, Transaction, Wanters, carried};
use super::histogram::Histogram;
use super::log::Log;
use super::record::{
    Batch, CgroupId, Commit, Kind, LogWrite, Losses, Record, Service, ServiceClass, ServiceKey, ShareKey, ShareKind,
    Sync, Tid, WriteKey, WriteKind,
};
use super::shares::Tree;
use super::waits::{Longest, Waits};
use crate::units::DevNo;

/// For how long after the end of a commit those that waited for it are awaited (ns).
const AWAIT_NS: u64 = 100_000_000;
/// How long after a later commit a transaction's commit is still expected (ns).
const GIVE_UP_NS: u64 = 60_000_000_000;

/// Sums since the start of the observation.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Journal bytes by payer, file system and kind.
    pub journal_bytes: BTreeMap<(Option<CgroupId>, DevNo, Kind), u64>,
    /// Journal bytes that the kernel itself charged, by whom it charged and file system: whoever caused them, they were written
    /// by this one's threads.
    pub native_bytes: BTreeMap<(CgroupId, DevNo), u64>,
    /// What devices did, by whom the kernel charged.
    pub service: BTreeMap<(Option<CgroupId>, DevNo), Service>,
    /// What their controllers mean the cgroups to have of the device time of all (ns).
    pub target_ns: BTreeMap<(CgroupId, DevNo), u64>,
    /// How long devices were busy (ns), and what with.
    pub device_ns: BTreeMap<(DevNo, ServiceClass), u64>,
    /// How long fsync took, by caller.
    pub syncs: BTreeMap<CgroupId, Histogram>,
    /// Nanoseconds that the first waited in fsync because of the second.
    pub blame_ns: BTreeMap<(CgroupId, Option<CgroupId>), u64>,
    /// Commits by file system.
    pub commits: BTreeMap<DevNo, u64>,
    /// What found no room to be counted.
    pub losses: Losses,
    /// Transactions whose commit was not seen; their owners' blocks are charged to nobody.
    pub unseen_commits: u64,
}

/// Turns looks at the tracer into [`Totals`].
#[derive(Debug, Default)]
pub struct Observer {
    totals: Totals,
    journals: HashMap<DevNo, Journal>,
    logs: HashMap<DevNo, Log>,
    /// What happened so shortly ago that not all who waited for it have told.
    recent: VecDeque<Record>,
    /// The last transaction of each journal whose commit was seen.
    last_tids: HashMap<DevNo, Tid>,
    /// Since when (ns, monotonic) a later transaction than these has been committed.
    overdue_since: HashMap<(DevNo, Tid), u64>,
    /// The physical devices below each file system, and the file systems that share one of them with it (itself among them).
    below: HashMap<DevNo, (Vec<DevNo>, Arc<[DevNo]>)>,
    causes: Causes,
    waits: Waits,
    tree: Tree,
    last_ns: Option<u64>,
    /// Since when (ns, monotonic) everything has been seen.
    began_ns: u64,
    writes: HashMap<WriteKey, u64>,
    services: HashMap<ServiceKey, Service>,
}

impl Observer {
    /// The sums.
    #[must_use]
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The longest waits that ended in the last `within_ns` before `now_ns` (monotonic).
    #[must_use]
    pub fn longest_waits(&self, now_ns: u64, within_ns: u64) -> Longest<'_> {
        self.waits.longest(now_ns, within_ns)
    }

    /// Bytes of journals that nobody is charged yet: those of the last commits, and of superblocks, which are charged with the
    /// next commit. A file system may occur more than once.
    pub fn pending_bytes(&self) -> impl Iterator<Item = (DevNo, u64)> {
        let commits = self.recent.iter().filter_map(|record| match record {
            Record::Commit(commit) => Some((commit.dev, commit.journal_bytes)),
            Record::Log(write) => Some((write.dev, write.bytes)),
            Record::Sync(_) | Record::Dropped { .. } => None,
        });
        self.journals.iter().map(|(dev, journal)| (*dev, journal.pending_bytes())).chain(commits)
    }

    /// File systems whose journal was written while it was observed, and that are not gone.
    #[must_use]
    pub fn devices(&self) -> Vec<DevNo> {
        self.journals.keys().chain(self.logs.keys()).copied().collect()
    }

    /// Says which file systems are mounted, and on which physical devices each lies. What is known of others is forgotten.
    pub fn set_file_systems(&mut self, disks: HashMap<DevNo, Vec<DevNo>>) {
        let gone: Vec<DevNo> = self.journals.keys().filter(|dev| !disks.contains_key(dev)).copied().collect();
        for dev in gone {
            if let Some(charge) = self.journals.remove(&dev).and_then(|mut journal| journal.close()) {
                self.pay(dev, &[charge]);
            }
            self.last_tids.remove(&dev);
        }
        self.logs.retain(|dev, _| disks.contains_key(dev));
        let mut on_disk: HashMap<DevNo, Vec<DevNo>> = HashMap::new();
        for (dev, disk) in disks.iter().flat_map(|(dev, disks)| disks.iter().map(|disk| (*dev, *disk))) {
            on_disk.entry(disk).or_default().push(dev);
        }
        // One list for all file systems on the same disks: there may be a thousand.
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

    /// Says where the cgroups are that have a part in the sums, and their weights.
    pub fn set_tree(&mut self, tree: Tree) {
        self.tree = tree;
    }

    /// Takes a look into account, but for the commits that ended just before it. Returns the shares that are used up, which the
    /// tracer can forget.
    pub fn step(&mut self, batch: Batch) -> Vec<ShareKey> {
        let horizon_ns = batch.now_ns.saturating_sub(AWAIT_NS);
        self.step_until(batch, horizon_ns)
    }

    /// Takes the last look into account, and all that was left of those before it.
    pub fn finish(&mut self, batch: Batch) -> Vec<ShareKey> {
        self.step_until(batch, u64::MAX)
    }

    fn step_until(&mut self, batch: Batch, horizon_ns: u64) -> Vec<ShareKey> {
        self.writes(&batch.writes, |kind| kind != WriteKind::Checkpoint);
        let mut open: HashMap<(DevNo, Tid), Transaction> = HashMap::new();
        let mut logged: HashMap<(DevNo, Tid), Parts> = HashMap::new();
        for (key, amount) in batch.shares.iter().filter(|(_, amount)| *amount > 0) {
            let number = (key.dev, key.tid);
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
        self.recent.extend(batch.records);
        let fsyncs = Fsyncs::among(&self.recent);
        let is_due = |record: &Record| match record {
            Record::Commit(Commit { end_ns, .. }) | Record::Sync(Sync { end_ns, .. }) => *end_ns <= horizon_ns,
            Record::Log(_) | Record::Dropped { .. } => true,
        };
        let n_due = self.recent.iter().position(|record| !is_due(record)).unwrap_or(self.recent.len());
        let due: Vec<Record> = self.recent.drain(..n_due).collect();
        let (mut syncs, mut dropped) = (Vec::new(), Vec::new());
        let mut ended = BTreeSet::new();
        for record in due {
            match record {
                Record::Commit(mut commit) => {
                    let transaction = open.remove(&(commit.dev, commit.tid)).unwrap_or_default();
                    ended.insert((commit.dev, commit.tid));
                    let (requester, wanters) = fsyncs.that_wanted(&commit);
                    commit.requester = requester;
                    self.commit(&commit, transaction, wanters);
                }
                Record::Dropped { dev, tid } => dropped.push((dev, tid)),
                Record::Sync(sync) => syncs.push(sync),
                Record::Log(write) => ended.extend(self.log_write(&write, &mut logged)),
            }
        }
        // A block is written to its place after its commit and before its transaction is dropped.
        self.writes(&batch.writes, |kind| kind == WriteKind::Checkpoint);
        for (dev, tid) in dropped {
            self.journals.entry(dev).or_default().dropped(tid);
        }
        self.services(batch.now_ns, &batch.services);
        for sync in syncs {
            self.sync(&sync);
        }
        self.totals.losses = batch.losses;
        let unseen = self.unseen(batch.now_ns, open.into_keys());
        self.totals.unseen_commits += u64::try_from(unseen.len()).unwrap_or(u64::MAX);
        ended.extend(unseen);
        batch.shares.into_iter().map(|(key, _)| key).filter(|key| ended.contains(&(key.dev, key.tid))).collect()
    }

    /// Counts a cgroup's sums under another one from now on, because it is gone; nothing is lost from the totals.
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

    /// The tracer has forgotten the sums of these cgroups: what it shows of them next began anew.
    pub fn forgotten(&mut self, gone: &HashSet<CgroupId>) {
        let is_kept = |cgroup: Option<CgroupId>| cgroup.is_none_or(|cgroup| !gone.contains(&cgroup));
        self.writes.retain(|key, _| is_kept(key.cgroup));
        self.services.retain(|key, _| is_kept(key.cgroup));
    }

    /// The tracer was loaded: its sums are 0.
    pub fn loaded(&mut self) {
        self.writes.clear();
        self.services.clear();
    }

    /// The tracer begins (ns, monotonic), after a time in which nothing was seen.
    pub fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.last_ns = None;
        self.overdue_since.clear();
        for journal in self.journals.values_mut() {
            journal.forget_uncheckpointed();
        }
        for log in self.logs.values_mut() {
            *log = Log::default();
        }
    }

    /// All cgroups that have a part in the sums.
    #[must_use]
    pub fn cgroups(&self) -> HashSet<CgroupId> {
        let totals = &self.totals;
        let payers = totals.journal_bytes.keys().filter_map(|(owner, _, _)| *owner);
        let served = totals.service.keys().filter_map(|(owner, _)| *owner);
        let culprits = totals.blame_ns.keys().filter_map(|(_, culprit)| *culprit);
        let native = totals.native_bytes.keys().map(|(owner, _)| *owner);
        payers.chain(native).chain(served).chain(culprits).chain(totals.syncs.keys().copied()).collect()
    }

    fn commit(&mut self, commit: &Commit, transaction: Transaction, wanters: Wanters) {
        self.logs.remove(&commit.dev);
        let seen_whole = commit.begin_ns >= self.began_ns;
        let carried = carried(commit, &transaction, &wanters, seen_whole);
        let charges = self.journals.entry(commit.dev).or_default().commit(commit, transaction, wanters, seen_whole);
        self.pay(commit.dev, &charges);
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

    /// Charges a write to a log, with the checkpoints that it may belong to. Returns those whose parts are used up.
    fn log_write(&mut self, write: &LogWrite, logged: &mut HashMap<(DevNo, Tid), Parts>) -> Vec<(DevNo, Tid)> {
        let log = self.logs.entry(write.dev).or_default();
        let age = |tid: Tid| write.checkpoint.wrapping_sub(tid);
        let is_closed = |(dev, tid): &&(DevNo, Tid)| *dev == write.dev && age(*tid) < Tid::MAX / 2;
        let mut closed: Vec<(DevNo, Tid)> = logged.keys().filter(is_closed).copied().collect();
        closed.sort_by_key(|(_, tid)| std::cmp::Reverse(age(*tid)));
        for key in &closed {
            log.close(key.1, logged.remove(key).unwrap_or_default(), write);
        }
        let charges = log.write(write);
        self.pay(write.dev, &charges);
        let bytes = charges.iter().map(|charge| ((charge.cgroup, Cause::Journal), charge.bytes));
        self.causes.log_write(write, bytes.collect());
        *self.totals.commits.entry(write.dev).or_default() += u64::try_from(closed.len()).unwrap_or(u64::MAX);
        closed
    }

    fn sync(&mut self, sync: &Sync) {
        let wait_us = sync.end_ns.saturating_sub(sync.start_ns) / 1000;
        self.totals.syncs.entry(sync.cgroup).or_default().record(wait_us);
        let (disks, neighbours): (&[DevNo], &[DevNo]) = match self.below.get(&sync.dev) {
            Some((disks, neighbours)) => (disks, neighbours),
            None => (&[], std::slice::from_ref(&sync.dev)),
        };
        let blame = self.causes.of(sync, disks, neighbours);
        for (&(culprit, _), ns) in &blame.causes {
            *self.totals.blame_ns.entry((sync.cgroup, culprit)).or_default() += ns;
        }
        self.waits.record(sync, &blame, self.causes.commits_of(sync));
    }

    fn writes(&mut self, writes: &[(WriteKey, u64)], wanted: impl Fn(WriteKind) -> bool) {
        for (key, sum) in writes.iter().filter(|(key, _)| wanted(key.kind)) {
            let before = self.writes.insert(*key, *sum).unwrap_or(0);
            // A sum that fell began anew.
            let bytes = if *sum < before { *sum } else { sum - before };
            if bytes == 0 {
                continue;
            }
            if let Some(writer) = key.cgroup {
                *self.totals.native_bytes.entry((writer, key.dev)).or_default() += bytes;
            }
            let charges = match key.kind {
                // Its bytes are charged by the writes themselves.
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
            self.pay(key.dev, &charges);
        }
    }

    fn services(&mut self, now_ns: u64, services: &[(ServiceKey, Service)]) {
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
        self.targets(&done);
        if let Some(last_ns) = self.last_ns.replace(now_ns) {
            self.causes.interval(last_ns, now_ns, &done);
        }
    }

    /// Splits what each device did for cgroups since the last look among those that it did something for, as their weights say.
    fn targets(&mut self, done: &[(ServiceKey, Service)]) {
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

    fn pay(&mut self, dev: DevNo, charges: &[Charge]) {
        for charge in charges {
            *self.totals.journal_bytes.entry((charge.cgroup, dev, charge.kind)).or_default() += charge.bytes;
        }
    }

    /// Transactions whose commit is not to be expected any more: a later one was committed long ago. Not at once, because a file
    /// system that has been made anew on a device begins with small numbers again.
    fn unseen(&mut self, now_ns: u64, open: impl Iterator<Item = (DevNo, Tid)>) -> Vec<(DevNo, Tid)> {
        let before = std::mem::take(&mut self.overdue_since);
        let overdue = open.filter(|(dev, tid)| self.is_over(*dev, *tid));
        let since = overdue.map(|key| (key, before.get(&key).copied().unwrap_or(now_ns)));
        let (given_up, waiting): (HashMap<_, _>, _) = since.partition(|(_, since)| now_ns - since >= GIVE_UP_NS);
        self.overdue_since = waiting;
        given_up.into_keys().collect()
    }

    /// Whether a later transaction of the journal has been committed already. Transaction numbers wrap around.
    fn is_over(&self, dev: DevNo, tid: Tid) -> bool {
        self.last_tids.get(&dev).is_some_and(|last| last.wrapping_sub(tid).wrapping_sub(1) < Tid::MAX / 2)
    }
}

/// Finished calls of fsync, by the transaction that they needed.
struct Fsyncs(HashMap<(DevNo, Tid), Vec<Sync>>);

impl Fsyncs {
    fn among(records: &VecDeque<Record>) -> Self {
        let mut by_transaction: HashMap<_, Vec<Sync>> = HashMap::new();
        for record in records {
            if let Record::Sync(sync) = record {
                by_transaction.entry((sync.dev, sync.tid)).or_default().push(*sync);
            }
        }
        Self(by_transaction)
    }

    /// Who forced a commit, and all whose fsync waited for it then; nobody if none had begun before it.
    fn that_wanted(&self, commit: &Commit) -> (Option<CgroupId>, Wanters) {
        let needed = self.0.get(&(commit.dev, commit.tid)).into_iter().flatten();
        let meanwhile = needed.filter(|sync| sync.start_ns < commit.end_ns && sync.end_ns > commit.start_ns);
        let first = meanwhile.clone().filter(|sync| sync.start_ns < commit.start_ns).min_by_key(|sync| sync.start_ns);
        let wanters = first.map(|_| meanwhile.map(|sync| sync.cgroup).collect()).unwrap_or_default();
        (first.map(|sync| sync.cgroup), wanters)
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
mod tests {
    use super::super::blame::ROOT;
    use super::super::shares::Weights;
    use super::*;

    const FS: DevNo = DevNo::new(8, 1);
    const DISK: DevNo = DevNo::new(8, 0);
    const A: CgroupId = CgroupId(10);
    const B: CgroupId = CgroupId(20);

    fn commit(tid: Tid, journal_bytes: u64) -> Record {
        Record::Commit(Commit {
            dev: FS,
            tid,
            begin_ns: 0,
            start_ns: 1,
            flush_ns: 0,
            log_ns: 0,
            end_ns: 2,
            journal_bytes,
            ordered_bytes: 0,
            requester: None,
            writer: None,
            block_bytes: 4096,
        })
    }

    fn fsync(tid: Tid, cgroup: CgroupId, start_ns: u64, end_ns: u64) -> Record {
        Record::Sync(Sync { dev: FS, tid, start_ns, end_ns, cgroup })
    }

    fn dirtied(tid: Tid, cgroup: CgroupId, blocks: u64) -> (ShareKey, u64) {
        (ShareKey { dev: FS, tid, kind: ShareKind::DirtiedBlocks, cgroup: Some(cgroup) }, blocks)
    }

    fn observer() -> Observer {
        let mut observer = Observer::default();
        observer.set_file_systems(HashMap::from([(FS, vec![DISK])]));
        observer
    }

    #[test]
    fn file_systems_on_the_same_disks_have_one_list_of_neighbours() {
        let fs = |minor| DevNo::new(253, minor);
        let other = DevNo::new(8, 16);
        let on_one = (0..1000).map(|minor| (fs(minor), vec![DISK]));
        let on_two = [(fs(1000), vec![DISK, other]), (fs(1001), vec![other]), (fs(1002), Vec::new())];
        let mut observer = Observer::default();
        observer.set_file_systems(on_one.chain(on_two).collect());
        let neighbours = |minor| &observer.below[&fs(minor)].1;
        assert!((1..1000).all(|minor| Arc::ptr_eq(neighbours(minor), neighbours(0))));
        let all: Vec<DevNo> = (0..1002).map(fs).collect();
        assert_eq!((&**neighbours(0), &**neighbours(1000)), (&all[..1001], &all[..]));
        assert_eq!((&**neighbours(1001), &**neighbours(1002)), (&all[1000..], &[fs(1002)][..]));
    }

    #[test]
    fn a_commit_waits_for_those_that_wanted_it() {
        let mut observer = observer();
        let Record::Commit(commit) = commit(7, 4 * 4096) else { unreachable!() };
        let commit = Record::Commit(Commit { start_ns: 1000, end_ns: 2000, writer: Some(ROOT), ..commit });
        let shares = vec![dirtied(7, A, 1), dirtied(7, B, 1)];
        // The last one needed nothing any more.
        let fsyncs = [fsync(7, B, 900, 2100), fsync(7, A, 1500, 2200), fsync(7, CgroupId(30), 2050, 2060)];
        let first =
            Batch { now_ns: 2150, records: vec![commit, fsyncs[0]], shares: shares.clone(), ..Batch::default() };
        assert_eq!(observer.step(first), []);
        assert_eq!(observer.pending_bytes().map(|(_, bytes)| bytes).sum::<u64>(), 4 * 4096);
        let records = vec![fsyncs[2], fsyncs[1]];
        let done =
            observer.step(Batch { now_ns: 2000 + AWAIT_NS, records, shares: shares.clone(), ..Batch::default() });
        assert_eq!(done, [shares[0].0, shares[1].0]);
        let paid = &observer.totals().journal_bytes;
        assert_eq!(paid, &BTreeMap::from([A, B].map(|owner| ((Some(owner), FS, Kind::Commit), 2 * 4096))));
        assert_eq!(observer.pending_bytes().map(|(_, bytes)| bytes).sum::<u64>(), 0);
        assert_eq!(observer.totals().native_bytes, BTreeMap::from([((ROOT, FS), 4 * 4096)]));
        observer.finish(Batch::default());
        assert_eq!(observer.totals().syncs.len(), 3);
        assert_eq!(observer.longest_waits(3000, 3000).waits[0].commits[0].requester, Some(B));
    }

    #[test]
    fn a_running_transaction_waits_and_a_committed_one_is_used_up() {
        let mut observer = observer();
        let shares = vec![dirtied(7, A, 1), dirtied(7, B, 2), dirtied(8, B, 1)];
        let done = observer.finish(Batch {
            records: vec![commit(7, 5 * 4096), fsync(7, A, 0, 3)],
            shares: shares.clone(),
            ..Batch::default()
        });
        assert_eq!(done, [shares[0].0, shares[1].0]);
        let paid = &observer.totals().journal_bytes;
        assert_eq!(paid[&(Some(A), FS, Kind::Commit)], 3 * 4096);
        assert_eq!(paid[&(Some(B), FS, Kind::Commit)], 2 * 4096);
        assert_eq!(observer.totals().commits[&FS], 1);
    }

    #[test]
    fn a_commit_that_was_not_seen_is_told_and_its_shares_do_not_stay() {
        let mut observer = observer();
        observer.finish(Batch { records: vec![commit(u32::MAX, 4096)], ..Batch::default() });
        // Number 0 follows: it is not over.
        let shares = vec![dirtied(u32::MAX - 1, A, 1), dirtied(0, A, 1)];
        let mut look = |now_ns| observer.step(Batch { now_ns, shares: shares.clone(), ..Batch::default() });
        assert_eq!((look(0), look(GIVE_UP_NS - 1)), (vec![], vec![]));
        assert_eq!(look(GIVE_UP_NS), [shares[0].0]);
        assert_eq!(observer.totals().unseen_commits, 1);
    }

    #[test]
    fn a_file_system_made_anew_on_the_same_device_begins_with_small_numbers() {
        let mut observer = observer();
        observer.finish(Batch { records: vec![commit(100, 4096)], ..Batch::default() });
        let shares = vec![dirtied(2, B, 3)];
        assert_eq!(observer.step(Batch { shares: shares.clone(), ..Batch::default() }), []);
        observer.finish(Batch { records: vec![commit(2, 3 * 4096)], shares, ..Batch::default() });
        assert_eq!(observer.totals().journal_bytes[&(Some(B), FS, Kind::Commit)], 3 * 4096);
    }

    #[test]
    fn writes_outside_commits_are_differences_of_sums() {
        let mut observer = observer();
        let write = |kind, sum| (WriteKey { dev: FS, kind, cgroup: Some(B) }, sum);
        let look = |writes| Batch { writes, ..Batch::default() };
        observer.step(look(vec![write(WriteKind::FastCommit, 8192), write(WriteKind::Checkpoint, 100)]));
        observer.step(look(vec![write(WriteKind::FastCommit, 12288)]));
        // Began anew.
        observer.step(look(vec![write(WriteKind::FastCommit, 4096), write(WriteKind::Superblock, 4096)]));
        let paid = &observer.totals().journal_bytes;
        assert_eq!(paid[&(Some(B), FS, Kind::FastCommit)], 4 * 4096);
        // The kernel charged B for what it wrote, but nobody knows whose blocks those were.
        assert_eq!(paid[&(None, FS, Kind::Checkpoint)], 100);
        // An unmounted file system's last superblock is nobody's.
        observer.set_file_systems(HashMap::new());
        assert_eq!(observer.totals().journal_bytes[&(None, FS, Kind::Commit)], 4096);
    }

    #[test]
    fn a_log_is_charged_to_those_in_its_closed_checkpoints() {
        let mut observer = observer();
        let logged =
            |tid, cgroup, bytes| (ShareKey { dev: FS, tid, kind: ShareKind::LoggedBytes, cgroup: Some(cgroup) }, bytes);
        let write = LogWrite {
            dev: FS,
            checkpoint: 7,
            at_ns: 5,
            requester: Some(A),
            active_bytes: 1 << 20,
            bytes: 8192,
            overhead_bytes: 4096,
            header_bytes: 0,
            record_bytes: 32768,
        };
        // The numbers wrap around; 8 still takes transactions.
        let shares = vec![logged(u32::MAX, A, 1000), logged(7, B, 5000), logged(8, B, 3000)];
        let native = (WriteKey { dev: FS, kind: WriteKind::Log, cgroup: Some(A) }, 8192);
        let checkpoint = (WriteKey { dev: FS, kind: WriteKind::Checkpoint, cgroup: Some(B) }, 600);
        let writes = vec![native, checkpoint];
        let look = Batch { shares: shares.clone(), writes, ..Batch::default() };
        let mut batch = Batch { records: vec![Record::Log(write)], ..Batch::default() };
        batch.merge(look);
        let mut done = observer.step(batch);
        done.sort();
        assert_eq!(done, [shares[1].0, shares[0].0]);
        let totals = observer.totals();
        let paid = &totals.journal_bytes;
        // A's old checkpoint is written for long: what is written now is B's, and who forced it pays the rest.
        assert_eq!((paid[&(Some(A), FS, Kind::Commit)], paid[&(Some(B), FS, Kind::Commit)]), (3192, 5000));
        assert_eq!(paid[&(Some(B), FS, Kind::Checkpoint)], 366);
        assert_eq!(totals.native_bytes, BTreeMap::from([((A, FS), 8192), ((B, FS), 600)]));
        assert_eq!((totals.commits[&FS], observer.devices()), (2, vec![FS]));
        observer.fold(A, B);
        assert_eq!(observer.totals().native_bytes, BTreeMap::from([((B, FS), 8792)]));
        observer.set_file_systems(HashMap::new());
        assert_eq!(observer.devices(), []);
    }

    #[test]
    fn waits_are_blamed_on_what_the_same_look_shows() {
        let mut observer = observer();
        observer.step(Batch { now_ns: 1_000_000, ..Batch::default() });
        let key = ServiceKey { dev: DISK, cgroup: Some(B), class: ServiceClass::Data };
        let service = Service { busy_ns: 9_000_000, read_bytes: 0, written_bytes: 1 << 20, requests: 3 };
        let sync = Sync { dev: FS, tid: 1, start_ns: 2_000_000, end_ns: 10_000_000, cgroup: A };
        let records = vec![Record::Sync(sync)];
        observer.finish(Batch { now_ns: 11_000_000, records, services: vec![(key, service)], ..Batch::default() });
        assert_eq!(observer.totals().blame_ns, BTreeMap::from([((A, Some(B)), 8_000_000)]));
        assert_eq!(observer.totals().syncs[&A].count(), 1);
        assert_eq!(observer.totals().service[&(Some(B), DISK)], service);
    }

    #[test]
    fn targets_follow_the_weights_of_those_that_are_active() {
        let mut observer = observer();
        let mut tree = Tree::default();
        tree.insert(A, ROOT, Weights::parse("300"));
        tree.insert(B, ROOT, Weights::parse("100"));
        observer.set_tree(tree);
        let busy = |cgroup, busy_ns, requests| {
            let key = ServiceKey { dev: DISK, cgroup, class: ServiceClass::Data };
            (key, Service { busy_ns, read_bytes: 0, written_bytes: 1, requests })
        };
        observer.step(Batch { services: vec![busy(Some(A), 100, 1), busy(Some(B), 700, 1)], ..Batch::default() });
        assert_eq!(observer.totals().target_ns, BTreeMap::from([((A, DISK), 600), ((B, DISK), 200)]));
        // Now B is alone, beside the root and flushes.
        let services = vec![busy(Some(A), 100, 1), busy(Some(B), 750, 2), busy(Some(ROOT), 50, 1), busy(None, 900, 1)];
        observer.step(Batch { services, ..Batch::default() });
        assert_eq!(observer.totals().target_ns, BTreeMap::from([((A, DISK), 600), ((B, DISK), 300)]));
        observer.fold(A, B);
        assert_eq!(observer.totals().target_ns, BTreeMap::from([((B, DISK), 900)]));
    }

    #[test]
    fn a_cgroup_that_is_gone_leaves_its_sums() {
        let mut observer = observer();
        observer.finish(Batch { records: vec![commit(7, 4096)], shares: vec![dirtied(7, A, 1)], ..Batch::default() });
        observer.sync(&Sync { dev: FS, tid: 7, start_ns: 0, end_ns: 1000, cgroup: A });
        observer.fold(A, B);
        let totals = observer.totals();
        assert_eq!(totals.journal_bytes, BTreeMap::from([((Some(B), FS, Kind::Commit), 4096)]));
        assert_eq!(totals.blame_ns.keys().copied().collect::<Vec<_>>(), [(B, Some(B))], "its own commit was the cause");
        assert_eq!(totals.syncs.keys().copied().collect::<Vec<_>>(), [B]);
    }
}
