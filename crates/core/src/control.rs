//! Shares that hold including journal I/O: which weight each tenant needs so that its own I/O and its part of the journal come to
//! its share together.
//!
//! A weight arbitrates what the kernel charges to the tenant's cgroup. Journal writes by a thread in the root are charged to nobody
//! whom a weight holds: a tenant that causes them has them on top of its share. Both modes here make its weight that much smaller.
//!
//! Owns: the arithmetic of a step, from a sample to weights and reasons, and what has to be remembered between steps. Does not:
//! measure, write weights, or know a clock.

pub mod actions;
mod capping;
pub mod correcting;
pub mod holding;
mod lasting;
pub mod latencies;
pub mod own_caps;
mod promise;
pub mod published;
pub mod reading;
pub mod sharing;
pub mod splitting;
pub mod strictness;
pub mod usage;

use std::collections::BTreeMap;
use std::ops::{AddAssign, RangeInclusive};

use crate::model::Mode;

/// A sample that comes later than this after the one before says nothing about the time between, ns.
const LATE_NS: u64 = 3_000_000_000;

/// One tenant in one period. Amounts are bytes or nanoseconds of device time, the same in all of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// What the kernel charged to it, which its weight arbitrates (C).
    pub native: f64,
    /// What it caused beyond that: its part of journal writes that are charged to others (J).
    pub journal: f64,
}

impl Usage {
    /// Both.
    #[must_use]
    pub fn total(self) -> f64 {
        self.native + self.journal
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.native += other.native;
        self.journal += other.journal;
    }
}

/// What a tenant is held to, reads and writes each: at least one of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// Operations per second.
    pub ops: Option<u32>,
    /// Bytes per second.
    pub bytes: Option<u64>,
}

/// What stays the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Each tenant's share, of 1 ([`super::parts`]).
    pub parts: BTreeMap<String, f64>,
    /// Sum of their weights.
    pub total_weight: f64,
    /// Weights that the controller in force takes.
    pub range: RangeInclusive<u32>,
    /// How long 99 % of a tenant's fsyncs take at most, s, of those to whom that was promised.
    pub fsync_p99: BTreeMap<String, f64>,
}

impl Params {
    /// A tenant's weight where there is no journal I/O.
    pub(crate) fn ideal(&self, tenant: &str) -> f64 {
        self.total_weight * self.parts.get(tenant).copied().unwrap_or(0.0)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range")]
    pub(crate) fn round(&self, weight: f64) -> u32 {
        weight.round().clamp(f64::from(*self.range.start()), f64::from(*self.range.end())) as u32
    }
}

/// What was measured since the sample before.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// When it was taken, ns of a monotonic clock.
    pub at_ns: u64,
    /// Part of the time in which the device was busy, or, if that is more, of what io.cost lets it do.
    pub busy: f64,
    /// Something was lost: amounts are too small.
    pub is_partial: bool,
    /// Operations can be capped: the kernel has `io.max`, and no two tenants share a journal.
    pub can_cap: bool,
    /// The most bytes that the device takes in one operation; `None` where it is not known what bytes were limited to before.
    pub largest: Option<f64>,
    /// Every tenant's part. Who is missing here has gone, and takes no part.
    pub tenants: BTreeMap<String, TenantSample>,
}

/// One tenant's part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// What it did.
    pub usage: Usage,
    /// Part of the time in which some task of it waited for I/O (io.pressure, `some`).
    pub waiting: f64,
    /// The weight that its cgroup has now.
    pub weight: u32,
    /// Operations since the sample before, per second.
    pub ops: f64,
    /// Bytes that they moved, per second.
    pub bytes: f64,
    /// What it is held to now, beyond what its owner said.
    pub cap: Option<Cap>,
    /// How long 99 % of its fsyncs in the last seconds took at most, s; `None` when there was none.
    pub fsync_p99: Option<f64>,
}

