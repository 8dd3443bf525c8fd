//! Copies of file volumes on real kernels: each keeps its contents, whatever happens to the others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::blockd::{TAKE_OVER_LIMIT, VERIFY, server_pid};
use super::host::{
    PROFILE, SMP, json, kernel_is_silent, make_pools, nothing_is_critical, refused, start_daemon, start_daemon_as,
    unmake_pools,
};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "layers_hold",
        about: "snapshots of a file volume under load contain all synced data; the volume and clones of clones pass \
                fio --verify at the same time under kill -9 of their servers and while one is flattened, and trimming \
                one affects no other",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(hold(ctx)),
    },
    Case {
        name: "rollback_cut_off",
        about: "after the daemon was killed during a rollback, a device that a file system check still uses is never \
                mistaken for the volume, and is removed when the check ends",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(rollback_cut_off(ctx)),
    },
    Case {
        name: "layers_power_cut",
        about: "a power cut while a volume and its clone are written to and copied: both and a snapshot contain all \
                synced data, and the file systems are clean",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(power_cut(ctx)),
    },
    Case {
        name: "layers_power_cut_loses",
        about: "the same as layers_power_cut on a disk that loses some unflushed writes",
        kernels: &[Kernel::V6_12],
        profile: Profile { name: "losing-host", disks: &[DiskSpec::new(DiskModel::Ssd, 4096).losing()], ..PROFILE },
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(power_cut(ctx)),
    },
    Case {
        name: "pool_full",
        about: "the host's file system runs full under a clone: its writer gets an error, shared data can be read, and \
                the clone is clean once there is space again",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(pool_full(ctx)),
    },
];

/// Directory of the file pool's images.
pub(super) const POOL: &str = "/run/filepool/pool";

/// Number of snapshots taken while the volume is written to.
const SNAPSHOTS: usize = 5;

/// The volumes whose servers are killed while one of them is flattened.
const KILLED: [&str; 6] = ["origin", "second", "second", "origin", "second", "origin"];

/// Message of the daemon about a server that ended unexpectedly.
const TAKES_OVER: &str = "another block server takes over";

