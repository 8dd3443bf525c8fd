//! `bulkhead blame`: fsync waits by victim and culprit, as sums, or with `--waits` one by one.

use std::time::Duration;

use bulkhead_api::wire::{CommitView, CulpritView, Observation, WaitView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::Identity;
use bulkhead_core::observe::activity::BlameView;
use bulkhead_core::observe::waits::MEMORY_NS;

use crate::args::BlameArgs;
use crate::observe::{Source, latency, waited};
use crate::output::{Output, columns, table};

/// Maximum number of culprits with their own column.
const MAX_COLUMNS: usize = 8;
/// Smallest part of a wait for which a culprit is listed.
const MIN_PART: f64 = 0.05;
/// Column titles of the list of waits.
const WAIT_HEADERS: [&str; 11] =
    ["ago", "waited", "victim", "on", "device", "commit", "transaction", "locked", "flushing", "logging", "because of"];

/// Observes for the requested time, and prints the waits.
///
/// # Errors
/// Those of the source; `NotFound` if the victim was not active.
pub(crate) fn run(args: &BlameArgs, source: &Source, output: &Output) -> Result<(), Fault> {
    if args.total || args.last.is_some() {
        source.has_past(if args.total { "--total" } else { "--last" })?;
        let past = args.last.map_or(Duration::from_nanos(MEMORY_NS), Duration::from_secs_f64);
        let waits = if args.waits { past } else { Duration::ZERO };
        return print(args, source.observe(waits)?, output);
    }
    loop {
        if !output.is_json() && !args.follow {
            output.say(&format!("watching for {} s", args.watch));
        }
        print(args, source.watch(args.watch, args.waits)?, output)?;
        if !args.follow || !output.has_reader() {
            return Ok(());
        }
    }
}

fn print(args: &BlameArgs, mut seen: Observation, output: &Output) -> Result<(), Fault> {
    let mut waits = seen.waits.take().unwrap_or_default();
    if let Some(victim) = &args.victim {
        let is_known = seen.containers.iter().any(|view| view.identity.matches(victim));
        seen.blame.retain(|view| view.victim.matches(victim));
        waits.waits.retain(|view| view.victim.matches(victim));
        if seen.blame.is_empty() && !is_known && !args.follow {
            let cause = "no container with that name was active in this interval";
            return Err(Fault::new(Code::NotFound, format!("container {victim}"), cause)
                .hint("`bulkhead top --once` lists the active ones"));
        }
    }
    if output.is_json() {
        return if args.waits { output.json(&waits) } else { output.json(&seen.blame) };
    }
    seen.limits().iter().for_each(|finding| output.finding(finding));
    if args.waits {
        if waits.left_out > 0 {
            let (n, longest) = (waits.left_out, latency_of(waits.left_out_seconds));
            output.say(&format!("{n} more waits, of all containers, are omitted; the longest took {longest}"));
        }
        if waits.waits.is_empty() {
            output.say(&no_waits(args.victim.as_deref()));
            return Ok(());
        }
        return output.lines(&table(&WAIT_HEADERS, &waits.waits.iter().flat_map(wait_rows).collect::<Vec<_>>()));
    }
    if seen.blame.is_empty() {
        output.say(&no_waits(args.victim.as_deref()));
        return Ok(());
    }
    output.lines(&matrix(&seen.blame))
}

/// The message in place of an empty table.
fn no_waits(victim: Option<&str>) -> String {
    let who = victim.map_or_else(|| "no container waited".to_owned(), |name| format!("container {name} did not wait"));
    format!("{who} in fsync on an ext4 file system")
}

/// The rows of a wait: the first one describes the wait as a whole, and each row one of its commits and one of its largest causes.
fn wait_rows(wait: &WaitView) -> Vec<Vec<String>> {
    let part = |seconds: f64| format!("{:.0} %", 100.0 * seconds / wait.seconds.max(1e-9));
    let whole = vec![
        format!("{:.0} s", wait.began_seconds_ago),
        latency_of(wait.seconds),
        wait.victim.name.clone(),
        wait.mount_point.clone().unwrap_or_else(|| wait.device.clone()),
        part(wait.device_seconds),
        part(wait.commit_seconds),
    ];
    let mut commits: Vec<Vec<String>> = wait.commits.iter().map(commit_cells).collect();
    let n_more = wait.n_commits - wait.commits.len();
    if n_more > 0 {
        commits.insert(0, vec![format!("{n_more} more"), String::new(), String::new(), String::new()]);
    }
    if commits.is_empty() {
        commits.push(vec!["none".to_owned(), String::new(), String::new(), String::new()]);
    }
    let causes: Vec<String> = wait
        .culprits
        .iter()
        .enumerate()
        .filter(|(at, view)| *at == 0 || view.causes.seconds >= MIN_PART * wait.seconds)
        .map(|(_, view)| format!("{} ({})", culprit_name(view, wait), causes(view, wait)))
        .collect();
    let n_lines = commits.len().max(causes.len());
    (0..n_lines)
        .map(|at| {
            let cells = if at == 0 { whole.clone() } else { vec![String::new(); whole.len()] };
            let commit = commits.get(at).cloned().unwrap_or_else(|| vec![String::new(); 4]);
            [cells, commit, vec![causes.get(at).cloned().unwrap_or_default()]].concat()
        })
        .collect()
}

fn commit_cells(commit: &CommitView) -> Vec<String> {
    let phase = |seconds: Option<f64>| seconds.map_or_else(|| "?".to_owned(), latency_of);
    vec![
        commit.tid.to_string(),
        phase(commit.locked_seconds),
        phase(commit.flushing_seconds),
        phase(commit.logging_seconds),
    ]
}

fn culprit_name(view: &CulpritView, wait: &WaitView) -> String {
    match &view.culprit {
        Some(culprit) if *culprit == wait.victim => "itself".to_owned(),
        Some(culprit) => culprit.name.clone(),
        None => "unknown".to_owned(),
    }
}

/// The causes as parts of the wait, the longest first.
fn causes(view: &CulpritView, wait: &WaitView) -> String {
    let causes = &view.causes;
    let mut parts = [
        ("journal", causes.journal_seconds),
        ("ordered", causes.ordered_seconds),
        ("queue", causes.queue_seconds),
        ("flush", causes.flush_seconds),
    ];
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let listed = parts.iter().filter(|(_, seconds)| *seconds >= MIN_PART / 5.0 * wait.seconds);
    let listed: Vec<String> =
        listed.map(|(word, seconds)| format!("{word} {:.0} %", 100.0 * seconds / wait.seconds.max(1e-9))).collect();
    if listed.is_empty() { "no cause found".to_owned() } else { listed.join(", ") }
}

/// A latency in seconds, formatted with its unit.
fn latency_of(seconds: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float is cut to what u64 can be")]
    latency(Some((seconds * 1e6) as u64))
}

/// One row per victim and one column per culprit, ordered by total waiting time.
fn matrix(blame: &[BlameView]) -> Vec<String> {
    let by_victim = ranked(blame, |view| Some(&view.victim));
    let mut culprits = ranked(blame, |view| view.culprit.as_ref().filter(|culprit| **culprit != view.victim));
    culprits.truncate(MAX_COLUMNS);
    let mut head = vec!["VICTIM".to_owned(), "WAITED".to_owned(), "ITSELF".to_owned()];
    head.extend(culprits.iter().map(|culprit| culprit.name.clone()));
    head.extend(["OTHERS".to_owned(), "UNKNOWN".to_owned()]);
    let rows =
        by_victim.iter().map(|victim| {
            let sum = |wanted: &dyn Fn(Option<&Identity>) -> bool| -> String {
                let of_victim = blame.iter().filter(|view| view.victim == **victim);
                waited(of_victim.filter(|view| wanted(view.culprit.as_ref())).map(|view| view.seconds).sum())
            };
            let mut row = vec![victim.name.clone(), sum(&|_| true), sum(&|culprit| culprit == Some(*victim))];
            row.extend(culprits.iter().map(|column| {
                if column == victim { "\"".to_owned() } else { sum(&|culprit| culprit == Some(*column)) }
            }));
            let is_other = |culprit: Option<&Identity>| {
                culprit.is_some_and(|culprit| culprit != *victim && !culprits.contains(&culprit))
            };
            row.extend([sum(&is_other), sum(&|culprit| culprit.is_none())]);
            row
        });
    columns(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

/// The identities that `of` selects, ordered by total waiting time.
fn ranked<'a>(blame: &'a [BlameView], of: impl Fn(&'a BlameView) -> Option<&'a Identity>) -> Vec<&'a Identity> {
    let mut sums: Vec<(&Identity, f64)> = Vec::new();
    for view in blame {
        let Some(identity) = of(view) else { continue };
        match sums.iter_mut().find(|(other, _)| *other == identity) {
            Some((_, sum)) => *sum += view.seconds,
            None => sums.push((identity, view.seconds)),
        }
    }
    sums.sort_by(|a, b| b.1.total_cmp(&a.1));
    sums.into_iter().map(|(identity, _)| identity).collect()
}
