//! The flash disk: a controller, an interface, parallel flash units, and a write buffer.
//!
//! Owns: the steps of a command, and the saves that make written data durable where power-loss protection does not.
//! Does not: hold the state of the units and of the buffer (`units`).
//!
//! A read goes through the controller, the units that hold its pages, and the interface; a write through the
//! controller, the interface and the buffer, from which it is programmed in the background. Controller and interface
//! serve one request at a time. Without power-loss protection a *save* programs the buffered pages and writes the map:
//! a flush joins the next save, so that flushes which arrive during a save share one.
//!
//! Simplified: a discard costs a command; buffered data is not read faster.

mod units;

use std::collections::VecDeque;

use crate::agenda::Agenda;
use crate::{Event, FlashParameters, Kind, Request, transfer_ns};
use units::{Ends, Units};

#[derive(Debug)]
pub(crate) struct Flash {
    table: FlashParameters,
    agenda: Agenda<Step>,
    outside: VecDeque<Request>,
    n_inside: usize,
    controller_free_ns: u64,
    read_interface_free_ns: u64,
    write_interface_free_ns: u64,
    units: Units,
    reads: Ends,
    /// Buffered or programmed, but lost with the map if power fails.
    unsaved: Vec<(u64, u64)>,
    n_unsaved_writes: u64,
    saving: Option<Save>,
    /// Flushes and FUA writes for the next save.
    waiting: Vec<Request>,
}

#[derive(Debug)]
enum Step {
    /// The controller has decoded the command.
    Decoded(Request),
    /// The pages of a read are in the drive's memory.
    Fetched(Request),
    /// The data of a write has been transferred.
    Transferred(Request),
    Complete(Request),
    Saved,
    SaveInBackground,
}

#[derive(Debug)]
struct Save {
    ranges: Vec<(u64, u64)>,
    waiting: Vec<Request>,
}

/// Number of unsaved ranges that starts a background save: bounds the events of one instant, and the loss at a power
/// cut.
const N_UNSAVED_MAX: usize = 4096;

impl Flash {
    pub(crate) fn new(table: FlashParameters, size_bytes: u64, random: u64) -> Self {
        Self {
            units: Units::new(table, size_bytes, random),
            table,
            agenda: Agenda::new(),
            outside: VecDeque::new(),
            n_inside: 0,
            controller_free_ns: 0,
            read_interface_free_ns: 0,
            write_interface_free_ns: 0,
            reads: Ends::default(),
            unsaved: Vec::new(),
            n_unsaved_writes: 0,
            saving: None,
            waiting: Vec::new(),
        }
    }

    pub(crate) fn submit(&mut self, now_ns: u64, request: Request) {
        if self.n_inside == self.table.queue_depth {
            self.outside.push_back(request);
        } else {
            self.admit(now_ns, request);
        }
    }

    pub(crate) fn next_event(&self) -> Option<u64> {
        self.agenda.next_at()
    }

    pub(crate) fn advance(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        while let Some((at_ns, step)) = self.agenda.pop_due(now_ns) {
            match step {
                Step::Decoded(request) => self.decoded(at_ns, request),
                Step::Fetched(request) => {
                    let ends_ns = self.transfer(at_ns, request.len, false);
                    self.agenda.enter(ends_ns, Step::Complete(request));
                }
                Step::Transferred(request) => self.transferred(at_ns, request),
                Step::Complete(request) => {
                    if matches!(request.kind, Kind::Write { .. }) && self.table.power_loss_protection {
                        events.push(Event::Durable { offset: request.offset, len: request.len });
                    }
                    events.push(Event::Completed { tag: request.tag });
                    self.admit_next(at_ns);
                }
                Step::Saved => self.saved(at_ns, events),
                Step::SaveInBackground => {
                    if self.saving.is_none() && !self.unsaved.is_empty() {
                        self.save(at_ns);
                    }
                }
            }
        }
    }

    fn admit(&mut self, now_ns: u64, request: Request) {
        self.n_inside += 1;
        let command_ns = match request.kind {
            Kind::Write { .. } => self.table.write_command_ns,
            // Nothing to do, and measured to cost concurrent writes nothing.
            Kind::Flush if self.table.power_loss_protection => 0,
            Kind::Read | Kind::Flush | Kind::Discard => self.table.read_command_ns,
        };
        self.controller_free_ns = self.controller_free_ns.max(now_ns) + command_ns;
        self.agenda.enter(self.controller_free_ns, Step::Decoded(request));
    }

