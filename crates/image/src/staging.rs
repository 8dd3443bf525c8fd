//! A temporary directory, locked while it is in use and removed when it is dropped. If a process is killed, the next one finds its directory
//! unlocked and removes it.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::{geteuid, getpid};

use crate::error::{ImportError, failed};

/// Prefix of the names of such directories.
const PREFIX: &str = "bulkhead-image-";

/// A directory that this process alone uses.
#[derive(Debug)]
pub(crate) struct Staging {
    path: PathBuf,
    /// Holds the lock while it is open.
    _lock: File,
}

impl Staging {
    /// Removes stale staging directories in `within`, and creates one.
    pub(crate) fn create(within: &Path) -> Result<Self, ImportError> {
        remove_stale(within)?;
        for n in 0_u32.. {
            let path = within.join(format!("{PREFIX}{}-{n}", getpid().as_raw_nonzero()));
            // Other users must not be able to run set-user-ID programs in it.
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(failed("create the staging directory", &path))?,
            }
            // Another process may have considered it stale and removed it.
            if let Some(lock) = lock(&path).map_err(failed("lock", &path))? {
                return Ok(Self { path, _lock: lock });
            }
        }
        Err(failed("create a staging directory in", within)(io::ErrorKind::AlreadyExists.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If this fails, the next process removes it.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes unlocked staging directories of this user. Other users may be able to create directories in `within`, too.
fn remove_stale(within: &Path) -> Result<(), ImportError> {
    for entry in fs::read_dir(within).map_err(failed("list the staging directory", within))? {
        let entry = entry.map_err(failed("list the staging directory", within))?;
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if is_ours && let Ok(Some(_lock)) = lock(&entry.path()) {
            fs::remove_dir_all(entry.path())
                .map_err(failed("remove the staging directory of an earlier import,", &entry.path()))?;
        }
    }
    Ok(())
}

/// Locks a directory; `None` if it is locked or has been removed.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let directory = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    // It may have been removed or replaced in the meantime.
    let (locked, there) = (directory.metadata()?, fs::symlink_metadata(path));
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())).then_some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_directories_are_removed_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join("bulkhead-image-1-0");
        fs::create_dir_all(left.join("tree/deep")).unwrap();
        fs::write(left.join("tree/deep/file"), "text").unwrap();
        let other = dir.path().join("somebody-elses");
        fs::create_dir(&other).unwrap();
        let link = dir.path().join("bulkhead-image-link");
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let first = Staging::create(dir.path()).unwrap();
        assert!(!left.exists() && other.exists() && link.exists());
        assert_eq!(fs::metadata(first.path()).unwrap().mode() & 0o7777, 0o700);
        let second = Staging::create(dir.path()).unwrap();
        assert!(first.path() != second.path() && first.path().exists());
        fs::write(second.path().join("file"), "text").unwrap();
        drop(second);
        drop(first);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
