//! A file for each worker thread, which most loads write to.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use super::{LoadArgs, Tally, Window, ms_between};

/// The files of a load, in the order of its threads.
pub(super) struct Files {
    paths: Vec<PathBuf>,
}

impl Files {
    /// Creates them, empty and synced: `threads` files, unless the arguments have a number.
    pub(super) fn create(args: &LoadArgs, prefix: &str, threads: usize) -> Result<Self> {
        let n_files = args.threads.unwrap_or(threads);
        let paths: Vec<PathBuf> = (0..n_files).map(|index| args.dir.join(format!("{prefix}-{index}"))).collect();
        for path in &paths {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        }
        Ok(Self { paths })
    }

    pub(super) fn count(&self) -> usize {
        self.paths.len()
    }

    /// A thread's file, for errors.
    pub(super) fn path(&self, index: usize) -> &Path {
        &self.paths[index]
    }

    /// Opens a thread's file for writing.
    pub(super) fn open(&self, index: usize) -> Result<File> {
        let path = self.path(index);
        OpenOptions::new().write(true).open(path).with_context(|| format!("cannot open {}", path.display()))
    }

    /// Drops dirty pages that are not under writeback yet: writing them would take long and disturb the next measurement.
    pub(super) fn truncate(&self) {
        std::thread::scope(|scope| {
            for path in &self.paths {
                // The measurement is over; if this fails, the pages are written in vain.
                scope.spawn(move || OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)));
            }
        });
    }

    pub(super) fn remove(&self) {
        for path in &self.paths {
            // If this fails, the file is removed with the volume.
            let _ = fs::remove_file(path);
        }
    }
}

/// Syncs, and counts its duration if it began in the window. Returns whether it ended in the window.
pub(super) fn timed_sync(file: &File, window: &Window, tally: &mut Tally) -> io::Result<bool> {
    let begin = Instant::now();
    file.sync_all()?;
    let end = Instant::now();
    if window.holds(begin) {
        tally.fsync_ms.push(ms_between(begin, end));
    }
    Ok(window.holds(end))
}
