//! `scaling`: the throughput of 1 to 16 copies of a workload together, each predicted before it is measured (Bhimani et al. 2016, figures 3 to 7).
//!
//! What a copy demands is taken from its run alone, what requests cost from `bulkhead device costs` on the same volume; from these two the model
//! predicts every other number of copies. Full form: 4 workloads x 8 numbers x 3 rounds, about half an hour in virtual time; short form: half of the
//! numbers, one round.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_advise::course::fairness;
use bulkhead_advise::predict::{Host, Load as Copies, predict};
use bulkhead_core::demand::{Access, Demand, DeviceCosts, Durable, MissRatios, Purpose, Requests};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::{Load, wait_until};
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::costs;
use bulkhead_measure::experiment::{
    Choice, Extent, Frame, Method, OnProgress, Options, includes, n_rounds, set_figure,
};
use bulkhead_measure::layout::{Bench, Controller, Layout};
use bulkhead_measure::load::{LoadArgs, LoadKind, LoadResult};
use bulkhead_measure::pair::calm;
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_measure::sample::busy_cpu_us;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup};

use crate::additions::add_tenants;
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "scaling",
    what: "throughput of 1 to 16 copies of four workloads, predicted before it is measured",
    choices,
    extent: |options| {
        let n_cells = cells(options.quick).len();
        Extent::new(options, n_cells, WARM_UP + SECONDS + 6.0).after(180.0)
    },
    work: run,
};

const ABOUT: &str = "Copies of a load, each in a tenant and a directory of its own on one ext4; no controller. The demand of a copy is measured \
    alone, the costs of requests by fio on the same file system, both before the predictions, and these before the runs that they are compared \
    with. A copy's processor time is that of the whole machine for each operation, with that of the modelled disk. Cached reads: memory.max of all tenants together is 192 MiB, so that the fifth file of 48 MiB no \
    longer fits.";

/// Numbers of copies.
const COPIES: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
/// Warm-up, in which the page cache fills, and window, s.
const WARM_UP: f64 = 4.0;
const SECONDS: f64 = 6.0;
/// Size of each copy's file.
const FILE: Bytes = Bytes::mib(48);
/// Memory of all tenants with cached reads.
const MEMORY: Bytes = Bytes::mib(192);
/// Size of the file on which requests are measured.
const COSTS_FILE: Bytes = Bytes::mib(512);

/// A workload.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    kind: LoadKind,
    threads: usize,
    requests: Option<(Access, f64, Purpose)>,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "random-read",
        kind: LoadKind::RandomRead,
        threads: 4,
        requests: Some((Access::RandomRead, 4096.0, Purpose::Direct)),
    },
    Workload {
        name: "cached-read",
        kind: LoadKind::CachedRead,
        threads: 4,
        requests: Some((Access::RandomRead, 4096.0, Purpose::Cached)),
    },
    Workload { name: "durable-write", kind: LoadKind::RandomSync, threads: 2, requests: None },
    Workload {
        name: "sequential-write",
        kind: LoadKind::SequentialDirect,
        threads: 1,
        requests: Some((Access::SequentialWrite, 131_072.0, Purpose::Direct)),
    },
];

impl Workload {
    fn args(&self, dir: &Path) -> LoadArgs {
        let args = LoadArgs::new(self.kind, dir, SECONDS);
        LoadArgs { threads: Some(self.threads), file_bytes: Some(FILE.0), warm_up_seconds: WARM_UP, ..args }
    }

    fn config(&self) -> String {
        format!("{}/{}", self.name, Controller::None.as_str())
    }

    /// What a copy demands, by its run alone.
    fn demand(&self, alone: &Measured) -> Demand {
        let requests = |(access, bytes, purpose)| Requests { access, bytes, per_operation: 1.0, purpose };
        let is_cached = self.kind == LoadKind::CachedRead;
        Demand {
            clients: self.threads as f64,
            think_seconds: 0.0,
            cpu_seconds: alone.cpu_seconds,
            requests: self.requests.map(requests).into_iter().collect(),
            // Overwrites of blocks that have been written: no commit, and no client waits for another.
            durable: (self.kind == LoadKind::RandomSync).then_some(Durable {
                per_operation: 1.0,
                chain: 1.0,
                is_shared: false,
            }),
            miss_ratios: if is_cached { MissRatios::uniform(FILE) } else { MissRatios::default() },
            memory: alone.memory,
        }
    }
}

