//! The arbiter of a disk with an arm: what chains of fsyncs gain beside neighbours, and what servers that die, hang or lie cost the others.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::blockd::{VERIFY, server_pid, until_prepared};
use super::host::{Daemon, json, kernel_is_silent, make_pools, refused, start_daemon, unmake_pools};
use super::layers::kill_server_of;
use super::observe::SLOW;
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "arbiter_on_an_arm",
        about: "on a disk with an arm whose arbiter is on, a tenant with 70 % keeps its fsyncs beside a stream; disks without an arm are refused",
        kernels: &[Kernel::V6_12],
        profile: ARM,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(on_an_arm(ctx)),
    },
    Case {
        name: "arbiter_faults",
        about: "a tenant that takes turns with another keeps its fsyncs while the other's server is stopped or killed, and when their slots are \
                overwritten; the setting survives the daemon",
        kernels: &[Kernel::V6_12],
        profile: ARM,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(faults(ctx)),
    },
];

/// Run by name only: it takes an hour.
pub(super) const SOAK: &[Case] = &[Case {
    name: "arbiter_killed_300",
    about: "the servers of two volumes that take turns are killed 300 times under fio --verify: nothing is lost",
    kernels: &[Kernel::V6_12],
    profile: ARM,
    limit: Duration::from_secs(3600),
    run: |ctx| Box::pin(killed(ctx, 300)),
}];

const ARM: Profile =
    Profile { name: "arm", disks: &[DiskSpec::new(DiskModel::Hdd, 4096), DiskSpec::new(DiskModel::Ssd, 1024)], ..SLOW };

/// Writes 16 KiB at random places of a prepared file with an fsync each, for some seconds: their rate, and the longest fsync in ms.
const PROBE: &str = r#"
fio --name=p --filename=AT/data --rw=randwrite --bs=16k --size=64m --fsync=1 --time_based --runtime=SECONDS --output-format=json \
    --output=/run/probe.json > /run/probe.log 2>&1 || { cat /run/probe.log; exit 1; }
python3 -c 'import json; job = json.load(open("/run/probe.json"))["jobs"][0]; print(job["write"]["iops"], job["sync"]["lat_ns"]["max"] / 1e6)'
"#;

/// Large writes, many at a time, until it is killed.
const STREAM: &str = "exec fio --name=n --filename=AT/data --rw=write --bs=512k --size=256m --direct=1 --ioengine=libaio --iodepth=16 \
                      --time_based --runtime=3600 > /run/stream.log 2>&1";

/// What a probe has found.
#[derive(Clone, Copy, Debug)]
struct Found {
    per_s: f64,
    longest_ms: f64,
}

async fn probe(ctx: &Ctx, at: &str, seconds: u32) -> Result<Found> {
    let script = PROBE.replace("AT", at).replace("SECONDS", &seconds.to_string());
    let said = ctx.machine.sh(&script).await?;
    let mut words = said.split_whitespace().map(str::parse);
    let (Some(Ok(per_s)), Some(Ok(longest_ms))) = (words.next(), words.next()) else {
        anyhow::bail!("unexpected output {said:?}");
    };
    Ok(Found { per_s, longest_ms })
}

/// Two tenants with a prepared volume each; where these are mounted.
async fn set_up(ctx: &Ctx) -> Result<(Daemon, [String; 2])> {
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    let mut places = Vec::new();
    for (name, share) in [("db", "700"), ("batch", "300")] {
        let volume = format!("file/{name}");
        json(ctx, &["volume", "create", &volume, "--size", "512M"]).await?;
        json(ctx, &["tenant", "create", name, "--share", share, "--volume", &volume]).await?;
        until_prepared(ctx, &volume).await?;
        let view = json(ctx, &["volume", "inspect", &volume]).await?;
        let at = view["mounted_at"].as_str().context("not mounted")?.to_owned();
        ctx.machine.sh(&format!("head -c 256M /dev/zero > {at}/data; sync {at}/data")).await?;
        places.push(at);
    }
    let places: [String; 2] = places.try_into().ok().context("two volumes")?;
    Ok((daemon, places))
}

