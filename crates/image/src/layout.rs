//! Parser of OCI image layouts: the selected image and its image layers. Every blob is verified before its contents are used.
//!
//! Only a few fields of three documents are read. What an index lists and the selection cannot be need not exist: `docker save --platform`,
//! mirrors and kind keep an index that lists more images than there are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::Wanted;
use crate::choose::{Candidate, Found};
use crate::error::{ImageError, ImportError, failed, shown};
use crate::image_layer::{ImageLayer, Known};
use crate::platform::Platform;
use crate::reference;
use crate::store::{Store, hex_of};

#[cfg(test)]
mod tests;

/// Bytes of all documents that are read to find an image. Those of a registry's image for all its platforms have some 100 KiB.
const MAX_DOCUMENTS: u64 = 64 << 20;

/// How deep indexes may be nested.
const MAX_DEPTH: u32 = 4;

/// The annotations that name an image of a layout: in full, as containerd writes it, and in any way, which is often the tag alone.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The annotation that says what a manifest is which is no image, and what it has for an attestation.
const REFERENCE_TYPE: (&str, &str) = ("vnd.docker.reference.type", "attestation-manifest");

/// What tells that a directory is a layout.
pub(crate) const MARKER: &str = "oci-layout";

/// Where a layout says what is in it.
pub(crate) const INDEX: &str = "index.json";

/// What a blob is, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

/// A document that is an index or a manifest, whatever it was called.
#[derive(Deserialize)]
#[serde(untagged)]
enum Document {
    Index(Index),
    Manifest(Manifest),
    Other(serde::de::IgnoredAny),
}

/// A directory with an OCI image layout.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) store: Store,
}

/// What was found so far, and how much may be read to find more.
struct Search<'a> {
    wanted: &'a Wanted,
    found: Found<Vec<Descriptor>>,
    /// Visited digests, with the platforms of their descriptors.
    seen: BTreeSet<(String, Option<String>)>,
    /// Bytes of documents.
    left: u64,
}

impl Descriptor {
    /// Its names, the first for errors.
    fn names(&self) -> impl Iterator<Item = String> {
        NAMES.iter().filter_map(|name| self.annotations.get(*name).cloned())
    }

    /// Its platform, if it has one and can be an image.
    fn platform(&self) -> Option<&Platform> {
        let is_index = self.media_type.contains("image.index") || self.media_type.contains("manifest.list");
        self.platform.as_ref().filter(|platform| !is_index && !platform.architecture.is_empty())
    }

    fn is_attestation(&self) -> bool {
        let (annotation, value) = REFERENCE_TYPE;
        self.annotations.get(annotation).is_some_and(|found| found == value)
            || self.platform().is_some_and(Platform::is_unknown)
    }
}

impl Layout {
    /// Opens a directory that is a layout; gives it back if it is something else.
    pub(crate) fn open(store: Store) -> Result<Self, Store> {
        if [MARKER, INDEX].iter().all(|name| store.has(name)) { Ok(Self { store }) } else { Err(store) }
    }

    /// The layers of the image that is wanted, the lowest first.
    pub(crate) fn layers(&self, wanted: &Wanted) -> Result<Vec<ImageLayer>, ImportError> {
        let index: Index =
            self.store.parse(INDEX, &self.store.read(INDEX, &self.store.file(Path::new(INDEX), INDEX)?)?)?;
        let mut tops = index.manifests;
        if let Some(name) = &wanted.reference {
            let names = |top: &Descriptor| top.names().chain([top.digest.clone()]).collect();
            tops = reference::pick(tops, names, name).map_err(|reason| self.store.wrong(reason))?;
        }
        let mut search = Search { wanted, found: Found::new(), seen: BTreeSet::new(), left: MAX_DOCUMENTS };
        for top in &tops {
            self.images(top, top.names().next().as_deref(), 0, &mut search)?;
        }
        self.check_layers(&search.found.choose(wanted).map_err(|reason| self.store.wrong(reason))?)
    }

    /// Opens a blob, to be verified by who reads it.
    fn blob(&self, descriptor: &Descriptor) -> Result<File, ImportError> {
        let digest = &descriptor.digest;
        let hex = hex_of(digest).ok_or_else(|| self.store.wrong(ImageError::BadDigest(shown(digest.as_bytes()))))?;
        let file = self.store.file(&blob_path(hex), digest)?;
        let found = file.metadata().map_err(failed("look at a blob of", Path::new(digest)))?.len();
        if found != descriptor.size {
            let wanted = descriptor.size;
            return Err(self.store.wrong(ImageError::WrongSize { digest: digest.clone(), wanted, found }));
        }
        Ok(file)
    }

