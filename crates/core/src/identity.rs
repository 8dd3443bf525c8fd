//! Identifying the container of a cgroup by its path, whichever runtime made it.
//!
//! Sources of the patterns: the cgroup drivers of runc and crun (`docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`,
//! `crio-ID.scope`), the kubelet's `kubepods` hierarchy, LXC's `lxc.payload.NAME`, and systemd.

use serde::{Deserialize, Serialize};

use crate::cgroup::{CgroupPath, CgroupPathError};
use crate::slices;

/// The kind of a cgroup's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ContainerKind {
    /// A tenant of Bulkhead.
    Tenant,
    /// A Docker container.
    Docker,
    /// A Podman container.
    Podman,
    /// A container of a Kubernetes pod.
    Kubernetes,
    /// A container of containerd outside Kubernetes (nerdctl, ctr).
    Containerd,
    /// An LXC or Incus container, or one of systemd-nspawn.
    Machine,
    /// A systemd service, scope or other unit.
    Unit,
    /// Any other cgroup.
    Cgroup,
    /// The root cgroup: kernel threads, and processes that were never put into a cgroup.
    Root,
}

impl ContainerKind {
    /// Its name in JSON, metrics and tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Docker => "docker",
            Self::Podman => "podman",
            Self::Kubernetes => "kubernetes",
            Self::Containerd => "containerd",
            Self::Machine => "machine",
            Self::Unit => "unit",
            Self::Cgroup => "cgroup",
            Self::Root => "root",
        }
    }
}

/// The owner of a cgroup. Equal identities are one line in `bulkhead top`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Identity {
    /// Its kind.
    pub kind: ContainerKind,
    /// Its name: that of a tenant, unit or machine; the runtime's name of a container (`namespace/pod/container` in
    /// Kubernetes), or the first 12 digits of its id if that is unknown; or the path of a cgroup. Not unique.
    /// Printable, whatever the cgroup's name is.
    pub name: String,
    /// The container's full id, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The UID of its Kubernetes pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

impl Identity {
    fn new(kind: ContainerKind, name: &str) -> Self {
        Self { kind, name: printable(name), id: None, pod_uid: None }
    }

    fn container(kind: ContainerKind, id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..Self::new(kind, &id[..id.len().min(SHORT_ID)]) }
    }

    /// Its key, which stays the same when a container's name becomes known: its kind, and its id or else its name.
    #[must_use]
    pub fn key(&self) -> (ContainerKind, &str) {
        (self.kind, self.id.as_deref().unwrap_or(&self.name))
    }

    /// Whether `text` denotes it: its name, or the first 12 or more digits of its id.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let begins = |id: &String| text.len() >= SHORT_ID && id.starts_with(text);
        self.name == text || self.id.as_ref().is_some_and(begins)
    }
}

/// Number of digits of a short container id.
const SHORT_ID: usize = 12;
/// Number of digits of a container id of Docker, containerd, CRI-O and Podman.
const ID_DIGITS: usize = 64;

