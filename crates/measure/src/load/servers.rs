//! `file-server`, `web-server`, `mail-server`: Filebench's personalities `fileserver`, `webserver` and `varmail` with their published mixes,
//! sizes and numbers of threads (Tarasov, Zadok and Shepler, ";login:" 41(1), 2016; `workloads/*.f` of Filebench 1.4.9).
//!
//! An operation is one of Filebench's, closing excepted. A file that is being written, read or removed is used by one thread only, as there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};

use super::random::Random;
use super::{Load, LoadArgs, LoadKind, Tally, Window, counted, ms_between, noise};

/// Mean size of an append, and its maximum in `appendfilerand`.
const APPEND_BYTES: usize = 16 << 10;
/// Size of a read or write of a whole file (`iosize`).
const CHUNK_BYTES: usize = 1 << 20;
/// Files in a directory (`meandirwidth`); a mail server has a single directory.
const DIRECTORY_WIDTH: u64 = 20;
/// Pages that a web server sends before it appends to its log.
const PAGES_PER_ENTRY: usize = 10;

/// The published parameters of a personality.
struct Parameters {
    n_threads: usize,
    n_files: u64,
    mean_bytes: u64,
    is_flat: bool,
}

impl Parameters {
    fn of(kind: LoadKind) -> Self {
        match kind {
            LoadKind::WebServer => Self { n_threads: 100, n_files: 1000, mean_bytes: 16 << 10, is_flat: false },
            LoadKind::MailServer => Self { n_threads: 16, n_files: 1000, mean_bytes: 16 << 10, is_flat: true },
            _ => Self { n_threads: 50, n_files: 10_000, mean_bytes: 128 << 10, is_flat: false },
        }
    }
}

pub(super) struct Server {
    kind: LoadKind,
    dir: PathBuf,
    parameters: Parameters,
    /// What is written.
    data: Vec<u8>,
    /// Files that no thread is using.
    free: Mutex<Vec<u64>>,
    next: AtomicU64,
}

/// What a thread counts, and its buffers.
struct Worker<'a> {
    window: &'a Window,
    data: &'a [u8],
    tally: Tally,
    random: Random,
    room: Vec<u8>,
}

impl Worker<'_> {
    /// Carries out an operation that writes nothing, and counts it.
    fn operation<T>(&mut self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        counted(self.window, &mut self.tally, 0, work)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        let begin = Instant::now();
        self.operation(|| file.sync_all())?;
        if self.window.holds(begin) {
            self.tally.fsync_ms.push(ms_between(begin, Instant::now()));
        }
        Ok(())
    }

    /// Appends a random number of bytes.
    fn append(&mut self, mut file: &File) -> io::Result<()> {
        let n_bytes = 1 + usize::try_from(self.random.below(APPEND_BYTES as u64)).unwrap_or(0);
        counted(self.window, &mut self.tally, n_bytes, || file.write_all(&self.data[..n_bytes]))
    }

    fn read_whole(&mut self, mut file: &File) -> io::Result<()> {
        counted(self.window, &mut self.tally, 0, || {
            while file.read(&mut self.room)? > 0 {}
            Ok(())
        })
    }
}

impl Server {
    pub(super) fn prepare(args: &LoadArgs) -> Result<Self> {
        let mut parameters = Parameters::of(args.kind);
        parameters.n_threads = args.threads.unwrap_or(parameters.n_threads);
        parameters.n_files = args.files.unwrap_or(parameters.n_files).max(1);
        let n_files = parameters.n_files;
        let server = Self {
            kind: args.kind,
            dir: args.dir.join(args.kind.as_str()),
            parameters,
            data: noise(CHUNK_BYTES, 11),
            free: Mutex::new((0..n_files).collect()),
            next: AtomicU64::new(n_files),
        };
        let mut random = Random::new(usize::MAX);
        for number in 0..n_files {
            let path = server.path(number);
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            }
            let written = File::create(&path)
                .and_then(|file| write_whole(&file, &server.data, random.size(server.parameters.mean_bytes)));
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        let root = File::open(&server.dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        root.with_context(|| format!("cannot sync {}", server.dir.display()))?;
        Ok(server)
    }

    fn path(&self, number: u64) -> PathBuf {
        let name = format!("file-{number}");
        if self.parameters.is_flat {
            return self.dir.join(name);
        }
        let leaf = number % self.parameters.n_files / DIRECTORY_WIDTH;
        self.dir.join(format!("dir-{}", leaf / DIRECTORY_WIDTH)).join(format!("dir-{leaf}")).join(name)
    }

    /// A random file that no other thread uses; `None` if there is none.
    fn take(&self, random: &mut Random) -> Option<u64> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = usize::try_from(random.below(free.len() as u64)).ok()?;
        (at < free.len()).then(|| free.swap_remove(at))
    }

