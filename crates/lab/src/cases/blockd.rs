//! Block servers on real kernels: service, accounting, and takeover after a crash.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, SMP, json, kernel_is_silent, make_pools, start_daemon, unmake_pools, use_loop_devices};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "blockd_serves",
        about: "a file volume is served by a process in its tenant's server cgroup, which is charged for all its I/O, and \
                is not under I/O pressure while it is idle; a restarted daemon keeps it; with --server loop it is a loop device",
        kernels: &[Kernel::V6_12, Kernel::Backport],
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(serves(ctx)),
    },
    Case {
        name: "blockd_prepared",
        about: "100 fsyncs on a prepared volume cause no commits of the host's journal, on a loop device they do; data \
                written while a volume is being prepared or grows is kept",
        kernels: &[Kernel::V6_12, Kernel::Backport],
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(prepared(ctx)),
    },
    Case {
        name: "blockd_killed",
        about: "kill -9 of the block server under fio --verify, with and without the daemon running: I/O waits and \
                nothing is lost",
        kernels: &[Kernel::V6_12],
        profile: SMP,
        limit: Duration::from_secs(900),
        run: |ctx| Box::pin(killed(ctx, 12)),
    },
];

/// Run by name only: it takes an hour.
pub(super) const SOAK: &[Case] = &[Case {
    name: "blockd_killed_300",
    about: "the same as blockd_killed with 300 kills",
    kernels: &[Kernel::V6_12],
    profile: SMP,
    limit: Duration::from_secs(3 * 3600),
    run: |ctx| Box::pin(killed(ctx, 300)),
}];

/// Time limit for the daemon to detect the end of a server and to start another, under emulation.
pub(super) const TAKE_OVER_LIMIT: Duration = Duration::from_secs(60);

/// Writes blocks of all sizes and verifies them, until `/run/stop` exists; keeps its last error.
pub(super) const VERIFY: &str = r#"
until [ -e /run/stop ]; do
    fio --name=verify --filename=AT/fio --size=32m --rw=randwrite --bsrange=4k-128k --direct=1 --ioengine=libaio --iodepth=8 \
        --fsync=16 --verify=crc32c --verify_fatal=1 --do_verify=1 --allrandrepeat=0 --randrepeat=0 > /run/fio.log 2>&1 || exit 1
    echo "$((++rounds))" > /run/rounds
done
"#;

