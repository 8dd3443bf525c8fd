//! State files of container runtimes, read directly, since a runtime's daemon may hang or be stopped.
//!
//! Owns: the location of the files, and reading them safely, so that users who can write there can neither block us nor redirect us:
//! only regular files of bounded size, no symbolic links below the runtime's directory, no waiting for a FIFO. `None` for files that
//! are missing or cannot be read in this way. Does not: parse them (`bulkhead_core::observe::runtime`).

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_core::observe::runtime::{self, DockerSettings};
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

use crate::roots::Roots;

/// Size limit of a container's state file; OCI specifications have some 10 KiB.
const MAX_FILE: u64 = 1 << 20;
/// Size limit of a list of containers; each has some 500 bytes.
const MAX_LIST: u64 = 16 << 20;
/// Storage drivers of containers-storage.conf(5).
const STORAGE_DRIVERS: [&str; 4] = ["overlay", "vfs", "btrfs", "zfs"];
/// Limit on directory entries.
const MAX_ENTRIES: usize = 4096;

/// Docker's directory, unless it is configured.
pub const DOCKER_DATA_ROOT: &str = "/var/lib/docker";

/// The settings in Docker's `daemon.json`; the defaults if there is none.
#[must_use]
pub fn docker_settings(roots: &Roots) -> DockerSettings {
    let configured = read(&roots.base.join("etc/docker"), "daemon.json", MAX_FILE);
    configured.map(|json| runtime::docker_settings(&json)).unwrap_or_default()
}

fn docker_directory(roots: &Roots) -> Option<PathBuf> {
    absolute(roots, docker_settings(roots).data_root.as_deref().unwrap_or(DOCKER_DATA_ROOT))
}

/// Docker's `config.v2.json` for the container with this id.
#[must_use]
pub fn docker_config(roots: &Roots, id: &str) -> Option<Vec<u8>> {
    let directory = docker_directory(roots)?.join("containers");
    read(&directory, &format!("{}/config.v2.json", component(id)?), MAX_FILE)
}

/// The state files of a container of Docker's.
#[derive(Clone, Debug)]
pub struct DockerContainer {
    /// Its directory, which also has its log.
    pub directory: PathBuf,
    /// `config.v2.json`.
    pub config: Vec<u8>,
    /// `hostconfig.json`.
    pub host_config: Vec<u8>,
}

/// All containers of Docker's.
#[must_use]
pub fn docker_containers(roots: &Roots) -> Vec<DockerContainer> {
    let Some(directory) = docker_directory(roots).map(|directory| directory.join("containers")) else {
        return Vec::new();
    };
    let of = |id: String| {
        let file = |name: &str| read(&directory, &format!("{id}/{name}"), MAX_FILE);
        let (config, host_config) = (file("config.v2.json")?, file("hostconfig.json")?);
        Some(DockerContainer { directory: directory.join(&id), config, host_config })
    };
    entries(&directory).into_iter().filter_map(of).collect()
}

/// The storage driver of the images in Docker's directory; `None` if there are none, or of several drivers.
#[must_use]
pub fn docker_storage_driver(roots: &Roots, data_root: &str) -> Option<String> {
    let mut drivers = entries(&absolute(roots, data_root)?.join("image"));
    drivers.pop().filter(|_| drivers.is_empty())
}

/// The lists of containers in the storage shared by Podman and CRI-O (`containers.json` and `volatile-containers.json`). Rootless
/// storage, in users' home directories, is not searched.
#[must_use]
pub fn podman_lists(roots: &Roots) -> Vec<Vec<u8>> {
    let (graph_root, run_root) = storage_roots(roots);
    let mut lists = Vec::new();
    for base in [graph_root, run_root].into_iter().flatten() {
        for driver in STORAGE_DRIVERS {
            let directory = base.join(format!("{driver}-containers"));
            let files = ["containers.json", "volatile-containers.json"];
            lists.extend(files.into_iter().filter_map(|file| read(&directory, file, MAX_LIST)));
        }
    }
    lists
}

