//! Which layers of a pool can be merged, since each of them is needed by nothing but the next one.
//!
//! Every snapshot of a volume that was written to adds a layer, and removing the snapshot does not take it away: volumes whose
//! snapshots rotate would reach [`MAX_LAYERS`](crate::cow::MAX_LAYERS). A run of such layers is merged into its largest member, so
//! that no more than the data of the others is copied.
//!
//! Crash safety: nothing can come to lie on a member once the run has been set apart, so all that sees a member sees it through the
//! layers above it. What those have hides what is copied down from them, and what is copied up into holes was seen there before.
//! (docs/formats/layers.md)

use std::collections::BTreeMap;
use std::path::Path;

use uuid::Uuid;

use crate::action::{Action, LayerAction};
use crate::base::is_base;
use crate::cgroup::CgroupPath;
use crate::cow::{MANY_LAYERS, MAX_LAYERS};
use crate::units::Bytes;

/// Layers of a run from which on it is merged, so that the data of each snapshot is copied about once.
pub const MERGE_FROM: usize = 8;

/// Layers below an image from which on shorter runs are merged as well.
pub const MERGE_ALL_FROM: usize = MANY_LAYERS / 2;

/// A layer in a pool's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The layer that it lies on.
    pub below: Option<Uuid>,
    /// What it takes on the disk.
    pub bytes: Bytes,
}

/// What lies on what in a pool's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerTree {
    /// The layers.
    pub layers: BTreeMap<Uuid, Layer>,
    /// What images, and files that may become images or layers, lie on: one entry for each of them.
    pub needed: Vec<Uuid>,
}

/// Layers that lie on one another, of which all but the newest are needed by nothing but the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// At least two, the newest first.
    pub layers: Vec<Uuid>,
    /// The largest of them, into which the others are merged.
    pub into: Uuid,
    /// What the others take on the disk: the most that is copied.
    pub bytes: Bytes,
    /// The layer that the oldest lies on.
    pub below: Option<Uuid>,
    /// The most layers that any file lies on which lies on these.
    pub depth: usize,
}

impl LayerTree {
    /// All runs, each as long as it can be. Bases are in none: importing the same image again finds them by their names.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let mut users: BTreeMap<Uuid, (usize, usize)> = BTreeMap::new();
        for below in self.layers.values().filter_map(|layer| layer.below) {
            users.entry(below).or_default().0 += 1;
        }
        for needed in &self.needed {
            users.entry(*needed).or_default().1 += 1;
        }
        let can_go = |layer: &Uuid| users.get(layer) == Some(&(1, 0)) && !is_base(*layer);
        // What nothing lies on is removed with the next sweep.
        let tops = self.layers.keys().filter(|layer| users.contains_key(layer) && !can_go(layer));
        let depths = self.depths();
        let with_depth = |run: Run| Run { depth: depths.get(&run.layers[0]).copied().unwrap_or(0), ..run };
        tops.filter_map(|top| self.run_from(*top, can_go)).map(with_depth).collect()
    }

    /// Whether layers are a run, or a part of a longer one: then all but the newest of them are needed by nothing but the next.
    #[must_use]
    pub fn has_run(&self, layers: &[Uuid]) -> bool {
        !layers.is_empty() && self.runs().iter().any(|run| run.layers.windows(layers.len()).any(|part| part == layers))
    }

    /// For each layer, how many layers there are at most below a file that lies on it.
    fn depths(&self) -> BTreeMap<Uuid, usize> {
        let mut depths = BTreeMap::new();
        for needed in &self.needed {
            let below = |layer: &Uuid| self.layers.get(layer)?.below;
            let chain: Vec<Uuid> = std::iter::successors(Some(*needed), below).take(MAX_LAYERS).collect();
            for layer in &chain {
                let depth = depths.entry(*layer).or_default();
                *depth = chain.len().max(*depth);
            }
        }
        depths
    }

    /// The run of which a layer is the newest. It ends, because each layer in it has one layer above it alone.
    fn run_from(&self, top: Uuid, can_go: impl Fn(&Uuid) -> bool) -> Option<Run> {
        let mut layers = vec![top];
        let mut below = self.layers.get(&top)?.below;
        while let Some(next) = below.filter(&can_go) {
            let Some(layer) = self.layers.get(&next) else { break };
            layers.push(next);
            below = layer.below;
        }
        let bytes = |layer: &Uuid| self.layers.get(layer).map_or(0, |layer| layer.bytes.0);
        let into = *layers.iter().max_by_key(|layer| bytes(layer)).filter(|_| layers.len() > 1)?;
        let all: u64 = layers.iter().map(bytes).sum();
        Some(Run { into, bytes: Bytes(all - bytes(&into)), below, layers, depth: 0 })
    }
}

