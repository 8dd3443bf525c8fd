//! Which limits in `io.max` are a hold's caps, and which are somebody else's.
//!
//! The kernel has one `io.max` for a cgroup and a device, whoever writes it. A hold knows what its cap makes of the limits from before
//! ([`limit`]): whatever is there and is neither that nor the limits from before was written by another program, and is
//! left until it is as it was ([`super::Reason::OtherCap`]).
//!
//! The record of a hold has the limits from before, and not its caps, which change every second. A daemon that starts takes what
//! differs from them for the caps that the one before it left.

use std::collections::BTreeMap;

use super::Cap;
use crate::model::{IoMax, RateLimit};

/// The caps that a hold has set, by tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnCaps {
    set: BTreeMap<String, Cap>,
}

impl OwnCaps {
    /// Takes over what a daemon before this one left to a tenant: reads and writes are both limited, and not as `before` the hold.
    pub fn take_over(&mut self, name: &str, found: IoMax, before: IoMax) {
        self.set.extend(difference(found.as_far_as(before), before).map(|cap| (name.to_owned(), cap)));
    }

    /// What a tenant is held to beyond what it was `before` the hold: by a cap of this hold, which is known by its limits, or by what
    /// somebody else wrote.
    #[must_use]
    pub fn found(&self, name: &str, found: IoMax, before: IoMax) -> Option<Cap> {
        let found = found.as_far_as(before);
        match self.of(name) {
            Some(set) if found == limit(before, Some(set)) => Some(set),
            _ if found == before => None,
            // What somebody else wrote. Where its larger numbers are those of the cap (20 reads and 40 writes for a cap of 40), it is
            // none of this hold's all the same.
            set => Some(difference(found, before).filter(|cap| set != Some(*cap)).unwrap_or(FOREIGN)),
        }
    }

    /// The cap that was set on a tenant.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<Cap> {
        self.set.get(name).copied()
    }

    /// What a step changed is in `io.max` now.
    pub fn carried_out(&mut self, changes: &BTreeMap<String, Option<Cap>>) {
        for (name, cap) in changes {
            match cap {
                Some(cap) => self.set.insert(name.clone(), *cap),
                None => self.set.remove(name),
            };
        }
    }

    /// All were lifted.
    pub fn clear(&mut self) {
        self.set.clear();
    }
}

/// Stands for limits that no cap makes.
const FOREIGN: Cap = Cap { ops: Some(u32::MAX), bytes: Some(u64::MAX) };

/// The limits for a cap: never higher than those from before, which are those without one.
#[must_use]
pub fn limit(before: IoMax, cap: Option<Cap>) -> IoMax {
    let Cap { ops, bytes } = cap.unwrap_or_default();
    let capped = |before: RateLimit, most: Option<u64>| most.map_or(before, |most| before.capped(most));
    IoMax { ops: capped(before.ops, ops.map(u64::from)), bytes: before.bytes.map(|before| capped(before, bytes)) }
}

