//! The requests of a volume: an image and the layers of its backing chain. A read goes to the file that has the block, at the same
//! offset; writes go to the image.

use std::future::{Future, poll_fn};
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bulkhead_core::arbiter::Link;
use bulkhead_core::cow::Source;
use bulkhead_core::units::Bytes;
use bulkhead_sys::buffer::to_usize;
use bulkhead_sys::ublk::queue::{Op, Request, Target};
use rustix::io::Errno;

use crate::fill::{FLUSHES, Gate};
use crate::image::Image;
use crate::layer_reads::LayerReader;
use crate::layers::Layers;
use crate::turns::Turns;

/// Serves a volume.
#[derive(Debug)]
pub(crate) struct Volume {
    image: Image,
    layers: Option<(Layers, LayerReader)>,
    discards: bool,
    /// Set while the image is filled or flattened.
    gate: Option<Arc<Gate>>,
    /// Set on a disk with an arm.
    turns: Option<Turns>,
    /// A flush has failed that nobody asked for.
    settle_failed: AtomicBool,
    failures: AtomicU64,
}

impl Volume {
    pub(crate) fn new(
        image: Image,
        layers: Option<(Layers, LayerReader)>,
        discards: bool,
        gate: Option<Arc<Gate>>,
        turns: Option<Turns>,
    ) -> Self {
        Self {
            image,
            layers,
            discards,
            gate,
            turns,
            settle_failed: AtomicBool::new(false),
            failures: AtomicU64::new(0),
        }
    }

    /// Its turns on the disk.
    pub(crate) fn turns(&self) -> Option<&Turns> {
        self.turns.as_ref()
    }

    /// The image and its layers.
    pub(crate) fn parts(&self) -> (&Image, Option<&Layers>) {
        (&self.image, self.layers())
    }

    /// The reader of its layers.
    pub(crate) fn layer_reader(&self) -> Option<&LayerReader> {
        self.layers.as_ref().map(|(_, reader)| reader)
    }

    fn layers(&self) -> Option<&Layers> {
        self.layers.as_ref().map(|(layers, _)| layers)
    }

    fn begin_growth(&self, size: Bytes) {
        if let Some(gate) = &self.gate {
            gate.grow(size);
        }
    }

