//! Reads of a volume's layers: through the host's page cache, from a peer's page cache, or from the disk; and their counts.
//!
//! A server asks the peer reader ([`crate::peers`]) for blocks that another volume of its sharing domain was the last to read, and
//! waits only for a short time. If that fails, it reads the blocks from the layer.

mod pauses;

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::chain;
use bulkhead_core::heat::{HeatSource, ReadCounts};
use bulkhead_core::serve::ServeSpec;
use bulkhead_formats::peers::{
    Answer, FOUND_BYTES, Found, Hello, MAX_BLOCKS, MAX_PACKET_BYTES, MEMORY_BYTES, Read, access,
};
use bulkhead_formats::read_counts;
use bulkhead_formats::servers::{self, PEERS_SOCKET};
use bulkhead_sys::buffer::to_usize;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::shared::Shared as Memory;
use bulkhead_sys::ublk::queue::{Limit, Request};
use bulkhead_sys::{file, packet, process};
use rustix::fs::{FlockOperation, OFlags, flock};
use uuid::Uuid;

use crate::image::ImageError;
use pauses::Pauses;

/// Time limit of a read from a peer. It is long enough to wait for a clone that reads the same blocks at the same time, from a busy
/// hard disk. The next read from a peer that hangs fails at once.
static PEER_LIMIT: Limit = Limit::milliseconds(500);

/// For how long no peer is asked after the peer reader did not answer.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Minimum interval between writes of the counts.
const COUNTS_INTERVAL: Duration = Duration::from_secs(1);

/// Idle connections kept for each layer: enough for the usual number of concurrent reads.
const MAX_IDLE: usize = 8;

/// A layer with an index, by which its blocks can be found in files of peers.
#[derive(Debug)]
struct IndexedLayer {
    content: Uuid,
    index: PathBuf,
    /// The last reader of each block ([`access`]).
    table: File,
}

/// A connection to the peer reader, for one read at a time. A connection whose read timed out is never used again, because a late
/// answer may still be written to its memory.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    memory: Memory,
}

/// Reads the layers of a volume from peers, and counts all reads.
#[derive(Debug)]
pub(crate) struct LayerReader {
    /// The number of its device, which identifies it in access tables.
    id: u32,
    domain: String,
    /// The layers, oldest first; those without an index are not read from peers.
    layers: Vec<(Uuid, Option<IndexedLayer>)>,
    /// Idle connections with the numbers of their layers.
    idle: Mutex<Vec<(u8, Connection)>>,
    pauses: Mutex<Pauses>,
    opened: Instant,
    /// When peers may be asked again, in milliseconds after `opened`.
    not_before: AtomicU64,
    counts: Counts,
}

impl LayerReader {
    /// For the volume of device `id` on these layers, oldest first.
    pub(crate) fn open(roots: &Roots, spec: &ServeSpec, id: u32, layers: &[PathBuf]) -> Result<Self, ImageError> {
        let indexed = |path: &PathBuf| {
            let content = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or_default();
            let index = path.with_extension(bulkhead_core::backend::INDEX_SUFFIX);
            if !spec.read_from.uses_peers() || !index.exists() {
                return Ok((content, None));
            }
            let table = servers::dir(roots).join(access::file_name(content, &spec.domain));
            let failed = |source| ImageError::Io { operation: "open the access table of", image: path.clone(), source };
            let blocks = path.metadata().map_err(failed)?.len() / BLOCK_BYTES;
            let table = open_table(&table, blocks * access::ENTRY_BYTES as u64).map_err(failed)?;
            Ok((content, Some(IndexedLayer { content, index, table })))
        };
        let layers: Vec<(Uuid, Option<IndexedLayer>)> =
            layers.iter().map(indexed).collect::<Result<_, ImageError>>()?;
        if spec.read_from.uses_peers() && layers.iter().all(|(_, indexed)| indexed.is_none()) {
            tracing::warn!(
                how = %spec.read_from,
                "no layer has an index, which only imported images have: nothing is read from peers"
            );
        }
        let counts = read_counts::file_path(roots, spec.volume);
        let failed = |source| ImageError::Io {
            operation: "make the directory of the read counts of",
            image: spec.image.clone(),
            source,
        };
        counts.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        Ok(Self {
            id,
            domain: spec.domain.clone(),
            layers,
            idle: Mutex::default(),
            pauses: Mutex::default(),
            opened: Instant::now(),
            not_before: AtomicU64::new(0),
            counts: Counts::load(roots, spec.volume),
        })
    }

