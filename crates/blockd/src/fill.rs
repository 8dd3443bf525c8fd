//! Prepares an image while it is served: writes zeroes to unwritten blocks, one part at a time, so that later writes of the volume
//! need no transaction of the host's file system.
//!
//! Concurrent writes of the volume must win. Each write therefore registers its range at the [`Gate`], even if nothing is left to
//! fill, because the image may grow while the write is in flight. It waits while its range is being filled; the filler starts a part
//! when no write to it is in flight.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_core::error::chain;
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::FileError;
use bulkhead_sys::image::Filler;
use bulkhead_sys::process;
use bulkhead_sys::ublk::queue::Request;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

/// The filler waits until the volume has been idle for this time …
const IDLE: Duration = Duration::from_millis(50);

/// … but no longer than this: it fills at least one MiB in this time.
const MAX_IDLE_WAIT: Duration = Duration::from_millis(250);

/// Delay before a failed fill is retried.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// The range that stands for flushes, beyond the end of any image: they wait only while [`ALL`] is held.
pub(crate) const FLUSHES: Range<u64> = u64::MAX - 1..u64::MAX;

/// The whole image and its flushes.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Keeps writes of the volume and background writes to the same blocks apart.
#[derive(Debug)]
pub(crate) struct Gate {
    /// All background work is done, for good.
    open: AtomicBool,
    /// A flush has failed since the server started: earlier writes may be lost even if a later flush succeeds.
    flush_failed: AtomicBool,
    /// A background flush has failed, which the volume does not know yet.
    flush_error_pending: AtomicBool,
    /// Counts requests, by which the filler detects idle time.
    requests: AtomicU64,
    state: Mutex<State>,
    /// Signals a completed write, or growth.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The size that the image is known to have.
    size: Bytes,
    /// The image has grown since the filler read its size.
    grown: bool,
    /// The range that is being filled.
    part: Option<Part>,
    /// Ranges of the writes in flight.
    writes: Vec<Range<u64>>,
}

#[derive(Debug)]
struct Part {
    range: Range<u64>,
    /// Becomes readable when the part is filled, and stays so.
    filled: Arc<OwnedFd>,
}

/// A write in flight; its range is released on drop.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    range: Range<u64>,
}

impl Gate {
    /// A gate for an image of this size, of which nothing is filled yet.
    pub(crate) fn new(size: Bytes) -> Self {
        let state = Mutex::new(State { size, ..State::default() });
        Self {
            open: false.into(),
            flush_failed: false.into(),
            flush_error_pending: false.into(),
            requests: AtomicU64::new(0),
            state,
            changed: Condvar::new(),
        }
    }

    /// Records that the image has grown to this size. Called before any request for the new blocks.
    pub(crate) fn grow(&self, size: Bytes) {
        let mut state = self.state();
        state.grown = true;
        state.size = state.size.max(size);
        self.changed.notify_all();
    }

    /// The size up to which to fill. A growth that fails may have made the file larger for a moment; that is not counted.
    fn size(&self) -> Bytes {
        self.state().size
    }

