//! One read from a peer: which file of its has the blocks, whether they are in memory, and whether they are what the base has.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_sys::buffer::to_usize;
use bulkhead_sys::{handle, pagecache};

use crate::index::{Index, Place};

/// Fills `bytes` with blocks of the base, as far as a file in the peer's memory has them as they are in the base; returns a bit
/// for each, and a bit for each that is a file's. What cannot be looked at is not there.
///
/// What the peer has written to its file since is not taken: the hash tells. Time stamps cannot, after a crash they may be older
/// than what they speak of.
pub(super) fn look_up(index: &Index, root: &OwnedFd, first: u64, bytes: &mut [u8]) -> (u32, u32) {
    let count = bytes.len() as u64 / BLOCK_BYTES;
    let Ok(places) = index.places(&(first..first + count)) else { return (0, 0) };
    let (mut hits, mut of_files) = (0, 0);
    for place in places {
        let before = place.blocks.start - first;
        let part = to_usize(before * BLOCK_BYTES)..to_usize((place.blocks.end - first) * BLOCK_BYTES);
        let found = look_into(index, root, &place, &mut bytes[part]).unwrap_or(0);
        hits |= found << before;
        of_files |= (place.blocks.start..place.blocks.end).fold(0, |bits, block| bits | 1 << (block - first));
    }
    (hits, of_files)
}

/// The blocks of one place.
fn look_into(index: &Index, root: &OwnedFd, place: &Place, bytes: &mut [u8]) -> io::Result<u32> {
    let kind = index.head.handle_type;
    let Some(handle) = place.file.handle(kind) else { return Ok(0) };
    let file = handle::open(root, kind, &handle)?;
    let count = place.blocks.end - place.blocks.start;
    // Asked before anything is read: a read of what is not there starts readahead, also one that must not wait.
    let at = place.file_block * BLOCK_BYTES;
    let cached = pagecache::stat(&file, &(at..at + count * BLOCK_BYTES))?.cached;
    if cached >= count {
        read(&file, bytes, at)?;
        return index.matching(place, bytes);
    }
    if cached == 0 {
        return Ok(0);
    }
    one_by_one(index, &file, place, bytes)
}

/// The blocks of a place of which only some are in memory.
fn one_by_one(index: &Index, file: &File, place: &Place, bytes: &mut [u8]) -> io::Result<u32> {
    let mut hits = 0;
    for (n, block) in bytes.chunks_exact_mut(to_usize(BLOCK_BYTES)).enumerate() {
        let one = place.part(n as u64..n as u64 + 1);
        let at = one.file_block * BLOCK_BYTES;
        if pagecache::stat(file, &(at..at + BLOCK_BYTES))?.cached == 1 {
            read(file, block, at)?;
            hits |= index.matching(&one, block)? << n;
        }
    }
    Ok(hits)
}

/// Reads, as a device has it: after the end of a file come zeroes.
fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes[done..].fill(0);
    Ok(())
}
