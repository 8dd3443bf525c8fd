//! The CSI driver in a real Kubernetes: its manifests, and pods with volumes.

mod cluster;
mod experiment;
mod images;
mod postgres;
mod reboot;
mod scheduler;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json as value};

use self::cluster::{Cluster, LIMIT};
pub use self::experiment::kubernetes_on;
use super::host::{
    Daemon, PROFILE, json, kernel_is_silent, make_file_pool, nothing_is_left, start_daemon, unmake_file_pool,
};
use super::systemd::keeps_writing;
use super::tutorial;
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::kernels::Kernel;

/// Memory for a Kubernetes and its images.
const MEMORY_MIB: u32 = 6144;

/// A machine with memory for a Kubernetes and its images. In virtual time: Kubernetes has many time limits, which a busy host would exceed.
const NODE: Profile =
    Profile { name: "kubernetes", disks: &[DiskSpec::new(DiskModel::Fast, 4096)], memory_mib: MEMORY_MIB, ..PROFILE };

/// Run by name only: building Kubernetes takes 20 minutes, and each of them a quarter of an hour.
pub(super) const SOAK: &[Case] = &[KUBERNETES, KUBERNETES_POSTGRES, KUBERNETES_REBOOT, KUBERNETES_SCHEDULER];

const KUBERNETES: Case = Case {
    name: "kubernetes",
    about: "a real Kubernetes runs the driver by its manifests with the upstream sidecars: pods of one node share a volume, with fsGroup, \
            subPath and readOnly, whose I/O is charged to its tenant and not to them; it is expanded, modified, copied by a snapshot; the device \
            of a raw volume is written and grows; kubelet and daemon are restarted meanwhile, the driver is upgraded and rolled back, and nothing \
            is left",
    kernels: &[Kernel::V6_12],
    profile: NODE,
    limit: Duration::from_secs(3600),
    run: |ctx| Box::pin(kubernetes(ctx)),
};

const KUBERNETES_POSTGRES: Case = Case {
    name: "kubernetes_postgres",
    about: "in a real Kubernetes, a StatefulSet of three PostgreSQL databases, whose clients insert all the time, is expanded; a snapshot of \
            one is restored and recovered with all rows committed before, another one is evicted and has its rows; nothing is left",
    run: |ctx| Box::pin(postgres::kubernetes_postgres(ctx)),
    ..KUBERNETES
};

const KUBERNETES_REBOOT: Case = Case {
    name: "kubernetes_reboot",
    about: "a node with three databases of a real Kubernetes is rebooted, and loses its power: the volumes were unmounted before the \
            shutdown, and the same pods have all committed rows, and the shares of their claims, afterwards",
    profile: Profile {
        name: "kubernetes_systemd",
        init: Init::Systemd,
        disks: &[DiskSpec::new(DiskModel::Fast, 4096); 2],
        ..NODE
    },
    run: |ctx| Box::pin(reboot::kubernetes_reboot(ctx)),
    ..KUBERNETES
};

const KUBERNETES_SCHEDULER: Case = Case {
    name: "kubernetes_scheduler",
    about: "a real Kubernetes runs the extender and a second scheduler by their manifests: node-1 reports its disk's costs and the profile of a \
            tenant; of two more nodes, the default scheduler chooses the one with the busy disk, and ours the idle one",
    profile: Profile { disks: &[DiskSpec::new(DiskModel::Ssd, 4096)], ..NODE },
    run: |ctx| Box::pin(scheduler::kubernetes_scheduler(ctx)),
    ..KUBERNETES
};

/// The manifests of `contrib/kubernetes`, by path.
const MANIFESTS: [(&str, &str); 9] = [
    ("driver/kustomization.yaml", include_str!("../../../../contrib/kubernetes/driver/kustomization.yaml")),
    ("driver/driver.yaml", include_str!("../../../../contrib/kubernetes/driver/driver.yaml")),
    ("driver/rbac.yaml", include_str!("../../../../contrib/kubernetes/driver/rbac.yaml")),
    ("driver/daemonset.yaml", include_str!("../../../../contrib/kubernetes/driver/daemonset.yaml")),
    ("driver/classes.yaml", include_str!("../../../../contrib/kubernetes/driver/classes.yaml")),
    ("snapshots/kustomization.yaml", include_str!("../../../../contrib/kubernetes/snapshots/kustomization.yaml")),
    ("snapshots/class.yaml", include_str!("../../../../contrib/kubernetes/snapshots/class.yaml")),
    ("snapshots/rbac.yaml", include_str!("../../../../contrib/kubernetes/snapshots/rbac.yaml")),
    ("snapshots/sidecar.yaml", include_str!("../../../../contrib/kubernetes/snapshots/sidecar.yaml")),
];