/// The cap that makes these limits of those from before, if one does.
fn difference(found: IoMax, before: IoMax) -> Option<Cap> {
    let most = |found: RateLimit, before: RateLimit| if found == before { None } else { found.largest() };
    let cap = Cap {
        ops: most(found.ops, before.ops).and_then(|ops| u32::try_from(ops).ok()),
        bytes: found.bytes.zip(before.bytes).and_then(|(found, before)| most(found, before)),
    };
    (cap != Cap::default()).then_some(cap)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = IoMax> {
        let one = || prop_oneof![2 => Just(None), 4 => (1u64..6).prop_map(Some), 1 => any::<u64>().prop_map(Some)];
        let rates = || (one(), one()).prop_map(|(read, write)| RateLimit { read, write });
        (rates(), prop::option::of(rates())).prop_map(|(ops, bytes)| IoMax { ops, bytes })
    }

    fn caps() -> impl Strategy<Value = Cap> {
        let ops = prop_oneof![3 => 1u32..6, 1 => 1..u32::MAX];
        let bytes = prop_oneof![3 => 1u64..6, 1 => 1..u64::MAX];
        let caps = (prop::option::of(ops), prop::option::of(bytes)).prop_map(|(ops, bytes)| Cap { ops, bytes });
        caps.prop_filter("nothing is capped", |cap| *cap != Cap::default())
    }

    fn with(cap: Option<Cap>) -> OwnCaps {
        OwnCaps { set: cap.map(|cap| ("a".to_owned(), cap)).into_iter().collect() }
    }

    fn rate(most: impl Into<Option<u64>>) -> RateLimit {
        let most = most.into();
        RateLimit { read: most, write: most }
    }

    #[test]
    fn limits_of_another_program_are_told_from_a_cap() {
        let both = |ops| IoMax { ops: rate(ops), bytes: Some(rate(4096)) };
        let cap = |ops| Some(Cap { ops: Some(ops), bytes: Some(4096) });
        let (ours, none) = (with(cap(40)), IoMax { ops: rate(None), bytes: Some(rate(None)) });
        assert_eq!((ours.found("a", both(40), none), ours.found("b", none, none)), (cap(40), None));
        assert_eq!((ours.found("a", both(39), none), ours.found("b", both(40), none)), (cap(39), cap(40)));
        let half = IoMax { ops: RateLimit { read: Some(40), write: None }, ..both(40) };
        let of_bytes = Some(Cap { ops: None, bytes: Some(4096) });
        assert_eq!((ours.found("a", half, none), with(of_bytes).found("a", half, none)), (of_bytes, Some(FOREIGN)));
        // Of a hold that was recorded without them, bytes are somebody else's business.
        let unrecorded = IoMax::default();
        assert_eq!(limit(unrecorded, cap(40)), IoMax { ops: rate(40), bytes: None });
        assert_eq!((ours.found("a", both(40), unrecorded), ours.found("a", none, unrecorded)), (cap(40), None));
        // Lifted by another program.
        assert_eq!(ours.found("a", none, none), None);
    }

    proptest! {
        /// Whatever another program writes is not what is expected, be it a cap or none.
        #[test]
        fn a_foreign_limit_is_never_taken_for_a_cap(
            before in limits(), foreign in limits(), cap in prop::option::of(caps())
        ) {
            let foreign = foreign.as_far_as(before);
            prop_assume!(foreign != limit(before, cap) && (foreign.bytes.is_some() || before.bytes.is_none()));
            prop_assert_ne!(with(cap).found("a", foreign, before), cap, "{} for {}", foreign, limit(before, cap));
        }

        #[test]
        fn a_cap_never_allows_more_than_before_and_goes_without_a_trace(before in limits(), cap in caps()) {
            let is_within = |limit: RateLimit, before: RateLimit, most: Option<u64>| {
                [(limit.read, before.read), (limit.write, before.write)].into_iter().all(|(limit, before)| {
                    [most, before].into_iter().flatten().all(|most| limit.is_some_and(|limit| limit <= most))
                })
            };
            let capped = limit(before, Some(cap));
            prop_assert!(is_within(capped.ops, before.ops, cap.ops.map(u64::from)), "{capped}");
            prop_assert_eq!(capped.bytes.is_some(), before.bytes.is_some());
            if let (Some(bytes), Some(before)) = (capped.bytes, before.bytes) {
                prop_assert!(is_within(bytes, before, cap.bytes), "{capped}");
            }
            prop_assert_eq!(limit(before, None), before);
        }

        /// One that changes nothing is none for whoever finds it.
        #[test]
        fn a_cap_is_known_by_whoever_set_it_and_after_a_restart(before in limits(), cap in caps()) {
            let mut first = OwnCaps::default();
            first.carried_out(&[("a".to_owned(), Some(cap))].into());
            let capped = limit(before, Some(cap));
            prop_assert_eq!(first.found("a", capped, before), Some(cap));
            let mut second = OwnCaps::default();
            second.take_over("a", capped, before);
            let found = second.found("a", capped, before);
            prop_assert_eq!(found, second.of("a"));
            prop_assert_eq!(found.is_some(), capped != before);
            if let Some(found) = found {
                // Where a limit from before is lower the cap is not seen as it was, but does the same.
                prop_assert!(found.ops <= cap.ops && limit(before, Some(found)) == capped, "{found:?}, not {cap:?}");
            }
            second.carried_out(&[("a".to_owned(), None)].into());
            prop_assert_eq!((second.found("a", before, before), second.of("a")), (None, None));
        }

        #[test]
        fn nothing_is_taken_over_where_limits_are_as_before(before in limits()) {
            let mut caps = OwnCaps::default();
            caps.take_over("a", before, before);
            prop_assert_eq!(caps, OwnCaps::default());
        }
    }
}
