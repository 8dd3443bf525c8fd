//! `storm`: many small files created and removed: an unpacked archive, a build, a mail queue.
//!
//! A batch is a directory with 64 files of 4 KiB. Each thread keeps four batches alive and removes the oldest, so that most
//! blocks of a batch reach the journal before the batch is removed. After each batch (or a number of batches), its directory is synced, so that
//! the journal is the bottleneck and not the CPU.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Load, LoadArgs, Tally, Timer, Window, ms_between, noise};

/// Files per batch.
pub const BATCH: u64 = 64;
/// Batches that a thread keeps at a time.
const ALIVE: usize = 4;

pub(super) struct Storm {
    dir: PathBuf,
    n_threads: usize,
    file_bytes: usize,
    sync_every: u64,
    interval: Option<Duration>,
}

impl Storm {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let n_threads = args.threads.unwrap_or(2);
        let file_bytes = usize::try_from(args.file_bytes.unwrap_or(4096)).context("--file-bytes is too large")?;
        let load = Self {
            dir: args.dir.clone(),
            n_threads,
            file_bytes,
            sync_every: args.sync_every.unwrap_or(1),
            interval: args.interval_ms.map(Duration::from_millis),
        };
        for index in 0..n_threads {
            let dir = load.thread_dir(index);
            fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        Ok(load)
    }

    fn thread_dir(&self, index: usize) -> PathBuf {
        self.dir.join(format!("storm-{index}"))
    }
}

impl Load for Storm {
    fn n_threads(&self) -> usize {
        self.n_threads
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let own = self.thread_dir(index);
        let block = noise(self.file_bytes, index as u64 + 1);
        let mut tally = Tally::default();
        let mut alive: VecDeque<PathBuf> = VecDeque::new();
        let (timer, mut due) = (Timer::new()?, Instant::now());
        for n_batch in 0u64.. {
            if let Some(interval) = self.interval {
                timer.wait_until(due)?;
                due += interval;
            }
            let batch = own.join(format!("batch-{n_batch}"));
            create(&batch, &block, window, &mut tally)?;
            if self.sync_every > 0 && (n_batch + 1).is_multiple_of(self.sync_every) {
                let begin = Instant::now();
                let synced = File::open(&batch).and_then(|dir| dir.sync_all());
                synced.with_context(|| format!("cannot sync {}", batch.display()))?;
                if window.holds(begin) {
                    tally.fsync_ms.push(ms_between(begin, Instant::now()));
                }
            }
            alive.push_back(batch);
            if alive.len() > ALIVE
                && let Some(oldest) = alive.pop_front()
            {
                remove(&oldest, window, &mut tally)?;
            }
            if window.is_over() {
                break;
            }
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        for index in 0..self.n_threads {
            // If this fails, they are removed with the volume.
            let _ = fs::remove_dir_all(self.thread_dir(index));
        }
    }
}

fn create(batch: &Path, block: &[u8], window: &Window, tally: &mut Tally) -> Result<()> {
    fs::create_dir(batch).with_context(|| format!("cannot create {}", batch.display()))?;
    for n in 0..BATCH {
        if window.is_over() {
            break;
        }
        let path = batch.join(format!("file-{n}"));
        let written = File::create(&path).and_then(|mut file| file.write_all(block));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        if window.holds(Instant::now()) {
            tally.ops += 1;
            tally.written_bytes += block.len() as u64;
        }
    }
    Ok(())
}

fn remove(batch: &Path, window: &Window, tally: &mut Tally) -> Result<()> {
    for n in 0..BATCH {
        let path = batch.join(format!("file-{n}"));
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        if window.holds(Instant::now()) {
            tally.ops += 1;
        }
    }
    fs::remove_dir(batch).with_context(|| format!("cannot remove {}", batch.display()))
}
