//! The judge: whether an experiment reached its targets, as pure functions of its figures (docs/DECISIONS.md, "Targets are ratios").
//!
//! Owns: all thresholds, in one table ([`THRESHOLDS`]); the criteria of experiments are in a file for each kind. The median of the rounds is judged,
//! the spread is shown. Does not: measure, or excuse. A missing measurement is short; so are fewer than three rounds, except in the short form.

pub(crate) mod charges;
pub(crate) mod clones;
pub(crate) mod course;
pub(crate) mod isolation;
pub(crate) mod nested;
pub(crate) mod planning;
mod thresholds;
pub(crate) mod volumes;

use bulkhead_measure::report::text::{rounds, with_ends};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};
use serde::{Deserialize, Serialize};

use crate::experiments;
use crate::figure as f;
use thresholds::{Bound, THRESHOLDS};

/// Suffix of criteria that differ on disks without an arm.
pub(crate) const ON_FLASH: &str = " on flash";
/// Prefix of the row with the number of rounds of a disk.
pub(crate) const ROUNDS: &str = "rounds";

/// Minimum number of rounds of a full run ("spread of at least 3 interleaved rounds").
pub const MIN_ROUNDS: usize = 3;

/// The outcome of one requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Measured, and within the threshold.
    Met,
    /// Measured, and not within the threshold.
    Short,
    /// Not measured, which never meets the threshold.
    NotMeasured,
}

/// One requirement, with the measured value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// What it applies to, usually a disk; empty if there is only one.
    pub place: String,
    /// The judged figure.
    pub what: String,
    /// The threshold; empty if it is only reported.
    pub target: String,
    /// The measured value, with its spread.
    pub found: String,
    /// The median alone; empty if it was not measured.
    pub figure: String,
    /// The outcome.
    pub outcome: Outcome,
}

impl Row {
    /// The judged figure, with what it applies to.
    #[must_use]
    pub fn label(&self) -> String {
        if self.place.is_empty() { self.what.clone() } else { format!("{} {}", self.place, self.what) }
    }

    /// The first word of the place: the disk, if it starts with one.
    fn disk(&self) -> &str {
        self.place.split_once(' ').map_or(&*self.place, |(disk, _)| disk)
    }

    /// The threshold; words if there is none.
    #[must_use]
    pub fn asked(&self) -> &str {
        if self.target.is_empty() { "reported" } else { &self.target }
    }
}

/// The judgement of one experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether all requirements are met.
    pub met: bool,
    /// `NAME: met: figures` or `NAME: short: figures, what is missing`, in one line.
    pub line: String,
    /// The requirements one by one.
    pub rows: Vec<Row>,
}

/// Judges the experiments with this name, one for each disk. Others are ignored.
#[must_use]
pub fn judge(name: &str, experiments: &[Experiment]) -> Verdict {
    let mine: Vec<&Experiment> = experiments.iter().filter(|experiment| experiment.name == name).collect();
    let entry = experiments::find(name);
    let mut case = Case::new(name, entry.map_or(&[], |entry| entry.disks));
    match entry {
        Some(entry) => (entry.judge)(&mut case, &mine),
        None => case.missing.push("no threshold is known for it".into()),
    }
    if mine.is_empty() {
        case.missing.insert(0, "nothing was measured".into());
    }
    for experiment in mine {
        case.rounds(experiment);
    }
    case.verdict()
}

/// Builds a judgement.
pub(crate) struct Case<'a> {
    name: &'a str,
    /// The disk models of the target.
    disks: &'static [&'static str],
    rows: Vec<Row>,
    /// Short texts for the line.
    figures: Vec<String>,
    missing: Vec<String>,
    /// Disks without any measurement, which are reported once instead of row by row.
    absent: Vec<&'static str>,
}

