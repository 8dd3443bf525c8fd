//! Charts of the experiments that only the evidence has.

use bulkhead_measure::report::labels::{self, Config};
use bulkhead_measure::report::svg::bars::{Band, Content, Panel, Row};
use bulkhead_measure::report::svg::canvas::{Hue, Key};
use bulkhead_measure::report::svg::{Chart, bar, has, hues, panels, times};
use bulkhead_measure::report::text::{number, percent, percent_exact, rate, spoken_ms};
use bulkhead_measure::result::{Cell, Experiment, Spread};

use super::{grid, paper};
use crate::experiment::attribution::{CONTAINERS, PLAYERS, cell_of_all};
use crate::experiment::disk_models::published::{self, name_of};
use crate::figure as f;

pub(crate) fn pair(experiment: &Experiment) -> Option<Chart> {
    let cells: Vec<&Cell> =
        experiment.cells.iter().filter(|cell| has(cell, &[f::FSYNC_A_MEAN_MS, f::FSYNC_B_MEAN_MS])).collect();
    let ours = labels::ours([experiment]);
    let rows = |idx: usize| {
        let name = [f::FSYNC_A_MEAN_MS, f::FSYNC_B_MEAN_MS][idx];
        let row = |config: Config<'_>| {
            let cell = cells.iter().find(|cell| Config::from_cell(cell) == config);
            let paper = paper::pair_fsync_ms(config.layout).map(|(a, b)| if idx == 0 { a } else { b });
            Row {
                label: config.label(),
                ours: ours == Some(config),
                content: cell.map_or(Content::Absent, |cell| bar(cell, cell.figure(name))),
                paper,
            }
        };
        labels::configs(cells.iter().copied()).into_iter().map(row).collect::<Vec<_>>()
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

pub(crate) fn volumes(experiment: &Experiment) -> Option<Chart> {
    grid::raw_cell(experiment)?;
    let ours = labels::ours([experiment]);
    let cells = || {
        experiment.cells.iter().filter(|cell| has(cell, &[f::RANDOM_IOPS]) || has(cell, &[f::SEQUENTIAL_BYTES_PER_S]))
    };
    let panel = |heading: &str, name: &str, write: fn(f64) -> String| {
        let row = |config: Config<'_>| {
            let cell = cells().find(|cell| Config::from_cell(cell) == config);
            let absolute =
                cell.and_then(|cell| cell.figure(name)).map_or_else(String::new, |s| format!(": {}", write(s.median)));
            Row {
                label: format!("{}{absolute}", config.label()),
                ours: ours == Some(config),
                content: cell.map_or(Content::Absent, |cell| bar(cell, grid::pct_of_raw(experiment, cell, name))),
                paper: None,
            }
        };
        let rows = labels::configs(cells()).into_iter().map(row).collect();
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

pub(crate) fn costs(experiment: &Experiment) -> Option<Chart> {
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
        Panel { heading: labels::neighbour_heading(features), rows: cells.filter_map(row).collect(), target: None }
    };
    let features = labels::neighbours(experiment.cells.iter().filter(|cell| grid::call_cost(cell).is_some()));
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

pub(crate) fn charges(experiment: &Experiment) -> Option<Chart> {
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
    let panel = Panel { heading: labels::neighbour_heading(CONTAINERS), rows: rows.collect(), target: None };
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

pub(crate) fn footprint(experiment: &Experiment) -> Option<Chart> {
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

pub(crate) fn held(experiment: &Experiment) -> Option<Chart> {
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

pub(crate) fn clone_reads(experiment: &Experiment) -> Option<Chart> {
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
        subtitle: "Its peers have read it before; more is better.".into(),
        legend: vec![(Key::Hollow, "Zhao et al. 2016, on a real disk".into())],
        bands: vec![
            band("over the first clone's read, from the disk; logarithmic", Some(0.5), times, gains),
            band("percent of a hit in the clone's own cache", None, percent, parts),
        ],
    })
}

pub(crate) fn launches(experiment: &Experiment) -> Option<Chart> {
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

pub(crate) fn pods(experiment: &Experiment) -> Option<Chart> {
    let band = |axis: &str, name: &'static str, log_from, headed| Band {
        axis: axis.into(),
        log_from,
        until: None,
        write: number,
        tick: number,
        headed,
        panels: panels(experiment, |cell| has(cell, &[name]), |cell| bar(cell, cell.figure(name)), |_| None, |_| None),
    };
    experiment.cells.iter().any(|cell| has(cell, &[f::POD_FSYNC_P99_MS])).then(|| Chart {
        title: "A database's pod alone, and beside a noisy pod".into(),
        subtitle: "Shared: hostPath on one file system. Bulkhead: a volume for each.".into(),
        legend: Vec::new(),
        bands: vec![
            band("p99 of its fsyncs, ms, logarithmic; less is better", f::POD_FSYNC_P99_MS, Some(1.0), true),
            band("inserts per second; more is better", f::POD_INSERTS_PER_S, None, false),
        ],
    })
}

pub(crate) fn disk_models(experiment: &Experiment) -> Option<Chart> {
    let panel = |operation: &str| {
        let cells = experiment.cells.iter().filter(|cell| cell.layout == operation);
        let unit = if name_of(operation) == f::BYTES_PER_S { 1e6 } else { 1.0 };
        let row = |cell: &Cell| {
            let Spread { min, median, max } = cell.figure(name_of(operation))?;
            let content = Content::Bar(Hue::Blue, Spread { min: min / unit, median: median / unit, max: max / unit });
            let figure = published::figure_of(experiment, cell);
            let paper = figure.map(|(drive, figure)| f64::midpoint(figure.low, figure.high) / drive.slowdown / unit);
            Some(Row { label: labels::neighbour_heading(&cell.neighbour), ours: false, content, paper })
        };
        let heading = Config { layout: operation, controller: "" }.label();
        Panel { heading, rows: cells.filter_map(row).collect(), target: None }
    };
    let band = |axis: &str, operations: &[&str]| {
        let panels: Vec<Panel> = operations.iter().map(|operation| panel(operation)).collect();
        // Only the first panel has row labels.
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
