//! Layers and staging files: their actions, and the lock that keeps layers from being removed while a file with a backing layer is created.

use std::collections::BTreeSet;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use bulkhead_core::action::LayerAction;
use bulkhead_core::backend::NEW_SUFFIX;
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_formats::layer::{self, LayerError};
use bulkhead_formats::{merge, servers, staging};
use bulkhead_sys::{file, process};

use super::Kernel;
use super::act::Outcome;
use super::faults::{Classify, file as file_object};

/// How long to wait until no layers are being created, and the interval of attempts.
const ALONE_LIMIT: Duration = Duration::from_secs(60);
const ALONE_PAUSE: Duration = Duration::from_millis(50);

impl Kernel {
    pub(super) fn act_on_layer(&self, action: &LayerAction) -> Result<Outcome, Fault> {
        use LayerAction as A;
        match action {
            A::CreateStagingFile { path, content, base, size_bytes } => self.with_new_layers(|| {
                staging::create(path, *content, *base, *size_bytes)
                    .map(Outcome::changed)
                    .map_err(|e| e.fault(file_object(path)))
            }),
            A::PublishStagingFile { path, image } => self.with_new_layers(|| {
                staging::publish(path, image).map_err(|e| e.fault(file_object(path)))?;
                Ok(Outcome::DONE)
            }),
            A::RemoveStagingFile { path } => {
                staging::remove(path).map(Outcome::changed).map_err(|e| e.fault(file_object(path)))
            }
            A::SweepLayers { directory } => Ok(self.sweep_layers(directory)),
            A::SetLayersAside { directory, layers, names } => {
                self.with_layers_locked(directory, || merge::set_aside(directory, layers, names))
            }
            A::MergeLayers { directory, layers, into, .. } => {
                let copied = merge::copy(directory, layers, *into).map_err(|e| e.fault(file_object(directory)))?;
                tracing::info!(directory = %directory.display(), %copied, "merged layers");
                Ok(Outcome::DONE)
            }
            A::ReplaceLayers { directory, layers, into, below } => {
                self.with_layers_locked(directory, || merge::replace(directory, layers, *into, *below))
            }
        }
    }

    /// Runs work that creates a file with a backing layer. No layers are removed meanwhile: a scan of the directory could otherwise find the
    /// layer and miss the file.
    pub(super) fn with_new_layers<T>(&self, work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
        let done = {
            let _making = self.layers.read().unwrap_or_else(PoisonError::into_inner);
            work()
        };
        self.sweep_postponed();
        done
    }

    /// Sweeps the directories that could not be swept while layers were being created.
    fn sweep_postponed(&self) {
        // Not held in the loop, which locks it again.
        let left = mem::take(&mut *self.postponed_sweeps());
        for directory in left {
            self.sweep_layers(&directory);
        }
    }

    /// Marks an image as being created to replace another one, so that it does not count as a leftover while it has no server. The mark
    /// stays until the image is in place or removed.
    pub(super) fn mark_new(&self, path: &Path) {
        if path.extension().is_some_and(|extension| extension == NEW_SUFFIX) {
            self.images_being_created().insert(path.to_owned());
        }
    }

    pub(super) fn unmark_new(&self, path: &Path) {
        self.images_being_created().remove(path);
    }

    fn images_being_created(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.images_being_created.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes unused layers. Postponed while others are being created. A failure only costs space, and
    /// the next sweep tries again.
    pub(super) fn sweep_layers(&self, directory: &Path) -> Outcome {
        let swept = {
            let _alone = match self.layers.try_write() {
                Ok(alone) => alone,
                Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    self.postponed_sweeps().insert(directory.to_owned());
                    return Outcome::UNCHANGED;
                }
            };
            self.sweep(directory)
        };
        // Another sweep was postponed meanwhile, perhaps for layers that became unused after this one's scan.
        if self.postponed_sweeps().remove(directory) {
            self.sweep_layers(directory);
        }
        swept
    }

    fn sweep(&self, directory: &Path) -> Outcome {
        let object = format!("directory {}", directory.display());
        // Including images whose server is gone, and will be replaced.
        let creating = self.images_being_created().clone();
        let served = servers::list(&self.roots)
            .map(|list| list.into_iter().map(|(_, spec)| spec.image).chain(creating).collect());
        let removed =
            served.map_err(|source| file::FileError::io("look for served images in", directory, source).into());
        match removed.and_then(|served: Vec<PathBuf>| layer::sweep(directory, &served)) {
            Ok(removed) => {
                self.conditions.clear(FindingId::LayersNotRemoved, &object);
                Outcome::changed(!removed.is_empty())
            }
            Err(error) => {
                let evidence = format!("layers that are no longer used cannot be removed: {}", chain(&error));
                self.conditions.set(Finding::new(FindingId::LayersNotRemoved, object, evidence));
                Outcome::UNCHANGED
            }
        }
    }

    /// Changes layers while none are being created.
    pub(super) fn with_layers_locked(
        &self,
        directory: &Path,
        work: impl FnOnce() -> Result<(), LayerError>,
    ) -> Result<Outcome, Fault> {
        let give_up = Instant::now() + ALONE_LIMIT;
        let done = loop {
            // Polled, because waiting for the lock would block the creation of layers.
            let _alone = match self.layers.try_write() {
                Ok(alone) => alone,
                Err(TryLockError::Poisoned(alone)) => alone.into_inner(),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                    process::pause(ALONE_PAUSE);
                    continue;
                }
                Err(TryLockError::WouldBlock) => {
                    let cause = "layers were being created there all the time";
                    return Err(Fault::new(Code::InUse, file_object(directory), cause).hint("try again later"));
                }
            };
            break work();
        };
        // Sweeps were postponed meanwhile.
        self.sweep_postponed();
        done.map(|()| Outcome::DONE).map_err(|e| e.fault(file_object(directory)))
    }

    fn postponed_sweeps(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        self.postponed_sweeps.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use bulkhead_core::backend::NEW_SUFFIX;
    use uuid::Uuid;

    use super::*;

    /// A directory with an image that a killed process was creating.
    fn with_leftover() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("{}.{NEW_SUFFIX}", Uuid::from_u128(7)));
        std::fs::write(&path, "").unwrap();
        (dir, path)
    }

    #[test]
    fn a_postponed_sweep_runs_after_the_last_layer_is_created() {
        let ((dir, leftover), kernel) = (with_leftover(), Kernel::host());
        kernel
            .with_new_layers(|| {
                kernel.with_new_layers(|| {
                    assert!(!kernel.sweep_layers(dir.path()).changed);
                    Ok(())
                })?;
                assert!(leftover.exists(), "a layer is still being created");
                Ok(())
            })
            .unwrap();
        assert!(!leftover.exists());
    }

    #[test]
    fn images_being_created_by_this_process_are_not_swept() {
        let ((dir, new), kernel) = (with_leftover(), Kernel::host());
        kernel.mark_new(&new);
        kernel.sweep_layers(dir.path());
        assert!(new.exists());
        kernel.unmark_new(&new);
        kernel.sweep_layers(dir.path());
        assert!(!new.exists());
    }
}
