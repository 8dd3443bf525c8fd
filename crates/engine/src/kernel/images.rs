//! Image files: their actions, and look-ups of them, of their layers and of staging files.

use std::path::Path;
use std::time::Duration;

use bulkhead_core::action::{DeviceRef, ImageAction};
use bulkhead_core::cow::LayersView;
use bulkhead_core::error::Fault;
use bulkhead_core::merge::LayerTree;
use bulkhead_core::units::Bytes;
use bulkhead_formats::staging::StagingState;
use bulkhead_formats::{layer, merge, staging};
use bulkhead_sys::{block, file, image};

use super::Kernel;
use super::act::Outcome;
use super::faults::{Classify, file as file_object};
use super::state::remove_file;
use crate::host::Images;

impl Kernel {
    pub(super) fn act_on_image(&self, action: &ImageAction) -> Result<Outcome, Fault> {
        use ImageAction as A;
        match action {
            A::CreateImage { path, size_bytes, provision } => {
                image::create(path, *size_bytes, *provision).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }
            A::GrowImage { path, size_bytes, provision } => {
                layer::mask_layers_beyond_end(path, *size_bytes).map_err(|e| e.fault(file_object(path)))?;
                let old = image::grow(path, *size_bytes, *provision).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome { old: Some(old.to_string()), changed: old < *size_bytes, ..Outcome::DONE })
            }
            A::ShrinkImage { path, size_bytes } => {
                let old = image::shrink(path, *size_bytes).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome { old: Some(old.to_string()), changed: old > *size_bytes, ..Outcome::DONE })
            }
            A::RemoveImage { path } => {
                let removed = remove_file(path)?;
                self.unmark_new(path);
                Ok(removed)
            }
            A::CreateLayer { image, volume, layer } => {
                self.with_new_layers(|| self.create_layer(image, *volume, *layer))
            }
            A::CopyImage { path, of } => self.with_new_layers(|| {
                self.mark_new(path);
                layer::create_with_backing_of(path, of).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }),
            A::ReplaceImage { path, by } => self.with_new_layers(|| {
                let replaced = layer::replace(path, by).map_err(|e| e.fault(file_object(path)))?;
                self.unmark_new(by);
                Ok(Outcome::changed(replaced))
            }),
        }
    }
}

impl Images for Kernel {
    fn image_size(&self, image: &Path) -> Result<Option<Bytes>, Fault> {
        match std::fs::metadata(image) {
            Ok(found) => Ok(Some(Bytes(found.len()))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(file::FileError::io("stat", image, source).fault(format!("file {}", image.display()))),
        }
    }

    fn layers(&self, device: &DeviceRef) -> Result<Option<LayersView>, Fault> {
        match device {
            // A thin volume has no layers: its pool shares blocks by itself. One that is not active has no node.
            DeviceRef::Image { image, .. }
                if image.starts_with("/dev") && (!image.exists() || block::devno_of(image).is_ok()) =>
            {
                Ok(None)
            }
            DeviceRef::Image { image, .. } => layer::space(image).map_err(|e| e.fault(file_object(image))),
            DeviceRef::Lv { .. } => Ok(None),
        }
    }

    fn layer_tree(&self, directory: &Path) -> Result<LayerTree, Fault> {
        merge::tree(directory).map_err(|e| e.fault(file_object(directory)))
    }

    fn staging_file(&self, path: &Path) -> Result<Option<StagingState>, Fault> {
        staging::state(path).map_err(|e| e.fault(file_object(path)))
    }

    fn staging_file_is_abandoned(&self, path: &Path, for_at_least: Duration) -> Result<bool, Fault> {
        staging::is_abandoned(path, for_at_least).map_err(|e| e.fault(file_object(path)))
    }
}
