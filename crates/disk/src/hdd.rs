//! The hard disk: one arm, a queue, a read buffer and a write cache.
//!
//! Owns: the steps of a command, the arm, and the policy for its next access.
//! Does not: locate bytes (`geometry`), queue commands (`queue`), or buffer data (`read_buffer`, `cache`).
//!
//! Policy. Commands and dirty extents are taken in the order in which the arm reaches them (seek and rotation). Dirty
//! data waits while commands wait or reads have arrived within `destage_idle`, unless it is urgent: a flush or a write
//! waits for it, the cache is above its high-water mark, or the oldest is older than `dirty_age_limit`. Urgent data
//! competes with the commands by positioning time; after `turn_accesses` in a row of one kind it is the other's turn.
//! When idle, the head reads ahead from its position.
//!
//! Simplified: destaged data is not kept for reading; FLUSH is one of the queued commands, because the kernel does not
//! drain the queue of a ublk device for it as libata does.

mod arm;
mod cache;
mod geometry;
mod queue;
mod read_buffer;

use std::collections::VecDeque;

use crate::agenda::Agenda;
use crate::{Event, HddParameters, Kind, Request, transfer_ns};
use arm::Arm;
use cache::{Run, WriteCache};
use geometry::Geometry;
use queue::{Choice, Command, Queue};
use read_buffer::ReadBuffer;

#[derive(Debug)]
pub(crate) struct Hdd {
    table: HddParameters,
    geometry: Geometry,
    agenda: Agenda<Step>,
    /// Requests beyond the depth of the drive's queue.
    outside: VecDeque<Request>,
    n_inside: usize,
    interface_free_ns: u64,
    queue: Queue,
    buffer: ReadBuffer,
    cache: WriteCache,
    /// Writes for which the cache has no room.
    stalled: VecDeque<Request>,
    flushes: Vec<Flush>,
    arm: Arm,
    busy: Option<Access>,
    /// The time at which dirty data may be destaged while idle.
    wake_at_ns: Option<u64>,
    last_read_ns: u64,
    n_commands_in_row: u32,
    n_destages_in_row: u32,
    n_destages: u64,
}

#[derive(Debug)]
enum Step {
    /// Decoded; the data of a write has been transferred.
    Ready(Request),
    Complete(u16),
}

#[derive(Debug)]
struct Flush {
    tag: u16,
    up_to: u64,
}

#[derive(Debug)]
struct Access {
    kind: AccessKind,
    end: u64,
    ends_ns: u64,
}

#[derive(Debug)]
enum AccessKind {
    Command { command: Command, streamed: bool },
    Destage(Run),
    Resume,
}

