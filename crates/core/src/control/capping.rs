//! Caps (`io.max`) for those whom no weight holds back.
//!
//! io.cost lets journal writes through whatever they owe (kernel `bio_issue_as_root_blkg`), and one that goes to the disk with few
//! requests at a time is never held up by its weight: beside such a neighbour shares are what the neighbour leaves. A cap holds it:
//! blk-throttle charges it for journal writes, too, and delays what comes after them.
//!
//! A cap keeps its tenant from a disk that nobody else uses, so that each of them is only there for a reason and goes with it:
//!
//! * for shares, while weights do nothing and somebody who wants its share does not have it. Where those in want leave the device
//!   idle, caps rise again.
//! * for a latency, while a tenant's fsyncs take longer than it was promised: [`Promises`].
//!
//! Where tenants share a journal there are no caps: whoever commits waits for the writes of those that are held back.
//!
//! A cap is on operations, or on bytes where operations are neither small nor as large as the device takes them: writeback makes ones of 85
//! to 174 kB, as it comes, so that the same number is a fifth of the device in one second and half of it in the next. It is not on both: the
//! kernel splits what is larger than the device takes, charges all its bytes with the first part, and queues the rest behind all others
//! (`bio_split`, `BIO_BPS_THROTTLED`). With limits on both, a stream of such had eight times its bytes counted for some time, and then none.

use std::collections::BTreeMap;

use super::promise::Promises;
use super::{Cap, Params, Reason, Sample, Standing, TenantSample, part_of};
use crate::observe::cost::as_f64;

/// How far from its share somebody has to be for a cap to be set, of all.
const FAR: f64 = 0.02;
/// How much of the error a cap follows each second. What is seen of it is on average 2.5 s old.
const GAIN: f64 = 0.2;
/// A cap is at first no smaller than this part of what its tenant did.
const FIRST: f64 = 0.5;
/// Nobody is capped for one who waits for I/O for less of the time: it has what it wants, and only has it late.
pub(super) const WAITS: f64 = 0.5;
/// A device that is less busy than this has room: caps for shares rise.
const BUSY: f64 = 0.9;
/// By how much they rise each second.
const LOOSEN: f64 = 1.05;
/// By how much they rise when fewer than two contend. They do not go at once: who has just got enough would not have it any more.
const FREE: f64 = 1.25;
/// Who does less of what its cap lets it do waits for others, not for the cap.
const AT_CAP: f64 = 0.8;
/// Unless it is no further below it than this many operations per second: see [`SLICES`].
const FEW: f64 = 12.0;
/// The kernel lets whole operations through in each of its slices of 0.1 s (`throtl_slice`), so that a cap of 19 a second lets 10 through and
/// one of 20 lets 20. What is set is a multiple of this, and what is left of the cap is carried to the next second.
const SLICES: f64 = 10.0;
/// For caps of fewer operations per second; of more, it is hardly a part.
const FINE: f64 = 500.0;
/// A cap that is this much higher than what its tenant does holds nobody, and is lifted.
const SLACK: f64 = 1.5;
/// The same for one that waits for I/O, perhaps for the cap all the same ([`FEW`]). What has queued behind it would come at once: it rises
/// until it surely holds nobody.
const SLACK_WAITING: f64 = 4.0;
/// Nobody is held to fewer operations in a second.
pub(super) const MIN_OPS: f64 = 4.0;
/// Nor to fewer bytes: the largest operations would take seconds each.
const MIN_BYTES: f64 = 1_048_576.0;
/// Operations are small below so many bytes on average, and large from twice as many.
const SMALL: f64 = 16_384.0;
const LARGE: f64 = 2.0 * SMALL;
/// They are as large as the device takes them, and may be parts of larger ones, above this part of that.
const UNSPLIT: f64 = 0.5;
/// Changes that are smaller are not made.
const DEAD_BAND: f64 = 0.02;

/// The caps in force.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Caps {
    share: BTreeMap<String, Limit>,
    /// What is set for those of few operations.
    whole: BTreeMap<String, Whole>,
    pub(super) promises: Promises,
}

