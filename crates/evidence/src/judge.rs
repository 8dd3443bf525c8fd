//! The judge: whether an experiment reached its targets, as pure functions of its figures (docs/DECISIONS.md, "Targets are ratios").
//!
//! Owns: every threshold, in one table ([`THRESHOLDS`]). The middle of the rounds is judged, the spread is shown.
//! Does not: measure, or excuse. What was not measured is short; so are fewer than three rounds, unless the short form was asked for.

use bulkhead_measure::isolation::{DATABASE_PCT, Limits, fair_part_pct};
use bulkhead_measure::report::text::{
    factor, microseconds, nanoseconds, number, percent, percent_exact, rounds, with_ends,
};
use bulkhead_measure::report::words::{self, Config};
use bulkhead_measure::result::{Cell, Experiment, Spread, spread};
use serde::{Deserialize, Serialize};

use bulkhead_core::observe::cost::CallCost;

use crate::calls::{METADATA, OTHER};
use crate::experiment::attribution::{CONTAINERS, PLAYERS, cell_of_all, name_of};
use crate::experiment::disk_models::{self, published};
use crate::experiment::launch_storm::{BOUNDED, UNBOUNDED};
use crate::experiment::share_correction::{COMES_AND_GOES, READS, SIXTEEN};
use crate::experiment::volume_overhead::due_commits_per_s;
use crate::experiments;
use crate::figure as f;
use crate::report::grid;
use crate::shapley;

/// The end of what is judged otherwise on disks without an arm.
pub(crate) const ON_FLASH: &str = " on flash";
/// The row that counts the rounds of a disk begins with it.
pub(crate) const ROUNDS: &str = "rounds";

/// Rounds that a full run has at least ("spread of at least 3 interleaved rounds").
pub const MIN_ROUNDS: usize = 3;

/// What is asked of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// Of, and how far from it.
    Within(f64, f64),
    /// Only that it was measured.
    Reported,
}

/// One demand.
#[derive(Clone, Copy, Debug)]
struct Threshold {
    /// The experiment whose target it is.
    row: &'static str,
    /// What is judged.
    what: &'static str,
    bound: Bound,
}

const fn demand(row: &'static str, what: &'static str, bound: Bound) -> Threshold {
    Threshold { row, what, bound }
}

