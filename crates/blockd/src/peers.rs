//! The peer reader: a process that reads, for the block servers of clones, blocks that another clone of the same base has in its page
//! cache (DRR, Zhao et al. 2016). It has no cache of its own; blocks that are not in a peer's page cache are read from the disk by the
//! block server.
//!
//! It is a separate process because a read of a hanging file system never returns. It can be killed at any time; block servers then
//! read from the disk. It holds the root directories of mounted volumes, which the daemon passes to it and withdraws before it
//! unmounts them, and exits when it has none.
//!
//! Owns: the attached volumes, and the number of threads that read from each. Does not: decide which blocks are served; the block
//! server of a clone asks, and waits only for a short time.

mod lookup;
mod slots;

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bulkhead_core::error::chain;
use bulkhead_formats::peers::{Answer, Found, Hello, MAX_BLOCKS, MAX_PACKET_BYTES, MEMORY_BYTES, Read};
use bulkhead_formats::servers::{self, PEERS_LOCK, PEERS_LOG};
use bulkhead_sys::buffer::Buffer;
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::shared::Shared;
use bulkhead_sys::{packet, process};
use rustix::event::epoll;
use uuid::Uuid;

use crate::index::Index;
use crate::startup::{self, StartError, Startup};
use lookup::find_block;
use slots::Slots;

/// Threads. There are more than [`READING`], so that some are left when all reads from peers hang.
const THREADS: usize = 16;

/// Threads that read from peers at a time; others wait for a moment, and then answer with a miss.
const READING: usize = 12;

/// Threads that read from one peer at a time: a hanging peer occupies no more than these.
const READING_EACH: usize = 4;

/// How long reads in progress may delay the unmount of a volume.
const DETACH_LIMIT: Duration = Duration::from_secs(2);

/// How long a previous reader may take to exit.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Interval between polls.
const PAUSE: Duration = Duration::from_millis(5);

/// Minimum time between log messages about connections that cannot be accepted.
const FULL_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Pause after a connection could not be accepted; block servers that wait for one read from the disk meanwhile.
const FULL_PAUSE: Duration = Duration::from_millis(200);

/// Key of the listening socket's events; the key of a connection is its descriptor.
const LISTENER: u64 = u64::MAX;

/// Why the peer reader could not start.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// It cannot be started, or lacks a file, socket or thread.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A previous reader does not exit.
    #[error(transparent)]
    Lock(#[from] FileError),
}

/// Starts the reader in the background unless one is running; returns when it accepts connections.
///
/// `start_log` is called in its process before anything else.
///
/// # Errors
/// [`PeersError`]. Call it before any thread is started.
pub fn start(roots: &Roots, start_log: impl FnOnce()) -> Result<(), PeersError> {
    let dir = servers::dir(roots);
    fs::create_dir_all(&dir).map_err(StartError::at("make the directory of servers"))?;
    startup::start(roots, &dir.join(PEERS_LOG), start_log, |startup| run(roots, startup))?;
    Ok(())
}

/// Answers until the last volume is detached, unless another reader is running.
fn run(roots: &Roots, startup: &mut Startup) -> Result<(), PeersError> {
    let (dir, socket) = (servers::dir(roots), servers::peers_socket(roots));
    let lock_path = dir.join(PEERS_LOCK);
    let Some(lock) = lock(&lock_path, &socket)? else {
        startup.ready("");
        return Ok(());
    };
    let done = Reader::listen(&socket).and_then(|reader| {
        startup.ready("");
        reader.run()
    });
    // The lock is released last: until then no other reader creates these files.
    for path in [socket, dir.join(PEERS_LOG), lock_path] {
        let _ = fs::remove_file(path);
    }
    drop(lock);
    Ok(done?)
}

/// Takes the lock that the host's one reader holds; `None` if a reader holds it that accepts connections.
fn lock(path: &Path, socket: &Path) -> Result<Option<file::LockFile>, PeersError> {
    let give_up = Instant::now() + LOCK_LIMIT;
    loop {
        match file::lock_exclusive(path) {
            Err(FileError::AlreadyLocked { .. }) if packet::connect_to(socket).is_ok() => {
                return Ok(None);
            }
            Err(FileError::AlreadyLocked { .. }) if Instant::now() < give_up => process::pause(PAUSE),
            locked => return Ok(Some(locked?)),
        }
    }
}

/// An attached volume.
#[derive(Debug)]
struct Peer {
    volume: Uuid,
    id: u32,
    domain: String,
    root: OwnedFd,
    /// Bounds the threads that read from it.
    reading: Slots,
}

