//! Names of containers, read from the state files of container runtimes.
//!
//! The files are private to the runtimes and may change between their versions: unexpected content gives no name, and
//! the container is shown by its id. Sources: moby `container.Container` (`config.v2.json`), containers/storage
//! `Container` (`containers.json`), containerd `pkg/cri/annotations`, nerdctl `pkg/labels` (labels are annotations
//! too), CRI-O's annotations with the labels of the kubelet, kubelet `BuildPodLogsDirectory`.

use std::collections::HashMap;

use serde::Deserialize;

use crate::identity::printable;

/// Longest displayed name, in characters; Kubernetes allows 253 for a pod and 63 for a namespace and a container.
const MAX_NAME: usize = 400;

/// The name in Docker's `config.v2.json`; there it begins with a slash.
#[must_use]
pub fn docker_name(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(rename = "Name")]
        name: String,
    }
    let config: Config = serde_json::from_slice(json).ok()?;
    shown(config.name.strip_prefix('/').unwrap_or(&config.name))
}

/// Settings in Docker's `daemon.json`; `None` for the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerSettings {
    /// The directory of its state.
    pub data_root: Option<String>,
    /// Its storage driver.
    pub storage_driver: Option<String>,
    /// What manages cgroups: `systemd` or `cgroupfs`.
    pub cgroup_driver: Option<String>,
}

/// The settings in Docker's `daemon.json`.
#[must_use]
pub fn docker_settings(json: &[u8]) -> DockerSettings {
    #[derive(Default, Deserialize)]
    #[serde(default, rename_all = "kebab-case")]
    struct Daemon {
        data_root: Option<String>,
        storage_driver: Option<String>,
        exec_opts: Vec<String>,
    }
    let Daemon { data_root, storage_driver, exec_opts } = serde_json::from_slice(json).unwrap_or_default();
    let cgroup_driver = exec_opts.iter().find_map(|option| cgroup_driver(option)).map(str::to_owned);
    DockerSettings { data_root, storage_driver, cgroup_driver }
}

/// The cgroup driver in an option for Docker's runtime (`native.cgroupdriver=systemd`).
#[must_use]
pub fn cgroup_driver(option: &str) -> Option<&str> {
    option.strip_prefix("native.cgroupdriver=")
}

/// The log of a container of Docker's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DockerLog {
    /// The container's name.
    pub container: String,
    /// The log driver.
    pub driver: String,
    /// Whether its size is limited.
    pub limited: bool,
}

/// The log that Docker writes for a running container, from its `config.v2.json` and `hostconfig.json`; `None` if it writes none.
#[must_use]
pub fn docker_log(config: &[u8], host_config: &[u8]) -> Option<DockerLog> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Config {
        state: State,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct State {
        running: bool,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct HostConfig {
        log_config: LogConfig,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct LogConfig {
        r#type: String,
        config: Option<HashMap<String, String>>,
    }
    let LogConfig { r#type: driver, config: options } =
        serde_json::from_slice::<HostConfig>(host_config).ok()?.log_config;
    // The driver `local` has a limit of its own.
    let limited = driver == "local" || options.is_some_and(|options| options.contains_key("max-size"));
    let is_running = serde_json::from_slice::<Config>(config).ok()?.state.running;
    let writes_files = ["json-file", "local"].contains(&driver.as_str());
    (is_running && writes_files).then_some(DockerLog { container: docker_name(config)?, driver, limited })
}

/// The names in a list of containers/storage, by id.
#[must_use]
pub fn storage_names(json: &[u8]) -> HashMap<String, String> {
    #[derive(Deserialize)]
    struct Container {
        id: String,
        #[serde(default)]
        names: Vec<String>,
    }
    let containers: Vec<Container> = serde_json::from_slice(json).unwrap_or_default();
    let named = containers.into_iter().filter_map(|container| Some((container.id, shown(container.names.first()?)?)));
    named.collect()
}

/// A setting of the table `storage` in containers-storage.conf(5), if it is a plain string.
#[must_use]
pub fn storage_setting(toml: &[u8], key: &str) -> Option<String> {
    let text = std::str::from_utf8(toml).ok()?;
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            table = line;
        } else if table == "[storage]"
            && let Some((name, value)) = line.split_once('=')
            && name.trim() == key
        {
            let value = value.trim().strip_prefix('"')?;
            return value.split_once('"').map(|(value, _)| value.to_owned());
        }
    }
    None
}

/// The name in the annotations of an OCI specification (`config.json` of a bundle): `namespace/pod/container` of Kubernetes
/// (`namespace/pod` for the pod's own sandbox), or the name that nerdctl gave.
#[must_use]
pub fn spec_name(json: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Spec {
        annotations: HashMap<String, String>,
    }
    let spec: Spec = serde_json::from_slice(json).ok()?;
    let of = |key: &str| spec.annotations.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let first = |keys: [&str; 2]| keys.into_iter().find_map(of);
    let namespace = first(["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"]);
    let pod = first(["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"]);
    match (namespace, pod) {
        (Some(namespace), Some(pod)) => {
            // CRI-O has the sandbox itself as a container with this name.
            let container = first(["io.kubernetes.cri.container-name", "io.kubernetes.container.name"]);
            let container = container.filter(|name| *name != "POD");
            let parts = [Some(namespace), Some(pod), container];
            shown(&parts.into_iter().flatten().collect::<Vec<_>>().join("/"))
        }
        _ => of("nerdctl/name").and_then(shown),
    }
}

/// Namespace and name of the pod with this UID, if this is the name of its directory of logs (`NAMESPACE_POD_UID`).
#[must_use]
pub fn pod_of_logs(directory: &str, pod_uid: &str) -> Option<(String, String)> {
    let (namespace, pod) = directory.strip_suffix(pod_uid)?.strip_suffix('_')?.split_once('_')?;
    Some((shown(namespace)?, shown(pod)?))
}

/// A displayable form; `None` if there is nothing to display.
fn shown(name: &str) -> Option<String> {
    let cut: String = name.chars().take(MAX_NAME).collect();
    (!cut.trim().is_empty()).then(|| printable(&cut))
}

#[cfg(test)]
mod tests;
