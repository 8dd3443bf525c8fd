//! Files on the host's file systems: durable writes, image files, free space, the lock of the daemon.
//!
//! Owns how bytes get to stable storage (tmp, fsync, rename, fsync of the directory) and how images are allocated. Does not
//! know what is in the files.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use bulkhead_core::units::Bytes;
use rustix::fs::{
    FallocateFlags, FlockOperation, OFlags, SeekFrom, fallocate, fcntl_getfl, fcntl_setfl, fdatasync, flock, ftruncate,
    seek, statfs, statvfs,
};
use rustix::io::Errno;

/// How much is written between two calls of a progress function, in bytes.
const CHUNK: usize = 1 << 20;

/// Alignment of buffer, offset and length for direct I/O, in bytes: no common device has larger logical blocks.
const DIRECT_ALIGN: usize = 4096;

/// How many names are tried for a temporary file: more than there are writers and leftovers of crashes.
const TMP_ATTEMPTS: u32 = 100;

/// How the blocks of an image file are provided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provision {
    /// Not at all: blocks are allocated when they are first written, and the host file system may run full.
    Sparse,
    /// Allocated but unwritten (`fallocate(2)`): space is certain, each first write still costs a host journal commit.
    Unwritten,
    /// Allocated and written with zeroes: later writes change no metadata of the host file system.
    Written,
}

/// Free and total space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// What a process without privileges can still use (without ext4's reserved blocks).
    pub free: Bytes,
    /// Size of the file system.
    pub total: Bytes,
}

/// An exclusive lock on a file, held until it is dropped or the process ends (`flock(2)`).
#[derive(Debug)]
pub struct LockFile {
    fd: OwnedFd,
}

impl LockFile {
    /// The descriptor that holds the lock. It is close-on-exec; a child that gets a copy of it shares the lock.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }
}

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// One step on a file failed.
    #[error("cannot {operation} {path}")]
    Io {
        /// The step, for example `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The path has no file name (`/`, `..`).
    #[error("{path} is not the path of a file")]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// There is something there already; nothing is overwritten.
    #[error("{path} exists already")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is larger than the caller reads.
    #[error("{path} is larger than {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: Bytes,
    },
    /// The file system cannot hold the image; a file that was being created is removed again.
    #[error("there is not enough space for {size} in {path}")]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its wanted size.
        size: Bytes,
    },
    /// The caller's progress function asked to stop.
    #[error("writing {path} was stopped after {done}")]
    Stopped {
        /// The file.
        path: PathBuf,
        /// How much was written.
        done: Bytes,
    },
    /// Another process holds the lock.
    #[error("{path} is locked by {}", holder(*.pid))]
    AlreadyLocked {
        /// The lock file.
        path: PathBuf,
        /// The process that wrote its pid there, if it can be read.
        pid: Option<u32>,
    },
}

/// Replaces a file by `bytes`: after success they are on stable storage, and after a crash at any point the file has either
/// the old or the new content. The new file has mode 0600. A crash may leave `.<name>.<pid>.<n>.tmp` beside it.
///
/// # Errors
/// [`FileError::NoName`] or [`FileError::Io`]; the old file is then untouched, unless only the directory could not be synced.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let (mut file, tmp) = create_tmp(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("write", &tmp));
    let renamed = written.and_then(|()| fs::rename(&tmp, path).map_err(io_error("replace", path)));
    if let Err(error) = renamed {
        // The first error is the one to tell; a leftover is harmless.
        let _ = fs::remove_file(&tmp);
        return Err(error);
    }
    sync_dir_of(path)
}

