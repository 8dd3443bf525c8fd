//! The HTTP front end: routes, and the translation between requests and the engine's operations.
//!
//! Owns: which path is which operation, and that every answer that is not a success is a [`Fault`] as JSON. One operation runs
//! at a time, on a blocking thread; a panic in one becomes [`Code::Internal`], and the daemon goes on.
//! Does not: decide anything about pools, volumes, tenants or devices, listen on a socket of its own (`daemon.rs`), or check
//! who calls: the permissions of the socket do that (root, and the members of the group it was given to).

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes as BodyBytes;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::serve::IncomingStream;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Calibration, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::observe::view::Observation;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::wire::{
    DeviceControl, DeviceView, Done, HeatRow, HoldStart, HoldView, HostView, LeaseCreate, LeaseReply, PoolCreate,
    PoolView, ReceiveView, SendView, TenantCreate, TenantSet, TenantView, VolumeCheck, VolumeCopy, VolumeCreate,
    VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_sys::bpf;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;
use tokio::sync::{Mutex, Semaphore};
use uuid::Uuid;

use crate::engine::Engine;
use crate::hold::Holder;
use crate::metrics;
use crate::observe::Observe;
use crate::openapi::{ListFaults, ObjectFaults, ObserveFaults, WriteFaults};

/// Largest request body that is read, in bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// Most questions about what goes on that are answered at a time.
const MAX_QUESTIONS: usize = 4;

/// What the routes work on: the engine, one operation at a time.
#[derive(Clone, Debug)]
pub struct Api(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Arc<Mutex<Engine>>,
    facts: serde_json::Value,
    observe: Arc<dyn Observe>,
    holder: Arc<std::sync::Mutex<Holder>>,
    /// A question blocks a thread while the observation starts: not more of them than this.
    questions: Arc<Semaphore>,
    closed: AtomicBool,
}

impl Api {
    /// On this engine, which should be reconciled. `facts` is what `GET /v1/host` tells about the host.
    #[must_use]
    pub fn new(engine: Engine, facts: serde_json::Value, observe: Arc<dyn Observe>) -> Self {
        let holds = engine.holds().unwrap_or_else(|fault| {
            tracing::error!(%fault, "holds cannot be taken up again");
            Vec::new()
        });
        let holder = Arc::new(std::sync::Mutex::new(Holder::new(holds)));
        let engine = Arc::new(Mutex::new(engine));
        let (questions, closed) = (Arc::new(Semaphore::new(MAX_QUESTIONS)), AtomicBool::new(false));
        Self(Arc::new(Inner { engine, facts, observe, holder, questions, closed }))
    }

    /// What goes on on the host, with the longest waits of the last `waits`; operations do not hold it up.
    ///
    /// # Errors
    /// Those of [`Observe::observe`].
    pub async fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let permit = Arc::clone(&self.0.questions).acquire_owned().await;
        let observe = Arc::clone(&self.0.observe);
        // The thread is blocked until there is an answer, also when nobody waits for it any more.
        let seen = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            observe.observe(waits)
        })
        .await;
        seen.unwrap_or_else(|error| Err(Fault::new(Code::Internal, "observation", error)))
    }

    /// Looks after what may drift; does nothing once closed.
    pub async fn tick(&self) {
        let outcome = self.call(|engine| {
            engine.tick();
            Ok(())
        });
        if let Err(fault) = outcome.await
            && fault.code != Code::Unavailable
        {
            tracing::error!(%fault, "the periodic check failed");
        }
    }

    /// Makes a step of all holds, if there are any; does nothing once closed.
    pub async fn hold_step(&self) {
        if self.holder().is_empty() {
            return;
        }
        let seen = self.observe(Duration::ZERO).await;
        let (at_ns, holder) = (bpf::now_ns(), Arc::clone(&self.0.holder));
        let stepped = self.call(move |engine| {
            locked(&holder).step(engine, seen, at_ns);
            Ok(())
        });
        if let Err(fault) = stepped.await
            && fault.code != Code::Unavailable
        {
            tracing::error!(%fault, "a step of holding shares failed");
        }
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        locked(&self.0.holder)
    }

    /// Refuses all further operations, also those that wait for their turn, and waits for the one that runs.
    pub async fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        self.0.observe.stop();
        drop(self.0.engine.lock().await);
    }

    /// Carries out one operation when it is its turn. Once begun it is finished, also when the client has gone away.
    async fn call<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&mut Engine) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let mut engine = Arc::clone(&self.0.engine).lock_owned().await;
        if self.0.closed.load(Ordering::SeqCst) {
            return Err(Fault::new(Code::Unavailable, "daemon", "it is stopping").cure("try again when it runs again"));
        }
        let outcome = tokio::task::spawn_blocking(move || operation(&mut engine)).await;
        outcome.unwrap_or_else(|error| {
            let cause = error.try_into_panic().map_or_else(|error| error.to_string(), |panic| panic_message(&*panic));
            tracing::error!(%cause, "an operation panicked");
            Err(Fault::new(Code::Internal, "daemon", format!("the operation broke off by a bug in Bulkhead: {cause}"))
                .cure("look at the object with `inspect` before trying again, and report this with the daemon's log"))
        })
    }
}