/// The sidecars' images in the manifests, by program.
const SIDECARS: [&str; 3] = ["csi-provisioner", "csi-resizer", "csi-snapshotter"];

/// A claim, two pods of one node that use it, a writer that is not root and a reader, and a class with a promise.
const PODS: &str = include_str!("kubernetes/pods.yaml");

/// A claim `NAME`, and a pod of that name that uses it.
const ROLLED: &str = include_str!("kubernetes/rolled.yaml");

/// A snapshot of the claim, and a pod with what is restored from it.
const RESTORED: &str = include_str!("kubernetes/restored.yaml");

/// A claim of a raw volume, and a pod with its device.
const BLOCK: &str = include_str!("kubernetes/block.yaml");

async fn kubernetes(ctx: &mut Ctx) -> Result<Outcome> {
    let cluster = match Cluster::start(ctx).await? {
        Ok(cluster) => cluster,
        Err(skipped) => return Ok(skipped),
    };
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    let daemon = match live(ctx, &cluster, daemon).await {
        Ok(daemon) => daemon,
        Err(error) => {
            ctx.save("failed.log", &cluster.report(ctx).await?)?;
            return Err(error);
        }
    };
    finish(ctx, daemon).await
}

/// Removes the pool and ends the machine: Kubernetes does not clean up after itself.
async fn finish(ctx: &mut Ctx, daemon: Daemon) -> Result<Outcome> {
    unmake_file_pool(ctx).await?;
    daemon.stop().await?;
    kernel_is_silent(ctx).await?;
    ctx.machine.shutdown().await;
    Ok(Outcome::Passed)
}

async fn live(ctx: &Ctx, cluster: &Cluster, daemon: Daemon) -> Result<Daemon> {
    deploy(ctx, cluster).await?;
    let page = tutorial::section(include_str!("../../../../docs/kubernetes.md"), "A pod with a volume")?;
    let n_commands = tutorial::follow_within(ctx, page, LIMIT).await?;
    ctx.log(format!("the page's {n_commands} commands print what it shows"));
    let volume = use_volume(ctx, cluster).await?;
    change_volume(ctx, cluster, &volume).await?;
    let daemon = restart(ctx, cluster, &volume, daemon).await?;
    restore(ctx, cluster).await?;
    use_device(ctx, cluster).await?;
    remove(ctx, cluster).await?;
    Ok(daemon)
}

/// A bound volume.
struct Volume {
    name: String,
    /// The file with the number of lines that the writer has synced, on the host.
    written: String,
}

impl Volume {
    async fn view(&self, ctx: &Ctx) -> Result<Value> {
        json(ctx, &["volume", "inspect", &format!("file/{}", self.name)]).await
    }

    async fn keeps_writing(&self, ctx: &Ctx, what: &str) -> Result<()> {
        keeps_writing(ctx, &self.written, LIMIT, what).await
    }
}