/// All thresholds, each under the words of its target.
const THRESHOLDS: [Threshold; 92] = [
    // "hdd: (a) <= 1.4x, p99 <= 2x; (b) <= 1.6x, p99 <= 2x; (c) <= 1.6x"; a p99 of 2x is asked of (c) too
    demand("fsync-probe", "streams mean", Bound::AtMost(Limits::STREAMS.mean)),
    demand("fsync-probe", "streams p99", Bound::AtMost(Limits::STREAMS.p99)),
    demand("fsync-probe", "fsyncs mean", Bound::AtMost(Limits::FSYNCS.mean)),
    demand("fsync-probe", "fsyncs p99", Bound::AtMost(Limits::FSYNCS.p99)),
    demand("fsync-probe", "storm mean", Bound::AtMost(Limits::STORM.mean)),
    demand("fsync-probe", "storm p99", Bound::AtMost(Limits::STORM.p99)),
    // "ssd, nvme: <= 1.3x, p99 <= 2x everywhere"
    demand("fsync-probe", "streams mean on flash", Bound::AtMost(Limits::STREAMS.mean_on_flash)),
    demand("fsync-probe", "streams p99 on flash", Bound::AtMost(Limits::STREAMS.p99)),
    demand("fsync-probe", "fsyncs mean on flash", Bound::AtMost(Limits::FSYNCS.mean_on_flash)),
    demand("fsync-probe", "fsyncs p99 on flash", Bound::AtMost(Limits::FSYNCS.p99)),
    demand("fsync-probe", "storm mean on flash", Bound::AtMost(Limits::STORM.mean_on_flash)),
    demand("fsync-probe", "storm p99 on flash", Bound::AtMost(Limits::STORM.p99)),
    // "B >= 95 % of its fair rest and >= 100 % of what it gets first come, first served"
    demand("fsync-probe", "streams neighbour", Bound::AtLeast(Limits::STREAMS.neighbour_pct)),
    demand("fsync-probe", "fsyncs neighbour", Bound::AtLeast(Limits::FSYNCS.neighbour_pct)),
    demand("fsync-probe", "storm neighbour", Bound::AtLeast(Limits::STORM.neighbour_pct)),
    demand("fsync-probe", "streams neighbour of first come", Bound::AtLeast(100.0)),
    demand("fsync-probe", "fsyncs neighbour of first come", Bound::AtLeast(100.0)),
    demand("fsync-probe", "storm neighbour of first come", Bound::AtLeast(100.0)),
    // "held: >= 95 % of 70 % of the lone throughput beside every neighbour, fsync <= 2x alone (>= 10x, 2.6x, 1.8x the shared journal
    // by the figures by hand below); alone >= 97 % of the shared journal; no neighbour worse than shared in any step; share within 1
    // point of 70/30"
    demand("dbms-consolidation", "throughput of alone", Bound::AtLeast(DATABASE_PCT)),
    demand("dbms-consolidation", "fsync of alone", Bound::AtMost(2.0)),
    demand("dbms-consolidation", "throughput of shared", Bound::Reported),
    demand("dbms-consolidation", "worst step of shared", Bound::AtLeast(1.0)),
    demand("dbms-consolidation", "share", Bound::Within(70.0, 1.0)),
    demand("dbms-consolidation", "alone of shared", Bound::AtLeast(97.0)),
    // "latency ratio of the two tenants = inverse share ratio within 5 %"; the shares are 70/30
    demand("journal-fsync", "latency B/A", Bound::Within(70.0 / 30.0, 3.5 / 30.0)),
    // "LV <= 2 %; blockd: 0 host commits, bandwidth >= 97 %, IOPS >= 95 % (hdd), >= 75 % (ssd, nvme at depth 1), >= 95 % at depth 32;
    // first among all servers compared"
    demand("volume-overhead", "lv IOPS", Bound::AtLeast(98.0)),
    demand("volume-overhead", "lv IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "lv bandwidth", Bound::AtLeast(98.0)),
    demand("volume-overhead", "lv CPU", Bound::Reported),
    demand("volume-overhead", "blockd IOPS", Bound::AtLeast(95.0)),
    demand("volume-overhead", "blockd IOPS on flash", Bound::AtLeast(75.0)),
    demand("volume-overhead", "blockd IOPS of 32 threads", Bound::AtLeast(95.0)),
    demand("volume-overhead", "blockd of the best other server", Bound::AtLeast(100.0)),
    demand("volume-overhead", "blockd bandwidth", Bound::AtLeast(97.0)),
    demand("volume-overhead", "blockd host commits", Bound::AtMost(0.0)),
    demand("volume-overhead", "blockd CPU", Bound::Reported),
    // "loop beside them"; others where their programs are
    demand("volume-overhead", "loop IOPS", Bound::Reported),
    demand("volume-overhead", "loop IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "loop bandwidth", Bound::Reported),
    demand("volume-overhead", "loop CPU", Bound::Reported),
    demand("volume-overhead", "nbdkit IOPS", Bound::Reported),
    demand("volume-overhead", "nbdkit IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "nbdkit bandwidth", Bound::Reported),
    demand("volume-overhead", "nbdkit CPU", Bound::Reported),
    demand("volume-overhead", "qemu-nbd IOPS", Bound::Reported),
    demand("volume-overhead", "qemu-nbd IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "qemu-nbd bandwidth", Bound::Reported),
    demand("volume-overhead", "qemu-nbd CPU", Bound::Reported),
    demand("volume-overhead", "ublk-loop IOPS", Bound::Reported),
    demand("volume-overhead", "ublk-loop IOPS of 32 threads", Bound::Reported),
    demand("volume-overhead", "ublk-loop bandwidth", Bound::Reported),
    demand("volume-overhead", "ublk-loop CPU", Bound::Reported),
    // "CV <= 0.02, all calls of the paper + rename, link, symlink, setxattr, chmod, append+fsync; fast_commit, inline_data, XFS columns"
    demand("journal-cost", "largest CV", Bound::AtMost(0.02)),
    demand("journal-cost", "calls", Bound::AtLeast(13.0)),
    // "total exact; per cgroup within 4 % of the Shapley value, unattributed < 1 %"
    demand("attribution", "bytes not charged", Bound::AtMost(0.0)),
    demand("attribution", "off Shapley", Bound::AtMost(4.0)),
    demand("attribution", "unattributed", Bound::AtMost(1.0)),
    // "<= 30 ns per metadata call, 0 elsewhere"; within 1 % is taken for 0, which is what two equal halves differ by
    demand("attribution", "metadata calls overhead", Bound::AtMost(30.0)),
    demand("attribution", "other calls overhead", Bound::AtMost(1.0)),
    // "within 0.3 points mean and 3 points in every 5 s window after the first 10 s; 2 to 16 tenants"
    demand("share-correction", "off mean", Bound::AtMost(0.3)),
    demand("share-correction", "off in 5 s", Bound::AtMost(3.0)),
    demand("share-correction", "CPU of holding", Bound::Reported),
    // "base >= 40 % [of a cache hit]; drr >= 13 % and >= x3 of the ssd; miss cost <= 2 %; disk reads of file data by later clones: 0"
    demand("clone-read", "base gain", Bound::Reported),
    demand("clone-read", "base gain on flash", Bound::Reported),
    demand("clone-read", "base of a cache hit", Bound::AtLeast(40.0)),
    demand("clone-read", "base disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "base copies", Bound::Reported),
    demand("clone-read", "drr gain", Bound::Reported),
    demand("clone-read", "drr gain on flash", Bound::AtLeast(3.0)),
    demand("clone-read", "drr of a cache hit", Bound::AtLeast(13.0)),
    demand("clone-read", "drr disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "drr copies", Bound::Reported),
    demand("clone-read", "drr miss cost", Bound::AtMost(2.0)),
    demand("clone-read", "both gain", Bound::Reported),
    demand("clone-read", "both gain on flash", Bound::Reported),
    demand("clone-read", "both of a cache hit", Bound::Reported),
    demand("clone-read", "both disk reads", Bound::AtMost(0.0)),
    demand("clone-read", "both copies", Bound::Reported),
    // "drr -60 %"; the rest from the row before, until clones share the files themselves: "-60 % and >= 85 % fewer disk reads at 10
    // clones; index memory <= 0.5 % of the image's hot data, independent of clone count"
    demand("launch-storm", "base time saved", Bound::AtLeast(60.0)),
    demand("launch-storm", "base disk reads saved", Bound::AtLeast(85.0)),
    demand("launch-storm", "drr time saved", Bound::AtLeast(60.0)),
    demand("launch-storm", "drr disk reads saved", Bound::AtLeast(85.0)),
    demand("launch-storm", "drr index memory", Bound::AtMost(0.5)),
    demand("launch-storm", "base bounded, time saved", Bound::Reported),
    demand("launch-storm", "base bounded, disk reads saved", Bound::Reported),
    demand("launch-storm", "drr bounded, time saved", Bound::Reported),
    demand("launch-storm", "drr bounded, disk reads saved", Bound::Reported),
    // The lab's disks have the published figures of their drives "within 10 %"
    demand(disk_models::METHOD.name, "largest deviation", Bound::AtMost(published::TOLERANCE_PCT)),
    // "30-minute mixed run with container churn: attributed + unattributed equals the journal device's bytes, no
    // leak in maps or memory, daemon RSS flat"
    demand("churn", "bytes not charged", Bound::AtMost(0.0)),
    demand("churn", "unattributed", Bound::AtMost(1.0)),
    demand("churn", "memory, last third / second", Bound::AtMost(1.05)),
    demand("churn", "table entries, last third / second", Bound::AtMost(1.5)),
];

/// What became of one demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Measured and good enough.
    Met,
    /// Measured and not good enough.
    Short,
    /// Not measured, which is never good enough.
    NotMeasured,
}

/// One demand with what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// On what it is judged: a disk for the most part; empty where there is only one.
    pub place: String,
    /// What is judged.
    pub what: String,
    /// What is asked; empty when it is only reported.
    pub target: String,
    /// What was found, with its spread.
    pub found: String,
    /// The middle of it alone; empty when it was not measured.
    pub figure: String,
    /// Whether that is enough.
    pub outcome: Outcome,
}

impl Row {
    /// What is judged, and on what.
    #[must_use]
    pub fn label(&self) -> String {
        if self.place.is_empty() { self.what.clone() } else { format!("{} {}", self.place, self.what) }
    }

    /// The first word of the place: the disk, if it begins with one.
    fn disk(&self) -> &str {
        self.place.split_once(' ').map_or(&*self.place, |(disk, _)| disk)
    }

    /// What is asked, in words where that is nothing.
    #[must_use]
    pub fn asked(&self) -> &str {
        if self.target.is_empty() { "reported" } else { &self.target }
    }
}

/// The judgement of one evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether every demand is met.
    pub met: bool,
    /// `NAME: met: figures` or `NAME: short: figures, what is missing`, in one line.
    pub line: String,
    /// The demands one by one.
    pub rows: Vec<Row>,
}

/// Judges what was measured under `name`: one experiment for each disk. Experiments of other names are left out.
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

/// A judgement in the making.
pub(crate) struct Case<'a> {
    name: &'a str,
    /// The disk models that it is wanted on.
    disks: &'static [&'static str],
    rows: Vec<Row>,
    /// Short texts for the line.
    figures: Vec<String>,
    missing: Vec<String>,
    /// Disks that were not measured at all: said once instead of row by row.
    absent: Vec<&'static str>,
}

impl<'a> Case<'a> {
    fn new(name: &'a str, disks: &'static [&'static str]) -> Self {
        Self { name, disks, rows: Vec::new(), figures: Vec::new(), missing: Vec::new(), absent: Vec::new() }
    }

    /// Has the headline say what was found of `about`, if anything was.
    fn tell<const N: usize>(&mut self, about: &str, said: [Option<String>; N]) {
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
        // A latency or a throughput of nothing is a failed measurement; only a count may be 0.
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

    /// Says so when there are too few rounds, or when it was the short form.
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

/// Counts, and differences.
fn may_be_0(what: &str) -> bool {
    [
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

/// A figure that just misses must not read like one that does not: more digits when it would.
fn exactly(bound: Bound, value: f64, one: fn(f64) -> String) -> String {
    let reads_the_same = match bound {
        Bound::AtMost(limit) | Bound::AtLeast(limit) => one(limit) == one(value),
        Bound::Within(of, by) => one(of - by) == one(value) || one(of + by) == one(value),
        Bound::Reported => false,
    };
    if reads_the_same { format!("{value:.4}") } else { one(value) }
}

/// The rounds that every cell has: a figure that is there in one round must be there in the others to count.
fn complete_rounds(experiment: &Experiment) -> usize {
    let with = |cell: &Cell, name: &str| {
        cell.rounds.iter().filter(|round| round.figures.get(name).is_some_and(|value| value.is_finite())).count()
    };
    let of = |cell: &Cell| {
        let names = cell.rounds.iter().flat_map(|round| round.figures.keys());
        let names = names.filter(|name| f::KNOWN.contains(&name.as_str()));
        // A cell of nothing that is judged has the rounds that it has.
        names.map(|name| with(cell, name)).min().unwrap_or(cell.rounds.len())
    };
    experiment.cells.iter().map(of).min().unwrap_or(0)
}

/// The experiments of one disk model.
fn on<'a>(experiments: &[&'a Experiment], model: &str) -> Vec<&'a Experiment> {
    experiments.iter().copied().filter(|e| e.disk.model.eq_ignore_ascii_case(model)).collect()
}

/// The experiments of every disk that is asked for; `None` stands for one that is missing.
fn by_disk<'a>(disks: &[&'static str], experiments: &[&'a Experiment]) -> Vec<(&'static str, Option<&'a Experiment>)> {
    let found = |model: &'static str| match on(experiments, model).as_slice() {
        [] => vec![(model, None)],
        all => all.iter().map(|experiment| (model, Some(*experiment))).collect(),
    };
    disks.iter().copied().flat_map(found).collect()
}

pub(crate) fn fsync_probe(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let ours = words::ours(experiments.iter().copied());
    if let Some(config) = ours {
        case.figures.push(config.id());
    }
    // Once with weights alone, and once with a limit for A's fsyncs that holds the neighbour back.
    let free = ours.map(words::unheld);
    let promised = ours.filter(|config| Some(*config) != free);
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        probes(case, disk, experiment, disk, free);
        if promised.is_some() {
            probes(case, disk, experiment, &format!("{disk} promised"), promised);
        }
    }
}