    fn give(&self, number: u64) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(number);
    }

    /// Carries out operations on a random existing file.
    fn on_one(
        &self,
        worker: &mut Worker<'_>,
        work: impl FnOnce(&mut Worker<'_>, &Path) -> io::Result<()>,
    ) -> Result<()> {
        let Some(number) = self.take(&mut worker.random) else { return Ok(()) };
        let path = self.path(number);
        let done = work(worker, &path);
        self.give(number);
        done.with_context(|| format!("cannot use {}", path.display()))
    }

    /// Creates a file, and carries out operations on it.
    fn on_new(
        &self,
        worker: &mut Worker<'_>,
        work: impl FnOnce(&mut Worker<'_>, &File) -> io::Result<()>,
    ) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(number);
        let done = worker.operation(|| File::create(&path)).and_then(|file| work(worker, &file));
        self.give(number);
        done.with_context(|| format!("cannot write {}", path.display()))
    }

    fn remove_one(&self, worker: &mut Worker<'_>) -> Result<()> {
        let Some(number) = self.take(&mut worker.random) else { return Ok(()) };
        let path = self.path(number);
        worker.operation(|| fs::remove_file(&path)).with_context(|| format!("cannot remove {}", path.display()))
    }

    fn serve_files(&self, worker: &mut Worker<'_>) -> Result<()> {
        let size = worker.random.size(self.parameters.mean_bytes);
        self.on_new(worker, |worker, file| {
            let n_bytes = usize::try_from(size).unwrap_or(usize::MAX);
            counted(worker.window, &mut worker.tally, n_bytes, || write_whole(file, worker.data, size))
        })?;
        self.on_one(worker, append_to)?;
        self.on_one(worker, read_from)?;
        self.remove_one(worker)?;
        self.on_one(worker, |worker, path| worker.operation(|| fs::metadata(path)).map(drop))
    }

    fn serve_pages(&self, worker: &mut Worker<'_>, log: &File) -> Result<()> {
        for _ in 0..PAGES_PER_ENTRY {
            // Pages are shared by their readers.
            let path = self.path(worker.random.below(self.parameters.n_files));
            read_from(worker, &path).with_context(|| format!("cannot read {}", path.display()))?;
            if worker.window.is_over() {
                return Ok(());
            }
        }
        worker.append(log).context("cannot append to the log")
    }

    fn serve_mail(&self, worker: &mut Worker<'_>) -> Result<()> {
        self.remove_one(worker)?;
        self.on_new(worker, |worker, file| {
            worker.append(file)?;
            worker.sync(file)
        })?;
        self.on_one(worker, |worker, path| {
            let file = worker.operation(|| OpenOptions::new().read(true).append(true).open(path))?;
            worker.read_whole(&file)?;
            worker.append(&file)?;
            worker.sync(&file)
        })?;
        self.on_one(worker, read_from)
    }
}

fn append_to(worker: &mut Worker<'_>, path: &Path) -> io::Result<()> {
    let file = worker.operation(|| OpenOptions::new().append(true).open(path))?;
    worker.append(&file)
}

fn read_from(worker: &mut Worker<'_>, path: &Path) -> io::Result<()> {
    let file = worker.operation(|| File::open(path))?;
    worker.read_whole(&file)
}

fn write_whole(mut file: &File, data: &[u8], size: u64) -> io::Result<()> {
    let mut left = usize::try_from(size).unwrap_or(usize::MAX);
    while left > 0 {
        let part = left.min(data.len());
        file.write_all(&data[..part])?;
        left -= part;
    }
    Ok(())
}

impl Load for Server {
    fn n_threads(&self) -> usize {
        self.parameters.n_threads
    }

    fn work(&self, index: usize, window: &Window) -> Result<Tally> {
        let mut worker = Worker {
            window,
            tally: Tally::default(),
            random: Random::new(index),
            data: &self.data,
            room: vec![0; CHUNK_BYTES],
        };
        let log = self.dir.join("log");
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        while !window.is_over() {
            match self.kind {
                LoadKind::WebServer => self.serve_pages(&mut worker, &log)?,
                LoadKind::MailServer => self.serve_mail(&mut worker)?,
                _ => self.serve_files(&mut worker)?,
            }
        }
        Ok(worker.tally)
    }

    fn clean_up(&self) {
        // If this fails, the files are removed with the file system.
        let _ = fs::remove_dir_all(&self.dir);
    }
}
