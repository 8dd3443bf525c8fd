//! Sparse files of GNU tar, stored without their holes: the map of the stored parts. The old GNU format has it in headers, versions 0.0 and 0.1
//! in extended headers, and version 1.0 before the data.

use std::io::{self, Read};

use tar::Header;

use super::number::unsigned;
use super::records::Records;
use super::{BLOCK, read_full};

#[cfg(test)]
mod tests;

/// The most parts of a file that are read: 16 MiB of memory.
pub(crate) const MAX_PIECES: usize = 1 << 20;

/// The longest number in a map before the data, in bytes.
const MAX_DIGITS: usize = 20;

/// How the words begin that say something about a sparse file.
const PREFIX: &[u8] = b"GNU.sparse.";

/// What a file is: its length, and the parts of it that an archive has, in order. All else is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) len: u64,
    pub(crate) pieces: Vec<Piece>,
}

/// A part of a file that an archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// Why there is no map.
pub(super) enum BadMap {
    /// It makes no sense.
    Wrong,
    /// It cannot be read.
    Input(io::Error),
}

impl From<io::Error> for BadMap {
    fn from(error: io::Error) -> Self {
        Self::Input(error)
    }
}

impl Content {
    /// A file without holes.
    pub(super) fn whole(len: u64) -> Self {
        Self { len, pieces: vec![Piece { at: 0, len }] }
    }

    /// A file of `len` bytes of which an archive has `stored` bytes; `None` if its parts cannot be that.
    fn new(len: u64, mut pieces: Vec<Piece>, stored: u64) -> Option<Self> {
        let (mut end, mut sum) = (0, 0_u64);
        for piece in &pieces {
            if piece.at < end {
                return None;
            }
            end = piece.at.checked_add(piece.len)?;
            sum = sum.checked_add(piece.len)?;
        }
        pieces.retain(|piece| piece.len > 0);
        (end <= len && sum <= stored).then_some(Self { len, pieces })
    }
}

/// Keeps what a record says of a sparse file where its word may come again: version 0.0 has two for each part.
pub(super) fn gather(records: &mut Records, word: &[u8], value: &[u8]) -> bool {
    let is_part = matches!(word.strip_prefix(PREFIX), Some(b"offset" | b"numbytes"));
    if is_part {
        // The word of version 0.1: offsets and lengths by turns.
        let map = records.entry(self::word("map")).or_default();
        if !map.is_empty() {
            map.push(b',');
        }
        map.extend(value);
    }
    is_part
}

/// A word that says something about a sparse file.
pub(crate) fn word(name: &str) -> Vec<u8> {
    [PREFIX, name.as_bytes()].concat()
}

/// What a name is in records that speak of a sparse file, in which the usual one is made up.
pub(super) fn name(records: &mut Records) -> Option<Vec<u8>> {
    records.remove(&word("name"))
}

/// The map of a sparse file that extended headers speak of, whose data of `stored` bytes comes next; `None` for any other file.
/// A map before the data is read from it.
pub(super) fn of_records(records: &Records, stored: u64, data: &mut impl Read) -> Result<Option<Content>, BadMap> {
    if !records.keys().any(|word| word.starts_with(PREFIX)) {
        return Ok(None);
    }
    let text = |name: &str| {
        records.get(&word(name)).map(|value| std::str::from_utf8(value).map_err(|_| BadMap::Wrong)).transpose()
    };
    let number = |word: &str| -> Result<Option<u64>, BadMap> {
        text(word)?.map(|text| text.parse::<u64>().map_err(|_| BadMap::Wrong)).transpose()
    };
    let version = (number("major")?.unwrap_or(0), number("minor")?.unwrap_or(0));
    let len = match number("realsize")? {
        Some(len) => len,
        None => number("size")?.ok_or(BadMap::Wrong)?,
    };
    let (pieces, stored) = match version {
        (0, 0 | 1) => (pairs(text("map")?.unwrap_or_default())?, stored),
        (1, 0) => before_data(data, stored)?,
        _ => return Err(BadMap::Wrong),
    };
    Content::new(len, pieces, stored).map(Some).ok_or(BadMap::Wrong)
}

/// The parts in a list of offsets and lengths.
fn pairs(text: &str) -> Result<Vec<Piece>, BadMap> {
    let numbers: Result<Vec<u64>, _> = text.split(',').filter(|_| !text.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|_| BadMap::Wrong)?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    let pieces = pairs.iter().map(|[at, len]| Piece { at: *at, len: *len });
    if rest.is_empty() { Ok(pieces.collect()) } else { Err(BadMap::Wrong) }
}

/// The parts as lines of decimal numbers before the data, first how many there are; they fill whole blocks. With how many bytes follow.
fn before_data(data: &mut impl Read, stored: u64) -> Result<(Vec<Piece>, u64), BadMap> {
    let mut lines = Lines { data, block: Vec::new(), at: 0, read: 0 };
    let n_pieces = usize::try_from(lines.number()?).ok().filter(|n| *n <= MAX_PIECES).ok_or(BadMap::Wrong)?;
    let mut pieces = Vec::new();
    for _ in 0..n_pieces {
        pieces.push(Piece { at: lines.number()?, len: lines.number()? });
    }
    let stored = stored.checked_sub(lines.read).ok_or(BadMap::Wrong)?;
    Ok((pieces, stored))
}

/// Numbers that are read block by block.
struct Lines<'a, R> {
    data: &'a mut R,
    block: Vec<u8>,
    at: usize,
    /// Bytes of all blocks.
    read: u64,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> Result<u64, BadMap> {
        let mut digits = String::new();
        loop {
            match self.byte()? {
                b'\n' => return digits.parse().map_err(|_| BadMap::Wrong),
                digit if digit.is_ascii_digit() && digits.len() < MAX_DIGITS => digits.push(char::from(digit)),
                _ => return Err(BadMap::Wrong),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, BadMap> {
        if self.at == self.block.len() {
            self.block.clear();
            self.at = 0;
            if self.data.by_ref().take(BLOCK).read_to_end(&mut self.block)? as u64 != BLOCK {
                return Err(BadMap::Wrong);
            }
            self.read += BLOCK;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

/// The map in a header of GNU's old format, and in the blocks that follow it, which are read from `input`.
pub(super) fn of_header(header: &Header, stored: u64, input: &mut impl Read) -> Result<Content, BadMap> {
    let header = header.as_gnu().ok_or(BadMap::Wrong)?;
    let len = unsigned(&header.realsize).ok_or(BadMap::Wrong)?;
    let mut pieces = Vec::new();
    let mut goes_on = header.isextended[0] != 0;
    let mut take = |field: &tar::GnuSparseHeader| {
        // What is not used is empty.
        if field.numbytes[0] == 0 {
            return Ok(());
        }
        let piece = Piece {
            at: unsigned(&field.offset).ok_or(BadMap::Wrong)?,
            len: unsigned(&field.numbytes).ok_or(BadMap::Wrong)?,
        };
        pieces.push(piece);
        if pieces.len() <= MAX_PIECES { Ok(()) } else { Err(BadMap::Wrong) }
    };
    header.sparse.iter().try_for_each(&mut take)?;
    while goes_on {
        let mut block = tar::GnuExtSparseHeader::new();
        if read_full(input, block.as_mut_bytes())? as u64 != BLOCK {
            return Err(BadMap::Input(io::ErrorKind::UnexpectedEof.into()));
        }
        block.sparse().iter().try_for_each(&mut take)?;
        goes_on = block.isextended[0] != 0;
    }
    Content::new(len, pieces, stored).ok_or(BadMap::Wrong)
}
