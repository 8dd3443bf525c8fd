//! The request for an image: `GET /images/NAME/get` of Docker's API, by HTTP/1.1 on a unix socket.
//!
//! Nothing of the archive is kept: memory is bounded by the client's buffer, whatever is sent. There is no limit of time, as Docker collects
//! the whole image before it answers; whoever waits can end the process.

use std::io::{self, Write};
use std::path::Path;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::UnixStream;

use crate::error::{ExportError, shown};
use crate::name::ImageName;
use crate::unreachable;

/// Limit of an error's body, bytes.
const MAX_ERROR: usize = 64 << 10;

/// The body of an error.
#[derive(Deserialize)]
struct Refusal {
    message: String,
}

/// Writes an image as an archive of `docker save`, as it arrives.
pub(crate) async fn transfer(image: &ImageName, socket: &Path, out: &mut impl Write) -> Result<(), ExportError> {
    let runtime = image.runtime();
    let broken = |source: hyper::Error| ExportError::Answer { runtime, source: source.into() };
    let stream = UnixStream::connect(socket).await.map_err(|source| unreachable(runtime, socket, source))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // It reports its errors to the sender and the body as well, and ends with them.
    drop(tokio::spawn(connection));
    let request = Request::get(format!("/images/{}/get", image.name()))
        .header(hyper::header::HOST, "localhost")
        .body(Empty::<Bytes>::new())
        .map_err(|error| ExportError::Client(io::Error::other(error)))?;
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let mut body = answer.into_body();
    match status {
        StatusCode::OK => {
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame.map_err(broken)?.into_data() {
                    out.write_all(&data).map_err(ExportError::Output)?;
                }
            }
            Ok(())
        }
        StatusCode::NOT_FOUND => Err(ExportError::NoImage { runtime, message: message(body).await }),
        status => {
            Err(ExportError::Refused { runtime, status: status.as_u16().to_string(), message: message(body).await })
        }
    }
}

/// The words of an error, from a body that is none of Docker's, too.
async fn message(body: Incoming) -> String {
    let Ok(body) = Limited::new(body, MAX_ERROR).collect().await else {
        return "(its message is cut off or too long)".to_owned();
    };
    let body = body.to_bytes();
    let text = match serde_json::from_slice::<Refusal>(&body) {
        Ok(refusal) => refusal.message,
        Err(_) => String::from_utf8_lossy(&body).into_owned(),
    };
    shown(&text)
}
