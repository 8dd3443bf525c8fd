//! `journal-cost`: Table 1 of Tobimatsu et al., the cost of each system call in journal bytes, for more calls and kinds of file systems.
//!
//! The measurement is that of `bulkhead journal calibrate` ([`bulkhead_measure::journal_cost`]). Full form: 10 runs of 1000 calls, as in the
//! paper; short form: 3 runs.

use anyhow::Result;
use bulkhead_core::observe::cost::Call;
use bulkhead_measure::experiment::{Extent, Frame, Method, OnProgress, Options, no_choices, set_figure};
use bulkhead_measure::journal_cost::{self, Features, MAX_CALLS, Request};
use bulkhead_measure::result::{Cell, Experiment, Round};
use bulkhead_sys::roots::Roots;

use crate::figure as f;

/// Its entry in the table of experiments.
pub(crate) const METHOD: Method = Method {
    name: "journal-cost",
    what: "journal bytes of each system call, on each kind of file system",
    choices: no_choices,
    extent: |options| Extent { n_rounds: n_rounds(options), ..Extent::new(options, N_CELLS, SECONDS) },
    work: run,
};

const ABOUT: &str = "1000 calls of each kind on files of their own, on a fresh file system in memory with its journal on a device of its \
    own; the cost is what that device was given until the end of the commit after them. Ten calls and a commit before that tell the \
    part of the commit from that of a call. Written data has found its blocks, and XFS has freed removed inodes, before the commit.";

/// Number of cells.
const N_CELLS: usize = Features::ALL.len() * Call::ALL.len();
/// Duration of one round of one cell, on an emulated machine.
const SECONDS: f64 = 3.0;

/// Number of runs, as in the paper.
fn n_rounds(options: &Options) -> u32 {
    options.rounds.unwrap_or(if options.quick { 3 } else { 10 }).max(1)
}

fn run(options: &Options, progress: OnProgress<'_>) -> Result<Experiment> {
    let mut frame = Frame::new(METHOD.name, ABOUT, options, progress);
    let request = Request {
        features: Features::ALL.to_vec(),
        n_runs: n_rounds(options),
        n_calls: MAX_CALLS,
        cancel: options.cancel.clone(),
    };
    frame.experiment.disk.model = "memory".to_owned();
    frame.experiment.disk.parameters = "loop devices over memory, for file system and journal".to_owned();
    frame.experiment.commands.push(format!("bulkhead journal calibrate --runs {}", request.n_runs));
    frame.of = journal_cost::n_steps(&request);
    for features in Features::ALL {
        frame.experiment.cells.extend(Call::ALL.map(|call| Cell {
            layout: call.word().to_owned(),
            controller: String::new(),
            neighbour: features.name().to_owned(),
            rounds: Vec::new(),
        }));
    }
    journal_cost::measure(&Roots::host(), &request, &mut |one| {
        let mut round = Round::default();
        set_figure(&mut round, f::JOURNAL_BYTES, one.run.bytes as f64);
        set_figure(&mut round, f::JOURNAL_BYTES_OF_FEW, one.run.few_bytes as f64);
        let of = |cell: &Cell| cell.layout == one.call.word() && cell.neighbour == one.features.name();
        match frame.experiment.cells.iter().position(of) {
            Some(cell) => frame.finish(cell, round),
            None => Ok(()),
        }
    })?;
    frame.write()?;
    Ok(frame.experiment)
}
