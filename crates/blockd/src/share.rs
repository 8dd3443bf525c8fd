//! How a volume reads what lies on layers: through the host's page cache, from a peer's, or from the disk; and what it counts of
//! that.
//!
//! A server asks the peer reader ([`crate::peers`]) for blocks that another volume of its sharing domain has read last, and
//! waits for it for a moment only. Whatever goes wrong there, the layer has the blocks as well.

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
use bulkhead_core::heat::{Heat, HeatSource};
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::units::Bytes;
use bulkhead_formats::peers::{
    Answer, FOUND_BYTES, Found, Hello, MAX_BLOCKS, MAX_PACKET_BYTES, MEMORY_BYTES, Read, access,
};
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

/// How long a peer may need. A clone that reads the same at the same time is waited for: its read of the disk is under way, and
/// this is what a busy spinning disk takes for some. One that hangs is found out by the next.
static PATIENCE: Limit = Limit::milliseconds(500);

/// For how long nobody is asked after nobody answered.
const AGAIN: Duration = Duration::from_secs(1);

/// The least time between two times that counts are written.
const COUNTS_EVERY: Duration = Duration::from_secs(1);

/// Connections for each layer that are kept when nobody uses them: as many as are asked for together but for bursts.
const IDLE_EACH: usize = 8;

/// A layer that has an index, so that its blocks can be found in peers.
#[derive(Debug)]
struct Shared {
    content: Uuid,
    index: PathBuf,
    /// Who read which block last ([`access`]).
    table: File,
}

/// A connection to the peer reader, for one read at a time. One that was given up is never used again, so that what is written to
/// its memory too late is read by nobody.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    memory: Memory,
}

/// How a volume reads its layers.
#[derive(Debug)]
pub(crate) struct Share {
    /// The number of its device, by which it is known in tables.
    id: u32,
    domain: String,
    /// The layers, the oldest first, with what peers are asked by.
    layers: Vec<(Uuid, Option<Shared>)>,
    /// Connections that nobody uses at the moment, with the layers that they are for.
    idle: Mutex<Vec<(u8, Connection)>>,
    pauses: Mutex<Pauses>,
    began: Instant,
    /// When somebody may be asked again, in milliseconds after that.
    not_before: AtomicU64,
    counts: Counts,
}

