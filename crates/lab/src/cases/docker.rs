//! Real container engines together with Bulkhead: containers that are started in a tenant's slice, and the volume plugin.

mod blame;
mod engine;
mod events;
mod image;
mod in_slice;
mod parallel;
mod podman;
mod reboot;
mod runtime;
mod volumes;

use std::time::Duration;

use super::crowd::PARALLEL;
use super::systemd::SYSTEMD;
use crate::case::{Case, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;

/// A machine whose disk is the bottleneck.
const SHARED_DISK: Profile = Profile { name: "shared-disk", disks: &[DiskSpec::new(DiskModel::Hdd, 4096)], ..SYSTEMD };

/// Run by name only: three boots with Docker, and a hundred kills, take too long for every run.
pub(super) const SOAK: &[Case] = &[DOCKER_REBOOT, DOCKER_PARALLEL_100];

const DOCKER_REBOOT: Case = Case {
    name: "docker_reboot",
    about: "a database in a container of a stock Docker whose unit requires the tenant's volumes: after a reboot and \
            after a power cut it has all acknowledged rows, a container with a volume of the driver `bulkhead` has all that it has \
            synced, and Docker is not started if its pool is not mounted",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(reboot::docker_reboot(ctx)),
};

const DOCKER_PARALLEL: Case = Case {
    name: "docker_parallel",
    about: "16 clients of the volume plugin at once create, mount, unmount and remove a volume each, while the daemon is killed \
            4 times: all succeed, some after repeating a request, each mount is counted once, and nothing is left",
    kernels: &[Kernel::V6_12],
    profile: PARALLEL,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(parallel::docker_parallel(ctx, 16, 4, Duration::from_secs(600))),
};

const DOCKER_PARALLEL_100: Case = Case {
    name: "docker_parallel_100",
    about: "the same with 100 clients, in rounds, and 100 kills",
    limit: Duration::from_secs(14_400),
    run: |ctx| Box::pin(parallel::docker_parallel(ctx, 100, 100, Duration::from_secs(14_400))),
    ..DOCKER_PARALLEL
};

pub(super) const CASES: &[Case] = &[
    DOCKER_PARALLEL,
    Case {
        name: "which_container",
        about: "docs/which-container.md shows what its commands print on a host with a stock Docker and nothing of Bulkhead's but the \
                program: the container whose writes delay another one's fsync is named",
        kernels: &[Kernel::V6_12],
        profile: SHARED_DISK,
        limit: Duration::from_secs(500),
        run: |ctx| Box::pin(blame::which_container(ctx)),
    },
    Case {
        name: "docker_in_slice",
        about: "a stock Docker starts a container in a tenant's slice: the tenant is charged for its volume, journal \
            included; docker pause, exec, restart, update and rm work, and the tenant cannot be removed before its \
            container",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(500),
        run: |ctx| Box::pin(in_slice::docker_in_slice(ctx)),
    },
    Case {
        name: "docker_volumes",
        about: "a stock Docker uses volumes of the driver `bulkhead`: created with options, filled from the image, shared by \
            containers, charged to their tenant, removed; Docker, plugin and daemon are restarted and killed meanwhile",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(volumes::docker_volumes(ctx)),
    },
    Case {
        name: "docker_events",
        about: "docs/docker.md shows what its commands print, Compose included; a container of a stock Docker keeps its volume through pause, \
                commit, lack of memory, a restart of Docker with live-restore and an upgrade of the package, and leaves nothing",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(1200),
        run: |ctx| Box::pin(events::docker_events(ctx)),
    },
    Case {
        name: "docker_image",
        about: "an image of a stock Docker, and of its containerd, is imported by its name: the base has the entries that Docker \
                exports, and is the base that the outputs of `docker save` and `ctr images export` give; absent images and \
                runtimes are refused, and nothing is left",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(500),
        run: |ctx| Box::pin(image::docker_image(ctx)),
    },
    Case {
        name: "podman_volumes",
        about: "a stock Podman uses volumes of the driver `bulkhead` as docs/podman.md shows, Quadlet units and a container on a clone \
                included; they are shared by containers and charged to their tenant; plugin and daemon are killed meanwhile",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(podman::podman_volumes(ctx)),
    },
    Case {
        name: "docker_runtime",
        about: "a stock Docker creates containers by `bulkhead-runtime`: one with a volume on LVM runs in its tenant's slice, which pays \
                for its I/O; pause, exec, update, restart, restart policies and rm work; a chosen parent is kept; without a daemon it \
                starts all the same, and the log says why it is elsewhere; containerd's own client does the same as docs/runtime.md shows",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(runtime::docker_runtime(ctx)),
    },
    Case {
        name: "podman_runtime",
        about: "the same with a stock Podman and crun",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(runtime::podman_runtime(ctx)),
    },
];