async fn serves(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "128M"]).await?;
    let closed = json(ctx, &["volume", "inspect", "file/v"]).await?;
    ensure!(
        closed["device"].is_null() && served(ctx).await?.is_empty(),
        "a detached volume still has a server: {closed}"
    );
    let marks = async || ctx.machine.sh("ls /run/bulkhead/blockd/unprobed").await;
    ensure!(marks().await?.is_empty(), "the mark of a removed device is left");
    json(ctx, &["tenant", "create", "db", "--volume", "file/v"]).await?;
    // Without its announcement, the device is found by the owner id that the driver reports.
    ctx.machine.sh("rm /run/bulkhead/blockd/owner-*").await?;
    json(ctx, &["tenant", "set", "db", "--detach", "file/v"]).await?;
    ensure!(served(ctx).await?.is_empty(), "a device without its announcement is left");
    json(ctx, &["tenant", "set", "db", "--attach", "file/v"]).await?;
    let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
    let (pid, at) = (server_pid(&view)?, view["mounted_at"].as_str().context("not mounted")?.to_owned());
    ensure!(marks().await?.lines().count() == 1, "a served device has no mark for udev");
    let slice = "/sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice";
    let threads = ctx.machine.sh(&format!("cat {slice}/bulkhead-db-server.slice/cgroup.procs")).await?;
    ensure!(threads.trim() == pid.to_string(), "the server cgroup has {threads:?}, the server is {pid}");

    // The server depends on nothing that could wait for it.
    let status = ctx.machine.read_text(&format!("/proc/{pid}/status")).await?;
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")).context("no VmLck")?;
    let locked: u64 = locked.trim().trim_end_matches(" kB").parse()?;
    ensure!(locked > 8 << 10, "only {locked} KiB of the server are locked");
    let mounts = ctx.machine.sh(&format!("cat /proc/{pid}/mountinfo")).await?;
    ensure!(mounts.lines().count() == 1 && mounts.contains("tmpfs"), "the server holds mounts: {mounts}");

    let device = view["device"].as_str().context("the volume has no device")?;
    // The volume may be a partition.
    let queue = format!(
        "at=$(readlink -f /sys/class/block/$(basename {device})); cat $at/queue/scheduler || cat $at/../queue/scheduler"
    );
    let scheduler = ctx.machine.sh(&queue).await?;
    ensure!(scheduler.starts_with("[none]"), "the volume's device has an I/O scheduler: {scheduler}");

    // All writes to the volume reach the disk through the server. Wait until it has written the volume in advance,
    // which would be counted as well, more of it in the counters that are read later.
    until_prepared(ctx, "file/v").await?;
    let disk = ctx.machine.disk(0).await?;
    let numbers = ctx
        .machine
        .sh(&format!(
            "dev=$(cat /sys/class/block/$(basename $(readlink -f {disk}))/dev)\n\
             stat() {{ awk -v dev=$dev '$1 == dev {{ for (i = 2; i <= NF; i++) if (sub(\"wbytes=\", \"\", $i)) n = $i }} END {{ print n + 0 }}' $1/io.stat; }}\n\
             before=$(stat {slice}); server=$(stat {slice}/bulkhead-db-server.slice); other=$(($(stat {slice}/bulkhead-db-payload.slice) + $(stat {slice}/bulkhead-db-journal.slice)))\n\
             bash -c 'echo $$ > {slice}/bulkhead-db-payload.slice/cgroup.procs; head -c 4194304 /dev/zero > {at}/data; sync {at}/data; mkdir {at}/d; cd {at}/d; mkdir $(seq 300); sync -f {at}'\n\
             echo $(($(stat {slice}) - before)) $(($(stat {slice}/bulkhead-db-server.slice) - server)) $(($(stat {slice}/bulkhead-db-payload.slice) + $(stat {slice}/bulkhead-db-journal.slice) - other))"
        ))
        .await?;
    ctx.log(format!("written to the disk by the tenant, its server, its payload and journal: {}", numbers.trim()));
    let numbers: Vec<u64> = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [all, server, other] = numbers[..] else { anyhow::bail!("unexpected output {numbers:?}") };
    ensure!(all > (4 << 20) + 1_000_000 && all == server && other == 0, "the server wrote {server} B of {all} B");

    // An idle server waits for its next request, and not for I/O: otherwise its tenant and the host would always be under I/O pressure.
    let waited = format!(
        "total() {{ sed -n 's/^some .*total=//p' {slice}/io.pressure; }}; before=$(total); sleep 1; echo $(($(total) - before))"
    );
    ctx.machine
        .wait_until("an idle tenant is not under I/O pressure", TAKE_OVER_LIMIT, async || {
            let microseconds: u64 = ctx.machine.sh(&waited).await?.trim().parse()?;
            Ok((microseconds < 100_000).then_some(()))
        })
        .await?;

    // The daemon is restarted, and the server is moved to another cgroup meanwhile.
    daemon.stop().await?;
    ctx.machine
        .sh(&format!("touch {at}/while-stopped; sync -f {at}; echo {pid} > /sys/fs/cgroup/cgroup.procs"))
        .await?;
    let daemon = start_daemon(ctx, &[]).await?;
    ctx.machine
        .wait_until("the server is back in its cgroup", TAKE_OVER_LIMIT, async || {
            let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
            Ok((view["accounting"]["way"] == "server" && server_pid(&view)? == pid).then_some(()))
        })
        .await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    ensure!(served(ctx).await?.is_empty(), "a server outlived its tenant");
    json(ctx, &["volume", "rm", "file/v"]).await?;

    use_loop_devices(ctx).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "db", "--volume", "file/v"]).await?;
    let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
    let is_loop = view["device"].as_str().is_some_and(|device| device.starts_with("/dev/loop"));
    ensure!(is_loop && view["findings"].to_string().contains("loop device"), "{view}");
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Default commit interval of ext4 (mount option `commit`).
const COMMIT_SECONDS: u32 = 5;

/// Counts commits of the host's journal while a file in the volume is written to and synced 100 times, and the seconds
/// that it takes. The kernel commits other changes every [`COMMIT_SECONDS`] in any case, such as the image's mtime
/// (`jbd2_journal_stop`).
const COMMITS: &str = r#"
dd if=/dev/zero of=AT/f bs=4k count=200 conv=fsync status=none; sync
count() { awk '{ print $1; exit }' /proc/fs/jbd2/HOST-8/info; }
sync -f /run/filepool
write() { for i in $(seq $1); do dd if=/dev/urandom of=AT/f bs=4k count=1 seek=$i conv=notrunc,fsync status=none; done; }
# A commit is counted a moment after its waiters proceed.
write 20
before=$(count); SECONDS=0
write 100
echo $(($(count) - before)) $SECONDS
"#;

/// Waits until all of a volume has been written in advance.
pub(super) async fn until_prepared(ctx: &Ctx, volume: &str) -> Result<()> {
    ctx.machine
        .wait_until("the volume is prepared", Duration::from_secs(240), async || {
            let view = json(ctx, &["volume", "inspect", volume]).await?;
            Ok((!view["findings"].to_string().contains("written in advance")).then_some(()))
        })
        .await
}

