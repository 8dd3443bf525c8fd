//! Taking turns with the other block servers of a disk with an arm (`bulkhead_core::arbiter`).
//!
//! A request of the volume is held until the arbiter lets it go; its queue's thread asks again when another server wakes it, or after the
//! time that the arbiter says. Without a table, a slot or a pipe, requests are not held: the order is that of arrival.
//!
//! Owns: held requests, and waking the servers whose turn it is. Does not: know the rules, or what a request does.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bulkhead_core::arbiter::{self, Decision, Link, MAX_SILENCE, Nanos, Own, Slot};
use bulkhead_core::slices;
use bulkhead_core::units::{DevNo, Share};
use bulkhead_formats::arbiter::{Table, dir, open_pipe, open_pipe_of};
use bulkhead_sys::cgroup::OwnCgroup;
use bulkhead_sys::process::{self, Handle};
use bulkhead_sys::roots::Roots;
use rustix::process::Pid;
use uuid::Uuid;

/// How often the share is read.
const SHARE_INTERVAL: Nanos = 1_000_000_000;

/// A server shows itself this often while it has requests.
const HEARTBEAT: Nanos = MAX_SILENCE / 2;

/// The turns of a volume's server, which has one queue.
#[derive(Debug)]
pub(crate) struct Turns {
    table: Table,
    own: usize,
    /// Readable when this server may have its turn.
    pipe: File,
    /// Where the pipes of the others are.
    directory: File,
    cgroup: OwnCgroup,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    own: Own,
    /// What the servers show, as last read.
    slots: Vec<Slot>,
    /// Tags of held requests, the oldest first.
    held: VecDeque<(u16, Link)>,
    /// Tags of requests that are no longer held, and have not gone on yet; whether the disk's cache is to be flushed first.
    granted: Vec<(u16, bool)>,
    /// When to ask again.
    again: Option<Nanos>,
    share_read: Option<Nanos>,
    pipes: HashMap<usize, (Uuid, Option<File>)>,
    /// Where the last write ended.
    end: u64,
}

/// A request's turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn<'t> {
    turns: &'t Turns,
    since: Nanos,
    link: Link,
    settles: bool,
}

/// Whether servers take turns on a disk now.
pub(crate) fn are_taken(roots: &Roots, disk: DevNo) -> bool {
    Table::find(roots, disk).ok().flatten().is_some_and(|table| table.is_on())
}

impl Turns {
    /// Joins the servers of a disk. `None` if all slots are taken. Call it before the process drops its mounts.
    ///
    /// # Errors
    /// The operating system's; `InvalidData` if the table is another version's.
    pub(crate) fn join(roots: &Roots, disk: DevNo, volume: Uuid) -> io::Result<Option<Self>> {
        let table = Table::open(roots, disk)?;
        let pipe = open_pipe(roots, volume)?;
        let directory = File::open(dir(roots))?;
        let cgroup = OwnCgroup::open(roots)?;
        let is_gone = |pid: u32| {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.is_none_or(|pid| matches!(Handle::open(pid), Ok(None)))
        };
        let Some(own) = table.claim(volume, std::process::id(), is_gone) else { return Ok(None) };
        let turns = Self { table, own, pipe, directory, cgroup, state: Mutex::default() };
        turns.step(|state, now| {
            turns.read_share(state, now);
            state.own.joins(own, &mut state.slots, now);
        });
        Ok(Some(turns))
    }

    /// Leaves: the others do not wait for this server.
    pub(crate) fn leave(&self) {
        self.table.release(self.own);
    }