/// A panic in a step leaves at worst a hold that begins anew with the next one.
fn locked(holder: &std::sync::Mutex<Holder>) -> MutexGuard<'_, Holder> {
    holder.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Who is at the other end of a connection, for the log.
#[derive(Clone, Copy, Debug)]
struct Peer {
    uid: Option<u32>,
    pid: Option<i32>,
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let credentials = stream.io().peer_cred().ok();
        Self { uid: credentials.map(|c| c.uid()), pid: credentials.and_then(|c| c.pid()) }
    }
}

/// Answers requests on a socket until `stop` resolves, and then until the open requests are answered.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: UnixListener,
    api: Api,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let service = router(api).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).with_graceful_shutdown(stop).await
}

/// All routes.
pub fn router(api: Api) -> Router {
    let v1 = Router::new()
        .route("/pools", get(pool_list).post(pool_create))
        .route("/pools/{name}", get(pool_inspect).delete(pool_remove))
        .route("/volumes", get(volume_list).post(volume_create))
        .route("/volumes/{pool}/{name}", get(volume_inspect).delete(volume_remove))
        .route("/volumes/{pool}/{name}/resize", post(volume_resize))
        .route("/volumes/{pool}/{name}/copy", post(volume_copy))
        .route("/volumes/{pool}/{name}/rollback", post(volume_rollback))
        .route("/volumes/{pool}/{name}/flatten", post(volume_flatten))
        .route("/volumes/{pool}/{name}/send", post(volume_send))
        .route(
            "/volumes/{pool}/{name}/receive",
            post(volume_receive).get(volume_receiving).delete(volume_receive_abort),
        )
        .route("/volumes/{pool}/{name}/received", post(volume_received))
        .route("/volumes/{pool}/{name}/check", post(volume_check))
        .route("/tenants", get(tenant_list).post(tenant_create))
        .route("/tenants/{name}", get(tenant_inspect).patch(tenant_set).delete(tenant_remove))
        .route("/leases", post(lease_create))
        .route("/leases/{id}", delete(lease_remove))
        .route("/devices", get(device_list))
        .route("/devices/{name}", get(device_inspect))
        .route("/devices/{name}/control", post(device_control))
        .route("/devices/{name}/calibrate", post(device_calibrate))
        .route("/heatmap", get(heatmap))
        .route("/holds", get(hold_list).post(hold_start))
        .route("/holds/{device}", delete(hold_stop))
        .route("/observation", get(observation))
        .route("/host", get(host))
        .route("/healthz", get(healthz))
        .route("/openapi.json", get(openapi));
    Router::new()
        .nest("/v1", v1)
        .route("/metrics", get(metrics_text))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(log))
        .with_state(api)
}

