//! Writes the content of a snapshot as a stream, and a stream into a staging file (docs/formats/stream.md).
//!
//! Both bypass the page cache, so that they evict nothing of tenants, and need no memory beyond a buffer and the map of layers.
//! Owns: which blocks are sent, and the bytes of the stream. Does not: know volumes, or do what precedes and follows a transfer (the
//! daemon does).

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bulkhead_core::base::is_base;
use bulkhead_core::cow::{BLOCK_BYTES, BlockMap, Source};
use bulkhead_core::error::chain;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_formats::layer::{self, LayerError};
use bulkhead_formats::staging::{StagingFile, StagingState, open_direct};
use bulkhead_formats::stream::{
    CHECKSUM_BYTES, ChecksumChain, HEAD_BYTES, PREAMBLE_BYTES, Record, StreamError, decode_head, decode_header,
    encode_head, encode_header, header_len,
};
use bulkhead_sys::block;
use bulkhead_sys::buffer::{Buffer, CHUNK, to_usize};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::thin::{self, Comparison, ThinError};
use rustix::fs::{Mode, OFlags, open};
use uuid::Uuid;

use crate::image::ImageError;
use crate::layers::Layers;

/// Received data between checkpoints, which make it durable and record the progress.
const CHECKPOINT_BYTES: u64 = 64 << 20;

/// A block of zeroes.
pub(crate) const ZEROES: [u8; 4096] = [0; 4096];

const _: () = assert!(ZEROES.len() as u64 == BLOCK_BYTES && CHUNK == bulkhead_formats::stream::MAX_DATA_BYTES);

