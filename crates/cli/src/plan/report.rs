//! A plan as tables, and as JSON.

use std::collections::BTreeMap;

use bulkhead_advise::fleet::{FleetFile, Unknown, UnknownWhat};
use bulkhead_advise::place::{
    Alternative, Apart, Broken, Fleet, More, Place, Placement, Workload, alternatives, moves,
    one_more as predict_one_more, upper_bound,
};
use bulkhead_core::error::Fault;
use serde::Serialize;

use crate::output::{Output, table};

/// Other places that are shown for a workload.
const ALTERNATIVES: usize = 2;
/// Up to this many workloads each has its other places shown; beyond, that takes long and nobody reads it.
const EXPLAINED: usize = 64;

#[derive(Serialize)]
struct PlanView<'a> {
    sum: f64,
    upper_bound: Option<f64>,
    is_best: bool,
    workloads: Vec<WorkloadView<'a>>,
    hosts: Vec<HostView<'a>>,
    moves: Vec<MoveView<'a>>,
    broken: Vec<String>,
    corrections: Vec<CorrectionView<'a>>,
    /// What predictions are without.
    unknown: Vec<String>,
}

/// What a workload achieved alone, and by how much predictions are corrected by it.
#[derive(Serialize)]
struct CorrectionView<'a> {
    workload: &'a str,
    place: String,
    measured_per_s: f64,
    predicted_per_s: f64,
    corrected_per_s: f64,
    correction_ms: f64,
}

#[derive(Serialize)]
struct WorkloadView<'a> {
    name: &'a str,
    place: String,
    normalised: f64,
    per_s: f64,
    mean_ms: f64,
    p99_ms: f64,
    fsync_p99_ms: Option<f64>,
    miss_ratio: f64,
    limit: &'static str,
    rejected: Vec<RejectedView<'a>>,
}

#[derive(Serialize)]
struct RejectedView<'a> {
    place: String,
    change: f64,
    hurts: Option<&'a str>,
    hurts_from: Option<f64>,
    hurts_to: Option<f64>,
    breaks: Vec<String>,
}

#[derive(Serialize)]
struct HostView<'a> {
    name: &'a str,
    cpu: f64,
    devices: BTreeMap<&'a str, f64>,
}

#[derive(Serialize)]
struct MoveView<'a> {
    workload: &'a str,
    from: String,
    to: String,
    gain: f64,
    bytes: u64,
}

#[derive(Serialize)]
struct MoreView<'a> {
    place: String,
    own: f64,
    cost: f64,
    hurts: Option<&'a str>,
    hurts_from: Option<f64>,
    hurts_to: Option<f64>,
    breaks: Vec<String>,
}

pub(super) fn place_name(fleet: &Fleet, place: Place) -> String {
    let machine = &fleet.machines[place.machine];
    format!("{}/{}", machine.name, machine.devices[place.device].name)
}

fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// The name of a workload; the one behind the last is a copy that is asked about.
fn workload_name(fleet: &Fleet, workload: usize) -> &str {
    fleet.workloads.get(workload).map_or("the new one", |workload| &workload.name)
}

/// A broken constraint in words; `new` is the workload behind the last.
pub(super) fn broken(fleet: &Fleet, broken: &Broken, new: Option<&Workload>) -> String {
    let name = |workload: usize| workload_name(fleet, workload);
    let its = |workload: usize| fleet.workloads.get(workload).or(new);
    match broken {
        Broken::Space { place, missing } => format!("{} lacks {missing} of space", place_name(fleet, *place)),
        Broken::Memory { machine, missing } => format!("{} lacks {missing} of memory", fleet.machines[*machine].name),
        Broken::Floor { workload, normalised } => {
            let floor = its(*workload).map_or(0.0, |its| its.floor);
            format!(
                "{} keeps {} of its throughput, less than {}",
                name(*workload),
                percent(*normalised),
                percent(floor)
            )
        }
        Broken::Fsync { workload, p99 } => {
            let most = its(*workload).and_then(|its| its.fsync_p99).unwrap_or(0.0);
            format!("an fsync of {} takes {:.1} ms, more than {:.1} ms", name(*workload), p99 * 1e3, most * 1e3)
        }
        Broken::Together { workload, with } => {
            let group = fleet.workloads[*with].group.map(|group| &fleet.groups[group]);
            let apart = group.map_or("hosts", |group| if group.apart == Apart::Hosts { "hosts" } else { "domains" });
            format!("{} and {} are not on different {apart}", name(*with), name(*workload))
        }
        Broken::Elsewhere { workload } => format!("{} is on a host that `only` does not name", name(*workload)),
    }
}

