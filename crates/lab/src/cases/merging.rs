//! Rotating snapshots: the layers that they leave are merged while the volume is written to, without visible effect.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::blockd::VERIFY;
use super::host::{SMP, json, kernel_is_silent, make_pools, nothing_is_critical, start_daemon, unmake_pools};
use super::layers::{POOL, acked, append, attach, check_numbers, inspect, kill_server};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "layers_merge",
    about: "rotating snapshots under writers: layers are merged and their space is freed, through kill -9 of the \
            daemon and of servers; the volume, a clone and the snapshots keep their contents",
    kernels: &[Kernel::V6_12],
    profile: SMP,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(merge(ctx)),
}];

/// Number of snapshots taken, and of snapshots kept at a time.
const SNAPSHOTS: usize = 20;
const KEPT: usize = 2;

/// Most layers left at the end: those of the snapshots and the clone, and layers too small to be merged.
const MAX_LEFT: usize = 12;

/// Counts deleted layers that a process still has open.
const STALE: &str = "ls -l /proc/*/fd 2> /dev/null | grep -c '\\.layer (deleted)' || true";

async fn merge(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let mut daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds /run/acked").await?;
    json(ctx, &["volume", "create", "file/v", "--size", "256M", "--provision", "on-demand"]).await?;
    let at = attach(ctx, "v").await?;
    let random = format!("head -c 30000000 /dev/urandom > {at}/data; sync -f {at}; md5sum < {at}/data > /run/sum");
    ctx.machine.sh(&random).await?;
    // A clone that shares only the oldest layers.
    json(ctx, &["volume", "clone", "file/v", "c"]).await?;
    let clone = attach(ctx, "c").await?;

    let writer = append(ctx, &at, "acked").await?;
    let verify = VERIFY.replace("AT", &at);
    let load = ctx.machine.spawn(&["bash", "-c", &verify], &[]).await?;
    let mut synced = vec![acked(ctx, "acked").await?];
    let mut deepest = 0;
    for n in 0..SNAPSHOTS {
        json(ctx, &["volume", "snapshot", "file/v", &format!("s{n}")]).await?;
        synced.push(acked(ctx, "acked").await?);
        if let Some(old) = n.checked_sub(KEPT) {
            json(ctx, &["volume", "rm", &format!("file/s{old}")]).await?;
        }
        deepest = deepest.max(depth(ctx, "v").await?);
        match n % 10 {
            4 => {
                kill_server(ctx, "v").await?;
            }
            // Possibly during a merge.
            7 => {
                daemon.kill().await?;
                daemon = start_daemon(ctx, &[]).await?;
            }
            _ => {}
        }
    }
    ctx.machine
        .wait_until("the layers are merged, and no process has old ones open", Duration::from_secs(240), async || {
            let stale = ctx.machine.sh(STALE).await?;
            Ok((depth(ctx, "v").await? <= MAX_LEFT && stale.trim() == "0").then_some(()))
        })
        .await?;
    ctx.machine.sh("touch /run/stop").await?;
    let ended = writer.wait(Duration::from_secs(120)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "the writer: {}", ended.stderr);
    let ended = load.wait(Duration::from_secs(300)).await?;
    let log = ctx.machine.sh("cat /run/fio.log || true").await?;
    ensure!(ended.status == ExitStatus::Code(0), "fio: {log}");
    let rounds = ctx.machine.sh("cat /run/rounds || echo 0").await?;
    let layers = ctx.machine.sh(&format!("ls -ls {POOL}")).await?;
    ctx.save("pool.txt", &layers)?;
    let (left, rounds) = (depth(ctx, "v").await?, rounds.trim());
    ctx.log(format!("{SNAPSHOTS} snapshots, at most {deepest} layers, {left} left; {rounds} rounds of fio verified"));

    for path in [&at, &clone] {
        ctx.machine.sh(&format!("md5sum < {path}/data | diff - /run/sum")).await?;
    }
    json(ctx, &["tenant", "rm", "v"]).await?;
    json(ctx, &["volume", "check", "file/v"]).await?;
    for n in SNAPSHOTS - KEPT..SNAPSHOTS {
        let name = format!("s{n}");
        let snapshot = attach(ctx, &name).await?;
        ctx.machine.sh(&format!("md5sum < {snapshot}/data | diff - /run/sum")).await?;
        let before = synced.get(n).copied().context("there was no snapshot")?;
        check_numbers(ctx, &snapshot, before).await?;
        json(ctx, &["tenant", "rm", &name]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    json(ctx, &["volume", "rm", "file/v"]).await?;
    ctx.machine.sh(&format!("md5sum < {clone}/data | diff - /run/sum")).await?;
    json(ctx, &["tenant", "rm", "c"]).await?;
    json(ctx, &["volume", "check", "file/c"]).await?;
    json(ctx, &["volume", "rm", "file/c"]).await?;
    let left =
        ctx.machine.sh(&format!("ls {POOL}; rm -f /run/stop /run/rounds /run/acked /run/sum /run/fio.log")).await?;
    ensure!(left.trim() == "bulkhead-pool", "layers are left: {left}");
    nothing_is_critical(ctx, "when all volumes are gone").await?;
    kernel_is_silent(ctx).await?;
    unmake_pools(ctx, &["file"]).await?;
    let log = daemon.stop().await?;
    ensure!(!log.contains("layers cannot be merged"), "some layers could not be merged: {log}");
    Ok(Outcome::Passed)
}

/// Length of a volume's backing chain.
async fn depth(ctx: &Ctx, name: &str) -> Result<usize> {
    Ok(inspect(ctx, name).await?["layers"]["below"].as_array().map_or(0, Vec::len))
}
