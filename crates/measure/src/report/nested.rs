//! The report of `nested-matrix`: a readable page in Markdown, which is a table on the terminal, too.

use crate::nest::summary::{self, Finding, Pair};
use crate::nest::{self, DEVICE, MATRIX, NO_GUEST, Server, THIN};
use crate::report::text::number;
use crate::result::Experiment;

/// Stands where a pair has no figure.
const ABSENT: &str = "-";

/// The page: the paper's statements, then for each workload its matrix, its best and worst pair and what differs below them. Empty for other
/// experiments.
#[must_use]
pub fn markdown(experiment: &Experiment) -> String {
    let mut out = String::new();
    for workload in summary::workloads(experiment) {
        out += &format!("### {workload}\n\n");
        out += &matrix(experiment, workload);
        out += "\nGuests in rows, hosts in columns; percent of the guest on the device, whose operations per second are in the second column.\n\n";
        if let Some([best, worst]) = summary::extremes(experiment, workload) {
            out += &format!("Most operations: {}. Fewest: {}.", of_pair(best), of_pair(worst));
            out += "\n\n";
        }
        if let Some(lost) = summary::pairs(experiment, workload).first() {
            let why = summary::why(experiment, lost, workload);
            let why =
                if why.is_empty() { "no figure of the disk differs by a third".to_owned() } else { why.join("; ") };
            out += &format!(
                "Most is lost by {} on {}, {:.0} % of the device: {why}.\n\n",
                lost.guest, lost.host, lost.pct
            );
        }
    }
    out += &servers(experiment);
    let findings = summary::findings(experiment);
    if !out.is_empty() {
        out += "### The paper's findings\n\n| finding | here | figures |\n|---|---|---|\n";
        out.extend(findings.iter().map(row));
        out.push('\n');
    }
    out
}

fn row(finding: &Finding) -> String {
    let word = finding.holds.map_or("not measured", |holds| holds.as_str());
    format!("| {} | **{word}** | {} |\n", finding.statement, finding.found)
}

fn of_pair((pair, ops): (Pair, f64)) -> String {
    format!("{} on {}, {}/s", pair.guest, pair.host, number(ops))
}

fn matrix(experiment: &Experiment, workload: &str) -> String {
    let hosts: Vec<&str> = MATRIX
        .into_iter()
        .filter(|host| MATRIX.iter().chain([&NO_GUEST]).any(|guest| value(experiment, guest, host, workload).is_some()))
        .collect();
    let mut out = format!("| guest | device |{}\n", hosts.iter().map(|host| format!(" {host} |")).collect::<String>());
    out += &format!("|---|---:|{}\n", "---:|".repeat(hosts.len()));
    for guest in MATRIX.into_iter().chain([NO_GUEST]) {
        let base = summary::cell(experiment, guest, DEVICE, Server::None, workload)
            .and_then(|cell| cell.figure(summary::OPS_PER_S))
            .map(|spread| number(spread.median));
        let values: Vec<Option<f64>> = hosts.iter().map(|host| value(experiment, guest, host, workload)).collect();
        if base.is_none() && values.iter().all(Option::is_none) {
            continue;
        }
        let word = if guest == NO_GUEST { "no file system" } else { guest };
        out += &format!("| {word} | {} |", base.unwrap_or_else(|| ABSENT.to_owned()));
        out.extend(
            values.iter().map(|value| value.map_or_else(|| format!(" {ABSENT} |"), |pct| format!(" {pct:.0} |"))),
        );
        out.push('\n');
    }
    out
}

fn value(experiment: &Experiment, guest: &str, host: &str, workload: &str) -> Option<f64> {
    summary::relative(experiment, guest, host, Server::Loop, workload)
}

/// Other ways to serve an image, and a thin volume: percent of the guest on the device.
fn servers(experiment: &Experiment) -> String {
    let workloads = summary::workloads(experiment);
    let is_measured = |(guest, host, server): &(&str, &str, Server)| {
        let has = |workload: &&str| {
            summary::cell(experiment, guest, host, *server, workload).is_some_and(|cell| !cell.rounds.is_empty())
        };
        workloads.iter().any(has)
    };
    let is_other =
        |(_, host, server): &(&str, &str, Server)| *host == THIN || !matches!(server, Server::None | Server::Loop);
    let others: Vec<_> =
        nest::stacks(false).into_iter().filter(|stack| is_other(stack) && is_measured(stack)).collect();
    // Each beside the loop device that it is compared with.
    let mut stacks = Vec::new();
    for (guest, host, server) in others {
        let by_loop = (guest, host, Server::Loop);
        if host != THIN && !stacks.contains(&by_loop) {
            stacks.push(by_loop);
        }
        stacks.push((guest, host, server));
    }
    stacks.sort_by_key(|(guest, host, _)| (*guest, *host));
    if stacks.is_empty() {
        return String::new();
    }
    let mut out = "### Other ways to serve an image\n\n".to_owned();
    out += &format!("| guest | on | by |{}\n", workloads.iter().map(|name| format!(" {name} |")).collect::<String>());
    out += &format!("|---|---|---|{}\n", "---:|".repeat(workloads.len()));
    for (guest, host, server) in stacks {
        let word = if host == THIN { "thin volume" } else { host };
        out += &format!("| {guest} | {word} | {} |", server.as_str());
        out.extend(workloads.iter().map(|workload| {
            summary::relative(experiment, guest, host, server, workload)
                .map_or_else(|| format!(" {ABSENT} |"), |pct| format!(" {pct:.0} |"))
        }));
        out.push('\n');
    }
    out + "\nPercent of the guest on the device.\n\n"
}
