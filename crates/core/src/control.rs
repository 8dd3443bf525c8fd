//! Enforcing shares that include journal I/O: the weight that each tenant needs so that its own I/O and its part of the
//! journal I/O add up to its share.
//!
//! A weight arbitrates what the kernel charges to the tenant's cgroup. Journal writes of a kernel thread in the root
//! cgroup are charged to no cgroup with a weight, so the tenant that causes them gets them on top of its share. Both
//! modes here reduce its weight by that much.
//!
//! Owns: the arithmetic of a step, from a sample to weights and reasons, and the state between steps. Does not:
//! measure, write weights, or read a clock.

pub mod actions;
mod capping;
pub mod correcting;
pub mod holding;
mod hysteresis;
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

/// Longest interval between two samples that is still evaluated, ns. After a longer one the sample is discarded.
const LATE_NS: u64 = 3_000_000_000;

/// One tenant's I/O in one period, in bytes or nanoseconds of device time; the unit is the same throughout a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// I/O that the kernel charged to its cgroup, which its weight arbitrates (C).
    pub native: f64,
    /// I/O that it caused beyond that: its part of journal writes that are charged to other cgroups (J).
    pub journal: f64,
}

impl Usage {
    /// Native and journal I/O together.
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

/// A cap on a tenant, for reads and writes each. At least one of the two limits is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cap {
    /// Operations per second.
    pub ops: Option<u32>,
    /// Bytes per second.
    pub bytes: Option<u64>,
}

/// The constants of a hold.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Each tenant's share, 0 to 1 ([`normalise_shares`]).
    pub parts: BTreeMap<String, f64>,
    /// Sum of the tenants' weights.
    pub total_weight: f64,
    /// The range of weights that the active controller accepts.
    pub range: RangeInclusive<u32>,
    /// The promised 99th percentile of fsync latency, s, of tenants that have a promise.
    pub fsync_p99: BTreeMap<String, f64>,
}

impl Params {
    /// A tenant's weight if there were no journal I/O.
    pub(crate) fn ideal(&self, tenant: &str) -> f64 {
        self.total_weight * self.parts.get(tenant).copied().unwrap_or(0.0)
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range")]
    pub(crate) fn round(&self, weight: f64) -> u32 {
        weight.round().clamp(f64::from(*self.range.start()), f64::from(*self.range.end())) as u32
    }
}

/// Measurements since the previous sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the sample, ns of a monotonic clock.
    pub at_ns: u64,
    /// Utilisation of the device, 0 to 1: the fraction of time that it was busy or the used fraction of the capacity
    /// that io.cost grants, whichever is larger.
    pub busy: f64,
    /// Events were lost, so that amounts are too small.
    pub is_partial: bool,
    /// Tenants can be capped: the kernel has `io.max`, and no two tenants share a journal.
    pub can_cap: bool,
    /// Largest operation of the device, bytes; `None` where the limit on bytes from before the hold is unknown.
    pub largest: Option<f64>,
    /// The tenants' measurements. A tenant that is missing here has no cgroup any more, and is ignored.
    pub tenants: BTreeMap<String, TenantSample>,
}

/// Measurements of one tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TenantSample {
    /// Its I/O.
    pub usage: Usage,
    /// Fraction of the time in which at least one of its tasks waited for I/O (io.pressure, `some`).
    pub waiting: f64,
    /// The current weight of its cgroup.
    pub weight: u32,
    /// Operations per second since the previous sample.
    pub ops: f64,
    /// Bytes per second since the previous sample.
    pub bytes: f64,
    /// Its current cap, apart from the limits from before the hold.
    pub cap: Option<Cap>,
    /// 99th percentile of its recent fsync latencies, s; `None` without an fsync.
    pub fsync_p99: Option<f64>,
}

/// The result of evaluating a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Weights to change.
    pub changes: BTreeMap<String, u32>,
    /// Caps to change; `None` lifts a cap.
    pub caps: BTreeMap<String, Option<Cap>>,
    /// Why these changes, or why none.
    pub reason: Reason,
    /// The standing of each tenant.
    pub tenants: BTreeMap<String, Standing>,
}

/// A tenant's standing over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Standing {
    /// Its target: a fraction of the I/O of all contenders. For a tenant that does not contend, its share.
    pub target: f64,
    /// What it got, journal I/O included.
    pub achieved: f64,
    /// Its journal I/O alone, as the same kind of fraction.
    pub journal: f64,
    /// Whether it wants more than it gets, so that its share is enforced.
    pub contends: bool,
    /// Its journal I/O leaves less than the minimum for its own I/O: no weight reaches the target.
    pub infeasible: bool,
}

