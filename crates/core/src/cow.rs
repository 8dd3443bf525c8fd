//! Which file of a backing chain has each block of a copied volume: its own image, one of the layers, or none.
//!
//! Layers do not change, so their map is built once, when a volume's server starts. Only the image gains blocks: a
//! written block belongs to it from then on. Everything beyond the end of the layers belongs to the image.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::units::Bytes;

/// The unit of ownership, in bytes: the logical block of a volume, so that no block is owned in part.
pub const BLOCK_BYTES: u64 = 4096;

/// Maximum number of layers in a backing chain.
pub const MAX_LAYERS: usize = 128;

/// Number of layers from which on a finding is reported: each snapshot of a volume that was written to adds a layer.
pub const MANY_LAYERS: usize = MAX_LAYERS / 2;

/// Marks a block that no layer has.
const NO_LAYER: u8 = u8::MAX;

const _: () = assert!(MAX_LAYERS < NO_LAYER as usize);

/// Blocks per entry of the map, if they are all in the same layer: 2 MiB.
const CHUNK_BLOCKS: u64 = 512;

/// The backing chain of a file volume (docs/formats/layers.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LayersView {
    /// Space of its image in the pool: blocks written since the volume was created or last copied.
    pub own_bytes: Bytes,
    /// The layers, newest first.
    pub below: Vec<LayerView>,
}

/// A layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LayerView {
    /// Its UUID, which is its name in the pool's directory.
    pub id: Uuid,
    /// Its space in the pool; other volumes may depend on it as well.
    pub bytes: Bytes,
}

/// The location of a range's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// In the image.
    Own,
    /// In the layer with this number; 0 is the oldest.
    Layer(u8),
    /// Nowhere: it reads as zeroes.
    Hole,
}

/// The map of an image and its layers.
#[derive(Debug)]
pub struct BlockMap {
    /// The layers' blocks.
    chunks: Vec<Chunk>,
    /// A bit per block within the layers' size: whether the image has it.
    owned: Box<[AtomicU64]>,
    /// The layers' end, bytes.
    end: u64,
}

#[derive(Clone, Debug)]
enum Chunk {
    Uniform(u8),
    PerBlock(Box<[u8]>),
}

impl BlockMap {
    /// An empty map for layers of at most this size.
    #[must_use]
    pub fn new(layers: Bytes) -> Self {
        let blocks = layers.0.div_ceil(BLOCK_BYTES);
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            chunks: vec![Chunk::Uniform(NO_LAYER); count(blocks.div_ceil(CHUNK_BLOCKS))],
            owned: (0..count(blocks.div_ceil(u64::from(u64::BITS)))).map(|_| AtomicU64::new(0)).collect(),
            end: blocks * BLOCK_BYTES,
        }
    }

    /// Enters a layer's data in a range of bytes, which hides older layers there. Partial blocks count as whole blocks.
    pub fn set_layer(&mut self, range: Range<u64>, layer: u8) {
        debug_assert!(usize::from(layer) < MAX_LAYERS);
        let Some(blocks) = self.blocks(range) else { return };
        let mut at = blocks.start;
        while at < blocks.end {
            let chunk_start = at / CHUNK_BLOCKS * CHUNK_BLOCKS;
            let until = blocks.end.min(chunk_start + CHUNK_BLOCKS);
            let chunk = &mut self.chunks[index(at / CHUNK_BLOCKS)];
            if at == chunk_start && until == chunk_start + CHUNK_BLOCKS {
                *chunk = Chunk::Uniform(layer);
            } else {
                let each = match chunk {
                    Chunk::PerBlock(each) => each,
                    Chunk::Uniform(all) => {
                        *chunk = Chunk::PerBlock(vec![*all; index(CHUNK_BLOCKS)].into_boxed_slice());
                        let Chunk::PerBlock(each) = chunk else { unreachable!("it was just made") };
                        each
                    }
                };
                each[index(at - chunk_start)..index(until - chunk_start)].fill(layer);
            }
            at = until;
        }
    }

    /// Enters the image's data in a range of bytes. Partial blocks count as whole blocks.
    pub fn set_owned(&self, range: Range<u64>) {
        for block in self.blocks(range).into_iter().flatten() {
            let (word, bit) = (index(block / 64), 1 << (block % 64));
            // If the bit is set already, nothing is stored, so that busy blocks do not bounce their cache line.
            if self.owned[word].load(Ordering::Relaxed) & bit == 0 {
                self.owned[word].fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// The location of each run of a range of bytes.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Source)> + '_ {
        self.split(range, |block| if self.is_owned(block) { Source::Own } else { self.layer_of_block(block) })
    }

    /// The location of each run of a range of bytes if the image had no blocks; beyond the layers' end it is still the
    /// image.
    pub fn layer_runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Source)> + '_ {
        self.split(range, |block| self.layer_of_block(block))
    }

    /// The layers' end, in bytes.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Memory that the map uses.
    #[must_use]
    pub fn memory(&self) -> Bytes {
        let each = self.chunks.iter().filter(|chunk| matches!(chunk, Chunk::PerBlock(_))).count() * index(CHUNK_BLOCKS);
        Bytes((each + size_of_val(&*self.owned) + size_of_val(&*self.chunks)) as u64)
    }

    fn split(&self, range: Range<u64>, source: impl Fn(u64) -> Source) -> impl Iterator<Item = (Range<u64>, Source)> {
        let (end, mut at) = (self.end, range.start);
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let start = at;
            if at >= end {
                at = range.end;
                return Some((start..at, Source::Own));
            }
            let found = source(at / BLOCK_BYTES);
            let limit = range.end.min(end);
            while at < limit && source(at / BLOCK_BYTES) == found {
                at = limit.min((at / BLOCK_BYTES + 1) * BLOCK_BYTES);
            }
            // A run of the image that ends at the layers' end continues beyond it.
            if at == end && found == Source::Own {
                at = range.end;
            }
            Some((start..at, found))
        })
    }

    fn is_owned(&self, block: u64) -> bool {
        self.owned[index(block / 64)].load(Ordering::Acquire) & 1 << (block % 64) != 0
    }

    fn layer_of_block(&self, block: u64) -> Source {
        let layer = match &self.chunks[index(block / CHUNK_BLOCKS)] {
            Chunk::Uniform(layer) => *layer,
            Chunk::PerBlock(each) => each[index(block % CHUNK_BLOCKS)],
        };
        if layer == NO_LAYER { Source::Hole } else { Source::Layer(layer) }
    }

    /// The blocks that a range of bytes touches, up to the layers' end.
    fn blocks(&self, range: Range<u64>) -> Option<Range<u64>> {
        let end = range.end.min(self.end);
        (range.start < end).then(|| range.start / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES))
    }
}