    /// Reads blocks of a layer that peers have cached, into the buffer from `at` on; returns the ranges that are missing.
    pub(crate) async fn read(&self, request: &Request<'_>, at: usize, run: Range<u64>, layer: u8) -> Vec<Range<u64>> {
        let indexed = self.layers.get(usize::from(layer)).and_then(|(_, indexed)| indexed.as_ref());
        let count = (run.end - run.start) / BLOCK_BYTES;
        let Some(indexed) = indexed.filter(|_| count <= u64::from(MAX_BLOCKS)) else { return vec![run] };
        let mut missing = Vec::new();
        let mut may_ask = self.may_ask();
        for (blocks, peer) in self.swap_last_readers(indexed, run.start / BLOCK_BYTES, count) {
            let bytes = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
            let place = at + to_usize(bytes.start - run.start);
            let hits = match peer.filter(|peer| may_ask && self.pauses().should_ask(*peer)) {
                None => 0,
                Some(peer) => {
                    let count = u32::try_from(blocks.end - blocks.start).unwrap_or(MAX_BLOCKS);
                    let read = Read { block: blocks.start, count, peer };
                    self.ask(request, place, layer, indexed, read).await.unwrap_or_else(|error| {
                        may_ask = false;
                        self.suspend(&error);
                        0
                    })
                }
            };
            for (n, block) in blocks.enumerate() {
                if hits & 1 << n == 0 {
                    push_range(&mut missing, block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
                }
            }
        }
        missing
    }

    /// Counts a read of the layer itself.
    pub(crate) fn count_layer(&self, layer: u8, cached: bool, bytes: u64) {
        let content = self.layers.get(usize::from(layer)).map_or(Uuid::nil(), |(content, _)| *content);
        self.counts.count(if cached { HeatSource::Cache(content) } else { HeatSource::Disk(content) }, bytes);
    }

    /// Writes the counts whenever they have changed, for the lifetime of this process.
    pub(crate) fn write_counts(&self, path: &Path) {
        self.counts.write_on_change(path);
    }

    /// Makes this volume the last reader of blocks, and returns the previous one, run by run.
    fn swap_last_readers(&self, layer: &IndexedLayer, first: u64, count: u64) -> Vec<(Range<u64>, Option<u32>)> {
        let place = first * access::ENTRY_BYTES as u64;
        let mut entries = vec![0; to_usize(count) * access::ENTRY_BYTES];
        // An error only costs a read of the disk, now or later.
        let found = layer.table.read_exact_at(&mut entries, place).is_ok();
        let _ = layer.table.write_all_at(&access::entry(self.id).repeat(to_usize(count)), place);
        let mut runs: Vec<(Range<u64>, Option<u32>)> = Vec::new();
        for (n, entry) in entries.as_chunks().0.iter().enumerate() {
            let block = first + n as u64;
            let reader = access::reader(*entry).filter(|reader| found && *reader != self.id);
            match runs.last_mut() {
                Some((blocks, last)) if *last == reader => blocks.end = block + 1,
                _ => runs.push((block..block + 1, reader)),
            }
        }
        runs
    }

    async fn ask(
        &self,
        request: &Request<'_>,
        at: usize,
        layer: u8,
        indexed: &IndexedLayer,
        read: Read,
    ) -> io::Result<u32> {
        let connection = self.connection(request, at, layer, indexed).await?;
        let socket = connection.socket.as_fd();
        request.put(at, &read.encode())?;
        request.send(socket, at..at + read.encode().len()).await?;
        let len = request.receive(socket, at..at + FOUND_BYTES, &PEER_LIMIT).await?;
        let found = Found::decode(&request.get(at..at + len)?).ok_or_else(gone)?;
        if found.hits != 0 {
            request.put_shared(at..at + to_usize(u64::from(read.count) * BLOCK_BYTES), &connection.memory, 0)?;
            let blocks = u64::from((found.hits & mask(read.count)).count_ones());
            self.counts.count(HeatSource::Peer(found.volume), blocks * BLOCK_BYTES);
        }
        // A miss counts only if all blocks belong to files: no peer has others, and readahead of metadata can cover files in part.
        let all = mask(read.count);
        if found.hits != 0 || found.of_files & all == all {
            self.pauses().record(read.peer, found.hits != 0);
        }
        // Kept only after its answer was received.
        keep_idle(&mut self.idle(), layer, connection);
        Ok(found.hits)
    }

    /// An idle or a new connection for reads of a layer.
    async fn connection(
        &self,
        request: &Request<'_>,
        at: usize,
        layer: u8,
        indexed: &IndexedLayer,
    ) -> io::Result<Connection> {
        let idle = {
            let mut idle = self.idle();
            let found = idle.iter().position(|(number, _)| *number == layer);
            found.map(|found| idle.swap_remove(found).1)
        };
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let socket = packet::connect_to(Path::new(PEERS_SOCKET))?;
        let (memory, descriptor) = Memory::create(MEMORY_BYTES)?;
        let hello = Hello::Read { content: indexed.content, index: indexed.index.clone(), domain: self.domain.clone() };
        // Does not block: the socket is new and its buffer empty.
        packet::send(&socket, &serde_json::to_vec(&hello)?, Some(descriptor.as_fd()))?;
        let len = request.receive(socket.as_fd(), at..at + MAX_PACKET_BYTES, &PEER_LIMIT).await?;
        match serde_json::from_slice(&request.get(at..at + len)?)? {
            Answer::Done { .. } => Ok(Connection { socket, memory }),
            Answer::Refused(why) => Err(io::Error::other(why)),
        }
    }

    fn may_ask(&self) -> bool {
        self.milliseconds() >= self.not_before.load(Ordering::Relaxed)
    }

    /// Asks no peers for a while, because each read that is not answered takes [`PEER_LIMIT`].
    fn suspend(&self, error: &io::Error) {
        let again = self.milliseconds() + u64::try_from(RETRY_DELAY.as_millis()).unwrap_or(0);
        let before = self.not_before.swap(again, Ordering::Relaxed);
        // No reader listens if no peer is attached.
        let has_no_peers = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !has_no_peers && before + 60_000 < again {
            tracing::warn!(why = chain(error), "reads from peers are suspended for a moment");
        }
        // A late answer may arrive on these.
        self.idle().clear();
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pauses(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(u8, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a connection for the next read of this layer, or closes it if there are enough.
fn keep_idle<T>(idle: &mut Vec<(u8, T)>, layer: u8, connection: T) {
    if idle.iter().filter(|(number, _)| *number == layer).count() < MAX_IDLE {
        idle.push((layer, connection));
    }
}

/// Opens an access table, and creates it if necessary. A shared lock marks it as used.
fn open_table(path: &Path, len: u64) -> io::Result<File> {
    loop {
        let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        let table = options.read(true).write(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
        flock(&table, FlockOperation::LockShared)?;
        // It may have been removed before it was locked.
        if file::is_at(&table, path).map_err(io::Error::other)? {
            if table.metadata()?.len() < len {
                table.set_len(len)?;
            }
            return Ok(table);
        }
    }
}

#[derive(Debug)]
struct CountsState {
    counts: ReadCounts,
    /// The file is older than the counts.
    is_dirty: bool,
}

/// The read counts of this server.
#[derive(Debug)]
struct Counts {
    state: Mutex<CountsState>,
    changed: Condvar,
}

impl Counts {
    /// Continues the counts of the volume's previous server.
    fn load(roots: &Roots, volume: Uuid) -> Self {
        let counts = read_counts::read(roots, volume).unwrap_or_default();
        Self { state: Mutex::new(CountsState { counts, is_dirty: false }), changed: Condvar::new() }
    }

    fn count(&self, source: HeatSource, bytes: u64) {
        let mut state = self.state();
        state.counts.count(source, bytes);
        if !std::mem::replace(&mut state.is_dirty, true) {
            self.changed.notify_all();
        }
    }

    fn write_on_change(&self, path: &Path) {
        loop {
            let mut state = self.state();
            while !state.is_dirty {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.is_dirty = false;
            let counts = state.counts.clone();
            drop(state);
            if let Err(error) = read_counts::write(path, &counts) {
                tracing::error!(why = chain(&error), "cannot write the read counts");
                return;
            }
            process::pause(COUNTS_INTERVAL);
        }
    }

    fn state(&self) -> MutexGuard<'_, CountsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Appends a range, merged with the last one if it is adjacent.
fn push_range(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

fn mask(count: u32) -> u32 {
    u32::MAX >> (u32::BITS - count.clamp(1, u32::BITS))
}

fn gone() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connections_are_limited_for_each_layer() {
        let mut idle = Vec::new();
        for n in 0..20 {
            keep_idle(&mut idle, n % 2, n);
        }
        assert_eq!(idle.len(), 2 * MAX_IDLE);
        assert!(idle.iter().all(|(layer, n)| n % 2 == *layer && *n < 16));
    }
}
