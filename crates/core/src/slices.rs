//! The names of tenants' cgroups, which are those of systemd slices.
//!
//! ```text
//! bulkhead.slice/bulkhead-db.slice        io.weight, io.bfq.weight, io.max; cpu.weight left at 100
//!     bulkhead-db-payload.slice           what `bulkhead run` started, each in a cgroup of its own; cpu.weight left at 100
//!     bulkhead-db-journal.slice           journal threads of the tenant's volumes; cpu.weight 10000
//!     bulkhead-db-server.slice            block servers of the tenant's volumes; cpu.weight 10000
//!     docker-<id>.scope, ...              containers that were started with --cgroup-parent bulkhead-db.slice
//! ```
//! The names are those of systemd's slice units (systemd.tenant(5): a dash separates levels, so a dash in a tenant's
//! name is escaped). Where systemd is process 1 they are units, otherwise plain cgroups of the same names.
//!
//! Owns: making and parsing the names. Does not: plan actions on cgroups ([`crate::tenant`]).

use crate::cgroup::CgroupPath;
use crate::name::Name;

/// The cgroup above all tenants.
pub const ROOT: &str = "bulkhead.slice";

/// Its path.
#[must_use]
pub fn root() -> CgroupPath {
    path(ROOT.to_owned())
}

/// The slice of workers that no tenant pays for. No tenant's slice has this name: names of tenants do not start with a
/// dot.
#[must_use]
pub fn work() -> CgroupPath {
    path(format!("{ROOT}/{PREFIX}.work{SUFFIX}"))
}

fn path(text: String) -> CgroupPath {
    CgroupPath::try_from(text).expect("names of tenants have neither slashes nor line breaks, and at most 63 bytes")
}

/// Prefix of the names of all tenants' slices.
const PREFIX: &str = "bulkhead-";

/// Suffix of the names of slices.
const SUFFIX: &str = ".slice";

/// A dash in a part of a unit's name (systemd-escape(1)).
const ESCAPED_DASH: &str = "\\x2d";

/// The unit of the tenant's slice, which container runtimes accept as a parent.
#[must_use]
pub fn unit(tenant: &Name) -> String {
    format!("{PREFIX}{}{SUFFIX}", escaped(tenant))
}

/// The tenant's slice.
#[must_use]
pub fn tenant(tenant: &Name) -> CgroupPath {
    path(format!("{ROOT}/{}", unit(tenant)))
}

/// The name of the tenant with this cgroup, a child of [`ROOT`].
#[must_use]
pub fn tenant_of(part: &str) -> Option<String> {
    let name = part.strip_suffix(SUFFIX)?;
    // Version 0.1 made it without the prefix.
    Some(name.strip_prefix(PREFIX).unwrap_or(name).replace(ESCAPED_DASH, "-"))
}

fn escaped(tenant: &Name) -> String {
    tenant.as_str().replace('-', ESCAPED_DASH)
}

fn part(tenant: &Name, what: &str) -> CgroupPath {
    path(format!("{ROOT}/{}/{PREFIX}{}-{what}{SUFFIX}", unit(tenant), escaped(tenant)))
}

/// Where `bulkhead run` runs the tenant's processes.
#[must_use]
pub fn payload(tenant: &Name) -> CgroupPath {
    part(tenant, "payload")
}

/// The name of a run's cgroup, by the process that waits for it, so that processes which its command leaves behind can
/// be identified and ended. Where systemd is process 1 it is a scope unit, and named like one.
#[must_use]
pub fn run(pid: u32, by_systemd: bool) -> String {
    if by_systemd { format!("bulkhead-run-{pid}.scope") } else { format!("run-{pid}") }
}

/// The cgroup of this name below another one.
pub(crate) fn below(cgroup: &CgroupPath, name: &str) -> CgroupPath {
    cgroup.join(name).expect("runs have short names without slashes")
}

/// The process id in the name of a run's cgroup, in either form.
#[must_use]
pub fn run_of(cgroup: &str) -> Option<u32> {
    let scope = || cgroup.strip_prefix("bulkhead-run-")?.strip_suffix(".scope");
    cgroup.strip_prefix("run-").or_else(scope)?.parse().ok()
}

/// Where the journal threads of the tenant's volumes run.
#[must_use]
pub fn journal(tenant: &Name) -> CgroupPath {
    part(tenant, "journal")
}

/// Where the block servers of the tenant's volumes run.
#[must_use]
pub fn server(tenant: &Name) -> CgroupPath {
    part(tenant, "server")
}

