//! One more workload on any of many hosts, asked again and again: what it gets there, and what the others lose.
//!
//! A scheduler asks for each container about thousands of hosts, which are of a few kinds and run a few mixes. Each mix on each kind is predicted
//! once ([`crate::predict`]) and remembered. Devices whose costs differ by no more than 10 % are one: what equal hardware is measured to cost
//! differs by some percent, and predictions are no better than that.
//!
//! Owns: kinds, classes, and the remembered predictions. Does not: know hosts by name, place several workloads ([`crate::place`]), or decide
//! which host is best.

use std::collections::HashMap;

use bulkhead_core::demand::{Access, Cost, Demand, DeviceCosts};
use bulkhead_core::units::Bytes;

use crate::predict::{Host, Load, predict_within};

/// Near enough to compare hosts.
const TOLERANCE: f64 = 3e-5;
/// Devices, and memory of hosts, are one if no figure differs by more than this part.
const NEAR: f64 = 0.1;

/// What a workload demands and is promised; its copies are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// What it demands.
    pub demand: Demand,
    /// Its share of a device, in the unit of `io.weight`.
    pub share: f64,
    /// Lowest normalised throughput, 0 to 1.
    pub floor: f64,
    /// Highest 99th percentile of its fsyncs, seconds.
    pub fsync_p99: Option<f64>,
}

/// Copies of a class on a device of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The index of the class, as [`Outlook::class`] returned it.
    pub class: usize,
    /// The index of the device.
    pub device: usize,
    /// Number of copies, at least 1.
    pub copies: u32,
}

/// A constraint that one more workload would break, and that holds without it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Break {
    /// A class is below its floor.
    Floor {
        /// The class.
        class: usize,
        /// Its normalised throughput.
        normalised: f64,
        /// The floor.
        floor: f64,
    },
    /// Fsyncs of a class take longer than they may.
    Fsync {
        /// The class.
        class: usize,
        /// Their 99th percentile, seconds.
        p99: f64,
        /// Its promise, seconds.
        most: f64,
    },
    /// The host has too little memory for what is not page cache.
    Memory {
        /// What is missing, bytes.
        missing: Bytes,
    },
}

/// One more workload on a device of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Its normalised throughput: what it achieves, as a part of what it achieves alone on the best device of any kind.
    pub own: f64,
    /// The sum of what the others lose of theirs.
    pub lost: f64,
    /// The class that loses most, with its normalised throughput before and after.
    pub hurts: Option<(usize, f64, f64)>,
    /// What it breaks.
    pub breaks: Vec<Break>,
}

impl Verdict {
    /// What all together gain.
    #[must_use]
    pub fn gain(&self) -> f64 {
        self.own - self.lost
    }
}

/// Hosts of one size with like devices.
#[derive(Clone, Debug, PartialEq)]
struct Kind {
    cpus: f64,
    memory: Bytes,
    devices: Vec<usize>,
}

/// What each member of a mix achieves.
#[derive(Clone, Debug)]
struct Mix {
    per_s: Vec<f64>,
    fsync_p99: Vec<Option<f64>>,
}

/// All that is remembered.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    costs: Vec<DeviceCosts>,
    kinds: Vec<Kind>,
    classes: Vec<Class>,
    /// Indices of classes, by their JSON.
    class_of: HashMap<String, usize>,
    known: HashMap<(usize, Vec<Member>), Mix>,
    /// What each class achieves alone on the best device of the first kinds, as many as `.1`.
    references: HashMap<usize, (f64, usize)>,
}

impl Outlook {
    /// The index of a kind of hosts: this many processors, above 0, this much memory, and devices with these costs, which must have been checked.
    pub fn kind(&mut self, cpus: f64, memory: Bytes, devices: &[&DeviceCosts]) -> usize {
        let devices: Vec<usize> = devices.iter().map(|costs| self.device(costs)).collect();
        let is_same = |kind: &Kind| {
            (kind.cpus - cpus).abs() < f64::EPSILON
                && is_near(kind.memory.0 as f64, memory.0 as f64)
                && kind.devices == devices
        };
        self.kinds.iter().position(is_same).unwrap_or_else(|| {
            self.kinds.push(Kind { cpus, memory, devices });
            self.kinds.len() - 1
        })
    }

    fn device(&mut self, costs: &DeviceCosts) -> usize {
        self.costs.iter().position(|known| is_like(known, costs)).unwrap_or_else(|| {
            self.costs.push(costs.clone());
            self.costs.len() - 1
        })
    }

    /// The index of a class, whose demand must have been checked.
    pub fn class(&mut self, class: &Class) -> usize {
        let demand = serde_json::to_string(&class.demand).unwrap_or_default();
        let key = format!("{} {} {:?} {demand}", class.share, class.floor, class.fsync_p99);
        *self.class_of.entry(key).or_insert_with(|| {
            self.classes.push(class.clone());
            self.classes.len() - 1
        })
    }

