//! `dbms-consolidation`: a database with 70 % next to the paper's neighbours with 30 % (Mardan & Kono 2021, figures 7-10, table 1).
//!
//! One data directory for each layout, filled once; the server is restarted for each round of a cell, so that no cell inherits the buffer pool
//! of another. Alone, the database is also measured without CPU weights, which shows their effect. Full form: 22 cells x 3 rounds (30 on a
//! disk with an arm), about 45 s each and 40 s more with enforced shares, an hour with set-up; short form: only the neighbours `none` and
//! `high-fsync`, 12 cells of about 35 s or 75 s, 10 minutes.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_core::model::Unit;
use bulkhead_core::units::DevNo;
use bulkhead_engine::observe::Observatory;
use bulkhead_sys::fsync_trace::{FsyncCall, FsyncTrace};
use bulkhead_sys::roots::Roots;

use super::hold::{HoldParams, SETTLE, Standings, with_hold};
use super::{Extent, Frame, Method, OnProgress, Options, Plan, choices, chosen, product, served, set_figure};
use crate::cgroup_run::{Load, Starter, wait_until};
use crate::layout::{Bench, Controller, Layout};
use crate::load::{LoadArgs, LoadKind, LoadResult};
use crate::mariadb::{Interval, Server, check_programs};
use crate::pair::{Pair, calm};
use crate::report::figure as f;
use crate::result::{Experiment, Round, spread};
use crate::sample::Activity;

/// Its entry in the table of experiments.
pub const METHOD: Method = Method {
    name: "dbms-consolidation",
    what: "a database with a share of 70 % beside writers with more and fewer fsyncs",
    choices: |options| choices(&cells(options)),
    extent: |options| Extent::new(options, chosen(&cells(options), options).len(), seconds(options)).after(90.0),
    work: run,
};

const ABOUT: &str = "MariaDB with sysbench oltp_insert (autocommit, 4 clients) in tenant A with a share of 70, beside a sequential writer \
    (4 threads) in tenant B with a share of 30. fsync_mean_ms is over all fsync and fdatasync calls of the server in ext4 (its own \
    tracepoints), binary log, redo log and data files alike; the paper's figure is MySQL 5.7's. Shares are bytes of the device \
    charged to each slice, journal included; where they are held, device time without flushes, which have no owner, as the controller \
    measured it in the last 15 s of the window.";

const CONFIGS: [(Layout, Controller); 4] = [
    (Layout::Shared, Controller::Bfq),
    (Layout::Own, Controller::Bfq),
    (Layout::OwnAccounted, Controller::Bfq),
    (Layout::OwnAccounted, Controller::Iocost),
];
/// Measured only without a neighbour.
const ALONE: [(Layout, Controller); 2] =
    [(Layout::OwnAccountedWithoutCpu, Controller::Bfq), (Layout::OwnAccountedWithoutCpu, Controller::Iocost)];
const SHARES: (u32, u32) = (700, 300);
const NEIGHBOURS: [&str; 4] = ["none", "no-fsync", "low-fsync", "high-fsync"];
/// Few clients, so that an emulated CPU does not become the bottleneck.
const CLIENTS: u32 = 4;

/// Warm-up and window in seconds.
const FULL: (u32, u32) = (5, 20);
const QUICK: (u32, u32) = (4, 10);
/// Time for starting and ending the server and the loads, on an emulated machine.
const BETWEEN_SECONDS: f64 = 21.0;

fn times(quick: bool) -> (u32, u32) {
    if quick { QUICK } else { FULL }
}

/// All cells; in the short form, those with two neighbours unless the options select others.
fn cells(options: &Options) -> Vec<Plan> {
    let few = options.quick && options.neighbours.is_empty();
    let neighbours: &[&str] = if few { &["none", "high-fsync"] } else { &NEIGHBOURS };
    // With enforced shares: under io.cost next to every neighbour, under BFQ next to the one with the most fsyncs.
    let held = neighbours.iter().skip(1).map(|neighbour| Plan::held(Controller::Iocost, neighbour));
    let held = held.chain([Plan::held(Controller::Bfq, "high-fsync")]);
    [product(&CONFIGS, neighbours), product(served(options), neighbours), product(&ALONE, &["none"]), held.collect()]
        .concat()
}

/// Average duration of one round of a cell.
fn seconds(options: &Options) -> f64 {
    let (warm_up, window) = times(options.quick);
    let cells = chosen(&cells(options), options);
    let n_held = cells.iter().filter(|plan| plan.hold.is_some()).count();
    f64::from(warm_up + window)
        + BETWEEN_SECONDS
        + f64::from(SETTLE - warm_up) * n_held as f64 / cells.len().max(1) as f64
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    check_programs()?;
    Frame::new(METHOD.name, ABOUT, options, progress).with_bench(SHARES, None, work)
}

