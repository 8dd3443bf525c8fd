//! Image files of the simulated host.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_core::action::{DeviceRef, ImageAction};
use bulkhead_core::cow::{LayerView, LayersView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::merge::LayerTree;
use bulkhead_core::model::Provision;
use bulkhead_core::units::Bytes;
use bulkhead_formats::staging::StagingState;

use super::{Sim, World};
use crate::host::Images;

impl World {
    /// Returns whether anything changed.
    pub(super) fn act_on_image(&mut self, action: &ImageAction) -> Result<bool, Fault> {
        use ImageAction as A;
        Ok(match action {
            A::CreateImage { path, size_bytes, provision } => {
                if self.images.contains_key(path) {
                    return Err(Fault::new(Code::AlreadyExists, path.display(), "it already exists"));
                }
                if *provision == Provision::Full {
                    self.written.insert(path.clone());
                }
                self.images.insert(path.clone(), (*size_bytes, None)).is_none()
            }
            A::GrowImage { path, size_bytes, .. } => {
                let (size, _) = self.images.get_mut(path).expect("the image exists");
                let larger = (*size).max(*size_bytes);
                std::mem::replace(size, larger) < *size_bytes
            }
            A::ShrinkImage { path, size_bytes } => {
                let (size, fs) = self.images.get_mut(path).expect("the image exists");
                Self::resize_under(fs.as_ref(), *size_bytes);
                assert!(self.shown.get(path).is_none_or(|shown| shown <= size_bytes), "a tenant's data was cut off");
                let smaller = (*size).min(*size_bytes);
                std::mem::replace(size, smaller) > *size_bytes
            }
            A::RemoveImage { path } => {
                assert!(!self.attached.contains_key(path), "an attached image was removed");
                self.below.remove(path);
                self.empty.remove(path);
                self.written.remove(path);
                self.shown.remove(path);
                self.images.remove(path).is_some()
            }
            A::CreateLayer { image, layer, .. } => {
                assert!(self.images.contains_key(image), "a missing image became a layer");
                let path = PathBuf::from(layer.to_string());
                if !self.empty.insert(image.clone()) {
                    return Ok(false);
                }
                let was_below = self.below.insert(image.clone(), Some(*layer));
                self.below.insert(path, was_below.flatten());
                true
            }
            A::CopyImage { path, of } => {
                let on = self.below.get(of).copied().flatten();
                assert!(on.is_some(), "an image without layers was copied");
                let copy = self.images[of].clone();
                self.empty.insert(path.clone());
                self.below.insert(path.clone(), on);
                self.images.insert(path.clone(), copy).is_none()
            }
            A::ReplaceImage { path, by } => {
                assert!(
                    ![path, by].iter().any(|image| self.attached.contains_key(*image)),
                    "a served image was replaced"
                );
                let Some(image) = self.images.remove(by) else { return Ok(false) };
                self.empty.remove(by);
                self.empty.remove(path);
                let below = self.below.remove(by).expect("the replacement of an image has a backing layer");
                self.below.insert(path.clone(), below);
                self.images.insert(path.clone(), image).is_some()
            }
        })
    }
}

impl Images for Sim {
    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault> {
        Ok(self.world().images.get(image).map(|(size, _)| *size))
    }

    fn layers(&self, device: &DeviceRef) -> Result<Option<LayersView>, Fault> {
        let DeviceRef::Image { image, .. } = device else { return Ok(None) };
        let world = self.world();
        let Some(mut next) = world.below.get(image).copied() else { return Ok(None) };
        let mut below = Vec::new();
        while let Some(id) = next {
            below.push(LayerView { id, bytes: Bytes::mib(2) });
            next = world.below[&PathBuf::from(id.to_string())];
        }
        Ok(Some(LayersView { own_bytes: Bytes::mib(1), below }))
    }

    fn layer_tree(&self, _directory: &Path) -> Result<LayerTree, Fault> {
        Ok(self.world().layer_tree())
    }

    fn staging_file(&self, path: &Path) -> Result<Option<StagingState>, Fault> {
        Ok(self.world().staging_file(path))
    }

    fn staging_file_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault> {
        // Here no process has one open, and no time passes.
        Ok(for_at_least.is_zero() && self.world().staging_files.contains_key(path))
    }
}
