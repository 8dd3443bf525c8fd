//! The parent cgroup of a container, by its `linux.cgroupsPath` (runtime-spec, config-linux.md).
//!
//! ```text
//! systemd driver    SLICE:PREFIX:ID      system.slice:docker:ID   machine.slice:libpod:ID   system.slice:nerdctl:ID
//! cgroupfs driver   /PARENT/NAME         /docker/ID   /libpod_parent/libpod-ID   /machine.slice/libpod-ID   /default/ID
//! ```
//! Engines compose these paths when nobody has chosen a parent (`--cgroup-parent`, a pod, a configuration file). Every other path is left as it is.

use bulkhead_core::name::Name;
use bulkhead_core::slices;

/// A container below its engine's default parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DefaultParent<'a> {
    /// By the systemd driver: the prefix of the scope's name, and the container's id.
    Scope(&'a str, &'a str),
    /// By the cgroupfs driver: the name of the cgroup.
    Cgroup(&'a str),
}

impl<'a> DefaultParent<'a> {
    /// The container with this id, if `path` is below a default parent.
    #[must_use]
    pub fn parse(path: &'a str, id: &str) -> Option<Self> {
        // Such an id is none of an engine's, and would leave the parent.
        if id.is_empty() || id == "." || id == ".." || id.contains(['/', ':']) {
            return None;
        }
        if let [slice, prefix, name] = path.split(':').collect::<Vec<_>>()[..] {
            let is_default =
                matches!((slice, prefix), ("system.slice", "docker" | "nerdctl") | ("machine.slice", "libpod"));
            return (is_default && name == id).then_some(Self::Scope(prefix, name));
        }
        let (parent, name) = path.rsplit_once('/')?;
        let is_default = match parent.strip_prefix('/').unwrap_or(parent) {
            "docker" | "default" => name == id,
            "libpod_parent" | "machine.slice" => name.strip_prefix("libpod-") == Some(id),
            _ => false,
        };
        is_default.then_some(Self::Cgroup(name))
    }

    /// Its path in the slice of a tenant.
    #[must_use]
    pub fn in_slice_of(&self, tenant: &Name) -> String {
        match self {
            Self::Scope(prefix, name) => format!("{}:{prefix}:{name}", slices::unit(tenant)),
            Self::Cgroup(name) => format!("/{}/{}/{name}", slices::ROOT, slices::unit(tenant)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f2a";

    #[test]
    fn the_default_parents_of_engines_become_the_tenants_slice() {
        let tenant: Name = "my-db".parse().unwrap();
        for (path, expected) in [
            ("system.slice:docker:4f2a", r"bulkhead-my\x2ddb.slice:docker:4f2a"),
            ("system.slice:nerdctl:4f2a", r"bulkhead-my\x2ddb.slice:nerdctl:4f2a"),
            ("machine.slice:libpod:4f2a", r"bulkhead-my\x2ddb.slice:libpod:4f2a"),
            ("/docker/4f2a", r"/bulkhead.slice/bulkhead-my\x2ddb.slice/4f2a"),
            ("/default/4f2a", r"/bulkhead.slice/bulkhead-my\x2ddb.slice/4f2a"),
            ("/libpod_parent/libpod-4f2a", r"/bulkhead.slice/bulkhead-my\x2ddb.slice/libpod-4f2a"),
            ("/machine.slice/libpod-4f2a", r"/bulkhead.slice/bulkhead-my\x2ddb.slice/libpod-4f2a"),
        ] {
            assert_eq!(DefaultParent::parse(path, ID).unwrap().in_slice_of(&tenant), expected);
        }
    }

    #[test]
    fn a_parent_that_somebody_chose_is_kept() {
        for path in [
            "",
            "4f2a",
            "/4f2a",
            "bulkhead-db.slice:docker:4f2a",
            "kubepods-burstable-pod1.slice:cri-containerd:4f2a",
            "machine-libpod_pod_1.slice:libpod:4f2a",
            "user.slice:docker:4f2a",
            "system.slice:docker:other",
            "system.slice:docker",
            "system.slice:docker:4f2a:x",
            "/kubepods/burstable/pod1/4f2a",
            "/mine/4f2a",
            "/docker/mine/4f2a",
            "//docker/4f2a",
            "/docker/other",
            "/libpod_parent/4f2a",
            "/system.slice/app.service/libpod-payload-4f2a",
        ] {
            assert_eq!(DefaultParent::parse(path, ID), None, "{path}");
        }
        for id in ["", ".", "..", "a/b", "a:b"] {
            assert_eq!(DefaultParent::parse(&format!("/docker/{id}"), id), None, "{id}");
        }
    }
}
