//! The longest waits of the last minutes, individually: for questions such as why the database hung at 3:12.
//!
//! Memory is bounded: time is divided into slots with a maximum number of waits each, one victim has only a part of
//! these (so that a container which mostly waits for its own writes does not hide its victims), and each wait keeps a
//! maximum number of commits and culprits. Omitted waits are counted, and the longest of them is known.

use std::collections::BTreeMap;

use super::blame::{Blame, Cause};
use super::record::{CgroupId, Commit, Sync};
use crate::units::DevNo;

/// For how long waits are remembered (ns).
pub const MEMORY_NS: u64 = SLOT_NS * N_SLOTS;
/// Maximum number of waits per slot, and per answer.
pub const MAX_WAITS: usize = 64;
/// Maximum number of these of one victim.
pub const MAX_OF_VICTIM: usize = 16;
/// Maximum number of commits per wait: the last ones.
const MAX_COMMITS: usize = 8;
/// Maximum number of individual culprits per wait: those with most time.
const MAX_CULPRITS: usize = 16;
const SLOT_NS: u64 = 10_000_000_000;
/// Number of slots. With [`MAX_WAITS`] waits of 2 KiB each they use at most 4 MiB.
const N_SLOTS: u64 = 30;

/// One wait in fsync, with its causes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The fsync.
    pub sync: Sync,
    /// The part of it in which the device was busy (ns).
    pub device_ns: u64,
    /// The part that commits account for (ns).
    pub commit_ns: u64,
    /// The last commits that it waited for, oldest first.
    pub commits: Vec<Commit>,
    /// Number of commits that it waited for.
    pub n_commits: usize,
    /// The culprits, those with most time first.
    pub culprits: Vec<Culprit>,
    /// Sum of all other culprits.
    pub others: Part,
    /// Number of other culprits.
    pub n_others: usize,
}

/// A cgroup that caused part of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// `None` for a part without a known cause.
    pub cgroup: Option<CgroupId>,
    /// Its part of the wait.
    pub part: Part,
}

/// A part of a wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Nanoseconds by cause, as in [`Cause::ALL`].
    pub ns: [u64; Cause::ALL.len()],
    /// Its blocks in the commits (bytes).
    pub journal_bytes: u64,
    /// Its file data in the commits (bytes).
    pub ordered_bytes: u64,
}

impl Part {
    /// Total time (ns).
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.ns.iter().sum()
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for (sum, ns) in self.ns.iter_mut().zip(other.ns) {
            *sum += ns;
        }
        self.journal_bytes += other.journal_bytes;
        self.ordered_bytes += other.ordered_bytes;
    }
}

/// The longest waits of a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Longest<'a> {
    /// The waits, longest first.
    pub waits: Vec<&'a Wait>,
    /// Number of omitted waits, counted in whole slots of 10 s.
    pub n_omitted: u64,
    /// The longest omitted wait (ns).
    pub longest_omitted_ns: u64,
}

/// The longest waits of the last minutes.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// By their end, in units of [`SLOT_NS`].
    slots: BTreeMap<u64, Slot>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    waits: Vec<Wait>,
    n_omitted: u64,
    longest_omitted_ns: u64,
}