    fn decoded(&mut self, now_ns: u64, request: Request) {
        match request.kind {
            Kind::Read => {
                let fetched_ns = if self.reads.continues(request.offset, request.len) && self.table.prefetch {
                    now_ns
                } else {
                    self.units.read(now_ns, request.offset, request.len)
                };
                self.agenda.enter(fetched_ns, Step::Fetched(request));
            }
            Kind::Write { .. } => {
                let ends_ns = self.transfer(now_ns, request.len, true);
                self.agenda.enter(ends_ns, Step::Transferred(request));
            }
            Kind::Flush if self.table.power_loss_protection => {
                self.agenda.enter(now_ns + self.table.flush_ns, Step::Complete(request));
            }
            Kind::Flush if self.unsaved.is_empty() && self.saving.is_none() => {
                self.agenda.enter(now_ns, Step::Complete(request));
            }
            Kind::Flush => self.join_save(now_ns, request),
            Kind::Discard => {
                self.agenda.enter(now_ns, Step::Complete(request));
            }
        }
    }

    fn transfer(&mut self, from_ns: u64, len: u64, writes: bool) -> u64 {
        let rate = if writes { self.table.interface_write_bytes_per_s } else { self.table.interface_read_bytes_per_s };
        let free_ns = if writes && self.table.interface_duplex {
            &mut self.write_interface_free_ns
        } else {
            &mut self.read_interface_free_ns
        };
        *free_ns = (*free_ns).max(from_ns) + transfer_ns(len, rate);
        *free_ns
    }

    fn transferred(&mut self, now_ns: u64, request: Request) {
        let accepted_ns = self.units.buffer(now_ns, request.offset, request.len);
        let done_ns = accepted_ns.max(now_ns + self.table.buffer_write_ns);
        if self.table.power_loss_protection {
            self.agenda.enter(done_ns, Step::Complete(request));
            return;
        }
        if self.unsaved.is_empty() {
            self.agenda.enter(now_ns + self.table.map_save_interval_ns, Step::SaveInBackground);
        }
        self.n_unsaved_writes += 1;
        match self.unsaved.last_mut() {
            Some((offset, len)) if *offset + *len == request.offset => *len += request.len,
            _ => self.unsaved.push((request.offset, request.len)),
        }
        if self.unsaved.len() >= N_UNSAVED_MAX && self.saving.is_none() {
            self.save(now_ns);
        }
        match request.kind {
            Kind::Write { fua: true } => self.join_save(now_ns, request),
            _ => self.agenda.enter(done_ns, Step::Complete(request)),
        }
    }

    fn join_save(&mut self, now_ns: u64, request: Request) {
        self.waiting.push(request);
        if self.saving.is_none() {
            self.save(now_ns);
        }
    }

    fn save(&mut self, now_ns: u64) {
        let n_writes = std::mem::take(&mut self.n_unsaved_writes).min(self.table.flush_writes_max);
        let map_ns = if n_writes == 0 { 0 } else { self.table.flush_ns + self.table.flush_per_write_ns * n_writes };
        let save = Save { ranges: std::mem::take(&mut self.unsaved), waiting: std::mem::take(&mut self.waiting) };
        self.saving = Some(save);
        self.agenda.enter(self.units.programmed_ns().max(now_ns) + map_ns, Step::Saved);
    }

    fn saved(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        let Some(save) = self.saving.take() else { return };
        events.extend(save.ranges.into_iter().map(|(offset, len)| Event::Durable { offset, len }));
        for request in save.waiting {
            if matches!(request.kind, Kind::Write { .. }) {
                events.push(Event::Durable { offset: request.offset, len: request.len });
            }
            events.push(Event::Completed { tag: request.tag });
            self.admit_next(now_ns);
        }
        if !self.waiting.is_empty() {
            self.save(now_ns);
        }
    }

    /// A command has completed: its place in the queue is free.
    fn admit_next(&mut self, now_ns: u64) {
        self.n_inside -= 1;
        if let Some(request) = self.outside.pop_front() {
            self.admit(now_ns, request);
        }
    }
}
