//! The read buffer: data that the drive has read, and its read-ahead.
//!
//! Owns: the segments of earlier reads, and the stream: after a read the head stays on the track and keeps reading, up
//! to a limit that advances with the reads that follow.
//! Does not: move the arm, or cache writes.

use std::collections::VecDeque;
use std::ops::Range;

use super::geometry::Geometry;

#[derive(Debug)]
pub(super) struct ReadBuffer {
    segments: VecDeque<Range<u64>>,
    stream: Option<Stream>,
    read_ahead_bytes: u64,
    n_segments: usize,
}

/// Read-ahead by the head since `since_ns`; the buffer contains the data from `start` on.
#[derive(Debug)]
struct Stream {
    start: u64,
    since_ns: u64,
    from_pass_ns: u64,
    limit: u64,
    /// End of the last read that the stream has served.
    served: u64,
}

impl ReadBuffer {
    pub(super) fn new(read_ahead_bytes: u64, n_segments: usize) -> Self {
        Self { segments: VecDeque::new(), stream: None, read_ahead_bytes, n_segments }
    }

    /// Serves a read that lies entirely in the buffer.
    pub(super) fn serve(&mut self, range: &Range<u64>, now_ns: u64, geometry: &Geometry) -> bool {
        if let Some(stream) = &mut self.stream {
            let reached = stream.reached(now_ns, geometry);
            if stream.oldest(reached, self.read_ahead_bytes) <= range.start && range.end <= reached {
                stream.follow(range.end, reached, self.read_ahead_bytes);
                return true;
            }
        }
        self.segments.iter().any(|segment| segment.start <= range.start && range.end <= segment.end)
    }

    /// The times at which the stream reaches the start and the end of the range, if it will.
    pub(super) fn streams(&self, range: &Range<u64>, now_ns: u64, geometry: &Geometry) -> Option<(u64, u64)> {
        let stream = self.stream.as_ref()?;
        let reached = stream.reached(now_ns, geometry);
        let oldest = stream.oldest(reached, self.read_ahead_bytes);
        let near = oldest <= range.start && range.start <= reached + self.read_ahead_bytes;
        (near && reached < stream.limit).then(|| {
            let at = |offset| stream.since_ns + geometry.place(offset).pass_ns.saturating_sub(stream.from_pass_ns);
            (at(range.start).max(now_ns), at(range.end).max(now_ns))
        })
    }

    /// Extends the stream beyond this read.
    pub(super) fn follow(&mut self, end: u64, now_ns: u64, geometry: &Geometry) {
        if let Some(stream) = &mut self.stream {
            let reached = stream.reached(now_ns, geometry);
            stream.follow(end, reached, self.read_ahead_bytes);
        }
    }

    /// Position of the head while it reads ahead.
    pub(super) fn head(&self, now_ns: u64, geometry: &Geometry) -> Option<u64> {
        self.stream.as_ref().map(|stream| stream.reached(now_ns, geometry))
    }

    /// Where to resume a stream that has reached its limit and whose reader has consumed half of the read-ahead.
    pub(super) fn resume_at(&self, now_ns: u64, geometry: &Geometry) -> Option<u64> {
        let stream = self.stream.as_ref()?;
        let stopped = stream.reached(now_ns, geometry) == stream.limit;
        let used = stream.limit.saturating_sub(stream.served) <= self.read_ahead_bytes / 2;
        (stopped && used && stream.limit < geometry.size_bytes()).then_some(stream.limit)
    }

    /// The head leaves: the data that it has read is kept as a segment.
    pub(super) fn leave(&mut self, now_ns: u64, geometry: &Geometry) {
        if let Some(stream) = self.stream.take() {
            let end = stream.reached(now_ns, geometry);
            let start = stream.oldest(end, self.read_ahead_bytes);
            if self.segments.len() == self.n_segments {
                self.segments.pop_front();
            }
            self.segments.push_back(start..end);
        }
    }

    /// A read has ended at `now_ns`: the head starts to read ahead.
    pub(super) fn read_on(&mut self, read: &Range<u64>, now_ns: u64, geometry: &Geometry) {
        self.stream = Some(Stream {
            start: read.start,
            since_ns: now_ns,
            from_pass_ns: geometry.place(read.end).pass_ns,
            limit: read.end + self.read_ahead_bytes,
            served: read.end,
        });
    }
}

impl Stream {
    fn reached(&self, now_ns: u64, geometry: &Geometry) -> u64 {
        geometry.offset_at(self.from_pass_ns + (now_ns - self.since_ns)).min(self.limit)
    }

    /// Start of the data that is still in the buffer: twice the read-ahead is kept behind the head.
    fn oldest(&self, reached: u64, read_ahead_bytes: u64) -> u64 {
        self.start.max(reached.saturating_sub(read_ahead_bytes * 2))
    }

    fn follow(&mut self, end: u64, reached: u64, read_ahead_bytes: u64) {
        self.served = self.served.max(end);
        if reached < self.limit {
            self.limit = self.limit.max(end + read_ahead_bytes);
        }
    }
}