/// The content of a file of at most `limit`.
///
/// # Errors
/// [`FileError::TooLarge`] or [`FileError::Io`].
pub fn read_limited(path: &Path, limit: Bytes) -> Result<Vec<u8>, FileError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    let mut bytes = Vec::new();
    file.take(limit.0.saturating_add(1)).read_to_end(&mut bytes).map_err(io_error("read", path))?;
    if bytes.len() as u64 > limit.0 {
        return Err(FileError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// Removes a file so that it stays removed after a crash. Returns `false` when it did not exist.
///
/// # Errors
/// [`FileError::Io`].
pub fn remove_durable(path: &Path) -> Result<bool, FileError> {
    let removed = match fs::remove_file(path) {
        Ok(()) => true,
        Err(source) if source.kind() == io::ErrorKind::NotFound => false,
        Err(source) => return Err(io_error("remove", path)(source)),
    };
    // Also when it was gone already: the removal before may not have got this far.
    match sync_dir_of(path) {
        Err(FileError::Io { source, .. }) if !removed && source.kind() == io::ErrorKind::NotFound => Ok(false),
        synced => synced.map(|()| removed),
    }
}

/// Creates an image file of `size` with mode 0600 and makes it durable. With [`Provision::Written`], `progress` is called with
/// what is written so far, at least once per MiB; its `Break` stops the work.
///
/// # Errors
/// [`FileError::Exists`], [`FileError::NoSpace`], [`FileError::Stopped`] or [`FileError::Io`]; the file is then removed again
/// (except for `Exists`).
pub fn create_image(
    path: &Path,
    size: Bytes,
    provision: Provision,
    progress: &mut dyn FnMut(Bytes) -> ControlFlow<()>,
) -> Result<(), FileError> {
    let file =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path).map_err(
            |source| match source.kind() {
                io::ErrorKind::AlreadyExists => FileError::Exists { path: path.to_owned() },
                _ => io_error("create", path)(source),
            },
        )?;
    let made = extend(path, &file, Bytes(0), size, provision, progress)
        .and_then(|()| file.sync_all().map_err(io_error("sync", path)))
        .and_then(|()| sync_dir_of(path));
    if made.is_err() {
        let _ = fs::remove_file(path);
    }
    made
}

/// Writes zeroes where an image has no written data (holes and unwritten extents), up to its present size, and makes that
/// durable. For the background fill of an image that is *not yet in use*: data that is there already is left alone, so an
/// interrupted fill can go on, but somebody who writes at the same time would lose what they write. Returns how much was
/// written; `progress` is called with what is written so far.
///
/// # Errors
/// [`FileError::Stopped`], [`FileError::NoSpace`] or [`FileError::Io`].
pub fn write_zeroes_over_unwritten(
    path: &Path,
    progress: &mut dyn FnMut(Bytes) -> ControlFlow<()>,
) -> Result<Bytes, FileError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error("open", path))?;
    let size = file.metadata().map_err(io_error("stat", path))?.len();
    let seek_error = |errno: Errno| io_error("seek in", path)(errno.into());
    let mut filler = Filler::new(path, &file, Bytes(size), progress);
    let mut at = 0;
    while at < size {
        // At the end of the file there is always a hole, so this finds one; it is the end itself when all is written.
        let hole = seek(&file, SeekFrom::Hole(at)).map_err(seek_error)?;
        if hole >= size {
            break;
        }
        at = match seek(&file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(size),
            // No data after the hole.
            Err(Errno::NXIO) => size,
            Err(errno) => return Err(seek_error(errno)),
        };
        filler.fill(hole, at)?;
    }
    filler.finish()
}

/// Makes an image as large as `size`, as [`create_image`] does; one that is as large already is left alone. Returns the old size.
///
/// # Errors
/// [`FileError::NoSpace`], [`FileError::Stopped`] or [`FileError::Io`]; the file has its old size again.
pub fn grow_image(
    path: &Path,
    size: Bytes,
    provision: Provision,
    progress: &mut dyn FnMut(Bytes) -> ControlFlow<()>,
) -> Result<Bytes, FileError> {
    let (file, old) = open_image(path)?;
    if old >= size {
        return Ok(old);
    }
    let grown = extend(path, &file, old, size, provision, progress)
        .and_then(|()| file.sync_all().map_err(io_error("sync", path)));
    if grown.is_err() {
        // The first error is the one to tell; the caller sees the size anyway.
        let _ = ftruncate(&file, old.0);
    }
    grown.map(|()| old)
}

/// Cuts off what is beyond `size` for good: the file system inside must have been shrunk before. An image that is as small already
/// is left alone. Returns the old size.
///
/// # Errors
/// [`FileError::Io`].
pub fn shrink_image(path: &Path, size: Bytes) -> Result<Bytes, FileError> {
    let (file, old) = open_image(path)?;
    if old > size {
        ftruncate(&file, size.0).map_err(|errno| io_error("shrink", path)(errno.into()))?;
        file.sync_all().map_err(io_error("sync", path))?;
    }
    Ok(old)
}

fn open_image(path: &Path) -> Result<(File, Bytes), FileError> {
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(io_error("open", path))?;
    let size = Bytes(file.metadata().map_err(io_error("stat", path))?.len());
    Ok((file, size))
}