/// What follows from a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Weights that change.
    pub changes: BTreeMap<String, u32>,
    /// Caps that change; `None` for one that is lifted.
    pub caps: BTreeMap<String, Option<Cap>>,
    /// Why these, or why none.
    pub reason: Reason,
    /// Where each tenant stands.
    pub tenants: BTreeMap<String, Standing>,
}

/// A tenant in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// What it is to have, of what all contenders did; its own share where it does not contend.
    pub target: f64,
    /// What it had, journal included.
    pub achieved: f64,
    /// Its journal I/O alone, in the same measure.
    pub journal: f64,
    /// Whether it wants more than it has, so that its share is held.
    pub contends: bool,
    /// Its journal I/O leaves less than the floor for its own: no weight reaches the target.
    pub infeasible: bool,
}

/// Why a step did what it did.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reason {
    /// Weights change.
    Corrected,
    /// They are right within the dead band.
    WithinBand,
    /// The window is not full yet.
    #[default]
    Starting,
    /// The device was not busy enough for anybody to be held up: part of the time, of 1.
    NotContended {
        /// How busy it was.
        busy: f64,
    },
    /// Fewer than two tenants want more than they have.
    NoContenders,
    /// Weights were set, and do nothing for a tenant's own I/O.
    Ineffective {
        /// Whose.
        tenant: String,
        /// What it had of all own I/O, of 1.
        had: f64,
        /// What its weight should have given it.
        expected: f64,
    },
    /// A tenant is held to a number of operations, because weights do nothing or for another one's latency.
    Capped {
        /// Who; one of them.
        tenant: String,
        /// To how much.
        cap: Cap,
    },
    /// A tenant's fsyncs take longer than it was promised, and nothing more can be done.
    LatencyMissed {
        /// Whose.
        tenant: String,
        /// 99 % of them take this long at most, s.
        found: f64,
        /// What was promised, s.
        promised: f64,
        /// Why nothing can be done.
        why: LatencyMiss,
    },
    /// Records were lost.
    Partial,
    /// Too much time went by since the sample before, ns.
    Late {
        /// How much.
        ns: u64,
    },
    /// The clock went backwards.
    ClockWentBack,
    /// Somebody else sets the weight of a tenant: theirs is left, and so are all others until it is as it was.
    OtherWriter {
        /// Whose.
        tenant: String,
        /// What is there.
        found: u32,
        /// What was there before.
        expected: u32,
    },
    /// Somebody else sets the `io.max` of a tenant: the same.
    OtherCap {
        /// Whose.
        tenant: String,
        /// Operations per second that it is held to; `None` when it is not.
        found: Option<Cap>,
        /// What was there before.
        expected: Option<Cap>,
    },
}

impl Reason {
    /// Another program writes weights or limits of these tenants: all of them are left.
    #[must_use]
    pub const fn is_other_writer(&self) -> bool {
        matches!(self, Self::OtherWriter { .. } | Self::OtherCap { .. })
    }
}

/// Why a latency cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyMiss {
    /// All others are as slow as they may be.
    AtFloor,
    /// It did not become better when they were: they are held back no more.
    NoHelp,
    /// They do more than their caps allow: since Linux 6.12 metadata passes `io.max` (`tg_dispatch_in_debt`). They are not capped
    /// any more.
    PastCaps,
    /// Others cannot be slowed down: it shares a journal with them, or the kernel has no `io.max`.
    NoCaps,
}

/// What is remembered between samples. A new one begins with the weights that it finds.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// [`Mode::Correcting`].
    Correcting(correcting::State),
    /// [`Mode::Published`].
    Published(published::State),
}

impl State {
    /// Before the first sample.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        match mode {
            Mode::Correcting => Self::Correcting(correcting::State::default()),
            Mode::Published => Self::Published(published::State::default()),
        }
    }
}

/// One step: takes a sample, and says which weights are to change. They are taken to be in force from the next sample on.
pub fn step(state: &mut State, sample: &Sample, params: &Params) -> Step {
    match state {
        State::Correcting(state) => correcting::step(state, sample, params),
        State::Published(state) => published::step(state, sample, params),
    }
}