fn work(frame: &mut Frame<'_, '_>, bench: &Bench) -> Result<()> {
    let options = frame.options;
    let plans = chosen(&cells(options), options);
    // All layouts with own volumes use the same ones.
    let files = |layout| match layout {
        Layout::Own | Layout::OwnAccounted | Layout::OwnAccountedWithoutCpu => Layout::OwnAccounted,
        other => other,
    };
    for (layout, what) in [(Layout::Shared, "shared"), (Layout::OwnAccounted, "own"), (Layout::Served, "served")] {
        if plans.iter().any(|plan| files(plan.layout) == layout) {
            frame.say(&format!("filling the database on the {what} volume"));
            let places = bench.arrange(layout, Controller::None, options.model.as_ref())?;
            let server = Server::start(&places.a.join("db"), &bench.pair()?.payload_a, &options.cancel)?;
            server.prepare()?;
            server.stop()?;
        }
    }
    let (warm_up, window) = times(options.quick);
    let server = crate::mariadb::server_args("DATA".as_ref(), "SOCKET".as_ref()).join(" ");
    frame.experiment.commands.push(format!("mariadbd {server}"));
    frame
        .experiment
        .commands
        .push(format!("sysbench oltp_insert, {CLIENTS} clients, warm-up {warm_up} s, window {window} s"));
    frame.experiment.commands.push(format!("with shares held: warm-up {SETTLE} s"));
    frame.observed_rounds(&plans, |frame, observatory, plan| round(frame, bench, observatory, plan, (warm_up, window)))
}

/// Observations of the database and its neighbour.
struct Seen {
    /// One per second from the start of the warm-up.
    intervals: Vec<Interval>,
    /// The server's, in the window.
    calls: Vec<FsyncCall>,
    activity: Activity,
    neighbour: Option<LoadResult>,
}

fn round(
    frame: &mut Frame<'_, '_>,
    bench: &Bench,
    observatory: &Observatory,
    plan: Plan,
    (warm_up, window): (u32, u32),
) -> Result<Round> {
    let options = frame.options;
    let places = bench.arrange(plan.layout, plan.controller, options.model.as_ref())?;
    let (starter, pair) = (frame.starter(), bench.pair()?);
    let kind = match plan.neighbour {
        "no-fsync" => Some(LoadKind::NoFsync),
        "low-fsync" => Some(LoadKind::LowFsync),
        "high-fsync" => Some(LoadKind::HighFsync),
        _ => None,
    };
    let server = Server::start(&places.a.join("db"), &pair.payload_a, &options.cancel)?;
    let neighbour = kind.map(|kind| LoadArgs::new(kind, &places.b, f64::from(window)));
    let warm_up = if plan.hold.is_some() { SETTLE } else { warm_up };
    let dev = bench.dev_of_a(plan.layout)?;
    let work = |standings: Option<&Standings<'_>>| {
        beside(&starter, &pair, &server, neighbour, dev, (warm_up, window), standings)
    };
    let mut round = Round::default();
    let seen = match plan.hold {
        None => work(None)?,
        Some(mode) => {
            // Shares of device time: by bytes, the small writes of a database would limit a stream to as few.
            let holding = HoldParams { shares: SHARES, unit: Unit::Time, mode, fsync_p99: None };
            with_hold(bench, observatory, holding, &mut round, |standings| work(Some(standings)))?
        }
    };
    server.stop()?;
    calm(&starter, &pair)?;
    figures(&mut round, seen, warm_up + 1..=warm_up + window)?;
    Ok(round)
}

/// Runs the clients and the neighbour, if any, at the same time. The database's file system is on `dev`; standings are sampled at both ends of
/// the window.
fn beside(
    starter: &Starter,
    pair: &Pair,
    server: &Server,
    neighbour: Option<LoadArgs>,
    dev: DevNo,
    (warm_up, window): (u32, u32),
    standings: Option<&Standings<'_>>,
) -> Result<Seen> {
    let cancel = &starter.cancel;
    let neighbour = neighbour.map(|args| LoadArgs { warm_up_seconds: f64::from(warm_up), ..args });
    let mut neighbour = neighbour.map(|args| starter.load(&args, &pair.payload_b)).transpose()?;
    if let Some(load) = &neighbour {
        load.await_prepared()?;
    }
    // Two more seconds, so that the report of the window's last second is complete.
    let mut clients = server.clients(CLIENTS, warm_up + window + 2)?;
    clients.await_start(cancel)?;
    let start = Instant::now();
    if let Some(load) = &mut neighbour {
        load.begin()?;
    }
    wait_until(start + Duration::from_secs(u64::from(warm_up)), cancel)?;
    let trace = FsyncTrace::start(&Roots::host(), dev)?;
    if let Some(standings) = standings {
        standings.keep()?;
    }
    let before = pair.watch.snapshot()?;
    wait_until(Instant::now() + Duration::from_secs(u64::from(window)), cancel)?;
    let activity = before.until(&pair.watch.snapshot()?);
    if let Some(standings) = standings {
        standings.keep()?;
    }
    let mut calls = trace.stop()?;
    let threads: HashSet<u32> = server.threads()?.into_iter().collect();
    calls.retain(|call| threads.contains(&call.tid));
    let intervals = clients.finish(cancel)?;
    let neighbour = neighbour
        .map(|load: Load| {
            load.await_window(Duration::ZERO)?;
            load.finish()
        })
        .transpose()?;
    Ok(Seen { intervals, calls, activity, neighbour })
}

