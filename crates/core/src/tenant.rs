//! The cgroups of a tenant, and the plans that make, change and remove them.
//!
//! ```text
//! bulkhead.slice/bulkhead-db.slice        io.weight, io.bfq.weight, io.max; cpu.weight left at 100
//!     bulkhead-db-payload.slice           what `bulkhead run` started, each in a cgroup of its own; cpu.weight left at 100
//!     bulkhead-db-journal.slice           journal threads of the tenant's volumes; cpu.weight 10000
//!     bulkhead-db-server.slice            block servers of the tenant's volumes; cpu.weight 10000
//!     docker-<id>.scope, ...              containers that were started with --cgroup-parent bulkhead-db.slice
//! ```
//! The names are those of systemd's slice units (systemd.slice(5): a dash leads one level down, so that a dash in a tenant's name
//! is escaped). Where systemd is process 1 they are units, otherwise plain cgroups of the same names.
//!
//! Controllers io and memory are enabled along that path by whoever makes a cgroup. Controller cpu is wanted and can be done
//! without: [`serve_first`].
//! Journal threads and servers have cgroups of their own because a kernel thread in the container's own cgroup makes freeze and rmdir
//! fail (docs/DECISIONS.md, K1).

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::action::{Action, Record};
use crate::model::{IoLimit, Tenant};
use crate::name::Name;
use crate::units::DevNo;

/// The cgroup above all tenants.
pub const ROOT_SLICE: &str = "bulkhead.slice";

/// Cgroup files that hold a weight, and the form of the value that each takes.
pub const WEIGHT_FILES: [&str; 2] = ["io.weight", "io.bfq.weight"];

/// The controller that [`serve_first`] needs.
pub const CPU: &str = "cpu";

/// `cpu.weight` of the leaves whose threads serve I/O, 1 to 10000: the largest (kernel `CGROUP_WEIGHT_MAX`). Every fsync of the
/// tenant waits for these threads, and they run for microseconds: queued behind the payload, they cost it more time than they
/// take. There is never a `cpu.max` for them, which would stop everybody who waits.
pub const SERVING_CPU_WEIGHT: u32 = 10_000;

/// What the names of all slices of tenants begin with.
const PREFIX: &str = "bulkhead-";

/// What they end with.
const SUFFIX: &str = ".slice";

/// A dash in a part of a unit's name (systemd-escape(1)).
const ESCAPED_DASH: &str = "\\x2d";

/// The unit of the tenant's slice, which runtimes take as the parent of a container.
#[must_use]
pub fn slice_unit(tenant: &Name) -> String {
    format!("{PREFIX}{}{SUFFIX}", escaped(tenant))
}

/// The tenant's slice.
#[must_use]
pub fn slice(tenant: &Name) -> String {
    format!("{ROOT_SLICE}/{}", slice_unit(tenant))
}

/// The name of the tenant that has this cgroup, the one right below [`ROOT_SLICE`].
#[must_use]
pub fn tenant_of(part: &str) -> Option<String> {
    let name = part.strip_suffix(SUFFIX)?;
    // Without the prefix it was made by 0.1.
    Some(name.strip_prefix(PREFIX).unwrap_or(name).replace(ESCAPED_DASH, "-"))
}

fn escaped(tenant: &Name) -> String {
    tenant.as_str().replace('-', ESCAPED_DASH)
}

fn part(tenant: &Name, what: &str) -> String {
    format!("{}/{PREFIX}{}-{what}{SUFFIX}", slice(tenant), escaped(tenant))
}

/// Where `bulkhead run` runs the tenant's processes.
#[must_use]
pub fn payload(tenant: &Name) -> String {
    part(tenant, "payload")
}

/// What the cgroup of one run is called, by the process that waits for it: what its command leaves behind can be told and ended. Where
/// systemd is process 1 it is a scope unit, and named like one.
#[must_use]
pub fn run(pid: u32, by_systemd: bool) -> String {
    if by_systemd { format!("bulkhead-run-{pid}.scope") } else { format!("run-{pid}") }
}

/// The run that a cgroup is called by, in either way.
#[must_use]
pub fn run_of(cgroup: &str) -> Option<u32> {
    let scope = || cgroup.strip_prefix("bulkhead-run-")?.strip_suffix(".scope");
    cgroup.strip_prefix("run-").or_else(scope)?.parse().ok()
}

/// Where the journal threads of the tenant's volumes run.
#[must_use]
pub fn journal(tenant: &Name) -> String {
    part(tenant, "journal")
}

