//! Target shares of cgroups on a device: io.weight arbitrates among siblings, level by level.
//!
//! Only cgroups that are active on the device take part. At each level of the tree, the device's time is split in
//! proportion to weights among the siblings with active cgroups in their subtrees; the part that an active cgroup gets
//! at the last level is its target. I/O of the root cgroup is not subject to any weight: it has no target. Source:
//! kernel `Documentation/admin-guide/cgroup-v2.rst`, "Weights" and "IO Interface Files".

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::blame::ROOT;
use super::charge::pro_rata;
use super::record::CgroupId;
use crate::units::DevNo;

/// The default weight of a cgroup (kernel `CGROUP_WEIGHT_DFL`).
const DEFAULT_WEIGHT: u64 = 100;
/// The largest weight in a file (kernel `CGROUP_WEIGHT_MAX`).
const MAX_WEIGHT: u64 = 10_000;

/// The content of a cgroup's io.weight or io.bfq.weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights {
    default: u64,
    /// Weights of single devices.
    by_device: BTreeMap<DevNo, u64>,
}

impl Weights {
    /// Parses the file: a line `default N` (or `N`), and lines `MAJOR:MINOR N`. `None` if it has no default.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (mut default, mut by_device) = (None, BTreeMap::new());
        for line in text.lines() {
            let (key, value) = line.trim().rsplit_once(' ').unwrap_or(("default", line.trim()));
            let weight = value.parse().ok().filter(|weight| (1..=MAX_WEIGHT).contains(weight))?;
            match key {
                "default" => default = Some(weight),
                dev => {
                    by_device.insert(dev.parse().ok()?, weight);
                }
            }
        }
        Some(Self { default: default?, by_device })
    }

    /// The weight on a device.
    #[must_use]
    pub fn on(&self, dev: DevNo) -> u64 {
        self.by_device.get(&dev).copied().unwrap_or(self.default)
    }

    /// Whether the cgroup has a weight of its own on a device.
    #[must_use]
    pub fn has_own(&self, dev: DevNo) -> bool {
        self.by_device.contains_key(&dev)
    }
}

/// The cgroup hierarchy with weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    nodes: HashMap<CgroupId, (CgroupId, Option<Weights>)>,
}

impl Tree {
    /// Adds a cgroup below its parent; `None` for weights that cannot be read. The root is not added.
    pub fn insert(&mut self, cgroup: CgroupId, parent: CgroupId, weights: Option<Weights>) {
        self.nodes.insert(cgroup, (parent, weights));
    }

    /// Splits the time of a device among its active cgroups, exactly. A cgroup counts with the default weight and gets
    /// no target if its weight, or that of an ancestor, cannot be read. A cgroup that is not in the tree gets no
    /// target, either.
    #[must_use]
    pub fn split(&self, dev: DevNo, total_ns: u64, active: &BTreeSet<CgroupId>) -> BTreeMap<CgroupId, u64> {
        let below = self.below(active);
        let mut targets = BTreeMap::new();
        let mut pending = vec![(ROOT, total_ns, true)];
        while let Some((cgroup, ns, is_known)) = pending.pop() {
            let Some(children) = below.get(&cgroup) else {
                if is_known && cgroup != ROOT {
                    targets.insert(cgroup, ns);
                }
                continue;
            };
            let weights = children.iter().map(|child| (*child, self.weight(*child, dev).unwrap_or(DEFAULT_WEIGHT)));
            let mut weights: BTreeMap<CgroupId, u64> = weights.collect();
            if cgroup != ROOT && active.contains(&cgroup) {
                // Its own I/O competes with its children, like one more child.
                weights.insert(cgroup, DEFAULT_WEIGHT);
            }
            for (child, ns) in pro_rata(ns, &weights) {
                if child == cgroup {
                    targets.extend(is_known.then_some((cgroup, ns)));
                } else {
                    pending.push((child, ns, is_known && self.weight(child, dev).is_some()));
                }
            }
        }
        targets
    }

    fn weight(&self, cgroup: CgroupId, dev: DevNo) -> Option<u64> {
        self.nodes.get(&cgroup)?.1.as_ref().map(|weights| weights.on(dev))
    }

    /// The children of each cgroup that have active cgroups in their subtrees.
    fn below(&self, active: &BTreeSet<CgroupId>) -> HashMap<CgroupId, BTreeSet<CgroupId>> {
        let mut below: HashMap<CgroupId, BTreeSet<CgroupId>> = HashMap::new();
        for cgroup in active {
            let mut at = *cgroup;
            while at != ROOT
                && let Some((parent, _)) = self.nodes.get(&at)
            {
                // Its ancestors have been added before.
                if !below.entry(*parent).or_default().insert(at) {
                    break;
                }
                at = *parent;
            }
        }
        below
    }
}

#[cfg(test)]
mod tests;