/// Why a snapshot cannot be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The layers of the snapshot cannot be read.
    #[error(transparent)]
    Layers(#[from] ImageError),
    /// The blocks of a snapshot on a thin pool cannot be determined.
    #[error(transparent)]
    Thin(#[from] ThinError),
    /// The snapshot could change.
    #[error("{} is not read-only, and may change while it is sent", .0.display())]
    Writable(PathBuf),
    /// The staging file cannot be used.
    #[error(transparent)]
    Staging(#[from] LayerError),
    /// The stream is damaged.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The stream ends before its end record.
    #[error("the stream is truncated")]
    Truncated,
    /// It claims to be an imported base. Bases are built on each host, and the claim could not be verified.
    #[error("the stream claims to be the imported base {0}; bases are never sent")]
    Base(Uuid),
    /// Bytes follow the end of the stream.
    #[error("there is data after the end of the stream")]
    TooLong,
    /// Reading or writing failed.
    #[error("cannot {operation}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

pub(crate) fn failed(operation: &'static str) -> impl Fn(io::Error) -> TransferError {
    move |source| TransferError::Io { operation, source }
}

/// A snapshot that is ready to be sent.
#[derive(Debug)]
pub struct Sender {
    header: StreamHeader,
    content: Layers,
    /// The blocks of the layers by which it differs from its base.
    changed: BlockMap,
    buffer: Buffer,
}

impl Sender {
    /// Opens the layers of a snapshot, newest first, and those among them whose blocks are sent. Sets the header's `data_bytes` to the
    /// upper bound of the data from `start_bytes` on.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn open(header: StreamHeader, layers: Vec<PathBuf>, changed: Vec<PathBuf>) -> Result<Self, TransferError> {
        let open = |path: &Path| Ok(open_direct(path, OFlags::RDONLY | OFlags::NOATIME)?);
        let content = Layers::open_files(layers.into_iter().rev().collect(), open)?;
        let mut changed_map = BlockMap::new(header.size_bytes);
        for path in changed {
            let layer = Layers::open_files(vec![path], open)?;
            for (run, source) in layer.map.layer_runs(0..layer.map.end()) {
                if source != Source::Hole {
                    changed_map.set_layer(run, 0);
                }
            }
        }
        Ok(Self::of(header, content, changed_map))
    }

    /// Opens a snapshot on a thin pool, to be sent as a whole or as its difference from another one, its base. Neither may be writable.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn open_thin(
        roots: &Roots,
        header: StreamHeader,
        device: &Path,
        base: Option<&Path>,
    ) -> Result<Self, TransferError> {
        // An open device cannot be removed, so that its name cannot be reused.
        let (file, _) = open_read_only(roots, device)?;
        let base = base.map(|base| open_read_only(roots, base).map(|(file, size)| (base, file, size))).transpose()?;
        let common =
            thin::compare(roots, base.as_ref().map_or(device, |(base, ..)| base), device, thin::COMPARE_LIMIT)?;
        Ok(Self::of_thin(header, device, file, &common, base.map(|(.., size)| size)))
    }

    /// `common` compares the device with its base, which has this size; or, without a base, with itself.
    fn of_thin(header: StreamHeader, device: &Path, file: File, common: &Comparison, base: Option<Bytes>) -> Self {
        let Comparison { same, own, base_only } = common;
        let mut mapped = BlockMap::new(header.size_bytes);
        same.iter().chain(own).for_each(|range| mapped.set_layer(range.clone(), 0));
        let mut changed = BlockMap::new(header.size_bytes);
        own.iter().chain(base_only).for_each(|range| changed.set_layer(range.clone(), 0));
        // The receiver may have blocks beyond the end of the base, for example if the base was shrunk: send everything there.
        changed.set_layer(base.map_or(0, |size| size.0)..header.size_bytes.0, 0);
        Self::of(header, Layers::of_device(device, file, mapped), changed)
    }

    fn of(header: StreamHeader, content: Layers, changed: BlockMap) -> Self {
        let mut sender = Self { header, content, changed, buffer: Buffer::new() };
        let range = sender.header.start_bytes.0..sender.header.size_bytes.0;
        let data = sender.runs(range).into_iter().filter(|(_, source)| matches!(source, Source::Layer(_)));
        sender.header.data_bytes = Bytes(data.map(|(run, _)| run.end - run.start).sum());
        sender
    }

    /// The header that is sent.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Writes the stream; `progress` is called with the data sent so far, of `data_bytes`.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn send(&mut self, out: &mut impl Write, mut progress: impl FnMut(Bytes)) -> Result<(), TransferError> {
        let header = encode_header(&self.header)?;
        out.write_all(&header).map_err(failed("write the stream"))?;
        let mut writer = Writer { sums: ChecksumChain::after(&header), out, zeroes: 0..0 };
        let is_whole = self.header.base.is_none();
        let size = self.header.size_bytes.0;
        let mut sent = 0;
        let mut at = self.header.start_bytes.0;
        while at < size {
            let part = at..size.min((at / CHUNK + 1) * CHUNK);
            at = part.end;
            for (run, source) in self.runs(part) {
                if let Source::Layer(layer) = source {
                    let bytes = self.buffer.first(to_usize(run.end - run.start));
                    let file = self.content.file(layer);
                    file.read_exact_at(bytes, run.start).map_err(failed("read the snapshot"))?;
                    writer.blocks(run.start, bytes, is_whole)?;
                    sent += run.end - run.start;
                } else if !is_whole {
                    writer.zeroes(run)?;
                }
            }
            progress(Bytes(sent));
        }
        writer.record(Record::End, &[])?;
        writer.out.flush().map_err(failed("write the stream"))
    }

    /// The runs of a range that are sent, with the layer that has them or as zeroes.
    fn runs(&self, range: Range<u64>) -> Vec<(Range<u64>, Source)> {
        let changed = self.changed.runs(range).filter(|(_, source)| matches!(source, Source::Layer(_)));
        changed.flat_map(|(run, _)| self.content.map.layer_runs(run)).collect()
    }
}

/// Opens a read-only device for direct I/O; returns its size, too.
fn open_read_only(roots: &Roots, device: &Path) -> Result<(File, Bytes), TransferError> {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOATIME;
    let file = open(device, flags, Mode::empty()).map_err(|errno| failed("open the snapshot")(errno.into()))?;
    let failed = |source| ThinError::Device { device: device.to_owned(), source: Box::new(source) };
    let found = block::by_path(roots, device).map_err(failed)?;
    if !found.read_only {
        return Err(TransferError::Writable(device.to_owned()));
    }
    Ok((File::from(file), found.size))
}

struct Writer<'a, W> {
    out: &'a mut W,
    sums: ChecksumChain,
    /// Zeroes that are not written yet, merged into one range.
    zeroes: Range<u64>,
}

