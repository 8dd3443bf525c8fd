//! Human names for containers, looked up once per container in the runtimes' state files.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bulkhead_core::identity::{ContainerKind, Identity};
use bulkhead_core::observe::runtime::{docker_name, pod_of_logs, spec_name, storage_names};
use bulkhead_sys::roots::Roots;
use bulkhead_sys::runtimes;

/// How long after it failed a look-up is made again at first; twice as long each time.
const RETRY: Duration = Duration::from_secs(2);
/// How many look-ups are made for a container.
const MAX_TRIES: u32 = 6;

/// What the containers are called whose cgroups are there.
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
    /// Looks up those of these that are due, and forgets all that are not among them.
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

    /// What a container is called, if that is known.
    pub(super) fn name(&self, container: &Identity) -> Option<&str> {
        match self.by_id.get(container.id.as_ref()?)? {
            Entry::Named(name) => Some(name),
            Entry::Missing { .. } => None,
        }
    }
}

/// The state files at one moment; those that are about all containers are read once.
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
mod tests {
    use std::fs;
    use std::path::Path;

    use bulkhead_core::identity::identify;

    use super::*;

    const UID: &str = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f";

    fn id(digit: &str) -> String {
        digit.repeat(64)
    }

    fn write(base: &Path, path: &str, text: &str) {
        let path = base.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn annotated(annotations: &str) -> String {
        format!(r#"{{"ociVersion":"1.0.2","annotations":{{{annotations}}}}}"#)
    }

    #[test]
    fn each_runtime_names_its_containers() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let pod = format!("/kubepods/burstable/pod{UID}");
        let containers = [
            (format!("/system.slice/docker-{}.scope", id("1")), "web"),
            (format!("/machine.slice/libpod-{}.scope/container", id("2")), "web"),
            (format!("/default/{}", id("3")), "proxy"),
            (format!("{pod}/{}", id("4")), "shop/db-0/mariadb"),
            (format!("{pod}/crio-{}", id("5")), "shop/db-0/exporter"),
            (format!("{pod}/{}", id("6")), "shop/db-0/666666666666"),
            (format!("/system.slice/docker-{}.scope", id("7")), "777777777777"),
        ];
        write(base.path(), &format!("var/lib/docker/containers/{}/config.v2.json", id("1")), r#"{"Name":"/web"}"#);
        let list = format!(r#"[{{"id":"{}","names":["web"]}}]"#, id("2"));
        write(base.path(), "var/lib/containers/storage/overlay-containers/volatile-containers.json", &list);
        let tasks = "run/containerd/io.containerd.runtime.v2.task";
        write(
            base.path(),
            &format!("{tasks}/default/{}/config.json", id("3")),
            &annotated(r#""nerdctl/name":"proxy""#),
        );
        let cri = r#""io.kubernetes.cri.sandbox-namespace":"shop","io.kubernetes.cri.sandbox-name":"db-0",
            "io.kubernetes.cri.container-name":"mariadb""#;
        write(base.path(), &format!("{tasks}/k8s.io/{}/config.json", id("4")), &annotated(cri));
        let crio = r#""io.kubernetes.pod.namespace":"shop","io.kubernetes.pod.name":"db-0",
            "io.kubernetes.container.name":"exporter""#;
        let userdata = format!("run/containers/storage/overlay-containers/{}/userdata/config.json", id("5"));
        write(base.path(), &userdata, &annotated(crio));
        write(base.path(), &format!("var/log/pods/shop_db-0_{UID}/mariadb/0.log"), "");
        write(base.path(), &format!("var/log/pods/shop_db-0_{UID}/exporter/0.log"), "");
        let identities: HashSet<Identity> = containers.iter().map(|(path, _)| identify(path)).collect();
        assert_eq!(identities.len(), containers.len());
        let mut names = RuntimeNames::default();
        names.refresh(&roots, &identities, Instant::now());
        for (path, expected) in &containers {
            let identity = identify(path);
            assert_eq!(names.name(&identity).unwrap_or(&identity.name), *expected, "{path}");
        }
        // Of a pod with one container only that one can be meant.
        fs::remove_dir_all(base.path().join(format!("var/log/pods/shop_db-0_{UID}/exporter"))).unwrap();
        let mut names = RuntimeNames::default();
        names.refresh(&roots, &identities, Instant::now());
        assert_eq!(names.name(&identify(&containers[5].0)), Some("shop/db-0/mariadb"));
    }

    #[test]
    fn a_name_is_looked_up_once_and_a_missing_one_again_but_not_for_ever() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        let (early, late) = (identify(&format!("/docker/{}", id("1"))), identify(&format!("/docker/{}", id("2"))));
        let both = HashSet::from([early.clone(), late.clone()]);
        let config = |id: &str, name: &str| {
            let path = format!("var/lib/docker/containers/{id}/config.v2.json");
            write(base.path(), &path, &format!(r#"{{"Name":"/{name}"}}"#));
        };
        config(&id("1"), "early");
        let (mut names, start) = (RuntimeNames::default(), Instant::now());
        names.refresh(&roots, &both, start);
        config(&id("1"), "renamed");
        config(&id("2"), "late");
        names.refresh(&roots, &both, start + RETRY / 2);
        assert_eq!((names.name(&early), names.name(&late)), (Some("early"), None), "it is not due yet");
        names.refresh(&roots, &both, start + RETRY);
        assert_eq!((names.name(&early), names.name(&late)), (Some("early"), Some("late")));
        // What is gone is forgotten.
        names.refresh(&roots, &HashSet::from([late.clone()]), start + RETRY);
        assert_eq!((names.name(&early), names.name(&late)), (None, Some("late")));
        let nowhere = HashSet::from([identify(&format!("/docker/{}", id("3")))]);
        let mut at = start;
        for _ in 0..100 {
            at += Duration::from_secs(3600);
            names.refresh(&roots, &nowhere, at);
        }
        assert!(matches!(names.by_id[&id("3")], Entry::Missing { tries: MAX_TRIES, .. }));
    }
}
