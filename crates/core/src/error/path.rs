//! The I/O error at a path, which the error types of several crates wrap.

use std::io;
use std::path::PathBuf;

/// An operation on a path failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {path}")]
pub struct PathError {
    /// The operation, for example `write`.
    pub operation: &'static str,
    /// The path.
    pub path: PathBuf,
    /// The operating system's error.
    #[source]
    pub source: io::Error,
}

impl PathError {
    /// The error of `operation` on `path`.
    #[must_use]
    pub fn new(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        Self { operation, path: path.into(), source: source.into() }
    }
}
