//! The index of a base: built once, when it is imported, and searched by the peer reader (docs/formats/index.md).
//!
//! The kernel reports which file has which block: the file system is mounted read-only, on no mount point. Only the first block of each
//! group of extents is kept in memory; the rest of an index is read through the page cache.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use bulkhead_core::cow::BLOCK_BYTES;
use bulkhead_core::error::PathError;
use bulkhead_core::model::FsKind;
use bulkhead_formats::index::{
    BlockHasher, CHECKSUM_BYTES, Checker, EXTENT_BYTES, FileId, HASH_BYTES, HEAD_BYTES, IndexError, IndexExtent,
    IndexHead, KEY_BYTES,
};
use bulkhead_formats::layer::LayerError;
use bulkhead_formats::staging::open_direct;
use bulkhead_sys::buffer::{Buffer, CHUNK, to_usize};
use bulkhead_sys::loopdev::{self, LoopError};
use bulkhead_sys::mount::{MountError, MountFlags, mount_detached};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{extents, handle};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use uuid::Uuid;

#[cfg(test)]
mod tests;

/// Extents in a group. A lookup finds the group in memory and reads its extents.
const GROUP: usize = 64;

/// Why an index cannot be built or used.
#[derive(Debug, thiserror::Error)]
pub enum IndexFileError {
    /// Its file, or the base, cannot be read or written.
    #[error(transparent)]
    Io(#[from] PathError),
    /// It is damaged, or has an unknown format.
    #[error("cannot use the index {path}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: IndexError,
    },
    /// It belongs to another base.
    #[error("the index {path} belongs to another base ({found})")]
    Other {
        /// The file.
        path: PathBuf,
        /// Its base.
        found: Uuid,
    },
    /// The base cannot be opened.
    #[error(transparent)]
    Layer(#[from] LayerError),
    /// The base cannot be attached to a loop device.
    #[error(transparent)]
    Loop(#[from] LoopError),
    /// The base cannot be mounted.
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// Builds the index of a base that is no longer written to, and returns the number of its blocks. `progress` is called with the bytes
/// hashed so far.
///
/// # Errors
/// [`IndexFileError`].
pub fn build(
    roots: &Roots,
    base: &Path,
    fs: FsKind,
    content: Uuid,
    to: &Path,
    mut progress: impl FnMut(u64),
) -> Result<u64, IndexFileError> {
    let at_base = |operation| failed(operation, base);
    let device = loopdev::attach_read_only(roots, base)?;
    let options: &[(&str, Option<&str>)] = match fs {
        FsKind::Ext4 => &[("noload", None)],
        FsKind::Xfs => &[("norecovery", None), ("nouuid", None)],
    };
    let flags = MountFlags { nosuid: true, nodev: true, noexec: true, noatime: true, readonly: true };
    let root = mount_detached(&device.path, fs.as_str(), flags, options)?;
    let (handle_type, mut extents) = walk(&root).map_err(at_base("list the files in"))?;
    drop(root);
    extents.sort_unstable_by_key(|extent| extent.block);
    let mut blocks = 0;
    // Blocks that two files share (reflinks of XFS) belong to the first.
    let mut end = 0;
    extents.retain_mut(|extent| {
        let keep = extent.block >= end;
        if keep {
            extent.hash = blocks;
            blocks += u64::from(extent.blocks);
            end = extent.range().end;
        }
        keep
    });
    // Six bits of a random UUID are fixed; two UUIDs have more than 128 random bits.
    let random = [*Uuid::new_v4().as_bytes(), *Uuid::new_v4().as_bytes()].concat();
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&blake3::derive_key(KEY_CONTEXT, &random)[..KEY_BYTES]);
    let head = IndexHead::new(content, handle_type, key, extents.len() as u64, blocks);
    // Readable by root only: with its key, blocks with a colliding hash could be searched for.
    let created = File::options().write(true).create(true).truncate(true).mode(0o600).open(to);
    let written = created.and_then(|file| {
        let mut out = BufWriter::new(file);
        let mut checker = Checker::new(head);
        out.write_all(&head.encode())?;
        for extent in &extents {
            let bytes = extent.encode();
            checker.next(&bytes).map_err(io::Error::other)?;
            out.write_all(&bytes)?;
        }
        out.write_all(&checker.checksum())?;
        out.seek(SeekFrom::Start(head.hashes_offset()))?;
        Ok(out)
    });
    let mut out = written.map_err(failed("write", to))?;
    let file = open_direct(base, OFlags::RDONLY | OFlags::NOATIME)?;
    let (mut buffer, hasher) = (Buffer::new(), head.hasher());
    let mut hashed = 0;
    for extent in &extents {
        let range = extent.range().start * BLOCK_BYTES..extent.range().end * BLOCK_BYTES;
        let mut at = range.start;
        while at < range.end {
            let bytes = buffer.first(to_usize((range.end - at).min(CHUNK)));
            file.read_exact_at(bytes, at).map_err(at_base("read"))?;
            for block in bytes.chunks_exact(4096) {
                out.write_all(&hasher.hash(block)).map_err(failed("write", to))?;
            }
            at += bytes.len() as u64;
            hashed += bytes.len() as u64;
            progress(hashed);
        }
    }
    let synced = out.into_inner().map_err(|error| error.into_error()).and_then(|file| file.sync_all());
    synced.map_err(failed("write", to))?;
    Ok(blocks)
}

/// BLAKE3 context of the key.
const KEY_CONTEXT: &str = "bulkhead 2026-11 key of an index";

fn failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> IndexFileError {
    let path = path.to_owned();
    move |source| PathError::new(operation, &path, source).into()
}

/// All extents of all regular files below a directory, unsorted, and the type of their file handles.
fn walk(root: &OwnedFd) -> io::Result<(u32, Vec<IndexExtent>)> {
    let (mut found, mut linked) = (Vec::new(), HashSet::new());
    let mut handle_type = handle::from_file(root)?.0;
    let mut directories = vec![PathBuf::from(".")];
    while let Some(directory) = directories.pop() {
        let open = |path: &Path, flags| {
            let flags = flags | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
            openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
        };
        for entry in Dir::new(open(&directory, OFlags::DIRECTORY)?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let path = directory.join(OsStr::from_bytes(name));
            match entry.file_type() {
                _ if matches!(name, b"." | b"..") => {}
                FileType::Directory => directories.push(path),
                FileType::RegularFile if linked.insert(entry.ino()) => {
                    let file = File::from(open(&path, OFlags::empty())?);
                    handle_type = add_extents(&file, &mut found)?.unwrap_or(handle_type);
                }
                _ => {}
            }
        }
    }
    Ok((handle_type, found))
}

/// Adds the block-aligned extents of a file; returns the type of its handle.
fn add_extents(file: &File, all: &mut Vec<IndexExtent>) -> io::Result<Option<u32>> {
    let mapped = extents::mapped(file)?;
    if mapped.is_empty() {
        return Ok(None);
    }
    let (handle_type, bytes) = handle::from_file(file)?;
    let Some(id) = FileId::from_handle(handle_type, &bytes) else { return Ok(None) };
    for part in mapped {
        let in_blocks = [part.range.start, part.range.end, part.device].iter().all(|at| at.is_multiple_of(BLOCK_BYTES));
        let blocks = u32::try_from((part.range.end - part.range.start) / BLOCK_BYTES);
        if let (true, Ok(blocks)) = (in_blocks, blocks) {
            let (block, file_block) = (part.device / BLOCK_BYTES, part.range.start / BLOCK_BYTES);
            all.push(IndexExtent { block, blocks, file: id, file_block, hash: 0 });
        }
    }
    Ok(Some(handle_type))
}

/// Blocks of the base that a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The blocks, counted in the base.
    pub blocks: Range<u64>,
    /// The file.
    pub file: FileId,
    /// The first, counted in the file.
    pub file_block: u64,
    hash: u64,
}

impl Place {
    /// A part of it, counted from its first block.
    #[must_use]
    pub fn part(&self, blocks: Range<u64>) -> Self {
        Self {
            blocks: self.blocks.start + blocks.start..self.blocks.start + blocks.end,
            file: self.file,
            file_block: self.file_block + blocks.start,
            hash: self.hash + blocks.start,
        }
    }
}

/// An open index.
#[derive(Debug)]
pub struct Index {
    file: File,
    /// Its head.
    pub head: IndexHead,
    hasher: BlockHasher,
    /// The first block of each group of extents.
    groups: Vec<u64>,
}

impl Index {
    /// Opens an index, and verifies all of it but the hashes: a wrong hash only costs a read from the base.
    ///
    /// # Errors
    /// [`IndexFileError`].
    pub fn open(path: &Path, content: Uuid) -> Result<Self, IndexFileError> {
        let unusable = |source| IndexFileError::Unusable { path: path.to_owned(), source };
        let io = failed("read", path);
        let file = File::open(path).map_err(&io)?;
        let len = file.metadata().map_err(&io)?.len();
        let cut_off = || unusable(IndexError::Damaged("it is too short"));
        let mut input = BufReader::with_capacity(1 << 16, &file);
        let mut read = |bytes: &mut [u8]| match input.read_exact(bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(cut_off()),
            done => done.map_err(&io),
        };
        let mut head = [0; HEAD_BYTES];
        read(&mut head)?;
        let head = IndexHead::decode(&head).map_err(unusable)?;
        if head.content != content {
            return Err(IndexFileError::Other { path: path.to_owned(), found: head.content });
        }
        if head.len() != len {
            return Err(unusable(IndexError::Damaged("its size is not what its head says")));
        }
        let mut checker = Checker::new(head);
        let mut groups = Vec::new();
        let mut bytes = [0; EXTENT_BYTES];
        for n in 0..head.extents {
            read(&mut bytes)?;
            let extent = checker.next(&bytes).map_err(unusable)?;
            if n.is_multiple_of(GROUP as u64) {
                groups.push(extent.block);
            }
        }
        let mut sum = [0; CHECKSUM_BYTES];
        read(&mut sum)?;
        checker.end(&sum).map_err(unusable)?;
        Ok(Self { file, head, hasher: head.hasher(), groups })
    }