/// One configuration beside all neighbours, as the rows of `place`.
fn probes(case: &mut Case<'_>, disk: &str, experiment: Option<&Experiment>, place: &str, config: Option<Config<'_>>) {
    for neighbour in ["streams", "fsyncs", "storm"] {
        let cell = config.and_then(|config| experiment?.cell(config.layout, config.controller, neighbour));
        let mean = cell.and_then(|cell| cell.ratio(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS));
        let p99 = cell.and_then(|cell| cell.ratio(f::FSYNC_LOADED_P99_MS, f::FSYNC_IDLE_P99_MS));
        let kept = cell.and_then(fair_part_pct);
        let share_known = cell.is_some_and(|cell| cell.figure(f::A_DEVICE_SHARE).is_some());
        let remark = if share_known {
            "of alone x (1 - A's share of device time)"
        } else {
            "of alone; A's share of device time not measured, taken as 0"
        };
        let first_come = cell.zip(experiment).and_then(|(cell, experiment)| first_come_pct(experiment, cell));
        let on = on_flash(disk);
        case.row(place, &format!("{neighbour} mean{on}"), mean, factor, "");
        case.row(place, &format!("{neighbour} p99{on}"), p99, factor, "");
        case.row(place, &format!("{neighbour} neighbour"), kept, percent, remark);
        let remark = "of what it gets beside A on a shared file system without control";
        case.row(place, &format!("{neighbour} neighbour of first come"), first_come, percent, remark);
        let said = [
            mean.map(|s| format!("mean {}", factor(s.median))),
            p99.map(|s| format!("p99 {}", factor(s.median))),
            kept.map(|s| format!("neighbour {}", percent(s.median))),
        ];
        case.tell(&format!("{place} {neighbour}"), said);
    }
}

