//! The order in which the block servers of one device submit their requests: chains of dependent writes keep the device, and device time is shared.
//!
//! An fsync is a chain: data, journal, flush, commit record, each submitted when the one before is done. A scheduler that always keeps the
//! device busy gives it to another tenant between two links, and the chain waits once per link. So a tenant whose next link is expected soon keeps
//! the device for a short *window* (anticipation; Iyer and Druschel, SOSP 2001), by its learnt think time. Which tenant submits is decided by
//! start-time fair queueing with few requests in the device, SFQ(D) (Jin, Chase and Kaur, SIGMETRICS 2004), in *device time*: a tenant
//! is charged the time for which its requests, or its windows, kept the device.
//!
//! There is no process that decides. Each server has a [`Slot`] that the others read, and asks ([`Own::asks`]) before it submits. A server that
//! is silent for [`MAX_SILENCE`] is waited for no longer, and no request is held for longer than [`MAX_WAIT`], whatever the slots say: one
//! that hangs, or lies, degrades the order to that of arrival.
//!
//! Owns: the rules. Does not: know requests, keep slots where other processes see them, read a clock, or wait.

/// A moment or a duration, nanoseconds of one clock.
pub type Nanos = u64;

/// Nobody waits for a server that has not been seen for this long. One that waits looks twice as often.
pub const MAX_SILENCE: Nanos = 30_000_000;

/// No request is held for longer than this. A tenant with 3 % of a hard disk waits this long for its turn; a shorter limit would give it more.
pub const MAX_WAIT: Nanos = 300_000_000;

/// Longest window for the next link of a chain.
pub const MAX_WINDOW: Nanos = 6_000_000;

/// Shortest window: below it, timers are not exact.
const MIN_WINDOW: Nanos = 200_000;

/// Requests in the device while several tenants use it.
pub const DEPTH: u32 = 2;

/// A tenant counts as one of several for this long after its last request.
const ACTIVE: Nanos = 200_000_000;

/// By how much more device time, for a share of [`UNIT`], a tenant may have had than one that waits, and still keep the device.
const SLACK: Nanos = 20_000_000;

/// Unflushed writes of a tenant in the disk's cache, in bytes of sequential writes that take as long to reach the medium: 10 to 20 ms. One that has
/// more flushes them in its own turn; else the next link of another's chain would wait for them.
const MAX_DIRTY: u64 = 2 << 20;

/// A tenant counts as one whose flushes wait for others' writes for this long after a flush.
const FLUSHING: Nanos = 1_000_000_000;

/// Sequential bytes that take as long as moving the arm.
const SEEK_BYTES: u64 = 512 << 10;

/// The share to which virtual time refers: `io.weight`'s default.
const UNIT: u64 = 100;

/// What a server shows the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// A number of its tenant, whose servers have one share together; 0 if it has none.
    pub tenant: u64,
    /// The share of its tenant, 1 to 10000.
    pub share: u32,
    /// Device time charged so far, times [`UNIT`] by its share.
    pub virtual_ns: u64,
    /// Requests in the device.
    pub in_flight: u32,
    /// Since when a request of it is held and could have been submitted; 0 if none is held.
    pub waiting_since: Nanos,
    /// Until when it keeps the device for the next link of its chain; 0 without an open chain, [`Nanos::MAX`] while a link is in the device.
    pub window_until: Nanos,
    /// Since when its open chain has kept the device; 0 if it has not.
    pub keeps_since: Nanos,
    /// Its last submission or completion.
    pub last_seen: Nanos,
    /// Its last completion.
    pub last_completed: Nanos,
    /// Writes of it that may be in the disk's cache, as [`MAX_DIRTY`], and since when the oldest is.
    pub dirty: u64,
    /// See `dirty`.
    pub dirty_since: Nanos,
    /// When its last flush was submitted that is completed.
    pub flushed_at: Nanos,
    /// The same of flushes that the tenant asked for.
    pub asked_at: Nanos,
    /// Device time of others' flushes that its writes took, not charged yet: others add to it, and it takes it all ([`Own::pays`]).
    pub owed: Nanos,
}

/// Whether a request is to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Now.
    Submit,
    /// Not before a request of another slot is completed, or before this moment.
    Wait(Nanos),
}

impl Slot {
    fn is_silent(&self, now: Nanos) -> bool {
        now.saturating_sub(self.last_seen) > MAX_SILENCE
    }

    fn is_active(&self, now: Nanos) -> bool {
        now.saturating_sub(self.last_seen) < ACTIVE
    }

    fn has_chain(&self, now: Nanos) -> bool {
        now < self.window_until
    }

    fn waits(&self, now: Nanos) -> bool {
        self.waiting_since > 0 && !self.is_silent(now)
    }

