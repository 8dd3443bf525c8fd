//! `fsync-probe`: the latency of a small fsync next to a noisy neighbour.
//!
//! A round of a cell, all in the same mount: A's probe alone, the neighbour alone, both. The buffered writers need a long warm-up: until the page
//! cache has reached its limit of dirty data, 0.5 GB of the lab's 3 GB, the disk is not their bottleneck. In three cells, equal shares are enforced
//! and A's fsyncs have a latency limit, which takes a warm-up of 75 s. Full form: 24 cells x 3 rounds,
//! 70 minutes for a disk on the guest's clock; short form: 6 cells, one round, 4 minutes.

use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_core::model::Unit;
use bulkhead_core::units::Bytes;
use bulkhead_engine::observe::Observatory;

use super::hold::{HoldParams, Standings, with_hold};
use super::{Extent, Frame, Method, OnProgress, Options, Plan, choices, chosen, product, served, set_figure};
use crate::cgroup_run::Starter;
use crate::layout::{Bench, Controller, Layout, TenantDirs};
use crate::load::{LoadArgs, LoadKind};
use crate::pair::{Measured, Pair, measure, measure_with};
use crate::report::figure as f;
use crate::result::{Experiment, Round};

/// Its entry in the table of experiments.
pub const METHOD: Method = Method {
    name: "fsync-probe",
    what: "a small fsync beside a noisy neighbour",
    choices: |options| choices(&cells(options)),
    extent: |options| Extent::new(options, chosen(&cells(options), options).len(), seconds(options)),
    work: run,
};

const ABOUT: &str = "Tenant A appends 4 KiB and calls fsync every 100 ms; tenant B is idle, then busy. Latencies are those of the \
    call itself; `since_scheduled` counts from the moment the operation was due. Equal shares. B's throughput is what the \
    device did that was not charged to A for streams, durable bytes for fsyncs, and files created and removed for storm. \
    a_device_share is how busy the device was with A alone, 0 to 1. With +hold, equal shares of the device's time are enforced and A is \
    promised that 99 % of its fsyncs take no more than twice what they took alone, right before.";

/// The neighbours, in the order (a), (b), (c) of the target.
pub const NEIGHBOURS: [(&str, LoadKind); 3] =
    [("streams", LoadKind::Streams), ("fsyncs", LoadKind::Fsyncs), ("storm", LoadKind::Storm)];

/// The compared configurations.
const CONFIGS: [(Layout, Controller); 7] = [
    (Layout::Shared, Controller::None),
    (Layout::Shared, Controller::Bfq),
    (Layout::OwnAccounted, Controller::None),
    (Layout::OwnAccounted, Controller::Bfq),
    (Layout::OwnAccounted, Controller::BfqStrict),
    (Layout::Shared, Controller::Iocost),
    (Layout::OwnAccounted, Controller::Iocost),
];

/// The configurations of the short form, unless options select others: it has to finish on two disks within 10 minutes.
const QUICK_CONFIGS: [(Layout, Controller); 2] =
    [(Layout::Shared, Controller::None), (Layout::OwnAccounted, Controller::Iocost)];

/// The shares of A and B.
const SHARES: (u32, u32) = (100, 100);
/// A's latency limit: the 99th percentile of its fsyncs, as a multiple of that alone. This is also the limit of the target.
const PROMISE: f64 = 2.0;
/// How long the limit is enforced before a window, s: there is a step every 10 s, and several until the neighbour is throttled enough.
const SETTLE: f64 = 75.0;

/// Warm-up and window of the three parts of a round.
#[derive(Clone, Copy)]
struct Times {
    idle: (f64, f64),
    alone: (f64, f64),
    loaded: (f64, f64),
}

/// Time for starting and ending the loads of one round, on an emulated machine.
const BETWEEN_SECONDS: f64 = 5.0;

