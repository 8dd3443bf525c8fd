//! Pictures of an experiment as self-contained SVG: no scripts, no external fonts, light and dark.
//!
//! The figures decide which pictures are drawn: sorted latencies, slowdowns, a database's throughput and fsync
//! latency, two tenants' latencies, shares, shares over time, parts of the raw device, costs of calls, charges of containers.

pub mod bars;
pub mod canvas;
mod heat;
mod latency;
mod matrix;
pub mod scale;
mod stack;

use bars::{Band, Content, Panel, Row};
use canvas::{Card, Hue, Key};
pub use heat::heat_map;
pub use latency::latencies;
pub use matrix::matrices;
pub use stack::stacks;

use super::labels::{self, Config};
use super::text::{factor, number, percent};
use super::{Guide, figure as f, paper};
use crate::isolation::{DATABASE_PCT, limits};
use crate::result::{Cell, Experiment, Spread};

/// The suffix of a picture's name, and the function that builds its chart from an experiment with its figures.
pub type Kind = (&'static str, fn(&Experiment) -> Option<Chart>);

/// Pictures of a width, with the ends of their names.
pub type Plots = fn(&Experiment, f64) -> Vec<(String, String)>;

/// The probe's picture.
pub const SLOWDOWN: Kind = ("slowdown", slowdown);
/// The database's.
pub const DATABASE: Kind = ("database", database);
/// The shares of the disk.
pub const SHARES: Kind = ("shares", shares);

/// Width of pictures in documents.
pub const WIDE: f64 = 900.0;
/// Width of pictures on a phone.
pub const NARROW: f64 = 390.0;

/// All pictures: stem of the file's name, and the SVG.
#[must_use]
pub fn pictures(guide: &Guide, experiment: &Experiment) -> Vec<(String, String)> {
    pictures_at(guide, experiment, WIDE)
}

/// The same pictures for another width.
#[must_use]
pub fn pictures_at(guide: &Guide, experiment: &Experiment, width: f64) -> Vec<(String, String)> {
    let stem = |kind: &str| stem_of(&[&experiment.name, &experiment.disk.model, kind]);
    let charts =
        guide.charts.iter().filter_map(|(kind, chart)| Some((stem(kind), chart(experiment)?.svg(experiment, width))));
    let plots = guide.plots.iter().flat_map(|plots| plots(experiment, width)).map(|(kind, svg)| (stem(&kind), svg));
    charts.chain(plots).collect()
}

/// A file name of lower-case letters, digits and dashes.
#[must_use]
pub fn stem_of(parts: &[&str]) -> String {
    let safe = |part: &&str| -> String {
        let letters = part.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        letters.take(60).collect::<String>().trim_matches('-').to_owned()
    };
    let parts: Vec<String> = parts.iter().map(safe).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "picture".to_owned() } else { parts.join("-") }
}

/// Bands of bars under a title.
#[derive(Debug)]
pub struct Chart {
    /// Its title.
    pub title: String,
    /// How to read it.
    pub subtitle: String,
    /// The legend.
    pub legend: Vec<(Key, String)>,
    /// The bands, top to bottom.
    pub bands: Vec<Band>,
}

impl Chart {
    fn svg(&self, experiment: &Experiment, width: f64) -> String {
        let mut card = Card::new(width, &self.title, &self.subtitle);
        card.legend(&self.legend);
        let labels = self.bands.iter().map(Band::label_width).fold(0.0, f64::max);
        for band in &self.bands {
            bars::draw(&mut card, band, labels);
        }
        let bars = |row: &Row| matches!(row.content, Content::Bar(..));
        let whiskers = self.bands.iter().flat_map(|band| &band.panels).flat_map(|panel| &panel.rows).any(bars);
        let whiskers = if whiskers { " Whiskers: smallest and largest round." } else { "" };
        card.finish(&format!("{}{whiskers}", labels::source(experiment)))
    }
}

/// Whether a cell has all of these figures.
#[must_use]
pub fn has(cell: &Cell, names: &[&str]) -> bool {
    names.iter().all(|name| cell.figure(name).is_some())
}

/// One panel for each neighbour; rows are all configurations with a value in any of them.
pub fn panels(
    experiment: &Experiment,
    shown: impl Fn(&Cell) -> bool,
    content: impl Fn(&Cell) -> Content,
    published: impl Fn(&Cell) -> Option<f64>,
    target: impl Fn(&str) -> Option<(f64, String)>,
) -> Vec<Panel> {
    let cells = || experiment.cells.iter().filter(|cell| shown(cell));
    let ours = labels::ours([experiment]);
    let configs = labels::configs(cells());
    let panel = |neighbour: &str| {
        let row = |config: &Config<'_>| {
            let cell = cells().find(|cell| Config::from_cell(cell) == *config && cell.neighbour == neighbour);
            Row {
                label: config.label(),
                ours: ours == Some(*config),
                content: cell.map_or(Content::Absent, &content),
                paper: cell.and_then(&published),
            }
        };
        Panel {
            heading: labels::neighbour_heading(neighbour),
            rows: configs.iter().map(row).collect(),
            target: target(neighbour),
        }
    };
    labels::neighbours(cells()).into_iter().map(panel).collect()
}

/// A value as a bar in the colour of its layout.
#[must_use]
pub fn bar(cell: &Cell, value: Option<Spread>) -> Content {
    value.map_or(Content::Absent, |spread| Content::Bar(Hue::of_layout(&cell.layout), spread))
}

