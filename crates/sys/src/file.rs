//! Files on the host's file systems: durable writes, free space, the lock of the daemon.
//!
//! Owns how bytes get to stable storage (tmp, fsync, rename, fsync of the directory). Does not know what is in the files; images
//! are in [`crate::image`].

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use bulkhead_core::error::PathError;
use bulkhead_core::units::Bytes;
use rustix::fs::{FlockOperation, OFlags, flock, statvfs, syncfs};
use rustix::io::Errno;

use crate::process;

/// Pause between two tries to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// How many names are tried for a temporary file: more than there are writers and leftovers of crashes.
const TMP_ATTEMPTS: u32 = 100;

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
    _fd: OwnedFd,
}

/// A failed file operation.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A system call on the file failed.
    #[error(transparent)]
    Io(#[from] PathError),
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
    /// Another process holds the lock.
    #[error("{path} is locked by {}", holder(*.pid))]
    AlreadyLocked {
        /// The lock file.
        path: PathBuf,
        /// The process that wrote its pid there, if it can be read.
        pid: Option<u32>,
    },
}

impl FileError {
    /// [`FileError::Io`] of `operation` on `path`.
    #[must_use]
    pub fn io(operation: &'static str, path: impl Into<PathBuf>, source: impl Into<io::Error>) -> Self {
        PathError::new(operation, path, source).into()
    }

    /// Whether there is no such file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, FileError::Io(PathError { source, .. }) if source.kind() == io::ErrorKind::NotFound)
    }
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

/// Tells what a file holds now from what it held before, without reading it. Whatever changes a file, or puts another one in its place,
/// changes this, if the clock of its file system has moved on since: see [`Stamp::is_settled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    dev: u64,
    inode: u64,
    size: Bytes,
    /// `st_ctime`, which no program can set.
    changed: (i64, i64),
}

/// From when on a change is sure to give a file another time: file systems take theirs from a clock that moves at each tick (1 to 10 ms).
const CLOCK_MOVES: Duration = Duration::from_secs(1);

impl Stamp {
    /// That of a file; `None` when it is not there, or cannot be looked at.
    #[must_use]
    pub fn of(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok()?;
        Some(Self {
            dev: found.dev(),
            inode: found.ino(),
            size: Bytes(found.len()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// Whether the last change was so long ago that the next one is sure to be seen. Not when it lies in the future, because somebody
    /// set the clock.
    #[must_use]
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let (Ok(seconds), Ok(nanos)) = (u64::try_from(self.changed.0), u32::try_from(self.changed.1)) else {
            return false;
        };
        let changed = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
        now.duration_since(changed).is_ok_and(|ago| ago >= CLOCK_MOVES)
    }
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
        Err(FileError::Io(PathError { source, .. })) if !removed && source.kind() == io::ErrorKind::NotFound => {
            Ok(false)
        }
        synced => synced.map(|()| removed),
    }
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

/// Whether a path still leads to an open file; not when nothing is there any more.
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

/// Who, beside root, could put something else in the place of a directory or of what is in it: the owner of it or of one above it, or
/// whoever may write there; `None` when nobody can. Of a path that is not there yet, what is there of it counts.
///
/// # Errors
/// [`FileError::Io`].
pub fn who_can_replace(directory: &Path) -> Result<Option<String>, FileError> {
    // As it was given, for links on the way, and as it is reached.
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    let reached = there.canonicalize().map_err(io_error("follow", there))?;
    for path in there.ancestors().chain(reached.ancestors()) {
        let found = path.symlink_metadata().map_err(io_error("stat", path))?;
        let (shown, mode) = (path.display(), found.mode());
        if found.uid() != 0 {
            return Ok(Some(format!("{shown} belongs to user {}", found.uid())));
        }
        // In a sticky directory nobody can rename what is another's; a link has no mode of its own.
        let is_itself = path == reached && there == directory;
        let is_safe = mode & 0o1000 != 0 && !is_itself || found.is_symlink();
        if mode & 0o022 != 0 && !is_safe {
            return Ok(Some(format!("others than root may write to {shown} (mode {:03o})", mode & 0o777)));
        }
    }
    Ok(None)
}

/// Writes everything that the file system at `path` has cached, and waits for it (`syncfs(2)`).
///
/// # Errors
/// [`FileError::Io`]; also for a write that failed before.
pub fn sync_fs(path: &Path) -> Result<(), FileError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    syncfs(&file).map_err(|errno| io_error("sync the file system at", path)(errno.into()))
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
        if !is_at(&file, path)? {
            continue;
        }
        // Only who waits is told; on a full disk the lock is as good.
        let text = format!("{}\n", std::process::id());
        let _ = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        return Ok(LockFile { _fd: file.into() });
    }
}

/// [`lock_exclusive`], waiting for as long as `limit` for those who have the lock.
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

/// Locks an open file (`flock(2)`), waiting for as long as `limit` for those who have it; `how` is one of the operations that do not
/// block. `before` is called before each try. False when others have it still.
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

/// Makes the error of a failed operation on a file.
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

/// Makes the names in a file's directory durable.
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
            // Another thread, or what a crash left.
            Err(source) if source.kind() == io::ErrorKind::AlreadyExists && attempt < TMP_ATTEMPTS => attempt += 1,
            Err(source) => return Err(io_error("create", &tmp)(source)),
        }
    }
}

#[cfg(test)]
mod tests;
