//! The peer reader: a process that reads, for the block servers of clones, what another clone of the same base has in its page
//! cache (DRR, Zhao et al. 2016). There is no cache of its own; what is not in a peer's memory is read from the disk by whoever
//! asked.
//!
//! It is a process apart because a read of a file system that hangs never ends: it may be killed at any time, by anybody, and all
//! that is lost is that servers read from the disk. It holds the root directories of mounted volumes, which the daemon gives it and
//! takes back before it unmounts them, and ends when it has none.
//!
//! Owns: who is there, and how many may be reading from whom. Does not: decide what is served; the server of a clone asks, and
//! waits only as long as it likes.

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
use bulkhead_formats::servers;
use bulkhead_sys::background::{self, BackgroundError, Side};
use bulkhead_sys::buffer::Buffer;
use bulkhead_sys::file::{self, FileError};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::shared::Shared;
use bulkhead_sys::{packet, process};
use rustix::event::epoll;
use uuid::Uuid;

use crate::index::Index;
use lookup::look_up;
use slots::Slots;

/// Threads. Those that hang in a peer do nothing else, and there are more of them than may hang.
const THREADS: usize = 16;

/// Threads that read from peers at a time; others wait a moment, and answer that nothing is there.
const READING: usize = 12;

/// Threads that read from one peer at a time. One that hangs keeps no more than these.
const READING_EACH: usize = 4;

/// How long a volume that is to be unmounted may be read from.
const DETACH_LIMIT: Duration = Duration::from_secs(2);

/// How long another reader may need to end.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// How often it is said at most that no server can be accepted.
const FULL_SAID_EVERY: Duration = Duration::from_secs(60);

/// Pause after a server could not be accepted; those that wait read from the disk meanwhile.
const FULL_PAUSE: Duration = Duration::from_millis(200);

/// What the background says when servers can ask.
const READY: &str = "ready";

/// The token of the listening socket; connections have their descriptors' numbers.
const LISTENER: u64 = u64::MAX;

/// Why there is no peer reader.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// It cannot go to the background.
    #[error(transparent)]
    Background(#[from] BackgroundError),
    /// Another one does not end.
    #[error(transparent)]
    Lock(#[from] FileError),
    /// A file, socket or thread of its own failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// In the background, it says why it could not start, or ended without a word.
    #[error("{said}")]
    Start {
        /// What it said.
        said: String,
    },
}

/// Starts the reader in the background, if there is none; returns when servers can ask.
///
/// `begin` is called in its process before anything else, for its log.
///
/// # Errors
/// [`PeersError`]. Call it before any thread is started.
pub fn start(roots: &Roots, begin: impl FnOnce()) -> Result<(), PeersError> {
    let dir = servers::dir(roots);
    fs::create_dir_all(&dir).map_err(failed("make the directory of servers"))?;
    let log = dir.join("peers.log");
    match background::split(roots, &log)? {
        Side::Foreground { said } if said == READY => Ok(()),
        Side::Foreground { said } if said.is_empty() => {
            Err(PeersError::Start { said: format!("it ended; {} may say why", log.display()) })
        }
        Side::Foreground { said } => Err(PeersError::Start { said }),
        Side::Background(report) => {
            begin();
            let lock_path = dir.join("siblings.lock");
            let lock = match lock(&lock_path) {
                Ok(Some(lock)) => lock,
                other => {
                    // Another one does what this one would, or nobody can.
                    let _ = report.say(&other.map_or_else(|error| chain(&error), |_| READY.to_owned()));
                    return Ok(());
                }
            };
            let ready = Reader::listen(&servers::peers_socket(roots));
            let said = ready.as_ref().map_or_else(|error| chain(error), |_| READY.to_owned());
            // Who waited may have been killed.
            let _ = report.say(&said);
            let run = ready.and_then(|reader| reader.run());
            if let Err(error) = run {
                tracing::error!(why = chain(&error), "peers cannot be read from");
            }
            // Nobody else starts before the lock is gone.
            for path in [servers::peers_socket(roots), log, lock_path] {
                let _ = fs::remove_file(path);
            }
            drop(lock);
            Ok(())
        }
    }
}

/// The lock of the one reader of a host; `None` when somebody has it who listens.
fn lock(path: &Path) -> Result<Option<file::LockFile>, PeersError> {
    let give_up = Instant::now() + LOCK_LIMIT;
    loop {
        match file::lock_exclusive(path) {
            Err(FileError::AlreadyLocked { .. }) if packet::connect_to(&path.with_extension("sock")).is_ok() => {
                return Ok(None);
            }
            Err(FileError::AlreadyLocked { .. }) if Instant::now() < give_up => process::pause(PAUSE),
            locked => return Ok(Some(locked?)),
        }
    }
}

fn failed(step: &'static str) -> impl Fn(io::Error) -> PeersError {
    move |source| PeersError::Step { step, source }
}

/// A mounted volume.
#[derive(Debug)]
struct Peer {
    volume: Uuid,
    id: u32,
    domain: String,
    root: OwnedFd,
    /// The threads that read from it.
    reading: Slots,
}

/// A connection, as far as who is at the other end has said what it wants.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    asks: Mutex<Option<Arc<Asks>>>,
}

