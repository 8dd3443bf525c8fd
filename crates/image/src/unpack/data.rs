//! Writes the data of files, and counts the blocks that they occupy.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt as _;

use bulkhead_core::units::Bytes;

use super::Entry;
use crate::archive::Archive;
use crate::error::{ImportError, reading};

/// Size of the copy buffer, bytes. A buffer of zeroes becomes a hole.
const CHUNK: usize = 1 << 16;

/// Block size of the file system that is created from the tree. Blocks of zeroes are not stored.
const BLOCK: u64 = 4096;

/// Counts bytes, and reports the total.
pub(crate) struct Meter<'a> {
    bytes: u64,
    report: &'a mut dyn FnMut(Bytes),
}

impl<'a> Meter<'a> {
    pub(crate) fn new(report: &'a mut dyn FnMut(Bytes)) -> Self {
        Self { bytes: 0, report }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        (self.report)(Bytes(self.bytes));
    }
}

/// Writes the data of an entry; returns the size of its blocks that are not all zeroes.
pub(super) fn copy(
    entry: &Entry<'_>,
    archive: &mut Archive<impl Read>,
    file: &File,
    meter: &mut Meter<'_>,
) -> Result<Bytes, ImportError> {
    let content = &entry.member.content;
    let (mut buffer, mut blocks) = (vec![0; CHUNK], Blocks::default());
    for segment in &content.segments {
        let (mut at, end) = (segment.offset, segment.offset.saturating_add(segment.len));
        while at < end {
            // Up to a multiple of the chunk size, wherever the segment begins.
            let len = (CHUNK as u64 - at % CHUNK as u64).min(end - at);
            let chunk = &mut buffer[..usize::try_from(len).unwrap_or_default()];
            archive.data().read_exact(chunk).map_err(|error| reading(entry.archive, error))?;
            if chunk.iter().any(|byte| *byte != 0) {
                file.write_all_at(chunk, at).map_err(entry.failed("write"))?;
                blocks.add(at, chunk);
            }
            at += len;
            meter.add(len);
        }
    }
    file.set_len(content.len).map_err(entry.failed("write"))?;
    Ok(Bytes(blocks.count * BLOCK))
}

/// Rounds up to whole blocks.
pub(crate) fn whole_blocks(bytes: u64) -> Bytes {
    Bytes(bytes.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX))
}

/// Counts blocks that are not all zeroes; data is added in order of offset.
#[derive(Default)]
struct Blocks {
    count: u64,
    last: Option<u64>,
}

impl Blocks {
    fn add(&mut self, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let room = usize::try_from(BLOCK - at % BLOCK).unwrap_or_default();
            let (part, rest) = data.split_at(room.min(data.len()));
            let block = at / BLOCK;
            if self.last != Some(block) && part.iter().any(|byte| *byte != 0) {
                self.last = Some(block);
                self.count += 1;
            }
            at += part.len() as u64;
            data = rest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_counts_once_and_only_with_data() {
        let mut blocks = Blocks::default();
        blocks.add(4000, &[1; 10]);
        blocks.add(4010, &[1; 100]);
        assert_eq!(blocks.count, 2);
        blocks.add(8192, &[0; 8192]);
        blocks.add(16_384, &[&[0; 4095][..], &[1], &[0; 4096]].concat());
        assert_eq!(blocks.count, 3);
        assert_eq!((whole_blocks(0), whole_blocks(1), whole_blocks(4096)), (Bytes(0), Bytes(4096), Bytes(4096)));
    }
}
