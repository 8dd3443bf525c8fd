//! `volume-overhead`: the overhead of a volume compared with the raw logical volume: 4 KiB random write + fdatasync, from one thread and from 32,
//! and 128 KiB sequential.
//!
//! Writers with O_DIRECT over blocks that have been written before. Rows: the raw logical volume; a file in ext4 on a logical volume; and in ext4 on
//! images of one size, which are all on one ext4 and have been written completely: served by blockd, nbdkit, qemu-nbd and a plain ublk loop, and on a
//! loop device. A window is as long as 20 000 operations take on the raw volume, within bounds.
//! Full form: 7 cells x 3 rounds of at most 70 s, 30 minutes for a slow disk; short form: 7 cells of at most 40 s, 6 minutes. Rows with missing
//! programs are omitted and noted.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_core::journal::Accounting;
use bulkhead_core::model;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, n_rounds, no_choices, set_figure};
use bulkhead_measure::layout::{Bench, Controller, Layout, Target};
use bulkhead_measure::load::{LoadArgs, LoadKind};
use bulkhead_measure::pair::{measure, measure_with};
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_measure::sample::busy_cpu_us;
use bulkhead_sys::file::read_limited;

use crate::additions::{add_image, add_raw, add_served};
use crate::figure as f;
use crate::served::{Served, Server};

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "volume-overhead",
    what: "small synced and large sequential writes on each kind of volume, against the raw device",
    choices: no_choices,
    extent: |options| Extent::new(options, N_CELLS, seconds(options.quick)).after(SET_UP_SECONDS),
    work: run,
};

const ABOUT: &str = "Writers with O_DIRECT over blocks that were written before: one of 4 KiB at random places with fdatasync after each, \
    32 of them at once, then one of 128 KiB sequentially. cpu_us_per_io is all processor time of the machine, of whatever process or kernel thread, for each random \
    write; server_cpu_us_per_io is that of the process that serves the image. host_commits_per_fsync counts all commits of the \
    journal of the file system below the volume; one in 5 s is due there whenever times of files have changed, which no fsync asks for. All images are files of one size on one ext4, with ext4 in them, and every block of them was written \
    before.";

/// Number of cells, if all programs are installed.
const N_CELLS: usize = 7;

/// Warm-up and window on a slow disk, s.
const FULL: (f64, f64) = (2.0, 15.0);
const QUICK: (f64, f64) = (1.0, 5.0);
/// Number of operations that determines the length of a window, which is at least [`MIN_WINDOW_S`].
const OPS_PER_WINDOW: f64 = 20_000.0;
const MIN_WINDOW_S: f64 = 3.0;
/// Warm-up and window of the measurement of the disk's speed.
const TRIAL: (f64, f64) = (0.5, 1.0);
/// Duration of writing the blocks before each load, on the slow disk.
const BETWEEN_SECONDS: f64 = 24.0;
/// Duration of writing five images, on the slow disk.
const SET_UP_SECONDS: f64 = 90.0;
/// Number of writers for a queue depth of 32.
const N_DEEP: usize = 32;
/// Size of the file that is overwritten repeatedly.
const FILE_BYTES: u64 = 128 << 20;

/// Duration of one round of one cell.
fn seconds(quick: bool) -> f64 {
    let (warm_up, window) = if quick { QUICK } else { FULL };
    3.0 * (warm_up + window) + BETWEEN_SECONDS
}

/// Periodic commits of the host's journal per second: one every 5 s (`JBD2_DEFAULT_MAX_COMMIT_AGE`), because timestamps change, and one more at the
/// boundary of the window.
pub(crate) fn due_commits_per_s(round: &Round, quick: bool) -> f64 {
    // Missing in earlier results, in which all disks had the same window.
    let recorded = round.figures.get(f::RANDOM_SECONDS).copied();
    let window = recorded.unwrap_or(if quick { QUICK.1 } else { FULL.1 });
    1.0 / 5.0 + 1.0 / window
}

/// Warm-up and window for a disk with a number of operations per second, of at most the given length.
fn times_at(iops: f64, (warm_up, window): (f64, f64)) -> (f64, f64) {
    let shorter = (OPS_PER_WINDOW / iops.max(1.0)).clamp(MIN_WINDOW_S, window);
    (warm_up * shorter / window, shorter)
}

/// The target of a row's writer, the journal to count, and the process that serves the image.
struct Row {
    layout: &'static str,
    dir: PathBuf,
    on: Option<PathBuf>,
    host_journal: Option<String>,
    server: Option<u32>,
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    if !matches!(options.target, Target::Device { .. }) {
        bail!("volume-overhead needs a whole device, so that there is a raw logical volume to compare with");
    }
    Frame::new(METHOD.name, ABOUT, options, progress).with_bench((100, 100), None, work)
}

