//! Decompression of gzip and zstd streams, detected by their first bytes. The input is untrusted; memory is bounded.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::{ArchiveError, ImportError, reading};

/// Unsupported formats, which are recognised for the error.
const UNSUPPORTED: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"), (b"LZIP", "lzip")];

/// Limit of the window of a zstd stream: `zstd --ultra -22` needs as much.
const MAX_WINDOW_BYTES: u64 = 128 << 20;

/// Reads a stream, and decompresses it if it is compressed.
///
/// # Errors
/// [`ArchiveError::Compression`]; [`ImportError::Input`].
pub(crate) fn open<'a>(input: impl Read + 'a, name: &str) -> Result<Box<dyn Read + 'a>, ImportError> {
    let mut input = BufReader::with_capacity(1 << 16, input);
    // A read from a pipe can be short, but hardly shorter than a magic number.
    let start = input.fill_buf().map_err(|error| reading(name, error))?;
    if let Some((_, compression)) = UNSUPPORTED.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Err(ImportError::Archive { archive: name.to_owned(), reason: ArchiveError::Compression(compression) });
    }
    Ok(match start {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(input)),
        // A frame, or a skippable frame.
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Zstd::new(input)),
        _ => Box::new(input),
    })
}

/// A zstd stream: a sequence of frames, some of which are skippable.
struct Zstd<R> {
    decoder: FrameDecoder,
    input: R,
    in_frame: bool,
}

impl<R: BufRead> Zstd<R> {
    fn new(input: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(MAX_WINDOW_BYTES);
        Self { decoder, input, in_frame: false }
    }

    /// Starts the next frame; `false` at the end.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.input.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.input) {
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.input.by_ref().take(length.into()), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                started => return started.map(|()| true).map_err(damaged),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.in_frame {
                self.in_frame = self.next_frame()?;
                if !self.in_frame {
                    return Ok(0);
                }
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 {
                return Ok(read);
            }
            if self.decoder.is_finished() {
                let stated = self.decoder.get_checksum_from_data();
                if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a checksum of zstd is wrong"));
                }
                self.in_frame = false;
            } else {
                self.decoder.decode_blocks(&mut self.input, BlockDecodingStrategy::UptoBlocks(1)).map_err(damaged)?;
            }
        }
    }
}

fn damaged(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write as _;

    fn all(bytes: &[u8]) -> Result<Vec<u8>, ImportError> {
        let mut all = Vec::new();
        let read = open(bytes, "it")?.read_to_end(&mut all);
        read.map(|_| all).map_err(|error| reading("it", error))
    }

    fn reason(bytes: &[u8]) -> ArchiveError {
        match all(bytes) {
            Err(ImportError::Archive { reason, .. }) => reason,
            other => panic!("{:?}", other.map(|bytes| bytes.len())),
        }
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn each_compression_is_detected_and_read_to_its_end() {
        let text: Vec<u8> = (0..200_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let skipped = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9][..], &zstd, &zstd].concat();
        let twice = [&text[..], &text].concat();
        assert!(all(&text).unwrap() == text && all(&[]).unwrap().is_empty());
        assert!(all(&gzip(&text)).unwrap() == text && all(&zstd).unwrap() == text);
        assert!(all(&skipped).unwrap() == twice && all(&[gzip(&text), gzip(&text)].concat()).unwrap() == twice);
    }

    #[test]
    fn truncation_and_damage_are_reported() {
        let text = vec![7; 300_000];
        let zstd = compress_to_vec(&text[..], CompressionLevel::Fastest);
        for whole in [gzip(&text), zstd] {
            assert_eq!(reason(&whole[..whole.len() - 1]), ArchiveError::CutOff);
            assert_eq!(reason(&whole[..20]), ArchiveError::CutOff);
            let mut flipped = whole.clone();
            let at = flipped.len() - 2;
            flipped[at] ^= 1;
            assert!(matches!(reason(&flipped), ArchiveError::Damaged(_)));
        }
        assert_eq!(reason(b"\xfd7zXZ\0more"), ArchiveError::Compression("xz"));
    }
}