/// Ends the name of what is asked differently of flash.
fn on_flash(disk: &str) -> &'static str {
    if disk.starts_with("hdd") { "" } else { ON_FLASH }
}

/// The neighbour's throughput in percent of what it gets beside A where nobody holds anything.
fn first_come_pct(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    let free = experiment.cell("shared", "none", &cell.neighbour)?;
    [f::NEIGHBOUR_BYTES_PER_S, f::NEIGHBOUR_OPS_PER_S]
        .into_iter()
        .find_map(|name| quotient(cell, free, name))
        .map(percents)
}

pub(crate) fn dbms(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let Some(ours) = words::ours(experiments.iter().copied()) else {
        case.missing.push("Bulkhead's own configuration was not measured".into());
        return;
    };
    case.figures.push(ours.id());
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let cell = |config: Option<Config<'_>>, neighbour: &str| {
            let config = config?;
            experiment.cell(config.layout, config.controller, neighbour)
        };
        let shared = words::like(experiment, "shared", ours);
        let unheld = words::unheld(ours);
        let alone = cell(Some(unheld), "none");
        let part = |of: Option<&Cell>, whole: Option<&Cell>, name: &str| quotient(of?, whole?, name);
        let of_shared = part(alone, cell(shared, "none"), f::INSERTS_PER_S).map(percents);
        case.row(disk, "alone of shared", of_shared, percent_exact, "of the shared journal's throughput");
        for neighbour in ["no-fsync", "low-fsync", "high-fsync"] {
            let place = format!("{disk} {neighbour}");
            let held = cell(Some(ours), neighbour);
            let of_alone = part(held, alone, f::INSERTS_PER_S).map(percents);
            let fsync = part(held, alone, f::FSYNC_MEAN_MS);
            let gain = part(held, cell(shared, neighbour), f::INSERTS_PER_S);
            let steps = [words::like(experiment, "own", ours), Some(unheld), Some(ours)];
            let gains = steps.map(|step| part(cell(step, neighbour), cell(shared, neighbour), f::INSERTS_PER_S));
            // A step that was not measured is none that was not worse.
            let worst = gains.into_iter().collect::<Option<Vec<_>>>();
            let worst = worst.and_then(|all| all.into_iter().min_by(|a, b| a.median.total_cmp(&b.median)));
            let share = held.and_then(f::share_a).map(|(share, _)| share);
            case.row(&place, "throughput of alone", of_alone, percent_exact, "with 70 % of the disk");
            case.row(&place, "fsync of alone", fsync, factor, "");
            case.row(&place, "throughput of shared", gain, factor, "");
            case.row(&place, "worst step of shared", worst, factor, "own, with accounting, held");
            case.row(&place, "share", share, percent_exact, "");
            let said = [
                of_alone.map(|s| format!("{} of alone", percent_exact(s.median))),
                gain.map(|s| format!("{} of shared", factor(s.median))),
                fsync.map(|s| format!("fsync {} of alone", factor(s.median))),
                share.map(|s| format!("share {}", percent_exact(s.median))),
            ];
            case.tell(&place, said);
        }
    }
}

