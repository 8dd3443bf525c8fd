//! `mixing`: workloads on one device, predicted from each alone (Bhimani et al. 2016, figures 8 to 11): pairs, two copies of each; and all ways to
//! put three copies together, from which the best placement of twelve workloads on four such devices is known.
//!
//! Full form: 4 workloads alone, 6 pairs and 20 threes x 3 rounds, about half an hour in virtual time; short form: one round without threes.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bulkhead_advise::place::{self, Device, Fleet, Machine};
use bulkhead_core::demand::{Demand, DeviceCosts};
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use bulkhead_measure::experiment::{Choice, Extent, Frame, Method, OnProgress, Options, n_rounds, set_figure};
use bulkhead_measure::layout::{Bench, Controller};
use bulkhead_measure::result::{Cell, Experiment, Round};

use super::copies::{
    MEMORY, SECONDS, WARM_UP, WORKLOADS, Workload, cpus, measure, measure_costs, note_demand, predicted,
};
use crate::additions::add_tenants;
use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "mixing",
    what: "pairs and threes of four workloads, predicted before they are measured",
    // They are predicted from all workloads alone.
    choices: |_| Vec::<Choice>::new(),
    extent: |options| Extent::new(options, plans(options.quick).len(), WARM_UP + SECONDS + 8.0).after(180.0),
    work: run,
};

const ABOUT: &str = "Two copies of one load and two of another, or three copies of any, each in a tenant and a directory of its own on one ext4; no \
    controller. The demand of a copy is measured alone, the costs of requests by fio on the same file system, both before the predictions, and \
    these before the runs that they are compared with. Normalised throughput is a copy's as a part of what one copy achieves alone. The planner \
    puts three copies of each load on four such devices, three on each, before any mix has run; the threes that are measured afterwards tell what \
    that and each other placement achieves. With cached reads, memory.max of all tenants together is 192 MiB.";

/// Copies of each workload of a pair.
const EACH: u32 = 2;
/// Copies that are on each device of the planned fleet, copies of each workload, and its number of devices.
const TOGETHER: u32 = 3;
const N_DEVICES: usize = 4;
/// The neighbour of workloads that are measured alone.
pub(crate) const ALONE: &str = "alone";

/// Copies on one device, workload by workload.
struct Plan {
    copies: Vec<(&'static Workload, u32)>,
}

impl Plan {
    /// Copies, those of one workload after each other.
    fn of(workloads: &[&'static Workload]) -> Self {
        let copies = workloads.chunk_by(|one, next| one.name == next.name);
        Self { copies: copies.map(|equal| (equal[0], equal.iter().map(|_| 1).sum())).collect() }
    }

    fn is_alone(&self) -> bool {
        matches!(self.copies[..], [(_, 1)])
    }

    fn is_pair(&self) -> bool {
        matches!(self.copies[..], [(_, EACH), (_, EACH)])
    }

    /// Each copy's workload.
    fn workloads(&self) -> Vec<&'static Workload> {
        self.copies.iter().flat_map(|(workload, n)| std::iter::repeat_n(*workload, *n as usize)).collect()
    }

    /// What the first is beside: one for a pair, and `NAME+NAME` for three copies.
    fn neighbour(&self) -> String {
        match self.copies[..] {
            _ if self.is_alone() => ALONE.to_owned(),
            [_, (other, _)] if self.is_pair() => other.name.to_owned(),
            _ => self.workloads()[1..].iter().map(|workload| workload.name).collect::<Vec<_>>().join("+"),
        }
    }

