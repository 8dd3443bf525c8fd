//! docs/evidence/NAME.md: a summary of the result, with links to the pictures and the raw figures.

use bulkhead_measure::nest;
use bulkhead_measure::report::grid::{self, Grid};
use bulkhead_measure::report::labels::{self, Config};
use bulkhead_measure::report::{headline, nested, svg, text};
use bulkhead_measure::result::{Experiment, Spread};

use super::{GUIDE, files};
use crate::experiment::disk_models::{METHOD, published};
use crate::experiments;
use crate::figure as f;
use crate::judge::{self, Outcome, Row, Verdict};

/// Path of the pages, relative to docs/EVIDENCE.md.
const EVIDENCE: &str = "evidence";

/// The page of an experiment. Pictures are linked by the names from [`files`].
#[must_use]
pub fn render(name: &str, experiments: &[Experiment], verdict: &Verdict) -> String {
    let mut out = format!("# {}\n\n**{}**\n", safe(name), safe(&verdict.line));
    let mut stems = files(name, experiments).into_iter().map(|(stem, _)| stem);
    for experiment in experiments {
        let headline = headline::build(&GUIDE, experiment);
        let disk = if experiment.disk.model.is_empty() { "unknown disk" } else { &experiment.disk.model };
        let is_alone = experiments.iter().filter(|other| other.disk.model == experiment.disk.model).count() == 1;
        let kernel = if is_alone { String::new() } else { format!(", Linux {}", experiment.machine.kernel) };
        out += &format!("\n## On {}{}\n\n", safe(disk), safe(&kernel));
        out += &format!("{}\n{}\n\n", safe(&headline.before), safe(&headline.after));
        let n_pictures = svg::pictures(&GUIDE, experiment).len();
        for stem in stems.by_ref().take(n_pictures) {
            out += &format!("![{stem}]({stem}.svg)\n\n");
        }
        let grid = grid::build(&GUIDE, experiment);
        if let Some(table) = compared(experiment) {
            out += &table;
            out += "\nMiddle of the rounds; in brackets the smallest and the largest.\n";
        } else if !grid.heads.is_empty() {
            out += &table(&grid);
            out += "\nMiddle of the rounds; in brackets the smallest and the largest.\n";
        }
        if experiment.name == nest::METHOD.name {
            out += &nested::markdown(experiment);
        }
        if !experiment.about.is_empty() {
            out += &format!("\n{}\n", safe(&experiment.about));
        }
        out += &format!("\n{}\n", safe(&labels::source(experiment)));
        if !experiment.notes.is_empty() {
            out.push('\n');
            out.extend(experiment.notes.iter().map(|note| format!("- {}\n", safe(note))));
        }
        if !experiment.commands.is_empty() {
            // No content can end a block indented by four spaces.
            let lines = experiment.commands.iter().flat_map(|command| command.lines());
            let lines: String = lines.map(|line| format!("    {line}\n")).collect();
            out += &format!("\nCommands:\n\n{lines}");
        }
    }
    let said = experiments::about(name).published;
    if !said.is_empty() {
        out += "\n## What others found\n";
        out.extend(said.iter().map(|text| format!("\n{text}\n")));
    }
    out += "\n## Against the targets\n\n| what | target | found | outcome |\n|---|---|---|---|\n";
    for row in &verdict.rows {
        let outcome = match row.outcome {
            Outcome::Met => "met",
            Outcome::Short => "**short**",
            Outcome::NotMeasured => "**not measured**",
        };
        out += &format!("| {} | {} | {} | {outcome} |\n", safe(&row.label()), safe(row.asked()), safe(&row.found));
    }
    out += &format!("\nEvery figure of every round: [{name}.json]({name}.json).\n", name = safe(name));
    out
}

/// The judged figures of an experiment, for docs/EVIDENCE.md: a row for each criterion, a column for each disk.
#[must_use]
pub fn summary(name: &str, experiments: &[Experiment], verdict: &Verdict) -> String {
    let word = if verdict.met { "met" } else { "short" };
    let mut out = format!("### [{name}]({EVIDENCE}/{name}.md): {word}\n\n", name = safe(name));
    let measured = experiments.iter().map(|experiment| {
        let clock = experiment.machine.clock.split(':').next().filter(|clock| !clock.is_empty()).unwrap_or("wall");
        let n = text::rounds(experiment.cells.iter().map(|cell| cell.rounds.len()).min().unwrap_or(0));
        let form = if experiment.quick { ", short form" } else { "" };
        format!("{}: {clock} clock, {n}{form}", experiment.disk.model)
    });
    out += &format!("{}.\n\n", safe(&measured.collect::<Vec<_>>().join("; ")));
    let disks = experiments::find(name).map_or(&[][..], |entry| entry.disks);
    let lines: Vec<Line<'_>> = verdict
        .rows
        .iter()
        .filter(|row| !row.what.starts_with(judge::ROUNDS))
        .map(|row| Line::from_row(row, disks))
        .collect();
    let columns = distinct(lines.iter().map(|line| line.column));
    let heads: String = columns.iter().map(|column| format!(" {} |", safe(column))).collect();
    out += &format!("| | target |{heads}\n|---|---|{}\n", "---:|".repeat(columns.len()));
    for what in distinct(lines.iter().map(|line| line.what.as_str())) {
        let mine: Vec<&Line<'_>> = lines.iter().filter(|line| line.what == what).collect();
        let targets = distinct(mine.iter().map(|line| line.row.target.as_str())).join(" / ");
        let cells =
            columns.iter().map(|column| mine.iter().find(|line| line.column == *column).map(|line| line.figure()));
        let cells: String =
            cells.map(|cell| format!(" {} |", cell.unwrap_or_else(|| text::ABSENT.to_owned()))).collect();
        out += &format!("| {} | {} |{cells}\n", safe(what), targets.replace("<=", "≤").replace(">=", "≥"));
    }
    out
}

