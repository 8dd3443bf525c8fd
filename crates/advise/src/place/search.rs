//! A good placement of many workloads: insert the most demanding first, then move and exchange as long as that helps, and shake.

use super::mixes::Mixes;
use super::value::{Value, host_value};
use super::{Apart, Place};

/// Places that are tried for a workload, those that seem best.
const TRIED: usize = 6;
/// Predicted changes of a host until the search ends, and more of them for each workload.
const BUDGET: usize = 4_000;
const BUDGET_EACH: usize = 5;
/// Workloads that are exchanged at random when nothing helps any more.
const SHAKEN: usize = 3;

/// Parts of a host's processors, memory and devices that workloads would use if none disturbed another.
#[derive(Clone, Debug, Default, PartialEq)]
struct Uses {
    cpu: f64,
    memory: f64,
    devices: Vec<f64>,
    /// Space that is left on each device, bytes; below 0 if too much was placed there.
    space: Vec<f64>,
}

/// Places under way.
struct State<'m, 'a> {
    mixes: &'m mut Mixes<'a>,
    places: Vec<Option<Place>>,
    on: Vec<Vec<(usize, usize)>>,
    values: Vec<Value>,
    uses: Vec<Uses>,
    groups: Vec<Vec<usize>>,
    budget: usize,
    random: u64,
}

/// Good places, the same for the same fleet.
pub(super) fn search(mixes: &mut Mixes<'_>) -> Vec<Place> {
    let n_workloads = mixes.fleet.workloads.len();
    let mut state = State::new(mixes);
    let mut order: Vec<usize> = (0..n_workloads).collect();
    order.sort_by(|a, b| state.size_of(*b).total_cmp(&state.size_of(*a)));
    for workload in &order {
        let place = state.best_place(*workload).map_or_else(|| state.any_place(*workload), |(place, _)| place);
        state.put(*workload, place);
    }
    state.budget = BUDGET + BUDGET_EACH * n_workloads;
    state.improve(&order);
    let (mut best, mut best_value) = (state.places.clone(), state.value());
    while state.budget > 0 && n_workloads > 1 {
        state.shake();
        state.improve(&order);
        if state.value().is_better_than(best_value) {
            (best, best_value) = (state.places.clone(), state.value());
        } else {
            state.restore(&best);
        }
    }
    best.into_iter().flatten().collect()
}

impl<'m, 'a> State<'m, 'a> {
    fn new(mixes: &'m mut Mixes<'a>) -> Self {
        let fleet = mixes.fleet;
        let mut groups = vec![Vec::new(); fleet.groups.len()];
        for (index, workload) in fleet.workloads.iter().enumerate() {
            if let Some(group) = workload.group {
                groups[group].push(index);
            }
        }
        let idle = |machine: &super::Machine| Uses {
            devices: vec![0.0; machine.devices.len()],
            space: machine.devices.iter().map(|device| device.space.0 as f64).collect(),
            ..Uses::default()
        };
        Self {
            places: vec![None; fleet.workloads.len()],
            on: vec![Vec::new(); fleet.machines.len()],
            values: vec![Value::NONE; fleet.machines.len()],
            uses: fleet.machines.iter().map(idle).collect(),
            mixes,
            groups,
            budget: usize::MAX,
            random: 0x9E37_79B9_7F4A_7C15,
        }
    }

