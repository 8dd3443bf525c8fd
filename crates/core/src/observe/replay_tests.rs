//! Replays a trace of a real kernel: three containers on one ext4 with an external journal (`attribution` experiment,
//! all three together, 12 s, Linux 6.12 in a virtual machine, with fentry programs). The first line has the bytes of
//! the device.

use std::collections::{BTreeMap, HashMap};

use expect_test::expect;

use super::observer::Observer;
use super::record::{Batch, CgroupId, Commit, Kind, Record, ShareKey, ShareKind, Sync, WriteKey, WriteKind};
use crate::units::DevNo;

const TRACE: &str = include_str!("testdata/attribution-6.12.trace");

/// Commit bytes by owner.
type Charges = BTreeMap<Option<CgroupId>, u64>;

fn parse(trace: &str) -> (u64, Vec<Batch>) {
    let mut lines = trace.lines();
    let bytes = lines.next().unwrap().rsplit(' ').next().unwrap().parse().unwrap();
    let mut batches: Vec<Batch> = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let tid = |at: usize| u32::try_from(number(at)).unwrap();
        let cgroup = |at: usize| (number(at) != 0).then_some(CgroupId(number(at)));
        if words[0] == "look" {
            batches.push(Batch { now_ns: number(1), ..Batch::default() });
            continue;
        }
        let batch = batches.last_mut().unwrap();
        let dev: DevNo = words[1].parse().unwrap();
        match words[0] {
            "commit" => batch.records.push(Record::Commit(Commit {
                dev,
                tid: tid(2),
                begin_ns: number(3),
                start_ns: number(4),
                flush_ns: number(5),
                log_ns: number(6),
                end_ns: number(7),
                journal_bytes: number(8),
                ordered_bytes: number(9),
                requester: None,
                writer: None,
                block_bytes: tid(10),
            })),
            "sync" => batch.records.push(Record::Sync(Sync {
                dev,
                tid: tid(2),
                start_ns: number(3),
                end_ns: number(4),
                cgroup: CgroupId(number(5)),
            })),
            "dropped" => batch.records.push(Record::Dropped { dev, tid: tid(2) }),
            "share" => {
                let kind = match words[3] {
                    "dirtied" => ShareKind::DirtiedBlocks,
                    "again" => ShareKind::AgainBlocks { since: tid(4) },
                    "ceded" => ShareKind::CededSixths,
                    "joined" => ShareKind::JoinedSixths,
                    other => panic!("{other}"),
                };
                batch.shares.push((ShareKey { dev, tid: tid(2), kind, cgroup: cgroup(5) }, number(6)));
            }
            "write" => {
                let kind = match words[2] {
                    "Superblock" => WriteKind::Superblock,
                    "Checkpoint" => WriteKind::Checkpoint,
                    other => panic!("{other}"),
                };
                batch.writes.push((WriteKey { dev, kind, cgroup: cgroup(3) }, number(4)));
            }
            other => panic!("{other}"),
        }
    }
    (bytes, batches)
}

/// The charges, and bytes that are not charged yet.
fn replay(mut batches: Vec<Batch>) -> (Charges, u64) {
    let mut observer = Observer::default();
    let devs = batches.iter().flat_map(|batch| batch.shares.iter().map(|(key, _)| (key.dev, Vec::new())));
    observer.set_file_systems(devs.collect());
    let last = batches.pop().unwrap();
    for batch in batches {
        observer.step(batch);
    }
    observer.finish(last);
    assert_eq!(observer.totals().unseen_commits, 0);
    let mut charges = Charges::new();
    for ((owner, _, kind), bytes) in &observer.totals().journal_bytes {
        if *kind == Kind::Commit {
            *charges.entry(*owner).or_default() += bytes;
        }
    }
    (charges, observer.pending_bytes().map(|(_, bytes)| bytes).sum())
}

#[test]
fn a_recorded_trace_is_charged_to_the_byte() {
    let (bytes, batches) = parse(TRACE);
    let (charges, pending) = replay(batches);
    assert_eq!(charges.values().sum::<u64>() + pending, bytes);
    assert_eq!(charges.get(&None), None);
    // fsyncs, storm, seldom.
    expect![[r#"
        {
            Some(
                CgroupId(
                    69,
                ),
            ): 4450485,
            Some(
                CgroupId(
                    110,
                ),
            ): 2322151,
            Some(
                CgroupId(
                    151,
                ),
            ): 661604,
        }
    "#]]
    .assert_debug_eq(&charges);
}

#[test]
fn the_polling_interval_does_not_change_charges() {
    let (_, batches) = parse(TRACE);
    let (mut shares, mut writes) = (HashMap::new(), HashMap::new());
    let mut all = Batch { now_ns: batches.last().unwrap().now_ns, ..Batch::default() };
    for batch in batches.clone() {
        all.records.extend(batch.records);
        shares.extend(batch.shares);
        writes.extend(batch.writes);
    }
    (all.shares, all.writes) = (shares.into_iter().collect(), writes.into_iter().collect());
    assert_eq!(replay(vec![all]).0, replay(batches).0);
}
