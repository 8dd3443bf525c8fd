//! Observation under adverse kernels, hosts and loads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, SMP, cli, json, refused, refused_as, start_daemon};
use super::observe::{charges, loads_are_charged, make_cgroups, remove_cgroups};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "observation_under_stress",
        about: "observation works with ext4 loaded late, 1000 cgroups and an unmounted file system, and reports a ring \
                buffer overrun",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(observation_under_stress(ctx)),
    },
    Case {
        name: "observation_without_btf",
        about: "without BTF, plain tracepoints charge as exactly; other missing requirements are named",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(observation_without_btf(ctx)),
    },
];

/// Number of cgroups that journal at the same time.
const MANY: usize = 1000;
/// Number of them between two queries.
const A_FEW: usize = 100;
/// Calls of fsync without a change, more than the ring buffer has room for.
const OVERRUN: u32 = 80_000;

async fn observation_under_stress(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    let daemon = start_daemon(ctx, &[]).await?;
    if ctx.machine.sh("grep -w ext4 /proc/filesystems || true").await?.is_empty() {
        refused(ctx, 8, &["ext4 is not loaded", "modprobe ext4"], &["top", "--once"]).await?;
    } else {
        ctx.log("ext4 was loaded before the daemon: late loading is not tested");
    }
    ctx.machine
        .sh(&format!("mkfs.ext4 -q {disk}; mkdir -p /run/shared; mount -o nobarrier {disk} /run/shared"))
        .await?;
    // A failed start is retried after ten seconds.
    ctx.machine
        .wait_until("the observation starts", Duration::from_secs(180), async || {
            let answer = cli(ctx, &["top", "--once", "--interval", "1"]).await?;
            Ok((answer.status == ExitStatus::Code(0)).then_some(()))
        })
        .await?;
    ctx.machine
        .sh(&format!(
            "cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control; mkdir many.slice; cd many.slice; mkdir $(seq -f m%g.service \
             {MANY})"
        ))
        .await?;
    // Moving a process waits for an RCU grace period, and the observation only lasts while it is queried.
    for first in (1..=MANY).step_by(A_FEW) {
        let script = format!(
            "set -e; cd /sys/fs/cgroup/many.slice; for i in $(seq {first} {}); do (echo $BASHPID > m$i.service/cgroup.procs; exec mkdir \
             /run/shared/m$i); done",
            first + A_FEW - 1
        );
        let made = ctx.machine.run_within(&["bash", "-c", &script], Duration::from_secs(120)).await?;
        ensure!(made.status == ExitStatus::Code(0), "the directories were not made: {}", made.stderr);
        json(ctx, &["top", "--total"]).await?;
    }
    ctx.machine.sh("sync -f /run/shared").await?;
    // A commit that ended just before a poll is charged at the next one, and a new cgroup may be named one poll later.
    let many = async || {
        let (mut seen, mut n) = (Value::Null, 0);
        let charged = ctx
            .machine
            .wait_until("all cgroups are charged", Duration::from_secs(60), async || {
                seen = json(ctx, &["top", "--total"]).await?;
                let charges = charges(&seen, &disk)?;
                n = charges.iter().filter(|(name, bytes)| name.starts_with('m') && **bytes > 0).count();
                Ok((n == MANY).then_some(charges))
            })
            .await;
        let charges = charged.with_context(|| format!("{n} of {MANY} are charged, losses: {}", seen["losses"]))?;
        ensure!(seen["partial"] == false, "figures were lost: {}", seen["losses"]);
        let (unattributed, sum) = (charges.get("").copied().unwrap_or(0), charges.values().sum::<i64>());
        ctx.log(format!("{n} cgroups are charged {sum} B, of which {unattributed} B are unattributed"));
        Ok(sum)
    };
    let before = many().await?;
    ctx.machine.sh("umount /run/shared; cd /sys/fs/cgroup; rmdir many.slice/m*.service many.slice").await?;
    let after = many().await?;
    ensure!(after >= before, "{before} B were charged before the file system was unmounted, {after} B after it");
    // The daemon is stopped meanwhile.
    ctx.machine
        .sh(&format!(
            "mount -o nobarrier {disk} /run/shared; kill -STOP $(pidof bulkhead); perl -MIO::Handle -e 'open F, \">>\", \"/run/shared/f\"; \
             IO::Handle::sync(*F) for 1..{OVERRUN}'; kill -CONT $(pidof bulkhead)"
        ))
        .await?;
    let seen = json(ctx, &["top", "--total"]).await?;
    let lost = seen["losses"]["records"].as_u64().context("no count of lost records")?;
    ctx.log(format!("{lost} of {OVERRUN} records were lost"));
    ensure!(lost > 0 && lost < u64::from(OVERRUN), "{lost} of {OVERRUN} records were lost");
    ensure!(seen["partial"] == true, "figures are missing but not marked as partial: {}", seen["losses"]);
    let shown = cli(ctx, &["top", "--once", "--interval", "1"]).await?;
    ensure!((shown.stdout + &shown.stderr).contains("figures are incomplete"), "the loss is not shown");
    daemon.stop().await?;
    ctx.machine.sh(&format!("umount /run/shared; rmdir /run/shared; wipefs -qa {disk}")).await?;
    Ok(Outcome::Passed)
}

async fn observation_without_btf(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    make_cgroups(ctx).await?;
    ctx.machine.sh("modprobe ext4; mount -t tmpfs none /sys/kernel/btf").await?;
    let daemon = start_daemon(ctx, &[]).await?;
    for features in ["", "-O fast_commit"] {
        let after = loads_are_charged(ctx, features).await?;
        ensure!(after["method"] == "tracepoint", "{} was used", after["method"]);
        let findings = after["findings"].to_string();
        ensure!(findings.contains("no type information"), "the reason is not reported: {findings}");
    }
    daemon.stop().await?;
    remove_cgroups(ctx).await?;
    let top = [ctx.program("bulkhead"), "top".to_owned(), "--once".to_owned()];
    let top: Vec<&str> = top.iter().map(String::as_str).collect();
    // libbpf looks there first, and the kernel then mounts it automatically.
    ctx.machine.sh("umount /sys/kernel/debug/tracing").await?;
    ctx.machine.sh("for dir in tracing debug; do mount -t tmpfs none /sys/kernel/$dir; done").await?;
    refused_as(ctx, 8, &["no type information", "tracefs is not mounted"], &top).await?;
    ctx.machine.sh("umount /sys/kernel/tracing; umount /sys/kernel/debug; umount /sys/kernel/btf").await?;
    let without = ["setpriv", "--bounding-set", "-bpf,-perfmon,-sys_admin", "--inh-caps", "-bpf,-perfmon,-sys_admin"];
    refused_as(ctx, 8, &["CAP_BPF"], &[&without[..], &top].concat()).await?;
    let (data, journal) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    ctx.machine.sh(&format!("wipefs -qa {data}; wipefs -qa {journal}")).await?;
    Ok(Outcome::Passed)
}
