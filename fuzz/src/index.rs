//! The index of a base (docs/formats/index.md).

use bulkhead_blockd::index::Index;
use bulkhead_formats::index::{Checker, EXTENT_BYTES, FileId, HEAD_BYTES, IndexExtent, IndexHead};
use uuid::Uuid;

use crate::input::{Input, scratch};

/// The first byte selects whether the rest is an index, or describes one: for each extent its distance from the previous one in blocks,
/// its length, inode and first block in the file.
pub fn index(bytes: &[u8]) {
    let mut input = Input(bytes);
    let mode = input.byte();
    let content = Uuid::from_u128(7);
    let bytes = if mode == 0 { input.0.to_vec() } else { described(input, content, mode) };
    let dir = scratch();
    let path = dir.path().join("index");
    std::fs::write(&path, bytes).expect("a file can be written");
    let Ok(index) = Index::open(&path, content) else { return };
    for first in [0, 1, 31, 1000, u64::from(u32::MAX), u64::MAX / 4096 - 64] {
        let blocks = first..first + 32;
        let Ok(places) = index.places(&blocks) else { continue };
        let mut end = blocks.start;
        for place in places {
            let here = &place.blocks;
            assert!(here.start >= end && here.start < here.end && here.end <= blocks.end, "{here:?} of {blocks:?}");
            end = here.end;
            let len = usize::try_from(here.end - here.start).expect("it is at most 32") * 4096;
            let _ = index.matching(&place, &vec![0; len]);
        }
    }
}

fn described(mut input: Input<'_>, content: Uuid, mode: u8) -> Vec<u8> {
    let handle_type = if mode & 2 == 0 { 1 } else { 0x81 };
    let mut extents = Vec::new();
    let (mut block, mut blocks) = (0_u64, 0_u64);
    while !input.is_empty() {
        let wide = mode & 4 != 0;
        let gap = if wide { input.number() } else { input.small() };
        let count = u32::try_from(input.small()).unwrap_or(1);
        let file = FileId { inode: input.small(), generation: 1 };
        let file_block = if wide { input.number() } else { input.small() };
        block = block.wrapping_add(gap);
        extents.push(IndexExtent { block, blocks: count, file, file_block, hash: blocks });
        block = block.wrapping_add(count.into());
        blocks = blocks.wrapping_add(count.into());
    }
    let head = IndexHead::new(content, handle_type, [1; 16], extents.len() as u64, blocks);
    let mut checker = Checker::new(head);
    let mut bytes = Vec::with_capacity(HEAD_BYTES + extents.len() * EXTENT_BYTES);
    bytes.extend(head.encode());
    for extent in extents {
        // An extent that is out of order has to be detected by the reader.
        let _ = checker.next(&extent.encode());
        bytes.extend(extent.encode());
    }
    bytes.extend(checker.checksum());
    if mode & 8 == 0 {
        let len = usize::try_from(head.hashes_offset().saturating_add(blocks * 16)).unwrap_or(usize::MAX);
        bytes.resize(len.min(1 << 20), 0);
    }
    bytes
}
