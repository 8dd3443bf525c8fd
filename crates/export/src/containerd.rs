//! An image of containerd as an OCI layout in a tar archive, from its content store.
//!
//! containerd has no call that exports an image in all of its supported versions, so the layout is composed here: the documents that the
//! image's root refers to, and the blobs of each manifest that is complete. Only the documents are kept in memory; the import verifies every
//! digest, and selects the platform.
//!
//! Source: <https://github.com/opencontainers/image-spec>, image-layout.md.

mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _, Write};
use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use tar::Header;

use self::store::Store;
use crate::error::{ExportError, shown};
use crate::name::ImageName;

/// The services, as the build script generates them.
#[expect(
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    reason = "generated; its style is not ours, and the server is for tests"
)]
mod proto {
    pub(crate) mod images {
        tonic::include_proto!("containerd.services.images.v1");
    }
    pub(crate) mod content {
        tonic::include_proto!("containerd.services.content.v1");
    }
}

/// Limit of all documents of an image, bytes, and of nested indexes: those of the import.
const MAX_DOCUMENTS: u64 = 64 << 20;
const MAX_DEPTH: u32 = 4;

/// Blocks of a tar archive, bytes.
const BLOCK: u64 = 512;

/// The annotation of a root with the image's full name.
const NAME: &str = "io.containerd.image.name";

/// The annotation of a manifest that describes another one, and is no image.
const ATTESTS: &str = "vnd.docker.reference.type";

/// An index or a manifest: what it refers to.
#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    manifests: Vec<Descriptor>,
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// What the content store has of an image.
#[derive(Default)]
struct Contents {
    /// The root, and what it refers to: indexes, and manifests that are complete.
    documents: BTreeMap<String, Vec<u8>>,
    /// Configurations and layers of these manifests, with their sizes in bytes.
    blobs: BTreeMap<String, u64>,
    /// The first blob that is not there.
    missing: Option<String>,
    has_manifest: bool,
}

/// Writes an image as an archive of its layout.
pub(crate) async fn transfer(image: &ImageName, socket: &Path, out: &mut impl Write) -> Result<(), ExportError> {
    let mut store = Store::connect(image, socket).await?;
    let (name, root) = store.find(image).await?;
    let contents = Contents::collect(&mut store, &root.digest).await?;
    if let (false, Some(digest)) = (contents.has_manifest, contents.missing) {
        return Err(ExportError::Incomplete { digest });
    }
    let size = contents.documents.get(&root.digest).map_or(0, Vec::len);
    let root = json!({
        "mediaType": root.media_type, "digest": root.digest, "size": size, "annotations": { NAME: name },
    });
    let index = json!({ "schemaVersion": 2, "manifests": [root] }).to_string();
    write_document(out, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    write_document(out, "index.json", index.as_bytes())?;
    for (digest, document) in &contents.documents {
        write_document(out, &blob_path(digest)?, document)?;
    }
    for (digest, size) in &contents.blobs {
        write_header(out, &blob_path(digest)?, *size)?;
        store.read(digest, *size, |data| out.write_all(data).map_err(ExportError::Output)).await?;
        pad(out, *size)?;
    }
    io::copy(&mut io::repeat(0).take(2 * BLOCK), out).map(drop).map_err(ExportError::Output)
}

impl Contents {
    async fn collect(store: &mut Store, root: &str) -> Result<Self, ExportError> {
        let (mut contents, mut seen) = (Self::default(), BTreeSet::new());
        let (mut to_read, mut n_bytes) = (vec![(root.to_owned(), 0)], 0_u64);
        while let Some((digest, depth)) = to_read.pop() {
            if !seen.insert(digest.clone()) {
                continue;
            }
            let Some(size) = store.size(&digest).await? else {
                contents.missing.get_or_insert(digest);
                continue;
            };
            n_bytes = n_bytes.saturating_add(size);
            if depth > MAX_DEPTH || n_bytes > MAX_DOCUMENTS {
                return Err(ExportError::TooLarge);
            }
            let bytes = store.document(&digest, size).await?;
            let document: Document = serde_json::from_slice(&bytes)
                .map_err(|error| ExportError::Blob { digest: shown(&digest), cause: error.to_string() })?;
            let inner = document.manifests.iter().filter(|inner| !inner.annotations.contains_key(ATTESTS));
            to_read.extend(inner.map(|inner| (inner.digest.clone(), depth + 1)));
            if document.config.is_none() || contents.add_manifest(store, &document).await? {
                contents.documents.insert(digest, bytes);
            }
        }
        Ok(contents)
    }

    /// Adds what a manifest refers to, if all of it is there.
    async fn add_manifest(&mut self, store: &mut Store, manifest: &Document) -> Result<bool, ExportError> {
        let mut blobs = BTreeMap::new();
        for Descriptor { digest, .. } in manifest.config.iter().chain(&manifest.layers) {
            let Some(size) = store.size(digest).await? else {
                self.missing.get_or_insert_with(|| digest.clone());
                return Ok(false);
            };
            blobs.insert(digest.clone(), size);
        }
        self.blobs.append(&mut blobs);
        self.has_manifest = true;
        Ok(true)
    }
}

/// The path of a blob in a layout.
fn blob_path(digest: &str) -> Result<String, ExportError> {
    match digest.strip_prefix("sha256:") {
        Some(hex) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(format!("blobs/sha256/{hex}"))
        }
        _ => Err(ExportError::Blob { digest: shown(digest), cause: "its digest is not SHA-256".to_owned() }),
    }
}

fn write_document(out: &mut impl Write, path: &str, bytes: &[u8]) -> Result<(), ExportError> {
    let size = bytes.len() as u64;
    write_header(out, path, size)?;
    out.write_all(bytes).map_err(ExportError::Output)?;
    pad(out, size)
}

fn write_header(out: &mut impl Write, path: &str, size: u64) -> Result<(), ExportError> {
    let mut header = Header::new_ustar();
    header.set_path(path).map_err(ExportError::Output)?;
    header.set_size(size);
    header.set_mode(0o644);
    header.set_cksum();
    out.write_all(header.as_bytes()).map_err(ExportError::Output)
}

/// Fills the last block of an entry.
fn pad(out: &mut impl Write, size: u64) -> Result<(), ExportError> {
    let mut zeros = io::repeat(0).take(size.next_multiple_of(BLOCK) - size);
    io::copy(&mut zeros, out).map(drop).map_err(ExportError::Output)
}
