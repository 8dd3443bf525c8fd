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