fn figures(round: &mut Round, seen: Seen, seconds: RangeInclusive<u32>) -> Result<()> {
    let Seen { intervals, calls, activity, neighbour } = seen;
    let counted: Vec<Interval> = intervals.into_iter().filter(|i| seconds.contains(&i.at_seconds)).collect();
    if counted.is_empty() {
        anyhow::bail!("sysbench reported nothing in the window");
    }
    let n = counted.len() as f64;
    set_figure(round, f::INSERTS_PER_S, counted.iter().map(|i| i.inserts_per_s).sum::<f64>() / n);
    set_figure(round, "latency_p95_ms", spread(counted.iter().map(|i| i.p95_ms)).context("no latency")?.median);
    fsyncs(round, &calls, activity.seconds);
    if let Some(load) = &neighbour {
        set_figure(round, f::NEIGHBOUR_BYTES_PER_S, activity.per_s(activity.b_payload_bytes));
        set_figure(round, f::NEIGHBOUR_OPS_PER_S, load.tally.ops as f64 / load.seconds);
        set_figure(round, "neighbour_fsync_mean_ms", load.tally.fsync_ms.mean());
    }
    shares(round, &activity);
    Ok(())
}

fn fsyncs(round: &mut Round, calls: &[FsyncCall], window_seconds: f64) {
    let mean = |of: &dyn Fn(&&FsyncCall) -> bool| {
        let some: Vec<f64> = calls.iter().filter(of).map(|call| call.ms).collect();
        (!some.is_empty()).then(|| some.iter().sum::<f64>() / some.len() as f64)
    };
    set_figure(round, f::FSYNC_MEAN_MS, mean(&|_| true));
    set_figure(round, "fsync_full_mean_ms", mean(&|call| !call.datasync));
    set_figure(round, "fsync_data_mean_ms", mean(&|call| call.datasync));
    set_figure(round, "fsyncs_per_s", calls.len() as f64 / window_seconds);
    round.series.insert("fsync_ms".to_owned(), calls.iter().map(|call| (call.ms * 1e3).round() / 1e3).collect());
}

/// Adds the tenants' shares of the device's bytes.
pub fn shares(round: &mut Round, activity: &Activity) {
    set_figure(round, f::SHARE_A_PCT, activity.pct_of_device(activity.a_bytes()));
    set_figure(round, f::SHARE_B_PCT, activity.pct_of_device(activity.b_bytes()));
    set_figure(round, "share_a_journal_pct", activity.pct_of_device(activity.a_journal_bytes));
    set_figure(round, "share_b_journal_pct", activity.pct_of_device(activity.b_journal_bytes));
    set_figure(round, "share_root_pct", activity.pct_of_device(activity.root_bytes));
    set_figure(round, f::DEVICE_BUSY_PCT, activity.device_busy_pct);
    set_figure(round, "device_bytes_per_s", activity.per_s(activity.device_bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effect_of_cpu_weights_is_measured_without_a_neighbour() {
        for quick in [false, true] {
            let options = Options { quick, ..Options::new(crate::layout::Target::Directory("/".into())) };
            let all: Vec<String> = cells(&options).into_iter().map(Plan::id).collect();
            let without: Vec<&String> = all.iter().filter(|id| id.contains("-cpu")).collect();
            assert_eq!(without, ["own+accounting-cpu/bfq/none", "own+accounting-cpu/iocost/none"]);
            assert!(without.iter().all(|id| all.contains(&id.replace("-cpu", ""))));
        }
    }

    #[test]
    fn fsyncs_are_kept_apart_by_kind() {
        let call = |datasync, ms| FsyncCall { tid: 1, inode: 2, datasync, ms };
        let mut round = Round::default();
        fsyncs(&mut round, &[call(true, 10.0), call(true, 20.0), call(false, 60.0)], 2.0);
        assert_eq!(round.figures[f::FSYNC_MEAN_MS], 30.0);
        assert_eq!((round.figures["fsync_data_mean_ms"], round.figures["fsync_full_mean_ms"]), (15.0, 60.0));
        assert_eq!(round.figures["fsyncs_per_s"], 1.5);
    }
}
