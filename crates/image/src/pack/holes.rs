//! The parts of a file that are not holes, and their map in an archive (GNU's sparse format 1.0).

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::BLOCK;
use crate::archive::{MAX_PIECES, Piece};

/// What `st_blocks` counts.
const SECTOR: u64 = 512;

/// The shortest hole that is not packed as zeroes, in bytes.
const MIN_HOLE: u64 = 64 << 10;

/// The parts of a file that are no holes; `None` if it has no hole worth mention.
pub(super) fn pieces(file: &File, found: &Metadata) -> Result<Option<Vec<Piece>>, Errno> {
    let len = found.len();
    if found.blocks().saturating_mul(SECTOR) >= len || len < MIN_HOLE {
        return Ok(None);
    }
    // So that there are never more parts than the reading side takes.
    let least = MIN_HOLE.max(len / (MAX_PIECES as u64 / 2));
    let (mut pieces, mut at) = (Vec::<Piece>::new(), 0);
    while at < len {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) if start < len => start,
            Ok(_) | Err(Errno::NXIO) => break,
            // A file system that does not know of holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        // Where the file is being changed, too.
        at = seek(file, SeekFrom::Hole(start))?.clamp(start + 1, len);
        match pieces.last_mut() {
            Some(last) if start - (last.at + last.len) < least => last.len = at - last.at,
            _ => pieces.push(Piece { at: start, len: at - start }),
        }
    }
    seek(file, SeekFrom::Start(0))?;
    let is_whole = matches!(pieces[..], [Piece { at: 0, len: whole }] if whole == len);
    if pieces.last().is_none_or(|last| last.at + last.len < len) {
        // GNU tar takes the end of the last part for that of the file.
        pieces.push(Piece { at: len, len: 0 });
    }
    Ok((!is_whole).then_some(pieces))
}

/// What comes before the data: how many parts there are, where each begins, and how long it is.
pub(super) fn map(pieces: &[Piece]) -> Vec<u8> {
    let mut map = format!("{}\n", pieces.len()).into_bytes();
    for piece in pieces {
        map.extend(format!("{}\n{}\n", piece.at, piece.len).bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}
