//! One experiment as rows and columns, before it becomes text, HTML or Markdown. Columns without figures are omitted.

use super::labels::{self, Config};
use super::text::{digits, ends, factor, number, percent, percent_exact};
use super::{Guide, figure as f, paper, text};
use crate::isolation::kept_pct;
use crate::result::{Cell, Experiment, Spread};

/// A value with its spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    pub middle: String,
    pub ends: Option<String>,
}

/// One configuration.
#[derive(Clone, Debug)]
pub struct Line {
    pub id: String,
    pub label: String,
    pub ours: bool,
    pub values: Vec<Option<Value>>,
}

/// All of them, by neighbour.
#[derive(Clone, Debug)]
pub struct Grid {
    pub heads: Vec<Head>,
    pub groups: Vec<(String, Vec<Line>)>,
}

/// The two header lines of a column, and whether its spread is kept longest when space is short.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    pub above: &'static str,
    pub below: &'static str,
    pub keep_ends: bool,
}

/// One column: its header, and its value for a cell.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    head: Head,
    value: fn(&Experiment, &Cell) -> Option<Value>,
}

/// A column.
#[must_use]
pub const fn column(
    above: &'static str,
    below: &'static str,
    keep_ends: bool,
    value: fn(&Experiment, &Cell) -> Option<Value>,
) -> Column {
    Column { head: Head { above, below, keep_ends }, value }
}

/// A value with its spread.
#[must_use]
pub fn shown(spread: Option<Spread>, one: fn(f64) -> String) -> Option<Value> {
    spread.map(|spread| Value { middle: one(spread.median), ends: ends(spread, one) })
}

/// A value by itself.
#[must_use]
pub fn plain(value: Option<f64>, one: fn(f64) -> String) -> Option<Value> {
    value.map(|value| Value { middle: one(value), ends: None })
}

/// The spread of a figure relative to the median of the same figure in another cell.
#[must_use]
pub fn part_of(cell: &Cell, other: Option<&Cell>, name: &str, times: f64) -> Option<Spread> {
    let whole = other?.figure(name)?.median;
    let part = cell.figure(name)?;
    let of = |value: f64| times * value / whole;
    let part = Spread { min: of(part.min), median: of(part.median), max: of(part.max) };
    part.median.is_finite().then_some(part)
}

/// The cell of the shared journal that a cell is compared with.
fn shared_cell<'a>(experiment: &'a Experiment, cell: &Cell) -> Option<&'a Cell> {
    let config = labels::closest_config(experiment, "shared", Config::from_cell(cell))?;
    experiment.cell(config.layout, config.controller, &cell.neighbour)
}

/// Throughput as a multiple of the shared journal's.
#[must_use]
pub fn gain(experiment: &Experiment, cell: &Cell) -> Option<Spread> {
    part_of(cell, shared_cell(experiment, cell), f::INSERTS_PER_S, 1.0)
}

/// Columns of the probe.
pub const PROBE: &[Column] = &[
    column("alone", "mean ms", false, |_, c| shown(c.figure(f::FSYNC_IDLE_MEAN_MS), digits)),
    column("loaded", "mean ms", false, |_, c| shown(c.figure(f::FSYNC_LOADED_MEAN_MS), digits)),
    column("loaded", "p99 ms", false, |_, c| shown(c.figure(f::FSYNC_LOADED_P99_MS), digits)),
    column("loaded/alone", "mean", true, |_, c| shown(c.ratio(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS), factor)),
    column("loaded/alone", "p99", true, |_, c| shown(c.ratio(f::FSYNC_LOADED_P99_MS, f::FSYNC_IDLE_P99_MS), factor)),
    column("neighbour", "of alone", true, |_, c| shown(kept_pct(c), percent)),
];

/// Columns of the database.
pub const DATABASE: &[Column] = &[
    column("database", "inserts/s", false, |_, c| shown(c.figure(f::INSERTS_PER_S), digits)),
    column("of shared", "journal", true, |e, c| shown(gain(e, c), factor)),
    column("fsync", "mean ms", true, |_, c| shown(c.figure(f::FSYNC_MEAN_MS), digits)),
    column("paper's", "fsync ms", false, |_, c| {
        c.figure(f::FSYNC_MEAN_MS).and(plain(paper::dbms_fsync_ms(&c.layout, &c.neighbour), digits))
    }),
];

/// Columns of the achieved shares of two tenants with shares of 70 and 30.
pub const SHARES: &[Column] = &[
    column("share A", "of 70 %", true, |_, c| shown(f::share_a(c).map(|(share, _)| share), percent_exact)),
    column("paper's", "share A", false, |_, c| {
        let paper = paper::dbms_share_a_pct(&c.layout, &c.neighbour);
        c.figure(f::SHARE_A_PCT).filter(|_| c.figure(f::FSYNC_MEAN_MS).is_some()).and(plain(paper, percent))
    }),
];

/// Rows and columns of an experiment.
#[must_use]
pub fn build(guide: &Guide, experiment: &Experiment) -> Grid {
    let used: Vec<&Column> = guide
        .columns
        .iter()
        .copied()
        .flatten()
        .filter(|column| experiment.cells.iter().any(|cell| (column.value)(experiment, cell).is_some()))
        .collect();
    let ours = labels::ours([experiment]);
    let groups = labels::neighbours(&experiment.cells).into_iter().map(|neighbour| {
        let cells = || experiment.cells.iter().filter(|cell| cell.neighbour == neighbour);
        let lines = labels::configs(cells()).into_iter().flat_map(|config| {
            cells().filter(move |cell| Config::from_cell(cell) == config).map(move |cell| (config, cell))
        });
        let lines = lines.map(|(config, cell)| Line {
            id: config.id(),
            label: config.label(),
            ours: ours == Some(config),
            values: used.iter().map(|column| (column.value)(experiment, cell)).collect(),
        });
        (labels::neighbour_heading(neighbour), lines.collect())
    });
    Grid { groups: groups.collect(), heads: used.iter().map(|column| column.head).collect() }
}

/// All figures of all cells, for experiments without columns and for the raw part of the HTML.
#[must_use]
pub fn raw(experiment: &Experiment) -> Vec<(String, Vec<(String, String)>)> {
    let figures = |cell: &Cell| {
        let mut names: Vec<&String> = cell.rounds.iter().flat_map(|round| round.figures.keys()).collect();
        names.sort();
        names.dedup();
        names
            .into_iter()
            .map(|name| {
                let found = cell.figure(name).map_or_else(|| text::ABSENT.into(), |s| text::with_ends(s, number));
                (name.clone(), found)
            })
            .collect()
    };
    experiment.cells.iter().map(|cell| (cell.id(), figures(cell))).collect()
}
