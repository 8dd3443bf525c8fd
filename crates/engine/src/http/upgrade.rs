//! Connections that are upgraded to streams (RFC 9110, 7.8): the answer is 101, and no HTTP follows it. The socket itself is
//! passed on, so that no byte goes through the daemon except those read with the request.

use std::io;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use bulkhead_api::wire::{JOB_HEADER, STREAM_PROTOCOL};
use bulkhead_core::error::{Code, Fault};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use hyper_util::server::conn::auto;
use tokio::net::UnixStream;

use super::api::Failure;
use crate::service::StartedJob;
use crate::work::Stream;

/// A request's connection, if it can be upgraded.
pub(super) struct Upgrade(OnUpgrade);

impl Upgrade {
    /// The upgrade, if the request asks for one.
    pub(super) fn requested_by(request: &mut Request) -> Option<Self> {
        let is_requested =
            has(request.headers(), &CONNECTION, "upgrade") && has(request.headers(), &UPGRADE, STREAM_PROTOCOL);
        request.extensions_mut().remove::<OnUpgrade>().filter(|_| is_requested).map(Self)
    }

    /// Upgrades the connection and passes it to a job.
    pub(super) fn switch_to(self, job: StartedJob) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static(STREAM_PROTOCOL));
        headers.insert(HeaderName::from_static(JOB_HEADER), HeaderValue::from(job.job));
        tokio::spawn(async move {
            match self.0.await.map_err(io::Error::other).and_then(stream) {
                Ok(stream) => job.stream(stream),
                Err(error) => {
                    tracing::info!(job = job.job, %error, "the connection could not be upgraded to a stream")
                }
            }
        });
        response
    }
}

/// Whether a header has a word in its list.
fn has(headers: &HeaderMap, name: &HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|found| found.trim().eq_ignore_ascii_case(word))
}

/// The socket of an upgraded connection.
fn stream(upgraded: Upgraded) -> io::Result<Stream> {
    let foreign = |_| io::Error::other("it is not a connection of this server");
    let parts = auto::upgrade::downcast::<TokioIo<UnixStream>>(upgraded).map_err(foreign)?;
    let socket = parts.io.into_inner().into_std()?;
    // The worker expects a blocking socket.
    socket.set_nonblocking(false)?;
    Ok(Stream { socket: socket.into(), ahead: parts.read_buf.to_vec() })
}

/// The error of a request that needs a stream and does not ask for one.
pub(super) fn required() -> Failure {
    let cause = format!("it needs the headers `Connection: Upgrade` and `Upgrade: {STREAM_PROTOCOL}`, or `dry_run`");
    let fault = Fault::new(Code::InvalidArgument, "request", cause);
    Failure { status: StatusCode::UPGRADE_REQUIRED, fault }
}