    /// Readable when [`Turns::before_wait`] has something to do.
    pub(crate) fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Waits for the turn of a write to this range, or of another request.
    ///
    /// `None` while the arbiter is off.
    pub(crate) async fn take(&self, tag: u16, range: &Range<u64>, link: Link) -> Option<Turn<'_>> {
        if !self.table.is_on() {
            return None;
        }
        let link = self.step(|state, now| {
            let link = match link {
                Link::Write { bytes, .. } => {
                    let follows = std::mem::replace(&mut state.end, range.end) == range.start;
                    Link::Write { bytes, follows }
                }
                other => other,
            };
            self.read_share(state, now);
            state.own.arrives(self.own, &mut state.slots, now);
            state.held.push_back((tag, link));
            self.table.show(self.own, &state.slots[self.own]);
            self.grant(state, now);
            link
        });
        let settles = poll_fn(|_| {
            let mut state = self.state();
            match state.granted.iter().position(|(granted, _)| *granted == tag) {
                Some(at) => Poll::Ready(state.granted.swap_remove(at).1),
                None => Poll::Pending,
            }
        })
        .await;
        Some(Turn { turns: self, since: process::monotonic_ns(), link, settles })
    }

    /// Looks at the others before a wait: pushes the tags of requests that are no longer held, and returns after what time to look again.
    pub(crate) fn before_wait(&self, ready: &mut Vec<u16>) -> Option<Duration> {
        let mut wakes = [0; 64];
        // Nobody wakes a server that holds nothing, and one that is read too late has been asked meanwhile.
        while (&self.pipe).read(&mut wakes).is_ok_and(|n| n == wakes.len()) {}
        let is_idle = |state: &State| state.held.is_empty() && state.slots[self.own].in_flight == 0;
        if is_idle(&self.state()) {
            return None;
        }
        self.step(|state, now| {
            state.slots[self.own].last_seen = now;
            if !state.held.is_empty() {
                self.grant(state, now);
            }
            // Also those that were let go when a later one came.
            ready.extend(state.granted.iter().map(|(tag, _)| *tag));
            let again = state.again.map_or(HEARTBEAT, |again| again.saturating_sub(now).min(HEARTBEAT));
            Some(Duration::from_nanos(again))
        })
    }

    /// Lets held requests go as far as it is their turn.
    fn grant(&self, state: &mut State, now: Nanos) {
        state.again = None;
        let (own, is_on, before) = (self.own, self.table.is_on(), state.held.len());
        while let Some((tag, link)) = state.held.front().copied() {
            let mut settles = false;
            if is_on {
                // What the others show now: they may have seen this one's request meanwhile, or not.
                self.refresh(state);
                if let Decision::Wait(until) = state.own.asks(own, &mut state.slots, now) {
                    state.again = Some(until);
                    break;
                }
                settles = matches!(link, Link::Write { .. }) && Own::settles(own, &state.slots, now);
            }
            state.held.pop_front();
            state.granted.push((tag, settles));
            let is_more = !state.held.is_empty();
            state.own.submits(own, &mut state.slots, now, is_more);
            self.table.show(own, &state.slots[own]);
        }
        if state.held.len() < before {
            self.wake_others(state, now);
        }
    }

    fn completes(&self, since: Nanos, link: Link) {
        self.step(|state, now| {
            state.own.completes(self.own, &mut state.slots, now, since, link);
            self.show(state);
            self.refresh(state);
            self.wake_others(state, now);
        });
    }

    /// Wakes the servers whose turn it is. One that cannot be woken asks again by itself.
    fn wake_others(&self, state: &mut State, now: Nanos) {
        if !self.table.is_on() {
            return;
        }
        for index in (0..state.slots.len()).filter(|index| *index != self.own) {
            if !arbiter::may_submit(index, &state.slots, now) {
                continue;
            }
            let volume = self.table.volume(index);
            let (of, pipe) = state.pipes.entry(index).or_insert((volume, None));
            if *of != volume || pipe.is_none() {
                (*of, *pipe) = (volume, open_pipe_of(&self.directory, volume).ok());
            }
            // A pipe that is full wakes as well.
            let is_lost = |error: io::Error| error.kind() != io::ErrorKind::WouldBlock;
            if pipe.as_mut().is_some_and(|pipe| pipe.write(&[1]).is_err_and(is_lost)) {
                *pipe = None;
            }
        }
    }

    /// A step with the present time and slots, of which the own one is shown to the others afterwards.
    fn step<T>(&self, step: impl FnOnce(&mut State, Nanos) -> T) -> T {
        let mut state = self.state();
        self.refresh(&mut state);
        let now = process::monotonic_ns();
        state.slots[self.own].owed = self.table.take_owed(self.own);
        let State { own, slots, .. } = &mut *state;
        own.pays(self.own, slots, now);
        let outcome = step(&mut state, now);
        self.show(&mut state);
        outcome
    }

    /// Shows the own slot to the others, and tells them what they owe.
    fn show(&self, state: &mut State) {
        self.table.show(self.own, &state.slots[self.own]);
        for (index, slot) in state.slots.iter_mut().enumerate().filter(|(_, slot)| slot.owed > 0) {
            self.table.owe(index, std::mem::take(&mut slot.owed));
        }
    }

    /// Reads what the others show.
    fn refresh(&self, state: &mut State) {
        let own = state.slots.get(self.own).copied();
        self.table.read(&mut state.slots);
        if state.slots.len() <= self.own {
            state.slots.resize(self.own + 1, Slot::default());
        }
        if let Some(own) = own {
            state.slots[self.own] = own;
        }
    }

    /// Reads the share of the slice that this server is in, once in a while.
    fn read_share(&self, state: &mut State, now: Nanos) {
        if state.share_read.is_some_and(|read| now.saturating_sub(read) < SHARE_INTERVAL) {
            return;
        }
        state.share_read = Some(now);
        let path = self.cgroup.path().unwrap_or_default();
        let slice = slices::above(&path);
        let weight = |text: String| text.lines().find_map(|line| line.strip_prefix("default ")?.trim().parse().ok());
        let share = slice.and_then(|slice| self.cgroup.io_weights(slice)).and_then(weight);
        let slot = &mut state.slots[self.own];
        slot.share = share.unwrap_or_else(|| Share::DEFAULT.weight());
        slot.tenant = slice.map_or(0, |slice| {
            blake3::hash(slice.as_bytes()).as_bytes().iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn<'_> {
    /// Whether the disk's cache is to be flushed before the request ([`Turn::settled`]).
    pub(crate) fn settles(&self) -> bool {
        self.settles
    }

    /// It was, by a flush that was submitted at the beginning of the turn.
    pub(crate) fn settled(&self) {
        self.turns.step(|state, _| Own::settled(self.turns.own, &mut state.slots, self.since));
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.completes(self.since, self.link);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    const DISK: DevNo = DevNo::new(8, 0);

    fn roots() -> (tempfile::TempDir, Roots) {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let own = roots.proc.join(std::process::id().to_string());
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(roots.cgroup.join("bulkhead.slice/bulkhead-db.slice")).unwrap();
        fs::write(own.join("cgroup"), "0::/bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice\n").unwrap();
        fs::write(roots.cgroup.join("bulkhead.slice/bulkhead-db.slice/io.weight"), "default 700\n").unwrap();
        (base, roots)
    }

    fn join(roots: &Roots, n: u128) -> Turns {
        Turns::join(roots, DISK, Uuid::from_u128(n)).unwrap().unwrap()
    }

    const READ: (Range<u64>, Link) = (0..4096, Link::Read);

    #[test]
    fn requests_that_are_let_go_when_a_later_one_comes_go_on() {
        let (_base, roots) = roots();
        let (one, other) = (join(&roots, 1), join(&roots, 2));
        one.table.switch(true);
        let mut context = Context::from_waker(Waker::noop());
        let (range, link) = READ;
        let mut in_device = Vec::new();
        for tag in 0..2 {
            match pin!(other.take(tag, &range, link)).poll(&mut context) {
                Poll::Ready(turn) => in_device.push(turn),
                Poll::Pending => panic!("nobody else wants the device"),
            }
        }
        let mut first = pin!(one.take(7, &range, link));
        assert!(first.as_mut().poll(&mut context).is_pending(), "the device has two requests");
        let mut ready = Vec::new();
        assert!(one.before_wait(&mut ready).is_some() && ready.is_empty());
        drop(in_device);
        let mut wakes = [0; 8];
        assert!((&one.pipe).read(&mut wakes).unwrap() > 0, "the other server wakes it");
        let later = match pin!(one.take(8, &range, link)).poll(&mut context) {
            Poll::Ready(turn) => turn,
            Poll::Pending => panic!("there is room for both"),
        };
        one.before_wait(&mut ready);
        assert_eq!(ready, [7], "the first one was let go by the later one's step");
        assert!(first.as_mut().poll(&mut context).is_ready());
        drop(later);
        let slot = one.table.slot(one.own);
        assert_eq!((slot.share, slot.in_flight, slot.waiting_since), (700, 0, 0));
        assert_ne!(slot.tenant, 0);
    }

    #[test]
    fn nothing_is_held_while_the_arbiter_is_off() {
        let (_base, roots) = roots();
        let turns = join(&roots, 1);
        let mut context = Context::from_waker(Waker::noop());
        let taken = pin!(turns.take(0, &READ.0, READ.1)).poll(&mut context);
        assert!(matches!(taken, Poll::Ready(None)));
        assert_eq!(turns.before_wait(&mut Vec::new()), None);
        turns.leave();
        assert_eq!(turns.table.slot(turns.own), Slot::default());
    }
}