/// A cap in multiples of [`SLICES`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Whole {
    /// Operations per second.
    ops: f64,
    /// What the caps of the seconds before were larger than what was set for them.
    carried: f64,
}

/// What a tenant did, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) ops: f64,
    pub(super) bytes: f64,
}

/// What a tenant may do, per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Ops(f64),
    Bytes(f64),
}

impl Limit {
    /// As much as one did, in the kind that suits its operations, and no less than the least. `largest` is the most bytes that the device
    /// takes at once, where bytes can be capped.
    pub(super) fn of(did: Rate, largest: Option<f64>) -> Self {
        let size = part_of(did.bytes, did.ops);
        match largest {
            Some(largest) if size >= LARGE && size <= UNSPLIT * largest => Self::Bytes(did.bytes.max(MIN_BYTES)),
            _ => Self::Ops(did.ops.max(MIN_OPS)),
        }
    }

    /// That of a cap that is there.
    fn of_cap(cap: Cap) -> Option<Self> {
        cap.ops.map(|ops| Self::Ops(f64::from(ops))).or_else(|| Some(Self::Bytes(as_f64(cap.bytes?))))
    }

    /// This part of it.
    pub(super) fn times(self, part: f64) -> Self {
        match self {
            Self::Ops(ops) => Self::Ops(ops * part),
            Self::Bytes(bytes) => Self::Bytes(bytes * part),
        }
    }

    /// How much of it nobody is held below, of 1.
    pub(super) fn least(self) -> f64 {
        match self {
            Self::Ops(ops) => MIN_OPS / ops,
            Self::Bytes(bytes) => MIN_BYTES / bytes,
        }
    }

    /// How much of it one uses that does so much, of 1.
    pub(super) fn used(self, does: Rate) -> f64 {
        match self {
            Self::Ops(ops) => does.ops / ops,
            Self::Bytes(bytes) => does.bytes / bytes,
        }
    }

    /// Whether one that does so much is held by it: otherwise it waits for others, and not for the limit.
    fn is_reached(self, does: Rate) -> bool {
        self.used(does) > AT_CAP || matches!(self, Self::Ops(ops) if does.ops > ops - FEW)
    }

    /// Whether it is there for something when one does so much, and waits for I/O or not.
    pub(super) fn holds(self, does: Rate, waits: bool) -> bool {
        self.used(does).max(self.least()) * if waits { SLACK_WAITING } else { SLACK } >= 1.0
    }

    /// Whether it is of the kind for operations as they are now: many small ones make little of a limit on bytes.
    fn suits(self, does: Rate) -> bool {
        matches!(self, Self::Ops(_)) || does.bytes >= SMALL * does.ops
    }
}

/// What caps are decided from: means of the last seconds.
pub(super) struct Recent<'a> {
    pub(super) busy: f64,
    pub(super) rates: &'a BTreeMap<String, Rate>,
    /// The most bytes that the device takes in one operation; `None` where bytes cannot be capped.
    pub(super) largest: Option<f64>,
    pub(super) standings: &'a BTreeMap<String, Standing>,
    /// Part of the time in which they waited for I/O.
    pub(super) waiting: &'a BTreeMap<String, f64>,
    /// Weights do nothing for one of them.
    pub(super) is_ineffective: bool,
    /// Since the sample before.
    pub(super) seconds: f64,
}

