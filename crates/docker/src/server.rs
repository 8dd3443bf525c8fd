//! The socket: HTTP requests of container engines, and limits on them.
//!
//! Docker sends JSON with media types of its own, or none, so bodies are parsed whatever they are called. An error is an answer with the
//! text in `Err` and status 500, as Docker's own plugin helpers send it.

use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FrontEnd;
use bulkhead_front_end::{Connections, repeat};
use bulkhead_sys::roots::Roots;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;

use crate::plugin::Plugin;
use crate::protocol::{
    Activated, Capabilities, CapabilitiesReply, Create, Got, Listed, MEDIA_TYPE, Mounted, Named, Outcome, Use,
};
use crate::{advice, engine};

/// Largest request body that is read, in bytes: 14 options fit in a fraction of it.
pub const MAX_BODY_BYTES: usize = 64 << 10;

/// What clients are granted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections are served at a time; more wait in the socket's queue.
    pub connections: usize,
    /// How long a client may take to send a request's head, and then its body. An idle connection is closed after that time too.
    pub patience: Duration,
    /// How long the daemon may be away until a request fails.
    pub away: Duration,
    /// The same for `Get` and `Path`, and within what time these are answered. Docker takes any error for a volume that does not exist, forgets
    /// it, and creates one of that name with its own driver; only when it gives up waiting, after a minute, does it know that it does not know.
    pub answer: Duration,
    /// Within what time a `Create` or `Mount` is answered: Docker gives up after two minutes.
    pub long: Duration,
    /// Within what time a `Remove` or `Unmount` is answered: Docker gives up after a minute.
    pub short: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            patience: Duration::from_secs(30),
            away: Duration::from_secs(30),
            answer: Duration::from_secs(70),
            long: Duration::from_secs(110),
            short: Duration::from_secs(55),
        }
    }
}

impl Limits {
    /// How long the daemon may be away during a request, and within what time the request is answered.
    fn of(&self, operation: &str) -> (Duration, Duration) {
        match operation {
            "Create" | "Mount" => (self.away, self.long),
            "Remove" | "Unmount" => (self.away, self.short),
            // These tell Docker whether a volume exists.
            _ => (self.answer, self.answer),
        }
    }
}

/// Answers requests on a socket until `stop` resolves. `roots`: where the names of its clients' processes are found.
///
/// # Errors
/// When the socket fails.
pub async fn serve(
    listener: UnixListener,
    plugin: Plugin,
    roots: &Roots,
    limits: Limits,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let answer = |stream: UnixStream| {
        let context = Context { plugin: plugin.clone(), engine: engine::of(roots, &stream), limits };
        answer(stream, router(context), limits)
    };
    Connections::accept(&listener, limits.connections, stop, answer).await?.finish().await;
    Ok(())
}

async fn answer(stream: UnixStream, router: Router, limits: Limits) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// What a request's handler has.
#[derive(Clone, Debug)]
struct Context {
    plugin: Plugin,
    /// The client.
    engine: FrontEnd,
    limits: Limits,
}

fn router(context: Context) -> Router {
    let activated = || async { reply(&Activated { implements: ["VolumeDriver"] }) };
    let capabilities = || async { reply(&CapabilitiesReply { capabilities: Capabilities { scope: "local" } }) };
    Router::new()
        .route("/Plugin.Activate", post(activated))
        .route("/VolumeDriver.Capabilities", post(capabilities))
        .route("/VolumeDriver.Create", post(create))
        .route("/VolumeDriver.Remove", post(remove))
        .route("/VolumeDriver.Mount", post(mount))
        .route("/VolumeDriver.Unmount", post(unmount))
        .route("/VolumeDriver.Path", post(path))
        .route("/VolumeDriver.Get", post(get))
        .route("/VolumeDriver.List", post(list))
        .fallback(async |request: Request| unknown(&request, StatusCode::NOT_FOUND))
        .method_not_allowed_fallback(async |request: Request| unknown(&request, StatusCode::METHOD_NOT_ALLOWED))
        .with_state(context)
}

async fn create(State(context): State<Context>, body: Body) -> Response {
    respond("Create", body, context, |plugin, request: Arc<Create>, deadline| async move {
        plugin.create(&request, deadline).await.map(|()| Outcome::default())
    })
    .await
}

