//! Holding the guest's time while the host thinks, where the guest's clock counts instructions.
//!
//! An idle guest's clock goes from timer to timer at once: a moment in which the host reads an answer would be minutes for the
//! guest, in which leases end and deadlines pass. So the guest is kept busy unless the host waits for something that takes time of
//! the guest: the answer of a request, or the next word of a process ([`crate::protocol::Request::Await`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::protocol::Event;

/// Turns between two looks at whether time is to run: some microseconds.
const TURNS: u32 = 1000;
/// The nicest: whatever the guest has to do comes first.
const NICE: i32 = 19;

/// Says when time runs; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Hold {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// For how many reasons time runs. Changed with `processes` locked only.
    reasons: AtomicU32,
    processes: Mutex<HashMap<u64, Progress>>,
    held: Condvar,
}

/// What the host was told of a process.
#[derive(Debug, Default)]
struct Progress {
    events: u64,
    /// The host waits for more than so many.
    awaited: Option<u64>,
}

impl Hold {
    /// Starts to hold time whenever there is no reason to let it run.
    pub(super) fn begin(&self) {
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || {
            // Of this thread alone; as nice as it can be, it is in nobody's way.
            let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
            loop {
                let mut processes = shared.lock();
                while shared.reasons.load(Ordering::Relaxed) > 0 {
                    processes = shared.held.wait(processes).unwrap_or_else(PoisonError::into_inner);
                }
                drop(processes);
                while shared.reasons.load(Ordering::Relaxed) == 0 {
                    for turn in 0..TURNS {
                        std::hint::black_box(turn);
                    }
                }
            }
        });
    }

    /// Time runs until this is dropped.
    pub(super) fn run(&self) -> Running {
        let _changing = self.shared.lock();
        self.shared.reasons.fetch_add(1, Ordering::Relaxed);
        Running { hold: self.clone() }
    }

    /// Time runs until the host is told more of a process than so many events.
    pub(super) fn run_until_event(&self, process: u64, seen: u64) {
        let mut processes = self.shared.lock();
        if let Some(progress) = processes.get_mut(&process)
            && progress.events <= seen
            && progress.awaited.replace(seen).is_none()
        {
            self.shared.reasons.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The host is about to be told this of a request.
    pub(super) fn told(&self, id: u64, event: &Event) {
        let mut processes = self.shared.lock();
        match event {
            Event::Started { .. } => drop(processes.insert(id, Progress { events: 1, awaited: None })),
            Event::Output { .. } => {
                if let Some(progress) = processes.get_mut(&id) {
                    progress.events += 1;
                    if progress.awaited.take_if(|seen| progress.events > *seen).is_some() {
                        self.one_less();
                    }
                }
            }
            _ => {
                if processes.remove(&id).is_some_and(|progress| progress.awaited.is_some()) {
                    self.one_less();
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn reasons(&self) -> u32 {
        self.shared.reasons.load(Ordering::Relaxed)
    }

    /// With `processes` locked.
    fn one_less(&self) {
        self.shared.reasons.fetch_sub(1, Ordering::Relaxed);
        self.shared.held.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Progress>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reason for time to run.
#[derive(Debug)]
pub(super) struct Running {
    hold: Hold,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _changing = self.hold.shared.lock();
        self.hold.one_less();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{ExitStatus, Payload, Stream};

    #[test]
    fn time_runs_for_requests_and_until_awaited_processes_speak() {
        let hold = Hold::default();
        let request = hold.run();
        hold.told(7, &Event::Started { pid: 1 });
        drop(request);
        assert_eq!(hold.reasons(), 0, "a process that nobody waits for is no reason");
        hold.run_until_event(7, 1);
        hold.run_until_event(7, 1);
        assert_eq!(hold.reasons(), 1);
        hold.told(7, &Event::Output { stream: Stream::Stdout, data: Payload::new(b"x") });
        assert_eq!(hold.reasons(), 0);
        hold.run_until_event(7, 1);
        assert_eq!(hold.reasons(), 0, "what the host waits for is on its way");
        let output = || Event::Output { stream: Stream::Stdout, data: Payload::new(b"x") };
        hold.run_until_event(7, 3);
        hold.told(7, &output());
        assert_eq!(hold.reasons(), 1, "the host has seen this one already");
        hold.told(7, &output());
        assert_eq!(hold.reasons(), 0);
        hold.run_until_event(7, 4);
        hold.told(7, &Event::Exited(ExitStatus::Code(0)));
        hold.run_until_event(7, 5);
        assert_eq!(hold.reasons(), 0, "nothing more comes of a process that has ended");
    }
}