/// Free and total space of the file system that holds `path`.
///
/// # Errors
/// [`FileError::Io`].
pub fn free_space(path: &Path) -> Result<Space, FileError> {
    let found = statvfs(path).map_err(|errno| io_error("look at the file system of", path)(errno.into()))?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
    Ok(Space { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
}

/// The kind of file system that holds `path`, for example `xfs`; `unknown (0x…)` with its magic number when it is not one of
/// the usual ones. `ext4` stands for ext2 and ext3 too, which have the same number.
///
/// # Errors
/// [`FileError::Io`].
pub fn fs_magic_name(path: &Path) -> Result<String, FileError> {
    let found = statfs(path).map_err(|errno| io_error("look at the file system of", path)(errno.into()))?;
    // The field's type differs between architectures; the numbers have 32 bits.
    let magic = u64::try_from(found.f_type).unwrap_or_default() & 0xffff_ffff;
    Ok(magic_name(magic).map_or_else(|| format!("unknown ({magic:#x})"), str::to_owned))
}

/// Whether two paths lead to the same file (device and inode are equal). Follows symbolic links.
///
/// # Errors
/// [`FileError::Io`].
pub fn same_file(a: &Path, b: &Path) -> Result<bool, FileError> {
    let identity = |path: &Path| fs::metadata(path).map(|m| (m.dev(), m.ino())).map_err(io_error("stat", path));
    Ok(identity(a)? == identity(b)?)
}

/// Writes a file's dirty pages to their places, and waits for them, without a commit of the journal (`sync_file_range(2)`).
///
/// # Errors
/// The operating system's reason.
pub fn write_out(file: impl AsFd) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes a descriptor, which is open as long as `file` is borrowed, and numbers.
    match unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes an exclusive lock on a file, which is created when it is not there (mode 0600), and writes our pid into it. Does not
/// wait. The file stays when the lock is given up.
///
/// # Errors
/// [`FileError::AlreadyLocked`] with the pid of the holder, or [`FileError::Io`].
pub fn lock_exclusive(path: &Path) -> Result<LockFile, FileError> {
    let nofollow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    loop {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
        let mut file = options.open(path).map_err(io_error("open", path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = Read::by_ref(&mut file).take(32).read_to_string(&mut text);
                let pid = read.ok().and_then(|_| text.trim().parse().ok());
                return Err(FileError::AlreadyLocked { path: path.to_owned(), pid });
            }
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(io_error("lock", path)(errno.into())),
        }
        // Somebody may have removed or replaced the file between open and lock: such a lock protects nothing.
        let locked = file.metadata().map_err(io_error("stat", path))?;
        match fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => {}
            Ok(_) => continue,
            Err(source) if source.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(io_error("stat", path)(source)),
        }
        let text = format!("{}\n", std::process::id());
        file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0)).map_err(io_error("write", path))?;
        return Ok(LockFile { fd: file.into() });
    }
}

/// Magic numbers of `<linux/magic.h>`, and of XFS, ZFS, Ceph and others that are defined elsewhere.
fn magic_name(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        0x9123_683e => "btrfs",
        0x0102_1994 => "tmpfs",
        0x8584_58f6 => "ramfs",
        0x794c_7630 => "overlay",
        0x6969 => "nfs",
        0xff53_4d42 | 0xfe53_4d42 => "cifs",
        0x6573_5546 => "fuse",
        0xf2f5_2010 => "f2fs",
        0x2fc1_2fc1 => "zfs",
        0x00c3_6400 => "ceph",
        0xca45_1a4e => "bcachefs",
        0x4d44 => "vfat",
        0x0102_1997 => "9p",
        0x7371_7368 => "squashfs",
        0xe0f5_e1e2 => "erofs",
        0x6367_7270 => "cgroup2",
        0x0027_e0eb => "cgroup",
        0x9fa0 => "proc",
        0x6265_6572 => "sysfs",
        _ => return None,
    })
}

fn holder(pid: Option<u32>) -> impl fmt::Display {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

fn io_error(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError::Io { operation, path: path.to_owned(), source }
}

/// An error while space is allocated or written.
fn space_error(operation: &'static str, path: &Path, size: Bytes, source: io::Error) -> FileError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FileError::NoSpace { path: path.to_owned(), size },
        _ => io_error(operation, path)(source),
    }
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => path,
    }
}

