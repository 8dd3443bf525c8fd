//! How much is in a directory tree: from this follows how large a file system of it is made.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_core::units::Bytes;

use crate::error::{ImportError, failed};

/// The size of a block: a file takes whole ones.
const BLOCK: u64 = 4096;

/// The size of a tree. It follows from names and contents alone, not from where the tree lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Files, directories and all else, without the root.
    pub(crate) entries: u64,
    /// What the files hold, holes counted, in whole blocks.
    pub(crate) bytes: Bytes,
}

/// Counts what is in a directory.
pub(crate) fn count(root: &Path) -> Result<Size, ImportError> {
    let (mut size, mut linked) = (Size::default(), HashSet::new());
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let path = entry.map_err(failed("list", &directory))?.path();
            let found = fs::symlink_metadata(&path).map_err(failed("look at", &path))?;
            size.entries += 1;
            if found.is_dir() {
                directories.push(path);
            } else if found.is_file() && (found.nlink() == 1 || linked.insert((found.dev(), found.ino()))) {
                let bytes = found.len().checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
                size.bytes = Bytes(size.bytes.0.saturating_add(bytes));
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_two_names_counts_once_and_in_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/one"), vec![1; 4097]).unwrap();
        fs::hard_link(dir.path().join("a/one"), dir.path().join("two")).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        assert_eq!(count(dir.path()).unwrap(), Size { entries: 5, bytes: Bytes(8192) });
    }
}
