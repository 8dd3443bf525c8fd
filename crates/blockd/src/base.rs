//! Completes the staging file of an imported base: punches holes for blocks of zeroes, and derives the base's name from its content, so
//! that equal bases are stored once.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use bulkhead_core::base;
use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::units::Bytes;
use bulkhead_formats::staging::StagingFile;
use bulkhead_sys::buffer::{Buffer, CHUNK, to_usize};
use bulkhead_sys::extents::{self, Kind};
use rustix::fs::{FallocateFlags, fallocate};
use uuid::Uuid;

use crate::transfer::{TransferError, ZEROES, failed, runs_of_blocks};

/// Punches holes for the zeroes in a staging file, and returns the name of its content. `progress` is called with the bytes read so
/// far.
///
/// # Errors
/// [`TransferError`]; the staging file is useless then.
pub fn seal(staging: &StagingFile, size: Bytes, mut progress: impl FnMut(Bytes)) -> Result<Uuid, TransferError> {
    let file = staging.file();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let whole = |range: Range<u64>| range.start / BLOCK_BYTES * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES);
    let found = extents::extents(file, 0..size.0, |range, kind| {
        let range = whole(range);
        match ranges.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => ranges.push(range.clone()),
        }
        if kind == Kind::Unwritten { punch(staging, &range) } else { Ok(()) }
    });
    found.map_err(failed("look for data in the staging file"))?;
    let (mut contents, mut buffer, mut read) = (base::ContentHasher::new(size), Buffer::new(), 0);
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let bytes = buffer.first(to_usize((range.end - at).min(CHUNK)));
            file.read_exact_at(bytes, at).map_err(failed("read the staging file"))?;
            for run in runs_of_blocks(bytes) {
                let place = at..at + run.len() as u64;
                at = place.end;
                if run.starts_with(&ZEROES) {
                    punch(staging, &place).map_err(failed("make a hole in the staging file"))?;
                } else {
                    contents.add(place.start, run);
                }
            }
            read += bytes.len() as u64;
            progress(Bytes(read));
        }
    }
    Ok(contents.name())
}

fn punch(staging: &StagingFile, range: &Range<u64>) -> io::Result<()> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(staging.file(), how, range.start, range.end - range.start)?)
}