/// Whether this path, which begins with a slash, is one of a tenant's block servers' cgroups or below it.
#[must_use]
pub fn is_of_server(path: &str) -> bool {
    part_of(path) == Some("-server.slice")
}

/// Whether this path, which begins with a slash, is one of the cgroups in which a tenant's volumes are served and journaled, or below it.
#[must_use]
pub fn is_of_volumes(path: &str) -> bool {
    matches!(part_of(path), Some("-server.slice" | "-journal.slice"))
}

/// The tenant's slice above this path, which does not begin with a slash; `None` if it is not in one.
#[must_use]
pub fn above(path: &str) -> Option<&str> {
    let unit = path.strip_prefix(ROOT)?.strip_prefix('/')?.split('/').next()?;
    (unit.starts_with(PREFIX) && unit.ends_with(SUFFIX)).then(|| &path[..=ROOT.len() + unit.len()])
}

/// The end of the name of a tenant's part.
fn part_of(path: &str) -> Option<&str> {
    let mut parts = path.split('/').skip(1);
    let root = parts.next()?;
    let unit = parts.next()?.strip_suffix(SUFFIX).filter(|unit| unit.starts_with(PREFIX))?;
    parts.next()?.strip_prefix(unit).filter(|_| root == ROOT)
}

/// The slice that version 0.1 made for a tenant, and the cgroup of its processes. `None` if that is another tenant's
/// slice today.
#[must_use]
pub fn version_0_1(tenant: &Name) -> Option<(CgroupPath, CgroupPath)> {
    let slice = format!("{ROOT}/{tenant}{SUFFIX}");
    let payload = format!("{slice}/payload");
    (!tenant.as_str().starts_with(PREFIX)).then(|| (path(slice), path(payload)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_identified_by_its_cgroup() {
        for by_systemd in [false, true] {
            assert_eq!(run_of(&run(7, by_systemd)), Some(7));
        }
        for other in ["run-", "run-x", "run-7.scope", "bulkhead-run-7", "bulkhead-run-.scope", "container"] {
            assert_eq!(run_of(other), None, "{other}");
        }
    }

    #[test]
    fn block_servers_are_told_from_the_rest_of_a_tenant_by_their_cgroups() {
        for name in ["db", "my-db", "server", "db-server"] {
            let tenant: Name = name.parse().expect("a valid name");
            let server = server(&tenant);
            assert!(is_of_server(&format!("/{server}")) && is_of_server(&format!("/{server}/p-v.service")));
            assert!(is_of_volumes(&format!("/{server}")) && is_of_volumes(&format!("/{}", journal(&tenant))));
            assert!(!is_of_volumes(&format!("/{}", payload(&tenant))));
            for other in [super::tenant(&tenant), payload(&tenant), journal(&tenant)] {
                assert!(!is_of_server(&format!("/{other}")), "{other}");
                assert!(!is_of_server(&format!("/{other}/docker-1.scope")), "{other}");
            }
        }
        for other in ["", "/", "/bulkhead.slice", "/x.slice/bulkhead-db.slice/bulkhead-db-server.slice"] {
            assert!(!is_of_server(other), "{other}");
        }
    }

    #[test]
    fn the_slice_of_a_tenant_is_above_all_of_its_parts() {
        let tenant: Name = "my-db".parse().expect("a valid name");
        let slice = super::tenant(&tenant).to_string();
        for path in [slice.clone(), server(&tenant).to_string(), format!("{}/x.service", server(&tenant))] {
            assert_eq!(above(&path), Some(&*slice));
        }
        for other in ["", ROOT, "bulkhead.slice/", "bulkhead.slicex/bulkhead-a.slice", "system.slice/bulkhead-a.slice"]
        {
            assert_eq!(above(other), None, "{other}");
        }
    }

    #[test]
    fn a_slice_name_identifies_its_tenant() {
        for name in ["db", "my-db", "a.b", "db-payload", "x2d"] {
            let tenant: Name = name.parse().expect("a valid name");
            assert_eq!(tenant_of(&unit(&tenant)).as_deref(), Some(name));
            // systemd derives the parent of a slice from its name: each dash is a level.
            assert_eq!(unit(&tenant).matches('-').count(), 1);
            assert_eq!(payload(&tenant).parent(), Some(super::tenant(&tenant)));
        }
        assert_eq!(tenant_of("old.slice").as_deref(), Some("old"));
        assert_eq!(tenant_of("docker-1.scope"), None);
    }
}
