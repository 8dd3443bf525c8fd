//! Which workload belongs on which device of which host, so that all together achieve most.
//!
//! A workload's *normalised throughput* is what it achieves in a mix by what it achieves alone on the best device of the fleet. The
//! objective is the sum of these over all workloads, each times its importance. Constraints come first: a placement that breaks less of them is
//! better, whatever its sum.
//!
//! Few workloads are placed exactly ([`exact`]), many by insertion and exchange ([`search`]); an upper limit for any placement says how far
//! from the best that can be ([`bound`]). Mixes are predicted ([`crate::predict`]).
//!
//! Owns: the objective, constraints, the search, and reasons. Does not: read files, or move anything.

mod bound;
mod exact;
mod mixes;
mod search;
mod value;
mod why;

use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::units::{Bytes, Share};

use crate::predict::Achieved;

pub use bound::upper_bound;
pub use why::{Alternative, More, alternatives, moves, one_more};

/// A device of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// The index of its costs in [`Fleet::costs`].
    pub costs: usize,
    /// Space for volumes, bytes.
    pub space: Bytes,
}

/// A host.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// What fails together with it: a rack, a zone.
    pub domain: String,
    /// Number of processors.
    pub cpus: f64,
    /// Memory for workloads and their page cache, bytes.
    pub memory: Bytes,
    /// Its devices.
    pub devices: Vec<Device>,
}

/// How far apart the members of a group have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Apart {
    /// On different hosts.
    Hosts,
    /// In different domains.
    Domains,
}

/// Workloads of which no two are together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// How far apart they are.
    pub apart: Apart,
}

/// A device of a host, by their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The host.
    pub machine: usize,
    /// Its device.
    pub device: usize,
}

/// A workload to place.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// The index of its demand in [`Fleet::demands`].
    pub demand: usize,
    /// Its share of a device, in the unit of `io.weight`.
    pub share: f64,
    /// Space of its volumes, bytes.
    pub space: Bytes,
    /// Factor of its normalised throughput in the objective.
    pub importance: f64,
    /// Lowest normalised throughput, 0 to 1.
    pub floor: f64,
    /// Highest 99th percentile of its fsyncs, seconds.
    pub fsync_p99: Option<f64>,
    /// The index of its group in [`Fleet::groups`].
    pub group: Option<usize>,
    /// The only hosts on which it may be; any if empty.
    pub only: Vec<usize>,
    /// Where it is today.
    pub now: Option<Place>,
}

impl Workload {
    /// A workload with the usual share, without volumes or constraints.
    #[must_use]
    pub fn new(name: impl Into<String>, demand: usize) -> Self {
        Self {
            name: name.into(),
            demand,
            share: f64::from(u32::from(Share::DEFAULT)),
            space: Bytes(0),
            importance: 1.0,
            floor: 0.0,
            fsync_p99: None,
            group: None,
            only: Vec::new(),
            now: None,
        }
    }
}

/// Everything that is to be decided about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// Demands of workloads.
    pub demands: Vec<Demand>,
    /// Costs of devices.
    pub costs: Vec<DeviceCosts>,
    /// Hosts.
    pub machines: Vec<Machine>,
    /// Workloads.
    pub workloads: Vec<Workload>,
    /// Groups.
    pub groups: Vec<Group>,
    /// Whether devices are divided by shares.
    pub has_shares: bool,
    /// Whether the volumes of a device are directories of one file system.
    pub is_journal_shared: bool,
}

/// A constraint that a placement breaks, and by how much.
#[derive(Clone, Debug, PartialEq)]
pub enum Broken {
    /// A device has too little space.
    Space {
        /// The device.
        place: Place,
        /// What is missing, bytes.
        missing: Bytes,
    },
    /// A host has too little memory for what is not page cache.
    Memory {
        /// The host.
        machine: usize,
        /// What is missing, bytes.
        missing: Bytes,
    },
    /// A workload is below its floor.
    Floor {
        /// The workload.
        workload: usize,
        /// Its normalised throughput.
        normalised: f64,
    },
    /// A workload's fsyncs take longer than they may.
    Fsync {
        /// The workload.
        workload: usize,
        /// Their 99th percentile, seconds.
        p99: f64,
    },
    /// Two workloads of a group are together.
    Together {
        /// The one.
        workload: usize,
        /// The other.
        with: usize,
    },
    /// A workload is on a host where it may not be.
    Elsewhere {
        /// The workload.
        workload: usize,
    },
}

/// The parts of a host in use, 0 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Use {
    /// Of its processors.
    pub cpu: f64,
    /// Of each device's time.
    pub devices: Vec<f64>,
}

/// Places for all workloads, and what follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// The place of each workload.
    pub places: Vec<Place>,
    /// What each achieves.
    pub achieved: Vec<Achieved>,
    /// Its normalised throughput.
    pub normalised: Vec<f64>,
    /// The sum of normalised throughputs, each times its importance.
    pub sum: f64,
    /// The use of each host.
    pub uses: Vec<Use>,
    /// Constraints that it breaks; none if they can all hold.
    pub broken: Vec<Broken>,
    /// Whether no other placement is better by this model; else it was searched for.
    pub is_best: bool,
}

/// Places all workloads. The fleet's values and indices must have been checked; it must have a host with a device if it has workloads.
#[must_use]
pub fn place(fleet: &Fleet) -> Placement {
    let mut mixes = mixes::Mixes::new(fleet);
    match exact::best(&mut mixes) {
        Some(places) => mixes.placement(places, true),
        None => searched_in(&mut mixes),
    }
}

/// Places all workloads as [`place`] does where there are too many to try all sets of them, however few they are.
#[must_use]
pub fn searched(fleet: &Fleet) -> Placement {
    searched_in(&mut mixes::Mixes::new(fleet))
}

fn searched_in(mixes: &mut mixes::Mixes<'_>) -> Placement {
    let places = search::search(mixes);
    mixes.placement(places, false)
}

/// Judges given places.
#[must_use]
pub fn judge(fleet: &Fleet, places: Vec<Place>) -> Placement {
    mixes::Mixes::new(fleet).placement(places, false)
}

#[cfg(test)]
mod tests;
