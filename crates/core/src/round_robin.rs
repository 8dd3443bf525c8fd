//! Round robin over a changing list, for periodic checks that look at a fixed number of items each time.

/// A round-robin cursor on a sorted list that may change between two turns. It remembers its position by key, not by
/// index: items that come and go do not change the order of the others.
#[derive(Debug)]
pub struct RoundRobin<K> {
    at_a_time: usize,
    /// The key of the last item of the last turn.
    last: Option<K>,
}

/// The items of one turn, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    start: usize,
    count: usize,
    /// Length of the list.
    length: usize,
}

impl Turn {
    /// Whether the item with this index is in the turn.
    #[must_use]
    pub const fn contains(&self, index: usize) -> bool {
        index < self.length && (index + self.length - self.start) % self.length < self.count
    }

    /// The indices, in the order of the turn.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (self.start..self.start + self.count).map(move |index| index % self.length)
    }
}

impl<K: Ord + Clone> RoundRobin<K> {
    /// A cursor with `at_a_time` items (at least one) per turn.
    #[must_use]
    pub const fn new(at_a_time: usize) -> Self {
        Self { at_a_time, last: None }
    }

    /// The next turn on a list that is sorted by its keys, without duplicates: the items after the last turn, and again
    /// from the start after the end. An item that stays in a list of `n` is in one of any `n / at_a_time` turns,
    /// rounded up. The cost is a binary search.
    pub fn next<T>(&mut self, sorted: &[T], key: impl Fn(&T) -> &K) -> Turn {
        let length = sorted.len();
        let after = self.last.as_ref().map_or(0, |last| sorted.partition_point(|item| key(item) <= last));
        let turn =
            Turn { start: if after < length { after } else { 0 }, count: self.at_a_time.max(1).min(length), length };
        self.last = turn.indices().last().map(|index| key(&sorted[index]).clone());
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn turns(cursor: &mut RoundRobin<u32>, all: &[u32]) -> Vec<u32> {
        let turn = cursor.next(all, |key| key);
        let mut keys: Vec<u32> = turn.indices().map(|place| all[place]).collect();
        assert!((0..all.len() + 2).all(|place| turn.contains(place) == turn.indices().any(|other| other == place)));
        keys.sort_unstable();
        keys
    }

    #[test]
    fn items_of_the_last_turn_come_last() {
        let mut cursor = RoundRobin::new(3);
        assert_eq!(turns(&mut cursor, &[]), [0; 0]);
        assert_eq!(turns(&mut cursor, &[1, 2, 3, 4, 5]), [1, 2, 3]);
        assert_eq!(turns(&mut cursor, &[1, 2, 3, 4, 5]), [1, 4, 5]);
        // The last item is gone, and there are new ones before and after it.
        assert_eq!(turns(&mut cursor, &[0, 2, 3, 4, 5]), [2, 3, 4]);
        // A short list is in each turn as a whole.
        assert_eq!(turns(&mut cursor, &[1, 9]), [1, 9]);
        assert_eq!(turns(&mut cursor, &[1, 9]), [1, 9]);
        assert_eq!(turns(&mut RoundRobin::new(0), &[1, 9]), [1]);
    }

    proptest! {
        #[test]
        fn each_item_has_its_turn_in_time(count in 1u32..60, at_a_time in 1usize..20, started in 0usize..30) {
            let all: Vec<u32> = (0..count).collect();
            let mut cursor = RoundRobin::new(at_a_time);
            for _ in 0..started {
                turns(&mut cursor, &all);
            }
            let bound = all.len().div_ceil(at_a_time);
            let seen: BTreeSet<u32> = (0..bound).flat_map(|_| turns(&mut cursor, &all)).collect();
            prop_assert_eq!(seen.len(), all.len());
        }

        /// However the list changes, no item has two turns between two of another.
        #[test]
        fn no_item_is_skipped(
            sets in proptest::collection::vec(proptest::collection::btree_set(0u32..40, 1..40), 1..40),
            at_a_time in 1usize..8,
        ) {
            let mut cursor = RoundRobin::new(at_a_time);
            // Number of turns of other items since the last turn of item 20, which is always in the list.
            let mut since: BTreeMap<u32, usize> = BTreeMap::new();
            for mut set in sets {
                set.insert(20);
                let turn = turns(&mut cursor, &set.iter().copied().collect::<Vec<u32>>());
                prop_assert!(!turn.is_empty() && turn.iter().all(|key| set.contains(key)));
                if turn.contains(&20) {
                    since.clear();
                    continue;
                }
                for key in turn {
                    let times = since.entry(key).or_default();
                    *times += 1;
                    prop_assert!(*times <= 1, "{} had two turns", key);
                }
            }
        }
    }
}
