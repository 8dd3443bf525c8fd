//! Copies of loads, each in a tenant and a directory of its own on one file system: what the experiments `scaling` and `mixing` predict and measure.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_advise::predict::{Fitted, Host, Load as Copies, Prediction, fit, predict};
use bulkhead_core::demand::{Access, Demand, DeviceCosts, Durable, MissRatios, Purpose, Requests};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::{Load, wait_until};
use bulkhead_measure::cleanup::with_removal;
use bulkhead_measure::costs;
use bulkhead_measure::experiment::Frame;
use bulkhead_measure::layout::{Bench, Controller, Layout};
use bulkhead_measure::load::{LoadArgs, LoadKind, LoadResult};
use bulkhead_measure::pair::calm;
use bulkhead_measure::sample::busy_cpu_us;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{block, cgroup};

/// Warm-up, in which the page cache fills, and window, s.
pub(super) const WARM_UP: f64 = 4.0;
pub(super) const SECONDS: f64 = 6.0;
/// Size of each copy's file.
const FILE: Bytes = Bytes::mib(48);
/// That of sequential writers: more than the write cache of any modelled disk, which would take one that is written again and again.
const LARGE_FILE: Bytes = Bytes::mib(160);
/// Memory of all tenants with cached reads.
pub(super) const MEMORY: Bytes = Bytes::mib(192);
/// Least part of a copy's processor time that is its own and not its requests'.
const LEAST_PART: f64 = 0.05;
/// Size of the file on which requests are measured.
const COSTS_FILE: Bytes = Bytes::mib(512);

/// A workload.
#[derive(Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    kind: LoadKind,
    threads: usize,
    file: Bytes,
    requests: Option<(Access, f64, Purpose)>,
}

pub(super) const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "random-read",
        kind: LoadKind::RandomRead,
        threads: 4,
        file: FILE,
        requests: Some((Access::RandomRead, 4096.0, Purpose::Direct)),
    },
    Workload {
        name: "cached-read",
        kind: LoadKind::CachedRead,
        threads: 4,
        file: FILE,
        requests: Some((Access::RandomRead, 4096.0, Purpose::Cached)),
    },
    Workload { name: "durable-write", kind: LoadKind::RandomSync, threads: 2, file: FILE, requests: None },
    Workload {
        name: "sequential-write",
        kind: LoadKind::SequentialDirect,
        threads: 1,
        file: LARGE_FILE,
        requests: Some((Access::SequentialWrite, 131_072.0, Purpose::Direct)),
    },
];

impl Workload {
    pub(super) fn args(&self, dir: &Path) -> LoadArgs {
        let args = LoadArgs::new(self.kind, dir, SECONDS);
        LoadArgs { threads: Some(self.threads), file_bytes: Some(self.file.0), warm_up_seconds: WARM_UP, ..args }
    }

    pub(super) fn config(&self) -> String {
        format!("{}/{}", self.name, Controller::None.as_str())
    }

    /// What a copy demands, by its run alone.
    fn demand(&self, alone: &Measured, costs: &DeviceCosts) -> Fitted {
        let requests = |(access, bytes, purpose)| Requests { access, bytes, per_operation: 1.0, purpose };
        let is_cached = self.kind == LoadKind::CachedRead;
        // Each operation of the others makes one, a durable write or a direct request.
        let made = if is_cached { alone.reads } else { 1.0 };
        let cpu_seconds = alone.cpu_seconds - made * costs.cpu_us / 1e6;
        let demand = Demand {
            clients: self.threads as f64,
            think_seconds: 0.0,
            cpu_seconds: cpu_seconds.max(LEAST_PART * alone.cpu_seconds),
            requests: self.requests.map(requests).into_iter().collect(),
            // Overwrites of blocks that have been written: no commit, and no client waits for another.
            durable: (self.kind == LoadKind::RandomSync).then_some(Durable {
                per_operation: 1.0,
                chain: 1.0,
                is_shared: false,
            }),
            miss_ratios: if is_cached { MissRatios::uniform(self.file) } else { MissRatios::default() },
            memory: alone.memory,
            correction_seconds: 0.0,
        };
        let devices = [costs];
        fit(&host(&devices, &[(&demand, 1)]), 0, &demand, alone.per_s[0])
    }
}

/// What a copy demands, by its run alone in a round; a note of the experiment says how near the prediction of one copy was.
pub(super) fn note_demand(
    frame: &mut Frame<'_, '_>,
    number: u32,
    workload: &Workload,
    alone: &Measured,
    costs: &DeviceCosts,
) -> Result<Demand> {
    let Fitted { demand, without, with } = workload.demand(alone, costs);
    frame.experiment.notes.push(format!(
        "round {number}: {}: predicted alone {without:.2} of measured, corrected {with:.2}; demand {}",
        workload.name,
        serde_json::to_string(&demand)?
    ));
    Ok(demand)
}

