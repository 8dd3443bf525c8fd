//! Archives and layouts for tests, valid and invalid.

use std::fs;
use std::path::Path;

use rustix::process::{getegid, geteuid};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{EntryType, Header};

use crate::error::{ImageError, ImportError};
use crate::image_layer::ImageLayer;
use crate::store::{Store, format_digest};

/// A builder of tar archives.
#[derive(Clone, Default)]
pub(crate) struct Tar(pub(crate) Vec<u8>);

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an entry, after a change to its header.
    pub(crate) fn with(
        mut self,
        kind: EntryType,
        name: impl AsRef<[u8]>,
        data: &[u8],
        change: impl FnOnce(&mut Header),
    ) -> Self {
        let mut header = Header::new_gnu();
        let name = name.as_ref();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_uid(geteuid().as_raw().into());
        header.set_gid(getegid().as_raw().into());
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        change(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, data: impl AsRef<[u8]>) -> Self {
        self.with(EntryType::Regular, name, data.as_ref(), |_| ())
    }

    pub(crate) fn dir(self, name: &str, mode: u32, mtime: u64) -> Self {
        self.with(EntryType::Directory, name, &[], |header| {
            header.set_mode(mode);
            header.set_mtime(mtime);
        })
    }

    /// Adds a symbolic or hard link.
    pub(crate) fn link(self, kind: EntryType, name: &str, to: &str) -> Self {
        self.with(kind, name, &[], |header| header.as_old_mut().linkname[..to.len()].copy_from_slice(to.as_bytes()))
    }

    /// Adds records for the next entry.
    pub(crate) fn records(self, kind: EntryType, records: &[(&str, &[u8])]) -> Self {
        let mut bytes = Vec::new();
        for (word, value) in records {
            let rest = word.len() + value.len() + 3;
            let len = (1..8).map(|digits| rest + digits).find(|len| len.to_string().len() + rest == *len).unwrap();
            bytes.extend(format!("{len} {word}=").bytes().chain(value.iter().copied()).chain([b'\n']));
        }
        self.with(kind, "records", &bytes, |_| ())
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// The hexadecimal digits of a digest.
pub(crate) fn hex(bytes: &[u8]) -> String {
    format_digest(Sha256::new_with_prefix(bytes)).strip_prefix("sha256:").unwrap().to_owned()
}

/// Writes an image as `docker save` did before it wrote OCI layouts, and returns its entry for the manifest.
pub(crate) fn saved_image(at: &Path, tags: &[&str], platform: &str, layers: &[&[u8]]) -> Value {
    let (os, architecture) = platform.split_once('/').unwrap();
    let diff_ids: Vec<String> = layers.iter().map(|layer| format_digest(Sha256::new_with_prefix(layer))).collect();
    let config = json!({"os": os, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    let (config, mut paths) = (config.to_string(), Vec::new());
    let name = format!("{}.json", hex(config.as_bytes()));
    fs::write(at.join(&name), config).unwrap();
    for (n, layer) in layers.iter().enumerate() {
        // Directory names do not reflect the order of layers.
        let directory = format!("{}-{n}", &hex(layer)[..20]);
        fs::create_dir_all(at.join(&directory)).unwrap();
        fs::write(at.join(&directory).join("VERSION"), "1.0").unwrap();
        fs::write(at.join(&directory).join("layer.tar"), layer).unwrap();
        paths.push(format!("{directory}/layer.tar"));
    }
    let tags = if tags.is_empty() { Value::Null } else { json!(tags) };
    json!({"Config": name, "RepoTags": tags, "Layers": paths})
}

/// Writes the manifest of `docker save`.
pub(crate) fn save(at: &Path, images: &[Value]) {
    fs::write(at.join("manifest.json"), json!(images).to_string()).unwrap();
    fs::write(at.join("repositories"), "{}").unwrap();
}

/// Writes a blob into a layout, and returns its descriptor.
pub(crate) fn blob(layout: &Path, media_type: &str, bytes: &[u8]) -> Value {
    let digest = format_digest(Sha256::new_with_prefix(bytes));
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(digest.strip_prefix("sha256:").unwrap()), bytes).unwrap();
    json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
}

pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// Writes an image into a layout, and returns its descriptor, without a platform.
pub(crate) fn image(layout: &Path, platform: &str, layers: &[Value]) -> Value {
    let (os, architecture) = platform.split_once('/').unwrap();
    let config = json!({"os": os, "architecture": architecture, "rootfs": {"type": "layers", "diff_ids": []}});
    let config = blob(layout, "application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    blob(layout, "application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes())
}

/// Writes an index into a layout, and returns its descriptor.
pub(crate) fn index(layout: &Path, manifests: &[Value]) -> Value {
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    blob(layout, "application/vnd.oci.image.index.v1+json", index.to_string().as_bytes())
}

/// Adds the annotation with a name to a descriptor.
pub(crate) fn named(mut descriptor: Value, name: &str) -> Value {
    descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
    descriptor
}

/// Writes the marker and the index of a layout.
pub(crate) fn complete(layout: &Path, manifests: &[Value]) {
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
}

/// The contents of layers, as text.
pub(crate) fn contents(store: &Store, layers: &[ImageLayer]) -> Vec<String> {
    let text = |layer: &ImageLayer| std::io::read_to_string(store.file(&layer.path, "it").unwrap()).unwrap();
    layers.iter().map(text).collect()
}

/// The reason of an error.
pub(crate) fn reason(layers: Result<Vec<ImageLayer>, ImportError>) -> ImageError {
    match layers {
        Err(ImportError::Image { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}