/// Where the block servers of the tenant's volumes run.
#[must_use]
pub fn server(tenant: &Name) -> String {
    part(tenant, "server")
}

/// The slice that version 0.1 made for a tenant, and where its processes run. `None` where that is another tenant's slice today.
#[must_use]
pub fn slice_of_0_1(tenant: &Name) -> Option<(String, String)> {
    let slice = format!("{ROOT_SLICE}/{tenant}{SUFFIX}");
    let payload = format!("{slice}/payload");
    (!tenant.as_str().starts_with(PREFIX)).then_some((slice, payload))
}

/// Takes over the processes that version 0.1 started for a tenant, those of `runs` among them. Containers of other programs in its slice
/// stay there, with the weights that it has.
#[must_use]
pub fn take_over(tenant: &Name, payload_of_0_1: &str, runs: &[u32]) -> Vec<Action> {
    // Without units: systemd has no way to learn of them.
    let of_run = |pid: &u32| {
        let name = run(*pid, false);
        (format!("{payload_of_0_1}/{name}"), format!("{}/{name}", payload(tenant)))
    };
    let all = std::iter::once((payload_of_0_1.to_owned(), payload(tenant))).chain(runs.iter().map(of_run));
    all.map(|(from, to)| Action::MoveProcesses { from, to }).collect()
}

/// A tenant's limits with their devices resolved.
pub type ResolvedLimits = Vec<(DevNo, IoLimit)>;

/// Records a tenant and makes its cgroups. Applied again, it repairs whatever is missing.
/// `weight_files` are the files of [`WEIGHT_FILES`] that the running kernel has.
#[must_use]
pub fn create(record_path: PathBuf, tenant: &Tenant, weight_files: &[&str], limits: &ResolvedLimits) -> Vec<Action> {
    let record = Action::WriteRecord { path: record_path, record: Box::new(Record::Tenant(tenant.clone())) };
    [vec![record], cgroups(tenant, weight_files, limits)].concat()
}

/// Makes the cgroups of a recorded tenant and sets weights and limits.
#[must_use]
pub fn cgroups(tenant: &Tenant, weight_files: &[&str], limits: &ResolvedLimits) -> Vec<Action> {
    let leaves = [payload, journal, server].map(|leaf| leaf(&tenant.name));
    let made = std::iter::once(slice(&tenant.name)).chain(leaves).map(|cgroup| Action::CreateCgroup { cgroup });
    [made.collect(), weights(tenant, weight_files), io_max(tenant, limits)].concat()
}

/// Has the threads that serve a tenant's I/O scheduled before its processes: enables controller cpu from the root down, and
/// raises the weight of the leaves beside `payload`. The slice keeps the default weight: a share is one of I/O, not of CPU time.
///
/// For a tenant whose cgroups are there. Applied again, it repairs what somebody disabled.
#[must_use]
pub fn serve_first(tenant: &Name) -> Vec<Action> {
    let above = ["/".to_owned(), ROOT_SLICE.to_owned(), slice(tenant)];
    let enabled = above.map(|cgroup| Action::EnableController { cgroup, controller: CPU.to_owned() });
    let weighted = [journal(tenant), server(tenant)].map(|cgroup| Action::WriteCgroup {
        cgroup,
        file: "cpu.weight".to_owned(),
        value: SERVING_CPU_WEIGHT.to_string(),
    });
    enabled.into_iter().chain(weighted).collect()
}

/// Sets the tenant's share in every weight file that the kernel has.
#[must_use]
pub fn weights(tenant: &Tenant, weight_files: &[&str]) -> Vec<Action> {
    let value = |file: &str| match file {
        "io.bfq.weight" => tenant.share.bfq_weight(),
        _ => tenant.share.weight(),
    };
    let write = |file: &&str| Action::WriteCgroup {
        cgroup: slice(&tenant.name),
        file: (*file).to_owned(),
        value: format!("default {}", value(file)),
    };
    weight_files.iter().map(write).collect()
}

/// Sets the tenant's hard limits.
#[must_use]
pub fn io_max(tenant: &Tenant, limits: &ResolvedLimits) -> Vec<Action> {
    let write = |(dev, limit): &(DevNo, IoLimit)| Action::WriteCgroup {
        cgroup: slice(&tenant.name),
        file: "io.max".to_owned(),
        value: io_max_line(*dev, limit),
    };
    limits.iter().map(write).collect()
}

