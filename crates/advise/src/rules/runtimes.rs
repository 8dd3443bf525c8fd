//! Rules about container runtimes.

use bulkhead_core::facts::{ContainerLog, Database, Facts, Mount, Runtime};
use bulkhead_core::finding::{Finding, FindingId};

use super::{CREATE_CONTAINERS, is_controlled, named};
use crate::{Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::LogsUnlimited,
        why: "Docker's default is one file for each container, without a limit. It ends when the file system is full, for all that use it.",
        measured: None,
        source: "Docker's documentation, JSON File logging driver: max-size",
        fix: Fix::None(CREATE_CONTAINERS),
        find: logs_unlimited,
    },
    Rule {
        id: FindingId::LogsBesideDatabase,
        why: "Each line that a container prints is appended to a file, and the database's fsync waits for what has been appended.",
        measured: None,
        source: "Docker's documentation, Configure logging drivers; kernel Documentation/filesystems/ext4/, data=ordered",
        fix: Fix::None(CREATE_CONTAINERS),
        find: logs_beside_database,
    },
    Rule {
        id: FindingId::RuntimeBesideDatabase,
        why: "Pulling an image, starting and removing containers write there, and nothing restrains that: a pull writes as fast as the disk \
              takes it.",
        measured: None,
        source: "etcd's documentation, Hardware recommendations: Disks; Docker's documentation, data-root",
        fix: Fix::None("a controller needs a calibration, on an idle disk"),
        find: runtime_beside_database,
    },
    Rule {
        id: FindingId::ImagesCopiedWhole,
        why: "The storage driver vfs has no layers: it copies all files of the image for each container, in space and in I/O.",
        measured: None,
        source: "Docker's documentation, VFS storage driver; containers-storage.conf(5), driver",
        fix: Fix::None(CREATE_CONTAINERS),
        find: images_copied_whole,
    },
    Rule {
        id: FindingId::OverlayInUserSpace,
        why: "Each operation on a file goes through a process, also those on data. The kernel's overlayfs works without root since 5.11.",
        measured: None,
        source: "containers-storage.conf(5), mount_program; kernel Documentation/filesystems/overlayfs.rst, userxattr",
        fix: Fix::None(CREATE_CONTAINERS),
        find: overlay_in_user_space,
    },
    Rule {
        id: FindingId::CgroupsManagedTwice,
        why: "systemd manages the tree as well. It resets settings in cgroups that it does not know, and weights of units are not those of \
              containers.",
        measured: None,
        source: "systemd's documentation, CGROUP_DELEGATION.md; Kubernetes' documentation, Container Runtimes: cgroup drivers",
        fix: Fix::None("runtimes and their containers have to be restarted"),
        find: cgroups_managed_twice,
    },
];

fn logs_unlimited(facts: &Facts) -> Vec<Finding> {
    let names: Vec<&str> = facts
        .logs
        .iter()
        .filter(|log| log.driver == "json-file" && !log.limited)
        .map(|log| log.container.as_str())
        .collect();
    if names.is_empty() {
        return Vec::new();
    }
    let evidence = format!("the logs of {} have driver json-file and no max-size", named(names));
    let advice = "set `\"log-driver\": \"local\"`, or `\"log-opts\": {\"max-size\": \"10m\", \"max-file\": \"3\"}`, in /etc/docker/daemon.json; \
                  containers get it when they are created";
    vec![Finding::new(FindingId::LogsUnlimited, "runtime docker", evidence).advise(advice)]
}

fn logs_beside_database(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let databases = named(of_file_system(facts, mount).map(|database| database.name.as_str()));
        let is_here = |log: &&ContainerLog| facts.mount_at(&log.directory).is_some_and(|at| at.dev == mount.dev);
        let logs = named(facts.logs.iter().filter(is_here).map(|log| log.container.as_str()));
        let evidence = format!("it has the logs of {logs}, and the data of {databases}");
        let advice = "give the database a volume of its own, or send logs elsewhere (`\"log-driver\": \"journald\"` in /etc/docker/daemon.json)";
        (!databases.is_empty() && !logs.is_empty()).then(|| {
            Finding::new(FindingId::LogsBesideDatabase, format!("file system {}", mount.at), evidence).advise(advice)
        })
    };
    facts.file_systems().into_iter().filter_map(finding).collect()
}