fn percents(part: Spread) -> Spread {
    Spread { median: 100.0 * part.median, min: 100.0 * part.min, max: 100.0 * part.max }
}

/// A figure of one cell over the middle of the same figure of another.
fn quotient(above: &Cell, below: &Cell, name: &str) -> Option<Spread> {
    let whole = below.figure(name).filter(|whole| whole.median > 0.0)?.median;
    spread(above.rounds.iter().filter_map(|round| Some(round.figures.get(name)? / whole)))
}

pub(crate) fn journal_fsync(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let ours = words::ours(experiments.iter().copied());
    for (disk, experiment) in by_disk(case.disks, experiments) {
        let Some(experiment) = experiment else {
            case.absent.push(disk);
            continue;
        };
        let cell =
            experiment.cells.iter().find(|c| Some(Config::of(c)) == ours && c.figure(f::FSYNC_A_MEAN_MS).is_some());
        let ratio = cell.and_then(|cell| cell.ratio(f::FSYNC_B_MEAN_MS, f::FSYNC_A_MEAN_MS));
        let both =
            cell.and_then(|c| Some((c.figure(f::FSYNC_A_MEAN_MS)?.median, c.figure(f::FSYNC_B_MEAN_MS)?.median)));
        let remark = both.map_or_else(String::new, |(a, b)| format!("A {} ms, B {} ms", number(a), number(b)));
        case.row(disk, "latency B/A", ratio, number, &remark);
        if let (Some(ratio), Some(ours)) = (ratio, ours) {
            case.figures.push(format!("{} {disk} {remark}, B/A {}", ours.id(), number(ratio.median)));
        }
    }
}