fn times(kind: LoadKind, quick: bool) -> Times {
    match (kind, quick) {
        (LoadKind::Streams, false) => Times { idle: (1.0, 8.0), alone: (6.0, 8.0), loaded: (6.0, 16.0) },
        (LoadKind::Streams, true) => Times { idle: (1.0, 4.0), alone: (8.0, 5.0), loaded: (8.0, 10.0) },
        (_, false) => Times { idle: (1.0, 8.0), alone: (3.0, 8.0), loaded: (3.0, 17.0) },
        (_, true) => Times { idle: (1.0, 4.0), alone: (1.0, 4.0), loaded: (1.0, 7.0) },
    }
}

/// All cells, or those of the short form.
pub(crate) fn cells(options: &Options) -> Vec<Plan> {
    let is_short = options.quick && options.configs.is_empty();
    let configs = if is_short { QUICK_CONFIGS.as_slice() } else { &CONFIGS };
    let free = product(&[configs, served(options)].concat(), &NEIGHBOURS.map(|(name, _)| name));
    let held = NEIGHBOURS.iter().map(|(neighbour, _)| Plan::held(Controller::Iocost, neighbour));
    free.into_iter().chain(held.filter(|_| !is_short)).collect()
}

/// Average duration of one round of a cell, over the neighbours.
fn seconds(options: &Options) -> f64 {
    let (quick, plans) = (options.quick, chosen(&cells(options), options));
    let n_held = plans.iter().filter(|plan| plan.hold.is_some()).count() as f64;
    let part = |(warm_up, window): (f64, f64)| warm_up + window;
    let all = NEIGHBOURS.map(|(_, kind)| times(kind, quick));
    let sum: f64 = all.iter().map(|t| part(t.idle) + part(t.alone) + part(t.loaded)).sum();
    sum / all.len() as f64 + BETWEEN_SECONDS + SETTLE * n_held / (plans.len() as f64).max(1.0)
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.with_bench(SHARES, None, |frame, bench| {
        for (name, kind) in NEIGHBOURS {
            let times = times(kind, options.quick);
            for (what, (warm_up, window)) in [("A alone", times.idle), ("B alone", times.alone), ("both", times.loaded)]
            {
                frame.experiment.commands.push(format!("{name}: {what}: warm-up {warm_up} s, window {window} s"));
            }
        }
        let plans = chosen(&cells(options), options);
        frame.observed_rounds(&plans, |frame, observatory, plan| round(frame, bench, observatory, plan))
    })
}

fn round(frame: &mut Frame<'_, '_>, bench: &Bench, observatory: &Observatory, plan: Plan) -> Result<Round> {
    let places = bench.arrange(plan.layout, plan.controller, frame.options.model.as_ref())?;
    let kind = NEIGHBOURS.iter().find(|(name, _)| *name == plan.neighbour).map_or(LoadKind::Streams, |(_, kind)| *kind);
    let volume = Bytes(bench.volume_bytes());
    let (starter, pair) = (frame.starter(), bench.pair()?);
    let Some(mode) = plan.hold else {
        return beside(&starter, &pair, &places, volume, kind, frame.options.quick);
    };
    let windows = Windows::new(&starter, &pair, &places, volume, kind, frame.options.quick);
    let (idle, alone) = (windows.idle()?, windows.alone()?);
    let p99_ms =
        idle.a.as_ref().and_then(|probe| probe.tally.fsync_ms.percentile(99.0)).context("A alone called no fsync")?;
    let promised = Duration::from_secs_f64(PROMISE * p99_ms / 1000.0);
    let holding = HoldParams { shares: SHARES, unit: Unit::Time, mode, fsync_p99: Some(promised) };
    let mut held = Round::default();
    let loaded = with_hold(bench, observatory, holding, &mut held, |standings| windows.loaded(Some(standings)))?;
    let mut round = figures(kind, &idle, &alone, &loaded);
    round.figures.append(&mut held.figures);
    set_figure(&mut round, "fsync_promised_p99_ms", PROMISE * p99_ms);
    Ok(round)
}

