//! Caps (`io.max`) for tenants that weights do not restrict.
//!
//! io.cost issues journal writes at once, whatever the cgroup's debt (kernel `bio_issue_as_root_blkg`), and a tenant
//! with few requests in flight is never delayed by its weight: the others get what such a neighbour leaves. A cap
//! restricts it: blk-throttle also charges it for journal writes, and delays the requests after them.
//!
//! A cap also keeps its tenant from using an idle disk, so each cap exists only for a reason, and is lifted with it:
//!
//! * for shares, while weights have no effect and a contender gets less than its share. If the contenders leave the
//!   device idle, caps rise again.
//! * for a latency, while a tenant's fsyncs take longer than promised: [`Promises`].
//!
//! Tenants that share a journal are not capped: a commit would wait for the writes of the capped ones.
//!
//! A cap limits operations, or bytes if operations are neither small nor close to the device's maximum: writeback
//! issues operations of 85 to 174 kB, so that the same number of them is a fifth of the device in one second and half
//! of it in the next. It never limits both: the kernel splits requests that are larger than the maximum, charges all
//! their bytes with the first part, and queues the rest behind all others (`bio_split`, `BIO_BPS_THROTTLED`). With both
//! limits, a stream of such requests was charged eight times its bytes for some time, and then nothing.

use std::collections::BTreeMap;

use super::promise::Promises;
use super::{Cap, Params, Reason, Sample, Standing, TenantSample, fraction_of};
use crate::observe::cost::as_f64;

/// Smallest distance from a share at which a cap is set, 0 to 1.
const MIN_DISTANCE: f64 = 0.02;
/// Fraction of the error by which a cap is corrected each second. The measured error is 2.5 s old on average.
const GAIN: f64 = 0.2;
/// Smallest initial cap, as a fraction of the tenant's rate.
const MIN_FIRST: f64 = 0.5;
/// Fraction of time that a tenant has to wait for I/O for others to be capped for it. One that waits less gets all it
/// wants, only late.
pub(super) const WAITS: f64 = 0.5;
/// Utilisation below which a device has capacity left: caps for shares rise.
const BUSY: f64 = 0.9;
/// Factor by which caps rise each second.
const LOOSEN: f64 = 1.05;
/// Factor by which caps rise each second while fewer than two tenants contend. They are not lifted at once: a tenant
/// that has just reached its share would lose it again.
const RELEASE: f64 = 1.25;
/// Fraction of its cap from which on a tenant counts as restricted by it. Below that, it waits for others.
const AT_CAP: f64 = 0.8;
/// A tenant is also restricted if it is no more than this many operations per second below its cap: see
/// [`SLICES_PER_SECOND`].
const NEAR_CAP_OPS: f64 = 12.0;
/// The kernel admits whole operations in each of its slices of 0.1 s (`throtl_slice`), so that a cap of 19 per second
/// admits 10 and one of 20 admits 20. The limit that is set is a multiple of this, and the remainder is carried to the
/// next second.
const SLICES_PER_SECOND: f64 = 10.0;
/// Caps of more operations per second are not rounded: the remainder hardly matters.
const MAX_ROUNDED_OPS: f64 = 500.0;
/// A cap of at least this multiple of its tenant's rate has no effect, and is lifted.
const SLACK: f64 = 1.5;
/// The same for a tenant that waits for I/O, possibly because of the cap after all ([`NEAR_CAP_OPS`]). Lifting the cap
/// would release its queue at once, so the cap rises until it certainly has no effect.
const SLACK_WAITING: f64 = 4.0;
/// Smallest cap on operations, per second.
pub(super) const MIN_OPS: f64 = 4.0;
/// Smallest cap on bytes, per second: with less, the largest operations would take seconds each.
const MIN_BYTES: f64 = 1_048_576.0;
/// Mean size below which operations are small, bytes; they are large from twice that on.
const SMALL: f64 = 16_384.0;
const LARGE: f64 = 2.0 * SMALL;
/// Fraction of the device's largest operation above which operations may be parts of split ones.
const MAX_UNSPLIT: f64 = 0.5;
/// Smaller changes, as a fraction, are not made.
const DEAD_BAND: f64 = 0.02;

/// The current caps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Caps {
    share: BTreeMap<String, Limit>,
    /// The limits that are set for caps on few operations.
    rounded: BTreeMap<String, Rounded>,
    pub(super) promises: Promises,
}

/// A cap in multiples of [`SLICES_PER_SECOND`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rounded {
    /// Operations per second.
    ops: f64,
    /// Accumulated remainder: by how much earlier caps exceeded the limits that were set for them.
    carried: f64,
}

