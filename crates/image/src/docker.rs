//! Image sources of `docker save` and `podman save`: `manifest.json` lists images, each with its image layers in order, which are archives
//! beside it. Newer ones are OCI layouts as well, and read as such; the oldest ones are in `docker/legacy.rs`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::Wanted;
use crate::choose::{Candidate, Found};
use crate::error::{ImageError, ImportError};
use crate::image_layer::{ImageLayer, Known};
use crate::platform::Platform;
use crate::reference;
use crate::store::{Store, digest, hex_of};

mod legacy;
#[cfg(test)]
mod tests;

pub(crate) use legacy::Legacy;

/// Where such an archive says what is in it.
const MANIFEST: &str = "manifest.json";

/// The most images of an archive that are looked at.
const MAX_IMAGES: usize = 4096;

/// An image of an archive.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

/// What is read of a configuration.
#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Platform,
    #[serde(default)]
    rootfs: RootFs,
}

#[derive(Default, Deserialize)]
struct RootFs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// A directory with what such an archive holds.
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) store: Store,
    images: Vec<Image>,
}

impl Image {
    /// Its names, the first for errors: its tags, or else the digest of its configuration.
    fn names(&self) -> Vec<String> {
        let mut names = self.repo_tags.clone().unwrap_or_default();
        if let Some(id) = id(&self.config) {
            names.push(id);
        }
        if names.is_empty() {
            names.push(self.config.clone());
        }
        names
    }
}

impl Saved {
    /// Opens a directory that holds such an archive; gives it back if it holds something else.
    pub(crate) fn open(store: Store) -> Result<Result<Self, Store>, ImportError> {
        if !store.has(MANIFEST) {
            return Ok(Err(store));
        }
        // Another document of that name may be part of a tree, and larger.
        let bytes = match store.read(MANIFEST, &store.file(Path::new(MANIFEST), MANIFEST)?) {
            Err(ImportError::Image { reason: ImageError::TooLarge(_), .. }) => return Ok(Err(store)),
            read => read?,
        };
        match serde_json::from_slice::<Vec<Image>>(&bytes) {
            Ok(images) if images.len() > MAX_IMAGES => Err(store.wrong(ImageError::TooMany)),
            Ok(images) if !images.is_empty() => Ok(Ok(Self { store, images })),
            _ => Ok(Err(store)),
        }
    }

    /// The layers of the image that is wanted, the lowest first.
    pub(crate) fn layers(&self, wanted: &Wanted) -> Result<Vec<ImageLayer>, ImportError> {
        let mut images = self.images.clone();
        if let Some(name) = &wanted.reference {
            images = reference::pick(images, Image::names, name).map_err(|reason| self.store.wrong(reason))?;
        }
        let mut found = Found::new();
        for image in images {
            match self.config(&image) {
                Ok((id, mut config)) => {
                    // Configurations from before 2014 have none.
                    if config.platform.architecture.is_empty() {
                        config.platform = wanted.platform.clone();
                    }
                    let (name, platform) = (image.names().into_iter().next(), config.platform);
                    let image = (image, config.rootfs.diff_ids);
                    found.add(Candidate { id, name, platform, image }, wanted);
                }
                // Another may be meant.
                Err(ImportError::Image { reason: ImageError::Missing(what), .. }) => found.add_missing(what),
                Err(error) => return Err(error),
            }
        }
        let (image, diff_ids) = found.choose(wanted).map_err(|reason| self.store.wrong(reason))?;
        self.layers_of(&image, diff_ids)
    }

    /// The configuration of an image, and its digest.
    fn config(&self, image: &Image) -> Result<(String, Config), ImportError> {
        let name = &image.config;
        let bytes = self.store.read(name, &self.store.file(Path::new(name), name)?)?;
        let hasher = Sha256::new_with_prefix(&bytes);
        if let Some(id) = id(name) {
            self.store.verify(&id, hasher.clone())?;
        }
        Ok((digest(hasher), self.store.parse(name, &bytes)?))
    }

    fn layers_of(&self, image: &Image, diff_ids: Vec<String>) -> Result<Vec<ImageLayer>, ImportError> {
        let paths = image.layers.clone().unwrap_or_default();
        self.store.check_number(paths.len())?;
        if !diff_ids.is_empty() && diff_ids.len() != paths.len() {
            let cause = format!("it has digests of {} layers, and there are {}", diff_ids.len(), paths.len());
            return Err(self.store.wrong(ImageError::Document { document: image.config.clone(), cause }));
        }
        let mut digests = diff_ids.into_iter().map(Known::Content);
        let layers = paths.into_iter().map(|path| ImageLayer {
            name: format!("layer {path}"),
            path: PathBuf::from(path),
            digest: digests.next().unwrap_or(Known::Nothing),
        });
        let layers: Vec<ImageLayer> = layers.collect();
        // Missing files are reported before anything is unpacked.
        layers.iter().try_for_each(|layer| self.store.file(&layer.path, &layer.name).map(drop))?;
        Ok(layers)
    }
}

/// The digest that the name of a configuration tells: `HEX.json`, `sha256:HEX` or `blobs/sha256/HEX`.
fn id(config: &str) -> Option<String> {
    let name = config.rsplit('/').next()?;
    let name = name.strip_suffix(".json").unwrap_or(name);
    let id = format!("sha256:{}", name.strip_prefix("sha256:").unwrap_or(name));
    hex_of(&id).is_some().then_some(id)
}
