//! Cgroup ids, as the kernel records them.

use std::fs;
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};

use bulkhead_core::observe::record::CgroupId;
use bulkhead_core::tenant::WEIGHT_FILES;

use super::v2_root;
use crate::roots::Roots;

/// All cgroups of the v2 hierarchy: the id of each, which is the inode number of its directory, and its path from the root, with a
/// leading slash. Cgroups removed meanwhile are omitted; names that are not UTF-8 are decoded lossily.
///
/// # Errors
/// The operating system's if the root cannot be read.
pub fn all_ids(roots: &Roots) -> io::Result<Vec<(CgroupId, String)>> {
    let root = v2_root(roots);
    let mut found = vec![(CgroupId(fs::metadata(&root)?.ino()), "/".to_owned())];
    let mut pending = vec![(root.clone(), String::new())];
    while let Some((dir, path)) = pending.pop() {
        let entries = match fs::read_dir(&dir) {
            Ok(entries) => entries,
            Err(error) if dir == root => return Err(error),
            Err(_) => continue,
        };
        for entry in entries.filter_map(Result::ok).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let path = format!("{path}/{}", entry.file_name().to_string_lossy());
            found.push((CgroupId(entry.ino()), path.clone()));
            pending.push((entry.path(), path));
        }
    }
    Ok(found)
}

/// The content of the io controller's weight file of the cgroup at this path (from [`all_ids`]): `io.weight`, or `io.bfq.weight` if the
/// kernel has no `io.weight`. `None` for cgroups without the controller, and for removed ones.
#[must_use]
pub fn io_weights(roots: &Roots, path: &str) -> Option<String> {
    let dir = v2_root(roots).join(path.trim_start_matches('/'));
    WEIGHT_FILES.into_iter().find_map(|file| fs::read_to_string(dir.join(file)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_cgroups_are_found_by_their_inodes() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        assert!(all_ids(&roots).is_err());
        let leaf = roots.cgroup.join("a.slice/b");
        fs::create_dir_all(&leaf).unwrap();
        fs::write(roots.cgroup.join("cgroup.controllers"), "").unwrap();
        let mut all = all_ids(&roots).unwrap();
        all.sort_by(|a, b| a.1.cmp(&b.1));
        assert_eq!(all.iter().map(|(_, path)| path.as_str()).collect::<Vec<_>>(), ["/", "/a.slice", "/a.slice/b"]);
        assert_eq!(io_weights(&roots, "/a.slice"), None);
        fs::write(roots.cgroup.join("a.slice/io.bfq.weight"), "default 10\n").unwrap();
        assert_eq!(io_weights(&roots, "/a.slice").as_deref(), Some("default 10\n"));
        fs::write(roots.cgroup.join("a.slice/io.weight"), "default 100\n").unwrap();
        assert_eq!(io_weights(&roots, "/a.slice").as_deref(), Some("default 100\n"));
        assert_eq!(all[2].0, CgroupId(fs::metadata(leaf).unwrap().ino()));
    }
}