/// A tenant's rates, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) ops: f64,
    pub(super) bytes: f64,
}

/// A limit on a tenant, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Ops(f64),
    Bytes(f64),
}

impl Limit {
    /// The limit equal to `rate`, on operations or bytes, whichever suits their size, and at least the minimum.
    /// `largest` is the device's largest operation, where bytes can be capped.
    pub(super) fn for_rate(rate: Rate, largest: Option<f64>) -> Self {
        let size = fraction_of(rate.bytes, rate.ops);
        match largest {
            Some(largest) if size >= LARGE && size <= MAX_UNSPLIT * largest => Self::Bytes(rate.bytes.max(MIN_BYTES)),
            _ => Self::Ops(rate.ops.max(MIN_OPS)),
        }
    }

    /// The limit of an existing cap.
    fn from_cap(cap: Cap) -> Option<Self> {
        cap.ops.map(|ops| Self::Ops(f64::from(ops))).or_else(|| Some(Self::Bytes(as_f64(cap.bytes?))))
    }

    /// The limit multiplied by `factor`.
    pub(super) fn scaled(self, factor: f64) -> Self {
        match self {
            Self::Ops(ops) => Self::Ops(ops * factor),
            Self::Bytes(bytes) => Self::Bytes(bytes * factor),
        }
    }

    /// The minimum as a fraction of this limit.
    pub(super) fn min_fraction(self) -> f64 {
        match self {
            Self::Ops(ops) => MIN_OPS / ops,
            Self::Bytes(bytes) => MIN_BYTES / bytes,
        }
    }

    /// The rate as a fraction of this limit.
    pub(super) fn utilisation(self, rate: Rate) -> f64 {
        match self {
            Self::Ops(ops) => rate.ops / ops,
            Self::Bytes(bytes) => rate.bytes / bytes,
        }
    }

    /// Whether a tenant with this rate is restricted by the limit. Otherwise it waits for others.
    fn restricts(self, rate: Rate) -> bool {
        self.utilisation(rate) > AT_CAP || matches!(self, Self::Ops(ops) if rate.ops > ops - NEAR_CAP_OPS)
    }

    /// Whether the limit may have an effect on a tenant with this rate that waits for I/O, or does not.
    pub(super) fn may_restrict(self, rate: Rate, waits: bool) -> bool {
        self.utilisation(rate).max(self.min_fraction()) * if waits { SLACK_WAITING } else { SLACK } >= 1.0
    }

    /// Whether the limit suits the current size of operations: many small ones hardly use a limit on bytes.
    fn suits(self, rate: Rate) -> bool {
        matches!(self, Self::Ops(_)) || rate.bytes >= SMALL * rate.ops
    }
}

/// Inputs for the decision about caps: means of the last seconds.
pub(super) struct Recent<'a> {
    pub(super) busy: f64,
    pub(super) rates: &'a BTreeMap<String, Rate>,
    /// Largest operation of the device, bytes; `None` where bytes cannot be capped.
    pub(super) largest: Option<f64>,
    pub(super) standings: &'a BTreeMap<String, Standing>,
    /// Fraction of time in which each tenant waited for I/O.
    pub(super) waiting: &'a BTreeMap<String, f64>,
    /// Weights have no effect on at least one tenant.
    pub(super) is_ineffective: bool,
    /// Time since the previous sample, s.
    pub(super) seconds: f64,
}