/// Why not there, in words.
fn rejected(fleet: &Fleet, other: &Alternative) -> String {
    let place = place_name(fleet, other.place);
    if let Some(first) = other.breaks.first() {
        return format!("not {place}: {}", broken(fleet, first, None));
    }
    match other.hurts {
        Some((hurt, before, after)) if before - after > 0.005 => {
            format!(
                "{place} {:+.2}: {} from {} to {}",
                other.change,
                workload_name(fleet, hurt),
                percent(before),
                percent(after)
            )
        }
        _ => format!("{place} {:+.2}", other.change),
    }
}

/// Prints a plan.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn plan(file: &FleetFile, placement: &Placement, has_moves: bool, output: &Output) -> Result<(), Fault> {
    let fleet = &file.fleet;
    let is_explained = fleet.workloads.len() <= EXPLAINED;
    let others = if is_explained {
        alternatives(fleet, &placement.places, ALTERNATIVES)
    } else {
        vec![Vec::new(); fleet.workloads.len()]
    };
    let moves = if has_moves { moves(fleet, &placement.places) } else { Vec::new() };
    let bound = upper_bound(fleet);
    if output.is_json() {
        return output.json(&view(file, placement, &others, &moves, bound));
    }
    let rows: Vec<Vec<String>> = (0..fleet.workloads.len())
        .map(|at| {
            let achieved = &placement.achieved[at];
            vec![
                fleet.workloads[at].name.clone(),
                place_name(fleet, placement.places[at]),
                percent(placement.normalised[at]),
                format!("{:.0}/s", achieved.per_s),
                achieved.fsync.map_or_else(|| "-".to_owned(), |fsync| format!("{:.1} ms", fsync.p99 * 1e3)),
                achieved.limit.as_str().to_owned(),
            ]
        })
        .collect();
    let mut lines = table(&["workload", "place", "of alone", "operations", "fsync p99", "limit"], &rows);
    let mut why: Vec<Vec<String>> = Vec::new();
    for (workload, others) in fleet.workloads.iter().zip(&others) {
        for (index, other) in others.iter().enumerate() {
            let name = if index == 0 { workload.name.clone() } else { String::new() };
            why.push(vec![name, rejected(fleet, other)]);
        }
    }
    if !why.is_empty() {
        lines.push(String::new());
        lines.extend(table(&["workload", "elsewhere"], &why));
    }
    lines.push(String::new());
    let hosts: Vec<Vec<String>> = fleet
        .machines
        .iter()
        .zip(&placement.uses)
        .filter(|(_, uses)| is_explained || uses.cpu > 0.0)
        .map(|(machine, uses)| {
            let device =
                |(device, part): (&bulkhead_advise::place::Device, &f64)| format!("{} {}", device.name, percent(*part));
            let devices: Vec<String> = machine.devices.iter().zip(&uses.devices).map(device).collect();
            vec![machine.name.clone(), percent(uses.cpu), devices.join(", ")]
        })
        .collect();
    lines.extend(table(&["host", "processors", "devices"], &hosts));
    output.lines(&lines)?;
    let n = fleet.workloads.len();
    let how = match (has_moves, placement.is_best) {
        (false, _) => "as it is today",
        (true, true) => "the best placement by this model",
        (true, false) => "the best placement found",
    };
    let most = bound.map_or_else(String::new, |bound| format!("; none reaches more than {bound:.2}"));
    output.say(&format!("together {:.2} of {n}: {how}{most}", placement.sum));
    for (at, gain) in moves {
        let from = fleet.workloads[at].now.map(|now| place_name(fleet, now)).unwrap_or_default();
        let (name, space, to) =
            (&fleet.workloads[at].name, fleet.workloads[at].space, place_name(fleet, placement.places[at]));
        output.say(&format!("move {name} from {from} to {to}: {gain:+.2}, up to {space} to copy"));
    }
    for its in &file.corrections {
        output.say(&format!(
            "{} alone on {}: {:.0}/s, predicted {:.0}/s: corrected by {:+.2} ms for each operation",
            its.workload,
            place_name(fleet, its.place),
            its.per_s,
            its.without * its.per_s,
            its.seconds * 1e3
        ));
    }
    for one in &placement.broken {
        output.say(&format!("broken: {}", broken(fleet, one, None)));
    }
    unknown(file, output);
    Ok(())
}

/// Says what predictions are without.
pub(super) fn unknown(file: &FleetFile, output: &Output) {
    for one in &file.unknown {
        output.say(&unknown_in_words(one));
    }
}

fn unknown_in_words(unknown: &Unknown) -> String {
    let host = &unknown.host;
    match &unknown.what {
        UnknownWhat::Device(device) => {
            format!("without {host}/{device}, which has no costs: run `bulkhead device costs DIRECTORY --save` there")
        }
        UnknownWhat::Demand(tenant) => {
            format!(
                "without {tenant} on {host}, whose demand is not known: run `bulkhead profile {tenant} --save` there"
            )
        }
        UnknownWhat::Place(tenant) => {
            format!("without {tenant} on {host}, which has no volumes on a device with costs")
        }
        UnknownWhat::LeftOut(n) => format!("without {n} tenants that the report of {host} left out"),
    }
}