pub(crate) fn volume_overhead(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        let of = |layout: &str| experiment.and_then(|e| Some((e, e.cells.iter().find(|cell| cell.layout == layout)?)));
        let others = ["nbdkit", "qemu-nbd", "ublk-loop"].into_iter().filter(|layout| of(layout).is_some());
        for layout in ["lv", "blockd", "loop"].into_iter().chain(others.clone()) {
            let found = of(layout);
            let part = |name: &str| found.and_then(|(experiment, cell)| grid::pct_of_raw(experiment, cell, name));
            let figure = |name: &str| found.and_then(|(_, cell)| cell.figure(name));
            let (iops, bandwidth) = (part(f::RANDOM_IOPS), part(f::SEQUENTIAL_BYTES_PER_S));
            let (commits, cpu) = (figure(f::HOST_COMMITS_PER_FSYNC), figure(f::CPU_US_PER_IO));
            let on = if layout == "blockd" { on_flash(disk) } else { "" };
            case.row(disk, &format!("{layout} IOPS{on}"), iops, percent_exact, "of the raw device");
            let deep = part(f::DEEP_IOPS);
            case.row(disk, &format!("{layout} IOPS of 32 threads"), deep, percent_exact, "of the raw device");
            case.row(disk, &format!("{layout} bandwidth"), bandwidth, percent_exact, "of the raw device");
            if layout == "blockd" {
                let beside = |name| {
                    let others = others.clone().chain(["loop"]).filter_map(of);
                    others.filter_map(move |(_, other)| quotient(found?.1, other, name))
                };
                let worse = beside(f::RANDOM_IOPS).chain(beside(f::DEEP_IOPS));
                let worse = worse.min_by(|a, b| a.median.total_cmp(&b.median)).map(percents);
                case.row(
                    disk,
                    "blockd of the best other server",
                    worse,
                    percent_exact,
                    "the worse of 1 and 32 threads",
                );
                let asked_for = found.and_then(|(experiment, cell)| commits_asked_for(experiment, cell));
                case.row(
                    disk,
                    "blockd host commits",
                    asked_for,
                    number,
                    "per fsync, beside those that are due every 5 s",
                );
            }
            case.row(disk, &format!("{layout} CPU"), cpu, microseconds, "of all processors for each write");
            let said = [
                iops.map(|s| format!("IOPS {}", percent_exact(s.median))),
                deep.map(|s| format!("of 32 threads {}", percent_exact(s.median))),
                bandwidth.map(|s| format!("bandwidth {}", percent_exact(s.median))),
                commits.map(|s| format!("{} host commits/fsync", number(s.median))),
                cpu.map(|s| format!("{} CPU per I/O", microseconds(s.median))),
            ];
            case.tell(&format!("{disk} {layout}"), said);
        }
    }
}

/// Commits of the host's journal for each fsync, without those that are due anyway.
fn commits_asked_for(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    spread(cell.rounds.iter().filter_map(|round| {
        let (commits, fsyncs) = (round.figures.get(f::HOST_COMMITS_PER_S)?, round.figures.get(f::RANDOM_IOPS)?);
        Some((commits - due_commits_per_s(round, experiment.quick)).max(0.0) / fsyncs)
    }))
}

pub(crate) fn journal_cost(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let costs: Vec<CallCost> = experiments.iter().flat_map(|e| &e.cells).filter_map(grid::call_cost).collect();
    for features in ["default", "fast_commit", "inline_data", "xfs"] {
        let mine: Vec<&CallCost> = costs.iter().filter(|cost| cost.features == features).collect();
        let most = mine.iter().max_by(|a, b| a.variation.total_cmp(&b.variation));
        let remark = most.map_or_else(String::new, |cost| format!("{}, {} runs", cost.call.word(), cost.runs.len()));
        let variation = |value| format!("{value:.4}");
        case.row(features, "largest CV", most.and_then(|cost| spread([cost.variation])), variation, &remark);
        let n_calls = (!mine.is_empty()).then_some(mine.len() as f64);
        case.row(features, "calls", n_calls.and_then(|n| spread([n])), number, "of the paper's 7 and 6 more");
        if let Some(most) = most {
            case.figures.push(format!("{features} CV <= {:.4} ({})", most.variation, most.call.word()));
        }
    }
}

pub(crate) fn share_correction(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        let cells = [
            ("shared+hold", "bfq", READS),
            ("shared+hold", "iocost", READS),
            ("shared+hold", "bfq", SIXTEEN),
            ("shared+hold", "bfq", COMES_AND_GOES),
            ("own+accounting+hold", "bfq", READS),
        ];
        for (layout, controller, neighbour) in cells {
            let cell = experiment.and_then(|experiment| experiment.cell(layout, controller, neighbour));
            let figure = |name: &str| cell.and_then(|cell| cell.figure(name));
            let place = format!("{disk} {layout}/{controller}, {neighbour}:");
            let (mean, window) = (figure(f::OFF_MEAN_POINTS), figure(f::OFF_WINDOW_POINTS));
            case.row(&place, "off mean", mean, number, "points");
            case.row(&place, "off in 5 s", window, number, "points");
            if neighbour == SIXTEEN {
                case.row(&place, "CPU of holding", figure(f::HOLDING_CPU_PCT), percent_exact, "of a core");
            }
            if let (Some(mean), Some(window)) = (mean, window) {
                let (mean, window) = (number(mean.median), number(window.median));
                case.figures.push(format!("{place} {mean} off, {window} in 5 s"));
            }
        }
    }
}

