//! Causes of a wait in fsync: the cgroups whose requests the device served meanwhile, and those with blocks in the
//! commits that it waited for.
//!
//! A wait has two parts. While the device was busy, the causes are the cgroups that it served, in proportion to their
//! device time: data, journal and queueing alike. While it was idle, the wait was for the commit itself (open handles,
//! requests delayed by a controller), and the causes are the cgroups with bytes in the commits. The remainder has no
//! known cause.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::charge::{Parts, add, pro_rata, pro_rata_or};
use super::record::{CgroupId, Commit, LogWrite, Service, ServiceClass, ServiceKey, Sync};
use crate::units::DevNo;

/// How long before the end of a wait its causes are remembered.
const MEMORY_NS: u64 = 60_000_000_000;
/// Maximum number of remembered commits and log writes, over all file systems.
const MAX_COMMITS: usize = 16_384;

/// How a cgroup makes others wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// Blocks in the journal: device time for them and other metadata, and time of the commit itself.
    Journal,
    /// File data that had to be written inside the commit.
    Ordered,
    /// Other requests for file data that the device served meanwhile.
    Queue,
    /// Bytes in the device's cache when it was flushed.
    Flush,
    /// Time that neither the device nor a commit explains.
    Unexplained,
}

impl Cause {
    /// All causes, in display order.
    pub const ALL: [Self; 5] = [Self::Journal, Self::Ordered, Self::Queue, Self::Flush, Self::Unexplained];
}

/// Nanoseconds or bytes, by cgroup and cause.
pub type Causers = BTreeMap<(Option<CgroupId>, Cause), u64>;

/// A commit or log write, with its bytes by owner.
#[derive(Clone, Debug)]
struct JournalWrite {
    start_ns: u64,
    end_ns: u64,
    /// `None` for a log write.
    commit: Option<Commit>,
    bytes: Causers,
}

/// The service of devices between two polls.
#[derive(Clone, Debug)]
struct Interval {
    start_ns: u64,
    end_ns: u64,
    busy: HashMap<DevNo, Busy>,
}

/// The party that a device served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Served {
    /// The cgroup that the kernel charged.
    Cgroup(Option<CgroupId>),
    /// The owners of blocks in journals, which a thread in the root cgroup wrote.
    Journals,
}

/// The service of one device.
#[derive(Clone, Debug, Default)]
struct Busy {
    /// Busy time (ns).
    served_ns: BTreeMap<(Served, Cause), u64>,
    /// Written file data (bytes).
    data_bytes: Parts,
}

/// The possible causes of recent waits.
#[derive(Clone, Debug, Default)]
pub struct Causes {
    /// By file system, ordered by their end: a journal has one commit at a time.
    commits: HashMap<DevNo, VecDeque<JournalWrite>>,
    n_commits: usize,
    intervals: VecDeque<Interval>,
    /// Bytes written to a device since its last flush.
    unflushed: HashMap<DevNo, BTreeMap<Served, u64>>,
}

/// The causes of one wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Nanoseconds of the wait by cgroup and cause; `None` for those without a known cause. Their sum is exactly the
    /// wait.
    pub causes: Causers,
    /// The part in which the device was busy.
    pub device_ns: u64,
    /// The part that commits account for.
    pub commit_ns: u64,
    /// Bytes of the commits that it waited for, by owner.
    pub bytes: Causers,
}

impl Causes {
    /// Adds a commit and its charges.
    pub fn commit(&mut self, commit: Commit, bytes: Causers) {
        let Commit { dev, start_ns, end_ns, .. } = commit;
        self.push(dev, JournalWrite { start_ns, end_ns, commit: Some(commit), bytes });
    }

    /// Adds a log write and its charges. It prolongs the waits during which it is submitted.
    pub fn log_write(&mut self, write: &LogWrite, bytes: Causers) {
        let (start_ns, end_ns) = (write.at_ns, write.at_ns.saturating_add(1));
        self.push(write.dev, JournalWrite { start_ns, end_ns, commit: None, bytes });
    }

