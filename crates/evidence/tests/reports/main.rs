//! Judge and reports: what they say about synthetic experiments, word for word, and that no input breaks them.

mod pages;
mod synthetic;
mod tables;
mod verdicts;

use bulkhead_measure::result::Experiment;

/// Changes a figure in all rounds of a cell.
pub(crate) fn set(experiment: &mut Experiment, id: &str, name: &str, value: f64) {
    let cell = experiment.cells.iter_mut().find(|cell| cell.id() == id).expect("the fixture has it");
    for round in &mut cell.rounds {
        round.figures.insert(name.to_owned(), value);
    }
}