/// Measures A's probe alone, the neighbour alone, and both.
pub fn beside(
    starter: &Starter,
    pair: &Pair,
    places: &TenantDirs,
    volume: Bytes,
    kind: LoadKind,
    quick: bool,
) -> Result<Round> {
    let windows = Windows::new(starter, pair, places, volume, kind, quick);
    Ok(figures(kind, &windows.idle()?, &windows.alone()?, &windows.loaded(None)?))
}

/// The windows that are measured one after the other.
struct Windows<'a> {
    starter: &'a Starter,
    pair: &'a Pair,
    probe: LoadArgs,
    neighbour: LoadArgs,
    times: Times,
}

impl<'a> Windows<'a> {
    fn new(
        starter: &'a Starter,
        pair: &'a Pair,
        places: &TenantDirs,
        volume: Bytes,
        kind: LoadKind,
        quick: bool,
    ) -> Self {
        let probe = LoadArgs::new(LoadKind::Probe, &places.a, 0.0);
        let mut neighbour = LoadArgs::new(kind, &places.b, 0.0);
        if kind == LoadKind::Streams {
            neighbour.file_bytes = Some((128 << 20).min(volume.0 / 16));
        }
        Self { starter, pair, probe, neighbour, times: times(kind, quick) }
    }

    fn idle(&self) -> Result<Measured> {
        measure(self.starter, self.pair, Some(&self.probe), None, self.times.idle)
    }

    fn alone(&self) -> Result<Measured> {
        measure(self.starter, self.pair, None, Some(&self.neighbour), self.times.alone)
    }

    /// Measures both; with standings, while shares are enforced.
    fn loaded(&self, standings: Option<&Standings<'_>>) -> Result<Measured> {
        let (warm_up, window) = self.times.loaded;
        let warm_up = if standings.is_some() { SETTLE } else { warm_up };
        let keep = || standings.map_or(Ok(()), Standings::keep);
        let (probe, neighbour) = (Some(&self.probe), Some(&self.neighbour));
        Ok(measure_with(self.starter, self.pair, probe, neighbour, (warm_up, window), keep)?.measured)
    }
}

