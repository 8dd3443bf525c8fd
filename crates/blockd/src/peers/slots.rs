//! Bounds how many threads do what may hang.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long something takes that hangs.
const HANGS: Duration = Duration::from_millis(100);

/// How long a slot is waited for.
const PATIENCE: Duration = Duration::from_millis(50);

/// Slots, each for one thread at a time.
#[derive(Debug)]
pub(super) struct Slots {
    most: usize,
    /// Since when each thread is at work.
    taken: Mutex<Vec<Instant>>,
    freed: Condvar,
}

/// One that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot<'s> {
    slots: &'s Slots,
    since: Instant,
}

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default(), freed: Condvar::new() }
    }

    /// Takes a slot, and waits a moment for one as long as nothing hangs.
    pub(super) fn take(&self) -> Option<Slot<'_>> {
        let give_up = Instant::now() + PATIENCE;
        let mut taken = self.taken();
        while taken.len() >= self.most {
            let hangs = taken.iter().any(|since| since.elapsed() >= HANGS);
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
        slots.taken()[0] -= HANGS;
        slots.taken().push(Instant::now());
        let asked = Instant::now();
        assert!(slots.take().is_none() && asked.elapsed() < PATIENCE, "what hangs is not waited for");
        drop(third);
    }
}