impl Run {
    /// Whether it is long enough to be worth copying, or in the way of further snapshots.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.layers.len() >= MERGE_FROM || self.depth >= MERGE_ALL_FROM
    }

    /// The run under names that nobody knows, but for the newest layer: a stream or a stored name that meant one of the others does
    /// not find it any more. `new_name` makes one.
    #[must_use]
    pub fn renamed(&self, new_name: impl FnMut() -> Uuid) -> Self {
        let Some((top, others)) = self.layers.split_first() else { return self.clone() };
        let names: Vec<Uuid> = std::iter::repeat_with(new_name).take(others.len()).collect();
        let is_into = |n: usize| others.get(n) == Some(&self.into);
        let into = (0..others.len()).find(|n| is_into(*n)).and_then(|n| names.get(n).copied());
        let layers = std::iter::once(*top).chain(names).collect();
        Self { layers, into: into.unwrap_or(self.into), ..self.clone() }
    }

    /// The steps that merge it; of another run of the same names they do nothing but fail. Cut off after any of them, or within one, all
    /// that lies on the run holds what it held. `apart` is [`Run::renamed`]; what copies joins `cgroup`.
    #[must_use]
    pub fn merge(&self, apart: &Run, directory: &Path, cgroup: Option<CgroupPath>) -> Vec<Action> {
        let directory = directory.to_owned();
        let layers = apart.layers.clone();
        vec![
            Action::Layer(LayerAction::SetLayersAside {
                directory: directory.clone(),
                layers: self.layers.clone(),
                names: layers.clone(),
            }),
            Action::Layer(LayerAction::MergeLayers {
                directory: directory.clone(),
                layers: layers.clone(),
                into: apart.into,
                cgroup,
            }),
            Action::Layer(LayerAction::ReplaceLayers {
                directory: directory.clone(),
                layers,
                into: apart.into,
                below: self.below,
            }),
            Action::Layer(LayerAction::SweepLayers { directory }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::IMPORTING;

    const fn id(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn tree(layers: &[(Uuid, Option<Uuid>, u64)], needed: &[Uuid]) -> LayerTree {
        let layers = layers.iter().map(|&(id, below, bytes)| (id, Layer { below, bytes: Bytes(bytes) }));
        LayerTree { layers: layers.collect(), needed: needed.to_vec() }
    }

    #[test]
    fn a_run_is_what_nothing_else_needs() {
        // 5 to 1, and an image on 5: all of it.
        let chain: Vec<_> =
            (1..=5).map(|n| (id(n), (n > 1).then(|| id(n - 1)), 10 * u64::try_from(n).unwrap())).collect();
        let whole =
            Run { layers: [5, 4, 3, 2, 1].map(id).to_vec(), into: id(5), bytes: Bytes(100), below: None, depth: 5 };
        assert_eq!(tree(&chain, &[id(5)]).runs(), [whole]);
        // A snapshot on 3, and a clone beside it: what is above and what is below.
        let runs = tree(&chain, &[id(5), id(3), id(3)]).runs();
        assert_eq!(
            runs.iter().map(|run| run.layers.clone()).collect::<Vec<_>>(),
            [[3, 2, 1].map(id).to_vec(), [5, 4].map(id).to_vec()]
        );
        assert_eq!(runs.iter().map(|run| run.below).collect::<Vec<_>>(), [None, Some(id(3))]);
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
        // Nothing lies on 5: it goes with all below it.
        assert_eq!(tree(&chain, &[]).runs(), []);
        assert_eq!(tree(&[], &[id(1)]).runs(), []);
    }

    #[test]
    fn a_run_is_due_when_it_is_long_or_much_lies_on_it() {
        let chain = |n: u128| (1..=n).map(|n| (id(n), (n > 1).then(|| id(n - 1)), 1)).collect::<Vec<_>>();
        let due = |n: u128, needed: &[u128]| {
            let needed: Vec<Uuid> = needed.iter().map(|n| id(*n)).collect();
            tree(&chain(n), &needed).runs().iter().map(Run::is_due).collect::<Vec<_>>()
        };
        assert_eq!((due(7, &[7]), due(8, &[8])), (vec![false], vec![true]));
        // Every second one is a snapshot's.
        let snapshots = |n: u128| (1..=n / 2).map(|n| 2 * n).collect::<Vec<_>>();
        assert!(due(30, &snapshots(30)).iter().all(|due| !due));
        assert!(due(32, &snapshots(32)).iter().all(|due| *due));
    }

    #[test]
    fn a_base_stays_what_it_is() {
        let base = IMPORTING;
        let found = tree(&[(base, None, 1000), (id(1), Some(base), 5), (id(2), Some(id(1)), 6)], &[id(2)]).runs();
        assert_eq!(
            found,
            [Run { layers: vec![id(2), id(1)], into: id(2), bytes: Bytes(5), below: Some(base), depth: 3 }]
        );
    }

    #[test]
    fn what_lies_on_itself_or_on_nothing_known_is_left_alone() {
        let ring = tree(&[(id(1), Some(id(2)), 1), (id(2), Some(id(1)), 1)], &[]);
        assert_eq!(ring.runs(), []);
        let with_user = LayerTree { needed: vec![id(1)], ..ring };
        assert!(with_user.runs().iter().all(|run| run.layers.len() <= 2));
        assert_eq!(tree(&[(id(2), Some(id(1)), 1)], &[id(2)]).runs(), []);
    }

    #[test]
    fn all_but_the_newest_get_other_names() {
        let run = Run { layers: [3, 2, 1].map(id).to_vec(), into: id(1), bytes: Bytes(0), below: None, depth: 3 };
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
}