/// An index into the map, which fits into memory.
fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The layers that contain the difference between two snapshots: those in only one of their backing chains.
#[must_use]
pub fn differing_layers(one: &[Uuid], other: &[Uuid]) -> Vec<Uuid> {
    let only = |a: &[Uuid], b: &[Uuid]| a.iter().filter(|id| !b.contains(id)).copied().collect::<Vec<_>>();
    [only(one, other), only(other, one)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

    /// More than two chunks, and not a multiple of one.
    const BLOCKS: u64 = 2 * CHUNK_BLOCKS + 100;

    fn ranges() -> impl Strategy<Value = Range<u64>> {
        (0..BLOCKS + 50, 0..CHUNK_BLOCKS + 200).prop_map(|(start, len)| start..start + len)
    }

    fn bytes(blocks: &Range<u64>) -> Range<u64> {
        blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES
    }

    proptest! {
        #[test]
        fn the_image_hides_layers_and_newer_layers_hide_older_ones(
            layers in proptest::collection::vec((ranges(), 0u8..5), 0..12),
            owned in proptest::collection::vec(ranges(), 0..6),
            asked in ranges(),
        ) {
            let mut map = BlockMap::new(Bytes(BLOCKS * BLOCK_BYTES));
            let mut expected: Vec<Source> = vec![Source::Hole; index(BLOCKS)];
            for (range, layer) in &layers {
                map.set_layer(bytes(range), *layer);
                for block in range.clone().filter(|block| *block < BLOCKS) {
                    expected[index(block)] = Source::Layer(*layer);
                }
            }
            let below = expected.clone();
            for range in &owned {
                map.set_owned(bytes(range));
                for block in range.clone().filter(|block| *block < BLOCKS) {
                    expected[index(block)] = Source::Own;
                }
            }
            for (runs, expected) in [
                (map.runs(bytes(&asked)).collect::<Vec<_>>(), expected),
                (map.layer_runs(bytes(&asked)).collect(), below),
            ] {
                let mut at = asked.start * BLOCK_BYTES;
                let mut last = None;
                for (run, source) in runs {
                    prop_assert_eq!(run.start, at);
                    prop_assert!(run.end > run.start && last != Some(source), "{:?} follows {:?}", source, last);
                    for block in run.start / BLOCK_BYTES..run.end / BLOCK_BYTES {
                        prop_assert_eq!(expected.get(index(block)).copied().unwrap_or(Source::Own), source);
                    }
                    (at, last) = (run.end, Some(source));
                }
                prop_assert_eq!(at, asked.end.max(asked.start) * BLOCK_BYTES);
            }
        }
    }

    #[test]
    fn partial_blocks_count_as_whole_blocks() {
        let mut map = BlockMap::new(Bytes(10 * BLOCK_BYTES - 1));
        map.set_layer(BLOCK_BYTES + 1..2 * BLOCK_BYTES + 1, 0);
        map.set_owned(2 * BLOCK_BYTES + 5..2 * BLOCK_BYTES + 6);
        let runs: Vec<_> =
            map.runs(0..4 * BLOCK_BYTES).map(|(run, source)| (run.start / BLOCK_BYTES, source)).collect();
        assert_eq!(runs, [(0, Source::Hole), (1, Source::Layer(0)), (2, Source::Own), (3, Source::Hole)]);
        assert_eq!(map.runs(20..20).count(), 0);
    }

    #[test]
    fn the_map_of_one_tebibyte_uses_little_memory() {
        let mut map = BlockMap::new(Bytes(1 << 40));
        map.set_layer(0..1 << 39, 3);
        assert!(map.memory() <= Bytes::mib(48), "{}", map.memory());
        assert_eq!(BlockMap::new(Bytes(0)).runs(0..8192).collect::<Vec<_>>(), [(0..8192, Source::Own)]);
    }
}
