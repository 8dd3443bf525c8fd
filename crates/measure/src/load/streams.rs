//! `streams`: threads that write large files through the page cache, each ending in an fsync: a backup, a bulk load.

use std::io::{Seek, Write};
use std::time::Instant;

use anyhow::{Context, Result};

use super::files::{Files, timed_sync};
use super::{Load, LoadArgs, Tally, Window, noise};

/// Size of each write(2).
const WRITE_BYTES: usize = 1 << 20;

pub(super) struct Streams {
    files: Files,
    file_bytes: u64,
}

impl Streams {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        Ok(Self { files: Files::create(args, "stream", 8)?, file_bytes: args.file_bytes.unwrap_or(128 << 20) })
    }
}

impl Load for Streams {
    fn n_threads(&self) -> usize {
        self.files.count()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let context = || format!("cannot write {}", self.files.path(index).display());
        let block = noise(WRITE_BYTES, index as u64 + 1);
        let mut file = self.files.open(index)?;
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
            if timed_sync(&file, window, &mut tally).with_context(context)? {
                tally.ops += 1;
                tally.synced_bytes += size_bytes;
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