    /// Finds all images that a descriptor leads to. What cannot be the one is not opened.
    fn images(
        &self,
        from: &Descriptor,
        name: Option<&str>,
        depth: u32,
        search: &mut Search<'_>,
    ) -> Result<(), ImportError> {
        if depth > MAX_DEPTH {
            return Err(self.store.wrong(ImageError::Depth));
        }
        let is_new = search.seen.insert((from.digest.clone(), from.platform.as_ref().map(Platform::to_string)));
        if !is_new || from.is_attestation() {
            return Ok(());
        }
        if let Some(platform) = from.platform().filter(|found| search.wanted.platform.rank(found).is_none()) {
            if self.blob(from).is_ok() {
                search.found.add_other(platform);
            }
            return Ok(());
        }
        let Some(document) = self.present(from, search)? else { return Ok(()) };
        match document {
            Document::Index(index) => {
                index.manifests.iter().try_for_each(|inner| self.images(inner, name, depth + 1, search))
            }
            Document::Manifest(manifest) => {
                let is_image = |kind: &str| kind.contains(".image.config.") || kind.contains(".container.image.v1");
                // Signatures, attestations and charts are kept in the same way.
                if !is_image(&manifest.config.media_type) {
                    return Ok(());
                }
                let platform = match from.platform() {
                    Some(platform) => platform.clone(),
                    None => match self.present(&manifest.config, search)? {
                        Some(platform) => platform,
                        None => return Ok(()),
                    },
                };
                let (id, name, image) = (from.digest.clone(), name.map(str::to_owned), manifest.layers);
                search.found.add(Candidate { id, name, platform, image }, search.wanted);
                Ok(())
            }
            Document::Other(_) => Ok(()),
        }
    }

    /// A document, unless it is not there: something else may be meant.
    fn present<T: DeserializeOwned>(
        &self,
        descriptor: &Descriptor,
        search: &mut Search<'_>,
    ) -> Result<Option<T>, ImportError> {
        match self.document(descriptor, &mut search.left) {
            Err(ImportError::Image { reason: ImageError::Missing(what), .. }) => {
                search.found.add_missing(what);
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Refuses layers that cannot be read.
    fn check_layers(&self, layers: &[Descriptor]) -> Result<Vec<ImageLayer>, ImportError> {
        self.store.check_number(layers.len())?;
        layers.iter().map(|layer| self.layer(layer)).collect()
    }

    fn layer(&self, layer: &Descriptor) -> Result<ImageLayer, ImportError> {
        let (digest, kind) = (shown(layer.digest.as_bytes()), &layer.media_type);
        let wrong = match kind.as_str() {
            kind if kind.contains("encrypted") => ImageError::Encrypted(digest),
            kind if kind.contains("nondistributable") || kind.contains(".foreign.") => ImageError::Foreign(digest),
            "application/vnd.oci.image.layer.v1.tar"
            | "application/vnd.oci.image.layer.v1.tar+gzip"
            | "application/vnd.oci.image.layer.v1.tar+zstd"
            | "application/vnd.docker.image.rootfs.diff.tar"
            | "application/vnd.docker.image.rootfs.diff.tar.gzip"
            | "application/vnd.docker.image.rootfs.diff.tar.zstd" => {
                // Missing files are reported before anything is unpacked.
                self.blob(layer)?;
                let path = blob_path(hex_of(&layer.digest).unwrap_or_default());
                return Ok(ImageLayer {
                    name: format!("layer {digest}"),
                    path,
                    digest: Known::File(layer.digest.clone()),
                });
            }
            kind => ImageError::MediaType { digest, media_type: shown(kind.as_bytes()) },
        };
        Err(self.store.wrong(wrong))
    }

    /// Reads a blob that is a document, of which only so many bytes are `left` to be read.
    fn document<T: DeserializeOwned>(&self, descriptor: &Descriptor, left: &mut u64) -> Result<T, ImportError> {
        let blob = self.blob(descriptor)?;
        *left = left.checked_sub(descriptor.size).ok_or_else(|| self.store.wrong(ImageError::TooMany))?;
        let bytes = self.store.read(&descriptor.digest, &blob)?;
        self.store.verify(&descriptor.digest, Sha256::new_with_prefix(&bytes))?;
        self.store.parse(&descriptor.digest, &bytes)
    }
}

/// Where a blob is.
fn blob_path(hex: &str) -> PathBuf {
    Path::new("blobs/sha256").join(hex)
}
