//! `mixing`: pairs of workloads on one device, two copies of each, predicted from each alone (Bhimani et al. 2016, figures 8 to 11).
//!
//! Full form: 4 workloads alone and 6 pairs x 3 rounds, about 15 minutes in virtual time; short form: one round.

use std::path::Path;

use anyhow::Result;
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_measure::experiment::{Choice, Extent, Frame, Method, OnProgress, Options, n_rounds, set_figure};
use bulkhead_measure::layout::{Bench, Controller};
use bulkhead_measure::result::{Cell, Experiment, Round};

use super::copies::{SECONDS, WARM_UP, WORKLOADS, Workload, measure, measure_costs, note_demand, predicted};
use crate::additions::add_tenants;
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "mixing",
    what: "pairs of four workloads, predicted before they are measured",
    // Pairs are predicted from all workloads alone.
    choices: |_| Vec::<Choice>::new(),
    extent: |options| Extent::new(options, plans().len(), WARM_UP + SECONDS + 8.0).after(180.0),
    work: run,
};

const ABOUT: &str = "Two copies of one load and two of another, each in a tenant and a directory of its own on one ext4; no controller. The \
    demand of a copy is measured alone, the costs of requests by fio on the same file system, both before the predictions, and these before \
    the runs that they are compared with. Normalised throughput is a copy's as a part of what one copy achieves alone. With cached reads, \
    memory.max of all tenants together is 192 MiB.";

/// Copies of each workload of a pair.
const EACH: u32 = 2;
/// The neighbour of workloads that are measured alone.
pub(crate) const ALONE: &str = "alone";

/// A workload alone, or a pair.
type Plan = (&'static Workload, Option<&'static Workload>);

fn plans() -> Vec<Plan> {
    let alone = WORKLOADS.iter().map(|workload| (workload, None));
    let pairs = WORKLOADS
        .iter()
        .enumerate()
        .flat_map(|(index, one)| WORKLOADS[index + 1..].iter().map(move |other| (one, Some(other))));
    alone.chain(pairs).collect()
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.with_bench((500, 500), None, |frame, bench| {
        for workload in &WORKLOADS {
            frame.experiment.commands.push(format!("__load {}", workload.args(Path::new("DIR")).argv().join(" ")));
        }
        let plans = plans();
        let cell = |(one, other): &Plan| Cell {
            layout: one.name.to_owned(),
            controller: Controller::None.as_str().to_owned(),
            neighbour: other.map_or(ALONE, |other| other.name).to_owned(),
            rounds: Vec::new(),
        };
        frame.experiment.cells = plans.iter().map(cell).collect();
        let costs = measure_costs(frame, bench)?;
        rounds(frame, bench, &plans, &costs)
    })
}

fn rounds(frame: &mut Frame<'_, '_>, bench: &Bench, plans: &[Plan], costs: &DeviceCosts) -> Result<()> {
    let n_rounds = n_rounds(frame.options);
    frame.of = plans.len() * usize::try_from(n_rounds)?;
    let tenants = add_tenants(bench, usize::try_from(2 * EACH)?)?;
    for number in 1..=n_rounds {
        // Demand and throughput of each workload alone.
        let mut known: Vec<(&str, Demand, f64)> = Vec::new();
        for (index, (one, other)) in plans.iter().enumerate() {
            frame.options.cancel.check()?;
            frame.say(&format!("round {number} of {n_rounds}: {} + {}", one.name, other.map_or(ALONE, |it| it.name)));
            let mut round = Round::default();
            let Some(other) = other else {
                let measured = measure(frame, bench, &[one], &tenants)?;
                set_figure(&mut round, f::OPS_PER_S, measured.per_s[0]);
                set_figure(&mut round, f::P99_MS, measured.p99_ms);
                set_figure(&mut round, f::CPU_US_PER_IO, measured.cpu_seconds * 1e6);
                set_figure(&mut round, f::DEVICE_BUSY_PCT, measured.busy_pct);
                known.push((one.name, note_demand(frame, number, one, &measured, costs)?, measured.per_s[0]));
                frame.finish(index, round)?;
                continue;
            };
            let of = |workload: &Workload| known.iter().find(|(name, ..)| *name == workload.name);
            let (Some(first), Some(second)) = (of(one), of(other)) else {
                anyhow::bail!("{} or {} was not measured alone", one.name, other.name);
            };
            // First the prediction, then the run.
            let prediction = predicted(costs, &[(&first.1, EACH), (&second.1, EACH)]);
            set_figure(&mut round, f::PREDICTED_A, prediction.achieved[0].per_s / first.2);
            set_figure(&mut round, f::PREDICTED_B, prediction.achieved[1].per_s / second.2);
            set_figure(&mut round, f::PREDICTED_BUSY_PCT, 100.0 * prediction.devices[0]);
            set_figure(&mut round, f::PREDICTED_CPU_PCT, 100.0 * prediction.cpu);
            let measured = measure(frame, bench, &[one, one, other, other], &tenants)?;
            let mean = |from: usize| (measured.per_s[from] + measured.per_s[from + 1]) / f64::from(EACH);
            set_figure(&mut round, f::NORMALISED_A, mean(0) / first.2);
            set_figure(&mut round, f::NORMALISED_B, mean(2) / second.2);
            set_figure(&mut round, f::DEVICE_BUSY_PCT, measured.busy_pct);
            frame.finish(index, round)?;
        }
    }
    Ok(())
}