/// Number of copies of a cell: `4-copies`.
pub(crate) fn copies_word(copies: u32) -> String {
    format!("{copies}-copies")
}

fn cells(quick: bool) -> Vec<(Workload, u32)> {
    let copies = COPIES.into_iter().enumerate().filter(move |(index, _)| !quick || index % 2 == 0 || *index == 3);
    let copies: Vec<u32> = copies.map(|(_, copies)| copies).collect();
    WORKLOADS.iter().flat_map(|workload| copies.iter().map(|copies| (*workload, *copies))).collect()
}

fn choices(options: &Options) -> Vec<Choice> {
    cells(options.quick).iter().map(|(workload, copies)| (workload.config(), copies_word(*copies))).collect()
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.with_bench((500, 500), None, |frame, bench| {
        let is_chosen = |(workload, copies): &(Workload, u32)| {
            includes(&options.configs, &workload.config()) && includes(&options.neighbours, &copies_word(*copies))
        };
        let plans: Vec<(Workload, u32)> = cells(options.quick).into_iter().filter(is_chosen).collect();
        for workload in WORKLOADS {
            frame.experiment.commands.push(format!("__load {}", workload.args(Path::new("DIR")).argv().join(" ")));
        }
        let cell = |(workload, copies): &(Workload, u32)| Cell {
            layout: workload.name.to_owned(),
            controller: Controller::None.as_str().to_owned(),
            neighbour: copies_word(*copies),
            rounds: Vec::new(),
        };
        frame.experiment.cells = plans.iter().map(cell).collect();
        bench.arrange(Layout::Shared, Controller::None, None)?;
        frame.say("what requests cost");
        let request = costs::Request {
            directory: bench.host_dir()?.to_owned(),
            size: Some(COSTS_FILE),
            cancel: options.cancel.clone(),
        };
        let costs = costs::run(&request, &mut |_, _, _| {})?;
        frame.experiment.notes.push(format!("costs: {}", serde_json::to_string(&costs)?));
        rounds(frame, bench, &plans, &costs)
    })
}

