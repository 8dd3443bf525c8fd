//! The storage stacks of a host: a row for each object, indented by its depth, with the findings on it.

use bulkhead_core::finding::Severity;
use bulkhead_core::stack::Row;

use super::canvas::{Anchor, Card, Hue, Key, LABEL, MARGIN, SMALL, STRONG, fit, text_width};

/// Height of an object and of a finding, in pixels.
const ROW: f64 = 24.0;
const FINDING: f64 = 18.0;
/// Space above a stack.
const GAP: f64 = 8.0;
/// Indentation of a level.
const INDENT: f64 = 22.0;

fn hue(severity: Severity) -> Hue {
    match severity {
        Severity::Critical => Hue::Vermillion,
        Severity::Warning => Hue::Amber,
        Severity::Info => Hue::Blue,
    }
}

/// Draws the stacks.
#[must_use]
pub fn stacks(rows: &[Row<'_>]) -> String {
    let findings: usize = rows.iter().map(|row| row.findings.len()).sum();
    let title = match findings {
        0 => "Nothing was found on the storage stacks of this host".to_owned(),
        1 => "1 finding on the storage stacks of this host".to_owned(),
        _ => format!("{findings} findings on the storage stacks of this host"),
    };
    let mut card = Card::new(super::WIDE, &title, "Each file system, and below it what it is on, down to the disks");
    card.legend(&[
        (Key::Box(Hue::Vermillion), "critical".to_owned()),
        (Key::Box(Hue::Amber), "warning".to_owned()),
        (Key::Box(Hue::Blue), "info".to_owned()),
    ]);
    card.y += 8.0;
    let right = card.width - MARGIN;
    // The height at which the last row of each depth stands.
    let mut parents: Vec<f64> = Vec::new();
    for row in rows {
        if row.depth == 0 {
            card.y += GAP;
        }
        let x = MARGIN + INDENT * row.depth as f64;
        let middle = card.y + ROW / 2.0;
        parents.truncate(row.depth);
        if let Some(parent) = parents.last() {
            let elbow = x - INDENT / 2.0;
            card.line([elbow, parent + 8.0, elbow, middle], "axis", 1.0, "");
            card.line([elbow, middle, x - 3.0, middle], "axis", 1.0, "");
        }
        parents.resize(row.depth + 1, middle);
        let name = fit(&row.name, STRONG, (right - x) * 0.6);
        card.text(x, middle + 4.0, Anchor::Start, STRONG, &name);
        let after = x + text_width(&name, STRONG) + 10.0;
        card.text(after, middle + 4.0, Anchor::Start, SMALL, &fit(&row.detail, SMALL, right - after));
        card.y += ROW;
        for finding in &row.findings {
            let text = format!("{}: {}", finding.id, finding.evidence);
            let x = x + INDENT;
            card.rect([x, card.y + 4.0, 10.0, 10.0], &hue(finding.severity).fill());
            card.text(x + 16.0, card.y + 13.0, Anchor::Start, LABEL, &fit(&text, LABEL, right - x - 16.0));
            card.y += FINDING;
        }
    }
    card.finish("Made by `bulkhead doctor`. `bulkhead doctor --explain` says why a finding matters.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::finding::{Finding, FindingId};

    #[test]
    fn a_picture_has_each_object_and_finding_and_hostile_names_are_escaped() {
        let finding = Finding::new(FindingId::JournalNested, "device loop0", "it is </text><script>");
        let row =
            |depth, name: &str, findings| Row { depth, name: name.to_owned(), detail: "ext4".to_owned(), findings };
        let svg = stacks(&[row(0, "/a&b", vec![]), row(1, "loop0", vec![&finding])]);
        assert!(svg.contains("/a&amp;b") && svg.contains("journal_nested") && svg.contains("1 finding on"), "{svg}");
        assert!(!svg.contains("<script>"), "{svg}");
        assert!(stacks(&[]).contains("Nothing was found"));
    }
}