async fn remove(ctx: &Ctx, daemon: Daemon) -> Result<()> {
    for name in ["db", "batch"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    let left = ctx.machine.sh("find /run/bulkhead/blockd/turns -type p").await?;
    ensure!(left.is_empty(), "pipes of servers are left: {left}");
    ctx.machine.sh("rm -f /run/probe.* /run/stream.log").await?;
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(())
}

async fn on_an_arm(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (daemon, [db, batch]) = set_up(ctx).await?;
    let (disk, flash) = (disk(ctx, 0).await?, disk(ctx, 1).await?);
    refused(ctx, 8, &["it is not rotational", "--policy iocost"], &["device", "arbiter", &flash, "on"]).await?;
    refused(ctx, 3, &["no block device"], &["device", "arbiter", "nosuch", "on"]).await?;
    ensure!(!is_on(ctx, &disk).await?, "it is on from the start");

    let alone = probe(ctx, &db, 4).await?;
    let stream = stream(ctx, &batch).await?;
    let off = probe(ctx, &db, 5).await?;
    json(ctx, &["device", "arbiter", &disk, "on"]).await?;
    ensure!(is_on(ctx, &disk).await?, "it was not switched on");
    let on = probe(ctx, &db, 8).await?;
    ctx.log(format!("alone {alone:?}, beside a stream {off:?}, with the arbiter {on:?}"));
    ensure!(on.per_s >= 0.55 * alone.per_s, "a tenant with 70 % has {on:?} of {alone:?}");
    ensure!(on.per_s >= 3.0 * off.per_s, "without the arbiter it has {off:?}, with it {on:?}");
    json(ctx, &["device", "arbiter", &disk, "off"]).await?;
    ensure!(!is_on(ctx, &disk).await?, "it was not switched off");
    stream.end(ctx).await?;
    kernel_is_silent(ctx).await?;
    remove(ctx, daemon).await?;
    Ok(Outcome::Passed)
}

async fn disk(ctx: &Ctx, index: usize) -> Result<String> {
    Ok(ctx.machine.disk(index).await?.trim_start_matches("/dev/").to_owned())
}

async fn is_on(ctx: &Ctx, disk: &str) -> Result<bool> {
    Ok(json(ctx, &["device", "inspect", disk]).await?["arbiter"] == true)
}

async fn faults(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (daemon, [db, batch]) = set_up(ctx).await?;
    let disk = disk(ctx, 0).await?;
    let alone = probe(ctx, &db, 4).await?;
    json(ctx, &["device", "arbiter", &disk, "on"]).await?;
    let stream = stream(ctx, &batch).await?;

    // Another daemon finds it on, and a server that is stopped in the middle of its turn is waited for no longer.
    daemon.stop().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    ensure!(is_on(ctx, &disk).await?, "a daemon that is started again does not find it");
    let pid = server_pid(&json(ctx, &["volume", "inspect", "file/batch"]).await?)?;
    ctx.machine.sh(&format!("kill -STOP {pid}")).await?;
    let stopped = probe(ctx, &db, 4).await?;
    ctx.machine.sh(&format!("kill -CONT {pid}")).await?;
    ensure!(stopped.per_s >= 0.8 * alone.per_s, "beside a stopped server {stopped:?}, alone {alone:?}");

    // Servers that die, and slots that lie: no request is held for longer than the limit of 300 ms.
    let kills = async {
        for _ in 0..4 {
            kill_server_of(ctx, "file/batch").await?;
        }
        anyhow::Ok(())
    };
    let (killed, kills) = tokio::join!(probe(ctx, &db, 10), kills);
    kills?;
    let killed = killed?;
    ensure!(killed.per_s >= 0.4 * alone.per_s, "while the other server is killed {killed:?}, alone {alone:?}");
    let overwrite = "for table in $(find /run/bulkhead/blockd/turns -type f); do \
                     head -c 1024 /dev/urandom | dd of=$table bs=1 seek=128 conv=notrunc status=none; done";
    ctx.machine.sh(overwrite).await?;
    let lied_to = probe(ctx, &db, 6).await?;
    ensure!(lied_to.per_s > 0.0 && lied_to.longest_ms < 5000.0, "with overwritten slots {lied_to:?}");
    ctx.log(format!(
        "alone {alone:?}, other server stopped {stopped:?}, killed {killed:?}, slots overwritten {lied_to:?}"
    ));
    stream.end(ctx).await?;
    kernel_is_silent(ctx).await?;
    remove(ctx, daemon).await?;
    Ok(Outcome::Passed)
}

/// A stream, which has to be ended.
struct Stream(Process);

async fn stream(ctx: &Ctx, at: &str) -> Result<Stream> {
    let stream = ctx.machine.spawn(&["bash", "-c", &STREAM.replace("AT", at)], &[]).await?;
    Ok(Stream(stream))
}

impl Stream {
    async fn end(self, ctx: &Ctx) -> Result<()> {
        ctx.machine.sh("pkill -x fio").await?;
        self.0.wait(Duration::from_secs(60)).await?;
        Ok(())
    }
}

async fn killed(ctx: &mut Ctx, kills: u32) -> Result<Outcome> {
    let ctx = &*ctx;
    let (daemon, places) = set_up(ctx).await?;
    let disk = disk(ctx, 0).await?;
    json(ctx, &["device", "arbiter", &disk, "on"]).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds").await?;
    let mut loads = Vec::new();
    for at in &places {
        loads.push(ctx.machine.spawn(&["bash", "-c", &VERIFY.replace("AT", at)], &[]).await?);
    }
    for n in 0..kills {
        ctx.machine.sh("python3 -c 'import time, random; time.sleep(random.random())'").await?;
        kill_server_of(ctx, if n % 2 == 0 { "file/db" } else { "file/batch" }).await?;
    }
    ctx.machine.sh("touch /run/stop").await?;
    for load in loads {
        let ended = load.wait(Duration::from_secs(300)).await?;
        let log = ctx.machine.read_text("/run/fio.log").await?;
        ensure!(ended.status == ExitStatus::Code(0), "fio: {log}");
    }
    ensure!(is_on(ctx, &disk).await?, "the arbiter is off at the end");
    let servers = ctx.machine.sh("cat /run/bulkhead/blockd/*.log").await?;
    ctx.save("servers.log", &servers)?;
    ensure!(!servers.contains("ERROR"), "a server logged an error: {servers}");
    kernel_is_silent(ctx).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds /run/fio.log").await?;
    remove(ctx, daemon).await?;
    Ok(Outcome::Passed)
}