/// A judged row in a table of disks.
struct Line<'a> {
    /// The disk, or what else it applies to.
    column: &'a str,
    what: String,
    row: &'a Row,
}

impl<'a> Line<'a> {
    fn from_row(row: &'a Row, disks: &[&str]) -> Self {
        let thing = row.what.strip_suffix(judge::ON_FLASH).unwrap_or(&row.what);
        let (column, rest) =
            row.place.split_once(' ').filter(|(disk, _)| disks.contains(disk)).unwrap_or((&row.place, ""));
        let what = if rest.is_empty() { thing.to_owned() } else { format!("{}: {thing}", rest.trim_end_matches(':')) };
        Self { column, what, row }
    }

    /// Bold if it misses its target.
    fn figure(&self) -> String {
        match self.row.outcome {
            Outcome::NotMeasured => "not measured".to_owned(),
            Outcome::Met => safe(&self.row.figure),
            Outcome::Short => format!("**{}**", safe(&self.row.figure)),
        }
    }
}

/// Each text once, in the order of first occurrence.
fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

/// A disk with the published figures of its drive, and their sources.
fn compared(experiment: &Experiment) -> Option<String> {
    let drive = published::drive(&experiment.disk.model).filter(|_| experiment.name == METHOD.name)?;
    let mut out = format!(
        "| operation | depth | measured | mean us | p99 us | published | published / {} | off | known | source |\n",
        drive.slowdown
    );
    out += "|---|---:|---:|---:|---:|---:|---:|---:|---|---|\n";
    for config in labels::configs(&experiment.cells) {
        for cell in experiment.cells.iter().filter(|cell| Config::from_cell(cell) == config) {
            let is_rate = published::name_of(&cell.layout) == f::BYTES_PER_S;
            let (unit, word) = if is_rate { (1e6, " MB/s") } else { (1.0, "/s") };
            let found = cell.figure(published::name_of(&cell.layout));
            let found = found.map(|s| Spread { min: s.min / unit, median: s.median / unit, max: s.max / unit });
            let measured = found
                .map_or_else(|| text::ABSENT.to_owned(), |s| format!("{}{word}", text::with_ends(s, text::number)));
            let us = |name| cell.figure(name).map_or_else(|| text::ABSENT.to_owned(), |s| text::digits(s.median));
            let known = match published::figure_of(experiment, cell) {
                Some((_, figure)) => {
                    let off = figure.measured(experiment).map(|s| figure.off_pct(s.median, drive.slowdown));
                    format!(
                        "{} | {} | {} | {} | {}",
                        figure.scaled(1.0, unit),
                        figure.scaled(drive.slowdown, unit),
                        off.map_or_else(|| text::ABSENT.to_owned(), published::signed),
                        figure.mark.as_str(),
                        safe(figure.source)
                    )
                }
                None => [text::ABSENT; 5].join(" | "),
            };
            out += &format!(
                "| {} | {} | {measured} | {} | {} | {known} |\n",
                safe(&config.label()),
                safe(cell.neighbour.trim_start_matches("depth-")),
                us(f::LATENCY_MEAN_US),
                us(f::LATENCY_P99_US)
            );
        }
    }
    Some(out)
}

fn table(grid: &Grid) -> String {
    let heads: String = grid.heads.iter().map(|head| format!(" {} {} |", head.above, head.below)).collect();
    let mut out = format!("| configuration |{heads}\n|---|{}\n", "---:|".repeat(grid.heads.len()));
    for (group, lines) in &grid.groups {
        out += &format!("| *{}* |{}\n", safe(group), " |".repeat(grid.heads.len()));
        for line in lines {
            let values = line.values.iter().map(|value| match value {
                Some(value) => format!(
                    " {}{} |",
                    value.middle,
                    value.ends.as_ref().map_or_else(String::new, |ends| format!(" {ends}"))
                ),
                None => format!(" {} |", text::ABSENT),
            });
            let label = if line.ours { format!("**{}**", safe(&line.id)) } else { safe(&line.id) };
            out += &format!("| {label} |{}\n", values.collect::<String>());
        }
    }
    out
}

/// Text on one line, with markup escaped.
fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '&' => safe.push_str("&amp;"),
            '|' | '*' | '`' | '[' | ']' | '\\' => {
                safe.push('\\');
                safe.push(letter);
            }
            other if other.is_control() => safe.push(' '),
            other => safe.push(other),
        }
    }
    safe
}