    fn cell(&self) -> Cell {
        Cell {
            layout: self.copies[0].0.name.to_owned(),
            controller: Controller::None.as_str().to_owned(),
            neighbour: self.neighbour(),
            rounds: Vec::new(),
        }
    }
}

fn plans(quick: bool) -> Vec<Plan> {
    let mut plans: Vec<Plan> = WORKLOADS.iter().map(|workload| Plan::of(&[workload])).collect();
    for (index, one) in WORKLOADS.iter().enumerate() {
        plans.extend(WORKLOADS[index + 1..].iter().map(|other| Plan::of(&[one, one, other, other])));
    }
    if !quick {
        plans.extend(threes());
    }
    plans
}

fn threes() -> Vec<Plan> {
    let mut all = Vec::new();
    for (first, one) in WORKLOADS.iter().enumerate() {
        for (second, two) in WORKLOADS.iter().enumerate().skip(first) {
            all.extend(WORKLOADS[second..].iter().map(|three| Plan::of(&[one, two, three])));
        }
    }
    all
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.with_bench((500, 500), None, |frame, bench| {
        for workload in &WORKLOADS {
            frame.experiment.commands.push(format!("__load {}", workload.args(Path::new("DIR")).argv().join(" ")));
        }
        let plans = plans(frame.options.quick);
        frame.experiment.cells = plans.iter().map(Plan::cell).collect();
        let costs = measure_costs(frame, bench)?;
        rounds(frame, bench, &plans, &costs)
    })
}

/// A workload as measured alone.
struct Known {
    name: &'static str,
    demand: Demand,
    per_s: f64,
}

/// Where the copies run, and what requests cost there.
struct Ground<'a> {
    bench: &'a Bench,
    tenants: Vec<(Name, PathBuf)>,
    costs: &'a DeviceCosts,
}

fn rounds(frame: &mut Frame<'_, '_>, bench: &Bench, plans: &[Plan], costs: &DeviceCosts) -> Result<()> {
    let n_rounds = n_rounds(frame.options);
    frame.of = plans.len() * usize::try_from(n_rounds)?;
    let ground = Ground { bench, tenants: add_tenants(bench, usize::try_from(2 * EACH)?)?, costs };
    let (alone, together) = plans.split_at(WORKLOADS.len());
    for number in 1..=n_rounds {
        let mut known: Vec<Known> = Vec::new();
        for (index, plan) in alone.iter().enumerate() {
            begin(frame, number, plan)?;
            let (round, one) = measure_alone(frame, &ground, number, plan.copies[0].0)?;
            known.push(one);
            frame.finish(index, round)?;
        }
        let planned = planned_threes(frame, number, &known, costs)?;
        for (index, plan) in together.iter().enumerate() {
            begin(frame, number, plan)?;
            let round = measure_together(frame, &ground, plan, &known, &planned)?;
            frame.finish(alone.len() + index, round)?;
        }
    }
    Ok(())
}

fn begin(frame: &mut Frame<'_, '_>, number: u32, plan: &Plan) -> Result<()> {
    frame.options.cancel.check()?;
    let of = n_rounds(frame.options);
    frame.say(&format!("round {number} of {of}: {} + {}", plan.copies[0].0.name, plan.neighbour()));
    Ok(())
}

fn measure_alone(
    frame: &mut Frame<'_, '_>,
    ground: &Ground<'_>,
    number: u32,
    workload: &'static Workload,
) -> Result<(Round, Known)> {
    let measured = measure(frame, ground.bench, &[workload], &ground.tenants)?;
    let mut round = Round::default();
    set_figure(&mut round, f::OPS_PER_S, measured.per_s[0]);
    set_figure(&mut round, f::P99_MS, measured.p99_ms);
    set_figure(&mut round, f::CPU_US_PER_IO, measured.cpu_seconds * 1e6);
    set_figure(&mut round, f::DEVICE_BUSY_PCT, measured.busy_pct);
    let demand = note_demand(frame, number, workload, &measured, ground.costs)?;
    Ok((round, Known { name: workload.name, demand, per_s: measured.per_s[0] }))
}