/// What requests cost on the shared volume, measured on a file of its own.
pub(super) fn measure_costs(frame: &mut Frame<'_, '_>, bench: &Bench) -> Result<DeviceCosts> {
    bench.arrange(Layout::Shared, Controller::None, None)?;
    frame.say("what requests cost");
    let request = costs::Request {
        directory: bench.host_dir()?.to_owned(),
        size: Some(COSTS_FILE),
        cancel: frame.options.cancel.clone(),
    };
    let costs = costs::run(&request, &mut |_, _, _| {})?;
    frame.experiment.notes.push(format!("costs: {}", serde_json::to_string(&costs)?));
    Ok(costs)
}

/// What copies of workloads achieve together, by the model.
pub(super) fn predicted(costs: &DeviceCosts, loads: &[(&Demand, u32)]) -> Prediction {
    let devices = [costs];
    let host = host(&devices, loads);
    let loads: Vec<Copies<'_>> =
        loads.iter().map(|(demand, copies)| Copies { copies: *copies, ..Copies::one(demand) }).collect();
    predict(&host, &loads)
}

/// Number of this machine's processors.
pub(super) fn cpus() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64)
}

/// This machine, with the page cache that those loads have.
fn host<'a>(devices: &'a [&'a DeviceCosts], loads: &[(&Demand, u32)]) -> Host<'a> {
    let other = loads.iter().map(|(demand, copies)| demand.memory.0.saturating_mul(u64::from(*copies)));
    let cache = Bytes(MEMORY.0.saturating_sub(other.fold(0, u64::saturating_add)));
    Host { cpus: cpus(), cache, devices, is_journal_shared: false, has_shares: false }
}

/// What copies achieved together.
pub(super) struct Measured {
    /// Operations per second of each.
    pub(super) per_s: Vec<f64>,
    /// Mean of their 99th percentiles.
    pub(super) p99_ms: Option<f64>,
    /// Processor time of the machine for each operation.
    pub(super) cpu_seconds: f64,
    /// Reads of the device for each operation.
    pub(super) reads: f64,
    pub(super) busy_pct: f64,
    /// Memory of each copy that is not page cache.
    memory: Bytes,
}

/// Runs a copy of each of these workloads, in tenants and directories of their own.
pub(super) fn measure(
    frame: &Frame<'_, '_>,
    bench: &Bench,
    workloads: &[&Workload],
    tenants: &[(Name, PathBuf)],
) -> Result<Measured> {
    let roots = Roots::host();
    let limits = workloads.iter().any(|workload| workload.kind == LoadKind::CachedRead);
    if limits {
        cgroup::enable(&roots, &slices::root(), &["memory"]).context("the memory controller")?;
        cgroup::write(&roots, &slices::root(), "memory.max", &MEMORY.0.to_string())?;
    }
    let measured = run_copies(frame, bench, &roots, workloads, tenants);
    let unlimited = if limits { cgroup::write(&roots, &slices::root(), "memory.max", "max").map(drop) } else { Ok(()) };
    with_removal(measured, unlimited.context("cannot remove the limit of memory"))
}

fn run_copies(
    frame: &Frame<'_, '_>,
    bench: &Bench,
    roots: &Roots,
    workloads: &[&Workload],
    tenants: &[(Name, PathBuf)],
) -> Result<Measured> {
    let starter = frame.starter();
    let mut loads: Vec<Load> = Vec::new();
    for (workload, (name, dir)) in workloads.iter().zip(tenants) {
        loads.push(starter.load(&workload.args(dir), &roots.cgroup_dir(&slices::payload(name)))?);
    }
    // They write their files at the same time, so that the page cache, which only cached reads use, has as much of one as of another: it would take
    // minutes to fill it by random reads of a hard disk.
    for load in &loads {
        load.await_prepared()?;
    }
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
        memory: Bytes(memory.0 / workloads.len().max(1) as u64),
        per_s,
    })
}

/// Memory of all tenants that is not page cache; 0 without the memory controller.
fn anonymous(roots: &Roots) -> Result<Bytes> {
    let Ok(text) = cgroup::read(roots, &slices::root(), "memory.stat") else { return Ok(Bytes(0)) };
    let of = |key: &str| cgroup::keyed(&text, key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
    Ok(Bytes(of("anon") + of("kernel")))
}
