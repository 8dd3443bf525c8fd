//! Splitting a container's weight between its own cgroup and that of its journal thread.
//!
//! Both cgroups belong to the container, so that their weights add up to the container's weight. The split follows the
//! I/O of both: with too little weight, the journal thread is starved and every fsync of the container waits for it;
//! with too much, weight is unused while the container gets less than its share. Commits come in bursts, so the split
//! is based on the last seconds.

use std::ops::RangeInclusive;

/// The thread's fraction of the weight before anything was measured.
pub const INITIAL_JOURNAL_FRACTION: f64 = 0.1;
/// The smallest weight that can be split: 1 each.
pub const MIN_SPLIT_WEIGHT: u32 = 2;

/// Decay of past I/O per step: averages cover about the last 15 s.
const DECAY: f64 = 0.93;
/// Range of the thread's fraction of its container's weight. Neither starves, whatever the other one does.
const FRACTION_RANGE: RangeInclusive<f64> = 0.05..=0.9;
/// Smaller changes of the fraction leave the weights alone.
const FRACTION_DEAD_BAND: f64 = 0.05;

/// Recent I/O of a container and its journal thread, as decaying sums of bytes per second, and the thread's fraction of
/// the weight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JournalSplit {
    journal: f64,
    both: f64,
    written: f64,
}

impl JournalSplit {
    /// Records a step's I/O of the thread, and of thread and container together, bytes per second.
    pub fn record(&mut self, journal: f64, both: f64) {
        self.journal = DECAY * self.journal + journal;
        self.both = DECAY * self.both + both;
    }

    /// The combined weight to write: the controller's new weight (`changes`), or the one that was `found` if only its
    /// split is out of date; `None` to leave the weights. Weights that another program sets (`is_ours` is false) are
    /// not split again. The caller is assumed to write the result, split by [`Self::fraction`].
    pub fn weight_to_write(&mut self, changes: Option<u32>, found: u32, is_ours: bool) -> Option<u32> {
        let is_far = (self.wanted() - self.written).abs() > FRACTION_DEAD_BAND;
        let is_split_again = is_ours && found >= MIN_SPLIT_WEIGHT && is_far;
        let weight = changes.or(is_split_again.then_some(found));
        if weight.is_some() {
            self.written = self.wanted();
        }
        weight
    }

    /// The thread's fraction of the weight, as last written.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        self.written
    }

    fn wanted(&self) -> f64 {
        let fraction = if self.both > 0.0 { self.journal / self.both } else { 0.0 };
        fraction.clamp(*FRACTION_RANGE.start(), *FRACTION_RANGE.end())
    }
}

/// Splits a weight into the container's and the thread's; `journal` is the thread's fraction. Both are at least 1, and
/// add up to the weight if that is at least [`MIN_SPLIT_WEIGHT`].
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
    fn the_split_follows_the_io_within_fifteen_seconds() {
        let mut split = JournalSplit::default();
        (0..60).for_each(|_| split.record(0.0, 100.0));
        assert_eq!((split.weight_to_write(Some(100), 100, true), split.fraction()), (Some(100), 0.05));
        (0..15).for_each(|_| split.record(100.0, 100.0));
        assert_eq!(split.weight_to_write(None, 100, true), Some(100));
        assert!((0.6..0.75).contains(&split.fraction()), "{split:?}");
        (0..60).for_each(|_| split.record(100.0, 100.0));
        assert_eq!((split.weight_to_write(None, 100, true), split.fraction()), (Some(100), 0.9));
    }

    #[test]
    fn a_weight_that_cannot_be_split_becomes_one_each() {
        assert_eq!((split(0, 0.5), split(1, 0.9), split(2, 0.9), split(2, 0.0)), ((1, 1), (1, 1), (1, 1), (1, 1)));
        assert_eq!((split(100, 0.1), split(100, 0.0), split(100, 1.0)), ((90, 10), (99, 1), (1, 99)));
    }

    proptest! {
        #[test]
        fn both_weights_sum_to_the_weight_and_neither_is_zero(weight in prop_oneof![0..20u32, any::<u32>()], fraction in 0.0..=1.0f64) {
            let (own, journal) = split(weight, fraction);
            prop_assert!(own >= 1 && journal >= 1);
            if weight >= MIN_SPLIT_WEIGHT {
                prop_assert_eq!(own.checked_add(journal), Some(weight));
                // Rounded, but never to 0.
                prop_assert!((f64::from(journal) - fraction * f64::from(weight)).abs() <= 1.0, "{own} and {journal}");
            }
        }

        /// For any I/O, and any other writer of weights.
        #[test]
        fn the_split_stays_in_its_range_and_changes_for_a_reason(
            course in prop::collection::vec((rates(), prop::option::weighted(0.2, 1u32..10_000), 0u32..200, any::<bool>()), 1..80)
        ) {
            let mut split = JournalSplit::default();
            for ((journal, both), changes, found, is_ours) in course {
                split.record(journal, both);
                let before = split;
                let written = split.weight_to_write(changes, found, is_ours);
                match (changes, written) {
                    (Some(weight), _) => prop_assert_eq!(written, Some(weight), "the controller's word"),
                    (None, Some(weight)) => {
                        prop_assert!(is_ours && found >= 2 && weight == found, "{weight} of {found}, ours: {is_ours}");
                        prop_assert!((split.fraction() - before.fraction()).abs() > 0.05, "{before:?} became {split:?}");
                    }
                    (None, None) => prop_assert_eq!(split, before, "nothing is written, and the split was changed"),
                }
                prop_assert!(written.is_none() || (0.05..=0.9).contains(&split.fraction()), "{split:?}");
                let mut again = split;
                prop_assert_eq!(again.weight_to_write(None, found, true).and(written), None, "it was written just now");
            }
        }

        #[test]
        fn constant_io_is_written_once((journal, both) in rates(), found in 2u32..1000) {
            let mut split = JournalSplit::default();
            let written = (0..200).filter_map(|_| {
                split.record(journal, both);
                split.weight_to_write(None, found, true)
            });
            prop_assert!(written.count() <= 1, "{split:?}");
            prop_assert!(both == 0.0 || (split.fraction() - (journal / both).clamp(0.05, 0.9)).abs() <= 0.0501, "{split:?}");
        }
    }
}