impl Waits {
    /// Records a wait. `commits` are those that it waited for, oldest first.
    pub fn record<'a>(&mut self, sync: &Sync, blame: &Blame, commits: impl Iterator<Item = &'a Commit>) {
        let number = sync.end_ns / SLOT_NS;
        let newest = self.slots.last_key_value().map_or(number, |(newest, _)| number.max(*newest));
        while self.slots.first_key_value().is_some_and(|(oldest, _)| newest - oldest > N_SLOTS) {
            self.slots.pop_first();
        }
        let slot = self.slots.entry(number).or_default();
        if let Some(at) = slot.room_for(sync) {
            let wait = Wait::new(sync, blame, commits.copied().collect());
            match slot.waits.get_mut(at) {
                Some(shorter) => {
                    let shorter = std::mem::replace(shorter, wait);
                    slot.omit(duration_ns(&shorter.sync));
                }
                None => slot.waits.push(wait),
            }
        } else {
            slot.omit(duration_ns(sync));
        }
    }

    /// The longest waits that ended in the last `within_ns` before `now_ns`, by the rule of [`MAX_WAITS`] and
    /// [`MAX_OF_VICTIM`].
    #[must_use]
    pub fn longest(&self, now_ns: u64, within_ns: u64) -> Longest<'_> {
        let horizon_ns = now_ns.saturating_sub(within_ns.min(MEMORY_NS));
        let mut found = Longest::default();
        let mut waits = Vec::new();
        for slot in self.slots.range(horizon_ns / SLOT_NS..).map(|(_, slot)| slot) {
            waits.extend(slot.waits.iter().filter(|wait| wait.sync.end_ns >= horizon_ns));
            found.n_omitted += slot.n_omitted;
            found.longest_omitted_ns = found.longest_omitted_ns.max(slot.longest_omitted_ns);
        }
        // Of two equally long ones, the later one is first.
        waits.sort_by_key(|wait| std::cmp::Reverse((duration_ns(&wait.sync), wait.sync.end_ns)));
        let mut of_victim: BTreeMap<CgroupId, usize> = BTreeMap::new();
        for wait in waits {
            let n_before = of_victim.entry(wait.sync.cgroup).or_default();
            if found.waits.len() < MAX_WAITS && *n_before < MAX_OF_VICTIM {
                *n_before += 1;
                found.waits.push(wait);
            } else {
                found.n_omitted += 1;
                found.longest_omitted_ns = found.longest_omitted_ns.max(duration_ns(&wait.sync));
            }
        }
        found
    }
}

impl Slot {
    /// The index for a wait: after the others, or in place of a shorter one; `None` if it is too short.
    fn room_for(&self, sync: &Sync) -> Option<usize> {
        let shortest = |waits: &mut dyn Iterator<Item = (usize, &Wait)>| {
            let at = waits.min_by_key(|(_, wait)| duration_ns(&wait.sync))?;
            (duration_ns(&at.1.sync) < duration_ns(sync)).then_some(at.0)
        };
        let of_victim = || self.waits.iter().enumerate().filter(|(_, wait)| wait.sync.cgroup == sync.cgroup);
        if of_victim().count() >= MAX_OF_VICTIM {
            shortest(&mut of_victim())
        } else if self.waits.len() >= MAX_WAITS {
            shortest(&mut self.waits.iter().enumerate())
        } else {
            Some(self.waits.len())
        }
    }

    fn omit(&mut self, ns: u64) {
        self.n_omitted += 1;
        self.longest_omitted_ns = self.longest_omitted_ns.max(ns);
    }
}

impl Wait {
    fn new(sync: &Sync, blame: &Blame, mut commits: Vec<Commit>) -> Self {
        let n_commits = commits.len();
        commits.drain(..n_commits.saturating_sub(MAX_COMMITS));
        let mut parts: BTreeMap<Option<CgroupId>, Part> = BTreeMap::new();
        for (&(owner, cause), ns) in &blame.causes {
            parts.entry(owner).or_default().ns[cause as usize] += ns;
        }
        for (&(owner, cause), bytes) in &blame.bytes {
            let part = parts.entry(owner).or_default();
            match cause {
                Cause::Ordered => part.ordered_bytes += bytes,
                _ => part.journal_bytes += bytes,
            }
        }
        let mut culprits: Vec<Culprit> = parts.into_iter().map(|(cgroup, part)| Culprit { cgroup, part }).collect();
        culprits.sort_by_key(|culprit| std::cmp::Reverse(culprit.part.total_ns()));
        let mut others = Part::default();
        let rest = culprits.split_off(culprits.len().min(MAX_CULPRITS));
        rest.iter().for_each(|culprit| others.add(&culprit.part));
        Self {
            sync: *sync,
            device_ns: blame.device_ns,
            commit_ns: blame.commit_ns,
            commits,
            n_commits,
            culprits,
            others,
            n_others: rest.len(),
        }
    }

    /// The file system's device.
    #[must_use]
    pub fn dev(&self) -> DevNo {
        self.sync.dev
    }

    /// Its duration (ns).
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        duration_ns(&self.sync)
    }
}

fn duration_ns(sync: &Sync) -> u64 {
    sync.end_ns.saturating_sub(sync.start_ns)
}

#[cfg(test)]
mod tests;
