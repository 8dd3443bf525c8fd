//! The files of an image source in a directory: documents of bounded size, and image layers.
//!
//! Owns: opening files by untrusted paths, and checking digests. Does not: know which files an image consists of.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::error::{ImageError, ImportError, failed, shown};

/// Limit of a document, bytes.
const MAX_DOCUMENT: u64 = 8 << 20;

/// Limit of layers of an image. Docker creates at most 127.
const MAX_LAYERS: usize = 1024;

/// A directory with the files of images.
#[derive(Debug)]
pub(crate) struct Store {
    root: OwnedFd,
    path: PathBuf,
}

impl Store {
    /// Opens a directory, which errors call `name`.
    pub(crate) fn open(directory: &Path, name: &str) -> Result<Self, ImportError> {
        let root = File::open(directory).map_err(failed("open", directory))?.into();
        Ok(Self { root, path: name.into() })
    }

    /// Whether a regular file exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.file(Path::new(path), path).is_ok()
    }

    /// Opens a regular file, following symbolic links within the store. If there is none, the error says that `what` is missing. Other types
    /// are not opened, because opening a device can have side effects.
    pub(crate) fn file(&self, path: &Path, what: &str) -> Result<File, ImportError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let missing = || self.error(ImageError::Missing(shown(what.as_bytes())));
        let file = match openat2(&self.root, path, flags, Mode::empty(), resolve) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL) => {
                return Err(missing());
            }
            Err(errno) => return Err(failed("open", &self.path.join(path))(errno.into())),
        };
        if !file.metadata().is_ok_and(|found| found.is_file()) {
            return Err(missing());
        }
        File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(failed("open", &self.path.join(path)))
    }

    /// Reads a document to its end.
    pub(crate) fn read(&self, document: &str, file: &File) -> Result<Vec<u8>, ImportError> {
        let mut bytes = Vec::new();
        let read = file.take(MAX_DOCUMENT + 1).read_to_end(&mut bytes);
        read.map_err(failed("read a document of", &self.path))?;
        if bytes.len() as u64 > MAX_DOCUMENT {
            return Err(self.error(ImageError::TooLarge(shown(document.as_bytes()))));
        }
        Ok(bytes)
    }

    /// Parses a document.
    pub(crate) fn parse<T: DeserializeOwned>(&self, document: &str, bytes: &[u8]) -> Result<T, ImportError> {
        serde_json::from_slice(bytes).map_err(|error| {
            let cause = shown(error.to_string().as_bytes());
            self.error(ImageError::Document { document: shown(document.as_bytes()), cause })
        })
    }

    /// Compares a digest with the expected one.
    pub(crate) fn verify(&self, wanted: &str, hasher: Sha256) -> Result<(), ImportError> {
        let found = format_digest(hasher);
        if found == wanted {
            return Ok(());
        }
        Err(self.error(ImageError::WrongDigest { wanted: shown(wanted.as_bytes()), found }))
    }

    /// Checks the limit of layers.
    pub(crate) fn check_n_layers(&self, n_layers: usize) -> Result<(), ImportError> {
        if n_layers > MAX_LAYERS {
            return Err(self.error(ImageError::Layers { found: n_layers, most: MAX_LAYERS }));
        }
        Ok(())
    }

    /// An error about this source.
    pub(crate) fn error(&self, reason: ImageError) -> ImportError {
        ImportError::Image { layout: self.path.clone(), reason }
    }
}

/// The digest, in the form `sha256:HEX`.
pub(crate) fn format_digest(hasher: Sha256) -> String {
    use std::fmt::Write as _;
    hasher.finalize().iter().fold("sha256:".to_owned(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The hexadecimal digits of a digest; `None` if it is malformed.
pub(crate) fn digest_hex(digest: &str) -> Option<&str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(is_digit))
}
