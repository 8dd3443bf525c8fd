//! When BFQ has the tunables that weights need ([`STRICT`]), and when those from before the hold.
//!
//! Between tenants that wait for each of their requests, weights have an effect only if BFQ waits for the next request
//! as well. A task in fsync sends no next request: it waits for its journal thread, and a strict BFQ leaves the device
//! idle meanwhile (two tenants' fsyncs took 166 and 187 ms instead of 70 and 80 ms, measured in the lab). While a
//! tenant calls fsync all the time, the tunables are as before the hold, and caps enforce the shares.
//!
//! Such loads pause now and then, and a BFQ that turned strict in each pause would delay the next fsyncs. So it is
//! relaxed at once, and strict again only after [`RELAXED_FOR`] without such a load.

use std::time::Duration;

use super::hysteresis::Hysteresis;

/// Tunables with which BFQ enforces shares of tenants that wait for each of their requests. By default it serves
/// another queue in the pause between two requests (`bfq_inject_limit`, since 5.2), so that two such readers get the
/// same whatever their weights are, and it favours recently started ones (kernel
/// `Documentation/block/bfq-iosched.rst`). It idles for a tenant whose think time is at most half of `slice_idle`, ms
/// (`bfq_update_has_short_ttime`); with the default of 8, weights had no effect for periods of time, measured in the
/// lab.
pub const STRICT: [(&str, &str); 3] = [("strict_guarantees", "1"), ("low_latency", "0"), ("slice_idle", "20")];

/// Calls of fsync per second from which on a tenant counts as one that does nothing else.
const FSYNC_RATE: f64 = 5.0;
/// How long BFQ stays relaxed after the last second with that many.
const RELAXED_FOR: Duration = Duration::from_secs(60);

/// A tunable's value in [`STRICT`]; `None` for one that is not in it.
#[must_use]
pub fn strict_value(tunable: &str) -> Option<&'static str> {
    STRICT.iter().find(|(name, _)| *name == tunable).map(|(_, value)| *value)
}

/// Decides whether BFQ is strict, and remembers what was last set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strictness {
    synced: Hysteresis,
    /// `None` while unknown: at the daemon's start either kind may be set.
    is_strict: Option<bool>,
}

impl Strictness {
    /// Records each tenant's rate of fsync calls, per second.
    pub fn record(&mut self, at_ns: u64, rates: impl IntoIterator<Item = f64>) {
        if rates.into_iter().any(|rate| rate >= FSYNC_RATE) {
            self.synced.observe(at_ns);
        }
    }

    /// The tunables to set now: strict ones (`true`) or those from before the hold; `None` to leave them. The caller is
    /// assumed to set them.
    pub fn change(&mut self, at_ns: u64) -> Option<bool> {
        let is_strict = !self.synced.is_active(at_ns, RELAXED_FOR);
        (self.is_strict.replace(is_strict) != Some(is_strict)).then_some(is_strict)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RELAXED_FOR_NS: u64 = 60_000_000_000;

    /// Steps of up to 30 s each, with two tenants' rates of fsync calls: many, few, or none.
    fn courses() -> impl Strategy<Value = Vec<(u64, [f64; 2])>> {
        let rate = prop_oneof![4 => Just(0.0), 1 => 0.0..5.0f64, 1 => 5.0..500.0f64];
        let step = prop_oneof![Just(0), 1u64..2_000_000_000, 2_000_000_000..30_000_000_000u64];
        prop::collection::vec((step, [rate.clone(), rate]), 1..120)
    }

    #[test]
    fn the_first_step_sets_unknown_tunables() {
        assert_eq!(Strictness::default().change(0), Some(true));
        let mut synced = Strictness::default();
        synced.record(0, [5.0]);
        assert_eq!((synced.change(0), synced.change(1)), (Some(false), None));
    }

    #[test]
    fn only_tunables_of_a_hold_have_a_strict_value() {
        assert_eq!(STRICT.map(|(tunable, _)| strict_value(tunable)), [Some("1"), Some("0"), Some("20")]);
        assert_eq!(strict_value("max_budget"), None);
    }

    proptest! {
        /// The tunables depend only on the time since the last second with many fsyncs, and are set only when they
        /// change.
        #[test]
        fn bfq_is_strict_except_for_a_minute_after_fsyncs(course in courses()) {
            let (mut strictness, mut at_ns) = (Strictness::default(), 0u64);
            let (mut in_force, mut synced_ns, mut relaxed_ns) = (None, None, None::<u64>);
            for (step_ns, rates) in course {
                at_ns += step_ns;
                strictness.record(at_ns, rates);
                if rates.iter().any(|rate| *rate >= 5.0) {
                    synced_ns = Some(at_ns);
                }
                let change = strictness.change(at_ns);
                prop_assert!(change.is_none() || change != in_force, "what is in force was set again");
                prop_assert_eq!(strictness.change(at_ns), None, "one step changes it once");
                if change == Some(true) && let Some(relaxed_ns) = relaxed_ns {
                    prop_assert!(at_ns - relaxed_ns > RELAXED_FOR_NS, "flapped after {} ns", at_ns - relaxed_ns);
                }
                if change == Some(false) {
                    relaxed_ns = Some(at_ns);
                }
                in_force = change.or(in_force);
                let is_calm = synced_ns.is_none_or(|synced_ns| at_ns - synced_ns > RELAXED_FOR_NS);
                prop_assert_eq!(in_force, Some(is_calm), "{} ns, synced at {:?}", at_ns, synced_ns);
            }
        }

        #[test]
        fn jumping_clocks_and_invalid_rates_are_harmless(
            course in prop::collection::vec((any::<u64>(), any::<f64>()), 1..50)
        ) {
            let (mut strictness, mut in_force) = (Strictness::default(), None);
            for (at_ns, rate) in course {
                strictness.record(at_ns, [rate]);
                let change = strictness.change(at_ns);
                prop_assert!(change.is_none() || change != in_force);
                in_force = change.or(in_force);
                prop_assert!(rate.is_nan() || rate < 5.0 || in_force == Some(false), "strict beside {rate} fsyncs/s");
            }
        }
    }
}
