//! The segments of a file with data, and their map in an archive (GNU's sparse format 1.0).

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::BLOCK;
use crate::archive::{MAX_SEGMENTS, Segment};

/// Unit of `st_blocks`, bytes.
const SECTOR: u64 = 512;

/// Shorter holes are packed as zeroes, bytes.
const MIN_HOLE: u64 = 64 << 10;

/// The segments of a file with data; `None` if it has no hole long enough.
pub(super) fn segments(file: &File, found: &Metadata) -> Result<Option<Vec<Segment>>, Errno> {
    let len = found.len();
    if found.blocks().saturating_mul(SECTOR) >= len || len < MIN_HOLE {
        return Ok(None);
    }
    // Bounds the number of segments by what the reader accepts.
    let least = MIN_HOLE.max(len / (MAX_SEGMENTS as u64 / 2));
    let (mut segments, mut at) = (Vec::<Segment>::new(), 0);
    while at < len {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < len => start,
            Ok(_) | Err(Errno::NXIO) => break,
            // The file system does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        // The file may change in the meantime.
        at = seek(file, SeekFrom::Hole(start))?.clamp(start + 1, len);
        match segments.last_mut() {
            Some(last) if start - (last.offset + last.len) < least => last.len = at - last.offset,
            _ => segments.push(Segment { offset: start, len: at - start }),
        }
    }
    seek(file, SeekFrom::Start(0))?;
    let is_whole = matches!(segments[..], [Segment { offset: 0, len: whole }] if whole == len);
    if segments.last().is_none_or(|last| last.offset + last.len < len) {
        // GNU tar takes the end of the last segment as the end of the file.
        segments.push(Segment { offset: len, len: 0 });
    }
    Ok((!is_whole).then_some(segments))
}

/// The map before the data: number of segments, then offset and length of each.
pub(super) fn map(segments: &[Segment]) -> Vec<u8> {
    let mut map = format!("{}\n", segments.len()).into_bytes();
    for segment in segments {
        map.extend(format!("{}\n{}\n", segment.offset, segment.len).bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}
