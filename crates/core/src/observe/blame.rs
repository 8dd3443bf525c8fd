//! Why an fsync took its time: whose requests the device served meanwhile, and whose blocks were in the commits it waited for.
//!
//! A wait is split in two. As long as the device was busy, the causes are those whom it served, in proportion to the device time
//! they took: this holds for data, for the journal and for queueing behind others alike. As long as it was not, the wait was for
//! the commit itself (handles that had to end, requests that a controller held back), and the causes are those whose bytes the
//! commits carried. What neither explains has no cause that can be named.

use std::collections::VecDeque;

use super::charge::{Parts, pro_rata};
use super::record::{CgroupId, Commit, ServiceKey, Sync};
use crate::units::DevNo;

/// For how long the causes of a wait are remembered before its end.
const MEMORY_NS: u64 = 60_000_000_000;
/// And how many commits at most.
const MAX_COMMITS: usize = 16_384;

/// A commit and how many bytes of it each owner is charged.
#[derive(Clone, Debug)]
struct Content {
    commit: Commit,
    bytes: Parts,
}

/// What devices did between two looks.
#[derive(Clone, Debug)]
struct Interval {
    start_ns: u64,
    end_ns: u64,
    busy_ns: Vec<(ServiceKey, u64)>,
}

/// What waits can have had to do with.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    commits: VecDeque<Content>,
    intervals: VecDeque<Interval>,
}

/// Why one wait took its time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Nanoseconds of the wait by who caused them; `None` for what nobody can be named for. Sums to the wait exactly.
    pub causes: Parts,
    /// The part in which the device was busy.
    pub device_ns: u64,
    /// The part that commits account for.
    pub commit_ns: u64,
}

impl Causes {
    /// Remembers a commit and its charges.
    pub fn commit(&mut self, commit: Commit, bytes: Parts) {
        self.commits.push_back(Content { commit, bytes });
        if self.commits.len() > MAX_COMMITS {
            self.commits.pop_front();
        }
    }

    /// Remembers what devices did since the last look.
    pub fn interval(&mut self, start_ns: u64, end_ns: u64, busy_ns: Vec<(ServiceKey, u64)>) {
        self.intervals.push_back(Interval { start_ns, end_ns, busy_ns });
        let horizon = end_ns.saturating_sub(MEMORY_NS);
        while self.intervals.front().is_some_and(|interval| interval.end_ns < horizon) {
            self.intervals.pop_front();
        }
        while self.commits.front().is_some_and(|content| content.commit.end_ns < horizon) {
            self.commits.pop_front();
        }
    }

    /// Why a wait took its time. `disks` are the physical devices below the file system, `neighbours` the file systems that
    /// have one of those below them too (itself among them).
    #[must_use]
    pub fn of(&self, sync: &Sync, disks: &[DevNo], neighbours: &[DevNo]) -> Blame {
        let wait_ns = sync.end_ns.saturating_sub(sync.start_ns);
        let written = self.contents(sync, neighbours);
        let mut busy = Parts::new();
        // Those intervals come last.
        let overlapping = self.intervals.iter().rev().skip_while(|interval| interval.start_ns >= sync.end_ns);
        for interval in overlapping.take_while(|interval| interval.end_ns > sync.start_ns) {
            let overlap_ns = interval.end_ns.min(sync.end_ns) - interval.start_ns.max(sync.start_ns);
            for (cgroup, ns) in device_time(interval, disks, &written, overlap_ns) {
                *busy.entry(cgroup).or_default() += ns;
            }
        }
        let device_ns = busy.values().sum::<u64>().min(wait_ns);
        let mut blame = Blame { device_ns, ..Blame::default() };
        let rest_ns = wait_ns - device_ns;
        let mut rest = pro_rata(rest_ns, &self.contents(sync, &[sync.dev]));
        if rest.is_empty() {
            rest.push((None, rest_ns));
        } else {
            blame.commit_ns = rest_ns;
        }
        for (cgroup, ns) in pro_rata(device_ns, &busy).into_iter().chain(rest).filter(|(_, ns)| *ns > 0) {
            *blame.causes.entry(cgroup).or_default() += ns;
        }
        blame
    }

    /// Whose bytes the commits of these file systems carried that were under way during the wait.
    fn contents(&self, sync: &Sync, devs: &[DevNo]) -> Parts {
        let mut bytes = Parts::new();
        for content in &self.commits {
            let commit = &content.commit;
            if devs.contains(&commit.dev) && commit.end_ns > sync.start_ns && commit.start_ns < sync.end_ns {
                super::charge::add(&mut bytes, &content.bytes);
            }
        }
        bytes
    }
}

