//! Tenants with block servers on one disk with an arm, event by event.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::super::{Decision, Link, Nanos, Own, Slot};

/// Time of a request at another place than the one before, of a KiB, and of a flush.
const SEEK: Nanos = 6_000_000;
const NS_PER_KIB: Nanos = 8_000;
const FLUSH: Nanos = 100_000;
/// Time of a KiB into the disk's cache, and the time that it needs to write all of that to the medium.
const NS_PER_KIB_CACHED: Nanos = 500;
const CACHE: Nanos = 500_000_000;
/// Time between two links of a chain, in the tenant.
const THINK: Nanos = 250_000;

/// What a tenant does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Processes that append and call fsync: data, journal, flush, commit record. They share commits.
    Fsyncs { processes: u32, every: Nanos, kib: u64 },
    /// Sequential writes, this many at a time.
    Stream { depth: u32, kib: u64 },
    /// A small write at a time, the next one this long after: it looks as if a chain went on.
    Fake { think: Nanos },
    /// It has opened a chain, and hangs.
    Dead,
}

/// Who submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Everybody, at once.
    Arrival,
    /// By the arbiter.
    Arbiter,
}

/// Where a write is when it is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    /// On the medium.
    Through,
    /// In the disk's cache, until a flush.
    Cached,
}

/// What a tenant got.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub(super) operations: f64,
    /// Time for which it had the device, windows that kept others waiting included.
    pub(super) device_ns: Nanos,
    pub(super) longest_hold: Nanos,
    latencies: Vec<Nanos>,
}

impl Found {
    pub(super) fn mean_ms(&self) -> f64 {
        self.latencies.iter().sum::<Nanos>() as f64 / self.latencies.len() as f64 / 1e6
    }

    pub(super) fn p99_ms(&self) -> f64 {
        let mut sorted = self.latencies.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * 99 / 100] as f64 / 1e6
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    tenant: usize,
    /// Requests of a tenant for one place follow each other without a seek.
    place: u64,
    kib: u64,
    link: Link,
    /// When it was submitted.
    submitted: Nanos,
    /// When the flush before it was submitted, while that is in the device.
    settles: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A process of a tenant makes its next call.
    Call(usize),
    /// The next link of a tenant's chain follows.
    Link(usize),
    /// The device has completed its first request.
    Done,
    /// Servers look again.
    Look,
}

/// A chain: place, KiB besides those of the calls, and whether it is durable.
const LINKS: [(u64, u64, Link); 4] = [(0, 0, WRITE), (1, 8, WRITE), (1, 0, Link::Flush), (1, 4, Link::Durable)];

/// A write; its length and place are those of the request.
const WRITE: Link = Link::Write { bytes: 0, follows: false };

struct Tenant {
    kind: Kind,
    own: Own,
    held: VecDeque<Request>,
    /// The link of the chain that is under way, and the calls that wait for it; those that came later.
    link: Option<usize>,
    calls: Vec<Nanos>,
    later: Vec<Nanos>,
    found: Found,
}

struct World {
    slots: Vec<Slot>,
    tenants: Vec<Tenant>,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    n_events: u64,
    queue: VecDeque<Request>,
    head: u64,
    disk: Disk,
    /// Time that the disk needs to write its cache to the medium, and until when it has been busy.
    cached: Nanos,
    busy_until: Nanos,
    /// Where each tenant's last write ended.
    places: Vec<u64>,
    order: Order,
    now: Nanos,
    /// When servers look again, at the latest.
    wake: Nanos,
}

/// Runs tenants, each with its share.
pub(super) fn simulate(tenants: &[(Kind, u32)], order: Order, until: Nanos) -> Vec<Found> {
    simulate_on(Disk::Through, tenants, order, until)
}

/// The same on another disk.
pub(super) fn simulate_on(disk: Disk, tenants: &[(Kind, u32)], order: Order, until: Nanos) -> Vec<Found> {
    let alone: Vec<_> = tenants.iter().map(|(kind, share)| (*kind, *share, 0)).collect();
    simulate_tenants(disk, &alone, order, until)
}

