//! The load generators, which run in a tenant while an experiment measures. Hidden subcommand `bulkhead __load`.
//!
//! Owns: the loads, their protocol on standard input and output, and the JSON line that each prints at its end.
//! Does not: enter cgroups, know about tenants, or compare anything.
//!
//! # Protocol
//! ```text
//! prepare ─▶ "waiting" ─▶ one byte on stdin ─▶ warm-up ─▶ "ready" ─▶ measured window ─▶ one byte on stdin ─▶ JSON line
//! ```
//! A load waits for the two bytes only with `--wait-for-start`; the end of stdin counts as a byte. Loads that receive the first byte together
//! measure the same window. A load continues until the second byte, so that the last operation of the other load still has its neighbour.
//! Without `--wait-for-start`, a load starts at once and ends with its window.

mod clock;
mod database;
mod direct;
mod files;
mod fsyncs;
mod mkdirs;
mod probe;
mod random;
mod sequential;
mod servers;
pub mod storm;
mod streams;
mod tally;

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub use clock::Timer;
pub use random::Random;
pub use tally::{Series, Tally};

/// Printed when the load is prepared and waits for the start.
pub const WAITING: &str = "waiting";
/// Printed when the measured window begins.
pub const READY: &str = "ready";

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum LoadKind {
    /// 4 KiB append + fsync every 100 ms.
    Probe,
    /// 8 threads, each repeatedly writing 128 MiB through the page cache, followed by an fsync.
    Streams,
    /// 8 threads, each 16 KiB write + fsync, closed loop.
    Fsyncs,
    /// Creates and removes many small files.
    Storm,
    /// Sequential 4 KiB writes without fsync.
    NoFsync,
    /// Sequential 4 KiB writes, an fsync after each MiB.
    LowFsync,
    /// Sequential 4 KiB writes, an fsync after each.
    HighFsync,
    /// 4 KiB direct writes at random places, each with fdatasync.
    RandomSync,
    /// 4 KiB direct reads at random places.
    RandomRead,
    /// 4 KiB reads at random places through the page cache.
    CachedRead,
    /// Sequential 128 KiB direct writes.
    SequentialDirect,
    /// Sequential 128 KiB direct reads.
    SequentialRead,
    /// Creates directories, 2000 per second.
    Mkdirs,
    /// Filebench's file server: creates, appends to, reads and removes files of 128 KiB.
    FileServer,
    /// Filebench's web server: reads files of 16 KiB, and appends to a log.
    WebServer,
    /// Filebench's mail server: creates, reads and appends to files of 16 KiB, each with an fsync.
    MailServer,
    /// Filebench's OLTP: reads and durable writes of 2 KiB at random places, and a log.
    DatabaseServer,
}

impl LoadKind {
    /// The name on the command line and in results.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::Streams => "streams",
            Self::Fsyncs => "fsyncs",
            Self::Storm => "storm",
            Self::NoFsync => "no-fsync",
            Self::LowFsync => "low-fsync",
            Self::HighFsync => "high-fsync",
            Self::RandomSync => "random-sync",
            Self::RandomRead => "random-read",
            Self::CachedRead => "cached-read",
            Self::SequentialDirect => "sequential-direct",
            Self::SequentialRead => "sequential-read",
            Self::Mkdirs => "mkdirs",
            Self::FileServer => "file-server",
            Self::WebServer => "web-server",
            Self::MailServer => "mail-server",
            Self::DatabaseServer => "database-server",
        }
    }
}

