//! `streams`: threads that write large files through the page cache, each ending in an fsync: a backup, a bulk load.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{Load, LoadArgs, Tally, Window, ms_between, noise};

/// Size of each write(2).
const WRITE_BYTES: usize = 1 << 20;

pub(super) struct Streams {
    paths: Vec<PathBuf>,
    file_bytes: u64,
}

impl Streams {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let paths: Vec<PathBuf> =
            (0..args.threads.unwrap_or(8)).map(|index| args.dir.join(format!("stream-{index}"))).collect();
        for path in &paths {
            File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        }
        Ok(Self { paths, file_bytes: args.file_bytes.unwrap_or(128 << 20) })
    }
}

impl Load for Streams {
    fn n_threads(&self) -> usize {
        self.paths.len()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let path = &self.paths[index];
        let context = || format!("cannot write {}", path.display());
        let block = noise(WRITE_BYTES, index as u64 + 1);
        let mut file = OpenOptions::new().write(true).open(path).with_context(context)?;
        let mut tally = Tally::default();
        while !window.is_over() {
            file.set_len(0).and_then(|()| file.rewind()).with_context(context)?;
            let mut size_bytes = 0u64;
            while size_bytes < self.file_bytes && !window.is_over() {
                file.write_all(&block).with_context(context)?;
                size_bytes += block.len() as u64;
                if window.holds(Instant::now()) {
                    tally.written_bytes += block.len() as u64;
                }
            }
            if window.is_over() {
                break;
            }
            let begin = Instant::now();
            file.sync_all().with_context(context)?;
            let end = Instant::now();
            if window.holds(begin) {
                tally.fsync_ms.push(ms_between(begin, end));
            }
            if window.holds(end) {
                tally.ops += 1;
                tally.synced_bytes += size_bytes;
            }
        }
        Ok(tally)
    }

    /// Drops the dirty pages that are not on their way yet: an fsync of 128 MiB on a slow disk would take very long.
    fn cut_short(&self) {
        std::thread::scope(|scope| {
            for path in &self.paths {
                // The measurement is over; when this fails the worker only ends later.
                scope.spawn(move || OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(0)));
            }
        });
    }

    fn clean_up(&self) {
        for path in &self.paths {
            // A file that cannot be removed goes with the volume.
            let _ = fs::remove_file(path);
        }
    }
}