/// Only the metrics, for a listener that others than root may reach.
pub fn metrics_router(api: Api) -> Router {
    Router::new()
        .route("/metrics", get(metrics_text))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(log))
        .with_state(api)
}

async fn log(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|ConnectInfo(peer)| *peer);
    let (uid, pid) = peer.map_or((None, None), |peer| (peer.uid, peer.pid));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    let (status, took_ms) = (response.status().as_u16(), started.elapsed().as_millis());
    if method == Method::GET || method == Method::HEAD {
        tracing::debug!(%method, path, status, uid, pid, took_ms, "request");
    } else {
        tracing::info!(%method, path, status, uid, pid, took_ms, "request");
    }
    response
}

/// A success as JSON.
struct Json<T>(T);

impl<T: serde::Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// Everything else as JSON. The status is that of the fault's code, except where HTTP has a narrower one (405, 413).
struct Failure {
    status: StatusCode,
    fault: Fault,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let status = StatusCode::from_u16(fault.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, fault }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.fault)).into_response()
    }
}

type Reply<T> = Result<Json<T>, Failure>;

fn invalid(cause: impl std::fmt::Display) -> Failure {
    Fault::new(Code::InvalidArgument, "request", cause).into()
}

/// A request body.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = BodyBytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let cause = format!("its body is larger than {MAX_BODY_BYTES} bytes");
                return Failure { status: StatusCode::PAYLOAD_TOO_LARGE, ..invalid(cause) };
            }
            invalid(format!("its body cannot be read ({})", rejection.body_text()))
        })?;
        let body = serde_json::from_slice(&bytes);
        body.map(Self).map_err(|error| invalid(format!("its body is not the JSON that is expected: {error}")))
    }
}

/// The query of a request.
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|rejection: QueryRejection| invalid(rejection.body_text()))?;
        Ok(Self(query))
    }
}

/// What the variable parts of a path name.
struct At<T>(T);

impl<T: FromPath, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = Path::<T::Parts>::from_request_parts(parts, state).await;
        let Path(path) = path.map_err(|rejection: PathRejection| invalid(rejection.body_text()))?;
        T::from_path(path).map(Self).map_err(|error| invalid(format!("its path is wrong: {error}")))
    }
}

trait FromPath: Sized {
    type Parts: DeserializeOwned + Send;

    fn from_path(parts: Self::Parts) -> Result<Self, String>;
}

impl FromPath for Name {
    type Parts = String;

    fn from_path(name: String) -> Result<Self, String> {
        name.parse().map_err(|error: bulkhead_core::name::NameError| error.to_string())
    }
}

impl FromPath for VolumeRef {
    type Parts = (String, String);

    fn from_path((pool, name): (String, String)) -> Result<Self, String> {
        Ok(Self { pool: Name::from_path(pool)?, name: Name::from_path(name)? })
    }
}

/// The kernel name of a device; the engine looks it up among those that are there.
struct Device(String);

impl FromPath for Device {
    type Parts = String;

    fn from_path(name: String) -> Result<Self, String> {
        Ok(Self(name))
    }
}

impl FromPath for Uuid {
    type Parts = String;

    fn from_path(text: String) -> Result<Self, String> {
        Uuid::parse_str(&text).map_err(|error| format!("{text:?} is not the id of a lease ({error})"))
    }
}

/// Query of a request that writes.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Write {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
}

/// Query of a removal.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Remove {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
    /// Remove it although it is in use.
    #[serde(default)]
    force: bool,
}

/// Query of the list of volumes.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OfPool {
    /// Only the volumes of this pool.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pool: Option<Name>,
}

/// Query of the observation.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Waits {
    /// Add the longest waits of so many seconds; they are remembered for 300 s.
    #[serde(default)]
    waits_seconds: f64,
}