pub(crate) fn clone_read(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for (disk, experiment) in by_disk(case.disks, experiments) {
        if experiment.is_none() {
            case.absent.push(disk);
        }
        for mode in ["base", "drr", "both"] {
            let cell = experiment.and_then(|experiment| experiment.cell(mode, "", ""));
            let gain = cell.and_then(|cell| cell.ratio(f::SECOND_CLONE_BYTES_PER_S, f::FIRST_CLONE_BYTES_PER_S));
            let part = cell.and_then(|c| grid::ratio_pct(c, f::SECOND_CLONE_BYTES_PER_S, f::CACHE_HIT_BYTES_PER_S));
            let reads = cell.and_then(|cell| cell.figure(f::SECOND_CLONE_DISK_READS));
            let copies = cell.and_then(|cell| cell.figure(f::COPIES_IN_MEMORY));
            case.row(
                disk,
                &format!("{mode} gain{}", on_flash(disk)),
                gain,
                factor,
                "second clone's first read over the first clone's",
            );
            case.row(disk, &format!("{mode} of a cache hit"), part, percent, "");
            case.row(disk, &format!("{mode} disk reads"), reads, number, "while the second clone reads");
            case.row(disk, &format!("{mode} copies"), copies, number, "in memory after three clones have read");
            let worse = experiment.zip(cell).and_then(|(e, cell)| grid::worse_miss_cost_pct(e, cell));
            if mode == "drr" {
                case.row(disk, "drr miss cost", worse, percent_exact, "the worse of never had and had once");
            }
            let said = [
                gain.map(|s| factor(s.median)),
                part.map(|s| format!("{} of a cache hit", percent(s.median))),
                reads.map(|s| format!("{} disk reads", number(s.median))),
                worse.map(|s| format!("a miss costs {}", percent_exact(s.median))),
            ];
            case.tell(&format!("{disk} {mode}"), said);
        }
    }
}

pub(crate) fn launch_storm(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for experiment in experiments {
        let disk = experiment.disk.model.as_str();
        for (mode, neighbour) in [("base", UNBOUNDED), ("drr", UNBOUNDED), ("base", BOUNDED), ("drr", BOUNDED)] {
            let cell = experiment.cell(mode, "", neighbour);
            let saved = |name: &str| cell.and_then(|cell| grid::saved_pct(experiment, cell, name));
            // In requests and in bytes; less of both is asked for.
            let reads = [f::LAUNCH_DISK_READS, f::LAUNCH_DISK_BYTES].map(saved);
            let reads = reads.into_iter().flatten().min_by(|a, b| a.median.total_cmp(&b.median));
            let time = saved(f::READY_SECONDS);
            let words = if neighbour == UNBOUNDED { mode.to_owned() } else { format!("{mode} {neighbour},") };
            case.row(
                disk,
                &format!("{words} time saved"),
                time,
                percent_exact,
                "until all are ready, against not sharing",
            );
            case.row(
                disk,
                &format!("{words} disk reads saved"),
                reads,
                percent_exact,
                "the less of requests and bytes",
            );
            let index = cell.and_then(|cell| cell.figure(f::INDEX_PCT));
            if (mode, neighbour) == ("drr", UNBOUNDED) {
                case.row(disk, "drr index memory", index, percent_exact, "of the image, for all clones together");
            }
            let said = [
                time.map(|s| format!("{} less time", percent_exact(s.median))),
                reads.map(|s| format!("{} fewer disk reads", percent_exact(s.median))),
                index.map(|s| format!("index {}", percent_exact(s.median))),
            ];
            case.tell(&format!("{disk} {words}"), said);
        }
    }
}

pub(crate) fn disk_models(case: &mut Case<'_>, experiments: &[&Experiment]) {
    for drive in &published::DRIVES {
        let mine = on(experiments, drive.model);
        if mine.is_empty() {
            case.absent.push(drive.model);
            case.row(drive.model, "largest deviation", None, percent_exact, "");
        }
        for experiment in mine {
            let outcome = published::compare(drive, experiment);
            let said = outcome.sentence();
            // All of them have to be measured.
            let off = outcome.off_pct.filter(|_| outcome.n_measured == outcome.n_judged);
            case.row(drive.model, "largest deviation", off, percent_exact, &said);
            if outcome.n_measured > 0 {
                case.figures.push(format!("{}: {said}", drive.model));
            }
        }
    }
}

