//! `bulkhead profile`: what a running container demands of its host, for `bulkhead plan`.
//!
//! Owns: what is printed, and the demand's file. Does not: find the container (`find`), or measure (`bulkhead_measure::profile`).

mod find;

use std::time::Duration;

use bulkhead_core::demand::{Demand, Purpose};
use bulkhead_core::error::Fault;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::profile::{self, Figure, Operation, Profile, Request};
use bulkhead_sys::roots::Roots;

use crate::args::ProfileArgs;
use crate::demo::{cannot_write, fault};
use crate::output::{Output, block};
use crate::parse::invalid;
use crate::progress::Steps;

/// Watches a container, and prints what it demands.
///
/// # Errors
/// `NotFound` for an unknown container, `InvalidArgument` for an ambiguous name, and errors of the measurement.
pub(crate) fn run(args: &ProfileArgs, output: &Output) -> Result<(), Fault> {
    let limit = Duration::from_secs(args.seconds);
    let cgroup = find::cgroup(&Roots::host(), &args.target)?;
    if cgroup.is_root() {
        let cause = "it is in the root cgroup, which is no container";
        return Err(invalid(format!("container {:?}", args.target), cause));
    }
    let cancel = Cancel::new();
    cancel.on_signals().map_err(|error| fault("profile", error))?;
    let mut steps = Steps::new("profile", "{prefix} {bar:24} {elapsed} of at most {len} s {msg}", output);
    let request = Request { cgroup: cgroup.clone(), limit, cancel };
    let mut on_window = |seconds: u64| steps.step(seconds, args.seconds, "watching");
    let profile = profile::run(&request, &mut on_window);
    drop(steps);
    let profile = profile.map_err(|error| fault("profile", error))?;
    if let Some(path) = &args.demand {
        let mut text = serde_json::to_string_pretty(&profile.demand).map_err(|error| fault("profile", error.into()))?;
        text.push('\n');
        std::fs::write(path, text).map_err(|error| cannot_write(path, &error))?;
    }
    if output.is_json() {
        return output.json(&profile);
    }
    output.lines(&lines(&args.target, &cgroup.to_string(), &profile))?;
    if !profile.unstable.is_empty() {
        let what = profile.unstable.join(", ");
        output.say(&format!("not stable within 10 %: {what}; the load changes, or watch it longer with --for"));
    }
    Ok(())
}

fn lines(target: &str, cgroup: &str, profile: &Profile) -> Vec<String> {
    let demand = &profile.demand;
    let figure = |figure: &Figure, unit: &str| {
        let part = if figure.mean > 0.0 { 100.0 * figure.half / figure.mean } else { 0.0 };
        format!("{} {unit} +- {part:.0} %", rounded(figure.mean))
    };
    let mut fields = vec![
        ("container", target.to_owned()),
        ("cgroup", cgroup.to_owned()),
        ("watched", format!("{:.0} s", profile.seconds)),
        ("operation", profile.operation.as_str().to_owned()),
        ("operations", figure(&profile.per_s, "per second")),
        ("processor", figure(&profile.cpu_us, "us each")),
        (
            "clients",
            format!("{}, thinking {:.3} ms between two operations", demand.clients, demand.think_seconds * 1e3),
        ),
    ];
    if profile.durables.mean > 0.0 && profile.operation != Operation::DurableWrite {
        fields.push(("durable writes", figure(&profile.durables, "each")));
    }
    if let Some(durable) = &demand.durable {
        fields.push(("chain", format!("{:.2} durable writes one after the other in each", durable.chain)));
    }
    fields.extend(demand.requests.iter().map(|requests| {
        let of_device = match requests.purpose {
            Purpose::Direct => "",
            Purpose::Cached => ", from the page cache or the device",
            Purpose::WriteBack => ", written back later",
        };
        let size = requests.bytes / 1024.0;
        (requests.access.as_str(), format!("{} each of {size:.1} KiB{of_device}", rounded(requests.per_operation)))
    }));
    fields.extend(miss(demand));
    fields.push(("memory", format!("{} beside the page cache", demand.memory)));
    let notes: Vec<String> = profile.notes.iter().map(|note| (*note).to_owned()).collect();
    block(&fields, &notes)
}

fn miss(demand: &Demand) -> Option<(&'static str, String)> {
    let point = demand.miss_ratios.0.last()?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a size")]
    let bytes = Bytes(point.bytes as u64);
    Some(("page cache", format!("{:.1} % of the reads miss with {bytes}", 100.0 * point.miss)))
}

/// Three digits.
fn rounded(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        1.0..10.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}
