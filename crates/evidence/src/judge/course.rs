//! The course of a workload's throughput over its number of copies, as measured and as predicted.

use bulkhead_advise::course::{Step, knee, valley};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};

use crate::figure as f;

/// The workloads of an experiment, in its order.
pub(crate) fn layouts(experiment: &Experiment) -> Vec<&str> {
    let mut layouts: Vec<&str> = Vec::new();
    for cell in &experiment.cells {
        if !layouts.contains(&cell.layout.as_str()) {
            layouts.push(&cell.layout);
        }
    }
    layouts
}

/// A workload's course over numbers of copies.
pub(crate) struct Course<'a> {
    pub(crate) measured: Vec<Step>,
    /// The cell of each of these.
    pub(crate) cells: Vec<&'a Cell>,
    /// Also of one copy, which is what predictions are made from.
    pub(crate) predicted: Vec<Step>,
    /// Largest difference, percent of the highest measured throughput.
    errors: Vec<f64>,
}

impl<'a> Course<'a> {
    pub(crate) fn of(experiment: &'a Experiment, workload: &str) -> Self {
        let mut steps: Vec<(u32, &Cell)> = experiment
            .cells
            .iter()
            .filter(|cell| cell.layout == workload)
            .filter_map(|cell| Some((cell.neighbour.strip_suffix("-copies")?.parse().ok()?, cell)))
            .filter(|(_, cell): &(u32, &Cell)| cell.figure(f::OPS_PER_S).is_some())
            .collect();
        steps.sort_by_key(|(copies, _)| *copies);
        let median = |cell: &Cell, name: &str| cell.figure(name).map(|spread| spread.median);
        let measured: Vec<Step> = steps
            .iter()
            .filter_map(|(copies, cell)| Some(Step { copies: *copies, per_s: median(cell, f::OPS_PER_S)? }))
            .collect();
        // One copy is what the prediction is made from.
        let predicted: Vec<Step> = steps
            .iter()
            .filter_map(|(copies, cell)| {
                let per_s =
                    median(cell, f::PREDICTED_PER_S).or_else(|| median(cell, f::OPS_PER_S).filter(|_| *copies == 1))?;
                Some(Step { copies: *copies, per_s })
            })
            .collect();
        let most = measured.iter().map(|step| step.per_s).fold(0.0, f64::max);
        let errors = measured.iter().filter_map(|step| {
            let predicted = predicted.iter().find(|other| other.copies == step.copies && step.copies > 1)?;
            Some(100.0 * (predicted.per_s - step.per_s).abs() / most)
        });
        let errors: Vec<f64> = errors.collect();
        Self { errors, cells: steps.iter().map(|(_, cell)| *cell).collect(), measured, predicted }
    }

    pub(crate) fn error(&self) -> Option<Spread> {
        spread([self.errors.iter().copied().reduce(f64::max)?])
    }

    /// Steps of the measured course between the two knees.
    pub(crate) fn knees(&self) -> Option<Spread> {
        let at = |copies: u32| self.measured.iter().position(|step| step.copies == copies);
        let (measured, predicted) = (at(knee(&self.measured)?)?, at(knee(&self.predicted)?)?);
        spread([measured.abs_diff(predicted) as f64])
    }

    pub(crate) fn knees_remark(&self) -> String {
        match (knee(&self.measured), knee(&self.predicted)) {
            (Some(measured), Some(predicted)) => format!("steps apart: at {measured} copies, predicted at {predicted}"),
            _ => String::new(),
        }
    }

    pub(crate) fn chosen(&self) -> Option<Spread> {
        let best = self.predicted.iter().max_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
        let there = self.measured.iter().find(|step| step.copies == best.copies)?;
        let most = self.measured.iter().map(|step| step.per_s).fold(0.0, f64::max);
        spread([100.0 * there.per_s / most])
    }

    /// 1 if both courses have a valley behind the same number of copies, or one beside it; else 0.
    pub(crate) fn valley(&self) -> Option<Spread> {
        let at = |copies: u32| self.measured.iter().position(|step| step.copies == copies);
        let found = match (valley(&self.measured), valley(&self.predicted)) {
            (Some(measured), Some(predicted)) => {
                at(measured.before.copies)?.abs_diff(at(predicted.before.copies)?) <= 1
            }
            _ => false,
        };
        spread([if found { 1.0 } else { 0.0 }])
    }

    pub(crate) fn valley_remark(&self) -> String {
        let of = |course: &[Step]| {
            valley(course).map_or_else(
                || "none".to_owned(),
                |valley| {
                    format!(
                        "behind {}, to {:.0} %",
                        valley.before.copies,
                        100.0 * valley.bottom.per_s / valley.before.per_s
                    )
                },
            )
        };
        format!("measured {}; predicted {}", of(&self.measured), of(&self.predicted))
    }

    pub(crate) fn gain(&self) -> Option<Spread> {
        let one = self.measured.iter().find(|step| step.copies == 1)?;
        let most = self.measured.iter().map(|step| step.per_s).fold(0.0, f64::max);
        spread([most / one.per_s])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use bulkhead_measure::result::Round;

    pub(in super::super) fn experiment(figures: &[(u32, f64, Option<f64>)]) -> Experiment {
        let cell = |(copies, per_s, predicted): &(u32, f64, Option<f64>)| {
            let mut round = Round::default();
            round.figures.insert(f::OPS_PER_S.to_owned(), *per_s);
            if let Some(predicted) = predicted {
                round.figures.insert(f::PREDICTED_PER_S.to_owned(), *predicted);
            }
            Cell {
                layout: "cached-read".to_owned(),
                controller: "none".to_owned(),
                neighbour: format!("{copies}-copies"),
                rounds: vec![round],
            }
        };
        Experiment {
            format: 1,
            name: "scaling".to_owned(),
            about: String::new(),
            quick: false,
            machine: bulkhead_measure::result::Machine::default(),
            disk: bulkhead_measure::result::Disk::default(),
            commands: Vec::new(),
            cells: figures.iter().map(cell).collect(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn a_course_is_compared_with_its_prediction() {
        let steps = [(1, 100.0, None), (2, 190.0, Some(200.0)), (4, 200.0, Some(196.0)), (8, 60.0, Some(72.0))];
        let experiment = experiment(&steps);
        let course = Course::of(&experiment, "cached-read");
        let value = |spread: Option<Spread>| spread.unwrap().median;
        assert!((value(course.error()) - 6.0).abs() < 1e-9);
        assert!(value(course.knees()).abs() < 1e-9, "{}", course.knees_remark());
        assert!((value(course.chosen()) - 95.0).abs() < 1e-9);
        assert!((value(course.valley()) - 1.0).abs() < 1e-9, "{}", course.valley_remark());
        assert!((value(course.gain()) - 2.0).abs() < 1e-9);
    }
}
