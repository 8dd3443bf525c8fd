//! Layers and staging files of the simulated host.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;
use std::path::{Path, PathBuf};

use bulkhead_core::action::LayerAction;
use bulkhead_core::backend::NEW_SUFFIX;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::merge::{Layer, LayerTree};
use bulkhead_core::model::FsKind;
use bulkhead_core::units::Bytes;
use bulkhead_formats::staging::{StagingLayer, StagingState};
use uuid::Uuid;

use super::{FileSystem, World};

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_layer(&mut self, action: &LayerAction) -> Result<bool, Fault> {
        use LayerAction as A;
        Ok(match action {
            A::CreateStagingFile { path, content, base, size_bytes } => {
                let missing = base.filter(|base| !self.below.contains_key(&PathBuf::from(base.to_string())));
                if missing.is_some() {
                    return Err(Fault::new(Code::NotFound, path.display(), "its base is missing"));
                }
                let new = StagingState {
                    content: *content,
                    base: *base,
                    size: *size_bytes,
                    received: Some(Bytes(0)),
                    layer: StagingLayer::Missing,
                };
                let is_new = self.staging_file(path).is_none_or(|staging| staging.layer == StagingLayer::Same);
                if is_new {
                    self.staging_files.insert(path.clone(), new);
                }
                is_new
            }
            A::PublishStagingFile { path, image } => {
                let staging = self.staging_files.get_mut(path).expect("it is being received");
                assert!(staging.received.is_none(), "an incomplete staging file was published");
                let layer = self.below.entry(PathBuf::from(staging.content.to_string()));
                staging.layer =
                    if matches!(layer, Entry::Vacant(_)) { StagingLayer::Same } else { StagingLayer::Other };
                layer.or_insert(staging.base);
                self.below.insert(image.clone(), Some(staging.content));
                let fs = Some(FileSystem::new(FsKind::Ext4, staging.size));
                self.images.insert(image.clone(), (staging.size, fs)).is_none()
            }
            A::RemoveStagingFile { path } => self.staging_files.remove(path).is_some(),
            A::SweepLayers { .. } => {
                self.images.retain(|image, _| image.extension().is_none_or(|extension| extension != NEW_SUFFIX));
                let unused = self.unused_layers();
                self.below.retain(|path, _| !unused.contains(path));
                !unused.is_empty()
            }
            A::SetLayersAside { layers, names, .. } => {
                if !self.layer_tree().has_run(layers) {
                    return Err(Fault::new(Code::InUse, "layers", "another file depends on them"));
                }
                let path = |id: &Uuid| PathBuf::from(id.to_string());
                for (above, (old, new)) in names.iter().zip(layers.iter().zip(names).skip(1)) {
                    let below = self.below.remove(&path(old)).expect("it exists");
                    self.below.insert(path(new), below);
                    self.below.insert(path(above), Some(*new));
                }
                true
            }
            A::MergeLayers { layers, into, cgroup, .. } => {
                assert!(layers.contains(into));
                assert!(cgroup.as_ref().is_none_or(|cgroup| self.cgroups.contains_key(cgroup)));
                true
            }
            A::ReplaceLayers { layers, below, .. } => {
                assert!(self.layer_tree().has_run(layers), "a layer was replaced that something else needs");
                self.below.insert(PathBuf::from(layers[0].to_string()), *below);
                true
            }
        })
    }

    pub(super) fn unused_layers(&self) -> BTreeSet<PathBuf> {
        let mut needed: Vec<Uuid> =
            self.images.keys().filter_map(|image| self.below.get(image).copied().flatten()).collect();
        needed.extend(self.staging_files.values().filter_map(|part| part.base));
        let mut unused: BTreeSet<PathBuf> =
            self.below.keys().filter(|path| !self.images.contains_key(*path)).cloned().collect();
        while let Some(layer) = needed.pop() {
            let path = PathBuf::from(layer.to_string());
            needed.extend(self.below[&path]);
            unused.remove(&path);
        }
        unused
    }

    pub(super) fn layer_tree(&self) -> LayerTree {
        let mut tree = LayerTree::default();
        for (path, below) in &self.below {
            match path.to_str().and_then(|name| Uuid::parse_str(name).ok()) {
                Some(layer) => drop(tree.layers.insert(layer, Layer { parent: *below, bytes: Bytes::mib(2) })),
                None => tree.used.extend(*below),
            }
        }
        tree.used.extend(self.staging_files.values().filter_map(|part| part.base));
        tree
    }

    pub(super) fn staging_file(&self, path: &Path) -> Option<StagingState> {
        let staging = self.staging_files.get(path)?;
        let has_layer = self.below.contains_key(&PathBuf::from(staging.content.to_string()));
        let layer = match staging.layer {
            _ if !has_layer => StagingLayer::Missing,
            StagingLayer::Same => StagingLayer::Same,
            _ => StagingLayer::Other,
        };
        Some(StagingState { layer, ..*staging })
    }
}
