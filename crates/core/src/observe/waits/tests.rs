use super::*;
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

fn sync(victim: u64, end_ns: u64, ns: u64) -> Sync {
    Sync { dev: DevNo::new(8, 1), tid: 1, start_ns: end_ns.saturating_sub(ns), end_ns, cgroup: CgroupId(victim) }
}

fn record(waits: &mut Waits, sync: Sync) {
    waits.record(&sync, &Blame::default(), std::iter::empty());
}

fn durations(found: &Longest<'_>) -> Vec<u64> {
    found.waits.iter().map(|wait| wait.duration_ns()).collect()
}

#[test]
fn the_longest_come_first_and_the_rest_is_counted() {
    let mut waits = Waits::default();
    for n in 0..1000 {
        record(&mut waits, sync(n % 100, 1000 * SECOND, n));
    }
    let found = waits.longest(1000 * SECOND, SECOND);
    assert_eq!(durations(&found), (936..1000).rev().collect::<Vec<_>>());
    assert_eq!((found.n_omitted, found.longest_omitted_ns), (936, 935));
}

#[test]
fn a_victim_of_its_own_writes_does_not_hide_others() {
    let mut waits = Waits::default();
    for n in 0..500 {
        record(&mut waits, sync(7, 500 * SECOND + n * SECOND / 2, SECOND + n));
    }
    record(&mut waits, sync(8, 600 * SECOND, 3));
    let found = waits.longest(750 * SECOND, MEMORY_NS);
    assert_eq!((found.waits.len(), found.waits[16].sync.cgroup), (17, CgroupId(8)));
    assert_eq!((found.n_omitted, found.longest_omitted_ns), (484, SECOND + 483));
}

#[test]
fn only_waits_that_ended_in_the_period_are_found() {
    let mut waits = Waits::default();
    for second in [100, 101, 115, 399] {
        record(&mut waits, sync(1, second * SECOND, second));
    }
    assert_eq!(durations(&waits.longest(400 * SECOND, 5 * SECOND)), [399]);
    assert_eq!(durations(&waits.longest(400 * SECOND, 299 * SECOND)), [399, 115, 101]);
    assert_eq!(durations(&waits.longest(400 * SECOND, u64::MAX)), [399, 115, 101, 100]);
    assert_eq!(durations(&waits.longest(4000 * SECOND, u64::MAX)), [0; 0]);
    // Waits that are too old are not kept.
    record(&mut waits, sync(1, 1000 * SECOND, 1));
    assert_eq!(waits.slots.len(), 1);
}

#[test]
fn a_wait_has_its_last_commits_and_its_largest_culprits() {
    let commit = |tid| Commit {
        dev: DevNo::new(8, 1),
        tid,
        begin_ns: 0,
        start_ns: 0,
        flush_ns: 0,
        log_ns: 0,
        end_ns: 0,
        journal_bytes: 0,
        ordered_bytes: 0,
        requester: None,
        writer: None,
        block_bytes: 4096,
    };
    let who = |id| Some(CgroupId(id));
    let blame = Blame {
        causes: (1..=20).map(|id| ((who(id), Cause::Queue), id * 10)).chain([((None, Cause::Flush), 500)]).collect(),
        device_ns: 2600,
        commit_ns: 0,
        bytes: [((who(20), Cause::Ordered), 7), ((who(1), Cause::Journal), 9)].into(),
    };
    let mut waits = Waits::default();
    let commits: Vec<Commit> = (1..=10).map(commit).collect();
    waits.record(&sync(1, SECOND, 2600), &blame, commits.iter());
    let found = waits.longest(SECOND, SECOND);
    let wait = found.waits[0];
    assert_eq!((wait.n_commits, wait.commits.first().map(|commit| commit.tid)), (10, Some(3)));
    assert_eq!((wait.culprits.len(), wait.n_others), (16, 5));
    assert_eq!((wait.culprits[0].cgroup, wait.culprits[0].part.ns), (None, [0, 0, 0, 500, 0]));
    assert_eq!((wait.culprits[1].cgroup, wait.culprits[1].part.ordered_bytes), (who(20), 7));
    assert_eq!((wait.others.total_ns(), wait.others.journal_bytes), (150, 9));
}

proptest! {
    #[test]
    fn memory_is_bounded_and_every_wait_is_kept_or_counted(
        syncs in proptest::collection::vec((0u64..40, 0u64..20 * SECOND, 0u64..SECOND), 0..600)
    ) {
        let mut waits = Waits::default();
        let n_syncs = syncs.len();
        for (victim, end_ns, ns) in syncs {
            record(&mut waits, sync(victim, end_ns, ns.min(end_ns)));
        }
        prop_assert!(waits.slots.len() <= 2 && waits.slots.values().all(|slot| slot.waits.len() <= MAX_WAITS));
        let found = waits.longest(20 * SECOND, MEMORY_NS);
        prop_assert_eq!(found.waits.len() + usize::try_from(found.n_omitted).unwrap(), n_syncs);
        prop_assert!(durations(&found).is_sorted_by(|a, b| a >= b));
    }
}
