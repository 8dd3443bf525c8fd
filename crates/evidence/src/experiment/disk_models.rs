//! `disk-models`: performance of the lab's disks, measured with fio on the raw device, next to the published figures of their drives.
//!
//! The whole device is read and written, nothing is mounted. 20 to 22 cells x 3 rounds: 12 s each on a disk with an arm, 14 minutes of the guest's
//! time; 1 s each on flash, 2 minutes, in which the CPU is busy, so that an emulated machine takes many times as long. Short form: one round, 6 s on a disk with an arm.
//! Does not: judge, or know how a model works (`bulkhead-disk`).

pub(crate) mod published;

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_measure::calibrate::fio;
use bulkhead_measure::cgroup_run::wait_until;
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::experiment::{
    Extent, Frame, Method, OnProgress, Options, includes, machine, n_rounds, set_figure,
};
use bulkhead_measure::result::{Cell, Experiment, Round};

use self::published::{
    OUTER_FLUSH, RANDOM_FLUSH, RANDOM_READ, RANDOM_WRITE, SEQUENTIAL_FLUSH, SEQUENTIAL_READ, SEQUENTIAL_WRITE,
    SMALL_SEQUENTIAL_READ, SMALL_SEQUENTIAL_WRITE, depth_word, drive,
};
use crate::figure as f;
use crate::raw::Raw;

/// The disk models that have published figures.
pub(crate) const DISKS: [&str; 3] = ["hdd", "ssd", "nvme"];

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "disk-models",
    what: "the lab's disks against the published figures of the drives that they are models of",
    choices: |_| DISKS.iter().flat_map(|disk| choices(disk)).collect(),
    extent: |options| Extent::new(options, N_CELLS, seconds(options.quick)).after(SET_UP_SECONDS),
    work: run,
};

const ABOUT: &str = "fio with libaio and O_DIRECT on the whole device, without a scheduler. Random operations go over all of it and \
    sequential ones, on a disk with an arm, over its first GiB, where the data sheet's rate holds; the cache is flushed before each cell, and flash is idle for 2 s. \
    A write with a flush counts as one operation. What is published of the drive is divided by the factor k by which the lab's disk is \
    slower. Figures marked derived are computed, not published, and are not judged.";

/// Maximum number of cells of a disk.
const N_CELLS: usize = 22;
/// Duration of erasing signatures.
const SET_UP_SECONDS: f64 = 10.0;
/// Duration of flushing the cache and starting fio.
const BETWEEN_SECONDS: f64 = 1.5;

/// Ramp and window in seconds. A window on flash keeps the CPU busy, which is slow to emulate.
const ARM: (u32, u32) = (2, 10);
const ARM_QUICK: (u32, u32) = (1, 5);
const FLASH: (u32, u32) = (0, 1);

/// Idle time before a cell, in which a flash drive collects garbage, so that random writes do not exhaust its spare area.
const IDLE: Duration = Duration::from_secs(2);

const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const SEQUENTIAL_DEPTHS: [u32; 3] = [1, 8, 32];

/// Maximum duration of one round of one cell, in guest time.
fn seconds(quick: bool) -> f64 {
    let (ramp, window) = if quick { ARM_QUICK } else { ARM };
    f64::from(ramp + window) + BETWEEN_SECONDS
}

/// One cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    operation: &'static str,
    depth: u32,
}

impl Plan {
    fn cell(self) -> Cell {
        Cell {
            layout: self.operation.to_owned(),
            controller: String::new(),
            neighbour: depth_word(self.depth),
            rounds: Vec::new(),
        }
    }

    fn is_read(self) -> bool {
        matches!(self.operation, RANDOM_READ | SEQUENTIAL_READ | SMALL_SEQUENTIAL_READ)
    }

    fn is_random(self) -> bool {
        matches!(self.operation, RANDOM_READ | RANDOM_WRITE | RANDOM_FLUSH | OUTER_FLUSH)
    }

    fn flushes(self) -> bool {
        matches!(self.operation, RANDOM_FLUSH | OUTER_FLUSH | SEQUENTIAL_FLUSH)
    }

    /// fio's options, in addition to the common ones.
    fn options(self, has_arm: bool) -> Vec<String> {
        let rw = match (self.is_random(), self.is_read()) {
            (true, true) => "randread",
            (true, false) => "randwrite",
            (false, true) => "read",
            (false, false) => "write",
        };
        let block = if matches!(self.operation, SEQUENTIAL_READ | SEQUENTIAL_WRITE) { "128k" } else { "4k" };
        let mut options = vec![format!("--rw={rw}"), format!("--bs={block}"), format!("--iodepth={}", self.depth)];
        if has_arm && !self.is_random() {
            options.push("--size=1G".to_owned());
        }
        if self.operation == OUTER_FLUSH {
            options.push("--size=53%".to_owned());
        }
        if self.flushes() {
            options.push("--fsync=1".to_owned());
        }
        options
    }
}

