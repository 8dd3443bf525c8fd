//! Heat maps of `nested-matrix`: a panel for each workload, guests in rows, hosts in columns.

use super::canvas::{Anchor, Card, HEADING, Hue, INSIDE, Key, MARGIN, ON_AMBER, TICK};
use crate::nest::summary;
use crate::nest::{MATRIX, Server};
use crate::report::labels;
use crate::result::Experiment;

/// Height of a row, and width of the names of guests, in pixels.
const ROW: f64 = 22.0;
const NAMES: f64 = 58.0;

/// From which percentage of the device each colour applies.
const COLOURS: [(f64, Hue, &str); 5] = [
    (120.0, Hue::Blue, "120 % and more"),
    (95.0, Hue::Green, "95 to 120 %"),
    (80.0, Hue::Grey, "80 to 95 %"),
    (50.0, Hue::Amber, "50 to 80 %"),
    (0.0, Hue::Vermillion, "below 50 %"),
];

/// The heat maps, in one picture; none for other experiments.
pub fn matrices(experiment: &Experiment, width: f64) -> Vec<(String, String)> {
    let workloads: Vec<&str> = summary::workloads(experiment)
        .into_iter()
        .filter(|workload| !summary::pairs(experiment, workload).is_empty())
        .collect();
    if workloads.is_empty() {
        return Vec::new();
    }
    let n_columns = if width < super::WIDE { 1 } else { 2 };
    let panel = (width - 2.0 * MARGIN - 24.0 * (n_columns - 1) as f64) / n_columns as f64;
    let mut card = Card::new(
        width,
        "A file system in an image, against the same one on the device",
        "Throughput in percent. Rows: the file system in the image. Columns: the file system that the image is in.",
    );
    card.legend(&COLOURS.map(|(_, hue, words)| (Key::Box(hue), words.to_owned())));
    for row in workloads.chunks(n_columns) {
        let top = card.y + 14.0;
        for (idx, workload) in row.iter().enumerate() {
            draw(&mut card, experiment, workload, [MARGIN + idx as f64 * (panel + 24.0), top, panel]);
        }
        card.y = top + 44.0 + ROW * MATRIX.len() as f64;
    }
    vec![("matrix".to_owned(), card.finish(&labels::source(experiment)))]
}

/// A workload's heat map at `[x, y, width]`.
fn draw(card: &mut Card, experiment: &Experiment, workload: &str, [x, y, width]: [f64; 3]) {
    card.text(x, y + 10.0, Anchor::Start, HEADING, workload);
    let column = (width - NAMES) / MATRIX.len() as f64;
    for (n, host) in MATRIX.iter().enumerate() {
        card.text(x + NAMES + column * (n as f64 + 0.5), y + 30.0, Anchor::Middle, TICK, host);
    }
    for (m, guest) in MATRIX.iter().enumerate() {
        let top = y + 36.0 + ROW * m as f64;
        card.text(x, top + 15.0, Anchor::Start, TICK, guest);
        for (n, host) in MATRIX.iter().enumerate() {
            let left = x + NAMES + column * n as f64;
            let at = [left + 1.0, top + 1.0, column - 2.0, ROW - 2.0];
            let Some(pct) = summary::relative(experiment, guest, host, Server::Loop, workload) else {
                card.rect(at, "hollow");
                continue;
            };
            let hue =
                COLOURS.iter().find(|(from, ..)| pct.round() >= *from).map_or(Hue::Vermillion, |(_, hue, _)| *hue);
            card.rect(at, &hue.fill());
            let font = if matches!(hue, Hue::Amber | Hue::Grey) { ON_AMBER } else { INSIDE };
            card.text(left + column / 2.0, top + 15.0, Anchor::Middle, font, &format!("{pct:.0}"));
        }
    }
}
