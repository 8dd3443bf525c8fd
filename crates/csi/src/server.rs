//! The socket: gRPC calls over HTTP/2, and limits on those who make them.
//!
//! Of a call, its name, its outcome and its duration are logged, and never what it contains: requests may have secrets.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::Router;
use axum::response::IntoResponse as _;
use bulkhead_front_end::Connections;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::{Service as _, service_fn};
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Code, Status};

use crate::controller::Controller;
use crate::identity::Driver;
use crate::metrics::Metrics;
use crate::node::Node;
use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;

/// Largest request that is read, in bytes. CSI limits maps of texts to 4 KiB each; a Kubernetes secret has at most 1 MiB.
pub const MAX_REQUEST_BYTES: usize = 2 << 20;

/// Largest head of a request, in bytes.
const MAX_HEAD_BYTES: u32 = 16 << 10;

/// Calls in progress on one connection; sidecars have one connection each, with some ten workers.
const MAX_CALLS: u32 = 64;

/// What clients are granted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections are served at a time; more wait in the socket's queue.
    pub connections: usize,
    /// How long a client may take from its connection to the end of its first request's head, and to answer a ping when it is idle. A client
    /// that has made a call may be idle for as long as it likes: sidecars end when they lose their connection.
    pub patience: Duration,
    /// How long a call may take, from the end of its head: its body, and its answer. Longer than the driver waits for the daemon.
    pub call: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 128, patience: Duration::from_secs(30), call: Duration::from_secs(120) }
    }
}

/// The services that a process provides.
#[derive(Clone, Debug)]
pub struct Services {
    /// Answers who the driver is.
    pub driver: Driver,
    /// Creates and changes volumes.
    pub controller: Option<Controller>,
    /// Makes volumes usable on this node.
    pub node: Option<Node>,
}

impl Services {
    /// Their calls.
    #[must_use]
    pub fn routes(self) -> Routes {
        let mut routes = Routes::new(IdentityServer::new(self.driver).max_decoding_message_size(MAX_REQUEST_BYTES));
        if let Some(controller) = self.controller {
            let service = ControllerServer::new(controller).max_decoding_message_size(MAX_REQUEST_BYTES);
            routes = routes.add_service(service);
        }
        if let Some(node) = self.node {
            routes = routes.add_service(NodeServer::new(node).max_decoding_message_size(MAX_REQUEST_BYTES));
        }
        routes
    }
}

/// Answers calls on a socket until `stop` resolves, and counts them.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: UnixListener,
    routes: Routes,
    metrics: Metrics,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let routes = routes.into_axum_router();
    let (stopping, stopped) = watch::channel(false);
    let answer = |stream| answer(stream, routes.clone(), metrics.clone(), limits, stopped.clone());
    let connections = Connections::accept(&listener, limits.connections, stop, answer).await?;
    drop(listener);
    stopping.send_replace(true);
    connections.finish().await;
    Ok(())
}

/// Answers the calls on one connection, until its client closes it, it is idle without ever having made a call, or the driver stops.
async fn answer(
    stream: UnixStream,
    routes: Router,
    metrics: Metrics,
    limits: Limits,
    mut stopped: watch::Receiver<bool>,
) {
    let (first_call, mut called) = watch::channel(false);
    let routes = TowerToHyperService::new(routes);
    let service = service_fn(move |request| {
        first_call.send_replace(true);
        call(routes.clone(), request, metrics.clone(), limits.call)
    });
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEAD_BYTES)
        .keep_alive_interval(limits.patience)
        .keep_alive_timeout(limits.patience)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let silence = async {
        if tokio::time::timeout(limits.patience, is_set(&mut called)).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = silence => return tracing::debug!("a connection without a call is closed"),
        () = is_set(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

async fn is_set(flag: &mut watch::Receiver<bool>) {
    // Its sender is only dropped when nobody waits any more.
    let _ = flag.wait_for(|set| *set).await;
}

/// Answers one call.
async fn call(
    routes: TowerToHyperService<Router>,
    request: Request<Incoming>,
    metrics: Metrics,
    limit: Duration,
) -> Result<Response<axum::body::Body>, Infallible> {
    let name = request.uri().path().to_owned();
    if request.method() != Method::POST {
        let status = Status::unimplemented(format!("HTTP method {}: gRPC requires POST", request.method()));
        return Ok(status.into_http::<tonic::body::Body>().into_response());
    }
    let counted = metrics.begin(&name);
    let answer = match tokio::time::timeout(limit, routes.call(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => match error {},
        Err(_) => {
            let status = Status::deadline_exceeded(format!("the call was not complete after {} s", limit.as_secs()));
            status.into_http::<tonic::body::Body>().into_response()
        }
    };
    let status = Status::from_header_map(answer.headers());
    let took_ms = counted.end(status.as_ref().map_or(Code::Ok, Status::code)).as_millis();
    match status {
        None => tracing::debug!(?name, took_ms, "answered"),
        // What is expected of orchestrators: they look for what does not exist, and repeat what is in progress.
        Some(status) if matches!(status.code(), Code::NotFound | Code::Aborted) => {
            tracing::debug!(?name, took_ms, code = ?status.code(), error = status.message(), "answered");
        }
        Some(status) => {
            tracing::warn!(?name, took_ms, code = ?status.code(), error = status.message(), "call failed");
        }
    }
    Ok(answer)
}
