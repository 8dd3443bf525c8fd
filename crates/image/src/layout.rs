//! Parser of OCI image layouts: the selected image and its image layers. Every blob is verified before its contents are used.
//!
//! Only a few fields of three documents are read. Images that an index lists, but that cannot be selected, need not exist: `docker save
//! --platform`, mirrors and kind keep an index that lists more images than are present.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::StageOptions;
use crate::choose::{Candidate, Candidates};
use crate::error::{ImageError, ImportError, failed, shown};
use crate::image_layer::{ExpectedDigest, ImageLayer};
use crate::platform::Platform;
use crate::reference;
use crate::store::{Store, digest_hex};

#[cfg(test)]
mod tests;

/// Limit of all documents that are read to find an image, in bytes. Those of an image for many platforms have about 100 KiB.
const MAX_DOCUMENTS: u64 = 64 << 20;

/// Limit of nested indexes.
const MAX_DEPTH: u32 = 4;

/// The annotations with the name of an image: the full name (containerd), and a name of any form, often only the tag.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// The annotation and value that mark a manifest as an attestation.
const REFERENCE_TYPE: (&str, &str) = ("vnd.docker.reference.type", "attestation-manifest");

/// The file that marks a directory as a layout.
pub(crate) const MARKER: &str = "oci-layout";

/// The index of a layout.
pub(crate) const INDEX: &str = "index.json";

/// A descriptor: type, digest and size of a blob.
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

/// An index or a manifest, whatever its descriptor says.
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

/// The state of a search for images.
struct Search<'a> {
    options: &'a StageOptions,
    found: Candidates<Vec<Descriptor>>,
    /// Visited digests, with the platforms of their descriptors.
    seen: BTreeSet<(String, Option<String>)>,
    /// Bytes of documents that may still be read.
    left: u64,
}

impl Descriptor {
    /// Its names. Errors use the first one.
    fn names(&self) -> impl Iterator<Item = String> {
        NAMES.iter().filter_map(|name| self.annotations.get(*name).cloned())
    }

    /// Its platform, if it has one and is not an index.
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
    /// Opens a directory as a layout; returns the store if it is not one.
    pub(crate) fn open(store: Store) -> Result<Self, Store> {
        if [MARKER, INDEX].iter().all(|name| store.has(name)) { Ok(Self { store }) } else { Err(store) }
    }

    /// The layers of the selected image, lowest first.
    pub(crate) fn layers(&self, options: &StageOptions) -> Result<Vec<ImageLayer>, ImportError> {
        let index: Index =
            self.store.parse(INDEX, &self.store.read(INDEX, &self.store.file(Path::new(INDEX), INDEX)?)?)?;
        let mut roots = index.manifests;
        if let Some(name) = &options.reference {
            let names = |root: &Descriptor| root.names().chain([root.digest.clone()]).collect();
            roots = reference::select(roots, names, name).map_err(|reason| self.store.error(reason))?;
        }
        let mut search = Search { options, found: Candidates::new(), seen: BTreeSet::new(), left: MAX_DOCUMENTS };
        for root in &roots {
            self.find_images(root, root.names().next().as_deref(), 0, &mut search)?;
        }
        self.check_layers(&search.found.choose(options).map_err(|reason| self.store.error(reason))?)
    }

    /// Opens a blob, which the caller has to verify.
    fn blob(&self, descriptor: &Descriptor) -> Result<File, ImportError> {
        let digest = &descriptor.digest;
        let hex =
            digest_hex(digest).ok_or_else(|| self.store.error(ImageError::BadDigest(shown(digest.as_bytes()))))?;
        let file = self.store.file(&blob_path(hex), digest)?;
        let found = file.metadata().map_err(failed("examine a blob of", Path::new(digest)))?.len();
        if found != descriptor.size {
            let wanted = descriptor.size;
            return Err(self.store.error(ImageError::WrongSize { digest: digest.clone(), wanted, found }));
        }
        Ok(file)
    }

    /// Finds all images that a descriptor refers to. Images that cannot be selected are not opened.
    fn find_images(
        &self,
        from: &Descriptor,
        name: Option<&str>,
        depth: u32,
        search: &mut Search<'_>,
    ) -> Result<(), ImportError> {
        if depth > MAX_DEPTH {
            return Err(self.store.error(ImageError::Depth));
        }
        let is_new = search.seen.insert((from.digest.clone(), from.platform.as_ref().map(Platform::to_string)));
        if !is_new || from.is_attestation() {
            return Ok(());
        }
        if let Some(platform) = from.platform().filter(|found| search.options.platform.rank(found).is_none()) {
            if self.blob(from).is_ok() {
                search.found.add_other_platform(platform);
            }
            return Ok(());
        }
        let Some(document) = self.document_if_present(from, search)? else { return Ok(()) };
        match document {
            Document::Index(index) => {
                index.manifests.iter().try_for_each(|inner| self.find_images(inner, name, depth + 1, search))
            }
            Document::Manifest(manifest) => {
                let is_image = |kind: &str| kind.contains(".image.config.") || kind.contains(".container.image.v1");
                // Signatures, attestations and charts have manifests, too.
                if !is_image(&manifest.config.media_type) {
                    return Ok(());
                }
                let platform = match from.platform() {
                    Some(platform) => platform.clone(),
                    None => match self.document_if_present(&manifest.config, search)? {
                        Some(platform) => platform,
                        None => return Ok(()),
                    },
                };
                let (id, name, image) = (from.digest.clone(), name.map(str::to_owned), manifest.layers);
                search.found.add(Candidate { id, name, platform, image }, search.options);
                Ok(())
            }
            Document::Other(_) => Ok(()),
        }
    }

    /// Reads a document. `None` if it is missing, because another image may be selected.
    fn document_if_present<T: DeserializeOwned>(
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

    /// Refuses layers that are not supported.
    fn check_layers(&self, layers: &[Descriptor]) -> Result<Vec<ImageLayer>, ImportError> {
        self.store.check_n_layers(layers.len())?;
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
                let path = blob_path(digest_hex(&layer.digest).unwrap_or_default());
                return Ok(ImageLayer {
                    name: format!("layer {digest}"),
                    path,
                    digest: ExpectedDigest::File(layer.digest.clone()),
                });
            }
            kind => ImageError::MediaType { digest, media_type: shown(kind.as_bytes()) },
        };
        Err(self.store.error(wrong))
    }

    /// Reads and verifies a document. At most `left` bytes of documents may still be read.
    fn document<T: DeserializeOwned>(&self, descriptor: &Descriptor, left: &mut u64) -> Result<T, ImportError> {
        let blob = self.blob(descriptor)?;
        *left = left.checked_sub(descriptor.size).ok_or_else(|| self.store.error(ImageError::TooMany))?;
        let bytes = self.store.read(&descriptor.digest, &blob)?;
        self.store.verify(&descriptor.digest, Sha256::new_with_prefix(&bytes))?;
        self.store.parse(&descriptor.digest, &bytes)
    }
}

/// The path of a blob.
fn blob_path(hex: &str) -> PathBuf {
    Path::new("blobs/sha256").join(hex)
}