impl<W: Write> Writer<'_, W> {
    /// Writes blocks. Those of zeroes are omitted, or written as a record of zeroes.
    fn blocks(&mut self, start: u64, bytes: &[u8], omit_zeroes: bool) -> Result<(), TransferError> {
        let mut at = start;
        for run in runs_of_blocks(bytes) {
            let range = at..at + run.len() as u64;
            at = range.end;
            if run[..ZEROES.len()] != ZEROES {
                self.record(Record::Data { offset: range.start, len: run.len() as u64 }, run)?;
            } else if !omit_zeroes {
                self.zeroes(range)?;
            }
        }
        Ok(())
    }

    fn zeroes(&mut self, range: Range<u64>) -> Result<(), TransferError> {
        if self.zeroes.end == range.start {
            self.zeroes.end = range.end;
            return Ok(());
        }
        self.end_zeroes()?;
        self.zeroes = range;
        Ok(())
    }

    fn end_zeroes(&mut self) -> Result<(), TransferError> {
        let Range { start, end } = std::mem::take(&mut self.zeroes);
        if start == end {
            return Ok(());
        }
        self.put(Record::Zeroes { offset: start, len: end - start }, &[])
    }

    fn record(&mut self, record: Record, data: &[u8]) -> Result<(), TransferError> {
        self.end_zeroes()?;
        self.put(record, data)
    }

    fn put(&mut self, record: Record, data: &[u8]) -> Result<(), TransferError> {
        let head = encode_head(record);
        let sum = self.sums.next(&head, data);
        [&head[..], data, &sum].iter().try_for_each(|part| self.out.write_all(part)).map_err(failed("write the stream"))
    }
}

/// Splits whole blocks into runs of zeroes and runs of data.
pub(crate) fn runs_of_blocks(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let first = rest.first_chunk::<{ ZEROES.len() }>()?;
        let is_zero = *first == ZEROES;
        let blocks = rest.chunks_exact(ZEROES.len()).take_while(|block| (**block == ZEROES[..]) == is_zero).count();
        let (run, after) = rest.split_at(blocks * ZEROES.len());
        rest = after;
        Some(run)
    })
}

/// A staging file locked for receiving.
#[derive(Debug)]
pub struct Target {
    staging: StagingFile,
    state: StagingState,
    layers: Layers,
}

impl Target {
    /// Opens the staging file that was created for a stream with this header.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn open(path: &Path, header: &StreamHeader) -> Result<Self, TransferError> {
        let StreamHeader { content, base, size_bytes, start_bytes, .. } = *header;
        let (staging, state) = StagingFile::resume(path, content, base, size_bytes, start_bytes)?;
        let chain = layer::chain(path)?.unwrap_or_default();
        let open = |path: &Path| Ok(open_direct(path, OFlags::RDONLY | OFlags::NOATIME)?);
        let layers = Layers::open_files(chain.into_iter().rev().collect(), open)?;
        Ok(Self { staging, state, layers })
    }
}

/// Reads the header of a stream, and nothing after it. Returns its bytes, too.
///
/// # Errors
/// [`TransferError`].
pub fn read_header(input: &mut impl Read) -> Result<(StreamHeader, Vec<u8>), TransferError> {
    let (header, _, bytes) = header_of(input)?;
    Ok((header, bytes))
}

fn header_of(input: &mut impl Read) -> Result<(StreamHeader, ChecksumChain, Vec<u8>), TransferError> {
    let mut preamble = [0; PREAMBLE_BYTES];
    read(input, &mut preamble)?;
    let mut text = vec![0; header_len(&preamble)?];
    read(input, &mut text)?;
    let mut sum = [0; CHECKSUM_BYTES];
    read(input, &mut sum)?;
    let (header, sums) = decode_header(&preamble, &text, &sum)?;
    if is_base(header.content) {
        return Err(TransferError::Base(header.content));
    }
    Ok((header, sums, [&preamble[..], &text, &sum].concat()))
}

/// A stream that is read.
#[derive(Debug)]
pub struct Receiver<R> {
    input: R,
    header: StreamHeader,
    sums: ChecksumChain,
}