fn view<'a>(
    file: &'a FleetFile,
    placement: &Placement,
    others: &[Vec<Alternative>],
    moves: &[(usize, f64)],
    upper_bound: Option<f64>,
) -> PlanView<'a> {
    let fleet = &file.fleet;
    let corrections = file.corrections.iter().map(|its| CorrectionView {
        workload: &its.workload,
        place: place_name(fleet, its.place),
        measured_per_s: its.per_s,
        predicted_per_s: its.without * its.per_s,
        corrected_per_s: its.with * its.per_s,
        correction_ms: its.seconds * 1e3,
    });
    let rejected = |other: &Alternative| RejectedView {
        place: place_name(fleet, other.place),
        change: other.change,
        hurts: other.hurts.map(|(hurt, ..)| workload_name(fleet, hurt)),
        hurts_from: other.hurts.map(|(_, before, _)| before),
        hurts_to: other.hurts.map(|(.., after)| after),
        breaks: other.breaks.iter().map(|one| broken(fleet, one, None)).collect(),
    };
    let workload = |at: usize| {
        let achieved = &placement.achieved[at];
        WorkloadView {
            name: &fleet.workloads[at].name,
            place: place_name(fleet, placement.places[at]),
            normalised: placement.normalised[at],
            per_s: achieved.per_s,
            mean_ms: achieved.operation.mean * 1e3,
            p99_ms: achieved.operation.p99 * 1e3,
            fsync_p99_ms: achieved.fsync.map(|fsync| fsync.p99 * 1e3),
            miss_ratio: achieved.miss,
            limit: achieved.limit.as_str(),
            rejected: others[at].iter().map(rejected).collect(),
        }
    };
    let moved = |(at, gain): &(usize, f64)| MoveView {
        workload: &fleet.workloads[*at].name,
        from: fleet.workloads[*at].now.map(|now| place_name(fleet, now)).unwrap_or_default(),
        to: place_name(fleet, placement.places[*at]),
        gain: *gain,
        bytes: fleet.workloads[*at].space.0,
    };
    let host = |(machine, uses): (&'a bulkhead_advise::place::Machine, &bulkhead_advise::place::Use)| HostView {
        name: &machine.name,
        cpu: uses.cpu,
        devices: machine.devices.iter().map(|device| device.name.as_str()).zip(uses.devices.iter().copied()).collect(),
    };
    PlanView {
        sum: placement.sum,
        upper_bound,
        is_best: placement.is_best,
        corrections: corrections.collect(),
        workloads: (0..fleet.workloads.len()).map(workload).collect(),
        hosts: fleet.machines.iter().zip(&placement.uses).map(host).collect(),
        moves: moves.iter().map(moved).collect(),
        broken: placement.broken.iter().map(|one| broken(fleet, one, None)).collect(),
        unknown: file.unknown.iter().map(unknown_in_words).collect(),
    }
}

/// Prints what one more copy of a workload achieves and costs on each host.
///
/// # Errors
/// When standard output cannot be written.
pub(super) fn one_more(file: &FleetFile, placement: &Placement, new: &Workload, output: &Output) -> Result<(), Fault> {
    let fleet = &file.fleet;
    let found = predict_one_more(fleet, &placement.places, new);
    let hurt = |more: &More| more.hurts.filter(|(_, before, after)| before - after > 0.005);
    if output.is_json() {
        let view = |more: &More| MoreView {
            place: place_name(fleet, more.place),
            own: more.own,
            cost: more.cost,
            hurts: hurt(more).map(|(hurt, ..)| workload_name(fleet, hurt)),
            hurts_from: hurt(more).map(|(_, before, _)| before),
            hurts_to: hurt(more).map(|(.., after)| after),
            breaks: more.breaks.iter().map(|one| broken(fleet, one, Some(new))).collect(),
        };
        return output.json(&found.iter().map(view).collect::<Vec<_>>());
    }
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|more| {
            let breaks: Vec<String> = more.breaks.iter().map(|one| broken(fleet, one, Some(new))).collect();
            let most = hurt(more).map(|(hurt, before, after)| {
                format!("{} from {} to {}", workload_name(fleet, hurt), percent(before), percent(after))
            });
            vec![
                place_name(fleet, more.place),
                percent(more.own),
                percent(more.cost),
                most.unwrap_or_else(|| "-".to_owned()),
                if breaks.is_empty() { "-".to_owned() } else { breaks.join("; ") },
            ]
        })
        .collect();
    output.lines(&table(&["place", "it gets", "costs the others", "most", "breaks"], &rows))
}
