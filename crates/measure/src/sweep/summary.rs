//! What follows from a sweep: a table of its mixes, and for each workload in words how many copies are worth having, what keeps them from
//! more, and who pays in a mix.

use std::collections::BTreeMap;

use bulkhead_advise::course::{Step, fairness, knee, valley};

use super::figure as f;
use super::host::page_bytes;
use crate::report::text::{ABSENT, axis_ms, bytes_of, digits, number, percent, short, with_ends};
use crate::result::{Cell, Experiment, Spread, spread};

/// From this use on, processors or the device are what limits.
const FULL_PCT: f64 = 90.0;
/// From this part of the device's reads on, reading evicted pages again is what limits.
const REFAULTED: f64 = 0.5;
/// From this part of the time on, waiting for I/O of a device that is not busy is what limits.
const STALLED_PCT: f64 = 50.0;

/// What keeps copies from more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The processors.
    Processors,
    /// The page cache: most reads are of pages that were evicted.
    Memory,
    /// The device.
    Device,
    /// Flushes or commits of the journal: copies wait for I/O while the device is not busy.
    Journal,
    /// Nothing of the host.
    Copies,
}

impl Limit {
    /// Its name in a table.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Processors => "processors",
            Self::Memory => "memory",
            Self::Device => "device",
            Self::Journal => "flushes",
            Self::Copies => "copies",
        }
    }

    /// What limits in a cell, by the medians of its rounds.
    #[must_use]
    pub fn of(cell: &Cell) -> Self {
        let median = |name: &str| cell.figure(name).map_or(0.0, |spread| spread.median);
        let refaulted = median(f::REFAULTS_PER_S) * page_bytes();
        let (read, busy) = (median(f::READ_BYTES_PER_S), median(f::BUSY_PCT));
        if median(f::CPU_PCT) >= FULL_PCT {
            Self::Processors
        } else if read > 0.0 && refaulted >= REFAULTED * read && busy >= STALLED_PCT {
            Self::Memory
        } else if busy >= FULL_PCT {
            Self::Device
        } else if median(f::IO_STALL_PCT) >= STALLED_PCT {
            Self::Journal
        } else {
            Self::Copies
        }
    }
}

/// The numbers of copies in a cell's name, in the order of its workloads.
fn copies(cell: &Cell) -> Vec<u32> {
    cell.neighbour.split('+').filter_map(|number| number.parse().ok()).collect()
}

/// The rate of each copy, as the median of its rounds.
fn each(cell: &Cell) -> Vec<f64> {
    let n = copies(cell).iter().sum::<u32>() as usize;
    let of_copy = |at: usize| {
        let rates = cell.rounds.iter().filter_map(|round| round.series.get(f::EACH_PER_S)?.get(at).copied());
        spread(rates).map(|spread| spread.median)
    };
    (0..n).filter_map(of_copy).collect()
}

/// The mean rate of the copies of each workload of a cell.
fn by_workload(cell: &Cell) -> Vec<(&str, f64)> {
    let rates = each(cell);
    let mut from = 0;
    let mut means = Vec::new();
    for (workload, copies) in cell.layout.split('+').zip(copies(cell)) {
        let of = rates.get(from..from + copies as usize).unwrap_or_default();
        from += of.len();
        means.push((workload, of.iter().sum::<f64>() / of.len().max(1) as f64));
    }
    means
}

/// The course of each workload over its numbers of copies, where no other one runs.
#[must_use]
pub fn courses(experiment: &Experiment) -> BTreeMap<&str, Vec<(Step, &Cell)>> {
    let mut courses: BTreeMap<&str, Vec<(Step, &Cell)>> = BTreeMap::new();
    for cell in &experiment.cells {
        if let ([copies], Some(together)) = (copies(cell).as_slice(), cell.figure(f::OPS_PER_S)) {
            let copies = *copies;
            courses.entry(&cell.layout).or_default().push((Step { copies, per_s: together.median }, cell));
        }
    }
    for course in courses.values_mut() {
        course.sort_by_key(|(step, _)| step.copies);
    }
    courses
}

/// Heads of the table.
pub const HEADS: [&str; 10] =
    ["MIX", "COPIES", "TOGETHER", "OF ALONE", "LEAST", "FAIRNESS", "P99", "PROCESSORS", "DEVICE", "LIMIT"];