    /// The places of those blocks of a range that belong to files.
    ///
    /// # Errors
    /// The operating system's.
    pub fn places(&self, blocks: &Range<u64>) -> io::Result<Vec<Place>> {
        let mut places = Vec::new();
        // The extent of the first block may be the last one of the previous group.
        let mut group = self.groups.partition_point(|first| *first <= blocks.start).saturating_sub(1);
        while self.groups.get(group).is_some_and(|first| *first < blocks.end) {
            let first = (group * GROUP) as u64;
            let count = (self.head.extents - first).min(GROUP as u64);
            let mut bytes = [0; GROUP * EXTENT_BYTES];
            let bytes = &mut bytes[..usize::try_from(count).unwrap_or(GROUP) * EXTENT_BYTES];
            self.file.read_exact_at(bytes, HEAD_BYTES as u64 + first * EXTENT_BYTES as u64)?;
            for extent in bytes.as_chunks::<EXTENT_BYTES>().0.iter().map(IndexExtent::decode) {
                let part = extent.range().start.max(blocks.start)..extent.range().end.min(blocks.end);
                if !part.is_empty() {
                    let skipped = part.start - extent.block;
                    places.push(Place {
                        blocks: part,
                        file: extent.file,
                        file_block: extent.file_block + skipped,
                        hash: extent.hash + skipped,
                    });
                }
            }
            group += 1;
        }
        Ok(places)
    }

    /// Compares bytes with the blocks of a place by their hashes: a mask of those that are equal, of the first 32 at most.
    ///
    /// # Errors
    /// The operating system's.
    pub fn matching(&self, place: &Place, bytes: &[u8]) -> io::Result<u32> {
        let blocks = bytes.chunks_exact(4096).take(32);
        let mut hashes = vec![0; blocks.len() * HASH_BYTES];
        self.file.read_exact_at(&mut hashes, self.head.hashes_offset() + place.hash * HASH_BYTES as u64)?;
        let hashes = hashes.as_chunks::<HASH_BYTES>().0;
        let is_same = blocks.zip(hashes).map(|(block, hash)| self.hasher.hash(block) == *hash);
        Ok(is_same.enumerate().fold(0, |hits, (n, same)| hits | u32::from(same) << n))
    }
}