/// Device time of an interval by who caused it, at most as much as the wait and the interval have in common: a device that was
/// busy for part of an interval is taken to have been so while somebody waited for it.
fn device_time(interval: &Interval, disks: &[DevNo], written: &Parts, overlap_ns: u64) -> Vec<(Option<CgroupId>, u64)> {
    let mut busy = Parts::new();
    let mut of_journals_ns = 0;
    for (key, ns) in interval.busy_ns.iter().filter(|(key, _)| disks.contains(&key.dev)) {
        if key.meta && is_nobodys(key.cgroup) {
            of_journals_ns += ns;
        } else {
            *busy.entry(key.cgroup).or_default() += ns;
        }
    }
    let mut journals = pro_rata(of_journals_ns, written);
    if journals.is_empty() {
        journals.push((None, of_journals_ns));
    }
    for (cgroup, ns) in journals {
        *busy.entry(cgroup).or_default() += ns;
    }
    let total_ns: u64 = busy.values().sum();
    pro_rata(total_ns.min(overlap_ns), &busy)
}

/// Whether metadata of this cgroup is written on behalf of others: by a journal thread in the root cgroup, or as a flush.
fn is_nobodys(cgroup: Option<CgroupId>) -> bool {
    cgroup.is_none_or(|cgroup| cgroup == ROOT)
}

/// The root of the unified hierarchy (its node is the first that kernfs makes).
pub const ROOT: CgroupId = CgroupId(1);

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: DevNo = DevNo::new(8, 0);
    const FS: DevNo = DevNo::new(8, 1);
    const OTHER_FS: DevNo = DevNo::new(8, 2);
    const A: CgroupId = CgroupId(10);
    const B: CgroupId = CgroupId(20);
    const MS: u64 = 1_000_000;

    fn commit(dev: DevNo, start_ms: u64, end_ms: u64) -> Commit {
        Commit {
            dev,
            journal_dev: dev,
            tid: 1,
            start_ns: start_ms * MS,
            flush_ns: 0,
            log_ns: 0,
            end_ns: end_ms * MS,
            journal_bytes: 0,
            ordered_bytes: 0,
            requester: None,
            block_bytes: 4096,
        }
    }

    fn of(parts: &[(Option<CgroupId>, u64)]) -> Parts {
        parts.iter().copied().collect()
    }

    fn busy(cgroup: Option<CgroupId>, meta: bool, ms: u64) -> (ServiceKey, u64) {
        (ServiceKey { dev: DISK, cgroup, meta }, ms * MS)
    }

    fn sync(start_ms: u64, end_ms: u64) -> Sync {
        Sync { dev: FS, tid: 1, start_ns: start_ms * MS, end_ns: end_ms * MS, cgroup: A }
    }

    #[test]
    fn a_busy_device_is_the_cause_and_whoever_kept_it_busy() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 100, 190), of(&[(Some(A), 4096)]));
        causes.interval(0, 200 * MS, vec![busy(Some(A), false, 20), busy(Some(B), false, 160)]);
        let blame = causes.of(&sync(100, 190), &[DISK], &[FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 10 * MS), (Some(B), 80 * MS)]));
        assert_eq!((blame.device_ns, blame.commit_ns), (90 * MS, 0));
    }

    #[test]
    fn the_journals_device_time_belongs_to_those_in_the_commits() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 0, 50), of(&[(Some(A), 1)]));
        causes.commit(commit(OTHER_FS, 0, 50), of(&[(Some(B), 3)]));
        causes.interval(0, 100 * MS, vec![busy(Some(ROOT), true, 70), busy(None, true, 10)]);
        let blame = causes.of(&sync(0, 80), &[DISK], &[FS, OTHER_FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 20 * MS), (Some(B), 60 * MS)]));
    }

    #[test]
    fn while_the_device_is_idle_the_commit_itself_is_the_cause() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 0, 100), of(&[(Some(A), 1), (Some(B), 9)]));
        causes.interval(0, 200 * MS, vec![busy(Some(B), false, 20)]);
        let blame = causes.of(&sync(0, 100), &[DISK], &[FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 8 * MS), (Some(B), 92 * MS)]));
        assert_eq!((blame.device_ns, blame.commit_ns), (20 * MS, 80 * MS));
    }

    #[test]
    fn nobody_is_blamed_without_a_cause() {
        let mut causes = Causes::default();
        causes.commit(commit(OTHER_FS, 0, 100), of(&[(Some(B), 9)]));
        causes.commit(commit(FS, 200, 300), of(&[(Some(B), 9)]));
        causes.interval(
            0,
            50 * MS,
            vec![(ServiceKey { dev: DevNo::new(9, 9), cgroup: Some(B), meta: false }, 50 * MS)],
        );
        assert_eq!(causes.of(&sync(0, 100), &[DISK], &[FS]).causes, of(&[(None, 100 * MS)]));
        assert_eq!(causes.of(&sync(0, 0), &[DISK], &[FS]).causes, Parts::new());
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut causes = Causes::default();
        for second in 0..200 {
            causes.commit(commit(FS, second * 1000, second * 1000 + 1), Parts::new());
            causes.interval(second * 1000 * MS, (second + 1) * 1000 * MS, Vec::new());
        }
        assert!(causes.commits.len() < 64 && causes.intervals.len() < 64);
    }
}
