//! Files on the host's file systems: durable writes, free space, the daemon's lock.
//!
//! Owns the sequence that makes a write durable (temporary file, fsync, rename, fsync of the directory). Does not interpret content; for
//! images see [`crate::image`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bulkhead_core::error::PathError;
use bulkhead_core::units::Bytes;
use rustix::fs::{FlockOperation, OFlags, flock, statvfs, syncfs};
use rustix::io::Errno;

use crate::process;

/// Interval between attempts to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Number of names tried for a temporary file: more than there are concurrent writers and leftovers of crashes.
const TMP_ATTEMPTS: u32 = 100;

/// Free and total space of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Space available to unprivileged processes (without ext4's reserved blocks).
    pub free: Bytes,
    /// Size of the file system.
    pub total: Bytes,
}

/// An exclusive lock on a file, held until it is dropped or the process exits (`flock(2)`).
#[derive(Debug)]
pub struct LockFile {
    _fd: OwnedFd,
}

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call on the file failed.
    #[error(transparent)]
    Io(#[from] PathError),
    /// The path has no file name (`/`, `..`).
    #[error("{path} has no file name")]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// The path exists, and is not overwritten.
    #[error("{path} already exists")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is larger than the caller's limit.
    #[error("{path} is larger than {limit}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: Bytes,
    },
    /// The file system has too little space for the image; a partially created file was removed.
    #[error("there is not enough space for {size} in {path}")]
    NoSpace {
        /// The file.
        path: PathBuf,
        /// Its intended size.
        size: Bytes,
    },
    /// Another process holds the lock.
    #[error("{path} is locked by {}", holder(*.pid))]
    AlreadyLocked {
        /// The lock file.
        path: PathBuf,
        /// The pid written to the file by the holder, if it can be read.
        pid: Option<u32>,
    },
}

impl FileError {
    /// [`FileError::Io`] of `operation` on `path`.
    #[must_use]
    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        PathError::new(operation, path, source).into()
    }

    /// Whether the file does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::Io(PathError { source, .. }) if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Replaces the content of a file atomically and durably: after a crash at any point it has either the old or the new content. The new
/// file has mode 0600. A crash may leave `.<name>.<pid>.<n>.tmp` in its directory ([`remove_leftovers`]).
///
/// # Errors
/// [`FileError::NoName`] or [`FileError::Io`]; the old file is then unchanged, unless only the sync of the directory failed.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let (mut file, tmp) = create_tmp(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io_error("write", &tmp));
    let renamed = written.and_then(|()| fs::rename(&tmp, path).map_err(io_error("replace", path)));
    if let Err(error) = renamed {
        // The first error is the relevant one; a leftover file is harmless.
        let _ = fs::remove_file(&tmp);
        return Err(error);
    }
    sync_dir_of(path)
}

/// Removes what other processes left of [`write_atomic`] for this file when they were killed. The caller ensures that none of them writes it now.
///
/// # Errors
/// [`FileError::NoName`] or [`FileError::Io`]. A missing directory is no error.
pub fn remove_leftovers(path: &Path) -> Result<(), FileError> {
    let name = path.file_name().ok_or_else(|| FileError::NoName { path: path.to_owned() })?;
    let dir = dir_of(path);
    let entries = match fs::read_dir(dir) {
        Err(source) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(io_error("list", dir))?,
    };
    for entry in entries {
        let entry = entry.map_err(io_error("list", dir))?;
        if writer_of(&entry.file_name(), name).is_some_and(|pid| pid != std::process::id()) {
            remove_durable(&entry.path())?;
        }
    }
    Ok(())
}

/// The process that made an entry as the temporary file of `name`.
fn writer_of(entry: &OsStr, name: &OsStr) -> Option<u32> {
    let rest = entry.as_bytes().strip_prefix(b".")?.strip_prefix(name.as_bytes())?;
    let (pid, attempt) = str::from_utf8(rest).ok()?.strip_prefix('.')?.strip_suffix(".tmp")?.split_once('.')?;
    attempt.parse::<u32>().ok()?;
    pid.parse().ok()
}

/// Reads a file of at most `limit` bytes.
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

/// Detects changes of a file without reading it. Any modification or replacement of the file changes its stamp, provided that the file
/// system's clock has advanced since the last one: see [`Stamp::is_settled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    dev: u64,
    inode: u64,
    size: Bytes,
    /// `st_ctime`, which programs cannot set.
    changed: (i64, i64),
}

/// Age after which a change is certain to result in a different ctime: file systems use a clock that advances per tick (1 to 10 ms).
const SETTLE_TIME: Duration = Duration::from_secs(1);

impl Stamp {
    /// The stamp of a file; `None` if it does not exist or cannot be examined.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            dev: found.dev(),
            inode: found.ino(),
            size: Bytes(found.len()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Whether the last change is old enough that the next one is certain to change the stamp. False if it is in the future, as after the
    /// clock was set back.
    #[must_use]
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        now.duration_since(changed).is_ok_and(|ago| ago >= SETTLE_TIME)
    }
}