impl<R: Read> Receiver<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn open(mut input: R) -> Result<Self, TransferError> {
        let (header, sums, _) = header_of(&mut input)?;
        Ok(Self { input, header, sums })
    }

    /// Its header.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Reads the rest of the stream into a staging file that was opened for its header; `progress` is called with the data received so
    /// far. After an error the verified part is kept.
    ///
    /// # Errors
    /// [`TransferError`].
    pub fn receive(&mut self, target: &Target, progress: impl FnMut(Bytes)) -> Result<(), TransferError> {
        let StreamHeader { content, start_bytes, .. } = self.header;
        let Target { staging, state, layers } = target;
        // This much was verified and is durable; it is not written again.
        let have = state.received.map_or(u64::MAX, |received| received.0);
        let mut at = start_bytes.0;
        match self.read_records(staging, layers, have, &mut at, progress) {
            Ok(()) => Ok(staging.checkpoint(content, None)?),
            // After a failed write or sync only the last checkpoint is valid.
            Err(error @ TransferError::Staging(_)) => Err(error),
            Err(error) => {
                if at > have
                    && let Err(failed) = staging.checkpoint(content, Some(Bytes(at)))
                {
                    tracing::warn!(why = chain(&failed), "cannot record the progress of the transfer");
                }
                Err(error)
            }
        }
    }

    fn read_records(
        &mut self,
        staging: &StagingFile,
        layers: &Layers,
        have: u64,
        at: &mut u64,
        mut progress: impl FnMut(Bytes),
    ) -> Result<(), TransferError> {
        let (mut buffer, mut durable, mut sum) = (Buffer::new(), have, 0);
        loop {
            let mut head = [0; HEAD_BYTES];
            read(&mut self.input, &mut head)?;
            match decode_head(&head, *at, self.header.size_bytes.0)? {
                Record::Data { offset, len } => {
                    let bytes = buffer.first(to_usize(len));
                    read(&mut self.input, bytes)?;
                    self.verify(&head, bytes, offset)?;
                    let known = have.saturating_sub(offset).min(len);
                    staging.write(&bytes[to_usize(known)..], offset + known)?;
                    *at = offset + len;
                    sum += len;
                }
                Record::Zeroes { offset, len } => {
                    self.verify(&head, &[], offset)?;
                    write_zeroes(staging, layers, offset.max(have)..offset + len, &mut buffer)?;
                    *at = offset + len;
                }
                Record::End => {
                    self.verify(&head, &[], *at)?;
                    return match self.input.read(&mut [0]) {
                        Ok(0) => Ok(()),
                        Ok(_) => Err(TransferError::TooLong),
                        Err(error) => Err(failed("read the stream")(error)),
                    };
                }
            }
            progress(Bytes(sum));
            if *at >= durable.saturating_add(CHECKPOINT_BYTES) {
                staging.checkpoint(self.header.content, Some(Bytes(*at)))?;
                durable = *at;
            }
        }
    }

    fn verify(&mut self, head: &[u8; HEAD_BYTES], data: &[u8], offset: u64) -> Result<(), TransferError> {
        let mut sum = [0; CHECKSUM_BYTES];
        read(&mut self.input, &mut sum)?;
        if self.sums.next(head, data) != sum {
            return Err(StreamError::Checksum(offset).into());
        }
        Ok(())
    }
}

/// Writes zeroes over blocks of layers; elsewhere a hole reads as zeroes already.
fn write_zeroes(
    staging: &StagingFile,
    layers: &Layers,
    range: Range<u64>,
    buffer: &mut Buffer,
) -> Result<(), TransferError> {
    if range.is_empty() {
        return Ok(());
    }
    for (run, _) in layers.map.runs(range).filter(|(_, source)| matches!(source, Source::Layer(_))) {
        let mut at = run.start;
        while at < run.end {
            let bytes = buffer.first(to_usize((run.end - at).min(CHUNK)));
            bytes.fill(0);
            staging.write(bytes, at)?;
            at += bytes.len() as u64;
        }
    }
    Ok(())
}

fn read(input: &mut impl Read, bytes: &mut [u8]) -> Result<(), TransferError> {
    input.read_exact(bytes).map_err(|source| match source.kind() {
        io::ErrorKind::UnexpectedEof => TransferError::Truncated,
        _ => TransferError::Io { operation: "read the stream", source },
    })
}

#[cfg(test)]
mod tests;
