//! HTTP: the verbs of the extender, probes and metrics, and limits on clients.
//!
//! It authenticates nobody: it listens on the loopback address of its scheduler's pod unless it is configured otherwise. Requests change
//! nothing but assumptions, which end by themselves.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bulkhead_front_end::Connections;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::{Cluster, Now, Unknown};
use crate::decide::{Decision, Outcome, decide, scores};
use crate::metrics::Metrics;
use crate::protocol::{Args, FilterResult, HostPriority, NodeList, Pod};
use crate::wish::Wish;

const PATHS: [&str; 5] = ["/filter", "/prioritize", "/healthz", "/readyz", "/metrics"];

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Prometheus' text format.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What clients are granted.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How many connections are served at a time; more wait in the port's queue.
    pub connections: usize,
    /// How long a connection may be idle, and a client take to send the head of a request. Longer than the 90 s after which a scheduler closes an
    /// idle connection, so that it does not meet one that is just being closed.
    pub idle: Duration,
    /// How long a client may take to send the body of a request.
    pub body: Duration,
    /// Largest body, bytes: names of 5000 nodes take 0.3 MB, as objects some tens of MB.
    pub body_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16, idle: Duration::from_secs(100), body: Duration::from_secs(10), body_bytes: 32 << 20 }
    }
}

/// What requests are answered from.
#[derive(Debug)]
pub struct Extender {
    cluster: Mutex<Cluster>,
    /// What was counted.
    pub metrics: Metrics,
    limits: Limits,
    /// Why it is not ready yet; `None` once it is.
    not_ready: Mutex<Option<String>>,
    /// What was last logged of each kind, so that the log has it once.
    logged: Mutex<Vec<(Unknown, String)>>,
}

impl Extender {
    /// On a cluster, not ready for `why` until [`Extender::set_ready`].
    #[must_use]
    pub fn new(cluster: Cluster, limits: Limits, why: &str) -> Self {
        Self {
            cluster: Mutex::new(cluster),
            metrics: Metrics::default(),
            limits,
            not_ready: Mutex::new(Some(why.to_owned())),
            logged: Mutex::default(),
        }
    }

