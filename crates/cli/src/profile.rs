//! `bulkhead profile`: what a running container demands of its host, for `bulkhead plan`.
//!
//! Owns: what is printed, and the demand's file. Does not: find the container (`find`), or measure (`bulkhead_measure::profile`).

mod find;

use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::ProfileStore;
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::demand::{Demand, Purpose};
use bulkhead_core::error::Fault;
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;
use bulkhead_measure::cgroup_run::Cancel;
use bulkhead_measure::profile::{self, Figure, Operation, Profile, Request};
use bulkhead_sys::roots::Roots;

use crate::args::ProfileArgs;
use crate::block_on;
use crate::demo::{cannot_write, fault};
use crate::output::{Output, block};
use crate::parse::{self, invalid};
use crate::progress::Steps;

/// Watches a container, and prints what it demands.
///
/// # Errors
/// `NotFound` for an unknown container, `InvalidArgument` for an ambiguous name, and errors of the measurement.
pub(crate) fn run(args: &ProfileArgs, client: &Client, output: &Output) -> Result<(), Fault> {
    let limit = Duration::from_secs(args.seconds);
    let cgroup = find::cgroup(&Roots::host(), &args.target)?;
    if cgroup.is_root() {
        let cause = "it is in the root cgroup, which is no container";
        return Err(invalid(format!("container {:?}", args.target), cause));
    }
    let workload = args.workload.as_deref().map(|text| {
        let workload: Result<Name, _> = text.parse();
        workload.map_err(|error| invalid("--workload", error))
    });
    let workload = workload.transpose()?;
    let tenant = args.save.as_deref().map(|named| tenant(&args.target, named, &cgroup)).transpose()?;
    if let Some(tenant) = &tenant {
        // Before minutes of work whose result could not be stored.
        block_on(client.tenant_inspect(tenant))?;
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
    if let Some(tenant) = tenant {
        let alone_per_s = args.alone.then_some(profile.per_s.mean);
        let request = ProfileStore { workload, demand: profile.demand.clone(), alone_per_s };
        block_on(client.profile_store(&tenant, &request, false))?;
        output.say(&format!("tenant {tenant}: demand stored"));
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

/// The tenant with which the demand is stored: the named one, or the one that the cgroup belongs to.
fn tenant(target: &str, named: &str, cgroup: &CgroupPath) -> Result<Name, Fault> {
    if !named.is_empty() {
        return parse::tenant_name(named);
    }
    let (root, cgroup) = (slices::root().to_string(), cgroup.to_string());
    let below = cgroup.strip_prefix(&root).and_then(|rest| rest.strip_prefix('/'));
    let part = below.and_then(|rest| rest.split('/').next());
    part.and_then(slices::tenant_of).and_then(|name| name.parse().ok()).ok_or_else(|| {
        invalid(format!("container {target:?}"), "it is in no tenant, and demands are stored with tenants")
            .hint("name the tenant of its volumes as `--save=TENANT`, or use `--demand FILE`")
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_is_stored_with_the_tenant_of_the_container() {
        let of = |named: &str, cgroup: &CgroupPath| tenant("x", named, cgroup).map(|name| name.to_string());
        let payload = slices::payload(&"my-db".parse().unwrap());
        assert_eq!(of("", &payload).unwrap(), "my-db");
        assert_eq!(of("other", &payload).unwrap(), "other");
        let elsewhere: CgroupPath = "system.slice/x.service".parse().unwrap();
        assert!(of("", &elsewhere).unwrap_err().to_string().contains("it is in no tenant"));
        assert_eq!(of("db", &elsewhere).unwrap(), "db");
        assert!(of("", &slices::root()).is_err() && of("a/b", &payload).is_err());
    }
}
