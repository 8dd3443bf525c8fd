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
