//! Tests of the totals after a sequence of batches.

use super::*;
use crate::observe::blame::ROOT;
use crate::observe::shares::Weights;

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
fn file_systems_on_the_same_disks_share_one_list_of_neighbours() {
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
fn a_commit_is_charged_when_records_of_its_waiters_are_complete() {
    let mut observer = observer();
    let Record::Commit(commit) = commit(7, 4 * 4096) else { unreachable!() };
    let commit = Record::Commit(Commit { start_ns: 1000, end_ns: 2000, writer: Some(ROOT), ..commit });
    let shares = vec![dirtied(7, A, 1), dirtied(7, B, 1)];
    // The last one did not need the commit any more.
    let fsyncs = [fsync(7, B, 900, 2100), fsync(7, A, 1500, 2200), fsync(7, CgroupId(30), 2050, 2060)];
    let first = Batch { now_ns: 2150, records: vec![commit, fsyncs[0]], shares: shares.clone(), ..Batch::default() };
    assert_eq!(observer.step(first), []);
    assert_eq!(observer.pending_bytes().map(|(_, bytes)| bytes).sum::<u64>(), 4 * 4096);
    let records = vec![fsyncs[2], fsyncs[1]];
    let done = observer.step(Batch { now_ns: 2000 + AWAIT_NS, records, shares: shares.clone(), ..Batch::default() });
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
fn an_unobserved_commit_is_counted_and_its_shares_are_evicted() {
    let mut observer = observer();
    observer.finish(Batch { records: vec![commit(u32::MAX, 4096)], ..Batch::default() });
    // Number 0 follows: it is not over.
    let shares = vec![dirtied(u32::MAX - 1, A, 1), dirtied(0, A, 1)];
    let mut batch = |now_ns| observer.step(Batch { now_ns, shares: shares.clone(), ..Batch::default() });
    assert_eq!((batch(0), batch(GIVE_UP_NS - 1)), (vec![], vec![]));
    assert_eq!(batch(GIVE_UP_NS), [shares[0].0]);
    assert_eq!(observer.totals().unseen_commits, 1);
}

#[test]
fn a_recreated_file_system_may_start_with_small_transaction_numbers() {
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
    let batch = |writes| Batch { writes, ..Batch::default() };
    observer.step(batch(vec![write(WriteKind::FastCommit, 8192), write(WriteKind::Checkpoint, 100)]));
    observer.step(batch(vec![write(WriteKind::FastCommit, 12288)]));
    // Restarted.
    observer.step(batch(vec![write(WriteKind::FastCommit, 4096), write(WriteKind::Superblock, 4096)]));
    let paid = &observer.totals().journal_bytes;
    assert_eq!(paid[&(Some(B), FS, Kind::FastCommit)], 4 * 4096);
    // The kernel charged B for the write, but the owner of the blocks is unknown.
    assert_eq!(paid[&(None, FS, Kind::Checkpoint)], 100);
    // The last superblock of an unmounted file system has no owner.
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
    // The numbers wrap around; 8 is still open.
    let shares = vec![logged(u32::MAX, A, 1000), logged(7, B, 5000), logged(8, B, 3000)];
    let native = (WriteKey { dev: FS, kind: WriteKind::Log, cgroup: Some(A) }, 8192);
    let checkpoint = (WriteKey { dev: FS, kind: WriteKind::Checkpoint, cgroup: Some(B) }, 600);
    let writes = vec![native, checkpoint];
    let sums = Batch { shares: shares.clone(), writes, ..Batch::default() };
    let mut batch = Batch { records: vec![Record::Log(write)], ..Batch::default() };
    batch.merge(sums);
    let mut done = observer.step(batch);
    done.sort();
    assert_eq!(done, [shares[1].0, shares[0].0]);
    let totals = observer.totals();
    let paid = &totals.journal_bytes;
    // A's old checkpoint was written long ago: this write is B's, and the cgroup that forced it pays the rest.
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
fn waits_are_blamed_on_service_in_the_same_batch() {
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
    // Now B is alone, apart from the root and flushes.
    let services = vec![busy(Some(A), 100, 1), busy(Some(B), 750, 2), busy(Some(ROOT), 50, 1), busy(None, 900, 1)];
    observer.step(Batch { services, ..Batch::default() });
    assert_eq!(observer.totals().target_ns, BTreeMap::from([((A, DISK), 600), ((B, DISK), 300)]));
    observer.fold(A, B);
    assert_eq!(observer.totals().target_ns, BTreeMap::from([((B, DISK), 900)]));
}

#[test]
fn the_sums_of_a_removed_cgroup_are_kept() {
    let mut observer = observer();
    observer.finish(Batch { records: vec![commit(7, 4096)], shares: vec![dirtied(7, A, 1)], ..Batch::default() });
    observer.blame_fsync(&Sync { dev: FS, tid: 7, start_ns: 0, end_ns: 1000, cgroup: A });
    observer.fold(A, B);
    let totals = observer.totals();
    assert_eq!(totals.journal_bytes, BTreeMap::from([((Some(B), FS, Kind::Commit), 4096)]));
    assert_eq!(totals.blame_ns.keys().copied().collect::<Vec<_>>(), [(B, Some(B))], "its own commit was the cause");
    assert_eq!(totals.syncs.keys().copied().collect::<Vec<_>>(), [B]);
}
