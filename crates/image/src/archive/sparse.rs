//! Sparse files of GNU tar, stored without their holes, with a map of their segments. The old GNU format has the map in headers, versions 0.0
//! and 0.1 in extended headers, and version 1.0 before the data.

use std::io::{self, Read};

use tar::Header;

use super::number::unsigned;
use super::records::Records;
use super::{BLOCK, read_full};

#[cfg(test)]
mod tests;

/// Limit of segments per file: 16 MiB of memory.
pub(crate) const MAX_SEGMENTS: usize = 1 << 20;

/// Limit of digits of a number in a map before the data.
const MAX_DIGITS: usize = 20;

/// Prefix of keywords for sparse files.
const PREFIX: &[u8] = b"GNU.sparse.";

/// The length of a file, and its segments with data, in order. Everything else is a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) len: u64,
    pub(crate) segments: Vec<Segment>,
}

/// A segment of a file with data in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Why a map cannot be read.
pub(super) enum MapError {
    /// It is malformed.
    Invalid,
    /// Reading the input failed.
    Input(io::Error),
}

impl From<io::Error> for MapError {
    fn from(error: io::Error) -> Self {
        Self::Input(error)
    }
}

impl Content {
    /// A file without holes.
    pub(super) fn whole(len: u64) -> Self {
        Self { len, segments: vec![Segment { offset: 0, len }] }
    }

    /// A file of `len` bytes, of which the archive contains `stored` bytes; `None` if the segments contradict that.
    fn new(len: u64, mut segments: Vec<Segment>, stored: u64) -> Option<Self> {
        let (mut end, mut sum) = (0, 0_u64);
        for segment in &segments {
            if segment.offset < end {
                return None;
            }
            end = segment.offset.checked_add(segment.len)?;
            sum = sum.checked_add(segment.len)?;
        }
        segments.retain(|segment| segment.len > 0);
        (end <= len && sum <= stored).then_some(Self { len, segments })
    }
}

/// Adds a record to the map if it is one of version 0.0, which has two records for each segment.
pub(super) fn add_to_map(records: &mut Records, keyword: &[u8], value: &[u8]) -> bool {
    let is_part = matches!(keyword.strip_prefix(PREFIX), Some(b"offset" | b"numbytes"));
    if is_part {
        // As version 0.1 writes it: alternating offsets and lengths.
        let map = records.entry(self::keyword("map")).or_default();
        if !map.is_empty() {
            map.push(b',');
        }
        map.extend(value);
    }
    is_part
}

/// A keyword for sparse files.
pub(crate) fn keyword(name: &str) -> Vec<u8> {
    [PREFIX, name.as_bytes()].concat()
}

/// Removes and returns the name of a sparse file: the name in its header is made up.
pub(super) fn take_name(records: &mut Records) -> Option<Vec<u8>> {
    records.remove(&keyword("name"))
}

/// The map of a sparse file according to its extended headers; `None` for any other file. `stored` bytes of data follow; a map before
/// the data is read from it.
pub(super) fn from_records(records: &Records, stored: u64, data: &mut impl Read) -> Result<Option<Content>, MapError> {
    if !records.keys().any(|keyword| keyword.starts_with(PREFIX)) {
        return Ok(None);
    }
    let text = |name: &str| {
        records.get(&keyword(name)).map(|value| std::str::from_utf8(value).map_err(|_| MapError::Invalid)).transpose()
    };
    let number = |keyword: &str| -> Result<Option<u64>, MapError> {
        text(keyword)?.map(|text| text.parse::<u64>().map_err(|_| MapError::Invalid)).transpose()
    };
    let version = (number("major")?.unwrap_or(0), number("minor")?.unwrap_or(0));
    let len = match number("realsize")? {
        Some(len) => len,
        None => number("size")?.ok_or(MapError::Invalid)?,
    };
    let (segments, stored) = match version {
        (0, 0 | 1) => (parse_pairs(text("map")?.unwrap_or_default())?, stored),
        (1, 0) => read_leading_map(data, stored)?,
        _ => return Err(MapError::Invalid),
    };
    Content::new(len, segments, stored).map(Some).ok_or(MapError::Invalid)
}

