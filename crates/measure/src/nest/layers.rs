//! What a layer of a stack does with its I/O, from the block layer's events: as `btt` and `blkparse` compute it.

use std::collections::BTreeMap;

use bulkhead_core::units::DevNo;
use bulkhead_sys::block_trace::{Event, Kind, Operation};

use crate::result::percentile;

/// One device in a traced time. Times of requests are means.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Layer {
    /// Requests that the driver got, flushes excepted.
    pub requests: usize,
    /// Mean size of these, KiB.
    pub request_kib: Option<f64>,
    /// Bios that were merged into others, percent of all.
    pub merged_pct: Option<f64>,
    /// Requests that begin where the one before ended, percent.
    pub sequential_pct: Option<f64>,
    /// From the submission of a bio until the driver gets its request, ms.
    pub queue_ms: Option<f64>,
    /// From there until it completes, ms.
    pub service_ms: Option<f64>,
    /// Time without a request in the driver, percent.
    pub idle_pct: Option<f64>,
    /// 90th percentile of the gaps between requests in which the driver had none, ms.
    pub idle_gap_p90_ms: Option<f64>,
    /// Metadata and journal, percent of the bytes written.
    pub meta_pct: Option<f64>,
    /// Flushes per second.
    pub flushes_per_s: Option<f64>,
}

/// Analyses the events of one device; `events` are in order of time, and may contain those of others.
pub(super) fn analyse(events: &[Event], dev: DevNo) -> Layer {
    let mut seen = Seen::default();
    events.iter().filter(|event| event.dev == dev).for_each(|event| seen.add(event));
    let span = match (events.first(), events.last()) {
        (Some(first), Some(last)) if last.at > first.at => last.at - first.at,
        _ => return Layer::default(),
    };
    seen.gaps.sort_by(f64::total_cmp);
    let pct = |part: f64, all: f64| (all > 0.0).then(|| 100.0 * part / all);
    let mean_ms = |(sum, n): (f64, usize)| (n > 0).then(|| 1e3 * sum / n as f64);
    let n_issued = seen.requests as f64;
    Layer {
        requests: seen.requests,
        request_kib: (seen.requests > 0).then(|| seen.sectors as f64 / 2.0 / n_issued),
        merged_pct: pct(seen.merges as f64, seen.bios as f64),
        sequential_pct: pct(seen.sequential as f64, n_issued),
        queue_ms: mean_ms(seen.queued),
        service_ms: mean_ms(seen.served),
        // The sum of no gaps would be -0.
        idle_pct: (seen.requests > 0).then(|| 100.0 * seen.gaps.iter().fold(0.0, |sum, gap| sum + gap) / span),
        idle_gap_p90_ms: percentile(&seen.gaps, 90.0).map(|gap| gap * 1e3),
        meta_pct: pct(seen.meta_sectors as f64, seen.written_sectors as f64),
        flushes_per_s: (seen.requests > 0).then(|| seen.flushes as f64 / span),
    }
}

/// Counts so far.
#[derive(Default)]
struct Seen {
    bios: usize,
    merges: usize,
    requests: usize,
    sectors: u64,
    sequential: usize,
    flushes: usize,
    written_sectors: u64,
    meta_sectors: u64,
    /// Sum and number of times.
    queued: (f64, usize),
    served: (f64, usize),
    gaps: Vec<f64>,
    /// Where the last request ended.
    end: Option<u64>,
    /// Bios by first sector, with the time of their submission.
    waiting: BTreeMap<u64, f64>,
    /// Requests in the driver by first sector, with the time of their issue and their last sector.
    in_driver: BTreeMap<u64, (f64, u64)>,
    idle_since: Option<f64>,
}

