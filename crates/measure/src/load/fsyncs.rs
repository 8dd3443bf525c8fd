//! `fsyncs`: threads that each append 16 KiB and fsync, as fast as they can: a busy database without group commit.

use std::io::{Seek, Write};

use anyhow::{Context, Result};

use super::files::{Files, timed_sync};
use super::{Load, LoadArgs, Tally, Window, noise};

/// Size of each append.
const BLOCK_BYTES: usize = 16 << 10;

pub(super) struct Fsyncs {
    files: Files,
    limit_bytes: u64,
}

impl Fsyncs {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        Ok(Self { files: Files::create(args, "fsync", 8)?, limit_bytes: args.file_bytes.unwrap_or(128 << 20) })
    }
}

impl Load for Fsyncs {
    fn n_threads(&self) -> usize {
        self.files.count()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let context = || format!("cannot append to {}", self.files.path(index).display());
        let block = noise(BLOCK_BYTES, index as u64 + 1);
        let mut file = self.files.open(index)?;
        let mut tally = Tally::default();
        let mut size_bytes = 0u64;
        while !window.is_over() {
            if size_bytes >= self.limit_bytes {
                file.set_len(0).and_then(|()| file.rewind()).with_context(context)?;
                size_bytes = 0;
            }
            file.write_all(&block).with_context(context)?;
            size_bytes += BLOCK_BYTES as u64;
            if timed_sync(&file, window, &mut tally).with_context(context)? {
                tally.ops += 1;
                tally.written_bytes += BLOCK_BYTES as u64;
                tally.synced_bytes += BLOCK_BYTES as u64;
            }
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        self.files.remove();
    }
}
