//! Layers of an OCI or Docker image (not of copy-on-write): archives that are read to their ends, and verified.

use std::io::{self, Read};
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use crate::archive::Archive;
use crate::decompress;
use crate::error::{ImportError, reading};
use crate::store::Store;

/// A layer of the selected image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageLayer {
    /// What it is called in errors.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    pub(crate) digest: Known,
}

/// The digest of an image layer that is known in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// The digest of its file.
    File(String),
    /// The digest of what is in the file, decompressed.
    Content(String),
    Nothing,
}

/// Reads an image layer to its end, and verifies it.
pub(crate) fn read_image_layer(
    store: &Store,
    layer: &ImageLayer,
    read: impl FnOnce(&mut Archive<Box<dyn Read + '_>>, &str) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let name = &layer.name;
    let file = store.file(&layer.path, name)?;
    match &layer.digest {
        Known::File(digest) => {
            let mut input = Hashing { input: file, hasher: Sha256::new() };
            let outcome =
                decompress::open(&mut input, name).and_then(|opened| read(&mut Archive::new(opened, name, true), name));
            // Damage has many symptoms; a wrong digest is the clearest.
            store.verify(digest, input.finish(name)?)?;
            outcome
        }
        Known::Content(digest) => {
            let mut input = Hashing { input: decompress::open(file, name)?, hasher: Sha256::new() };
            let outcome = read(&mut Archive::new(Box::new(&mut input), name, true), name);
            store.verify(digest, input.finish(name)?)?;
            outcome
        }
        Known::Nothing => read(&mut Archive::new(decompress::open(file, name)?, name, false), name),
    }
}

/// Hashes what is read.
struct Hashing<R> {
    input: R,
    hasher: Sha256,
}

impl<R: Read> Hashing<R> {
    /// Reads what is left.
    fn finish(mut self, name: &str) -> Result<Sha256, ImportError> {
        io::copy(&mut self, &mut io::sink()).map_err(|error| reading(name, error))?;
        Ok(self.hasher)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