fn work(frame: &mut Frame<'_, '_>, bench: &Bench) -> Result<()> {
    let options = frame.options;
    let places = bench.arrange(Layout::OwnAccounted, Controller::None, options.model.as_ref())?;
    let (raw, scratch) = (add_raw(bench)?, places.a.join("scratch"));
    let row = |layout, dir, on| Row { layout, dir, on, host_journal: None, server: None };
    let mut rows = vec![row("raw", scratch.clone(), Some(raw)), row("lv", scratch, None)];
    let host_journal = || bench.shared_device().map(str::to_owned);
    for (layout, server) in [("blockd", model::Server::Auto), ("loop", model::Server::Loop)] {
        frame.say(&format!("writing the image of {layout}"));
        let view = add_image(bench, server)?;
        let server = if let Accounting::Server { pid, .. } = view.accounting { Some(pid) } else { None };
        if layout == "blockd" && server.is_none() {
            let why: Vec<&str> = view.findings.iter().map(|finding| finding.evidence.as_str()).collect();
            frame.experiment.notes.push(format!("no row blockd: it has no block server. {}", why.join("; ")));
            continue;
        }
        let dir = view.mounted_at.with_context(|| format!("the volume of {layout} is not mounted"))?.join("files");
        rows.push(Row { layout, dir, on: None, host_journal: host_journal(), server });
    }
    let mut others: Vec<Served> = Vec::new();
    for server in Server::ALL {
        if let Some(missing) = server.missing() {
            frame.experiment.notes.push(format!("no row {}: {missing}", server.as_str()));
            continue;
        }
        frame.say(&format!("writing the image of {}", server.as_str()));
        let served = add_served(bench, server, &options.cancel)?;
        let dir = served.mounted_at().join("files");
        rows.push(Row { layout: server.as_str(), dir, on: None, host_journal: host_journal(), server: served.pid() });
        frame.experiment.commands.push(format!("{}: {}", server.as_str(), server.describe()));
        let version = server.version().unwrap_or_else(|| "unknown".to_owned());
        frame.experiment.machine.programs.insert(server.as_str().to_owned(), version);
        others.push(served);
    }
    let worked = rounds(frame, bench, &rows);
    others.into_iter().fold(worked, |worked, served| with_removal(worked, served.remove()))
}

fn rounds(frame: &mut Frame<'_, '_>, bench: &Bench, rows: &[Row]) -> Result<()> {
    let options = frame.options;
    frame.say("how fast the raw volume is");
    let raw = rows.first().context("there is no raw volume")?;
    let (trial, pair) = (load(raw, LoadKind::RandomSync), bench.pair()?);
    let trial = measure(&frame.starter(), &pair, Some(&trial), None, TRIAL)?.a.context("the load has no result")?;
    let times = times_at(trial.tally.ops as f64 / trial.seconds, if options.quick { QUICK } else { FULL });
    frame.experiment.commands.push(format!(
        "random-sync, with 1 thread and with {N_DEEP}, and sequential-direct on {} MiB, warm-up {:.1} s, window {:.1} s",
        FILE_BYTES >> 20,
        times.0,
        times.1
    ));
    frame.experiment.notes.push(
        "The raw and the lv row have no file system below the volume: their host commits are 0 by construction."
            .to_owned(),
    );
    let n_rounds = n_rounds(options);
    let cell = |row: &Row| Cell {
        layout: row.layout.to_owned(),
        controller: "none".to_owned(),
        neighbour: String::new(),
        rounds: Vec::new(),
    };
    frame.experiment.cells = rows.iter().map(cell).collect();
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * rows.len();
    for number in 1..=n_rounds {
        for (index, row) in rows.iter().enumerate() {
            frame.say(&format!("round {number} of {n_rounds}: {}", row.layout));
            let round = round(frame, bench, row, times)?;
            frame.finish(index, round)?;
        }
    }
    Ok(())
}

/// Counters that are read around a window.
struct Counters {
    commits: u64,
    busy_us: u64,
    server_us: Option<f64>,
}

impl Counters {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self {
            commits: commits(row.host_journal.as_deref())?,
            busy_us: busy_cpu_us()?,
            server_us: row.server.map(cpu_us_of).transpose()?,
        })
    }
}

fn load(row: &Row, kind: LoadKind) -> LoadArgs {
    LoadArgs { on: row.on.clone(), file_bytes: Some(FILE_BYTES), ..LoadArgs::new(kind, &row.dir, 0.0) }
}