    fn contends(&self, now: Nanos) -> bool {
        (self.in_flight > 0 || self.waiting_since > 0 || self.has_chain(now)) && !self.is_silent(now)
    }
}

/// Decides about the oldest held request of `slots[own]`, which must have `waiting_since`.
fn decide(own: usize, slots: &[Slot], now: Nanos) -> Decision {
    let mine = &slots[own];
    let deadline = mine.waiting_since.saturating_add(MAX_WAIT);
    let others = || slots.iter().enumerate().filter(|(index, slot)| *index != own && slot.is_active(now));
    if now >= deadline || others().next().is_none() {
        return Decision::Submit;
    }
    let order = |index: usize, slot: &Slot| (slot.virtual_ns, index);
    // A chain begins in its turn, and keeps the device until its tenant has had SLACK more than another that wants it.
    let mut least = [(Nanos::MAX, usize::MAX); 2];
    for (index, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.contends(now)) {
        let this = order(index, slot);
        least = if this < least[0] { [this, least[0]] } else { [least[0], least[1].min(this)] };
    }
    let is_entitled = |(index, slot): &(usize, &Slot)| {
        let (others, _) = least[usize::from(least[0].1 == *index)];
        let slack = if slot.keeps_since > 0 { charge(SLACK, slot.share) } else { 0 };
        slot.has_chain(now) && !slot.is_silent(now) && slot.virtual_ns <= others.saturating_add(slack)
    };
    // One that has begun goes on; else the one whose tenant has had the least.
    let holder = slots
        .iter()
        .enumerate()
        .filter(is_entitled)
        .min_by_key(|(index, slot)| (slot.keeps_since == 0, slot.keeps_since, order(*index, slot)))
        .map(|(index, _)| index);
    let look = deadline.min(now.saturating_add(MAX_SILENCE / 2));
    match holder {
        Some(holder) if holder == own => return Decision::Submit,
        Some(holder) => return Decision::Wait(look.min(slots[holder].window_until)),
        None => {}
    }
    let in_device = slots.iter().filter(|slot| !slot.is_silent(now)).map(|slot| slot.in_flight);
    let is_next =
        others().filter(|(_, slot)| slot.waits(now)).all(|(index, slot)| order(own, mine) < order(index, slot));
    if in_device.fold(0, u32::saturating_add) < DEPTH && is_next { Decision::Submit } else { Decision::Wait(look) }
}

/// What a slot has in the disk's cache: a flush of any server writes all of it to the medium.
fn dirty(slot: &Slot, slots: &[Slot]) -> u64 {
    if slots.iter().any(|other| other.flushed_at >= slot.dirty_since) { 0 } else { slot.dirty }
}

/// Divides the time of a flush among those whose writes it has written to the medium. Returns the own part.
fn divide_flush(own: usize, slots: &mut [Slot], device_ns: Nanos) -> Nanos {
    let dirty: Vec<u128> = slots.iter().map(|slot| dirty(slot, slots).into()).collect();
    let all: u128 = u128::from(SEEK_BYTES) + dirty.iter().sum::<u128>();
    let mut rest = device_ns;
    for (_, (slot, dirty)) in slots.iter_mut().zip(dirty).enumerate().filter(|(index, _)| *index != own) {
        let part = u64::try_from(u128::from(device_ns) * dirty / all).unwrap_or(0).min(rest);
        slot.owed = slot.owed.saturating_add(part);
        rest -= part;
    }
    rest
}

/// Whether the oldest held request of this slot, if it has one, would be submitted now.
#[must_use]
pub fn may_submit(index: usize, slots: &[Slot], now: Nanos) -> bool {
    slots.get(index).is_some_and(|slot| slot.waiting_since > 0) && decide(index, slots, now) == Decision::Submit
}

/// The virtual time at which a tenant that comes back goes on: it gets nothing for the time in which it wanted nothing.
fn caught_up(own: usize, slots: &[Slot], now: Nanos) -> u64 {
    let others = || slots.iter().enumerate().filter(|(index, _)| *index != own).map(|(_, slot)| slot);
    let contending = others().filter(|slot| slot.contends(now)).map(|slot| slot.virtual_ns).min();
    // While nobody wants the device, it is the time of who has had the most.
    let others = contending.or_else(|| others().map(|slot| slot.virtual_ns).max()).unwrap_or(0);
    slots[own].virtual_ns.max(others.saturating_sub(SLACK))
}

/// Device time as virtual time.
fn charge(device_ns: Nanos, share: u32) -> u64 {
    device_ns.saturating_mul(UNIT) / u64::from(share.max(1))
}

/// How many servers of this one's tenant want the device: they divide its share.
fn crowd(own: usize, slots: &[Slot], now: Nanos) -> u64 {
    let tenant = slots[own].tenant;
    let is_other = |(index, slot): &(usize, &Slot)| *index != own && slot.tenant == tenant && slot.is_active(now);
    1 + if tenant == 0 { 0 } else { slots.iter().enumerate().filter(is_other).count() as u64 }
}

