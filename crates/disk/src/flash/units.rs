//! The flash units and the write buffer in front of them.
//!
//! Owns: when each unit is free, the buffered writes, and the burst that random writes may use up.
//! Does not: handle commands, flushes or the interface.
//!
//! Reads take precedence: a read waits for the page that its unit is programming, not for the backlog behind it.

use std::collections::VecDeque;

use crate::FlashParameters;

#[derive(Debug)]
pub(super) struct Units {
    table: FlashParameters,
    units: Vec<Unit>,
    /// The unit that holds the first page.
    first: u64,
    next_program: usize,
    page_program_ns: u64,
    buffered: VecDeque<Buffered>,
    buffered_total_bytes: u64,
    programmed_total_bytes: u64,
    programmed_ns: u64,
    writes: Ends,
    burst_bytes: u64,
    burst_max_bytes: u64,
}

/// End offsets of the most recent sequential streams.
#[derive(Debug, Default)]
pub(super) struct Ends {
    ends: VecDeque<u64>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Unit {
    read_free_ns: u64,
    program_free_ns: u64,
}

#[derive(Debug)]
struct Buffered {
    /// Bytes ever buffered, up to and including this write.
    total_bytes: u64,
    programmed_ns: u64,
}

const N_STREAMS: usize = 8;

impl Units {
    pub(super) fn new(table: FlashParameters, size_bytes: u64, random: u64) -> Self {
        let burst_max_bytes = size_bytes / 1000 * table.burst_per_mille_of_size;
        let n_units = usize::try_from(table.n_units).expect("the table's count of units fits");
        Self {
            units: vec![Unit::default(); n_units],
            first: random % table.n_units,
            next_program: 0,
            page_program_ns: crate::transfer_ns(table.page_bytes * table.n_units, table.program_bytes_per_s),
            buffered: VecDeque::new(),
            buffered_total_bytes: 0,
            programmed_total_bytes: 0,
            programmed_ns: 0,
            writes: Ends::default(),
            burst_bytes: burst_max_bytes,
            burst_max_bytes,
            table,
        }
    }

    /// Reads the pages; returns the time at which all are in memory.
    pub(super) fn read(&mut self, now_ns: u64, offset: u64, len: u64) -> u64 {
        let (first, last) = (offset / self.table.page_bytes, (offset + len.max(1) - 1) / self.table.page_bytes);
        let n_units = self.table.n_units;
        let mut unit_idx = usize::try_from((first + self.first) % n_units).unwrap_or(0);
        let mut fetched_ns = now_ns;
        for _ in first..=last {
            let unit = &mut self.units[unit_idx];
            let mut start_ns = unit.read_free_ns.max(now_ns);
            if unit.program_free_ns > start_ns {
                start_ns += (unit.program_free_ns - start_ns) % self.page_program_ns;
                unit.program_free_ns += self.table.page_read_ns;
            }
            unit.read_free_ns = start_ns + self.table.page_read_ns;
            fetched_ns = fetched_ns.max(unit.read_free_ns);
            unit_idx = if unit_idx + 1 == self.units.len() { 0 } else { unit_idx + 1 };
        }
        fetched_ns
    }

    /// Buffers a write and programs it in the background; returns the time at which the buffer had room for it.
    pub(super) fn buffer(&mut self, now_ns: u64, offset: u64, len: u64) -> u64 {
        let sequential = self.writes.continues(offset, len);
        self.collect_garbage(now_ns);
        let slow = !sequential && self.burst_bytes < len;
        if !sequential && !slow {
            self.burst_bytes -= len;
        }
        let mut left = len;
        while left > 0 {
            let part = left.min(self.table.page_bytes);
            left -= part;
            let mut program_ns = self.page_program_ns * part / self.table.page_bytes;
            if slow {
                program_ns =
                    program_ns * (self.table.program_bytes_per_s / 1000) / (self.table.random_write_bytes_per_s / 1000);
            }
            let unit = &mut self.units[self.next_program];
            unit.program_free_ns = unit.program_free_ns.max(unit.read_free_ns).max(now_ns) + program_ns;
            self.programmed_ns = self.programmed_ns.max(unit.program_free_ns);
            self.next_program = if self.next_program + 1 == self.units.len() { 0 } else { self.next_program + 1 };
        }
        self.buffered_total_bytes += len;
        self.buffered.push_back(Buffered { total_bytes: self.buffered_total_bytes, programmed_ns: self.programmed_ns });
        self.room_at(now_ns)
    }

    /// The time at which all buffered data has been programmed.
    pub(super) fn programmed_ns(&self) -> u64 {
        self.programmed_ns
    }

    /// The time at which enough has been programmed for the buffer to hold the rest.
    fn room_at(&mut self, now_ns: u64) -> u64 {
        // Writes programmed by now are dropped: later writes need more room than this one.
        while self.buffered.front().is_some_and(|write| write.programmed_ns <= now_ns) {
            if let Some(write) = self.buffered.pop_front() {
                self.programmed_total_bytes = write.total_bytes;
            }
        }
        let needed_bytes = self.buffered_total_bytes.saturating_sub(self.table.write_buffer_bytes);
        if needed_bytes <= self.programmed_total_bytes {
            return now_ns;
        }
        let idx = self.buffered.partition_point(|write| write.total_bytes < needed_bytes);
        self.buffered.get(idx).map_or(now_ns, |write| write.programmed_ns)
    }

    /// Idle time restores the burst.
    fn collect_garbage(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.programmed_ns);
        let collected = idle_ns / 1000 * (self.table.random_write_bytes_per_s / 1000) / 1000;
        self.burst_bytes = self.burst_bytes.saturating_add(collected).min(self.burst_max_bytes);
    }
}

impl Ends {
    /// Whether a request continues one of the recent streams. Its end becomes the end of the stream.
    pub(super) fn continues(&mut self, offset: u64, len: u64) -> bool {
        let found = self.ends.iter_mut().find(|end| **end == offset);
        if let Some(end) = found {
            *end = offset + len;
            return true;
        }
        if self.ends.len() == N_STREAMS {
            self.ends.pop_front();
        }
        self.ends.push_back(offset + len);
        false
    }
}
