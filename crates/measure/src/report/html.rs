//! Experiments as one page of HTML: no scripts, nothing loaded from elsewhere, readable on a phone, on paper and in the dark.

use super::grid::{self, Grid};
use super::text::{bytes, escape, rounds};
use super::{Guide, headline, labels, svg};
use crate::result::Experiment;

/// The style of the page. One column; tables scroll by themselves; pictures have a wide and a narrow variant.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--dim:#59636e;--line:#d1d9e0;--soft:#f6f8fa;--page:#fff;--accent:#0072b2}\
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa4af;--line:#30363d;--soft:#161b22;--page:#0d1117;--accent:#56b4e9}}\
*{box-sizing:border-box}body{margin:0 auto;max-width:960px;padding:28px 24px 56px;background:var(--page);color:var(--ink);\
font:16px/1.55 system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,sans-serif;overflow-wrap:break-word}\
h1{font-size:1.75rem;line-height:1.25;margin:0 0 .4rem}h2{font-size:1.3rem;margin:2.6rem 0 .6rem;line-height:1.3}h3{font-size:1.02rem;margin:1.7rem 0 .5rem}\
p{margin:.5rem 0}.dim{color:var(--dim)}.lead{font-size:1.14rem;border-left:4px solid var(--accent);padding:.1rem 0 .1rem 1rem;margin:1rem 0}\
.lead p{margin:.25rem 0}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px;margin:.8rem 0}\
table{border-collapse:collapse;width:100%;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.42rem .55rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap;vertical-align:baseline}\
th:first-child,td:first-child{text-align:left}td:first-child{white-space:normal;min-width:7.2rem}thead th{color:var(--dim);font-weight:600;line-height:1.25;vertical-align:bottom}tbody tr:last-child>*{border-bottom:0}\
tr.group th{background:var(--soft);text-align:left;font-weight:600}tr.ours td{font-weight:650}td small{color:var(--dim);font-weight:400;display:block;line-height:1.2}\
figure{margin:1rem 0}figure svg{max-width:100%;height:auto;display:block}.narrow{display:none}\
pre{background:var(--soft);border:1px solid var(--line);border-radius:8px;padding:.8rem 1rem;overflow-x:auto;font-size:.84rem;line-height:1.5}\
dl{display:grid;grid-template-columns:max-content 1fr;gap:.25rem 1.2rem;font-size:.92rem;margin:.6rem 0}dt{color:var(--dim)}dd{margin:0;min-width:0}\
ul{padding-left:1.2rem}details summary{cursor:pointer;color:var(--accent);margin:.8rem 0}\
@media (max-width:640px){body{padding:18px 14px 40px}h1{font-size:1.4rem}.lead{font-size:1.04rem}.wide{display:none}.narrow{display:block}\
dl{grid-template-columns:1fr;gap:0}dt{margin-top:.5rem}th,td{padding:.38rem .5rem}}\
@media print{body{max-width:none;padding:0;font-size:11pt}.wide{display:block}.narrow{display:none}figure,.lead,tr{break-inside:avoid}h2,h3{break-after:avoid}\
.scroll,pre{overflow:visible;white-space:pre-wrap}table{font-size:8.5pt}th,td{padding:.25rem .35rem}}";

/// The page.
#[must_use]
pub fn render(guide: &Guide, experiments: &[Experiment]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for experiment in experiments {
        if !names.contains(&experiment.name.as_str()) {
            names.push(&experiment.name);
        }
    }
    let title = match names.as_slice() {
        [] => "Bulkhead: no experiment".to_owned(),
        names => format!("Bulkhead: {}", names.join(", ")),
    };
    let mut body = String::new();
    if names.is_empty() {
        body += &paragraph("Nothing was measured.");
    }
    for name in names {
        let mine: Vec<&Experiment> = experiments.iter().filter(|experiment| experiment.name == name).collect();
        for experiment in &mine {
            body += &section(guide, experiment, mine.len() > 1 || experiments.len() > 1);
        }
    }
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>{heading}</h1>\n{body}</body>\n</html>\n",
        title = escape(&title),
        heading = escape(&heading(guide, experiments)),
    )
}

fn heading(guide: &Guide, experiments: &[Experiment]) -> String {
    match experiments {
        [one] => question(guide, &one.name).to_owned(),
        [first, rest @ ..] if rest.iter().all(|other| other.name == first.name) => {
            question(guide, &first.name).to_owned()
        }
        _ => "What noisy neighbours do to storage, and what Bulkhead does about it".to_owned(),
    }
}

/// The question of an experiment, for newcomers; its name if there is none.
fn question<'a>(guide: &Guide, name: &'a str) -> &'a str {
    (guide.about)(name).question.unwrap_or(name)
}

fn paragraph(text: &str) -> String {
    format!("<p>{}</p>\n", escape(text))
}

