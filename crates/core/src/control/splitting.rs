//! A container's weight beside its journal thread's, where the thread runs in a cgroup of its own.
//!
//! Both cgroups are the container's, so that their weights sum to what the controller gave it. Which part is the thread's follows what
//! both do: with too little, every fsync of the container waits for a thread that nobody serves; with too much, weight lies idle while
//! the container has less than its share. A commit comes in bursts, so that a part is that of the last seconds.

use std::ops::RangeInclusive;

/// The thread's part of the weight before anything is known, of 1.
pub const JOURNAL_AT_FIRST: f64 = 0.1;
/// The least weight that can be split: 1 for either.
pub const LEAST_SPLIT: u32 = 2;

/// What is remembered of what was done, from step to step: a part is that of the last 15 s or so.
const KEPT: f64 = 0.93;
/// The thread's part of its container's weight, of 1. Neither starves, whatever the other one does.
const JOURNAL_PART: RangeInclusive<f64> = 0.05..=0.9;
/// A part that changes by no more leaves the weights.
const PART_BAND: f64 = 0.05;

/// What a container and the journal thread beside it did lately, bytes per second in all steps that are remembered, and which part of
/// the weight the thread has.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JournalPart {
    journal: f64,
    both: f64,
    set: f64,
}

impl JournalPart {
    /// Takes up what the thread did in this step, and what it and the container did together, bytes per second.
    pub fn saw(&mut self, journal: f64, both: f64) {
        self.journal = KEPT * self.journal + journal;
        self.both = KEPT * self.both + both;
    }

    /// The weight of both that is to be written: the one that the controller `changes` it to, or the one that was `found` where it
    /// is right but its parts are not; `None` to leave the weights. Weights that another program sets (`is_ours` is false) are not
    /// split again. What is returned is taken to be written, with the thread's part as [`Self::part`] has it then.
    pub fn write(&mut self, changes: Option<u32>, found: u32, is_ours: bool) -> Option<u32> {
        let is_far = (self.wanted() - self.set).abs() > PART_BAND;
        let is_split_again = is_ours && found >= LEAST_SPLIT && is_far;
        let weight = changes.or(is_split_again.then_some(found));
        if weight.is_some() {
            self.set = self.wanted();
        }
        weight
    }

    /// The thread's part of the weight, of 1, as it was last written.
    #[must_use]
    pub fn part(&self) -> f64 {
        self.set
    }

    fn wanted(&self) -> f64 {
        let part = if self.both > 0.0 { self.journal / self.both } else { 0.0 };
        part.clamp(*JOURNAL_PART.start(), *JOURNAL_PART.end())
    }
}

/// A container's weight without its journal thread's, and the thread's, which is this part of it, of 1. Both are 1 at least, and sum to
/// the weight if that is [`LEAST_SPLIT`] at least.
#[must_use]
pub fn split(weight: u32, journal: f64) -> (u32, u32) {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of an u32")]
    let of_journal = ((f64::from(weight) * journal).round() as u32).clamp(1, weight.saturating_sub(1).max(1));
    (weight.saturating_sub(of_journal).max(1), of_journal)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes per second of the thread and of both.
    fn rates() -> impl Strategy<Value = (f64, f64)> {
        let rate = prop_oneof![Just(0.0), 0.0..1e3f64, 0.0..1e10f64];
        (rate.clone(), rate).prop_map(|(journal, own)| (journal, journal + own))
    }

    #[test]
    fn a_part_follows_what_was_done_within_fifteen_seconds() {
        let mut part = JournalPart::default();
        (0..60).for_each(|_| part.saw(0.0, 100.0));
        assert_eq!((part.write(Some(100), 100, true), part.part()), (Some(100), 0.05));
        (0..15).for_each(|_| part.saw(100.0, 100.0));
        assert_eq!(part.write(None, 100, true), Some(100));
        assert!((0.6..0.75).contains(&part.part()), "{part:?}");
        (0..60).for_each(|_| part.saw(100.0, 100.0));
        assert_eq!((part.write(None, 100, true), part.part()), (Some(100), 0.9));
    }

    #[test]
    fn a_weight_that_cannot_be_split_leaves_one_for_either() {
        assert_eq!((split(0, 0.5), split(1, 0.9), split(2, 0.9), split(2, 0.0)), ((1, 1), (1, 1), (1, 1), (1, 1)));
        assert_eq!((split(100, 0.1), split(100, 0.0), split(100, 1.0)), ((90, 10), (99, 1), (1, 99)));
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_weight_and_neither_is_zero(weight in prop_oneof![0..20u32, any::<u32>()], part in 0.0..=1.0f64) {
            let (own, journal) = split(weight, part);
            prop_assert!(own >= 1 && journal >= 1);
            if weight >= LEAST_SPLIT {
                prop_assert_eq!(own.checked_add(journal), Some(weight));
                // Rounded, and not to nothing.
                prop_assert!((f64::from(journal) - part * f64::from(weight)).abs() <= 1.0, "{own} and {journal}");
            }
        }

        /// Whatever is done, and whoever writes weights meanwhile.
        #[test]
        fn a_part_is_in_its_range_and_moves_for_a_reason(
            course in prop::collection::vec((rates(), prop::option::weighted(0.2, 1u32..10_000), 0u32..200, any::<bool>()), 1..80)
        ) {
            let mut part = JournalPart::default();
            for ((journal, both), changes, found, is_ours) in course {
                part.saw(journal, both);
                let before = part;
                let written = part.write(changes, found, is_ours);
                match (changes, written) {
                    (Some(weight), _) => prop_assert_eq!(written, Some(weight), "the controller's word"),
                    (None, Some(weight)) => {
                        prop_assert!(is_ours && found >= 2 && weight == found, "{weight} of {found}, ours: {is_ours}");
                        prop_assert!((part.part() - before.part()).abs() > 0.05, "{before:?} became {part:?}");
                    }
                    (None, None) => prop_assert_eq!(part, before, "nothing is written, and the part was moved"),
                }
                prop_assert!(written.is_none() || (0.05..=0.9).contains(&part.part()), "{part:?}");
                let mut again = part;
                prop_assert_eq!(again.write(None, found, true).and(written), None, "it was written just now");
            }
        }

        #[test]
        fn what_does_not_change_is_written_once((journal, both) in rates(), found in 2u32..1000) {
            let mut part = JournalPart::default();
            let written = (0..200).filter_map(|_| {
                part.saw(journal, both);
                part.write(None, found, true)
            });
            prop_assert!(written.count() <= 1, "{part:?}");
            prop_assert!(both == 0.0 || (part.part() - (journal / both).clamp(0.05, 0.9)).abs() <= 0.0501, "{part:?}");
        }
    }
}
