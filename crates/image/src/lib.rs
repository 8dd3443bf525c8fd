//! Image sources: a directory, a tar archive, an OCI image layout, or an archive of `docker save`. The client packs a directory as an archive
//! ([`Source`]); the worker unpacks an archive to a directory tree ([`stage`]).
//!
//! These are parsers of untrusted input: no name leads out of the tree, the kernel follows no symbolic link of an archive, and memory per
//! header is bounded.
//!
//! Owns: archives, image layers, and the staging directory. Does not: know volumes, or create file systems.

#![forbid(unsafe_code)]

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use bulkhead_core::base::LeftOut;
use bulkhead_core::units::Bytes;
use rustix::process::geteuid;

mod acl;
mod archive;
mod attributes;
mod beneath;
mod choose;
mod count;
mod decompress;
mod docker;
mod error;
mod image_layer;
mod layout;
mod pack;
mod platform;
mod reference;
mod staging;
mod store;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unpack;

use archive::Archive;
use docker::{DockerArchive, LegacyArchive};
use error::failed;
pub use error::{ArchiveError, DirectoryError, EntryError, ImageError, ImportError};
use image_layer::{ImageLayer, read_image_layer};
use layout::Layout;
pub use pack::Source;
pub use platform::{BadPlatform, Platform};
use staging::Staging;
use store::Store;
use unpack::{Meter, UnpackedTree, Unpacker};

/// How to import an archive, and which of several images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageOptions {
    /// The platform that the image must run on.
    pub platform: Platform,
    /// Name of the image, with or without registry and tag; or its tag, or its digest.
    pub reference: Option<String>,
    /// Whether to refuse a source with attributes that cannot be kept.
    pub strict: bool,
}

/// A directory tree to import. Its staging directory is removed when this is dropped.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    size: count::Size,
    left_out: Vec<LeftOut>,
    staging: Staging,
}

impl Tree {
    /// Path of the tree.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of entries, without the root: files, directories, links and so on.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.size.entries
    }

    /// Size of the contents of its files, without holes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.size.bytes
    }

    /// The extended attributes that were omitted.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Creates an empty directory for temporary files, which is removed with the tree.
    ///
    /// # Errors
    /// [`ImportError::Io`].
    pub fn scratch(&self) -> Result<PathBuf, ImportError> {
        let path = self.staging.path().join("scratch");
        fs::create_dir(&path).map_err(failed("make", &path))?;
        Ok(path)
    }
}

/// Unpacks an archive to a directory tree below `staging`, which must be writable for root only, or sticky. Errors call the archive
/// `name`. `progress` is called with the number of bytes unpacked so far.
///
/// # Errors
/// [`ImportError`]; nothing is left in `staging` in that case.
pub fn stage(
    archive: impl Read,
    name: &str,
    staging: &Path,
    options: &StageOptions,
    mut progress: impl FnMut(Bytes),
) -> Result<Tree, ImportError> {
    if !geteuid().is_root() {
        return Err(ImportError::NotRoot);
    }
    let within = fs::canonicalize(staging).map_err(failed("find", staging))?;
    let staging = Staging::create(&within)?;
    let mut meter = Meter::new(&mut progress);
    let unpacked = unpack_archive(archive, name, &staging.path().join("archive"), &mut meter)?;
    let finished = match unpack_image(&unpacked.path, name, options, &staging, &mut meter)? {
        None => unpacked,
        Some(finished) => {
            fs::remove_dir_all(&unpacked.path).map_err(failed("remove", &unpacked.path))?;
            finished
        }
    };
    if options.strict && !finished.left_out.is_empty() {
        return Err(ImportError::LeftOut { archive: name.to_owned(), left_out: attributes::join(&finished.left_out) });
    }
    let size = count::count(&finished)?;
    Ok(Tree { path: finished.path, size, left_out: finished.left_out, staging })
}

fn unpack_archive(input: impl Read, name: &str, to: &Path, meter: &mut Meter<'_>) -> Result<UnpackedTree, ImportError> {
    let mut unpacked = Unpacker::create(to)?;
    let mut archive = Archive::new(decompress::open(input, name)?, name, false);
    unpacked.unpack(&mut archive, name, false, meter)?;
    unpacked.finish()
}

/// Unpacks the layers of an image, if there are images in a directory.
fn unpack_image(
    directory: &Path,
    name: &str,
    options: &StageOptions,
    staging: &Staging,
    meter: &mut Meter<'_>,
) -> Result<Option<UnpackedTree>, ImportError> {
    let Some((store, layers)) = layers(Store::open(directory, name)?, options)? else { return Ok(None) };
    let mut unpacked = Unpacker::create(&staging.path().join("tree"))?;
    for layer in &layers {
        // Whiteouts apply to lower layers only, wherever they are in a layer: hence two passes.
        read_image_layer(&store, layer, |archive, name| unpacked.apply_whiteouts(archive, name))?;
        read_image_layer(&store, layer, |archive, name| unpacked.unpack(archive, name, true, meter))?;
    }
    unpacked.finish().map(Some)
}

/// The layers of the selected image; `None` if there are no images. What can be read as an OCI layout and as `docker save`'s is read as OCI.
fn layers(store: Store, options: &StageOptions) -> Result<Option<(Store, Vec<ImageLayer>)>, ImportError> {
    let store = match Layout::open(store) {
        Ok(layout) => {
            let layers = layout.layers(options)?;
            return Ok(Some((layout.store, layers)));
        }
        Err(store) => store,
    };
    let store = match DockerArchive::open(store)? {
        Ok(saved) => {
            let layers = saved.layers(options)?;
            return Ok(Some((saved.store, layers)));
        }
        Err(store) => store,
    };
    let store = match LegacyArchive::open(store)? {
        Ok(legacy) => {
            let layers = legacy.layers(options)?;
            return Ok(Some((legacy.store, layers)));
        }
        Err(store) => store,
    };
    // An incomplete layout is an error: importing its files as a tree is never intended.
    if store.has(layout::MARKER) {
        return Err(store.error(ImageError::Missing(layout::INDEX.to_owned())));
    }
    Ok(None)
}
