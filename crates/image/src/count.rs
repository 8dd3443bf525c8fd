//! The size of a directory tree, from which the size of its file system follows.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use bulkhead_core::units::Bytes;

use crate::error::{ImportError, failed};
use crate::unpack::{UnpackedTree, whole_blocks};

/// The size of a tree. Depends on names and contents only, not on the file system of the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Number of entries of any type, without the root.
    pub(crate) entries: u64,
    /// Size of the files' blocks that are not all zeroes.
    pub(crate) bytes: Bytes,
}

/// Measures an unpacked tree.
pub(crate) fn count(finished: &UnpackedTree) -> Result<Size, ImportError> {
    let (mut size, mut linked) = (Size::default(), HashSet::new());
    let mut directories = vec![finished.path.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).map_err(failed("list", &directory))? {
            let path = entry.map_err(failed("list", &directory))?.path();
            let found = fs::symlink_metadata(&path).map_err(failed("examine", &path))?;
            size.entries += 1;
            if found.is_dir() {
                directories.push(path);
            } else if found.is_file() && (found.nlink() == 1 || linked.insert((found.dev(), found.ino()))) {
                let allocated = finished.allocated.get(&(found.dev(), found.ino()));
                let allocated = allocated.copied().unwrap_or_else(|| whole_blocks(found.len()));
                size.bytes = Bytes(size.bytes.0.saturating_add(allocated.0));
            }
        }
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unpack::AllocatedBytes;

    #[test]
    fn a_file_with_two_names_counts_once_in_whole_blocks() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/one"), vec![1; 4097]).unwrap();
        fs::hard_link(dir.path().join("a/one"), dir.path().join("two")).unwrap();
        fs::write(dir.path().join("empty"), "").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let mut finished =
            UnpackedTree { path: dir.path().to_owned(), allocated: AllocatedBytes::new(), left_out: Vec::new() };
        assert_eq!(count(&finished).unwrap(), Size { entries: 5, bytes: Bytes(8192) });
        // Holes do not count.
        let sparse = fs::File::create(dir.path().join("sparse")).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let found = sparse.metadata().unwrap();
        finished.allocated.insert((found.dev(), found.ino()), Bytes(4096));
        assert_eq!(count(&finished).unwrap(), Size { entries: 6, bytes: Bytes(12_288) });
    }
}
