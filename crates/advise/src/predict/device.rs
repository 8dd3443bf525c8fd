//! How long a request occupies a device, and how long it takes beyond that.
//!
//! A device serves many requests at a time, but each kind at a highest rate: a request *occupies* it for the inverse of that rate, and others
//! wait for that. The rest of its latency is its own: flash is read, a plane is programmed, while the device serves others.

use bulkhead_core::demand::{Access, Cost, Costs, DeviceCosts, LARGE_BYTES, SMALL_BYTES};

/// The two parts of a request's time on an idle device, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Service {
    /// In which others wait.
    pub(super) occupies: f64,
    /// In which they do not.
    pub(super) delay: f64,
}

impl Service {
    fn of(cost: Cost) -> Self {
        let occupies = 1.0 / cost.per_s;
        Self { occupies, delay: (cost.latency_us / 1e6 - occupies).max(0.0) }
    }

    /// How long it still occupies the device, on average, when another request arrives meanwhile.
    pub(super) fn rest(self, variation: f64) -> f64 {
        self.occupies * (1.0 + variation) / 2.0
    }

    /// The point at `part` of the way to another.
    fn towards(self, other: Self, part: f64) -> Self {
        let mix = |from: f64, to: f64| (from + (to - from) * part).max(0.0);
        Self { occupies: mix(self.occupies, other.occupies), delay: mix(self.delay, other.delay) }
    }
}

/// A request of a kind and size, each after one of its own stream.
pub(super) fn undisturbed(device: &DeviceCosts, access: Access, bytes: f64) -> Service {
    let Costs { small, large } = *device.of(access);
    let (small, large) = (Service::of(small), Service::of(large));
    let service = small.towards(large, (bytes - SMALL_BYTES) / (LARGE_BYTES - SMALL_BYTES));
    // Smaller requests than 4 KiB cost as much: their line can lead below any cost.
    if bytes < SMALL_BYTES { small } else { service }
}

/// A request of a stream that makes `own_part` of the device's requests. The others take the arm or the read-ahead away from it, once in a run.
pub(super) fn request(device: &DeviceCosts, access: Access, bytes: f64, own_part: f64) -> Service {
    let own = undisturbed(device, access, bytes);
    let random = match access {
        Access::SequentialRead => Access::RandomRead,
        Access::SequentialWrite => Access::RandomWrite,
        Access::RandomRead | Access::RandomWrite => return own,
    };
    let other = undisturbed(device, random, bytes);
    let lost = (1.0 - own_part).clamp(0.0, 1.0) / device.sequential_run;
    // Never a gain: a device can serve random requests in many places at a time.
    if other.occupies > own.occupies {
        own.towards(Service { delay: own.delay.max(other.delay), ..other }, lost)
    } else {
        own
    }
}

/// A durable write of one block.
pub(super) fn durable(device: &DeviceCosts) -> Service {
    Service::of(device.durable_write)
}
