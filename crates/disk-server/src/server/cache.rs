//! A drive's volatile cache, for disks that lose unflushed data: its contents go with the machine.
//!
//! Each block of a write stays here or reaches the medium at once, at random: after a power cut a write since the last
//! flush is present, lost, or torn between two blocks, and a later one may be present without an earlier one, as drives
//! with a cache of 4096-byte sectors allow. A single block is never torn. Owns the unflushed blocks; does not access
//! the medium.

use std::collections::HashMap;

/// The unit that is written atomically: a physical sector of current drives.
pub(super) const BLOCK: usize = 4096;
/// Capacity in blocks (16 MiB); when it is full, blocks reach the medium at once.
const MAX_BLOCKS: usize = 4096;

/// Unflushed blocks.
#[derive(Debug)]
pub(super) struct Cache {
    /// By block number.
    blocks: HashMap<u64, Box<[u8]>>,
    /// Preallocated: a disk must not wait for memory that can only be freed by writing to it.
    spare: Vec<Box<[u8]>>,
    /// State of the random number generator (xorshift64).
    random: u64,
}

impl Cache {
    /// An empty cache. The same seed and writes lose the same blocks.
    pub(super) fn new(seed: u64) -> Self {
        let spare = (0..MAX_BLOCKS).map(|_| vec![0; BLOCK].into_boxed_slice()).collect();
        // Zero would stay zero.
        Self { blocks: HashMap::with_capacity(MAX_BLOCKS), spare, random: seed | 1 << 63 }
    }

    /// The content of a block that has not reached the medium.
    pub(super) fn get(&self, number: u64) -> Option<&[u8]> {
        self.blocks.get(&number).map(AsRef::as_ref)
    }

    /// Decides whether a block of a write stays in the cache.
    pub(super) fn keeps(&mut self) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random & 1 == 1 && !self.spare.is_empty()
    }

    /// Stores a block.
    pub(super) fn put(&mut self, number: u64, content: &[u8; BLOCK]) {
        if let Some(block) = self.blocks.get_mut(&number) {
            block.copy_from_slice(content);
        } else if let Some(mut block) = self.spare.pop() {
            block.copy_from_slice(content);
            self.blocks.insert(number, block);
        }
    }

    /// Drops a block that has reached the medium.
    pub(super) fn remove(&mut self, number: u64) {
        self.spare.extend(self.blocks.remove(&number));
    }

    /// All blocks, with their numbers.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.blocks.iter().map(|(number, block)| (*number, block.as_ref()))
    }

    /// Drops all blocks.
    pub(super) fn clear(&mut self) {
        self.spare.extend(self.blocks.drain().map(|(_, block)| block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_determines_which_blocks_are_kept() {
        let kept =
            |seed| (0..1000).map(|_| seed).scan(Cache::new(seed), |cache, _| Some(cache.keeps())).collect::<Vec<_>>();
        let n = kept(7).iter().filter(|kept| **kept).count();
        assert!((400..600).contains(&n), "{n} of 1000 are kept");
        assert_eq!(kept(7), kept(7));
        assert_ne!(kept(7), kept(8));
        assert!(kept(0).iter().any(|kept| *kept));
    }

    #[test]
    fn the_newest_content_of_a_block_is_returned_once() {
        let mut cache = Cache::new(1);
        cache.put(5, &[1; BLOCK]);
        cache.put(5, &[2; BLOCK]);
        cache.put(6, &[3; BLOCK]);
        cache.remove(6);
        assert_eq!((cache.get(5).map(|block| block[0]), cache.get(6)), (Some(2), None));
        let found: Vec<_> = cache.blocks().map(|(number, block)| (number, block[0])).collect();
        cache.clear();
        assert_eq!((found, cache.get(5)), (vec![(5, 2)], None));
    }

    #[test]
    fn a_full_cache_keeps_no_more_blocks() {
        let mut cache = Cache::new(1);
        (0..=MAX_BLOCKS as u64).for_each(|number| cache.put(number, &[0; BLOCK]));
        assert!(!(0..100).any(|_| cache.keeps()));
        assert_eq!(cache.get(MAX_BLOCKS as u64), None);
    }
}
