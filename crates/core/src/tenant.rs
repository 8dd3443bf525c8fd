//! Plans that create, change and remove the cgroups of a tenant ([`crate::slices`] has their names).
//!
//! Owns: which cgroups, weights and limits a tenant has. Does not: carry out a plan.
//!
//! Controllers io and memory are enabled along the path of a cgroup when it is created. Controller cpu is optional:
//! [`prioritize_serving`]. Journal threads and servers have cgroups of their own because a kernel thread in the
//! container's own cgroup makes freeze and rmdir fail (docs/DECISIONS.md, K1).

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::action::{Action, CgroupAction, Record, StateAction};
use crate::cgroup::CgroupPath;
use crate::model::{IoLimit, Tenant};
use crate::name::Name;
use crate::slices::{self, journal, payload, server};
use crate::units::DevNo;

/// Cgroup files with a weight.
pub const WEIGHT_FILES: [&str; 2] = ["io.weight", "io.bfq.weight"];

/// The controller that [`prioritize_serving`] needs.
pub const CPU: &str = "cpu";

/// `cpu.weight` of the cgroups whose threads serve I/O, 1 to 10000: the maximum (kernel `CGROUP_WEIGHT_MAX`). Every
/// fsync of the tenant waits for these threads, which run for microseconds: queued behind the payload, they delay it by
/// more time than they use. They never get a `cpu.max`, which would block all waiters.
pub const SERVING_CPU_WEIGHT: u32 = 10_000;

/// Moves the processes that version 0.1 started for a tenant, including those of `runs`, into the current cgroups.
/// Containers of other programs stay in the old slice, with its weights.
#[must_use]
pub fn move_version_0_1_processes(tenant: &Name, payload_of_0_1: &CgroupPath, runs: &[u32]) -> Vec<Action> {
    // Without units: systemd cannot adopt them.
    let of_run = |pid: &u32| {
        let name = slices::run(*pid, false);
        (slices::below(payload_of_0_1, &name), slices::below(&payload(tenant), &name))
    };
    let all = std::iter::once((payload_of_0_1.clone(), payload(tenant))).chain(runs.iter().map(of_run));
    all.map(|(from, to)| Action::Cgroup(CgroupAction::MoveProcesses { from, to })).collect()
}

/// A tenant's limits with their devices resolved.
pub type ResolvedLimits = Vec<(DevNo, IoLimit)>;

/// Records a tenant and creates its cgroups. Applied again, it repairs whatever is missing. `weight_files` are those of
/// [`WEIGHT_FILES`] that the running kernel has.
#[must_use]
pub fn create(record_path: PathBuf, tenant: &Tenant, weight_files: &[&str], limits: &ResolvedLimits) -> Vec<Action> {
    let record =
        Action::State(StateAction::WriteRecord { path: record_path, record: Box::new(Record::Tenant(tenant.clone())) });
    [vec![record], cgroups(tenant, weight_files, limits)].concat()
}

/// Creates the cgroups of a recorded tenant and sets weights and limits.
#[must_use]
pub fn cgroups(tenant: &Tenant, weight_files: &[&str], limits: &ResolvedLimits) -> Vec<Action> {
    let leaves = [payload, journal, server].map(|leaf| leaf(&tenant.name));
    let made = std::iter::once(slices::tenant(&tenant.name))
        .chain(leaves)
        .map(|cgroup| Action::Cgroup(CgroupAction::CreateCgroup { cgroup }));
    [made.collect(), weights(tenant, weight_files), io_max(tenant, limits)].concat()
}

/// Gives the threads that serve a tenant's I/O precedence over its processes: enables controller cpu from the root
/// down, and raises the weight of the cgroups next to `payload`. The slice keeps the default weight: a share is one of
/// I/O, not of CPU time.
///
/// The tenant's cgroups must exist. Applied again, it repairs what was disabled in the meantime.
#[must_use]
pub fn prioritize_serving(tenant: &Name) -> Vec<Action> {
    let above = [CgroupPath::root(), slices::root(), slices::tenant(tenant)];
    let enabled =
        above.map(|cgroup| Action::Cgroup(CgroupAction::EnableController { cgroup, controller: CPU.to_owned() }));
    let weighted = [journal(tenant), server(tenant)].map(|cgroup| {
        Action::Cgroup(CgroupAction::WriteCgroup {
            cgroup,
            file: "cpu.weight".to_owned(),
            value: SERVING_CPU_WEIGHT.to_string(),
        })
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
    let write = |file: &&str| {
        Action::Cgroup(CgroupAction::WriteCgroup {
            cgroup: slices::tenant(&tenant.name),
            file: (*file).to_owned(),
            value: format!("default {}", value(file)),
        })
    };
    weight_files.iter().map(write).collect()
}

/// Sets the tenant's hard limits.
#[must_use]
pub fn io_max(tenant: &Tenant, limits: &ResolvedLimits) -> Vec<Action> {
    let write = |(dev, limit): &(DevNo, IoLimit)| {
        Action::Cgroup(CgroupAction::WriteCgroup {
            cgroup: slices::tenant(&tenant.name),
            file: "io.max".to_owned(),
            value: io_max_line(*dev, limit),
        })
    };
    limits.iter().map(write).collect()
}

/// A line for `io.max` with all four keys; `max` means no limit.
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

/// Removes a tenant whose volumes are unmounted and whose processes have ended. `last`: there is no other tenant.
#[must_use]
pub fn remove(record_path: PathBuf, tenant: &Tenant, last: bool) -> Vec<Action> {
    let cgroups = [payload, journal, server, slices::tenant].map(|cgroup| cgroup(&tenant.name));
    let mut steps: Vec<Action> =
        cgroups.into_iter().map(|cgroup| Action::Cgroup(CgroupAction::RemoveCgroup { cgroup })).collect();
    steps.extend(last.then(remove_slice));
    steps.push(Action::State(StateAction::RemoveRecord { path: record_path }));
    steps
}

/// Removes the slice above all tenants. Nothing happens while it has any.
#[must_use]
pub fn remove_slice() -> Action {
    Action::Cgroup(CgroupAction::RemoveCgroup { cgroup: slices::root() })
}

/// Marks a tenant as being removed, so that the removal is completed after a crash.
#[must_use]
pub fn mark_removing(record_path: PathBuf, tenant: &Tenant) -> Action {
    let marked = Tenant { removing: true, ..tenant.clone() };
    Action::State(StateAction::WriteRecord { path: record_path, record: Box::new(Record::Tenant(marked)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn the_steps_that_make_a_tenant() {
        let tenant = Tenant {
            name: "db".parse().expect("a valid name"),
            share: 700.try_into().expect("a valid share"),
            limits: vec![],
            fsync_p99_us: None,
            volumes: vec![],
            created_by: None,
            removing: false,
            profile: None,
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
    fn threads_that_serve_io_have_precedence_without_a_cpu_limit() {
        let steps = prioritize_serving(&"db".parse().expect("a valid name"));
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
