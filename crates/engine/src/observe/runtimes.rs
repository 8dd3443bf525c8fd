//! Human names for containers, looked up once per container in the runtimes' state files.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bulkhead_core::identity::{ContainerKind, Identity};
use bulkhead_core::observe::runtime::{docker_name, pod_of_logs, spec_name, storage_names};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::runtimes;

/// How long after a failure a look-up is repeated; twice as long each time.
const RETRY: Duration = Duration::from_secs(2);
/// The most look-ups for a container.
const MAX_TRIES: u32 = 6;

/// The names of existing containers.
#[derive(Debug, Default)]
pub(super) struct RuntimeNames {
    by_id: HashMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    Named(String),
    /// A cgroup may be there before the file is, and some containers have none.
    Missing {
        tries: u32,
        next: Instant,
    },
}

impl RuntimeNames {
    /// Looks up the containers that are due, and evicts all others that are not among these.
    pub(super) fn refresh(&mut self, roots: &Roots, containers: &HashSet<Identity>, now: Instant) {
        let ids: HashSet<&str> = containers.iter().filter_map(|container| container.id.as_deref()).collect();
        self.by_id.retain(|id, _| ids.contains(id.as_str()));
        let mut files = Files { roots, storage: None, pods: None };
        for container in containers {
            let Some(id) = &container.id else { continue };
            let tries = match self.by_id.get(id) {
                None => 0,
                Some(Entry::Missing { tries, next }) if *tries < MAX_TRIES && now >= *next => *tries,
                Some(_) => continue,
            };
            let entry = match files.name(container, id) {
                Some(name) => Entry::Named(name),
                None => Entry::Missing { tries: tries + 1, next: now + RETRY * 2_u32.pow(tries) },
            };
            self.by_id.insert(id.clone(), entry);
        }
    }

    /// A container's name, if it is known.
    pub(super) fn name(&self, container: &Identity) -> Option<&str> {
        match self.by_id.get(container.id.as_ref()?)? {
            Entry::Named(name) => Some(name),
            Entry::Missing { .. } => None,
        }
    }
}

/// The state files at one moment; those about all containers are read once.
struct Files<'a> {
    roots: &'a Roots,
    storage: Option<HashMap<String, String>>,
    pods: Option<Vec<String>>,
}

impl Files<'_> {
    fn name(&mut self, container: &Identity, id: &str) -> Option<String> {
        let spec = || spec_name(&runtimes::containerd_spec(self.roots, id)?);
        match container.kind {
            ContainerKind::Docker => docker_name(&runtimes::docker_config(self.roots, id)?),
            ContainerKind::Podman => self.in_storage(id),
            ContainerKind::Containerd => spec().or_else(|| self.in_storage(id)),
            ContainerKind::Kubernetes => spec()
                .or_else(|| spec_name(&runtimes::crio_spec(self.roots, id)?))
                .or_else(|| self.in_pod(container.pod_uid.as_deref()?, &container.name)),
            _ => None,
        }
    }

    fn in_storage(&mut self, id: &str) -> Option<String> {
        let lists = || runtimes::podman_lists(self.roots);
        let names = self.storage.get_or_insert_with(|| lists().iter().flat_map(|json| storage_names(json)).collect());
        names.get(id).cloned()
    }

    /// By the kubelet's logs: the container too if the pod has only one, else under its short id.
    fn in_pod(&mut self, pod_uid: &str, short_id: &str) -> Option<String> {
        let pods = self.pods.get_or_insert_with(|| runtimes::pod_log_directories(self.roots));
        let (directory, (namespace, pod)) =
            pods.iter().find_map(|directory| Some((directory, pod_of_logs(directory, pod_uid)?)))?;
        let containers = runtimes::pod_log_containers(self.roots, directory);
        let container = match &containers[..] {
            [only] => bulkhead_core::identity::printable(only),
            _ => short_id.to_owned(),
        };
        Some(format!("{namespace}/{pod}/{container}"))
    }
}

#[cfg(test)]
mod tests;