fn weights_of(sample: &Sample) -> BTreeMap<String, u32> {
    sample.tenants.iter().map(|(name, tenant)| (name.clone(), tenant.weight)).collect()
}

/// A weight that is not what it was.
fn other_writer(sample: &Sample, weights: &BTreeMap<String, u32>) -> Option<Reason> {
    sample.tenants.iter().find_map(|(name, tenant)| {
        let expected = *weights.get(name)?;
        let is_other = expected != tenant.weight;
        is_other.then(|| Reason::OtherWriter { tenant: name.clone(), found: tenant.weight, expected })
    })
}

/// Of nothing everybody has 0.
fn part_of(amount: f64, all: f64) -> f64 {
    if all > 0.0 { amount / all } else { 0.0 }
}

/// Shares of several tenants, as parts of 1; what is asked for may sum to anything.
///
/// # Errors
/// [`BadShares`].
pub fn parts(asked: &BTreeMap<String, f64>) -> Result<BTreeMap<String, f64>, BadShares> {
    if asked.len() < 2 {
        return Err(BadShares::TooFew(asked.len()));
    }
    for (tenant, &share) in asked {
        if !share.is_finite() || share <= 0.0 {
            return Err(BadShares::NotPositive { tenant: tenant.clone(), share });
        }
    }
    let sum: f64 = asked.values().sum();
    if !sum.is_finite() {
        return Err(BadShares::TooLarge);
    }
    let parts: BTreeMap<String, f64> = asked.iter().map(|(tenant, share)| (tenant.clone(), share / sum)).collect();
    match parts.iter().find(|(_, part)| **part < MIN_PART) {
        Some((tenant, part)) => Err(BadShares::TooSmall { tenant: tenant.clone(), part: *part }),
        None => Ok(parts),
    }
}

/// The smallest part that weights can express beside others with some precision.
pub const MIN_PART: f64 = 0.001;

/// Shares that cannot be held.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadShares {
    /// There is nobody to share with.
    #[error("shares need two or more tenants: {0} given")]
    TooFew(usize),
    /// Zero, negative, or not a number.
    #[error("the share of {tenant} is {share}: a share must be a positive number")]
    NotPositive {
        /// Whose.
        tenant: String,
        /// What was asked for.
        share: f64,
    },
    /// Their sum is infinite.
    #[error("the shares are too large to be added")]
    TooLarge,
    /// Less than [`MIN_PART`].
    #[error("the share of {tenant} is {:.4} % of all: less than {} % cannot be enforced", part * 100.0, MIN_PART * 100.0)]
    TooSmall {
        /// Whose.
        tenant: String,
        /// Of 1.
        part: f64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(shares: &[(&str, f64)]) -> BTreeMap<String, f64> {
        shares.iter().map(|(tenant, share)| ((*tenant).to_owned(), *share)).collect()
    }

    #[test]
    fn shares_may_sum_to_anything() {
        let parts = parts(&asked(&[("a", 7.0), ("b", 3.0)])).unwrap();
        assert!((parts["a"] - 0.7).abs() < 1e-12 && (parts["b"] - 0.3).abs() < 1e-12, "{parts:?}");
    }

    #[test]
    fn what_is_no_share_is_named() {
        let said = |shares: &[(&str, f64)]| parts(&asked(shares)).unwrap_err().to_string();
        assert_eq!(said(&[("a", 1.0)]), "shares need two or more tenants: 1 given");
        assert_eq!(said(&[("a", 0.0), ("b", 1.0)]), "the share of a is 0: a share must be a positive number");
        assert_eq!(said(&[("a", f64::NAN), ("b", 1.0)]), "the share of a is NaN: a share must be a positive number");
        assert_eq!(said(&[("a", -1.0), ("b", 1.0)]), "the share of a is -1: a share must be a positive number");
        assert_eq!(said(&[("a", f64::MAX), ("b", f64::MAX)]), "the shares are too large to be added");
        assert_eq!(
            said(&[("a", 1.0), ("b", 9999.0)]),
            "the share of a is 0.0100 % of all: less than 0.1 % cannot be enforced"
        );
    }
}
