//! `probe`: a small append + fsync on a fixed schedule, like the log of a database or a queue.
//!
//! The schedule is open loop: a late operation does not postpone the next ones, but makes them late, too. Both the duration of the call and the
//! time since the scheduled moment are recorded, so that no stall hides others.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::{Load, LoadArgs, Tally, Timer, Window, ms_between, noise};

/// Size of each append.
const BLOCK_BYTES: usize = 4096;
/// The file is emptied at this size.
const FILE_BYTES: u64 = 64 << 20;

pub(super) struct Probe {
    path: PathBuf,
    limit_bytes: u64,
    interval: Duration,
}

impl Probe {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let path = args.dir.join("probe");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.sync_all().with_context(|| format!("cannot sync {}", path.display()))?;
        let interval = Duration::from_millis(args.interval_ms.unwrap_or(100));
        Ok(Self { path, limit_bytes: args.file_bytes.unwrap_or(FILE_BYTES), interval })
    }
}

impl Load for Probe {
    fn n_threads(&self) -> usize {
        1
    }

    fn work(&self, _index: usize, window: &Window) -> Result<Tally> {
        let context = || format!("cannot append to {}", self.path.display());
        let mut file = OpenOptions::new().append(true).open(&self.path).with_context(context)?;
        let block = noise(BLOCK_BYTES, 1);
        let timer = Timer::new()?;
        let mut tally = Tally::default();
        let mut size_bytes = 0u64;
        let mut due = Instant::now();
        loop {
            timer.wait_until(due)?;
            // The probe ends with its window in any case; only the neighbour continues.
            if window.is_over() || Instant::now() >= window.end {
                break;
            }
            let begin = Instant::now();
            file.write_all(&block).with_context(context)?;
            file.sync_all().with_context(context)?;
            let end = Instant::now();
            size_bytes += BLOCK_BYTES as u64;
            if window.holds(begin) {
                tally.ops += 1;
                tally.written_bytes += BLOCK_BYTES as u64;
                tally.synced_bytes += BLOCK_BYTES as u64;
                tally.fsync_ms.push(ms_between(begin, end));
                tally.since_scheduled_ms.push(ms_between(due, end));
            }
            due += self.interval;
            if size_bytes >= self.limit_bytes {
                file.set_len(0).and_then(|()| file.sync_all()).with_context(context)?;
                size_bytes = 0;
                // This time does not count against the file system: the schedule restarts.
                due = due.max(Instant::now());
            }
        }
        while due < window.end {
            tally.missed_ops += u64::from(window.holds(due));
            due += self.interval;
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        // If this fails, the file is removed with the volume.
        let _ = fs::remove_file(&self.path);
    }
}
