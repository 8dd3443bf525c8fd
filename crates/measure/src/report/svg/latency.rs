//! The sorted latencies of the probe: one line for each configuration, both axes stretched so that the tail can be read.

use super::canvas::{Anchor, Card, Hue, Key, LABEL, MARGIN, SMALL, STRONG, TICK, text_width};
use super::scale::Scale;
use crate::report::figure as f;
use crate::report::labels::{self, Config};
use crate::report::text::{axis_ms, spoken_ms};
use crate::result::{Experiment, percentile, spread};

/// Maximum number of points of a line.
const POINTS: f64 = 200.0;

struct Curve<'a> {
    config: Config<'a>,
    sorted_ms: Vec<f64>,
}

/// The pictures for each neighbour, with the suffixes of their names.
#[must_use]
pub fn latencies(experiment: &Experiment, width: f64) -> Vec<(String, String)> {
    let of = |neighbour: &str| Some((format!("latency-{neighbour}"), picture(experiment, neighbour, width)?));
    neighbours(experiment).into_iter().filter_map(of).collect()
}

/// The picture for one neighbour; `None` without series.
fn picture(experiment: &Experiment, neighbour: &str, width: f64) -> Option<String> {
    let curves = curves(experiment, neighbour);
    let largest = curves.iter().map(|curve| curve.sorted_ms.len()).max()?;
    let ours = labels::ours([experiment]);
    let narrow = width < 600.0;
    let mut card = Card::new(
        width,
        &format!("fsync latency beside {}", labels::neighbour(neighbour)),
        "All fsyncs of the probe, from the fastest to the slowest. Lower is better; both axes are stretched towards the tail.",
    );
    let entries: Vec<(Key, String)> = curves
        .iter()
        .map(|curve| {
            let (dash, width) = stroke_style(curve.config, ours);
            let key = Key::Line { hue: Hue::of_layout(curve.config.layout), dash, width };
            let p99 = percentile(&curve.sorted_ms, 99.0).map(spoken_ms).unwrap_or_default();
            (key, format!("{}: p99 {p99}", curve.config.label()))
        })
        .collect();
    card.legend(&entries);

    let idle_ms = idle_ms(experiment, neighbour);
    let (top, height) = (card.y + 12.0, if narrow { 250.0 } else { 280.0 });
    let bottom = top + height;
    let all = curves.iter().flat_map(|curve| [curve.sorted_ms.first(), curve.sorted_ms.last()]).flatten().copied();
    let y = Scale::log(all.chain(idle_ms), bottom, top);
    let ticks = y.ticks(12);
    let label_width = ticks.iter().map(|tick| text_width(&axis_ms(*tick), TICK)).fold(0.0, f64::max);
    let left = MARGIN + 20.0 + label_width;
    let right = width - MARGIN - if narrow { 8.0 } else { 84.0 };

    for tick in ticks {
        card.line([left, y.at(tick), right, y.at(tick)], "grid", 1.0, "");
        card.text(left - 7.0, y.at(tick) + 4.0, Anchor::End, TICK, &axis_ms(tick));
    }
    card.upright(MARGIN + 8.0, (top + bottom) / 2.0, SMALL, "latency of one fsync");
    // Percentiles as HDR histograms draw them: each step to the right leaves a tenth of the fsyncs.
    let deepest = (largest as f64).log10().clamp(1.0, 5.0);
    let x = Scale::exact(deepest, left, right);
    let mut last = f64::NEG_INFINITY;
    for (percent, text) in
        [(0.0, "0 %"), (50.0, "50 %"), (90.0, "90 %"), (99.0, "99 %"), (99.9, "99.9 %"), (99.99, "99.99 %")]
    {
        let at = x.at(depth(percent / 100.0));
        let half = text_width(text, TICK) / 2.0;
        if depth(percent / 100.0) <= deepest + 1e-9 && at - half > last + 6.0 {
            card.line([at, top, at, bottom], "grid", 1.0, "");
            card.text(at, bottom + 17.0, Anchor::Middle, TICK, text);
            last = at + half;
        }
    }
    card.line([left, bottom, right, bottom], "axis", 1.0, "");
    card.text((left + right) / 2.0, bottom + 36.0, Anchor::Middle, SMALL, "this part of all fsyncs took no longer");
    if let Some(idle_ms) = idle_ms {
        let at = y.at(idle_ms);
        card.line([left, at, right, at], "mark", 1.2, "2 3");
        if narrow {
            card.text(right - 4.0, at + 14.0, Anchor::End, SMALL, &format!("alone: {}", spoken_ms(idle_ms)));
        } else {
            card.text(right + 7.0, at - 2.0, Anchor::Start, STRONG, "alone");
            card.text(right + 7.0, at + 13.0, Anchor::Start, LABEL, &spoken_ms(idle_ms));
        }
    }
    // Bulkhead's line last, so that it is on top.
    let mut order: Vec<&Curve<'_>> = curves.iter().collect();
    order.sort_by_key(|curve| Some(curve.config) == ours);
    for curve in order {
        let (dash, width) = stroke_style(curve.config, ours);
        let points = points(&curve.sorted_ms, &x, &y, right);
        card.path(&points, &Hue::of_layout(curve.config.layout).stroke(), width, dash);
    }
    card.y = bottom + 42.0;
    let n = curves.iter().map(|curve| curve.sorted_ms.len()).min().unwrap_or(0);
    let fsyncs = if n == largest { n.to_string() } else { format!("{n} to {largest}") };
    Some(card.finish(&format!(
        "{} {fsyncs} fsyncs in a line; p99 is that of all rounds together.",
        labels::source(experiment)
    )))
}

