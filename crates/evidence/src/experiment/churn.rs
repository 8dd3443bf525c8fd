//! `churn`: containers come and go for half an hour while they are observed as by the daemon.
//!
//! Four at a time on one ext4 in memory, with its journal on a separate device; each has its own cgroup, works for two seconds and is removed. Each
//! third of the run is a round: the charges must equal the bytes written to the journal's device, and neither the memory of this process nor the
//! programs' maps may keep growing. Full form: 3 rounds of 10 minutes; short form: 3 rounds of one minute, too short for removed containers to be
//! evicted (10 minutes).

use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_api::wire::Observation;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::observe::activity::FileSystemView;
use bulkhead_core::observe::record::Kind;
use bulkhead_core::units::Bytes;
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_measure::cgroup_run::{Load, wait_until};
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, no_choices, set_figure};
use bulkhead_measure::load::{LoadArgs, LoadKind};
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_sys::block;
use bulkhead_sys::cgroup;
use bulkhead_sys::file::read_limited;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::scratch::Scratch;

use super::containers::in_slice;
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "churn",
    what: "charges and memory of the observer while containers come and go",
    choices: no_choices,
    extent: |options| Extent { n_rounds: N_ROUNDS, ..Extent::new(options, 1, seconds(options.quick)) },
    work: run,
};

const ABOUT: &str = "Four containers at a time, each a cgroup that lives for two seconds, on one ext4 with an external journal, both in memory: \
    one appends with fsync, one makes and removes files, one writes with an fsync after each MiB, one never calls fsync. Observed \
    all the time, and asked every five seconds, as a Prometheus would. Each round is a third of one run.";

/// The loads of the containers in the four slots.
const KINDS: [LoadKind; 4] = [LoadKind::Probe, LoadKind::Storm, LoadKind::LowFsync, LoadKind::NoFsync];
/// Number of rounds.
const N_ROUNDS: u32 = 3;
const FULL: f64 = 600.0;
const QUICK: f64 = 60.0;
/// Lifetime of a container.
const LIFE: f64 = 2.0;
/// Interval between two observations.
const SCRAPE: Duration = Duration::from_secs(5);
/// Size of each file.
const FILE_BYTES: u64 = 2 << 20;
const JOURNAL: Bytes = Bytes::mib(64);

/// Duration of one round.
fn seconds(quick: bool) -> f64 {
    if quick { QUICK } else { FULL }
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    in_slice((METHOD.name, ABOUT), options, progress, work)
}

/// A running container.
struct Slot {
    load: Load,
    cgroup: CgroupPath,
    until: Instant,
}

fn work(frame: &mut Frame<'_, '_>, roots: &Roots, slice: &CgroupPath) -> Result<()> {
    frame.say("beginning to observe");
    let scratch = Scratch::ext4(roots, JOURNAL, &[], &[])?;
    let device = block::name_of(roots, scratch.fs_dev()).context("the scratch file system's device")?;
    frame.experiment.disk.model = "memory".to_owned();
    frame.experiment.disk.parameters = "loop devices over memory, for file system and journal".to_owned();
    frame.experiment.cells = vec![Cell {
        layout: "containers that come and go".to_owned(),
        controller: String::new(),
        neighbour: String::new(),
        rounds: Vec::new(),
    }];
    frame.of = usize::try_from(N_ROUNDS).context("too many rounds")?;
    let observatory = Observatory::new(roots.clone());
    let seconds = seconds(frame.options.quick);
    scratch.settle().context("cannot write the scratch file system out")?;
    let mut before = charged(&observatory.observe(Duration::ZERO)?, &device);
    let mut written = scratch.journal_written(roots)?;
    let mut n_containers = 0;
    for number in 1..=N_ROUNDS {
        frame.say(&format!("round {number} of {N_ROUNDS}: {seconds} s of containers"));
        let made = containers(frame, roots, slice, &scratch, &observatory, seconds, &mut n_containers)?;
        scratch.settle().context("cannot write the scratch file system out")?;
        let (seen, now) = (observatory.observe(Duration::ZERO)?, scratch.journal_written(roots)?);
        let after = charged(&seen, &device);
        let (new, given) = ((after.0 - before.0) as f64, (now - written) as f64);
        let mut round = Round::default();
        set_figure(&mut round, f::JOURNAL_BYTES, given);
        set_figure(&mut round, f::NOT_CHARGED_BYTES, (given - new).abs());
        set_figure(&mut round, f::UNATTRIBUTED_PCT, 100.0 * (after.1 - before.1) as f64 / given);
        set_figure(&mut round, f::RSS_MIB, made.rss_mib);
        set_figure(&mut round, f::TABLE_ENTRIES, made.table_entries as f64);
        set_figure(&mut round, "containers", made.n as f64);
        set_figure(&mut round, "containers_shown", seen.containers.len() as f64);
        if seen.partial {
            frame.experiment.notes.push(format!("Round {number}: figures were lost: {:?}.", seen.losses));
        }
        (before, written) = (after, now);
        frame.finish(0, round)?;
    }
    Ok(())
}

