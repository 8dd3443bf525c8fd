//! Predicted mixes of a fleet's workloads, each predicted once.
//!
//! Hosts that are equal but for their name are one kind, and workloads that differ in name and space only are one class: a fleet has few of
//! either, and most of its hosts run a mix that was seen before.

use std::collections::HashMap;
use std::rc::Rc;

use bulkhead_core::units::Bytes;

use super::{Apart, Broken, Fleet, Machine, Place, Placement, Use, Workload};
use crate::predict::{Achieved, Host, Load, Prediction, predict_within};

/// Near enough to compare mixes: predictions are not that exact.
const TOLERANCE: f64 = 3e-5;

/// Copies of a class on a device of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Member {
    pub(super) class: usize,
    pub(super) device: usize,
    pub(super) copies: u32,
}

/// What a mix achieves.
#[derive(Clone, Debug, Default)]
pub(super) struct Mix {
    /// For each member.
    pub(super) achieved: Vec<Achieved>,
    /// For each member.
    pub(super) normalised: Vec<f64>,
    /// Sum of the normalised throughputs, times importance.
    pub(super) sum: f64,
    /// The use of the host.
    pub(super) uses: Use,
    /// How far it breaks floors, promised latencies and memory: 0 if it does not.
    pub(super) shortfall: f64,
}

/// All that is known about mixes.
pub(super) struct Mixes<'a> {
    pub(super) fleet: &'a Fleet,
    /// The class of each workload, and one workload of each class.
    pub(super) class_of: Vec<usize>,
    pub(super) classes: Vec<usize>,
    /// The kind of each host, and one host of each kind.
    pub(super) kind_of: Vec<usize>,
    pub(super) kinds: Vec<usize>,
    /// Throughput of each class alone on each device of each kind of hosts.
    pub(super) alone: Vec<Vec<Vec<Prediction>>>,
    /// The best of these for each class.
    pub(super) reference: Vec<f64>,
    known: HashMap<(usize, Vec<Member>), Rc<Mix>>,
}

fn is_same_kind(a: &Machine, b: &Machine) -> bool {
    let devices = |machine: &Machine| machine.devices.iter().map(|device| device.costs).collect::<Vec<_>>();
    (a.cpus, a.memory) == (b.cpus, b.memory) && devices(a) == devices(b)
}

fn is_same_class(a: &Workload, b: &Workload) -> bool {
    (a.demand, a.share, a.importance, a.floor, a.fsync_p99) == (b.demand, b.share, b.importance, b.floor, b.fsync_p99)
}

/// The class of each item, and the first item of each class.
fn classify<T>(items: &[T], is_same: impl Fn(&T, &T) -> bool) -> (Vec<usize>, Vec<usize>) {
    let (mut classes, mut first) = (Vec::new(), Vec::<usize>::new());
    for (index, item) in items.iter().enumerate() {
        let known = first.iter().position(|known| is_same(&items[*known], item));
        classes.push(known.unwrap_or(first.len()));
        if known.is_none() {
            first.push(index);
        }
    }
    (classes, first)
}

impl<'a> Mixes<'a> {
    pub(super) fn new(fleet: &'a Fleet) -> Self {
        let (class_of, classes) = classify(&fleet.workloads, is_same_class);
        let (kind_of, kinds) = classify(&fleet.machines, is_same_kind);
        let mut mixes = Self {
            fleet,
            class_of,
            classes,
            kind_of,
            kinds,
            alone: Vec::new(),
            reference: Vec::new(),
            known: HashMap::new(),
        };
        for class in 0..mixes.classes.len() {
            let of_kind = |kind: usize| {
                let n_devices = fleet.machines[mixes.kinds[kind]].devices.len();
                (0..n_devices).map(|device| mixes.predict(kind, &[Member { class, device, copies: 1 }])).collect()
            };
            let alone: Vec<Vec<Prediction>> = (0..mixes.kinds.len()).map(of_kind).collect();
            let best = alone.iter().flatten().map(|prediction| prediction.achieved[0].per_s).fold(0.0, f64::max);
            mixes.alone.push(alone);
            mixes.reference.push(best);
        }
        mixes
    }