/// Lists the pools.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses((status = 200, body = Vec<PoolView>), ListFaults))]
async fn pool_list(State(api): State<Api>) -> Reply<Vec<PoolView>> {
    Ok(Json(api.call(|engine| engine.pool_list()).await?))
}

/// Makes a pool, or takes one over that describes itself by this name. Idempotent.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", params(Write), request_body = PoolCreate,
    responses((status = 200, body = Done<PoolView>), WriteFaults))]
async fn pool_create(
    State(api): State<Api>,
    Asked(query): Asked<Write>,
    Body(request): Body<PoolCreate>,
) -> Reply<Done<PoolView>> {
    Ok(Json(api.call(move |engine| engine.pool_create(&request, query.dry_run)).await?))
}

/// Shows a pool.
#[utoipa::path(get, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 200, body = PoolView), ObjectFaults))]
async fn pool_inspect(State(api): State<Api>, At(name): At<Name>) -> Reply<PoolView> {
    Ok(Json(api.call(move |engine| engine.pool_inspect(&name)).await?))
}

/// Removes an empty pool. Idempotent.
#[utoipa::path(delete, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path), Write),
    responses((status = 200, body = Done<PoolView>), WriteFaults))]
async fn pool_remove(State(api): State<Api>, At(name): At<Name>, Asked(query): Asked<Write>) -> Reply<Done<PoolView>> {
    Ok(Json(api.call(move |engine| engine.pool_remove(&name, query.dry_run)).await?))
}

/// Lists the volumes of all pools, or of one.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(OfPool),
    responses((status = 200, body = Vec<VolumeView>), ObjectFaults))]
async fn volume_list(State(api): State<Api>, Asked(query): Asked<OfPool>) -> Reply<Vec<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_list(query.pool.as_ref())).await?))
}

/// Makes a volume with an empty file system. Idempotent.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", params(Write), request_body = VolumeCreate,
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_create(
    State(api): State<Api>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeCreate>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_create(&request, query.dry_run)).await?))
}

/// Shows a volume.
#[utoipa::path(get, path = "/v1/volumes/{pool}/{name}", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = VolumeView), ObjectFaults))]
async fn volume_inspect(State(api): State<Api>, At(volume): At<VolumeRef>) -> Reply<VolumeView> {
    Ok(Json(api.call(move |engine| engine.volume_inspect(&volume)).await?))
}

/// Removes a volume and its data; one that is mounted only with `force`. Idempotent.
#[utoipa::path(delete, path = "/v1/volumes/{pool}/{name}", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Remove),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_remove(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Remove>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_remove(&volume, query.force, query.dry_run)).await?))
}

/// Changes a volume's size. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/resize", tag = "volumes", request_body = VolumeResize,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_resize(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeResize>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_resize(&volume, &request, query.dry_run)).await?))
}

/// Makes a snapshot or a clone in the same pool. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/copy", tag = "volumes", request_body = VolumeCopy,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_copy(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeCopy>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_copy(&volume, &request, query.dry_run)).await?))
}

/// Shows what volumes have read of what they share: from the disk, from the host's page cache, or from a sibling's.
#[utoipa::path(get, path = "/v1/heatmap", tag = "volumes", responses((status = 200, body = [HeatRow]), ListFaults))]
async fn heatmap(State(api): State<Api>) -> Reply<Vec<HeatRow>> {
    Ok(Json(api.call(|engine| engine.heatmap()).await?))
}

/// Makes a volume that no tenant holds what a snapshot of it holds; what was written since is lost.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/rollback", tag = "volumes", request_body = VolumeRollback,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_rollback(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeRollback>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_rollback(&volume, &request, query.dry_run)).await?))
}

/// Has a copied volume copy what it still shares, while it is in use. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/flatten", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_flatten(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_flatten(&volume, query.dry_run)).await?))
}

