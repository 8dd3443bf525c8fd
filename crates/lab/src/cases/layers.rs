//! Copies of file volumes on real kernels: what each holds stays what it was, whatever happens to the others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::blockd::{TAKE_OVER_LIMIT, VERIFY, server_pid};
use super::host::{PROFILE, json, make_pools, refused, start_daemon, unmake_pools};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;
use crate::wait::wait_until;

pub(super) const CASES: &[Case] = &[Case {
    name: "layers_hold",
    about: "snapshots of a file volume that is being written to hold all that was synced; it and clones of clones pass fio --verify beside \
            each other under kill -9 of their servers, and trimming one shows in none",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(hold(ctx)),
}];

/// Directory of the file pool's images.
const POOL: &str = "/run/filepool/pool";

/// Snapshots that are made while the volume is written to.
const SNAPSHOTS: usize = 5;

/// Appends numbers, syncs each, and then says so.
const APPEND: &str = r#"
import os
log = os.open("FOLDER/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = 0
while not os.path.exists("/run/stop"):
    n += 1
    os.write(log, b"%08d\n" % n)
    os.fsync(log)
    with open("/run/acked.new", "w") as acked:
        acked.write(str(n))
    os.rename("/run/acked.new", "/run/acked")
"#;

async fn hold(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds /run/acked").await?;
    json(ctx, &["volume", "create", "file/origin", "--size", "256M", "--provision", "on-demand"]).await?;
    let origin = attach(ctx, "origin").await?;
    ctx.machine
        .sh(&format!(
            "head -c 30000000 /dev/urandom > {origin}/data; sync -f {origin}; sha1sum < {origin}/data > /run/sum"
        ))
        .await?;

    // Snapshots under a writer, after each of which the server is killed.
    let writer = ctx.machine.spawn(&["python3", "-c", &APPEND.replace("FOLDER", &origin)], &[]).await?;
    wait_until("something was written", Duration::from_secs(60), async || {
        Ok(ctx.machine.read_text("/run/acked").await.ok())
    })
    .await?;
    let mut acked = Vec::new();
    for n in 0..SNAPSHOTS {
        acked.push(ctx.machine.read_text("/run/acked").await?.trim().parse::<usize>()?);
        json(ctx, &["volume", "snapshot", "file/origin", &format!("s{n}")]).await?;
        kill_server(ctx, "origin").await?;
    }
    ctx.machine.sh("touch /run/stop").await?;
    let ended = writer.wait(Duration::from_secs(120)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "the writer: {}", ended.stderr);

    // A clone of a snapshot, and a clone of that; what they hold is the same at first, and goes different ways.
    json(ctx, &["volume", "clone", "file/s2", "first"]).await?;
    let first = attach(ctx, "first").await?;
    ctx.machine.sh(&format!("sha1sum < {first}/data | diff - /run/sum; head -c 10000000 /dev/urandom > {first}/more; sync -f {first}; sha1sum < {first}/more > /run/more")).await?;
    json(ctx, &["volume", "clone", "file/first", "second"]).await?;
    let second = attach(ctx, "second").await?;
    ctx.machine.sh(&format!("rm /run/stop; rm {first}/more; sha1sum < {second}/more | diff - /run/more; rm {second}/data; fstrim {second}")).await?;
    let mut loads = Vec::new();
    for (name, at) in [("origin", &origin), ("second", &second)] {
        let script = VERIFY.replace("AT", at).replace("/run/fio.log", &format!("/run/{name}.log"));
        let script = script.replace("/run/rounds", &format!("/run/{name}.rounds"));
        loads.push((name, ctx.machine.spawn(&["bash", "-c", &script], &[]).await?));
    }
    for name in ["origin", "second", "second", "origin", "second", "origin"] {
        kill_server(ctx, name).await?;
        ctx.machine.sh(&format!("fstrim {origin}; fstrim {second}; sha1sum < {first}/data | diff - /run/sum")).await?;
    }
    wait_until("each has verified what it wrote", Duration::from_secs(240), async || {
        Ok(ctx.machine.sh("cat /run/origin.rounds /run/second.rounds").await.ok())
    })
    .await?;
    ctx.machine.sh("touch /run/stop").await?;
    for (name, load) in loads {
        let ended = load.wait(Duration::from_secs(300)).await?;
        let log = ctx.machine.read_text(&format!("/run/{name}.log")).await?;
        ensure!(ended.status == ExitStatus::Code(0), "fio in {name}: {log}");
        let rounds = ctx.machine.read_text(&format!("/run/{name}.rounds")).await?;
        ctx.log(format!("{name}: {} rounds of fio verified", rounds.trim()));
        ctx.machine.sh(&format!("rm /run/{name}.log /run/{name}.rounds")).await?;
    }

    // Each holds what it held, whoever goes first.
    let layers = ctx.machine.sh(&format!("ls -ls {POOL}")).await?;
    ctx.save("pool.txt", &layers)?;
    ctx.machine
        .sh(&format!("sha1sum < {second}/more | diff - /run/more; sha1sum < {origin}/data | diff - /run/sum"))
        .await?;
    let rollback = ["volume", "rollback", "file/origin", "s3"];
    refused(ctx, 5, &["tenant origin", "--detach"], &rollback).await?;
    json(ctx, &["tenant", "rm", "origin"]).await?;
    json(ctx, &["volume", "check", "file/origin"]).await?;
    refused(ctx, 2, &["would be lost", "--lose-changes"], &rollback).await?;
    let other = ["volume", "rollback", "file/origin", "first", "--lose-changes"];
    refused(ctx, 2, &["no snapshot of it", "volume clone"], &other).await?;
    let back = json(ctx, &["volume", "rollback", "file/origin", "s3", "--lose-changes"]).await?;
    let layers = back["object"]["layers"]["below"].as_array().map_or(0, Vec::len);
    ensure!(layers == 5, "four snapshots and the one that was gone back to: {back}");
    attach(ctx, "origin").await?;
    let same = format!("sha1sum < {origin}/data | diff - /run/sum; [ ! -e {origin}/fio ]; tail -n 1 {origin}/log");
    let last: usize = ctx.machine.sh(&same).await?.trim().parse()?;
    let upper = acked.get(4).context("five snapshots")?;
    ensure!(
        (acked[3]..=*upper).contains(&last),
        "after going back to the fourth snapshot {last} is the last number: {acked:?}"
    );
    json(ctx, &["tenant", "rm", "origin"]).await?;
    json(ctx, &["volume", "check", "file/origin"]).await?;
    json(ctx, &["volume", "rm", "file/origin"]).await?;
    for (n, acked) in acked.iter().enumerate() {
        let name = format!("s{n}");
        let at = attach(ctx, &name).await?;
        ctx.machine.sh(&format!("sha1sum < {at}/data | diff - /run/sum")).await?;
        let lines = ctx.machine.sh(&format!("cat {at}/log")).await?;
        let numbers: Vec<usize> = lines.lines().map(str::parse).collect::<Result<_, _>>()?;
        ensure!(numbers.len() >= *acked, "{name} has {} numbers, and {acked} were synced before it", numbers.len());
        ensure!(numbers.iter().enumerate().all(|(i, n)| i + 1 == *n), "{name} has other numbers: {lines}");
        json(ctx, &["tenant", "rm", &name]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    ctx.log(format!("numbers that were synced before each snapshot, and are in it: {acked:?}"));
    for name in ["first", "second"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
    }
    json(ctx, &["volume", "rm", "file/first"]).await?;
    let second = attach(ctx, "second").await?;
    ctx.machine
        .sh(&format!("sha1sum < {second}/more | diff - /run/more; rm /run/more /run/sum /run/stop /run/acked"))
        .await?;
    json(ctx, &["tenant", "rm", "second"]).await?;
    json(ctx, &["volume", "rm", "file/second"]).await?;
    let left = ctx.machine.sh(&format!("ls {POOL}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "layers are left: {left}");
    let kernel = ctx.machine.sh("dmesg | grep -E 'I/O error|EXT4-fs error|hung task|WARNING' || true").await?;
    ensure!(kernel.is_empty(), "the kernel complains: {kernel}");
    unmake_pools(ctx).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Mounts a volume of the file pool for a tenant of its name, and says where.
async fn attach(ctx: &Ctx, name: &str) -> Result<String> {
    json(ctx, &["tenant", "create", name, "--volume", &format!("file/{name}")]).await?;
    Ok(inspect(ctx, name).await?["mounted_at"].as_str().context("not mounted")?.to_owned())
}

async fn inspect(ctx: &Ctx, name: &str) -> Result<Value> {
    json(ctx, &["volume", "inspect", &format!("file/{name}")]).await
}

/// Kills the server of a volume, and waits for its successor.
async fn kill_server(ctx: &Ctx, name: &str) -> Result<()> {
    let old = server_pid(&inspect(ctx, name).await?)?;
    ctx.machine.sh(&format!("kill -9 {old}")).await?;
    wait_until("another server", TAKE_OVER_LIMIT, async || {
        let view = inspect(ctx, name).await?;
        Ok(server_pid(&view).ok().filter(|pid| *pid != old))
    })
    .await?;
    Ok(())
}