/// A row for each cell.
#[must_use]
pub fn rows(experiment: &Experiment) -> Vec<[String; HEADS.len()]> {
    let alone = alone(experiment);
    experiment.cells.iter().map(|cell| row(cell, &alone)).collect()
}

/// What one copy of each workload achieves alone.
fn alone(experiment: &Experiment) -> BTreeMap<&str, f64> {
    let is_one = |course: &Vec<(Step, &Cell)>| course.first().map(|first| first.0).filter(|step| step.copies == 1);
    let all = courses(experiment).into_iter();
    all.filter_map(|(workload, course)| Some((workload, is_one(&course)?.per_s))).collect()
}

fn row(cell: &Cell, alone: &BTreeMap<&str, f64>) -> [String; HEADS.len()] {
    let shown = |name: &str, one: fn(f64) -> String| cell.figure(name).map_or(ABSENT.to_owned(), |s| one(s.median));
    let rates = each(cell);
    let normalised: Vec<f64> =
        by_workload(cell).iter().filter_map(|(workload, mean)| Some(mean / alone.get(workload)?)).collect();
    let of_alone = if normalised.len() == copies(cell).len() {
        normalised.iter().map(|part| percent(100.0 * part)).collect::<Vec<_>>().join(", ")
    } else {
        ABSENT.to_owned()
    };
    let together = |spread: Spread| with_ends(spread, |value| format!("{}/s", number(value)));
    [
        cell.layout.clone(),
        cell.neighbour.clone(),
        cell.figure(f::OPS_PER_S).map_or(ABSENT.to_owned(), together),
        of_alone,
        rates.iter().copied().reduce(f64::min).map_or(ABSENT.to_owned(), |least| format!("{}/s", number(least))),
        digits(fairness(&rates)),
        shown(f::P99_MS, axis_ms),
        shown(f::CPU_PCT, percent),
        shown(f::BUSY_PCT, percent),
        Limit::of(cell).as_str().to_owned(),
    ]
}

/// What follows, a sentence or two for each workload and mix.
#[must_use]
pub fn words(experiment: &Experiment) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for (workload, course) in courses(experiment) {
        words.extend(of_course(workload, &course));
    }
    let alone = alone(experiment);
    words.extend(experiment.cells.iter().filter_map(|cell| of_mix(cell, &alone)));
    let unsteady: Vec<String> = experiment
        .cells
        .iter()
        .filter(|cell| cell.figure(f::STEADY).is_some_and(|steady| steady.min < 0.5))
        .map(|cell| format!("{} x {}", cell.layout, cell.neighbour))
        .collect();
    if !unsteady.is_empty() {
        words.push(format!(
            "not as exact as wanted, or not steady, within the time: {}; give them more `seconds`",
            unsteady.join(", ")
        ));
    }
    words
}

fn of_course(workload: &str, course: &[(Step, &Cell)]) -> Option<String> {
    let steps: Vec<Step> = course.iter().map(|(step, _)| *step).collect();
    let at = knee(&steps).filter(|_| steps.len() > 1)?;
    let (step, cell) = course.iter().find(|(step, _)| step.copies == at)?;
    let mut words = format!("{workload}: {} reach {}/s", copies_word(at), number(step.per_s));
    if let Some(one) = steps.first().filter(|one| one.copies == 1 && one.per_s > 0.0 && at > 1) {
        words += &format!(", {} times one copy", short(step.per_s / one.per_s));
    }
    let last = steps.last().map_or(at, |step| step.copies);
    words += &if at == last {
        "; more copies were not tried, and may reach more".to_owned()
    } else {
        format!("; more, up to {last}, gain less than 5 %")
    };
    words += match Limit::of(cell) {
        Limit::Processors => ", because the processors are busy",
        Limit::Memory => ", because memory holds no more of what they read",
        Limit::Device => ", because the device is busy",
        Limit::Journal => ", because they wait for flushes or the journal",
        Limit::Copies => "",
    };
    if let Some(found) = valley(&steps) {
        let limit = course.iter().find(|(step, _)| *step == found.bottom).map(|(_, cell)| Limit::of(cell));
        words += &format!(
            ". Throughput valley: {} reach {} of that of {}{}",
            copies_word(found.bottom.copies),
            percent(100.0 * found.bottom.per_s / found.before.per_s),
            copies_word(found.before.copies),
            limit.map_or(String::new(), |limit| format!(", limited by {}", limit.as_str()))
        );
    }
    Some(words)
}

