//! Which layers of a pool can be merged: those on which nothing but the next layer depends.
//!
//! Every snapshot of a volume that was written to adds a layer, and removing the snapshot does not remove the layer:
//! volumes with rotating snapshots would reach [`MAX_LAYERS`](crate::cow::MAX_LAYERS). A run of such layers is merged
//! into its largest one, so that only the data of the others is copied.
//!
//! Crash safety: once a run is set aside, no file can start to depend on one of its layers directly, so each is read
//! only through the layers above it. Blocks of those hide what is copied down from them, and what is copied up into
//! holes was visible there before (docs/formats/layers.md).

use std::collections::BTreeMap;
use std::path::Path;

use uuid::Uuid;

use crate::action::{Action, LayerAction};
use crate::base::is_base;
use crate::cgroup::CgroupPath;
use crate::cow::{MANY_LAYERS, MAX_LAYERS};
use crate::units::Bytes;

/// Length of a run from which on it is merged, so that the data of each snapshot is copied about once.
pub const MERGE_FROM: usize = 8;

/// Length of a backing chain from which on shorter runs are merged as well.
pub const MERGE_ALL_FROM: usize = MANY_LAYERS / 2;

/// A layer in a pool's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its parent layer.
    pub parent: Option<Uuid>,
    /// Its space on disk.
    pub bytes: Bytes,
}

/// The dependencies among layers and files in a pool's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerTree {
    /// The layers.
    pub layers: BTreeMap<Uuid, Layer>,
    /// The layers that images and staging files depend on directly, one entry per file.
    pub used: Vec<Uuid>,
}

/// A chain of layers; nothing depends on any of them except the newest but the next layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// At least two layers, newest first.
    pub layers: Vec<Uuid>,
    /// The largest layer, into which the others are merged.
    pub into: Uuid,
    /// Space of the others on disk: the maximum that is copied.
    pub bytes: Bytes,
    /// The parent of the oldest layer.
    pub parent: Option<Uuid>,
    /// Length of the longest backing chain that contains the run.
    pub depth: usize,
}

impl LayerTree {
    /// All runs, each of maximum length. They contain no bases, which are found by name when the same image is imported
    /// again.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let mut users: BTreeMap<Uuid, (usize, usize)> = BTreeMap::new();
        for parent in self.layers.values().filter_map(|layer| layer.parent) {
            users.entry(parent).or_default().0 += 1;
        }
        for layer in &self.used {
            users.entry(*layer).or_default().1 += 1;
        }
        let can_go = |layer: &Uuid| users.get(layer) == Some(&(1, 0)) && !is_base(*layer);
        // A layer on which nothing depends is removed by the next sweep.
        let tops = self.layers.keys().filter(|layer| users.contains_key(layer) && !can_go(layer));
        let depths = self.depths();
        let with_depth = |run: Run| Run { depth: depths.get(&run.layers[0]).copied().unwrap_or(0), ..run };
        tops.filter_map(|top| self.run_from(*top, can_go)).map(with_depth).collect()
    }

    /// Whether layers are a run, or part of a longer one.
    #[must_use]
    pub fn has_run(&self, layers: &[Uuid]) -> bool {
        !layers.is_empty() && self.runs().iter().any(|run| run.layers.windows(layers.len()).any(|part| part == layers))
    }

    /// For each layer, the length of the longest backing chain that contains it.
    fn depths(&self) -> BTreeMap<Uuid, usize> {
        let mut depths = BTreeMap::new();
        for used in &self.used {
            let parent = |layer: &Uuid| self.layers.get(layer)?.parent;
            let chain: Vec<Uuid> = std::iter::successors(Some(*used), parent).take(MAX_LAYERS).collect();
            for layer in &chain {
                let depth = depths.entry(*layer).or_default();
                *depth = chain.len().max(*depth);
            }
        }
        depths
    }

    /// The run with this newest layer. The loop ends, because each further layer has only one child.
    fn run_from(&self, top: Uuid, can_go: impl Fn(&Uuid) -> bool) -> Option<Run> {
        let mut layers = vec![top];
        let mut parent = self.layers.get(&top)?.parent;
        while let Some(next) = parent.filter(&can_go) {
            let Some(layer) = self.layers.get(&next) else { break };
            layers.push(next);
            parent = layer.parent;
        }
        let bytes = |layer: &Uuid| self.layers.get(layer).map_or(0, |layer| layer.bytes.0);
        let into = *layers.iter().max_by_key(|layer| bytes(layer)).filter(|_| layers.len() > 1)?;
        let all: u64 = layers.iter().map(bytes).sum();
        Some(Run { into, bytes: Bytes(all - bytes(&into)), parent, layers, depth: 0 })
    }
}

impl Run {
    /// Whether it should be merged: it is long, or limits further snapshots.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.layers.len() >= MERGE_FROM || self.depth >= MERGE_ALL_FROM
    }

    /// The run with new names for all but the newest layer, so that streams and stored names no longer find the others.
    /// `new_name` generates a name.
    #[must_use]
    pub fn renamed(&self, new_name: impl FnMut() -> Uuid) -> Self {
        let Some((top, others)) = self.layers.split_first() else { return self.clone() };
        let names: Vec<Uuid> = std::iter::repeat_with(new_name).take(others.len()).collect();
        let is_into = |n: usize| others.get(n) == Some(&self.into);
        let into = (0..others.len()).find(|n| is_into(*n)).and_then(|n| names.get(n).copied());
        let layers = std::iter::once(*top).chain(names).collect();
        Self { layers, into: into.unwrap_or(self.into), ..self.clone() }
    }

    /// The steps that merge it. They fail, without any change, if the layers with these names are not such a run any
    /// more. An interruption within or after any step leaves the content of all dependent files unchanged. `apart` is
    /// [`Run::renamed`]; the copying process joins `cgroup`.
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
                below: self.parent,
            }),
            Action::Layer(LayerAction::SweepLayers { directory }),
        ]
    }
}

#[cfg(test)]
mod tests;
