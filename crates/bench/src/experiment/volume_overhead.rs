//! `volume-overhead`: what a volume costs against the raw logical volume: 4 KiB random write + fdatasync, 128 KiB sequential.
//!
//! One writer with O_DIRECT over blocks that were written before. Rows: the raw logical volume, a file in ext4 on a logical
//! volume, a file in ext4 on a loop device whose image is on ext4. Full form: 3 cells x 3 rounds of about 60 s, 10 minutes; short
//! form: 3 cells of about 30 s, 2 minutes. The block server's row comes with the block server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::Bytes;
use bulkhead_sys::file::read_limited;

use super::{Frame, OnProgress, Options, put};
use crate::layout::{Bench, Controller, Layout, Target};
use crate::load::{LoadArgs, LoadKind};
use crate::pair::{measure, measure_with};
use crate::report::figure as f;
use crate::result::{Cell, Experiment, Round};

const ABOUT: &str = "One writer with O_DIRECT over blocks that were written before: 4 KiB at random places with fdatasync after each, \
    then 128 KiB sequentially. cpu_us_per_io is all processor time of the machine, of whatever process or kernel thread, for each random \
    write. host_commits_per_fsync counts commits of the journal of the file system below the volume.";

/// The rows.
const LAYOUTS: [&str; 3] = ["raw", "lv", "loop"];
/// Number of cells.
pub(super) const N_CELLS: usize = LAYOUTS.len();

const FULL: (f64, f64) = (2.0, 15.0);
const QUICK: (f64, f64) = (1.0, 6.0);
/// Writing the blocks once before both loads, on the slow disk.
const BETWEEN_SECONDS: f64 = 20.0;
/// Written over again and again.
const FILE_BYTES: u64 = 128 << 20;

/// One round of one cell.
pub(super) fn seconds(quick: bool) -> f64 {
    let (warm_up, window) = if quick { QUICK } else { FULL };
    2.0 * (warm_up + window) + BETWEEN_SECONDS
}

/// Where a row's writer writes, and the journals to count.
struct Row {
    dir: PathBuf,
    on: Option<PathBuf>,
    host_journal: Option<String>,
}

pub(super) fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    if !matches!(options.target, Target::Device { .. }) {
        bail!("volume-overhead needs a whole device, so that there is a raw logical volume to compare with");
    }
    Frame::new("volume-overhead", ABOUT, options, progress).with_bench((100, 100), None, work)
}

fn work(frame: &mut Frame<'_, '_>, bench: &Bench) -> Result<()> {
    let options = frame.options;
    let places = bench.arrange(Layout::OwnAccounted, Controller::None, options.model.as_ref())?;
    let raw = bench.add_raw()?;
    let looped = bench.add_loop()?;
    let host_journal = bench.shared_device().map(str::to_owned);
    let scratch = places.a.join("scratch");
    let rows = [
        Row { dir: scratch.clone(), on: Some(raw), host_journal: None },
        Row { dir: scratch, on: None, host_journal: None },
        Row { dir: looped.join("files"), on: None, host_journal },
    ];
    let times = if options.quick { QUICK } else { FULL };
    frame.experiment.commands.push(format!(
        "random-sync and sequential-direct on {} MiB, warm-up {} s, window {} s",
        FILE_BYTES >> 20,
        times.0,
        times.1
    ));
    frame.experiment.notes.push(
        "The raw and the lv row have no file system below the volume: their host commits are 0 by construction."
            .to_owned(),
    );
    let n_rounds = super::n_rounds(options);
    frame.experiment.cells = LAYOUTS
        .map(|layout| Cell {
            layout: layout.to_owned(),
            controller: "none".to_owned(),
            neighbour: String::new(),
            rounds: Vec::new(),
        })
        .into();
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * LAYOUTS.len();
    for number in 1..=n_rounds {
        for (index, row) in rows.iter().enumerate() {
            frame.say(&format!("round {number} of {n_rounds}: {}", LAYOUTS[index]));
            let round = round(frame, bench, row, times)?;
            frame.experiment.cells[index].rounds.push(round.clone());
            frame.done += 1;
            frame.tell("done", Some((LAYOUTS[index].to_owned(), round)));
            frame.write()?;
        }
    }
    Ok(())
}

fn round(frame: &Frame<'_, '_>, bench: &Bench, row: &Row, times: (f64, f64)) -> Result<Round> {
    let (starter, pair) = (frame.starter(), bench.pair()?);
    let args =
        |kind| LoadArgs { on: row.on.clone(), file_bytes: Some(FILE_BYTES), ..LoadArgs::new(kind, &row.dir, 0.0) };
    let mut round = Round::default();
    // Commits and processor time are read around the window: the load counts only what ends in it.
    let random = measure_with(&starter, &pair, Some(&args(LoadKind::RandomSync)), None, times, || {
        Ok((commits(row.host_journal.as_deref())?, busy_cpu_us()?))
    })?;
    let load = random.measured.a.context("the load has no result")?;
    let ((commits_before, cpu_before), (commits_after, cpu_after)) = random.around;
    let ops = load.ops.max(1) as f64;
    put(&mut round, f::RANDOM_IOPS, load.ops as f64 / load.seconds);
    put(&mut round, "random_write_mean_ms", load.fsync_ms.mean());
    put(&mut round, "random_write_p99_ms", load.fsync_ms.percentile(99.0));
    put(&mut round, f::CPU_US_PER_IO, cpu_after.saturating_sub(cpu_before) as f64 / ops);
    put(&mut round, f::HOST_COMMITS_PER_FSYNC, commits_after.saturating_sub(commits_before) as f64 / ops);
    let activity = &random.measured.activity;
    put(&mut round, "device_bytes_per_random_write", activity.device_bytes as f64 / ops);
    put(&mut round, "device_flushes_per_random_write", activity.device_flushes as f64 / ops);
    put(&mut round, "device_busy_random_pct", activity.device_busy_pct);
    let sequential = measure(&starter, &pair, Some(&args(LoadKind::SequentialDirect)), None, times)?;
    let load = sequential.a.context("the load has no result")?;
    put(&mut round, f::SEQUENTIAL_BYTES_PER_S, load.written_bytes as f64 / load.seconds);
    put(&mut round, f::DEVICE_BUSY_PCT, sequential.activity.device_busy_pct);
    Ok(round)
}

/// Commits of the journal of a device since it was mounted; 0 when there is none to count.
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

/// Processor time that was not idle, of all processors, in microseconds.
fn busy_cpu_us() -> Result<u64> {
    let stat = read_limited(Path::new("/proc/stat"), Bytes(1 << 20)).context("processor times")?;
    parse_busy_us(&String::from_utf8_lossy(&stat)).context("/proc/stat is not understood")
}

/// `cpu user nice system idle iowait irq softirq steal guest guest_nice` in hundredths of a second; guest is within user.
fn parse_busy_us(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = line.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
    let busy = ticks.iter().take(7).sum::<u64>().checked_sub(*ticks.get(3)? + *ticks.get(4)?)?;
    Some(busy * 10_000)
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
    fn idle_time_and_waiting_for_io_are_not_busy() {
        assert_eq!(parse_busy_us("cpu  100 1 50 9000 700 2 3 40 0 0\ncpu0 1 2\n"), Some(156 * 10_000));
        assert_eq!(parse_busy_us("intr 5"), None);
    }
}