impl Share {
    /// For a volume on layers, the oldest first, whose device has this number.
    pub(crate) fn open(roots: &Roots, spec: &ServeSpec, id: u32, layers: &[PathBuf]) -> Result<Self, ImageError> {
        let shared = |path: &PathBuf| {
            let content = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).unwrap_or_default();
            let index = path.with_extension(bulkhead_core::backend::INDEX_SUFFIX);
            if !spec.read_from.asks_peers() || !index.exists() {
                return Ok((content, None));
            }
            let table = servers::dir(roots).join(access::file_name(content, &spec.domain));
            let failed = |source| ImageError::Io { operation: "open the access table of", image: path.clone(), source };
            let blocks = path.metadata().map_err(failed)?.len() / BLOCK_BYTES;
            let table = open_table(&table, blocks * access::ENTRY_BYTES as u64).map_err(failed)?;
            Ok((content, Some(Shared { content, index, table })))
        };
        let layers: Vec<(Uuid, Option<Shared>)> = layers.iter().map(shared).collect::<Result<_, ImageError>>()?;
        if spec.read_from.asks_peers() && layers.iter().all(|(_, shared)| shared.is_none()) {
            tracing::warn!(
                how = %spec.read_from,
                "no layer has an index, as those of imported images have: peers cannot be asked"
            );
        }
        let heat = servers::heat_file(roots, spec.volume);
        let failed =
            |source| ImageError::Io { operation: "make a directory to tell in of", image: spec.image.clone(), source };
        heat.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        Ok(Self {
            id,
            domain: spec.domain.clone(),
            layers,
            idle: Mutex::default(),
            pauses: Mutex::default(),
            began: Instant::now(),
            not_before: AtomicU64::new(0),
            counts: Counts::of(&heat),
        })
    }

    /// Reads what peers have of a run of blocks of a layer, into the buffer from `at` on; returns what they do not have.
    pub(crate) async fn read(&self, request: &Request<'_>, at: usize, run: Range<u64>, layer: u8) -> Vec<Range<u64>> {
        let shared = self.layers.get(usize::from(layer)).and_then(|(_, shared)| shared.as_ref());
        let count = (run.end - run.start) / BLOCK_BYTES;
        let Some(shared) = shared.filter(|_| count <= u64::from(MAX_BLOCKS)) else { return vec![run] };
        let mut missing = Vec::new();
        let mut open = self.may_ask();
        for (blocks, peer) in self.last_readers(shared, run.start / BLOCK_BYTES, count) {
            let bytes = blocks.start * BLOCK_BYTES..blocks.end * BLOCK_BYTES;
            let place = at + to_usize(bytes.start - run.start);
            let hits = match peer.filter(|peer| open && self.pauses().is_due(*peer)) {
                None => 0,
                Some(peer) => {
                    let count = u32::try_from(blocks.end - blocks.start).unwrap_or(MAX_BLOCKS);
                    let read = Read { block: blocks.start, count, peer };
                    self.ask(request, place, layer, shared, read).await.unwrap_or_else(|error| {
                        open = false;
                        self.ask_no_more(&error);
                        0
                    })
                }
            };
            for (n, block) in blocks.enumerate() {
                if hits & 1 << n == 0 {
                    add(&mut missing, block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES);
                }
            }
        }
        missing
    }

    /// Counts a read of a layer.
    pub(crate) fn count_layer(&self, layer: u8, cached: bool, bytes: u64) {
        let content = self.layers.get(usize::from(layer)).map_or(Uuid::nil(), |(content, _)| *content);
        self.counts.count(if cached { HeatSource::Cache(content) } else { HeatSource::Disk(content) }, bytes);
    }

    /// Writes what is counted, as long as this process lives.
    pub(crate) fn tell(&self, path: &Path) {
        self.counts.tell(path);
    }

    /// Who read each block last, run by run; from now on it is this volume.
    fn last_readers(&self, shared: &Shared, first: u64, count: u64) -> Vec<(Range<u64>, Option<u32>)> {
        let place = first * access::ENTRY_BYTES as u64;
        let mut entries = vec![0; to_usize(count) * access::ENTRY_BYTES];
        // What cannot be read or written costs a read of the disk, now or then.
        let found = shared.table.read_exact_at(&mut entries, place).is_ok();
        let _ = shared.table.write_all_at(&access::entry(self.id).repeat(to_usize(count)), place);
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

    async fn ask(&self, request: &Request<'_>, at: usize, layer: u8, shared: &Shared, read: Read) -> io::Result<u32> {
        let connection = self.connection(request, at, layer, shared).await?;
        let socket = connection.socket.as_fd();
        request.put(at, &read.encode())?;
        request.send(socket, at..at + read.encode().len()).await?;
        let len = request.receive(socket, at..at + FOUND_BYTES, &PATIENCE).await?;
        let found = Found::decode(&request.get(at..at + len)?).ok_or_else(gone)?;
        if found.hits != 0 {
            request.put_shared(at..at + to_usize(u64::from(read.count) * BLOCK_BYTES), &connection.memory, 0)?;
            let blocks = u64::from((found.hits & mask(read.count)).count_ones());
            self.counts.count(HeatSource::Sibling(found.volume), blocks * BLOCK_BYTES);
        }
        // Of what is no file's nobody has anything; what is read ahead of directories and inodes can be a file's in part.
        let all = mask(read.count);
        if found.hits != 0 || found.of_files & all == all {
            self.pauses().answered(read.peer, found.hits != 0);
        }
        // Only one on which nothing can come any more is used again.
        keep(&mut self.idle(), layer, connection);
        Ok(found.hits)
    }

    /// A connection on which blocks of a layer can be asked for.
    async fn connection(&self, request: &Request<'_>, at: usize, layer: u8, shared: &Shared) -> io::Result<Connection> {
        let idle = {
            let mut idle = self.idle();
            let found = idle.iter().position(|(of, _)| *of == layer);
            found.map(|found| idle.swap_remove(found).1)
        };
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let socket = packet::connect_to(Path::new(PEERS_SOCKET))?;
        let (memory, descriptor) = Memory::create(MEMORY_BYTES)?;
        let hello = Hello::Read { content: shared.content, index: shared.index.clone(), domain: self.domain.clone() };
        // Nothing else is on its way, so that it need not wait.
        packet::send(&socket, &serde_json::to_vec(&hello)?, Some(descriptor.as_fd()))?;
        let len = request.receive(socket.as_fd(), at..at + MAX_PACKET_BYTES, &PATIENCE).await?;
        match serde_json::from_slice(&request.get(at..at + len)?)? {
            Answer::Done { .. } => Ok(Connection { socket, memory }),
            Answer::Refused(why) => Err(io::Error::other(why)),
        }
    }

    fn may_ask(&self) -> bool {
        self.milliseconds() >= self.not_before.load(Ordering::Relaxed)
    }

    /// Asks nobody for a while: each that does not answer costs its time.
    fn ask_no_more(&self, error: &io::Error) {
        let again = self.milliseconds() + u64::try_from(AGAIN.as_millis()).unwrap_or(0);
        let before = self.not_before.swap(again, Ordering::Relaxed);
        // Where nobody listens, no peer is there.
        let is_usual = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused);
        if !is_usual && before + 60_000 < again {
            tracing::warn!(why = chain(error), "peers are not asked for a moment");
        }
        // What is said on these may be too late.
        self.idle().clear();
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pauses(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(u8, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps a connection for the next who asks for blocks of this layer, or closes it when there are enough.
fn keep<T>(idle: &mut Vec<(u8, T)>, layer: u8, connection: T) {
    if idle.iter().filter(|(of, _)| *of == layer).count() < IDLE_EACH {
        idle.push((layer, connection));
    }
}

/// Opens an access table, made if need be. A lock that all servers share says that it is used.
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

/// What a server has counted.
#[derive(Debug)]
struct Counts {
    state: Mutex<(Heat, bool)>,
    changed: Condvar,
}

impl Counts {
    /// Goes on with what another server of the volume counted.
    fn of(path: &Path) -> Self {
        let found = file::read_limited(path, Bytes::mib(1)).ok();
        let found = found.and_then(|text| serde_json::from_slice::<Heat>(&text).ok());
        let found = found.filter(|heat| heat.version == Heat::VERSION);
        let heat = found.unwrap_or_else(|| Heat { version: Heat::VERSION, counts: Vec::new() });
        Self { state: Mutex::new((heat, false)), changed: Condvar::new() }
    }

    fn count(&self, source: HeatSource, bytes: u64) {
        let mut state = self.state();
        state.0.count(source, bytes);
        if !std::mem::replace(&mut state.1, true) {
            self.changed.notify_all();
        }
    }

    fn tell(&self, path: &Path) {
        loop {
            let mut state = self.state();
            while !state.1 {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.1 = false;
            let heat = state.0.clone();
            drop(state);
            let written = serde_json::to_vec(&heat).map_err(io::Error::from);
            let written = written.and_then(|text| file::write_atomic(path, &text).map_err(io::Error::other));
            if let Err(error) = written {
                tracing::error!(why = chain(&error), "what was read from where cannot be told");
                return;
            }
            process::pause(COUNTS_EVERY);
        }
    }

    fn state(&self) -> MutexGuard<'_, (Heat, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a range to others that it follows.
fn add(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
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
    fn connections_of_a_burst_are_closed() {
        let mut idle = Vec::new();
        for n in 0..20 {
            keep(&mut idle, n % 2, n);
        }
        assert_eq!(idle.len(), 2 * IDLE_EACH);
        assert!(idle.iter().all(|(layer, n)| n % 2 == *layer && *n < 16));
    }
}