impl Hdd {
    pub(crate) fn new(table: HddParameters, size_bytes: u64, random: u64) -> Self {
        let geometry = Geometry::new(&table, size_bytes);
        let end = random % size_bytes / 4096 * 4096;
        let arm = Arm {
            track: geometry.place(end).track,
            end,
            ended_ns: 0,
            wrote: false,
            access_overhead_ns: table.access_overhead_ns,
        };
        Self {
            geometry,
            agenda: Agenda::new(),
            outside: VecDeque::new(),
            n_inside: 0,
            interface_free_ns: 0,
            queue: Queue::default(),
            buffer: ReadBuffer::new(table.read_ahead_bytes, table.n_read_segments),
            cache: WriteCache::new(table.destage_run_bytes),
            stalled: VecDeque::new(),
            flushes: Vec::new(),
            arm,
            busy: None,
            wake_at_ns: None,
            last_read_ns: 0,
            n_commands_in_row: 0,
            n_destages_in_row: 0,
            n_destages: 0,
            table,
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
        let arm_ns = self.busy.as_ref().map(|access| access.ends_ns).or(self.wake_at_ns);
        [self.agenda.next_at(), arm_ns].into_iter().flatten().min()
    }

    pub(crate) fn advance(&mut self, now_ns: u64, events: &mut Vec<Event>) {
        while let Some(at_ns) = self.next_event().filter(|&at_ns| at_ns <= now_ns) {
            if let Some(access) = self.busy.take_if(|access| access.ends_ns <= at_ns) {
                self.end_access(access, events);
            } else if let Some((_, step)) = self.agenda.pop_due(at_ns) {
                match step {
                    Step::Ready(request) => self.ready(at_ns, request),
                    Step::Complete(tag) => self.complete(at_ns, tag, events),
                }
            }
            // Process all steps of this instant first, so that the choice considers every command that has arrived.
            if self.agenda.next_at().is_none_or(|next_ns| next_ns > at_ns) {
                self.move_arm(at_ns);
            }
        }
    }

    /// A command has completed: its place in the queue is free.
    fn complete(&mut self, now_ns: u64, tag: u16, events: &mut Vec<Event>) {
        events.push(Event::Completed { tag });
        self.n_inside -= 1;
        if let Some(request) = self.outside.pop_front() {
            self.admit(now_ns, request);
        }
    }

    fn admit(&mut self, now_ns: u64, request: Request) {
        self.n_inside += 1;
        let decoded_ns = now_ns + self.table.command_overhead_ns;
        let ready_ns = match request.kind {
            Kind::Write { .. } => self.transfer(decoded_ns, request.len),
            Kind::Read | Kind::Flush | Kind::Discard => decoded_ns,
        };
        self.agenda.enter(ready_ns, Step::Ready(request));
    }

    fn transfer(&mut self, from_ns: u64, len: u64) -> u64 {
        self.interface_free_ns =
            self.interface_free_ns.max(from_ns) + transfer_ns(len, self.table.interface_bytes_per_s);
        self.interface_free_ns
    }

    fn ready(&mut self, now_ns: u64, request: Request) {
        let range = request.offset..request.offset + request.len;
        match request.kind {
            Kind::Read => {
                self.last_read_ns = now_ns;
                if self.cache.covers(&range) || self.buffer.serve(&range, now_ns, &self.geometry) {
                    let at_ns = self.transfer(now_ns, request.len);
                    self.agenda.enter(at_ns, Step::Complete(request.tag));
                } else {
                    self.enqueue(now_ns, request, false);
                }
            }
            Kind::Write { fua } if fua || !self.table.write_cache => self.enqueue(now_ns, request, true),
            Kind::Write { .. } => {
                self.stalled.push_back(request);
                self.fill_cache(now_ns);
            }
            Kind::Flush => {
                let up_to = self.cache.cut();
                self.flushes.push(Flush { tag: request.tag, up_to });
                self.complete_flushes(now_ns);
            }
            Kind::Discard => {
                self.cache.remove(&range, &self.geometry);
                self.agenda.enter(now_ns, Step::Complete(request.tag));
                self.fill_cache(now_ns);
                self.complete_flushes(now_ns);
            }
        }
    }

    fn enqueue(&mut self, now_ns: u64, request: Request, writes: bool) {
        self.queue.push(Command {
            tag: request.tag,
            writes,
            range: request.offset..request.offset + request.len,
            place: self.geometry.place(request.offset),
            since_ns: now_ns,
        });
    }

    fn fill_cache(&mut self, now_ns: u64) {
        while let Some(request) = self.stalled.front() {
            let bytes = self.cache.bytes() + self.destaging_bytes();
            let room = bytes + request.len <= self.table.write_cache_bytes
                && self.cache.n_extents() < self.table.write_cache_extents;
            if !room && bytes > 0 {
                return;
            }
            self.cache.insert(request.offset..request.offset + request.len, now_ns, &self.geometry);
            self.agenda.enter(now_ns, Step::Complete(request.tag));
            self.stalled.pop_front();
        }
    }

    fn destaging_bytes(&self) -> u64 {
        match &self.busy {
            Some(Access { kind: AccessKind::Destage(run), .. }) => run.range.end - run.range.start,
            _ => 0,
        }
    }

    fn complete_flushes(&mut self, now_ns: u64) {
        let destaging = match &self.busy {
            Some(Access { kind: AccessKind::Destage(run), .. }) => Some(run.oldest_epoch),
            _ => None,
        };
        let oldest = [self.cache.oldest_epoch(), destaging].into_iter().flatten().min();
        let agenda = &mut self.agenda;
        self.flushes.retain(|flush| {
            let waits = oldest.is_some_and(|epoch| epoch <= flush.up_to);
            if !waits {
                agenda.enter(now_ns, Step::Complete(flush.tag));
            }
            waits
        });
    }

    fn end_access(&mut self, access: Access, events: &mut Vec<Event>) {
        let now_ns = access.ends_ns;
        let wrote = match access.kind {
            AccessKind::Resume => {
                self.buffer.read_on(&(access.end..access.end), now_ns, &self.geometry);
                false
            }
            AccessKind::Destage(run) => {
                events.push(Event::Durable { offset: run.range.start, len: run.range.end - run.range.start });
                true
            }
            AccessKind::Command { command, .. } if command.writes => {
                // The cached data in this range is not newer: it must not overwrite the range.
                self.cache.remove(&command.range, &self.geometry);
                let len = command.range.end - command.range.start;
                events.push(Event::Durable { offset: command.range.start, len });
                self.complete(now_ns, command.tag, events);
                true
            }
            AccessKind::Command { command, streamed } => {
                self.last_read_ns = now_ns;
                if !streamed {
                    self.buffer.read_on(&command.range, now_ns, &self.geometry);
                }
                let at_ns = self.transfer(now_ns, command.range.end - command.range.start);
                self.agenda.enter(at_ns, Step::Complete(command.tag));
                false
            }
        };
        self.arm.end = access.end;
        self.arm.track = self.geometry.place(access.end).track;
        self.arm.ended_ns = now_ns;
        self.arm.wrote = wrote;
        if wrote {
            self.fill_cache(now_ns);
            self.complete_flushes(now_ns);
        }
    }

    /// Chooses the next access of an idle arm, by the policy above.
    fn move_arm(&mut self, now_ns: u64) {
        self.wake_at_ns = None;
        if self.busy.is_some() {
            return;
        }
        if let Some(head) = self.buffer.head(now_ns, &self.geometry) {
            self.arm.track = self.geometry.place(head).track;
        }
        let command =
            self.queue.nearest(&self.arm, &self.buffer, now_ns, self.table.command_age_limit_ns, &self.geometry);
        match (command, self.destage(now_ns)) {
            (None, None) => {
                if let Some(from) = self.buffer.resume_at(now_ns, &self.geometry) {
                    self.buffer.leave(now_ns, &self.geometry);
                    let place = self.geometry.place(from);
                    let cost_ns = self.arm.positioning_ns(now_ns, from, place, false, &self.geometry);
                    self.busy = Some(Access { kind: AccessKind::Resume, end: from, ends_ns: now_ns + cost_ns });
                }
            }
            (Some(choice), None) => self.start_command(now_ns, choice),
            (None, Some((start, cost_ns))) => self.start_destage(now_ns, start, cost_ns),
            (Some(choice), Some((start, cost_ns))) => {
                let commands = choice.overdue || self.n_destages_in_row >= self.table.turn_accesses;
                let destages = self.n_commands_in_row >= self.table.turn_accesses;
                if commands || (!destages && choice.cost_ns <= cost_ns) {
                    self.start_command(now_ns, choice);
                } else {
                    self.start_destage(now_ns, start, cost_ns);
                }
            }
        }
    }

    /// The extent to destage if one is due; otherwise sets the time of the next check.
    fn destage(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let oldest_ns = self.cache.oldest_since()?;
        let due_ns = oldest_ns + self.table.dirty_age_limit_ns;
        let high_water = self.table.write_cache_bytes / 1000 * self.table.write_cache_high_water_per_mille;
        let urgent =
            !self.flushes.is_empty() || !self.stalled.is_empty() || now_ns >= due_ns || self.cache.bytes() > high_water;
        let idle_ns = if self.last_read_ns == 0 { 0 } else { self.last_read_ns + self.table.destage_idle_ns };
        let idle = self.queue.is_empty() && now_ns >= idle_ns;
        if !urgent && !idle {
            self.wake_at_ns = Some(if self.queue.is_empty() { due_ns.min(idle_ns) } else { due_ns });
            return None;
        }
        let overdue = now_ns - oldest_ns > self.table.dirty_starvation_ns;
        if overdue && self.n_destages.is_multiple_of(u64::from(self.table.turn_accesses)) {
            return self.cache.oldest(&self.arm, now_ns, &self.geometry);
        }
        let up_to = self.flushes.iter().map(|flush| flush.up_to).max();
        let needed = up_to.filter(|&epoch| self.cache.oldest_epoch().is_some_and(|oldest| oldest <= epoch));
        self.cache.nearest(&self.arm, now_ns, &self.geometry, needed)
    }

    fn start_command(&mut self, now_ns: u64, choice: Choice) {
        let command = self.queue.take(choice);
        let streamed = if command.writes { None } else { self.buffer.streams(&command.range, now_ns, &self.geometry) };
        let end = command.range.end;
        let ends_ns = match streamed {
            Some((_, end_ns)) => {
                self.buffer.follow(end, now_ns, &self.geometry);
                end_ns
            }
            None => {
                self.buffer.leave(now_ns, &self.geometry);
                now_ns + choice.cost_ns + self.geometry.transfer_ns(command.range.start, end)
            }
        };
        let kind = AccessKind::Command { command, streamed: streamed.is_some() };
        self.busy = Some(Access { kind, end, ends_ns });
        self.n_commands_in_row += 1;
        self.n_destages_in_row = 0;
    }

    fn start_destage(&mut self, now_ns: u64, start: u64, cost_ns: u64) {
        self.buffer.leave(now_ns, &self.geometry);
        let run = self.cache.take_run(start);
        let end = run.range.end;
        let ends_ns = now_ns + cost_ns + self.geometry.transfer_ns(start, end);
        self.busy = Some(Access { kind: AccessKind::Destage(run), end, ends_ns });
        self.n_destages_in_row += 1;
        self.n_destages += 1;
        self.n_commands_in_row = 0;
    }
}
