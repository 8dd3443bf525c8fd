//! `share-correction`: shares of a disk on a shared file system, journal included (Tobimatsu et al.: 64.1/35.9 became 50.1/49.9).
//!
//! All tenants have equal shares and read; A also creates directories, whose journal I/O the kernel charges to no tenant. No other process writes
//! metadata: the root's charges, journal and checkpoints, are A's, whatever attribution reports. Shares are bytes per second, and are expected to be
//! met from 10 s after the last change on.
//! Full form: 10 cells x 3 rounds of about 2 minutes, an hour a disk; short form: 2 cells, 4 minutes a disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_api::wire::{HoldStart, HoldTenant, Observation};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::model::{Calibration, Mode, Unit};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::{Bytes, DevNo};
use bulkhead_engine::hold::{PERIOD, RunningHolds};
use bulkhead_engine::observe::{Observatory, Observe as _};
use bulkhead_measure::cgroup_run::{Load, wait_until};
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, Plan, choices, chosen, set_figure};
use bulkhead_measure::layout::{Bench, Controller, Layout};
use bulkhead_measure::load::{LoadArgs, LoadKind};
use bulkhead_measure::pair::calm;
use bulkhead_measure::result::{Experiment, Round};
use bulkhead_measure::sample::{bytes, charged_below_root, io_of};
use bulkhead_sys::block;
use bulkhead_sys::iocost::ModelLine;
use bulkhead_sys::process;
use bulkhead_sys::roots::Roots;

use crate::additions::add_tenants;
use crate::calls::process_cpu;
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "share-correction",
    what: "the share of a tenant that makes directories beside its reads, with and without its weight corrected",
    choices: |options| choices(&cells(options.quick)),
    extent: |options| {
        let n_cells = chosen(&cells(options.quick), options).len();
        Extent::new(options, n_cells, seconds(options.quick))
    },
    work: run,
};

const ABOUT: &str = "Every tenant reads a file of its own with O_DIRECT, 128 KiB at a time, and all have equal shares; A makes directories \
    besides, 2000 in a second for two tenants, as many less as there are more, and half of it on a volume of its own; on a disk that reads \
    less than 200 MB/s by io.cost's model in proportion to that. Shares are parts of the \
    bytes that the device moves, A's with journal and checkpoints, counted each second; they count from 10 s after a tenant comes or goes. \
    comes-and-goes: a third tenant is idle, reads for a while, and is idle again. journal-only: A makes directories and reads nothing. \
    own+accounting: A and B have volumes of their own with the journal thread in their cgroup. The shared file system has a journal of 1 GiB.";

/// The neighbours, by the number of tenants.
pub(crate) const READS: &str = "reads";
pub(crate) const SIXTEEN: &str = "sixteen";
pub(crate) const COMES_AND_GOES: &str = "comes-and-goes";
pub(crate) const JOURNAL_ONLY: &str = "journal-only";

/// Seconds before the measurement, and of the measurement.
const SETTLE: usize = 10;
const FULL: usize = 60;
const QUICK: usize = 30;
/// The window in which a share must be met, s.
pub(crate) const WINDOW: usize = 5;
/// Size of the shared volume's journal: the default of `mkfs.ext4` for a disk of 128 GiB or more. With one of 64 MiB, as on small volumes, the
/// processes that create directories soon write checkpoints themselves, which the kernel charges to them.
const JOURNAL: Bytes = Bytes::mib(1024);
/// Interval between A's batches of 20 directories per participating tenant, on a disk that reads at least [`FAST_BYTES_PER_S`], ms.
const MKDIRS_MS: u64 = 5;
/// On a slower disk, A creates directories in proportion to sequential read throughput, or its journal would be a larger part of the disk.
const FAST_BYTES_PER_S: u64 = 200_000_000;
/// Size of each reader's file.
const FILE_BYTES: u64 = 32 << 20;

