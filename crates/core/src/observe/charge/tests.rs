use super::*;
use crate::units::DevNo;
use proptest::prelude::*;

const A: Option<CgroupId> = Some(CgroupId(1));
const B: Option<CgroupId> = Some(CgroupId(2));
const C: Option<CgroupId> = Some(CgroupId(3));

fn commit(journal_bytes: u64, ordered_bytes: u64) -> Commit {
    Commit {
        dev: DevNo::new(8, 1),
        tid: 7,
        begin_ns: 0,
        start_ns: 0,
        flush_ns: 0,
        log_ns: 0,
        end_ns: 1,
        journal_bytes,
        ordered_bytes,
        requester: None,
        writer: None,
        block_bytes: 4096,
    }
}

fn wanted_by(owners: &[Option<CgroupId>]) -> Waiters {
    owners.iter().copied().flatten().collect()
}

fn of(parts: &[(Option<CgroupId>, u64)]) -> Parts {
    parts.iter().copied().collect()
}

fn paid(charges: &[Charge], kind: Kind) -> Vec<(Option<CgroupId>, u64)> {
    charges.iter().filter(|c| c.kind == kind).map(|c| (c.cgroup, c.bytes)).collect()
}

#[test]
fn owners_pay_their_blocks_and_the_requester_pays_the_rest() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 1), (B, 5)]), ..Transaction::default() };
    let mut journal = Journal::default();
    journal.superblock(4096);
    let charges = journal.commit(&commit(8 * 4096, 0), parts, wanted_by(&[A]), true);
    // Descriptor and commit block, and the superblock.
    assert_eq!(paid(&charges, Kind::Commit), [(A, 4 * 4096), (B, 5 * 4096)]);
}

#[test]
fn a_commit_by_the_timer_is_paid_in_proportion_and_an_empty_one_has_no_payer() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 1), (B, 3)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(6 * 4096, 0), parts, Waiters::new(), true);
    assert_eq!(paid(&charges, Kind::Commit), [(A, 6 * 1024), (B, 18 * 1024)]);
    let charges = Journal::default().commit(&commit(4096, 0), Transaction::default(), Waiters::new(), true);
    assert_eq!(paid(&charges, Kind::Commit), [(None, 4096)]);
}

#[test]
fn bytes_from_before_the_observation_are_not_charged_to_the_requester() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 1)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(100 * 4096, 0), parts, wanted_by(&[A]), false);
    assert_eq!(paid(&charges, Kind::Commit), [(None, 99 * 4096), (A, 4096)]);
}

#[test]
fn blocks_that_were_never_written_cost_nothing() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 6), (B, 2)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(4 * 4096, 0), parts, wanted_by(&[A]), true);
    assert_eq!(paid(&charges, Kind::Commit), [(A, 3 * 4096), (B, 4096)]);
}

#[test]
fn waiters_share_the_fixed_blocks_of_a_commit() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 1), (B, 5)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(8 * 4096, 0), parts, wanted_by(&[A, B]), true);
    assert_eq!(paid(&charges, Kind::Commit), [(A, 2 * 4096), (B, 6 * 4096)]);
}

