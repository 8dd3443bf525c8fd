//! What else could be done with a workload, and what that would change.

use super::mixes::Mixes;
use super::{Fleet, Place};

/// Another place for a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Alternative {
    /// The place.
    pub place: Place,
    /// Change of the sum of normalised throughputs.
    pub change: f64,
    /// The workload that would lose most there, with its normalised throughput before and after.
    pub hurts: Option<(usize, f64, f64)>,
    /// Constraints that it would break and that hold now.
    pub breaks: usize,
}

/// The best other places for a workload of a placement, one on each host that differs in kind or mix, at most `n`.
#[must_use]
pub fn alternatives(fleet: &Fleet, places: &[Place], workload: usize, n: usize) -> Vec<Alternative> {
    let mut mixes = Mixes::new(fleet);
    let present = mixes.placement(places.to_vec(), false);
    let on = mixes.by_machine(places);
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for (machine, its) in fleet.machines.iter().enumerate() {
        for device in 0..its.devices.len() {
            let place = Place { machine, device };
            let state = (mixes.kind_of[machine], device, mixes.members(on[machine].iter().copied()));
            if place == places[workload] || seen.contains(&state) {
                continue;
            }
            seen.push(state);
            let mut moved = places.to_vec();
            moved[workload] = place;
            let after = mixes.placement(moved, false);
            let lost = |other: &usize| present.normalised[*other] - after.normalised[*other];
            let hurts = (0..places.len()).filter(|other| lost(other) > 0.0).max_by(|a, b| lost(a).total_cmp(&lost(b)));
            found.push(Alternative {
                place,
                change: after.sum - present.sum,
                hurts: hurts.map(|other| (other, present.normalised[other], after.normalised[other])),
                breaks: after.broken.iter().filter(|broken| !present.broken.contains(broken)).count(),
            });
        }
    }
    found.sort_by(|a, b| a.breaks.cmp(&b.breaks).then(b.change.total_cmp(&a.change)));
    found.truncate(n);
    found
}