fn measure_together(
    frame: &Frame<'_, '_>,
    ground: &Ground<'_>,
    plan: &Plan,
    known: &[Known],
    planned: &[Vec<&str>],
) -> Result<Round> {
    let of = |workload: &Workload| {
        let found = known.iter().find(|known| known.name == workload.name);
        found.with_context(|| format!("{} was not measured alone", workload.name))
    };
    let its: Vec<(&Known, u32)> =
        plan.copies.iter().map(|(workload, n)| Ok((of(workload)?, *n))).collect::<Result<_>>()?;
    // First the prediction, then the run.
    let loads: Vec<(&Demand, u32)> = its.iter().map(|(known, n)| (&known.demand, *n)).collect();
    let prediction = predicted(ground.costs, &loads);
    let foreseen: Vec<f64> =
        prediction.achieved.iter().zip(&its).map(|(achieved, (known, _))| achieved.per_s / known.per_s).collect();
    let workloads = plan.workloads();
    let measured = measure(frame, ground.bench, &workloads, &ground.tenants)?;
    let mut rest = measured.per_s.as_slice();
    let normalised: Vec<f64> = its
        .iter()
        .map(|(known, n)| {
            let (own, others) = rest.split_at(*n as usize);
            rest = others;
            own.iter().sum::<f64>() / f64::from(*n) / known.per_s
        })
        .collect();
    let mut round = Round::default();
    set_figure(&mut round, f::PREDICTED_BUSY_PCT, 100.0 * prediction.devices[0]);
    set_figure(&mut round, f::PREDICTED_CPU_PCT, 100.0 * prediction.cpu);
    set_figure(&mut round, f::DEVICE_BUSY_PCT, measured.busy_pct);
    if plan.is_pair() {
        set_figure(&mut round, f::PREDICTED_A, foreseen[0]);
        set_figure(&mut round, f::PREDICTED_B, foreseen[1]);
        set_figure(&mut round, f::NORMALISED_A, normalised[0]);
        set_figure(&mut round, f::NORMALISED_B, normalised[1]);
    } else {
        let sum = |of: &[f64]| of.iter().zip(&its).map(|(one, (_, n))| one * f64::from(*n)).sum::<f64>();
        let names: Vec<&str> = workloads.iter().map(|workload| workload.name).collect();
        set_figure(&mut round, f::PREDICTED_SUM, sum(&foreseen));
        set_figure(&mut round, f::NORMALISED_SUM, sum(&normalised));
        set_figure(&mut round, f::PLANNED, planned.iter().filter(|planned| **planned == names).count() as f64);
    }
    Ok(round)
}

/// The workloads on each device as the planner places three copies of each workload, in the order of [`WORKLOADS`]. Each volume takes a third of its
/// device, so that three are on each.
fn planned_threes(
    frame: &mut Frame<'_, '_>,
    number: u32,
    known: &[Known],
    costs: &DeviceCosts,
) -> Result<Vec<Vec<&'static str>>> {
    let space = |volumes: u32| Bytes(Bytes::GIB * u64::from(volumes));
    let machine = |index: usize| Machine {
        name: format!("host-{index}"),
        domain: String::new(),
        cpus: cpus(),
        memory: MEMORY,
        devices: vec![Device { name: "disk".to_owned(), costs: 0, space: space(TOGETHER) }],
    };
    let copies = |(demand, known): (usize, &Known)| {
        let name = known.name;
        (1..=TOGETHER).map(move |copy| place::Workload {
            space: space(1),
            ..place::Workload::new(format!("{name}-{copy}"), demand)
        })
    };
    let fleet = Fleet {
        demands: known.iter().map(|known| known.demand.clone()).collect(),
        costs: vec![costs.clone()],
        machines: (1..=N_DEVICES).map(machine).collect(),
        workloads: known.iter().enumerate().flat_map(copies).collect(),
        ..Fleet::default()
    };
    let placement = place::place(&fleet);
    let on = |machine: usize| -> Vec<&'static str> {
        let its = fleet.workloads.iter().zip(&placement.places).filter(|(_, place)| place.machine == machine);
        its.map(|(workload, _)| known[workload.demand].name).collect()
    };
    let planned: Vec<Vec<&str>> = (0..N_DEVICES).map(on).collect();
    let bound = place::upper_bound(&fleet).map_or_else(String::new, |bound| format!(", no placement above {bound:.2}"));
    let hosts: Vec<String> = planned.iter().map(|host| host.join(" + ")).collect();
    frame.experiment.notes.push(format!(
        "round {number}: planned before any mix was run, sum {:.2}{bound}: {}",
        placement.sum,
        hosts.join("; ")
    ));
    anyhow::ensure!(placement.broken.is_empty(), "the planner put more than three on a device: {:?}", placement.broken);
    Ok(planned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threes_are_all_ways_to_choose_three_of_four_with_repetition() {
        let mut all: Vec<Vec<&str>> =
            threes().iter().map(|plan| plan.workloads().iter().map(|workload| workload.name).collect()).collect();
        assert!(all.iter().all(|three| three.len() == 3));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 20);
        let cells: Vec<String> = plans(false).iter().map(|plan| plan.cell().id()).collect();
        let mut different = cells.clone();
        different.sort_unstable();
        different.dedup();
        assert_eq!((cells.len(), different.len()), (30, 30), "{cells:?}");
    }
}