/// Bytes of commits and fast commits on a file system, and the part that is unattributed.
fn charged(seen: &Observation, device: &str) -> (u64, u64) {
    let sum = |view: &FileSystemView| {
        let of = |bytes: fn(&FileSystemView, Kind) -> u64| bytes(view, Kind::Commit) + bytes(view, Kind::FastCommit);
        let all = of(|view, kind| view.journal.of(kind)) + view.pending_bytes;
        (all, of(|view, kind| view.unattributed.of(kind)))
    };
    seen.file_systems.iter().find(|view| view.device == device).map_or((0, 0), sum)
}

/// The observations of a round.
struct Made {
    n: u64,
    /// Maximum values after the first third of the round.
    rss_mib: f64,
    table_entries: u64,
}

fn containers(
    frame: &Frame<'_, '_>,
    roots: &Roots,
    slice: &CgroupPath,
    scratch: &Scratch,
    observatory: &Observatory,
    seconds: f64,
    number: &mut u64,
) -> Result<Made> {
    let root = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), scratch.root().as_raw_fd()));
    let begin = Instant::now();
    let (warm, end) = (begin + Duration::from_secs_f64(seconds / 3.0), begin + Duration::from_secs_f64(seconds));
    let mut slots: Vec<Option<Slot>> = KINDS.iter().map(|_| None).collect();
    let (mut made, mut next_scrape) = (Made { n: 0, rss_mib: 0.0, table_entries: 0 }, begin);
    loop {
        let now = Instant::now();
        for (slot, kind) in slots.iter_mut().zip(KINDS) {
            if let Some(done) = slot.take_if(|slot| slot.until <= now) {
                done.load.finish()?;
                cgroup::remove(roots, &done.cgroup).context("a container's cgroup")?;
            }
            if slot.is_none() && now < end {
                *number += 1;
                made.n += 1;
                *slot = Some(start(frame, roots, slice.join(&format!("container-{number}"))?, kind, &root)?);
            }
        }
        if next_scrape <= now {
            next_scrape = now + SCRAPE;
            let seen = observatory.observe(Duration::ZERO)?;
            if now >= warm {
                made.rss_mib = made.rss_mib.max(rss_mib()?);
                made.table_entries = made.table_entries.max(seen.table_entries);
            }
        }
        let Some(due) = slots.iter().flatten().map(|slot| slot.until).min() else { return Ok(made) };
        wait_until(due.min(next_scrape), &frame.options.cancel)?;
    }
}

fn start(frame: &Frame<'_, '_>, roots: &Roots, cgroup: CgroupPath, kind: LoadKind, root: &Path) -> Result<Slot> {
    cgroup::create(roots, &cgroup, &["io", "memory"]).context("a container's cgroup")?;
    let args = LoadArgs {
        threads: Some(1),
        file_bytes: (kind != LoadKind::Storm).then_some(FILE_BYTES),
        ..LoadArgs::new(kind, &root.join(kind.as_str()), LIFE)
    };
    let mut load = frame.starter().load(&args, &roots.cgroup_dir(&cgroup))?;
    load.await_prepared()?;
    load.begin()?;
    load.await_window(Duration::ZERO)?;
    Ok(Slot { load, cgroup, until: Instant::now() + Duration::from_secs_f64(LIFE) })
}

/// Anonymous memory of this process, MiB (`RssAnon`).
fn rss_mib() -> Result<f64> {
    let status = read_limited(Path::new("/proc/self/status"), Bytes(1 << 16)).context("the process's memory")?;
    let text = String::from_utf8_lossy(&status).into_owned();
    let line =
        text.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("the kernel does not tell RssAnon")?;
    let kib: u32 = line.trim().trim_end_matches(" kB").parse().context("RssAnon is not understood")?;
    Ok(f64::from(kib) / 1024.0)
}
