//! `random-sync`, `random-read`, `cached-read`, `sequential-direct` and `sequential-read`: I/O of one kind to blocks that have been written before.
//!
//! With `O_DIRECT` except `cached-read`: random 4 KiB writes, each followed by fdatasync, or reads, from one or more threads; sequential 128 KiB
//! writes or reads from one thread. On a file in a directory, or on a block device (`--on`), whose data is lost.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::random::Random;
use super::{Load, LoadArgs, LoadKind, Tally, Window, ms_between, noise};

/// Alignment that satisfies every block device's `O_DIRECT`.
const ALIGN: usize = 4096;
const RANDOM_BYTES: usize = 4096;
const SEQUENTIAL_BYTES: usize = 128 << 10;

pub(super) struct Direct {
    path: PathBuf,
    is_ours: bool,
    kind: LoadKind,
    size_bytes: u64,
    n_threads: usize,
}

fn is_random(kind: LoadKind) -> bool {
    matches!(kind, LoadKind::RandomSync | LoadKind::RandomRead | LoadKind::CachedRead)
}

/// Bytes at an aligned address.
struct Aligned {
    room: Vec<u8>,
    from: usize,
    n_bytes: usize,
}

impl Aligned {
    fn new(n_bytes: usize) -> Self {
        let mut room = vec![0; n_bytes + ALIGN];
        let from = room.as_ptr().align_offset(ALIGN);
        room[from..from + n_bytes].copy_from_slice(&noise(n_bytes, 7));
        Self { room, from, n_bytes }
    }

    fn bytes(&self) -> &[u8] {
        &self.room[self.from..self.from + self.n_bytes]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.room[self.from..self.from + self.n_bytes]
    }
}

impl Direct {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let size_bytes = args.file_bytes.unwrap_or(128 << 20) / SEQUENTIAL_BYTES as u64 * SEQUENTIAL_BYTES as u64;
        if size_bytes == 0 {
            bail!("--file-bytes must be at least {SEQUENTIAL_BYTES}");
        }
        let n_threads = if is_random(args.kind) { args.threads.unwrap_or(1).max(1) } else { 1 };
        let path = args.on.clone().unwrap_or_else(|| args.dir.join("direct"));
        let load = Self { path, is_ours: args.on.is_none(), kind: args.kind, size_bytes, n_threads };
        if load.is_ours {
            File::create(&load.path).with_context(|| format!("cannot create {}", load.path.display()))?;
        }
        let (file, block) = (load.open()?, Aligned::new(SEQUENTIAL_BYTES));
        let context = || format!("cannot write {}", load.path.display());
        for at in (0..size_bytes).step_by(SEQUENTIAL_BYTES) {
            file.write_all_at(block.bytes(), at).with_context(context)?;
        }
        file.sync_all().with_context(context)?;
        Ok(load)
    }

    fn open(&self) -> Result<File> {
        let direct = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).context("O_DIRECT is no flag of open(2)")?;
        let flag = if self.kind == LoadKind::CachedRead { 0 } else { direct };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flag).open(&self.path);
        opened.with_context(|| format!("cannot open {}, with O_DIRECT unless it is to be cached", self.path.display()))
    }
}

impl Load for Direct {
    fn n_threads(&self) -> usize {
        self.n_threads
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let context = || format!("cannot use {}", self.path.display());
        let is_random = is_random(self.kind);
        let is_read = matches!(self.kind, LoadKind::SequentialRead | LoadKind::RandomRead | LoadKind::CachedRead);
        let is_durable = self.kind == LoadKind::RandomSync;
        let n_bytes = if is_random { RANDOM_BYTES } else { SEQUENTIAL_BYTES };
        let (file, mut block) = (self.open()?, Aligned::new(n_bytes));
        let n_blocks = self.size_bytes / n_bytes as u64;
        let mut tally = Tally::default();
        let mut random = Random::new(index);
        let mut at = 0;
        while !window.is_over() {
            if is_random {
                at = random.below(n_blocks);
            }
            let begin = Instant::now();
            if is_read {
                file.read_exact_at(block.bytes_mut(), at * n_bytes as u64).with_context(context)?;
            } else {
                file.write_all_at(block.bytes(), at * n_bytes as u64).with_context(context)?;
            }
            if is_durable {
                file.sync_data().with_context(context)?;
            }
            let end = Instant::now();
            at = (at + 1) % n_blocks;
            if window.holds(begin) && !is_read {
                tally.fsync_ms.push(ms_between(begin, end));
            }
            if window.holds(end) {
                tally.ops += 1;
                if is_read {
                    tally.op_ms.push(ms_between(begin, end));
                }
                tally.written_bytes += if is_read { 0 } else { n_bytes as u64 };
                tally.synced_bytes += if is_durable { n_bytes as u64 } else { 0 };
            }
        }
        Ok(tally)
    }

    fn clean_up(&self) {
        if self.is_ours {
            // If this fails, the file is removed with the volume.
            let _ = fs::remove_file(&self.path);
        }
    }
}
