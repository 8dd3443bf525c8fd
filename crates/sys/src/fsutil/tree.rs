//! ext4 of a directory tree, byte for byte the same whenever the tree is the same.
//!
//! `mke2fs -d` copies the tree, and takes entries in the order of their names. What it would take from the clock, from chance
//! or from the host's configuration is given to it. Its directories are lists, which `e2fsck -D` gives hashed indexes, so that a name among
//! thousands is found without reading them all. `mke2fs` also copies when each file was last read and its inode changed, which
//! tells of the copying and not of the tree: `debugfs` sets these times afterwards, and the mode and the time of the root, which are
//! not copied.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bulkhead_core::journal;
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use super::{BLOCK_BYTES, FsError, LONG_LIMIT, tool_error};
use crate::tool::{Tool, ToolError};

/// Features of the file system; none depends on the host's `mke2fs.conf`. With `metadata_csum_seed` a clone's new UUID is one
/// write, and every kernel that has ublk reads them all.
const FEATURES: &str = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,\
    huge_file,dir_nlink,extra_isize,metadata_csum,metadata_csum_seed";

/// A configuration of `mke2fs` that says nothing.
const CONFIG: &str =
    "[defaults]\n[fs_types]\n\text4 = {\n\t}\n\tfloppy = {\n\t}\n\tsmall = {\n\t}\n\tbig = {\n\t}\n\thuge = {\n\t}\n";

/// The UUID of the file system, and the seed of its directories' hashes. Copies of it get UUIDs of their own.
const FS_UUID: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0001);
const HASH_SEED: Uuid = Uuid::from_u128(0x1d69_3a3c_4e0d_8f6e_9b55_b07c_6a5e_0002);

/// When it was made, in seconds after 1970: the first day of 2020. Nothing is read from a clock.
const MADE_AT: u64 = 1_577_836_800;

/// Bytes of a file system for each of its inodes, which is what `mkfs.ext4` gives.
const BYTES_PER_INODE: u64 = 16_384;

/// Inodes that ext4 has for itself, with the root directory and `lost+found`.
const OWN_INODES: u64 = 11;

/// The first inode that is not ext4's own: `lost+found`.
const FIRST_INODE: u64 = 11;

/// The root directory.
const ROOT_INODE: u64 = 2;

/// What a file system is made of.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions<'a> {
    /// The directory.
    pub tree: &'a Path,
    /// How many files, directories and so on are in it, at least.
    pub entries: u64,
    /// Size of the file system.
    pub size: Bytes,
    /// An existing directory of the caller's alone, for what the helper programs read.
    pub scratch: &'a Path,
}

/// Makes ext4 with all that is in a directory tree: files, directories, symbolic and hard links, devices, pipes, owners, modes, times
/// of change in seconds, extended attributes. `image` is a regular file of the file system's size, all of it a hole, that nobody
/// else uses.
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
        .ends_with_us()
        .run()
        .map_err(|source| {
            if is_full(&source) { FsError::TreeTooLarge { device: image.to_owned(), source } } else { failed(source) }
        })?;
    // What it changes is nothing (0) to some versions, and corrected errors (1) to others.
    Tool::new("e2fsck")
        .env("E2FSCK_TIME", MADE_AT.to_string())
        .env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string())
        .args(["-f", "-y", "-D"])
        .arg(image)
        .ok_codes(&[0, 1])
        .limit(LONG_LIMIT)
        .ends_with_us()
        .run()
        .map_err(failed)?;
    let made = Tool::new("dumpe2fs").arg("-h").arg(image).run().map_err(failed)?;
    let count = |key: &str| {
        let value = made.stdout.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.and_then(|value| value.trim().parse::<u64>().ok()).ok_or_else(|| report("dumpe2fs", "a number of inodes"))
    };
    let used = count("Inode count")?.saturating_sub(count("Free inodes")?);
    let script = scratch.join("times.debugfs");
    let told = File::create(&script).and_then(|file| commands(BufWriter::new(file), used, &root));
    told.map_err(|source| FsError::Write { device: script.clone(), source })?;
    let set = Tool::new("debugfs")
        .env("E2FSPROGS_FAKE_TIME", MADE_AT.to_string())
        .args(["-w", "-f"])
        .args([script.as_path(), image])
        .limit(LONG_LIMIT)
        .ends_with_us()
        .run()
        .map_err(failed)?;
    // It ends with 0 whatever happens, and tells its version in any case.
    match set.stderr.lines().find(|line| !line.starts_with("debugfs ") && !line.trim().is_empty()) {
        None => Ok(()),
        Some(complaint) => {
            tracing::error!(complaint, "debugfs cannot set times");
            Err(report("debugfs", "that it set the times"))
        }
    }
}

/// Commands that set when each inode was last read and changed, and what the root is like. Inodes are given out in the order of
/// their numbers, so that those in use are the first.
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

/// Whether `mke2fs` ran out of blocks or inodes, or out of room below: it ends with 1 whatever fails.
fn is_full(error: &ToolError) -> bool {
    let messages = ["ould not allocate", "o space left"];
    matches!(error, ToolError::Failed { stderr, .. } if messages.iter().any(|message| stderr.contains(message)))
}

fn write(path: &Path, text: &str) -> Result<(), FsError> {
    fs::write(path, text).map_err(|source| FsError::Write { device: path.to_owned(), source })
}

#[cfg(test)]
mod tests;