fn section(guide: &Guide, experiment: &Experiment, several: bool) -> String {
    let mut out = String::new();
    if several {
        let title = format!(
            "{} on {}",
            experiment.name,
            if experiment.disk.model.is_empty() { "an unknown disk" } else { &experiment.disk.model }
        );
        out += &format!("<h2>{}</h2>\n", escape(&title));
    }
    let headline = headline::build(guide, experiment);
    out += &format!("<div class=\"lead\">{}{}</div>\n", paragraph(&headline.before), paragraph(&headline.after));
    out += &format!("<p class=\"dim\">{}</p>\n", escape(&labels::source(experiment)));
    out += "<h3>What was done</h3>\n";
    let about = (guide.about)(&experiment.name);
    for text in about.plainly {
        out += &paragraph(text);
    }
    if !experiment.about.is_empty() {
        out += &paragraph(&experiment.about);
    }
    let wide = svg::pictures(guide, experiment);
    let narrow = svg::pictures_at(guide, experiment, svg::NARROW);
    let mut figures = wide.iter().zip(&narrow).map(|((_, wide), (_, narrow))| {
        format!("<figure><div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div></figure>\n")
    });
    out += &figures.next().unwrap_or_default();
    out += "<h3>Figures</h3>\n";
    let grid = grid::build(guide, experiment);
    if grid.heads.is_empty() {
        out += &raw(experiment);
    } else {
        out += &table(&grid);
        out += "<p class=\"dim\">Middle of the rounds; in brackets the smallest and the largest.</p>\n";
    }
    out.extend(figures);
    let said = about.published;
    if !said.is_empty() {
        out += "<h3>What others found</h3>\n";
        out.extend(said.iter().map(|text| paragraph(text)));
    }
    if !experiment.notes.is_empty() {
        let notes: String = experiment.notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
        out += &format!("<h3>Notes</h3>\n<ul>\n{notes}</ul>\n");
    }
    out + &conditions(experiment)
}

fn table(grid: &Grid) -> String {
    let heads: String = grid
        .heads
        .iter()
        .map(|head| format!("<th scope=\"col\">{}<br/>{}</th>", escape(head.above), escape(head.below)))
        .collect();
    let mut rows = String::new();
    for (group, lines) in &grid.groups {
        rows += &format!(
            "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{}\">{}</th></tr>\n",
            grid.heads.len() + 1,
            escape(group)
        );
        for line in lines {
            let values = line.values.iter().map(|value| match value {
                Some(value) => {
                    let ends = value.ends.as_ref().map(|ends| format!(" <small>{}</small>", escape(ends)));
                    format!("<td>{}{}</td>", escape(&value.middle), ends.unwrap_or_default())
                }
                None => "<td class=\"dim\">-</td>".to_owned(),
            });
            let (class, name) = if line.ours { (" class=\"ours\"", "Bulkhead: ") } else { ("", "") };
            rows += &format!("<tr{class}><td>{name}{}</td>{}</tr>\n", escape(&line.label), values.collect::<String>());
        }
    }
    format!(
        "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">configuration</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table></div>\n"
    )
}

fn raw(experiment: &Experiment) -> String {
    let mut rows = String::new();
    for (id, figures) in grid::raw(experiment) {
        rows += &format!("<tr class=\"group\"><th colspan=\"2\">{}</th></tr>\n", escape(&id));
        for (name, value) in figures {
            rows += &format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(&name), escape(&value));
        }
    }
    format!("<div class=\"scroll\"><table><tbody>\n{rows}</tbody></table></div>\n")
}

fn conditions(experiment: &Experiment) -> String {
    let machine = &experiment.machine;
    let list = |map: &std::collections::BTreeMap<String, String>| {
        map.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
    };
    let size = |value: u64| if value == 0 { String::new() } else { bytes(value) };
    let entries = [
        (
            "Machine",
            format!(
                "{} CPUs, {} memory, virtualisation: {}",
                machine.n_cpus,
                bytes(machine.memory_bytes),
                machine.virtualisation
            ),
        ),
        ("Clock", machine.clock.clone()),
        ("Kernel", machine.kernel.clone()),
        ("Programs", list(&machine.programs)),
        ("Disk", labels::disk(experiment)),
        ("Disk size", size(experiment.disk.size_bytes)),
        ("Queue", list(&experiment.disk.queue)),
        ("Rounds", format!("{}, cells interleaved", labels::rounds_said(experiment))),
    ];
    let entries: String = entries
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>\n", escape(value)))
        .collect();
    let commands = if experiment.commands.is_empty() {
        String::new()
    } else {
        format!("<h3>Commands</h3>\n<pre>{}</pre>\n", escape_lines(&experiment.commands))
    };
    let rounds_of: String = experiment
        .cells
        .iter()
        .filter(|cell| !cell.rounds.is_empty())
        .map(|cell| format!("{} ({})\n{}", escape(&cell.id()), rounds(cell.rounds.len()), by_round(cell)))
        .collect();
    let every = if rounds_of.is_empty() {
        String::new()
    } else {
        format!("<details><summary>Every figure of every round</summary><pre>{rounds_of}</pre></details>\n")
    };
    format!("<h3>Where it ran</h3>\n<dl>\n{entries}</dl>\n{commands}{every}")
}

fn escape_lines(lines: &[String]) -> String {
    lines.iter().map(|line| escape(line)).collect::<Vec<_>>().join("\n")
}

fn by_round(cell: &crate::result::Cell) -> String {
    let mut out = String::new();
    for (idx, round) in cell.rounds.iter().enumerate() {
        let figures = round.figures.iter().map(|(name, value)| format!("{name} {}", super::text::number(*value)));
        out += &format!("  {}: {}\n", idx + 1, escape(&figures.collect::<Vec<_>>().join(", ")));
    }
    out
}
