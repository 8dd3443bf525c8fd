//! Volumes without a container engine: commands and units of systemd.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::{json, kernel_is_silent};
use super::systemd::{SYSTEMD, install, no_package, purge};
use super::tutorial;
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[Case {
    name: "plain_processes",
    about: "docs/plain-processes.md shows what its commands print: a command in a tenant, and Debian's MariaDB service on a volume of its \
            own, and back",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(plain_processes(ctx)),
}];

/// Time limit of starting an emulated database.
const LIMIT: Duration = Duration::from_secs(120);

async fn plain_processes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let disk = ctx.machine.disk(0).await?;
    let prepare = format!(
        "mkfs.ext4 -q {disk}; mkdir -p /srv/bulkhead; mount {disk} /srv/bulkhead; systemctl unmask mariadb; systemctl start mariadb"
    );
    ctx.machine.sh_within(&prepare, LIMIT).await?;
    let n_commands = tutorial::follow(ctx, include_str!("../../../../docs/plain-processes.md")).await?;
    ctx.log(format!("{n_commands} commands of docs/plain-processes.md"));

    ctx.machine.sh_within("systemctl stop mariadb; umount /srv/bulkhead; rmdir /srv/bulkhead", LIMIT).await?;
    for noun in ["volume", "tenant", "pool"] {
        ensure!(json(ctx, &[noun, "ls"]).await? == serde_json::json!([]), "{noun}s are left");
    }
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}