/// Appends numbers to a file, syncs each, and then publishes it.
const APPEND: &str = r#"
import os
log = os.open("FOLDER/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = os.fstat(log).st_size // 9
while not os.path.exists("/run/stop"):
    n += 1
    os.write(log, b"%08d\n" % n)
    os.fsync(log)
    with open("/run/ACKED.new", "w") as acked:
        acked.write(str(n))
    os.rename("/run/ACKED.new", "/run/ACKED")
"#;

async fn hold(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds /run/acked").await?;
    json(ctx, &["volume", "create", "file/origin", "--size", "256M", "--provision", "on-demand"]).await?;
    let origin = attach(ctx, "origin").await?;
    ctx.machine
        .sh(&format!(
            "head -c 30000000 /dev/urandom > {origin}/data; sync -f {origin}; md5sum < {origin}/data > /run/sum"
        ))
        .await?;

    // Snapshots under a writer, after each of which the server is killed.
    let writer = append(ctx, &origin, "acked").await?;
    let mut synced = vec![acked(ctx, "acked").await?];
    for n in 0..SNAPSHOTS {
        json(ctx, &["volume", "snapshot", "file/origin", &format!("s{n}")]).await?;
        kill_server(ctx, "origin").await?;
        synced.push(acked(ctx, "acked").await?);
    }
    ctx.machine.sh("touch /run/stop").await?;
    let ended = writer.wait(Duration::from_secs(120)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "the writer: {}", ended.stderr);

    // A clone of a snapshot, and a clone of that: their contents are the same at first, and then diverge.
    json(ctx, &["volume", "clone", "file/s2", "first"]).await?;
    let first = attach(ctx, "first").await?;
    ctx.machine.sh(&format!("md5sum < {first}/data | diff - /run/sum; head -c 10000000 /dev/urandom > {first}/more; sync -f {first}; md5sum < {first}/more > /run/more")).await?;
    json(ctx, &["volume", "clone", "file/first", "second"]).await?;
    let second = attach(ctx, "second").await?;
    ctx.machine.sh(&format!("rm /run/stop; rm {first}/more; md5sum < {second}/more | diff - /run/more; rm {second}/data; fstrim {second}")).await?;
    let mut loads = Vec::new();
    for (name, at) in [("origin", &origin), ("second", &second)] {
        let script = VERIFY.replace("AT", at).replace("/run/fio.log", &format!("/run/{name}.log"));
        let script = script.replace("/run/rounds", &format!("/run/{name}.rounds"));
        loads.push((name, ctx.machine.spawn(&["bash", "-c", &script], &[]).await?));
    }
    // Meanwhile one of them is flattened.
    json(ctx, &["volume", "flatten", "file/second"]).await?;
    for name in KILLED {
        kill_server(ctx, name).await?;
        ctx.machine.sh(&format!("fstrim {origin}; fstrim {second}; md5sum < {first}/data | diff - /run/sum")).await?;
    }
    let flat = ctx
        .machine
        .wait_until("the clone lies on no layer", Duration::from_secs(240), async || {
            let view = inspect(ctx, "second").await?;
            let is_flat = view["layers"]["below"].as_array().is_some_and(Vec::is_empty);
            Ok((is_flat && !view["findings"].to_string().contains("being copied")).then_some(view))
        })
        .await?;
    ctx.log(format!("flattened: {}", flat["layers"]));
    ctx.machine
        .wait_until("each has verified what it wrote", Duration::from_secs(240), async || {
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

    // Each keeps its contents, in any order of removal.
    let layers = ctx.machine.sh(&format!("ls -ls {POOL}")).await?;
    ctx.save("pool.txt", &layers)?;
    ctx.machine
        .sh(&format!("md5sum < {second}/more | diff - /run/more; md5sum < {origin}/data | diff - /run/sum"))
        .await?;
    let rollback = ["volume", "rollback", "file/origin", "s3"];
    refused(ctx, 5, &["tenant origin", "--detach"], &rollback).await?;
    json(ctx, &["tenant", "rm", "origin"]).await?;
    json(ctx, &["volume", "check", "file/origin"]).await?;
    refused(ctx, 2, &["would be lost", "--lose-changes"], &rollback).await?;
    let other = ["volume", "rollback", "file/origin", "first", "--lose-changes"];
    refused(ctx, 2, &["not a snapshot of it", "volume clone"], &other).await?;
    let back = json(ctx, &["volume", "rollback", "file/origin", "s3", "--lose-changes"]).await?;
    let layers = back["object"]["layers"]["below"].as_array().map_or(0, Vec::len);
    ensure!(layers == 5, "expected four snapshots and the one that was restored: {back}");
    attach(ctx, "origin").await?;
    let same = format!("md5sum < {origin}/data | diff - /run/sum; [ ! -e {origin}/fio ]; tail -n 1 {origin}/log");
    let last: usize = ctx.machine.sh(&same).await?.trim().parse()?;
    ensure!(
        (synced[3]..=synced[4]).contains(&last),
        "after the rollback to the fourth snapshot {last} is the last number: {synced:?}"
    );
    json(ctx, &["tenant", "rm", "origin"]).await?;
    json(ctx, &["volume", "check", "file/origin"]).await?;
    json(ctx, &["volume", "rm", "file/origin"]).await?;
    for (n, acked) in synced.iter().take(SNAPSHOTS).enumerate() {
        let name = format!("s{n}");
        let at = attach(ctx, &name).await?;
        ctx.machine.sh(&format!("md5sum < {at}/data | diff - /run/sum")).await?;
        check_numbers(ctx, &at, *acked).await?;
        json(ctx, &["tenant", "rm", &name]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    ctx.log(format!("numbers synced before each snapshot, and present in it: {synced:?}"));
    for name in ["first", "second"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
    }
    json(ctx, &["volume", "rm", "file/first"]).await?;
    let second = attach(ctx, "second").await?;
    ctx.machine
        .sh(&format!("md5sum < {second}/more | diff - /run/more; rm /run/more /run/sum /run/stop /run/acked"))
        .await?;
    json(ctx, &["tenant", "rm", "second"]).await?;
    json(ctx, &["volume", "rm", "file/second"]).await?;
    let left = ctx.machine.sh(&format!("ls {POOL}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "layers are left: {left}");
    kernel_is_silent(ctx).await?;
    unmake_pools(ctx, &["file"]).await?;
    // A server that ends by itself is replaced as well, so that only this count reveals it.
    let log = daemon.stop().await?;
    let (taken_over, killed) = (log.matches(TAKES_OVER).count(), SNAPSHOTS + KILLED.len());
    ensure!((1..=killed).contains(&taken_over), "{killed} servers were killed, but {taken_over} have ended: {log}");
    Ok(Outcome::Passed)
}

/// Holds a device exclusively, like a check of its file system, until it is killed.
const HOLD_DEVICE: &str =
    "import os, signal; os.open('DEVICE', os.O_RDWR | os.O_EXCL); open('/run/held', 'w'); signal.pause()";

async fn rollback_cut_off(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M", "--provision", "on-demand"]).await?;
    let at = attach(ctx, "v").await?;
    ctx.machine.sh(&format!("echo mine > {at}/data; sync -f {at}")).await?;
    json(ctx, &["tenant", "rm", "v"]).await?;
    let uuid = inspect(ctx, "v").await?["uuid"].as_str().context("it has no UUID")?.to_owned();
    let program = ctx.program("bulkhead");
    // State after a kill of the daemon while e2fsck checks the image that is to replace the volume's.
    let new = format!("{POOL}/01234567-89ab-4cde-8f01-23456789abcd.new");
    let spec = serde_json::json!({ "volume": uuid, "image": new, "discards": false, "share": "base", "domain": "v" });
    let serve = format!("mkfs.ext4 -q {new} 64M; {program} blockd '{spec}' --requests 64");
    let leave_rollback = async || -> Result<String> { Ok(ctx.machine.sh(&serve).await?.trim().to_owned()) };
    let is_v = async || -> Result<()> {
        let at = attach(ctx, "v").await?;
        let data = ctx.machine.read_text(&format!("{at}/data")).await?;
        ensure!(data == "mine\n", "another image was taken for the volume: {data:?}");
        json(ctx, &["tenant", "rm", "v"]).await.map(drop)
    };
    leave_rollback().await?;
    is_v().await?;

    let device = leave_rollback().await?;
    let check = ctx.machine.spawn(&["python3", "-c", &HOLD_DEVICE.replace("DEVICE", &device)], &[]).await?;
    ctx.machine
        .wait_until("the device is in use", Duration::from_secs(60), async || {
            Ok((!ctx.machine.sh("ls /run/held || true").await?.is_empty()).then_some(()))
        })
        .await?;
    daemon.kill().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    for command in [&["tenant", "create", "v", "--volume", "file/v"][..], &["volume", "snapshot", "file/v", "s"]] {
        refused(ctx, 5, &[device.trim_end_matches("p1")], command).await?;
    }
    let findings = json(ctx, &["host"]).await?["findings"].to_string();
    ensure!(findings.contains(device.trim_end_matches("p1")), "no finding reports it: {findings}");
    ctx.machine.sh(&format!("[ -e {new} ]")).await?;
    check.kill(9).await?;
    check.wait(Duration::from_secs(60)).await?;
    ctx.machine.sh("rm /run/held").await?;
    ctx.machine
        .wait_until("the device and its image are gone", Duration::from_secs(120), async || {
            let gone = format!("[ -e {device} ] || [ -e {new} ] || echo gone");
            Ok(ctx.machine.sh(&gone).await?.contains("gone").then_some(()))
        })
        .await?;
    leave_rollback().await?;
    json(ctx, &["volume", "snapshot", "file/v", "s"]).await?;
    is_v().await?;
    for name in ["v", "s"] {
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    let left = ctx.machine.sh(&format!("ls {POOL}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "something is left: {left}");
    kernel_is_silent(ctx).await?;
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Number of power cuts, each during different steps.
const CUTS: usize = 3;

/// Mounts the disk with the file pool and the daemon's state, which survive a power cut.
const MOUNT: &str = "mkdir -p /run/filepool; mount DISK /run/filepool";

async fn power_cut(ctx: &mut Ctx) -> Result<Outcome> {
    let disk = ctx.machine.disk(0).await?;
    let program = ctx.program("bulkhead");
    let daemon = [program.as_str(), "daemon", "--state-dir", "/run/filepool/state"];
    let mount = MOUNT.replace("DISK", &disk);
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; {mount}")).await?;
    let mut running = start_daemon_as(ctx, &daemon, &[]).await?;
    json(ctx, &["pool", "create", "file", "--dir", POOL]).await?;
    json(ctx, &["volume", "create", "file/origin", "--size", "128M"]).await?;
    let origin = attach(ctx, "origin").await?;
    let mut rounds = Vec::new();
    for cut in 0..CUTS {
        let clone = format!("clone{cut}");
        let first = append(ctx, &origin, "first").await?;
        let before = acked(ctx, "first").await?;
        json(ctx, &["volume", "clone", "file/origin", &clone]).await?;
        let at = attach(ctx, &clone).await?;
        let second = append(ctx, &at, "second").await?;
        json(ctx, &["volume", "snapshot", "file/origin", &format!("kept{cut}")]).await?;
        let reached = [acked(ctx, "first").await?, acked(ctx, "second").await?];
        // The last cut happens while another clone is being created.
        if cut + 1 == CUTS {
            let of = format!("file/{clone}");
            ctx.machine.spawn(&[program.as_str(), "volume", "clone", &of, "another"], &[]).await?;
        }
        ctx.crash_and_reboot().await?;
        drop((first, second, running));
        ctx.machine.sh(&mount).await?;
        running = start_daemon_as(ctx, &daemon, &[]).await?;
        nothing_is_critical(ctx, &format!("after cut {cut}")).await?;
        check_numbers(ctx, &origin, reached[0]).await?;
        check_numbers(ctx, &at, reached[1]).await?;
        json(ctx, &["tenant", "rm", &clone]).await?;
        json(ctx, &["volume", "check", &format!("file/{clone}")]).await?;
        let snapshot = attach(ctx, &format!("kept{cut}")).await?;
        check_numbers(ctx, &snapshot, before).await?;
        json(ctx, &["tenant", "rm", &format!("kept{cut}")]).await?;
        rounds.push(reached);
    }
    ctx.log(format!("numbers synced in the volume and its clone before each power cut: {rounds:?}"));
    json(ctx, &["tenant", "rm", "origin"]).await?;
    json(ctx, &["volume", "check", "file/origin"]).await?;
    for view in json(ctx, &["volume", "ls"]).await?.as_array().into_iter().flatten() {
        json(ctx, &["volume", "rm", view["volume"].as_str().context("no name")?]).await?;
    }
    let left = ctx.machine.sh(&format!("ls {POOL}")).await?;
    ensure!(left.trim() == "bulkhead-pool", "layers are left: {left}");
    json(ctx, &["pool", "rm", "file"]).await?;
    running.stop().await?;
    ctx.machine.sh(&format!("umount /run/filepool; rmdir /run/filepool; e2fsck -fn {disk}; wipefs -qa {disk}")).await?;
    Ok(Outcome::Passed)
}

/// Uses all space in the file pool except 16 MB, including the blocks reserved for root: a large allocation first, then
/// the rest by writing.
const FILL: &str = "cd /run/filepool; n=$(stat -f -c '%f * %S' .); fallocate -l $((n - 200000000)) fill; \
                    head -c 200000000 /dev/zero > rest || true; truncate -s -16000000 rest; sync -f .";

async fn pool_full(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    json(ctx, &["volume", "create", "file/origin", "--size", "256M", "--provision", "on-demand"]).await?;
    let origin = attach(ctx, "origin").await?;
    ctx.machine
        .sh(&format!(
            "head -c 30000000 /dev/urandom > {origin}/data; sync -f {origin}; md5sum < {origin}/data > /run/sum"
        ))
        .await?;
    json(ctx, &["volume", "clone", "file/origin", "copy"]).await?;
    let copy = attach(ctx, "copy").await?;
    ctx.machine.sh(FILL).await?;
    let write = format!("head -c 100000000 /dev/urandom > {copy}/more && sync {copy}/more");
    let written = ctx.machine.run(&["bash", "-c", &write]).await?;
    ensure!(written.status != ExitStatus::Code(0), "the write succeeded without space");
    // A failed journal write shuts its file system down (EXT4_FLAGS_SHUTDOWN), so the clone's shared data is read
    // through debugfs.
    ctx.machine
        .sh(&format!(
            "echo 3 > /proc/sys/vm/drop_caches; debugfs -cR 'cat /data' $(findmnt -no SOURCE {copy}) | md5sum | diff - /run/sum; \
             md5sum < {origin}/data | diff - /run/sum"
        ))
        .await?;
    let log = ctx.machine.sh("cat /run/bulkhead/blockd/*.log").await?;
    ensure!(log.contains("No space left on device"), "its server does not report it: {log}");
    refused(ctx, 7, &["is needed, but the pool has"], &["volume", "flatten", "file/copy"]).await?;
    ctx.machine.sh("rm /run/filepool/fill /run/filepool/rest").await?;
    json(ctx, &["tenant", "rm", "copy"]).await?;
    json(ctx, &["volume", "check", "file/copy", "--repair"]).await?;
    attach(ctx, "copy").await?;
    ctx.machine.sh(&format!("md5sum < {copy}/data | diff - /run/sum; rm -f {copy}/more; {write}; rm /run/sum")).await?;
    for name in ["origin", "copy"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Starts appending numbers to a file in this directory; `/run/NAME` contains the last synced one.
pub(super) async fn append(ctx: &Ctx, at: &str, name: &str) -> Result<Process> {
    ctx.machine.sh(&format!("rm -f /run/{name}")).await?;
    let script = APPEND.replace("FOLDER", at).replace("ACKED", name);
    ctx.machine.spawn(&["python3", "-c", &script], &[]).await
}

/// Waits for a synced number, and returns the last one.
pub(super) async fn acked(ctx: &Ctx, name: &str) -> Result<usize> {
    ctx.machine
        .wait_until("something was synced", Duration::from_secs(60), async || {
            let text = ctx.machine.read_text(&format!("/run/{name}")).await.ok();
            Ok(text.and_then(|text| text.trim().parse().ok()))
        })
        .await
}

/// Checks that a volume contains the appended numbers in order, at least up to `acked`.
pub(super) async fn check_numbers(ctx: &Ctx, at: &str, acked: usize) -> Result<()> {
    let lines = ctx.machine.sh(&format!("cat {at}/log")).await?;
    let numbers: Vec<usize> = lines.lines().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(numbers.len() >= acked, "{at} has {} numbers, but {acked} were synced before", numbers.len());
    ensure!(numbers.iter().enumerate().all(|(i, n)| i + 1 == *n), "{at} has other numbers: {lines}");
    Ok(())
}

/// Mounts a volume of the file pool for a tenant of the same name; returns the mount point.
pub(super) async fn attach(ctx: &Ctx, name: &str) -> Result<String> {
    json(ctx, &["tenant", "create", name, "--volume", &format!("file/{name}")]).await?;
    Ok(inspect(ctx, name).await?["mounted_at"].as_str().context("not mounted")?.to_owned())
}

pub(super) async fn inspect(ctx: &Ctx, name: &str) -> Result<Value> {
    json(ctx, &["volume", "inspect", &format!("file/{name}")]).await
}

/// Kills the server of a volume of the file pool, and waits for its replacement.
pub(super) async fn kill_server(ctx: &Ctx, name: &str) -> Result<()> {
    kill_server_of(ctx, &format!("file/{name}")).await
}

/// Kills the server of a volume, and waits for its replacement. The daemon replaces a server when flattening is
/// complete, so one that ends before it can be killed is retried.
pub(super) async fn kill_server_of(ctx: &Ctx, volume: &str) -> Result<()> {
    let old = ctx
        .machine
        .wait_until("a server is killed", TAKE_OVER_LIMIT, async || {
            let Ok(pid) = server_pid(&json(ctx, &["volume", "inspect", volume]).await?) else { return Ok(None) };
            Ok(ctx.machine.sh(&format!("kill -9 {pid}")).await.is_ok().then_some(pid))
        })
        .await?;
    ctx.machine
        .wait_until("another server", TAKE_OVER_LIMIT, async || {
            let view = json(ctx, &["volume", "inspect", volume]).await?;
            Ok(server_pid(&view).ok().filter(|pid| *pid != old))
        })
        .await?;
    Ok(())
}
