//! Shares of a disk over time, and their distribution, as in Tobimatsu et al.: a line for each method of enforcement.

use bulkhead_measure::report::labels::{self, Config};
use bulkhead_measure::report::svg::canvas::{Anchor, Card, Hue, Key, MARGIN, SMALL, TICK, VALUE, text_width};
use bulkhead_measure::report::svg::scale::Scale;
use bulkhead_measure::report::text::{number, percent_exact};
use bulkhead_measure::result::{Cell, Experiment};

use crate::experiment::share_correction::{READS, WINDOW, windows};
use crate::figure as f;

const HEIGHT: f64 = 260.0;

/// The pictures for each controller, with the suffixes of their names.
pub(crate) fn pictures(experiment: &Experiment, width: f64) -> Vec<(String, String)> {
    let of = |controller: &str| {
        [
            (format!("course-{controller}"), over_time(experiment, controller, width)),
            (format!("distribution-{controller}"), distribution(experiment, controller, width)),
        ]
    };
    controllers(experiment).into_iter().flat_map(of).collect()
}

/// The methods of enforcement on a shared file system with a controller.
fn cells<'a>(experiment: &'a Experiment, controller: &str) -> Vec<&'a Cell> {
    let of = |config: Config<'a>| experiment.cell(config.layout, config.controller, READS);
    let all = labels::configs(&experiment.cells).into_iter().filter(|config| config.controller == controller);
    let mut cells: Vec<&Cell> = all.filter_map(of).collect();
    cells
        .retain(|cell| cell.layout.starts_with("shared") && cell.rounds.iter().any(|round| !windows(round).is_empty()));
    cells
}

/// The controllers with pictures.
fn controllers(experiment: &Experiment) -> Vec<&str> {
    let mut all: Vec<&str> = labels::configs(&experiment.cells).into_iter().map(|config| config.controller).collect();
    all.sort_unstable();
    all.dedup();
    all.retain(|controller| !cells(experiment, controller).is_empty());
    all
}

/// The plot area of a picture.
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// A card with title and legend, and room for lines below.
fn begin(title: &str, subtitle: &str, cells: &[&Cell], width: f64) -> (Card, Area) {
    let mut card = Card::new(width, title, subtitle);
    let entry = |cell: &&Cell| {
        let mean = cell.figure(f::HELD_SHARE_A_PCT).map(|share| percent_exact(share.median)).unwrap_or_default();
        let key = Key::Line { hue: Hue::of_layout(&cell.layout), dash: "", width: 2.0 };
        (key, format!("{}: {mean} in the mean", Config::from_cell(cell).label()))
    };
    card.legend(&cells.iter().map(entry).collect::<Vec<_>>());
    let top = card.y + 12.0;
    let area =
        Area { left: MARGIN + 20.0 + text_width("100", TICK), right: width - MARGIN - 8.0, top, bottom: top + HEIGHT };
    (card, area)
}

fn axes(card: &mut Card, area: &Area, x: &Scale, y: &Scale, labels: (&str, &str)) {
    for tick in y.ticks(8) {
        card.line([area.left, y.at(tick), area.right, y.at(tick)], "grid", 1.0, "");
        card.text(area.left - 7.0, y.at(tick) + 4.0, Anchor::End, TICK, &number(tick));
    }
    for tick in x.ticks(10) {
        card.line([x.at(tick), area.top, x.at(tick), area.bottom], "grid", 1.0, "");
        card.text(x.at(tick), area.bottom + 17.0, Anchor::Middle, TICK, &number(tick));
    }
    card.line([area.left, area.bottom, area.right, area.bottom], "axis", 1.0, "");
    card.text((area.left + area.right) / 2.0, area.bottom + 36.0, Anchor::Middle, SMALL, labels.0);
    card.upright(MARGIN + 8.0, (area.top + area.bottom) / 2.0, SMALL, labels.1);
}

fn finish(mut card: Card, area: &Area, experiment: &Experiment, remark: &str) -> String {
    card.y = area.bottom + 42.0;
    card.finish(&format!("{} {remark}", labels::source(experiment)))
}

/// A's share over the last 5 s, second by second.
fn over_time(experiment: &Experiment, controller: &str, width: f64) -> String {
    let cells = cells(experiment, controller);
    let title = format!("A tenant that journals, over time ({controller})");
    let (mut card, area) = begin(&title, "Its part of the disk in the last 5 s, journal included.", &cells, width);
    let longest = cells.iter().flat_map(|cell| &cell.rounds).flat_map(windows).map(|(second, _)| second).max();
    let x = Scale::exact(longest.unwrap_or(1) as f64, area.left, area.right);
    let y = Scale::exact(100.0, area.bottom, area.top);
    axes(&mut card, &area, &x, &y, ("seconds", "percent of the disk"));
    for cell in &cells {
        for (index, round) in cell.rounds.iter().enumerate() {
            let points: Vec<(f64, f64)> =
                windows(round).into_iter().map(|(second, share)| (x.at(second as f64), y.at(share))).collect();
            let line = if index == 0 { 2.0 } else { 0.8 };
            card.path(&points, &Hue::of_layout(&cell.layout).stroke(), line, "");
        }
    }
    promised(&mut card, &cells, |at| [area.left, y.at(at), area.right, y.at(at)]);
    finish(card, &area, experiment, "Thick: the first round; thin: the others.")
}

/// The cumulative distribution of A's share over 5 s.
fn distribution(experiment: &Experiment, controller: &str, width: f64) -> String {
    let cells = cells(experiment, controller);
    let title = format!("How often a tenant that journals had which share ({controller})");
    let subtitle = "Cumulative: the part of all windows of 5 s in which it had at most so much. Upright at what was promised is best.";
    let (mut card, area) = begin(&title, subtitle, &cells, width);
    let x = Scale::exact(100.0, area.left, area.right);
    let y = Scale::exact(100.0, area.bottom, area.top);
    axes(&mut card, &area, &x, &y, ("percent of the disk", "percent of all windows"));
    for cell in &cells {
        let settled = cell.rounds.iter().flat_map(|round| windows(round).into_iter().skip(2 * WINDOW));
        let mut shares: Vec<f64> = settled.map(|(_, share)| share).collect();
        shares.sort_by(f64::total_cmp);
        let n = shares.len() as f64;
        let points: Vec<(f64, f64)> = shares
            .iter()
            .enumerate()
            .map(|(index, share)| (x.at(*share), y.at(100.0 * (index + 1) as f64 / n)))
            .collect();
        card.path(&points, &Hue::of_layout(&cell.layout).stroke(), 2.0, "");
    }
    promised(&mut card, &cells, |at| [x.at(at), area.top, x.at(at), area.bottom]);
    finish(card, &area, experiment, "All rounds, from 10 s on.")
}

fn promised(card: &mut Card, cells: &[&Cell], place: impl Fn(f64) -> [f64; 4]) {
    let figure = |cell: &&&Cell| cell.figure(f::PROMISED_SHARE_A_PCT);
    if let Some(promised) = cells.iter().find_map(|cell| figure(&cell)) {
        let [x1, y1, x2, y2] = place(promised.median);
        card.line([x1, y1, x2, y2], "mark", 1.2, "2 3");
        card.text(
            x2 - 4.0,
            y1.min(y2) - 4.0,
            Anchor::End,
            VALUE,
            &format!("promised: {}", percent_exact(promised.median)),
        );
    }
}