/// All cells of a disk model; sequential 4 KiB I/O and parts of the disk only if a figure is published.
fn cells(model: &str) -> Vec<Plan> {
    let of = |operation, depths: &[u32]| depths.iter().map(move |&depth| Plan { operation, depth }).collect::<Vec<_>>();
    let mut cells = of(RANDOM_READ, &DEPTHS);
    cells.extend(of(RANDOM_WRITE, &DEPTHS));
    cells.extend(of(SEQUENTIAL_READ, &SEQUENTIAL_DEPTHS));
    cells.extend(of(SEQUENTIAL_WRITE, &SEQUENTIAL_DEPTHS));
    cells.extend(of(RANDOM_FLUSH, &[1]));
    cells.extend(of(SEQUENTIAL_FLUSH, &[1]));
    let known = drive(model).map_or(&[][..], |drive| drive.figures);
    for (operation, depth) in [(OUTER_FLUSH, 1), (SMALL_SEQUENTIAL_READ, 32), (SMALL_SEQUENTIAL_WRITE, 32)] {
        if known.iter().any(|figure| figure.operation == operation) {
            cells.extend(of(operation, &[depth]));
        }
    }
    cells
}

/// The choices on a disk: operations as configurations, depths as neighbours.
fn choices(model: &str) -> Vec<(String, String)> {
    cells(model).iter().map(|plan| (plan.operation.to_owned(), depth_word(plan.depth))).collect()
}

/// The cells that the options select: operations are configurations, depths are neighbours.
fn chosen(model: &str, options: &Options) -> Vec<Plan> {
    let is_chosen = |plan: &Plan| {
        includes(&options.configs, plan.operation) && includes(&options.neighbours, &depth_word(plan.depth))
    };
    cells(model).into_iter().filter(is_chosen).collect()
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let mut frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.say("taking the device");
    let raw = Raw::take(&options.target, &options.program)?;
    frame.experiment.disk = machine::disk(raw.device(), raw.dev(), &options.simulated);
    let worked = work(&mut frame, &raw);
    with_removal(worked, raw.release())?;
    frame.write()?;
    Ok(frame.experiment)
}

fn work(frame: &mut Frame<'_, '_>, raw: &Raw) -> Result<()> {
    let options = frame.options;
    let model = frame.experiment.disk.model.clone();
    let has_arm = frame.experiment.disk.is_rotational();
    let times = match (has_arm, options.quick) {
        (true, false) => ARM,
        (true, true) => ARM_QUICK,
        (false, _) => FLASH,
    };
    match drive(&model) {
        Some(drive) => frame.experiment.notes.push(format!(
            "{model} is a model of {}, k = {}. Its parameters were fitted to some of these figures: what the table shows is that the guest sees \
             them.",
            drive.name, drive.slowdown
        )),
        None => frame.experiment.notes.push(format!("{model} is none of the lab's models: nothing is published of it here.")),
    }
    if !has_arm {
        let note = "Random writes are measured while the drive's spare area lasts, not in the steady state after it.";
        frame.experiment.notes.push(note.to_owned());
    }
    frame.experiment.machine.programs.extend(fio::version().map(|version| ("fio".to_owned(), version)));
    let plans = chosen(&model, options);
    if plans.is_empty() {
        bail!("no cell is left to run: check the neighbours and configurations asked for");
    }
    frame.experiment.commands.push(fio::on_device(raw.path(), times).command_line());
    for plan in &plans {
        let line = format!("{} {}: {}", plan.operation, depth_word(plan.depth), plan.options(has_arm).join(" "));
        frame.experiment.commands.push(line);
    }
    frame.experiment.cells = plans.iter().map(|plan| plan.cell()).collect();
    let n_rounds = n_rounds(options);
    frame.of = usize::try_from(n_rounds).context("too many rounds")? * plans.len();
    for number in 1..=n_rounds {
        for (index, plan) in plans.iter().enumerate() {
            options.cancel.check()?;
            frame.say(&format!("round {number} of {n_rounds}: {}, {}", plan.operation, depth_word(plan.depth)));
            settle(raw)?;
            if !has_arm {
                wait_until(Instant::now() + IDLE, &options.cancel)?;
            }
            let report = fio::run(&fio::on_device(raw.path(), times).args(plan.options(has_arm)))?;
            frame.finish(index, round(*plan, &report)?)?;
        }
    }
    Ok(())
}

