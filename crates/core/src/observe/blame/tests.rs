use super::ServiceClass::{Data, Flush, Meta};
use super::*;
use proptest::prelude::*;

const DISK: DevNo = DevNo::new(8, 0);
const FS: DevNo = DevNo::new(8, 1);
const OTHER_FS: DevNo = DevNo::new(8, 2);
const A: CgroupId = CgroupId(10);
const B: CgroupId = CgroupId(20);
const MS: u64 = 1_000_000;

fn commit(dev: DevNo, start_ms: u64, end_ms: u64) -> Commit {
    Commit {
        dev,
        tid: 1,
        begin_ns: 0,
        start_ns: start_ms * MS,
        flush_ns: 0,
        log_ns: 0,
        end_ns: end_ms * MS,
        journal_bytes: 0,
        ordered_bytes: 0,
        requester: None,
        writer: None,
        block_bytes: 4096,
    }
}

fn of(parts: &[(Option<CgroupId>, u64)]) -> Parts {
    parts.iter().copied().collect()
}

/// Blocks in a commit, by owner.
fn blocks(parts: &[(Option<CgroupId>, u64)]) -> Causers {
    parts.iter().map(|&(owner, bytes)| ((owner, Cause::Journal), bytes)).collect()
}

/// Blame by cgroup, over all causes.
fn culprits(blame: &Blame) -> Parts {
    let mut culprits = Parts::new();
    for (&(culprit, _), ns) in &blame.causes {
        *culprits.entry(culprit).or_default() += ns;
    }
    culprits
}

/// Device time in ms, with the same number of bytes written.
fn busy(cgroup: Option<CgroupId>, class: ServiceClass, ms: u64) -> (ServiceKey, Service) {
    let service = Service { busy_ns: ms * MS, read_bytes: 0, written_bytes: ms, requests: 1 };
    (ServiceKey { dev: DISK, cgroup, class }, service)
}

fn sync(start_ms: u64, end_ms: u64) -> Sync {
    Sync { dev: FS, tid: 1, start_ns: start_ms * MS, end_ns: end_ms * MS, cgroup: A }
}

#[test]
fn time_on_a_busy_device_is_blamed_on_those_it_served() {
    let mut causes = Causes::default();
    causes.commit(commit(FS, 100, 190), blocks(&[(Some(A), 4096)]));
    causes.interval(0, 200 * MS, &[busy(Some(A), Data, 20), busy(Some(B), Data, 160)]);
    let blame = causes.blame(&sync(100, 190), &[DISK], &[FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 10 * MS), (Some(B), 80 * MS)]));
    assert_eq!((blame.device_ns, blame.commit_ns), (90 * MS, 0));
}

#[test]
fn device_time_of_a_journal_is_blamed_on_owners_in_the_commits() {
    let mut causes = Causes::default();
    causes.commit(commit(FS, 0, 50), blocks(&[(Some(A), 1)]));
    causes.commit(commit(OTHER_FS, 0, 50), blocks(&[(Some(B), 3)]));
    causes.interval(0, 100 * MS, &[busy(Some(ROOT), Meta, 80)]);
    let blame = causes.blame(&sync(0, 80), &[DISK], &[FS, OTHER_FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 20 * MS), (Some(B), 60 * MS)]));
}

#[test]
fn device_time_of_a_log_is_blamed_on_owners_in_its_writes() {
    let mut causes = Causes::default();
    let write = LogWrite {
        dev: OTHER_FS,
        checkpoint: 1,
        at_ns: 40 * MS,
        requester: None,
        active_bytes: 0,
        bytes: 3,
        overhead_bytes: 0,
        header_bytes: 0,
        record_bytes: 0,
    };
    causes.commit(commit(FS, 0, 50), blocks(&[(Some(A), 1)]));
    causes.log_write(&write, blocks(&[(Some(B), 3)]));
    causes.log_write(&LogWrite { at_ns: 80 * MS, ..write }, blocks(&[(Some(B), 30)]));
    causes.interval(0, 100 * MS, &[busy(Some(ROOT), Meta, 80)]);
    let blame = causes.blame(&sync(0, 80), &[DISK], &[FS, OTHER_FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 20 * MS), (Some(B), 60 * MS)]));
    assert_eq!(causes.commits_of(&Sync { dev: OTHER_FS, ..sync(0, 80) }).count(), 0);
}

