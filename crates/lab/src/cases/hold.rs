//! Enforcement of shares on a real kernel: with journal writes, by caps, with an fsync promise; and its complete
//! removal.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{json, refused, start_daemon};
use super::observe::SLOW;
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::DiskModel;
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

/// [`SLOW`] on the wall clock, for loads that compute all the time: in virtual time a second of theirs takes four
/// seconds of the host.
const BUSY: Profile = Profile { name: "busy", clock: Clock::Wall, cpus: 2, ..SLOW };

pub(super) const CASES: &[Case] = &[
    Case {
        name: "shares_held_with_journal",
        about: "a container with reads and journal writes is held to its share; the previous weights return, whichever \
                process is killed",
        kernels: &[Kernel::V6_12],
        profile: BUSY,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(shares_held_with_journal(ctx)),
    },
    Case {
        name: "shares_held_by_caps",
        about: "tenants that fsync on their own volumes are held to 70/30 where weights have no effect; BFQ's tunables \
                and io.max are restored",
        kernels: &[Kernel::V6_12],
        profile: SLOW,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(shares_held_by_caps(ctx)),
    },
    Case {
        name: "journal_beside_container",
        about: "while a container's share is held, the journal thread of its file system runs in a cgroup next to it \
                and is charged to it",
        kernels: &[Kernel::V6_12],
        profile: SLOW,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(journal_beside_container(ctx)),
    },
    Case {
        name: "fsync_p99_held",
        about: "the 99th percentile of a tenant's fsyncs next to buffered writers falls when half of it is promised",
        kernels: &[Kernel::V6_12],
        profile: SLOW,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(fsync_p99_held(ctx)),
    },
];

/// Both read all the time; `a` also makes directories, whose journal blocks the kernel charges to the root cgroup.
const LOADS: &str = r#"
in_cgroup() { setsid bash -c "echo \$\$ > /sys/fs/cgroup/test.slice/$1/cgroup.procs; $2" > /dev/null 2>&1 & }
read_all() { echo "while :; do dd if=/run/shared/$1 of=/dev/null bs=128k iflag=direct; done"; }
for name in a b; do dd if=/dev/zero of=/run/shared/$name bs=1M count=256 oflag=direct 2> /dev/null; done
in_cgroup a "$(read_all a)"
in_cgroup b "$(read_all b)"
in_cgroup a 'mkdir /run/shared/dirs; i=0; while :; do i=$((i+1)); mkdir /run/shared/dirs/$i; cd /run/shared/dirs/$i; mkdir $(seq 150); done'"#;

/// How long shares are held and watched, in seconds (one table every 5 s), and the first table that counts.
const WATCHED: &str = "65";
const SETTLED: usize = 3;
/// Tolerated mean deviation of a container from its share, in percent of the whole: two cores emulate processor and
/// disk.
const TOLERANCE: f64 = 6.0;
/// How long a hold may outlive its killed owner: its lease and a margin.
const LEASE: Duration = Duration::from_secs(150);