/// Flushes the drive's cache: data of the previous cell must not be written during this one.
fn settle(raw: &Raw) -> Result<()> {
    let context = || format!("cannot flush {}", raw.path().display());
    File::open(raw.path()).with_context(context)?.sync_all().with_context(context)
}

/// The figures of a cell.
fn round(plan: Plan, report: &fio::Report) -> Result<Round> {
    let job = report.jobs.first().context("fio reported no job")?;
    let side = if plan.is_read() { &job.read } else { &job.write };
    if side.iops <= 0.0 {
        bail!("fio measured nothing");
    }
    let mut round = Round::default();
    set_figure(&mut round, f::IOPS, side.iops);
    set_figure(&mut round, f::BYTES_PER_S, side.bw_bytes);
    if plan.flushes() {
        // Includes the flush, because the next write waits for both.
        set_figure(&mut round, f::LATENCY_MEAN_US, f64::from(plan.depth) * 1e6 / side.iops);
    } else {
        set_figure(&mut round, f::LATENCY_MEAN_US, side.clat_ns.mean.map(|ns| ns / 1e3));
        set_figure(&mut round, f::LATENCY_P99_US, side.clat_ns.percentile("99.000000").map(|ns| ns / 1e3));
    }
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::published::DRIVES;
    use super::*;
    use bulkhead_measure::layout::Target;

    #[test]
    fn every_figure_has_a_cell() {
        for drive in DRIVES {
            let cells = cells(drive.model);
            assert!(cells.len() <= N_CELLS, "{}: {}", drive.model, cells.len());
            for figure in drive.figures {
                let plan = Plan { operation: figure.operation, depth: figure.depth };
                assert_eq!(cells.iter().filter(|cell| **cell == plan).count(), 1, "{}: {plan:?}", drive.model);
            }
        }
        let n_cells: Vec<usize> = ["hdd", "ssd", "nvme", "another"].map(|model| cells(model).len()).into();
        assert_eq!(n_cells, [21, 22, 20, 20]);
    }

    #[test]
    fn filters_choose_operations_and_depths() {
        let options = Options {
            configs: vec![RANDOM_READ.into(), SEQUENTIAL_READ.into()],
            neighbours: vec!["depth-1".into(), "depth-2".into()],
            ..Options::new(Target::Directory("/nonexistent".into()))
        };
        let ids: Vec<String> = chosen("ssd", &options).into_iter().map(|plan| plan.cell().id()).collect();
        assert_eq!(ids, ["random-read//depth-1", "random-read//depth-2", "sequential-read//depth-1"]);
    }

    #[test]
    fn only_a_device_that_may_be_erased_is_taken() {
        let device = |erase| Target::Device { path: "/nonexistent".into(), erase };
        for target in [Target::Directory("/nonexistent".into()), device(false)] {
            let error = run(&Options::new(target), &mut |_| {}).unwrap_err().to_string();
            assert!(error.contains("whole device"), "{error}");
        }
    }

    #[test]
    fn what_fio_is_options() {
        let options = |operation, depth, has_arm| Plan { operation, depth }.options(has_arm).join(" ");
        assert_eq!(options(RANDOM_READ, 16, true), "--rw=randread --bs=4k --iodepth=16");
        assert_eq!(options(SEQUENTIAL_WRITE, 8, true), "--rw=write --bs=128k --iodepth=8 --size=1G");
        assert_eq!(options(SMALL_SEQUENTIAL_READ, 32, false), "--rw=read --bs=4k --iodepth=32");
        assert_eq!(options(OUTER_FLUSH, 1, true), "--rw=randwrite --bs=4k --iodepth=1 --size=53% --fsync=1");
    }

    #[test]
    fn a_flush_belongs_to_the_write_before_it() {
        let text = r#"{"jobs": [{"read": {"bw_bytes": 0, "iops": 0}, "write": {"bw_bytes": 409600, "iops": 100.0,
            "clat_ns": {"mean": 50000.0, "percentile": {"99.000000": 90000}}}, "sync": {"total_ios": 100}}]}"#;
        let report: fio::Report = serde_json::from_str(text).unwrap();
        let figures = |operation| round(Plan { operation, depth: 1 }, &report).map(|round| round.figures);
        let flushed = figures(SEQUENTIAL_FLUSH).unwrap();
        assert_eq!((flushed[f::LATENCY_MEAN_US], flushed.len()), (10_000.0, 3));
        let written = figures(RANDOM_WRITE).unwrap();
        assert_eq!(
            [f::IOPS, f::BYTES_PER_S, f::LATENCY_MEAN_US, f::LATENCY_P99_US].map(|name| written[name]),
            [100.0, 409_600.0, 50.0, 90.0]
        );
        assert!(figures(RANDOM_READ).is_err());
    }
}