/// Removes a file durably. Returns `false` if it did not exist.
///
/// # Errors
/// [`FileError::Io`].
pub fn remove_durable(path: &Path) -> Result<bool, FileError> {
    let removed = match fs::remove_file(path) {
        Ok(()) => true,
        Err(source) if source.kind() == io::ErrorKind::NotFound => false,
        Err(source) => return Err(io_error("remove", path)(source)),
    };
    // Also if it was gone already: an earlier removal may have been interrupted before this.
    match sync_dir_of(path) {
        Err(FileError::Io(PathError { source, .. })) if !removed && source.kind() == io::ErrorKind::NotFound => {
            Ok(false)
        }
        synced => synced.map(|()| removed),
    }
}

/// Free and total space of the file system that contains `path`.
///
/// # Errors
/// [`FileError::Io`].
pub fn free_space(path: &Path) -> Result<Space, FileError> {
    let found = statvfs(path).map_err(|errno| io_error("examine the file system of", path)(errno.into()))?;
    let bytes = |blocks: u64| Bytes(blocks.saturating_mul(found.f_frsize));
    Ok(Space { free: bytes(found.f_bavail), total: bytes(found.f_blocks) })
}

/// Whether a path still refers to an open file; false if it does not exist any more.
///
/// # Errors
/// [`FileError::Io`].
pub fn is_at(file: &File, path: &Path) -> Result<bool, FileError> {
    let opened = file.metadata().map_err(io_error("stat", path))?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (opened.dev(), opened.ino())),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(io_error("stat", path)(source)),
    }
}

/// A user other than root who could replace a directory or its entries: its owner or that of an ancestor, or users with write permission;
/// `None` if only root can. For a path that does not exist yet, its nearest existing ancestor is checked.
///
/// # Errors
/// [`FileError::Io`].
pub fn who_can_replace(directory: &Path) -> Result<Option<String>, FileError> {
    // The path as given, which may contain links, and its target.
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let target = existing.canonicalize().map_err(io_error("resolve", existing))?;
    for path in existing.ancestors().chain(target.ancestors()) {
        let found = path.symlink_metadata().map_err(io_error("stat", path))?;
        let (shown, mode) = (path.display(), found.mode());
        if found.uid() != 0 {
            return Ok(Some(format!("{shown} belongs to user {}", found.uid())));
        }
        // In a sticky directory users cannot rename entries of others; a link has no mode of its own.
        let is_itself = path == target && existing == directory;
        let is_safe = mode & 0o1000 != 0 && !is_itself || found.is_symlink();
        if mode & 0o022 != 0 && !is_safe {
            return Ok(Some(format!("users other than root can write to {shown} (mode {:03o})", mode & 0o777)));
        }
    }
    Ok(None)
}

/// Writes out all dirty data of the file system at `path`, and waits for completion (`syncfs(2)`).
///
/// # Errors
/// [`FileError::Io`]; also for an earlier failed write.
pub fn sync_fs(path: &Path) -> Result<(), FileError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    syncfs(&file).map_err(|errno| io_error("sync the file system at", path)(errno.into()))
}

/// Writes back a file's dirty pages, and waits for completion, without a journal commit (`sync_file_range(2)`).
///
/// # Errors
/// The operating system's.
pub fn write_back(file: impl AsFd) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: it takes numbers and a descriptor, which is open while `file` is borrowed.
    match unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes an exclusive lock on a file, creating it if necessary (mode 0600), and writes our pid into it. Does not wait. The file is kept
/// when the lock is released.
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
        // If the file was removed or replaced between open and lock, the lock protects nothing.
        if !is_at(&file, path)? {
            continue;
        }
        // The pid is for error messages only: without it, as on a full disk, the lock is still valid.
        let text = format!("{}\n", std::process::id());
        let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        return Ok(LockFile { _fd: file.into() });
    }
}

/// [`lock_exclusive`], waiting up to `limit` for the holder.
///
/// # Errors
/// [`FileError::AlreadyLocked`] after `limit`, [`FileError::Io`].
pub fn lock_exclusive_within(path: &Path, limit: Duration) -> Result<LockFile, FileError> {
    let give_up = Instant::now() + limit;
    loop {
        match lock_exclusive(path) {
            Err(FileError::AlreadyLocked { .. }) if Instant::now() < give_up => process::pause(LOCK_PAUSE),
            locked => return locked,
        }
    }
}

/// Locks an open file (`flock(2)`), waiting up to `limit` for the holder; `how` is a non-blocking operation. `before` is called before
/// each attempt. False on timeout.
///
/// # Errors
/// Those of `flock(2)`.
pub fn flock_within(
    file: impl AsFd,
    how: FlockOperation,
    limit: Duration,
    mut before: impl FnMut(),
) -> io::Result<bool> {
    let give_up = Instant::now() + limit;
    loop {
        before();
        match flock(&file, how) {
            Ok(()) => return Ok(true),
            Err(Errno::AGAIN) if Instant::now() < give_up => process::pause(LOCK_PAUSE),
            Err(Errno::AGAIN) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn holder(pid: Option<u32>) -> impl fmt::Display {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// [`FileError::Io`] of an operation on a file, for `map_err`.
pub fn io_error(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError::io(operation, path, source)
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => path,
    }
}

/// Makes changes of entries in a file's directory durable.
///
/// # Errors
/// [`FileError::Io`].
pub fn sync_dir_of(path: &Path) -> Result<(), FileError> {
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
            // Used by another thread, or left by a crash.
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists && attempt < TMP_ATTEMPTS => attempt += 1,
            Err(source) => return Err(io_error("create", &tmp)(source)),
        }
    }
}

#[cfg(test)]
mod tests;
