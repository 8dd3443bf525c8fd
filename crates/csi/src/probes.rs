//! Whether the driver works, and whether its daemon does: what a node's agent probes.
//!
//! They are two questions. Restarting the driver helps if its sockets are gone or nothing answers on them; it does not help while the daemon
//! is away, and would only add a second fault.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::client::Client;
use tokio::io::{self, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::time::Instant;

use crate::status;

/// The client's side of the beginning of an HTTP/2 connection, with empty settings (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The head of a frame, in bytes, and where it has its type (RFC 9113, 4.1).
const HEAD_BYTES: usize = 9;
const TYPE_AT: usize = 3;

/// The type of the frame with which a server begins (RFC 9113, 6.5).
const SETTINGS: u8 = 4;

/// What is probed.
#[derive(Clone, Debug)]
pub struct Probes {
    /// The driver's sockets.
    pub sockets: Vec<PathBuf>,
    /// The daemon.
    pub daemon: Client,
    /// How long all sockets together, and the daemon, may take to answer.
    pub patience: Duration,
}

impl Probes {
    /// Whether this process serves its sockets: each path leads to it, and a connection gets beyond the limit of connections to the server.
    ///
    /// # Errors
    /// What is wrong, for an operator.
    pub async fn driver(&self) -> Result<(), String> {
        let deadline = Instant::now() + self.patience;
        for path in &self.sockets {
            let answered = tokio::time::timeout_at(deadline, is_served(path)).await;
            let answered = answered.unwrap_or_else(|_| Err(format!("it has not answered for {:?}", self.patience)));
            answered.map_err(|cause| format!("socket {}: {cause}", path.display()))?;
        }
        Ok(())
    }

    /// Whether the daemon answers, as the call `Probe` does.
    ///
    /// # Errors
    /// What is wrong, for an operator.
    pub async fn daemon(&self) -> Result<(), String> {
        match tokio::time::timeout(self.patience, self.daemon.healthz()).await {
            Ok(answered) => answered.map_err(|fault| status::of(&fault).message().to_owned()),
            Err(_) => Err(format!(
                "daemon: it has not answered on {} for {:?}; `journalctl -u bulkhead` may say why",
                self.daemon.socket().display(),
                self.patience
            )),
        }
    }
}

async fn is_served(path: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("it cannot be used ({error})");
    let mut stream = UnixStream::connect(path).await.map_err(failed)?;
    let owner = stream.peer_cred().map_err(failed)?.pid();
    if owner != i32::try_from(std::process::id()).ok() {
        return Err("another process listens on it".to_owned());
    }
    let mut head = [0; HEAD_BYTES];
    let exchange = async {
        stream.write_all(PREFACE).await?;
        stream.read_exact(&mut head).await
    };
    exchange.await.map_err(failed)?;
    if head[TYPE_AT] == SETTINGS { Ok(()) } else { Err("what answers is not HTTP/2".to_owned()) }
}
