//! Floods of connections, and a process whose descriptors have run out. In a process of its own, as that limit is of the process.

#![expect(clippy::unwrap_used, reason = "these are tests, and their helpers too")]

use std::io;
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bulkhead_front_end::Connections;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// How long anything here may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Connections that are served at a time.
const SERVED: usize = 32;

/// Connections that clients open in all.
const MANY: usize = 10_000;

/// A server that sends back each byte.
struct Server {
    dir: TempDir,
    n_served: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        let n_served = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&n_served);
        tokio::spawn(async move {
            let answer = |mut stream: UnixStream| {
                let counter = Arc::clone(&counter);
                counter.fetch_add(1, Ordering::Relaxed);
                async move {
                    while let Ok(byte) = stream.read_u8().await {
                        let _ = stream.write_u8(byte).await;
                    }
                    counter.fetch_sub(1, Ordering::Relaxed);
                }
            };
            Connections::accept(&listener, SERVED, std::future::pending(), answer).await.map(drop)
        });
        Self { dir, n_served }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn n_served(&self) -> usize {
        self.n_served.load(Ordering::Relaxed)
    }
}

async fn echo(stream: &mut UnixStream) {
    let exchange = async {
        stream.write_u8(7).await?;
        stream.read_u8().await
    };
    assert_eq!(tokio::time::timeout(LIMIT, exchange).await.expect("it is answered").unwrap(), 7);
}

async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let poll = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(LIMIT, poll).await.unwrap_or_else(|_| panic!("{what}: it does not come true"));
}

fn n_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// As many clients as the kernel lets connect at once.
async fn flood(socket: &Path) -> Vec<UnixStream> {
    let mut clients = Vec::new();
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => clients.push(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return clients,
            Err(error) => panic!("{error}, after {} clients", clients.len()),
        }
    }
}

/// One test, as both parts count the descriptors of the process.
#[tokio::test]
async fn a_flood_of_connections_and_a_lack_of_descriptors_leave_earlier_clients_served() {
    let server = Server::start();
    let files = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    let mut early = UnixStream::connect(server.socket()).await.unwrap();
    echo(&mut early).await;
    let n_before = n_descriptors();

    let mut n_opened = 0;
    while n_opened < MANY {
        let clients = flood(&server.socket()).await;
        assert!(clients.len() >= SERVED, "{}", clients.len());
        wait_until("as many are served as may be", || server.n_served() == SERVED).await;
        echo(&mut early).await;
        assert_eq!(n_descriptors(), n_before + clients.len() + SERVED - 1);
        n_opened += clients.len();
        drop(clients);
        wait_until("all but the early client are gone", || n_descriptors() == n_before).await;
    }
    echo(&mut UnixStream::connect(server.socket()).await.unwrap()).await;
    wait_until("the last client is gone", || n_descriptors() == n_before).await;

    // The server has not run since these have connected, and finds descriptors for few of them.
    let waiting: Vec<_> = (1..SERVED).map(|_| StdStream::connect(server.socket()).unwrap()).collect();
    let few = Rlimit { current: Some(n_descriptors() as u64 + 4), ..files };
    setrlimit(Resource::Nofile, few).unwrap();
    wait_until("descriptors have run out", || std::fs::read_dir("/proc/self/fd").is_err()).await;
    assert!(server.n_served() < SERVED);
    echo(&mut early).await;
    setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).unwrap();
    wait_until("the others are served", || server.n_served() == SERVED).await;
    echo(&mut early).await;
    drop(waiting);
    wait_until("no descriptor is left", || n_descriptors() == n_before).await;
}