/// All cells.
fn cells(quick: bool) -> Vec<Plan> {
    let plan = |neighbour, layout, controller, hold| Plan { layout, controller, neighbour, hold };
    let of_pair = |controller, hold| plan(READS, Layout::Shared, controller, hold);
    if quick {
        return vec![of_pair(Controller::Bfq, None), of_pair(Controller::Bfq, Some(Mode::Correcting))];
    }
    let (bfq, correcting) = (Controller::Bfq, Some(Mode::Correcting));
    let pairs = [None, Some(Mode::Published), correcting].map(|hold| of_pair(bfq, hold)).into_iter();
    let pairs = pairs.chain([None, correcting].map(|hold| of_pair(Controller::Iocost, hold)));
    let own = [None, correcting].map(|hold| plan(READS, Layout::OwnAccounted, bfq, hold));
    let others = [SIXTEEN, COMES_AND_GOES, JOURNAL_ONLY];
    let others = others.map(|neighbour| plan(neighbour, Layout::Shared, bfq, correcting));
    pairs.chain(others).chain(own).collect()
}

/// Duration of one round of one cell, including creating and removing files.
fn seconds(quick: bool) -> f64 {
    (SETTLE + if quick { QUICK } else { FULL }) as f64 + 45.0
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.with_bench((500, 500), Some(JOURNAL), |frame, bench| {
        let plans = chosen(&cells(frame.options.quick), frame.options);
        let mkdirs_ms = mkdirs_ms(frame.options.model.as_ref(), 2);
        let command = |kind| format!("__load {}", load(kind, Path::new("DIR"), mkdirs_ms, 0.0).argv().join(" "));
        frame.experiment.commands.extend([LoadKind::SequentialRead, LoadKind::Mkdirs].map(command));
        frame.observed_rounds(&plans, |frame, observatory, plan| round(frame, bench, observatory, plan))
    })
}

/// A participant.
struct Tenant {
    name: Name,
    dir: PathBuf,
    does: Vec<LoadKind>,
    /// When it starts and ends, seconds; `None` for all the time.
    comes: Option<(usize, usize)>,
    /// Interval between directories.
    mkdirs_ms: u64,
}

fn load(kind: LoadKind, dir: &Path, mkdirs_ms: u64, seconds: f64) -> LoadArgs {
    let args = LoadArgs::new(kind, dir, seconds);
    match kind {
        LoadKind::Mkdirs => LoadArgs { interval_ms: Some(mkdirs_ms), ..args },
        _ => LoadArgs { file_bytes: Some(FILE_BYTES), ..args },
    }
}

/// Interval between A's batches on the disk of `model`, `n` times that of one tenant, ms.
fn mkdirs_ms(model: Option<&Calibration>, n: u64) -> u64 {
    let line = model.and_then(|model| ModelLine::parse(&format!("0:0 {}", model.model)));
    let rbps = line.map_or(FAST_BYTES_PER_S, |(_, line)| line.rbps.clamp(1, FAST_BYTES_PER_S));
    (MKDIRS_MS * n * FAST_BYTES_PER_S + rbps / 2) / rbps
}

impl Tenant {
    fn is_there(&self, second: usize) -> bool {
        self.comes.is_none_or(|(from, to)| (from..to).contains(&second))
    }
}

/// The participants for a neighbour, and the duration in seconds.
fn cast(bench: &Bench, plan: Plan, model: Option<&Calibration>, n_seconds: usize) -> Result<Vec<Tenant>> {
    let n = match plan.neighbour {
        SIXTEEN => 16,
        COMES_AND_GOES => 3,
        _ => 2,
    };
    let mut all = add_tenants(bench, n)?;
    if plan.layout != Layout::Shared {
        let places = bench.dirs(plan.layout);
        for (place, own) in all.iter_mut().zip([&places.a, &places.b]) {
            place.1.clone_from(own);
        }
    }
    // A's journal is a constant part of its share, whatever the number of tenants. A volume has inodes for half as many directories as the shared one.
    let mkdirs_ms = mkdirs_ms(model, n as u64 * if plan.layout == Layout::Shared { 1 } else { 2 });
    let tenants = all.into_iter().enumerate().map(|(index, (name, dir))| Tenant {
        name,
        dir,
        does: match index {
            0 if plan.neighbour == JOURNAL_ONLY => vec![LoadKind::Mkdirs],
            0 => vec![LoadKind::SequentialRead, LoadKind::Mkdirs],
            _ => vec![LoadKind::SequentialRead],
        },
        comes: (plan.neighbour == COMES_AND_GOES && index == 2).then_some((n_seconds / 3, 2 * n_seconds / 3)),
        mkdirs_ms,
    });
    Ok(tenants.collect())
}

