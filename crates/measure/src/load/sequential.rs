//! `no-fsync`, `low-fsync`, `high-fsync`: the sequential writers of Mardan & Kono 2021 (there with fio).
//!
//! 4 KiB writes through the page cache, one file per thread, which starts over when the file is full, as fio does with `time_based`. The paper
//! does not specify how often its low-fsync workload syncs; here it is after each MiB, and after each write in high-fsync.

use std::io::{Seek, Write};
use std::time::Instant;

use anyhow::{Context, Result};

use super::files::{Files, timed_sync};
use super::{Load, LoadArgs, LoadKind, Tally, Window, noise};

/// Size of each write.
const BLOCK_BYTES: usize = 4096;

pub(super) struct Sequential {
    files: Files,
    limit_bytes: u64,
    /// Bytes between two fsyncs.
    sync_bytes: Option<u64>,
}

impl Sequential {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let sync_bytes = match args.kind {
            LoadKind::HighFsync => Some(BLOCK_BYTES as u64),
            LoadKind::LowFsync => Some(1 << 20),
            _ => None,
        };
        let files = Files::create(args, "sequential", 4)?;
        Ok(Self { files, limit_bytes: args.file_bytes.unwrap_or(128 << 20), sync_bytes })
    }
}

impl Load for Sequential {
    fn n_threads(&self) -> usize {
        self.files.count()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let context = || format!("cannot write {}", self.files.path(index).display());
        let block = noise(BLOCK_BYTES, index as u64 + 1);
        let mut file = self.files.open(index)?;
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
                if timed_sync(&file, window, &mut tally).with_context(context)? {
                    tally.synced_bytes += unsynced_bytes;
                }
                unsynced_bytes = 0;
            }
        }
        Ok(tally)
    }

    fn cut_short(&self) {
        self.files.truncate();
    }

    fn clean_up(&self) {
        self.files.remove();
    }
}
