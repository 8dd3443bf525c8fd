//! The requests of block devices, by the block layer's tracepoints (kernel `include/trace/events/block.h`).
//!
//! Traces some devices for a short time; the first events that fit into the buffer are kept.

use bulkhead_core::units::DevNo;

use crate::roots::Roots;
use crate::tracefs::{Instance, TraceError, kernel_dev};

/// Name of the instance.
const INSTANCE: &str = "bulkhead-block";
/// Size of the ring buffer of each CPU: about 20 000 events.
const BUFFER_KIB: u32 = 2048;
const EVENTS: [(&str, Kind); 5] = [
    ("block_bio_queue", Kind::Queue),
    ("block_bio_backmerge", Kind::Merge),
    ("block_bio_frontmerge", Kind::Merge),
    ("block_rq_issue", Kind::Issue),
    ("block_rq_complete", Kind::Complete),
];

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file system, or a device above, submitted I/O.
    Queue,
    /// It was merged into a request that waits.
    Merge,
    /// The driver got a request.
    Issue,
    /// The driver completed a request, or a part of one.
    Complete,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It only flushes the device's cache.
    Flush,
    /// It discards, writes zeroes, or does something else.
    Other,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Seconds on the trace's clock.
    pub at: f64,
    /// The device.
    pub dev: DevNo,
    /// What happened.
    pub kind: Kind,
    /// What the request does.
    pub operation: Operation,
    /// Whether it was marked as metadata (`REQ_META`), as journals and inode tables are.
    pub is_meta: bool,
    /// First 512-byte sector.
    pub sector: u64,
    /// Number of sectors; 0 for a flush.
    pub sectors: u64,
}

/// A running trace.
#[derive(Debug)]
pub struct BlockTrace {
    instance: Instance,
}

impl BlockTrace {
    /// Starts tracing these devices. Only one trace at a time.
    ///
    /// # Errors
    /// If tracefs or the tracepoints are missing.
    pub fn start(roots: &Roots, devs: &[DevNo]) -> Result<Self, TraceError> {
        let instance = Instance::create(roots, INSTANCE, BUFFER_KIB)?;
        instance.write("options/overwrite", "0")?;
        let filter: Vec<String> = devs.iter().map(|dev| format!("dev == {}", kernel_dev(*dev))).collect();
        for (event, _) in EVENTS {
            instance.enable(&format!("block/{event}"), &filter.join(" || "))?;
        }
        Ok(Self { instance })
    }

    /// Stops the trace, and returns the events in order of time.
    ///
    /// # Errors
    /// If the trace cannot be read.
    pub fn stop(self) -> Result<Vec<Event>, TraceError> {
        Ok(self.instance.stop()?.lines().filter_map(parse).collect())
    }
}

/// `comm-TID [CPU] flags SECONDS: EVENT: MAJOR,MINOR FLAGS [BYTES] [(…)] SECTOR + SECTORS … [comm]`; `comm` may contain any character.
fn parse(line: &str) -> Option<Event> {
    let (head, kind, fields) = EVENTS.iter().find_map(|(name, kind)| {
        let (head, fields) = line.split_once(&format!(": {name}: "))?;
        Some((head, *kind, fields))
    })?;
    let at = head.rsplit(' ').next()?.parse().ok()?;
    let mut words = fields.split(' ');
    let (major, minor) = words.next()?.split_once(',')?;
    let dev = DevNo::new(major.parse().ok()?, minor.parse().ok()?);
    let flags = words.next()?;
    let (before, after) = fields.split_once(" + ")?;
    let sector = before.rsplit(' ').next()?.parse().ok()?;
    let sectors = after.split(' ').next()?.parse().ok()?;
    let (operation, is_meta) = operation_of(flags);
    Some(Event { at, dev, kind, operation, is_meta, sector, sectors })
}

/// The letters of `blk_fill_rwbs`: a flush before, the operation, then FUA, readahead, synchronous, metadata.
fn operation_of(flags: &str) -> (Operation, bool) {
    let (first, rest) = (flags.chars().next(), flags.get(1..).unwrap_or_default());
    let (operation, rest) = match first {
        Some('F') if rest.starts_with('F') => (Some('F'), rest.get(1..).unwrap_or_default()),
        Some('F') if rest.starts_with('W') => (Some('W'), rest.get(1..).unwrap_or_default()),
        first => (first, rest),
    };
    let operation = match operation {
        Some('R') => Operation::Read,
        Some('W') => Operation::Write,
        Some('F') => Operation::Flush,
        _ => Operation::Other,
    };
    (operation, rest.contains('M'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_events_are_understood() {
        let text = "\
# tracer: nop
             fio-812     [000] .....   100.000100: block_bio_queue: 7,0 WS 2048 + 16 [fio]
    odd [a-b]: x-812     [000] .....   100.000150: block_bio_backmerge: 7,0 WS 2064 + 16 [odd [a-b]: x]
             fio-812     [000] d.Z1.   100.000200: block_rq_issue: 7,0 WS 16384 () 2048 + 32 none,0,0 [fio]
          <idle>-0       [001] d.h1.   100.001200: block_rq_complete: 7,0 WS () 2048 + 32 none,0,0 [0]
     jbd2/vdb-8-301      [000] .....   100.002000: block_bio_queue: 253,17 FWFSM 9000 + 8 [jbd2/vdb-8]
     jbd2/vdb-8-301      [000] .....   100.003000: block_rq_issue: 253,17 FF 0 () 0 + 0 [kworker/0:1H]
             fio-812     [000] .....   100.004000: block_bio_queue: 253,17 RA 77 + 8 [fio]
             fio-812     [000] .....   100.005000: block_bio_queue: 253,17 DS 77 + 8 [fio]
             fio-812     [000] .....   100.006000: sched_switch: prev_comm=fio
";
        let events: Vec<Event> = text.lines().filter_map(parse).collect();
        let short: Vec<_> = events
            .iter()
            .map(|e| (e.kind, e.operation, e.is_meta, e.sector, e.sectors, (e.dev.major, e.dev.minor)))
            .collect();
        assert_eq!(
            short,
            [
                (Kind::Queue, Operation::Write, false, 2048, 16, (7, 0)),
                (Kind::Merge, Operation::Write, false, 2064, 16, (7, 0)),
                (Kind::Issue, Operation::Write, false, 2048, 32, (7, 0)),
                (Kind::Complete, Operation::Write, false, 2048, 32, (7, 0)),
                (Kind::Queue, Operation::Write, true, 9000, 8, (253, 17)),
                (Kind::Issue, Operation::Flush, false, 0, 0, (253, 17)),
                (Kind::Queue, Operation::Read, false, 77, 8, (253, 17)),
                (Kind::Queue, Operation::Other, false, 77, 8, (253, 17)),
            ]
        );
        assert!((events[3].at - events[2].at - 0.001).abs() < 1e-9);
    }
}