fn round(frame: &Frame<'_, '_>, bench: &Bench, row: &Row, times: (f64, f64)) -> Result<Round> {
    let (starter, pair) = (frame.starter(), bench.pair()?);
    let args = |kind| load(row, kind);
    let mut round = Round::default();
    // Commits and CPU time are read around the window; the load counts only operations that end in it.
    let random = measure_with(&starter, &pair, Some(&args(LoadKind::RandomSync)), None, times, || Counters::read(row))?;
    let load = random.measured.a.context("the load has no result")?;
    let (before, after) = random.around;
    let ops = load.tally.ops.max(1) as f64;
    set_figure(&mut round, f::RANDOM_IOPS, load.tally.ops as f64 / load.seconds);
    set_figure(&mut round, f::RANDOM_SECONDS, load.seconds);
    set_figure(&mut round, "random_write_mean_ms", load.tally.fsync_ms.mean());
    set_figure(&mut round, "random_write_p99_ms", load.tally.fsync_ms.percentile(99.0));
    set_figure(&mut round, f::CPU_US_PER_IO, after.busy_us.saturating_sub(before.busy_us) as f64 / ops);
    let commits = after.commits.saturating_sub(before.commits);
    set_figure(&mut round, f::HOST_COMMITS_PER_FSYNC, commits as f64 / ops);
    set_figure(&mut round, f::HOST_COMMITS_PER_S, commits as f64 / load.seconds);
    set_figure(&mut round, f::SERVER_CPU_US_PER_IO, after.server_us.zip(before.server_us).map(|(a, b)| (a - b) / ops));
    let activity = &random.measured.activity;
    set_figure(&mut round, "device_bytes_per_random_write", activity.device_bytes as f64 / ops);
    set_figure(&mut round, "device_flushes_per_random_write", activity.device_flushes as f64 / ops);
    set_figure(&mut round, "device_busy_random_pct", activity.device_busy_pct);
    let deep = LoadArgs { threads: Some(N_DEEP), ..args(LoadKind::RandomSync) };
    let load = measure(&starter, &pair, Some(&deep), None, times)?.a.context("the load has no result")?;
    set_figure(&mut round, f::DEEP_IOPS, load.tally.ops as f64 / load.seconds);
    let sequential = measure(&starter, &pair, Some(&args(LoadKind::SequentialDirect)), None, times)?;
    let load = sequential.a.context("the load has no result")?;
    set_figure(&mut round, f::SEQUENTIAL_BYTES_PER_S, load.tally.written_bytes as f64 / load.seconds);
    set_figure(&mut round, f::DEVICE_BUSY_PCT, sequential.activity.device_busy_pct);
    Ok(round)
}

/// CPU time of all threads of a process, including those of io_uring, in microseconds. The time of threads that end in between is lost.
fn cpu_us_of(pid: u32) -> Result<f64> {
    let dir = format!("/proc/{pid}/task");
    let mut sum_ns = 0;
    for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot list {dir}"))?.flatten() {
        // It may have ended in the meantime.
        let Ok(text) = read_limited(&entry.path().join("schedstat"), Bytes(256)) else { continue };
        let text = String::from_utf8_lossy(&text);
        sum_ns += text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(sum_ns as f64 / 1e3)
}

/// Commits of the journal of a device since it was mounted; 0 without a journal. The kernel's count of requested commits is of no use: it includes
/// those of a transaction that has become too old (`jbd2_journal_stop`).
fn commits(device: Option<&str>) -> Result<u64> {
    let Some(device) = device else { return Ok(0) };
    let base = Path::new("/proc/fs/jbd2");
    let entries = std::fs::read_dir(base).context("cannot list /proc/fs/jbd2")?;
    let name = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.strip_prefix(device).is_some_and(|rest| rest.starts_with('-')))
        .with_context(|| format!("{device} has no journal in /proc/fs/jbd2"))?;
    let info = read_limited(&base.join(&name).join("info"), Bytes(1 << 16)).context("the journal's statistics")?;
    parse_commits(&String::from_utf8_lossy(&info))
        .with_context(|| format!("the statistics of journal {name} are not understood"))
}

/// The first number of `123 transactions (120 requested), each up to 8192 blocks`.
fn parse_commits(info: &str) -> Option<u64> {
    let (n, rest) = info.trim_start().split_once(' ')?;
    rest.starts_with("transaction").then(|| n.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_read_from_the_journals_statistics() {
        let info =
            "198 transactions (197 requested), each up to 8192 blocks\naverage: \n  0ms waiting for transaction\n";
        assert_eq!(parse_commits(info), Some(198));
        assert_eq!(parse_commits("1 transaction"), Some(1));
        assert_eq!(parse_commits("nothing"), None);
    }

    #[test]
    fn windows_are_as_long_as_many_operations_take() {
        assert_eq!(times_at(97.0, FULL), FULL);
        assert_eq!(times_at(2000.0, FULL), (2.0 * 10.0 / 15.0, 10.0));
        assert_eq!(times_at(50_000.0, FULL), (0.4, 3.0));
        assert_eq!(times_at(50_000.0, QUICK), (0.6, 3.0));
        assert_eq!(times_at(0.0, QUICK), QUICK);
    }

    #[test]
    fn commits_that_are_due_depend_on_the_window() {
        let mut round = Round::default();
        let due = |round: &Round, quick| (due_commits_per_s(round, quick) * 60.0).round();
        assert_eq!((due(&round, false), due(&round, true)), (16.0, 24.0));
        set_figure(&mut round, f::RANDOM_SECONDS, 3.0);
        assert_eq!((due(&round, false), due(&round, true)), (32.0, 32.0));
    }
}