    /// The number of classes and of remembered mixes, by which a caller knows when to begin with an empty memory.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.classes.len(), self.known.len())
    }

    /// One more workload of a class on a device of a host of this kind, beside these members. Their indices must be those that this returned, and
    /// that of the device be one of the kind's.
    pub fn verdict(&mut self, kind: usize, members: &[Member], class: usize, device: usize) -> Verdict {
        let mut before = members.to_vec();
        before.sort_unstable();
        let mut after = before.clone();
        let at = after.iter().position(|member| (member.class, member.device) == (class, device));
        match at {
            Some(at) => after[at].copies += 1,
            None => {
                after.push(Member { class, device, copies: 1 });
                after.sort_unstable();
            }
        }
        self.predict(kind, &before);
        self.predict(kind, &after);
        let references: Vec<f64> = after.iter().map(|member| self.reference(member.class)).collect();
        let (old, new) = (&self.known[&(kind, before.clone())], &self.known[&(kind, after.clone())]);
        let mut verdict = Verdict { own: 0.0, lost: 0.0, hurts: None, breaks: Vec::new() };
        let (memory_before, memory_after) = (self.lacking(kind, &before), self.lacking(kind, &after));
        if memory_after.0 > 0 && memory_before.0 == 0 {
            verdict.breaks.push(Break::Memory { missing: memory_after });
        }
        for (index, (member, reference)) in after.iter().zip(references).enumerate() {
            let its = &self.classes[member.class];
            let normalised = new.per_s[index] / reference;
            let is_new = (member.class, member.device) == (class, device);
            if is_new {
                verdict.own = normalised;
            }
            let was = before.iter().position(|other| (other.class, other.device) == (member.class, member.device));
            let earlier = was.map(|was| old.per_s[was] / reference);
            if let (Some(was), Some(earlier)) = (was, earlier) {
                let lost = earlier - normalised;
                verdict.lost += lost.max(0.0) * f64::from(before[was].copies);
                if lost > verdict.hurts.map_or(0.0, |(_, before, after)| before - after) {
                    verdict.hurts = Some((member.class, earlier, normalised));
                }
            }
            // As near as predictions are computed.
            let is_below = |normalised: f64| normalised < its.floor * (1.0 - 1e-6);
            if is_below(normalised) && !earlier.is_some_and(is_below) {
                verdict.breaks.push(Break::Floor { class: member.class, normalised, floor: its.floor });
            }
            if let (Some(most), Some(p99)) = (its.fsync_p99, new.fsync_p99[index]) {
                let was_late = was.and_then(|was| old.fsync_p99[was]).is_some_and(|p99| p99 > most);
                if p99 > most && !was_late {
                    verdict.breaks.push(Break::Fsync { class: member.class, p99, most });
                }
            }
        }
        verdict
    }

    /// What a class achieves alone on the best device of all kinds.
    fn reference(&mut self, class: usize) -> f64 {
        let (mut best, from) = self.references.get(&class).copied().unwrap_or((0.0, 0));
        for kind in from..self.kinds.len() {
            for device in 0..self.kinds[kind].devices.len() {
                let alone = [Member { class, device, copies: 1 }];
                self.predict(kind, &alone);
                best = best.max(self.known[&(kind, alone.to_vec())].per_s[0]);
            }
        }
        self.references.insert(class, (best, self.kinds.len()));
        best
    }

    fn needed(&self, members: &[Member]) -> Bytes {
        let of = |member: &Member| self.classes[member.class].demand.memory.0.saturating_mul(member.copies.into());
        Bytes(members.iter().map(of).fold(0, u64::saturating_add))
    }

    fn lacking(&self, kind: usize, members: &[Member]) -> Bytes {
        Bytes(self.needed(members).0.saturating_sub(self.kinds[kind].memory.0))
    }

    /// Remembers what sorted members achieve on a kind.
    fn predict(&mut self, kind: usize, members: &[Member]) {
        if self.known.contains_key(&(kind, members.to_vec())) {
            return;
        }
        let its = &self.kinds[kind];
        let devices: Vec<&DeviceCosts> = its.devices.iter().map(|device| &self.costs[*device]).collect();
        let cache = Bytes(its.memory.0.saturating_sub(self.needed(members).0));
        let host = Host { cpus: its.cpus, cache, devices: &devices, is_journal_shared: false, has_shares: true };
        let load = |member: &Member| {
            let class = &self.classes[member.class];
            Load { demand: &class.demand, copies: member.copies, device: member.device, share: class.share }
        };
        let achieved = predict_within(&host, &members.iter().map(load).collect::<Vec<_>>(), TOLERANCE).achieved;
        let mix = Mix {
            per_s: achieved.iter().map(|its| its.per_s).collect(),
            fsync_p99: achieved.iter().map(|its| its.fsync.map(|fsync| fsync.p99)).collect(),
        };
        self.known.insert((kind, members.to_vec()), mix);
    }
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= NEAR * a.abs().max(b.abs())
}

/// Whether costs are near enough to be one device's.
fn is_like(a: &DeviceCosts, b: &DeviceCosts) -> bool {
    let near = |a: &Cost, b: &Cost| is_near(a.latency_us, b.latency_us) && is_near(a.per_s, b.per_s);
    Access::ALL.iter().all(|access| {
        near(&a.of(*access).small, &b.of(*access).small) && near(&a.of(*access).large, &b.of(*access).large)
    }) && near(&a.durable_write, &b.durable_write)
        && (a.read_write_sharing - b.read_write_sharing).abs() <= NEAR
        && is_near(a.sequential_run, b.sequential_run)
        && is_near(a.cpu_us, b.cpu_us)
        && (a.variation - b.variation).abs() <= NEAR
}

#[cfg(test)]
mod tests;