impl<'a> Case<'a> {
    fn new(name: &'a str, disks: &'static [&'static str]) -> Self {
        Self { name, disks, rows: Vec::new(), figures: Vec::new(), missing: Vec::new(), absent: Vec::new() }
    }

    /// Adds the results of `about` to the line, if there are any.
    fn summarize<const N: usize>(&mut self, about: &str, said: [Option<String>; N]) {
        let said: Vec<String> = said.into_iter().flatten().collect();
        if !said.is_empty() {
            self.figures.push(format!("{about} {}", said.join(", ")));
        }
    }

    /// Judges one figure. `place` says where it was measured; `one` writes it.
    fn row(&mut self, place: &str, what: &str, found: Option<Spread>, one: fn(f64) -> String, remark: &str) {
        let threshold = THRESHOLDS.iter().find(|threshold| (threshold.row, threshold.what) == (self.name, what));
        let Some(bound) = threshold.map(|threshold| threshold.bound) else {
            self.missing.push(format!("no threshold for {what}"));
            return;
        };
        let target = match bound {
            Bound::AtMost(most) => format!("<= {}", one(most)),
            Bound::AtLeast(least) => format!(">= {}", one(least)),
            Bound::Within(of, by) => format!("{} to {}", one(of - by), one(of + by)),
            Bound::Reported => String::new(),
        };
        // A latency or throughput of 0 is a failed measurement; only a count can be 0.
        let found = found.filter(|found| found.median > 0.0 || may_be_0(what) && found.median <= 0.0);
        let outcome = match found {
            None => Outcome::NotMeasured,
            Some(found) if holds(bound, found.median) => Outcome::Met,
            Some(_) => Outcome::Short,
        };
        let figure = found.map_or_else(String::new, |found| match outcome {
            Outcome::Short => exactly(bound, found.median, one),
            Outcome::Met | Outcome::NotMeasured => one(found.median),
        });
        let found = found.map_or_else(|| "not measured".to_owned(), |found| with_ends(found, one));
        let found =
            if remark.is_empty() || outcome == Outcome::NotMeasured { found } else { format!("{found}; {remark}") };
        let row = Row { place: place.to_owned(), what: what.to_owned(), target, found, figure, outcome };
        if outcome == Outcome::Short {
            self.missing.push(format!("{} {} is not {}", row.label(), row.figure, row.target));
        }
        self.rows.push(row);
    }

    /// Reports too few rounds, and the short form.
    fn rounds(&mut self, experiment: &Experiment) {
        let least = complete_rounds(experiment);
        let needed = if experiment.quick { 1 } else { MIN_ROUNDS };
        let disk = if experiment.disk.model.is_empty() { "unknown disk" } else { &experiment.disk.model };
        if least < needed {
            self.missing.push(format!("{} of at least {needed} on {disk}", rounds(least)));
        } else if experiment.quick {
            self.figures.push(format!("short form on {disk}, {}", rounds(least)));
        }
        self.rows.push(Row {
            place: disk.to_owned(),
            what: format!("{ROUNDS}{}", if experiment.quick { ", short form" } else { "" }),
            target: format!(">= {needed}"),
            found: least.to_string(),
            figure: least.to_string(),
            outcome: if least < needed { Outcome::Short } else { Outcome::Met },
        });
    }

    fn verdict(mut self) -> Verdict {
        let rows = self.rows.iter().filter(|row| row.outcome == Outcome::NotMeasured);
        let rows = rows.filter(|row| !self.absent.iter().any(|disk| row.disk() == *disk)).map(Row::label);
        let unmeasured: Vec<String> = self.absent.iter().map(|disk| (*disk).to_owned()).chain(rows).collect();
        if !unmeasured.is_empty() {
            self.missing.push(format!("not measured: {}", unmeasured.join(", ")));
        }
        let met =
            self.missing.is_empty() && !self.rows.is_empty() && self.rows.iter().all(|row| row.outcome == Outcome::Met);
        let figures = if self.figures.is_empty() { "no figures".to_owned() } else { self.figures.join("; ") };
        let line = if met {
            format!("{}: met: {figures}", self.name)
        } else {
            format!("{}: short: {figures}; missing: {}", self.name, self.missing.join("; "))
        };
        Verdict { met, line: line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(), rows: self.rows }
    }
}

/// Whether a figure is a count or a difference.
fn may_be_0(what: &str) -> bool {
    [
        "of the device",
        "host commits",
        "CV",
        "not charged",
        "unattributed",
        "off Shapley",
        "overhead",
        "disk reads",
        "miss cost",
        "saved",
        "deviation",
        "error",
        "knee",
        "valley found",
    ]
    .iter()
    .any(|end| what.ends_with(end))
}

fn holds(bound: Bound, value: f64) -> bool {
    match bound {
        Bound::AtMost(most) => value <= most,
        Bound::AtLeast(least) => value >= least,
        Bound::Within(of, by) => (value - of).abs() <= by,
        Bound::Reported => value.is_finite(),
    }
}

/// Formats a figure with more digits if it would otherwise look as if it met a threshold that it just misses.
fn exactly(bound: Bound, value: f64, one: fn(f64) -> String) -> String {
    let reads_the_same = match bound {
        Bound::AtMost(limit) | Bound::AtLeast(limit) => one(limit) == one(value),
        Bound::Within(of, by) => one(of - by) == one(value) || one(of + by) == one(value),
        Bound::Reported => false,
    };
    if reads_the_same { format!("{value:.4}") } else { one(value) }
}

/// Number of rounds that all cells have: a figure in one round must be in the others to count.
fn complete_rounds(experiment: &Experiment) -> usize {
    let with = |cell: &Cell, name: &str| {
        cell.rounds.iter().filter(|round| round.figures.get(name).is_some_and(|value| value.is_finite())).count()
    };
    let of = |cell: &Cell| {
        let names = cell.rounds.iter().flat_map(|round| round.figures.keys());
        let names = names.filter(|name| f::KNOWN.contains(&name.as_str()));
        // For a cell without judged figures, all rounds count.
        names.map(|name| with(cell, name)).min().unwrap_or(cell.rounds.len())
    };
    experiment.cells.iter().map(of).min().unwrap_or(0)
}

/// The experiments of one disk model.
fn on<'a>(experiments: &[&'a Experiment], model: &str) -> Vec<&'a Experiment> {
    experiments.iter().copied().filter(|e| e.disk.model.eq_ignore_ascii_case(model)).collect()
}

/// The experiments of each disk of the target; `None` if it is missing.
fn by_disk<'a>(disks: &[&'static str], experiments: &[&'a Experiment]) -> Vec<(&'static str, Option<&'a Experiment>)> {
    let found = |model: &'static str| match on(experiments, model).as_slice() {
        [] => vec![(model, None)],
        all => all.iter().map(|experiment| (model, Some(*experiment))).collect(),
    };
    disks.iter().copied().flat_map(found).collect()
}

/// The suffix of criteria that differ on flash.
fn on_flash(disk: &str) -> &'static str {
    if disk.starts_with("hdd") { "" } else { ON_FLASH }
}

fn percents(part: Spread) -> Spread {
    Spread { median: 100.0 * part.median, min: 100.0 * part.min, max: 100.0 * part.max }
}

/// A figure of one cell relative to the median of the same figure of another.
fn quotient(above: &Cell, below: &Cell, name: &str) -> Option<Spread> {
    let whole = below.figure(name).filter(|whole| whole.median > 0.0)?.median;
    spread(above.rounds.iter().filter_map(|round| Some(round.figures.get(name)? / whole)))
}