/// Why a step changed weights or caps, or did not.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reason {
    /// Weights change.
    Corrected,
    /// All weights are within the dead band.
    WithinBand,
    /// The window is not full yet.
    #[default]
    Starting,
    /// The device was not busy enough for anyone to be held up.
    NotContended {
        /// Utilisation, 0 to 1.
        busy: f64,
    },
    /// Fewer than two tenants contend.
    NoContenders,
    /// Weights are set, but have no effect on a tenant's own I/O.
    Ineffective {
        /// The tenant.
        tenant: String,
        /// Its fraction of all native I/O, 0 to 1.
        had: f64,
        /// The fraction that its weight should have given it.
        expected: f64,
    },
    /// A tenant is capped, because weights have no effect or for another tenant's latency.
    Capped {
        /// One of the capped tenants.
        tenant: String,
        /// Its cap.
        cap: Cap,
    },
    /// A tenant's fsyncs take longer than promised, and nothing more can be done.
    LatencyMissed {
        /// The tenant.
        tenant: String,
        /// Its measured 99th percentile, s.
        found: f64,
        /// The promised one, s.
        promised: f64,
        /// Why nothing more can be done.
        why: LatencyMiss,
    },
    /// Events were lost.
    Partial,
    /// Too much time passed since the previous sample.
    Late {
        /// The time, ns.
        ns: u64,
    },
    /// The clock went backwards.
    ClockWentBack,
    /// Another program sets the weight of a tenant. That weight is left alone, and so are all others until it has its
    /// old value.
    OtherWriter {
        /// The tenant.
        tenant: String,
        /// The value that was found.
        found: u32,
        /// The expected value.
        expected: u32,
    },
    /// Another program sets the `io.max` of a tenant, which is treated alike.
    OtherCap {
        /// The tenant.
        tenant: String,
        /// The cap that was found; `None` if there is none.
        found: Option<Cap>,
        /// The expected value.
        expected: Option<Cap>,
    },
}

impl Reason {
    /// Whether another program writes weights or limits of these tenants, so that all of them are left alone.
    #[must_use]
    pub const fn is_other_writer(&self) -> bool {
        matches!(self, Self::OtherWriter { .. } | Self::OtherCap { .. })
    }
}

/// Why a promised latency is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LatencyMiss {
    /// All other tenants are at their minimum.
    AtFloor,
    /// Slowing down the others did not help, so that they are no longer slowed down.
    NoHelp,
    /// The others do more than their caps allow: since Linux 6.12 metadata bypasses `io.max` (`tg_dispatch_in_debt`).
    /// Their caps are lifted.
    PastCaps,
    /// The others cannot be slowed down: they share a journal with it, or the kernel has no `io.max`.
    NoCaps,
}

/// The controller's state between samples. A new one starts from the weights that it finds.
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

/// Evaluates a sample. The returned changes are assumed to be applied before the next sample.
pub fn step(state: &mut State, sample: &Sample, params: &Params) -> Step {
    match state {
        State::Correcting(state) => correcting::step(state, sample, params),
        State::Published(state) => published::step(state, sample, params),
    }
}

fn weights_of(sample: &Sample) -> BTreeMap<String, u32> {
    sample.tenants.iter().map(|(name, tenant)| (name.clone(), tenant.weight)).collect()
}

/// The first weight that differs from the one that was last set or found.
fn other_writer(sample: &Sample, weights: &BTreeMap<String, u32>) -> Option<Reason> {
    sample.tenants.iter().find_map(|(name, tenant)| {
        let expected = *weights.get(name)?;
        let is_other = expected != tenant.weight;
        is_other.then(|| Reason::OtherWriter { tenant: name.clone(), found: tenant.weight, expected })
    })
}

/// `amount` as a fraction of `all`; 0 if `all` is 0.
fn fraction_of(amount: f64, all: f64) -> f64 {
    if all > 0.0 { amount / all } else { 0.0 }
}

/// Normalises the shares of several tenants to a sum of 1; requested shares may have any sum.
///
/// # Errors
/// [`BadShares`].
pub fn normalise_shares(asked: &BTreeMap<String, f64>) -> Result<BTreeMap<String, f64>, BadShares> {
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
    match parts.iter().find(|(_, part)| **part < MIN_SHARE) {
        Some((tenant, part)) => Err(BadShares::TooSmall { tenant: tenant.clone(), part: *part }),
        None => Ok(parts),
    }
}

/// The smallest share that weights can express with acceptable precision, 0 to 1.
pub const MIN_SHARE: f64 = 0.001;

/// Shares that cannot be enforced.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadShares {
    /// Fewer than two tenants.
    #[error("shares need two or more tenants: {0} given")]
    TooFew(usize),
    /// Zero, negative, or not a number.
    #[error("the share of {tenant} is {share}: a share must be a positive number")]
    NotPositive {
        /// The tenant.
        tenant: String,
        /// The requested share.
        share: f64,
    },
    /// Their sum is infinite.
    #[error("the shares are too large to be added")]
    TooLarge,
    /// Less than [`MIN_SHARE`].
    #[error("the share of {tenant} is {:.4} % of all: less than {} % cannot be enforced", part * 100.0, MIN_SHARE * 100.0)]
    TooSmall {
        /// The tenant.
        tenant: String,
        /// Its normalised share, 0 to 1.
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
        let parts = normalise_shares(&asked(&[("a", 7.0), ("b", 3.0)])).unwrap();
        assert!((parts["a"] - 0.7).abs() < 1e-12 && (parts["b"] - 0.3).abs() < 1e-12, "{parts:?}");
    }

    #[test]
    fn an_invalid_share_is_named() {
        let said = |shares: &[(&str, f64)]| normalise_shares(&asked(shares)).unwrap_err().to_string();
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