    fn next_random(&mut self, below: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random >> 33).unwrap_or_default() % below.max(1)
    }

    /// The largest part of any resource that a workload would use, where it uses least.
    fn size_of(&self, workload: usize) -> f64 {
        let class = self.mixes.class_of[workload];
        let of_kind = |kind: usize| {
            let n_devices = self.mixes.alone[class][kind].len();
            (0..n_devices)
                .map(|device| {
                    let uses = self.uses_of(workload, kind, device);
                    uses.0.max(uses.1).max(uses.2)
                })
                .fold(f64::INFINITY, f64::min)
        };
        let least = (0..self.mixes.kinds.len()).map(of_kind).fold(f64::INFINITY, f64::min);
        let its = &self.mixes.fleet.workloads[workload];
        // Those with fewer places to choose from come first.
        least + if its.only.is_empty() { 0.0 } else { 100.0 } + if its.group.is_some() { 10.0 } else { 0.0 }
    }

    /// Parts of processors, memory and device that a workload uses alone on a kind of hosts.
    fn uses_of(&self, workload: usize, kind: usize, device: usize) -> (f64, f64, f64) {
        let class = self.mixes.class_of[workload];
        let alone = &self.mixes.alone[class][kind][device];
        let demand = &self.mixes.fleet.demands[self.mixes.fleet.workloads[workload].demand];
        let cached = demand.miss_ratios.0.last().map_or(0.0, |point| point.bytes);
        let memory = self.mixes.fleet.machines[self.mixes.kinds[kind]].memory.0 as f64;
        (alone.cpu, (cached + demand.memory.0 as f64) / memory.max(1.0), alone.devices[device])
    }

    fn value(&self) -> Value {
        let hosts = self.values.iter().fold(Value::NONE, |sum, value| sum.plus(*value));
        let across: f64 = (0..self.places.len()).map(|workload| self.across(workload, self.places[workload])).sum();
        Value { shortfall: hosts.shortfall + across / 2.0, ..hosts }
    }

    /// Members of a workload's group on other hosts that would be too near.
    fn across(&self, workload: usize, place: Option<Place>) -> f64 {
        let fleet = self.mixes.fleet;
        let (Some(group), Some(place)) = (fleet.workloads[workload].group, place) else { return 0.0 };
        if fleet.groups[group].apart == Apart::Hosts {
            return 0.0;
        }
        let is_near = |other: &&usize| {
            self.places[**other].is_some_and(|there| {
                there.machine != place.machine
                    && self.mixes.are_too_near(workload, place.machine, **other, there.machine)
            })
        };
        self.groups[group].iter().filter(is_near).count() as f64
    }

    fn spend(&mut self) {
        self.budget = self.budget.saturating_sub(1);
    }

    fn value_on(&mut self, machine: usize, on: &[(usize, usize)]) -> Value {
        self.spend();
        host_value(self.mixes, machine, on)
    }

    fn change_uses(&mut self, workload: usize, place: Place, sign: f64) {
        let (cpu, memory, device) = self.uses_of(workload, self.mixes.kind_of[place.machine], place.device);
        let space = self.mixes.fleet.workloads[workload].space.0 as f64;
        let uses = &mut self.uses[place.machine];
        uses.cpu += sign * cpu;
        uses.memory += sign * memory;
        uses.devices[place.device] += sign * device;
        uses.space[place.device] -= sign * space;
    }

    fn put(&mut self, workload: usize, place: Place) {
        self.on[place.machine].push((workload, place.device));
        self.places[workload] = Some(place);
        self.change_uses(workload, place, 1.0);
        self.values[place.machine] = host_value(self.mixes, place.machine, &self.on[place.machine]);
    }

    fn take(&mut self, workload: usize) -> Option<Place> {
        let place = self.places[workload].take()?;
        self.on[place.machine].retain(|(other, _)| *other != workload);
        self.change_uses(workload, place, -1.0);
        self.values[place.machine] = host_value(self.mixes, place.machine, &self.on[place.machine]);
        Some(place)
    }

    fn restore(&mut self, places: &[Option<Place>]) {
        for (workload, place) in places.iter().enumerate() {
            if self.places[workload] != *place {
                self.take(workload);
                if let Some(place) = place {
                    self.put(workload, *place);
                }
            }
        }
    }

    /// Places at which a workload can be, those with the least use of their busiest resource first; hosts in the same state once.
    fn candidates(&self, workload: usize) -> Vec<Place> {
        let fleet = self.mixes.fleet;
        let its = &fleet.workloads[workload];
        let mut found: Vec<(f64, Place)> = Vec::new();
        for (machine, uses) in self.uses.iter().enumerate() {
            if !self.mixes.may_be_on(workload, machine) {
                continue;
            }
            let too_near = |(other, _): &(usize, usize)| self.mixes.are_too_near(workload, machine, *other, machine);
            if self.on[machine].iter().any(too_near) {
                continue;
            }
            for device in 0..uses.devices.len() {
                let place = Place { machine, device };
                if uses.space[device] < its.space.0 as f64 || self.across(workload, Some(place)) > 0.0 {
                    continue;
                }
                let own = self.uses_of(workload, self.mixes.kind_of[machine], device);
                let busiest = (uses.cpu + own.0).max(uses.memory + own.1).max(uses.devices[device] + own.2);
                // What it achieves there alone counts as well.
                let class = self.mixes.class_of[workload];
                let alone = self.mixes.alone[class][self.mixes.kind_of[machine]][device].achieved[0].per_s;
                let worth = alone / self.mixes.reference[class].max(f64::MIN_POSITIVE);
                found.push((busiest.max(1.0) / worth.max(1e-6) + 1e-3 * busiest, place));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut seen: Vec<(usize, usize, Vec<super::mixes::Member>)> = Vec::new();
        let mut places = Vec::new();
        for (_, place) in found {
            if places.len() >= TRIED {
                break;
            }
            let members = self.mixes.members(self.on[place.machine].iter().copied());
            let state = (self.mixes.kind_of[place.machine], place.device, members);
            if !seen.contains(&state) {
                seen.push(state);
                places.push(place);
            }
        }
        places
    }

    /// The best place of those for a workload that has none, with the value of the host there less its present one.
    fn best_place(&mut self, workload: usize) -> Option<(Place, Value)> {
        let mut best: Option<(Place, Value)> = None;
        for place in self.candidates(workload) {
            let mut on = self.on[place.machine].clone();
            on.push((workload, place.device));
            let with = self.value_on(place.machine, &on);
            let before = self.values[place.machine];
            let gain = Value { shortfall: with.shortfall - before.shortfall, sum: with.sum - before.sum };
            if best.is_none_or(|(_, best)| gain.is_better_than(best)) {
                best = Some((place, gain));
            }
        }
        best
    }

    /// The place with the most space left, if none fits.
    fn any_place(&self, workload: usize) -> Place {
        let places = self.uses.iter().enumerate().flat_map(|(machine, uses)| {
            let space = uses.space.iter().enumerate();
            space.map(move |(device, space)| {
                (self.mixes.may_be_on(workload, machine), *space, Place { machine, device })
            })
        });
        let best = places.max_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        best.map_or(Place { machine: 0, device: 0 }, |(_, _, place)| place)
    }

    /// Moves and exchanges workloads as long as that helps and the budget lasts.
    fn improve(&mut self, order: &[usize]) {
        loop {
            let mut has_improved = false;
            for workload in order {
                if self.budget == 0 {
                    return;
                }
                has_improved |= self.move_one(*workload) || self.exchange(*workload);
            }
            if !has_improved {
                return;
            }
        }
    }

    fn move_one(&mut self, workload: usize) -> bool {
        let before = self.values.clone();
        let Some(from) = self.take(workload) else { return false };
        let there = self.values[from.machine];
        let mut with = before[from.machine];
        with.shortfall += self.across(workload, Some(from));
        let stays = Value { shortfall: with.shortfall - there.shortfall, sum: with.sum - there.sum };
        match self.best_place(workload) {
            Some((place, gain)) if gain.is_better_than(stays) => {
                self.put(workload, place);
                true
            }
            _ => {
                self.put(workload, from);
                false
            }
        }
    }

    /// Exchanges a workload with one of another class on a host where it would do well.
    fn exchange(&mut self, workload: usize) -> bool {
        let Some(from) = self.places[workload] else { return false };
        let class = self.mixes.class_of[workload];
        let whole = self.value();
        for _ in 0..TRIED {
            let other = self.next_random(self.places.len());
            let Some(to) = self.places[other] else { continue };
            if to.machine == from.machine || self.mixes.class_of[other] == class {
                continue;
            }
            self.spend();
            self.spend();
            self.swap(workload, other);
            if self.value().is_better_than(whole) {
                return true;
            }
            self.swap(workload, other);
            if self.budget == 0 {
                break;
            }
        }
        false
    }

    fn swap(&mut self, one: usize, other: usize) {
        if let (Some(from), Some(to)) = (self.take(one), self.take(other)) {
            self.put(one, to);
            self.put(other, from);
        }
    }

    fn shake(&mut self) {
        for _ in 0..SHAKEN {
            let (one, other) = (self.next_random(self.places.len()), self.next_random(self.places.len()));
            if one != other {
                self.swap(one, other);
            }
        }
        self.spend();
    }
}
