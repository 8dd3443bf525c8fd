//! Reproducible ext4 of a directory tree: equal trees result in identical file systems, byte for byte.
//!
//! `mke2fs -d` copies the tree, in the order of names. Values that it would take from the clock, a random generator or the host's
//! configuration are given to it. It creates linear directories; `e2fsck -D` adds hashed indexes, so that a lookup among thousands of names
//! does not read them all. `mke2fs` also copies atime and ctime of each file, which depend on the copying, not on the tree: `debugfs` sets
//! them afterwards, as well as mode and mtime of the root, which are not copied.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_core::journal;
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use super::{BLOCK_BYTES, FsError, LONG_LIMIT, tool_error};
use crate::tool::{Tool, ToolError};

/// Features of the file system, independent of the host's `mke2fs.conf`. `metadata_csum_seed` makes changing a clone's UUID a single write.
/// Every kernel with ublk supports them all.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,\
    huge_file,dir_nlink,extra_isize,metadata_csum,metadata_csum_seed";

/// An empty configuration of `mke2fs`.
const CONFIG: &str =
    "[defaults]\n[fs_types]\n\text4 = {\n\t}\n\tfloppy = {\n\t}\n\tsmall = {\n\t}\n\tbig = {\n\t}\n\thuge = {\n\t}\n";

/// The UUID of the file system, and the seed of its directories' hashes. Copies of it get UUIDs of their own.
const FS_UUID: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0001);
const HASH_SEED: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0002);

/// Creation time in seconds since the epoch: 1 January 2020. The clock is not used.
const MADE_AT: u64 = 1_577_836_800;

/// File system size per inode, the default of `mkfs.ext4`.
const BYTES_PER_INODE: u64 = 16_384;

/// Reserved inodes of ext4, including the root directory and `lost+found`.
const OWN_INODES: u64 = 11;

/// The first non-reserved inode: `lost+found`.
const FIRST_INODE: u64 = 11;

/// The root directory.
const ROOT_INODE: u64 = 2;

/// Parameters of a file system made of a tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions<'a> {
    /// The directory.
    pub tree: &'a Path,
    /// Lower bound of its number of entries.
    pub entries: u64,
    /// Size of the file system.
    pub size: Bytes,
    /// An existing directory that only the caller uses, for input files of the helper programs.
    pub scratch: &'a Path,
}

/// Creates an ext4 with the content of a directory tree: files, directories, symbolic and hard links, devices, pipes, owners, modes, mtimes
/// in seconds, extended attributes. `image` is a regular file of the file system's size, entirely a hole, that nobody else uses.
///
/// # Errors
/// [`FsError::TreeTooLarge`]; [`FsError::Tool`]; [`FsError::Report`]; [`FsError::Write`] for the scratch directory.
pub fn make_of_tree(image: &Path, options: &TreeOptions<'_>) -> Result<(), FsError> {
    const MAKE: &str = "make a file system in";
    let TreeOptions { tree, entries, size, scratch } = *options;
    let failed = |source| tool_error(MAKE, image, source);
    let report = |program, missing| FsError::Report { program, device: image.to_owned(), missing };
    let config = scratch.join("mke2fs.conf");
    write(&config, CONFIG)?;
    let inodes = (size.0 / BYTES_PER_INODE).max(entries.saturating_add(entries / 4)) + OWN_INODES;
    let root = fs::symlink_metadata(tree).map_err(|source| FsError::Tree { tree: tree.to_owned(), source })?;
    let extended = format!(
        "hash_seed={HASH_SEED},lazy_itable_init=0,lazy_journal_init=0,root_owner={}:{},nodiscard,assume_storage_prezeroed=1",
        root.uid(),
        root.gid(),
    );
    Tool::new("mkfs.ext4")
        .env("MKE2FS_CONFIG", &config)
        .env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string())
        .args(["-q", "-F", "-b", &BLOCK_BYTES.to_string(), "-I", "256", "-m", "0", "-e", "continue"])
        .args(["-N", &inodes.to_string(), "-O", FEATURES, "-U", &FS_UUID.to_string(), "-E", &extended])
        .args(["-J", &format!("size={}", journal::size_for(size).0 / Bytes::MIB), "-d"])
        .args([tree, image])
        .limit(LONG_LIMIT)
        .dies_with_parent()
        .run()
        .map_err(|source| {
            if is_full(&source) { FsError::TreeTooLarge { device: image.to_owned(), source } } else { failed(source) }
        })?;
    // Some versions report the rebuilt directories as corrected errors (1), others as no change (0).
    Tool::new("e2fsck")
        .env("E2FSCK_TIME", MADE_AT.to_string())
        .env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string())
        .args(["-f", "-y", "-D"])
        .arg(image)
        .ok_codes(&[0, 1])
        .limit(LONG_LIMIT)
        .dies_with_parent()
        .run()
        .map_err(failed)?;
    let made = Tool::new("dumpe2fs").arg("-h").arg(image).run().map_err(failed)?;
    let count = |key: &str| {
        let value = made.stdout.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse::<u64>().ok()).ok_or_else(|| report("dumpe2fs", "a number of inodes"))
    };
    let used = count("Inode count")?.saturating_sub(count("Free inodes")?);
    let script = scratch.join("times.debugfs");
    let written = File::create(&script).and_then(|file| commands(BufWriter::new(file), used, &root));
    written.map_err(|source| FsError::Write { device: script.clone(), source })?;
    let set = Tool::new("debugfs")
        .env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string())
        .args(["-w", "-f"])
        .args([script.as_path(), image])
        .limit(LONG_LIMIT)
        .dies_with_parent()
        .run()
        .map_err(failed)?;
    // It always exits with 0, and always prints its version.
    match set.stderr.lines().find(|line| !line.starts_with("debugfs ") && !line.trim().is_empty()) {
        None => Ok(()),
        Some(message) => {
            tracing::error!(message, "debugfs cannot set times");
            Err(report("debugfs", "the confirmation of the times"))
        }
    }
}

/// Commands that set atime and ctime of each inode, and the attributes of the root. Inodes are allocated in ascending order, so those
/// in use are the first ones.
fn commands(mut script: impl Write, used: u64, root: &fs::Metadata) -> io::Result<()> {
    writeln!(script, "set_inode_field <{ROOT_INODE}> mode 0{:o}", root.mode())?;
    writeln!(script, "set_inode_field <{ROOT_INODE}> mtime @{}", root.mtime())?;
    for inode in std::iter::once(ROOT_INODE).chain(FIRST_INODE..=used) {
        for field in ["atime", "ctime"] {
            writeln!(script, "set_inode_field <{inode}> {field} @{MADE_AT}")?;
            writeln!(script, "set_inode_field <{inode}> {field}_extra 0")?;
        }
    }
    script.flush()
}

/// Whether `mke2fs` ran out of blocks, inodes, or space in the underlying file system; its exit code is 1 for any failure.
fn is_full(error: &ToolError) -> bool {
    let messages = ["ould not allocate", "o space left"];
    matches!(error, ToolError::Failed { stderr, .. } if messages.iter().any(|message| stderr.contains(message)))
}

fn write(path: &Path, text: &str) -> Result<(), FsError> {
    fs::write(path, text).map_err(|source| FsError::Write { device: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