async fn prepared(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    let host = ctx.machine.disk(0).await?.trim_start_matches("/dev/").to_owned();
    let commits = async |at: &str| -> Result<(u32, u32)> {
        let counted = ctx.machine.sh(&COMMITS.replace("AT", at).replace("HOST", &host)).await?;
        let (commits, seconds) = counted.trim().split_once(' ').context("not two numbers")?;
        Ok((commits.parse()?, seconds.parse()?))
    };
    let attach = async || -> Result<String> {
        json(ctx, &["tenant", "create", "db", "--volume", "file/v"]).await?;
        let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
        Ok(view["mounted_at"].as_str().context("not mounted")?.to_owned())
    };

    json(ctx, &["volume", "create", "file/v", "--size", "1G"]).await?;
    let at = attach().await?;
    let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
    ensure!(view["findings"].to_string().contains("written in advance"), "a new volume is already prepared: {view}");
    // While the volume is being prepared, and again while the grown part is.
    let write = |name: &str| {
        format!("head -c 40000000 /dev/urandom > {at}/{name}; sync {at}/{name}; md5sum < {at}/{name} > /run/{name}.sum")
    };
    ctx.machine.sh(&write("first")).await?;
    json(ctx, &["volume", "resize", "file/v", "--size", "1280M"]).await?;
    ctx.machine.sh(&write("second")).await?;
    until_prepared(ctx, "file/v").await?;
    let served = commits(&at).await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "check", "file/v"]).await?;
    attach().await?;
    ctx.machine
        .sh(&format!("for i in first second; do md5sum < {at}/$i | diff - /run/$i.sum; rm /run/$i.sum; done"))
        .await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;

    use_loop_devices(ctx).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "128M"]).await?;
    let looped = commits(&attach().await?).await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;
    ctx.log(format!(
        "commits of the host's journal for 100 fsyncs: {} in {} s with a block server, {} in {} s on a loop device",
        served.0, served.1, looped.0, looped.1
    ));
    // Seconds are rounded down, and a first commit may have been due already.
    let due = (served.1 + 1) / COMMIT_SECONDS + 1;
    ensure!(served.0 <= due, "{} commits of the host's journal where {due} were due", served.0);
    ensure!(looped.0 >= 100, "only {} commits on a loop device: the counter does not work", looped.0);
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

async fn killed(ctx: &mut Ctx, kills: u32) -> Result<Outcome> {
    let ctx = &*ctx;
    let mut daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["file"]).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "128M"]).await?;
    json(ctx, &["tenant", "create", "db", "--volume", "file/v"]).await?;
    let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
    let at = view["mounted_at"].as_str().context("not mounted")?.to_owned();
    let mut pid = server_pid(&view)?;
    ctx.machine.sh("rm -f /run/stop /run/rounds").await?;
    let load = ctx.machine.spawn(&["bash", "-c", &VERIFY.replace("AT", &at)], &[]).await?;
    for n in 0..kills {
        // Every fourth time no daemon runs until the next one starts.
        let kill = format!("python3 -c 'import time, random; time.sleep(random.random() * 2)'; kill -9 {pid}");
        if n % 4 == 3 {
            daemon.kill().await?;
            ctx.machine.sh(&kill).await?;
            daemon = start_daemon(ctx, &[]).await?;
        } else {
            ctx.machine.sh(&kill).await?;
        }
        let old = pid;
        pid = ctx
            .machine
            .wait_until("another server", TAKE_OVER_LIMIT, async || {
                let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
                Ok(server_pid(&view).ok().filter(|pid| *pid != old))
            })
            .await?;
    }
    ctx.machine.sh("touch /run/stop").await?;
    let ended = load.wait(Duration::from_secs(300)).await?;
    let log = ctx.machine.read_text("/run/fio.log").await?;
    ensure!(ended.status == ExitStatus::Code(0), "fio: {log}");
    ctx.log(format!("{kills} kills, {} rounds of fio verified", ctx.machine.read_text("/run/rounds").await?.trim()));
    let servers = ctx.machine.sh("cat /run/bulkhead/blockd/*.log").await?;
    ctx.save("servers.log", &servers)?;
    ctx.save("dmesg.txt", &ctx.machine.sh("dmesg").await?)?;
    ensure!(!servers.contains("ERROR"), "a server logged an error: {servers}");
    kernel_is_silent(ctx).await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "check", "file/v"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;
    ctx.machine.sh("rm -f /run/stop /run/rounds /run/fio.log").await?;
    unmake_pools(ctx, &["file"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// The process that serves a volume.
pub(super) fn server_pid(view: &Value) -> Result<u64> {
    ensure!(view["accounting"]["way"] == "server", "no server in its cgroup: {view}");
    view["accounting"]["pid"].as_u64().context("no pid")
}

/// The devices of Bulkhead's block servers, without the machine's own disks, which are ublk devices too in virtual
/// time.
async fn served(ctx: &Ctx) -> Result<Vec<String>> {
    let listed = ctx.machine.sh("find /sys/class/block -name 'ublkb*' -printf '/dev/%f\\n'").await?;
    let mut devices: Vec<String> = listed.lines().map(str::to_owned).collect();
    for index in 0..PROFILE.disks.len() {
        let disk = ctx.machine.disk(index).await?;
        devices.retain(|device| *device != disk);
    }
    Ok(devices)
}
