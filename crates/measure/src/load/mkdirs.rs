//! `mkdirs`: creates directories at a fixed rate, as in Tobimatsu et al.: almost pure journal I/O.
//!
//! 20 directories every 10 ms, 500 per parent; fewer if the file system is slower.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Load, LoadArgs, Tally, Timer, Window};

/// Directories per batch.
const BATCH: u64 = 20;
/// Batches per parent.
const IN_PARENT: u64 = 25;
/// Threads that remove them at the end.
const REMOVERS: usize = 4;
/// Time between two batches.
const INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Mkdirs {
    dir: PathBuf,
    interval: Duration,
    n_threads: usize,
}

impl Mkdirs {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let dir = args.dir.join("mkdirs");
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let interval = args.interval_ms.map_or(INTERVAL, Duration::from_millis);
        Ok(Self { dir, interval, n_threads: args.threads.unwrap_or(1) })
    }
}

impl Load for Mkdirs {
    fn n_threads(&self) -> usize {
        self.n_threads
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let (timer, mut tally) = (Timer::new()?, Tally::default());
        let mut due = Instant::now();
        let mut parent = self.dir.clone();
        for n_batch in 0u64.. {
            timer.wait_until(due)?;
            if window.is_over() {
                break;
            }
            if n_batch.is_multiple_of(IN_PARENT) {
                parent = self.dir.join(format!("{index}-{n_batch}"));
                fs::create_dir(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
            }
            for n in 0..BATCH {
                let path = parent.join(format!("{n_batch}-{n}"));
                fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
                if window.holds(Instant::now()) {
                    tally.ops += 1;
                }
            }
            due += self.interval;
            // Missed batches are not caught up.
            let now = Instant::now();
            while due + self.interval < now {
                due += self.interval;
                tally.missed_ops += if window.holds(due) { BATCH } else { 0 };
            }
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        // If this fails, they are removed with the volume.
        let parents: Vec<PathBuf> = fs::read_dir(&self.dir)
            .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default();
        let part = parents.len().div_ceil(REMOVERS).max(1);
        std::thread::scope(|scope| {
            for parents in parents.chunks(part) {
                scope.spawn(move || parents.iter().for_each(|parent| drop(fs::remove_dir_all(parent))));
            }
        });
        let _ = fs::remove_dir_all(&self.dir);
    }
}
