//! One cell: the workload, with the counters of both devices around it, and a trace of a part of it.
//!
//! Owns: the figures of a round. Does not: set the stack up, or choose cells.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_core::units::DevNo;
use bulkhead_sys::block::{Diskstat, diskstat};
use bulkhead_sys::block_trace::BlockTrace;
use bulkhead_sys::cgroup;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::Tool;

use super::layers::{self, Layer};
use super::stack::Stack;
use super::{Bench, Workload, server, summary, window, workload};
use crate::calibrate::fio;
use crate::cgroup_run::wait_until;
use crate::experiment::{Frame, set_figure};
use crate::load::LoadKind;
use crate::result::Round;
use crate::sample::busy_cpu_us;

/// Length of the trace within a window.
const TRACED: Duration = Duration::from_millis(500);
/// Time limit for the first I/O of a workload, before the trace.
pub(super) const FIRST_IO: Duration = Duration::from_secs(20);
/// I/Os of a workload before it is traced.
const N_FIRST: u64 = 20;
/// Between two looks at a counter.
const POLL: Duration = Duration::from_millis(20);

/// The counters of both devices of a stack.
struct Counters {
    at: Instant,
    cpu_us: u64,
    upper: Option<Diskstat>,
    lower: Diskstat,
}

/// The devices of a stack, to read.
struct Watch<'a> {
    roots: &'a Roots,
    upper: Option<DevNo>,
    lower: DevNo,
}

impl Watch<'_> {
    fn read(&self) -> Result<Counters> {
        let upper = self.upper.map(|dev| diskstat(self.roots, dev)).transpose().context("the guest's device")?;
        let lower = diskstat(self.roots, self.lower).context("the disk")?;
        Ok(Counters { at: Instant::now(), cpu_us: busy_cpu_us()?, upper, lower })
    }

    /// Traces both for a short time, once there is I/O, or nothing runs any more.
    fn trace(&self, frame: &Frame<'_, '_>, is_running: &dyn Fn() -> bool) -> Result<(Option<Layer>, Layer)> {
        let n_of = |counters: Counters| counters.lower.reads + counters.lower.writes;
        let (from, give_up) = (n_of(self.read()?), Instant::now() + FIRST_IO);
        while n_of(self.read()?) < from + N_FIRST && is_running() && Instant::now() < give_up {
            wait_until(Instant::now() + POLL, &frame.options.cancel)?;
        }
        let devs: Vec<DevNo> = self.upper.into_iter().chain([self.lower]).collect();
        let trace = BlockTrace::start(self.roots, &devs)?;
        wait_until(Instant::now() + TRACED, &frame.options.cancel)?;
        let events = trace.stop()?;
        Ok((self.upper.map(|dev| layers::analyse(&events, dev)), layers::analyse(&events, self.lower)))
    }
}

/// Runs a workload on a stack, and returns its figures.
///
/// # Errors
/// If it fails, measures nothing, or takes too long.
pub(super) fn measure(frame: &mut Frame<'_, '_>, bench: &Bench, stack: &Stack, workload: Workload) -> Result<Round> {
    let watch = Watch { roots: &bench.roots, upper: stack.upper, lower: bench.disk };
    match workload {
        Workload::Micro { rw, .. } => measure_micro(frame, bench, stack, &watch, rw),
        Workload::Server { kind, files } => measure_server(frame, bench, stack, &watch, kind, files),
    }
}

fn measure_micro(frame: &Frame<'_, '_>, bench: &Bench, stack: &Stack, watch: &Watch<'_>, rw: &str) -> Result<Round> {
    let options = frame.options;
    let (limit, cancel) = (bench.settings.limit, &options.cancel);
    let file = stack.mounted.as_ref().map_or_else(|| stack.device.clone(), |dir| dir.join("file"));
    if stack.mounted.is_some() && !file.exists() {
        carry_out(&workload::layout(&file, options.quick, limit), frame).context("the file")?;
    }
    settle(stack, &bench.path)?;
    let tool = workload::micro(rw, &file, options.quick, window(options).1, limit);
    let before = watch.read()?;
    let (report, traced) = std::thread::scope(|scope| {
        let job = scope.spawn(|| fio::run(&tool));
        let traced = watch.trace(frame, &|| !job.is_finished());
        let report = job.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the thread that runs fio panicked")));
        (report, traced)
    });
    cancel.check()?;
    let report = report?;
    // What it has caused below belongs to it.
    settle(stack, &bench.path)?;
    let after = watch.read()?;
    let job = report.jobs.first().context("fio reported no job")?;
    let side = if rw.contains("write") { &job.write } else { &job.read };
    if side.iops <= 0.0 {
        bail!("fio measured nothing");
    }
    let mut round = Round::default();
    set_figure(&mut round, summary::OPS_PER_S, side.iops);
    set_figure(&mut round, summary::LATENCY_MEAN_MS, side.clat_ns.mean.map(|ns| ns / 1e6));
    set_figure(&mut round, summary::LATENCY_P99_MS, side.clat_ns.percentile("99.000000").map(|ns| ns / 1e6));
    let written = if rw.contains("write") { side.io_bytes } else { 0.0 };
    layer_figures(&mut round, (&before, &after), written, traced?);
    Ok(round)
}

