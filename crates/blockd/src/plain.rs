//! A volume that is one image: every request goes to the same place of the image.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_sys::ublk::queue::{Op, Request, Target};
use rustix::io::Errno;

use crate::fill::Gate;
use crate::image::Image;

/// Serves an image.
#[derive(Debug)]
pub(crate) struct Plain {
    image: Image,
    discards: bool,
    /// Where the image is being prepared.
    gate: Option<Arc<Gate>>,
    failures: AtomicU64,
}

impl Plain {
    pub(crate) fn new(image: Image, discards: bool, gate: Option<Arc<Gate>>) -> Self {
        Self { image, discards, gate, failures: AtomicU64::new(0) }
    }

    fn begin_growth(&self) {
        if let Some(gate) = &self.gate {
            gate.grow();
        }
    }

    async fn act(&self, request: &Request<'_>) -> io::Result<()> {
        let image = self.image.fd();
        let (offset, len) = (request.offset, request.len);
        // Where the disk is larger than its volume (`bulkhead_sys::ublk::sized`), what looks for signatures reads beyond that.
        let held = if request.op == Op::Flush { len } else { self.image.held(offset, len, || self.begin_growth())? };
        if held < len && request.op != Op::Read {
            return Err(Errno::NOSPC.into());
        }
        let _pass = match &self.gate {
            Some(gate) if matches!(request.op, Op::Write | Op::WriteZeroes) => {
                gate.enter(request, offset..offset + len).await?
            }
            _ => None,
        };
        // The driver keeps reads and writes within the largest request; `Request` checks it.
        let bytes = |n| usize::try_from(n).unwrap_or(usize::MAX);
        match request.op {
            Op::Read => {
                request.read(image, 0..bytes(held), offset).await?;
                request.zero(bytes(held)..bytes(len))
            }
            Op::Write => request.write(image, 0..bytes(len), offset, request.fua).await,
            Op::Flush => request.sync(image).await,
            Op::Discard if self.discards => request.punch(image, offset, len).await,
            Op::WriteZeroes if self.discards && !request.keeps_space => request.punch(image, offset, len).await,
            Op::WriteZeroes => request.write_zeroes(image, offset, len).await,
            Op::Discard | Op::Other(_) => Err(Errno::OPNOTSUPP.into()),
        }?;
        // A write with FUA is durable by itself; zeroes that replace one are made so.
        if request.fua && request.op == Op::WriteZeroes { request.sync(image).await } else { Ok(()) }
    }
}

impl Target for Plain {
    async fn serve(&self, request: &Request<'_>) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate.count();
        }
        let done = self.act(request).await;
        if let Err(error) = &done {
            // A disk that fails does so often: the first, the second, the fourth … is worth a line.
            let count = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_power_of_two() {
                tracing::error!(op = ?request.op, offset = request.offset, len = request.len, %error, count, "a request failed");
            }
        }
        done
    }
}
