//! Container runtimes and their settings, as facts: from their processes, configuration files and directories.

use std::fs;

use bulkhead_core::facts::{ContainerLog, Runtime};
use bulkhead_core::identity::printable;
use bulkhead_core::observe::runtime::{self, DockerSettings};

use crate::roots::Roots;
use crate::runtimes;

/// The runtimes whose daemons are among the processes, and Podman, which has none.
pub(super) fn read(roots: &Roots, processes: &[(u32, String)]) -> Vec<Runtime> {
    let arguments = |name: &str| {
        let (pid, _) = processes.iter().find(|(_, process)| process == name)?;
        let text = fs::read(roots.proc.join(pid.to_string()).join("cmdline")).ok()?;
        Some(text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect::<Vec<_>>())
    };
    let kubelet = arguments("kubelet");
    let mut found = Vec::new();
    found.extend(arguments("dockerd").map(|arguments| docker(roots, &arguments)));
    let is_for_kubelet = kubelet.as_deref().is_some_and(|arguments| uses_containerd(roots, arguments));
    found.extend(arguments("containerd").map(|_| containerd(roots, is_for_kubelet)));
    found.extend(kubelet.map(|arguments| of_kubelet(roots, &arguments)));
    found.extend(podman(roots));
    found
}

/// The value of an option: `--name value` or `--name=value`.
fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix(name) {
            Some("") => return arguments.next().map(String::as_str),
            Some(value) if value.starts_with('=') => return Some(&value[1..]),
            _ => (),
        }
    }
    None
}

fn docker(roots: &Roots, arguments: &[String]) -> Runtime {
    let DockerSettings { data_root, storage_driver, cgroup_driver } = runtimes::docker_settings(roots);
    let set = |name: &str| option(arguments, name).map(str::to_owned);
    let directory = set("--data-root").or(data_root).unwrap_or_else(|| runtimes::DOCKER_DATA_ROOT.to_owned());
    let by_option = option(arguments, "--exec-opt").and_then(runtime::cgroup_driver).map(str::to_owned);
    Runtime {
        name: "docker".to_owned(),
        storage_driver: set("--storage-driver")
            .or(storage_driver)
            .or_else(|| runtimes::docker_storage_driver(roots, &directory))
            .map(|driver| printable(&driver)),
        directory: printable(&directory),
        cgroup_driver: by_option.or(cgroup_driver).map(|driver| printable(&driver)),
    }
}

/// The cgroup driver of containerd is known if it works for a kubelet: Docker's containers do not use its setting.
fn containerd(roots: &Roots, for_kubelet: bool) -> Runtime {
    let text = fs::read_to_string(roots.base.join("etc/containerd/config.toml")).unwrap_or_default();
    let value = |key: &str| {
        let of =
            |line: &str| line.trim().strip_prefix(key)?.trim().strip_prefix('=').map(|value| value.trim().to_owned());
        text.lines().find_map(of)
    };
    let driver = if value("SystemdCgroup").as_deref() == Some("true") { "systemd" } else { "cgroupfs" };
    let directory =
        value("root").map(|root| root.trim_matches(['"', '\'']).to_owned()).filter(|root| root.starts_with('/'));
    Runtime {
        name: "containerd".to_owned(),
        directory: printable(&directory.unwrap_or_else(|| "/var/lib/containerd".to_owned())),
        cgroup_driver: for_kubelet.then(|| driver.to_owned()),
        storage_driver: None,
    }
}

/// A setting of the kubelet: an option, or a key of its configuration file.
fn kubelet_setting(roots: &Roots, arguments: &[String], name: &str, key: &str) -> Option<String> {
    let config = option(arguments, "--config").unwrap_or("/var/lib/kubelet/config.yaml");
    let config = roots.base.join(config.trim_start_matches('/'));
    let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().trim_matches('"').to_owned());
    let in_file = || fs::read_to_string(config).ok()?.lines().find_map(of);
    option(arguments, name).map(str::to_owned).or_else(in_file)
}

/// Whether a kubelet's containers are containerd's; so are those of one that does not say.
fn uses_containerd(roots: &Roots, arguments: &[String]) -> bool {
    let endpoint = kubelet_setting(roots, arguments, "--container-runtime-endpoint", "containerRuntimeEndpoint");
    endpoint.is_none_or(|endpoint| endpoint.contains("containerd"))
}

fn of_kubelet(roots: &Roots, arguments: &[String]) -> Runtime {
    let driver = kubelet_setting(roots, arguments, "--cgroup-driver", "cgroupDriver");
    Runtime {
        name: "kubelet".to_owned(),
        directory: printable(option(arguments, "--root-dir").unwrap_or("/var/lib/kubelet")),
        cgroup_driver: driver.map(|driver| printable(&driver)),
        storage_driver: None,
    }
}

fn podman(roots: &Roots) -> Option<Runtime> {
    let (directory, driver) = runtimes::podman_storage(roots)?;
    Some(Runtime {
        name: "podman".to_owned(),
        directory: printable(&directory.to_string_lossy()),
        cgroup_driver: None,
        storage_driver: Some(driver.to_owned()),
    })
}

/// Logs of Docker's running containers.
pub(super) fn logs(roots: &Roots) -> Vec<ContainerLog> {
    runtimes::docker_containers(roots)
        .iter()
        .filter_map(|container| {
            let log = runtime::docker_log(&container.config, &container.host_config)?;
            Some(ContainerLog {
                container: log.container,
                driver: printable(&log.driver),
                limited: log.limited,
                directory: printable(&container.directory.to_string_lossy()),
            })
        })
        .collect()
}