/// Runs servers, each with the share of its tenant and the tenant's number.
pub(super) fn simulate_tenants(disk: Disk, tenants: &[(Kind, u32, u64)], order: Order, until: Nanos) -> Vec<Found> {
    let tenant = |(kind, ..): &(Kind, u32, u64)| Tenant {
        kind: *kind,
        own: Own::default(),
        held: VecDeque::new(),
        link: None,
        calls: Vec::new(),
        later: Vec::new(),
        found: Found::default(),
    };
    let mut world = World {
        slots: tenants
            .iter()
            .map(|(_, share, tenant)| Slot { share: *share, tenant: *tenant, ..Slot::default() })
            .collect(),
        tenants: tenants.iter().map(tenant).collect(),
        events: BinaryHeap::new(),
        n_events: 0,
        queue: VecDeque::new(),
        head: u64::MAX,
        disk,
        cached: 0,
        busy_until: 0,
        places: vec![u64::MAX; tenants.len()],
        order,
        now: 0,
        wake: 0,
    };
    for (index, (kind, ..)) in tenants.iter().enumerate() {
        let n = match kind {
            Kind::Fsyncs { processes, .. } => *processes,
            Kind::Stream { depth, .. } => *depth,
            Kind::Fake { .. } => 1,
            Kind::Dead => {
                let slot = &mut world.slots[index];
                (slot.window_until, slot.in_flight, slot.waiting_since) = (Nanos::MAX, 1, 1);
                0
            }
        };
        for process in 0..n {
            world.at(1 + 1_000 * (index as Nanos + 16 * Nanos::from(process)), Event::Call(index));
        }
    }
    while let Some(Reverse((now, _, event))) = world.events.pop() {
        if now > until {
            break;
        }
        world.now = now;
        match event {
            Event::Call(index) => world.call(index),
            Event::Link(index) => world.link(index),
            Event::Done => world.done(),
            Event::Look => {}
        }
        world.submit();
    }
    world.tenants.into_iter().map(|tenant| tenant.found).collect()
}

impl World {
    fn at(&mut self, time: Nanos, event: Event) {
        self.n_events += 1;
        self.events.push(Reverse((time, self.n_events, event)));
    }

    fn call(&mut self, index: usize) {
        match self.tenants[index].kind {
            Kind::Fsyncs { .. } => {
                let now = self.now;
                self.tenants[index].later.push(now);
                if self.tenants[index].link.is_none() {
                    self.begin(index);
                }
            }
            Kind::Stream { kib, .. } => self.arrive(index, 8, kib, WRITE),
            Kind::Fake { .. } => self.arrive(index, 9, 4, WRITE),
            Kind::Dead => {}
        }
    }

    /// Begins a chain for all calls that wait.
    fn begin(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        tenant.calls = std::mem::take(&mut tenant.later);
        tenant.link = Some(0);
        let Kind::Fsyncs { kib, .. } = tenant.kind else { return };
        let kib = kib * tenant.calls.len() as u64;
        self.arrive(index, 0, kib, WRITE);
    }

    fn link(&mut self, index: usize) {
        let Some(link) = self.tenants[index].link.map(|link| link + 1) else { return };
        self.tenants[index].link = Some(link);
        let (place, kib, kind) = LINKS[link];
        self.arrive(index, place, kib, kind);
    }

    fn arrive(&mut self, index: usize, place: u64, kib: u64, link: Link) {
        self.charged(index, |tenant, slots, now| tenant.own.arrives(index, slots, now));
        let link = match link {
            Link::Write { .. } => {
                let follows = std::mem::replace(&mut self.places[index], place) == place;
                Link::Write { bytes: kib << 10, follows }
            }
            other => other,
        };
        self.tenants[index].held.push_back(Request { tenant: index, place, kib, link, submitted: 0, settles: None });
    }

    fn done(&mut self) {
        let Some(mut request) = self.queue.pop_front() else { return };
        let index = request.tenant;
        self.busy_until = self.now;
        if let Some(since) = request.settles.take() {
            Own::settled(index, &mut self.slots, since);
            self.queue.push_front(request);
            return self.serve();
        }
        self.charged(index, |tenant, slots, now| {
            tenant.own.completes(index, slots, now, request.submitted, request.link)
        });
        self.serve();
        self.follow(index);
    }

