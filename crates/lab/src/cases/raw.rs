//! Raw volumes on a real kernel: devices that tenants get without a file system.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{KINDS, PROFILE, has_ublk, json, kernel_is_silent, make_pools, refused, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[
    VOLUME_RAW,
    Case {
        name: "volume_raw_others",
        about: "the same as volume_raw, on thin pools as well; raw volumes are copied on file and thin pools, and are detached only when nothing has \
                them open",
        run: |ctx| Box::pin(volume_raw(ctx, &KINDS, true)),
        ..VOLUME_RAW
    },
];

const VOLUME_RAW: Case = Case {
    name: "volume_raw",
    about: "raw volumes on file and thick pools read as zeroes, are written by their tenant and charged to it, keep what is in them, grow, and leave \
            nothing",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(volume_raw(ctx, &["file", "thick"], false)),
};

/// On pools of these kinds; also copies, and whatever can have a device open.
async fn volume_raw(ctx: &mut Ctx, kinds: &[&str], others: bool) -> Result<Outcome> {
    let ctx = &*ctx;
    let mut daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, kinds).await?;
    for &kind in kinds {
        ctx.log(kind);
        let volume = format!("{kind}/v");
        let at = format!("/run/bulkhead/mnt/{kind}/v");
        let create = ["volume", "create", &volume, "--size", "16M", "--fs", "none"];
        let attach = ["tenant", "create", "db", "--volume", &volume];
        // What an earlier volume had in the same place is not shown, by a thick pool neither.
        json(ctx, &create).await?;
        json(ctx, &attach).await?;
        ctx.machine
            .sh(&format!(
                "head -c 16777216 /dev/zero | tr '\\0' x | dd of={at} bs=1M count=16 iflag=fullblock oflag=direct"
            ))
            .await?;
        json(ctx, &["volume", "rm", &volume, "--force"]).await?;
        json(ctx, &create).await?;
        json(ctx, &["tenant", "set", "db", "--attach", &volume]).await?;
        let view = json(ctx, &["volume", "inspect", &volume]).await?;
        let is_served = kind == "file" && has_ublk(ctx).await?;
        let way = if is_served { "server" } else { "users" };
        ensure!(
            view["fs"] == "none" && view["mounted_at"] == at.as_str() && view["accounting"]["way"] == way,
            "{view}"
        );
        let device = view["device"].as_str().context("no device")?;
        ctx.machine
            .sh(&format!("test $(stat -Lc %t:%T {device}) = $(stat -c %t:%T {at}); cmp -n 16777216 {at} /dev/zero"))
            .await?;

        // What the tenant writes is charged to it.
        let program = ctx.program("bulkhead");
        let write = format!("dd if=/dev/urandom of={at} bs=1M count=4 oflag=direct");
        ctx.machine.sh(&format!("{program} run --tenant db -- sh -c '{write}'")).await?;
        let tenant = json(ctx, &["tenant", "inspect", "db"]).await?;
        let whose = if is_served { "server_io" } else { "payload_io" };
        let written = tenant[whose]["written_bytes"].as_u64().unwrap_or_default();
        ensure!(written >= 4 << 20, "{whose} has {written} bytes of 4 MiB: {tenant}");
        ctx.machine.sh(&format!("head -c 4194304 {at} | md5sum > /run/sum")).await?;

        // It stays the same device when the daemon is restarted, and is no finding.
        if kind == "file" {
            daemon.stop().await?;
            daemon = start_daemon(ctx, &[]).await?;
        }
        let again = json(ctx, &["volume", "inspect", &volume]).await?;
        ensure!((&again["device"], &again["findings"]) == (&view["device"], &serde_json::json!([])), "{again}");
        let host = json(ctx, &["host"]).await?;
        ensure!(!host["findings"].to_string().contains("volume_"), "{host}");

        // It grows, in use where nothing has to be written to the new part first.
        let grow = ["volume", "resize", &volume, "--size", "24M"];
        if kind == "thick" {
            refused(ctx, 5, &["only while it is detached", "detach"], &grow).await?;
            json(ctx, &["tenant", "set", "db", "--detach", &volume]).await?;
            json(ctx, &grow).await?;
            json(ctx, &["tenant", "set", "db", "--attach", &volume]).await?;
        } else {
            json(ctx, &grow).await?;
        }
        ctx.machine
            .sh(&format!(
                "test $(blockdev --getsize64 {at}) = 25165824; head -c 4194304 {at} | md5sum | diff - /run/sum; \
                 cmp -i 16777216:0 -n 8388608 {at} /dev/zero"
            ))
            .await?;
        refused(ctx, 8, &["cannot be shrunk"], &["volume", "resize", &volume, "--size", "16M", "--shrink"]).await?;
        for word in ["check", "trim"] {
            refused(ctx, 8, &["raw volume"], &["volume", word, &volume]).await?;
        }
        match (others, kind) {
            (true, "thick") => in_use(ctx, &volume, &at).await?,
            (true, _) => copies(ctx, kind, &volume, &at).await?,
            (false, _) => {}
        }
        json(ctx, &["tenant", "set", "db", "--detach", &volume]).await?;
        json(ctx, &["volume", "rm", &volume]).await?;
        json(ctx, &["tenant", "rm", "db"]).await?;
        let left = ctx.machine.sh(&format!("ls -A /run/bulkhead/mnt/{kind}; rm /run/sum")).await?;
        ensure!(left.is_empty(), "a node was left: {left}");
    }
    unmake_pools(ctx, kinds).await?;
    daemon.stop().await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}