#[test]
fn further_descriptors_are_paid_like_the_blocks_they_describe() {
    let parts = Transaction { dirtied_blocks: of(&[(A, 2), (B, 6)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(14 * 4096, 0), parts, wanted_by(&[A]), true);
    assert_eq!(paid(&charges, Kind::Commit), [(A, 5 * 4096), (B, 9 * 4096)]);
}

#[test]
fn a_block_dirtied_by_several_is_split_equally() {
    let parts = Transaction {
        dirtied_blocks: of(&[(A, 3)]),
        ceded_sixths: of(&[(A, 3)]),
        joined_sixths: of(&[(B, 3)]),
        ..Transaction::default()
    };
    let charges = Journal::default().commit(&commit(3 * 4096, 0), parts, Waiters::new(), true);
    assert_eq!(paid(&charges, Kind::Commit), [(A, 5 * 2048), (B, 2048)]);
}

#[test]
fn a_block_logged_again_is_also_paid_by_waiters_of_commits_in_between() {
    let logged_again = |between: &[Option<CgroupId>]| {
        let mut journal = Journal::default();
        let before = Commit { tid: u32::MAX, ..commit(0, 0) };
        journal.commit(&before, Transaction::default(), wanted_by(between), true);
        let parts = Transaction {
            dirtied_blocks: of(&[(B, 6)]),
            again_blocks: BTreeMap::from([(u32::MAX, of(&[(B, 6)]))]),
            ..Transaction::default()
        };
        let commit = Commit { tid: 0, ..commit(6 * 4096, 0) };
        // A wait for it is a wait for B's blocks.
        assert_eq!(carried(&commit, &parts, &Waiters::new(), true), of(&[(B, 6 * 4096)]));
        paid(&journal.commit(&commit, parts, Waiters::new(), true), Kind::Commit)
    };
    assert_eq!(logged_again(&[]), [(B, 6 * 4096)], "the timer");
    assert_eq!(logged_again(&[A]), [(A, 3 * 4096), (B, 3 * 4096)]);
    assert_eq!(logged_again(&[A, C]), [(A, 4096), (B, 4 * 4096), (C, 4096)]);
    assert_eq!(logged_again(&[A, B]), [(B, 6 * 4096)], "its own commit, too");
}

#[test]
fn waiters_of_a_previous_file_system_pay_nothing_for_the_next() {
    let mut journal = Journal::default();
    for tid in 3..8 {
        journal.commit(&Commit { tid, ..commit(0, 0) }, Transaction::default(), wanted_by(&[A]), true);
    }
    journal.commit(&Commit { tid: 2, ..commit(0, 0) }, Transaction::default(), Waiters::new(), true);
    let again_blocks = BTreeMap::from([(2, of(&[(B, 6)]))]);
    let parts = Transaction { dirtied_blocks: of(&[(B, 6)]), again_blocks, ..Transaction::default() };
    let charges = journal.commit(&Commit { tid: 5, ..commit(6 * 4096, 0) }, parts, Waiters::new(), true);
    assert_eq!(paid(&charges, Kind::Commit), [(B, 6 * 4096)]);
}

#[test]
fn ordered_data_without_an_owner_stays_unattributed() {
    let parts = Transaction { ordered_bytes: of(&[(B, 3 << 20)]), ..Transaction::default() };
    let charges = Journal::default().commit(&commit(0, 4 << 20), parts, wanted_by(&[A]), true);
    let mut ordered = paid(&charges, Kind::Ordered);
    ordered.sort();
    assert_eq!(ordered, [(None, 1 << 20), (B, 3 << 20)]);
}

#[test]
fn a_checkpoint_is_split_like_uncheckpointed_blocks() {
    let mut journal = Journal::default();
    let parts = |a, b| Transaction { dirtied_blocks: of(&[(A, a), (B, b)]), ..Transaction::default() };
    journal.commit(&Commit { tid: u32::MAX, ..commit(8192, 0) }, parts(1, 1), wanted_by(&[A]), true);
    journal.commit(&Commit { tid: 0, ..commit(8192, 0) }, parts(0, 2), wanted_by(&[A]), true);
    assert_eq!(paid(&journal.checkpoint(4096), Kind::Checkpoint), [(A, 1024), (B, 3072)]);
    journal.drop_transaction(u32::MAX);
    assert_eq!(paid(&journal.checkpoint(4096), Kind::Checkpoint), [(B, 4096)]);
    journal.drop_transaction(0);
    assert_eq!(paid(&journal.checkpoint(4096), Kind::Checkpoint), [(None, 4096)]);
}

#[test]
fn memory_is_bounded_and_no_owner_is_lost() {
    let mut journal = Journal::default();
    for tid in 0..3000 {
        let parts = Transaction {
            dirtied_blocks: of(&[(A, u64::from(tid < 1500)), (B, u64::from(tid >= 1500))]),
            ..Transaction::default()
        };
        journal.commit(&Commit { tid, ..commit(8192, 0) }, parts, wanted_by(&[A]), true);
    }
    assert!(journal.uncheckpointed.len() <= MAX_UNCHECKPOINTED);
    let mut checkpoint = paid(&journal.checkpoint(3000), Kind::Checkpoint);
    checkpoint.sort();
    assert_eq!(checkpoint, [(A, 1500), (B, 1500)]);
}

fn any_parts() -> impl Strategy<Value = Parts> {
    let owner = prop_oneof![Just(None), (1u64..6).prop_map(|id| Some(CgroupId(id)))];
    proptest::collection::btree_map(owner, prop_oneof![0u64..100, any::<u32>().prop_map(u64::from)], 0..6)
}

proptest! {
    #[test]
    fn charges_sum_to_the_bytes_of_the_device(
        dirtied_blocks in any_parts(), ceded_sixths in any_parts(), joined_sixths in any_parts(), again in any_parts(),
        ordered_bytes in any_parts(), superblock in 0u64..100_000, journal_bytes in 0u64..1 << 40, ordered in 0u64..1 << 40,
        before in proptest::collection::btree_set((1u64..4).prop_map(CgroupId), 0..3),
        waiters in proptest::collection::btree_set((1u64..4).prop_map(CgroupId), 0..3), seen_whole: bool,
    ) {
        let mut journal = Journal::default();
        journal.commit(&Commit { tid: 6, ..commit(0, 0) }, Transaction::default(), before, true);
        journal.superblock(superblock);
        let again_blocks = BTreeMap::from([(6, again)]);
        let parts = Transaction { dirtied_blocks, ceded_sixths, joined_sixths, again_blocks, ordered_bytes };
        let charges = journal.commit(&commit(journal_bytes, ordered), parts, waiters, seen_whole);
        let sum = |kind| charges.iter().filter(|c| c.kind == kind).map(|c| c.bytes).sum::<u64>();
        prop_assert_eq!(sum(Kind::Commit), journal_bytes + superblock);
        prop_assert_eq!(sum(Kind::Ordered), ordered);
        let checkpoint: u64 = journal.checkpoint(journal_bytes).iter().map(|c| c.bytes).sum();
        prop_assert_eq!(checkpoint, journal_bytes);
    }

    #[test]
    fn a_split_is_exact_and_fair(total in 0u64..u64::MAX / 2, parts in any_parts()) {
        let split = pro_rata(total, &parts);
        let sum: u128 = parts.values().map(|&part| u128::from(part)).sum();
        prop_assert_eq!(split.values().sum::<u64>(), if sum == 0 { 0 } else { total });
        for (owner, part) in split {
            let exact = u128::from(total) * u128::from(parts[&owner]) / sum;
            prop_assert!(u128::from(part) - exact <= 1);
        }
    }
}