impl Seen {
    fn add(&mut self, event: &Event) {
        let end = event.sector + event.sectors;
        match event.kind {
            _ if event.operation == Operation::Flush => {
                self.flushes += usize::from(event.kind == Kind::Issue);
            }
            // An empty write with a flush becomes a flush.
            _ if event.sectors == 0 => {}
            Kind::Queue => {
                self.bios += 1;
                self.waiting.insert(event.sector, event.at);
                if event.operation == Operation::Write {
                    self.written_sectors += event.sectors;
                    self.meta_sectors += if event.is_meta { event.sectors } else { 0 };
                }
            }
            Kind::Merge => self.merges += 1,
            Kind::Issue => {
                if let Some(since) = self.idle_since.take() {
                    self.gaps.push(event.at - since);
                }
                let mut own = self.waiting.split_off(&event.sector);
                let mut later = own.split_off(&end);
                self.waiting.append(&mut later);
                for submitted in own.into_values() {
                    self.queued.0 += event.at - submitted;
                    self.queued.1 += 1;
                }
                self.requests += 1;
                self.sectors += event.sectors;
                self.sequential += usize::from(self.end == Some(event.sector));
                self.end = Some(end);
                self.in_driver.insert(event.sector, (event.at, end));
            }
            Kind::Complete => {
                let Some((&first, &(issued, last))) = self.in_driver.range(..=event.sector).next_back() else { return };
                if last < end {
                    return;
                }
                self.in_driver.remove(&first);
                if end < last {
                    // The rest of the request completes later.
                    self.in_driver.insert(end, (issued, last));
                } else {
                    self.served.0 += event.at - issued;
                    self.served.1 += 1;
                }
                if self.in_driver.is_empty() {
                    self.idle_since = Some(event.at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: DevNo = DevNo { major: 7, minor: 0 };

    fn event(at_ms: f64, kind: Kind, operation: Operation, sector: u64, sectors: u64) -> Event {
        Event { at: 100.0 + at_ms / 1e3, dev: DEV, kind, operation, is_meta: sector >= 1000, sector, sectors }
    }

    #[test]
    fn merges_queues_gaps_and_flushes_are_told_apart() {
        use Operation::{Flush, Write};
        let events = [
            event(0.0, Kind::Queue, Write, 0, 8),
            event(1.0, Kind::Queue, Write, 8, 8),
            event(1.0, Kind::Merge, Write, 8, 8),
            event(4.0, Kind::Issue, Write, 0, 16),
            // In two parts.
            event(8.0, Kind::Complete, Write, 0, 8),
            event(10.0, Kind::Complete, Write, 8, 8),
            event(12.0, Kind::Queue, Write, 16, 8),
            event(12.0, Kind::Issue, Write, 16, 8),
            event(14.0, Kind::Complete, Write, 16, 8),
            event(15.0, Kind::Issue, Flush, 0, 0),
            event(17.0, Kind::Complete, Flush, 0, 0),
            event(20.0, Kind::Queue, Write, 1000, 8),
            event(20.0, Kind::Issue, Write, 1000, 8),
            event(30.0, Kind::Complete, Write, 1000, 8),
            Event { dev: DevNo::new(8, 0), ..event(40.0, Kind::Complete, Write, 0, 8) },
        ];
        let layer = analyse(&events, DEV);
        assert_eq!(layer.requests, 3);
        let close = |found: Option<f64>, wanted: f64| (found.unwrap() - wanted).abs() < 1e-6;
        assert!(close(layer.request_kib, 32.0 / 2.0 / 3.0), "{layer:?}");
        assert!(close(layer.merged_pct, 25.0) && close(layer.sequential_pct, 100.0 / 3.0), "{layer:?}");
        assert!(
            close(layer.queue_ms, (4.0 + 3.0) / 4.0) && close(layer.service_ms, (6.0 + 2.0 + 10.0) / 3.0),
            "{layer:?}"
        );
        // 10 to 12 ms, and 14 to 20 ms, of 40 ms.
        assert!(close(layer.idle_pct, 20.0) && close(layer.idle_gap_p90_ms, 6.0), "{layer:?}");
        assert!(close(layer.meta_pct, 25.0) && close(layer.flushes_per_s, 25.0), "{layer:?}");
    }

    #[test]
    fn an_empty_trace_has_no_figures() {
        assert_eq!(analyse(&[], DEV), Layer::default());
    }
}
