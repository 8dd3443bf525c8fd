//! The HTTP front end: the translation between requests and the service's operations, by the table of routes (`routes`).
//!
//! Owns: which operation answers which route, and that every answer that is not a success is a [`Fault`] as JSON.
//! Does not: decide anything, listen on a socket of its own (`daemon.rs`), or authenticate callers: the permissions of the socket do that
//! (root, and the members of its group).

mod api;
mod handlers;
mod upgrade;

use std::time::Instant;

use axum::Router;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::serve::IncomingStream;
use bulkhead_core::error::{Code, Fault};
use tokio::net::UnixListener;

use self::api::{Api, Failure};
use crate::service::Service;

/// Largest request body that is read, in bytes.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// The peer of a connection, for the log.
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
    complete(handlers::all(), service)
}

/// Only the metrics, for a listener that users other than root may reach.
pub fn metrics_router(service: Service) -> Router {
    complete(handlers::metrics(Api::default()), service)
}

fn complete(api: Api, service: Service) -> Router {
    api.router
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
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
    Fault::new(Code::NotFound, "request", cause).hint("GET /v1/openapi.json describes the API").into()
}

async fn no_such_method(request: Request) -> Failure {
    let cause = format!("{} is not supported on {:?}", request.method(), request.uri().path());
    let fault = Fault::new(Code::InvalidArgument, "request", cause).hint("GET /v1/openapi.json describes the API");
    Failure { status: StatusCode::METHOD_NOT_ALLOWED, fault }
}

#[cfg(test)]
mod tests;