fn round(frame: &mut Frame<'_, '_>, bench: &Bench, observatory: &Observatory, plan: Plan) -> Result<Round> {
    bench.arrange(plan.layout, plan.controller, frame.options.model.as_ref())?;
    let n_seconds = SETTLE + if frame.options.quick { QUICK } else { FULL };
    let tenants = cast(bench, plan, frame.options.model.as_ref(), n_seconds)?;
    // The observation starts while the device is idle.
    observatory.observe(Duration::ZERO)?;
    let mut holder = RunningHolds::new(Vec::new());
    if let Some(mode) = plan.hold {
        let held = tenants.iter().map(|tenant| HoldTenant::new(tenant.name.as_str(), 1.0));
        let (device, unit) = (Some(bench.device().to_owned()), Unit::Bytes);
        let request = HoldStart { device, unit, mode, tenants: held.collect(), lease_seconds: None };
        let held = bench.engine().hold_start(&request, false)?.object.context("nothing is held")?;
        holder.begin(bench.engine(), held);
    }
    let trace = record_trace(frame, bench, observatory, &mut holder, &tenants, n_seconds);
    bench.engine().hold_stop(bench.device(), false)?;
    let trace = trace?;
    calm(&frame.starter(), &bench.pair()?)?;
    Ok(figures(&trace, &tenants, n_seconds))
}

/// The activity of each tenant per second, and the number of directories created.
struct Trace {
    bytes: Vec<Vec<f64>>,
    root_bytes: Vec<f64>,
    /// A's weight after each second, if shares are enforced.
    weights: Vec<f64>,
    device_bytes: f64,
    directories: f64,
    cpu: Duration,
}

fn record_trace(
    frame: &Frame<'_, '_>,
    bench: &Bench,
    observatory: &Observatory,
    holder: &mut RunningHolds,
    tenants: &[Tenant],
    n_seconds: usize,
) -> Result<Trace> {
    let counters = Counters::new(bench.dev(), tenants)?;
    let mut loads: Vec<(usize, Option<Load>)> = Vec::new();
    for (index, one) in tenants.iter().enumerate() {
        let payload = slices::payload(&one.name);
        for kind in &one.does {
            // A load continues to the end of its window.
            let seconds = one.comes.map_or(n_seconds, |(from, to)| to - from);
            let args = load(*kind, &one.dir, one.mkdirs_ms, seconds as f64);
            let load = frame.starter().load(&args, &counters.roots.cgroup_dir(&payload))?;
            load.await_prepared()?;
            loads.push((index, Some(load)));
        }
    }
    let (mut bytes, mut root_bytes, mut weights) = (vec![Vec::new(); tenants.len()], Vec::new(), Vec::new());
    let (start, cpu) = (Instant::now(), process_cpu());
    let first = counters.read()?;
    let mut before = first.clone();
    let (mut directories, mut leaving) = (0.0, Vec::new());
    for second in 0..n_seconds {
        for (index, load) in &mut loads {
            let comes = tenants[*index].comes;
            if second == comes.map_or(0, |(from, _)| from)
                && let Some(load) = load
            {
                load.begin()?;
                load.await_window(Duration::ZERO)?;
            }
            if comes.is_some_and(|(_, to)| second == to)
                && let Some(load) = load.take()
            {
                // In a separate thread, because removing the file can take a while, and the measurement continues.
                leaving.push(std::thread::spawn(move || load.finish()));
            }
        }
        wait_until(start + PERIOD * u32::try_from(second + 1).context("too long")?, &frame.options.cancel)?;
        let now = counters.read()?;
        for (index, tenant) in bytes.iter_mut().enumerate() {
            tenant.push(now.tenants[index] - before.tenants[index]);
        }
        root_bytes.push(now.root() - before.root());
        before = now;
        if !holder.is_empty() {
            let seen = observatory.observe(Duration::ZERO).map(Observation::into_activity);
            holder.step(bench.engine(), seen, process::monotonic_ns());
            let standing = holder.views().first().and_then(|view| view.standings.first().map(|one| one.weight));
            weights.extend(standing.map(f64::from));
        }
    }
    let cpu = process_cpu().saturating_sub(cpu);
    // Readers first, so that removing directories has the disk for itself.
    loads.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
    for load in loads.into_iter().filter_map(|(_, load)| load) {
        let result = load.finish()?;
        directories += if result.kind == LoadKind::Mkdirs { result.tally.ops as f64 / result.seconds } else { 0.0 };
    }
    for load in leaving {
        load.join().ok().context("the thread of a load that went ended by itself")??;
    }
    Ok(Trace { bytes, root_bytes, weights, device_bytes: before.device - first.device, directories, cpu })
}