/// The line that `io.max` takes: all four keys, `max` where there is no limit.
#[must_use]
pub fn io_max_line(dev: DevNo, limit: &IoLimit) -> String {
    let mut line = dev.to_string();
    for (key, value) in [
        ("rbps", limit.read_bytes_per_second),
        ("wbps", limit.write_bytes_per_second),
        ("riops", limit.read_iops),
        ("wiops", limit.write_iops),
    ] {
        match value {
            Some(n) => write!(line, " {key}={n}"),
            None => write!(line, " {key}=max"),
        }
        .expect("writing to a string cannot fail");
    }
    line
}

/// Removes a tenant whose volumes are unmounted and whose processes are gone. `last`: no other tenant is left.
#[must_use]
pub fn remove(record_path: PathBuf, tenant: &Tenant, last: bool) -> Vec<Action> {
    let mut cgroups = [payload, journal, server, slice].map(|cgroup| cgroup(&tenant.name)).to_vec();
    if last {
        cgroups.push(ROOT_SLICE.to_owned());
    }
    let mut steps: Vec<Action> = cgroups.into_iter().map(|cgroup| Action::RemoveCgroup { cgroup }).collect();
    steps.push(Action::RemoveRecord { path: record_path });
    steps
}

/// Marks a tenant as being removed, so that a crash leaves a removal to complete.
#[must_use]
pub fn mark_removing(record_path: PathBuf, tenant: &Tenant) -> Action {
    let marked = Tenant { removing: true, ..tenant.clone() };
    Action::WriteRecord { path: record_path, record: Box::new(Record::Tenant(marked)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn a_run_is_told_by_its_cgroup() {
        for by_systemd in [false, true] {
            assert_eq!(run_of(&run(7, by_systemd)), Some(7));
        }
        for other in ["run-", "run-x", "run-7.scope", "bulkhead-run-7", "bulkhead-run-.scope", "container"] {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn the_steps_that_make_a_tenant() {
        let tenant = Tenant {
            name: "db".parse().expect("a valid name"),
            share: 700.try_into().expect("a valid share"),
            limits: vec![],
            volumes: vec![],
            removing: false,
        };
        let limit = IoLimit { device: "/dev/vda".into(), write_iops: Some(200), ..IoLimit::default() };
        let steps =
            create("/var/lib/bulkhead/tenants/db".into(), &tenant, &WEIGHT_FILES, &vec![(DevNo::new(254, 0), limit)]);
        let text: Vec<String> = steps.iter().map(ToString::to_string).collect();
        expect![[r#"
            write tenant record /var/lib/bulkhead/tenants/db
            create cgroup bulkhead.slice/bulkhead-db.slice
            create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice
            create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice
            create cgroup bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice
            write "default 700" to bulkhead.slice/bulkhead-db.slice/io.weight
            write "default 70" to bulkhead.slice/bulkhead-db.slice/io.bfq.weight
            write "254:0 rbps=max wbps=max riops=max wiops=200" to bulkhead.slice/bulkhead-db.slice/io.max"#]]
        .assert_eq(&text.join("\n"));
    }

    #[test]
    fn a_slices_name_tells_its_tenant() {
        for name in ["db", "my-db", "a.b", "db-payload", "x2d"] {
            let tenant: Name = name.parse().expect("a valid name");
            assert_eq!(tenant_of(&slice_unit(&tenant)).as_deref(), Some(name));
            // systemd makes the parent of a slice of its name: each dash is a level.
            assert_eq!(slice_unit(&tenant).matches('-').count(), 1);
            assert!(payload(&tenant).starts_with(&format!("{}/", slice(&tenant))));
        }
        assert_eq!(tenant_of("old.slice").as_deref(), Some("old"));
        assert_eq!(tenant_of("docker-1.scope"), None);
    }

    #[test]
    fn threads_that_serve_io_come_first_and_nobody_is_capped() {
        let steps = serve_first(&"db".parse().expect("a valid name"));
        let text: Vec<String> = steps.iter().map(ToString::to_string).collect();
        expect![[r#"
            enable controller cpu below cgroup /
            enable controller cpu below cgroup bulkhead.slice
            enable controller cpu below cgroup bulkhead.slice/bulkhead-db.slice
            write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice/cpu.weight
            write "10000" to bulkhead.slice/bulkhead-db.slice/bulkhead-db-server.slice/cpu.weight"#]]
        .assert_eq(&text.join("\n"));
    }
}