/// The owner of the cgroup with this path, from the root of the unified hierarchy (`/` for the root).
#[must_use]
pub fn identify(path: &str) -> Identity {
    if let Some(owner) = owner_of_journal(path) {
        return identify(&owner);
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.is_empty() {
        return Identity::new(ContainerKind::Root, "/");
    }
    tenant(&parts)
        .or_else(|| container(&parts))
        .or_else(|| unit(&parts))
        .unwrap_or_else(|| Identity::new(ContainerKind::Cgroup, path))
}

/// Prefix of the name of a journal thread's cgroup during a hold.
const JOURNAL_BESIDE: &str = "bulkhead-journal:";

/// The cgroup for the journal thread of the container with this cgroup. It is next to the container's, because a kernel
/// thread in the container's own makes freeze and rmdir fail. [`identify`] attributes it to the container.
///
/// # Errors
/// When the name of the container's cgroup leaves no room for the prefix.
pub fn journal_beside(cgroup: &CgroupPath) -> Result<CgroupPath, CgroupPathError> {
    cgroup.parent().unwrap_or_else(CgroupPath::root).join(&format!("{JOURNAL_BESIDE}{}", cgroup.name()))
}

fn owner_of_journal(path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let owner = name.strip_prefix(JOURNAL_BESIDE).filter(|owner| !owner.is_empty())?;
    Some(format!("{parent}/{owner}"))
}

fn tenant(parts: &[&str]) -> Option<Identity> {
    let (&root, rest) = parts.split_first()?;
    let name = slices::tenant_of(rest.first()?)?;
    (root == slices::ROOT).then(|| Identity::new(ContainerKind::Tenant, &name))
}

/// The outermost container: nested containers belong to the outer one.
fn container(parts: &[&str]) -> Option<Identity> {
    let pod_uid = parts.iter().find_map(|part| pod(part));
    let mut parents = [""].into_iter().chain(parts.iter().copied());
    parts.iter().find_map(|&part| {
        let parent = parents.next().unwrap_or_default();
        let mut found = scope(part).or_else(|| bare(parent, part))?;
        if pod_uid.is_some() {
            found.kind = ContainerKind::Kubernetes;
            found.pod_uid.clone_from(&pod_uid);
        }
        Some(found)
    })
}

/// A scope of the systemd cgroup driver.
fn scope(part: &str) -> Option<Identity> {
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let prefixes = [
        ("docker-", ContainerKind::Docker),
        ("libpod-", ContainerKind::Podman),
        ("cri-containerd-", ContainerKind::Kubernetes),
        ("crio-", ContainerKind::Kubernetes),
        ("nerdctl-", ContainerKind::Containerd),
    ];
    let of_runtime = prefixes.into_iter().find_map(|(prefix, kind)| {
        let id = name.strip_prefix(prefix)?;
        is_id(id).then(|| Identity::container(kind, id))
    });
    of_runtime.or_else(|| {
        let machine =
            name.strip_prefix("lxc.payload.").or_else(|| part.strip_suffix(".scope")?.strip_prefix("machine-"))?;
        Some(Identity::new(ContainerKind::Machine, &machine.replace("\\x2d", "-")))
    })
}

/// A cgroup of the cgroupfs driver: the bare id, below a directory that names the runtime.
fn bare(parent: &str, part: &str) -> Option<Identity> {
    if !is_id(part) {
        return None;
    }
    let kind = match parent {
        "docker" => ContainerKind::Docker,
        "libpod_parent" => ContainerKind::Podman,
        _ => ContainerKind::Containerd,
    };
    Some(Identity::container(kind, part))
}

/// The UID in `kubepods-burstable-pod0a1b_….slice` or `pod0a1b-…`.
fn pod(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.strip_prefix("kubepods") {
        Some(rest) => &rest[rest.rfind("-pod")? + 4..],
        None => name.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-");
    // A UUID, or the hash that static pods have instead.
    let is_uid =
        (uid.len() == 36 || uid.len() == 32) && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// The systemd unit; for units of a user, the inner one, prefixed with the uid.
fn unit(parts: &[&str]) -> Option<Identity> {
    let is_unit =
        |part: &&&str| [".service", ".scope", ".socket", ".mount"].iter().any(|suffix| part.ends_with(suffix));
    let mut units = parts.iter().filter(is_unit);
    let outer = units.next()?;
    // A user's unit may have the name of a system unit.
    let user = outer.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service"));
    let name = match (user, units.next()) {
        (Some(user), Some(inner)) => format!("{user}/{inner}"),
        _ => (*outer).to_owned(),
    };
    Some(Identity::new(ContainerKind::Unit, &name))
}

fn is_id(text: &str) -> bool {
    text.len() == ID_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// A name that is safe to show on a terminal: control characters are escaped. Names of cgroups are chosen by whoever
/// may create them.
#[must_use]
pub fn printable(name: &str) -> String {
    let is_harmless = |c: char| {
        !c.is_control() && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    name.chars().map(|c| if is_harmless(c) { c.to_string() } else { c.escape_unicode().to_string() }).collect()
}

#[cfg(test)]
mod tests;
