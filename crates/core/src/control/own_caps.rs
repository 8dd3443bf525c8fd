//! Which limits in `io.max` are a hold's caps, and which are somebody else's.
//!
//! The kernel has one `io.max` for a cgroup and a device, whoever writes it. A hold knows what its cap makes of the limits from before
//! ([`IopsLimit::capped`]): whatever is there and is neither that nor the limits from before was written by another program, and is
//! left until it is as it was ([`super::Reason::OtherCap`]).
//!
//! The record of a hold has the limits from before, and not its caps, which change every second. A daemon that starts takes what
//! differs from them for the caps that the one before it left.

use std::collections::BTreeMap;

use crate::model::IopsLimit;

/// The caps that a hold has set, operations per second, by tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnCaps {
    set: BTreeMap<String, u32>,
}

impl OwnCaps {
    /// Takes over what a daemon before this one left to a tenant: reads and writes are both limited, and not as `before` the hold.
    pub fn take_over(&mut self, name: &str, found: IopsLimit, before: IopsLimit) {
        let left = Some(found).filter(|found| *found != before).and_then(IopsLimit::largest);
        self.set.extend(left.and_then(|ops| u32::try_from(ops).ok()).map(|cap| (name.to_owned(), cap)));
    }

    /// How many operations per second a tenant is held to beyond what it was `before` the hold: by a cap of this hold, which is known by
    /// its limits, or by what somebody else wrote.
    #[must_use]
    pub fn found(&self, name: &str, found: IopsLimit, before: IopsLimit) -> Option<u32> {
        match self.of(name) {
            Some(set) if found == before.capped(set) => Some(set),
            _ if found == before => None,
            // What somebody else wrote. Where its larger number is that of the cap (20 reads and 40 writes for a cap of 40), it is
            // none of this hold's all the same.
            set => {
                let ops = found.largest().and_then(|ops| u32::try_from(ops).ok());
                Some(ops.filter(|ops| set != Some(*ops)).unwrap_or(u32::MAX))
            }
        }
    }

    /// The cap that was set on a tenant.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<u32> {
        self.set.get(name).copied()
    }

    /// What a step changed is in `io.max` now.
    pub fn carried_out(&mut self, changes: &BTreeMap<String, Option<u32>>) {
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

/// The limits for a cap: never higher than those from before, which are those without one.
#[must_use]
pub fn limit(before: IopsLimit, cap: Option<u32>) -> IopsLimit {
    cap.map_or(before, |cap| before.capped(cap))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits() -> impl Strategy<Value = IopsLimit> {
        let one = prop_oneof![2 => Just(None), 4 => (1u64..6).prop_map(Some), 1 => any::<u64>().prop_map(Some)];
        (one.clone(), one).prop_map(|(read, write)| IopsLimit { read, write })
    }

    fn caps() -> impl Strategy<Value = u32> {
        prop_oneof![3 => 1u32..6, 1 => 1..u32::MAX]
    }

    fn with(cap: Option<u32>) -> OwnCaps {
        OwnCaps { set: cap.map(|cap| ("a".to_owned(), cap)).into_iter().collect() }
    }

    #[test]
    fn limits_of_another_program_are_told_from_a_cap() {
        let both = |ops| IopsLimit { read: Some(ops), write: Some(ops) };
        let (ours, none) = (with(Some(40)), IopsLimit::default());
        assert_eq!((ours.found("a", both(40), none), ours.found("b", none, none)), (Some(40), None));
        assert_eq!((ours.found("a", both(39), none), ours.found("b", both(40), none)), (Some(39), Some(40)));
        assert_eq!(ours.found("a", IopsLimit { read: Some(40), write: None }, none), Some(u32::MAX));
        // Lifted by another program.
        assert_eq!(ours.found("a", none, none), None);
    }

    proptest! {
        /// Whatever another program writes is not what is expected, be it a cap or none.
        #[test]
        fn a_foreign_limit_is_never_taken_for_a_cap(
            before in limits(), foreign in limits(), cap in prop::option::of(caps())
        ) {
            prop_assume!(foreign != limit(before, cap));
            prop_assert_ne!(with(cap).found("a", foreign, before), cap, "{} for {}", foreign, limit(before, cap));
        }

        #[test]
        fn a_cap_never_allows_more_than_before_and_goes_without_a_trace(before in limits(), cap in caps()) {
            let is_within = |limit: Option<u64>, before: Option<u64>| limit.is_some_and(|limit| {
                limit <= u64::from(cap) && before.is_none_or(|before| limit <= before)
            });
            let capped = limit(before, Some(cap));
            prop_assert!(is_within(capped.read, before.read) && is_within(capped.write, before.write), "{capped}");
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
                prop_assert!(found <= cap && limit(before, Some(found)) == capped, "{found}, not {cap}");
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
