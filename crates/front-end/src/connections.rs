//! The connections to a front end's socket or port, up to a limit.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// How long connections have to end.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// What clients connect to.
pub trait Listener {
    /// A connection.
    type Stream: Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<UnixStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        Self::accept(self).await.map(|(stream, _)| stream)
    }
}

/// Connections with requests in progress.
#[derive(Debug)]
pub struct Connections(JoinSet<()>);

impl Connections {
    /// Accepts connections until `stop` resolves, and has each served by `answer`. At most `limit` are open at a time; more wait in the
    /// socket's queue.
    ///
    /// # Errors
    /// When the limit's semaphore fails; a connection that cannot be accepted is logged.
    pub async fn accept<L: Listener, A: Future<Output = ()> + Send + 'static>(
        listener: &L,
        limit: usize,
        stop: impl Future<Output = ()>,
        mut answer: impl FnMut(L::Stream) -> A,
    ) -> io::Result<Self> {
        let room = Arc::new(Semaphore::new(limit));
        let mut connections = JoinSet::new();
        tokio::pin!(stop);
        loop {
            let permit = tokio::select! {
                () = &mut stop => break,
                permit = Arc::clone(&room).acquire_owned() => permit.map_err(io::Error::other)?,
            };
            let stream = tokio::select! {
                () = &mut stop => break,
                accepted = listener.accept() => accepted,
            };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let answer = answer(stream);
            connections.spawn(async move {
                answer.await;
                drop(permit);
            });
            while connections.try_join_next().is_some() {}
        }
        Ok(Self(connections))
    }

    /// Waits for the requests in progress, 5 s at most. One that is cut off is continued by the daemon; container engines and orchestrators
    /// repeat it.
    pub async fn finish(mut self) {
        let _ = tokio::time::timeout(LAST_ANSWERS, async { while self.0.join_next().await.is_some() {} }).await;
    }
}
