//! The cache of whatever is expensive to build: the guest root with its kernels, the result of the KVM trial.
//!
//! Owns: the choice of the directory, and its locks. Does not: know its contents.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::FlockOperation;

use crate::say;

/// The cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    dir: PathBuf,
    /// Held by the task of this process that builds.
    building: Arc<tokio::sync::Mutex<()>>,
}

/// Held while something in the cache is built or used; the kernel releases it when the process ends.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

/// Held while something in the cache is built. The lock against other runs is released first.
#[derive(Debug)]
pub(crate) struct BuildLock {
    _run: CacheLock,
    _task: tokio::sync::OwnedMutexGuard<()>,
}

impl Cache {
    /// `$BULKHEAD_CACHE`, else `$XDG_CACHE_HOME/bulkhead`, else `$HOME/.cache/bulkhead`, else `target/lab`.
    ///
    /// # Errors
    /// When none of them can be created.
    pub fn locate() -> Result<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(dir) = variable("BULKHEAD_CACHE") {
            let made = std::fs::create_dir_all(&dir);
            made.with_context(|| format!("cannot create {} (from BULKHEAD_CACHE)", dir.display()))?;
            return Self::at(&dir);
        }
        let candidates = [
            variable("XDG_CACHE_HOME").map(|dir| dir.join("bulkhead")),
            variable("HOME").map(|dir| dir.join(".cache/bulkhead")),
        ];
        for dir in candidates.into_iter().flatten() {
            if std::fs::create_dir_all(&dir).is_ok() {
                return Self::at(&dir);
            }
        }
        let dir = PathBuf::from("target/lab");
        std::fs::create_dir_all(&dir)
            .context("cannot create a cache directory: set BULKHEAD_CACHE to a writable directory")?;
        Self::at(&dir)
    }

    fn at(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("cannot resolve {}", dir.display()))?;
        Ok(Self { dir, building: Arc::default() })
    }

    /// A path inside the cache.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Waits until no other task of this process and no other run builds in the cache.
    pub(crate) async fn lock_for_building(&self) -> Result<BuildLock> {
        let task = Arc::clone(&self.building).lock_owned().await;
        let file = self.lock_file("build.lock")?;
        let file = if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            file
        } else {
            say::progress(format!("waiting for another run that builds in {}", self.dir.display()));
            let locked = tokio::task::spawn_blocking(move || {
                rustix::fs::flock(&file, FlockOperation::LockExclusive).map(|()| file)
            });
            let locked = locked.await.context("the thread that waits for the lock panicked")?;
            locked.with_context(|| format!("cannot lock {}", self.dir.display()))?
        };
        Ok(BuildLock { _run: CacheLock { _file: file }, _task: task })
    }

    /// Marks `name` as used by this process, so that no other run removes it.
    pub(crate) fn lock_for_use(&self, name: &str) -> Result<CacheLock> {
        let file = self.lock_file(&format!("{name}.lock"))?;
        rustix::fs::flock(&file, FlockOperation::LockShared).with_context(|| format!("cannot lock {name}"))?;
        Ok(CacheLock { _file: file })
    }

    /// Removes the directories whose names start with `prefix`, except `keep` and those in use.
    pub(crate) fn remove_unused(&self, prefix: &str, keep: &str) -> Result<()> {
        let entries = std::fs::read_dir(&self.dir).with_context(|| format!("cannot list {}", self.dir.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if !is_dir || !name.starts_with(prefix) || name == keep {
                continue;
            }
            let lock = self.lock_file(&format!("{name}.lock"))?;
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            say::progress(format!("removing {name} from the cache: no longer needed"));
            std::fs::remove_dir_all(entry.path()).with_context(|| format!("cannot remove {name} from the cache"))?;
            let lock_path = self.path(&format!("{name}.lock"));
            std::fs::remove_file(&lock_path).with_context(|| format!("cannot remove {}", lock_path.display()))?;
        }
        Ok(())
    }

    fn lock_file(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::create(&path).with_context(|| format!("cannot create the lock file {}", path.display()))
    }
}

/// Writes a file atomically: it is either complete or absent.
pub(crate) fn write_atomically(path: &Path, contents: &str) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    std::fs::write(&temporary, contents).with_context(|| format!("cannot write {}", temporary.display()))?;
    std::fs::rename(&temporary, path).with_context(|| format!("cannot rename to {}", path.display()))
}

/// Hash of the inputs of an entry (FNV-1a: an identifier, not a protection).
pub(crate) fn fingerprint<'a>(inputs: impl IntoIterator<Item = &'a str>) -> u64 {
    inputs
        .into_iter()
        .flat_map(|part| part.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn tasks_of_one_thread_build_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::at(dir.path()).unwrap();
        let first = cache.lock_for_building().await.unwrap();
        let other = cache.clone();
        let waits = tokio::spawn(async move { other.lock_for_building().await.map(drop) });
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        drop(first);
        waits.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn waiting_for_another_run_does_not_block_other_tasks() {
        let dir = tempfile::tempdir().unwrap();
        let [one, other] = [(), ()].map(|()| Cache::at(dir.path()).unwrap());
        let first = one.lock_for_building().await.unwrap();
        let waits = tokio::spawn(async move { other.lock_for_building().await.map(drop) });
        tokio::task::yield_now().await;
        drop(first);
        waits.await.unwrap().unwrap();
    }
}