/// Parses a list of offsets and lengths.
fn parse_pairs(text: &str) -> Result<Vec<Segment>, MapError> {
    let numbers: Result<Vec<u64>, _> = text.split(',').filter(|_| !text.is_empty()).map(str::parse).collect();
    let numbers = numbers.map_err(|_| MapError::Invalid)?;
    let (pairs, rest) = numbers.as_chunks::<2>();
    let segments = pairs.iter().map(|[at, len]| Segment { offset: *at, len: *len });
    if rest.is_empty() { Ok(segments.collect()) } else { Err(MapError::Invalid) }
}

/// Reads a map before the data: lines of decimal numbers, starting with the number of segments, padded to whole blocks. Also returns the
/// number of bytes that follow.
fn read_leading_map(data: &mut impl Read, stored: u64) -> Result<(Vec<Segment>, u64), MapError> {
    let mut lines = Lines { data, block: Vec::new(), at: 0, read: 0 };
    let n_segments = usize::try_from(lines.number()?).ok().filter(|n| *n <= MAX_SEGMENTS).ok_or(MapError::Invalid)?;
    let mut segments = Vec::new();
    for _ in 0..n_segments {
        segments.push(Segment { offset: lines.number()?, len: lines.number()? });
    }
    let stored = stored.checked_sub(lines.read).ok_or(MapError::Invalid)?;
    Ok((segments, stored))
}

/// Reads numbers, one per line, in whole blocks.
struct Lines<'a, R> {
    data: &'a mut R,
    block: Vec<u8>,
    at: usize,
    /// Bytes read, in whole blocks.
    read: u64,
}

impl<R: Read> Lines<'_, R> {
    fn number(&mut self) -> Result<u64, MapError> {
        let mut digits = String::new();
        loop {
            match self.byte()? {
                b'\n' => return digits.parse().map_err(|_| MapError::Invalid),
                digit if digit.is_ascii_digit() && digits.len() < MAX_DIGITS => digits.push(char::from(digit)),
                _ => return Err(MapError::Invalid),
            }
        }
    }

    fn byte(&mut self) -> Result<u8, MapError> {
        if self.at == self.block.len() {
            self.block.clear();
            self.at = 0;
            if self.data.by_ref().take(BLOCK).read_to_end(&mut self.block)? as u64 != BLOCK {
                return Err(MapError::Invalid);
            }
            self.read += BLOCK;
        }
        self.at += 1;
        Ok(self.block[self.at - 1])
    }
}

/// The map in a header of the old GNU format, and in the blocks that follow it in `input`.
pub(super) fn from_header(header: &Header, stored: u64, input: &mut impl Read) -> Result<Content, MapError> {
    let header = header.as_gnu().ok_or(MapError::Invalid)?;
    let len = unsigned(&header.realsize).ok_or(MapError::Invalid)?;
    let mut segments = Vec::new();
    let mut continues = header.isextended[0] != 0;
    let mut take = |field: &tar::GnuSparseHeader| {
        // Unused slots are empty.
        if field.numbytes[0] == 0 {
            return Ok(());
        }
        let segment = Segment {
            offset: unsigned(&field.offset).ok_or(MapError::Invalid)?,
            len: unsigned(&field.numbytes).ok_or(MapError::Invalid)?,
        };
        segments.push(segment);
        if segments.len() <= MAX_SEGMENTS { Ok(()) } else { Err(MapError::Invalid) }
    };
    header.sparse.iter().try_for_each(&mut take)?;
    while continues {
        let mut block = tar::GnuExtSparseHeader::new();
        if read_full(input, block.as_mut_bytes())? as u64 != BLOCK {
            return Err(MapError::Input(io::ErrorKind::UnexpectedEof.into()));
        }
        block.sparse().iter().try_for_each(&mut take)?;
        continues = block.isextended[0] != 0;
    }
    Content::new(len, segments, stored).ok_or(MapError::Invalid)
}
