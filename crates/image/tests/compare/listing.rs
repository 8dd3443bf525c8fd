//! A listing of a directory tree, for comparison with another one.
//!
//! Owns: the properties of a file that are compared. Does not: decide which differences are accepted.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The file behind a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whole seconds.
    pub(crate) mtime: i64,
    /// The target of a symbolic link.
    pub(crate) target: Vec<u8>,
    /// The length and digest of a file, the numbers of a device.
    pub(crate) content: String,
    pub(crate) xattrs: BTreeMap<String, Vec<u8>>,
    /// The first of all names of the same inode.
    pub(crate) first_name: Vec<u8>,
}

pub(crate) type Listing = BTreeMap<Vec<u8>, Node>;

/// Lists a tree; the root has an empty name.
pub(crate) fn list(root: &Path) -> Listing {
    let (mut names, mut below) = (Vec::new(), vec![root.to_owned()]);
    while let Some(path) = below.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            below.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        names.push(path.strip_prefix(root).unwrap().to_owned());
    }
    names.sort_by(|one, other| one.as_os_str().as_bytes().cmp(other.as_os_str().as_bytes()));
    let mut inodes = BTreeMap::new();
    let mut listing = Listing::new();
    for name in names {
        let bytes = name.as_os_str().as_bytes().to_vec();
        // A trailing slash would follow a link.
        let path = if bytes.is_empty() { root.to_owned() } else { root.join(&name) };
        let found = fs::symlink_metadata(&path).unwrap();
        let first_name = inodes.entry((found.dev(), found.ino())).or_insert_with(|| bytes.clone()).clone();
        let node = Node {
            mode: found.mode(),
            uid: found.uid(),
            gid: found.gid(),
            mtime: found.mtime(),
            target: if found.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_vec()
            } else {
                Vec::new()
            },
            content: content(&path, &found),
            xattrs: xattrs(&path),
            first_name,
        };
        listing.insert(bytes, node);
    }
    listing
}

fn content(path: &Path, found: &Metadata) -> String {
    if found.is_file() {
        let digest = Sha256::digest(fs::read(path).unwrap());
        return format!(
            "{} bytes, {}",
            found.len(),
            digest.iter().take(8).map(|b| format!("{b:02x}")).collect::<String>()
        );
    }
    format!("{:#x}", found.rdev())
}

fn xattrs(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut names, mut value) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    // Security labels belong to the host.
    let names = names.filter(|name| *name != b"security.selinux").map(<[u8]>::to_vec).collect::<Vec<_>>();
    let mut xattrs = BTreeMap::new();
    for name in names {
        let len = rustix::fs::lgetxattr(path, &name[..], &mut value[..]).unwrap();
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), value[..len].to_vec());
    }
    xattrs
}