#[test]
fn a_flush_is_blamed_on_those_that_filled_the_cache() {
    let mut causes = Causes::default();
    causes.commit(commit(FS, 0, 100), blocks(&[(Some(A), 1)]));
    let served = [busy(Some(A), Data, 10), busy(Some(B), Data, 30), busy(None, Flush, 60)];
    causes.interval(0, 100 * MS, &served);
    assert_eq!(culprits(&causes.blame(&sync(0, 100), &[DISK], &[FS])), of(&[(Some(A), 25 * MS), (Some(B), 75 * MS)]));
}

#[test]
fn a_long_request_belongs_to_the_time_before_its_end() {
    let mut causes = Causes::default();
    causes.interval(0, 100 * MS, &[]);
    causes.interval(100 * MS, 200 * MS, &[busy(Some(A), Data, 40)]);
    causes.interval(200 * MS, 300 * MS, &[]);
    // It took from 120 to 380 ms; 40 ms in between were A's.
    causes.interval(300 * MS, 400 * MS, &[busy(Some(B), Data, 260)]);
    let blame = causes.blame(&sync(100, 200), &[DISK], &[FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 40 * MS), (Some(B), 60 * MS)]));
    assert_eq!(causes.blame(&sync(0, 100), &[DISK], &[FS]).device_ns, 0);
    assert_eq!(culprits(&causes.blame(&sync(200, 300), &[DISK], &[FS])), of(&[(Some(B), 100 * MS)]));
}

#[test]
fn while_the_device_is_idle_the_commit_itself_is_the_cause() {
    let mut causes = Causes::default();
    causes.commit(commit(FS, 0, 100), blocks(&[(Some(A), 1), (Some(B), 9)]));
    causes.interval(0, 200 * MS, &[busy(Some(B), Data, 20)]);
    let blame = causes.blame(&sync(0, 100), &[DISK], &[FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 8 * MS), (Some(B), 92 * MS)]));
    assert_eq!((blame.device_ns, blame.commit_ns), (20 * MS, 80 * MS));
}

#[test]
fn a_wait_without_a_cause_is_unexplained() {
    let mut causes = Causes::default();
    causes.commit(commit(OTHER_FS, 0, 100), blocks(&[(Some(B), 9)]));
    causes.commit(commit(FS, 200, 300), blocks(&[(Some(B), 9)]));
    let (key, service) = busy(Some(B), Data, 50);
    causes.interval(0, 50 * MS, &[(ServiceKey { dev: DevNo::new(9, 9), ..key }, service)]);
    assert_eq!(culprits(&causes.blame(&sync(0, 100), &[DISK], &[FS])), of(&[(None, 100 * MS)]));
    assert_eq!(culprits(&causes.blame(&sync(0, 0), &[DISK], &[FS])), Parts::new());
}

#[test]
fn old_causes_are_evicted() {
    let mut causes = Causes::default();
    for second in 0..200 {
        causes.commit(commit(FS, second * 1000, second * 1000 + 1), Causers::new());
        causes.interval(second * 1000 * MS, (second + 1) * 1000 * MS, &[]);
    }
    assert!(causes.commits[&FS].len() < 64 && causes.intervals.len() < 64);
    assert_eq!(causes.n_commits, causes.commits[&FS].len());
}

#[test]
fn the_oldest_commits_are_evicted_first() {
    let mut causes = Causes::default();
    causes.commit(commit(OTHER_FS, 0, 1), Causers::new());
    let n_commits = u64::try_from(MAX_COMMITS).unwrap();
    for n in 1..=n_commits {
        causes.commit(commit(FS, n, n + 1), Causers::new());
    }
    assert_eq!((causes.n_commits, causes.commits.len()), (MAX_COMMITS, 1));
    assert_eq!(causes.commits[&FS].len(), MAX_COMMITS);
}