    pub(super) fn workload_of(&self, class: usize) -> &'a Workload {
        &self.fleet.workloads[self.classes[class]]
    }

    /// Memory that members need besides the page cache, bytes.
    fn memory(&self, members: &[Member]) -> Bytes {
        let of_member = |member: &Member| {
            let demand = &self.fleet.demands[self.workload_of(member.class).demand];
            demand.memory.0.saturating_mul(u64::from(member.copies))
        };
        Bytes(members.iter().map(of_member).fold(0, u64::saturating_add))
    }

    fn predict(&self, kind: usize, members: &[Member]) -> Prediction {
        let machine = &self.fleet.machines[self.kinds[kind]];
        let devices: Vec<_> = machine.devices.iter().map(|device| &self.fleet.costs[device.costs]).collect();
        let host = Host {
            cpus: machine.cpus,
            cache: Bytes(machine.memory.0.saturating_sub(self.memory(members).0)),
            devices: &devices,
            is_journal_shared: self.fleet.is_journal_shared,
            has_shares: self.fleet.has_shares,
        };
        let load = |member: &Member| {
            let workload = self.workload_of(member.class);
            let demand = &self.fleet.demands[workload.demand];
            Load { demand, copies: member.copies, device: member.device, share: workload.share }
        };
        predict_within(&host, &members.iter().map(load).collect::<Vec<_>>(), TOLERANCE)
    }

    /// What members achieve on a kind of hosts. They must be sorted.
    pub(super) fn mix(&mut self, kind: usize, members: &[Member]) -> Rc<Mix> {
        if let Some(known) = self.known.get(&(kind, members.to_vec())) {
            return Rc::clone(known);
        }
        let mix = Rc::new(self.judge(kind, members));
        self.known.insert((kind, members.to_vec()), Rc::clone(&mix));
        mix
    }

    fn judge(&self, kind: usize, members: &[Member]) -> Mix {
        let Prediction { achieved, cpu, devices } = self.predict(kind, members);
        let mut mix = Mix { achieved, uses: Use { cpu, devices }, ..Mix::default() };
        for (member, achieved) in members.iter().zip(&mix.achieved) {
            let (workload, copies) = (self.workload_of(member.class), f64::from(member.copies));
            let normalised = achieved.per_s / self.reference[member.class];
            mix.normalised.push(normalised);
            mix.sum += copies * workload.importance * normalised;
            mix.shortfall += copies * (workload.floor - normalised).max(0.0);
            if let (Some(most), Some(fsync)) = (workload.fsync_p99, achieved.fsync) {
                mix.shortfall += copies * (fsync.p99 / most - 1.0).clamp(0.0, 1.0);
            }
        }
        let memory = self.fleet.machines[self.kinds[kind]].memory;
        mix.shortfall += self.memory(members).0.saturating_sub(memory.0) as f64 / (memory.0 as f64).max(1.0);
        mix
    }

    /// The members of a host with these workloads, sorted.
    pub(super) fn members(&self, workloads: impl Iterator<Item = (usize, usize)>) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        for (workload, device) in workloads {
            let class = self.class_of[workload];
            match members.iter_mut().find(|member| (member.class, member.device) == (class, device)) {
                Some(member) => member.copies += 1,
                None => members.push(Member { class, device, copies: 1 }),
            }
        }
        members.sort_unstable();
        members
    }

    /// The workloads on each host with their devices.
    pub(super) fn by_machine(&self, places: &[Place]) -> Vec<Vec<(usize, usize)>> {
        let mut machines = vec![Vec::new(); self.fleet.machines.len()];
        for (workload, place) in places.iter().enumerate() {
            machines[place.machine].push((workload, place.device));
        }
        machines
    }

    /// What follows from places.
    pub(super) fn placement(&mut self, places: Vec<Place>, is_best: bool) -> Placement {
        let idle = Achieved {
            per_s: 0.0,
            operation: crate::predict::Times::default(),
            fsync: None,
            miss: 0.0,
            limit: crate::predict::Limit::Clients,
        };
        let n = places.len();
        let (mut achieved, mut normalised, mut sum) = (vec![idle; n], vec![0.0; n], 0.0);
        let mut uses = Vec::new();
        for (machine, workloads) in self.by_machine(&places).into_iter().enumerate() {
            let members = self.members(workloads.iter().copied());
            let mix = self.mix(self.kind_of[machine], &members);
            sum += mix.sum;
            uses.push(mix.uses.clone());
            for (workload, device) in workloads {
                let key = (self.class_of[workload], device);
                let index = members.iter().position(|member| (member.class, member.device) == key).unwrap_or_default();
                achieved[workload] = mix.achieved[index];
                normalised[workload] = mix.normalised[index];
            }
        }
        let broken = self.broken(&places, &achieved, &normalised);
        Placement { places, achieved, normalised, sum, uses, broken, is_best }
    }

    fn broken(&self, places: &[Place], achieved: &[Achieved], normalised: &[f64]) -> Vec<Broken> {
        let fleet = self.fleet;
        let mut broken = Vec::new();
        for (machine, workloads) in self.by_machine(places).into_iter().enumerate() {
            let memory = self.memory(&self.members(workloads.iter().copied()));
            let missing = Bytes(memory.0.saturating_sub(fleet.machines[machine].memory.0));
            if missing.0 > 0 {
                broken.push(Broken::Memory { machine, missing });
            }
            for (device, has) in fleet.machines[machine].devices.iter().enumerate() {
                let there = workloads.iter().filter(|(_, its)| *its == device);
                let needed = there.map(|(workload, _)| fleet.workloads[*workload].space.0).fold(0, u64::saturating_add);
                let missing = Bytes(needed.saturating_sub(has.space.0));
                if missing.0 > 0 {
                    broken.push(Broken::Space { place: Place { machine, device }, missing });
                }
            }
        }
        for (index, workload) in fleet.workloads.iter().enumerate() {
            // As near as predictions are computed.
            if normalised[index] < workload.floor * (1.0 - 1e-6) {
                broken.push(Broken::Floor { workload: index, normalised: normalised[index] });
            }
            if let (Some(most), Some(fsync)) = (workload.fsync_p99, achieved[index].fsync)
                && fsync.p99 > most
            {
                broken.push(Broken::Fsync { workload: index, p99: fsync.p99 });
            }
            if !self.may_be_on(index, places[index].machine) {
                broken.push(Broken::Elsewhere { workload: index });
            }
            let with = (0..index)
                .find(|other| self.are_too_near(index, places[index].machine, *other, places[*other].machine));
            broken.extend(with.map(|with| Broken::Together { workload: index, with }));
        }
        broken
    }

    pub(super) fn may_be_on(&self, workload: usize, machine: usize) -> bool {
        let only = &self.fleet.workloads[workload].only;
        only.is_empty() || only.contains(&machine)
    }

    /// Whether two workloads, on these hosts, are nearer than their group allows.
    pub(super) fn are_too_near(&self, workload: usize, on: usize, other: usize, other_on: usize) -> bool {
        let fleet = self.fleet;
        let Some(group) = fleet.workloads[workload].group else { return false };
        if workload == other || fleet.workloads[other].group != Some(group) {
            return false;
        }
        match fleet.groups[group].apart {
            Apart::Hosts => on == other_on,
            Apart::Domains => fleet.machines[on].domain == fleet.machines[other_on].domain,
        }
    }
}
