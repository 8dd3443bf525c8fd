//! Bounds the number of threads that read from peers, which may hang.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An operation that takes longer counts as hanging.
const HANG_LIMIT: Duration = Duration::from_millis(100);

/// How long a thread waits for a slot.
const WAIT_LIMIT: Duration = Duration::from_millis(50);

/// Slots, each for one thread at a time.
#[derive(Debug)]
pub(super) struct Slots {
    max: usize,
    /// When each slot was taken.
    taken: Mutex<Vec<Instant>>,
    freed: Condvar,
}

/// A taken slot, which is freed when it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    since: Instant,
}

impl Slots {
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: Mutex::default(), freed: Condvar::new() }
    }

    /// Takes a slot, and waits for one for a moment unless a thread hangs.
    pub(super) fn take(&self) -> Option<Slot<'_>> {
        let give_up = Instant::now() + WAIT_LIMIT;
        let mut taken = self.taken();
        while taken.len() >= self.max {
            let hangs = taken.iter().any(|since| since.elapsed() >= HANG_LIMIT);
            let left = give_up.saturating_duration_since(Instant::now());
            if hangs || left.is_zero() {
                return None;
            }
            taken = self.freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let since = Instant::now();
        taken.push(since);
        Some(Slot { slots: self, since })
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        if let Some(at) = taken.iter().position(|since| *since == self.since) {
            taken.swap_remove(at);
        }
        self.slots.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_waited_for_unless_something_hangs() {
        let slots = Slots::new(2);
        let (first, second) = (slots.take().unwrap(), slots.take().unwrap());
        assert!(slots.take().is_none(), "there are two");
        drop(first);
        let third = slots.take().unwrap();
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| slots.take().is_some());
            drop(second);
            assert!(waits.join().unwrap());
        });
        assert_eq!(slots.taken().len(), 1);
        slots.taken()[0] -= HANG_LIMIT;
        slots.taken().push(Instant::now());
        let asked = Instant::now();
        assert!(slots.take().is_none() && asked.elapsed() < WAIT_LIMIT, "it waits for a hanging thread");
        drop(third);
    }
}