/// Installs the driver as docs/kubernetes.md says.
async fn deploy(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.start_snapshots(ctx).await?;
    ctx.machine.sh("mkdir -p /tmp/kubernetes/driver /tmp/kubernetes/snapshots").await?;
    for (path, text) in MANIFESTS {
        ctx.machine.write_file(&format!("/tmp/kubernetes/{path}"), text.as_bytes()).await?;
    }
    let images =
        MANIFESTS.iter().flat_map(|(_, text)| text.lines()).filter_map(|line| line.trim().strip_prefix("image: "));
    for image in images {
        match SIDECARS.iter().find(|name| image.contains(&format!("/{name}:"))) {
            Some(program) => {
                images::import_program(ctx, &format!("/usr/local/bin/{program}"), &[], image).await?;
            }
            None => images::import_driver(ctx, image).await?,
        }
    }
    cluster.run(ctx, "label node node-1 bulkhead.dev/daemon=true").await?;
    cluster.run(ctx, "apply --validate=strict -k /tmp/kubernetes/snapshots").await?;
    cluster.rolled_out(ctx, "-n bulkhead daemonset/bulkhead-csi").await?;
    ctx.machine
        .wait_until("the kubelet has registered the driver", LIMIT, async || {
            let drivers = cluster.ask(ctx, "get csinode node-1 -o 'jsonpath={.spec.drivers[*].name}'").await?;
            Ok((drivers.trim() == "csi.bulkhead.dev").then_some(()))
        })
        .await?;
    ctx.machine
        .wait_until("the scheduler knows the pool's free space", LIMIT, async || {
            let capacity = "-n bulkhead get csistoragecapacities -o 'jsonpath={.items[*].capacity}'";
            Ok(Some(cluster.ask(ctx, capacity).await?).filter(|found| !found.trim().is_empty()))
        })
        .await?;
    ctx.log("the driver is deployed");
    Ok(())
}

/// Two pods of one node use a volume.
async fn use_volume(ctx: &Ctx, cluster: &Cluster) -> Result<Volume> {
    cluster.apply(ctx, PODS).await?;
    cluster.wait(ctx, "--for=condition=Ready pod/writer pod/reader").await?;
    let name = cluster.ask(ctx, "get pvc data -o 'jsonpath={.spec.volumeName}'").await?.trim().to_owned();
    let view = json(ctx, &["volume", "inspect", &format!("file/{name}")]).await?;
    let at = view["mounted_at"].as_str().context("the volume is not mounted")?;
    ensure!(view["created_by"] == "csi" && view["size_bytes"] == 64 << 20, "{view}");
    let volume = Volume { written: format!("{at}/written"), name };
    volume.keeps_writing(ctx, "the pod writes").await?;
    ctx.log("pods use a volume");

    // The kubelet has given the volume to the pod's group.
    let owner = ctx.machine.sh(&format!("stat -c %g {at}; stat -c '%u %g' {at}/log")).await?;
    ensure!(owner == "2000\n1000 2000\n", "fsGroup: {owner}");
    let seen = cluster.run(ctx, "exec reader -- sh -c 'cat /data/written; touch /data/x || echo refused'").await;
    let seen = seen.unwrap_or_else(|error| format!("{error:#}"));
    ensure!(seen.contains("refused"), "readOnly: {seen}");
    ensure!(ctx.machine.sh(&format!("cat {at}/sub/made")).await?.trim() == "by the reader", "subPath");

    // The pod is in a cgroup of the kubelet's. What it writes to the volume, and the journal, are charged to the tenant.
    let tenant = async || json(ctx, &["tenant", "inspect", &volume.name]).await;
    let charged = |view: &Value| view["server_io"]["written_bytes"].as_u64();
    let before = tenant().await?;
    volume.keeps_writing(ctx, "the pod keeps writing").await?;
    let after = tenant().await?;
    ensure!(after["share"] == 100 && charged(&after) > charged(&before), "{before} {after}");
    journal_is_charged(ctx, &after).await?;
    let disk = ctx.machine.disk(0).await?;
    let pod = format!(
        "disk=$(lsblk -ndo MAJ:MIN {disk} | tr -d ' '); for p in $(pgrep -f 'written.new'); do c=$(sed -n 's/^0:://p' /proc/$p/cgroup); \
         case $c in /kubepods/*) echo $c; grep \"^$disk .*wbytes=[1-9]\" /sys/fs/cgroup$c/io.stat || true;; esac; done"
    );
    let pod = ctx.machine.sh(&pod).await?;
    ensure!(pod.starts_with("/kubepods/") && !pod.contains("wbytes"), "the pod itself is charged: {pod}");
    Ok(volume)
}

