//! Which limits in `io.max` are a hold's own caps, and which another program's.
//!
//! The kernel has one `io.max` per cgroup and device, whoever writes it. A hold knows the limits from before and what
//! its cap turns them into ([`limits_with_cap`]). Any other limits were written by another program, and are left alone until that
//! restores them ([`super::Reason::OtherCap`]).
//!
//! The record of a hold has the limits from before, but not its caps, which change every second. At its start, the
//! daemon takes limits that differ from the recorded ones for caps that the previous daemon left.

use std::collections::BTreeMap;

use super::Cap;
use crate::model::{IoMax, RateLimit};

/// The caps that a hold has set, by tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnCaps {
    set: BTreeMap<String, Cap>,
}

impl OwnCaps {
    /// Takes over a tenant's cap from the previous daemon, if `found` limits both reads and writes and differs from
    /// `before`.
    pub fn adopt(&mut self, name: &str, found: IoMax, before: IoMax) {
        self.set.extend(cap_from_limits(found.restricted_to(before), before).map(|cap| (name.to_owned(), cap)));
    }

    /// A tenant's current cap apart from the limits `before` the hold: a cap of this hold, recognised by the limits it
    /// produces, or one that another program wrote.
    #[must_use]
    pub fn current(&self, name: &str, found: IoMax, before: IoMax) -> Option<Cap> {
        let found = found.restricted_to(before);
        match self.get(name) {
            Some(set) if found == limits_with_cap(before, Some(set)) => Some(set),
            _ if found == before => None,
            // Another program's limits. Their larger numbers may equal the cap (20 reads and 40 writes for a cap of
            // 40): they still are not this hold's.
            set => Some(cap_from_limits(found, before).filter(|cap| set != Some(*cap)).unwrap_or(FOREIGN)),
        }
    }

    /// The cap that this hold has set on a tenant.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Cap> {
        self.set.get(name).copied()
    }

    /// Records that the changes of a step have been written to `io.max`.
    pub fn carried_out(&mut self, changes: &BTreeMap<String, Option<Cap>>) {
        for (name, cap) in changes {
            match cap {
                Some(cap) => self.set.insert(name.clone(), *cap),
                None => self.set.remove(name),
            };
        }
    }

    /// Records that all caps were lifted.
    pub fn clear(&mut self) {
        self.set.clear();
    }
}

/// Stands for limits that no cap produces.
const FOREIGN: Cap = Cap { ops: Some(u32::MAX), bytes: Some(u64::MAX) };

/// The limits that a cap produces: never higher than those from before; those from before without a cap.
#[must_use]
pub fn limits_with_cap(before: IoMax, cap: Option<Cap>) -> IoMax {
    let Cap { ops, bytes } = cap.unwrap_or_default();
    let capped = |before: RateLimit, most: Option<u64>| most.map_or(before, |most| before.capped(most));
    IoMax { ops: capped(before.ops, ops.map(u64::from)), bytes: before.bytes.map(|before| capped(before, bytes)) }
}

/// The cap that turns the limits from before into these, if there is one.
fn cap_from_limits(found: IoMax, before: IoMax) -> Option<Cap> {
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
    fn limits_of_another_program_are_distinguished_from_a_cap() {
        let both = |ops| IoMax { ops: rate(ops), bytes: Some(rate(4096)) };
        let cap = |ops| Some(Cap { ops: Some(ops), bytes: Some(4096) });
        let (ours, none) = (with(cap(40)), IoMax { ops: rate(None), bytes: Some(rate(None)) });
        assert_eq!((ours.current("a", both(40), none), ours.current("b", none, none)), (cap(40), None));
        assert_eq!((ours.current("a", both(39), none), ours.current("b", both(40), none)), (cap(39), cap(40)));
        let half = IoMax { ops: RateLimit { read: Some(40), write: None }, ..both(40) };
        let of_bytes = Some(Cap { ops: None, bytes: Some(4096) });
        assert_eq!((ours.current("a", half, none), with(of_bytes).current("a", half, none)), (of_bytes, Some(FOREIGN)));
        // A hold that was recorded without limits on bytes leaves those alone.
        let unrecorded = IoMax::default();
        assert_eq!(limits_with_cap(unrecorded, cap(40)), IoMax { ops: rate(40), bytes: None });
        assert_eq!((ours.current("a", both(40), unrecorded), ours.current("a", none, unrecorded)), (cap(40), None));
        // Lifted by another program.
        assert_eq!(ours.current("a", none, none), None);
    }

    proptest! {
        /// Another program's limits are never mistaken for what is expected, whether that is a cap or none.
        #[test]
        fn a_foreign_limit_is_never_mistaken_for_a_cap(
            before in limits(), foreign in limits(), cap in prop::option::of(caps())
        ) {
            let foreign = foreign.restricted_to(before);
            prop_assume!(foreign != limits_with_cap(before, cap) && (foreign.bytes.is_some() || before.bytes.is_none()));
            prop_assert_ne!(with(cap).current("a", foreign, before), cap, "{} for {}", foreign, limits_with_cap(before, cap));
        }

        #[test]
        fn a_cap_never_raises_a_limit_and_is_fully_undone(before in limits(), cap in caps()) {
            let is_within = |limit: RateLimit, before: RateLimit, most: Option<u64>| {
                [(limit.read, before.read), (limit.write, before.write)].into_iter().all(|(limit, before)| {
                    [most, before].into_iter().flatten().all(|most| limit.is_some_and(|limit| limit <= most))
                })
            };
            let capped = limits_with_cap(before, Some(cap));
            prop_assert!(is_within(capped.ops, before.ops, cap.ops.map(u64::from)), "{capped}");
            prop_assert_eq!(capped.bytes.is_some(), before.bytes.is_some());
            if let (Some(bytes), Some(before)) = (capped.bytes, before.bytes) {
                prop_assert!(is_within(bytes, before, cap.bytes), "{capped}");
            }
            prop_assert_eq!(limits_with_cap(before, None), before);
        }

        /// A cap that changes no limit is not found after a restart.
        #[test]
        fn a_cap_is_recognised_by_its_setter_and_after_a_restart(before in limits(), cap in caps()) {
            let mut first = OwnCaps::default();
            first.carried_out(&[("a".to_owned(), Some(cap))].into());
            let capped = limits_with_cap(before, Some(cap));
            prop_assert_eq!(first.current("a", capped, before), Some(cap));
            let mut second = OwnCaps::default();
            second.adopt("a", capped, before);
            let found = second.current("a", capped, before);
            prop_assert_eq!(found, second.get("a"));
            prop_assert_eq!(found.is_some(), capped != before);
            if let Some(found) = found {
                // Where a limit from before is lower, the cap is found with a smaller value, and has the same effect.
                prop_assert!(found.ops <= cap.ops && limits_with_cap(before, Some(found)) == capped, "{found:?}, not {cap:?}");
            }
            second.carried_out(&[("a".to_owned(), None)].into());
            prop_assert_eq!((second.current("a", before, before), second.get("a")), (None, None));
        }

        #[test]
        fn nothing_is_adopted_where_limits_are_as_before(before in limits()) {
            let mut caps = OwnCaps::default();
            caps.adopt("a", before, before);
            prop_assert_eq!(caps, OwnCaps::default());
        }
    }
}