/// One run of a load.
#[derive(Clone, Debug, PartialEq, clap::Args)]
pub struct LoadArgs {
    /// The kind of load.
    #[arg(value_enum)]
    pub kind: LoadKind,
    /// Directory for the load's files; created if it does not exist. The files are removed at the end.
    #[arg(long)]
    pub dir: PathBuf,
    /// Length of the measured window in seconds.
    #[arg(long)]
    pub seconds: f64,
    /// Length of the warm-up before the window, in seconds.
    #[arg(long, default_value_t = 0.0)]
    pub warm_up_seconds: f64,
    /// Wait for a byte on standard input before the start and for another one before the end.
    #[arg(long)]
    pub wait_for_start: bool,
    /// Number of threads (default: 1 for probe, mkdirs, direct writes and reads, 8 for streams and fsyncs, 2 for storm, Filebench's for
    /// servers, else 4); sequential direct writes and reads have one, and a database's are those that read.
    #[arg(long)]
    pub threads: Option<usize>,
    /// Maximum size of each file in bytes (default: 128 MiB; probe 64 MiB; storm 4 KiB).
    #[arg(long)]
    pub file_bytes: Option<u64>,
    /// probe, storm, mkdirs: time between two operations or batches in milliseconds (default: 100, as fast as it can, 10).
    #[arg(long)]
    pub interval_ms: Option<u64>,
    /// storm: number of batches of 64 files between fsyncs of the directory (default 1; 0: never).
    #[arg(long)]
    pub sync_every: Option<u64>,
    /// file-server, web-server, mail-server: number of files (default: Filebench's).
    #[arg(long)]
    pub files: Option<u64>,
    /// random-sync, random-read, cached-read, sequential-direct, sequential-read: this block device instead of a file; its data is lost.
    #[arg(long)]
    pub on: Option<PathBuf>,
}

impl LoadArgs {
    /// A load with default parameters.
    #[must_use]
    pub fn new(kind: LoadKind, dir: &Path, seconds: f64) -> Self {
        Self {
            kind,
            dir: dir.to_owned(),
            seconds,
            warm_up_seconds: 0.0,
            wait_for_start: false,
            threads: None,
            file_bytes: None,
            interval_ms: None,
            sync_every: None,
            files: None,
            on: None,
        }
    }

    /// The command line behind `__load`.
    #[must_use]
    pub fn argv(&self) -> Vec<String> {
        let mut argv = vec![self.kind.as_str().to_owned()];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                argv.push(format!("--{name}"));
                argv.push(value);
            }
        };
        option("dir", Some(self.dir.display().to_string()));
        option("seconds", Some(self.seconds.to_string()));
        option("warm-up-seconds", (self.warm_up_seconds > 0.0).then(|| self.warm_up_seconds.to_string()));
        option("threads", self.threads.map(|n| n.to_string()));
        option("file-bytes", self.file_bytes.map(|n| n.to_string()));
        option("interval-ms", self.interval_ms.map(|n| n.to_string()));
        option("sync-every", self.sync_every.map(|n| n.to_string()));
        option("files", self.files.map(|n| n.to_string()));
        option("on", self.on.as_ref().map(|path| path.display().to_string()));
        if self.wait_for_start {
            argv.push("--wait-for-start".to_owned());
        }
        argv
    }
}

/// The measurements of a load in its window: the JSON line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// The kind of load.
    pub kind: LoadKind,
    /// Length of the window.
    pub seconds: f64,
    /// Its counts and latencies.
    #[serde(flatten)]
    pub tally: Tally,
}

/// Start and end of the measured window, and the moment to stop.
#[derive(Debug)]
pub(crate) struct Window {
    begin: Instant,
    end: Instant,
    stop: AtomicBool,
}

impl Window {
    fn new(args: &LoadArgs) -> Result<Self> {
        let seconds = |value: f64, name: &str| {
            Duration::try_from_secs_f64(value).with_context(|| format!("{value} is not a number of seconds for {name}"))
        };
        let begin = Instant::now() + seconds(args.warm_up_seconds, "--warm-up-seconds")?;
        Ok(Self { begin, end: begin + seconds(args.seconds, "--seconds")?, stop: AtomicBool::new(false) })
    }

    /// Whether `moment` lies in the measured window.
    pub(crate) fn holds(&self, moment: Instant) -> bool {
        (self.begin..self.end).contains(&moment)
    }

    /// Whether the load must end.
    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// A prepared load.
trait Load: Sync {
    /// Number of worker threads.
    fn n_threads(&self) -> usize;
    /// Runs in worker thread `index` until the window is over.
    fn work(&self, index: usize, window: &Window) -> Result<Tally>;
    /// Called when the window is over, so that workers end soon, for example by dropping dirty pages that they would wait for.
    fn cut_short(&self) {}
    /// Removes the load's files.
    fn clean_up(&self);
}

/// Runs a load with the protocol on standard input and output.
///
/// # Errors
/// If a file operation fails, or the arguments are invalid.
pub fn main(args: &LoadArgs) -> Result<()> {
    let mut say = |line: &str| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).context("cannot write to standard output")
    };
    let hear = || {
        // The end of stdin means that the parent has exited: continue to the end.
        std::io::stdin().read(&mut [0u8; 1]).map(drop).context("cannot read standard input")
    };
    let wait = args.wait_for_start;
    let result = run(args, &mut say, &|| if wait { hear() } else { Ok(()) })?;
    say(&serde_json::to_string(&result).context("cannot encode the result")?)
}

