//! Whose turn it is when a periodic check looks at so many things each time, however many there are.

/// Goes round and round through a list that may change between two turns. It remembers where it was by name, not by number: what comes
/// and goes moves nobody else's turn by more than one place.
#[derive(Debug)]
pub struct Rota<K> {
    at_a_time: usize,
    /// The last one that had its turn.
    last: Option<K>,
}

/// Those of a list whose turn it is, by their places in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    start: usize,
    count: usize,
    /// Of how many.
    of: usize,
}

impl Turn {
    /// Whether it is the turn of the one at this place.
    #[must_use]
    pub const fn contains(&self, place: usize) -> bool {
        place < self.of && (place + self.of - self.start) % self.of < self.count
    }

    /// Their places, in the order of their turns.
    pub fn places(self) -> impl Iterator<Item = usize> {
        (self.start..self.start + self.count).map(move |place| place % self.of)
    }
}

impl<K: Ord + Clone> Rota<K> {
    /// A round that looks at so many (at least one) in each turn.
    #[must_use]
    pub const fn new(at_a_time: usize) -> Self {
        Self { at_a_time, last: None }
    }

    /// Those whose turn it is, of a list without duplicates that is sorted by its keys: the next ones after the last turn, and the first
    /// ones again after the last of all. Each that stays in a list of `n` is in one of any `n / at_a_time` turns, rounded up. What this
    /// costs does not grow with the list but for a binary search.
    pub fn next<T>(&mut self, sorted: &[T], key: impl Fn(&T) -> &K) -> Turn {
        let of = sorted.len();
        let after = self.last.as_ref().map_or(0, |last| sorted.partition_point(|one| key(one) <= last));
        let turn = Turn { start: if after < of { after } else { 0 }, count: self.at_a_time.max(1).min(of), of };
        self.last = turn.places().last().map(|place| key(&sorted[place]).clone());
        turn
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn turns(rota: &mut Rota<u32>, all: &[u32]) -> Vec<u32> {
        let turn = rota.next(all, |key| key);
        let mut keys: Vec<u32> = turn.places().map(|place| all[place]).collect();
        assert!((0..all.len() + 2).all(|place| turn.contains(place) == turn.places().any(|other| other == place)));
        keys.sort_unstable();
        keys
    }

    #[test]
    fn those_who_were_last_come_last() {
        let mut rota = Rota::new(3);
        assert_eq!(turns(&mut rota, &[]), [0; 0]);
        assert_eq!(turns(&mut rota, &[1, 2, 3, 4, 5]), [1, 2, 3]);
        assert_eq!(turns(&mut rota, &[1, 2, 3, 4, 5]), [1, 4, 5]);
        // Who was last is gone, and others came before and after it.
        assert_eq!(turns(&mut rota, &[0, 2, 3, 4, 5]), [2, 3, 4]);
        // All of a few have their turn each time.
        assert_eq!(turns(&mut rota, &[1, 9]), [1, 9]);
        assert_eq!(turns(&mut rota, &[1, 9]), [1, 9]);
        assert_eq!(turns(&mut Rota::new(0), &[1, 9]), [1]);
    }

    proptest! {
        #[test]
        fn each_has_its_turn_in_time(count in 1u32..60, at_a_time in 1usize..20, started in 0usize..30) {
            let all: Vec<u32> = (0..count).collect();
            let mut rota = Rota::new(at_a_time);
            for _ in 0..started {
                turns(&mut rota, &all);
            }
            let bound = all.len().div_ceil(at_a_time);
            let seen: BTreeSet<u32> = (0..bound).flat_map(|_| turns(&mut rota, &all)).collect();
            prop_assert_eq!(seen.len(), all.len());
        }

        /// Whatever comes and goes, between two turns of one nobody else has two.
        #[test]
        fn nobody_is_passed_over(
            sets in proptest::collection::vec(proptest::collection::btree_set(0u32..40, 1..40), 1..40),
            at_a_time in 1usize..8,
        ) {
            let mut rota = Rota::new(at_a_time);
            // How often others had their turn since this one, which is always there, had its own.
            let mut since: BTreeMap<u32, usize> = BTreeMap::new();
            for mut set in sets {
                set.insert(20);
                let turn = turns(&mut rota, &set.iter().copied().collect::<Vec<u32>>());
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
