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

    /// Work of them at the device on average, for each that arrives per second, if their times vary that much; each waits.
    pub(super) fn work(&self, wait: f64, variation: f64) -> f64 {
        self.squares * (1.0 + variation) / 2.0 + self.occupies * wait
    }

    /// Whole time of all of them, if each waits.
    pub(super) fn seconds(&self, wait: f64) -> f64 {
        self.occupies + self.delay + self.n * wait
    }

    /// Variance of that time, if that of each one's wait is known and its own time varies that much.
    pub(super) fn variance(&self, wait: f64, of_wait: f64, variation: f64) -> f64 {
        if self.n <= 0.0 {
            return 0.0;
        }
        let whole = self.seconds(wait) / self.n;
        self.n * of_wait + variation * self.squares + self.spread * whole * whole
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
    /// Processor time, with that of the requests, seconds.
    pub(super) cpu: f64,
    pub(super) miss: f64,
    /// Cached reads for each operation, bytes.
    pub(super) cached: f64,
}

/// Variance of what one waits for at a station: those ahead take `one` each, varying that much, and are `most` at most. Their number is
/// binomial.
pub(super) fn wait_variance(wait: f64, one: f64, variation: f64, most: f64) -> f64 {
    if wait <= 0.0 || one <= 0.0 {
        return 0.0;
    }
    let busy = (wait / one / most).min(1.0);
    wait * one * (variation + 1.0 - busy)
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