/// Says what is to be read to send a snapshot, after it was made sure that this never changes. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/send", tag = "volumes", request_body = VolumeSend,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<SendView>), WriteFaults))]
async fn volume_send(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeSend>,
) -> Reply<Done<SendView>> {
    Ok(Json(api.call(move |engine| engine.volume_send(&volume, &request, query.dry_run)).await?))
}

/// Begins to receive a snapshot as a volume, or goes on with it: what comes next is written to the part. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes", request_body = StreamHeader,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<ReceiveView>), WriteFaults))]
async fn volume_receive(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(header): Body<StreamHeader>,
) -> Reply<Done<ReceiveView>> {
    Ok(Json(api.call(move |engine| engine.volume_receive(&volume, &header, query.dry_run)).await?))
}

/// Tells how far the receiving of a volume is.
#[utoipa::path(get, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = ReceiveView), ObjectFaults))]
async fn volume_receiving(State(api): State<Api>, At(volume): At<VolumeRef>) -> Reply<ReceiveView> {
    Ok(Json(api.call(move |engine| engine.volume_receiving(&volume)).await?))
}

/// Gives up what was received of a volume so far. Idempotent.
#[utoipa::path(delete, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<ReceiveView>), WriteFaults))]
async fn volume_receive_abort(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
) -> Reply<Done<ReceiveView>> {
    Ok(Json(api.call(move |engine| engine.volume_receive_abort(&volume, query.dry_run)).await?))
}

/// Makes a snapshot of what was received, when all of it was.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/received", tag = "volumes", request_body = StreamHeader,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_received(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(header): Body<StreamHeader>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_received(&volume, &header, query.dry_run)).await?))
}

/// Checks the file system of a volume that is not mounted.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/check", tag = "volumes", request_body = VolumeCheck,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
async fn volume_check(
    State(api): State<Api>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Body(request): Body<VolumeCheck>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(api.call(move |engine| engine.volume_check(&volume, request.repair, query.dry_run)).await?))
}

/// Lists the tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants",
    responses((status = 200, body = Vec<TenantView>), ListFaults))]
async fn tenant_list(State(api): State<Api>) -> Reply<Vec<TenantView>> {
    Ok(Json(api.call(|engine| engine.tenant_list()).await?))
}

/// Makes a tenant and mounts its volumes. Idempotent.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", params(Write), request_body = TenantCreate,
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
async fn tenant_create(
    State(api): State<Api>,
    Asked(query): Asked<Write>,
    Body(request): Body<TenantCreate>,
) -> Reply<Done<TenantView>> {
    Ok(Json(api.call(move |engine| engine.tenant_create(&request, query.dry_run)).await?))
}

/// Shows a tenant.
#[utoipa::path(get, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path)),
    responses((status = 200, body = TenantView), ObjectFaults))]
async fn tenant_inspect(State(api): State<Api>, At(name): At<Name>) -> Reply<TenantView> {
    Ok(Json(api.call(move |engine| engine.tenant_inspect(&name)).await?))
}

/// Changes a tenant's share, limits and volumes. Idempotent.
#[utoipa::path(patch, path = "/v1/tenants/{name}", tag = "tenants", request_body = TenantSet,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
async fn tenant_set(
    State(api): State<Api>,
    At(name): At<Name>,
    Asked(query): Asked<Write>,
    Body(request): Body<TenantSet>,
) -> Reply<Done<TenantView>> {
    Ok(Json(api.call(move |engine| engine.tenant_set(&name, &request, query.dry_run)).await?))
}

/// Removes a tenant; with `force` its processes are killed. Its volumes stay. Idempotent.
#[utoipa::path(delete, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path), Remove),
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
async fn tenant_remove(
    State(api): State<Api>,
    At(name): At<Name>,
    Asked(query): Asked<Remove>,
) -> Reply<Done<TenantView>> {
    Ok(Json(api.call(move |engine| engine.tenant_remove(&name, query.force, query.dry_run)).await?))
}

