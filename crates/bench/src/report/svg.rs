//! Pictures of an experiment as self-contained SVG: no scripts, no fonts from elsewhere, light and dark.
//!
//! Which pictures there are follows from the figures: sorted latencies, slowdowns, a database's throughput and fsync
//! latency, two tenants' latencies, shares, shares over time, parts of the raw device, costs of calls, charges of containers.

mod bars;
mod canvas;
mod course;
mod heat;
mod latency;
mod scale;

use bars::{Band, Content, Panel, Row};
use canvas::{Card, Hue, Key};
pub use heat::heat_map;

use super::figure as f;
use super::text::{factor, number, percent, percent_exact, rate, spoken_ms};
use super::words::{self, Config};
use super::{grid, paper};
use crate::experiment::attribution::{CONTAINERS, PLAYERS, cell_of_all};
use crate::experiment::disk_models::published::{self, name_of};
use crate::judge;
use crate::result::{Cell, Experiment, Spread};

/// Width of pictures in documents.
const WIDE: f64 = 900.0;
/// Width of pictures on a phone.
pub(crate) const NARROW: f64 = 390.0;

/// All pictures: stem of the file's name, and the SVG.
#[must_use]
pub fn pictures(experiment: &Experiment) -> Vec<(String, String)> {
    pictures_at(experiment, WIDE)
}

/// All pictures of an evidence as files: the first, which shows the result, is called `name`.
#[must_use]
pub fn files(name: &str, experiments: &[Experiment]) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = experiments.iter().flat_map(pictures).collect();
    if let Some((stem, _)) = files.first_mut() {
        *stem = stem_of(&[name]);
    }
    let mut taken: Vec<String> = Vec::new();
    for (stem, _) in &mut files {
        let mut n = 1;
        let wanted = stem.clone();
        while taken.contains(stem) {
            n += 1;
            *stem = format!("{wanted}-{n}");
        }
        taken.push(stem.clone());
    }
    files
}

/// The same pictures for another width.
pub(crate) fn pictures_at(experiment: &Experiment, width: f64) -> Vec<(String, String)> {
    let stem = |kind: &str| stem_of(&[&experiment.name, &experiment.disk.model, kind]);
    let mut pictures = Vec::new();
    let charts: [(&str, Option<Chart>); 12] = [
        ("slowdown", slowdown(experiment)),
        ("database", database(experiment)),
        ("latencies", pair(experiment)),
        ("volumes", volumes(experiment)),
        ("shares", shares(experiment)),
        ("costs", costs(experiment)),
        ("charges", charges(experiment)),
        ("footprint", footprint(experiment)),
        ("held", held(experiment)),
        ("clones", clone_reads(experiment)),
        ("launches", launches(experiment)),
        ("published", disk_models(experiment)),
    ];
    for (kind, chart) in charts {
        if let Some(chart) = chart {
            pictures.push((stem(kind), chart.svg(experiment, width)));
        }
    }
    for neighbour in latency::neighbours(experiment) {
        if let Some(svg) = latency::picture(experiment, neighbour, width) {
            pictures.push((stem(&format!("latency-{neighbour}")), svg));
        }
    }
    for controller in course::controllers(experiment) {
        let pictures_of = [
            ("course", course::over_time(experiment, controller, width)),
            ("distribution", course::distribution(experiment, controller, width)),
        ];
        for (kind, svg) in pictures_of {
            pictures.push((stem(&format!("{kind}-{controller}")), svg));
        }
    }
    pictures
}

/// A file name of lower-case letters, digits and dashes.
fn stem_of(parts: &[&str]) -> String {
    let safe = |part: &&str| -> String {
        let letters = part.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        letters.take(60).collect::<String>().trim_matches('-').to_owned()
    };
    let parts: Vec<String> = parts.iter().map(safe).filter(|part| !part.is_empty()).collect();
    if parts.is_empty() { "picture".to_owned() } else { parts.join("-") }
}

/// Bands of bars under a title.
struct Chart {
    title: String,
    subtitle: String,
    legend: Vec<(Key, String)>,
    bands: Vec<Band>,
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
        card.finish(&format!("{}{whiskers}", words::source(experiment)))
    }
}