impl Caps {
    /// With the caps that are there.
    pub(super) fn found(sample: &Sample, params: &Params) -> Self {
        let caps = sample.tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), Limit::of_cap(tenant.cap?)?)));
        match params.fsync_p99.is_empty() {
            true => Self { share: caps.collect(), ..Self::default() },
            false => Self { promises: Promises::found(caps), ..Self::default() },
        }
    }

    /// A tenant's cap, if it has one.
    pub(super) fn of(&self, name: &str) -> Option<Cap> {
        let mut cap = Cap::default();
        let of_share = |limit: &Limit| self.whole.get(name).map_or(*limit, |whole| Limit::Ops(whole.ops));
        for limit in self.share.get(name).map(of_share).into_iter().chain(self.promises.of(name)) {
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

    /// Without any.
    pub(super) fn lift(&mut self) {
        *self = Self::default();
    }

    /// Forgets those who have gone.
    pub(super) fn keep(&mut self, there: &BTreeMap<String, u32>) {
        self.share.retain(|name, _| there.contains_key(name));
        self.promises.keep(there);
    }

    /// Follows the shares of those who contend.
    pub(super) fn hold_shares(&mut self, recent: &Recent<'_>) {
        let contenders = || recent.standings.iter().filter(|(_, standing)| standing.contends);
        let rate = |name: &str| recent.rates.get(name).copied().unwrap_or_default();
        let waits = |name: &str| recent.waiting.get(name).is_some_and(|waiting| *waiting >= WAITS);
        if contenders().count() < 2 {
            self.share.values_mut().for_each(|cap| *cap = cap.times(FREE.powf(recent.seconds)));
        } else if recent.busy < BUSY {
            self.share.values_mut().for_each(|cap| *cap = cap.times(LOOSEN.powf(recent.seconds)));
        } else {
            // Who is short because of its own cap gets more by that.
            let is_at_cap = |name: &str| self.share.get(name).is_some_and(|cap| cap.is_reached(rate(name)));
            let is_short = |(name, standing): (&String, &Standing)| {
                standing.achieved < standing.target - FAR && waits(name) && !is_at_cap(name)
            };
            let is_short = contenders().any(is_short);
            let weights_fail = recent.is_ineffective || !self.share.is_empty();
            for (name, standing) in contenders() {
                let ratio = standing.target / standing.achieved;
                if !ratio.is_finite() {
                    continue;
                }
                let first = |part: f64| {
                    let limit = Limit::of(rate(name), recent.largest);
                    limit.times(part.max(FIRST).max(limit.least()))
                };
                if let Some(cap) = self.share.get_mut(name) {
                    let followed = ratio.powf(GAIN * recent.seconds).max(cap.least());
                    *cap = if cap.suits(rate(name)) { cap.times(followed) } else { first(ratio) };
                } else if weights_fail && is_short && standing.achieved > standing.target + FAR {
                    self.share.insert(name.clone(), first(ratio));
                }
            }
        }
        self.share.retain(|name, cap| cap.holds(rate(name), waits(name)));
        self.carry();
    }

    /// Chooses what is set for this second.
    fn carry(&mut self) {
        let before = std::mem::take(&mut self.whole);
        for (name, limit) in &self.share {
            let Limit::Ops(ops) = *limit else { continue };
            if (SLICES..FINE).contains(&ops) {
                let wanted = ops + before.get(name).map_or(0.0, |whole| whole.carried);
                let whole = SLICES * (wanted / SLICES).floor().max(1.0);
                self.whole.insert(name.clone(), Whole { ops: whole, carried: wanted - whole });
            }
        }
    }

    /// What is to change from what is there, and somebody who is held.
    pub(super) fn changes(&self, sample: &Sample) -> (BTreeMap<String, Option<Cap>>, Option<Reason>) {
        let near = |wanted: Option<f64>, found: Option<f64>| match (wanted, found) {
            (Some(wanted), Some(found)) => (wanted / found - 1.0).abs() < DEAD_BAND,
            (wanted, found) => wanted == found,
        };
        let is_near = |wanted: Cap, found: Cap| {
            near(wanted.ops.map(f64::from), found.ops.map(f64::from))
                && near(wanted.bytes.map(as_f64), found.bytes.map(as_f64))
        };
        let change = |(name, tenant): (&String, &TenantSample)| match (self.of(name), tenant.cap) {
            (None, None) => None,
            (Some(cap), Some(found)) if is_near(cap, found) => None,
            (wanted, _) => Some((name.clone(), wanted)),
        };
        let held = sample.tenants.keys().find_map(|name| Some((name, self.of(name)?)));
        let reason = held.map(|(name, cap)| Reason::Capped { tenant: name.clone(), cap });
        (sample.tenants.iter().filter_map(change).collect(), reason)
    }
}

#[cfg(test)]
mod tests;
