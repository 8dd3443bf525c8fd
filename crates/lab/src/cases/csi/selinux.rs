//! The SELinux mount option, on a kernel with a small policy.

use std::time::Duration;

use anyhow::Result;

use super::{KUBELET, grpc_for_python};
use crate::case::{Ctx, Outcome};
use crate::cases::crowd::Crowd;

/// Time limit of the script under emulation.
const LIMIT: Duration = Duration::from_secs(240);

pub(super) async fn csi_selinux(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let env = match grpc_for_python(ctx).await {
        Ok(env) => env,
        Err(error) => return Ok(Outcome::Skipped(format!("{error:#}"))),
    };
    let compiler = match ctx.lab.package("secilc").await {
        Ok(package) => package.path("usr/bin/secilc"),
        Err(error) => return Ok(Outcome::Skipped(format!("Debian's secilc is not available: {error:#}"))),
    };
    ctx.machine.write_file("/run/policy.cil", include_str!("policy.cil").as_bytes()).await?;
    let compile = "-c 33 -o /run/policy -f /run/file-contexts /run/policy.cil";
    ctx.machine.sh(&format!("mount -t selinuxfs selinuxfs /sys/fs/selinux; {compiler} {compile}")).await?;
    let (script, logs) = (concat!(include_str!("messages.py"), include_str!("selinux.py")), ["daemon", "driver"]);
    Crowd { script, env: &env, logs, n_volumes: 2, n_kills: 1, limit: LIMIT }.run(ctx).await?;
    ctx.machine
        .sh(&format!("rm -r {KUBELET} /run/policy /run/policy.cil /run/file-contexts; umount /sys/fs/selinux"))
        .await?;
    Ok(Outcome::Passed)
}
