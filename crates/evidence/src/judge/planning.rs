//! Criteria of the planner's predictions: scaling and mixing.

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

pub(crate) fn mixing(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let pairs: Vec<Pair<'_>> = experiment.cells.iter().filter_map(Pair::of).collect();
        let worst = pairs.iter().map(|pair| (pair.error(), pair)).max_by(|a, b| a.0.total_cmp(&b.0));
        let remark =
            worst.map_or_else(String::new, |(_, pair)| format!("points of the throughput alone, {}", pair.name()));
        case.row(disk, "pairs error", worst.and_then(|(error, _)| spread([error])), number, &remark);
        case.row(
            disk,
            "chosen pairs",
            chosen_pairs(&pairs),
            percent_exact,
            "of the best two pairs, by the predicted ones",
        );
        let sum = |pair: &&Pair<'_>| pair.measured.0 + pair.measured.1;
        let least = pairs.iter().min_by(|a, b| sum(a).total_cmp(&sum(b)));
        let most = pairs.iter().max_by(|a, b| sum(a).total_cmp(&sum(b)));
        for (what, pair) in [("worst pair", least), ("best pair", most)] {
            let found = pair.and_then(|pair| spread([sum(&pair)]));
            let remark = pair.map_or_else(String::new, |pair| {
                let (a, b) = pair.measured;
                format!("{}: {} and {} of alone", pair.name(), percent(100.0 * a), percent(100.0 * b))
            });
            case.row(disk, what, found, number, &remark);
        }
    }
}

/// A pair of workloads: normalised throughputs as measured and as predicted.
struct Pair<'a> {
    workloads: (&'a str, &'a str),
    measured: (f64, f64),
    predicted: (f64, f64),
}

impl<'a> Pair<'a> {
    fn of(cell: &'a Cell) -> Option<Self> {
        let median = |name: &str| cell.figure(name).map(|spread| spread.median);
        Some(Self {
            workloads: (&cell.layout, &cell.neighbour),
            measured: (median(f::NORMALISED_A)?, median(f::NORMALISED_B)?),
            predicted: (median(f::PREDICTED_A)?, median(f::PREDICTED_B)?),
        })
    }

    fn name(&self) -> String {
        format!("{} with {}", self.workloads.0, self.workloads.1)
    }

    /// The larger difference, in points of the throughput alone.
    fn error(&self) -> f64 {
        let of = |measured: f64, predicted: f64| 100.0 * (measured - predicted).abs();
        of(self.measured.0, self.predicted.0).max(of(self.measured.1, self.predicted.1))
    }

    fn has(&self, workload: &str) -> bool {
        self.workloads.0 == workload || self.workloads.1 == workload
    }
}

/// Of all ways to put four workloads on two devices, two on each: what the one that is predicted to be best achieves of the best one, percent.
fn chosen_pairs(pairs: &[Pair<'_>]) -> Option<Spread> {
    let mut ways: Vec<(f64, f64)> = Vec::new();
    for (index, one) in pairs.iter().enumerate() {
        for other in &pairs[index + 1..] {
            if !other.has(one.workloads.0) && !other.has(one.workloads.1) {
                let sum = |of: fn(&Pair<'_>) -> (f64, f64)| of(one).0 + of(one).1 + of(other).0 + of(other).1;
                ways.push((sum(|pair| pair.predicted), sum(|pair| pair.measured)));
            }
        }
    }
    let chosen = ways.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    let best = ways.iter().map(|way| way.1).fold(0.0, f64::max);
    spread([100.0 * chosen.1 / best])
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
    fn the_chosen_pairs_are_those_predicted_to_be_best() {
        let pair = |workloads, measured, predicted| Pair { workloads, measured, predicted };
        let pairs = [
            pair(("a", "b"), (0.5, 0.5), (0.5, 0.6)),
            pair(("a", "c"), (0.9, 0.9), (0.6, 0.6)),
            pair(("a", "d"), (0.4, 0.4), (0.4, 0.4)),
            pair(("b", "c"), (0.4, 0.4), (0.4, 0.4)),
            pair(("b", "d"), (0.5, 0.3), (0.5, 0.3)),
            pair(("c", "d"), (0.5, 0.5), (0.5, 0.5)),
        ];
        // Predicted to be best: a with b and c with d, 2.1; measured 2.0, where a with c and b with d have 2.6.
        assert!((chosen_pairs(&pairs).unwrap().median - 200.0 / 2.6).abs() < 1e-9);
        assert!((pairs[1].error() - 30.0).abs() < 1e-9);
        assert!(chosen_pairs(&pairs[..1]).is_none());
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
