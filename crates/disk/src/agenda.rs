//! The event queue of a model: its future steps, ordered by time.
//!
//! Owns: the order of steps, by time and then by order of entry.
//! Does not: interpret the steps.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(crate) struct Agenda<T> {
    steps: BinaryHeap<Step<T>>,
    n_entered: u64,
}

#[derive(Debug)]
struct Step<T> {
    at_ns: u64,
    seq: u64,
    what: T,
}

impl<T> Agenda<T> {
    pub(crate) fn new() -> Self {
        Self { steps: BinaryHeap::new(), n_entered: 0 }
    }

    pub(crate) fn enter(&mut self, at_ns: u64, what: T) {
        self.n_entered += 1;
        self.steps.push(Step { at_ns, seq: self.n_entered, what });
    }

    pub(crate) fn next_at(&self) -> Option<u64> {
        self.steps.peek().map(|step| step.at_ns)
    }

    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        if self.next_at()? > now_ns {
            return None;
        }
        self.steps.pop().map(|step| (step.at_ns, step.what))
    }
}

impl<T> Ord for Step<T> {
    /// Reversed, because the heap yields its greatest element.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at_ns, other.seq).cmp(&(self.at_ns, self.seq))
    }
}

impl<T> PartialOrd for Step<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Step<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Step<T> {}
