//! Prepares an image while it is served: writes zeroes where nothing was ever written, a little at a time, so that the volume's
//! own writes cost the host's file system no transaction any more.
//!
//! What the volume writes at the same time must win. So each write says where it is, also while there is nothing to fill: more may come
//! while it is under way. It waits while that is being filled; the filler begins a part when no write to it is under way.

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

/// The filler waits until the volume has been idle for this long …
const IDLE: Duration = Duration::from_millis(50);

/// … but not longer than this: at worst it writes a MiB in each.
const PATIENCE: Duration = Duration::from_millis(250);

/// After how long it is tried again when the image cannot be filled.
const AGAIN: Duration = Duration::from_secs(60);

/// The place of flushes, which no image has: they do not wait while a part is filled, but while [`ALL`] is held.
pub(crate) const FLUSHES: Range<u64> = u64::MAX - 1..u64::MAX;

/// All of an image, and its flushes.
pub(crate) const ALL: Range<u64> = 0..u64::MAX;

/// Keeps what the volume writes and what is written for it in the background apart.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Whether nobody works on parts any more, for good.
    open: AtomicBool,
    /// Whether a flush has failed since the server began: what was written before it may be lost, whatever a later one says.
    flush_failed: AtomicBool,
    /// Whether one in the background failed, of which the volume was not told yet.
    untold: AtomicBool,
    /// Counts requests, so that the filler sees whether there are any.
    requests: AtomicU64,
    state: Mutex<State>,
    /// A write has ended, or there is more to fill.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The size that the image is known to have.
    size: Bytes,
    /// The image has grown since the filler looked at its size.
    grown: bool,
    /// What is being filled.
    part: Option<Part>,
    /// Writes that are under way.
    writes: Vec<Range<u64>>,
}

#[derive(Debug)]
struct Part {
    range: Range<u64>,
    /// Can be read from when it is filled, and ever after.
    filled: Arc<OwnedFd>,
}

/// A write that is under way.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    range: Range<u64>,
}

impl Gate {
    /// A gate whose filler has yet to begin with an image of this size.
    pub(crate) fn new(size: Bytes) -> Self {
        let state = Mutex::new(State { size, ..State::default() });
        Self {
            open: false.into(),
            flush_failed: false.into(),
            untold: false.into(),
            requests: AtomicU64::new(0),
            state,
            changed: Condvar::new(),
        }
    }

    /// Says that the image has grown to this size, before any request for what it has got comes.
    pub(crate) fn grow(&self, size: Bytes) {
        let mut state = self.state();
        state.grown = true;
        state.size = state.size.max(size);
        self.changed.notify_all();
    }

    /// How much there is to fill. A growth that fails takes back what the file had for a moment, and nobody was told of.
    fn size(&self) -> Bytes {
        self.state().size
    }

