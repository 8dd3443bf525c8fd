//! A client of the daemon's API on its unix socket: one typed method for each route, and a [`Fault`] for everything else.
//!
//! Owns: the translation of calls to requests, and what an operator reads when no daemon answers. Each call makes a connection of its
//! own. Does not: know where a route is or what it takes (`routes` does), retry, or limit how long an operation may take that has begun
//! (filling a large volume takes as long as it takes).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::wire::{
    DeviceControl, DeviceMeasure, DeviceView, Done, HeatRow, HoldStart, HoldView, HostView, ImageImport, JOB_HEADER,
    JobView, LeaseCreate, LeaseReply, Observation, PoolCreate, PoolMove, PoolView, REQUEST_HEADER, ReceiveView,
    RunStart, RunView, STREAM_PROTOCOL, TenantCreate, TenantSet, TenantView, TrimView, VolumeCheck, VolumeCopy,
    VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Calibration, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::stream::StreamHeader;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use uuid::Uuid;

use crate::routes::{
    self, AtEnd, Body, Device, NoQuery, Nothing, OfPool, Place, Query, Receive, Remove, Route, Run, Wait, Waits, Write,
};
use crate::terms::Terms;

/// Where the daemon listens when nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/bulkhead/bulkhead.sock";

/// How a removal is to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Also when it is in use.
    pub force: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// After how long a request's job is looked at, and how often then.
const LOOK: Duration = Duration::from_secs(1);

/// Is told how a request stands that takes longer than a moment.
pub trait Watch: fmt::Debug + Send + Sync {
    /// The request's job, about once a second.
    fn sees(&self, job: &JobView);
}

/// The answer to a request for a stream.
#[derive(Debug)]
pub enum Streamed<T> {
    /// What would be done: it was a dry run.
    Planned(T),
    /// The stream.
    Stream(Stream),
}

/// A connection that is the stream of a job.
#[derive(Debug)]
pub struct Stream {
    /// The job: its outcome is there ([`Client::job_at_end`]).
    pub job: u64,
    /// The connection. Reading and writing wait.
    pub socket: std::os::unix::net::UnixStream,
    /// What was read of it already.
    pub ahead: Bytes,
}

/// How a request for a stream was answered.
pub(crate) enum Switched {
    Not(StatusCode, Bytes),
    To(Stream),
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;
type Connection = hyper::client::conn::http1::Connection<TokioIo<UnixStream>, Full<Bytes>>;

/// Speaks to the daemon at one socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    /// How long a request waits, before it has changed anything; as the daemon sees fit when `None`.
    wait: Option<Duration>,
    watch: Option<Arc<dyn Watch>>,
}

