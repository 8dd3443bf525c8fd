//! Image sources of `docker save` and `podman save`: `manifest.json` lists images, each with its image layers in order, which are archives in
//! the same directory. Newer versions also write an OCI layout, which is preferred; for the oldest ones, see `docker/legacy.rs`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::StageOptions;
use crate::choose::{Candidate, Candidates};
use crate::error::{ImageError, ImportError};
use crate::image_layer::{ExpectedDigest, ImageLayer};
use crate::platform::Platform;
use crate::reference;
use crate::store::{Store, digest_hex, format_digest};

mod legacy;
#[cfg(test)]
mod tests;

pub(crate) use legacy::LegacyArchive;

/// The list of images in such an archive.
const MANIFEST: &str = "manifest.json";

/// Limit of images in an archive.
const MAX_IMAGES: usize = 4096;

/// An image in the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

/// The fields of an image configuration that are used.
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

/// A directory with the contents of such an archive.
#[derive(Debug)]
pub(crate) struct DockerArchive {
    pub(crate) store: Store,
    images: Vec<Image>,
}

impl Image {
    /// Its names: tags, and the digest of its configuration. Errors use the first one.
    fn names(&self) -> Vec<String> {
        let mut names = self.repo_tags.clone().unwrap_or_default();
        if let Some(id) = digest_in_name(&self.config) {
            names.push(id);
        }
        if names.is_empty() {
            names.push(self.config.clone());
        }
        names
    }
}

impl DockerArchive {
    /// Opens a directory with the contents of such an archive; returns the store if it contains something else.
    pub(crate) fn open(store: Store) -> Result<Result<Self, Store>, ImportError> {
        if !store.has(MANIFEST) {
            return Ok(Err(store));
        }
        // A tree can contain another file of that name, which can be larger.
        let bytes = match store.read(MANIFEST, &store.file(Path::new(MANIFEST), MANIFEST)?) {
            Err(ImportError::Image { reason: ImageError::TooLarge(_), .. }) => return Ok(Err(store)),
            read => read?,
        };
        match serde_json::from_slice::<Vec<Image>>(&bytes) {
            Ok(images) if images.len() > MAX_IMAGES => Err(store.error(ImageError::TooMany)),
            Ok(images) if !images.is_empty() => Ok(Ok(Self { store, images })),
            _ => Ok(Err(store)),
        }
    }

    /// The layers of the selected image, lowest first.
    pub(crate) fn layers(&self, options: &StageOptions) -> Result<Vec<ImageLayer>, ImportError> {
        let mut images = self.images.clone();
        if let Some(name) = &options.reference {
            images = reference::select(images, Image::names, name).map_err(|reason| self.store.error(reason))?;
        }
        let mut found = Candidates::new();
        for image in images {
            match self.config(&image) {
                Ok((id, mut config)) => {
                    // Configurations before 2014 have no platform.
                    if config.platform.architecture.is_empty() {
                        config.platform = options.platform.clone();
                    }
                    let (name, platform) = (image.names().into_iter().next(), config.platform);
                    let image = (image, config.rootfs.diff_ids);
                    found.add(Candidate { id, name, platform, image }, options);
                }
                // Another image may be selected.
                Err(ImportError::Image { reason: ImageError::Missing(what), .. }) => found.add_missing(what),
                Err(error) => return Err(error),
            }
        }
        let (image, diff_ids) = found.choose(options).map_err(|reason| self.store.error(reason))?;
        self.layers_of(&image, diff_ids)
    }

    /// The configuration of an image, and its digest.
    fn config(&self, image: &Image) -> Result<(String, Config), ImportError> {
        let name = &image.config;
        let bytes = self.store.read(name, &self.store.file(Path::new(name), name)?)?;
        let hasher = Sha256::new_with_prefix(&bytes);
        if let Some(id) = digest_in_name(name) {
            self.store.verify(&id, hasher.clone())?;
        }
        Ok((format_digest(hasher), self.store.parse(name, &bytes)?))
    }

    fn layers_of(&self, image: &Image, diff_ids: Vec<String>) -> Result<Vec<ImageLayer>, ImportError> {
        let paths = image.layers.clone().unwrap_or_default();
        self.store.check_n_layers(paths.len())?;
        if !diff_ids.is_empty() && diff_ids.len() != paths.len() {
            let cause = format!("it has the digests of {} layers, but there are {}", diff_ids.len(), paths.len());
            return Err(self.store.error(ImageError::Document { document: image.config.clone(), cause }));
        }
        let mut digests = diff_ids.into_iter().map(ExpectedDigest::Content);
        let layers = paths.into_iter().map(|path| ImageLayer {
            name: format!("layer {path}"),
            path: PathBuf::from(path),
            digest: digests.next().unwrap_or(ExpectedDigest::Unknown),
        });
        let layers: Vec<ImageLayer> = layers.collect();
        // Missing files are reported before anything is unpacked.
        layers.iter().try_for_each(|layer| self.store.file(&layer.path, &layer.name).map(drop))?;
        Ok(layers)
    }
}

/// The digest in the name of a configuration: `HEX.json`, `sha256:HEX` or `blobs/sha256/HEX`.
fn digest_in_name(config: &str) -> Option<String> {
    let name = config.rsplit('/').next()?;
    let name = name.strip_suffix(".json").unwrap_or(name);
    let id = format!("sha256:{}", name.strip_prefix("sha256:").unwrap_or(name));
    digest_hex(&id).is_some().then_some(id)
}
