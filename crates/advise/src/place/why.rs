//! What else could be done with a workload, and what that would change.

use super::mixes::Mixes;
use super::{Broken, Fleet, Place, Placement, Workload};

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
    pub breaks: Vec<Broken>,
}

/// For each workload of a placement, the best other places, one on each host that differs in kind or mix, at most `n`.
#[must_use]
pub fn alternatives(fleet: &Fleet, places: &[Place], n: usize) -> Vec<Vec<Alternative>> {
    let mut mixes = Mixes::new(fleet);
    let present = mixes.placement(places.to_vec(), false);
    (0..places.len()).map(|workload| alternatives_of(&mut mixes, &present, workload, n)).collect()
}

fn alternatives_of(mixes: &mut Mixes<'_>, present: &Placement, workload: usize, n: usize) -> Vec<Alternative> {
    let (fleet, places) = (mixes.fleet, &present.places);
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
            let mut moved = places.clone();
            moved[workload] = place;
            let after = mixes.placement(moved, false);
            let lost = |other: &usize| present.normalised[*other] - after.normalised[*other];
            let hurts = (0..places.len()).filter(|other| lost(other) > 0.0).max_by(|a, b| lost(a).total_cmp(&lost(b)));
            found.push(Alternative {
                place,
                change: after.sum - present.sum,
                hurts: hurts.map(|other| (other, present.normalised[other], after.normalised[other])),
                breaks: after.broken.into_iter().filter(|broken| !present.broken.contains(broken)).collect(),
            });
        }
    }
    found.sort_by(|a, b| a.breaks.len().cmp(&b.breaks.len()).then(b.change.total_cmp(&a.change)));
    found.truncate(n);
    found
}

/// The workloads that a placement moves from where they are today, each with what the sum gains because it does not stay there, with all others
/// at their planned places.
#[must_use]
pub fn moves(fleet: &Fleet, places: &[Place]) -> Vec<(usize, f64)> {
    let mut mixes = Mixes::new(fleet);
    let on = mixes.by_machine(places);
    let moved = (0..places.len()).filter_map(|at| Some((at, fleet.workloads[at].now?)));
    let moved: Vec<(usize, Place)> = moved.filter(|(at, now)| *now != places[*at]).collect();
    let mut sum = |machine: usize, workloads: &[(usize, usize)]| {
        let members = mixes.members(workloads.iter().copied());
        mixes.mix(mixes.kind_of[machine], &members).sum
    };
    let mut gains = Vec::new();
    for (at, now) in moved {
        // Only the two hosts differ, or one of which another device is used.
        let planned = places[at].machine;
        let mut before = on[now.machine].clone();
        before.retain(|(other, _)| *other != at);
        before.push((at, now.device));
        let mut gain = sum(now.machine, &on[now.machine]) - sum(now.machine, &before);
        if planned != now.machine {
            let mut without = on[planned].clone();
            without.retain(|(other, _)| *other != at);
            gain += sum(planned, &on[planned]) - sum(planned, &without);
        }
        gains.push((at, gain));
    }
    gains
}

/// One more copy of a workload at a place.
#[derive(Clone, Debug, PartialEq)]
pub struct More {
    /// The place.
    pub place: Place,
    /// The copy's own normalised throughput there.
    pub own: f64,
    /// Part of the sum of the others' normalised throughputs on this host that they lose, 0 to 1; 0 if there are none.
    pub cost: f64,
    /// The workload that would lose most, with its normalised throughput before and after.
    pub hurts: Option<(usize, f64, f64)>,
    /// Constraints that would be broken and hold now. The copy has the index behind that of the last workload.
    pub breaks: Vec<Broken>,
}

/// One more workload beside a placement, with a demand of the fleet, on each device of each host that differs in kind or mix: those that break nothing first, then
/// by what is gained.
#[must_use]
pub fn one_more(fleet: &Fleet, places: &[Place], workload: &Workload) -> Vec<More> {
    let present = super::judge(fleet, places.to_vec());
    let mut with = fleet.clone();
    with.workloads.push(Workload { now: None, ..workload.clone() });
    let mut mixes = Mixes::new(&with);
    let on = mixes.by_machine(places);
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for (machine, its) in with.machines.iter().enumerate() {
        for device in 0..its.devices.len() {
            let place = Place { machine, device };
            let state = (mixes.kind_of[machine], device, mixes.members(on[machine].iter().copied()));
            if seen.contains(&state) {
                continue;
            }
            seen.push(state);
            let mut all = places.to_vec();
            all.push(place);
            let after = mixes.placement(all, false);
            let others = || on[machine].iter().map(|(other, _)| *other);
            let before: f64 = others().map(|other| present.normalised[other]).sum();
            let kept: f64 = others().map(|other| after.normalised[other]).sum();
            let lost = |other: &usize| present.normalised[*other] - after.normalised[*other];
            let hurts = others().filter(|other| lost(other) > 0.0).max_by(|a, b| lost(a).total_cmp(&lost(b)));
            found.push(More {
                place,
                own: after.normalised[places.len()],
                cost: if before > 0.0 { (1.0 - kept / before).max(0.0) } else { 0.0 },
                hurts: hurts.map(|other| (other, present.normalised[other], after.normalised[other])),
                breaks: after.broken.into_iter().filter(|broken| !present.broken.contains(broken)).collect(),
            });
        }
    }
    let gain = |more: &More| more.own - more.hurts.map_or(0.0, |(_, before, after)| before - after);
    found.sort_by(|a, b| a.breaks.len().cmp(&b.breaks.len()).then(gain(b).total_cmp(&gain(a))));
    found
}