    async fn act(&self, request: &Request<'_>) -> io::Result<()> {
        let (offset, len) = (request.offset, request.len);
        // The disk may be larger than its volume (`bulkhead_sys::ublk::sized`); programs that look for signatures read beyond the end.
        let available = if request.op == Op::Flush {
            len
        } else {
            self.image.available(offset, len, |size| self.begin_growth(size))?
        };
        if available < len && request.op != Op::Read {
            return Err(Errno::NOSPC.into());
        }
        let range = offset..offset + available;
        let _pass = match &self.gate {
            Some(gate) if matches!(request.op, Op::Write | Op::WriteZeroes) => {
                gate.enter(request, range.clone()).await?
            }
            Some(gate) if request.op == Op::Flush => gate.enter(request, FLUSHES).await?,
            _ => None,
        };
        let done = self.carry_out(request, range, available).await;
        if let Some(gate) = &self.gate
            && (request.op == Op::Flush || request.fua)
        {
            // ENOSPC loses no earlier write.
            if done.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::StorageFull) {
                gate.record_failed_flush();
            }
            gate.take_flush_error()?;
        }
        done
    }

    async fn carry_out(&self, request: &Request<'_>, range: Range<u64>, available: u64) -> io::Result<()> {
        let (image, offset, len) = (self.image.fd(), request.offset, request.len);
        let turn = match (&self.turns, self.link(request)) {
            (Some(turns), Some(link)) => turns.take(request.tag(), &range, link).await,
            _ => None,
        };
        if let Some(turn) = turn.as_ref().filter(|turn| turn.settles()) {
            // The kernel reports a failure once: the next flush of the volume does, too.
            match request.sync(image).await {
                Ok(()) => turn.settled(),
                Err(error) => {
                    self.settle_failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
        if (request.op == Op::Flush || request.fua) && self.settle_failed.swap(false, Ordering::Relaxed) {
            return Err(Errno::IO.into());
        }
        match request.op {
            Op::Read => {
                self.read(request, range).await?;
                request.zero(to_usize(available)..to_usize(len))
            }
            Op::Write => self.own(range, request.write(image, 0..to_usize(len), offset, request.fua)).await,
            Op::Flush => request.sync(image).await,
            Op::Discard if self.discards => self.discard(request, range).await,
            Op::WriteZeroes => self.write_zeroes(request, range).await,
            Op::Discard | Op::Other(_) => Err(Errno::OPNOTSUPP.into()),
        }?;
        // The write itself was issued with FUA; write-zeroes has no such flag.
        if request.fua && request.op == Op::WriteZeroes { request.sync(image).await } else { Ok(()) }
    }

    /// What a request is for the arbiter; `None` if it may not reach the disk, or is not a request for data.
    fn link(&self, request: &Request<'_>) -> Option<Link> {
        match request.op {
            Op::Read => self.layers.is_none().then_some(Link::Read),
            Op::Write if request.fua => Some(Link::Durable),
            Op::Write => Some(Link::Write { bytes: request.len, follows: false }),
            Op::Flush => Some(Link::Flush),
            Op::Discard | Op::WriteZeroes | Op::Other(_) => None,
        }
    }

    async fn read(&self, request: &Request<'_>, range: Range<u64>) -> io::Result<()> {
        let start = range.start;
        // The driver splits reads at the size of the largest request; `Request` checks it.
        let part = |run: &Range<u64>| to_usize(run.start - start)..to_usize(run.end - start);
        let Some((layers, reader)) = &self.layers else {
            return request.read(self.image.fd(), part(&range), start).await;
        };
        let mut reads = Vec::new();
        for (run, source) in layers.map.runs(range) {
            if source == Source::Hole {
                request.zero(part(&run))?;
            } else {
                reads.push(self.read_run(request, part(&run), run, source, (layers, reader)));
            }
        }
        match reads.pop() {
            Some(only) if reads.is_empty() => only.await,
            last => {
                reads.extend(last);
                join_all(reads).await
            }
        }
    }

    /// Reads a run that is in one file.
    async fn read_run(
        &self,
        request: &Request<'_>,
        part: Range<usize>,
        run: Range<u64>,
        source: Source,
        (layers, reader): (&Layers, &LayerReader),
    ) -> io::Result<()> {
        let Source::Layer(layer) = source else { return request.read(self.image.fd(), part, run.start).await };
        let start = run.start;
        let missing = reader.read(request, part.start, run, layer).await;
        for rest in missing {
            let at = part.start + to_usize(rest.start - start);
            let len = rest.end - rest.start;
            reader.count_layer(layer, layers.is_cached(layer, &rest), len);
            request.read(layers.fd(layer), at..at + to_usize(len), rest.start).await?;
        }
        Ok(())
    }

    /// Discards the blocks that no layer has: a hole in the image would expose the block of a layer. A discard is advisory.
    async fn discard(&self, request: &Request<'_>, range: Range<u64>) -> io::Result<()> {
        for run in self.without_layers(&range) {
            request.punch(self.image.fd(), run.start, run.end - run.start).await?;
        }
        Ok(())
    }

    async fn write_zeroes(&self, request: &Request<'_>, range: Range<u64>) -> io::Result<()> {
        let image = self.image.fd();
        if !self.discards || request.keeps_space {
            let len = range.end - range.start;
            return self.own(range.clone(), request.write_zeroes(image, range.start, len)).await;
        }
        let mut at = range.start;
        for hole in self.without_layers(&range).chain(std::iter::once(range.end..range.end)) {
            if at < hole.start {
                self.own(at..hole.start, request.write_zeroes(image, at, hole.start - at)).await?;
            }
            if !hole.is_empty() {
                request.punch(image, hole.start, hole.end - hole.start).await?;
            }
            at = hole.end;
        }
        Ok(())
    }

    /// The parts of a range that no layer has, so that a hole in the image reads as zeroes.
    fn without_layers(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let below = self.layers().into_iter().flat_map(|layers| layers.map.layer_runs(range.clone()));
        let holes = below.filter(|(_, source)| !matches!(source, Source::Layer(_))).map(|(run, _)| run);
        holes.chain(self.layers.is_none().then(|| range.clone()))
    }

    /// Marks blocks that a write has written as owned by the image: the whole range, or after an error the blocks that were written.
    async fn own(&self, range: Range<u64>, write: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        let written = write.await;
        if let Some(layers) = self.layers() {
            match &written {
                Ok(()) => layers.map.set_owned(range),
                Err(_) => layers.own_after_error(&self.image, range)?,
            }
        }
        written
    }
}

impl Target for Volume {
    async fn serve(&self, request: &Request<'_>) -> io::Result<()> {
        if let Some(gate) = &self.gate {
            gate.count();
        }
        let done = self.act(request).await;
        if let Err(error) = &done {
            // A failing disk fails often: log failure 1, 2, 4, 8 …
            let count = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
            if count.is_power_of_two() {
                tracing::error!(op = ?request.op, offset = request.offset, len = request.len, %error, count, "a request failed");
            }
        }
        done
    }

    fn before_wait(&self, ready: &mut Vec<u16>) -> Option<Duration> {
        self.turns.as_ref()?.before_wait(ready)
    }

    fn wakes(&self) -> Option<BorrowedFd<'_>> {
        self.turns.as_ref().map(Turns::pipe)
    }
}

/// Waits for all reads, and returns the first error after all have completed: none may be dropped while it is in flight.
async fn join_all(reads: Vec<impl Future<Output = io::Result<()>>>) -> io::Result<()> {
    let mut reads: Vec<Option<Pin<Box<_>>>> = reads.into_iter().map(|read| Some(Box::pin(read))).collect();
    let mut outcome = Ok(());
    poll_fn(move |context| {
        for slot in &mut reads {
            if let Some(Poll::Ready(result)) = slot.as_mut().map(|read| read.as_mut().poll(context)) {
                *slot = None;
                outcome = std::mem::replace(&mut outcome, Ok(())).and(result);
            }
        }
        if reads.iter().all(Option::is_none) {
            Poll::Ready(std::mem::replace(&mut outcome, Ok(())))
        } else {
            Poll::Pending
        }
    })
    .await
}
