//! `database-server`: Filebench's personality `oltp` (Tarasov, Zadok and Shepler, ";login:" 41(1), 2016; `workloads/oltp.f` of Filebench 1.4.9).
//!
//! Processes of users read 2 KiB at random from ten files of 10 MiB. For every 1000 reads, each of ten writers writes 100 blocks of 2 KiB at
//! random, and for every 3200 one writes 256 KiB to the log, all with `O_DSYNC`. Readers wait for writers that are 2000 reads behind. Unlike
//! there, users only read and do not compute, and there are 20 of them instead of 200.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

use super::random::Random;
use super::{Load, LoadArgs, Tally, Window, counted, ms_between, noise};

const N_READERS: usize = 20;
const N_WRITERS: usize = 10;
const N_FILES: u64 = 10;
const FILE_BYTES: u64 = 10 << 20;
const BLOCK_BYTES: usize = 2 << 10;
const LOG_BYTES: usize = 256 << 10;
/// Reads for each batch of a writer, and for each write to the log.
const READS_PER_BATCH: u64 = 1000;
const READS_PER_LOG: u64 = 3200;
/// Reads that a writer may be behind.
const BEHIND: u64 = 2000;
const WRITES_PER_BATCH: usize = 100;

pub(super) struct Database {
    dir: PathBuf,
    n_readers: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
}

/// Reads so far, and how far each writer has kept up; the last is that of the log.
struct Progress {
    reads: u64,
    written: [u64; N_WRITERS + 1],
    is_over: bool,
}

impl Database {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let database = Self {
            dir: args.dir.join("database"),
            n_readers: args.threads.unwrap_or(N_READERS),
            progress: Mutex::new(Progress { reads: 0, written: [0; N_WRITERS + 1], is_over: false }),
            changed: Condvar::new(),
        };
        fs::create_dir_all(&database.dir).with_context(|| format!("cannot create {}", database.dir.display()))?;
        let data = noise(1 << 20, 5);
        for path in (0..N_FILES).map(|number| database.data(number)).chain([database.log()]) {
            let written = File::create(&path).and_then(|file| {
                for at in (0..FILE_BYTES).step_by(data.len()) {
                    file.write_all_at(&data, at)?;
                }
                file.sync_all()
            });
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(database)
    }

    fn data(&self, number: u64) -> PathBuf {
        self.dir.join(format!("data-{number}"))
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a condition holds; false if the load is over.
    fn wait_until(&self, mut is_ready: impl FnMut(&mut Progress) -> bool) -> bool {
        let mut progress = self.progress();
        loop {
            if progress.is_over {
                return false;
            }
            if is_ready(&mut progress) {
                return true;
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn read(&self, random: &mut Random, window: &Window, tally: &mut Tally) -> Result<()> {
        let files = (0..N_FILES)
            .map(|number| File::open(self.data(number)))
            .collect::<std::io::Result<Vec<File>>>()
            .context("cannot open the data")?;
        let mut block = [0; BLOCK_BYTES];
        while self.wait_until(|progress| {
            progress.reads.saturating_sub(progress.written[..N_WRITERS].iter().copied().min().unwrap_or(0)) < BEHIND
        }) {
            let file = &files[usize::try_from(random.below(N_FILES))?];
            let at = random.below(FILE_BYTES / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
            counted(window, tally, 0, || file.read_exact_at(&mut block, at)).context("cannot read the data")?;
            self.progress().reads += 1;
            self.changed.notify_all();
        }
        Ok(())
    }

    fn write(&self, index: usize, random: &mut Random, window: &Window, tally: &mut Tally) -> Result<()> {
        let flag = i32::try_from(rustix::fs::OFlags::DSYNC.bits()).context("O_DSYNC is no flag of open(2)")?;
        let open = |path: PathBuf| OpenOptions::new().write(true).custom_flags(flag).open(path);
        let is_log = index == N_WRITERS;
        let files =
            if is_log { vec![open(self.log())] } else { (0..N_FILES).map(|number| open(self.data(number))).collect() };
        let files = files.into_iter().collect::<std::io::Result<Vec<File>>>().context("cannot open the data")?;
        let (n_bytes, n_writes, reads) =
            if is_log { (LOG_BYTES, 1, READS_PER_LOG) } else { (BLOCK_BYTES, WRITES_PER_BATCH, READS_PER_BATCH) };
        let block = noise(n_bytes, index as u64 + 1);
        while self.wait_until(|progress| progress.reads - progress.written[index] >= reads) {
            for _ in 0..n_writes {
                if window.is_over() {
                    return Ok(());
                }
                let file = &files[usize::try_from(random.below(files.len() as u64))?];
                let at = random.below(FILE_BYTES / n_bytes as u64) * n_bytes as u64;
                let begin = Instant::now();
                counted(window, tally, n_bytes, || file.write_all_at(&block, at)).context("cannot write the data")?;
                let end = Instant::now();
                if window.holds(begin) {
                    tally.fsync_ms.push(ms_between(begin, end));
                }
                if window.holds(end) {
                    tally.synced_bytes += n_bytes as u64;
                }
            }
            self.progress().written[index] += reads;
            self.changed.notify_all();
        }
        Ok(())
    }
}

impl Load for Database {
    fn n_threads(&self) -> usize {
        N_WRITERS + 1 + self.n_readers
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let (mut random, mut tally) = (Random::new(index), Tally::default());
        if index <= N_WRITERS {
            self.write(index, &mut random, window, &mut tally)?;
        } else {
            self.read(&mut random, window, &mut tally)?;
        }
        Ok(tally)
    }

    fn cut_short(&self) {
        self.progress().is_over = true;
        self.changed.notify_all();
    }

    fn clean_up(&self) {
        // If this fails, the files are removed with the file system.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
