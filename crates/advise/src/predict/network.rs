//! The network's equations, iterated until they hold.

use bulkhead_core::demand::{Demand, DeviceCosts, Purpose, Requests};

use super::cache::{Reader, miss_ratios};
use super::device;
use super::journal::{Fsync, Syncs, fsync};
use super::quantile::times;
use super::state::{State, Waits};
use super::visits::{Visits, made, requests_of, wait_variance};
use super::{Achieved, Host, Limit, Load, Prediction};

/// Requests that the kernel writes back at a time for one workload: it submits more only when some of these are done.
const WRITE_BACK_DEPTH: f64 = 32.0;
/// Largest relative change at which the solution has been found, and the number of iterations after which it is taken as it is.
const TOLERANCE: f64 = 1e-7;
const ITERATIONS: usize = 1000;
/// Part of the way to the new values in one iteration: all the way, some networks swing, and a few still do with the first of these.
const STEPS: [f64; 2] = [0.7, 0.3];
/// Iterations with the first of [`STEPS`].
const LONG_STEPS: usize = 100;
/// Least part of a predicted time that a correction leaves.
const LEAST_PART: f64 = 0.1;
/// Use of a resource from which on it is a limit.
const BUSY: f64 = 0.85;

/// The predicted throughput and times of each load. The values of host and loads must have been checked.
#[must_use]
pub fn predict(host: &Host<'_>, loads: &[Load<'_>]) -> Prediction {
    predict_within(host, loads, TOLERANCE)
}

/// The same, computed until no value changes by more than a part of it in an iteration.
pub(crate) fn predict_within(host: &Host<'_>, loads: &[Load<'_>], tolerance: f64) -> Prediction {
    let mut states: Vec<State> = loads.iter().map(|load| alone(host, load)).collect();
    for iteration in 0..ITERATIONS {
        let part = if iteration < LONG_STEPS { STEPS[0] } else { STEPS[1] };
        let next = step(host, loads, &states);
        let mut change: f64 = 0.0;
        for (state, next) in states.iter_mut().zip(next) {
            change = change.max(state.change(&next));
            *state = state.blend(&next, part);
        }
        if change < tolerance {
            break;
        }
    }
    let network = Network::at(host, loads, &states);
    let cpu = network.cpu_in_use();
    let devices: Vec<f64> = (0..host.devices.len()).map(|device| network.device_in_use(device)).collect();
    let achieved = (0..loads.len()).map(|index| network.achieved(index, cpu, devices[loads[index].device])).collect();
    Prediction { achieved, cpu, devices }
}

/// The first guess: nothing waits.
fn alone(host: &Host<'_>, load: &Load<'_>) -> State {
    let demand = load.demand;
    let of_requests = |requests: &Requests| {
        let service = device::undisturbed(host.devices[load.device], requests.access, requests.bytes);
        if requests.purpose == Purpose::WriteBack {
            0.0
        } else {
            requests.per_operation * (service.occupies + service.delay)
        }
    };
    let durable = device::durable(host.devices[load.device]);
    let syncs =
        demand.durable.as_ref().map_or(0.0, |it| it.per_operation * it.chain * (durable.occupies + durable.delay));
    let seconds = demand.cpu_seconds + demand.requests.iter().map(of_requests).sum::<f64>() + syncs;
    State { per_s: demand.clients / (demand.think_seconds + seconds).max(1e-9), ..State::default() }
}

fn step(host: &Host<'_>, loads: &[Load<'_>], states: &[State]) -> Vec<State> {
    let network = Network::at(host, loads, states);
    (0..loads.len()).map(|index| network.next(index)).collect()
}

/// The network in a state, with what follows from it at once.
struct Network<'a> {
    host: &'a Host<'a>,
    loads: &'a [Load<'a>],
    states: &'a [State],
    visits: Vec<Visits>,
    customers: f64,
}