/// A server that asks for blocks of a layer.
#[derive(Debug)]
struct Asks {
    index: Arc<Index>,
    domain: String,
    /// Where it looks for what was found.
    memory: Shared,
}

#[derive(Debug, Default)]
struct State {
    peers: HashMap<u32, Arc<Peer>>,
    connections: HashMap<u64, Arc<Connection>>,
    indexes: HashMap<Uuid, Weak<Index>>,
    over: bool,
}

#[derive(Debug)]
struct Reader {
    listener: OwnedFd,
    events: OwnedFd,
    /// The threads that read from any.
    reading: Slots,
    state: Mutex<State>,
    /// When it was said last that no server can be accepted.
    said_full: Mutex<Option<Instant>>,
    /// It is over.
    changed: Condvar,
}

impl Reader {
    fn listen(path: &Path) -> Result<Arc<Self>, PeersError> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove the socket of another reader")(error));
            }
            _ => {}
        }
        let listener = packet::listen_at(path).map_err(failed("listen"))?;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed("wait for events")(e.into()))?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), awaited())
            .map_err(|e| failed("wait for events")(e.into()))?;
        Ok(Arc::new(Self {
            listener,
            events,
            reading: Slots::new(READING),
            state: Mutex::default(),
            said_full: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Answers until the last volume is detached.
    fn run(self: Arc<Self>) -> Result<(), PeersError> {
        for n in 0..THREADS {
            let reader = Arc::clone(&self);
            let thread = thread::Builder::new().name(format!("reader-{n}"));
            thread.spawn(move || reader.serve()).map_err(failed("start a thread"))?;
        }
        let mut state = self.state();
        while !state.over {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread's work: each event is one thread's, until it waits for the next of its kind.
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
                    key => self.hear(key, &mut buffer, &mut packet),
                }
            }
        }
    }

    fn accept(&self) {
        match packet::accept_one(&self.listener) {
            Ok(None) => {}
            Ok(Some(socket)) => {
                let key = u64::try_from(socket.as_raw_fd()).unwrap_or(0);
                let connection = Arc::new(Connection { socket, asks: Mutex::new(None) });
                let data = epoll::EventData::new_u64(key);
                self.state().connections.insert(key, Arc::clone(&connection));
                if let Err(error) = epoll::add(&self.events, &connection.socket, data, awaited()) {
                    tracing::error!(%error, "cannot wait for a server");
                    self.state().connections.remove(&key);
                }
            }
            // As many descriptors are open as can be, and the one who waits is still there at the next look.
            Err(error) => {
                let mut said = self.said_full.lock().unwrap_or_else(PoisonError::into_inner);
                if said.is_none_or(|said| said.elapsed() >= FULL_SAID_EVERY) {
                    *said = Some(Instant::now());
                    tracing::error!(%error, "servers cannot be accepted for a while");
                }
                drop(said);
                process::pause(FULL_PAUSE);
            }
        }
        let _ = epoll::modify(&self.events, &self.listener, epoll::EventData::new_u64(LISTENER), awaited());
    }

    /// Answers what came from a connection, or forgets one that is at its end.
    fn hear(&self, key: u64, buffer: &mut Buffer, packet: &mut [u8]) {
        let Some(connection) = self.state().connections.get(&key).cloned() else { return };
        let goes_on = match packet::receive(&connection.socket, packet) {
            Ok(([], _)) => false,
            Ok((packet, descriptor)) => self.answer(&connection, packet, descriptor, buffer),
            Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
        };
        let data = epoll::EventData::new_u64(key);
        if !goes_on || epoll::modify(&self.events, &connection.socket, data, awaited()).is_err() {
            // The number is given to another connection only when nobody has this one any more.
            self.state().connections.remove(&key);
        }
    }

    /// Answers one packet; whether the connection is worth keeping.
    fn answer(&self, connection: &Connection, packet: &[u8], descriptor: Option<OwnedFd>, buffer: &mut Buffer) -> bool {
        let asks = connection.asks.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(asks) = asks {
            let Some(read) = Read::decode(packet) else { return false };
            return self.read(connection, &asks, read, buffer).is_ok();
        }
        let answer = match (serde_json::from_slice(packet), descriptor) {
            (Ok(Hello::Read { content, index, domain }), Some(memory)) => {
                let memory = Shared::of(memory, MEMORY_BYTES).map_err(|error| format!("no memory: {error}"));
                memory.and_then(|memory| Ok((memory, self.index(content, &index)?))).map(|(memory, index)| {
                    let asks = Arc::new(Asks { index, domain, memory });
                    *connection.asks.lock().unwrap_or_else(PoisonError::into_inner) = Some(asks);
                    true
                })
            }
            (Ok(Hello::Attach { volume, id, domain }), Some(root)) => Ok(self.attach(volume, id, domain, root)),
            (Ok(Hello::Detach { volume }), None) => self.detach(volume),
            _ => Err("it is nothing that is known here".to_owned()),
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
            tracing::error!(why, "the blocks of a layer are not looked for in peers");
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
        // Its device had another number before.
        state.peers.retain(|_, other| other.volume != volume);
        tracing::info!(%volume, id, domain = peer.domain, "can be read from");
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
            self.end_if_over();
            return Ok(false);
        };
        let give_up = Instant::now() + DETACH_LIMIT;
        let mut peer = Some(peer);
        while let Some(held) = peer.take() {
            match Arc::try_unwrap(held) {
                // With this its root is closed.
                Ok(_) => {}
                Err(_) if Instant::now() >= give_up => return Err("a read from it does not end".to_owned()),
                Err(still) => {
                    peer = Some(still);
                    process::pause(PAUSE);
                }
            }
        }
        tracing::info!(%volume, "is not read from any more");
        self.end_if_over();
        Ok(true)
    }

    fn end_if_over(&self) {
        let mut state = self.state();
        state.over = state.peers.is_empty();
        if state.over {
            self.changed.notify_all();
        }
    }

    /// Looks a read up, and hands over what was found.
    fn read(&self, connection: &Connection, asks: &Asks, read: Read, buffer: &mut Buffer) -> io::Result<()> {
        let peer = self.state().peers.get(&read.peer).cloned();
        let peer = peer.filter(|peer| peer.domain == asks.domain);
        let bytes = buffer.first(usize::try_from(read.count.min(MAX_BLOCKS)).unwrap_or(0) * 4096);
        let found = peer.map_or(Found::NOTHING, |peer| {
            // Where too many threads hang, nothing is there.
            let slots = self.reading.take().and_then(|any| Some((any, peer.reading.take()?)));
            slots.map_or(Found::NOTHING, |_slots| {
                let (hits, of_files) = look_up(&asks.index, &peer.root, read.block, bytes);
                Found { hits, of_files, volume: peer.volume }
            })
        });
        if found.hits != 0 {
            asks.memory.put(bytes)?;
        }
        packet::send(&connection.socket, &found.encode(), None)
    }
}

/// One event, which is one thread's.
fn awaited() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::ONESHOT
}
