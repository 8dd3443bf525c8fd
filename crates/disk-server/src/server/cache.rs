//! A drive's volatile cache, for disks that are to lose what was not flushed: what lies here is gone when the machine is.
//!
//! Each block of a write is kept here or reaches the medium at once, by chance: after a power cut a write since the last flush is
//! there, or lost, or torn between two blocks, and a later one may be there without an earlier one, as drives with a cache of
//! 4096-byte sectors allow. A block itself is never torn.

use std::collections::HashMap;

/// The unit that is written as a whole: a physical sector of today's drives.
pub(super) const BLOCK: usize = 4096;
/// Blocks that fit (16 MiB); all others reach the medium at once.
const MAX_BLOCKS: usize = 4096;

/// What was written and has not reached the medium.
#[derive(Debug)]
pub(super) struct Cache {
    /// By number.
    blocks: HashMap<u64, Box<[u8]>>,
    /// Allocated before: a disk must not wait for memory that it is to be written out for.
    spare: Vec<Box<[u8]>>,
    /// State of the dice (xorshift64).
    dice: u64,
}

impl Cache {
    /// An empty one; the same seed and writes lose the same.
    pub(super) fn new(seed: u64) -> Self {
        let spare = (0..MAX_BLOCKS).map(|_| vec![0; BLOCK].into_boxed_slice()).collect();
        // Zero would stay zero.
        Self { blocks: HashMap::with_capacity(MAX_BLOCKS), spare, dice: seed | 1 << 63 }
    }

    /// What a block holds that has not reached the medium.
    pub(super) fn get(&self, number: u64) -> Option<&[u8]> {
        self.blocks.get(&number).map(AsRef::as_ref)
    }

    /// Whether a block of a write is to be kept back.
    pub(super) fn keeps(&mut self) -> bool {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice & 1 == 1 && !self.spare.is_empty()
    }

    /// Keeps a block.
    pub(super) fn put(&mut self, number: u64, content: &[u8; BLOCK]) {
        if let Some(block) = self.blocks.get_mut(&number) {
            block.copy_from_slice(content);
        } else if let Some(mut block) = self.spare.pop() {
            block.copy_from_slice(content);
            self.blocks.insert(number, block);
        }
    }

    /// Drops a block that the medium has now.
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
    fn some_blocks_are_kept_and_others_not_the_same_each_time() {
        let kept =
            |seed| (0..1000).map(|_| seed).scan(Cache::new(seed), |cache, _| Some(cache.keeps())).collect::<Vec<_>>();
        let n = kept(7).iter().filter(|kept| **kept).count();
        assert!((400..600).contains(&n), "{n} of 1000 are kept");
        assert_eq!(kept(7), kept(7));
        assert_ne!(kept(7), kept(8));
        assert!(kept(0).iter().any(|kept| *kept));
    }

    #[test]
    fn the_newest_content_of_a_block_is_handed_out_once() {
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
    fn a_full_one_keeps_nothing_more() {
        let mut cache = Cache::new(1);
        (0..=MAX_BLOCKS as u64).for_each(|number| cache.put(number, &[0; BLOCK]));
        assert!(!(0..100).any(|_| cache.keeps()));
        assert_eq!(cache.get(MAX_BLOCKS as u64), None);
    }
}