impl<'a> Network<'a> {
    fn at(host: &'a Host<'a>, loads: &'a [Load<'a>], states: &'a [State]) -> Self {
        let misses = misses(host, loads, states);
        let customers = loads.iter().map(|load| f64::from(load.copies) * load.demand.clients).sum();
        let mut network = Self { host, loads, states, visits: Vec::new(), customers };
        let mut all = vec![0.0; host.devices.len()];
        for ((load, state), miss) in loads.iter().zip(states).zip(&misses) {
            all[load.device] += requests_of(load, *miss) * f64::from(load.copies) * state.per_s;
        }
        let visits = |index: usize| network.visits_of(index, misses[index], all[loads[index].device]);
        network.visits = (0..loads.len()).map(visits).collect();
        network
    }

    fn visits_of(&self, index: usize, miss: f64, all_per_s: f64) -> Visits {
        let (demand, state) = (self.loads[index].demand, self.states[index]);
        let mut visits = Visits { durable: device::durable(self.device(index)), miss, ..Visits::default() };
        for requests in &demand.requests {
            let is_cached = requests.purpose == Purpose::Cached;
            let n = made(requests, miss);
            let own_part = if all_per_s > 0.0 { n * state.per_s / all_per_s } else { 1.0 };
            let service = device::request(self.device(index), requests.access, requests.bytes, own_part);
            let spread = if is_cached { n * (1.0 - miss) } else { (n.fract() * (1.0 - n)).max(0.0) };
            if is_cached {
                visits.cached += requests.per_operation * requests.bytes;
            }
            let part = match (requests.purpose, requests.access.is_write()) {
                (Purpose::WriteBack, _) => &mut visits.back,
                (_, true) => &mut visits.writes,
                (_, false) => &mut visits.reads,
            };
            part.add(n, service, spread);
        }
        visits.cpu = demand.cpu_seconds + requests_of(&self.loads[index], miss) * self.device(index).cpu_us / 1e6;
        visits
    }

    /// The device of a load.
    fn device(&self, index: usize) -> &'a DeviceCosts {
        self.host.devices[self.loads[index].device]
    }

    /// The processor time of an operation, and its part that is waiting.
    fn cpu(&self, index: usize) -> (f64, f64) {
        let (demand, seconds) = (self.loads[index].demand, self.visits[index].cpu);
        let all: f64 = self.loads.iter().zip(self.states).map(|(load, state)| f64::from(load.copies) * state.cpu).sum();
        let found = (all - self.states[index].cpu / demand.clients).max(0.0);
        let wait = excess(found, self.customers - 1.0, self.host.cpus) * seconds / self.host.cpus;
        (seconds + wait, wait)
    }

    /// What a request finds more of those of its own load in service than others do, by the sum of their squared times. The less
    /// time a client spends away from the device, the sooner it is back after the next one's service has begun: with constant times, then all
    /// of that is to come.
    fn early(&self, index: usize) -> f64 {
        let (state, visits, variation) = (&self.states[index], &self.visits[index], self.device(index).variation);
        let occupies = visits.reads.occupies + visits.writes.occupies;
        let waits = visits.reads.n * state.waits.reads + visits.writes.n * state.waits.writes;
        let cycle = self.loads[index].demand.clients / state.per_s;
        let there = occupies / (cycle - waits).max(occupies).max(f64::MIN_POSITIVE);
        state.per_s * there * (1.0 - variation).max(0.0) / 2.0
    }

    /// The waits of a load's requests. Its own customers meet themselves less often than others do, and its commits never meet each other.
    fn waits(&self, index: usize) -> Waits {
        self.waits_for(index, |_, _, _| {})
    }

    /// These waits, and their variances, seconds squared.
    fn waits_and_variances(&self, index: usize) -> (Waits, Waits) {
        let variation = self.device(index).variation;
        let mut variances = Waits::default();
        let waits = self.waits_for(index, |load, most, waits| {
            let visits = &self.visits[load];
            let parts = [visits.reads, visits.writes, visits.back];
            let occupies: f64 = parts.iter().map(|part| part.occupies).sum();
            let squares: f64 = parts.iter().map(|part| part.squares).sum();
            // Larger than the mean if some take longer than others.
            let one = if occupies > 0.0 { squares / occupies } else { visits.durable.occupies };
            variances = variances.map(waits, |sum, wait| sum + wait_variance(wait, one, variation, most));
        });
        (waits, variances)
    }

    /// The waits, and what each load adds to them: its index, and how many of its requests there are at most.
    fn waits_for(&self, index: usize, mut each: impl FnMut(usize, f64, Waits)) -> Waits {
        let demand = self.loads[index].demand;
        let (own, visits) = (&self.states[index], &self.visits[index]);
        // The part of another direction's queue that a request waits for.
        let across = self.device(index).read_write_sharing;
        let seen = 1.0 - 1.0 / demand.clients;
        let groups = demand.durable.as_ref().is_some_and(|durable| durable.is_shared) || self.host.is_journal_shared;
        let early = self.early(index);
        let own_reads = seen * (own.reads + early * visits.reads.squares);
        let own_writes = seen * (own.writes + early * visits.writes.squares);
        let own_syncs = if groups { 0.0 } else { seen * own.syncs };
        let own_back = (1.0 - 1.0 / WRITE_BACK_DEPTH) * own.back;
        let mut waits = Waits {
            reads: own_reads + across * (own.writes + own.back + own.syncs),
            writes: own_writes + own.back + own.syncs + across * own.reads,
            back: own.writes + own_back + own.syncs + across * own.reads,
            syncs: own_writes + own.back + own_syncs + across * own_reads,
        };
        let ahead = waits;
        let back = |visits: &Visits| if visits.back.n > 0.0 { WRITE_BACK_DEPTH } else { 0.0 };
        each(index, (demand.clients + back(visits) - 1.0).max(f64::MIN_POSITIVE), ahead);
        let means = Waits {
            reads: visits.reads.mean(),
            writes: visits.writes.mean(),
            back: visits.back.mean(),
            syncs: visits.durable.occupies,
        };
        for (other, load) in self.loads.iter().enumerate() {
            let (copies, state) = (f64::from(load.copies), &self.states[other]);
            let n_others = if other == index { copies - 1.0 } else { copies };
            if n_others <= 0.0 || load.device != self.loads[index].device {
                continue;
            }
            let syncs_seen = if self.host.is_journal_shared { 0.0 } else { state.syncs };
            let writes = state.writes + state.back;
            let found = Waits {
                reads: state.reads + across * (writes + state.syncs),
                writes: writes + state.syncs + across * state.reads,
                back: writes + state.syncs + across * state.reads,
                syncs: writes + syncs_seen + across * state.reads,
            };
            let found = if self.host.has_shares {
                // Another gets its part of the device's time while this one's requests are served: of what it has there on arrival, and of
                // what it brings meanwhile.
                let ratio = load.share / self.loads[index].share;
                let before = own.waits.map(means, |wait, mean| wait + mean);
                let reading = state.reading + across * state.writing;
                let writing = state.writing + across * state.reading;
                let rates = Waits { reads: reading, writes: writing, back: writing, syncs: writing };
                let brought = found.map(rates.map(before, |rate, time| rate * time), |found, more| found + more);
                let its_part = ahead.map(means, |ahead, mean| ratio * (ahead + mean));
                brought.map(its_part, f64::min)
            } else {
                found
            };
            let found = found.map(found, |found, _| n_others * found);
            each(other, n_others * (load.demand.clients + back(&self.visits[other])), found);
            waits = waits.map(found, |wait, found| wait + found);
        }
        waits
    }

    fn fsync(&self, index: usize, waits: &Waits) -> Option<Fsync> {
        let demand = self.loads[index].demand;
        let durable = demand.durable.as_ref().filter(|durable| durable.per_operation > 0.0)?;
        let of_load = |index: usize, load: &Load<'_>| -> f64 {
            load.demand.durable.as_ref().map_or(0.0, |durable| durable.per_operation * self.states[index].per_s)
        };
        let mut syncs = Syncs { per_s: of_load(index, &self.loads[index]), clients: demand.clients, ordered: 0.0 };
        if self.host.is_journal_shared {
            let device = self.loads[index].device;
            let all = || self.loads.iter().enumerate().filter(move |(_, load)| load.device == device);
            syncs.per_s = all().map(|(index, load)| f64::from(load.copies) * of_load(index, load)).sum();
            let clients = |load: &Load<'_>| {
                load.demand.durable.as_ref().map_or(0.0, |_| f64::from(load.copies) * load.demand.clients)
            };
            syncs.clients = all().map(|(_, load)| clients(load)).sum();
            let back = |index: usize, load: &Load<'_>| {
                f64::from(load.copies) * self.states[index].per_s * self.visits[index].back.occupies
            };
            syncs.ordered = all().map(|(index, load)| back(index, load)).sum();
        } else if !durable.is_shared {
            syncs.clients = 1.0;
        }
        let mut fsync = fsync(durable.chain, self.visits[index].durable, waits.syncs, &syncs);
        if !self.host.is_journal_shared && !durable.is_shared {
            fsync.batch = 1.0;
        }
        Some(fsync)
    }

    /// Durable writes for each operation, when fsyncs share commits.
    fn links(&self, index: usize, fsync: Option<Fsync>) -> f64 {
        match (&self.loads[index].demand.durable, fsync) {
            (Some(durable), Some(fsync)) => durable.per_operation * durable.chain / fsync.batch,
            _ => 0.0,
        }
    }

    /// The state that follows for a load.
    fn next(&self, index: usize) -> State {
        let demand = self.loads[index].demand;
        let (visits, waits) = (&self.visits[index], self.waits(index));
        let fsync = self.fsync(index, &waits);
        let per_operation = demand.durable.as_ref().map_or(0.0, |durable| durable.per_operation);
        let cpu = self.cpu(index).0;
        let syncs = fsync.map_or(0.0, |fsync| per_operation * fsync.seconds);
        let seconds = cpu + visits.reads.seconds(waits.reads) + visits.writes.seconds(waits.writes) + syncs;
        let cycle = demand.think_seconds + corrected(demand, seconds);
        // Written back as fast as that many requests at a time allow, and no faster.
        let throttle = (demand.clients * visits.back.seconds(waits.back) / WRITE_BACK_DEPTH - cycle).max(0.0);
        let per_s = demand.clients / (cycle + throttle).max(1e-9);
        let (links, variation) = (self.links(index, fsync), self.device(index).variation);
        State {
            per_s,
            cpu: per_s * cpu,
            reads: per_s * visits.reads.work(waits.reads, variation),
            writes: per_s * visits.writes.work(waits.writes, variation),
            back: (per_s * visits.back.work(waits.back, variation)).min(WRITE_BACK_DEPTH * visits.back.mean()),
            syncs: per_s * links * visits.durable.occupies * (visits.durable.rest(variation) + waits.syncs),
            throttle,
            reading: per_s * visits.reads.occupies,
            writing: per_s * (visits.writes.occupies + visits.back.occupies + links * visits.durable.occupies),
            waits,
        }
    }

    /// The part of the processors in use.
    fn cpu_in_use(&self) -> f64 {
        let all = self.loads.iter().zip(self.states).zip(&self.visits);
        let in_use: f64 = all.map(|((load, state), visits)| f64::from(load.copies) * state.per_s * visits.cpu).sum();
        (in_use / self.host.cpus).min(1.0)
    }

    /// The part of a device's time in use.
    fn device_in_use(&self, device: usize) -> f64 {
        let (mut reads, mut writes) = (0.0, 0.0);
        let all = self.loads.iter().zip(self.states);
        for (load, state) in all.filter(|(load, _)| load.device == device) {
            reads += f64::from(load.copies) * state.reading;
            writes += f64::from(load.copies) * state.writing;
        }
        let across = self.host.devices[device].read_write_sharing;
        (reads + across * writes).max(writes + across * reads).min(1.0)
    }

    fn achieved(&self, index: usize, cpu_used: f64, device_used: f64) -> Achieved {
        let demand = self.loads[index].demand;
        let (visits, state, variation) = (&self.visits[index], &self.states[index], self.device(index).variation);
        let (waits, variances) = self.waits_and_variances(index);
        let fsync = self.fsync(index, &waits);
        let (cpu, cpu_wait) = self.cpu(index);
        let reads = visits.reads.seconds(waits.reads);
        let writes = visits.writes.seconds(waits.writes);
        let mut mean = cpu + reads + writes + state.throttle;
        let mut variance = visits.cpu * visits.cpu
            + wait_variance(cpu_wait, visits.cpu, 1.0, f64::INFINITY)
            + visits.reads.variance(waits.reads, variances.reads, variation)
            + visits.writes.variance(waits.writes, variances.writes, variation)
            + state.throttle * state.throttle;
        let mut syncs = None;
        if let (Some(fsync), Some(durable)) = (fsync, &demand.durable) {
            let occupies = visits.durable.occupies;
            let of_one = durable.chain * (variation * occupies * occupies + variances.syncs)
                + fsync.busy * fsync.commit * fsync.commit / 12.0;
            syncs = Some(times(fsync.seconds, of_one));
            mean += durable.per_operation * fsync.seconds;
            let n = durable.per_operation;
            variance += n * of_one + (n * (1.0 - n)).max(0.0) * fsync.seconds * fsync.seconds;
        }
        let of_device = reads + writes + state.throttle + fsync.map_or(0.0, |fsync| fsync.seconds);
        let limit = if cpu_used >= BUSY && cpu_used >= device_used && cpu >= of_device {
            Limit::Cpu
        } else if device_used >= BUSY && of_device > 0.0 {
            if visits.cached > 0.0 && visits.miss > 0.05 { Limit::Memory } else { Limit::Device }
        } else if cpu_used >= BUSY {
            Limit::Cpu
        } else if fsync.is_some_and(|fsync| fsync.busy >= BUSY && fsync.seconds * 2.0 > mean) {
            Limit::Journal
        } else {
            Limit::Clients
        };
        let miss = if visits.cached > 0.0 { visits.miss } else { 0.0 };
        let mean = corrected(demand, mean);
        Achieved { per_s: state.per_s, operation: times(mean, variance), fsync: syncs, miss, limit }
    }
}

