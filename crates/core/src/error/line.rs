//! Errors in text files that people write.

/// A value of a text file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key}{}{cause}", if key.is_empty() { "" } else { ": " })]
pub struct LineError {
    /// The line, from 1.
    pub line: usize,
    /// The key, with the object: `workload mysql: floor`; empty if the file as a whole cannot be read.
    pub key: String,
    /// What is wrong.
    pub cause: String,
}

/// The line of a byte of a text, from 1.
#[must_use]
pub fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}