/// Mounts volumes for a tenant for as long as a process lives.
#[utoipa::path(post, path = "/v1/leases", tag = "leases", request_body = LeaseCreate,
    responses((status = 200, body = LeaseReply), WriteFaults))]
async fn lease_create(State(api): State<Api>, Body(request): Body<LeaseCreate>) -> Reply<LeaseReply> {
    Ok(Json(api.call(move |engine| engine.lease_create(&request)).await?))
}

/// Gives a lease back. Idempotent.
#[utoipa::path(delete, path = "/v1/leases/{id}", tag = "leases", params(("id" = Uuid, Path)),
    responses((status = 204, description = "There is no such lease any more"), WriteFaults))]
async fn lease_remove(State(api): State<Api>, At(id): At<Uuid>) -> Result<StatusCode, Failure> {
    api.call(move |engine| engine.lease_remove(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Lists the block devices: physical ones, and those stacked on them.
#[utoipa::path(get, path = "/v1/devices", tag = "devices",
    responses((status = 200, body = Vec<DeviceView>), ListFaults))]
async fn device_list(State(api): State<Api>) -> Reply<Vec<DeviceView>> {
    Ok(Json(api.call(|engine| engine.device_list()).await?))
}

/// Shows a block device, and whether shares have an effect on it.
#[utoipa::path(get, path = "/v1/devices/{name}", tag = "devices", params(("name" = String, Path)),
    responses((status = 200, body = DeviceView), ObjectFaults))]
async fn device_inspect(State(api): State<Api>, At(Device(name)): At<Device>) -> Reply<DeviceView> {
    Ok(Json(api.call(move |engine| engine.device_inspect(&name)).await?))
}

/// Puts a controller in force on a physical device, or what was in force before Bulkhead changed it. Idempotent.
#[utoipa::path(post, path = "/v1/devices/{name}/control", tag = "devices", request_body = DeviceControl,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<DeviceView>), WriteFaults))]
async fn device_control(
    State(api): State<Api>,
    At(Device(name)): At<Device>,
    Asked(query): Asked<Write>,
    Body(request): Body<DeviceControl>,
) -> Reply<Done<DeviceView>> {
    Ok(Json(api.call(move |engine| engine.device_control(&name, &request, query.dry_run)).await?))
}

/// Records a calibration that was measured on the device, and applies it where io.cost is in force.
#[utoipa::path(post, path = "/v1/devices/{name}/calibrate", tag = "devices", request_body = Calibration,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<DeviceView>), WriteFaults))]
async fn device_calibrate(
    State(api): State<Api>,
    At(Device(name)): At<Device>,
    Asked(query): Asked<Write>,
    Body(request): Body<Calibration>,
) -> Reply<Done<DeviceView>> {
    Ok(Json(api.call(move |engine| engine.device_calibrated(&name, request, query.dry_run)).await?))
}

/// Lists the shares that are held.
#[utoipa::path(get, path = "/v1/holds", tag = "hold", responses((status = 200, body = [HoldView]), ListFaults))]
async fn hold_list(State(api): State<Api>) -> Reply<Vec<HoldView>> {
    Ok(Json(api.holder().views()))
}

/// Holds shares of containers on a device, journal I/O included, in place of what was held on it; the same request again renews a
/// lease.
#[utoipa::path(post, path = "/v1/holds", tag = "hold", params(Write), request_body = HoldStart,
    responses((status = 200, body = Done<HoldView>), WriteFaults))]
async fn hold_start(
    State(api): State<Api>,
    Asked(query): Asked<Write>,
    Body(request): Body<HoldStart>,
) -> Reply<Done<HoldView>> {
    let holder = Arc::clone(&api.0.holder);
    let held = api.call(move |engine| {
        let Done { object, steps, dry_run } = engine.hold_start(&request, query.dry_run)?;
        let object = object.filter(|_| !dry_run).map(|hold| locked(&holder).begin(hold));
        Ok(Done { object, steps, dry_run })
    });
    Ok(Json(held.await?))
}