pub(crate) fn churn(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let cell = experiments.iter().flat_map(|experiment| &experiment.cells).next();
    // Every round has to be exact, not the middle one.
    let worst = |name: &str| spread([cell?.figure(name)?.max]);
    let growth = |name: &str| {
        let of = |round: usize| cell?.rounds.get(round)?.figures.get(name).copied();
        spread([of(2)? / of(1)?])
    };
    let (lost, nobody) = (worst(f::NOT_CHARGED_BYTES), worst(f::UNATTRIBUTED_PCT));
    case.row("", "bytes not charged", lost, number, "in the worst round");
    case.row("", "unattributed", nobody, percent_exact, "in the worst round");
    let (memory, tables) = (growth(f::RSS_MIB), growth(f::TABLE_ENTRIES));
    case.row("", "memory, last third / second", memory, number, "");
    case.row("", "table entries, last third / second", tables, number, "");
    let total =
        |name: &str| cell.map(|cell| cell.rounds.iter().filter_map(|round| round.figures.get(name)).sum::<f64>());
    let said = [
        total("containers").map(|n| format!("{} containers", number(n))),
        total(f::JOURNAL_BYTES).map(|bytes| format!("{} MiB of journal", number(bytes / f64::from(1 << 20)))),
        lost.map(|s| format!("{} B not charged", number(s.median))),
        memory.map(|s| format!("memory {}", factor(s.median))),
        tables.map(|s| format!("tables {}", factor(s.median))),
    ];
    case.figures.extend(said.into_iter().flatten());
}

pub(crate) fn attribution(case: &mut Case<'_>, experiments: &[&Experiment]) {
    let cells = || experiments.iter().flat_map(|experiment| &experiment.cells);
    let all = cell_of_all(cells());
    let figure = |name: &str| all.and_then(|cell| cell.figure(name));
    case.row("", "bytes not charged", figure(f::NOT_CHARGED_BYTES), number, "of what the journal's device was given");
    case.row("", "unattributed", figure(f::UNATTRIBUTED_PCT), percent_exact, "");
    let fair = fair_pct(experiments);
    for (index, player) in PLAYERS.into_iter().enumerate() {
        let charged = all.and_then(|cell| cell.mean(&format!("{player}_charged_pct")));
        let both = charged.zip(fair.as_ref().map(|fair| fair[index]));
        let off = figure(&f::off_shapley(player)).zip(both).map(|(rounds, (charged, fair))| {
            let pooled = 100.0 * (charged - fair).abs() / fair;
            Spread { min: rounds.min.min(pooled), median: pooled, max: rounds.max.max(pooled) }
        });
        let percents = both.map(|(charged, fair)| (percent_exact(charged), percent_exact(fair)));
        let said = percents.map(|(charged, fair)| format!("charged {charged}, fair {fair}"));
        let remark = said.as_ref().map_or_else(String::new, |said| format!("{said}, means of the rounds"));
        case.row(player, "off Shapley", off, percent_exact, &remark);
        if let (Some(off), Some(said)) = (off, said) {
            case.figures.push(format!("{player} {said}, off {}", percent_exact(off.median)));
        }
    }
    // One experiment may have the containers, and another one what observing them costs.
    let costs = |experiment: &&&Experiment| experiment.cells.iter().any(|cell| cell.neighbour == METADATA);
    let has_costs = experiments.iter().filter(costs).count();
    for experiment in experiments.iter().filter(|experiment| has_costs == 0 || costs(experiment)) {
        let place = if experiments.len() > 1 { format!("Linux {}", experiment.machine.kernel) } else { String::new() };
        for group in [METADATA, OTHER] {
            let cells = experiment.cells.iter().filter(|cell| cell.neighbour == group);
            let is_metadata = group == METADATA;
            let write = if is_metadata { nanoseconds } else { percent_exact };
            let overhead = |cell: &Cell| {
                if is_metadata { grid::observing_ns(cell) } else { cell.figure(f::OVERHEAD_PCT) }
            };
            let overheads = cells.filter_map(|cell| Some((cell.layout.as_str(), overhead(cell)?)));
            let worst = overheads.max_by(|a, b| a.1.median.total_cmp(&b.1.median));
            let remark = worst.map_or_else(String::new, |(call, _)| call.to_owned());
            case.row(&place, &format!("{group} overhead"), worst.map(|(_, overhead)| overhead), write, &remark);
            if let Some((call, overhead)) = worst {
                let figure = format!("{place} {group} overhead {} ({call})", write(overhead.median));
                case.figures.push(figure.trim_start().to_owned());
            }
        }
    }
}

/// What each container's part would be in fairness, percent. A Shapley value is one of expected costs, which differ from round to round:
/// it is worked out from the means of all combinations.
fn fair_pct(experiments: &[&Experiment]) -> Option<Vec<f64>> {
    let cells = || experiments.iter().flat_map(|experiment| &experiment.cells);
    let cost = |set: usize| {
        cells().find(|cell| cell.neighbour == CONTAINERS && cell.layout == name_of(set))?.mean(f::JOURNAL_BYTES)
    };
    let everyone = (1 << PLAYERS.len()) - 1;
    let costs: Vec<f64> =
        (0..=everyone).map(|set| if set == 0 { Some(0.0) } else { cost(set) }).collect::<Option<_>>()?;
    let fair = shapley::values(PLAYERS.len(), |set| costs[set]);
    Some(fair.into_iter().map(|bytes| 100.0 * bytes / costs[everyone]).collect())
}