async fn remove(State(context): State<Context>, body: Body) -> Response {
    let engine = context.engine;
    respond("Remove", body, context, move |plugin, request: Arc<Named>, deadline| async move {
        plugin.remove(&request.name, engine, deadline).await.map(|()| Outcome::default())
    })
    .await
}

async fn mount(State(context): State<Context>, body: Body) -> Response {
    let engine = context.engine;
    respond("Mount", body, context, move |plugin, request: Arc<Use>, deadline| async move {
        plugin.mount(&request, engine, deadline).await.map(Mounted::at)
    })
    .await
}

async fn unmount(State(context): State<Context>, body: Body) -> Response {
    let engine = context.engine;
    respond("Unmount", body, context, move |plugin, request: Arc<Use>, deadline| async move {
        plugin.unmount(&request, engine, deadline).await.map(|()| Outcome::default())
    })
    .await
}

async fn path(State(context): State<Context>, body: Body) -> Response {
    respond("Path", body, context, |plugin, request: Arc<Named>, _| async move {
        plugin.path(&request.name).await.map(Mounted::at)
    })
    .await
}

async fn get(State(context): State<Context>, body: Body) -> Response {
    respond("Get", body, context, |plugin, request: Arc<Named>, _| async move {
        plugin.get(&request.name).await.map(|volume| Got { volume, err: String::new() })
    })
    .await
}

async fn list(State(context): State<Context>) -> Response {
    match context.plugin.list().await {
        Ok(volumes) => reply(&Listed { volumes, err: String::new() }),
        Err(fault) => failed("List", &fault),
    }
}

/// Reads a request, has it carried out, and logs it.
async fn respond<T, R, F>(
    operation: &'static str,
    body: Body,
    context: Context,
    carry_out: impl Fn(Plugin, Arc<T>, Instant) -> F + Send + Sync + 'static,
) -> Response
where
    T: DeserializeOwned + Debug + Send + Sync + 'static,
    R: Serialize + Send + 'static,
    F: Future<Output = Result<R, Fault>> + Send,
{
    let arrived = Instant::now();
    let request: Arc<T> = match read(body, context.limits.patience).await {
        Ok(request) => Arc::new(request),
        Err(fault) => return failed(operation, &fault),
    };
    tracing::debug!(operation, ?request, "request");
    let (away, limit) = context.limits.of(operation);
    let deadline = arrived + limit;
    // Not cut off when the client closes the connection.
    let ended = tokio::spawn(async move {
        repeat::until_answered(away, deadline, || carry_out(context.plugin.clone(), Arc::clone(&request), deadline))
            .await
    });
    let aborted = |_| Err(Fault::new(Code::Internal, operation, "the request was aborted"));
    match ended.await.unwrap_or_else(aborted) {
        Ok(answer) => {
            let took_ms = arrived.elapsed().as_millis();
            tracing::debug!(operation, took_ms, "answered");
            reply(&answer)
        }
        Err(fault) => failed(operation, &fault),
    }
}

async fn read<T: DeserializeOwned>(body: Body, patience: Duration) -> Result<T, Fault> {
    let invalid = |cause: String| Fault::new(Code::InvalidArgument, "request", cause);
    let bytes: Bytes = tokio::time::timeout(patience, axum::body::to_bytes(body, MAX_BODY_BYTES))
        .await
        .map_err(|_| invalid(format!("its body was not complete after {patience:?}")))?
        .map_err(|error| invalid(format!("its body cannot be read (limit {MAX_BODY_BYTES} bytes): {error}")))?;
    serde_json::from_slice(&bytes).map_err(|error| invalid(format!("its body is malformed: {error}")))
}

fn failed(operation: &'static str, fault: &Fault) -> Response {
    let err = advice::text(fault);
    // Docker looks for volumes that do not exist yet, or no longer.
    if operation == "Get" && fault.code == Code::NotFound {
        tracing::debug!(operation, err, "no such volume");
    } else {
        tracing::warn!(operation, err, "request failed");
    }
    (StatusCode::INTERNAL_SERVER_ERROR, reply(&Outcome { err })).into_response()
}

fn unknown(request: &Request, status: StatusCode) -> Response {
    let err = format!("{} {:?} is not a request of the volume plugin protocol", request.method(), request.uri().path());
    (status, reply(&Outcome { err })).into_response()
}

fn reply(answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => ([(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response(),
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