    /// Adds the service of devices since the last poll.
    pub fn interval(&mut self, start_ns: u64, end_ns: u64, services: &[(ServiceKey, Service)]) {
        let mut busy: HashMap<DevNo, Busy> = HashMap::new();
        let mut flushes_ns: HashMap<DevNo, u64> = HashMap::new();
        let mut written: HashMap<DevNo, BTreeMap<Served, u64>> = HashMap::new();
        for (key, service) in services {
            let of_device = busy.entry(key.dev).or_default();
            let given = written.entry(key.dev).or_default();
            let (served, cause) = match key.class {
                ServiceClass::Flush => {
                    *flushes_ns.entry(key.dev).or_default() += service.busy_ns;
                    continue;
                }
                ServiceClass::Meta if is_written_for_others(key.cgroup) => (Served::Journals, Cause::Journal),
                ServiceClass::Meta => (Served::Cgroup(key.cgroup), Cause::Journal),
                ServiceClass::Data => {
                    *of_device.data_bytes.entry(key.cgroup).or_default() += service.written_bytes;
                    (Served::Cgroup(key.cgroup), Cause::Queue)
                }
            };
            *of_device.served_ns.entry((served, cause)).or_default() += service.busy_ns;
            *given.entry(served).or_default() += service.written_bytes;
        }
        for (dev, new) in written {
            let unflushed = self.unflushed.entry(dev).or_default();
            add(unflushed, &new);
            if let Some(flushes_ns) = flushes_ns.get(&dev) {
                // A flush takes time in proportion to the content of the device's cache: it is blamed on those who
                // filled it.
                for (served, ns) in pro_rata_or(*flushes_ns, unflushed, Served::Cgroup(None)) {
                    *busy.entry(dev).or_default().served_ns.entry((served, Cause::Flush)).or_default() += ns;
                }
                // Some of these bytes may have come after the flush: counting them twice is better than not at all.
                *unflushed = new;
            }
        }
        self.intervals.push_back(Interval { start_ns, end_ns, busy });
        self.spread_back();
        self.evict_before(end_ns.saturating_sub(MEMORY_NS));
    }

    /// The causes of a wait. `disks` are the physical devices of the file system, `neighbours` the file systems that
    /// share one of them (including itself).
    #[must_use]
    pub fn blame(&self, sync: &Sync, disks: &[DevNo], neighbours: &[DevNo]) -> Blame {
        let wait_ns = sync.end_ns.saturating_sub(sync.start_ns);
        let mut bytes = Causers::new();
        self.waited_for(sync).for_each(|(_, carried)| add(&mut bytes, carried));
        let journal_owners = self.journal_owners(sync, neighbours);
        let (mut busy, mut data_bytes) = (Causers::new(), Parts::new());
        // The overlapping intervals come last.
        let overlapping = self.intervals.iter().rev().skip_while(|interval| interval.start_ns >= sync.end_ns);
        for interval in overlapping.take_while(|interval| interval.end_ns > sync.start_ns) {
            let overlap_ns = interval.end_ns.min(sync.end_ns) - interval.start_ns.max(sync.start_ns);
            add(&mut busy, &device_time(interval, disks, &journal_owners, overlap_ns));
            for of_device in disks.iter().filter_map(|disk| interval.busy.get(disk)) {
                add(&mut data_bytes, &of_device.data_bytes);
            }
        }
        let device_ns = busy.values().sum::<u64>().min(wait_ns);
        let rest_ns = wait_ns - device_ns;
        let mut causes = pro_rata(device_ns, &busy);
        split_ordered(&mut causes, &data_bytes, &bytes);
        add(&mut causes, &pro_rata_or(rest_ns, &bytes, (None, Cause::Unexplained)));
        let is_explained = bytes.values().any(|bytes| *bytes > 0);
        Blame { causes, device_ns, commit_ns: if is_explained { rest_ns } else { 0 }, bytes }
    }

    /// The commits that a wait waited for, oldest first: those of its file system that overlap with it, up to the one
    /// that it needed.
    pub fn commits_of(&self, sync: &Sync) -> impl Iterator<Item = &Commit> {
        self.waited_for(sync).map(|(commit, _)| commit)
    }

    fn push(&mut self, dev: DevNo, content: JournalWrite) {
        self.commits.entry(dev).or_default().push_back(content);
        self.n_commits += 1;
        if self.n_commits > MAX_COMMITS {
            let end_ns = |commits: &VecDeque<JournalWrite>| commits.front().map(|content| content.end_ns);
            let oldest = self.commits.iter().min_by_key(|(_, commits)| end_ns(commits)).map(|(dev, _)| *dev);
            if let Some(commits) = oldest.and_then(|dev| self.commits.get_mut(&dev)) {
                commits.pop_front();
            }
            self.n_commits -= 1;
            self.commits.retain(|_, commits| !commits.is_empty());
        }
    }

    fn waited_for(&self, sync: &Sync) -> impl Iterator<Item = (&Commit, &Causers)> {
        let commits = self
            .journal_writes_during(sync, sync.dev)
            .filter_map(|content| Some((content.commit.as_ref()?, &content.bytes)));
        // Transaction numbers wrap around.
        commits.filter(|(commit, _)| sync.tid.wrapping_sub(commit.tid) <= u32::MAX / 2)
    }

    /// A file system's commits and log writes during a wait.
    fn journal_writes_during(&self, sync: &Sync, dev: DevNo) -> impl Iterator<Item = &JournalWrite> {
        let end_ns = sync.end_ns;
        let commits = self.commits.get(&dev).into_iter().flat_map(move |commits| {
            let first = commits.partition_point(|content| content.end_ns <= sync.start_ns);
            commits.range(first..)
        });
        commits.take_while(move |content| content.start_ns < end_ns)
    }