/// A clone of a snapshot has the content of that moment, buffered writes included, and is another tenant's.
async fn copies(ctx: &Ctx, kind: &str, volume: &str, at: &str) -> Result<()> {
    ctx.machine
        .sh(&format!("dd if=/dev/urandom of={at} bs=1M count=4; head -c 4194304 {at} | md5sum > /run/sum"))
        .await?;
    json(ctx, &["volume", "snapshot", volume, "s"]).await?;
    ctx.machine.sh(&format!("dd if=/dev/zero of={at} bs=1M count=2 oflag=direct")).await?;
    let (snapshot, clone) = (format!("{kind}/s"), format!("{kind}/c"));
    refused(ctx, 8, &["snapshot of a raw volume", "clone it"], &["tenant", "create", "web", "--volume", &snapshot])
        .await?;
    json(ctx, &["volume", "clone", &snapshot, "c"]).await?;
    json(ctx, &["tenant", "create", "web", "--volume", &clone]).await?;
    let copy = format!("/run/bulkhead/mnt/{kind}/c");
    ctx.machine
        .sh(&format!(
            "head -c 4194304 {copy} | md5sum | diff - /run/sum; ! cmp -s -n 4194304 {at} {copy}; \
             test $(blockdev --getsize64 {copy}) = 25165824"
        ))
        .await?;
    json(ctx, &["tenant", "rm", "web"]).await?;
    for name in [clone, snapshot] {
        json(ctx, &["volume", "rm", &name]).await?;
    }
    Ok(())
}

/// A tenant's file system is nothing to Bulkhead; what has the device open keeps it attached.
async fn in_use(ctx: &Ctx, volume: &str, at: &str) -> Result<()> {
    let detach = ["tenant", "set", "db", "--detach", volume];
    let run = format!("{volume}:/srv");
    refused(ctx, 125, &["raw volume", "--attach"], &["run", "--tenant", "db", "--volume", &run, "--", "true"]).await?;
    ctx.machine
        .sh(&format!("mkfs.ext4 -q -F {at}; mkdir /run/own; mount {at} /run/own; echo kept > /run/own/file"))
        .await?;
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    let is_fine = view["findings"].as_array().is_some_and(|all| all.iter().all(|found| found["severity"] == "info"));
    ensure!(view["fs"] == "none" && is_fine, "{view}");
    refused(ctx, 5, &["is mounted on /run/own"], &detach).await?;
    ctx.machine.sh("umount /run/own").await?;
    let reader =
        ctx.machine.spawn(&["sh", "-c", &format!("exec 3< {at}; touch /run/has-it; exec sleep 600")], &[]).await?;
    ctx.machine
        .wait_until("the device is open", Duration::from_secs(60), async || {
            Ok(ctx.machine.run(&["test", "-e", "/run/has-it"]).await?.status.success().then_some(()))
        })
        .await?;
    refused(ctx, 5, &[&format!("process {} (sleep) has it open", reader.pid())], &detach).await?;
    reader.kill(9).await?;
    reader.wait(Duration::from_secs(60)).await?;
    // As the kubelet does, so that the device stays.
    let over = ctx.machine.sh(&format!("losetup --find --show {at}")).await?;
    refused(ctx, 5, &[&format!("{} is attached to it", over.trim())], &detach).await?;
    ctx.machine.sh(&format!("losetup -d {}; rm /run/has-it", over.trim())).await?;
    ctx.machine.sh(&format!("touch /run/bound; mount --bind {at} /run/bound")).await?;
    refused(ctx, 5, &["also mounted at /run/bound"], &detach).await?;
    ctx.machine.sh("umount /run/bound; rm /run/bound").await?;
    json(ctx, &detach).await?;
    // It is as its tenant left it.
    json(ctx, &["tenant", "set", "db", "--attach", volume]).await?;
    ctx.machine.sh(&format!("mount {at} /run/own; grep kept /run/own/file; umount /run/own; rmdir /run/own")).await?;
    json(ctx, &detach).await?;
    Ok(())
}
