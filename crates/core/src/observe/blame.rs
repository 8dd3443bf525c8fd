//! Why an fsync took its time: whose requests the device served meanwhile, and whose blocks were in the commits it waited for.
//!
//! A wait is split in two. As long as the device was busy, the causes are those whom it served, in proportion to the device time
//! they took: this holds for data, for the journal and for queueing behind others alike. As long as it was not, the wait was for
//! the commit itself (handles that had to end, requests that a controller held back), and the causes are those whose bytes the
//! commits carried. What neither explains has no cause that can be named.

use std::collections::{HashMap, VecDeque};

use super::charge::{Parts, add, pro_rata, pro_rata_or_nobody};
use super::record::{CgroupId, Commit, Service, ServiceClass, ServiceKey, Sync};
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
    busy: HashMap<DevNo, Busy>,
}

/// For whom a device was busy (ns).
#[derive(Clone, Debug, Default)]
struct Busy {
    owners: Parts,
    /// Writing journals of others: by a journal thread in the root cgroup.
    journals_ns: u64,
}

/// Bytes that a device was given since its last flush.
#[derive(Clone, Debug, Default)]
struct Unflushed {
    owners: Parts,
    journals_bytes: u64,
}

/// What waits can have had to do with.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    commits: VecDeque<Content>,
    intervals: VecDeque<Interval>,
    unflushed: HashMap<DevNo, Unflushed>,
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
    pub fn interval(&mut self, start_ns: u64, end_ns: u64, services: &[(ServiceKey, Service)]) {
        let mut busy: HashMap<DevNo, Busy> = HashMap::new();
        let mut flushes_ns: HashMap<DevNo, u64> = HashMap::new();
        let mut written: HashMap<DevNo, Unflushed> = HashMap::new();
        for (key, service) in services {
            let of_device = busy.entry(key.dev).or_default();
            let given = written.entry(key.dev).or_default();
            match key.class {
                ServiceClass::Flush => *flushes_ns.entry(key.dev).or_default() += service.busy_ns,
                ServiceClass::Meta if is_nobodys(key.cgroup) => {
                    of_device.journals_ns += service.busy_ns;
                    given.journals_bytes += service.written_bytes;
                }
                ServiceClass::Meta | ServiceClass::Data => {
                    *of_device.owners.entry(key.cgroup).or_default() += service.busy_ns;
                    *given.owners.entry(key.cgroup).or_default() += service.written_bytes;
                }
            }
        }
        for (dev, new) in written {
            let unflushed = self.unflushed.entry(dev).or_default();
            add(&mut unflushed.owners, &new.owners);
            unflushed.journals_bytes += new.journals_bytes;
            if let Some(flushes_ns) = flushes_ns.get(&dev) {
                busy.entry(dev).or_default().add_flushes(*flushes_ns, unflushed);
                // Some of it may have come after the flush: that is better counted twice than not at all.
                *unflushed = new;
            }
        }
        self.intervals.push_back(Interval { start_ns, end_ns, busy });
        self.spread_back();
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
            add(&mut busy, &device_time(interval, disks, &written, overlap_ns));
        }
        let device_ns = busy.values().sum::<u64>().min(wait_ns);
        let rest_ns = wait_ns - device_ns;
        let contents = self.contents(sync, &[sync.dev]);
        let is_explained = contents.values().any(|bytes| *bytes > 0);
        let mut causes = pro_rata(device_ns, &busy);
        add(&mut causes, &pro_rata_or_nobody(rest_ns, &contents));
        Blame { causes, device_ns, commit_ns: if is_explained { rest_ns } else { 0 } }
    }

    /// A request's time is known when it is completed, but was spent before: what is too much for the last interval belongs to
    /// those before it, as far as the device was idle there.
    fn spread_back(&mut self) {
        let Some(devs) = self.intervals.back().map(|last| last.busy.keys().copied().collect::<Vec<_>>()) else {
            return;
        };
        for dev in devs {
            let mut excess = Busy::default();
            for interval in self.intervals.iter_mut().rev() {
                let length_ns = interval.end_ns - interval.start_ns;
                let busy = interval.busy.entry(dev).or_default();
                busy.add(&excess);
                excess = busy.cut(length_ns);
                if excess.total_ns() == 0 {
                    break;
                }
            }
        }
    }

    /// Whose bytes the commits of these file systems carried that were under way during the wait.
    fn contents(&self, sync: &Sync, devs: &[DevNo]) -> Parts {
        let mut bytes = Parts::new();
        for content in &self.commits {
            let commit = &content.commit;
            if devs.contains(&commit.dev) && commit.end_ns > sync.start_ns && commit.start_ns < sync.end_ns {
                add(&mut bytes, &content.bytes);
            }
        }
        bytes
    }
}

