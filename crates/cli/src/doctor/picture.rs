//! `bulkhead doctor --picture`: the storage stacks with the findings on them, as text.
//!
//! Owns: the drawing. Does not: order the stacks (`bulkhead_core::stack`) or draw the SVG file (`bulkhead_measure`).

use bulkhead_core::stack::Row;

use crate::output::escaped;

/// The rows as lines: a tree, and below each row its findings.
pub(super) fn lines(rows: &[Row<'_>]) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        // Whether another row of a depth follows before the tree goes back above it.
        let continues = |depth: usize| {
            let rest = rows[index + 1..].iter().find(|below| below.depth <= depth);
            rest.is_some_and(|below| below.depth == depth)
        };
        let mut indent: String = (1..row.depth).map(|depth| if continues(depth) { "│  " } else { "   " }).collect();
        let branch = match row.depth {
            0 => "",
            depth if continues(depth) => "├─ ",
            _ => "└─ ",
        };
        let detail = if row.detail.is_empty() { String::new() } else { format!("  ({})", escaped(&row.detail)) };
        lines.push(format!("{indent}{branch}{}{detail}", escaped(&row.name)));
        if row.depth > 0 {
            indent += if continues(row.depth) { "│  " } else { "   " };
        }
        let has_children = rows.get(index + 1).is_some_and(|below| below.depth > row.depth);
        let stem = if has_children { "│  " } else { "   " };
        for finding in &row.findings {
            let text = format!("{}[{}]: {}", finding.severity, finding.id, finding.evidence);
            lines.push(format!("{indent}{stem}! {}", escaped(&text)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::finding::{Finding, FindingId};

    #[test]
    fn a_tree_is_drawn_with_its_findings() {
        let finding = Finding::new(FindingId::JournalNested, "device loop0", "ext4 is on ext4");
        let row = |depth, name: &str, findings| Row { depth, name: name.to_owned(), detail: String::new(), findings };
        let rows = [
            row(0, "/", vec![]),
            row(1, "md0", vec![&finding]),
            row(2, "sda1", vec![]),
            row(3, "sda", vec![&finding]),
            row(2, "sdb", vec![]),
            row(0, "host", vec![&finding]),
        ];
        let found = "! warning[journal_nested]: ext4 is on ext4";
        assert_eq!(
            lines(&rows),
            [
                "/".to_owned(),
                "└─ md0".to_owned(),
                format!("   │  {found}"),
                "   ├─ sda1".to_owned(),
                "   │  └─ sda".to_owned(),
                format!("   │        {found}"),
                "   └─ sdb".to_owned(),
                "host".to_owned(),
                format!("   {found}"),
            ]
        );
    }
}
