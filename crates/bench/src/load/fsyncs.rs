//! `fsyncs`: threads that each append 16 KiB and fsync, as fast as they can: a busy database without group commit.

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use super::{Load, LoadArgs, Tally, Window, ms_between, noise};

/// Size of each append.
const BLOCK_BYTES: usize = 16 << 10;

pub(super) struct Fsyncs {
    paths: Vec<PathBuf>,
    limit_bytes: u64,
}

impl Fsyncs {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let paths: Vec<PathBuf> =
            (0..args.threads.unwrap_or(8)).map(|index| args.dir.join(format!("fsync-{index}"))).collect();
        for path in &paths {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        }
        Ok(Self { paths, limit_bytes: args.file_bytes.unwrap_or(128 << 20) })
    }
}

impl Load for Fsyncs {
    fn n_threads(&self) -> usize {
        self.paths.len()
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let path = &self.paths[index];
        let context = || format!("cannot append to {}", path.display());
        let block = noise(BLOCK_BYTES, index as u64 + 1);
        let mut file = OpenOptions::new().write(true).open(path).with_context(context)?;
        let mut tally = Tally::default();
        let mut size_bytes = 0u64;
        while !window.is_over() {
            if size_bytes >= self.limit_bytes {
                file.set_len(0).and_then(|()| file.rewind()).with_context(context)?;
                size_bytes = 0;
            }
            file.write_all(&block).with_context(context)?;
            size_bytes += BLOCK_BYTES as u64;
            let begin = Instant::now();
            file.sync_all().with_context(context)?;
            let end = Instant::now();
            if window.holds(begin) {
                tally.fsync_ms.push(ms_between(begin, end));
            }
            if window.holds(end) {
                tally.ops += 1;
                tally.written_bytes += BLOCK_BYTES as u64;
                tally.synced_bytes += BLOCK_BYTES as u64;
            }
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        for path in &self.paths {
            // A file that cannot be removed goes with the volume.
            let _ = fs::remove_file(path);
        }
    }
}
