//! The HTTP endpoint for probes and metrics, and limits on its clients.
//!
//! It listens on the network, and authenticates nobody. So a connection has one request, without a body, and a limited time from its beginning
//! to its end; and what reveals more than the driver's own state is disabled unless it is asked for.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use bulkhead_front_end::Connections;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::metrics::Metrics;
use crate::probes::Probes;

const PATHS: [&str; 4] = ["/healthz", "/readyz", "/metrics", "/metrics/daemon"];

/// Largest head of a request, in bytes. It cannot be smaller than 8 KiB.
const MAX_HEAD_BYTES: usize = 16 << 10;

/// Largest text of the daemon's metrics that is passed on, in bytes: that of some 100 000 series.
const MAX_METRICS_BYTES: usize = 16 << 20;

/// How many clients get the daemon's metrics at a time. Each takes memory of the driver and time of the daemon.
const MAX_SCRAPES: usize = 2;

const TEXT: &str = "text/plain; charset=utf-8";
/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What clients are granted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections are served at a time; more wait in the port's queue.
    pub connections: usize,
    /// How long a client may take to send its request.
    pub patience: Duration,
    /// How long the daemon may take to answer with its metrics. The first scrape attaches the BPF programs.
    pub scrape: Duration,
    /// How long a connection may take in all.
    pub connection: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            patience: Duration::from_secs(5),
            scrape: Duration::from_secs(30),
            connection: Duration::from_secs(60),
        }
    }
}

/// What the endpoint answers from.
#[derive(Debug)]
pub struct Diagnostics {
    probes: Probes,
    metrics: Metrics,
    /// Permits to get the daemon's metrics; `None`: they are not passed on.
    scrapes: Option<Arc<Semaphore>>,
    limits: Limits,
    reported: Reported,
}

/// The last reasons why each probe failed, so that the log has each once, and not for each probe.
#[derive(Debug, Default)]
struct Reported {
    driver: Mutex<Option<String>>,
    daemon: Mutex<Option<String>>,
}

impl Diagnostics {
    /// Also passes the daemon's metrics on with `with_daemon`: they reveal the names of all containers that do I/O.
    #[must_use]
    pub fn new(probes: Probes, metrics: Metrics, with_daemon: bool, limits: Limits) -> Self {
        let scrapes = with_daemon.then(|| Arc::new(Semaphore::new(MAX_SCRAPES)));
        Self { probes, metrics, scrapes, limits, reported: Reported::default() }
    }

    /// Answers requests until `stop` resolves.
    ///
    /// # Errors
    /// As [`Connections::accept`].
    pub async fn serve(self, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let this = Arc::new(self);
        let answer = |stream| answer(stream, Arc::clone(&this));
        Connections::accept(&listener, this.limits.connections, stop, answer).await?.finish().await;
        Ok(())
    }

    async fn respond(&self, request: &Request<Incoming>, held: &Held) -> Response<Body> {
        let path = request.uri().path();
        if !PATHS.contains(&path) {
            return response(
                StatusCode::NOT_FOUND,
                TEXT,
                format!("there is no such path; there are {}\n", PATHS.join(", ")),
            );
        }
        if request.method() != Method::GET {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is allowed\n");
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
            return refusal;
        }
        match path {
            "/healthz" => probed("driver", self.probes.driver().await, &self.reported.driver),
            "/readyz" => probed("daemon", self.probes.daemon().await, &self.reported.daemon),
            "/metrics" => response(StatusCode::OK, METRICS, self.metrics.text()),
            _ => self.daemon_metrics(held).await,
        }
    }

    async fn daemon_metrics(&self, held: &Held) -> Response<Body> {
        let Some(scrapes) = &self.scrapes else {
            let text = "the daemon's metrics are disabled: start the driver with --daemon-metrics\n";
            return response(StatusCode::NOT_FOUND, TEXT, text);
        };
        let scrape = async {
            // The semaphore is never closed.
            let permit = Arc::clone(scrapes).acquire_owned().await.ok();
            *held.0.lock().unwrap_or_else(PoisonError::into_inner) = permit;
            self.probes.daemon.metrics(MAX_METRICS_BYTES).await
        };
        match tokio::time::timeout(self.limits.scrape, scrape).await {
            Ok(Ok(text)) => response(StatusCode::OK, METRICS, text),
            Ok(Err(fault)) => response(StatusCode::BAD_GATEWAY, TEXT, format!("{fault}\n")),
            Err(_) => {
                let text = format!("daemon: its metrics were not complete after {:?}\n", self.limits.scrape);
                response(StatusCode::GATEWAY_TIMEOUT, TEXT, text)
            }
        }
    }
}

/// The permit that a connection has, until its end: a response takes memory until its client has read it.
#[derive(Debug, Default)]
struct Held(Mutex<Option<OwnedSemaphorePermit>>);

/// Answers the request of a connection.
async fn answer(stream: TcpStream, this: Arc<Diagnostics>) {
    let limits = this.limits;
    let held = Arc::new(Held::default());
    let service = service_fn(move |request| {
        let (this, held) = (Arc::clone(&this), Arc::clone(&held));
        async move { Ok::<_, Infallible>(this.respond(&request, &held).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .max_buf_size(MAX_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(limits.connection, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection for probes or metrics ended early"),
        Err(_) => tracing::debug!("a connection for probes or metrics took too long"),
    }
}

/// The answer to a probe. The log has the reason when it changes, because the node's agent shows only the status.
fn probed(what: &'static str, outcome: Result<(), String>, reported: &Mutex<Option<String>>) -> Response<Body> {
    let cause = outcome.err();
    let before = std::mem::replace(&mut *reported.lock().unwrap_or_else(PoisonError::into_inner), cause.clone());
    match &cause {
        Some(cause) if before.as_ref() != Some(cause) => tracing::warn!(probe = what, cause, "a probe fails"),
        None if before.is_some() => tracing::info!(probe = what, "a probe succeeds again"),
        _ => {}
    }
    match cause {
        None => response(StatusCode::OK, TEXT, "ok\n"),
        Some(cause) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{cause}\n")),
    }
}

fn response(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::from(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