/// Checks that the journal thread is in the slice of a tenant.
async fn journal_is_charged(ctx: &Ctx, tenant: &Value) -> Result<()> {
    let slice = tenant["slice"].as_str().context("no slice")?;
    let journal = ctx.machine.sh(&format!("cat /sys/fs/cgroup/'{slice}'/*-journal.slice/cgroup.procs")).await?;
    ensure!(!journal.trim().is_empty(), "{slice}: the journal thread is not in the tenant's slice");
    Ok(())
}

/// The claim grows, and gets another class, while the pod writes.
async fn change_volume(ctx: &Ctx, cluster: &Cluster, volume: &Volume) -> Result<()> {
    let grow = value!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    cluster.run(ctx, &format!("patch pvc data -p '{grow}'")).await?;
    cluster.wait(ctx, "--for=jsonpath='{.status.capacity.storage}'=128Mi pvc/data").await?;
    let view = volume.view(ctx).await?;
    ensure!(view["size_bytes"] == 128 << 20, "{view}");
    let size = cluster.run(ctx, "exec writer -- df -m /data").await?;
    let size = size.lines().last().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    ensure!(size > Some(96), "the pod sees {size:?} MiB");
    ctx.log("the volume is expanded");

    for (class, promise) in [("bulkhead-high", Value::Null), ("fsync-20ms", value!(20_000))] {
        let patch = value!({"spec": {"volumeAttributesClassName": class}});
        cluster.run(ctx, &format!("patch pvc data -p '{patch}'")).await?;
        let reached = format!("--for=jsonpath='{{.status.currentVolumeAttributesClassName}}'={class} pvc/data");
        cluster.wait(ctx, &reached).await?;
        let tenant = json(ctx, &["tenant", "inspect", &volume.name]).await?;
        ensure!(tenant["share"] == 300 && tenant["fsync_p99_us"] == promise, "{class}: {tenant}");
    }
    volume.keeps_writing(ctx, "the pod writes to the changed volume").await
}

/// Kubelet and daemon are restarted, and the driver is upgraded, while the pod writes.
async fn restart(ctx: &Ctx, cluster: &Cluster, volume: &Volume, daemon: Daemon) -> Result<Daemon> {
    cluster.restart_kubelet(ctx).await?;
    volume.keeps_writing(ctx, "the pod writes after a restart of the kubelet").await?;

    upgrade(ctx, cluster, volume).await?;
    daemon.kill().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    volume.keeps_writing(ctx, "the pod writes after a restart of the daemon").await?;
    let restarts =
        cluster.ask(ctx, "get pods -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}'").await?;
    ensure!(restarts.trim() == "0 0", "containers were restarted: {restarts}");
    ctx.log("kubelet and daemon were restarted");
    Ok(daemon)
}

/// The DaemonSet is upgraded, and rolled back, while the pod writes: each time another pod with a claim of its own is made, which the old or
/// the new driver serves, and the one before is deleted.
async fn upgrade(ctx: &Ctx, cluster: &Cluster, volume: &Volume) -> Result<()> {
    const DRIVER: &str = "-n bulkhead get pods -l app.kubernetes.io/name=bulkhead-csi -o \
                          'jsonpath={.items[*].spec.containers[?(@.name==\"driver\")].image}'";
    images::import_driver(ctx, "bulkhead-csi:next").await?;
    let first = cluster.ask(ctx, DRIVER).await?;
    let rollouts = [
        ("set image daemonset/bulkhead-csi driver=bulkhead-csi:next", "bulkhead-csi:next"),
        ("rollout undo daemonset/bulkhead-csi", first.trim()),
    ];
    for (n, (rollout, image)) in rollouts.into_iter().enumerate() {
        cluster.run(ctx, &format!("-n bulkhead {rollout}")).await?;
        cluster.apply(ctx, &ROLLED.replace("NAME", &format!("rolled-{n}"))).await?;
        if n > 0 {
            cluster.run(ctx, &format!("delete --wait=false pod/rolled-{0} pvc/rolled-{0}", n - 1)).await?;
        }
        volume.keeps_writing(ctx, "the pod writes during the upgrade").await?;
        cluster.rolled_out(ctx, "-n bulkhead daemonset/bulkhead-csi").await?;
        let serving = cluster.ask(ctx, DRIVER).await?;
        ensure!(serving.trim() == image, "{serving:?} serves after the rollout of {image}");
        cluster.wait(ctx, &format!("--for=condition=Ready pod/rolled-{n}")).await?;
    }
    cluster.run(ctx, "delete --ignore-not-found pod/rolled-0 pod/rolled-1 pvc/rolled-0 pvc/rolled-1").await?;
    volume.keeps_writing(ctx, "the pod writes after the upgrade").await?;
    ctx.log("the driver was upgraded and rolled back");
    Ok(())
}