fn has(cell: &Cell, names: &[&str]) -> bool {
    names.iter().all(|name| cell.figure(name).is_some())
}

/// One panel for each neighbour; rows are all configurations that have anything to show in one of them.
fn panels(
    experiment: &Experiment,
    shown: impl Fn(&Cell) -> bool,
    content: impl Fn(&Cell) -> Content,
    published: impl Fn(&Cell) -> Option<f64>,
    target: impl Fn(&str) -> Option<(f64, String)>,
) -> Vec<Panel> {
    let cells = || experiment.cells.iter().filter(|cell| shown(cell));
    let ours = words::ours([experiment]);
    let configs = words::configs(cells());
    let panel = |neighbour: &str| {
        let row = |config: &Config<'_>| {
            let cell = cells().find(|cell| Config::of(cell) == *config && cell.neighbour == neighbour);
            Row {
                label: config.label(),
                ours: ours == Some(*config),
                content: cell.map_or(Content::Absent, &content),
                paper: cell.and_then(&published),
            }
        };
        Panel {
            heading: words::neighbour_heading(neighbour),
            rows: configs.iter().map(row).collect(),
            target: target(neighbour),
        }
    };
    words::neighbours(cells()).into_iter().map(panel).collect()
}

fn bar(cell: &Cell, value: Option<Spread>) -> Content {
    value.map_or(Content::Absent, |spread| Content::Bar(Hue::of_layout(&cell.layout), spread))
}