/// What a request is, as far as it says what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A read.
    Read,
    /// A write.
    Write {
        /// Its length.
        bytes: u64,
        /// Whether it begins where the last one ended.
        follows: bool,
    },
    /// A flush.
    Flush,
    /// A write that is durable when it is done (FUA).
    Durable,
}

impl Link {
    /// What it leaves in the disk's cache.
    fn dirties(self) -> u64 {
        match self {
            Self::Write { bytes, follows } => bytes.saturating_add(if follows { 0 } else { SEEK_BYTES }),
            Self::Read | Self::Flush | Self::Durable => 0,
        }
    }

    /// Its number in a history.
    fn number(self) -> usize {
        match self {
            Self::Read | Self::Write { .. } => 0,
            Self::Flush => 1,
            Self::Durable => 2,
        }
    }
}

/// Numbers of the last three links: a flush in the middle of a chain differs from one at its end by what was before.
const HISTORIES: usize = 27;

/// How soon a tenant's next request follows, learnt from those before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Habit {
    /// Mean time, ns.
    think: f64,
    /// The part of completions behind which a request follows within [`MAX_WINDOW`].
    follows: f64,
}

impl Default for Habit {
    fn default() -> Self {
        Self { think: 1e6, follows: 0.5 }
    }
}

/// Weight of the last observation in a habit.
const LAST: f64 = 0.125;

/// From which part on the next request is waited for.
const LIKELY: f64 = 0.5;

impl Habit {
    fn learn(&mut self, gap: Nanos) {
        let follows = gap <= MAX_WINDOW;
        self.follows += LAST * (f64::from(u8::from(follows)) - self.follows);
        if follows {
            self.think += LAST * (gap as f64 - self.think);
        }
    }

    /// How long to wait for the next request.
    fn window(&self) -> Option<Nanos> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "means of durations below MAX_WINDOW"
        )]
        (self.follows >= LIKELY).then(|| ((2.0 * self.think) as Nanos).clamp(MIN_WINDOW, MAX_WINDOW))
    }
}

/// A server's own state, which no other reads.
#[derive(Clone, Debug)]
pub struct Own {
    habits: [Habit; HISTORIES],
    /// The last three links, as a number.
    history: usize,
    /// The last completion that left nothing in the device and nothing held.
    idle_since: Option<Nanos>,
    /// Device time charged so far.
    charged: Nanos,
}

impl Default for Own {
    fn default() -> Self {
        Self { habits: [Habit::default(); HISTORIES], history: 0, idle_since: None, charged: 0 }
    }
}

impl Own {
    /// The server begins, or an earlier one's successor does.
    pub fn joins(&mut self, own: usize, slots: &mut [Slot], now: Nanos) {
        slots[own].virtual_ns = caught_up(own, slots, now);
        slots[own].last_seen = now;
    }

    /// Takes over what others' flushes have written for it.
    pub fn pays(&mut self, own: usize, slots: &mut [Slot], now: Nanos) {
        let owed = std::mem::take(&mut slots[own].owed);
        self.charge(own, slots, now, owed);
    }

    /// A request arrives: learns, and charges the window that it ends.
    pub fn arrives(&mut self, own: usize, slots: &mut [Slot], now: Nanos) {
        let Some(since) = self.idle_since.take() else {
            return self.holds(own, slots, now);
        };
        self.habits[self.history].learn(now.saturating_sub(since));
        self.ends_window(own, slots, since, now);
        if now.saturating_sub(since) > MAX_WINDOW {
            slots[own].virtual_ns = caught_up(own, slots, now);
        }
        // It comes alone: the next link of a chain, or the first one.
        if slots[own].in_flight == 0 {
            slots[own].window_until = Nanos::MAX;
        }
        self.holds(own, slots, now);
    }

    fn holds(&self, own: usize, slots: &mut [Slot], now: Nanos) {
        let slot = &mut slots[own];
        if slot.waiting_since == 0 {
            slot.waiting_since = now.max(1);
        }
        slot.last_seen = now;
    }

    /// Device time charged so far: of its requests, and of windows that kept others waiting.
    #[must_use]
    pub fn charged(&self) -> Nanos {
        self.charged
    }

    fn charge(&mut self, own: usize, slots: &mut [Slot], now: Nanos, device_ns: Nanos) {
        let crowd = crowd(own, slots, now);
        self.charged = self.charged.saturating_add(device_ns);
        let slot = &mut slots[own];
        slot.virtual_ns = slot.virtual_ns.saturating_add(charge(device_ns, slot.share).saturating_mul(crowd));
    }