#[test]
fn a_wait_is_for_the_commits_up_to_the_one_that_it_needed() {
    let mut causes = Causes::default();
    let numbered = |tid, start_ms, end_ms| Commit { tid, ..commit(FS, start_ms, end_ms) };
    causes.commit(numbered(u32::MAX - 1, 0, 10), blocks(&[(Some(B), 1)]));
    causes.commit(numbered(u32::MAX, 10, 60), blocks(&[(Some(B), 1)]));
    causes.commit(numbered(0, 60, 90), blocks(&[(Some(A), 1)]));
    causes.commit(numbered(1, 90, 200), blocks(&[(Some(B), 1)]));
    let sync = Sync { tid: 0, ..sync(10, 100) };
    let tids: Vec<_> = causes.commits_of(&sync).map(|commit| commit.tid).collect();
    assert_eq!(tids, [u32::MAX, 0]);
    let blame = causes.blame(&sync, &[DISK], &[FS]);
    assert_eq!(culprits(&blame), of(&[(Some(A), 45 * MS), (Some(B), 45 * MS)]));
    assert_eq!(blame.bytes, blocks(&[(Some(A), 1), (Some(B), 1)]));
}

#[test]
fn blame_names_culprits_and_causes() {
    let mut causes = Causes::default();
    let mut bytes = blocks(&[(Some(A), 20)]);
    bytes.insert((Some(B), Cause::Ordered), 10);
    causes.commit(commit(FS, 0, 100), bytes);
    // 40 bytes of B's data were written in the time, 10 of them for the commit.
    let served = [busy(Some(B), Data, 40), busy(Some(ROOT), Meta, 10), busy(None, Flush, 20)];
    causes.interval(0, 100 * MS, &served);
    let blame = causes.blame(&sync(0, 100), &[DISK], &[FS]);
    let expected = [
        ((Some(A), Cause::Journal), 10 + 20),
        ((Some(A), Cause::Flush), 4),
        ((Some(B), Cause::Ordered), 10 + 10),
        ((Some(B), Cause::Queue), 30),
        ((Some(B), Cause::Flush), 16),
    ];
    let sums: Vec<_> = blame.causes.iter().map(|(key, ns)| (*key, (ns + MS / 2) / MS)).collect();
    assert_eq!(sums, expected);
    assert_eq!(blame.causes.values().sum::<u64>(), 100 * MS);
    assert_eq!((blame.device_ns, blame.commit_ns), (70 * MS, 30 * MS));
}

proptest! {
    #[test]
    fn causes_sum_to_the_wait(
        commits in proptest::collection::vec((0u64..4, 1u64..50, 0u64..1000, 0u64..1000), 0..20),
        looks in proptest::collection::vec((0u64..4, 0usize..3, 0u64..500), 0..20),
        start_ms in 0u64..1000, wait_ms in 0u64..1000, tid: u32,
    ) {
        let mut causes = Causes::default();
        let mut at = 0;
        for (gap, length, journal, ordered) in commits {
            let commit = Commit { tid: tid.wrapping_sub(3), ..commit(FS, at + gap, at + gap + length) };
            at += gap + length;
            causes.commit(commit, [((Some(A), Cause::Journal), journal), ((None, Cause::Ordered), ordered)].into());
        }
        for (n, (owner, class, ms)) in looks.into_iter().enumerate() {
            let start_ns = u64::try_from(n).unwrap() * 200 * MS;
            let owner = (owner > 0).then_some(CgroupId(owner));
            causes.interval(start_ns, start_ns + 200 * MS, &[busy(owner, [Data, Meta, Flush][class], ms)]);
        }
        let sync = Sync { tid, ..sync(start_ms, start_ms + wait_ms) };
        let blame = causes.blame(&sync, &[DISK], &[FS]);
        prop_assert_eq!(blame.causes.values().sum::<u64>(), wait_ms * MS);
        prop_assert!(blame.device_ns + blame.commit_ns <= wait_ms * MS);
    }
}
