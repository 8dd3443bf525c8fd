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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: DevNo = DevNo::new(8, 0);

    fn id(n: u64) -> CgroupId {
        CgroupId(n)
    }

    /// Each cgroup with its parent and weight.
    fn tree(nodes: &[(u64, u64, u64)]) -> Tree {
        let mut tree = Tree::default();
        for &(cgroup, parent, weight) in nodes {
            tree.insert(id(cgroup), id(parent), Weights::parse(&weight.to_string()));
        }
        tree
    }

    fn split(tree: &Tree, active: &[u64]) -> Vec<(u64, u64)> {
        let active = active.iter().map(|n| id(*n)).collect();
        tree.split(DISK, 1000, &active).into_iter().map(|(cgroup, ns)| (cgroup.0, ns)).collect()
    }

    #[test]
    fn weights_are_read_as_the_kernel_writes_them() {
        let weights = Weights::parse("default 100\n8:0 250\n259:1 1\n").unwrap();
        assert_eq!([weights.on(DISK), weights.on(DevNo::new(259, 1)), weights.on(DevNo::new(7, 0))], [250, 1, 100]);
        assert_eq!(Weights::parse("70\n").map(|weights| weights.on(DISK)), Some(70));
        for wrong in ["", "8:0 100", "default 0", "default 10001", "default x", "default 100\nx:y 5", "default -1"] {
            assert_eq!(Weights::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn shares_multiply_down_the_path() {
        // bulkhead.slice (2) with tenants 20 (700: payload 21, journal 22) and 30 (100), beside system.slice (3).
        let nodes = [(2, 1, 300), (3, 1, 100), (20, 2, 700), (21, 20, 100), (22, 20, 100), (30, 2, 100), (31, 3, 100)];
        let tree = tree(&nodes);
        assert_eq!(split(&tree, &[21]), [(21, 1000)]);
        assert_eq!(split(&tree, &[21, 30]), [(21, 875), (30, 125)]);
        assert_eq!(split(&tree, &[21, 22, 31]), [(21, 375), (22, 375), (31, 250)]);
        // The root has no target, and does not reduce those of others.
        assert_eq!(split(&tree, &[1, 21, 31]), [(21, 750), (31, 250)]);
        assert_eq!((split(&tree, &[1]), split(&tree, &[])), (vec![], vec![]));
        // A cgroup with I/O of its own beside its child's.
        assert_eq!(split(&tree, &[3, 31]), [(3, 500), (31, 500)]);
    }

    #[test]
    fn an_unknown_weight_has_no_target_but_counts() {
        let mut tree = tree(&[(2, 1, 300)]);
        tree.insert(id(3), id(1), None);
        tree.insert(id(4), id(3), Weights::parse("100"));
        assert_eq!(split(&tree, &[2, 4]), [(2, 750)]);
        assert_eq!(split(&tree, &[2, 99]), [(2, 1000)]);
    }

    proptest! {
        #[test]
        fn targets_of_the_active_sum_to_the_whole(
            parents in proptest::collection::vec((any::<u64>(), 1u64..=10_000), 1..40),
            active in proptest::collection::btree_set(0u64..40, 1..20), total_ns in 0u64..1 << 50,
        ) {
            let mut tree = Tree::default();
            for (n, (parent, weight)) in (2u64..).zip(&parents) {
                tree.insert(id(n), id(1 + parent % (n - 1)), Weights::parse(&format!("default {weight}")));
            }
            let n_nodes = u64::try_from(parents.len()).unwrap();
            let active: BTreeSet<CgroupId> = active.iter().map(|n| id(2 + n % n_nodes)).collect();
            let targets = tree.split(DISK, total_ns, &active);
            prop_assert_eq!(targets.values().sum::<u64>(), total_ns);
            prop_assert!(targets.keys().all(|cgroup| active.contains(cgroup)));
            // A larger weight never reduces a target.
            if let Some(one) = active.first() {
                let parent = tree.nodes[one].0;
                let mut heavier = tree.clone();
                heavier.insert(*one, parent, Weights::parse("10000"));
                let more = heavier.split(DISK, total_ns, &active);
                prop_assert!(more.get(one).unwrap_or(&0) + 64 >= *targets.get(one).unwrap_or(&0));
            }
        }
    }
}
