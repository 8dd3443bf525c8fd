//! The stream in which `volume send` writes what a snapshot holds (docs/formats/stream.md): a header, then records in the order of
//! their offsets. Each record has a checksum that depends on all before it, so that none can be changed, left out or moved.
//!
//! Owns: what the bytes mean. Does not: read or write any.

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::stream::StreamHeader;

/// How a stream begins.
const MAGIC: [u8; 8] = *b"BULKHEAD";

/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;

/// Bytes before the header's text: the magic word, the version, and the length of the text.
pub const PREAMBLE_BYTES: usize = 16;

/// The longest text of a header.
const MAX_HEADER_BYTES: u32 = 64 << 10;

/// Bytes of a record before its data.
pub const HEAD_BYTES: usize = 24;

/// Bytes of a checksum: BLAKE3.
pub const CHECKSUM_BYTES: usize = blake3::OUT_LEN;

/// The most data that one record has.
pub const MAX_DATA_BYTES: u64 = 1 << 20;

/// What can be wrong with a stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It is something else.
    #[error("it is not the stream of a snapshot")]
    Unknown,
    /// It is of a version that this program does not know.
    #[error("it is a stream of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    /// Its header cannot be read.
    #[error("its header cannot be read: {0}")]
    Header(String),
    /// It was changed on its way.
    #[error("it was altered in transit: the checksum at {0} bytes is wrong")]
    Checksum(u64),
    /// A record says what no sender writes.
    #[error("it is damaged: a record {0}")]
    Record(&'static str),
}

/// What a record says of a range of bytes, which is whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// What it holds follows: `len` bytes, at most [`MAX_DATA_BYTES`].
    Data {
        /// Where.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// It holds zeroes.
    Zeroes {
        /// Where.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// That was all.
    End,
}

/// A header as bytes, with its checksum.
///
/// # Errors
/// [`StreamError::Header`] when it is too long.
pub fn encode_header(header: &StreamHeader) -> Result<Vec<u8>, StreamError> {
    let text = serde_json::to_vec(header).map_err(|error| StreamError::Header(error.to_string()))?;
    let len = u32::try_from(text.len()).ok().filter(|len| *len <= MAX_HEADER_BYTES);
    let len = len.ok_or_else(|| StreamError::Header("it is too long".to_owned()))?;
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &len.to_le_bytes(), &text].concat();
    let sum = blake3::hash(&bytes);
    bytes.extend(sum.as_bytes());
    Ok(bytes)
}

/// How many bytes of text follow a preamble.
///
/// # Errors
/// [`StreamError::Unknown`], [`StreamError::Version`]; [`StreamError::Header`] when there are too many.
pub fn header_len(preamble: &[u8; PREAMBLE_BYTES]) -> Result<usize, StreamError> {
    let number = |at: usize| u32::from_le_bytes([preamble[at], preamble[at + 1], preamble[at + 2], preamble[at + 3]]);
    if preamble[..8] != MAGIC {
        return Err(StreamError::Unknown);
    }
    match (number(8), number(12)) {
        (VERSION, len @ ..=MAX_HEADER_BYTES) => Ok(usize::try_from(len).unwrap_or(usize::MAX)),
        (VERSION, _) => Err(StreamError::Header("it is too long".to_owned())),
        (other, _) => Err(StreamError::Version(other)),
    }
}

/// Reads a header, and begins the checksums of the records that follow it.
///
/// # Errors
/// [`StreamError::Checksum`], [`StreamError::Header`].
pub fn decode_header(
    preamble: &[u8; PREAMBLE_BYTES],
    text: &[u8],
    sum: &[u8; CHECKSUM_BYTES],
) -> Result<(StreamHeader, Checksums), StreamError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(preamble).update(text);
    if hasher.finalize() != *sum {
        return Err(StreamError::Checksum(0));
    }
    let bad = |error: &dyn std::fmt::Display| StreamError::Header(error.to_string());
    let header: StreamHeader = serde_json::from_slice(text).map_err(|error| bad(&error))?;
    let (size, start) = (header.size_bytes.0, header.start_bytes.0);
    if size == 0 || !size.is_multiple_of(BLOCK_BYTES) || !start.is_multiple_of(BLOCK_BYTES) || start > size {
        return Err(bad(&"its sizes are not those of a volume"));
    }
    Ok((header, Checksums(*sum)))
}

