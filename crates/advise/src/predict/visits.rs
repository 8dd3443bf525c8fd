//! What an operation asks of the device: how many requests, and how long they take.

use bulkhead_core::demand::{Demand, DeviceCosts, Purpose, Requests};

use super::Load;
use super::device::{self, Service};

/// The requests of an operation of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    pub(super) n: f64,
    /// Sums over the `n`, seconds.
    pub(super) occupies: f64,
    pub(super) delay: f64,
    /// Sum of the squares of `occupies`.
    pub(super) squares: f64,
    /// Variance of their number.
    pub(super) spread: f64,
}

impl Part {
    pub(super) fn add(&mut self, n: f64, service: Service, spread: f64) {
        self.n += n;
        self.occupies += n * service.occupies;
        self.delay += n * service.delay;
        self.squares += n * service.occupies * service.occupies;
        self.spread += spread;
    }

    /// Mean time for which one of them occupies the device.
    pub(super) fn mean(&self) -> f64 {
        if self.n > 0.0 { self.occupies / self.n } else { 0.0 }
    }

    /// Work of them at the device on average, for each that arrives per second; each waits.
    pub(super) fn work(&self, wait: f64) -> f64 {
        self.squares + self.occupies * wait
    }

    /// Whole time of all of them, if each waits.
    pub(super) fn seconds(&self, wait: f64) -> f64 {
        self.occupies + self.delay + self.n * wait
    }

    /// Variance of that time, if those that one waits for occupy the device for `one` each on average.
    pub(super) fn variance(&self, wait: f64, one: f64) -> f64 {
        if self.n <= 0.0 {
            return 0.0;
        }
        let whole = self.seconds(wait) / self.n;
        self.n * queued_variance(self.mean(), wait, one) + self.spread * whole * whole
    }
}

/// What an operation asks of the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Visits {
    pub(super) reads: Part,
    pub(super) writes: Part,
    pub(super) back: Part,
    /// One durable write.
    pub(super) durable: Service,
    pub(super) miss: f64,
    /// Cached reads for each operation, bytes.
    pub(super) cached: f64,
}

/// Variance of a time in a queue: of the service itself, and of waiting for others of a mean size, both exponential, whose number varies, too.
pub(super) fn queued_variance(service: f64, wait: f64, one: f64) -> f64 {
    service * service + 2.0 * wait * one
}

/// Seconds for which an operation occupies a device at least: with reads and with writes, whatever runs beside it.
#[must_use]
pub fn least_use(demand: &Demand, costs: &DeviceCosts) -> (f64, f64) {
    let miss = demand.miss_ratios.0.last().map_or(1.0, |point| point.miss);
    let (mut reads, mut writes) = (0.0, 0.0);
    for requests in &demand.requests {
        let seconds = made(requests, miss) * device::undisturbed(costs, requests.access, requests.bytes).occupies;
        *if requests.access.is_write() { &mut writes } else { &mut reads } += seconds;
    }
    if let Some(durable) = &demand.durable {
        // All clients share a commit, if they can.
        let batch = if durable.is_shared { demand.clients } else { 1.0 };
        writes += durable.per_operation * durable.chain / batch * device::durable(costs).occupies;
    }
    (reads, writes)
}

/// Number of these requests that reach the device for each operation.
pub(super) fn made(requests: &Requests, miss: f64) -> f64 {
    requests.per_operation * if requests.purpose == Purpose::Cached { miss } else { 1.0 }
}

/// Number of requests for each operation.
pub(super) fn requests_of(load: &Load<'_>, miss: f64) -> f64 {
    let durable = load.demand.durable.as_ref().map_or(0.0, |durable| durable.per_operation * durable.chain);
    load.demand.requests.iter().map(|requests| made(requests, miss)).sum::<f64>() + durable
}
