//! The host's end of the connection to a guest's agent: numbers requests, and passes replies to their waiters.
//!
//! Knows nothing about machines. When the connection breaks, the event streams of all waiters end.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::protocol::{Envelope, Event, Reply, Request};

/// Events of one request. The stream ends when the connection breaks.
pub(crate) type Events = UnboundedReceiver<Event>;

/// A connection to an agent; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    writer: tokio::sync::Mutex<OwnedWriteHalf>,
    waiting: Mutex<Waiting>,
    next_id: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    broken: bool,
    by_id: HashMap<u64, UnboundedSender<Event>>,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    /// Connects to QEMU's socket. The returned events are those of request 0: the agent's greeting.
    pub(crate) async fn connect(socket: &Path) -> std::io::Result<(Self, Events)> {
        let (reader, writer) = UnixStream::connect(socket).await?.into_split();
        let (sender, greeting) = unbounded_channel();
        let waiting = Waiting { broken: false, by_id: HashMap::from([(0, sender)]) };
        let shared = Arc::new(Shared {
            writer: tokio::sync::Mutex::new(writer),
            waiting: Mutex::new(waiting),
            next_id: AtomicU64::new(1),
        });
        // Ends with the connection: QEMU closes it when it exits, and dropping the last clone of the channel shuts it
        // down.
        tokio::spawn(receive(reader, Arc::downgrade(&shared)));
        Ok((Self { shared }, greeting))
    }

    /// Sends a request; returns its number and its events.
    pub(crate) async fn send(&self, request: Request) -> Result<(u64, Events)> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let (sender, events) = unbounded_channel();
        {
            let mut waiting = self.shared.waiting();
            if waiting.broken {
                return Err(gone());
            }
            waiting.by_id.insert(id, sender);
        }
        self.write(id, request).await?;
        Ok((id, events))
    }

    /// Sends a request that has no reply.
    pub(crate) async fn notify(&self, request: Request) -> Result<()> {
        self.write(self.shared.next_id.fetch_add(1, Ordering::Relaxed), request).await
    }

    async fn write(&self, id: u64, request: Request) -> Result<()> {
        let mut line = serde_json::to_vec(&Envelope { id, request }).context("cannot encode a request to the guest")?;
        line.push(b'\n');
        let mut writer = self.shared.writer.lock().await;
        writer.write_all(&line).await.context("cannot send to the guest: the machine has ended")
    }

    /// Sends a request that has exactly one reply and waits for it.
    pub(crate) async fn ask(&self, request: Request) -> Result<Event> {
        let (_, mut events) = self.send(request).await?;
        match events.recv().await {
            Some(Event::Failed { message }) => Err(anyhow!("the agent reports: {message}")),
            Some(event) => Ok(event),
            None => Err(gone()),
        }
    }
}

/// The error of all waiters when the connection breaks.
pub(crate) fn gone() -> anyhow::Error {
    anyhow!("the machine or its agent ended: see the console log in the artifacts")
}

async fn receive(reader: OwnedReadHalf, shared: std::sync::Weak<Shared>) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Some(shared) = shared.upgrade() else { return };
        // An incomplete line can only be the last one of a machine that was killed.
        let Ok(reply) = serde_json::from_str::<Reply>(&line) else { continue };
        let more_follows = matches!(reply.event, Event::Started { .. } | Event::Output { .. });
        let mut waiting = shared.waiting();
        let sender = if more_follows { waiting.by_id.get(&reply.id).cloned() } else { waiting.by_id.remove(&reply.id) };
        drop(waiting);
        if let Some(sender) = sender {
            // An error means that the waiter has gone.
            let _ = sender.send(reply.event);
        }
    }
    if let Some(shared) = shared.upgrade() {
        let mut waiting = shared.waiting();
        waiting.broken = true;
        waiting.by_id.clear();
    }
}
