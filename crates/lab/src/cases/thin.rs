//! Clones on a thin pool that share memory with their snapshot: a block server in front of a logical volume.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{SMP, json, kernel_is_silent, make_pools, refused, start_daemon, unmake_pools};
use super::layers::kill_server_of;
use super::sharing::{DATA, TREE, heat_of};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[Case {
    name: "thin_clones_share",
    about: "clones on a thin pool read blocks that they share with their snapshot from one copy in memory, and blocks \
            that they have written from their own volume: under kill -9, growth, snapshots of them, and after removal \
            of the snapshot",
    kernels: &[Kernel::V6_12],
    profile: SMP,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(share(ctx)),
}];

/// Changes some of a clone's files in each way in which blocks change, and records the checksums of all files.
const CHANGE: &str = "cd AT; dd if=/dev/urandom of=data0 bs=4096 count=3 seek=100 conv=notrunc oflag=direct status=none; \
                      rm data1; head -c 5000000 /dev/urandom > data8; fallocate -z -o 40960 -l 81920 data2; \
                      fallocate -p -o 409600 -l 40960 data3; sync -f .; find . -type f ! -path './lost+found/*' | sort | xargs md5sum > SUMS";

async fn share(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["thin"]).await?;
    ctx.machine.sh(TREE).await?;
    json(ctx, &["volume", "create", "thin/v", "--size", "256M"]).await?;
    let at = attach(ctx, "v").await?;
    ctx.machine.sh(&format!("cp -a /run/tree/. {at}; sync -f {at}")).await?;
    let from_writable = ["volume", "clone", "thin/v", "no", "--read-from", "host-cache"];
    refused(ctx, 2, &["only a clone of a snapshot", "volume snapshot thin/v"], &from_writable).await?;
    json(ctx, &["volume", "snapshot", "thin/v", "s"]).await?;
    json(ctx, &["tenant", "rm", "v"]).await?;
    refused(ctx, 8, &["--read-from host-cache"], &["volume", "clone", "thin/s", "no", "--read-from", "both"]).await?;
    let in_domain = ["volume", "clone", "thin/s", "no", "--read-from", "host-cache", "--domain", "d"];
    refused(ctx, 8, &["omit `--read-from` and `--domain`"], &in_domain).await?;
    json(ctx, &["volume", "create", "thin/x", "--size", "320M", "--fs", "xfs"]).await?;
    json(ctx, &["volume", "snapshot", "thin/x", "y"]).await?;
    refused(ctx, 8, &["use ext4"], &["volume", "clone", "thin/y", "no", "--read-from", "host-cache"]).await?;
    for name in ["y", "x"] {
        json(ctx, &["volume", "rm", &format!("thin/{name}")]).await?;
    }
    json(ctx, &["volume", "clone", "thin/s", "plain"]).await?;
    ensure!(json(ctx, &["volume", "inspect", "thin/plain"]).await?["read_from"] == "disk", "it shares unasked");
    json(ctx, &["volume", "rm", "thin/plain"]).await?;

    // Blocks are read once from the disk, and then from memory.
    for name in ["a", "b"] {
        json(ctx, &["volume", "clone", "thin/s", name, "--read-from", "host-cache"]).await?;
        attach(ctx, name).await?;
    }
    ctx.machine.sh("sync; echo 3 > /proc/sys/vm/drop_caches").await?;
    for name in ["a", "b"] {
        verify(ctx, name, "/run/sums").await?;
        let heat = heat_of(ctx, &format!("thin/{name}")).await?;
        ctx.log(format!("{name}: {heat:?}"));
        // Read-ahead blocks of the first clone are in memory when it reads them.
        let well = if name == "a" { heat.disk > 0 && heat.disk + heat.cache >= DATA } else { heat.cache >= DATA };
        ensure!(well && heat.peer == 0, "{name} has read from other sources: {heat:?}");
        ensure!(name == "a" || heat.disk < DATA / 4, "there is more than one copy: {heat:?}");
    }
    let view = json(ctx, &["volume", "inspect", "thin/a"]).await?;
    let device = json(ctx, &["device", "inspect", view["device"].as_str().context("no device")?]).await?;
    let below = &device["physical_devices"];
    ensure!(below == &view["physical_devices"] && !below[0].is_null(), "its physical devices are not known: {device}");
    let named = json(ctx, &["heatmap"]).await?;
    ensure!(named[0]["source_name"] == "thin/s", "the heat map does not name the snapshot: {named}");
    let read_only = ctx.machine.sh("dd if=/dev/zero of=/dev/bulkhead-thin/s bs=4096 count=1 2>&1 || true").await?;
    ctx.log(format!("writing to the snapshot: {}", read_only.trim()));

    // Written blocks are the clone's own, under any server.
    let at = mounted_at(ctx, "a").await?;
    ctx.machine.sh(&CHANGE.replace("AT", &at).replace("SUMS", "/run/sums.a")).await?;
    for kill in [false, true] {
        if kill {
            kill_server_of(ctx, "thin/a").await?;
        }
        ctx.machine.sh("echo 3 > /proc/sys/vm/drop_caches").await?;
        verify(ctx, "a", "/run/sums.a").await?;
    }
    verify(ctx, "b", "/run/sums").await?;
    json(ctx, &["volume", "resize", "thin/a", "--size", "320M"]).await?;
    json(ctx, &["volume", "snapshot", "thin/a", "t"]).await?;
    json(ctx, &["volume", "clone", "thin/t", "c", "--read-from", "host-cache"]).await?;
    ctx.machine.sh(&format!("head -c 9000000 /dev/urandom > {at}/data9; rm {at}/data8; sync -f {at}")).await?;
    attach(ctx, "c").await?;
    verify(ctx, "c", "/run/sums.a").await?;

    // The daemon is restarted while another program holds the metadata snapshot, or has not released it.
    daemon.kill().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    let pool = ctx.machine.sh("dmsetup ls --target thin-pool | cut -f 1").await?;
    let pool = pool.trim();
    ctx.machine.sh(&format!("dmsetup message {pool} 0 reserve_metadata_snap")).await?;
    kill_server_of(ctx, "thin/c").await?;
    verify(ctx, "c", "/run/sums.a").await?;
    let logs = ctx.machine.sh("cat /run/bulkhead/blockd/*.log").await?;
    ensure!(logs.contains("is already reserved"), "no message says why nothing is shared: {logs}");
    let uuid = format!("dmsetup info -c --noheadings -o uuid {pool}");
    ctx.machine.sh(&format!("touch /var/lib/bulkhead/thin/$({uuid})")).await?;
    kill_server_of(ctx, "thin/c").await?;
    verify(ctx, "c", "/run/sums.a").await?;
    let reserved = ctx.machine.sh(&format!("ls /var/lib/bulkhead/thin; dmsetup status {pool}")).await?;
    ensure!(reserved.starts_with("locks\n") && reserved.contains(" - rw "), "metadata are left reserved: {reserved}");

    // Without a server, and without its snapshot, the volume has the same contents.
    refused(ctx, 5, &["shares memory with it", "--detach"], &["volume", "rm", "thin/s"]).await?;
    for name in ["c", "b", "a"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("thin/{name}")]).await?;
    }
    let volume = json(ctx, &["volume", "inspect", "thin/c"]).await?;
    ensure!(volume["device"].is_null(), "it is still served: {volume}");
    ctx.machine
        .sh("mkdir /run/plain; mount -o ro /dev/bulkhead-thin/c /run/plain; cd /run/plain; md5sum --quiet -c /run/sums.a; \
             cd /; umount /run/plain; rmdir /run/plain")
        .await?;
    json(ctx, &["volume", "rm", "thin/s"]).await?;
    attach(ctx, "b").await?;
    verify(ctx, "b", "/run/sums").await?;
    let view = json(ctx, &["volume", "inspect", "thin/b"]).await?;
    ensure!(
        view["findings"].to_string().contains("no longer shares memory"),
        "no finding says that it shares nothing: {view}"
    );
    json(ctx, &["tenant", "rm", "b"]).await?;

    for name in ["a", "b", "c", "t", "v"] {
        json(ctx, &["volume", "rm", &format!("thin/{name}")]).await?;
    }
    ctx.save("servers.txt", &logs)?;
    kernel_is_silent(ctx).await?;
    ctx.machine.sh("rm -rf /run/tree /run/sums /run/sums.a").await?;
    unmake_pools(ctx, &["thin"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Creates a tenant for a volume of the thin pool; returns the mount point.
async fn attach(ctx: &Ctx, name: &str) -> Result<String> {
    json(ctx, &["tenant", "create", name, "--volume", &format!("thin/{name}")]).await?;
    mounted_at(ctx, name).await
}

async fn mounted_at(ctx: &Ctx, name: &str) -> Result<String> {
    let view = json(ctx, &["volume", "inspect", &format!("thin/{name}")]).await?;
    Ok(view["mounted_at"].as_str().context("not mounted")?.to_owned())
}

/// Reads all files of a volume, whose checksums must be those of a list.
async fn verify(ctx: &Ctx, name: &str, sums: &str) -> Result<()> {
    let at = mounted_at(ctx, name).await?;
    let checked = ctx.machine.sh(&format!("cd {at}; md5sum --quiet -c {sums}")).await;
    checked.map(drop).with_context(|| format!("{name} differs from {sums}"))
}
