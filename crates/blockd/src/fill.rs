//! Prepares an image while it is served: writes zeroes where nothing was ever written, a little at a time, so that the volume's
//! own writes cost the host's file system no transaction any more.
//!
//! What the volume writes at the same time must win. So each write says where it is while the filler is at work, and waits while
//! that is being filled; the filler begins a part when no write to it is under way.

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

/// The filler waits until the volume has been idle for this long …
const IDLE: Duration = Duration::from_millis(50);

/// … but not longer than this: at worst it writes a MiB in each.
const PATIENCE: Duration = Duration::from_millis(250);

/// Keeps what the volume writes and the filler apart.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Whether the filler is at work. It becomes so before a request for a part that is not written can come.
    filling: AtomicBool,
    /// Counts requests, so that the filler sees whether there are any.
    requests: AtomicU64,
    state: Mutex<State>,
    /// A write has ended, or there is more to fill.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The image has grown since the filler looked at its size.
    grown: bool,
    /// What is being filled.
    part: Range<u64>,
    /// Writes that are under way.
    writes: Vec<Range<u64>>,
    /// Told when the part is filled.
    waiting: Vec<Arc<OwnedFd>>,
}

/// A write that is under way.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    range: Range<u64>,
}

impl Gate {
    /// A gate whose filler has yet to begin.
    pub(crate) fn new() -> Self {
        Self { filling: true.into(), requests: AtomicU64::new(0), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Says that the image has grown, before any request for what it has got comes.
    pub(crate) fn grow(&self) {
        let mut state = self.state();
        state.grown = true;
        self.filling.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Says that there is a request, whatever it is.
    pub(crate) fn count(&self) {
        if self.filling.load(Ordering::Relaxed) {
            self.requests.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets a write to a range go on when the range is not being filled; its place is taken until the pass is dropped. `None` when
    /// there is no filler.
    ///
    /// # Errors
    /// When the ring or the system has no room to wait.
    pub(crate) async fn enter(&self, request: &Request<'_>, range: Range<u64>) -> io::Result<Option<Pass<'_>>> {
        if !self.filling.load(Ordering::Acquire) {
            return Ok(None);
        }
        loop {
            match self.try_enter(&range)? {
                Ok(pass) => return Ok(Some(pass)),
                Err(filled) => request.wait_readable(filled.as_fd()).await?,
            }
        }
    }

    /// A pass, or what can be read from when it is worth another try.
    fn try_enter(&self, range: &Range<u64>) -> io::Result<Result<Pass<'_>, Arc<OwnedFd>>> {
        let mut state = self.state();
        if !overlap(&state.part, range) {
            state.writes.push(range.clone());
            return Ok(Ok(Pass { gate: self, range: range.clone() }));
        }
        let filled = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        state.waiting.push(Arc::clone(&filled));
        Ok(Err(filled))
    }

    /// Fills a part when nothing is being written to it.
    fn fill(&self, filler: &Filler, part: Range<u64>) -> Result<Bytes, FileError> {
        let mut state = self.state();
        state.part = part.clone();
        while state.writes.iter().any(|write| overlap(write, &part)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let filled = filler.fill(part);
        let mut state = self.state();
        state.part = 0..0;
        for event in state.waiting.drain(..) {
            // It has room for one.
            let _ = rustix::io::write(&event, &1u64.to_ne_bytes());
        }
        filled
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a moment in which the volume is idle, for a while. `seen` is how many requests there had been before.
    fn wait_for_idle(&self, seen: &mut u64) {
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
        self.filling.store(state.grown, Ordering::Release);
        while !state.grown {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.grown = false;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state();
        if let Some(at) = state.writes.iter().position(|write| *write == self.range) {
            state.writes.swap_remove(at);
        }
        if overlap(&state.part, &self.range) {
            self.gate.changed.notify_all();
        }
    }
}

/// Fills an image, and what it grows by, as long as this process lives. What cannot be filled can be used all the same.
pub(crate) fn run(gate: &Gate, filler: &Filler) {
    loop {
        match fill_all(gate, filler) {
            Ok(Bytes(0)) => {}
            Ok(filled) => tracing::info!(%filled, "the image is prepared"),
            Err(error) => tracing::error!(why = chain(&error), "the image cannot be prepared"),
        }
        gate.wait_for_growth();
    }
}

fn fill_all(gate: &Gate, filler: &Filler) -> Result<Bytes, FileError> {
    let (mut at, mut sum, mut seen) = (0, 0, 0);
    while let Some(part) = filler.next(at)? {
        gate.wait_for_idle(&mut seen);
        at = part.end;
        sum += gate.fill(filler, part)?.0;
    }
    filler.finish()?;
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

    #[test]
    fn what_is_written_and_what_is_filled_wait_for_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        image::create(&path, Bytes::mib(4), Provision::Full).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let gate = Gate::new();
        let write = gate.try_enter(&(8192..16384)).unwrap().unwrap();
        std::thread::scope(|threads| {
            let filling = threads.spawn(|| gate.fill(&Filler::open(&path).unwrap(), 0..Bytes::MIB).unwrap());
            while gate.state().part.is_empty() {
                std::thread::yield_now();
            }
            // Beside the part it may go on, in it it has to wait.
            drop(gate.try_enter(&(Bytes::MIB..2 * Bytes::MIB)).unwrap().unwrap());
            let waits = gate.try_enter(&(4096..8192)).unwrap().unwrap_err();
            assert!(!filling.is_finished(), "it is filled while it is written to");
            file.write_all_at(&[7; 8192], 8192).unwrap();
            file.sync_all().unwrap();
            drop(write);
            assert_eq!(filling.join().unwrap(), Bytes(Bytes::MIB - 8192));
            assert_eq!(rustix::io::read(&waits, &mut [0; 8]), Ok(8));
            gate.try_enter(&(4096..8192)).unwrap().unwrap();
        });
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 7) == (8192..16384).contains(&at)));
        let state = gate.state();
        assert!(state.part.is_empty() && state.writes.is_empty() && state.waiting.is_empty());
    }

    #[test]
    fn the_gate_is_closed_before_anybody_hears_of_more() {
        let gate = Gate::new();
        assert!(gate.filling.load(Ordering::Acquire));
        gate.filling.store(false, Ordering::Release);
        gate.grow();
        assert!(gate.filling.load(Ordering::Acquire));
        // It does not wait for what was said already.
        gate.wait_for_growth();
        assert!(gate.filling.load(Ordering::Acquire) && !gate.state().grown);
    }
}
