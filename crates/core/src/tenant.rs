//! The cgroups of a tenant, and the plans that make, change and remove them.
//!
//! ```text
//! bulkhead.slice/<tenant>.slice      io.weight, io.bfq.weight, io.max; cpu.weight left at 100
//!     payload/                       the container's processes; cpu.weight left at 100
//!         run-<pid>/                 what one `bulkhead run` started
//!     journal/                       journal threads of the tenant's volumes; cpu.weight 10000
//!     server/                        block servers of the tenant's volumes; cpu.weight 10000
//! ```
//! Controllers io and memory are enabled along that path by whoever makes a cgroup. Controller cpu is wanted and can be done
//! without: [`serve_first`].
//! The leaves beside `payload` exist because a kernel thread in the container's own cgroup makes freeze and rmdir fail (FACTS.md §1).

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

/// The tenant's slice.
#[must_use]
pub fn slice(tenant: &Name) -> String {
    format!("{ROOT_SLICE}/{tenant}.slice")
}

/// Where the tenant's processes run.
#[must_use]
pub fn payload(tenant: &Name) -> String {
    format!("{}/payload", slice(tenant))
}

/// Where one `bulkhead run`, with this process id, runs its command: what the command leaves behind can be told and ended.
#[must_use]
pub fn run(tenant: &Name, pid: u32) -> String {
    format!("{}/run-{pid}", payload(tenant))
}

/// Where the journal threads of the tenant's volumes run.
#[must_use]
pub fn journal(tenant: &Name) -> String {
    format!("{}/journal", slice(tenant))
}

/// Where the block servers of the tenant's volumes run.
#[must_use]
pub fn server(tenant: &Name) -> String {
    format!("{}/server", slice(tenant))
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
            create cgroup bulkhead.slice/db.slice
            create cgroup bulkhead.slice/db.slice/payload
            create cgroup bulkhead.slice/db.slice/journal
            create cgroup bulkhead.slice/db.slice/server
            write "default 700" to bulkhead.slice/db.slice/io.weight
            write "default 70" to bulkhead.slice/db.slice/io.bfq.weight
            write "254:0 rbps=max wbps=max riops=max wiops=200" to bulkhead.slice/db.slice/io.max"#]]
        .assert_eq(&text.join("\n"));
    }

    #[test]
    fn threads_that_serve_io_come_first_and_nobody_is_capped() {
        let steps = serve_first(&"db".parse().expect("a valid name"));
        let text: Vec<String> = steps.iter().map(ToString::to_string).collect();
        expect![[r#"
            enable controller cpu below cgroup /
            enable controller cpu below cgroup bulkhead.slice
            enable controller cpu below cgroup bulkhead.slice/db.slice
            write "10000" to bulkhead.slice/db.slice/journal/cpu.weight
            write "10000" to bulkhead.slice/db.slice/server/cpu.weight"#]]
        .assert_eq(&text.join("\n"));
    }
}
