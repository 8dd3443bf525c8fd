//! `scaling`: the throughput of 1 to 16 copies of a workload together, each predicted before it is measured (Bhimani et al. 2016, figures 3 to 7).
//!
//! What a copy demands is taken from its run alone, what requests cost from `bulkhead device costs` on the same volume; from these two the model
//! predicts every other number of copies. Full form: 4 workloads x 8 numbers x 3 rounds, about half an hour in virtual time; short form: half of the
//! numbers, one round.

use std::path::Path;

use anyhow::Result;
use bulkhead_advise::course::fairness;
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_measure::experiment::{
    Choice, Extent, Frame, Method, OnProgress, Options, includes, n_rounds, set_figure,
};
use bulkhead_measure::layout::{Bench, Controller};
use bulkhead_measure::result::{Cell, Experiment, Round};

use super::copies::{SECONDS, WARM_UP, WORKLOADS, Workload, measure, measure_costs, note_demand, predicted};
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
        let costs = measure_costs(frame, bench)?;
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
                let prediction = predicted(costs, &[(demand, *copies)]);
                let achieved = prediction.achieved[0];
                set_figure(&mut round, f::PREDICTED_PER_S, achieved.per_s * f64::from(*copies));
                set_figure(&mut round, f::PREDICTED_P99_MS, achieved.operation.p99 * 1e3);
                set_figure(&mut round, f::PREDICTED_MISS, achieved.miss);
                set_figure(&mut round, f::PREDICTED_BUSY_PCT, 100.0 * prediction.devices[0]);
                set_figure(&mut round, f::PREDICTED_CPU_PCT, 100.0 * prediction.cpu);
            }
            let measured = measure(frame, bench, &vec![workload; usize::try_from(*copies)?], &tenants)?;
            set_figure(&mut round, f::OPS_PER_S, measured.per_s.iter().sum::<f64>());
            set_figure(&mut round, f::LEAST_OPS_PER_S, measured.per_s.iter().copied().reduce(f64::min));
            set_figure(&mut round, f::FAIRNESS, fairness(&measured.per_s));
            set_figure(&mut round, f::P99_MS, measured.p99_ms);
            set_figure(&mut round, f::CPU_US_PER_IO, measured.cpu_seconds * 1e6);
            set_figure(&mut round, f::DEVICE_READS_PER_OP, measured.reads);
            set_figure(&mut round, f::DEVICE_BUSY_PCT, measured.busy_pct);
            if *copies == 1 {
                demand = Some((workload.name, note_demand(frame, number, workload, &measured, costs)?));
            }
            frame.finish(index, round)?;
        }
    }
    Ok(())
}