fn of_file_system<'a>(facts: &'a Facts, mount: &'a Mount) -> impl Iterator<Item = &'a Database> {
    facts.databases.iter().filter(|database| database.dev == mount.dev)
}

fn runtime_beside_database(facts: &Facts) -> Vec<Finding> {
    let finding = |runtime: &Runtime| {
        let disks = facts.disks_of(facts.mount_at(&runtime.directory)?.dev);
        let disk = disks.into_iter().find(|disk| {
            let is_below = |database: &Database| facts.disks_of(database.dev).iter().any(|below| below.dev == disk.dev);
            !is_controlled(disk) && facts.databases.iter().any(is_below)
        })?;
        let is_on = |database: &&Database| facts.disks_of(database.dev).iter().any(|below| below.dev == disk.dev);
        let names = named(facts.databases.iter().filter(is_on).map(|database| database.name.as_str()));
        let evidence = format!(
            "{} is on {}, as the data of {names}, and no I/O controller divides that disk",
            runtime.directory, disk.name
        );
        let advice = format!(
            "put the data of databases on another disk, or enable a controller: `bulkhead device calibrate {0}`, then `bulkhead device control {0} \
             --policy iocost`",
            disk.name
        );
        let object = format!("runtime {}", runtime.name);
        Some(Finding::new(FindingId::RuntimeBesideDatabase, object, evidence).advise(advice))
    };
    facts.runtimes.iter().filter_map(finding).collect()
}

fn images_copied_whole(facts: &Facts) -> Vec<Finding> {
    let finding = |runtime: &Runtime| {
        let advice = "use `overlay2` (Docker: \"storage-driver\" in daemon.json) or `overlay` (Podman: storage.conf) on ext4 or XFS, and create the \
                      containers again";
        let evidence = format!("the storage driver in {} is vfs", runtime.directory);
        Finding::new(FindingId::ImagesCopiedWhole, format!("runtime {}", runtime.name), evidence).advise(advice)
    };
    facts.runtimes.iter().filter(|runtime| runtime.storage_driver.as_deref() == Some("vfs")).map(finding).collect()
}

fn overlay_in_user_space(facts: &Facts) -> Vec<Finding> {
    let overlays = facts.mounts.iter().filter(|mount| mount.fs_type == "fuse.fuse-overlayfs");
    let at: Vec<&str> = overlays.map(|mount| mount.at.as_str()).collect();
    if at.is_empty() {
        return Vec::new();
    }
    let advice = "remove `mount_program` from storage.conf, and create the containers again (`podman system reset` removes all of them)";
    let evidence = format!("fuse-overlayfs serves {}", named(at));
    vec![Finding::new(FindingId::OverlayInUserSpace, "host", evidence).advise(advice)]
}

fn cgroups_managed_twice(facts: &Facts) -> Vec<Finding> {
    let finding = |runtime: &Runtime| {
        let advice = match runtime.name.as_str() {
            "docker" => "remove `native.cgroupdriver=cgroupfs` from \"exec-opts\" in /etc/docker/daemon.json",
            "kubelet" => "set `cgroupDriver: systemd` in the kubelet's configuration, and the same in the runtime's",
            _ => {
                "set `SystemdCgroup = true` for runc in /etc/containerd/config.toml, and the same in the kubelet's configuration"
            }
        };
        let evidence = "its cgroup driver is cgroupfs, and systemd is the init process";
        Finding::new(FindingId::CgroupsManagedTwice, format!("runtime {}", runtime.name), evidence).advise(advice)
    };
    let twice = facts.runtimes.iter().filter(|runtime| runtime.cgroup_driver.as_deref() == Some("cgroupfs"));
    twice.filter(|_| facts.systemd).map(finding).collect()
}