/// Every method fails with the daemon's own fault; with `Unavailable` or `PermissionDenied` when it cannot be reached.
#[expect(clippy::missing_errors_doc, reason = "said once for all of them, at the top of the block")]
impl Client {
    /// Speaks to the daemon that listens here.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), wait: None, watch: None }
    }

    /// Has each request wait so long, at most, for other operations and for data to be written, before it has changed anything.
    #[must_use]
    pub fn with_wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Has somebody told about requests that take long.
    #[must_use]
    pub fn with_watch(self, watch: Arc<dyn Watch>) -> Self {
        Self { watch: Some(watch), ..self }
    }

    /// Where the daemon is expected to listen.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// How long operations may wait for others; as the daemon sees fit when `None`.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }

    /// All pools.
    pub async fn pool_list(&self) -> Result<Vec<PoolView>, Fault> {
        self.ask(routes::pool_list(), &(), NoQuery {}).await
    }

    /// Makes a pool.
    pub async fn pool_create(&self, request: &PoolCreate, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.change(routes::pool_create(), &(), write(dry_run), request).await
    }

    /// One pool.
    pub async fn pool_inspect(&self, name: &Name) -> Result<PoolView, Fault> {
        self.ask(routes::pool_inspect(), name, NoQuery {}).await
    }

    /// Says where a pool in a directory is now.
    pub async fn pool_move(&self, name: &Name, request: &PoolMove, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.change(routes::pool_move(), name, write(dry_run), request).await
    }

    /// Removes an empty pool.
    pub async fn pool_remove(&self, name: &Name, dry_run: bool) -> Result<Done<PoolView>, Fault> {
        self.change(routes::pool_remove(), name, write(dry_run), &()).await
    }

    /// All volumes, or those of one pool.
    pub async fn volume_list(&self, pool: Option<&Name>) -> Result<Vec<VolumeView>, Fault> {
        self.ask(routes::volume_list(), &(), OfPool { pool: pool.cloned() }).await
    }

    /// Makes a volume.
    pub async fn volume_create(&self, request: &VolumeCreate, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_create(), &(), write(dry_run), request).await
    }

    /// One volume.
    pub async fn volume_inspect(&self, volume: &VolumeRef) -> Result<VolumeView, Fault> {
        self.ask(routes::volume_inspect(), volume, NoQuery {}).await
    }

    /// Removes a volume and its data.
    pub async fn volume_remove(&self, volume: &VolumeRef, how: Removal) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_remove(), volume, how.into(), &()).await
    }

    /// Changes a volume's size.
    pub async fn volume_resize(
        &self,
        volume: &VolumeRef,
        request: &VolumeResize,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_resize(), volume, write(dry_run), request).await
    }

    /// Makes a snapshot or a clone.
    pub async fn volume_copy(
        &self,
        volume: &VolumeRef,
        request: &VolumeCopy,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_copy(), volume, write(dry_run), request).await
    }

    /// Shows what volumes have read of what they share.
    ///
    /// # Errors
    /// The daemon's faults.
    pub async fn heatmap(&self) -> Result<Vec<HeatRow>, Fault> {
        self.ask(routes::heatmap(), &(), NoQuery {}).await
    }

    /// Makes a volume what a snapshot of it holds.
    pub async fn volume_rollback(
        &self,
        volume: &VolumeRef,
        request: &VolumeRollback,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_rollback(), volume, write(dry_run), request).await
    }

    /// Has a copied volume copy what it still shares, or no longer.
    pub async fn volume_flatten(
        &self,
        volume: &VolumeRef,
        request: &VolumeFlatten,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_flatten(), volume, write(dry_run), request).await
    }

    /// Sends a snapshot: what is read from the stream.
    pub async fn volume_send(
        &self,
        volume: &VolumeRef,
        request: &VolumeSend,
        dry_run: bool,
    ) -> Result<Streamed<Done<VolumeView>>, Fault> {
        self.stream(routes::volume_send(), volume, write(dry_run), request).await
    }

    /// Receives a snapshot, or goes on with it: what is written to the stream. `tenant` pays, if one is named.
    pub async fn volume_receive(
        &self,
        volume: &VolumeRef,
        header: &StreamHeader,
        tenant: Option<&Name>,
        dry_run: bool,
    ) -> Result<Streamed<Done<ReceiveView>>, Fault> {
        let query = Receive { dry_run, tenant: tenant.cloned(), wait_seconds: None };
        self.stream(routes::volume_receive(), volume, query, header).await
    }

    /// How far the receiving of a volume is.
    pub async fn volume_receiving(&self, volume: &VolumeRef) -> Result<ReceiveView, Fault> {
        self.ask(routes::volume_receiving(), volume, NoQuery {}).await
    }

    /// Gives up what was received.
    pub async fn volume_receive_abort(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<ReceiveView>, Fault> {
        self.change(routes::volume_receive_abort(), volume, write(dry_run), &()).await
    }

    /// Imports an image: the archive that is written to the stream.
    pub async fn volume_import(
        &self,
        volume: &VolumeRef,
        request: &ImageImport,
        dry_run: bool,
    ) -> Result<Streamed<Done<ReceiveView>>, Fault> {
        self.stream(routes::volume_import(), volume, write(dry_run), request).await
    }

    /// Checks a volume's file system.
    pub async fn volume_check(
        &self,
        volume: &VolumeRef,
        request: &VolumeCheck,
        dry_run: bool,
    ) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_check(), volume, write(dry_run), request).await
    }

    /// Has a mounted volume give what its files no longer use back to its pool. Giving up the call ends it.
    pub async fn volume_trim(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<TrimView>, Fault> {
        self.change(routes::volume_trim(), volume, write(dry_run), &()).await
    }

    /// Gives a volume a device without mounting it.
    pub async fn volume_map(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_map(), volume, write(dry_run), &()).await
    }

    /// Takes the device of a mapped volume away.
    pub async fn volume_unmap(&self, volume: &VolumeRef, dry_run: bool) -> Result<Done<VolumeView>, Fault> {
        self.change(routes::volume_unmap(), volume, write(dry_run), &()).await
    }

    /// All tenants.
    pub async fn tenant_list(&self) -> Result<Vec<TenantView>, Fault> {
        self.ask(routes::tenant_list(), &(), NoQuery {}).await
    }

    /// Makes a tenant.
    pub async fn tenant_create(&self, request: &TenantCreate, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        self.change(routes::tenant_create(), &(), write(dry_run), request).await
    }

    /// One tenant.
    pub async fn tenant_inspect(&self, name: &Name) -> Result<TenantView, Fault> {
        self.ask(routes::tenant_inspect(), name, NoQuery {}).await
    }

    /// Changes a tenant.
    pub async fn tenant_set(&self, name: &Name, request: &TenantSet, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        self.change(routes::tenant_set(), name, write(dry_run), request).await
    }

    /// Removes a tenant; its volumes stay.
    pub async fn tenant_remove(&self, name: &Name, how: Removal) -> Result<Done<TenantView>, Fault> {
        self.change(routes::tenant_remove(), name, how.into(), &()).await
    }

    /// Mounts volumes for a tenant for as long as a process lives.
    pub async fn lease_create(&self, request: &LeaseCreate) -> Result<LeaseReply, Fault> {
        self.change(routes::lease_create(), &(), Wait::default(), request).await
    }

    /// Gives a lease back.
    pub async fn lease_remove(&self, id: Uuid) -> Result<(), Fault> {
        self.change(routes::lease_remove(), &id, Wait::default(), &()).await.map(|Nothing| ())
    }

    /// Puts a command into a tenant.
    pub async fn run_start(&self, tenant: &Name, request: &RunStart) -> Result<RunView, Fault> {
        self.change(routes::run_start(), tenant, Wait::default(), request).await
    }

    /// Ends what a command has left running, and gives back what was lent to it.
    pub async fn run_end(&self, run: &Run) -> Result<(), Fault> {
        self.change(routes::run_end(), run, Wait::default(), &()).await.map(|Nothing| ())
    }

    /// All block devices.
    pub async fn device_list(&self) -> Result<Vec<DeviceView>, Fault> {
        self.ask(routes::device_list(), &(), NoQuery {}).await
    }

    /// One block device, by its kernel name.
    pub async fn device_inspect(&self, name: &str) -> Result<DeviceView, Fault> {
        self.ask(routes::device_inspect(), &Device(name.to_owned()), NoQuery {}).await
    }

    /// The shares that are held.
    pub async fn hold_list(&self) -> Result<Vec<HoldView>, Fault> {
        self.ask(routes::hold_list(), &(), NoQuery {}).await
    }

    /// Holds shares on a device.
    pub async fn hold_start(&self, request: &HoldStart, dry_run: bool) -> Result<Done<HoldView>, Fault> {
        self.change(routes::hold_start(), &(), write(dry_run), request).await
    }

    /// Ends what is held on a device, by its kernel name or path.
    pub async fn hold_stop(&self, device: &str, dry_run: bool) -> Result<Done<HoldView>, Fault> {
        self.change(routes::hold_stop(), &Device(device.to_owned()), write(dry_run), &()).await
    }

    /// Puts a controller in force on a device, or what was in force before.
    pub async fn device_control(
        &self,
        name: &str,
        request: &DeviceControl,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        self.change(routes::device_control(), &Device(name.to_owned()), write(dry_run), request).await
    }

    /// Records a calibration that was measured on a device.
    pub async fn device_calibrate(
        &self,
        name: &str,
        calibration: &Calibration,
        dry_run: bool,
    ) -> Result<Done<DeviceView>, Fault> {
        self.change(routes::device_calibrate(), &Device(name.to_owned()), write(dry_run), calibration).await
    }

    /// Begins to measure a device.
    pub async fn device_measure(&self, name: &str, request: &DeviceMeasure) -> Result<JobView, Fault> {
        self.change(routes::device_measure(), &Device(name.to_owned()), Wait::default(), request).await
    }

    /// The jobs that run, and those that ended lately.
    pub async fn job_list(&self) -> Result<Vec<JobView>, Fault> {
        self.ask(routes::job_list(), &(), NoQuery {}).await
    }

    /// One job.
    pub async fn job_inspect(&self, id: u64) -> Result<JobView, Fault> {
        self.ask(routes::job_inspect(), &id, AtEnd::default()).await
    }

    /// One job, once it has ended, or `limit` is over.
    pub async fn job_at_end(&self, id: u64, limit: Duration) -> Result<JobView, Fault> {
        self.ask(routes::job_inspect(), &id, AtEnd { wait_seconds: limit.as_secs() }).await
    }

    /// Has a job undone, as soon as that is possible.
    pub async fn job_cancel(&self, id: u64) -> Result<JobView, Fault> {
        self.ask(routes::job_cancel(), &id, NoQuery {}).await
    }

    /// What goes on on the host, with the longest waits of the last `waits`.
    pub async fn observation(&self, waits: Duration) -> Result<Observation, Fault> {
        self.ask(routes::observation(), &(), Waits { waits_seconds: waits.as_secs_f64() }).await
    }

    /// What the daemon is and sees.
    pub async fn host(&self) -> Result<HostView, Fault> {
        self.ask(routes::host(), &(), NoQuery {}).await
    }

    /// Whether a daemon answers, also during a long operation.
    pub async fn healthz(&self) -> Result<(), Fault> {
        self.ask(routes::healthz(), &(), NoQuery {}).await.map(drop)
    }

    /// A request that is answered at once.
    async fn ask<A: Place, Q: Query<Terms = ()>, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, (), R>,
        at: &A,
        query: Q,
    ) -> Result<R, Fault> {
        self.call(route.method.clone(), &route.target(at, &query), Vec::new(), None).await
    }

    /// A request that becomes a job, which is watched if it takes long.
    async fn change<A: Place, Q: Query<Terms = Terms>, B: Body, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, B, R>,
        at: &A,
        query: Q,
        body: &B::Content,
    ) -> Result<R, Fault> {
        let target = route.target(at, &query.waiting(self.wait));
        let id = Uuid::new_v4();
        self.watched(id, self.call(route.method.clone(), &target, written::<B>(body)?, Some(id))).await
    }

    /// A request that becomes a job with a stream.
    async fn stream<A: Place, Q: Query<Terms = Terms>, B: Body, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, B, routes::Stream<R>>,
        at: &A,
        query: Q,
        body: &B::Content,
    ) -> Result<Streamed<R>, Fault> {
        let target = route.target(at, &query.waiting(self.wait));
        let id = Uuid::new_v4();
        let asked = self.watched(id, self.switch(route.method.clone(), &target, written::<B>(body)?, id));
        match asked.await? {
            Switched::Not(status, body) => self.answer(status, &body).map(Streamed::Planned),
            Switched::To(stream) => Ok(Streamed::Stream(stream)),
        }
    }

    /// Waits for an answer, and shows meanwhile how its job stands.
    async fn watched<T>(&self, id: Uuid, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let Some(watch) = &self.watch else { return answer.await };
        let watching = async {
            loop {
                tokio::time::sleep(LOOK).await;
                // A daemon that does not answer this has not answered the request either, and that will say why.
                let jobs = self.job_list().await.unwrap_or_default();
                jobs.iter().filter(|job| job.request == Some(id)).for_each(|job| watch.sees(job));
            }
        };
        tokio::select! {
            answer = answer => answer,
            never = watching => never,
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        target: &str,
        body: Vec<u8>,
        id: Option<Uuid>,
    ) -> Result<T, Fault> {
        let (status, body) = self.exchange(method, target, body, id).await?;
        self.answer(status, &body)
    }

    /// What an answer says.
    fn answer<T: DeserializeOwned>(&self, status: StatusCode, body: &[u8]) -> Result<T, Fault> {
        let foreign = |error: serde_json::Error| {
            let cause = format!(
                "what answers on {} with status {status} is not a daemon of this version ({error})",
                self.socket.display()
            );
            Fault::new(Code::Unavailable, "daemon", cause)
                .hint("restart the daemon after an upgrade: `systemctl restart bulkhead`")
        };
        if status.is_success() {
            let body: &[u8] = if status == StatusCode::NO_CONTENT { b"null" } else { body };
            serde_json::from_slice(body).map_err(foreign)
        } else {
            Err(serde_json::from_slice(body).unwrap_or_else(foreign))
        }
    }

    /// One request and its answer, as they are.
    pub async fn exchange(
        &self,
        method: Method,
        uri: &str,
        body: Vec<u8>,
        id: Option<Uuid>,
    ) -> Result<(StatusCode, Bytes), Fault> {
        let (mut sender, connection) = self.connect().await?;
        let request = request(method, uri, id).body(Full::new(Bytes::from(body))).map_err(bad_request)?;
        let exchange = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            Ok((status, response.into_body().collect().await?.to_bytes()))
        };
        // The connection has to be driven for the exchange to go on; it ends by itself when the sender is gone.
        let driver = tokio::spawn(connection);
        let outcome = exchange.await.map_err(|error: hyper::Error| self.broken(&error));
        driver.abort();
        outcome
    }

    /// One request whose connection becomes a stream, unless it is answered otherwise.
    pub(crate) async fn switch(&self, method: Method, uri: &str, body: Vec<u8>, id: Uuid) -> Result<Switched, Fault> {
        let (mut sender, connection) = self.connect().await?;
        let request = request(method, uri, Some(id))
            .header(hyper::header::CONNECTION, "upgrade")
            .header(hyper::header::UPGRADE, STREAM_PROTOCOL)
            .body(Full::new(Bytes::from(body)))
            .map_err(bad_request)?;
        let broken = |error: hyper::Error| self.broken(&error);
        // It ends by itself when the sender is gone, or the connection is a stream.
        drop(tokio::spawn(connection.with_upgrades()));
        let mut response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Switched::Not(status, response.into_body().collect().await.map_err(broken)?.to_bytes()));
        }
        let job = response.headers().get(JOB_HEADER).and_then(|job| job.to_str().ok()?.parse().ok());
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(broken)?;
        let foreign = || Fault::new(Code::Unavailable, "daemon", "what answers is not a daemon of this version");
        let job = job.ok_or_else(foreign)?;
        let parts = upgraded.downcast::<TokioIo<UnixStream>>().map_err(|_| foreign())?;
        let failed = |error: io::Error| Fault::new(Code::Internal, "stream", format!("it cannot be used ({error})"));
        let socket = parts.io.into_inner().into_std().map_err(failed)?;
        socket.set_nonblocking(false).map_err(failed)?;
        Ok(Switched::To(Stream { job, socket, ahead: parts.read_buf }))
    }

    async fn connect(&self) -> Result<(Sender, Connection), Fault> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(&error))
    }

    fn unreachable(&self, error: &io::Error) -> Fault {
        let socket = self.socket.display();
        match error.kind() {
            io::ErrorKind::NotFound => {
                Fault::new(Code::Unavailable, "daemon", format!("it is not running: there is no socket {socket}"))
                    .reason(Reason::DaemonUnreachable)
            }
            io::ErrorKind::ConnectionRefused => {
                Fault::new(Code::Unavailable, "daemon", format!("it is not running: nothing listens on {socket}"))
                    .reason(Reason::DaemonUnreachable)
            }
            io::ErrorKind::PermissionDenied => {
                Fault::new(Code::PermissionDenied, "daemon", format!("permission denied for its socket {socket}"))
                    .hint("run this as root, or as a member of the group that the socket belongs to")
            }
            _ => Fault::new(Code::Unavailable, "daemon", format!("cannot connect to {socket} ({error})"))
                .reason(Reason::DaemonUnreachable),
        }
    }

    fn broken(&self, error: &hyper::Error) -> Fault {
        let socket = self.socket.display();
        Fault::new(
            Code::Unavailable,
            "daemon",
            format!("the connection to {socket} was lost before the answer ({error})"),
        )
        .hint(
            "`journalctl -u bulkhead` says why; what it had started is completed or undone when it starts again, and the \
                 same command can be repeated",
        )
    }
}

fn request(method: Method, uri: &str, id: Option<Uuid>) -> hyper::http::request::Builder {
    let request = Request::builder()
        .method(method)
        .uri(uri)
        .header(hyper::header::HOST, "bulkhead")
        .header(hyper::header::CONTENT_TYPE, "application/json");
    match id {
        Some(id) => request.header(REQUEST_HEADER, id.to_string()),
        None => request,
    }
}

fn bad_request(error: hyper::http::Error) -> Fault {
    Fault::new(Code::InvalidArgument, "request", error)
}

fn written<B: Body>(body: &B::Content) -> Result<Vec<u8>, Fault> {
    B::write(body)
        .map_err(|error| Fault::new(Code::Internal, "request", format!("it cannot be written as JSON ({error})")))
}

fn write(dry_run: bool) -> Write {
    Write { dry_run, ..Write::default() }
}

impl From<Removal> for Remove {
    fn from(Removal { force, dry_run }: Removal) -> Self {
        Self { dry_run, force, wait_seconds: None }
    }
}