async fn shares_held_with_journal(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let Some(lines) = DiskModel::Hdd.iocost(ctx.machine.clock(), ctx.lab.kvm()) else {
        return Ok(Outcome::Skipped("this disk has no io.cost model with KVM".to_owned()));
    };
    let path = ctx.machine.disk(0).await?;
    let disk = path.trim_start_matches("/dev/");
    let daemon = start_daemon(ctx, &[]).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q -F {path}; mkdir -p /run/shared; mount {path} /run/shared")).await?;
    ctx.machine
        .sh("cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control; mkdir test.slice; echo '+io +memory' > \
             test.slice/cgroup.subtree_control; mkdir test.slice/a test.slice/b")
        .await?;
    let tenants = ["--tenant", "test.slice/a=50", "--tenant", "test.slice/b=50"];
    refused(ctx, 8, &["no device has a controller"], &[&["hold"], &tenants[..]].concat()).await?;
    json(ctx, &["device", "calibrate", disk, "--model", lines.model, "--qos", lines.qos]).await?;
    json(ctx, &["device", "control", disk, "--policy", "iocost"]).await?;
    refused(
        ctx,
        3,
        &["test.slice/c", "has that name"],
        &["hold", "--tenant", "test.slice/c=1", "--tenant", "test.slice/b=1"],
    )
    .await?;
    refused(ctx, 2, &["a share must be a positive number"], &["hold", "--tenant", "a=0", "--tenant", "b=1"]).await?;
    // Start the observation, here and again further down, while there is no load: an emulated processor occasionally
    // crashes on code that is patched while another one runs it (`Oops: int3`).
    json(ctx, &["top", "--total"]).await?;
    ctx.machine.sh(LOADS).await?;
    let program = ctx.program("bulkhead");

    // Shares are held while the command runs.
    let hold = [&[program.as_str(), "hold", "--output", "json"], &tenants[..]].concat();
    let tables = watch(ctx, &hold, WATCHED).await?;
    let standing = |table: &Value, field: &str| table["standings"][0][field].as_f64();
    let settled = tables.get(SETTLED..).context("too few tables")?;
    let achieved: Vec<f64> = settled.iter().filter_map(|table| standing(table, "achieved_share")).collect();
    let journal: Vec<f64> = settled.iter().filter_map(|table| standing(table, "journal_share")).collect();
    ensure!(achieved.len() > 5, "only {} tables", achieved.len());
    ctx.log(format!(
        "a has {:.1} % of 50 %, {:.1} % of it journal: {achieved:.3?}",
        mean_pct(&achieved),
        mean_pct(&journal)
    ));
    ensure!((mean_pct(&achieved) - 50.0).abs() < TOLERANCE, "a has {:.1} %", mean_pct(&achieved));
    ensure!(mean_pct(&journal) > 2.0, "no journal share: {journal:?}");
    let corrections = tables.last().and_then(|table| table["corrections"].as_u64());
    ensure!(corrections > Some(0), "no weight was changed: {corrections:?}");
    ensure!(own_weights(ctx).await?.is_empty(), "weights are left");

    // Kill the owner and the daemon: the next daemon continues with the weights that it finds, and removes them at the
    // end of the lease.
    let running = ctx.machine.spawn(&hold, &[]).await?;
    ctx.machine
        .wait_until("both are contenders", Duration::from_secs(60), async || {
            let holds = json(ctx, &["hold", "ls"]).await?;
            let standings = holds[0]["standings"].as_array().cloned().unwrap_or_default();
            Ok((standings.len() == 2 && standings.iter().all(|one| one["contends"] == true)).then_some(()))
        })
        .await?;
    ctx.machine.sh("cd /sys/fs/cgroup/test.slice; for name in a b; do echo 1 > $name/cgroup.kill; done").await?;
    running.kill(9).await?;
    running.wait(Duration::from_secs(60)).await?;
    daemon.kill().await?;
    ensure!(!own_weights(ctx).await?.is_empty(), "no weights were set");
    let daemon = start_daemon(ctx, &[]).await?;
    ensure!(json(ctx, &["hold", "ls"]).await?[0]["device"] == disk, "the hold was lost");
    ctx.machine
        .wait_until("the lease ends", LEASE, async || {
            Ok((json(ctx, &["hold", "ls"]).await? == serde_json::json!([])).then_some(()))
        })
        .await?;
    ensure!(own_weights(ctx).await?.is_empty(), "weights are left");
    ctx.machine
        .sh("cd /sys/fs/cgroup/test.slice; for name in a b; do until rmdir $name 2> /dev/null; do :; done; done; \
             cd ..; rmdir test.slice; umount /run/shared; rmdir /run/shared")
        .await?;
    json(ctx, &["device", "control", disk, "--restore"]).await?;
    ctx.machine.sh(&format!("wipefs -qa {path}")).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Runs `bulkhead hold`, interrupts it after `seconds`, and returns the tables that it printed.
async fn watch(ctx: &Ctx, hold: &[&str], seconds: &str) -> Result<Vec<Value>> {
    let argv = [&["timeout", "--preserve-status", "-s", "INT", seconds], hold].concat();
    let held = ctx.machine.run_within(&argv, Duration::from_secs(200)).await?;
    ensure!(held.status == ExitStatus::Code(0), "{held:?}");
    ctx.save("held.json", &held.stdout)?;
    Ok(serde_json::Deserializer::from_str(&held.stdout).into_iter().collect::<Result<_, _>>()?)
}

fn mean_pct(shares: &[f64]) -> f64 {
    100.0 * shares.iter().sum::<f64>() / f64::from(u32::try_from(shares.len()).unwrap_or(1))
}

/// Per-device weights of the two cgroups, without their defaults.
async fn own_weights(ctx: &Ctx) -> Result<String> {
    let text = ctx.machine.sh("grep -hv default /sys/fs/cgroup/test.slice/*/io.weight || true").await?;
    Ok(text.trim().to_owned())
}

/// The first table with settled caps (it takes some 15 s to find that weights have no effect).
const CAPPED: usize = 7;
/// The tunables of BFQ that a hold sets.
const TUNABLES: &str = "cd /sys/block/DISK/queue/iosched; echo $(cat strict_guarantees low_latency slice_idle)";

async fn shares_held_by_caps(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let Some(lines) = DiskModel::Hdd.iocost(ctx.machine.clock(), ctx.lab.kvm()) else {
        return Ok(Outcome::Skipped("this disk has no io.cost model with KVM".to_owned()));
    };
    let path = ctx.machine.disk(0).await?;
    let disk = path.trim_start_matches("/dev/");
    let daemon = start_daemon(ctx, &[]).await?;
    own_volumes(ctx, &path).await?;
    let program = ctx.program("bulkhead");
    let tenants = ["--tenant", "a=70", "--tenant", "b=30"];
    let hold = [&[program.as_str(), "hold", "--output", "json"], &tenants[..]].concat();

    // BFQ: a hold sets the tunables that weights need.
    json(ctx, &["device", "control", disk, "--policy", "bfq"]).await?;
    let tunables = TUNABLES.replace("DISK", disk);
    let before = ctx.machine.sh(&tunables).await?;
    let running = ctx.machine.spawn(&hold, &[]).await?;
    ctx.machine
        .wait_until("BFQ's tunables are set", Duration::from_secs(60), async || {
            Ok((ctx.machine.sh(&tunables).await?.trim() == "1 0 20").then_some(()))
        })
        .await?;
    running.kill(2).await?;
    let ended = running.wait(Duration::from_secs(60)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "{ended:?}");
    let after = ctx.machine.sh(&tunables).await?;
    ensure!(before == after && before.trim() == "0 1 8", "BFQ's tunables were {before}, and are {after}");

    // io.cost: journal writes are issued as debt, so weights have no effect between two tenants that sync all the time.
    json(ctx, &["device", "calibrate", disk, "--model", lines.model, "--qos", lines.qos]).await?;
    json(ctx, &["device", "control", disk, "--policy", "iocost"]).await?;
    refused(ctx, 2, &["has no share"], &[&["hold", "--fsync-p99", "c=20ms"], &tenants[..]].concat()).await?;
    refused(ctx, 2, &["not a time"], &[&["hold", "--fsync-p99", "a=20"], &tenants[..]].concat()).await?;
    // Start the observation while there is no load: see above.
    json(ctx, &["top", "--total"]).await?;
    let mut loads = vec![load(ctx, "a", "high-fsync").await?, load(ctx, "b", "high-fsync").await?];
    let tables = watch(ctx, &hold, WATCHED).await?;
    let achieved = |table: &Value| table["standings"][0]["achieved_share"].as_f64();
    let all: Vec<f64> = tables.iter().filter_map(achieved).collect();
    let settled = all.get(CAPPED..).filter(|settled| settled.len() >= 3).context("too few tables")?;
    let mean = mean_pct(settled);
    ctx.log(format!("a has {mean:.1} % of 70 %: {all:.3?}"));
    ensure!((mean - 70.0).abs() < TOLERANCE, "a has {mean:.1} %");
    let last = tables.last().context("no table")?;
    ensure!(last["state"] == "capped" && last["standings"][1]["cap"].is_u64(), "{last}");
    ensure!(caps(ctx).await?.is_empty(), "a cap is left");

    // A capped tenant gets the whole disk when the other one stops, and a hold that ends removes its caps.
    json(ctx, &[&["hold", "--detach"], &tenants[..]].concat()).await?;
    ctx.machine
        .wait_until("b is held to a cap", Duration::from_secs(90), async || {
            Ok((!caps(ctx).await?.is_empty()).then_some(()))
        })
        .await?;
    loads.remove(0).kill(15).await?;
    ctx.machine
        .wait_until("b's cap is lifted", Duration::from_secs(60), async || {
            Ok(caps(ctx).await?.is_empty().then_some(()))
        })
        .await?;
    json(ctx, &["hold", "rm", disk]).await?;
    remove_volumes(ctx, disk, loads).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Tenants `a` and `b`, each with a volume on the disk.
async fn own_volumes(ctx: &Ctx, path: &str) -> Result<()> {
    json(ctx, &["pool", "create", "disk", "--device", path]).await?;
    for name in ["a", "b"] {
        let volume = format!("disk/{name}");
        json(ctx, &["volume", "create", &volume, "--size", "512M"]).await?;
        json(ctx, &["tenant", "create", name, "--volume", &volume]).await?;
    }
    Ok(())
}

/// Starts a load of a tenant on its volume.
async fn load(ctx: &Ctx, tenant: &str, kind: &str) -> Result<Process> {
    let program = ctx.program("bulkhead");
    let view = json(ctx, &["volume", "inspect", &format!("disk/{tenant}")]).await?;
    let at = view["mounted_at"].as_str().context("not mounted")?;
    let args = format!("__load {kind} --dir {at}/files --seconds 600");
    ctx.machine
        .spawn(&[&[program.as_str(), "run", "--tenant", tenant, "--", &program], &words(&args)[..]].concat(), &[])
        .await
}

async fn remove_volumes(ctx: &Ctx, disk: &str, loads: Vec<Process>) -> Result<()> {
    for load in loads {
        load.kill(15).await?;
        load.wait(Duration::from_secs(60)).await?;
    }
    for name in ["a", "b"] {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "rm", &format!("disk/{name}")]).await?;
    }
    json(ctx, &["device", "control", disk, "--restore"]).await?;
    json(ctx, &["pool", "rm", "disk"]).await?;
    Ok(())
}