    /// Charges the part of a window for which others waited.
    fn ends_window(&mut self, own: usize, slots: &mut [Slot], since: Nanos, now: Nanos) {
        let until = now.min(slots[own].window_until);
        let others = slots.iter().enumerate().filter(|(index, slot)| *index != own && slot.waits(now));
        if let Some(waiting) = others.map(|(_, slot)| slot.waiting_since).min() {
            let kept = until.saturating_sub(since.max(waiting));
            self.charge(own, slots, now, kept);
        }
    }

    /// Whether its oldest held request, which it must have, is to be submitted.
    pub fn asks(&self, own: usize, slots: &mut [Slot], now: Nanos) -> Decision {
        slots[own].last_seen = now;
        let decision = decide(own, slots, now);
        // It does not wait for others while its own requests fill the device.
        if decision != Decision::Submit && slots[own].in_flight == 0 {
            slots[own].keeps_since = 0;
        }
        decision
    }

    /// A request is submitted; `is_more` says whether another one is held, whose wait begins now.
    pub fn submits(&mut self, own: usize, slots: &mut [Slot], now: Nanos, is_more: bool) {
        let slot = &mut slots[own];
        slot.in_flight = slot.in_flight.saturating_add(1);
        slot.waiting_since = if is_more { now.max(1) } else { 0 };
        slot.last_seen = now;
        if slot.in_flight > 1 {
            // Several requests at a time are no link, but what comes after all of them may be.
            slot.window_until = 0;
        } else if slot.window_until > now && slot.keeps_since == 0 {
            slot.keeps_since = now.max(1);
        }
    }

    /// A request that was submitted at `since` is completed.
    pub fn completes(&mut self, own: usize, slots: &mut [Slot], now: Nanos, since: Nanos, link: Link) {
        let last = slots.iter().map(|slot| slot.last_completed).max().unwrap_or(0);
        let device_ns = now.saturating_sub(since.max(last));
        let device_ns = if link == Link::Flush { divide_flush(own, slots, device_ns) } else { device_ns };
        self.charge(own, slots, now, device_ns);
        let slot = &mut slots[own];
        slot.in_flight = slot.in_flight.saturating_sub(1);
        slot.last_completed = now;
        slot.last_seen = now;
        self.caches(own, slots, since, link);
        let slot = &mut slots[own];
        if slot.in_flight > 0 || slot.waiting_since > 0 {
            return;
        }
        self.idle_since = Some(now);
        self.history = (3 * self.history + link.number()) % HISTORIES;
        let window = self.habits[self.history].window();
        slots[own].window_until = window.map_or(0, |window| now + window);
        // At the end of a chain, others that have had less come first.
        if window.is_none() || link == Link::Durable {
            slots[own].keeps_since = 0;
        }
    }

    /// Records what a completed request leaves in the disk's cache, or has written from there to the medium.
    fn caches(&self, own: usize, slots: &mut [Slot], since: Nanos, link: Link) {
        let before = dirty(&slots[own], slots);
        let slot = &mut slots[own];
        match link {
            Link::Flush => (slot.flushed_at, slot.asked_at) = (slot.flushed_at.max(since), since),
            Link::Write { .. } => {
                // The arm has been elsewhere since the last flush, also if the write begins where the last one ended.
                let first = if before == 0 { SEEK_BYTES } else { 0 };
                if before == 0 {
                    slot.dirty_since = since.saturating_add(1);
                }
                slot.dirty = before.saturating_add(link.dirties().max(first));
            }
            Link::Read | Link::Durable => {}
        }
    }

    /// Whether the disk's cache is to be flushed before a write that is to be submitted: beside others that flush, a tenant waits for its writes
    /// itself.
    #[must_use]
    pub fn settles(own: usize, slots: &[Slot], now: Nanos) -> bool {
        let others = slots.iter().enumerate().filter(|(index, _)| *index != own).map(|(_, slot)| slot);
        let active = others.filter(|slot| slot.is_active(now));
        let (n, flush) = active.fold((0, false), |(n, flush), slot| {
            (n + 1, flush || (slot.asked_at > 0 && now.saturating_sub(slot.asked_at) < FLUSHING))
        });
        flush && dirty(&slots[own], slots) > MAX_DIRTY / n
    }

    /// The flush that [`Own::settles`] asked for, submitted at `since`, is completed. It is a part of the request after it.
    pub fn settled(own: usize, slots: &mut [Slot], since: Nanos) {
        slots[own].flushed_at = slots[own].flushed_at.max(since);
    }

    /// Its window ends without a request: charges it. To be called when it does.
    pub fn expires(&mut self, own: usize, slots: &mut [Slot], now: Nanos) {
        if let Some(since) = self.idle_since
            && slots[own].window_until <= now
            && slots[own].window_until > 0
        {
            self.ends_window(own, slots, since, now);
            (slots[own].window_until, slots[own].keeps_since) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests;