/// A record as bytes, without its data and checksum.
#[must_use]
pub fn encode_head(record: Record) -> [u8; HEAD_BYTES] {
    let (kind, offset, len) = match record {
        Record::Data { offset, len } => (1_u64, offset, len),
        Record::Zeroes { offset, len } => (2, offset, len),
        Record::End => (3, 0, 0),
    };
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(&kind.to_le_bytes());
    head[8..16].copy_from_slice(&offset.to_le_bytes());
    head[16..].copy_from_slice(&len.to_le_bytes());
    head
}

/// Reads what a record is, which comes behind `at` in a volume of this size.
///
/// # Errors
/// [`StreamError::Record`].
pub fn decode_head(head: &[u8; HEAD_BYTES], at: u64, size: u64) -> Result<Record, StreamError> {
    let number = |n: usize| head[n..n + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (kind, offset, len) = (number(0), number(8), number(16));
    let bad = |what| Err(StreamError::Record(what));
    if kind == 3 {
        return if (offset, len) == (0, 0) { Ok(Record::End) } else { bad("at the end is not empty") };
    }
    if !offset.is_multiple_of(BLOCK_BYTES) || !len.is_multiple_of(BLOCK_BYTES) || len == 0 {
        return bad("is not whole blocks");
    }
    if offset < at {
        return bad("goes back");
    }
    if offset.checked_add(len).is_none_or(|end| end > size) {
        return bad("goes beyond the end of the volume");
    }
    match kind {
        1 if len > MAX_DATA_BYTES => bad("has too much data"),
        1 => Ok(Record::Data { offset, len }),
        2 => Ok(Record::Zeroes { offset, len }),
        _ => bad("is of an unknown kind"),
    }
}

/// The checksums of a stream's records, one after the other.
#[derive(Clone, Debug)]
pub struct Checksums([u8; CHECKSUM_BYTES]);

impl Checksums {
    /// Those of the records that follow an encoded header.
    #[must_use]
    pub fn after(header: &[u8]) -> Self {
        Self(header.last_chunk().copied().unwrap_or_default())
    }

    /// The checksum of the next record.
    pub fn next(&mut self, head: &[u8; HEAD_BYTES], data: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.0).update(head).update(data);
        self.0 = hasher.finalize().into();
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::model::FsKind;
    use bulkhead_core::units::Bytes;
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use uuid::Uuid;

    fn header() -> StreamHeader {
        StreamHeader {
            content: Uuid::from_u128(7),
            base: Some(Uuid::from_u128(6)),
            size_bytes: Bytes::mib(64),
            start_bytes: Bytes(8192),
            data_bytes: Bytes::mib(3),
            fs: FsKind::Ext4,
            snapshot: "file/monday".to_owned(),
        }
    }

    fn read(bytes: &[u8]) -> Result<(StreamHeader, Checksums), StreamError> {
        let preamble = bytes.first_chunk().unwrap();
        let len = header_len(preamble)?;
        let (text, sum) = bytes[PREAMBLE_BYTES..].split_at(len);
        decode_header(preamble, text, sum.first_chunk().unwrap())
    }

    #[test]
    fn version_1_is_read_as_it_was_written() {
        let bytes = encode_header(&header()).unwrap();
        assert_eq!(bytes[..12], *b"BULKHEAD\x01\0\0\0");
        let text = r#"{"content":"00000000-0000-0000-0000-000000000007","base":"00000000-0000-0000-0000-000000000006","size_bytes":67108864,"start_bytes":8192,"data_bytes":3145728,"fs":"ext4","snapshot":"file/monday"}"#;
        assert_eq!(String::from_utf8_lossy(&bytes[PREAMBLE_BYTES..bytes.len() - CHECKSUM_BYTES]), text);
        let (found, mut sums) = read(&bytes).unwrap();
        assert_eq!(found, header());
        let head = encode_head(Record::Data { offset: 4096, len: 8192 });
        assert_eq!(head, *b"\x01\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\0\0\0\0\0\0");
        let sum = sums.next(&head, &[7; 8192]);
        let expected = "bad0e121";
        assert_eq!(sum[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>(), expected);
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let good = encode_header(&header()).unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            read(&bytes).map(|_| ()).unwrap_err()
        };
        assert_eq!(with(0, b'b'), StreamError::Unknown);
        assert_eq!(with(8, 2), StreamError::Version(2));
        assert_eq!(with(15, 1), StreamError::Header("it is too long".to_owned()));
        assert_eq!(with(20, b'x'), StreamError::Checksum(0));
        assert_eq!(with(good.len() - 1, good[good.len() - 1] ^ 1), StreamError::Checksum(0));
        for wrong in [
            StreamHeader { size_bytes: Bytes(0), ..header() },
            StreamHeader { size_bytes: Bytes(4097), ..header() },
            StreamHeader { start_bytes: Bytes::mib(65), ..header() },
            StreamHeader { start_bytes: Bytes(1), ..header() },
        ] {
            let read = read(&encode_header(&wrong).unwrap()).map(|_| ());
            assert_eq!(read, Err(StreamError::Header("its sizes are not those of a volume".to_owned())), "{wrong:?}");
        }
        let endless = StreamHeader { snapshot: "x".repeat(1 << 16), ..header() };
        assert!(matches!(encode_header(&endless), Err(StreamError::Header(_))));
    }

    #[test]
    fn records_come_in_order_and_lie_within_the_volume() {
        let size = 10 << 20;
        let at = |record| decode_head(&encode_head(record), 8192, size);
        for good in [
            Record::Data { offset: 8192, len: MAX_DATA_BYTES },
            Record::Zeroes { offset: 8192, len: size - 8192 },
            Record::End,
        ] {
            assert_eq!(at(good), Ok(good));
        }
        for (bad, what) in [
            (Record::Data { offset: 4096, len: 4096 }, "goes back"),
            (Record::Data { offset: 8192, len: MAX_DATA_BYTES + 4096 }, "has too much data"),
            (Record::Data { offset: 8192, len: 0 }, "is not whole blocks"),
            (Record::Zeroes { offset: 8193, len: 4096 }, "is not whole blocks"),
            (Record::Zeroes { offset: 8192, len: size }, "goes beyond the end of the volume"),
            (Record::Zeroes { offset: u64::MAX - 4095, len: 8192 }, "goes beyond the end of the volume"),
        ] {
            assert_eq!(at(bad), Err(StreamError::Record(what)), "{bad:?}");
        }
        let mut head = encode_head(Record::End);
        head[9] = 1;
        assert_eq!(decode_head(&head, 0, size), Err(StreamError::Record("at the end is not empty")));
        let mut head = encode_head(Record::Zeroes { offset: 0, len: 4096 });
        head[0] = 9;
        assert_eq!(decode_head(&head, 0, size), Err(StreamError::Record("is of an unknown kind")));
    }

    proptest! {
        #[test]
        fn no_bytes_are_read_as_what_is_not_written_as_them(head in any::<[u8; HEAD_BYTES]>(), small in any::<[u8; 3]>()) {
            // Random numbers are hardly ever in range: small ones are tried as well.
            let mut near = [0; HEAD_BYTES];
            (near[0], near[9], near[17]) = (small[0] % 5, small[1] & 0xf0, small[2] & 0xf0);
            for head in [head, near] {
                if let Ok(record) = decode_head(&head, 0, 1 << 20) {
                    prop_assert_eq!(encode_head(record), head);
                }
            }
        }
    }
}