/// The neighbours with a picture.
fn neighbours(experiment: &Experiment) -> Vec<&str> {
    let mut all = labels::neighbours(&experiment.cells);
    all.retain(|neighbour| !curves(experiment, neighbour).is_empty());
    all
}

fn curves<'a>(experiment: &'a Experiment, neighbour: &str) -> Vec<Curve<'a>> {
    let cells = || experiment.cells.iter().filter(|cell| cell.neighbour == neighbour);
    let curve = |config: Config<'a>| {
        let rounds = cells().filter(|cell| Config::from_cell(cell) == config).flat_map(|cell| &cell.rounds);
        let series = rounds.filter_map(|round| round.series.get(f::FSYNC_LOADED_SERIES_MS)).flatten();
        let mut sorted_ms: Vec<f64> = series.copied().filter(|ms| ms.is_finite() && *ms > 0.0).collect();
        sorted_ms.sort_by(f64::total_cmp);
        Curve { config, sorted_ms }
    };
    labels::configs(cells()).into_iter().map(curve).filter(|curve| !curve.sorted_ms.is_empty()).collect()
}

/// The median latency of the probe alone.
fn idle_ms(experiment: &Experiment, neighbour: &str) -> Option<f64> {
    let cells = experiment.cells.iter().filter(|cell| cell.neighbour == neighbour);
    let rounds = cells.flat_map(|cell| &cell.rounds);
    let idle = spread(rounds.filter_map(|round| round.figures.get(f::FSYNC_IDLE_MEAN_MS).copied()))?.median;
    (idle > 0.0).then_some(idle)
}

/// Lines of one layout differ in their dashes; Bulkhead's is thick.
fn stroke_style(config: Config<'_>, ours: Option<Config<'_>>) -> (&'static str, f64) {
    let dash = match config.controller {
        "none" => "2 3",
        "bfq" => "8 4",
        _ => "",
    };
    (dash, if Some(config) == ours { 3.4 } else { 2.0 })
}

/// The horizontal position of a fraction of all fsyncs.
fn depth(part: f64) -> f64 {
    -(1.0 - part).log10()
}

fn points(sorted: &[f64], x: &Scale, y: &Scale, right: f64) -> Vec<(f64, f64)> {
    let n = sorted.len() as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut rank = 0.0;
    for ms in sorted {
        let at = x.at(depth(rank / n));
        let (far, level) = points
            .last()
            .map_or((true, true), |(x, y_before)| (at - x >= right / POINTS, (y.at(*ms) - y_before).abs() < 0.05));
        if points.is_empty() || far || !level && rank + 1.0 >= n {
            points.push((at, y.at(*ms)));
        }
        rank += 1.0;
    }
    // The slowest one is where the line ends.
    if let (Some(ms), Some((at, _))) = (sorted.last(), points.last().copied()) {
        let end = x.at(depth((n - 1.0) / n)).max(at);
        points.push((end, y.at(*ms)));
    }
    points
}