/// A connection of a block server or of the daemon.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    /// Set when it has introduced itself as a block server.
    client: Mutex<Option<Arc<Client>>>,
}

/// A block server that reads blocks of a layer.
#[derive(Debug)]
struct Client {
    index: Arc<Index>,
    domain: String,
    /// The shared memory that found blocks are copied to.
    memory: Shared,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<u32, Arc<Peer>>,
    connections: HashMap<u64, Arc<Connection>>,
    indexes: HashMap<Uuid, Weak<Index>>,
    finished: bool,
}

#[derive(Debug)]
struct Reader {
    listener: OwnedFd,
    events: OwnedFd,
    /// Bounds the threads that read from any peer.
    reading: Slots,
    state: Mutex<State>,
    /// When it was last logged that connections cannot be accepted.
    full_logged: Mutex<Option<Instant>>,
    /// Signals `State::finished`.
    changed: Condvar,
}

impl Reader {
    fn listen(path: &Path) -> Result<Arc<Self>, StartError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StartError::at("remove the socket of a previous reader")(error));
            }
            _ => {}
        }
        let listener = packet::listen_at(path).map_err(StartError::at("listen"))?;
        let events =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| StartError::at("wait for events")(e.into()))?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), one_shot())
            .map_err(|e| StartError::at("wait for events")(e.into()))?;
        Ok(Arc::new(Self {
            listener,
            events,
            reading: Slots::new(READING),
            state: Mutex::default(),
            full_logged: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Answers until the last volume is detached.
    fn run(self: Arc<Self>) -> Result<(), StartError> {
        for n in 0..THREADS {
            let reader = Arc::clone(&self);
            let thread = thread::Builder::new().name(format!("reader-{n}"));
            thread.spawn(move || reader.serve()).map_err(StartError::at("start a thread"))?;
        }
        let mut state = self.state();
        while !state.finished {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The loop of one thread. Events are one-shot: the thread that got one rearms it when it is done.
    fn serve(&self) {
        let mut buffer = Buffer::new();
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let mut events = Vec::with_capacity(1);
        loop {
            events.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for events");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    key => self.receive(key, &mut buffer, &mut packet),
                }
            }
        }
    }

    fn accept(&self) {
        match packet::accept_one(&self.listener) {
            Ok(None) => {}
            Ok(Some(socket)) => {
                let key = u64::try_from(socket.as_raw_fd()).unwrap_or(0);
                let connection = Arc::new(Connection { socket, client: Mutex::new(None) });
                let data = epoll::EventData::new_u64(key);
                self.state().connections.insert(key, Arc::clone(&connection));
                if let Err(error) = epoll::add(&self.events, &connection.socket, data, one_shot()) {
                    tracing::error!(%error, "cannot wait for a server");
                    self.state().connections.remove(&key);
                }
            }
            // The limit of open files is reached; the connection stays pending.
            Err(error) => {
                let mut logged = self.full_logged.lock().unwrap_or_else(PoisonError::into_inner);
                if logged.is_none_or(|logged| logged.elapsed() >= FULL_LOG_INTERVAL) {
                    *logged = Some(Instant::now());
                    tracing::error!(%error, "cannot accept connections for now");
                }
                drop(logged);
                process::pause(FULL_PAUSE);
            }
        }
        let _ = epoll::modify(&self.events, &self.listener, epoll::EventData::new_u64(LISTENER), one_shot());
    }

    /// Answers a packet, and drops a connection that was closed.
    fn receive(&self, key: u64, buffer: &mut Buffer, packet: &mut [u8]) {
        let Some(connection) = self.state().connections.get(&key).cloned() else { return };
        let stays_open = match packet::receive(&connection.socket, packet) {
            Ok(([], _)) => false,
            Ok((packet, descriptor)) => self.answer(&connection, packet, descriptor, buffer),
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        };
        let data = epoll::EventData::new_u64(key);
        if !stays_open || epoll::modify(&self.events, &connection.socket, data, one_shot()).is_err() {
            // The descriptor is reused only after the last reference to this connection is dropped.
            self.state().connections.remove(&key);
        }
    }

    /// Answers one packet; returns whether the connection stays open.
    fn answer(&self, connection: &Connection, packet: &[u8], descriptor: Option<OwnedFd>, buffer: &mut Buffer) -> bool {
        let client = connection.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(client) = client {
            let Some(read) = Read::decode(packet) else { return false };
            return self.read(connection, &client, read, buffer).is_ok();
        }
        let answer = match (serde_json::from_slice(packet), descriptor) {
            (Ok(Hello::Read { content, index, domain }), Some(memory)) => {
                let memory = Shared::open(memory, MEMORY_BYTES).map_err(|error| format!("no memory: {error}"));
                memory.and_then(|memory| Ok((memory, self.index(content, &index)?))).map(|(memory, index)| {
                    let client = Arc::new(Client { index, domain, memory });
                    *connection.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client);
                    true
                })
            }
            (Ok(Hello::Attach { volume, id, domain }), Some(root)) => Ok(self.attach(volume, id, domain, root)),
            (Ok(Hello::Detach { volume }), None) => self.detach(volume),
            _ => Err("unknown message".to_owned()),
        };
        let answer = answer.map_or_else(Answer::Refused, |changed| Answer::Done { changed });
        let is_done = matches!(answer, Answer::Done { .. });
        let Ok(text) = serde_json::to_vec(&answer) else { return false };
        packet::send(&connection.socket, &text, None).is_ok() && is_done
    }

    fn index(&self, content: Uuid, path: &Path) -> Result<Arc<Index>, String> {
        let open = self.state().indexes.get(&content).and_then(Weak::upgrade);
        if let Some(index) = open {
            return Ok(index);
        }
        let index = Arc::new(Index::open(path, content).map_err(|error| {
            let why = chain(&error);
            tracing::error!(why, "the index of a layer cannot be used: its blocks are not read from peers");
            why
        })?);
        let mut state = self.state();
        state.indexes.retain(|_, index| index.strong_count() > 0);
        state.indexes.insert(content, Arc::downgrade(&index));
        Ok(index)
    }

    fn attach(&self, volume: Uuid, id: u32, domain: String, root: OwnedFd) -> bool {
        let peer = Peer { volume, id, domain, root, reading: Slots::new(READING_EACH) };
        let mut state = self.state();
        let same = |found: &&Arc<Peer>| {
            let file = |fd: &OwnedFd| rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino));
            found.volume == volume && found.domain == peer.domain && file(&found.root) == file(&peer.root)
        };
        if state.peers.get(&id).filter(same).is_some() {
            return false;
        }
        // Removes its entry under an earlier device number.
        state.peers.retain(|_, other| other.volume != volume);
        tracing::info!(%volume, id, domain = peer.domain, "attached");
        state.peers.insert(id, Arc::new(peer));
        true
    }

    fn detach(&self, volume: Uuid) -> Result<bool, String> {
        let taken = {
            let mut state = self.state();
            let id = state.peers.values().find(|peer| peer.volume == volume).map(|peer| peer.id);
            id.and_then(|id| state.peers.remove(&id))
        };
        let Some(peer) = taken else {
            self.finish_if_unused();
            return Ok(false);
        };
        let give_up = Instant::now() + DETACH_LIMIT;
        let mut peer = Some(peer);
        while let Some(held) = peer.take() {
            match Arc::try_unwrap(held) {
                // Dropped, which closes its root directory.
                Ok(_) => {}
                Err(_) if Instant::now() >= give_up => return Err("a read from it does not return".to_owned()),
                Err(still) => {
                    peer = Some(still);
                    process::pause(PAUSE);
                }
            }
        }
        tracing::info!(%volume, "detached");
        self.finish_if_unused();
        Ok(true)
    }

    fn finish_if_unused(&self) {
        let mut state = self.state();
        state.finished = state.peers.is_empty();
        if state.finished {
            self.changed.notify_all();
        }
    }

    /// Answers a read, and copies the blocks that were found to the client's memory.
    fn read(&self, connection: &Connection, client: &Client, read: Read, buffer: &mut Buffer) -> io::Result<()> {
        let peer = self.state().peers.get(&read.peer).cloned();
        let peer = peer.filter(|peer| peer.domain == client.domain);
        let bytes = buffer.first(usize::try_from(read.count.min(MAX_BLOCKS)).unwrap_or(0) * 4096);
        let found = peer.map_or(Found::NOTHING, |peer| {
            // Too many hanging threads: a miss.
            let slots = self.reading.take().and_then(|any| Some((any, peer.reading.take()?)));
            slots.map_or(Found::NOTHING, |_slots| {
                let (hits, of_files) = find_block(&client.index, &peer.root, read.block, bytes);
                Found { hits, of_files, volume: peer.volume }
            })
        });
        if found.hits != 0 {
            client.memory.put(bytes)?;
        }
        packet::send(&connection.socket, &found.encode(), None)
    }
}

/// Each event wakes one thread.
fn one_shot() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}