fn figures(kind: LoadKind, idle: &Measured, alone: &Measured, loaded: &Measured) -> Round {
    let mut round = Round::default();
    for (when, measured) in [("idle", idle), ("loaded", loaded)] {
        let Some(probe) = &measured.a else { continue };
        set_figure(&mut round, &format!("fsync_{when}_mean_ms"), probe.tally.fsync_ms.mean());
        set_figure(&mut round, &format!("fsync_{when}_p50_ms"), probe.tally.fsync_ms.percentile(50.0));
        set_figure(&mut round, &format!("fsync_{when}_p99_ms"), probe.tally.fsync_ms.percentile(99.0));
        set_figure(&mut round, &format!("fsync_{when}_max_ms"), probe.tally.fsync_ms.max());
        set_figure(&mut round, &format!("since_scheduled_{when}_mean_ms"), probe.tally.since_scheduled_ms.mean());
        set_figure(
            &mut round,
            &format!("since_scheduled_{when}_p99_ms"),
            probe.tally.since_scheduled_ms.percentile(99.0),
        );
        set_figure(&mut round, &format!("fsyncs_{when}_total"), probe.tally.fsync_ms.n() as f64);
        set_figure(&mut round, &format!("missed_{when}_total"), probe.tally.missed_ops as f64);
        round.series.insert(format!("fsync_{when}_ms"), probe.tally.fsync_ms.values().to_vec());
    }
    for (bytes, ops, measured) in [
        (f::NEIGHBOUR_ALONE_BYTES_PER_S, f::NEIGHBOUR_ALONE_OPS_PER_S, alone),
        (f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_OPS_PER_S, loaded),
    ] {
        let Some(load) = &measured.b else { continue };
        let durable = match kind {
            // Counted on completion: bytes charged on submission may still wait in the queue.
            LoadKind::Streams => Some(
                measured.activity.per_s(measured.activity.device_bytes.saturating_sub(measured.activity.a_bytes())),
            ),
            // A storm is counted in files: how many bytes reach the device depends on how soon the files are removed.
            LoadKind::Storm => None,
            _ => Some(load.tally.synced_bytes as f64 / load.seconds),
        };
        set_figure(&mut round, bytes, durable);
        if kind != LoadKind::Streams {
            set_figure(&mut round, ops, load.tally.ops as f64 / load.seconds);
        }
    }
    set_figure(&mut round, f::A_DEVICE_SHARE, idle.activity.device_busy_pct / 100.0);
    set_figure(&mut round, "device_busy_idle_pct", idle.activity.device_busy_pct);
    set_figure(&mut round, "device_busy_alone_pct", alone.activity.device_busy_pct);
    set_figure(&mut round, f::DEVICE_BUSY_PCT, loaded.activity.device_busy_pct);
    let activity = &loaded.activity;
    set_figure(&mut round, "device_bytes_per_s", activity.per_s(activity.device_bytes));
    set_figure(&mut round, "device_alone_bytes_per_s", alone.activity.per_s(alone.activity.device_bytes));
    set_figure(&mut round, "a_payload_bytes_per_s", activity.per_s(activity.a_payload_bytes));
    set_figure(&mut round, "b_payload_bytes_per_s", activity.per_s(activity.b_payload_bytes));
    set_figure(&mut round, "journal_bytes_in_slice", (activity.a_journal_bytes + activity.b_journal_bytes) as f64);
    set_figure(&mut round, "root_bytes", activity.root_bytes as f64);
    round
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadResult, Series, Tally};
    use crate::sample::Activity;

    fn load(kind: LoadKind, latencies: &[f64]) -> LoadResult {
        let mut fsync_ms = Series::default();
        latencies.iter().for_each(|latency| fsync_ms.push(*latency));
        let tally = Tally {
            ops: 20,
            written_bytes: 8000,
            synced_bytes: 4000,
            since_scheduled_ms: fsync_ms.clone(),
            fsync_ms,
            missed_ops: 1,
            ..Tally::default()
        };
        LoadResult { kind, seconds: 2.0, tally }
    }

    #[test]
    fn figures_have_the_names_that_are_judged() {
        let activity = Activity {
            seconds: 2.0,
            device_busy_pct: 12.0,
            device_bytes: 7000,
            a_payload_bytes: 1000,
            ..Activity::default()
        };
        let idle = Measured { a: Some(load(LoadKind::Probe, &[10.0, 20.0])), b: None, activity };
        let alone = Measured { a: None, b: Some(load(LoadKind::Streams, &[])), activity };
        let both =
            Measured { a: Some(load(LoadKind::Probe, &[30.0])), b: Some(load(LoadKind::Streams, &[])), activity };
        let round = figures(LoadKind::Streams, &idle, &alone, &both);
        let figure = |name: &str| round.figures.get(name).copied();
        assert_eq!(figure(f::FSYNC_IDLE_MEAN_MS), Some(15.0));
        assert_eq!(figure(f::FSYNC_LOADED_P99_MS), Some(30.0));
        assert_eq!(figure(f::NEIGHBOUR_BYTES_PER_S), Some(3000.0));
        assert_eq!(figure(f::A_DEVICE_SHARE), Some(0.12));
        assert_eq!(round.series[f::FSYNC_LOADED_SERIES_MS], [30.0]);
        let storm = figures(LoadKind::Storm, &idle, &alone, &both);
        assert_eq!(storm.figures.get(f::NEIGHBOUR_BYTES_PER_S), None);
        assert_eq!(storm.figures.get(f::NEIGHBOUR_OPS_PER_S), Some(&10.0));
        let fsyncs = figures(LoadKind::Fsyncs, &idle, &alone, &both);
        assert_eq!(fsyncs.figures.get(f::NEIGHBOUR_BYTES_PER_S), Some(&2000.0));
    }
}
