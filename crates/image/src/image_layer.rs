//! Layers of an OCI or Docker image, which are archives (not layers of copy-on-write). Each is read to its end and verified.

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
    /// Its name in errors.
    pub(crate) name: String,
    /// Its path in the store.
    pub(crate) path: PathBuf,
    pub(crate) digest: ExpectedDigest,
}

/// The expected digest of an image layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedDigest {
    /// Of its file, which can be compressed.
    File(String),
    /// Of its decompressed content.
    Content(String),
    Unknown,
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
        ExpectedDigest::File(digest) => {
            let mut input = HashingReader { input: file, hasher: Sha256::new() };
            let outcome =
                decompress::open(&mut input, name).and_then(|opened| read(&mut Archive::new(opened, name, true), name));
            // Damage has many symptoms; a wrong digest is the clearest.
            store.verify(digest, input.finish(name)?)?;
            outcome
        }
        ExpectedDigest::Content(digest) => {
            let mut input = HashingReader { input: decompress::open(file, name)?, hasher: Sha256::new() };
            let outcome = read(&mut Archive::new(Box::new(&mut input), name, true), name);
            store.verify(digest, input.finish(name)?)?;
            outcome
        }
        ExpectedDigest::Unknown => read(&mut Archive::new(decompress::open(file, name)?, name, false), name),
    }
}

/// Hashes all bytes that are read.
struct HashingReader<R> {
    input: R,
    hasher: Sha256,
}

impl<R: Read> HashingReader<R> {
    /// Reads to the end.
    fn finish(mut self, name: &str) -> Result<Sha256, ImportError> {
        io::copy(&mut self, &mut io::sink()).map_err(|error| reading(name, error))?;
        Ok(self.hasher)
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.hasher.update(&buffer[..read]);
        Ok(read)
    }
}