fn sync_dir_of(path: &Path) -> Result<(), FileError> {
    let dir = dir_of(path);
    File::open(dir).and_then(|file| file.sync_all()).map_err(io_error("sync directory", dir))
}

fn create_tmp(path: &Path) -> Result<(File, PathBuf), FileError> {
    let name = path.file_name().ok_or_else(|| FileError::NoName { path: path.to_owned() })?;
    let mut attempt = 0;
    loop {
        let mut tmp_name = OsString::from(".");
        tmp_name.push(name);
        tmp_name.push(format!(".{}.{attempt}.tmp", std::process::id()));
        let tmp = dir_of(path).join(tmp_name);
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&tmp) {
            Ok(file) => return Ok((file, tmp)),
            // Another thread, or what a crash left.
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists && attempt < TMP_ATTEMPTS => attempt += 1,
            Err(source) => return Err(io_error("create", &tmp)(source)),
        }
    }
}

/// Brings a file from `old` to `size`. On failure its size may be anything in between.
fn extend(
    path: &Path,
    file: &File,
    old: Bytes,
    size: Bytes,
    provision: Provision,
    progress: &mut dyn FnMut(Bytes) -> ControlFlow<()>,
) -> Result<(), FileError> {
    if provision != Provision::Sparse && size > old {
        // Asked before it is tried: an allocation that fails half-way has filled the file system for everybody else.
        if free_space(path)?.free.0 < size.0 - old.0 {
            return Err(FileError::NoSpace { path: path.to_owned(), size });
        }
        match fallocate(file, FallocateFlags::empty(), old.0, size.0 - old.0) {
            Ok(()) => {}
            // The file system cannot: writing allocates too.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) if provision == Provision::Written => {}
            Err(errno) => return Err(space_error("allocate", path, size, errno.into())),
        }
    }
    ftruncate(file, size.0).map_err(|errno| space_error("size", path, size, errno.into()))?;
    if provision == Provision::Written {
        let mut filler = Filler::new(path, file, size, progress);
        filler.fill(old.0, size.0)?;
        filler.finish()?;
    }
    Ok(())
}

/// Writes zeroes chunk by chunk, with direct I/O where the file system lets us.
struct Filler<'a> {
    path: &'a Path,
    file: &'a File,
    size: Bytes,
    progress: &'a mut dyn FnMut(Bytes) -> ControlFlow<()>,
    done: u64,
    buffer: Vec<u8>,
    /// Where the aligned part of the buffer starts.
    start: usize,
    direct: bool,
}

impl<'a> Filler<'a> {
    fn new(path: &'a Path, file: &'a File, size: Bytes, progress: &'a mut dyn FnMut(Bytes) -> ControlFlow<()>) -> Self {
        let buffer = vec![0u8; CHUNK + DIRECT_ALIGN];
        // Without an aligned start the kernel refuses direct I/O, and the buffered way is taken.
        let start = Some(buffer.as_ptr().align_offset(DIRECT_ALIGN)).filter(|&n| n < DIRECT_ALIGN).unwrap_or(0);
        Self { path, file, size, progress, done: 0, buffer, start, direct: false }
    }

    /// Zeroes from byte `from` up to byte `to`.
    fn fill(&mut self, mut from: u64, to: u64) -> Result<(), FileError> {
        const ALIGN: u64 = DIRECT_ALIGN as u64;
        while from < to {
            // Up to the next multiple of the chunk, so that all but the first and last chunk are aligned.
            let chunk = CHUNK as u64;
            let end = to.min((from / chunk + 1) * chunk);
            // An aligned piece in front of an unaligned end goes the direct way too.
            let end = if from.is_multiple_of(ALIGN) && !end.is_multiple_of(ALIGN) && end - from > ALIGN {
                end - end % ALIGN
            } else {
                end
            };
            self.set_direct(from.is_multiple_of(ALIGN) && end.is_multiple_of(ALIGN));
            let n = usize::try_from(end - from).unwrap_or(CHUNK).min(CHUNK);
            self.write(from, n)?;
            from += n as u64;
            self.done += n as u64;
            if (self.progress)(Bytes(self.done)).is_break() {
                return Err(FileError::Stopped { path: self.path.to_owned(), done: Bytes(self.done) });
            }
        }
        Ok(())
    }