fn rounds(frame: &mut Frame<'_, '_>, bench: &Bench, plans: &[(Workload, u32)], costs: &DeviceCosts) -> Result<()> {
    let n_rounds = n_rounds(frame.options);
    frame.of = plans.len() * usize::try_from(n_rounds)?;
    let most = plans.iter().map(|(_, copies)| *copies).max().unwrap_or(1);
    let tenants = add_tenants(bench, usize::try_from(most)?)?;
    for number in 1..=n_rounds {
        let mut demand: Option<(&'static str, Demand)> = None;
        for (index, (workload, copies)) in plans.iter().enumerate() {
            frame.options.cancel.check()?;
            frame.say(&format!("round {number} of {n_rounds}: {} x {copies}", workload.name));
            let known = demand.as_ref().filter(|(name, _)| *name == workload.name).map(|(_, demand)| demand);
            let mut round = Round::default();
            // First the prediction, then the run.
            if let Some(demand) = known {
                predicted(&mut round, demand, *copies, costs);
            }
            let measured = measure(frame, bench, workload, &tenants[..usize::try_from(*copies)?])?;
            measured.figures(&mut round);
            if *copies == 1 {
                demand = Some((workload.name, workload.demand(&measured)));
            }
            frame.finish(index, round)?;
        }
    }
    Ok(())
}

fn predicted(round: &mut Round, demand: &Demand, copies: u32, costs: &DeviceCosts) {
    let cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let cache = Bytes(MEMORY.0.saturating_sub(demand.memory.0.saturating_mul(u64::from(copies))));
    let devices = [costs];
    let host = Host { cpus, cache, devices: &devices, is_journal_shared: false, has_shares: false };
    let prediction = predict(&host, &[Copies { copies, ..Copies::one(demand) }]);
    let achieved = prediction.achieved[0];
    set_figure(round, f::PREDICTED_PER_S, achieved.per_s * f64::from(copies));
    set_figure(round, f::PREDICTED_P99_MS, achieved.operation.p99 * 1e3);
    set_figure(round, f::PREDICTED_MISS, achieved.miss);
    set_figure(round, f::PREDICTED_BUSY_PCT, 100.0 * prediction.devices[0]);
    set_figure(round, f::PREDICTED_CPU_PCT, 100.0 * prediction.cpu);
}

/// What copies achieved together.
struct Measured {
    per_s: Vec<f64>,
    p99_ms: Option<f64>,
    /// Processor time of the machine for each operation.
    cpu_seconds: f64,
    /// Reads of the device for each operation.
    reads: f64,
    busy_pct: f64,
    /// Memory of each copy that is not page cache.
    memory: Bytes,
}

impl Measured {
    fn figures(&self, round: &mut Round) {
        set_figure(round, f::OPS_PER_S, self.per_s.iter().sum::<f64>());
        set_figure(round, f::LEAST_OPS_PER_S, self.per_s.iter().copied().reduce(f64::min));
        set_figure(round, f::FAIRNESS, fairness(&self.per_s));
        set_figure(round, f::P99_MS, self.p99_ms);
        set_figure(round, f::CPU_US_PER_IO, self.cpu_seconds * 1e6);
        set_figure(round, f::DEVICE_READS_PER_OP, self.reads);
        set_figure(round, f::DEVICE_BUSY_PCT, self.busy_pct);
    }
}

fn measure(frame: &Frame<'_, '_>, bench: &Bench, workload: &Workload, tenants: &[(Name, PathBuf)]) -> Result<Measured> {
    let roots = Roots::host();
    let limits = workload.kind == LoadKind::CachedRead;
    if limits {
        cgroup::enable(&roots, &slices::root(), &["memory"]).context("the memory controller")?;
        cgroup::write(&roots, &slices::root(), "memory.max", &MEMORY.0.to_string())?;
    }
    let measured = run_copies(frame, bench, &roots, workload, tenants);
    let unlimited = if limits { cgroup::write(&roots, &slices::root(), "memory.max", "max").map(drop) } else { Ok(()) };
    with_removal(measured, unlimited.context("cannot remove the limit of memory"))
}

fn run_copies(
    frame: &Frame<'_, '_>,
    bench: &Bench,
    roots: &Roots,
    workload: &Workload,
    tenants: &[(Name, PathBuf)],
) -> Result<Measured> {
    let starter = frame.starter();
    let mut loads: Vec<Load> = Vec::new();
    for (name, dir) in tenants {
        let load = starter.load(&workload.args(dir), &roots.cgroup_dir(&slices::payload(name)))?;
        load.await_prepared()?;
        loads.push(load);
    }
    // What the preparation has left in memory is not the workload's.
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")?;
    for load in &mut loads {
        load.begin()?;
    }
    for load in &loads {
        load.await_window(Duration::from_secs_f64(WARM_UP))?;
    }
    let (begin, cpu_before) = (Instant::now(), busy_cpu_us()?);
    let disk_before = block::diskstat(roots, bench.dev()).context("the disk's counters")?;
    wait_until(begin + Duration::from_secs_f64(SECONDS), &starter.cancel)?;
    let (seconds, cpu_after) = (begin.elapsed().as_secs_f64(), busy_cpu_us()?);
    let disk = block::diskstat(roots, bench.dev()).context("the disk's counters")?;
    let memory = anonymous(roots)?;
    let results: Vec<LoadResult> = loads.into_iter().map(Load::finish).collect::<Result<_>>()?;
    calm(&starter, &bench.pair()?)?;
    let per_s: Vec<f64> = results.iter().map(|result| result.tally.ops as f64 / result.seconds).collect();
    let all = per_s.iter().sum::<f64>() * seconds;
    let p99s = results.iter().filter_map(|result| {
        let tally = &result.tally;
        tally.op_ms.percentile(99.0).or_else(|| tally.fsync_ms.percentile(99.0))
    });
    let p99s: Vec<f64> = p99s.collect();
    Ok(Measured {
        p99_ms: (!p99s.is_empty()).then(|| p99s.iter().sum::<f64>() / p99s.len() as f64),
        cpu_seconds: cpu_after.saturating_sub(cpu_before) as f64 / 1e6 / all.max(1.0),
        reads: (disk.reads - disk_before.reads) as f64 / all.max(1.0),
        busy_pct: (0.1 * (disk.io_ms - disk_before.io_ms) as f64 / seconds).min(100.0),
        memory: Bytes(memory.0 / tenants.len() as u64),
        per_s,
    })
}

/// Memory of all tenants that is not page cache; 0 without the memory controller.
fn anonymous(roots: &Roots) -> Result<Bytes> {
    let Ok(text) = cgroup::read(roots, &slices::root(), "memory.stat") else { return Ok(Bytes(0)) };
    let of = |key: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    Ok(Bytes(of("anon") + of("kernel")))
}
