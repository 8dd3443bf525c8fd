//! The heat map of shared reads: a row for each source, a column for each reader, as in Zhao et al. The shade of a field shows how much was
//! read, its colour whether that took disk reads.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_api::wire::HeatRow;
use bulkhead_core::heat::HeatSource;
use bulkhead_core::units::Bytes;

use super::canvas::{Anchor, Card, HEADING, Hue, Key, LABEL, MARGIN, SMALL, TICK, fit, text_width};

/// Height of a row, in pixels.
const ROW: f64 = 26.0;

/// Minimum and maximum width of a column.
const COLUMN: [f64; 2] = [54.0, 120.0];

/// The content of a field.
#[derive(Clone, Copy, Debug, Default)]
struct Field {
    requests: u64,
    bytes: u64,
}

/// Draws the heat map. Without rows, it says that nothing was read.
#[must_use]
pub fn heat_map(rows: &[HeatRow]) -> String {
    let sum = |of: &dyn Fn(&HeatRow) -> u64| rows.iter().map(of).sum::<u64>();
    let (requests, saved) = (sum(&|row| row.requests), sum(&|row| row.disk_reads_saved));
    let percent = if requests == 0 { 0.0 } else { saved as f64 * 100.0 / requests as f64 };
    let title = if requests == 0 {
        "Nothing that is shared was read".to_owned()
    } else {
        format!("{percent:.0} % of the reads of shared blocks needed no disk")
    };
    let mut fields: BTreeMap<(u8, &str, String), Field> = BTreeMap::new();
    for row in rows {
        let field = fields.entry((rank(row.source), &row.source_name, row.reader.to_string())).or_default();
        field.requests += row.requests;
        field.bytes += row.bytes.0;
    }
    let sources: BTreeSet<(u8, &str)> = fields.keys().map(|(rank, source, _)| (*rank, *source)).collect();
    let readers: BTreeSet<&str> = fields.keys().map(|(.., reader)| reader.as_str()).collect();
    let names = sources.iter().map(|source| text_width(&name(source), LABEL) + 12.0).fold(120.0, f64::max).min(320.0);
    let column = ((super::WIDE - 2.0 * MARGIN - names) / readers.len().max(1) as f64).clamp(COLUMN[0], COLUMN[1]);
    let width = (2.0 * MARGIN + names + column * readers.len() as f64).max(super::NARROW);
    let mut card = Card::new(width, &title, "Who read shared blocks from where: bytes / requests");
    card.legend(&[
        (Key::Box(Hue::Vermillion), "from the disk".to_owned()),
        (Key::Box(Hue::Blue), "from the host's page cache".to_owned()),
        (Key::Box(Hue::Green), "from a peer's page cache".to_owned()),
    ]);
    card.y += 8.0;
    let left = MARGIN + names;
    card.text(MARGIN, card.y + 12.0, Anchor::Start, HEADING, "source \u{2192} reader");
    for (n, reader) in readers.iter().enumerate() {
        let x = left + column * (n as f64 + 0.5);
        card.text(x, card.y + 12.0, Anchor::Middle, TICK, &fit(reader, TICK, column - 4.0));
    }
    card.y += 20.0;
    let most = fields.values().map(|field| field.bytes).max().unwrap_or(1).max(1);
    for source in &sources {
        card.text(MARGIN, card.y + 17.0, Anchor::Start, LABEL, &fit(&name(source), LABEL, names - 10.0));
        for (n, reader) in readers.iter().enumerate() {
            let x = left + column * n as f64;
            card.rect([x + 1.0, card.y + 1.0, column - 2.0, ROW - 2.0], "hollow");
            let Some(field) = fields.get(&(source.0, source.1, (*reader).to_owned())) else { continue };
            // A bar with the width of the value, because shades are hard to distinguish in print, and for some readers.
            let part = (field.bytes as f64 / most as f64).sqrt();
            card.rect([x + 1.0, card.y + ROW - 6.0, (column - 2.0) * part, 5.0], &hue(source.0).fill());
            let text = format!("{} / {}", Bytes(field.bytes), field.requests);
            card.text(x + column / 2.0, card.y + 14.0, Anchor::Middle, SMALL, &fit(&text, SMALL, column - 4.0));
        }
        card.y += ROW;
    }
    card.finish(&format!("{saved} of {requests} reads were served from memory. Counted since each volume was opened."))
}

fn rank(source: HeatSource) -> u8 {
    match source {
        HeatSource::Disk(_) => 0,
        HeatSource::Cache(_) => 1,
        HeatSource::Peer(_) => 2,
    }
}

fn hue(rank: u8) -> Hue {
    match rank {
        0 => Hue::Vermillion,
        1 => Hue::Blue,
        _ => Hue::Green,
    }
}

fn name((rank, source): &(u8, &str)) -> String {
    match rank {
        0 => format!("{source}, disk"),
        1 => format!("{source}, cache"),
        _ => format!("{source}, memory"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn each_source_has_a_row_and_each_reader_a_column() {
        let row = |reader: &str, source, source_name: &str, requests| HeatRow {
            reader: reader.parse().unwrap(),
            source,
            source_name: source_name.to_owned(),
            requests,
            bytes: Bytes(requests * 4096),
            disk_reads_saved: if source == HeatSource::Disk(Uuid::nil()) { 0 } else { requests },
        };
        let rows = [
            row("p/one", HeatSource::Disk(Uuid::nil()), "p/<base>", 10),
            row("p/two", HeatSource::Peer(Uuid::nil()), "p/one", 30),
        ];
        let svg = heat_map(&rows);
        for text in ["75 % of the reads", "p/&lt;base&gt;, disk", "p/one, memory", "p/two", "120 KiB / 30"] {
            assert!(svg.contains(text), "{text} in {svg}");
        }
        assert!(heat_map(&[]).contains("Nothing that is shared was read"));
    }
}
