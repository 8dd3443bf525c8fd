//! What workloads achieve together on a host, predicted from what each demands for one operation.
//!
//! A closed queueing network, solved by approximate mean value analysis. Each workload is a class of `clients` customers, which
//! visit the processors, the device and their journal, and then think. A customer who arrives at a station waits for those whom a network with
//! one customer less would hold there (the arrival theorem; Reiser and Lavenberg, JACM 27(2), 1980), estimated from the network itself
//! (Schweitzer 1979; Bard 1979). Processors are a station with several servers (Seidmann, Schweitzer and Shalev-Oren, Oper. Res. 35(2), 1987).
//! [`device`] says what a request costs, [`journal`] what an fsync does, [`cache`] which reads miss.
//!
//! Owns: the equations and their solution. Does not: measure (crate `measure`), know hosts, or choose.

mod cache;
mod device;
mod fit;
mod journal;
mod network;
mod quantile;
mod state;
mod visits;

use bulkhead_core::demand::{Demand, DeviceCosts, Senseless};
use bulkhead_core::units::Bytes;

pub use fit::{Fitted, fit};
pub use network::predict;
pub(crate) use network::predict_within;
pub use visits::least_use;

/// What the workloads share.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Number of processors, above 0.
    pub cpus: f64,
    /// Memory that the page cache can use, bytes.
    pub cache: Bytes,
    /// The costs of its devices.
    pub devices: &'a [&'a DeviceCosts],
    /// Whether the workloads of a device are on one file system, so that their fsyncs share commits; else each has a volume of its own.
    pub is_journal_shared: bool,
    /// Whether a device's time is divided by shares; else requests are served in the order of arrival.
    pub has_shares: bool,
}

/// Copies of one workload on a host.
#[derive(Clone, Copy, Debug)]
pub struct Load<'a> {
    /// The demand of each copy.
    pub demand: &'a Demand,
    /// Number of copies, at least 1.
    pub copies: u32,
    /// The index of its device.
    pub device: usize,
    /// The share of each copy, in the unit of `io.weight`.
    pub share: f64,
}

impl<'a> Load<'a> {
    /// One copy with the usual share.
    #[must_use]
    pub const fn one(demand: &'a Demand) -> Self {
        Self { demand, copies: 1, device: 0, share: 100.0 }
    }
}

/// What limits a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// Its clients: nothing that it shares is busy.
    Clients,
    /// The processors.
    Cpu,
    /// The device, and more memory would not help.
    Device,
    /// The device, because reads miss the page cache.
    Memory,
    /// Its commits, one after the other.
    Journal,
}

impl Limit {
    /// Its name in text.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clients => "clients",
            Self::Cpu => "processor",
            Self::Device => "device",
            Self::Memory => "memory",
            Self::Journal => "journal",
        }
    }
}

/// Mean and quantiles of a time, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// What each copy of a workload achieves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Achieved {
    /// Operations per second.
    pub per_s: f64,
    /// Time of an operation, without the time between two.
    pub operation: Times,
    /// Time of an fsync, if it makes any.
    pub fsync: Option<Times>,
    /// Fraction of its cached reads that miss; 0 without such.
    pub miss: f64,
    /// What limits it.
    pub limit: Limit,
}

/// The workloads on a host together.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// In the order of the loads.
    pub achieved: Vec<Achieved>,
    /// Fraction of the processors in use, 0 to 1.
    pub cpu: f64,
    /// Fraction of each device's time in use, 0 to 1.
    pub devices: Vec<f64>,
}

/// Refuses a host whose values make no sense.
///
/// # Errors
/// The first such value.
pub fn check(host: &Host<'_>) -> Result<(), Senseless> {
    if !(host.cpus.is_finite() && host.cpus > 0.0) {
        return Err(Senseless { key: "cpus".to_owned(), cause: format!("{} is not a number above 0", host.cpus) });
    }
    host.devices.iter().try_for_each(|device| device.check())
}

#[cfg(test)]
mod tests;