    /// What is known of the cluster.
    pub fn cluster(&self) -> MutexGuard<'_, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `/readyz` succeeds, or fails for this reason.
    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.not_ready.lock().unwrap_or_else(PoisonError::into_inner) = ready.err();
    }

    /// Answers requests until `stop` resolves.
    ///
    /// # Errors
    /// As [`Connections::accept`].
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: impl Future<Output = ()>) -> io::Result<()> {
        let answer = |stream| answer(stream, Arc::clone(&self));
        Connections::accept(&listener, self.limits.connections, stop, answer).await?.finish().await;
        Ok(())
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let began = Instant::now();
        let path = request.uri().path().to_owned();
        let Some(path) = PATHS.into_iter().find(|known| *known == path) else {
            return response(
                StatusCode::NOT_FOUND,
                TEXT,
                format!("there is no such path; there are {}\n", PATHS.join(", ")),
            );
        };
        let verb = path.trim_start_matches('/');
        let is_verb = matches!(verb, "filter" | "prioritize");
        let wanted = if is_verb { Method::POST } else { Method::GET };
        if request.method() != wanted {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("only {wanted} is allowed\n"));
            let allow = if is_verb { "POST" } else { "GET" };
            refusal.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
            return refusal;
        }
        match path {
            "/healthz" => response(StatusCode::OK, TEXT, "ok\n"),
            "/readyz" => {
                let cause = self.not_ready.lock().unwrap_or_else(PoisonError::into_inner).clone();
                match cause {
                    None => response(StatusCode::OK, TEXT, "ok\n"),
                    Some(cause) => response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{cause}\n")),
                }
            }
            "/metrics" => {
                let counts = self.cluster().counts(now());
                response(StatusCode::OK, METRICS, self.metrics.text(counts))
            }
            _ => {
                let this = Arc::clone(&self);
                let answered = self.verb(verb, request.into_body()).await;
                let outcome = if answered.status().is_success() { "ok" } else { "refused" };
                this.metrics.request(verb, outcome, began.elapsed());
                answered
            }
        }
    }

    /// Answers one of the two verbs.
    async fn verb(self: Arc<Self>, verb: &str, body: Incoming) -> Response<Full<Bytes>> {
        let limit = self.limits.body_bytes;
        if body.size_hint().lower() > limit as u64 {
            return response(StatusCode::PAYLOAD_TOO_LARGE, TEXT, format!("the body has more than {limit} bytes\n"));
        }
        let collected = tokio::time::timeout(self.limits.body, Limited::new(body, limit).collect()).await;
        let body = match collected {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => {
                let cause = format!("the body cannot be read, or has more than {limit} bytes ({error})\n");
                return response(StatusCode::PAYLOAD_TOO_LARGE, TEXT, cause);
            }
            Err(_) => return response(StatusCode::REQUEST_TIMEOUT, TEXT, "the body did not arrive in time\n"),
        };
        let is_filter = verb == "filter";
        // Predictions take milliseconds of a processor.
        let answered = tokio::task::spawn_blocking(move || {
            let args: Args =
                serde_json::from_slice(&body).map_err(|error| format!("not the arguments of an extender: {error}"))?;
            if is_filter { self.filter(&args, now()) } else { self.prioritize(&args, now()) }
        });
        match answered.await {
            Ok(Ok(json)) => response(StatusCode::OK, JSON, json),
            Ok(Err(cause)) => {
                tracing::warn!(cause, "a request cannot be understood");
                response(StatusCode::BAD_REQUEST, TEXT, format!("{cause}\n"))
            }
            Err(error) => {
                tracing::error!(%error, "a request could not be answered");
                response(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "it could not be answered\n")
            }
        }
    }

    /// Answers `/filter`.
    ///
    /// # Errors
    /// For arguments that cannot be understood.
    pub fn filter(&self, args: &Args, now: Now) -> Result<Vec<u8>, String> {
        let candidates = args.candidates()?;
        let names: Vec<&str> = candidates.iter().map(|(name, _)| name.as_str()).collect();
        let outcomes = self.decide(&args.pod, &names, now);
        let mut result = FilterResult::default();
        let mut kept: Vec<usize> = Vec::new();
        for (index, name) in names.iter().enumerate() {
            match outcomes.as_ref().map(|outcomes| &outcomes[index]) {
                Some(Outcome::Fails(cause)) => drop(result.failed.insert(*name, cause.clone())),
                Some(Outcome::Impossible(cause)) => drop(result.unresolvable.insert(*name, cause.clone())),
                _ => kept.push(index),
            }
        }
        self.metrics.failed((result.failed.len() + result.unresolvable.len()) as u64);
        if outcomes.is_some() && kept.len() == 1 {
            // The scheduler does not ask for scores then.
            self.assume(&args.pod, names[kept[0]], now);
        }
        if args.node_names.is_some() {
            result.node_names = Some(kept.iter().map(|index| names[*index]).collect());
        } else {
            result.nodes = Some(NodeList::new(kept.iter().filter_map(|index| candidates[*index].1).collect()));
        }
        json(&result)
    }

    /// Answers `/prioritize`.
    ///
    /// # Errors
    /// For arguments that cannot be understood.
    pub fn prioritize(&self, args: &Args, now: Now) -> Result<Vec<u8>, String> {
        let candidates = args.candidates()?;
        let names: Vec<&str> = candidates.iter().map(|(name, _)| name.as_str()).collect();
        let scores = match self.decide(&args.pod, &names, now) {
            None => vec![0; names.len()],
            Some(outcomes) => {
                let (scores, best) = scores(&args.pod, &outcomes);
                if let Some(best) = best {
                    self.assume(&args.pod, names[best], now);
                }
                scores
            }
        };
        let list: Vec<HostPriority<'_>> =
            names.iter().zip(scores).map(|(host, score)| HostPriority { host, score }).collect();
        json(&list)
    }

    /// The outcome for each candidate; `None` for a pod without a workload.
    fn decide(&self, pod: &Pod, names: &[&str], now: Now) -> Option<Vec<Outcome>> {
        let decision = decide(&mut self.cluster(), pod, names, now, Instant::now);
        let object = format!("pod {}/{}", pod.metadata.namespace, pod.metadata.name);
        let outcomes = match decision {
            Decision::NotAsked => return None,
            Decision::Outcomes(outcomes) => outcomes,
            Decision::Bad(bad) => {
                self.log_once(Unknown::Annotation, format!("{object}: {bad}"));
                vec![Outcome::Unknown(Unknown::Annotation); names.len()]
            }
        };
        for why in Unknown::ALL {
            let concerned = outcomes.iter().zip(names).filter(|(outcome, _)| **outcome == Outcome::Unknown(why));
            let concerned: Vec<&str> = concerned.map(|(_, name)| *name).collect();
            let Some(first) = concerned.first() else { continue };
            self.metrics.unknown(why, concerned.len() as u64);
            let workload = pod.metadata.labels.get(crate::wish::WORKLOAD).map_or("", String::as_str);
            match why {
                Unknown::Annotation => {}
                Unknown::Workload => self.log_once(why, format!(
                    "{object}: the demand of workload {workload:?} is not known: profile a copy with `bulkhead profile --save --workload \
                     {workload}`, or add {workload}.json to the directory of demands"
                )),
                _ => self.log_once(why, format!("{object}: {} nodes, as {first}", concerned.len())),
            }
        }
        Some(outcomes)
    }

    /// Logs why nothing is known, unless it was the last of its kind to be logged.
    fn log_once(&self, why: Unknown, what: String) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.contains(&(why, what.clone())) {
            return;
        }
        tracing::warn!(reason = why.as_str(), what, "nodes pass with a neutral score");
        logged.retain(|(other, _)| *other != why);
        logged.push((why, what));
    }

    fn assume(&self, pod: &Pod, node: &str, now: Now) {
        if let Ok(Some(wish)) = Wish::of(&pod.metadata)
            && !pod.metadata.uid.is_empty()
        {
            self.cluster().assume(&pod.metadata.uid, node, wish, now);
        }
    }
}

/// This moment.
#[must_use]
pub fn now() -> Now {
    let unix_seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Now { instant: Instant::now(), unix_seconds }
}

fn json(value: &impl Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(value).map_err(|error| error.to_string())
}

/// Answers the requests of a connection, one after the other.
async fn answer(stream: TcpStream, this: Arc<Extender>) {
    let idle = this.limits.idle;
    let service = service_fn(move |request| {
        let this = Arc::clone(&this);
        async move { Ok::<_, Infallible>(this.respond(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection ended early");
    }
}

fn response(status: StatusCode, media_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}
