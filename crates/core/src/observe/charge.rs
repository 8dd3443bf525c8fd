//! Charges of a commit: which cgroup pays for which of its bytes. The charges of a commit add up to its bytes exactly.
//!
//! The rule: each owner pays for the blocks that it dirtied; a block that several cgroups dirtied in the transaction is
//! split equally among them. The fixed blocks of a commit (a descriptor and a commit block, the journal's superblock)
//! are paid in equal parts by the waiters: without their fsync there would be no commit, and any one of them alone
//! would have caused the same blocks. If the timer committed, all owners pay for the fixed blocks in proportion.
//! Further blocks (more descriptors, revoke records) are paid like the blocks that they describe. A block that is
//! logged again, although the timer would not have logged it in between, is paid by its owner and the k other waiters
//! of commits in between, who together pay 1/(k + 1) of it; if the owner was one of these waiters, it pays all of it,
//! because it would have logged the block twice by itself. Each of these splits is the Shapley value of its game.
//! Checkpoint writes happen later, once for many commits of a block: they are split like the transactions that are not
//! checkpointed yet. Bytes without a known owner stay without one, and are never spread.
//!
//! Source: Tobimatsu et al. for charging containers at all; the first-dirtier rule is ours (docs/attribution.md).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::record::{CgroupId, Commit, Kind, Tid};

/// Bytes that a cgroup pays for; `cgroup` is `None` if the owner is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The payer.
    pub cgroup: Option<CgroupId>,
    /// The kind of write.
    pub kind: Kind,
    /// The amount, bytes.
    pub bytes: u64,
}

/// Sums by owner.
pub type Parts = BTreeMap<Option<CgroupId>, u64>;

/// The cgroups whose fsync waited for a commit that one of them forced; none if the timer did.
pub type Waiters = BTreeSet<CgroupId>;

/// Units per block: divisible by all small numbers.
const UNITS: u64 = 5040;
/// Fixed blocks of every commit: a descriptor and the commit block.
const FIXED_BLOCKS: u64 = 2;
/// Number of commits whose waiters are remembered (at least `SHARE_SINCE_MAX` of `record.h`).
const MAX_WAITER_SETS: usize = 16;
/// Maximum number of transactions of a journal whose owners are remembered individually until they are checkpointed.
const MAX_UNCHECKPOINTED: usize = 1024;

/// Splits `total` in proportion to `parts`, exactly: each gets its share rounded down, and those with the largest
/// remainders one more. Empty if all parts are 0, or `total` is.
#[must_use]
pub fn pro_rata<K: Ord + Copy>(total: u64, parts: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let sum: u128 = parts.values().map(|&part| u128::from(part)).sum();
    if sum == 0 || total == 0 {
        return BTreeMap::new();
    }
    let mut split: Vec<(K, u64, u128)> = parts
        .iter()
        .filter(|(_, part)| **part > 0)
        .map(|(&owner, &part)| {
            let scaled = u128::from(total) * u128::from(part);
            let whole = u64::try_from(scaled / sum).expect("a part of a u64 fits a u64");
            (owner, whole, scaled % sum)
        })
        .collect();
    let given: u64 = split.iter().map(|(_, whole, _)| whole).sum();
    // Stable: among equal remainders the first owner wins, so that the same input gives the same output.
    split.sort_by_key(|&(_, _, remainder)| std::cmp::Reverse(remainder));
    let left = usize::try_from(total - given).unwrap_or(usize::MAX);
    for (_, whole, _) in split.iter_mut().take(left) {
        *whole += 1;
    }
    split.into_iter().map(|(owner, whole, _)| (owner, whole)).filter(|(_, whole)| *whole > 0).collect()
}

/// [`pro_rata`]; `default` gets all of it if there are no parts.
#[must_use]
pub fn pro_rata_or<K: Ord + Copy>(total: u64, parts: &BTreeMap<K, u64>, default: K) -> BTreeMap<K, u64> {
    let split = pro_rata(total, parts);
    if split.is_empty() && total > 0 { BTreeMap::from([(default, total)]) } else { split }
}