impl Caps {
    /// Starts from the caps that are set.
    pub(super) fn resume(sample: &Sample, params: &Params) -> Self {
        let caps =
            sample.tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), Limit::from_cap(tenant.cap?)?)));
        match params.fsync_p99.is_empty() {
            true => Self { share: caps.collect(), ..Self::default() },
            false => Self { promises: Promises::resume(caps), ..Self::default() },
        }
    }

    /// A tenant's cap, if it has one.
    pub(super) fn cap(&self, name: &str) -> Option<Cap> {
        let mut cap = Cap::default();
        let of_share = |limit: &Limit| self.rounded.get(name).map_or(*limit, |rounded| Limit::Ops(rounded.ops));
        for limit in self.share.get(name).map(of_share).into_iter().chain(self.promises.limit(name)) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range")]
            match limit {
                Limit::Ops(ops) => {
                    let ops = ops.round().clamp(1.0, f64::from(u32::MAX)) as u32;
                    cap.ops = Some(cap.ops.map_or(ops, |other| other.min(ops)));
                }
                Limit::Bytes(bytes) => {
                    let bytes = bytes.round().max(MIN_BYTES) as u64;
                    cap.bytes = Some(cap.bytes.map_or(bytes, |other| other.min(bytes)));
                }
            }
        }
        (cap != Cap::default()).then_some(cap)
    }

    /// Removes all caps.
    pub(super) fn lift(&mut self) {
        *self = Self::default();
    }

    /// Removes tenants whose cgroups are gone.
    pub(super) fn retain(&mut self, there: &BTreeMap<String, u32>) {
        self.share.retain(|name, _| there.contains_key(name));
        self.promises.retain(there);
    }

    /// Adjusts caps to the shares of contenders.
    pub(super) fn adjust_to_shares(&mut self, recent: &Recent<'_>) {
        let contenders = || recent.standings.iter().filter(|(_, standing)| standing.contends);
        let rate = |name: &str| recent.rates.get(name).copied().unwrap_or_default();
        let waits = |name: &str| recent.waiting.get(name).is_some_and(|waiting| *waiting >= WAITS);
        if contenders().count() < 2 {
            self.share.values_mut().for_each(|cap| *cap = cap.scaled(RELEASE.powf(recent.seconds)));
        } else if recent.busy < BUSY {
            self.share.values_mut().for_each(|cap| *cap = cap.scaled(LOOSEN.powf(recent.seconds)));
        } else {
            // A tenant that is short because of its own cap gets more by a higher cap.
            let is_at_cap = |name: &str| self.share.get(name).is_some_and(|cap| cap.restricts(rate(name)));
            let is_short = |(name, standing): (&String, &Standing)| {
                standing.achieved < standing.target - MIN_DISTANCE && waits(name) && !is_at_cap(name)
            };
            let is_short = contenders().any(is_short);
            let weights_fail = recent.is_ineffective || !self.share.is_empty();
            for (name, standing) in contenders() {
                let ratio = standing.target / standing.achieved;
                if !ratio.is_finite() {
                    continue;
                }
                let first = |part: f64| {
                    let limit = Limit::for_rate(rate(name), recent.largest);
                    limit.scaled(part.max(MIN_FIRST).max(limit.min_fraction()))
                };
                if let Some(cap) = self.share.get_mut(name) {
                    let followed = ratio.powf(GAIN * recent.seconds).max(cap.min_fraction());
                    *cap = if cap.suits(rate(name)) { cap.scaled(followed) } else { first(ratio) };
                } else if weights_fail && is_short && standing.achieved > standing.target + MIN_DISTANCE {
                    self.share.insert(name.clone(), first(ratio));
                }
            }
        }
        self.share.retain(|name, cap| cap.may_restrict(rate(name), waits(name)));
        self.round_to_slices();
    }

    /// Chooses the limits to set for this second.
    fn round_to_slices(&mut self) {
        let before = std::mem::take(&mut self.rounded);
        for (name, limit) in &self.share {
            let Limit::Ops(ops) = *limit else { continue };
            if (SLICES_PER_SECOND..MAX_ROUNDED_OPS).contains(&ops) {
                let wanted = ops + before.get(name).map_or(0.0, |rounded| rounded.carried);
                let rounded = SLICES_PER_SECOND * (wanted / SLICES_PER_SECOND).floor().max(1.0);
                self.rounded.insert(name.clone(), Rounded { ops: rounded, carried: wanted - rounded });
            }
        }
    }

    /// The changes from the current caps, and one of the capped tenants as the reason.
    pub(super) fn changes(&self, sample: &Sample) -> (BTreeMap<String, Option<Cap>>, Option<Reason>) {
        let near = |wanted: Option<f64>, found: Option<f64>| match (wanted, found) {
            (Some(wanted), Some(found)) => (wanted / found - 1.0).abs() < DEAD_BAND,
            (wanted, found) => wanted == found,
        };
        let is_near = |wanted: Cap, found: Cap| {
            near(wanted.ops.map(f64::from), found.ops.map(f64::from))
                && near(wanted.bytes.map(as_f64), found.bytes.map(as_f64))
        };
        let change = |(name, tenant): (&String, &TenantSample)| match (self.cap(name), tenant.cap) {
            (None, None) => None,
            (Some(cap), Some(found)) if is_near(cap, found) => None,
            (wanted, _) => Some((name.clone(), wanted)),
        };
        let held = sample.tenants.keys().find_map(|name| Some((name, self.cap(name)?)));
        let reason = held.map(|(name, cap)| Reason::Capped { tenant: name.clone(), cap });
        (sample.tenants.iter().filter_map(change).collect(), reason)
    }
}

#[cfg(test)]
mod tests;