    /// Owners of the blocks that were written to the journals of these file systems during a wait, in bytes.
    fn journal_owners(&self, sync: &Sync, devs: &[DevNo]) -> Parts {
        let mut journal_owners = Parts::new();
        for content in devs.iter().flat_map(|dev| self.journal_writes_during(sync, *dev)) {
            for ((owner, _), bytes) in content.bytes.iter().filter(|((_, cause), _)| *cause == Cause::Journal) {
                *journal_owners.entry(*owner).or_default() += bytes;
            }
        }
        journal_owners
    }

    fn evict_before(&mut self, horizon_ns: u64) {
        while self.intervals.front().is_some_and(|interval| interval.end_ns < horizon_ns) {
            self.intervals.pop_front();
        }
        for commits in self.commits.values_mut() {
            while commits.front().is_some_and(|content| content.end_ns < horizon_ns) {
                commits.pop_front();
                self.n_commits -= 1;
            }
        }
        self.commits.retain(|_, commits| !commits.is_empty());
    }

    /// The time of a request is known at its completion, but was spent before: time that exceeds the last interval
    /// belongs to earlier ones, as far as the device was idle there.
    fn spread_back(&mut self) {
        let Some(devs) = self.intervals.back().map(|last| last.busy.keys().copied().collect::<Vec<_>>()) else {
            return;
        };
        for dev in devs {
            let mut excess = BTreeMap::new();
            for interval in self.intervals.iter_mut().rev() {
                let length_ns = interval.end_ns - interval.start_ns;
                let busy = interval.busy.entry(dev).or_default();
                add(&mut busy.served_ns, &excess);
                excess = busy.cut(length_ns);
                if excess.is_empty() {
                    break;
                }
            }
        }
    }
}

impl Busy {
    /// Keeps at most `most_ns` of the time, and returns the rest, both in the same proportions.
    fn cut(&mut self, most_ns: u64) -> BTreeMap<(Served, Cause), u64> {
        let excess_ns = self.served_ns.values().sum::<u64>().saturating_sub(most_ns);
        let excess = pro_rata(excess_ns, &self.served_ns);
        for (key, ns) in &excess {
            // Rounding up may exceed the time by 1.
            let left = self.served_ns.entry(*key).or_default();
            *left = left.saturating_sub(*ns);
        }
        excess
    }
}

/// Device time of an interval by cgroup and cause, at most its overlap with the wait: a device that was busy for part
/// of an interval is assumed to have been busy during the wait.
fn device_time(interval: &Interval, disks: &[DevNo], journal_owners: &Parts, overlap_ns: u64) -> Causers {
    let mut busy = Causers::new();
    for of_device in disks.iter().filter_map(|disk| interval.busy.get(disk)) {
        for (&(served, cause), &ns) in &of_device.served_ns {
            let owners = match served {
                Served::Cgroup(owner) => Parts::from([(owner, ns)]),
                Served::Journals => pro_rata_or(ns, journal_owners, None),
            };
            for (owner, ns) in owners {
                *busy.entry((owner, cause)).or_default() += ns;
            }
        }
    }
    pro_rata(busy.values().sum::<u64>().min(overlap_ns), &busy)
}

/// Device time for a cgroup's file data was for the commit in proportion to the data that the commit wrote.
fn split_ordered(causes: &mut Causers, data_bytes: &Parts, in_commits: &Causers) {
    for (&(owner, _), &ordered) in in_commits.iter().filter(|((_, cause), _)| *cause == Cause::Ordered) {
        let Some(queue_ns) = causes.get(&(owner, Cause::Queue)).copied() else { continue };
        let data = data_bytes.get(&owner).copied().unwrap_or(0);
        let ordered_ns = part(queue_ns, ordered.min(data), data);
        if ordered_ns > 0 {
            *causes.entry((owner, Cause::Queue)).or_default() -= ordered_ns;
            *causes.entry((owner, Cause::Ordered)).or_default() += ordered_ns;
        }
    }
    causes.retain(|_, ns| *ns > 0);
}

/// `total * part / whole`, rounded down; 0 if `whole` is 0.
fn part(total: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(total) * u128::from(part);
    u64::try_from(scaled.checked_div(u128::from(whole)).unwrap_or(0)).unwrap_or(total)
}

/// Whether metadata of this cgroup is written for others, by a journal thread in the root cgroup.
fn is_written_for_others(cgroup: Option<CgroupId>) -> bool {
    cgroup.is_none_or(|cgroup| cgroup == ROOT)
}

/// The root of the unified hierarchy (its node is the first one of kernfs).
pub const ROOT: CgroupId = CgroupId(1);

#[cfg(test)]
mod tests;
