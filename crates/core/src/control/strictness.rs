//! When BFQ's tunables are those that weights need ([`STRICT`]), and when they are as before the hold.
//!
//! Weights hold between tenants that wait for each of their requests only where BFQ waits for the next one, too. A task that calls
//! fsync sends no next one: it waits for its journal thread, and a strict BFQ leaves the device idle meanwhile (an fsync took 166 and
//! 187 ms instead of 70 and 80 beside each other, as measured in the lab). While somebody does that all the time the tunables are as
//! before, and caps hold the shares.
//!
//! Such loads pause now and then, and a BFQ that is strict in each pause has the next fsyncs wait: it is relaxed at once, and strict
//! again only after [`SYNCED_FOR`] without.

use std::time::Duration;

use super::lasting::Lasting;

/// BFQ with these holds shares of tenants that wait for each of their requests. By default it serves somebody else in the pause between
/// two requests (`bfq_inject_limit`, since 5.2), so that two such readers have the same whatever their weights are, and favours those
/// that began lately (kernel `Documentation/block/bfq-iosched.rst`). It waits for a tenant that thinks for no more than half of
/// `slice_idle`, ms (`bfq_update_has_short_ttime`); with the default of 8, weights did nothing in spells, as measured in the lab.
pub const STRICT: [(&str, &str); 3] = [("strict_guarantees", "1"), ("low_latency", "0"), ("slice_idle", "20")];

/// Calls of fsync per second from which on a tenant does nothing else.
const SYNCS: f64 = 5.0;
/// How long BFQ is not strict after the last second with as many.
const SYNCED_FOR: Duration = Duration::from_secs(60);

/// A tunable's value in [`STRICT`]; `None` for one that is not in it.
#[must_use]
pub fn strict_value(tunable: &str) -> Option<&'static str> {
    STRICT.iter().find(|(name, _)| *name == tunable).map(|(_, value)| *value)
}

/// Whether BFQ is to be strict, and what it was last set to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Strictness {
    synced: Lasting,
    /// `None` while it is not known: a daemon that starts finds tunables of either kind.
    is_strict: Option<bool>,
}

impl Strictness {
    /// Takes up how often each tenant called fsync, per second.
    pub fn saw(&mut self, at_ns: u64, rates: impl IntoIterator<Item = f64>) {
        if rates.into_iter().any(|rate| rate >= SYNCS) {
            self.synced.see(at_ns);
        }
    }

    /// Whether the tunables are to be strict (`true`) or as before the hold from now on; `None` where they stay as they are. What
    /// is returned is taken to be set.
    pub fn change(&mut self, at_ns: u64) -> Option<bool> {
        let is_strict = !self.synced.is_within(at_ns, SYNCED_FOR);
        (self.is_strict.replace(is_strict) != Some(is_strict)).then_some(is_strict)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SYNCED_FOR_NS: u64 = 60_000_000_000;

    /// Steps of up to 30 s each, and what the tenants called in each: often, seldom, or nothing.
    fn courses() -> impl Strategy<Value = Vec<(u64, [f64; 2])>> {
        let rate = prop_oneof![4 => Just(0.0), 1 => 0.0..5.0f64, 1 => 5.0..500.0f64];
        let step = prop_oneof![Just(0), 1u64..2_000_000_000, 2_000_000_000..30_000_000_000u64];
        prop::collection::vec((step, [rate.clone(), rate]), 1..120)
    }

    #[test]
    fn the_first_step_sets_what_is_not_known() {
        assert_eq!(Strictness::default().change(0), Some(true));
        let mut synced = Strictness::default();
        synced.saw(0, [5.0]);
        assert_eq!((synced.change(0), synced.change(1)), (Some(false), None));
    }

    #[test]
    fn only_what_a_hold_sets_has_a_strict_value() {
        assert_eq!(STRICT.map(|(tunable, _)| strict_value(tunable)), [Some("1"), Some("0"), Some("20")]);
        assert_eq!(strict_value("max_budget"), None);
    }

    proptest! {
        /// What is in force follows from the time since the last second with many fsyncs alone; changes are its edges.
        #[test]
        fn bfq_is_strict_but_for_a_minute_after_syncs(course in courses()) {
            let (mut strictness, mut at_ns) = (Strictness::default(), 0u64);
            let (mut in_force, mut synced_ns, mut relaxed_ns) = (None, None, None::<u64>);
            for (step_ns, rates) in course {
                at_ns += step_ns;
                strictness.saw(at_ns, rates);
                if rates.iter().any(|rate| *rate >= 5.0) {
                    synced_ns = Some(at_ns);
                }
                let change = strictness.change(at_ns);
                prop_assert!(change.is_none() || change != in_force, "what is in force was set again");
                prop_assert_eq!(strictness.change(at_ns), None, "one step changes it once");
                if change == Some(true) && let Some(relaxed_ns) = relaxed_ns {
                    prop_assert!(at_ns - relaxed_ns > SYNCED_FOR_NS, "flapped after {} ns", at_ns - relaxed_ns);
                }
                if change == Some(false) {
                    relaxed_ns = Some(at_ns);
                }
                in_force = change.or(in_force);
                let is_calm = synced_ns.is_none_or(|synced_ns| at_ns - synced_ns > SYNCED_FOR_NS);
                prop_assert_eq!(in_force, Some(is_calm), "{} ns, synced at {:?}", at_ns, synced_ns);
            }
        }

        #[test]
        fn a_clock_that_jumps_or_rates_that_are_none_do_no_harm(
            course in prop::collection::vec((any::<u64>(), any::<f64>()), 1..50)
        ) {
            let (mut strictness, mut in_force) = (Strictness::default(), None);
            for (at_ns, rate) in course {
                strictness.saw(at_ns, [rate]);
                let change = strictness.change(at_ns);
                prop_assert!(change.is_none() || change != in_force);
                in_force = change.or(in_force);
                prop_assert!(rate.is_nan() || rate < 5.0 || in_force == Some(false), "strict beside {rate} fsyncs/s");
            }
        }
    }
}
