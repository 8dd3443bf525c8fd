//! OCI image layouts: which image is meant, and what it is made of. Every blob is verified before what it says is believed.
//!
//! Three small documents are all that is read of the specification, and of these a few fields; what else they have is left alone. What
//! is listed and cannot be meant need not be there: `docker save --platform`, mirrors and kind keep an index that lists more than they have.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::Wanted;
use crate::choose::{Candidate, Found, listed};
use crate::error::{ImageError, ImportError, failed, shown};
use crate::platform::Platform;

#[cfg(test)]
mod tests;

/// The largest document that is read.
const MAX_DOCUMENT: u64 = 8 << 20;

/// Bytes of all documents that are read to find an image. Those of a registry's image for all its platforms have some 100 KiB.
const MAX_DOCUMENTS: u64 = 64 << 20;

/// The most layers of an image that is imported. Docker makes 127 at most.
const MAX_LAYERS: usize = 1024;

/// How deep indexes may be nested.
const MAX_DEPTH: u32 = 4;

/// The annotation that names an image of a layout.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The annotation that says what a manifest is which is no image, and what it has for an attestation.
const REFERENCE_TYPE: (&str, &str) = ("vnd.docker.reference.type", "attestation-manifest");

/// What tells that a directory is a layout.
const MARKER: &str = "oci-layout";

/// Where a layout says what is in it.
const INDEX: &str = "index.json";

/// What a blob is, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
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
pub(crate) struct Layout {
    root: OwnedFd,
    path: PathBuf,
}

/// What was found so far, and how much may be read to find more.
struct Search<'a> {
    wanted: &'a Wanted,
    found: Found<Vec<Descriptor>>,
    /// What was looked at: digests, and the platforms that were told with them.
    seen: BTreeSet<(String, Option<String>)>,
    /// Bytes of documents.
    left: u64,
}

