//! The cgroup of a container, by whatever an operator calls it.

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::name::Name;
use bulkhead_core::observe::runtime::{docker_name, storage_names};
use bulkhead_core::slices;
use bulkhead_sys::roots::Roots;
use bulkhead_sys::{cgroup, runtimes};

use crate::parse::invalid;

/// Fewest digits of an id that are taken for one.
const ID_DIGITS: usize = 8;
/// Candidates that an error names.
const SHOWN: usize = 5;

/// The cgroup that `target` names.
///
/// # Errors
/// `NotFound`, and `InvalidArgument` if several match or it is no name.
pub(super) fn cgroup(roots: &Roots, target: &str) -> Result<CgroupPath, Fault> {
    let object = || format!("container {target:?}");
    if let Some(pid) = target.strip_prefix("pid:") {
        let pid: u32 = pid.parse().map_err(|_| invalid(object(), format!("{pid:?} is not the number of a process")))?;
        return cgroup::cgroup_of(roots, pid)
            .map_err(|error| Fault::new(Code::NotFound, format!("process {pid}"), error.to_string()));
    }
    if target.contains('/') {
        let path = target.trim_start_matches('/').trim_end_matches('/');
        let path: CgroupPath = path.parse().map_err(|error| invalid(object(), error))?;
        if cgroup::exists(roots, &path) {
            return Ok(path);
        }
        return Err(Fault::new(Code::NotFound, object(), "there is no such cgroup"));
    }
    if let Ok(name) = target.parse::<Name>()
        && cgroup::exists(roots, &slices::tenant(&name))
    {
        return Ok(slices::tenant(&name));
    }
    let ids = ids_of(roots, target);
    let all = cgroup::all_ids(roots)
        .map_err(|error| Fault::new(Code::Unsupported, "cgroups", format!("cannot list them ({error})")))?;
    let mut found: Vec<&str> =
        all.iter().map(|(_, path)| path.as_str()).filter(|path| is_named(path, target, &ids)).collect();
    // The cgroups that a runtime makes within a container's belong to it.
    let outermost = found.clone();
    found.retain(|path| !outermost.iter().any(|other| path.starts_with(&format!("{other}/"))));
    match found.as_slice() {
        [path] => path.trim_start_matches('/').parse().map_err(|error| invalid(object(), error)),
        [] => Err(Fault::new(Code::NotFound, object(), "no running container, unit, tenant or cgroup has this name")
            .hint("give its cgroup, as in /proc/PID/cgroup, or `pid:NUMBER`")),
        several => {
            let shown: Vec<&str> = several.iter().take(SHOWN).copied().collect();
            Err(invalid(object(), format!("several cgroups match: {}", shown.join(", "))).hint("give one of them"))
        }
    }
}

/// The ids of containers of this name.
fn ids_of(roots: &Roots, name: &str) -> Vec<String> {
    let docker = runtimes::docker_containers(roots).into_iter().filter_map(|container| {
        let is_wanted = docker_name(&container.config).is_some_and(|its| its == name);
        is_wanted.then(|| container.directory.file_name().map(|id| id.to_string_lossy().into_owned())).flatten()
    });
    let podman = runtimes::podman_lists(roots).into_iter().flat_map(|list| storage_names(&list));
    let podman = podman.filter(|(_, its)| its == name).map(|(id, _)| id);
    let mut ids: Vec<String> = docker.chain(podman).collect();
    let is_id = name.len() >= ID_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    ids.extend(is_id.then(|| name.to_owned()));
    ids
}

/// Whether the last part of a cgroup's path is the target, a unit of that name, or that of a container with one of the ids.
fn is_named(path: &str, target: &str, ids: &[String]) -> bool {
    let last = path.rsplit('/').next().unwrap_or_default();
    let unit = last.rsplit_once('.').filter(|(_, kind)| ["service", "scope", "slice"].contains(kind));
    let stem = unit.map_or(last, |(stem, _)| stem);
    // `docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`, or the id itself; conmon is the engine's.
    let is_of = |id: &String| {
        let its = stem.rsplit_once('-').map_or(stem, |(_, id)| id);
        its.starts_with(id.as_str()) && !stem.contains("conmon")
    };
    last == target || stem == target || ids.iter().any(is_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_found_by_any_of_their_names() {
        let ids = ["0123456789ab".to_owned()];
        for path in [
            "/system.slice/docker-0123456789abcdef.scope",
            "/machine.slice/libpod-0123456789abcdef.scope",
            "/docker/0123456789abcdef",
            "/kubepods.slice/cri-containerd-0123456789abcdef.scope",
            "/system.slice/mine.service",
            "/a/mine",
        ] {
            assert!(is_named(path, "mine", &ids), "{path}");
        }
        for path in ["/machine.slice/libpod-conmon-0123456789abcdef.scope", "/mine/below", "/mine2.service", "/"] {
            assert!(!is_named(path, "mine", &ids), "{path}");
        }
    }
}
