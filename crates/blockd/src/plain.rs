//! A volume that is one image: every request goes to the same place of the image.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bulkhead_sys::ublk::queue::{Op, Request, Target};
use rustix::io::Errno;

use crate::image::Image;

/// Serves an image.
#[derive(Debug)]
pub(crate) struct Plain {
    image: Image,
    discards: bool,
    failures: AtomicU64,
}

impl Plain {
    pub(crate) fn new(image: Image, discards: bool) -> Self {
        Self { image, discards, failures: AtomicU64::new(0) }
    }

    async fn act(&self, request: &Request<'_>) -> io::Result<()> {
        let image = self.image.fd();
        let (offset, len) = (request.offset, request.len);
        // Where the disk is larger than its volume (`bulkhead_sys::ublk::sized`), what looks for signatures reads beyond that.
        let held = if request.op == Op::Flush { len } else { self.image.held(offset, len)? };
        if held < len && request.op != Op::Read {
            return Err(Errno::NOSPC.into());
        }
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
