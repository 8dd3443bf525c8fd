//! Pictures of `scaling`: throughput over numbers of copies, as measured and as predicted.

use bulkhead_advise::course::Step;
use bulkhead_measure::result::{Cell, Experiment};
use bulkhead_measure::sweep::picture::picture;

use crate::figure as f;
use crate::judge::course::{Course, layouts};

/// A picture for each workload whose course was predicted; they have one width.
pub(super) fn pictures(experiment: &Experiment, _: f64) -> Vec<(String, String)> {
    let is_predicted = |layout: &&str| {
        experiment.cells.iter().any(|cell| cell.layout == **layout && cell.figure(f::PREDICTED_PER_S).is_some())
    };
    let of = |layout: &str| {
        let course = Course::of(experiment, layout);
        let steps: Vec<(Step, &Cell)> = course.measured.iter().copied().zip(course.cells.iter().copied()).collect();
        (layout.to_owned(), picture(experiment, layout, &steps, &course.predicted))
    };
    layouts(experiment).into_iter().filter(is_predicted).map(of).collect()
}