/// The owners of a transaction's blocks and bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// Blocks, by the cgroup that dirtied them first.
    pub dirtied_blocks: Parts,
    /// The part of them that these cgroups ceded to others that dirtied the blocks later, in sixths of a block.
    pub ceded_sixths: Parts,
    /// The part that the others took, in sixths of a block.
    pub joined_sixths: Parts,
    /// Blocks that were recently in an earlier transaction, by that transaction and by owner.
    pub again_blocks: BTreeMap<Tid, Parts>,
    /// Bytes of file data written inside the commit.
    pub ordered_bytes: Parts,
}

/// The state of one journal between commits.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// Blocks dirtied in committed transactions that are not checkpointed, oldest first.
    uncheckpointed: VecDeque<(Tid, Parts)>,
    /// The waiters of the last commits, oldest first.
    waiters: VecDeque<(Tid, Waiters)>,
    /// Bytes of its superblock that are not charged yet.
    superblock_bytes: u64,
}

impl Journal {
    /// Adds a write of the superblock, which the next commit's waiters pay for.
    pub fn superblock(&mut self, bytes: u64) {
        self.superblock_bytes += bytes;
    }

    /// Bytes of its superblock that are not charged yet.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.superblock_bytes
    }

    /// Charges a commit. `seen_whole` is false if its transaction began before the observation: then it may have blocks
    /// of unknown owners, and the remainder has no owner.
    pub fn commit(&mut self, commit: &Commit, parts: Transaction, waiters: Waiters, seen_whole: bool) -> Vec<Charge> {
        if self.waiters.back().is_some_and(|(last, _)| !is_after(commit.tid, *last)) {
            // There is another file system on the device, with a new journal.
            self.clear_uncheckpointed();
        }
        let mut charges = Vec::new();
        let superblock = std::mem::take(&mut self.superblock_bytes);
        let mut units = owned_units(&parts);
        self.surcharge(&mut units, commit.tid, &parts.again_blocks);
        for (cgroup, bytes) in split(commit, superblock, &units, &waiters, seen_whole) {
            charges.push(Charge { cgroup, kind: Kind::Commit, bytes });
        }
        self.waiters.push_back((commit.tid, waiters));
        if self.waiters.len() > MAX_WAITER_SETS {
            self.waiters.pop_front();
        }
        let mut ordered = parts.ordered_bytes;
        let known: u64 = ordered.values().sum();
        *ordered.entry(None).or_default() += commit.ordered_bytes.saturating_sub(known);
        for (cgroup, bytes) in pro_rata(commit.ordered_bytes, &ordered) {
            charges.push(Charge { cgroup, kind: Kind::Ordered, bytes });
        }
        if !parts.dirtied_blocks.is_empty() {
            self.uncheckpointed.push_back((commit.tid, parts.dirtied_blocks));
        }
        if self.uncheckpointed.len() > MAX_UNCHECKPOINTED {
            self.merge_oldest();
        }
        charges
    }

    /// Drops all transactions that are not checkpointed, because their checkpoints were not observed.
    pub fn clear_uncheckpointed(&mut self) {
        self.uncheckpointed.clear();
        self.waiters.clear();
    }

    /// Charges the waiters of commits since a block was last logged for their part in logging it again.
    fn surcharge(&self, units: &mut Parts, tid: Tid, again_blocks: &BTreeMap<Tid, Parts>) {
        let (mut given, mut taken) = (Parts::new(), Parts::new());
        for (&since, blocks) in again_blocks {
            // Transaction numbers wrap around.
            let between = self.waiters.iter().filter(|(other, _)| other.wrapping_sub(since) < tid.wrapping_sub(since));
            let waiters: Waiters = between.flat_map(|(_, waiters)| waiters).copied().collect();
            let n_waiters = waiters.len() as u64;
            for (&owner, &blocks) in blocks {
                if waiters.is_empty() || owner.is_none_or(|owner| waiters.contains(&owner)) {
                    continue;
                }
                let part = blocks * (UNITS / (n_waiters + 1));
                *given.entry(owner).or_default() += part;
                for &waiter in &waiters {
                    *taken.entry(Some(waiter)).or_default() += part / n_waiters;
                }
            }
        }
        move_units(units, &given, &taken);
    }

    /// Drops a transaction that is checkpointed.
    pub fn drop_transaction(&mut self, tid: Tid) {
        self.uncheckpointed.retain(|(other, _)| *other != tid);
    }

    /// Charges checkpointed metadata.
    #[must_use]
    pub fn checkpoint(&self, bytes: u64) -> Vec<Charge> {
        let mut owed = Parts::new();
        for (_, parts) in &self.uncheckpointed {
            add(&mut owed, parts);
        }
        charged(bytes, &owed, Kind::Checkpoint)
    }

    /// Charges bytes that no commit will pay for, because the file system is unmounted.
    pub fn close(&mut self) -> Option<Charge> {
        let bytes = std::mem::take(&mut self.superblock_bytes);
        (bytes > 0).then_some(Charge { cgroup: None, kind: Kind::Commit, bytes })
    }

    /// Bounds memory: merges the two oldest transactions, under the later one's number.
    fn merge_oldest(&mut self) {
        if let Some((_, oldest)) = self.uncheckpointed.pop_front()
            && let Some((_, next)) = self.uncheckpointed.front_mut()
        {
            add(next, &oldest);
        }
    }
}