/// Runs a load; `say` gets the protocol's words, `barrier` is called before the start and before the end.
///
/// # Errors
/// As [`main`].
pub fn run(
    args: &LoadArgs,
    say: &mut dyn FnMut(&str) -> Result<()>,
    barrier: &dyn Fn() -> Result<()>,
) -> Result<LoadResult> {
    if args.threads == Some(0) {
        bail!("a load needs at least one thread");
    }
    fs::create_dir_all(&args.dir).with_context(|| format!("cannot create {}", args.dir.display()))?;
    let load: Box<dyn Load> = match args.kind {
        LoadKind::Probe => Box::new(probe::Probe::prepare(args)?),
        LoadKind::Streams => Box::new(streams::Streams::prepare(args)?),
        LoadKind::Fsyncs => Box::new(fsyncs::Fsyncs::prepare(args)?),
        LoadKind::Storm => Box::new(storm::Storm::prepare(args)?),
        LoadKind::NoFsync | LoadKind::LowFsync | LoadKind::HighFsync => {
            Box::new(sequential::Sequential::prepare(args)?)
        }
        LoadKind::Mkdirs => Box::new(mkdirs::Mkdirs::prepare(args)?),
        LoadKind::FileServer | LoadKind::WebServer | LoadKind::MailServer => Box::new(servers::Server::prepare(args)?),
        LoadKind::DatabaseServer => Box::new(database::Database::prepare(args)?),
        LoadKind::RandomSync
        | LoadKind::RandomRead
        | LoadKind::CachedRead
        | LoadKind::SequentialDirect
        | LoadKind::SequentialRead => Box::new(direct::Direct::prepare(args)?),
    };
    say(WAITING)?;
    barrier()?;
    let window = Window::new(args)?;
    let timer = Timer::new()?;
    let outcome = std::thread::scope(|scope| {
        let (load, window) = (load.as_ref(), &window);
        let workers: Vec<_> =
            (0..load.n_threads()).map(|index| scope.spawn(move || load.work(index, window))).collect();
        let conducted = conduct(window, &timer, say, barrier);
        window.stop.store(true, Ordering::Relaxed);
        load.cut_short();
        let mut tally = Tally::default();
        for worker in workers {
            match worker.join() {
                Ok(part) => tally.add(part?),
                Err(_) => bail!("a thread of the load panicked"),
            }
        }
        conducted.map(|()| tally)
    });
    load.clean_up();
    let tally = outcome.with_context(|| format!("load {} in {}", args.kind.as_str(), args.dir.display()))?;
    Ok(LoadResult { kind: args.kind, seconds: args.seconds, tally })
}

fn conduct(
    window: &Window,
    timer: &Timer,
    say: &mut dyn FnMut(&str) -> Result<()>,
    barrier: &dyn Fn() -> Result<()>,
) -> Result<()> {
    timer.wait_until(window.begin)?;
    say(READY)?;
    timer.wait_until(window.end)?;
    barrier()
}

/// Carries out an operation that writes `n_bytes`, and counts it if it ends in the window.
fn counted<T>(
    window: &Window,
    tally: &mut Tally,
    n_bytes: usize,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    let begin = Instant::now();
    let done = work()?;
    let end = Instant::now();
    if window.holds(end) {
        tally.ops += 1;
        tally.written_bytes += n_bytes as u64;
        tally.op_ms.push(ms_between(begin, end));
    }
    Ok(done)
}

/// Milliseconds between two moments.
pub(crate) fn ms_between(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}

/// An incompressible buffer, in which each 512-byte sector differs.
pub fn noise(n_bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes: Vec<u8> = std::iter::repeat_with(|| next().to_le_bytes()).flatten().take(n_bytes).collect();
    bytes.truncate(n_bytes);
    bytes
}

#[cfg(test)]
mod tests;
