//! An experiment as plain text for a terminal: a headline, one line for each configuration, and published results.
//!
//! At most [`WIDTH`] columns, without colours. If space is short, less important spreads are omitted first.

use super::grid::{self, Grid, Line, Value};
use super::{Guide, headline, labels, text};
use crate::result::Experiment;

/// Columns of the terminal.
const WIDTH: usize = 100;
/// Space between columns.
const GAP: usize = 2;
/// Maximum width of the first column.
const LABEL: usize = 28;

/// The table, ending in a newline.
#[must_use]
pub fn render(guide: &Guide, experiment: &Experiment) -> String {
    let mut lines = Vec::new();
    let headline = headline::build(guide, experiment);
    lines.extend(text::wrap(&clean(&headline.before), WIDTH));
    lines.extend(text::wrap(&clean(&headline.after), WIDTH));
    lines.push(String::new());
    let grid = grid::build(guide, experiment);
    if grid.heads.is_empty() {
        raw(experiment, &mut lines);
    } else {
        table(&grid, &mut lines);
    }
    lines.push(String::new());
    for said in (guide.about)(&experiment.name).published {
        lines.extend(text::wrap(said, WIDTH));
    }
    for note in &experiment.notes {
        lines.extend(text::wrap(&clean(&format!("Note: {note}")), WIDTH));
    }
    lines.extend(text::wrap(&clean(&labels::source(experiment)), WIDTH));
    lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Removes control characters: output of a guest must not control the terminal.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn table(grid: &Grid, lines: &mut Vec<String>) {
    let all = || grid.groups.iter().flat_map(|(_, lines)| lines);
    let ours = all().any(|line| line.ours);
    let label_width = all().map(|line| line.id.chars().count() + 2).max().unwrap_or(0).clamp(13, LABEL);
    let width = |idx: usize, ends: bool| {
        let values = all().filter_map(|line| line.values.get(idx)?.as_ref());
        let widest = values.map(|value| shown(value, ends).chars().count()).max().unwrap_or(0);
        let head = grid.heads.get(idx).map_or(0, |h| h.above.len().max(h.below.len()));
        widest.max(head)
    };
    let total =
        |ends: &[bool]| label_width + ends.iter().enumerate().map(|(idx, ends)| GAP + width(idx, *ends)).sum::<usize>();
    // Omit spreads until it fits: first those of context columns, then from the right.
    let mut ends: Vec<bool> = vec![true; grid.heads.len()];
    let context = (0..ends.len()).rev().filter(|idx| !grid.heads[*idx].keep_ends);
    let kept = (0..ends.len()).rev().filter(|idx| grid.heads[*idx].keep_ends);
    for idx in context.chain(kept) {
        if total(&ends) <= WIDTH {
            break;
        }
        ends[idx] = false;
    }
    let row = |label: &str, cells: &[String]| {
        let mut line = format!("{label:<label_width$}");
        for (idx, cell) in cells.iter().enumerate() {
            let width = width(idx, ends[idx]);
            line += &format!("{:GAP$}{cell:>width$}", "");
        }
        // Even without spreads, absurd figures can be too wide.
        cut(&line, WIDTH)
    };
    let heads =
        |half: fn(&grid::Head) -> &'static str| grid.heads.iter().map(|h| half(h).to_owned()).collect::<Vec<_>>();
    lines.push(row("", &heads(|h| h.above)));
    lines.push(row("configuration", &heads(|h| h.below)));
    lines.push("-".repeat(total(&ends).min(WIDTH)));
    for (group, members) in &grid.groups {
        lines.push(cut(&clean(group), WIDTH));
        for line in members {
            lines.push(row(&label(line, label_width), &cells(line, &ends)));
        }
    }
    if ours {
        lines
            .push("* Bulkhead's configuration. Middle of the rounds; in brackets the smallest and the largest.".into());
    } else {
        lines.push("Middle of the rounds; in brackets the smallest and the largest.".into());
    }
}

fn label(line: &Line, width: usize) -> String {
    let mark = if line.ours { "* " } else { "  " };
    cut(&format!("{mark}{}", clean(&line.id)), width)
}

fn cells(line: &Line, ends: &[bool]) -> Vec<String> {
    let all = line.values.iter().zip(ends);
    all.map(|(value, ends)| value.as_ref().map_or_else(|| text::ABSENT.into(), |value| shown(value, *ends))).collect()
}

fn shown(value: &Value, ends: bool) -> String {
    match &value.ends {
        Some(spread) if ends => format!("{} {spread}", value.middle),
        _ => value.middle.clone(),
    }
}

fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['~']).collect()
}

/// An experiment without columns: all figures as a list.
fn raw(experiment: &Experiment, lines: &mut Vec<String>) {
    for (id, figures) in grid::raw(experiment) {
        lines.push(cut(&clean(&id), WIDTH));
        for (name, value) in figures {
            lines.push(cut(&clean(&format!("  {name:<40}  {value}")), WIDTH));
        }
    }
}
