//! Space in a pool: whether a new reservation fits beside those of running operations.
//!
//! An operation reserves space before it allocates any, and allocated space counts as used in the pool from then on. So
//! a reservation only stands for space that is not allocated yet; otherwise allocated space would be counted twice.

use crate::units::Bytes;

/// Space that an operation is going to allocate for one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Total space that the operation allocates.
    pub needed: Bytes,
    /// Space that the volume had allocated before; `None` if its allocation says nothing about the reservation.
    pub before: Option<Bytes>,
}

impl Reservation {
    /// The part that is not allocated yet, if the volume has `allocated` now.
    #[must_use]
    pub fn outstanding(&self, allocated: Bytes) -> Bytes {
        let taken = self.before.map_or(0, |before| allocated.0.saturating_sub(before.0));
        Bytes(self.needed.0.saturating_sub(taken))
    }
}

/// The result of checking a request for space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is enough space.
    Fits,
    /// There is not enough space.
    Full,
    /// Undecided: other operations allocated space during the check, which has to be repeated.
    Moved,
}

/// Whether `needed` fits into a pool that had `free` at some time between two readings of the outstanding reservations.
///
/// Space that is allocated between the readings is in `before` but not in `after`, and may or may not be in `free`.
/// With the larger sum, no space is given out twice; with the smaller one, only requests that do not fit are refused.
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
    fn a_reservation_covers_space_that_is_not_allocated_yet() {
        let growth = Reservation { needed: Bytes(100), before: Some(Bytes(50)) };
        let outstanding = |allocated| growth.outstanding(Bytes(allocated)).0;
        assert_eq!([0, 50, 90, 150, 160].map(outstanding), [100, 100, 60, 0, 0]);
        let unseen = Reservation { before: None, ..growth };
        assert_eq!(unseen.outstanding(Bytes(1000)), Bytes(100));
    }

    proptest! {
        /// Another operation allocates its reservation during the check: an accepted request fits beside all that it
        /// allocates in the end, and a refused one does not.
        #[test]
        fn no_space_is_given_out_twice_and_no_fitting_request_is_refused(
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