/// Promised latency, as a fraction of that without a promise.
const HALF: f64 = 0.5;
/// Required latency, as a fraction of that without a promise: an emulated disk and 100 fsyncs in 10 s give a rough
/// figure.
const BETTER: f64 = 0.75;
/// The first table that counts: two control steps of 10 s have taken effect.
const STEPS: usize = 4;

async fn fsync_p99_held(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let path = ctx.machine.disk(0).await?;
    let disk = path.trim_start_matches("/dev/");
    let daemon = start_daemon(ctx, &[]).await?;
    own_volumes(ctx, &path).await?;
    json(ctx, &["device", "control", disk, "--policy", "bfq"]).await?;
    // Start the observation while there is no load: see above.
    json(ctx, &["top", "--total"]).await?;
    let loads = vec![load(ctx, "a", "probe").await?, load(ctx, "b", "streams --file-bytes 33554432").await?];
    let program = ctx.program("bulkhead");
    let promised = async |ms: f64, seconds: &str| {
        let promise = format!("a={ms:.0}ms");
        let hold =
            [&program, "hold", "--output", "json", "--tenant", "a=50", "--tenant", "b=50", "--fsync-p99", &promise];
        let tables = watch(ctx, &hold, seconds).await?;
        ensure!(caps(ctx).await?.is_empty(), "a cap is left");
        let p99: Vec<f64> =
            tables.iter().filter_map(|table| table["standings"][0]["fsync_p99_seconds"].as_f64()).collect();
        ctx.log(format!("99 % of a's fsyncs, {promise} promised: {p99:.3?} s; {}", tables.last().context("no table")?));
        Ok((p99, tables))
    };
    let (without, _) = promised(3_600_000.0, "40").await?;
    let without = median(without)?;
    let (mut with, tables) = promised(1e3 * HALF * without, "70").await?;
    ensure!(tables.iter().any(|table| table["standings"][1]["cap"].is_u64()), "b is not held back");
    ensure!(with.len() > STEPS, "too few tables: {with:?}");
    let with = median(with.split_off(STEPS))?;
    ensure!(with <= BETTER * without, "{with:.3} s with a promise, {without:.3} s without");
    promise_of_tenant(ctx, disk, without).await?;
    daemon.kill().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    ensure!(held_for(ctx, "a").await?.is_some(), "the promise did not outlive the daemon");
    json(ctx, &["tenant", "set", "a", "--fsync-p99", "none"]).await?;
    let ended = async || Ok(held_for(ctx, "a").await?.is_none().then_some(()));
    ctx.machine.wait_until("the hold ends with the promise", Duration::from_secs(30), ended).await?;
    ensure!(caps(ctx).await?.is_empty(), "a cap is left");
    remove_volumes(ctx, disk, loads).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// The same with a promise in `a`'s record: it is enforced without a command, and a tenant that comes meanwhile changes no cap.
async fn promise_of_tenant(ctx: &Ctx, disk: &str, without: f64) -> Result<()> {
    let promise = format!("{:.0}ms", 1e3 * HALF * without);
    json(ctx, &["tenant", "set", "a", "--fsync-p99", &promise]).await?;
    let is_kept = async || {
        let Some(hold) = held_for(ctx, "a").await? else { return Ok(None) };
        let fsyncs = hold["standings"][0]["fsync_p99_seconds"].as_f64();
        let is_capped = hold["standings"][1]["cap"].is_u64();
        Ok((is_capped && fsyncs.is_some_and(|p99| p99 <= BETTER * without)).then_some(()))
    };
    ctx.machine.wait_until("the promise is kept", Duration::from_secs(120), is_kept).await?;
    refused(ctx, 5, &["promised to a", "--fsync-p99 none"], &["hold", "rm", disk]).await?;
    json(ctx, &["volume", "create", "disk/c", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "c", "--volume", "disk/c"]).await?;
    let mut capped = None;
    let has_third = async || {
        let hold = held_for(ctx, "a").await?.context("the hold is gone")?;
        capped = hold["standings"].as_array().filter(|all| all.len() == 3).map(|all| all[1]["cap"].is_u64());
        Ok(capped.map(drop))
    };
    ctx.machine.wait_until("another tenant takes part", Duration::from_secs(30), has_third).await?;
    ensure!(capped == Some(true), "the cap on b is gone");
    json(ctx, &["tenant", "rm", "c"]).await?;
    json(ctx, &["volume", "rm", "disk/c"]).await?;
    Ok(())
}

/// The hold for the promise to a tenant, if there is one.
async fn held_for(ctx: &Ctx, tenant: &str) -> Result<Option<Value>> {
    let holds = json(ctx, &["hold", "ls"]).await?;
    let is_for = |hold: &&Value| hold["for_promises"] == true && hold["tenants"][0]["name"] == tenant;
    Ok(holds.as_array().into_iter().flatten().find(is_for).cloned())
}

/// A container that makes directories on its own ext4, and one that reads the device.
const OWN_EXT4_LOADS: &str = r#"
cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control
mkdir -p test.slice; echo '+io +memory' > test.slice/cgroup.subtree_control; mkdir -p test.slice/a test.slice/b
in_cgroup() { setsid bash -c "echo \$\$ > /sys/fs/cgroup/test.slice/$1/cgroup.procs; $2" > /dev/null 2>&1 & }
in_cgroup a 'i=0; while :; do i=$((i+1)); mkdir /run/own/$i; cd /run/own/$i; mkdir $(seq 150); dd if=/dev/zero of=x bs=128k count=8 oflag=direct; sync -f .; done'
in_cgroup b 'while :; do dd if=DISK of=/dev/null bs=128k count=800 iflag=direct; done'"#;

async fn journal_beside_container(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let path = ctx.machine.disk(0).await?;
    let disk = path.trim_start_matches("/dev/");
    let daemon = start_daemon(ctx, &[]).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q -F {path}; mkdir -p /run/own; mount {path} /run/own")).await?;
    json(ctx, &["device", "control", disk, "--policy", "bfq"]).await?;
    // Start the observation while there is no load: see above.
    json(ctx, &["top", "--total"]).await?;
    ctx.machine.sh(&OWN_EXT4_LOADS.replace("DISK", &path)).await?;
    let hold = ["hold", "--tenant", "test.slice/a=50", "--tenant", "test.slice/b=50", "--journal"];
    refused(ctx, 2, &["has no share"], &[&hold[..], &["test.slice/c=/run/own"]].concat()).await?;
    refused(ctx, 8, &["not on a block device"], &[&hold[..], &["test.slice/a=/dev"]].concat()).await?;
    json(ctx, &[&hold[..], &["test.slice/a=/run/own", "--detach"]].concat()).await?;
    let leaf = "/sys/fs/cgroup/test.slice/bulkhead-journal:a";
    let thread = format!("cat /proc/$(pgrep -x jbd2/{disk}-8)/cgroup");
    ensure!(ctx.machine.sh(&thread).await?.contains("bulkhead-journal:a"), "the thread is in another cgroup");
    let refused_twice =
        ["hold", "--tenant", "test.slice/a=1", "--tenant", "test.slice/b=1", "--journal", "test.slice/b=/run/own"];
    refused(ctx, 5, &["is already in test.slice/bulkhead-journal:a"], &refused_twice).await?;
    let weights = async || -> Result<(u64, u64)> {
        let text = ctx
            .machine
            .sh(&format!("tail -qn1 {leaf}/io.bfq.weight /sys/fs/cgroup/test.slice/a/io.bfq.weight"))
            .await?;
        let all: Vec<u64> = text.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        let [journal, own] = all[..] else { anyhow::bail!("unexpected weights {text:?}") };
        Ok((journal, own))
    };
    let first = weights().await?;
    ctx.machine
        .wait_until("the weight is split by the thread's I/O", Duration::from_secs(90), async || {
            Ok((weights().await? != first).then_some(()))
        })
        .await?;
    let (journal, own) = weights().await?;
    // Commits before the thread was moved were charged to the root cgroup: wait for a later one.
    let mut a = None;
    let charged = ctx
        .machine
        .wait_until("a commit is charged to the container", Duration::from_secs(60), async || {
            let top = json(ctx, &["top", "--total"]).await?;
            let mut views = top["containers"].as_array().into_iter().flatten();
            a = views.find(|view| view["name"].as_str().is_some_and(|name| name.ends_with("test.slice/a"))).cloned();
            let native = a.as_ref().and_then(|a| a["journal"][0]["native_bytes"].as_u64());
            Ok((native > Some(0)).then_some(()))
        })
        .await;
    ctx.log(format!("weights {own} and {journal}: {}", a.as_ref().map_or(&Value::Null, |a| &a["journal"])));
    charged.with_context(|| format!("no journal writes are charged to the container: {a:?}"))?;
    // A remount keeps the thread and a new mount creates one; wherever it is, it is moved to its cgroup.
    let pid = format!("pgrep -x jbd2/{disk}-8");
    ctx.machine.sh(&format!("echo $({pid}) > /sys/fs/cgroup/cgroup.procs")).await?;
    ctx.machine
        .wait_until("the thread is moved back", Duration::from_secs(60), async || {
            Ok(ctx.machine.sh(&thread).await?.contains("bulkhead-journal:a").then_some(()))
        })
        .await?;
    json(ctx, &["hold", "rm", disk]).await?;
    ensure!(ctx.machine.sh(&thread).await?.trim().ends_with(":/"), "the thread is not back in its original cgroup");
    ensure!(!ctx.machine.run(&["test", "-e", leaf]).await?.status.success(), "{leaf} is left");
    ctx.machine
        .sh("cd /sys/fs/cgroup/test.slice; for name in a b; do echo 1 > $name/cgroup.kill; done; \
             for name in a b; do until rmdir $name 2> /dev/null; do :; done; done; \
             cd ..; rmdir test.slice; umount /run/own; rmdir /run/own")
        .await?;
    json(ctx, &["device", "control", disk, "--restore"]).await?;
    ctx.machine.sh(&format!("wipefs -qa {path}")).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

fn median(mut seconds: Vec<f64>) -> Result<f64> {
    seconds.sort_unstable_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().context("no fsync was seen")
}

fn words(text: &str) -> Vec<&str> {
    text.split(' ').collect()
}

/// The lines of `io.max` of both tenants.
async fn caps(ctx: &Ctx) -> Result<String> {
    let text = ctx.machine.sh("cat /sys/fs/cgroup/bulkhead.slice/bulkhead-[ab].slice/io.max").await?;
    Ok(text.trim().to_owned())
}