/// Whether a transaction is later than another one of the same journal; numbers wrap around (`tid_gt` of
/// include/linux/jbd2.h).
fn is_after(tid: Tid, other: Tid) -> bool {
    tid != other && tid.wrapping_sub(other) <= Tid::MAX / 2
}

pub(super) fn charged(bytes: u64, parts: &Parts, kind: Kind) -> Vec<Charge> {
    pro_rata_or(bytes, parts, None).into_iter().map(|(cgroup, bytes)| Charge { cgroup, kind, bytes }).collect()
}

/// The owners of blocks, in [`UNITS`] per block; they add up to the dirtied blocks.
fn owned_units(parts: &Transaction) -> Parts {
    let scaled =
        |parts: &Parts, by: u64| parts.iter().map(|(&owner, &part)| (owner, part.saturating_mul(by))).collect();
    let mut units = scaled(&parts.dirtied_blocks, UNITS);
    let sixths = |parts| scaled(parts, UNITS / 6);
    move_units(&mut units, &sixths(&parts.ceded_sixths), &sixths(&parts.joined_sixths));
    units
}

/// Moves units from givers, as far as they have them, to takers, in proportion. Both sums are equal unless counts were
/// lost.
fn move_units(units: &mut Parts, given: &Parts, taken: &Parts) {
    let mut moved = 0;
    for (owner, &part) in given {
        if let Some(mine) = units.get_mut(owner) {
            let part = part.min(*mine);
            *mine -= part;
            moved += part;
        }
    }
    add(units, &pro_rata_or(moved, taken, None));
}

/// The owners of a commit's bytes: its charges without the surcharge. A wait for a commit is a wait for the blocks in
/// it, whoever pays for them.
#[must_use]
pub fn carried(commit: &Commit, parts: &Transaction, waiters: &Waiters, seen_whole: bool) -> Parts {
    split(commit, 0, &owned_units(parts), waiters, seen_whole)
}

/// Splits a commit's journal bytes: fixed blocks among its waiters, others by units of blocks.
fn split(commit: &Commit, superblock_bytes: u64, units: &Parts, waiters: &Waiters, seen_whole: bool) -> Parts {
    let (block, dirtied) = (u64::from(commit.block_bytes), units.values().sum::<u64>() / UNITS);
    // A block that was dirtied and then dropped (a file created and removed) is not written: then all pay less.
    let blocks_bytes = dirtied.saturating_mul(block).min(commit.journal_bytes);
    let rest = commit.journal_bytes - blocks_bytes;
    // The rest of a commit that was not observed from the start may be blocks of unknown owners.
    let fixed = if seen_whole { rest.min(FIXED_BLOCKS * block) } else { rest };
    let mut charges = pro_rata_or(commit.journal_bytes - fixed, units, None);
    let fixed = fixed + superblock_bytes;
    let payers = if !seen_whole {
        Parts::from([(None, fixed)])
    } else if waiters.is_empty() {
        pro_rata_or(fixed, units, None)
    } else {
        pro_rata(fixed, &waiters.iter().map(|&waiter| (Some(waiter), 1)).collect())
    };
    add(&mut charges, &payers);
    charges.retain(|_, bytes| *bytes > 0);
    charges
}

/// Adds one set of parts to another.
pub fn add<K: Ord + Copy>(to: &mut BTreeMap<K, u64>, parts: &BTreeMap<K, u64>) {
    for (&key, part) in parts {
        *to.entry(key).or_default() += part;
    }
}

#[cfg(test)]
mod tests;