impl Descriptor {
    /// What it is for, if that is said, and if it can be an image.
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
    /// Opens a directory that is a layout; `None` for any other.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, ImportError> {
        if ![MARKER, INDEX].iter().all(|name| path.join(name).is_file()) {
            return Ok(None);
        }
        let root = File::open(path).map_err(failed("open", path))?.into();
        Ok(Some(Self { root, path: path.to_owned() }))
    }

    /// The same, called otherwise in errors.
    pub(crate) fn called(self, name: &str) -> Self {
        Self { path: name.into(), ..self }
    }

    /// The layers of the image that is wanted, the lowest first.
    pub(crate) fn layers(&self, wanted: &Wanted) -> Result<Vec<Descriptor>, ImportError> {
        let index: Index = self.parse(INDEX, &self.read(INDEX, &self.file(Path::new(INDEX), INDEX)?)?)?;
        let name_of = |found: &Descriptor| found.annotations.get(REF_NAME).cloned();
        let mut tops = index.manifests;
        if let Some(reference) = &wanted.reference {
            let names: BTreeSet<String> = tops.iter().filter_map(name_of).collect();
            tops.retain(|top| name_of(top).as_ref() == Some(reference));
            if tops.is_empty() {
                let found = listed(names.iter().map(|name| format!("\"{}\"", shown(name.as_bytes()))));
                return Err(self.wrong(ImageError::NoReference { wanted: shown(reference.as_bytes()), found }));
            }
        }
        let mut search = Search { wanted, found: Found::new(), seen: BTreeSet::new(), left: MAX_DOCUMENTS };
        for top in &tops {
            self.images(top, name_of(top).as_deref(), 0, &mut search)?;
        }
        self.check_layers(search.found.choose(wanted).map_err(|reason| self.wrong(reason))?)
    }

    /// Opens a blob, to be verified by who reads it.
    pub(crate) fn blob(&self, descriptor: &Descriptor) -> Result<File, ImportError> {
        let digest = &descriptor.digest;
        let hex = digest.strip_prefix("sha256:").filter(|hex| {
            hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        });
        let hex = hex.ok_or_else(|| self.wrong(ImageError::BadDigest(shown(digest.as_bytes()))))?;
        let file = self.file(&Path::new("blobs/sha256").join(hex), digest)?;
        let found = file.metadata().map_err(failed("look at a blob of", &self.path))?.len();
        if found != descriptor.size {
            let wanted = descriptor.size;
            return Err(self.wrong(ImageError::WrongSize { digest: digest.clone(), wanted, found }));
        }
        Ok(file)
    }

    /// Tells whether a blob is what it is called.
    pub(crate) fn verify(&self, descriptor: &Descriptor, hasher: Sha256) -> Result<(), ImportError> {
        let found = digest(hasher);
        if found == descriptor.digest {
            return Ok(());
        }
        Err(self.wrong(ImageError::WrongDigest { wanted: descriptor.digest.clone(), found }))
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
            return Err(self.wrong(ImageError::Depth));
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
    fn check_layers(&self, layers: Vec<Descriptor>) -> Result<Vec<Descriptor>, ImportError> {
        if layers.len() > MAX_LAYERS {
            return Err(self.wrong(ImageError::Layers { found: layers.len(), most: MAX_LAYERS }));
        }
        for layer in &layers {
            let (digest, kind) = (shown(layer.digest.as_bytes()), &layer.media_type);
            let wrong = match kind.as_str() {
                kind if kind.contains("encrypted") => ImageError::Encrypted(digest),
                kind if kind.contains("nondistributable") || kind.contains(".foreign.") => ImageError::Foreign(digest),
                "application/vnd.oci.image.layer.v1.tar"
                | "application/vnd.oci.image.layer.v1.tar+gzip"
                | "application/vnd.oci.image.layer.v1.tar+zstd"
                | "application/vnd.docker.image.rootfs.diff.tar"
                | "application/vnd.docker.image.rootfs.diff.tar.gzip"
                | "application/vnd.docker.image.rootfs.diff.tar.zstd" => continue,
                kind => ImageError::MediaType { digest, media_type: shown(kind.as_bytes()) },
            };
            return Err(self.wrong(wrong));
        }
        Ok(layers)
    }

    /// Reads a blob that is a document, of which only so many bytes are `left` to be read.
    fn document<T: DeserializeOwned>(&self, descriptor: &Descriptor, left: &mut u64) -> Result<T, ImportError> {
        let blob = self.blob(descriptor)?;
        *left = left.checked_sub(descriptor.size).ok_or_else(|| self.wrong(ImageError::TooMany))?;
        let bytes = self.read(&descriptor.digest, &blob)?;
        self.verify(descriptor, Sha256::new_with_prefix(&bytes))?;
        self.parse(&descriptor.digest, &bytes)
    }

    fn parse<T: DeserializeOwned>(&self, document: &str, bytes: &[u8]) -> Result<T, ImportError> {
        serde_json::from_slice(bytes).map_err(|error| {
            let cause = shown(error.to_string().as_bytes());
            self.wrong(ImageError::Document { document: shown(document.as_bytes()), cause })
        })
    }

    fn read(&self, document: &str, file: &File) -> Result<Vec<u8>, ImportError> {
        let mut bytes = Vec::new();
        let read = file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
        read.map_err(failed("read a document of", &self.path))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(self.wrong(ImageError::TooLarge(shown(document.as_bytes()))));
        }
        Ok(bytes)
    }

    /// Opens a regular file of the layout, which symbolic links may lead to, but only within. What is none is not opened: of a device that
    /// would do something.
    fn file(&self, path: &Path, what: &str) -> Result<File, ImportError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        let missing = || self.wrong(ImageError::Missing(shown(what.as_bytes())));
        let file = match openat2(&self.root, path, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(error) if io::Error::from(error).kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(errno) => return Err(failed("open", &self.path.join(path))(errno.into())),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(missing());
        }
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed("open", &self.path.join(path)))
    }

    fn wrong(&self, reason: ImageError) -> ImportError {
        ImportError::Image { layout: self.path.clone(), reason }
    }
}

/// What a blob is called.
pub(crate) fn digest(hasher: Sha256) -> String {
    use std::fmt::Write as _;
    hasher.finalize().iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