    /// Counts what a tenant is charged by a step.
    fn charged(&mut self, index: usize, step: impl FnOnce(&mut Tenant, &mut [Slot], Nanos)) {
        let tenant = &mut self.tenants[index];
        let before = tenant.own.charged();
        tenant.own.pays(index, &mut self.slots, self.now);
        step(tenant, &mut self.slots, self.now);
        tenant.found.device_ns += tenant.own.charged() - before;
    }

    /// The device begins with its first request.
    fn serve(&mut self) {
        let Some(request) = self.queue.front() else { return };
        let (place, link, kib) = (request.tenant as u64 * 16 + request.place, request.link, request.kib);
        let is_flush = link == Link::Flush || request.settles.is_some();
        // It writes while it has nothing else to do.
        self.cached = self.cached.saturating_sub(self.now.saturating_sub(self.busy_until));
        let mut medium = || {
            let seek = if std::mem::replace(&mut self.head, place) == place { 0 } else { SEEK };
            kib * NS_PER_KIB + seek
        };
        let service = match link {
            _ if is_flush => FLUSH + std::mem::take(&mut self.cached),
            Link::Write { .. } if self.disk == Disk::Cached => {
                self.cached += medium();
                let over = self.cached.saturating_sub(CACHE);
                self.cached -= over;
                kib * NS_PER_KIB_CACHED + over
            }
            _ => medium(),
        };
        self.at(self.now + service, Event::Done);
    }

    /// What a tenant does when a request of it is done.
    fn follow(&mut self, index: usize) {
        let now = self.now;
        let tenant = &mut self.tenants[index];
        match tenant.kind {
            Kind::Stream { .. } => {
                tenant.found.operations += 1.0;
                self.at(now + 1, Event::Call(index));
            }
            Kind::Fake { think } => {
                tenant.found.operations += 1.0;
                self.at(now + think.max(1), Event::Call(index));
            }
            Kind::Fsyncs { every, .. } => {
                if tenant.link.is_some_and(|link| link + 1 < LINKS.len()) {
                    return self.at(now + THINK, Event::Link(index));
                }
                tenant.link = None;
                for call in std::mem::take(&mut tenant.calls) {
                    let found = &mut self.tenants[index].found;
                    found.operations += 1.0;
                    found.latencies.push(now - call);
                    self.at(if every == 0 { now + THINK } else { (call + every).max(now + 1) }, Event::Call(index));
                }
                if !self.tenants[index].later.is_empty() {
                    self.begin(index);
                }
            }
            Kind::Dead => {}
        }
    }

    /// All servers look, until none submits.
    fn submit(&mut self) {
        for index in 0..self.tenants.len() {
            self.charged(index, |tenant, slots, now| tenant.own.expires(index, slots, now));
        }
        let now = self.now;
        let mut wake = Nanos::MAX;
        loop {
            let mut has_submitted = false;
            for index in 0..self.tenants.len() {
                let Some(request) = self.tenants[index].held.front().copied() else { continue };
                let decision = match self.order {
                    Order::Arrival => Decision::Submit,
                    Order::Arbiter => self.tenants[index].own.asks(index, &mut self.slots, now),
                };
                if let Decision::Wait(until) = decision {
                    wake = wake.min(until);
                    continue;
                }
                has_submitted = true;
                let tenant = &mut self.tenants[index];
                tenant.held.pop_front();
                let hold = now.saturating_sub(self.slots[index].waiting_since);
                tenant.found.longest_hold = tenant.found.longest_hold.max(hold);
                let is_write = matches!(request.link, Link::Write { .. });
                let settles = is_write && self.order == Order::Arbiter && Own::settles(index, &self.slots, now);
                tenant.own.submits(index, &mut self.slots, now, !tenant.held.is_empty());
                self.queue.push_back(Request { submitted: now, settles: settles.then_some(now), ..request });
                if self.queue.len() == 1 {
                    self.serve();
                }
            }
            if !has_submitted {
                break;
            }
        }
        let windows = self.slots.iter().map(|slot| slot.window_until).filter(|until| *until > now);
        let wake = windows.fold(wake, Nanos::min);
        // One that is scheduled and still to come is enough, if it is not too late.
        if wake != Nanos::MAX && (self.wake <= now || wake < self.wake) {
            self.wake = wake.max(now + 1);
            self.at(self.wake, Event::Look);
        }
    }
}