/// Reads the counters.
struct Counters {
    roots: Roots,
    dev: DevNo,
    slices: Vec<CgroupPath>,
}

/// Bytes since the device appeared.
#[derive(Clone)]
struct Counted {
    tenants: Vec<f64>,
    /// Charged to all cgroups below the root.
    charged: f64,
    device: f64,
}

impl Counted {
    /// Bytes charged to no cgroup, less those in flight: bytes are charged on submission, and the device counts them on completion. It can decrease in
    /// a second with many submissions.
    fn root(&self) -> f64 {
        self.device - self.charged
    }
}

impl Counters {
    fn new(dev: DevNo, tenants: &[Tenant]) -> Result<Self> {
        let slices = tenants.iter().map(|tenant| slices::tenant(&tenant.name)).collect();
        Ok(Self { roots: Roots::host(), dev, slices })
    }

    fn read(&self) -> Result<Counted> {
        let of = |slice| io_of(&self.roots, self.dev, slice).map(|io| bytes(&io) as f64);
        let tenants = self.slices.iter().map(of).collect::<Result<_>>()?;
        let charged = charged_below_root(&self.roots, self.dev)? as f64;
        let disk = block::diskstat(&self.roots, self.dev).context("the device's counters")?;
        Ok(Counted { tenants, charged, device: 512.0 * (disk.read_sectors + disk.write_sectors) as f64 })
    }
}

fn figures(trace: &Trace, tenants: &[Tenant], n_seconds: usize) -> Round {
    let mut round = Round::default();
    let mut moved = trace.bytes.clone();
    // The root's bytes are A's: no other process changes metadata.
    moved[0].iter_mut().zip(&trace.root_bytes).for_each(|(own, root)| *own += root);
    let promised = |second: usize, index: usize| {
        let there = tenants.iter().filter(|tenant| tenant.is_there(second)).count() as f64;
        if tenants[index].is_there(second) { 100.0 / there } else { 0.0 }
    };
    let (mut off_mean, mut off_window) = (0.0f64, 0.0f64);
    for (from, to) in stretches(tenants, n_seconds) {
        for index in 0..tenants.len() {
            let off = |from, to| (share(&moved, index, from, to) - promised(from, index)).abs();
            off_mean = off_mean.max(off(from, to));
            for begin in from..=to.saturating_sub(WINDOW) {
                off_window = off_window.max(off(begin, begin + WINDOW));
            }
        }
    }
    set_figure(
        &mut round,
        f::HELD_SHARE_A_PCT,
        stretches(tenants, n_seconds).first().map(|&(from, to)| share(&moved, 0, from, to)),
    );
    set_figure(&mut round, f::PROMISED_SHARE_A_PCT, promised(0, 0));
    set_figure(&mut round, f::OFF_MEAN_POINTS, off_mean);
    set_figure(&mut round, f::OFF_WINDOW_POINTS, off_window);
    let total: f64 = moved.iter().flatten().sum();
    set_figure(&mut round, f::JOURNAL_PCT, 100.0 * trace.root_bytes.iter().sum::<f64>() / total);
    set_figure(&mut round, f::HOLDING_CPU_PCT, 100.0 * trace.cpu.as_secs_f64() / n_seconds as f64);
    set_figure(&mut round, f::DEVICE_BYTES_PER_S, trace.device_bytes / n_seconds as f64);
    set_figure(&mut round, "directories_per_s", trace.directories);
    // The counters differ by up to 10 KiB.
    let mib = |bytes: &[f64]| bytes.iter().map(|bytes| (bytes / 10_485.76).round() / 100.0).collect();
    for (index, moved) in moved.iter().enumerate() {
        round.series.insert(f::moved_mib(index + 1), mib(moved));
    }
    round.series.insert("root_mib".to_owned(), mib(&trace.root_bytes));
    round.series.insert("weight_1".to_owned(), trace.weights.clone());
    round
}