impl Busy {
    fn total_ns(&self) -> u64 {
        self.owners.values().sum::<u64>() + self.journals_ns
    }

    fn add(&mut self, other: &Self) {
        add(&mut self.owners, &other.owners);
        self.journals_ns += other.journals_ns;
    }

    /// A flush takes as long as there is in the device's cache: its time belongs to those who filled it.
    fn add_flushes(&mut self, flushes_ns: u64, unflushed: &Unflushed) {
        let bytes = unflushed.owners.values().sum::<u64>() + unflushed.journals_bytes;
        let journals_ns = part(flushes_ns, unflushed.journals_bytes, bytes);
        self.journals_ns += journals_ns;
        add(&mut self.owners, &pro_rata_or_nobody(flushes_ns - journals_ns, &unflushed.owners));
    }

    /// Keeps at most so much, and returns the rest, both with the same proportions.
    fn cut(&mut self, most_ns: u64) -> Self {
        let total_ns = self.total_ns();
        let Some(excess_ns) = total_ns.checked_sub(most_ns).filter(|excess| *excess > 0) else {
            return Self::default();
        };
        let journals_ns = part(excess_ns, self.journals_ns, total_ns);
        let owners = pro_rata(excess_ns - journals_ns, &self.owners);
        self.journals_ns -= journals_ns;
        for (owner, ns) in &owners {
            // Rounded up it may be one more than there is.
            let left = self.owners.entry(*owner).or_default();
            *left = left.saturating_sub(*ns);
        }
        Self { owners, journals_ns }
    }
}