fn copies_word(n: u32) -> String {
    if n == 1 { "1 copy".to_owned() } else { format!("{n} copies") }
}

fn of_mix(cell: &Cell, alone: &BTreeMap<&str, f64>) -> Option<String> {
    let means = by_workload(cell);
    if means.len() < 2 {
        return None;
    }
    let parts: Vec<(&str, f64)> =
        means.iter().filter_map(|(workload, mean)| Some((*workload, mean / alone.get(workload)?))).collect();
    let (worst, least) = parts.iter().min_by(|a, b| a.1.total_cmp(&b.1)).filter(|_| parts.len() == means.len())?;
    let kept: Vec<String> =
        parts.iter().map(|(workload, part)| format!("{workload} {}", percent(100.0 * part))).collect();
    let more = if *least < 0.5 { format!("; {worst} pays most") } else { String::new() };
    let read = cell.figure(f::READ_BYTES_PER_S).map_or(0.0, |spread| spread.median);
    let written = cell.figure(f::WRITTEN_BYTES_PER_S).map_or(0.0, |spread| spread.median);
    Some(format!(
        "{} x {}: each copy keeps of its throughput alone: {}{more}. The device reads {}/s and writes {}/s",
        cell.layout,
        cell.neighbour,
        kept.join(", "),
        bytes_of(read),
        bytes_of(written)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Disk, Machine, Round};

    fn cell(layout: &str, numbers: &str, each: &[f64], figures: &[(&str, f64)]) -> Cell {
        let mut round = Round::default();
        round.figures.insert(f::OPS_PER_S.to_owned(), each.iter().sum());
        round.figures.extend(figures.iter().map(|(name, value)| ((*name).to_owned(), *value)));
        round.series.insert(f::EACH_PER_S.to_owned(), each.to_vec());
        Cell { layout: layout.into(), controller: "as-found".into(), neighbour: numbers.into(), rounds: vec![round] }
    }

    fn sweep(cells: Vec<Cell>) -> Experiment {
        Experiment {
            format: 1,
            name: super::super::NAME.to_owned(),
            about: String::new(),
            quick: false,
            machine: Machine::default(),
            disk: Disk::default(),
            commands: Vec::new(),
            cells,
            notes: Vec::new(),
        }
    }

    #[test]
    fn knee_valley_and_limits_are_said() {
        let busy = [(f::BUSY_PCT, 99.0)];
        let thrashing = [(f::BUSY_PCT, 99.0), (f::READ_BYTES_PER_S, 1e6), (f::REFAULTS_PER_S, 200.0)];
        let found = sweep(vec![
            cell("cache", "1", &[100.0], &[]),
            cell("cache", "4", &[95.0; 4], &busy),
            cell("cache", "8", &[10.0; 8], &thrashing),
            cell("cache+log", "1+1", &[90.0, 20.0], &[(f::READ_BYTES_PER_S, 2e6)]),
            cell("log", "1", &[80.0], &[(f::STEADY, 0.0)]),
        ]);
        assert_eq!(
            words(&found),
            [
                "cache: 4 copies reach 380/s, 3.8 times one copy; more, up to 8, gain less than 5 %, because the device is busy. \
                 Throughput valley: 8 copies reach 21 % of that of 4 copies, limited by memory",
                "cache+log x 1+1: each copy keeps of its throughput alone: cache 90 %, log 25 %; log pays most. \
                 The device reads 1.91 MiB/s and writes 0 MiB/s",
                "not as exact as wanted, or not steady, within the time: log x 1; give them more `seconds`",
            ]
        );
        let rows = rows(&found);
        assert_eq!(rows[1].join(" "), "cache 4 380/s 95 % 95/s 1.00 - - 99 % device");
        assert_eq!(rows[3][3], "90 %, 25 %");
    }

    #[test]
    fn what_limits_is_found() {
        for (figures, limit) in [
            (&[(f::CPU_PCT, 97.0), (f::BUSY_PCT, 99.0)][..], Limit::Processors),
            (&[(f::IO_STALL_PCT, 80.0), (f::BUSY_PCT, 60.0)], Limit::Journal),
            (&[(f::CPU_PCT, 20.0)], Limit::Copies),
        ] {
            assert_eq!(Limit::of(&cell("w", "1", &[1.0], figures)), limit);
        }
    }
}
