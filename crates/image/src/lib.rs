//! Image sources: a directory, a tar archive, an OCI image layout, or an archive of `docker save`. The client packs a directory as an archive
//! ([`Source`]); the worker makes a directory tree of an archive ([`stage`]).
//!
//! These are parsers of untrusted input: no name leads out of the tree, the kernel follows no symbolic link of an archive, and the memory that a
//! header takes is bounded.
//!
//! Owns: archives, image layers, and where they are unpacked. Does not: know volumes, or make file systems.

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
use docker::{Legacy, Saved};
use error::failed;
pub use error::{ArchiveError, DirectoryError, EntryError, ImageError, ImportError};
use image_layer::{ImageLayer, read_image_layer};
use layout::Layout;
pub use pack::Source;
pub use platform::{BadPlatform, Platform};
use staging::Staging;
use store::Store;
use unpack::{Finished, Meter, Unpacked};

/// Which image of several is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The platform that it runs on.
    pub platform: Platform,
    /// Its name, with or without registry and tag, its tag, or its digest.
    pub reference: Option<String>,
    /// Whether a source with attributes that cannot be kept is refused.
    pub strict: bool,
}

/// A directory tree to be imported. What was unpacked for it goes when it is dropped.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    size: count::Size,
    left_out: Vec<LeftOut>,
    staging: Staging,
}

impl Tree {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many files, directories and so on are in it.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.size.entries
    }

    /// What its files hold, without their holes.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.size.bytes
    }

    /// The attributes that were left out.
    #[must_use]
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// An empty directory for what else is needed on the way; it goes with the tree.
    ///
    /// # Errors
    /// [`ImportError::Io`].
    pub fn scratch(&self) -> Result<PathBuf, ImportError> {
        let path = self.staging.path().join("scratch");
        fs::create_dir(&path).map_err(failed("make", &path))?;
        Ok(path)
    }
}

/// Makes a directory tree of an archive that is called `name` in errors: in `staging`, to which nobody but root can write, or which is
/// sticky. `progress` hears how much was unpacked.
///
/// # Errors
/// [`ImportError`]; nothing is left in `staging` then.
pub fn stage(
    archive: impl Read,
    name: &str,
    staging: &Path,
    wanted: &Wanted,
    mut progress: impl FnMut(Bytes),
) -> Result<Tree, ImportError> {
    if !geteuid().is_root() {
        return Err(ImportError::NotRoot);
    }
    let within = fs::canonicalize(staging).map_err(failed("find", staging))?;
    let staging = Staging::create(&within)?;
    let mut meter = Meter::new(&mut progress);
    let unpacked = unpack_archive(archive, name, &staging.path().join("archive"), &mut meter)?;
    let finished = match unpack_image(&unpacked.path, name, wanted, &staging, &mut meter)? {
        None => unpacked,
        Some(finished) => {
            fs::remove_dir_all(&unpacked.path).map_err(failed("remove", &unpacked.path))?;
            finished
        }
    };
    if wanted.strict && !finished.left_out.is_empty() {
        return Err(ImportError::LeftOut {
            archive: name.to_owned(),
            left_out: attributes::listed(&finished.left_out),
        });
    }
    let size = count::count(&finished)?;
    Ok(Tree { path: finished.path, size, left_out: finished.left_out, staging })
}

fn unpack_archive(input: impl Read, name: &str, to: &Path, meter: &mut Meter<'_>) -> Result<Finished, ImportError> {
    let mut unpacked = Unpacked::create(to)?;
    let mut archive = Archive::new(decompress::open(input, name)?, name, false);
    unpacked.unpack(&mut archive, name, false, meter)?;
    unpacked.finish()
}

/// Unpacks the layers of an image, if there are images in a directory.
fn unpack_image(
    directory: &Path,
    name: &str,
    wanted: &Wanted,
    staging: &Staging,
    meter: &mut Meter<'_>,
) -> Result<Option<Finished>, ImportError> {
    let Some((store, layers)) = layers(Store::open(directory, name)?, wanted)? else { return Ok(None) };
    let mut unpacked = Unpacked::create(&staging.path().join("tree"))?;
    for layer in &layers {
        // Whiteouts of an image layer apply to those below it, wherever in the layer they are.
        read_image_layer(&store, layer, |archive, name| unpacked.apply_whiteouts(archive, name))?;
        read_image_layer(&store, layer, |archive, name| unpacked.unpack(archive, name, true, meter))?;
    }
    unpacked.finish().map(Some)
}

/// The layers of the image that is wanted; `None` if there are no images. What is a layout for OCI and for Docker is one for OCI.
fn layers(store: Store, wanted: &Wanted) -> Result<Option<(Store, Vec<ImageLayer>)>, ImportError> {
    let store = match Layout::open(store) {
        Ok(layout) => {
            let layers = layout.layers(wanted)?;
            return Ok(Some((layout.store, layers)));
        }
        Err(store) => store,
    };
    let store = match Saved::open(store)? {
        Ok(saved) => {
            let layers = saved.layers(wanted)?;
            return Ok(Some((saved.store, layers)));
        }
        Err(store) => store,
    };
    let store = match Legacy::open(store)? {
        Ok(legacy) => {
            let layers = legacy.layers(wanted)?;
            return Ok(Some((legacy.store, layers)));
        }
        Err(store) => store,
    };
    // Nobody means the files of an image that is not whole.
    if store.has(layout::MARKER) {
        return Err(store.wrong(ImageError::Missing(layout::INDEX.to_owned())));
    }
    Ok(None)
}
