//! The drive's command queue: commands that need the medium, in the order in which the arm reaches them.
//!
//! Owns: the waiting commands, the choice of the nearest, and the age limit that prevents starvation.
//! Does not: choose between commands and destaging (`super`), or store cached writes.

use std::ops::Range;

use super::arm::Arm;
use super::geometry::{Geometry, Place};
use super::read_buffer::ReadBuffer;

#[derive(Debug, Default)]
pub(super) struct Queue {
    commands: Vec<Command>,
}

#[derive(Debug, Clone)]
pub(super) struct Command {
    pub(super) tag: u16,
    pub(super) writes: bool,
    pub(super) range: Range<u64>,
    pub(super) place: Place,
    pub(super) since_ns: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    pub(super) idx: usize,
    pub(super) cost_ns: u64,
    /// The command has waited longer than the limit, and is served first.
    pub(super) overdue: bool,
}

impl Queue {
    pub(super) fn push(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    pub(super) fn take(&mut self, choice: Choice) -> Command {
        // Keeps the order of arrival, which breaks ties.
        self.commands.remove(choice.idx)
    }

    /// The command that the arm, or its current read-ahead stream, reaches first; the oldest command if that is
    /// overdue.
    pub(super) fn nearest(
        &self,
        arm: &Arm,
        buffer: &ReadBuffer,
        now_ns: u64,
        age_limit_ns: u64,
        geometry: &Geometry,
    ) -> Option<Choice> {
        let oldest = self.commands.first()?;
        if now_ns - oldest.since_ns > age_limit_ns {
            let cost_ns = cost(oldest, arm, buffer, now_ns, geometry);
            return Some(Choice { idx: 0, cost_ns, overdue: true });
        }
        let mut best: Option<Choice> = None;
        for (idx, command) in self.commands.iter().enumerate() {
            let cost_ns = cost(command, arm, buffer, now_ns, geometry);
            if best.is_none_or(|best| cost_ns < best.cost_ns) {
                best = Some(Choice { idx, cost_ns, overdue: false });
            }
        }
        best
    }
}

fn cost(command: &Command, arm: &Arm, buffer: &ReadBuffer, now_ns: u64, geometry: &Geometry) -> u64 {
    let streamed = if command.writes { None } else { buffer.streams(&command.range, now_ns, geometry) };
    match streamed {
        Some((start_ns, _)) => start_ns - now_ns,
        None => arm.positioning_ns(now_ns, command.range.start, command.place, command.writes, geometry),
    }
}