/// A snapshot is a volume of its own, restored for another pod.
async fn restore(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.apply(ctx, RESTORED).await?;
    cluster.wait(ctx, "--for=jsonpath='{.status.readyToUse}'=true volumesnapshot/data").await?;
    cluster.wait(ctx, "--for=condition=Ready pod/restored").await?;
    let lines = cluster.run(ctx, "logs restored").await?;
    ensure!(lines.trim().parse::<u64>().is_ok_and(|lines| lines > 0), "the copy has {lines:?} lines");
    ctx.log("a snapshot is restored");
    Ok(())
}

/// A pod writes to the device of a raw volume, which is charged and grows meanwhile.
async fn use_device(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.apply(ctx, BLOCK).await?;
    cluster.wait(ctx, "--for=condition=Ready pod/disk").await?;
    let name = cluster.ask(ctx, "get pvc disk -o 'jsonpath={.spec.volumeName}'").await?.trim().to_owned();
    let volume = format!("file/{name}");
    let view = json(ctx, &["volume", "inspect", &volume]).await?;
    ensure!(view["fs"] == "none" && view["accounting"]["way"] == "server", "{view}");
    let write = "dd if=/dev/urandom of=/x bs=1M count=4 && dd if=/x of=/dev/xvda bs=1M conv=fsync";
    let read = "dd if=/dev/xvda bs=1M count=4 | cmp - /x";
    cluster.run(ctx, &format!("exec disk -- sh -c '{write} && {read}'")).await?;
    let tenant = json(ctx, &["tenant", "inspect", &name]).await?;
    ensure!(tenant["server_io"]["written_bytes"].as_u64() >= Some(4 << 20), "{tenant}");
    let grow = value!({"spec": {"resources": {"requests": {"storage": "128Mi"}}}});
    cluster.run(ctx, &format!("patch pvc disk -p '{grow}'")).await?;
    cluster.wait(ctx, "--for=jsonpath='{.status.capacity.storage}'=128Mi pvc/disk").await?;
    let size = cluster.run(ctx, &format!("exec disk -- sh -c 'blockdev --getsize64 /dev/xvda; {read}'")).await?;
    ensure!(size.lines().any(|line| line.trim() == "134217728"), "the pod sees {size:?} bytes");
    // Its loop device, by which it keeps the device, is the kubelet's business.
    let over = ctx.machine.sh("losetup --list --noheadings --output BACK-FILE").await?;
    ctx.log(format!("a pod has written to a device; loop devices: {:?}", over.trim()));
    cluster.run(ctx, "delete pod disk").await?;
    cluster.run(ctx, "delete pvc disk").await?;
    Ok(())
}

/// Pods, claims and snapshots are deleted, and then the driver.
async fn remove(ctx: &Ctx, cluster: &Cluster) -> Result<()> {
    cluster.run(ctx, "delete pod writer reader restored").await?;
    cluster.run(ctx, "delete volumesnapshot data").await?;
    cluster.run(ctx, "delete pvc data restored").await?;
    cluster.run(ctx, "delete volumeattributesclass fsync-20ms").await?;
    cluster.wait(ctx, "--for=delete pv --all").await?;
    nothing_is_left(ctx).await?;
    let mounts = ctx
        .machine
        .sh("grep -E '/run/bulkhead/mnt/|csi.bulkhead.dev|kubernetes.io~csi|volumeDevices' /proc/mounts || true")
        .await?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts}");
    cluster.run(ctx, "delete -k /tmp/kubernetes/snapshots").await?;
    let left = ctx.machine.sh("ls /var/lib/kubelet/plugins_registry /var/lib/kubelet/plugins/csi.bulkhead.dev").await?;
    ensure!(!left.contains(".sock"), "sockets are left: {left}");
    Ok(())
}
