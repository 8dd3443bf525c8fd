//! `bulkhead top`: I/O and fsync waits by container.
//!
//! Owns: the rows of the table, which `--once` prints and the screen (`top/screen.rs`) shows.

mod screen;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_api::wire::{HoldView, Observation};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::observe::activity::ContainerView;

use crate::args::{SortKey, TopArgs};
use crate::observe::{Source, latency, rate, waited};
use crate::output::{Output, table};

/// Column titles.
const HEADERS: [&str; 12] = [
    "container",
    "kind",
    "read",
    "written",
    "journal",
    "device",
    "share",
    "fsync",
    "p50",
    "p99",
    "waited",
    "mostly for",
];

/// Shows the table live, or prints it once.
///
/// # Errors
/// Those of the source; `InvalidArgument` for a live table without a terminal.
pub(crate) fn run(args: &TopArgs, socket: PathBuf, output: &Output) -> Result<(), Fault> {
    let invalid = |cause, hint| Err(Fault::new(Code::InvalidArgument, "top", cause).hint(hint));
    if args.total && !output.is_json() {
        return invalid("a table shows rates per second, not totals", "`--total --output json` prints the totals");
    }
    let is_live = !args.once && !output.is_json();
    if is_live && (!std::io::stdout().is_terminal() || !std::io::stdin().is_terminal()) {
        return invalid(
            "a live table requires a terminal",
            "`--once` prints one table, and `--output json` the figures",
        );
    }
    let source = Source::open(socket, output)?;
    if args.total {
        source.has_past("--total")?;
    }
    if !is_live {
        let seen = if args.total { source.observe(Duration::ZERO)? } else { source.watch(args.interval, false)? };
        if output.is_json() {
            return output.json(&seen);
        }
        seen.limits().iter().for_each(|finding| output.finding(finding));
        let rows: Vec<Vec<String>> = sorted(&seen, args.sort).into_iter().map(|view| row(&seen, view)).collect();
        output.say(&summary(&seen));
        for line in hold_lines(&seen) {
            output.say(&line);
        }
        if rows.is_empty() {
            output.say("no container read, wrote, journalled or called fsync");
            return Ok(());
        }
        return output.lines(&table(&HEADERS, &rows));
    }
    screen::run(args, source)
}

/// One line of totals.
fn summary(seen: &Observation) -> String {
    let seconds = seen.observed_seconds;
    let journal: u64 = seen.file_systems.iter().map(|view| view.journal.total()).sum();
    let unattributed: u64 = seen.file_systems.iter().map(|view| view.unattributed.total()).sum();
    let commits: u64 = seen.file_systems.iter().map(|view| view.commits).sum();
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let percent = if journal == 0 { 0.0 } else { 100.0 * unattributed as f64 / journal as f64 };
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let commits = commits as f64 / seconds.max(1e-9);
    format!(
        "{seconds:.1} s: {commits:.1} commits/s, journal {}, {percent:.1} % of it unattributed",
        rate(journal, seconds)
    )
}

/// The active containers, largest value first.
fn sorted(seen: &Observation, key: SortKey) -> Vec<&ContainerView> {
    let mut views: Vec<&ContainerView> = seen.containers.iter().collect();
    #[expect(clippy::cast_precision_loss, reason = "order of sizes, of which the largest 16 digits decide")]
    let size = |view: &ContainerView| match key {
        SortKey::Journal => view.journal_total().total() as f64,
        SortKey::Data => (view.read_bytes + view.written_bytes) as f64,
        SortKey::Device => view.device_seconds,
        SortKey::Fsync => view.fsync.quantile_us(0.99).unwrap_or(0) as f64,
        SortKey::Waited => waited_for_others(seen, view),
        SortKey::Name => 0.0,
    };
    views.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.identity.name.cmp(&b.identity.name)));
    views
}

fn row(seen: &Observation, view: &ContainerView) -> Vec<String> {
    let seconds = seen.observed_seconds;
    let n_syncs = view.fsync.count();
    let culprit = seen.top_culprit(&view.identity).filter(|(_, seconds)| *seconds >= 0.0005);
    #[expect(clippy::cast_precision_loss, reason = "one digit is shown")]
    let syncs = if n_syncs == 0 { "-".to_owned() } else { format!("{:.1}/s", n_syncs as f64 / seconds.max(1e-9)) };
    vec![
        view.identity.name.clone(),
        view.identity.kind.word().to_owned(),
        rate(view.read_bytes, seconds),
        rate(view.written_bytes, seconds),
        rate(view.journal_total().total(), seconds),
        // No container has device time: there was no I/O, or the host does not measure it.
        if seen.containers.iter().all(|view| view.device_seconds <= 0.0) {
            "-".to_owned()
        } else {
            format!("{:.0} %", 100.0 * view.device_seconds / seconds.max(1e-9))
        },
        share(seen, view),
        syncs,
        latency(view.fsync.quantile_us(0.5)),
        latency(view.fsync.quantile_us(0.99)),
        waited(waited_for_others(seen, view)),
        culprit.map_or_else(String::new, |(culprit, _)| culprit.name.clone()),
    ]
}

/// The achieved and the target share of a device: by weights, or with a hold, of I/O that includes the journal's.
fn share(seen: &Observation, view: &ContainerView) -> String {
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    let device = view.main_device();
    // A container with only journal I/O has no main device.
    let is_here = |hold: &&HoldView| device.is_none_or(|device| device.device == hold.hold.device.as_str());
    let held =
        seen.holds.iter().filter(is_here).find_map(|hold| seen.standing(&view.identity, hold.hold.device.as_str()));
    match (held, device) {
        (Some(held), _) => format!("{}/{} held", percent(held.achieved_share), percent(held.target_share)),
        (None, Some(device)) => {
            let target = device.target_share.map_or_else(|| "-".to_owned(), percent);
            format!("{}/{target} %", percent(device.achieved_share))
        }
        (None, None) => "-".to_owned(),
    }
}

/// One line about the hold on each device.
fn hold_lines(seen: &Observation) -> Vec<String> {
    let line = |view: &HoldView| {
        let errors = view.standings.iter().filter(|standing| standing.contends);
        let worst = errors.map(|standing| (standing.achieved_share - standing.target_share).abs()).reduce(f64::max);
        let worst = worst.map_or_else(String::new, |worst| format!(", at most {:.1} points off", 100.0 * worst));
        format!("shares of {}: {} ({} corrections{worst})", view.hold.device, view.reason, view.corrections)
    };
    seen.holds.iter().map(line).collect()
}

fn waited_for_others(seen: &Observation, view: &ContainerView) -> f64 {
    let others = seen.blame.iter().filter(|blame| blame.victim == view.identity);
    others
        .filter(|blame| blame.culprit.as_ref().is_some_and(|culprit| *culprit != view.identity))
        .map(|b| b.seconds)
        .sum()
}