/// Ends what is held on a device: the weights are as before. Idempotent.
#[utoipa::path(delete, path = "/v1/holds/{device}", tag = "hold", params(("device" = String, Path), Write),
    responses((status = 200, body = Done<HoldView>), WriteFaults))]
async fn hold_stop(
    State(api): State<Api>,
    At(Device(device)): At<Device>,
    Asked(query): Asked<Write>,
) -> Reply<Done<HoldView>> {
    let holder = Arc::clone(&api.0.holder);
    let ended = api.call(move |engine| {
        let Done { steps, dry_run, .. } = engine.hold_stop(&device, query.dry_run)?;
        if !dry_run {
            locked(&holder).end(&device);
        }
        Ok(Done { object: None, steps, dry_run })
    });
    Ok(Json(ended.await?))
}

/// Shows who wrote which journal bytes and who waited for whom in fsync: sums since the daemon began to observe, which are
/// compared with an earlier answer to see what happens now. The first question begins the observation.
#[utoipa::path(get, path = "/v1/observation", tag = "observe",
    params(Waits), responses((status = 200, body = Observation), ObserveFaults))]
async fn observation(State(api): State<Api>, Asked(query): Asked<Waits>) -> Reply<Observation> {
    let waits = Duration::try_from_secs_f64(query.waits_seconds).map_err(|error| {
        Fault::new(Code::InvalidArgument, "request", format!("waits_seconds={}: {error}", query.waits_seconds))
    })?;
    let seen = api.observe(waits).await?;
    Ok(Json(Observation { holds: api.holder().views(), ..seen }))
}

/// What was observed, for Prometheus. A scrape every two minutes or more often keeps the observation going.
#[utoipa::path(get, path = "/metrics", tag = "observe",
    responses((status = 200, description = "Metrics, in the format that is accepted", content_type = "application/openmetrics-text")))]
async fn metrics_text(State(api): State<Api>, headers: HeaderMap) -> impl IntoResponse {
    let format = metrics::Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let holds = api.holder().views();
    // What cannot be listed now is there at the next scrape.
    let listed = api.call(|engine| Ok((engine.heatmap().unwrap_or_default(), engine.room().unwrap_or_default()))).await;
    let (heat, pools) = listed.unwrap_or_default();
    let seen = metrics::Seen { observed: api.observe(Duration::ZERO).await, holds, heat, pools };
    ([(CONTENT_TYPE, format.media_type())], metrics::render(seen, format))
}

/// Shows what the daemon is and sees.
#[utoipa::path(get, path = "/v1/host", tag = "host", responses((status = 200, body = HostView), ListFaults))]
async fn host(State(api): State<Api>) -> Reply<HostView> {
    let problems = api.call(|engine| Ok(engine.problems().to_vec())).await?;
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Json(HostView { version, facts: api.0.facts.clone(), problems }))
}

/// Answers while the daemon lives, also during a long operation.
#[utoipa::path(get, path = "/v1/healthz", tag = "host",
    responses((status = 200, description = "The daemon answers", body = serde_json::Value)))]
async fn healthz() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "host",
    responses((status = 200, description = "The OpenAPI document", body = serde_json::Value)))]
async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(crate::openapi::document())
}

async fn no_such_path(request: Request) -> Failure {
    let cause = format!("there is no path {:?} in the API", request.uri().path());
    Fault::new(Code::NotFound, "request", cause).cure("GET /v1/openapi.json describes the API").into()
}

async fn no_such_method(request: Request) -> Failure {
    let cause = format!("{} is not possible on {:?}", request.method(), request.uri().path());
    let fault = Fault::new(Code::InvalidArgument, "request", cause).cure("GET /v1/openapi.json describes the API");
    Failure { status: StatusCode::METHOD_NOT_ALLOWED, fault }
}

