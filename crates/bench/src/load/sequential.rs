//! `no-fsync`, `low-fsync`, `high-fsync`: the sequential writers of Mardan & Kono 2021 (there with fio).
//!
//! 4 KiB writes through the page cache, one file a thread, from its start again when it is full, as fio does with
//! `time_based`. The paper does not say how often its low-fsync workload syncs; here it is after each MiB, and after each
//! write in high-fsync.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{Load, LoadArgs, LoadKind, Tally, Window, ms_between, noise};

/// Size of each write.
const BLOCK_BYTES: usize = 4096;

pub(super) struct Sequential {
    paths: Vec<PathBuf>,
    limit_bytes: u64,
    /// Bytes between two fsyncs.
    sync_bytes: Option<u64>,
}

impl Sequential {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let paths: Vec<PathBuf> =
            (0..args.threads.unwrap_or(4)).map(|index| args.dir.join(format!("sequential-{index}"))).collect();
        for path in &paths {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        }
        let sync_bytes = match args.kind {
            LoadKind::HighFsync => Some(BLOCK_BYTES as u64),
            LoadKind::LowFsync => Some(1 << 20),
            _ => None,
        };
        Ok(Self { paths, limit_bytes: args.file_bytes.unwrap_or(128 << 20), sync_bytes })
    }
}

impl Load for Sequential {
    fn n_threads(&self) -> usize {
        self.paths.len()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let path = &self.paths[index];
        let context = || format!("cannot write {}", path.display());
        let block = noise(BLOCK_BYTES, index as u64 + 1);
        let mut file = OpenOptions::new().write(true).open(path).with_context(context)?;
        let mut tally = Tally::default();
        let (mut at_bytes, mut unsynced_bytes) = (0u64, 0u64);
        while !window.is_over() {
            if at_bytes >= self.limit_bytes {
                file.rewind().with_context(context)?;
                at_bytes = 0;
            }
            file.write_all(&block).with_context(context)?;
            at_bytes += BLOCK_BYTES as u64;
            unsynced_bytes += BLOCK_BYTES as u64;
            if window.holds(Instant::now()) {
                tally.ops += 1;
                tally.written_bytes += BLOCK_BYTES as u64;
            }
            if self.sync_bytes.is_some_and(|limit| unsynced_bytes >= limit) {
                let begin = Instant::now();
                file.sync_all().with_context(context)?;
                let end = Instant::now();
                if window.holds(begin) {
                    tally.fsync_ms.push(ms_between(begin, end));
                }
                if window.holds(end) {
                    tally.synced_bytes += unsynced_bytes;
                }
                unsynced_bytes = 0;
            }
        }
        Ok(tally)
    }

    /// Drops the dirty pages that are not on their way yet, so that they do not disturb the next measurement.
    fn cut_short(&self) {
        std::thread::scope(|scope| {
            for path in &self.paths {
                // The measurement is over; when this fails the pages are written for nothing.
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
