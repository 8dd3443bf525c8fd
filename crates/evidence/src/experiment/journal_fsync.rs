//! `journal-fsync`: both tenants run the paper's high-fsync workload with shares 70 and 30 (Mardan & Kono 2021, table 2).
//!
//! The paper: 55/53 ms without journal accounting, 45/86 ms with it. Full form: 9 cells x 3 rounds of 28 s, 13 minutes; short
//! form: 9 cells of 18 s, 4 minutes. Two more, with enforced shares, take 45 s longer each.

use anyhow::{Context, Result};
use bulkhead_core::model::Unit;
use bulkhead_engine::observe::Observatory;
use bulkhead_measure::experiment::dbms_consolidation::shares;
use bulkhead_measure::experiment::hold::{HoldParams, SETTLE, Standings, with_hold};
use bulkhead_measure::experiment::{
    Extent, Frame, Method, OnProgress, Options, Plan, choices, chosen, product, set_figure,
};
use bulkhead_measure::layout::{Bench, Controller, Layout};
use bulkhead_measure::load::{LoadArgs, LoadKind};
use bulkhead_measure::pair::{measure, measure_with};
use bulkhead_measure::result::{Experiment, Round};

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "journal-fsync",
    what: "two tenants that call fsync without pause, with shares of 70 and 30",
    choices: |_| choices(&cells()),
    extent: |options| Extent::new(options, chosen(&cells(), options).len(), seconds(options.quick)),
    work: run,
};

const ABOUT: &str = "Both tenants write 4 KiB and call fsync, again and again, 4 threads each, with shares of 70 and 30. Latencies \
    are those of the fsync call. Shares of the device are bytes charged to each slice, journal included.";

const CONFIGS: [(Layout, Controller); 9] = [
    (Layout::Shared, Controller::None),
    (Layout::Shared, Controller::Bfq),
    (Layout::Own, Controller::Bfq),
    (Layout::OwnAccounted, Controller::Bfq),
    (Layout::Own, Controller::BfqStrict),
    (Layout::OwnAccounted, Controller::BfqStrict),
    (Layout::Shared, Controller::Iocost),
    (Layout::Own, Controller::Iocost),
    (Layout::OwnAccounted, Controller::Iocost),
];

const FULL: (f64, f64) = (3.0, 20.0);
const QUICK: (f64, f64) = (3.0, 10.0);
const SHARES: (u32, u32) = (700, 300);

/// All cells.
fn cells() -> Vec<Plan> {
    let held = [Controller::Bfq, Controller::Iocost].map(|controller| Plan::held(controller, "high-fsync"));
    [product(&CONFIGS, &["high-fsync"]), held.to_vec()].concat()
}

/// Average duration of one round of a cell.
fn seconds(quick: bool) -> f64 {
    let (warm_up, window) = if quick { QUICK } else { FULL };
    let n_held = (cells().len() - CONFIGS.len()) as f64;
    warm_up + window + 5.0 + n_held * f64::from(SETTLE) / cells().len() as f64
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    let times = if options.quick { QUICK } else { FULL };
    let command = format!("both: high-fsync, 4 threads, warm-up {} s, window {} s", times.0, times.1);
    frame.with_bench(SHARES, None, |frame, bench| {
        frame.experiment.commands.push(command);
        let plans = chosen(&cells(), options);
        frame.observed_rounds(&plans, |frame, observatory, plan| round(frame, bench, observatory, plan, times))
    })
}

fn round(
    frame: &mut Frame<'_, '_>,
    bench: &Bench,
    observatory: &Observatory,
    plan: Plan,
    times: (f64, f64),
) -> Result<Round> {
    let places = bench.arrange(plan.layout, plan.controller, frame.options.model.as_ref())?;
    let [a, b] = [&places.a, &places.b].map(|dir| LoadArgs::new(LoadKind::HighFsync, dir, 0.0));
    let (pair, starter) = (bench.pair()?, frame.starter());
    let mut round = Round::default();
    let measured = match plan.hold {
        None => measure(&starter, &pair, Some(&a), Some(&b), times)?,
        Some(mode) => {
            let work = |standings: &Standings<'_>| {
                let keep = || standings.keep();
                let times = (f64::from(SETTLE), times.1);
                Ok(measure_with(&starter, &pair, Some(&a), Some(&b), times, keep)?.measured)
            };
            let holding = HoldParams { shares: SHARES, unit: Unit::Bytes, mode, fsync_p99: None };
            with_hold(bench, observatory, holding, &mut round, work)?
        }
    };
    let (a, b) = (measured.a.context("A has no result")?, measured.b.context("B has no result")?);
    for (name, load) in [("a", &a), ("b", &b)] {
        set_figure(&mut round, &format!("fsync_{name}_mean_ms"), load.tally.fsync_ms.mean());
        set_figure(&mut round, &format!("fsync_{name}_p99_ms"), load.tally.fsync_ms.percentile(99.0));
        set_figure(&mut round, &format!("fsyncs_{name}_per_s"), load.tally.fsync_ms.n() as f64 / load.seconds);
    }
    if let (Some(a), Some(b)) = (a.tally.fsync_ms.mean(), b.tally.fsync_ms.mean()) {
        set_figure(&mut round, "latency_b_to_a_ratio", b / a);
    }
    shares(&mut round, &measured.activity);
    Ok(round)
}
