use super::*;
use crate::base::IMPORTING;

const fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn tree(layers: &[(Uuid, Option<Uuid>, u64)], used: &[Uuid]) -> LayerTree {
    let layers = layers.iter().map(|&(id, parent, bytes)| (id, Layer { parent, bytes: Bytes(bytes) }));
    LayerTree { layers: layers.collect(), used: used.to_vec() }
}

#[test]
fn a_run_has_no_dependants_but_the_next_layer() {
    // Layers 5 to 1, and an image on 5: the whole chain.
    let chain: Vec<_> = (1..=5).map(|n| (id(n), (n > 1).then(|| id(n - 1)), 10 * u64::try_from(n).unwrap())).collect();
    let whole =
        Run { layers: [5, 4, 3, 2, 1].map(id).to_vec(), into: id(5), bytes: Bytes(100), parent: None, depth: 5 };
    assert_eq!(tree(&chain, &[id(5)]).runs(), [whole]);
    // A snapshot and a clone on 3: one run above and one below.
    let runs = tree(&chain, &[id(5), id(3), id(3)]).runs();
    assert_eq!(
        runs.iter().map(|run| run.layers.clone()).collect::<Vec<_>>(),
        [[3, 2, 1].map(id).to_vec(), [5, 4].map(id).to_vec()]
    );
    assert_eq!(runs.iter().map(|run| run.parent).collect::<Vec<_>>(), [None, Some(id(3))]);
    // Another layer on 2.
    let mut forked = chain.clone();
    forked.push((id(9), Some(id(2)), 1));
    let runs = tree(&forked, &[id(5), id(9)]).runs();
    assert_eq!(
        runs.iter().map(|run| run.layers.clone()).collect::<Vec<_>>(),
        [[2, 1].map(id).to_vec(), [5, 4, 3].map(id).to_vec()]
    );
    // While a run is merged, a snapshot is made, and one below it removed.
    assert!(tree(&chain, &[id(5)]).has_run(&[4, 3, 2].map(id)));
    assert!(!tree(&chain, &[id(5), id(3)]).has_run(&[4, 3, 2].map(id)));
    assert!(!tree(&chain, &[id(5)]).has_run(&[4, 2].map(id)) && !tree(&chain, &[id(5)]).has_run(&[]));
    // Nothing depends on 5: the sweep removes the whole chain.
    assert_eq!(tree(&chain, &[]).runs(), []);
    assert_eq!(tree(&[], &[id(1)]).runs(), []);
}

#[test]
fn a_run_is_due_when_it_or_its_backing_chain_is_long() {
    let chain = |n: u128| (1..=n).map(|n| (id(n), (n > 1).then(|| id(n - 1)), 1)).collect::<Vec<_>>();
    let due = |n: u128, needed: &[u128]| {
        let needed: Vec<Uuid> = needed.iter().map(|n| id(*n)).collect();
        tree(&chain(n), &needed).runs().iter().map(Run::is_due).collect::<Vec<_>>()
    };
    assert_eq!((due(7, &[7]), due(8, &[8])), (vec![false], vec![true]));
    // Every second layer has a snapshot.
    let snapshots = |n: u128| (1..=n / 2).map(|n| 2 * n).collect::<Vec<_>>();
    assert!(due(30, &snapshots(30)).iter().all(|due| !due));
    assert!(due(32, &snapshots(32)).iter().all(|due| *due));
}

#[test]
fn a_base_is_never_merged() {
    let base = IMPORTING;
    let found = tree(&[(base, None, 1000), (id(1), Some(base), 5), (id(2), Some(id(1)), 6)], &[id(2)]).runs();
    assert_eq!(found, [Run { layers: vec![id(2), id(1)], into: id(2), bytes: Bytes(5), parent: Some(base), depth: 3 }]);
}

#[test]
fn cyclic_and_dangling_layers_are_left_alone() {
    let ring = tree(&[(id(1), Some(id(2)), 1), (id(2), Some(id(1)), 1)], &[]);
    assert_eq!(ring.runs(), []);
    let with_user = LayerTree { used: vec![id(1)], ..ring };
    assert!(with_user.runs().iter().all(|run| run.layers.len() <= 2));
    assert_eq!(tree(&[(id(2), Some(id(1)), 1)], &[id(2)]).runs(), []);
}

#[test]
fn all_layers_but_the_newest_get_new_names() {
    let run = Run { layers: [3, 2, 1].map(id).to_vec(), into: id(1), bytes: Bytes(0), parent: None, depth: 3 };
    let mut n = 70;
    let apart = run.renamed(|| {
        n += 1;
        id(n)
    });
    assert_eq!((apart.layers.clone(), apart.into), ([3, 71, 72].map(id).to_vec(), id(72)));
    let run = Run { into: id(3), ..run };
    assert_eq!(run.renamed(Uuid::nil).into, id(3));
    let words: Vec<String> = run.merge(&apart, Path::new("/p"), None).iter().map(ToString::to_string).collect();
    assert_eq!(words.len(), 4);
    assert!(words[1].contains("merge 3 layers"), "{words:?}");
}