fn measure_server(
    frame: &Frame<'_, '_>,
    bench: &Bench,
    stack: &Stack,
    watch: &Watch<'_>,
    kind: LoadKind,
    files: u64,
) -> Result<Round> {
    let options = frame.options;
    let dir = stack.mounted.as_deref().context("there is no file system")?;
    let own = cgroup::cgroup_of(&bench.roots, std::process::id()).context("this process's cgroup")?;
    let mut load = frame.starter().load(&server(kind, files, dir, options), &bench.roots.cgroup_dir(&own))?;
    load.await_prepared()?;
    settle(stack, &bench.path)?;
    load.begin()?;
    let (warm_up, seconds) = window(options);
    load.await_window(Duration::from_secs_f64(warm_up))?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let before = watch.read()?;
    let traced = watch.trace(frame, &|| true);
    wait_until(end, &options.cancel)?;
    let after = watch.read()?;
    let tally = load.finish()?.tally;
    if tally.ops == 0 {
        bail!("no operation ended in the window");
    }
    let mut round = Round::default();
    set_figure(&mut round, summary::OPS_PER_S, tally.ops as f64 / seconds);
    set_figure(&mut round, summary::LATENCY_MEAN_MS, tally.op_ms.mean());
    set_figure(&mut round, summary::LATENCY_P99_MS, tally.op_ms.percentile(99.0));
    set_figure(&mut round, summary::FSYNC_P99_MS, tally.fsync_ms.percentile(99.0));
    layer_figures(&mut round, (&before, &after), tally.written_bytes as f64, traced?);
    Ok(round)
}

/// Figures of both devices: counters over the window, and the traced part of it.
fn layer_figures(
    round: &mut Round,
    (before, after): (&Counters, &Counters),
    written_bytes: f64,
    traced: (Option<Layer>, Layer),
) {
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
    let written = |before: &Diskstat, after: &Diskstat| 512.0 * (after.write_sectors - before.write_sectors) as f64;
    let mut of_layer = |layer: &str, before: &Diskstat, after: &Diskstat, traced: &Layer| {
        let mut set =
            |name: &str, value: Option<f64>| set_figure(round, &summary::of_layer(layer, name), value.map(rounded));
        set("read_mib_per_s", Some((after.read_sectors - before.read_sectors) as f64 / 2048.0 / seconds));
        set("written_mib_per_s", Some(written(before, after) / 1_048_576.0 / seconds));
        set("busy_pct", Some((100.0 * (after.io_ms - before.io_ms) as f64 / 1e3 / seconds).min(100.0)));
        set("flushes_per_s", Some((after.flushes - before.flushes) as f64 / seconds));
        set("request_kib", traced.request_kib);
        set("merged_pct", traced.merged_pct);
        set("sequential_pct", traced.sequential_pct);
        set("queue_ms", traced.queue_ms);
        set("service_ms", traced.service_ms);
        set("idle_pct", traced.idle_pct);
        set("idle_gap_p90_ms", traced.idle_gap_p90_ms);
        set("meta_pct", traced.meta_pct);
    };
    if let (Some(before), Some(after), Some(traced)) = (&before.upper, &after.upper, &traced.0) {
        of_layer(summary::UPPER, before, after, traced);
    }
    of_layer(summary::LOWER, &before.lower, &after.lower, &traced.1);
    let n_cpus = std::thread::available_parallelism().map_or(1.0, |n| n.get() as f64);
    let cpu_pct = 100.0 * (after.cpu_us.saturating_sub(before.cpu_us)) as f64 / 1e6 / seconds / n_cpus;
    set_figure(round, summary::CPU_PCT, rounded(cpu_pct.min(100.0)));
    if written_bytes > 0.0 {
        set_figure(round, summary::WRITE_AMPLIFICATION, rounded(written(&before.lower, &after.lower) / written_bytes));
    }
}

/// To four digits: there are twenty thousand figures.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Runs a tool to its end, or until the run is cancelled.
fn carry_out(tool: &Tool, frame: &Frame<'_, '_>) -> Result<()> {
    tool.run_while(|| frame.options.cancel.check())??;
    Ok(())
}

/// Writes out what is dirty, in the guest first, and drops the page cache.
fn settle(stack: &Stack, disk: &Path) -> Result<()> {
    for dir in stack.file_systems() {
        let synced = File::open(dir).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
        synced.with_context(|| format!("cannot sync {}", dir.display()))?;
    }
    for device in [&stack.device, disk] {
        File::open(device)
            .and_then(|device| device.sync_all())
            .with_context(|| format!("cannot flush {}", device.display()))?;
    }
    fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the page cache")
}