/// Layouts in a legend.
#[must_use]
pub fn hues(experiment: &Experiment, paper: bool) -> Vec<(Key, String)> {
    let mut entries: Vec<(Key, String)> = Vec::new();
    let mut seen: Vec<Hue> = Vec::new();
    let ours = labels::ours([experiment]);
    for config in labels::configs(&experiment.cells) {
        let hue = Hue::of_layout(config.layout);
        let words = match hue {
            Hue::Vermillion => "one file system for all",
            Hue::Amber => "a journal each",
            Hue::Blue => "a journal each, charged to its tenant",
            Hue::Green => "Bulkhead's block server",
            Hue::Purple if config.layout == "own+accounting+hold" => "the same, and shares held",
            Hue::Grey if config.layout == "own+accounting-cpu" => "charged, without the cpu controller",
            Hue::Purple | Hue::Grey => config.layout,
        };
        let bold = if ours.is_some_and(|ours| ours.layout == config.layout) { " (bold: Bulkhead)" } else { "" };
        if !seen.contains(&hue) {
            seen.push(hue);
            entries.push((Key::Box(hue), format!("{words}{bold}")));
        }
    }
    if paper {
        entries.push((Key::Hollow, "Mardan & Kono 2021, on a real disk".to_owned()));
    }
    entries
}

fn slowdown(experiment: &Experiment) -> Option<Chart> {
    let ratio = |cell: &Cell| cell.ratio(f::FSYNC_LOADED_MEAN_MS, f::FSYNC_IDLE_MEAN_MS).filter(|s| s.median > 0.0);
    let target = |neighbour: &str| {
        let bound = limits(neighbour)?.mean_on(experiment.disk.is_rotational());
        Some((bound, format!("target: at most {}", times(bound))))
    };
    let panels = panels(experiment, |cell| ratio(cell).is_some(), |cell| bar(cell, ratio(cell)), |_| None, target);
    let rows = || panels.iter().flat_map(|panel| &panel.rows);
    let largest = rows().filter_map(|row| match &row.content {
        Content::Bar(_, spread) => Some(spread.max),
        Content::Stack(_) | Content::Absent => None,
    });
    let log = largest.fold(0.0, f64::max) > 8.0;
    (!panels.is_empty()).then(|| Chart {
        title: "How much longer an fsync takes beside a busy neighbour".into(),
        subtitle: format!(
            "A 4 KiB append + fsync every 100 ms. 1× is as fast as alone; shorter bars are better{}.",
            if log { "; logarithmic" } else { "" }
        ),
        legend: hues(experiment, false),
        bands: vec![Band {
            axis: "mean latency, loaded / alone".into(),
            log_from: log.then_some(1.0),
            until: None,
            write: times,
            tick: times,
            headed: true,
            panels,
        }],
    })
}

/// `1.6×`.
#[must_use]
pub fn times(value: f64) -> String {
    factor(value).replace('x', "×")
}

fn database(experiment: &Experiment) -> Option<Chart> {
    let ours = labels::ours([experiment]).map(labels::unheld);
    // The target next to a neighbour, relative to the database alone.
    let goal = |neighbour: &str| {
        let alone = experiment.cell(ours?.layout, ours?.controller, "none")?.figure(f::INSERTS_PER_S)?;
        (neighbour != "none").then(|| (DATABASE_PCT / 100.0 * alone.median, format!("{DATABASE_PCT} % of alone")))
    };
    let band = |axis: &str, name: &'static str, published: fn(&Cell) -> Option<f64>, goals: bool| {
        let goal = |neighbour: &str| goal(neighbour).filter(|_| goals);
        let panels =
            panels(experiment, |cell| has(cell, &[name]), |cell| bar(cell, cell.figure(name)), published, goal);
        (!panels.is_empty()).then(|| Band {
            axis: axis.to_owned(),
            log_from: None,
            until: None,
            write: number,
            tick: number,
            headed: goals,
            panels,
        })
    };
    let throughput = band("inserts per second, more is better", f::INSERTS_PER_S, |_| None, true);
    let fsync_ms: fn(&Cell) -> Option<f64> = |cell| paper::dbms_fsync_ms(&cell.layout, &cell.neighbour);
    let latency = band("fsync mean in ms, less is better", f::FSYNC_MEAN_MS, fsync_ms, false);
    let mut bands: Vec<Band> = [throughput, latency].into_iter().flatten().collect();
    if let Some(first) = bands.first_mut() {
        first.headed = true;
    }
    (!bands.is_empty()).then(|| Chart {
        title: "A database beside a neighbour on the same disk".into(),
        subtitle: "The database holds a share of 70 %, the neighbour one of 30 %.".into(),
        legend: hues(experiment, true),
        bands,
    })
}

fn shares(experiment: &Experiment) -> Option<Chart> {
    let stack = |cell: &Cell| {
        let share = |name: &str| cell.figure(name).map_or(0.0, |share| share.median.clamp(0.0, 100.0));
        let (a, b) = (share(f::SHARE_A_PCT), share(f::SHARE_B_PCT));
        let b = b.min(100.0 - a);
        Content::Stack(vec![(Hue::Blue, a), (Hue::Amber, b), (Hue::Grey, 100.0 - a - b)])
    };
    let target = |_: &str| Some((70.0, "promised: 70 %".to_owned()));
    let panels = panels(experiment, |cell| has(cell, &[f::SHARE_A_PCT]), stack, |_| None, target);
    let legend = [(Hue::Blue, "tenant A"), (Hue::Amber, "tenant B, its neighbour"), (Hue::Grey, "charged to neither")];
    (!panels.is_empty()).then(|| Chart {
        title: "Who got the disk".into(),
        subtitle: "Part of the device that each tenant got, journals included; shares of 70 and 30 were promised."
            .into(),
        legend: legend.map(|(hue, words)| (Key::Box(hue), words.to_owned())).into(),
        bands: vec![Band {
            axis: "percent of the device".into(),
            log_from: None,
            until: Some(100.0),
            write: percent,
            tick: number,
            headed: true,
            panels,
        }],
    })
}
