//! What an image is imported from: a directory, a tar archive or an OCI image layout. Who has a directory packs it as an archive
//! ([`Source`]); who imports it makes a directory tree of an archive ([`stage`]).
//!
//! Archives are hostile until the opposite is shown: no name leads out of the tree, no symbolic link of an archive is followed,
//! and what a header claims takes a bounded amount of memory.
//!
//! Owns: archives, layers, and where they are unpacked. Does not: know volumes, nor make file systems.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bulkhead_core::units::Bytes;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

mod archive;
mod beneath;
mod choose;
mod count;
mod decompress;
mod error;
mod layout;
mod pack;
mod platform;
mod staging;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unpack;

use archive::Archive;
pub use error::{ArchiveError, DirectoryError, EntryError, ImageError, ImportError};
use error::{failed, reading};
use layout::{Descriptor, Layout};
pub use pack::Source;
pub use platform::{BadPlatform, Platform};
use staging::Staging;
use unpack::{Finished, Meter, Unpacked};

/// Which image of several is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What it is to run on.
    pub platform: Platform,
    /// What it is called in its layout.
    pub reference: Option<String>,
}

/// A directory tree to be imported. What was unpacked for it goes when it is dropped.
#[derive(Debug)]
pub struct Tree {
    path: PathBuf,
    size: count::Size,
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
    let finished = match Layout::open(&unpacked.path)? {
        None => unpacked,
        Some(layout) => {
            let tree = unpack_image(&layout.called(name), wanted, &staging, &mut meter)?;
            fs::remove_dir_all(&unpacked.path).map_err(failed("remove", &unpacked.path))?;
            tree
        }
    };
    let size = count::count(&finished)?;
    Ok(Tree { path: finished.path, size, staging })
}

fn unpack_archive(input: impl Read, name: &str, to: &Path, meter: &mut Meter<'_>) -> Result<Finished, ImportError> {
    let mut unpacked = Unpacked::create(to)?;
    let mut archive = Archive::new(decompress::open(input, name)?, name, false);
    unpacked.unpack(&mut archive, name, false, meter)?;
    unpacked.finish()
}

fn unpack_image(
    layout: &Layout,
    wanted: &Wanted,
    staging: &Staging,
    meter: &mut Meter<'_>,
) -> Result<Finished, ImportError> {
    let layers = layout.layers(wanted)?;
    let mut unpacked = Unpacked::create(&staging.path().join("tree"))?;
    for layer in &layers {
        // What a layer removes is of the layers below, wherever in the layer that is said.
        read_layer(layout, layer, |archive, name| unpacked.remove_hidden(archive, name))?;
        read_layer(layout, layer, |archive, name| unpacked.unpack(archive, name, true, meter))?;
    }
    unpacked.finish()
}

/// Reads a layer to its end, and verifies it.
fn read_layer(
    layout: &Layout,
    layer: &Descriptor,
    read: impl FnOnce(&mut Archive<Box<dyn Read + '_>>, &str) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let name = format!("layer {}", layer.digest);
    let mut input = Hashing { input: layout.blob(layer)?, hasher: Sha256::new() };
    let outcome = decompress::open(&mut input, &name).and_then(|opened| {
        let mut archive = Archive::new(opened, &name, true);
        read(&mut archive, &name)
    });
    // What is damaged is seen in many ways, and this one tells it best.
    io::copy(&mut input, &mut io::sink()).map_err(|error| reading(&name, error))?;
    layout.verify(layer, input.hasher)?;
    outcome
}

/// Hashes what is read.
struct Hashing {
    input: File,
    hasher: Sha256,
}

impl Read for Hashing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