/// The documented paths, for `openapi.rs`; the attribute macros above leave their descriptions here.
#[derive(utoipa::OpenApi)]
#[openapi(paths(
    pool_list,
    pool_create,
    pool_inspect,
    pool_remove,
    volume_list,
    volume_create,
    volume_inspect,
    volume_remove,
    volume_resize,
    volume_copy,
    volume_rollback,
    volume_flatten,
    heatmap,
    volume_send,
    volume_receive,
    volume_receiving,
    volume_receive_abort,
    volume_received,
    volume_check,
    tenant_list,
    tenant_create,
    tenant_inspect,
    tenant_set,
    tenant_remove,
    lease_create,
    lease_remove,
    device_list,
    device_inspect,
    device_control,
    device_calibrate,
    hold_list,
    hold_start,
    hold_stop,
    observation,
    metrics_text,
    host,
    healthz,
    openapi,
))]
pub(crate) struct Paths;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carry_out::Executor;
    use crate::engine::Dirs;
    use crate::sim::Sim;

    fn api() -> Api {
        let engine = Engine::new(Dirs::default(), Executor::new(Box::new(Sim::default()), None));
        Api::new(engine, serde_json::Value::Null, Arc::new(crate::sim::Observed::default()))
    }

    /// Answers no question until it is open.
    #[derive(Debug, Default)]
    struct Gate(std::sync::Mutex<bool>, std::sync::Condvar);

    impl Observe for Gate {
        fn observe(&self, _waits: Duration) -> Result<Observation, Fault> {
            drop(self.1.wait_while(self.0.lock().unwrap(), |open| !*open).unwrap());
            Ok(Observation::default())
        }
    }

    #[tokio::test]
    async fn questions_that_were_given_up_still_count_while_they_block_a_thread() {
        let gate = Arc::new(Gate::default());
        let engine = Engine::new(Dirs::default(), Executor::new(Box::new(Sim::default()), None));
        let api = Api::new(engine, serde_json::Value::Null, gate.clone());
        for _ in 0..MAX_QUESTIONS {
            // Polled once, as by a scraper that gives up: the question is asked.
            tokio::select! { biased; _ = api.observe(Duration::ZERO) => panic!("the gate is shut"), () = std::future::ready(()) => {} }
        }
        let n_free = api.0.questions.available_permits();
        // Before anything can fail: threads that wait at the gate would keep the test from ending.
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        assert_eq!(n_free, 0);
        api.observe(Duration::ZERO).await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_fault_and_the_next_operation_works() {
        let api = api();
        let fault = api.call::<()>(|_| panic!("the {} broke", "wheel")).await.unwrap_err();
        assert_eq!(fault.code, Code::Internal);
        assert!(fault.cause.ends_with("a bug in Bulkhead: the wheel broke"), "{fault}");
        assert_eq!(api.call(|engine| engine.pool_list()).await, Ok(vec![]));
    }

    #[tokio::test]
    async fn closing_waits_for_the_running_operation_and_refuses_the_waiting_one() {
        let api = api();
        let (go, may_end) = std::sync::mpsc::channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let running = tokio::spawn({
            let api = api.clone();
            async move {
                api.call(move |_| {
                    begun.send(()).unwrap();
                    may_end.recv().unwrap();
                    Ok("finished")
                })
                .await
            }
        });
        has_begun.await.unwrap();
        let mut waiting = Box::pin(api.call(|_| Ok(())));
        let mut closing = Box::pin(api.close());
        // Polled once each, in this order: one waits for its turn, and the other has closed the door and waits as well.
        tokio::select! { biased; _ = &mut waiting => panic!("not its turn"), () = std::future::ready(()) => {} }
        tokio::select! { biased; () = &mut closing => panic!("it did not wait"), () = std::future::ready(()) => {} }
        go.send(()).unwrap();
        assert_eq!(running.await.unwrap(), Ok("finished"));
        assert_eq!(waiting.await.map_err(|fault| fault.code), Err(Code::Unavailable));
        closing.await;
    }
}
