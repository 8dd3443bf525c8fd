//! A client of the daemon's API on its unix socket: one typed method for each route.
//!
//! Owns: the conversion of calls to requests, and the error that an operator reads when no daemon answers. Each call makes its own
//! connection. Does not: know the path or parameters of a route (`routes` does), retry, or limit the duration of an operation that has
//! started: filling a large volume takes as long as it takes.

mod devices;
mod tenants;
mod transport;
mod volumes;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::error::Fault;
use bulkhead_core::name::Name;
use bulkhead_core::report::HostReport;
use hyper::body::Bytes;
use uuid::Uuid;

use crate::routes::{self, JobQuery, NoQuery, ObservationQuery, Remove, Write};
use crate::wire::{Done, HostView, JobView, Observation, PoolCreate, PoolMove, PoolView};

/// The default path of the daemon's socket.
pub const DEFAULT_SOCKET: &str = "/run/bulkhead/bulkhead.sock";

/// Options of a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Remove the object even if it is in use.
    pub force: bool,
    /// Return the steps without carrying them out.
    pub dry_run: bool,
}

/// Receives the state of jobs that take longer than a moment.
pub trait JobListener: fmt::Debug + Send + Sync {
    /// Called about once a second with the job of a request in progress.
    fn on_progress(&self, job: &JobView);
}

/// The answer to a request for a stream.
#[derive(Debug)]
pub enum Streamed<T> {
    /// The plan, in a dry run.
    Planned(T),
    /// The stream.
    Stream(Stream),
}

/// A connection that carries the stream of a job.
#[derive(Debug)]
pub struct Stream {
    /// The job, which has the result ([`Client::job_at_end`]).
    pub job: u64,
    /// The connection, in blocking mode.
    pub socket: std::os::unix::net::UnixStream,
    /// Bytes of the stream that have been read from the connection already.
    pub ahead: Bytes,
}

/// Talks to the daemon at one socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// How long a request may wait before it changes anything; `None` for the daemon's default.
    wait: Option<Duration>,
    listener: Option<Arc<dyn JobListener>>,
    /// The id of all requests; `None`: each has its own.
    request: Option<Uuid>,
}

/// Every method fails with the daemon's own error, or with `Unavailable` or `PermissionDenied` if the daemon cannot be reached.
#[expect(clippy::missing_errors_doc, reason = "documented once, at the top of the block")]
impl Client {
    /// A client of the daemon that listens on this socket.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), wait: None, listener: None, request: None }
    }

    /// Limits how long each request waits for other operations, and for data to be written, before it changes anything.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Reports the progress of requests that take long to `listener`.
    #[must_use]
    pub fn with_listener(self, listener: Arc<dyn JobListener>) -> Self {
        Self { listener: Some(listener), ..self }
    }

    /// Repeats under one id each change that it requests more than once, so that the daemon counts it once: for a client that does not
    /// know whether the daemon has died before or after a change.
    #[must_use]
    pub fn with_one_request(self) -> Self {
        Self { request: Some(Uuid::new_v4()), ..self }
    }

    /// The path of the daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How long operations may wait for others; `None` for the daemon's default.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Lists all pools.
    pub async fn pool_list(&self) -> Result<Vec<PoolView>, Fault> {
        self.query(routes::pool_list(), &(), NoQuery {}).await
    }

    /// Creates a pool.
    pub async fn pool_create(&self, request: &PoolCreate, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.submit(routes::pool_create(), &(), dry(dry_run), request).await
    }

    /// Shows a pool.
    pub async fn pool_inspect(&self, name: &Name) -> Result<PoolView, Fault> {
        self.query(routes::pool_inspect(), name, NoQuery {}).await
    }

    /// Records the new directory of a directory pool.
    pub async fn pool_move(&self, name: &Name, request: &PoolMove, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.submit(routes::pool_move(), name, dry(dry_run), request).await
    }

    /// Removes an empty pool.
    pub async fn pool_remove(&self, name: &Name, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.submit(routes::pool_remove(), name, dry(dry_run), &()).await
    }

    /// Lists the jobs that are in progress or ended recently.
    pub async fn job_list(&self) -> Result<Vec<JobView>, Fault> {
        self.query(routes::job_list(), &(), NoQuery {}).await
    }

    /// Shows a job.
    pub async fn job_inspect(&self, id: u64) -> Result<JobView, Fault> {
        self.query(routes::job_inspect(), &id, JobQuery::default()).await
    }

    /// Shows a job when it has ended, or after `limit` at the latest.
    pub async fn job_at_end(&self, id: u64, limit: Duration) -> Result<JobView, Fault> {
        self.query(routes::job_inspect(), &id, JobQuery { wait_seconds: limit.as_secs() }).await
    }

    /// Cancels a job and undoes what it has done, as soon as possible.
    pub async fn job_cancel(&self, id: u64) -> Result<JobView, Fault> {
        self.query(routes::job_cancel(), &id, NoQuery {}).await
    }

    /// Shows the I/O of containers, with the longest fsync waits of the last `waits`.
    pub async fn observation(&self, waits: Duration) -> Result<Observation, Fault> {
        self.query(routes::observation(), &(), ObservationQuery { waits_seconds: waits.as_secs_f64() }).await
    }

    /// Shows facts about the host, and the daemon's findings.
    pub async fn host(&self) -> Result<HostView, Fault> {
        self.query(routes::host(), &(), NoQuery {}).await
    }

    /// Shows what plans have to know of the host.
    pub async fn host_report(&self) -> Result<HostReport, Fault> {
        self.query(routes::host_report(), &(), NoQuery {}).await
    }

    /// Succeeds if a daemon answers; long operations do not delay it.
    pub async fn healthz(&self) -> Result<(), Fault> {
        self.query(routes::healthz(), &(), NoQuery {}).await.map(drop)
    }
}

fn dry(dry_run: bool) -> Write {
    Write { dry_run, ..Write::default() }
}

impl From<Removal> for Remove {
    fn from(Removal { force, dry_run }: Removal) -> Self {
        Self { dry_run, force, wait_seconds: None }
    }
}
