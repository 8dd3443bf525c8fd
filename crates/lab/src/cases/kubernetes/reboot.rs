//! A node with databases is rebooted, and loses its power.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::cluster::{Cluster, LIMIT};
use super::postgres::{self, PODS};
use super::{deploy, images};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent};
use crate::cases::systemd::{install, no_package};

/// Mount point of the pool's file system.
const POOL: &str = "/srv/file";

/// File systems by disk: index, label, mount point. The second one is the node's own: the guest's root is an overlay, on which containerd's images
/// cannot be.
const MOUNTS: [(usize, &str, &str); 2] = [(0, "file", POOL), (1, "node", "/var/lib/containerd")];

/// The node removes libcni's cache when it boots, as Bottlerocket does: libcni does not sync it, and a pod whose cached result is empty after a power
/// cut is not stopped and not started again (containernetworking/cni issue 1055).
const REMOVE_CNI_CACHE: &str = "echo 'R! /var/lib/cni/results' > /etc/tmpfiles.d/cni.conf";

/// Time limit of a shutdown: systemd waits 90 s for containers that ignore SIGTERM.
const SHUTDOWN: Duration = Duration::from_secs(400);

pub(super) async fn kubernetes_reboot(ctx: &mut Ctx) -> Result<Outcome> {
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    for (index, name, at) in MOUNTS {
        let disk = ctx.machine.disk(index).await?;
        // The lab's disks appear when the machine has booted.
        let line = format!("LABEL={name} {at} ext4 noauto,x-systemd.before=bulkhead.service 0 0");
        let mount = format!(
            "mkfs.ext4 -q -L {name} {disk}; mkdir -p {at}; echo '{line}' >> /etc/fstab; systemctl daemon-reload; mount {at}"
        );
        ctx.machine.sh_within(&mount, LIMIT).await?;
    }
    ctx.machine.sh(REMOVE_CNI_CACHE).await?;
    let cluster = match Cluster::start(ctx).await? {
        Ok(cluster) => cluster,
        Err(skipped) => return Ok(skipped),
    };
    if let Err(skipped) = images::import_postgres(ctx).await? {
        return Ok(skipped);
    }
    json(ctx, &["pool", "create", "file", "--dir", &format!("{POOL}/volumes")]).await?;
    if let Err(error) = live(ctx, &cluster).await {
        ctx.save("failed.log", &cluster.report(ctx).await?)?;
        return Err(error);
    }
    json(ctx, &["pool", "rm", "file"]).await?;
    kernel_is_silent(ctx).await?;
    // Kubernetes does not clean up after itself.
    ctx.machine.shutdown().await;
    Ok(Outcome::Passed)
}

async fn live(ctx: &mut Ctx, cluster: &Cluster) -> Result<()> {
    deploy(ctx, cluster).await?;
    postgres::create(ctx, cluster).await?;
    ctx.log("three databases run");
    let pods = uids(ctx, cluster).await?;

    let committed = committed(ctx, cluster).await?;
    ctx.reboot(SHUTDOWN).await?;
    continues(ctx, cluster, &committed).await.context("after a reboot")?;
    let journal = ctx.machine.sh("journalctl -b -1 -u bulkhead --no-pager -o cat").await?;
    ctx.save("shutdown.log", &journal)?;
    ensure!(journal.contains("\"left\":0"), "not all volumes were unmounted: {journal}");

    let committed = self::committed(ctx, cluster).await?;
    ctx.crash_and_reboot().await?;
    continues(ctx, cluster, &committed).await.context("after a power cut")?;

    ensure!(uids(ctx, cluster).await? == pods, "the pods are not the same");
    postgres::remove(ctx, cluster).await?;
    let mounts = "grep -E '/run/bulkhead/mnt/|kubernetes.io~csi' /proc/mounts || true";
    let mounts = ctx.machine.sh(mounts).await?;
    ensure!(mounts.is_empty(), "mounts are left: {mounts}");
    Ok(())
}

/// The identities of the databases' pods.
async fn uids(ctx: &Ctx, cluster: &Cluster) -> Result<String> {
    cluster.ask(ctx, "get pods -l app=db -o 'jsonpath={.items[*].metadata.uid}'").await
}

/// The number of committed rows of each database.
async fn committed(ctx: &Ctx, cluster: &Cluster) -> Result<Vec<u64>> {
    let mut rows = Vec::new();
    for pod in PODS {
        rows.push(postgres::acked(ctx, cluster, pod).await?);
    }
    Ok(rows)
}

/// Waits until the databases, in the same pods, have more rows than those that were committed before the node went down.
async fn continues(ctx: &Ctx, cluster: &Cluster, committed: &[u64]) -> Result<()> {
    for (index, _, at) in MOUNTS {
        ctx.machine.disk(index).await?;
        ctx.machine.sh_within(&format!("udevadm settle; mount {at}"), LIMIT).await?;
    }
    cluster.start_again(ctx).await?;
    ctx.log("Kubernetes is started again");
    for (pod, rows) in PODS.into_iter().zip(committed) {
        postgres::inserts(ctx, cluster, pod, *rows).await?;
    }
    postgres::are_charged(ctx, cluster, 0).await?;
    ctx.log(format!("databases with {committed:?} committed rows have more"));
    Ok(())
}