/// The directory of the storage shared by Podman and CRI-O, and the driver with which there are containers in it; `None` without any.
#[must_use]
pub fn podman_storage(roots: &Roots) -> Option<(PathBuf, &'static str)> {
    let (graph_root, _) = storage_roots(roots);
    let graph_root = graph_root?;
    let driver = STORAGE_DRIVERS.into_iter().find(|driver| {
        let containers = entries(&graph_root.join(format!("{driver}-containers")));
        containers.iter().any(|name| !name.ends_with(".json") && !name.ends_with(".lock"))
    })?;
    let shown =
        graph_root.strip_prefix(&roots.base).map_or_else(|_| graph_root.clone(), |path| Path::new("/").join(path));
    Some((shown, driver))
}

/// The OCI specification (`config.json`) of a containerd container, in any of containerd's namespaces.
#[must_use]
pub fn containerd_spec(roots: &Roots, id: &str) -> Option<Vec<u8>> {
    let id = component(id)?;
    let tasks = roots.base.join("run/containerd/io.containerd.runtime.v2.task");
    entries(&tasks).iter().find_map(|namespace| read(&tasks, &format!("{namespace}/{id}/config.json"), MAX_FILE))
}

/// The OCI specification of a CRI-O container.
#[must_use]
pub fn crio_spec(roots: &Roots, id: &str) -> Option<Vec<u8>> {
    let id = component(id)?;
    let (graph_root, run_root) = storage_roots(roots);
    let bases = [run_root, graph_root];
    let spec = |base: PathBuf| read(&base.join("overlay-containers"), &format!("{id}/userdata/config.json"), MAX_FILE);
    bases.into_iter().flatten().find_map(spec)
}

/// Names of the kubelet's pod log directories, one per pod.
#[must_use]
pub fn pod_log_directories(roots: &Roots) -> Vec<String> {
    entries(&roots.base.join("var/log/pods"))
}

/// Names of the containers with logs in one of [`pod_log_directories`].
#[must_use]
pub fn pod_log_containers(roots: &Roots, directory: &str) -> Vec<String> {
    component(directory).map(|name| entries(&roots.base.join("var/log/pods").join(name))).unwrap_or_default()
}

/// The `graphroot` and the `runroot` of containers-storage.conf(5).
fn storage_roots(roots: &Roots) -> (Option<PathBuf>, Option<PathBuf>) {
    let files = [("etc/containers", "storage.conf"), ("usr/share/containers", "storage.conf")];
    let text = files.into_iter().find_map(|(dir, file)| read(&roots.base.join(dir), file, MAX_FILE));
    let text = text.unwrap_or_default();
    let setting = |key, default: &str| {
        let value = runtime::storage_setting(&text, key);
        absolute(roots, value.as_deref().unwrap_or(default))
    };
    (setting("graphroot", "/var/lib/containers/storage"), setting("runroot", "/run/containers/storage"))
}

/// An absolute path of the host, below our root; `None` if it is relative or contains `..`.
fn absolute(roots: &Roots, path: &str) -> Option<PathBuf> {
    let relative = path.strip_prefix('/')?;
    (!relative.split('/').any(|part| part == "..")).then(|| roots.base.join(relative))
}

/// The name if it is a plain, non-hidden directory entry.
fn component(name: &str) -> Option<&str> {
    let is_harmless = !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    is_harmless.then_some(name)
}

/// Reads a file below a directory that only its runtime can write to. The directory itself may be a link, as operators move such
/// directories.
fn read(directory: &Path, file: &str, limit: u64) -> Option<Vec<u8>> {
    let directory = open_directory(directory)?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // NONBLOCK: opening a FIFO does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    let file = openat2(&directory, file, flags, Mode::empty(), resolve).ok()?;
    let facts = fstat(&file).ok()?;
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    // It may grow while it is read.
    File::from(file).take(limit + 1).read_to_end(&mut bytes).ok()?;
    (u64::try_from(bytes.len()).ok()? <= limit).then_some(bytes)
}

/// Names in a directory that are UTF-8 and not hidden.
fn entries(directory: &Path) -> Vec<String> {
    let Some(dir) = open_directory(directory).and_then(|fd| Dir::read_from(&fd).ok()) else { return Vec::new() };
    let names = dir.filter_map(Result::ok).filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
    let mut names: Vec<String> = names.filter(|name| component(name).is_some()).take(MAX_ENTRIES).collect();
    names.sort();
    names
}

fn open_directory(directory: &Path) -> Option<OwnedFd> {
    open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests;