/// The intervals with the same participants, without the first seconds of each.
fn stretches(tenants: &[Tenant], n_seconds: usize) -> Vec<(usize, usize)> {
    let mut changes = vec![0];
    changes.extend(tenants.iter().filter_map(|tenant| tenant.comes).flat_map(|(from, to)| [from, to]));
    changes.push(n_seconds);
    let settled = changes.windows(2).map(|pair| (pair[0] + SETTLE, pair[1]));
    settled.filter(|(from, to)| from + WINDOW <= *to).collect()
}

/// A tenant's share of all bytes between two seconds, percent.
fn share(moved: &[Vec<f64>], tenant: usize, from: usize, to: usize) -> f64 {
    let all: f64 = moved.iter().map(|one| one[from..to].iter().sum::<f64>()).sum();
    if all > 0.0 { 100.0 * moved[tenant][from..to].iter().sum::<f64>() / all } else { 0.0 }
}

/// Tenant A's share in each window of 5 s of a round, percent, by the second in which the window ends; empty if unknown.
pub(crate) fn windows(round: &Round) -> Vec<(usize, f64)> {
    let moved: Vec<Vec<f64>> = (1..).map_while(|tenant| round.series.get(&f::moved_mib(tenant))).cloned().collect();
    let n_seconds = moved.iter().map(Vec::len).min().unwrap_or(0);
    (WINDOW..=n_seconds).map(|to| (to, share(&moved, 0, to - WINDOW, to))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(comes: Option<(usize, usize)>) -> Tenant {
        Tenant {
            name: "t".parse().unwrap(),
            dir: PathBuf::new(),
            does: vec![LoadKind::SequentialRead],
            comes,
            mkdirs_ms: 5,
        }
    }

    #[test]
    fn the_roots_bytes_are_as_and_the_first_seconds_do_not_count() {
        let tenants = [tenant(None), tenant(None)];
        // All is wrong for 10 s; then A has 40 of 100 itself and 10 of the journal, except in one second.
        let mut own = vec![90.0; 10];
        own.extend([40.0; 20]);
        let (mut root, mut other) = (vec![0.0; 10], vec![10.0; 10]);
        root.extend([10.0; 20]);
        other.extend([50.0; 20]);
        root[20] = 60.0;
        let trace = Trace {
            bytes: vec![own, other],
            root_bytes: root,
            weights: Vec::new(),
            device_bytes: 0.0,
            directories: 0.0,
            cpu: Duration::ZERO,
        };
        let round = figures(&trace, &tenants, 30);
        let near = |name: &str, value: f64| {
            let found = round.figures[name];
            assert!((found - value).abs() < 0.01, "{name}: {found}");
        };
        near(f::HELD_SHARE_A_PCT, 100.0 * 1050.0 / 2050.0);
        near(f::OFF_MEAN_POINTS, 100.0 * 1050.0 / 2050.0 - 50.0);
        near(f::OFF_WINDOW_POINTS, 100.0 * 300.0 / 550.0 - 50.0);
        near(f::PROMISED_SHARE_A_PCT, 50.0);
        assert_eq!(windows(&round).len(), 26);
    }

    #[test]
    fn a_slow_disk_gets_as_many_directories_less() {
        let model = |rbps: u64| Calibration {
            model: format!("ctrl=user model=linear rbps={rbps} rseqiops=1 rrandiops=1 wbps=1 wseqiops=1 wrandiops=1"),
            qos: String::new(),
            measured: Vec::new(),
            isolation: None,
        };
        assert_eq!(
            [None, Some(&model(300_000_000)), Some(&model(40_000_000))].map(|model| mkdirs_ms(model, 2)),
            [10, 10, 50]
        );
    }

    #[test]
    fn who_comes_and_goes_changes_what_is_promised() {
        let tenants = [tenant(None), tenant(None), tenant(Some((20, 45)))];
        assert_eq!(stretches(&tenants, 70), [(10, 20), (30, 45), (55, 70)]);
        assert_eq!(stretches(&tenants, 50), [(10, 20), (30, 45)]);
    }
}
