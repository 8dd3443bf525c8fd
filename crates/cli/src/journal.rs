//! `bulkhead journal`: the cost of system calls in journal bytes.

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::observe::cost::CallCost;
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::journal_cost::{self, Features, Request};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::tool::find_program;

use crate::args::JournalCalibrateArgs;
use crate::demo::fault;
use crate::output::{Output, table};
use crate::progress::Steps;

/// Column titles.
const HEADERS: [&str; 8] = ["call", "mean", "std dev", "cv", "paper", "paper's cv", "per commit", "per call"];

/// Measures the costs of system calls, and prints them next to the paper's.
///
/// # Errors
/// `PermissionDenied` without root, `Unsupported` without `mkfs` for one of the file systems, and errors of the measurement.
pub(crate) fn calibrate(args: &JournalCalibrateArgs, output: &Output) -> Result<(), Fault> {
    let object = "journal calibration";
    if !rustix::process::geteuid().is_root() {
        return Err(
            Fault::new(Code::PermissionDenied, object, "creating a file system requires root").hint("run it with sudo")
        );
    }
    let requested = |features: &Features| args.features.is_empty() || args.features.contains(features);
    let features: Vec<Features> = Features::ALL.into_iter().filter(requested).collect();
    if let Some((program, package)) =
        features.iter().map(|features| features.mkfs()).find(|(program, _)| find_program(program).is_none())
    {
        let missing = Fault::new(Code::Unsupported, object, format!("{program} is not installed"));
        return Err(missing.hint(format!("install the Debian package {package}, or choose others with --features")));
    }
    let request = Request { features, n_runs: args.runs, n_calls: args.calls, cancel: Cancel::new() };
    request.cancel.on_signals().map_err(|error| fault(object, error))?;
    let mut steps = Steps::new("calibrate", "{prefix} {bar:24} {pos}/{len} {elapsed} {msg}", output);
    let (mut measured, of) = (Vec::new(), journal_cost::n_steps(&request));
    journal_cost::measure(&Roots::host(), &request, &mut |one| {
        measured.push(one);
        steps.step(measured.len() as u64, of as u64, &format!("{} on {}", one.call.word(), one.features.name()));
        Ok(())
    })
    .map_err(|error| fault(object, error))?;
    drop(steps);
    let costs = journal_cost::costs(&request, &measured);
    if output.is_json() {
        return output.json(&costs);
    }
    let mut lines = Vec::new();
    for features in &request.features {
        let title = format!("{}: KiB for {} calls, {} runs", features.title(), request.n_calls, request.n_runs);
        lines.extend([title, String::new()]);
        let rows: Vec<Vec<String>> = costs.iter().filter(|cost| cost.features == features.name()).map(row).collect();
        lines.extend(table(&HEADERS, &rows));
        lines.push(String::new());
    }
    lines.pop();
    output.lines(&lines)
}

fn row(cost: &CallCost) -> Vec<String> {
    let paper = cost.paper.map_or_else(<[String; 2]>::default, |paper| {
        [format!("{:.1}", paper.mean_kib), format!("{:.3}", paper.variation)]
    });
    let [paper_mean, paper_variation] = paper;
    vec![
        cost.call.word().to_owned(),
        format!("{:.1}", cost.mean_kib),
        format!("{:.1}", cost.deviation_kib),
        format!("{:.3}", cost.variation),
        paper_mean,
        paper_variation,
        format!("{:.1} KiB", cost.per_commit_bytes / 1024.0),
        format!("{:.0} B", cost.per_call_bytes),
    ]
}
