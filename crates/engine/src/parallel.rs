//! The same work on several items in parallel, on scoped threads.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Does the work on each item, on at most `n_threads` threads including this one; returns the results, in no particular order.
/// A panic in one propagates.
pub(crate) fn each<I: Sync, T: Send>(items: &[I], n_threads: usize, work: impl Fn(usize, &I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let work_on = || {
        let mut done = Vec::new();
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(n) else { break };
            done.push(work(n, item));
        }
        done
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..n_threads.min(items.len())).map(|_| scope.spawn(work_on)).collect();
        let mut done = work_on();
        done.extend(others.into_iter().flat_map(|other| other.join().unwrap_or_else(|why| resume_unwind(why))));
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_is_worked_on_once_whatever_the_number_of_threads() {
        let items: Vec<usize> = (0..100).collect();
        for n_threads in [0, 1, 8, 200] {
            let mut done = each(&items, n_threads, |n, item| {
                assert_eq!(n, *item);
                n
            });
            done.sort_unstable();
            assert_eq!(done, items);
        }
        assert!(each(&[], 8, |_, item: &u8| *item).is_empty());
    }

    #[test]
    #[should_panic(expected = "in one of them")]
    fn a_panic_is_passed_on() {
        each(&[1, 2, 3], 3, |_, item| assert!(*item != 3, "in one of them"));
    }
}