/// `total * part / whole`, rounded down; 0 of nothing.
fn part(total: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(total) * u128::from(part);
    u64::try_from(scaled.checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(total)
}

/// Device time of an interval by who caused it, at most as much as the wait and the interval have in common: a device that was
/// busy for part of an interval is taken to have been so while somebody waited for it.
fn device_time(interval: &Interval, disks: &[DevNo], written: &Parts, overlap_ns: u64) -> Parts {
    let mut busy = Parts::new();
    for of_device in disks.iter().filter_map(|disk| interval.busy.get(disk)) {
        add(&mut busy, &of_device.owners);
        add(&mut busy, &pro_rata_or_nobody(of_device.journals_ns, written));
    }
    pro_rata(busy.values().sum::<u64>().min(overlap_ns), &busy)
}

/// Whether metadata of this cgroup is written on behalf of others: by a journal thread in the root cgroup.
fn is_nobodys(cgroup: Option<CgroupId>) -> bool {
    cgroup.is_none_or(|cgroup| cgroup == ROOT)
}

/// The root of the unified hierarchy (its node is the first that kernfs makes).
pub const ROOT: CgroupId = CgroupId(1);

#[cfg(test)]
mod tests {
    use super::ServiceClass::{Data, Flush, Meta};
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
            begin_ns: 0,
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

    /// So much device time, with as many bytes written.
    fn busy(cgroup: Option<CgroupId>, class: ServiceClass, ms: u64) -> (ServiceKey, Service) {
        let service = Service { busy_ns: ms * MS, read_bytes: 0, written_bytes: ms, requests: 1 };
        (ServiceKey { dev: DISK, cgroup, class }, service)
    }

    fn sync(start_ms: u64, end_ms: u64) -> Sync {
        Sync { dev: FS, tid: 1, start_ns: start_ms * MS, end_ns: end_ms * MS, cgroup: A }
    }

    #[test]
    fn a_busy_device_is_the_cause_and_whoever_kept_it_busy() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 100, 190), of(&[(Some(A), 4096)]));
        causes.interval(0, 200 * MS, &[busy(Some(A), Data, 20), busy(Some(B), Data, 160)]);
        let blame = causes.of(&sync(100, 190), &[DISK], &[FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 10 * MS), (Some(B), 80 * MS)]));
        assert_eq!((blame.device_ns, blame.commit_ns), (90 * MS, 0));
    }

    #[test]
    fn the_journals_device_time_belongs_to_those_in_the_commits() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 0, 50), of(&[(Some(A), 1)]));
        causes.commit(commit(OTHER_FS, 0, 50), of(&[(Some(B), 3)]));
        causes.interval(0, 100 * MS, &[busy(Some(ROOT), Meta, 80)]);
        let blame = causes.of(&sync(0, 80), &[DISK], &[FS, OTHER_FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 20 * MS), (Some(B), 60 * MS)]));
    }

    #[test]
    fn a_flush_takes_as_long_as_others_have_filled_the_cache() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 0, 100), of(&[(Some(A), 1)]));
        let served = [busy(Some(A), Data, 10), busy(Some(B), Data, 30), busy(None, Flush, 60)];
        causes.interval(0, 100 * MS, &served);
        assert_eq!(causes.of(&sync(0, 100), &[DISK], &[FS]).causes, of(&[(Some(A), 25 * MS), (Some(B), 75 * MS)]));
    }

    #[test]
    fn a_long_request_belongs_to_the_time_before_its_end() {
        let mut causes = Causes::default();
        causes.interval(0, 100 * MS, &[]);
        causes.interval(100 * MS, 200 * MS, &[busy(Some(A), Data, 40)]);
        causes.interval(200 * MS, 300 * MS, &[]);
        // It took from 120 to 380 ms; 40 ms of what remained were A's.
        causes.interval(300 * MS, 400 * MS, &[busy(Some(B), Data, 260)]);
        let blame = causes.of(&sync(100, 200), &[DISK], &[FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 40 * MS), (Some(B), 60 * MS)]));
        assert_eq!(causes.of(&sync(0, 100), &[DISK], &[FS]).device_ns, 0);
        assert_eq!(causes.of(&sync(200, 300), &[DISK], &[FS]).causes, of(&[(Some(B), 100 * MS)]));
    }

    #[test]
    fn while_the_device_is_idle_the_commit_itself_is_the_cause() {
        let mut causes = Causes::default();
        causes.commit(commit(FS, 0, 100), of(&[(Some(A), 1), (Some(B), 9)]));
        causes.interval(0, 200 * MS, &[busy(Some(B), Data, 20)]);
        let blame = causes.of(&sync(0, 100), &[DISK], &[FS]);
        assert_eq!(blame.causes, of(&[(Some(A), 8 * MS), (Some(B), 92 * MS)]));
        assert_eq!((blame.device_ns, blame.commit_ns), (20 * MS, 80 * MS));
    }

    #[test]
    fn nobody_is_blamed_without_a_cause() {
        let mut causes = Causes::default();
        causes.commit(commit(OTHER_FS, 0, 100), of(&[(Some(B), 9)]));
        causes.commit(commit(FS, 200, 300), of(&[(Some(B), 9)]));
        let (key, service) = busy(Some(B), Data, 50);
        causes.interval(0, 50 * MS, &[(ServiceKey { dev: DevNo::new(9, 9), ..key }, service)]);
        assert_eq!(causes.of(&sync(0, 100), &[DISK], &[FS]).causes, of(&[(None, 100 * MS)]));
        assert_eq!(causes.of(&sync(0, 0), &[DISK], &[FS]).causes, Parts::new());
    }

    #[test]
    fn what_is_too_old_is_forgotten() {
        let mut causes = Causes::default();
        for second in 0..200 {
            causes.commit(commit(FS, second * 1000, second * 1000 + 1), Parts::new());
            causes.interval(second * 1000 * MS, (second + 1) * 1000 * MS, &[]);
        }
        assert!(causes.commits.len() < 64 && causes.intervals.len() < 64);
    }
}