    /// Says that there is a request, whatever it is.
    pub(crate) fn count(&self) {
        if !self.open.load(Ordering::Relaxed) {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets a write to a range go on when the range is not being filled; its place is taken until the pass is dropped. `None` when
    /// nobody works on parts any more.
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

    /// Fails once after each failed flush in the background. Who asks for one next is the one to be told: what the volume had written may
    /// be lost, and the kernel says so only to the first who asks.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn tell_failure(&self) -> io::Result<()> {
        if self.untold.swap(false, Ordering::AcqRel) { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Says that a flush failed of which the volume is told.
    pub(crate) fn note_failed_flush(&self) {
        self.flush_failed.store(true, Ordering::Release);
    }

    /// Whether a flush has failed since the server began.
    pub(crate) fn has_failed_flush(&self) -> bool {
        self.flush_failed.load(Ordering::Acquire)
    }

    /// Fails after any failed flush.
    ///
    /// # Errors
    /// `EIO`.
    pub(crate) fn check_flushes(&self) -> io::Result<()> {
        if self.has_failed_flush() { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// Flushes in the background.
    ///
    /// # Errors
    /// `flush`'s, which the volume is told of with its next flush.
    pub(crate) fn flush<T, E>(&self, flush: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        flush().inspect_err(|_| {
            self.note_failed_flush();
            self.untold.store(true, Ordering::Release);
        })
    }

    /// A pass, or what can be read from when it is worth another try.
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

    /// Does some work on a part when nothing is being written to it; what comes meanwhile waits.
    ///
    /// # Errors
    /// When there is nothing to wait by; the work is not done then.
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
        // It has room for one.
        let _ = rustix::io::write(&filled, &1u64.to_ne_bytes());
        Ok(done)
    }

    /// Says that nobody works on parts any more, for good.
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a moment in which the volume is idle, for a while. `seen` is how many requests there had been before.
    pub(crate) fn wait_for_idle(&self, seen: &mut u64) {
        let give_up = Instant::now() + PATIENCE;
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

    /// Waits until there is more to fill.
    fn wait_for_growth(&self) {
        let mut state = self.state();
        while !state.grown {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.grown = false;
    }

    /// Waits until what could not be filled is worth another try.
    fn wait_to_try_again(&self) {
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, AGAIN, |state| !state.grown);
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

/// Fills an image, and what it grows by, as long as this process lives. What cannot be filled can be used all the same.
pub(crate) fn run(gate: &Gate, filler: &Filler) {
    loop {
        match fill_all(gate, filler) {
            Err(error) => {
                tracing::error!(why = chain(&error), "the image cannot be prepared");
                gate.wait_to_try_again();
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
        sum += filled.map_err(|source| filler.failed("wait for writes to", source))??.0;
    }
    // What the volume makes durable meanwhile would not hear of it when this fails.
    let flushed = gate.hold(ALL, || gate.flush(|| filler.finish()));
    flushed.map_err(|source| filler.failed("wait for flushes of", source))??;
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
    fn what_is_written_and_what_is_filled_wait_for_each_other() {
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
            // Beside the part it may go on, in it it has to wait.
            drop(gate.try_enter(&(Bytes::MIB..2 * Bytes::MIB)).unwrap());
            drop(gate.try_enter(&FLUSHES).unwrap());
            let waits = gate.try_enter(&(4096..8192)).unwrap_err();
            assert!(!filling.is_finished(), "it is filled while it is written to");
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
    fn what_is_written_before_there_is_more_is_waited_for_as_well() {
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
            assert!(!filling.is_finished(), "it is filled while it is written to");
            drop(write);
            filling.join().unwrap();
        });
        assert!(!gate.open.load(Ordering::Acquire));
    }

    #[test]
    fn what_was_said_already_is_not_waited_for() {
        let gate = Gate::new(Bytes::mib(4));
        gate.grow(Bytes::mib(5));
        gate.wait_to_try_again();
        assert!(!gate.state().grown);
        gate.grow(Bytes::mib(6));
        gate.wait_for_growth();
        assert!(!gate.state().grown);
    }

    #[test]
    fn a_flush_waits_for_nothing_but_what_holds_all() {
        let gate = Gate::new(Bytes::mib(4));
        gate.hold(0..Bytes::mib(4).0, || drop(gate.try_enter(&FLUSHES).unwrap())).unwrap();
        gate.hold(ALL, || gate.try_enter(&FLUSHES).unwrap_err()).unwrap();
        gate.try_enter(&FLUSHES).unwrap();
    }

    #[test]
    fn a_failed_flush_in_the_background_is_told_once_and_not_forgotten() {
        let gate = Gate::new(Bytes::mib(4));
        gate.flush(|| Ok::<_, ()>(())).unwrap();
        gate.tell_failure().unwrap();
        assert!(!gate.has_failed_flush());
        gate.flush(|| Err::<(), _>(())).unwrap_err();
        // The kernel says nothing of it any more.
        gate.flush(|| Ok::<_, ()>(())).unwrap();
        assert_eq!(gate.tell_failure().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        gate.tell_failure().unwrap();
        assert!(gate.has_failed_flush());
    }
}
