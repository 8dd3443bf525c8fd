//! Caps on operations (`io.max`) for those whom no weight holds back.
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

use std::collections::BTreeMap;

use super::promise::Promises;
use super::{Params, Reason, Sample, Standing, TenantSample};

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
/// Unless it is no further below it than this many operations per second: the kernel lets whole ones through in each of its slices of 0.1 s
/// (`throtl_slice`), so that a cap of 19 lets 10 through.
const FEW: f64 = 12.0;
/// A cap that is this much higher than what its tenant does holds nobody, and is lifted.
const SLACK: f64 = 1.5;
/// The same for one that waits for I/O, perhaps for the cap all the same ([`FEW`]). What has queued behind it would come at once: it rises
/// until it surely holds nobody.
const SLACK_WAITING: f64 = 4.0;
/// Nobody is held to fewer operations in a second.
pub(super) const MIN_OPS: f64 = 4.0;
/// Changes that are smaller are not made.
const DEAD_BAND: f64 = 0.02;

/// The caps in force, operations per second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Caps {
    share: BTreeMap<String, f64>,
    pub(super) promises: Promises,
}

/// What caps are decided from: means of the last seconds.
pub(super) struct Recent<'a> {
    pub(super) busy: f64,
    /// Operations per second.
    pub(super) ops: &'a BTreeMap<String, f64>,
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
        let caps = sample.tenants.iter().filter_map(|(name, tenant)| Some((name.clone(), f64::from(tenant.cap?))));
        match params.fsync_p99.is_empty() {
            true => Self { share: caps.collect(), ..Self::default() },
            false => Self { promises: Promises::found(caps), ..Self::default() },
        }
    }

    /// A tenant's cap, if it has one.
    pub(super) fn of(&self, name: &str) -> Option<u32> {
        let ops = self.share.get(name).copied().into_iter().chain(self.promises.of(name)).reduce(f64::min)?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to the range")]
        Some(ops.round().clamp(1.0, f64::from(u32::MAX)) as u32)
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
        let rate = |name: &str| recent.ops.get(name).copied().unwrap_or(0.0);
        let waits = |name: &str| recent.waiting.get(name).is_some_and(|waiting| *waiting >= WAITS);
        if contenders().count() < 2 {
            self.share.values_mut().for_each(|cap| *cap *= FREE.powf(recent.seconds));
        } else if recent.busy < BUSY {
            self.share.values_mut().for_each(|cap| *cap *= LOOSEN.powf(recent.seconds));
        } else {
            // Who is short because of its own cap gets more by that.
            let is_at_cap =
                |name: &str| self.share.get(name).is_some_and(|cap| rate(name) > (AT_CAP * cap).min(cap - FEW));
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
                if let Some(cap) = self.share.get_mut(name) {
                    *cap = (*cap * ratio.powf(GAIN * recent.seconds)).max(MIN_OPS);
                } else if weights_fail && is_short && standing.achieved > standing.target + FAR {
                    self.share.insert(name.clone(), (rate(name) * ratio.max(FIRST)).max(MIN_OPS));
                }
            }
        }
        self.share.retain(|name, cap| holds(*cap, rate(name), waits(name)));
    }

    /// What is to change from what is there, and somebody who is held.
    pub(super) fn changes(&self, sample: &Sample) -> (BTreeMap<String, Option<u32>>, Option<Reason>) {
        let is_near = |cap: u32, found: u32| (f64::from(cap) / f64::from(found) - 1.0).abs() < DEAD_BAND;
        let change = |(name, tenant): (&String, &TenantSample)| match (self.of(name), tenant.cap) {
            (None, None) => None,
            (Some(cap), Some(found)) if is_near(cap, found) => None,
            (wanted, _) => Some((name.clone(), wanted)),
        };
        let held = sample.tenants.keys().find_map(|name| Some((name, self.of(name)?)));
        let reason = held.map(|(name, ops)| Reason::Capped { tenant: name.clone(), ops });
        (sample.tenants.iter().filter_map(change).collect(), reason)
    }
}

/// Whether a cap holds somebody who does so much, in operations per second, and waits for I/O or not.
pub(super) fn holds(cap: f64, does: f64, waits: bool) -> bool {
    cap <= if waits { SLACK_WAITING } else { SLACK } * does.max(MIN_OPS)
}

#[cfg(test)]
mod tests;
