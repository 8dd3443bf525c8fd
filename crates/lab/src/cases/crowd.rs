//! Many clients of a front end at once, while its programs are killed: what `docker_parallel` and `csi_parallel` have in common. Does not:
//! speak a front end's protocol.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::host::{FILE_POOL, SMP, kernel_is_silent, leave_devices_to_bulkhead};
use crate::case::{Ctx, Profile};
use crate::disk::{DiskModel, DiskSpec};

/// A machine with memory for a hundred block servers.
pub(super) const PARALLEL: Profile =
    Profile { name: "parallel", disks: &[DiskSpec::new(DiskModel::Fast, 4096)], memory_mib: 4096, ..SMP };

/// The servers that are killed and restarted, the clients' rounds, and the checks after each round.
const CROWD: &str = include_str!("crowd.py");

/// Clients of a front end.
pub(super) struct Crowd<'a> {
    /// A script on top of [`CROWD`].
    pub(super) script: &'a str,
    /// The environment of its interpreter, as words of a shell.
    pub(super) env: &'a str,
    /// The names of the logs that its servers write.
    pub(super) logs: [&'a str; 2],
    /// Clients, each with a volume.
    pub(super) n_volumes: usize,
    /// How often a server is killed, in as many rounds as that takes.
    pub(super) n_kills: usize,
    /// How long that may take.
    pub(super) limit: Duration,
}

impl Crowd<'_> {
    /// Has the clients run in the guest, and checks that they leave nothing.
    pub(super) async fn run(self, ctx: &Ctx) -> Result<()> {
        let Self { script, env, logs, n_volumes, n_kills, limit } = self;
        let disk = ctx.machine.disk(0).await?;
        // Mounts are shared, as with systemd: servers that start do not keep unmounted volumes busy.
        let prepare = "mount --make-rshared /; mkdir -p /run/filepool /run/parallel; mount DISK /run/filepool";
        ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; {}", prepare.replace("DISK", &disk))).await?;
        leave_devices_to_bulkhead(ctx).await?;
        for (name, text) in [("crowd", CROWD), ("clients", script)] {
            ctx.machine.write_file(&format!("/run/parallel/{name}.py"), text.as_bytes()).await?;
        }
        let program = ctx.program("bulkhead");
        let clients = format!("{env} python3 /run/parallel/clients.py {program} {FILE_POOL} {n_volumes} {n_kills}");
        let outcome = ctx.machine.sh_within(&clients, limit).await;
        for log in logs {
            ctx.save(&format!("{log}.log"), &ctx.machine.read_text(&format!("/run/parallel/{log}.log")).await?)?;
        }
        for round in outcome.context("the clients")?.lines() {
            ctx.log(format!("{n_volumes} volumes: {round}"));
        }
        ctx.machine
            .sh("umount /run/filepool; mount --make-rprivate /; rm -r /run/filepool /run/parallel /run/udev/rules.d")
            .await?;
        kernel_is_silent(ctx).await
    }
}
