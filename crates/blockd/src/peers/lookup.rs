//! One read from a peer: finds the file that contains the blocks, and checks that they are in the page cache and equal to the base.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_sys::buffer::to_usize;
use bulkhead_sys::{handle, pagecache};

use crate::index::{Index, Place};

/// Fills `bytes` with the blocks of the base from `first` on that a file of the peer has, unchanged, in the page cache. Returns two
/// masks with a bit for each block: those that were found, and those that belong to a file by the index. An error counts as a miss.
///
/// The hash excludes blocks that the peer has changed since. Time stamps cannot do that: after a crash they may be older than the data.
pub(super) fn find_block(index: &Index, root: &OwnedFd, first: u64, bytes: &mut [u8]) -> (u32, u32) {
    let count = bytes.len() as u64 / BLOCK_BYTES;
    let Ok(places) = index.places(&(first..first + count)) else { return (0, 0) };
    let (mut hits, mut of_files) = (0, 0);
    for place in places {
        let before = place.blocks.start - first;
        let part = to_usize(before * BLOCK_BYTES)..to_usize((place.blocks.end - first) * BLOCK_BYTES);
        let found = read_place(index, root, &place, &mut bytes[part]).unwrap_or(0);
        hits |= found << before;
        of_files |= (place.blocks.start..place.blocks.end).fold(0, |bits, block| bits | 1 << (block - first));
    }
    (hits, of_files)
}

/// Reads the blocks of one place; returns a bit for each that was found.
fn read_place(index: &Index, root: &OwnedFd, place: &Place, bytes: &mut [u8]) -> io::Result<u32> {
    let kind = index.head.handle_type;
    let Some(handle) = place.file.handle(kind) else { return Ok(0) };
    let file = handle::open(root, kind, &handle)?;
    let count = place.blocks.end - place.blocks.start;
    // Checked before the read: a read of uncached pages starts readahead, even with `RWF_NOWAIT`.
    let at = place.file_block * BLOCK_BYTES;
    let cached = pagecache::stat(&file, &(at..at + count * BLOCK_BYTES))?.cached;
    if cached >= count {
        read(&file, bytes, at)?;
        return index.matching(place, bytes);
    }
    if cached == 0 {
        return Ok(0);
    }
    read_cached(index, &file, place, bytes)
}

/// Reads a place of which only some blocks are cached.
fn read_cached(index: &Index, file: &File, place: &Place, bytes: &mut [u8]) -> io::Result<u32> {
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

/// Reads from a file; what lies beyond its end is zero, as on the device.
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
