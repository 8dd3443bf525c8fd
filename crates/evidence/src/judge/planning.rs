//! Criteria of the planner's predictions: scaling.

use bulkhead_advise::course::{Step, knee, valley};
use bulkhead_measure::report::text::{number, percent, percent_exact};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};

use super::{Case, by_disk};
use crate::figure as f;

/// The workload whose page cache is limited.
const CACHED: &str = "cached-read";

pub(crate) fn scaling(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let mut workloads: Vec<&str> = Vec::new();
        for cell in &experiment.cells {
            if !workloads.contains(&cell.layout.as_str()) {
                workloads.push(&cell.layout);
            }
        }
        for workload in workloads {
            let course = Course::of(experiment, workload);
            case.row(
                disk,
                &format!("{workload} error"),
                course.error(),
                percent,
                "of the highest throughput, the worst",
            );
            case.row(disk, &format!("{workload} knee"), course.knees(), number, &course.knees_remark());
            let chosen = course.chosen();
            case.row(
                disk,
                &format!("{workload} chosen"),
                chosen,
                percent_exact,
                "of the highest, by the predicted number",
            );
            if workload == CACHED {
                let remark = course.valley_remark();
                case.row(disk, "valley found", course.valley(), number, &remark);
            }
            case.row(
                disk,
                &format!("{workload} gain"),
                course.gain(),
                number,
                "times one copy, by choosing the number",
            );
        }
    }
}

/// A workload's course over numbers of copies.
struct Course {
    measured: Vec<Step>,
    predicted: Vec<Step>,
    /// Largest difference, percent of the highest measured throughput.
    errors: Vec<f64>,
}

impl Course {
    fn of(experiment: &Experiment, workload: &str) -> Self {
        let mut steps: Vec<(u32, &Cell)> = experiment
            .cells
            .iter()
            .filter(|cell| cell.layout == workload)
            .filter_map(|cell| Some((cell.neighbour.strip_suffix("-copies")?.parse().ok()?, cell)))
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
        Self { errors: errors.collect(), measured, predicted }
    }

    fn error(&self) -> Option<Spread> {
        spread([self.errors.iter().copied().reduce(f64::max)?])
    }

    /// Steps of the measured course between the two knees.
    fn knees(&self) -> Option<Spread> {
        let at = |copies: u32| self.measured.iter().position(|step| step.copies == copies);
        let (measured, predicted) = (at(knee(&self.measured)?)?, at(knee(&self.predicted)?)?);
        spread([measured.abs_diff(predicted) as f64])
    }

    fn knees_remark(&self) -> String {
        match (knee(&self.measured), knee(&self.predicted)) {
            (Some(measured), Some(predicted)) => format!("steps apart: at {measured} copies, predicted at {predicted}"),
            _ => String::new(),
        }
    }

    fn chosen(&self) -> Option<Spread> {
        let best = self.predicted.iter().max_by(|a, b| a.per_s.total_cmp(&b.per_s))?;
        let there = self.measured.iter().find(|step| step.copies == best.copies)?;
        let most = self.measured.iter().map(|step| step.per_s).fold(0.0, f64::max);
        spread([100.0 * there.per_s / most])
    }

    /// 1 if both courses have a valley behind the same number of copies, or one beside it; else 0.
    fn valley(&self) -> Option<Spread> {
        let at = |copies: u32| self.measured.iter().position(|step| step.copies == copies);
        let found = match (valley(&self.measured), valley(&self.predicted)) {
            (Some(measured), Some(predicted)) => {
                at(measured.before.copies)?.abs_diff(at(predicted.before.copies)?) <= 1
            }
            _ => false,
        };
        spread([if found { 1.0 } else { 0.0 }])
    }

    fn valley_remark(&self) -> String {
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

    fn gain(&self) -> Option<Spread> {
        let one = self.measured.iter().find(|step| step.copies == 1)?;
        let most = self.measured.iter().map(|step| step.per_s).fold(0.0, f64::max);
        spread([most / one.per_s])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_measure::result::Round;

    fn experiment(figures: &[(u32, f64, Option<f64>)]) -> Experiment {
        let cell = |(copies, per_s, predicted): &(u32, f64, Option<f64>)| {
            let mut round = Round::default();
            round.figures.insert(f::OPS_PER_S.to_owned(), *per_s);
            if let Some(predicted) = predicted {
                round.figures.insert(f::PREDICTED_PER_S.to_owned(), *predicted);
            }
            Cell {
                layout: CACHED.to_owned(),
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
        let course = Course::of(&experiment(&steps), CACHED);
        let value = |spread: Option<Spread>| spread.unwrap().median;
        assert!((value(course.error()) - 6.0).abs() < 1e-9);
        assert!(value(course.knees()).abs() < 1e-9, "{}", course.knees_remark());
        assert!((value(course.chosen()) - 95.0).abs() < 1e-9);
        assert!((value(course.valley()) - 1.0).abs() < 1e-9, "{}", course.valley_remark());
        assert!((value(course.gain()) - 2.0).abs() < 1e-9);
    }
}