    /// Counts a request of any kind.
    pub(crate) fn count(&self) {
        if !self.open.load(Ordering::Relaxed) {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Registers a write to a range, after the fill of that range if one is in progress. `None` if all background work is done.
    ///
    /// # Errors
    /// When the ring has no room to wait.
    pub(crate) async fn enter(&self, request: &Request<'_>, range: Range<u64>) -> io::Result<Option<Pass<'_>>> {
        if self.open.load(Ordering::Acquire) {
            return Ok(None);
        }
        loop {
            match self.try_enter(&range) {
                Ok(pass) => return Ok(Some(pass)),
                Err(filled) => request.wait_readable(filled.as_fd()).await?,
            }
        }
    }

    /// Returns the error of a failed background flush, once. The volume's next flush has to fail with it: writes of the volume may be
    /// lost, and the kernel reports that to the first caller of fdatasync only.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn take_flush_error(&self) -> io::Result<()> {
        if self.flush_error_pending.swap(false, Ordering::AcqRel) { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Records a failed flush that is reported to the volume.
    pub(crate) fn record_failed_flush(&self) {
        self.flush_failed.store(true, Ordering::Release);
    }

    /// Whether a flush has failed since the server started.
    pub(crate) fn has_failed_flush(&self) -> bool {
        self.flush_failed.load(Ordering::Acquire)
    }

    /// Fails if any flush has failed.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn check_flushes(&self) -> io::Result<()> {
        if self.has_failed_flush() { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Flushes in the background.
    ///
    /// # Errors
    /// Those of `flush`; the volume's next flush fails, too.
    pub(crate) fn flush<T, E>(&self, flush: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        flush().inspect_err(|_| {
            self.record_failed_flush();
            self.flush_error_pending.store(true, Ordering::Release);
        })
    }

    /// A pass, or an eventfd that becomes readable when another attempt makes sense.
    fn try_enter(&self, range: &Range<u64>) -> Result<Pass<'_>, Arc<OwnedFd>> {
        let mut state = self.state();
        match &state.part {
            Some(part) if overlap(&part.range, range) => Err(Arc::clone(&part.filled)),
            _ => {
                state.writes.push(range.clone());
                Ok(Pass { gate: self, range: range.clone() })
            }
        }
    }

    /// Waits for the writes in flight to a range, and runs `work`; later writes to it wait.
    ///
    /// # Errors
    /// When no eventfd can be created; the work is not done then.
    pub(crate) fn hold<T>(&self, range: Range<u64>, work: impl FnOnce() -> T) -> io::Result<T> {
        let filled = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let mut state = self.state();
        state.part = Some(Part { range: range.clone(), filled: Arc::clone(&filled) });
        while state.writes.iter().any(|write| overlap(write, &range)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let done = work();
        self.state().part = None;
        // Cannot block: the counter is zero.
        let _ = rustix::io::write(&filled, &1u64.to_ne_bytes());
        Ok(done)
    }

    /// Ends the gate: all background work is done, for good.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the volume is idle, for at most [`MAX_IDLE_WAIT`]. `seen` is the number of requests at the last call.
    pub(crate) fn wait_for_idle(&self, seen: &mut u64) {
        let give_up = Instant::now() + MAX_IDLE_WAIT;
        loop {
            let requests = self.requests.load(Ordering::Relaxed);
            let idle = requests == *seen;
            *seen = requests;
            if idle || Instant::now() >= give_up {
                return;
            }
            process::pause(IDLE);
        }
    }

    /// Waits until the image grows.
    fn wait_for_growth(&self) {
        let mut state = self.state();
        while !state.grown {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.grown = false;
    }

    /// Waits for [`RETRY_DELAY`], or until the image grows.
    fn wait_to_retry(&self) {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, RETRY_DELAY, |state| !state.grown);
        waited.unwrap_or_else(PoisonError::into_inner).0.grown = false;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        if let Some(at) = state.writes.iter().position(|write| *write == self.range) {
            state.writes.swap_remove(at);
        }
        if state.part.as_ref().is_some_and(|part| overlap(&part.range, &self.range)) {
            self.gate.changed.notify_all();
        }
    }
}

/// Fills an image, and again after each growth, for the lifetime of this process. An error does not keep the volume from working.
pub(crate) fn run(gate: &Gate, filler: &Filler) {
    loop {
        match fill_all(gate, filler) {
            Err(error) => {
                tracing::error!(why = chain(&error), "cannot prepare the image");
                gate.wait_to_retry();
                continue;
            }
            Ok(Bytes(0)) => {}
            Ok(filled) => tracing::info!(%filled, "the image is prepared"),
        }
        gate.wait_for_growth();
    }
}

fn fill_all(gate: &Gate, filler: &Filler) -> Result<Bytes, FileError> {
    let (mut at, mut sum, mut seen) = (0, 0, 0);
    while let Some(part) = filler.next(at, gate.size())? {
        gate.wait_for_idle(&mut seen);
        at = part.end;
        let filled = gate.hold(part.clone(), || filler.fill(part));
        sum += filled.map_err(|source| filler.error("wait for writes to", source))??.0;
    }
    // Flushes of the volume wait: one that ran at the same time would miss the error of this one.
    let flushed = gate.hold(ALL, || gate.flush(|| filler.finish()));
    flushed.map_err(|source| filler.error("wait for flushes of", source))??;
    Ok(Bytes(sum))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use bulkhead_core::model::Provision;
    use bulkhead_sys::image;

    use super::*;

    fn filler(path: &std::path::Path) -> Filler {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::DIRECT;
        Filler::new(rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap().into(), path)
    }

    #[test]
    fn writes_and_the_filler_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        image::create(&path, Bytes::mib(4), Provision::Full).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let gate = Gate::new(Bytes::mib(4));
        let write = gate.try_enter(&(8192..16384)).unwrap();
        std::thread::scope(|threads| {
            let filling =
                threads.spawn(|| gate.hold(0..Bytes::MIB, || filler(&path).fill(0..Bytes::MIB)).unwrap().unwrap());
            while gate.state().part.is_none() {
                std::thread::yield_now();
            }
            // Writes outside the part do not wait, writes to it do.
            drop(gate.try_enter(&(Bytes::MIB..2 * Bytes::MIB)).unwrap());
            drop(gate.try_enter(&FLUSHES).unwrap());
            let waits = gate.try_enter(&(4096..8192)).unwrap_err();
            assert!(!filling.is_finished(), "it is filled during a write");
            file.write_all_at(&[7; 8192], 8192).unwrap();
            file.sync_all().unwrap();
            drop(write);
            assert_eq!(filling.join().unwrap(), Bytes(Bytes::MIB - 8192));
            assert_eq!(rustix::io::read(&waits, &mut [0; 8]), Ok(8));
            gate.try_enter(&(4096..8192)).unwrap();
        });
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 7) == (8192..16384).contains(&at)));
        let state = gate.state();
        assert!(state.part.is_none() && state.writes.is_empty());
    }

    #[test]
    fn the_filler_waits_for_writes_that_began_before_a_growth() {
        let gate = Gate::new(Bytes::mib(4));
        // All is filled.
        let write = gate.try_enter(&(0..4096)).unwrap();
        gate.grow(Bytes::mib(5));
        assert_eq!(gate.size(), Bytes::mib(5));
        std::thread::scope(|threads| {
            let filling = threads.spawn(|| gate.hold(0..Bytes::MIB, || ()).unwrap());
            while gate.state().part.is_none() {
                std::thread::yield_now();
            }
            assert!(!filling.is_finished(), "it is filled during a write");
            drop(write);
            filling.join().unwrap();
        });
        assert!(!gate.open.load(Ordering::Acquire));
    }

    #[test]
    fn a_growth_that_was_recorded_before_is_not_waited_for() {
        let gate = Gate::new(Bytes::mib(4));
        gate.grow(Bytes::mib(5));
        gate.wait_to_retry();
        assert!(!gate.state().grown);
        gate.grow(Bytes::mib(6));
        gate.wait_for_growth();
        assert!(!gate.state().grown);
    }

    #[test]
    fn a_flush_waits_only_while_all_is_held() {
        let gate = Gate::new(Bytes::mib(4));
        gate.hold(0..Bytes::mib(4).0, || drop(gate.try_enter(&FLUSHES).unwrap())).unwrap();
        gate.hold(ALL, || gate.try_enter(&FLUSHES).unwrap_err()).unwrap();
        gate.try_enter(&FLUSHES).unwrap();
    }

    #[test]
    fn a_failed_background_flush_is_reported_once_and_remembered() {
        let gate = Gate::new(Bytes::mib(4));
        gate.flush(|| Ok::<_, ()>(())).unwrap();
        gate.take_flush_error().unwrap();
        assert!(!gate.has_failed_flush());
        gate.flush(|| Err::<(), _>(())).unwrap_err();
        // The kernel does not report the error again.
        gate.flush(|| Ok::<_, ()>(())).unwrap();
        assert_eq!(gate.take_flush_error().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        gate.take_flush_error().unwrap();
        assert!(gate.has_failed_flush());
    }
}
