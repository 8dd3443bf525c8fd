//! Reading values from the input of a target.

use std::path::Path;

use tempfile::TempDir;

/// The unread bytes; missing bytes read as zero.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let given = self.0.len().min(N);
        bytes[..given].copy_from_slice(&self.0[..given]);
        self.0 = &self.0[given..];
        bytes
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(crate) fn small(&mut self) -> u64 {
        u16::from_le_bytes(self.array()).into()
    }

    pub(crate) fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// The bytes before the next `end`, which is dropped.
    pub(crate) fn until(&mut self, end: u8) -> &'a [u8] {
        let len = self.0.iter().position(|byte| *byte == end).unwrap_or(self.0.len());
        let (found, rest) = self.0.split_at(len);
        self.0 = rest.get(1..).unwrap_or_default();
        found
    }
}

/// A temporary directory, on tmpfs if possible.
pub(crate) fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a temporary directory can be created")
}