    /// Makes what was written durable; returns how much it was.
    fn finish(mut self) -> Result<Bytes, FileError> {
        self.set_direct(false);
        fdatasync(self.file).map_err(|errno| io_error("sync", self.path)(errno.into()))?;
        Ok(Bytes(self.done))
    }

    fn write(&mut self, at: u64, n: usize) -> Result<(), FileError> {
        let zeroes = &self.buffer[self.start..self.start + n];
        let written = match self.file.write_all_at(zeroes, at) {
            // The file system takes the flag but not this write (its blocks are larger).
            Err(source) if self.direct && source.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                set_direct(self.file, false);
                self.direct = false;
                self.file.write_all_at(zeroes, at)
            }
            written => written,
        };
        written.map_err(|source| space_error("write", self.path, self.size, source))
    }

    fn set_direct(&mut self, wanted: bool) {
        if self.direct != wanted {
            self.direct = set_direct(self.file, wanted) && wanted;
        }
    }
}

/// Sets or clears `O_DIRECT`; `false` when the file system refuses, which only costs page cache.
fn set_direct(file: impl AsFd, wanted: bool) -> bool {
    let Ok(mut flags) = fcntl_getfl(&file) else { return false };
    flags.set(OFlags::DIRECT, wanted);
    fcntl_setfl(&file, flags).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GO_ON: fn(Bytes) -> ControlFlow<()> = |_| ControlFlow::Continue(());

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Where data starts, or `None` when there is none.
    fn first_data(path: &Path) -> Option<u64> {
        seek(File::open(path).unwrap(), SeekFrom::Data(0)).ok()
    }

    fn first_hole(path: &Path) -> u64 {
        seek(File::open(path).unwrap(), SeekFrom::Hole(0)).unwrap()
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.json");
        // What a crash of a process with our pid left.
        fs::write(dir.path().join(format!(".state.json.{}.0.tmp", std::process::id())), "old").unwrap();
        write_atomic(&path, b"one").unwrap();
        write_atomic(&path, b"two").unwrap();
        assert_eq!(read_limited(&path, Bytes(3)).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(names(dir.path()).len(), 2);
        assert!(matches!(read_limited(&path, Bytes(2)), Err(FileError::TooLarge { .. })));
        assert!(matches!(write_atomic(Path::new("/"), b""), Err(FileError::NoName { .. })));
        // A directory is in the way: the temporary file goes, the directory stays.
        fs::create_dir_all(dir.path().join("d/x")).unwrap();
        let error = write_atomic(&dir.path().join("d"), b"x").unwrap_err();
        assert!(error.to_string().starts_with("cannot replace "), "{error}");
        assert_eq!(names(dir.path()).len(), 3);
    }

    #[test]
    fn removal_is_idempotent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "").unwrap();
        assert!(remove_durable(&path).unwrap());
        assert!(!remove_durable(&path).unwrap());
        assert!(!remove_durable(&dir.path().join("no/x")).unwrap());
        assert!(remove_durable(dir.path()).is_err());
    }

    #[test]
    fn images_are_provided_as_asked() {
        let dir = tempfile::tempdir().unwrap();
        for (name, provision) in
            [("sparse", Provision::Sparse), ("unwritten", Provision::Unwritten), ("written", Provision::Written)]
        {
            let path = dir.path().join(name);
            // Not a multiple of the chunk, nor of the block.
            let size = Bytes(5 * Bytes::MIB / 2 + 4096 + 123);
            let mut seen = Vec::new();
            let mut progress = |done: Bytes| {
                seen.push(done);
                ControlFlow::Continue(())
            };
            create_image(&path, size, provision, &mut progress).unwrap();
            let meta = fs::metadata(&path).unwrap();
            assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (size.0, 0o600));
            if provision == Provision::Written {
                assert_eq!(seen.last(), Some(&size));
                assert!(seen.is_sorted() && seen.len() >= 3, "{seen:?}");
                assert_eq!(first_data(&path), Some(0));
                assert!(first_hole(&path) >= size.0);
            } else {
                assert!(seen.is_empty());
            }
            assert_eq!(meta.blocks() * 512 >= size.0, provision != Provision::Sparse);
            assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
            assert!(matches!(create_image(&path, size, provision, &mut GO_ON.clone()), Err(FileError::Exists { .. })));
        }
    }

    #[test]
    fn a_stopped_image_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut stop =
            |done: Bytes| if done.0 >= 2 * Bytes::MIB { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let error = create_image(&path, Bytes::mib(64), Provision::Written, &mut stop).unwrap_err();
        assert!(matches!(error, FileError::Stopped { done, .. } if done == Bytes::mib(2)), "{error}");
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn an_image_that_cannot_fit_is_refused_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let size = Bytes(free_space(dir.path()).unwrap().total.0 * 2);
        let error = create_image(&path, size, Provision::Unwritten, &mut GO_ON.clone()).unwrap_err();
        assert!(matches!(error, FileError::NoSpace { .. } | FileError::Io { .. }), "{error:?}");
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn the_background_fill_leaves_data_alone_and_goes_on_after_a_stop() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        create_image(&path, Bytes::mib(6), Provision::Unwritten, &mut GO_ON.clone()).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[7; 8192], 3 * Bytes::MIB).unwrap();
        file.sync_all().unwrap();
        let mut once = true;
        let mut stop = |_| if std::mem::take(&mut once) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        assert!(matches!(write_zeroes_over_unwritten(&path, &mut stop), Err(FileError::Stopped { .. })));
        let rest = write_zeroes_over_unwritten(&path, &mut GO_ON.clone()).unwrap();
        assert!(rest.0 <= 5 * Bytes::MIB, "{rest}");
        assert_eq!(first_hole(&path), Bytes::mib(6).0);
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.iter().enumerate().all(|(at, &b)| (b == 7) == (3 << 20..(3 << 20) + 8192).contains(&at)));
        assert_eq!(write_zeroes_over_unwritten(&path, &mut GO_ON.clone()).unwrap(), Bytes(0));
    }

    #[test]
    fn images_grow_and_shrink() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let mut go_on = GO_ON;
        create_image(&path, Bytes::mib(1), Provision::Sparse, &mut go_on).unwrap();
        assert_eq!(grow_image(&path, Bytes::mib(3), Provision::Written, &mut go_on).unwrap(), Bytes::mib(1));
        assert_eq!(first_data(&path), Some(Bytes::MIB));
        assert_eq!(grow_image(&path, Bytes::mib(2), Provision::Sparse, &mut go_on).unwrap(), Bytes::mib(3));
        assert_eq!(fs::metadata(&path).unwrap().len(), Bytes::mib(3).0, "growing cuts nothing off");
        assert_eq!(shrink_image(&path, Bytes::mib(2)).unwrap(), Bytes::mib(3));
        assert_eq!(shrink_image(&path, Bytes::mib(4)).unwrap(), Bytes::mib(2));
        let mut stop = |_| ControlFlow::Break(());
        grow_image(&path, Bytes::mib(9), Provision::Written, &mut stop).unwrap_err();
        assert_eq!(fs::metadata(&path).unwrap().len(), Bytes::mib(2).0);
    }

    #[test]
    fn file_systems_have_names() {
        assert_eq!(fs_magic_name(Path::new("/proc")).unwrap(), "proc");
        assert_eq!(magic_name(0xef53), Some("ext4"));
        assert_eq!(magic_name(1), None);
        let space = free_space(Path::new("/")).unwrap();
        assert!(space.free <= space.total && space.total > Bytes(0));
        assert!(matches!(free_space(Path::new("/nonexistent")), Err(FileError::Io { .. })));
    }

    #[test]
    fn the_same_file_has_many_names() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "").unwrap();
        fs::hard_link(&a, &b).unwrap();
        assert!(same_file(&a, &b).unwrap());
        assert!(!same_file(&a, dir.path()).unwrap());
        assert!(same_file(&a, &dir.path().join("c")).is_err());
    }

    #[test]
    fn the_second_daemon_learns_who_the_first_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        fs::write(&path, "999999 left by a longer pid\n").unwrap();
        let lock = lock_exclusive(&path).unwrap();
        let error = lock_exclusive(&path).unwrap_err();
        let expected = format!("{} is locked by process {}", path.display(), std::process::id());
        assert_eq!(error.to_string(), expected);
        drop(lock);
        let _fd = lock_exclusive(&path).unwrap().into_fd();
        assert!(matches!(lock_exclusive(&path), Err(FileError::AlreadyLocked { pid: Some(_), .. })));
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(matches!(lock_exclusive(&dir.path().join("link")), Err(FileError::Io { .. })));
    }
}
