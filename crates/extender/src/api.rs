//! The API server of Kubernetes, through a `kubectl proxy` beside this program: lists, watches, and one object that is written.
//!
//! The proxy has the TLS, the certificates and the tokens, and is configured to pass on what is needed here only. So this speaks HTTP/1.1 to
//! the loopback address.
//!
//! Owns: requests and their limits. Does not: know what objects mean (`watch`, `publish`).

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// How long an answer may take to begin, and one that is no watch to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest answer, bytes: a page of 500 reports of 64 KiB.
const MAX_BYTES: usize = 64 << 20;
/// Largest event of a watch, bytes: an object has at most 1.5 MiB.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Where the proxy listens.
#[derive(Clone, Copy, Debug)]
pub struct Api {
    /// Its address.
    pub proxy: SocketAddr,
}

/// An answer that is no success.
#[derive(Debug, thiserror::Error)]
#[error("the answer is {status}: {message}")]
pub struct Refused {
    /// The status.
    pub status: StatusCode,
    /// Its message.
    pub message: String,
}

impl Api {
    async fn send(&self, method: Method, target: &str, media_type: &str, body: Vec<u8>) -> Result<Response<Incoming>> {
        let exchange = async {
            let stream = TcpStream::connect(self.proxy).await?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection to the API server ended early");
                }
            });
            let request = Request::builder()
                .method(method)
                .uri(target)
                .header(HOST, self.proxy.to_string())
                .header(ACCEPT, "application/json")
                .header(CONTENT_TYPE, media_type)
                .body(Full::new(Bytes::from(body)))?;
            Ok::<_, anyhow::Error>(sender.send_request(request).await?)
        };
        let response = tokio::time::timeout(PATIENCE, exchange).await;
        let response = response.with_context(|| format!("{target}: no answer for {PATIENCE:?}"))?;
        let response = response.with_context(|| format!("{target}: no answer from {}", self.proxy))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = whole(response, MAX_EVENT_BYTES).await.unwrap_or_default();
        let message = serde_json::from_slice::<Value>(&body).ok();
        let message = message.and_then(|status| status["message"].as_str().map(str::to_owned));
        let message = message.unwrap_or_else(|| String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned());
        Err(Refused { status, message }).with_context(|| target.to_owned())
    }

    /// An object, or a page of a list.
    ///
    /// # Errors
    /// Those of the connection; [`Refused`].
    pub async fn get(&self, target: &str) -> Result<Value> {
        let response = self.send(Method::GET, target, "application/json", Vec::new()).await?;
        let body = whole(response, MAX_BYTES).await.with_context(|| target.to_owned())?;
        serde_json::from_slice(&body).with_context(|| format!("{target}: the answer is not JSON"))
    }

    /// A text.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub async fn text(&self, target: &str) -> Result<String> {
        let response = self.send(Method::GET, target, "text/plain", Vec::new()).await?;
        let body = whole(response, MAX_EVENT_BYTES).await.with_context(|| target.to_owned())?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Writes an object by server-side apply, which creates it if it does not exist.
    ///
    /// # Errors
    /// As [`Api::get`].
    pub async fn apply(&self, target: &str, object: &Value) -> Result<()> {
        let body = serde_json::to_vec(object)?;
        let response = self.send(Method::PATCH, target, "application/apply-patch+yaml", body).await?;
        whole(response, MAX_BYTES).await.with_context(|| target.to_owned())?;
        Ok(())
    }

    /// Watches: `on_event` gets each event, until the server ends the watch, which is no error, or nothing has come for `patience`.
    ///
    /// # Errors
    /// As [`Api::get`], and that of `on_event`.
    pub async fn watch(
        &self,
        target: &str,
        patience: Duration,
        mut on_event: impl FnMut(Value) -> Result<()>,
    ) -> Result<()> {
        let mut body = self.send(Method::GET, target, "application/json", Vec::new()).await?.into_body();
        let mut lines = Lines::default();
        loop {
            let frame = tokio::time::timeout(patience, body.frame()).await;
            let Some(frame) = frame.with_context(|| format!("{target}: nothing has come for {patience:?}"))? else {
                return Ok(());
            };
            let Ok(data) = frame.with_context(|| target.to_owned())?.into_data() else { continue };
            for line in lines.add(&data)? {
                on_event(serde_json::from_slice(&line).with_context(|| format!("{target}: an event is not JSON"))?)?;
            }
        }
    }
}

/// The whole body of an answer.
async fn whole(response: Response<Incoming>, limit: usize) -> Result<Bytes> {
    let collected = tokio::time::timeout(PATIENCE, Limited::new(response.into_body(), limit).collect()).await;
    match collected.context("the answer has not ended in time")? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => bail!("the answer cannot be read, or has more than {limit} bytes ({error})"),
    }
}

/// Splits what arrives into lines.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    /// The lines that are complete with this.
    fn add(&mut self, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.0.extend_from_slice(data);
        let mut complete = Vec::new();
        if let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') {
            let rest = self.0.split_off(end + 1);
            let lines = std::mem::replace(&mut self.0, rest);
            complete.extend(lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec));
        }
        ensure!(self.0.len() <= MAX_EVENT_BYTES, "an event has more than {MAX_EVENT_BYTES} bytes");
        Ok(complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_lines_whatever_arrives_at_once() {
        let text = b"{\"a\":1}\n{\"b\":2}\n\n{\"c\":";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let found: Vec<Vec<u8>> = text.chunks(size).flat_map(|chunk| lines.add(chunk).unwrap()).collect();
            assert_eq!(found, [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()], "{size}");
        }
        assert!(Lines::default().add(&vec![b'x'; MAX_EVENT_BYTES + 1]).is_err());
    }
}
