//! Trimming: blocks that volumes no longer use return to their pools, charged to their tenants.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{FILE_POOL, KINDS, PROFILE, json, kernel_is_silent, make_pools, refused, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[Case {
    name: "volume_trim",
    about: "blocks of removed files in volumes of a file pool and a thin pool, ext4 and XFS, return to the pools, and \
            their tenant is charged for the discards; volumes provisioned in full are refused and keep their blocks",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(trim(ctx)),
}];

/// Bytes written to a volume and removed again, and the least that must return: partly used blocks of a thin pool stay.
const DATA: u64 = 200_000_000;
const RETURNED: u64 = 180_000_000;

/// Time limit for removed blocks to return: XFS frees files in the background, and a thin pool reports its usage after
/// a commit.
const LIMIT: Duration = Duration::from_secs(60);

async fn trim(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &KINDS).await?;
    // The first one is trimmed in two steps.
    let volumes = [("file/v", "ext4", "1500M"), ("thin/v", "ext4", "512M"), ("thin/x", "xfs", "512M")];
    for (volume, fs, size) in volumes {
        json(ctx, &["volume", "create", volume, "--size", size, "--fs", fs, "--provision", "on-demand"]).await?;
    }
    for volume in ["file/full", "thick/v", "file/detached"] {
        json(ctx, &["volume", "create", volume, "--size", "64M"]).await?;
    }
    let held = volumes.iter().map(|(volume, ..)| *volume).chain(["file/full", "thick/v"]);
    let held: Vec<&str> = held.flat_map(|volume| ["--volume", volume]).collect();
    json(ctx, &[&["tenant", "create", "db"], &held[..]].concat()).await?;

    for (volume, ..) in volumes {
        let (pool, _) = volume.split_once('/').context("no pool")?;
        let before = free(ctx, pool).await?;
        let (at, charged) = (mounted_at(ctx, volume).await?, discarded(ctx, volume).await?);
        ctx.machine.sh(&format!("head -c {DATA} /dev/zero | tr '\\0' x > {at}/data; sync -f {at}")).await?;
        let full = free(ctx, pool).await?;
        ensure!(
            before.saturating_sub(full) > RETURNED,
            "{volume} has used no space: {before} free before, {full} after"
        );
        ctx.machine.sh(&format!("rm {at}/data; sync -f {at}")).await?;
        let mut answer = serde_json::Value::Null;
        let waited = ctx
            .machine
            .wait_until("the removed blocks are free", LIMIT, async || {
                answer = json(ctx, &["volume", "trim", volume]).await?;
                Ok((free(ctx, pool).await? > full + RETURNED).then_some(()))
            })
            .await;
        waited.with_context(|| format!("{volume}: {answer}"))?;
        let parts = answer["trimmed"][0]["steps"].as_array().map(Vec::len);
        ensure!(parts == Some(if volume == "file/v" { 2 } else { 1 }), "{answer}");
        let charged = discarded(ctx, volume).await? - charged;
        ctx.log(format!("{volume}: {} of {DATA} B returned, {charged} B charged", free(ctx, pool).await? - full));
        ensure!(charged > RETURNED, "{volume}: only {charged} B were discarded in the tenant's cgroup");
    }

    let blocks = format!("stat -c %b {FILE_POOL}/full.img");
    let taken = ctx.machine.sh(&blocks).await?;
    refused(ctx, 8, &["file/full", "written in advance"], &["volume", "trim", "file/full"]).await?;
    refused(ctx, 8, &["keeps its space"], &["volume", "trim", "thick/v"]).await?;
    let detached = ["volume", "trim", "file/detached"];
    refused(ctx, 8, &["written in advance"], &detached).await?;
    json(ctx, &["volume", "snapshot", "thin/v", "s"]).await?;
    refused(ctx, 8, &["read-only"], &["volume", "trim", "thin/s"]).await?;
    json(ctx, &["volume", "rm", "thin/s"]).await?;
    refused(ctx, 3, &["no volume of that name"], &["volume", "trim", "file/none"]).await?;
    refused(ctx, 2, &["' '"], &["volume", "trim", "file/a b"]).await?;
    let all = json(ctx, &["volume", "trim", "--all"]).await?;
    let counts = ["trimmed", "passed_over"].map(|key| all[key].as_array().map(Vec::len));
    ensure!(counts == [Some(3), Some(3)], "{all}");
    ensure!(ctx.machine.sh(&blocks).await? == taken, "a volume provisioned in full has holes");
    json(ctx, &["tenant", "set", "db", "--detach", "file/v"]).await?;
    refused(ctx, 2, &["not mounted", "--attach file/v"], &["volume", "trim", "file/v"]).await?;

    json(ctx, &["tenant", "rm", "db"]).await?;
    for (volume, ..) in volumes {
        json(ctx, &["volume", "check", volume]).await?;
        json(ctx, &["volume", "rm", volume]).await?;
    }
    for volume in ["file/full", "thick/v", "file/detached"] {
        json(ctx, &["volume", "rm", volume]).await?;
    }
    kernel_is_silent(ctx).await?;
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Free space of a pool, in bytes.
async fn free(ctx: &Ctx, pool: &str) -> Result<u64> {
    json(ctx, &["pool", "inspect", pool]).await?["free_bytes"].as_u64().context("free space is unknown")
}

async fn mounted_at(ctx: &Ctx, volume: &str) -> Result<String> {
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    Ok(view["mounted_at"].as_str().context("not mounted")?.to_owned())
}

/// Bytes discarded on the disk of a volume by the tenant and its servers.
async fn discarded(ctx: &Ctx, volume: &str) -> Result<u64> {
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    let device = view["device"].as_str().context("no device")?;
    let script = format!(
        "disk=$(readlink -f /sys/class/block/$(basename $(readlink -f {device}))); [ ! -e $disk/partition ] || disk=$disk/..; \
         dev=$(cat $disk/dev); \
         awk -v dev=$dev '$1 == dev {{ for (i = 2; i <= NF; i++) if (sub(\"dbytes=\", \"\", $i)) n = $i }} END {{ print n + 0 }}' \
         /sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice/io.stat"
    );
    Ok(ctx.machine.sh(&script).await?.trim().parse()?)
}
