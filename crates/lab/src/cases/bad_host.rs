//! Hosts that Bulkhead supports not at all or only in part: the errors, and that nothing is half done.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::{PROFILE, cli, json, refused, refused_as, start_daemon, start_daemon_as};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "bad_host",
    about: "not root, cgroup v1 and hybrid, no io controller, no lvm2, no xfsprogs: each is refused with cause and \
            hint, and leaves nothing behind",
    kernels: &[Kernel::V6_12],
    profile: UNUSED,
    limit: Duration::from_secs(300),
    run: |ctx| Box::pin(bad_host(ctx)),
}];

/// A separate machine: after many charges to cgroups, cached inodes keep the io controller in use for minutes.
const UNUSED: Profile = Profile { name: "unused", ..PROFILE };

/// A host that mounts its cgroup hierarchies as systemd does with `systemd.unified_cgroup_hierarchy=0`. The name is
/// unique: while a hierarchy of the same name is being destroyed, the kernel restarts fsconfig(2), which then fails
/// with EBUSY.
const V1: &str = "mount -t tmpfs none /sys/fs/cgroup; mkdir /sys/fs/cgroup/systemd; \
    mount -t cgroup -o none,name=lab$$ none /sys/fs/cgroup/systemd";
/// An additional cgroup v2 hierarchy, as on Debian 10.
const HYBRID: &str = "mkdir /sys/fs/cgroup/unified; mount -t cgroup2 none /sys/fs/cgroup/unified";
/// A v1 hierarchy elsewhere that uses the io controller (its v1 name is blkio).
const WITHOUT_IO: &str = "mkdir -p /run/blkio; mount -t cgroup -o blkio none /run/blkio";
/// Hides programs: a copy of their directory without them is mounted over it.
const WITHOUT_TOOLS: &str = "cp -a /usr/sbin /run/sbin; rm /run/sbin/pv* /run/sbin/vg* /run/sbin/lv* /run/sbin/mkfs.xfs; mount --bind /run/sbin /usr/sbin";

async fn bad_host(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let program = ctx.program("bulkhead");
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", &program];
    let words = ["needs root", "sudo bulkhead daemon"];
    refused_as(ctx, 9, &words, &[&nobody[..], &["daemon"]].concat()).await?;
    for (prepare, words) in [
        (V1.to_owned(), ["cgroup v1", "unified_cgroup_hierarchy=1"]),
        (format!("{V1}; {HYBRID}"), ["cgroup hybrid", "unified_cgroup_hierarchy=1"]),
    ] {
        let script = format!("set -e; {prepare}; exec {program} daemon");
        refused_as(ctx, 8, &words, &["unshare", "--mount", "bash", "-c", &script]).await?;
    }
    ctx.machine.sh(WITHOUT_IO).await?;
    refused_as(ctx, 8, &["no io controller", "findmnt -t cgroup"], &[&program, "daemon"]).await?;
    ctx.machine.sh("umount /run/blkio; rmdir /run/blkio").await?;
    ctx.machine
        .wait_until("the io controller is back", Duration::from_secs(60), async || {
            let controllers = ctx.machine.read_text("/sys/fs/cgroup/cgroup.controllers").await?;
            Ok(controllers.split_whitespace().any(|controller| controller == "io").then_some(()))
        })
        .await?;
    let daemon = start_daemon(ctx, &[]).await?;
    let words = &["/run/bulkhead/bulkhead.sock", "run this as root"];
    refused_as(ctx, 9, words, &[&nobody[..], &["pool", "ls"]].concat()).await?;
    daemon.stop().await?;

    let disk = ctx.machine.disk(1).await?;
    let script = format!("set -e; {WITHOUT_TOOLS}; exec {program} daemon");
    let daemon = start_daemon_as(ctx, &["unshare", "--mount", "bash", "-c", &script], &[]).await?;
    refused(ctx, 8, &["lvm", "Debian package lvm2"], &["pool", "create", "p", "--device", &disk]).await?;
    json(ctx, &["pool", "create", "p", "--dir", "/run/pool"]).await?;
    let xfs = ["volume", "create", "p/v", "--size", "400M", "--fs", "xfs"];
    refused(ctx, 8, &["mkfs.xfs", "Debian package xfsprogs"], &xfs).await?;
    ensure!(json(ctx, &["volume", "ls"]).await? == serde_json::json!([]), "a refused volume is there");
    json(ctx, &["pool", "rm", "p"]).await?;
    daemon.stop().await?;
    ctx.machine.sh("rm -r /run/sbin; rm -rf /run/pool").await?;
    let blank = cli(ctx, &["pool", "ls"]).await?;
    ensure!(blank.status == ExitStatus::Code(11), "the daemon is still there: {blank:?}");
    Ok(Outcome::Passed)
}
