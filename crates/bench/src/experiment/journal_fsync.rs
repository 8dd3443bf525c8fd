//! `journal-fsync`: both tenants run the paper's high-fsync workload with shares 70 and 30 (Mardan & Kono 2021, table 2).
//!
//! The paper: 55/53 ms without journal accounting, 45/86 ms with it. Full form: 9 cells x 3 rounds of 28 s, 13 minutes; short
//! form: 9 cells of 18 s, 4 minutes.

use anyhow::{Context, Result};

use super::{Frame, OnProgress, Options, Plan, chosen, product, put};
use crate::layout::{Bench, Controller, Layout};
use crate::load::{LoadArgs, LoadKind};
use crate::pair::measure;
use crate::report::figure as f;
use crate::result::{Experiment, Round};

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

/// All cells.
pub(super) fn cells() -> Vec<Plan> {
    product(&CONFIGS, &["high-fsync"])
}

/// One round of one cell.
pub(super) fn seconds(quick: bool) -> f64 {
    let (warm_up, window) = if quick { QUICK } else { FULL };
    warm_up + window + 5.0
}

pub(super) fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new("journal-fsync", ABOUT, options, progress);
    let times = if options.quick { QUICK } else { FULL };
    let command = format!("both: high-fsync, 4 threads, warm-up {} s, window {} s", times.0, times.1);
    frame.with_bench((700, 300), None, |frame, bench| {
        frame.experiment.commands.push(command);
        frame.rounds(&chosen(&cells(), options), |frame, plan| round(frame, bench, plan, times))
    })
}

fn round(frame: &mut Frame<'_, '_>, bench: &Bench, plan: Plan, times: (f64, f64)) -> Result<Round> {
    let places = bench.arrange(plan.layout, plan.controller, frame.options.model.as_ref())?;
    let [a, b] = [&places.a, &places.b].map(|dir| LoadArgs::new(LoadKind::HighFsync, dir, 0.0));
    let measured = measure(&frame.starter(), &bench.pair()?, Some(&a), Some(&b), times)?;
    let mut round = Round::default();
    let (a, b) = (measured.a.context("A has no result")?, measured.b.context("B has no result")?);
    for (name, load) in [("a", &a), ("b", &b)] {
        put(&mut round, &format!("fsync_{name}_mean_ms"), load.fsync_ms.mean());
        put(&mut round, &format!("fsync_{name}_p99_ms"), load.fsync_ms.percentile(99.0));
        put(&mut round, &format!("fsyncs_{name}_per_s"), load.fsync_ms.n() as f64 / load.seconds);
    }
    if let (Some(a), Some(b)) = (a.fsync_ms.mean(), b.fsync_ms.mean()) {
        put(&mut round, "latency_b_to_a_ratio", b / a);
    }
    shares(&mut round, &measured.activity);
    Ok(round)
}

/// Who got which part of the device's bytes.
pub(super) fn shares(round: &mut Round, activity: &crate::sample::Activity) {
    put(round, f::SHARE_A_PCT, activity.pct_of_device(activity.a_bytes()));
    put(round, f::SHARE_B_PCT, activity.pct_of_device(activity.b_bytes()));
    put(round, "share_a_journal_pct", activity.pct_of_device(activity.a_journal_bytes));
    put(round, "share_b_journal_pct", activity.pct_of_device(activity.b_journal_bytes));
    put(round, "share_root_pct", activity.pct_of_device(activity.root_bytes));
    put(round, f::DEVICE_BUSY_PCT, activity.device_busy_pct);
    put(round, "device_bytes_per_s", activity.per_s(activity.device_bytes));
}
