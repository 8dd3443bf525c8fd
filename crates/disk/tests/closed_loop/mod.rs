//! A closed loop: `n_jobs` clients, each of which submits its next request when the last has completed.
//!
//! Owns: the clients and their access pattern. Does not: judge the results.

use bulkhead_disk::{Disk, Event, Kind, Nanos, Parameters, Request};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) kind: Kind,
    pub(crate) random: bool,
    pub(crate) block_bytes: u64,
    pub(crate) n_jobs: u16,
    /// Each job flushes after each write; the two count as one operation.
    pub(crate) flush: bool,
    pub(crate) span_bytes: u64,
    /// Operations before the measurement, and operations measured.
    pub(crate) n_warm_up: u64,
    pub(crate) n_counted: u64,
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) per_s: f64,
    pub(crate) n_events: u64,
    pub(crate) n_calls: u64,
    pub(crate) n_requests: u64,
    pub(crate) mean_latency_ns: f64,
}

impl Load {
    pub(crate) fn run(&self, parameters: &Parameters, size_bytes: u64) -> Outcome {
        let mut disk = Disk::new(parameters, size_bytes, 1);
        let mut random = 88_172_645_463_325_252u64;
        let (mut now, mut next_block, mut n_done) = (Nanos(0), 0, 0);
        let n_blocks = self.span_bytes / self.block_bytes;
        let mut request = |tag| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = if self.random { random % n_blocks } else { next_block % n_blocks };
            next_block += 1;
            Request { tag, kind: self.kind, offset: block * self.block_bytes, len: self.block_bytes }
        };
        let jobs = usize::from(self.n_jobs);
        let (mut since, mut flushing) = (vec![now; jobs], vec![false; jobs]);
        for tag in 0..self.n_jobs {
            disk.submit(now, request(tag));
        }
        let (mut events, mut n_events, mut n_calls) = (Vec::new(), 0, u64::from(self.n_jobs));
        let mut n_requests = n_calls;
        let (mut start, mut latency_ns) = (now, 0);
        while n_done < self.n_warm_up + self.n_counted {
            now = disk.next_event().expect("a request is in flight");
            disk.advance(now, &mut events);
            n_calls += 1;
            for event in events.drain(..) {
                n_events += 1;
                let Event::Completed { tag } = event else { continue };
                let job = usize::from(tag);
                (n_calls, n_requests) = (n_calls + 1, n_requests + 1);
                if self.flush && !flushing[job] {
                    flushing[job] = true;
                    disk.submit(now, Request { tag, kind: Kind::Flush, offset: 0, len: 0 });
                    continue;
                }
                flushing[job] = false;
                n_done += 1;
                if n_done == self.n_warm_up {
                    start = now;
                } else if n_done > self.n_warm_up {
                    latency_ns += now.0 - since[job].0;
                }
                since[job] = now;
                disk.submit(now, request(tag));
            }
        }
        let n_counted = self.n_counted as f64;
        let per_s = n_counted * 1e9 / (now.0 - start.0) as f64;
        Outcome { per_s, n_events, n_calls, n_requests, mean_latency_ns: latency_ns as f64 / n_counted }
    }
}
