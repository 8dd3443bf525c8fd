//! Room in a pool: what a new reservation gets beside those that operations have already.
//!
//! An operation reserves room before it takes any, and what it has taken counts as used in the pool from then on. So a reservation stands
//! only for what has yet to be taken, or the rest of the pool would be too small by all that was taken already.

use crate::units::Bytes;

/// Room that an operation is going to take for one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// How much it takes in all.
    pub needed: Bytes,
    /// How much the volume had taken of the pool before; `None` when what it takes meanwhile says nothing of the reservation.
    pub before: Option<Bytes>,
}

impl Reservation {
    /// What has yet to be taken, when the volume has `allocated` of the pool now.
    #[must_use]
    pub fn outstanding(&self, allocated: Bytes) -> Bytes {
        let taken = self.before.map_or(0, |before| allocated.0.saturating_sub(before.0));
        Bytes(self.needed.0.saturating_sub(taken))
    }
}

/// What a look at a pool says about a request for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is room.
    Fits,
    /// There is none.
    Full,
    /// Others took room during the look, so that it cannot be said.
    Moved,
}

/// Whether `needed` fits into a pool that had `free` at some time between two looks at what others are going to take.
///
/// What is taken between the looks is in `before` and not in `after`, and `free` may or may not have it. The larger sum is on the safe
/// side: with it, nothing is given out twice. The smaller one refuses only what does not fit.
#[must_use]
pub fn judge(needed: Bytes, free: Bytes, before: Bytes, after: Bytes) -> Verdict {
    let left = |outstanding: Bytes| Bytes(free.0.saturating_sub(outstanding.0));
    if needed <= left(before.max(after)) {
        Verdict::Fits
    } else if needed <= left(before.min(after)) {
        Verdict::Moved
    } else {
        Verdict::Full
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_reservation_is_for_what_has_yet_to_be_taken() {
        let growth = Reservation { needed: Bytes(100), before: Some(Bytes(50)) };
        let outstanding = |allocated| growth.outstanding(Bytes(allocated)).0;
        assert_eq!([0, 50, 90, 150, 160].map(outstanding), [100, 100, 60, 0, 0]);
        let unseen = Reservation { before: None, ..growth };
        assert_eq!(unseen.outstanding(Bytes(1000)), Bytes(100));
    }

    proptest! {
        /// Another operation takes what it reserved while somebody looks: what is accepted has room beside all that it takes in the
        /// end, and what is refused has none.
        #[test]
        fn nothing_is_given_out_twice_and_nothing_is_refused_that_fits(
            free in 0u64..1000, needed in 0u64..1000, reserved in 0u64..500, steps in [0u64..500, 0..500, 0..500],
        ) {
            let reserved = reserved.min(free);
            let other = Reservation { needed: Bytes(reserved), before: Some(Bytes(0)) };
            let mut taken = 0;
            let [before, at_look, after] = steps.map(|step| {
                taken = (taken + step).min(reserved);
                taken
            });
            let outstanding = |taken| other.outstanding(Bytes(taken));
            let verdict = judge(Bytes(needed), Bytes(free - at_look), outstanding(before), outstanding(after));
            let fits = needed <= free - reserved;
            match verdict {
                Verdict::Fits => prop_assert!(fits),
                Verdict::Full => prop_assert!(!fits),
                Verdict::Moved => prop_assert!(before < after),
            }
        }
    }
}
