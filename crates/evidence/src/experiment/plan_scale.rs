//! `plan-scale`: how long plans of large fleets take, how near searched plans are to the best, and how long the scheduler extender takes.
//!
//! Computes only, so it runs on this machine and on its clock. Fleets are random, the same in each run; each round has its own. Full form: 3 rounds of
//! about 20 seconds; short form: one.

mod extender;
mod fleets;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bulkhead_advise::place;
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, n_rounds, no_choices, set_figure};
use bulkhead_measure::load::Random;
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_sys::tool::Tool;
use serde::Deserialize;

use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "plan-scale",
    what: "duration of plans of 1000 workloads on 100 hosts, their distance from the best, and the extender's latency at 5000 nodes",
    choices: no_choices,
    extent: |options| Extent::new(options, cells().len(), 10.0).after(0.0),
    work: run,
};

const ABOUT: &str = "`bulkhead plan` of random fleets of 1000 workloads on 100 hosts, half of them with one hard disk or SSD and half with two drives, a tenth \
    of the workloads in groups of three that must not be together: 40 kinds of workloads, and all different. The sum that no placement exceeds is \
    an upper limit that the plan itself shows; the best placement may be below it. Small fleets of 6 to 10 workloads on 3 or 4 hosts: the sum that \
    insertion and exchange find, of that of the best placement, which is found by trying all sets on each host. Extender: 5000 nodes of three \
    kinds with 20 mixes, 300 pods of ten workloads, one after the other, each filtered, scored and bound; the time from the request's JSON to the answer's, without \
    the network.";

/// The cells of plans: their neighbours are the numbers of different demands.
pub(crate) const PLAN: &str = "1000-on-100";
/// The cell of small fleets, and of the extender.
pub(crate) const SMALL: &str = "small-fleets";
pub(crate) const EXTENDER: &str = "extender";

const KINDS: [usize; 2] = [40, 1000];
const WORKLOADS: usize = 1000;
const HOSTS: usize = 100;
const SMALL_FLEETS: usize = 100;
const NODES: usize = 5000;
/// A plan that takes longer has failed.
const LIMIT: Duration = Duration::from_secs(60);

fn cells() -> Vec<Cell> {
    let cell = |layout: &str, neighbour: String| Cell {
        layout: layout.to_owned(),
        controller: String::new(),
        neighbour,
        rounds: Vec::new(),
    };
    let plans = KINDS.into_iter().map(|kinds| cell(PLAN, format!("{kinds}-kinds")));
    let others = [cell(SMALL, format!("{SMALL_FLEETS}-fleets")), cell(EXTENDER, format!("{NODES}-nodes"))];
    plans.chain(others).collect()
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let mut frame = Frame::new(METHOD.name, ABOUT, options, progress);
    frame.experiment.disk.model = "none".to_owned();
    frame.experiment.disk.parameters = "nothing is read from or written to a disk but the fleet's files".to_owned();
    frame.experiment.commands.push("bulkhead plan --output json fleet.toml".to_owned());
    frame.experiment.cells = cells();
    let n_rounds = n_rounds(options);
    frame.of = cells().len() * usize::try_from(n_rounds)?;
    for number in 1..=n_rounds {
        let mut random = Random::new(usize::try_from(number)?);
        for (index, kinds) in KINDS.into_iter().enumerate() {
            begin(&mut frame, number, &format!("{WORKLOADS} workloads of {kinds} kinds on {HOSTS} hosts"))?;
            let round = plan(options, &mut random, kinds)?;
            frame.finish(index, round)?;
        }
        begin(&mut frame, number, &format!("{SMALL_FLEETS} small fleets"))?;
        let round = small(options, &mut random)?;
        frame.finish(KINDS.len(), round)?;
        begin(&mut frame, number, &format!("the extender with {NODES} nodes"))?;
        let round = extender::round(options, NODES)?;
        frame.finish(KINDS.len() + 1, round)?;
    }
    Ok(frame.experiment)
}

fn begin(frame: &mut Frame<'_, '_>, number: u32, doing: &str) -> Result<()> {
    frame.options.cancel.check()?;
    let of = n_rounds(frame.options);
    frame.say(&format!("round {number} of {of}: {doing}"));
    Ok(())
}

/// What `bulkhead plan --output json` says, as far as it is needed.
#[derive(Deserialize)]
struct Planned {
    sum: f64,
    upper_bound: Option<f64>,
    workloads: Vec<serde_json::Value>,
}

fn plan(options: &Options, random: &mut Random, kinds: usize) -> Result<Round> {
    let directory = fleets::Directory::create()?;
    let file = directory.write(random, WORKLOADS, HOSTS, kinds)?;
    let program = Tool::bulkhead(&options.program).args(["plan", "--output", "json"]).arg(&file).limit(LIMIT);
    let began = Instant::now();
    let said = program.run().context("the plan of a random fleet")?;
    let seconds = began.elapsed().as_secs_f64();
    let planned: Planned = serde_json::from_str(&said.stdout).context("the plan of a random fleet")?;
    if planned.workloads.len() != WORKLOADS {
        bail!("the plan has {} workloads, not {WORKLOADS}", planned.workloads.len());
    }
    let mut round = Round::default();
    set_figure(&mut round, f::PLAN_SECONDS, seconds);
    set_figure(&mut round, f::PLAN_OF_BOUND_PCT, planned.upper_bound.map(|bound| 100.0 * planned.sum / bound));
    Ok(round)
}

fn small(options: &Options, random: &mut Random) -> Result<Round> {
    let mut of_best: Vec<f64> = Vec::new();
    while of_best.len() < SMALL_FLEETS {
        options.cancel.check()?;
        let fleet = fleets::small(random)?;
        let (best, searched) = (place::place(&fleet), place::searched(&fleet));
        // A fleet that the plan does not try all sets of tells nothing; nor do sums where one placement keeps more constraints.
        if best.is_best && best.broken.len() == searched.broken.len() && best.sum > 0.0 {
            of_best.push(100.0 * searched.sum / best.sum);
        }
    }
    let mut round = Round::default();
    set_figure(&mut round, f::SEARCHED_OF_BEST_PCT, of_best.iter().sum::<f64>() / of_best.len() as f64);
    set_figure(&mut round, f::LEAST_SEARCHED_OF_BEST_PCT, of_best.iter().copied().reduce(f64::min));
    Ok(round)
}
