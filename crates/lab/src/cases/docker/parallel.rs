//! Many clients of the volume plugin at once, while the daemon is killed.

use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::case::{Ctx, Outcome};
use crate::cases::host::{FILE_POOL, kernel_is_silent, leave_devices_to_bulkhead};

/// The clients, the supervisor that kills and restarts the daemon, and the checks after each round.
const CLIENTS: &str = include_str!("parallel.py");

pub(super) async fn docker_parallel(
    ctx: &mut Ctx,
    n_volumes: usize,
    n_kills: usize,
    limit: Duration,
) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    // Mounts are shared, as with systemd: servers that start do not keep unmounted volumes busy.
    let prepare = "mount --make-rshared /; mkdir -p /run/filepool; mount DISK /run/filepool";
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; {}", prepare.replace("DISK", &disk))).await?;
    leave_devices_to_bulkhead(ctx).await?;
    ctx.machine.write_file("/run/parallel.py", CLIENTS.as_bytes()).await?;
    let program = ctx.program("bulkhead");
    let clients = format!("python3 /run/parallel.py {program} {FILE_POOL} {n_volumes} {n_kills}");
    let outcome = ctx.machine.sh_within(&clients, limit).await;
    for log in ["daemon", "plugin"] {
        ctx.save(&format!("{log}.log"), &ctx.machine.read_text(&format!("/run/parallel-{log}.log")).await?)?;
    }
    for round in outcome.context("the clients")?.lines() {
        ctx.log(format!("{n_volumes} volumes: {round}"));
    }
    ctx.machine
        .sh("umount /run/filepool; mount --make-rprivate /; rm -r /run/filepool /run/parallel* /run/udev/rules.d")
        .await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}
