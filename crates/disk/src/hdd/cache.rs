//! The write cache: the dirty extents, their age, and which is nearest to the arm.
//!
//! Owns: the dirty extents, their order by place and by age, and the epochs that flushes end.
//! Does not: decide when to destage, or move the arm.
//!
//! Extents are disjoint and ordered by offset, hence by track. Dirty bytes that are rewritten keep their epoch and age:
//! the newer data serves the flush that waits for the older. An extent that is being destaged has left the index; data
//! written to it meanwhile is dirty again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::arm::Arm;
use super::geometry::{Geometry, Place};

#[derive(Debug)]
pub(super) struct WriteCache {
    extents: BTreeMap<u64, Extent>,
    by_age: BTreeSet<(u64, u64)>,
    n_per_epoch: BTreeMap<u64, usize>,
    epoch: u64,
    bytes: u64,
    run_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Extent {
    end: u64,
    epoch: u64,
    since_ns: u64,
    place: Place,
}

/// The adjacent extents that one destage writes.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) range: Range<u64>,
    pub(super) oldest_epoch: u64,
}

/// Most extents examined on either side of the arm: beyond these the search costs more than it saves.
const N_EXAMINED: usize = 256;

impl WriteCache {
    pub(super) fn new(run_bytes: u64) -> Self {
        Self {
            extents: BTreeMap::new(),
            by_age: BTreeSet::new(),
            n_per_epoch: BTreeMap::new(),
            epoch: 0,
            bytes: 0,
            run_bytes,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn n_extents(&self) -> usize {
        self.extents.len()
    }

    pub(super) fn oldest_since(&self) -> Option<u64> {
        self.by_age.first().map(|&(since_ns, _)| since_ns)
    }

    pub(super) fn oldest_epoch(&self) -> Option<u64> {
        self.n_per_epoch.keys().next().copied()
    }

    /// Ends the epoch and returns it: a flush waits for the dirty data up to that epoch.
    pub(super) fn cut(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            match self.extent_at(at) {
                Some((_, extent)) => at = extent.end,
                None => return false,
            }
        }
        true
    }

    pub(super) fn insert(&mut self, range: Range<u64>, now_ns: u64, geometry: &Geometry) {
        let mut at = range.start;
        while at < range.end {
            if let Some((_, extent)) = self.extent_at(at) {
                at = extent.end;
                continue;
            }
            let end = self.extents.range(at..range.end).next().map_or(range.end, |(&start, _)| start);
            self.insert_gap(at..end, now_ns, geometry);
            at = end;
        }
    }

    /// Drops the dirty data in the range: it has reached the medium otherwise, or was discarded.
    pub(super) fn remove(&mut self, range: &Range<u64>, geometry: &Geometry) {
        let mut at = range.start;
        while at < range.end {
            let found = self.extent_at(at).or_else(|| self.extents.range(at..range.end).next().map(|(&s, &e)| (s, e)));
            let Some((start, extent)) = found else { return };
            self.take_extent(start);
            if start < range.start {
                self.put(start, Extent { end: range.start, ..extent });
            }
            if extent.end > range.end {
                self.put(range.end, Extent { place: geometry.place(range.end), ..extent });
            }
            at = extent.end;
        }
    }

    /// The extent that the arm reaches first, and how long that takes; limited to extents up to an epoch if one is
    /// given.
    pub(super) fn nearest(
        &self,
        arm: &Arm,
        now_ns: u64,
        geometry: &Geometry,
        up_to: Option<u64>,
    ) -> Option<(u64, u64)> {
        let wanted = |extent: &Extent| up_to.is_none_or(|epoch| extent.epoch <= epoch);
        let next = self.extents.get(&arm.end).filter(|extent| wanted(extent));
        if next.is_some() && arm.continues(now_ns, arm.end, true) {
            return Some((arm.end, 0));
        }
        let mut best: Option<(u64, u64)> = None;
        // In both directions, until the seek alone takes longer than the best: seek time rises with the distance.
        let onward = self.extents.range(arm.end..).take(N_EXAMINED);
        consider(onward, &wanted, arm, now_ns, geometry, &mut best);
        let back = self.extents.range(..arm.end).rev().take(N_EXAMINED);
        consider(back, &wanted, arm, now_ns, geometry, &mut best);
        // If no neighbour is wanted, take the oldest: it has the oldest epoch.
        best.or_else(|| self.oldest(arm, now_ns, geometry))
    }

    /// The extent that has been dirty for the longest time, and how long the arm takes to reach it.
    pub(super) fn oldest(&self, arm: &Arm, now_ns: u64, geometry: &Geometry) -> Option<(u64, u64)> {
        let &(_, start) = self.by_age.first()?;
        let place = self.extents.get(&start)?.place;
        Some((start, arm.positioning_ns(now_ns, start, place, true, geometry)))
    }

    /// Takes the extent and those adjoining it out of the cache.
    pub(super) fn take_run(&mut self, start: u64) -> Run {
        let mut run = Run { range: start..start, oldest_epoch: u64::MAX };
        while let Some(extent) = self.extents.get(&run.range.end).copied() {
            let len = extent.end - start;
            if len > self.run_bytes && run.range.end > start {
                break;
            }
            self.take_extent(run.range.end);
            run.range.end = extent.end;
            run.oldest_epoch = run.oldest_epoch.min(extent.epoch);
        }
        run
    }

    fn extent_at(&self, at: u64) -> Option<(u64, Extent)> {
        let (&start, &extent) = self.extents.range(..=at).next_back()?;
        (extent.end > at).then_some((start, extent))
    }

    fn insert_gap(&mut self, range: Range<u64>, now_ns: u64, geometry: &Geometry) {
        if let Some((&start, before)) = self.extents.range_mut(..range.start).next_back()
            && before.end == range.start
            && before.epoch == self.epoch
            && range.end - start <= self.run_bytes
        {
            before.end = range.end;
            self.bytes += range.end - range.start;
            return;
        }
        let place = geometry.place(range.start);
        self.put(range.start, Extent { end: range.end, epoch: self.epoch, since_ns: now_ns, place });
    }

    fn put(&mut self, start: u64, extent: Extent) {
        self.bytes += extent.end - start;
        self.by_age.insert((extent.since_ns, start));
        *self.n_per_epoch.entry(extent.epoch).or_default() += 1;
        self.extents.insert(start, extent);
    }

    fn take_extent(&mut self, start: u64) {
        let Some(extent) = self.extents.remove(&start) else { return };
        self.bytes -= extent.end - start;
        self.by_age.remove(&(extent.since_ns, start));
        if let Some(n) = self.n_per_epoch.get_mut(&extent.epoch) {
            *n -= 1;
            if *n == 0 {
                self.n_per_epoch.remove(&extent.epoch);
            }
        }
    }
}

fn consider<'a>(
    neighbours: impl Iterator<Item = (&'a u64, &'a Extent)>,
    wanted: &impl Fn(&Extent) -> bool,
    arm: &Arm,
    now_ns: u64,
    geometry: &Geometry,
    best: &mut Option<(u64, u64)>,
) {
    for (&start, extent) in neighbours.filter(|(_, extent)| wanted(extent)) {
        let moved_ns = arm.move_ns(extent.place, true, geometry);
        let best_ns = best.map_or(u64::MAX, |(_, best_ns)| best_ns);
        if moved_ns >= best_ns {
            return;
        }
        let cost_ns = moved_ns + geometry.rotation_ns(now_ns + moved_ns, extent.place);
        if cost_ns < best_ns {
            *best = Some((start, cost_ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parameters;
    use proptest::prelude::*;

    fn geometry() -> Geometry {
        let Parameters::Hdd(table) = Parameters::HDD else { unreachable!("HDD is a hard disk") };
        Geometry::new(&table, 64 << 20)
    }

    #[test]
    fn rewritten_bytes_keep_their_epoch() {
        let (mut cache, geometry) = (WriteCache::new(1 << 20), geometry());
        cache.insert(8192..12288, 1, &geometry);
        assert_eq!(cache.cut(), 0);
        cache.insert(4096..16384, 2, &geometry);
        assert_eq!((cache.bytes(), cache.n_extents(), cache.oldest_epoch()), (12288, 3, Some(0)));
        assert!(cache.covers(&(4096..16384)) && !cache.covers(&(0..8192)));
        let run = cache.take_run(4096);
        assert_eq!((run.range, run.oldest_epoch), (4096..16384, 0));
        assert_eq!((cache.bytes(), cache.oldest_epoch(), cache.oldest_since()), (0, None, None));
    }

    #[test]
    fn sequential_writes_coalesce_up_to_a_run() {
        let (mut cache, geometry) = (WriteCache::new(1 << 20), geometry());
        for block in 0..512 {
            cache.insert(block * 4096..(block + 1) * 4096, block, &geometry);
        }
        assert_eq!(cache.n_extents(), 2);
        assert_eq!(cache.take_run(0).range, 0..1 << 20);
    }

    proptest! {
        #[test]
        fn the_index_agrees_with_a_map_of_blocks(
            steps in proptest::collection::vec((0u8..4, 0u64..64, 1u64..16), 1..80),
        ) {
            let (mut cache, geometry) = (WriteCache::new(64 << 10), geometry());
            let mut blocks: BTreeMap<u64, u64> = BTreeMap::new();
            for (now, (what, first, n)) in (0..).zip(steps) {
                let range = first * 4096..(first + n) * 4096;
                match what {
                    0 | 1 => {
                        cache.insert(range, now, &geometry);
                        for block in first..first + n {
                            blocks.entry(block).or_insert(cache.epoch);
                        }
                    }
                    2 => {
                        cache.remove(&range, &geometry);
                        blocks.retain(|block, _| !(first..first + n).contains(block));
                    }
                    _ => {
                        cache.cut();
                    }
                }
                prop_assert_eq!(cache.bytes(), u64::try_from(blocks.len()).unwrap() * 4096);
                prop_assert_eq!(cache.oldest_epoch(), blocks.values().min().copied());
                prop_assert_eq!(cache.by_age.len(), cache.n_extents());
                for block in 0..80 {
                    prop_assert_eq!(cache.covers(&(block * 4096..(block + 1) * 4096)), blocks.contains_key(&block));
                }
            }
        }
    }
}
