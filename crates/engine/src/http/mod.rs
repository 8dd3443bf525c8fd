//! The HTTP front end: routes, and the translation between requests and the service's operations. A file for each noun.
//!
//! Owns: which path is which operation, and that every answer that is not a success is a [`Fault`] as JSON.
//! Does not: decide anything, listen on a socket of its own (`daemon.rs`), or check who calls: the permissions of the socket do that
//! (root, and the members of the group it was given to).

mod devices;
mod extract;
mod host;
mod pools;
mod tenants;
mod volumes;

use std::time::Instant;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{delete, get, post};
use axum::serve::IncomingStream;
use bulkhead_core::error::{Code, Fault};
use tokio::net::UnixListener;

use self::extract::Failure;
use crate::service::Service;

/// Largest request body that is read, in bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;

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
    service: Service,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let service = router(service).into_make_service_with_connect_info::<Peer>();
    axum::serve(listener, service).with_graceful_shutdown(stop).await
}

/// All routes.
pub fn router(service: Service) -> Router {
    let v1 = Router::new()
        .route("/pools", get(pools::pool_list).post(pools::pool_create))
        .route("/pools/{name}", get(pools::pool_inspect).delete(pools::pool_remove))
        .route("/pools/{name}/move", post(pools::pool_move))
        .route("/volumes", get(volumes::volume_list).post(volumes::volume_create))
        .route("/volumes/{pool}/{name}", get(volumes::volume_inspect).delete(volumes::volume_remove))
        .route("/volumes/{pool}/{name}/resize", post(volumes::volume_resize))
        .route("/volumes/{pool}/{name}/copy", post(volumes::volume_copy))
        .route("/volumes/{pool}/{name}/rollback", post(volumes::volume_rollback))
        .route("/volumes/{pool}/{name}/flatten", post(volumes::volume_flatten))
        .route("/volumes/{pool}/{name}/send", post(volumes::volume_send))
        .route(
            "/volumes/{pool}/{name}/receive",
            post(volumes::volume_receive).get(volumes::volume_receiving).delete(volumes::volume_receive_abort),
        )
        .route("/volumes/{pool}/{name}/received", post(volumes::volume_received))
        .route("/volumes/{pool}/{name}/check", post(volumes::volume_check))
        .route("/volumes/{pool}/{name}/map", post(volumes::volume_map).delete(volumes::volume_unmap))
        .route("/tenants", get(tenants::tenant_list).post(tenants::tenant_create))
        .route(
            "/tenants/{name}",
            get(tenants::tenant_inspect).patch(tenants::tenant_set).delete(tenants::tenant_remove),
        )
        .route("/leases", post(tenants::lease_create))
        .route("/leases/{id}", delete(tenants::lease_remove))
        .route("/devices", get(devices::device_list))
        .route("/devices/{name}", get(devices::device_inspect))
        .route("/devices/{name}/control", post(devices::device_control))
        .route("/devices/{name}/calibrate", post(devices::device_calibrate))
        .route("/heatmap", get(volumes::heatmap))
        .route("/holds", get(devices::hold_list).post(devices::hold_start))
        .route("/holds/{device}", delete(devices::hold_stop))
        .route("/jobs", get(host::job_list))
        .route("/jobs/{id}", get(host::job_inspect).delete(host::job_cancel))
        .route("/observation", get(host::observation))
        .route("/host", get(host::host))
        .route("/healthz", get(host::healthz))
        .route("/openapi.json", get(host::openapi));
    Router::new()
        .nest("/v1", v1)
        .route("/metrics", get(host::metrics_text))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(log))
        .with_state(service)
}

/// Only the metrics, for a listener that others than root may reach.
pub fn metrics_router(service: Service) -> Router {
    Router::new()
        .route("/metrics", get(host::metrics_text))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn(log))
        .with_state(service)
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
    pools::pool_list,
    pools::pool_create,
    pools::pool_inspect,
    pools::pool_move,
    pools::pool_remove,
    volumes::volume_list,
    volumes::volume_create,
    volumes::volume_inspect,
    volumes::volume_remove,
    volumes::volume_resize,
    volumes::volume_copy,
    volumes::volume_rollback,
    volumes::volume_flatten,
    volumes::heatmap,
    volumes::volume_send,
    volumes::volume_receive,
    volumes::volume_receiving,
    volumes::volume_receive_abort,
    volumes::volume_received,
    volumes::volume_check,
    volumes::volume_map,
    volumes::volume_unmap,
    tenants::tenant_list,
    tenants::tenant_create,
    tenants::tenant_inspect,
    tenants::tenant_set,
    tenants::tenant_remove,
    tenants::lease_create,
    tenants::lease_remove,
    devices::device_list,
    devices::device_inspect,
    devices::device_control,
    devices::device_calibrate,
    devices::hold_list,
    devices::hold_start,
    devices::hold_stop,
    host::job_list,
    host::job_inspect,
    host::job_cancel,
    host::observation,
    host::metrics_text,
    host::host,
    host::healthz,
    host::openapi,
))]
pub(crate) struct Paths;
