//! The files of an image source in a directory: documents of bounded size, and image layers.
//!
//! Owns: where a file is, and whether it matches its digest. Does not: know which files an image has.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use crate::error::{ImageError, ImportError, failed, shown};

/// The largest document that is read.
const MAX_DOCUMENT: u64 = 8 << 20;

/// The most layers of an image that is imported. Docker makes 127 at most.
const MAX_LAYERS: usize = 1024;

/// A directory with the files of images.
#[derive(Debug)]
pub(crate) struct Store {
    root: OwnedFd,
    path: PathBuf,
}

impl Store {
    /// A directory that has another name in errors.
    pub(crate) fn open(directory: &Path, name: &str) -> Result<Self, ImportError> {
        let root = File::open(directory).map_err(failed("open", directory))?.into();
        Ok(Self { root, path: name.into() })
    }

    /// Whether it has a regular file.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.file(Path::new(path), path).is_ok()
    }

    /// Opens a regular file, which symbolic links may lead to, but only within: `what` is missing where there is none. What is no
    /// regular file is not opened: of a device that would do something.
    pub(crate) fn file(&self, path: &Path, what: &str) -> Result<File, ImportError> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let missing = || self.wrong(ImageError::Missing(shown(what.as_bytes())));
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
            return Err(self.wrong(ImageError::TooLarge(shown(document.as_bytes()))));
        }
        Ok(bytes)
    }

    /// What a document says.
    pub(crate) fn parse<T: DeserializeOwned>(&self, document: &str, bytes: &[u8]) -> Result<T, ImportError> {
        serde_json::from_slice(bytes).map_err(|error| {
            let cause = shown(error.to_string().as_bytes());
            self.wrong(ImageError::Document { document: shown(document.as_bytes()), cause })
        })
    }

    /// Finds out whether something is what it is called.
    pub(crate) fn verify(&self, wanted: &str, hasher: Sha256) -> Result<(), ImportError> {
        let found = digest(hasher);
        if found == wanted {
            return Ok(());
        }
        Err(self.wrong(ImageError::WrongDigest { wanted: shown(wanted.as_bytes()), found }))
    }

    /// Refuses more layers than there can be.
    pub(crate) fn check_number(&self, n_layers: usize) -> Result<(), ImportError> {
        if n_layers > MAX_LAYERS {
            return Err(self.wrong(ImageError::Layers { found: n_layers, most: MAX_LAYERS }));
        }
        Ok(())
    }

    /// An error about the images here.
    pub(crate) fn wrong(&self, reason: ImageError) -> ImportError {
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

/// The digits of a digest; `None` for what is none.
pub(crate) fn hex_of(digest: &str) -> Option<&str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    digest.strip_prefix("sha256:").filter(|hex| hex.len() == 64 && hex.bytes().all(is_digit))
}
