//! Holding guest time between two requests of the host, in virtual time.
//!
//! The clock of an idle guest skips from timer to timer: the moment in which the host reads a reply would be minutes
//! for the guest, in which leases end and deadlines pass. So a thread keeps the guest busy unless the host waits for
//! something that takes guest time: the reply to a request, or the next event of a process
//! ([`crate::protocol::Request::Await`]). Owns that thread and the reasons for time to run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::Event;

/// Iterations between two checks of whether time is to run: some microseconds.
const SPINS: u32 = 1000;
/// The lowest priority: all other work of the guest comes first.
const NICE: i32 = 19;

/// Decides when guest time runs; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Hold {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Number of reasons for time to run. Only changed while `processes` is locked.
    reasons: AtomicU32,
    processes: Mutex<HashMap<u64, Progress>>,
    held: Condvar,
}

/// Events of a process that the host has been sent.
#[derive(Debug, Default)]
struct Progress {
    events: u64,
    /// The host waits for more events than this.
    awaited: Option<u64>,
}

impl Hold {
    /// Starts the thread that holds time while there is no reason to let it run.
    pub(super) fn start(&self) {
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            // Applies to this thread alone. If it fails, the thread only competes more.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            loop {
                let mut processes = shared.lock();
                while shared.reasons.load(Ordering::Relaxed) > 0 {
                    processes = shared.held.wait(processes).unwrap_or_else(PoisonError::into_inner);
                }
                drop(processes);
                while shared.reasons.load(Ordering::Relaxed) == 0 {
                    for spin in 0..SPINS {
                        std::hint::black_box(spin);
                    }
                }
            }
        });
    }

    /// Lets time run until the result is dropped.
    pub(super) fn run(&self) -> Running {
        let _changing = self.shared.lock();
        self.shared.reasons.fetch_add(1, Ordering::Relaxed);
        Running { hold: self.clone() }
    }

    /// Lets time run until the host has been sent more than `seen` events of a process.
    pub(super) fn run_until_event(&self, process: u64, seen: u64) {
        let mut processes = self.shared.lock();
        if let Some(progress) = processes.get_mut(&process)
            && progress.events <= seen
            && progress.awaited.replace(seen).is_none()
        {
            self.shared.reasons.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that this event of a request is about to be sent to the host.
    pub(super) fn record(&self, id: u64, event: &Event) {
        let mut processes = self.shared.lock();
        match event {
            Event::Started { .. } => drop(processes.insert(id, Progress { events: 1, awaited: None })),
            Event::Output { .. } => {
                if let Some(progress) = processes.get_mut(&id) {
                    progress.events += 1;
                    if progress.awaited.take_if(|seen| progress.events > *seen).is_some() {
                        self.drop_reason();
                    }
                }
            }
            _ => {
                if processes.remove(&id).is_some_and(|progress| progress.awaited.is_some()) {
                    self.drop_reason();
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn reasons(&self) -> u32 {
        self.shared.reasons.load(Ordering::Relaxed)
    }

    /// Called with `processes` locked.
    fn drop_reason(&self) {
        self.shared.reasons.fetch_sub(1, Ordering::Relaxed);
        self.shared.held.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Progress>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reason for guest time to run.
#[derive(Debug)]
pub(super) struct Running {
    hold: Hold,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _changing = self.hold.shared.lock();
        self.hold.drop_reason();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ExitStatus, Payload, Stream};

    #[test]
    fn time_runs_for_requests_and_until_an_awaited_event() {
        let hold = Hold::default();
        let request = hold.run();
        hold.record(7, &Event::Started { pid: 1 });
        drop(request);
        assert_eq!(hold.reasons(), 0, "a process that is not awaited is no reason");
        hold.run_until_event(7, 1);
        hold.run_until_event(7, 1);
        assert_eq!(hold.reasons(), 1);
        hold.record(7, &Event::Output { stream: Stream::Stdout, data: Payload::new(b"x") });
        assert_eq!(hold.reasons(), 0);
        hold.run_until_event(7, 1);
        assert_eq!(hold.reasons(), 0, "the awaited event has been sent already");
        let output = || Event::Output { stream: Stream::Stdout, data: Payload::new(b"x") };
        hold.run_until_event(7, 3);
        hold.record(7, &output());
        assert_eq!(hold.reasons(), 1, "the host has seen this one already");
        hold.record(7, &output());
        assert_eq!(hold.reasons(), 0);
        hold.run_until_event(7, 4);
        hold.record(7, &Event::Exited(ExitStatus::Code(0)));
        hold.run_until_event(7, 5);
        assert_eq!(hold.reasons(), 0, "an ended process has no further events");
    }
}
