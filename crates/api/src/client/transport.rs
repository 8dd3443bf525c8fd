//! Requests on the daemon's socket: JSON over HTTP/1.1, and connections that are upgraded to a stream.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use uuid::Uuid;

use super::{Client, Stream, Streamed};
use crate::routes::{self, Body, NoQuery, PathParams, Query, Route};
use crate::terms::Terms;
use crate::wire::{JOB_HEADER, REQUEST_HEADER, STREAM_PROTOCOL};

/// Delay before the first poll of a request's job, and the interval between polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The answer to a request to upgrade its connection.
pub(crate) enum Upgraded {
    /// An ordinary answer.
    No(StatusCode, Bytes),
    Yes(Stream),
}

type Sender = hyper::client::conn::http1::SendRequest<Full<Bytes>>;
type Connection = hyper::client::conn::http1::Connection<TokioIo<UnixStream>, Full<Bytes>>;

/// Requests, typed by their routes.
#[expect(clippy::missing_errors_doc, reason = "documented once, at the first `impl` block of `Client`")]
impl Client {
    /// Sends a request that the daemon answers without a job.
    pub(super) async fn query<A: PathParams, Q: Query<Terms = ()>, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, (), R>,
        params: &A,
        query: Q,
    ) -> Result<R, Fault> {
        self.call(route.method.clone(), &route.target(params, &query), Vec::new(), None).await
    }

    /// Sends a request that becomes a job, and reports its progress to the listener.
    pub(super) async fn submit<A: PathParams, Q: Query<Terms = Terms>, B: Body, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, B, R>,
        params: &A,
        query: Q,
        body: &B::Content,
    ) -> Result<R, Fault> {
        let target = route.target(params, &query.with_wait(self.wait));
        let id = self.request.unwrap_or_else(Uuid::new_v4);
        self.with_progress(id, self.call(route.method.clone(), &target, encode::<B>(body)?, Some(id))).await
    }

    /// Sends a request that becomes a job with a stream.
    pub(super) async fn stream<A: PathParams, Q: Query<Terms = Terms>, B: Body, R: DeserializeOwned>(
        &self,
        route: Route<A, Q, B, routes::Stream<R>>,
        params: &A,
        query: Q,
        body: &B::Content,
    ) -> Result<Streamed<R>, Fault> {
        let target = route.target(params, &query.with_wait(self.wait));
        let id = self.request.unwrap_or_else(Uuid::new_v4);
        let reply = self.with_progress(id, self.upgrade(route.method.clone(), &target, encode::<B>(body)?, id));
        match reply.await? {
            Upgraded::No(status, body) => self.decode(status, &body).map(Streamed::Planned),
            Upgraded::Yes(stream) => Ok(Streamed::Stream(stream)),
        }
    }

    /// Waits for an answer, and polls its job meanwhile.
    async fn with_progress<T>(&self, id: Uuid, answer: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let Some(listener) = &self.listener else { return answer.await };
        let polling = async {
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                // If the daemon does not answer here, the request itself fails and has the cause.
                let jobs = self.job_list().await.unwrap_or_default();
                jobs.iter().filter(|job| job.request == Some(id)).for_each(|job| listener.on_progress(job));
            }
        };
        tokio::select! {
            answer = answer => answer,
            never = polling => never,
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
        self.decode(status, &body)
    }

    /// Decodes an answer.
    fn decode<T: DeserializeOwned>(&self, status: StatusCode, body: &[u8]) -> Result<T, Fault> {
        if !status.is_success() {
            return Err(self.refusal(status, body));
        }
        let body: &[u8] = if status == StatusCode::NO_CONTENT { b"null" } else { body };
        serde_json::from_slice(body).map_err(|error| self.version_mismatch(status, &error))
    }

    /// The error that an answer contains.
    fn refusal(&self, status: StatusCode, body: &[u8]) -> Fault {
        serde_json::from_slice(body).unwrap_or_else(|error| self.version_mismatch(status, &error))
    }

    fn version_mismatch(&self, status: StatusCode, error: &serde_json::Error) -> Fault {
        let cause = format!(
            "the server on {} is not a daemon of this version: it answered with status {status} ({error})",
            self.socket.display()
        );
        Fault::new(Code::Unavailable, "daemon", cause)
            .hint("restart the daemon after an upgrade: `systemctl restart bulkhead`")
    }

    /// The daemon's metrics in Prometheus' text format: at most `limit_bytes`, an error if they are longer.
    pub async fn metrics(&self, limit_bytes: usize) -> Result<Bytes, Fault> {
        let route = routes::metrics_text();
        let target = route.target(&(), &NoQuery {});
        let (status, text) = self.exchange_up_to(limit_bytes, route.method, &target, Vec::new(), None).await?;
        if status.is_success() { Ok(text) } else { Err(self.refusal(status, &text)) }
    }

    /// Sends a request and returns its answer, both undecoded.
    pub async fn exchange(
        &self,
        method: Method,
        uri: &str,
        body: Vec<u8>,
        id: Option<Uuid>,
    ) -> Result<(StatusCode, Bytes), Fault> {
        self.exchange_up_to(usize::MAX, method, uri, body, id).await
    }

    /// The same, with an answer of at most `limit_bytes`.
    async fn exchange_up_to(
        &self,
        limit_bytes: usize,
        method: Method,
        uri: &str,
        body: Vec<u8>,
        id: Option<Uuid>,
    ) -> Result<(StatusCode, Bytes), Fault> {
        let (mut sender, connection) = self.connect().await?;
        let request = request(method, uri, id).body(Full::new(Bytes::from(body))).map_err(bad_request)?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| self.connection_lost(&error))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), limit_bytes).collect().await;
            let body = body.map_err(|error| {
                if error.is::<LengthLimitError>() {
                    let cause = format!("its answer to {uri} is longer than {limit_bytes} bytes");
                    return Fault::new(Code::Unavailable, "daemon", cause);
                }
                self.connection_lost(&error)
            })?;
            Ok((status, body.to_bytes()))
        };
        // The exchange makes progress only while the connection is driven. The driver ends when the sender is dropped.
        let driver = tokio::spawn(connection);
        let outcome = exchange.await;
        driver.abort();
        outcome
    }

    /// Sends a request to upgrade the connection to a stream.
    pub(crate) async fn upgrade(&self, method: Method, uri: &str, body: Vec<u8>, id: Uuid) -> Result<Upgraded, Fault> {
        let (mut sender, connection) = self.connect().await?;
        let request = request(method, uri, Some(id))
            .header(hyper::header::CONNECTION, "upgrade")
            .header(hyper::header::UPGRADE, STREAM_PROTOCOL)
            .body(Full::new(Bytes::from(body)))
            .map_err(bad_request)?;
        let lost = |error: hyper::Error| self.connection_lost(&error);
        // The task ends when the sender is dropped or the connection has been upgraded.
        drop(tokio::spawn(connection.with_upgrades()));
        let mut response = sender.send_request(request).await.map_err(lost)?;
        let status = response.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(Upgraded::No(status, response.into_body().collect().await.map_err(lost)?.to_bytes()));
        }
        let job = response.headers().get(JOB_HEADER).and_then(|job| job.to_str().ok()?.parse().ok());
        let upgraded = hyper::upgrade::on(&mut response).await.map_err(lost)?;
        let version_mismatch =
            || Fault::new(Code::Unavailable, "daemon", "the server on its socket is not a daemon of this version");
        let job = job.ok_or_else(version_mismatch)?;
        let parts = upgraded.downcast::<TokioIo<UnixStream>>().map_err(|_| version_mismatch())?;
        let failed = |error: io::Error| Fault::new(Code::Internal, "stream", format!("it cannot be used ({error})"));
        let socket = parts.io.into_inner().into_std().map_err(failed)?;
        socket.set_nonblocking(false).map_err(failed)?;
        Ok(Upgraded::Yes(Stream { job, socket, ahead: parts.read_buf }))
    }

    async fn connect(&self) -> Result<(Sender, Connection), Fault> {
        let stream = UnixStream::connect(&self.socket).await.map_err(|error| self.unreachable(&error))?;
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.connection_lost(&error))
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

    fn connection_lost(&self, error: &impl Display) -> Fault {
        let socket = self.socket.display();
        Fault::new(
            Code::Unavailable,
            "daemon",
            format!("the connection to {socket} was lost before the answer ({error})"),
        )
        .hint(
            "`journalctl -u bulkhead` says why; operations in progress are completed or undone when the daemon starts \
             again, and the same command can be repeated",
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

fn encode<B: Body>(body: &B::Content) -> Result<Vec<u8>, Fault> {
    B::write(body)
        .map_err(|error| Fault::new(Code::Internal, "request", format!("it cannot be written as JSON ({error})")))
}