fn misses(host: &Host<'_>, loads: &[Load<'_>], states: &[State]) -> Vec<f64> {
    let cached = |load: &Load<'_>| -> f64 {
        let of_cached = load.demand.requests.iter().filter(|requests| requests.purpose == Purpose::Cached);
        of_cached.map(|requests| requests.per_operation * requests.bytes).sum()
    };
    let all = loads.iter().zip(states);
    let readers: Vec<Reader<'_>> = all
        .map(|(load, state)| Reader {
            curve: &load.demand.miss_ratios,
            rate: cached(load) * state.per_s,
            copies: f64::from(load.copies),
        })
        .collect();
    miss_ratios(host.cache.0 as f64, &readers)
}

/// The time of an operation with its correction, which leaves a part of it.
fn corrected(demand: &Demand, seconds: f64) -> f64 {
    (seconds + demand.correction_seconds).max(LEAST_PART * seconds)
}

/// Mean number of customers that an arriving one waits for before it has one of `servers`, if it finds `found` on average and `others` at most.
///
/// The number found is taken to be binomial, which it is without queues, and is the mean in saturation; with one server this is `found`.
fn excess(found: f64, others: f64, servers: f64) -> f64 {
    let free = (servers - 1.0).max(0.0);
    if free <= 0.0 || others <= 0.0 {
        return found;
    }
    let part = (found / others).clamp(0.0, 1.0);
    if part >= 1.0 {
        return (found - free).max(0.0);
    }
    // E[(J - free)+] = E[J] - free + sum of (free - j) P(J = j) below `free`.
    let mut probability = (1.0 - part).powf(others);
    let (mut j, mut sum) = (0.0, found - free);
    while j < free && probability > 0.0 {
        sum += (free - j) * probability;
        probability *= (others - j).max(0.0) / (j + 1.0) * part / (1.0 - part);
        j += 1.0;
    }
    sum.clamp(0.0, found)
}
