//! Against this host's kernel, where it permits BPF.

use std::collections::BTreeMap;

use bulkhead_core::observe::Observer;
use bulkhead_core::observe::record::{CgroupId, Kind};
use rustix::fs::{Mode, mkdirat};

use super::*;
use crate::scratch::{Scratch, ScratchError};

/// Bytes that an XFS has written to its log, by its own counter (`xs_log_blocks`, in blocks of 512 bytes).
fn logged(roots: &Roots, dev: DevNo) -> u64 {
    let name = block::name_of(roots, dev).unwrap();
    let stats = std::fs::read_to_string(roots.sys.join("fs/xfs").join(name).join("stats/stats")).unwrap();
    let log = stats.lines().find(|line| line.starts_with("log ")).unwrap();
    log.split(' ').nth(2).unwrap().parse::<u64>().unwrap() * 512
}

/// Writes to a scratch file system; returns the tracer's charges, and the bytes counted by the log's device and by XFS itself.
fn exercise(make: fn(&Roots) -> Result<Scratch, ScratchError>) -> Option<(BTreeMap<Kind, Charged>, u64, u64)> {
    let roots = Roots::host();
    let scratch = match make(&roots) {
        Ok(scratch) => scratch,
        Err(error) => {
            println!("skipped: {error}: {:?}", std::error::Error::source(&error));
            return None;
        }
    };
    assert!(file_systems(&roots).contains(&scratch.fs_dev()));
    let mut tracer = match Tracer::load_xfs() {
        Ok(tracer) => tracer,
        Err(error) => {
            println!("skipped: {error}: {:?}", std::error::Error::source(&error));
            return None;
        }
    };
    scratch.settle().unwrap();
    tracer.attach().unwrap();
    tracer.add_journals(&[scratch.fs_dev()]).unwrap();
    let device = || scratch.journal_written(&roots).unwrap();
    let before = (device(), logged(&roots, scratch.fs_dev()));
    scratch.exercise().unwrap();
    let written = (device() - before.0, logged(&roots, scratch.fs_dev()) - before.1);
    let mut observer = Observer::default();
    observer.set_file_systems([(scratch.fs_dev(), vec![])].into());
    let done = observer.finish(tracer.poll().unwrap());
    tracer.evict_shares(&done).unwrap();
    tracer.detach();
    let totals = observer.totals();
    assert!(!totals.losses.any(), "{:?}", totals.losses);
    // One per fsync at least.
    assert!(totals.commits[&scratch.fs_dev()] >= 8, "{:?}", totals.commits);
    let mut charged: BTreeMap<Kind, Charged> = BTreeMap::new();
    for ((cgroup, _, kind), bytes) in totals.journal_bytes.iter().filter(|((_, dev, _), _)| *dev == scratch.fs_dev()) {
        *charged.entry(*kind).or_default().entry(*cgroup).or_default() += bytes;
    }
    // Shares of written checkpoints are evicted.
    let left = tracer.poll().unwrap().shares;
    assert!(left.iter().all(|(key, amount)| key.dev != scratch.fs_dev() || *amount == 0), "{left:?}");
    Some((charged, written.0, written.1))
}

type Charged = BTreeMap<Option<CgroupId>, u64>;

#[test]
fn root_charges_match_the_log_device() {
    let Some((charged, on_device, logged)) = exercise(Scratch::xfs) else { return };
    let commits = &charged[&Kind::Commit];
    assert_eq!(commits.values().sum::<u64>(), on_device);
    assert_eq!(logged, on_device);
    assert!(on_device > 8 * 4096, "{on_device}");
    // Nearly all of it is charged to us; on cgroup v1, extent conversion after writeback has no owner.
    let most = commits.iter().filter(|(cgroup, _)| cgroup.is_some()).map(|(_, bytes)| *bytes).max();
    assert!(most.unwrap_or(0) > on_device / 10 * 9, "{charged:?}");
}

#[test]
fn root_a_remount_is_distinguished_from_the_previous_mount() {
    let roots = Roots::host();
    let (mut scratch, mut tracer) = match (Scratch::xfs(&roots), Tracer::load_xfs()) {
        (Ok(scratch), Ok(tracer)) => (scratch, tracer),
        (scratch, tracer) => return println!("skipped: {:?}, {:?}", scratch.err(), tracer.err()),
    };
    tracer.attach().unwrap();
    let mut observer = Observer::default();
    observer.set_file_systems([(scratch.fs_dev(), vec![])].into());
    let mut rounds: Vec<(u64, u64)> = Vec::new();
    // Checkpoint numbers restart at one, and addresses of items are reused.
    for round in 0..6 {
        for i in 0..2000 {
            mkdirat(scratch.root(), format!("{round}-{i}"), Mode::RWXU).unwrap();
        }
        scratch.settle().unwrap();
        let done = observer.finish(tracer.poll().unwrap());
        tracer.evict_shares(&done).unwrap();
        let charges = observer.totals().journal_bytes.iter();
        let of_commits = charges.filter(|((_, dev, kind), _)| *dev == scratch.fs_dev() && *kind == Kind::Commit);
        let (owned, unowned): (Vec<_>, Vec<_>) = of_commits.partition(|((cgroup, _, _), _)| cgroup.is_some());
        let sum = |charges: Vec<(_, &u64)>| charges.into_iter().map(|(_, bytes)| *bytes).sum::<u64>();
        rounds.push((sum(owned), sum(unowned)));
        scratch = scratch.xfs_remounted().unwrap();
    }
    tracer.detach();
    let (owned, unowned) = rounds[rounds.len() - 1];
    assert!(unowned < owned / 50, "{rounds:?}");
}

#[test]
fn root_an_internal_log_is_distinguished_from_metadata_written_in_place() {
    let Some((charged, _, logged)) = exercise(Scratch::xfs_with_internal_log) else { return };
    assert_eq!(charged[&Kind::Commit].values().sum::<u64>(), logged, "{charged:?}");
}

#[test]
fn other_entries_in_sysfs_are_skipped() {
    let base = tempfile::tempdir().unwrap();
    let roots = Roots::under(base.path());
    assert_eq!(file_systems(&roots), []);
    for name in ["debug", "stats", "sdb1", "no-such-device"] {
        std::fs::create_dir_all(roots.sys.join("fs/xfs").join(name)).unwrap();
    }
    std::fs::create_dir_all(roots.sys.join("class/block/sdb1")).unwrap();
    std::fs::write(roots.sys.join("class/block/sdb1/dev"), "8:17\n").unwrap();
    assert_eq!(file_systems(&roots), [DevNo::new(8, 17)]);
}
