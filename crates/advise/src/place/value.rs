//! How good the workloads of a host are placed, which exact and searched placements compare.

use super::Place;
use super::mixes::Mixes;

/// What a move has to gain: it copies data and interrupts the workload.
const STAYS: f64 = 0.01;

/// How good places are: less shortfall first, then a larger sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Value {
    pub(super) shortfall: f64,
    pub(super) sum: f64,
}

impl Value {
    pub(super) const NONE: Self = Self { shortfall: 0.0, sum: 0.0 };
    pub(super) const WORST: Self = Self { shortfall: f64::INFINITY, sum: 0.0 };

    pub(super) fn plus(self, other: Self) -> Self {
        Self { shortfall: self.shortfall + other.shortfall, sum: self.sum + other.sum }
    }

    /// Whether it is better by more than predictions are computed to.
    pub(super) fn is_better_than(self, other: Self) -> bool {
        if (self.shortfall - other.shortfall).abs() > 1e-6 {
            return self.shortfall < other.shortfall;
        }
        self.sum > other.sum + 1e-6
    }
}

/// The value of a host with these workloads on its devices.
pub(super) fn host_value(mixes: &mut Mixes<'_>, machine: usize, on: &[(usize, usize)]) -> Value {
    if on.is_empty() {
        return Value::NONE;
    }
    let members = mixes.members(on.iter().copied());
    let mix = mixes.mix(mixes.kind_of[machine], &members);
    let mut value = Value { shortfall: mix.shortfall, sum: mix.sum };
    let fleet = mixes.fleet;
    for (index, device) in fleet.machines[machine].devices.iter().enumerate() {
        let there = on.iter().filter(|(_, its)| *its == index);
        let needed = there.map(|(workload, _)| fleet.workloads[*workload].space.0).fold(0, u64::saturating_add);
        let missing = needed.saturating_sub(device.space.0);
        // In workloads of mean size, so that it weighs as much as a floor of 1.
        value.shortfall += on.len() as f64 * missing as f64 / (needed as f64).max(1.0);
    }
    for (position, (workload, device)) in on.iter().enumerate() {
        if fleet.workloads[*workload].now == Some(Place { machine, device: *device }) {
            value.sum += STAYS;
        }
        if !mixes.may_be_on(*workload, machine) {
            value.shortfall += 1.0;
        }
        let near = on[..position].iter().filter(|(other, _)| mixes.are_too_near(*workload, machine, *other, machine));
        value.shortfall += near.count() as f64;
    }
    value
}