/// Layouts in a legend.
fn hues(experiment: &Experiment, paper: bool) -> Vec<(Key, String)> {
    let mut entries: Vec<(Key, String)> = Vec::new();
    let mut seen: Vec<Hue> = Vec::new();
    let ours = words::ours([experiment]);
    for config in words::configs(&experiment.cells) {
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
        let [bound, ..] = judge::probe_bounds(neighbour, experiment.disk.is_rotational())?;
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

fn times(value: f64) -> String {
    factor(value).replace('x', "×")
}

fn database(experiment: &Experiment) -> Option<Chart> {
    let ours = words::ours([experiment]).map(words::unheld);
    // What is asked for beside a neighbour, from what the database does alone.
    let goal = |neighbour: &str| {
        let alone = experiment.cell(ours?.layout, ours?.controller, "none")?.figure(f::INSERTS_PER_S)?;
        let part = judge::dbms_bound_pct().filter(|_| neighbour != "none")?;
        Some((part / 100.0 * alone.median, format!("{part} % of alone")))
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

fn pair(experiment: &Experiment) -> Option<Chart> {
    let cells: Vec<&Cell> =
        experiment.cells.iter().filter(|cell| has(cell, &[f::FSYNC_A_MEAN_MS, f::FSYNC_B_MEAN_MS])).collect();
    let ours = words::ours([experiment]);
    let rows = |idx: usize| {
        let name = [f::FSYNC_A_MEAN_MS, f::FSYNC_B_MEAN_MS][idx];
        let row = |config: Config<'_>| {
            let cell = cells.iter().find(|cell| Config::of(cell) == config);
            let paper = paper::pair_fsync_ms(config.layout).map(|(a, b)| if idx == 0 { a } else { b });
            Row {
                label: config.label(),
                ours: ours == Some(config),
                content: cell.map_or(Content::Absent, |cell| bar(cell, cell.figure(name))),
                paper,
            }
        };
        words::configs(cells.iter().copied()).into_iter().map(row).collect::<Vec<_>>()
    };
    let panel = |idx: usize, heading: &str| Panel { heading: heading.into(), rows: rows(idx), target: None };
    (!cells.is_empty()).then(|| Chart {
        title: "Two tenants that both call fsync often, shares of 70 and 30".into(),
        subtitle: "Shares that hold make the second one wait 2.33 times as long as the first.".into(),
        legend: hues(experiment, true),
        bands: vec![Band {
            axis: "mean fsync latency, ms".into(),
            log_from: None,
            until: None,
            write: spoken_ms,
            tick: number,
            headed: true,
            panels: vec![panel(0, "Tenant A, 70 %"), panel(1, "Tenant B, 30 %")],
        }],
    })
}

fn volumes(experiment: &Experiment) -> Option<Chart> {
    grid::raw_cell(experiment)?;
    let ours = words::ours([experiment]);
    let cells = || {
        experiment.cells.iter().filter(|cell| has(cell, &[f::RANDOM_IOPS]) || has(cell, &[f::SEQUENTIAL_BYTES_PER_S]))
    };
    let panel = |heading: &str, name: &str, write: fn(f64) -> String| {
        let row = |config: Config<'_>| {
            let cell = cells().find(|cell| Config::of(cell) == config);
            let absolute =
                cell.and_then(|cell| cell.figure(name)).map_or_else(String::new, |s| format!(": {}", write(s.median)));
            Row {
                label: format!("{}{absolute}", config.label()),
                ours: ours == Some(config),
                content: cell.map_or(Content::Absent, |cell| bar(cell, grid::pct_of_raw(experiment, cell, name))),
                paper: None,
            }
        };
        let rows = words::configs(cells()).into_iter().map(row).collect();
        Panel { heading: heading.into(), rows, target: None }
    };
    let iops = |value: f64| format!("{}/s", number(value));
    let band = |panel: Panel| Band {
        axis: "percent of the raw device".into(),
        log_from: None,
        until: None,
        write: percent,
        tick: number,
        headed: true,
        panels: vec![panel],
    };
    (cells().next().is_some()).then(|| Chart {
        title: "What a kind of volume costs".into(),
        subtitle: "Each against the raw device below it; more is better.".into(),
        legend: Vec::new(),
        bands: vec![
            band(panel("4 KiB random writes, each with an fsync", f::RANDOM_IOPS, iops)),
            band(panel("The same from 32 threads at once", f::DEEP_IOPS, iops)),
            band(panel("128 KiB sequential writes", f::SEQUENTIAL_BYTES_PER_S, rate)),
        ],
    })
}

fn costs(experiment: &Experiment) -> Option<Chart> {
    let panel = |features: &str| {
        let cells = experiment.cells.iter().filter(|cell| cell.neighbour == features);
        let row = |cell: &Cell| {
            let cost = grid::call_cost(cell)?;
            let bytes = cell.figure(f::JOURNAL_BYTES)?;
            let kib = Spread { min: bytes.min / 1024.0, median: bytes.median / 1024.0, max: bytes.max / 1024.0 };
            Some(Row {
                label: cell.layout.clone(),
                ours: false,
                content: Content::Bar(Hue::Blue, kib),
                paper: cost.paper.map(|paper| paper.mean_kib),
            })
        };
        Panel { heading: words::neighbour_heading(features), rows: cells.filter_map(row).collect(), target: None }
    };
    let features = words::neighbours(experiment.cells.iter().filter(|cell| grid::call_cost(cell).is_some()));
    (!features.is_empty()).then(|| Chart {
        title: "What a system call costs in journal bytes".into(),
        subtitle: "1000 calls and the commit after them (append+fsync: a commit each); logarithmic.".into(),
        legend: vec![(Key::Box(Hue::Blue), "measured".into()), (Key::Hollow, "Tobimatsu et al., Table 1".into())],
        bands: vec![Band {
            axis: "KiB for 1000 calls".into(),
            log_from: Some(100.0),
            until: None,
            write: number,
            tick: number,
            headed: true,
            panels: features.into_iter().map(panel).collect(),
        }],
    })
}

fn charges(experiment: &Experiment) -> Option<Chart> {
    let all = cell_of_all(experiment.cells.iter())?;
    let rows = PLAYERS.iter().flat_map(|player| {
        [("charged", "charged", Hue::Blue), ("shapley", "fair", Hue::Grey)].map(|(figure, words, hue)| Row {
            label: format!("{player}: {words}"),
            ours: false,
            content: all
                .figure(&format!("{player}_{figure}_pct"))
                .map_or(Content::Absent, |spread| Content::Bar(hue, spread)),
            paper: None,
        })
    });
    let panel = Panel { heading: words::neighbour_heading(CONTAINERS), rows: rows.collect(), target: None };
    Some(Chart {
        title: "Who is charged for the journal that all share".into(),
        subtitle: "Fair is the Shapley value: the mean additional cost over all orders in which they could have come."
            .into(),
        legend: vec![(Key::Box(Hue::Blue), "charged".into()), (Key::Box(Hue::Grey), "fair".into())],
        bands: vec![Band {
            axis: "percent of the journal's bytes".into(),
            log_from: None,
            until: None,
            write: percent_exact,
            tick: number,
            headed: true,
            panels: vec![panel],
        }],
    })
}

fn footprint(experiment: &Experiment) -> Option<Chart> {
    let cell = experiment.cells.iter().find(|cell| has(cell, &[f::RSS_MIB, f::TABLE_ENTRIES]))?;
    let band = |figure: &str, axis: &str| {
        let rows = cell.rounds.iter().enumerate().map(|(index, round)| Row {
            label: format!("third {} of the run", index + 1),
            ours: false,
            content: round.figures.get(figure).map_or(Content::Absent, |&value| {
                Content::Bar(Hue::Blue, Spread { min: value, median: value, max: value })
            }),
            paper: None,
        });
        Band {
            axis: axis.into(),
            log_from: None,
            until: None,
            write: number,
            tick: number,
            headed: false,
            panels: vec![Panel { heading: String::new(), rows: rows.collect(), target: None }],
        }
    };
    Some(Chart {
        title: "What observing takes while containers come and go".into(),
        subtitle:
            "At the end of each third of one run: from the second to the last, memory may grow by 5 %, entries by half."
                .into(),
        legend: Vec::new(),
        bands: vec![
            band(f::RSS_MIB, "memory of the observing process in MiB"),
            band(f::TABLE_ENTRIES, "entries in the programs' tables"),
        ],
    })
}

fn held(experiment: &Experiment) -> Option<Chart> {
    let target = |neighbour: &str| {
        let cells = experiment.cells.iter().filter(|cell| cell.neighbour == neighbour);
        let promised =
            cells.filter_map(|cell| cell.figure(f::PROMISED_SHARE_A_PCT)).map(|share| share.median).next()?;
        Some((promised, format!("promised: {}", percent_exact(promised))))
    };
    let content = |cell: &Cell| bar(cell, cell.figure(f::HELD_SHARE_A_PCT));
    let panels = panels(experiment, |cell| has(cell, &[f::HELD_SHARE_A_PCT]), content, |_| None, target);
    (!panels.is_empty()).then(|| Chart {
        title: "What a tenant that journals has of the disk".into(),
        subtitle: "Its journal included, in the mean; the closer to what was promised, the better.".into(),
        legend: Vec::new(),
        bands: vec![Band {
            axis: "percent of the disk".into(),
            log_from: None,
            until: None,
            write: percent_exact,
            tick: number,
            headed: true,
            panels,
        }],
    })
}

fn clone_reads(experiment: &Experiment) -> Option<Chart> {
    let is_spinning = experiment.disk.model.starts_with("hdd");
    let gain = |cell: &Cell| cell.ratio(f::SECOND_CLONE_BYTES_PER_S, f::FIRST_CLONE_BYTES_PER_S);
    let part = |cell: &Cell| grid::ratio_pct(cell, f::SECOND_CLONE_BYTES_PER_S, f::CACHE_HIT_BYTES_PER_S);
    let published = |cell: &Cell| paper::clone_gain(&cell.layout, is_spinning);
    let has_gain = |cell: &Cell| gain(cell).is_some();
    let band = |axis: &str, log_from, write: fn(f64) -> String, panels| Band {
        axis: axis.into(),
        log_from,
        until: None,
        write,
        tick: write,
        headed: false,
        panels,
    };
    let gains = panels(experiment, has_gain, |cell| bar(cell, gain(cell)), published, |_| None);
    let parts = panels(experiment, has_gain, |cell| bar(cell, part(cell)), |_| None, |_| None);
    (!gains.is_empty()).then(|| Chart {
        title: "The second clone's first read of a large file".into(),
        subtitle: "Its siblings have read it before; more is better.".into(),
        legend: vec![(Key::Hollow, "Zhao et al. 2016, on a real disk".into())],
        bands: vec![
            band("over the first clone's read, from the disk; logarithmic", Some(0.5), times, gains),
            band("percent of a hit in the clone's own cache", None, percent, parts),
        ],
    })
}

fn launches(experiment: &Experiment) -> Option<Chart> {
    let band = |axis: &str, name: &'static str, unit: f64, headed| {
        let scaled = move |cell: &Cell| {
            let Spread { min, median, max } = cell.figure(name)?;
            Some(Spread { min: min / unit, median: median / unit, max: max / unit })
        };
        let content = move |cell: &Cell| bar(cell, scaled(cell));
        Band {
            axis: axis.into(),
            log_from: None,
            until: None,
            write: number,
            tick: number,
            headed,
            panels: panels(experiment, |cell| has(cell, &[name]), content, |_| None, |_| None),
        }
    };
    experiment.cells.iter().any(|cell| has(cell, &[f::READY_SECONDS])).then(|| Chart {
        title: "Ten clones of one image start a service at once".into(),
        subtitle: "Until the last one is ready, and what was read from the disk for it; less is better.".into(),
        legend: Vec::new(),
        bands: vec![
            band("seconds until all are ready", f::READY_SECONDS, 1.0, true),
            band("MiB read from the disk", f::LAUNCH_DISK_BYTES, 1_048_576.0, false),
        ],
    })
}

fn disk_models(experiment: &Experiment) -> Option<Chart> {
    let panel = |operation: &str| {
        let cells = experiment.cells.iter().filter(|cell| cell.layout == operation);
        let unit = if name_of(operation) == f::BYTES_PER_S { 1e6 } else { 1.0 };
        let row = |cell: &Cell| {
            let Spread { min, median, max } = cell.figure(name_of(operation))?;
            let content = Content::Bar(Hue::Blue, Spread { min: min / unit, median: median / unit, max: max / unit });
            let figure = published::of(experiment, cell);
            let paper = figure.map(|(drive, figure)| f64::midpoint(figure.low, figure.high) / drive.slowdown / unit);
            Some(Row { label: words::neighbour_heading(&cell.neighbour), ours: false, content, paper })
        };
        let heading = Config { layout: operation, controller: "" }.label();
        Panel { heading, rows: cells.filter_map(row).collect(), target: None }
    };
    let band = |axis: &str, operations: &[&str]| {
        let panels: Vec<Panel> = operations.iter().map(|operation| panel(operation)).collect();
        // Names of rows stand at the first panel only.
        let same = panels
            .iter()
            .all(|panel| panel.rows.iter().map(|row| &row.label).eq(panels[0].rows.iter().map(|row| &row.label)));
        let apart = if same { vec![panels] } else { panels.into_iter().map(|panel| vec![panel]).collect() };
        let apart = apart.into_iter().filter(|panels| panels.iter().any(|panel| !panel.rows.is_empty()));
        let band = |panels| Band {
            axis: axis.to_owned(),
            log_from: None,
            until: None,
            write: number,
            tick: number,
            headed: true,
            panels,
        };
        apart.map(band).collect::<Vec<_>>()
    };
    let bands = [
        band("operations per second", &[published::RANDOM_READ, published::RANDOM_WRITE]),
        band("MB per second", &[published::SEQUENTIAL_READ, published::SEQUENTIAL_WRITE]),
        band("operations per second", &[published::SMALL_SEQUENTIAL_READ, published::SMALL_SEQUENTIAL_WRITE]),
        band("operations per second", &[published::RANDOM_FLUSH, published::SEQUENTIAL_FLUSH]),
        band("operations per second", &[published::OUTER_FLUSH]),
    ];
    let bands: Vec<Band> = bands.into_iter().flatten().collect();
    let slowdown = published::drive(&experiment.disk.model).map_or(1.0, |drive| drive.slowdown);
    (!bands.is_empty()).then(|| Chart {
        title: "A disk of the lab beside the drive that it is a model of".into(),
        subtitle: "fio on the whole device. Where two figures are published, their middle is shown.".into(),
        legend: vec![
            (Key::Box(Hue::Blue), "measured".into()),
            (Key::Hollow, format!("published or derived, divided by {slowdown}")),
        ],
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
