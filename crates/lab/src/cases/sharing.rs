//! Clones of an image that read from each other's page cache: they read the contents of the image and nothing else,
//! whatever happens to their peers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::blockd::server_pid;
use super::host::{
    Daemon, PROFILE, json, kernel_is_silent, make_pools, refused, start_daemon, start_daemon_as, unmake_pools,
};
use super::layers::{POOL, attach, inspect, kill_server};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::process::Process;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "peers_share",
        about: "a clone's first read of a block that a peer has read comes from the peer's memory, the host's, or the \
                disk, as requested; never from another domain; the heat map shows it, and nothing is left behind",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(1200),
        run: |ctx| Box::pin(share(ctx)),
    },
    Case {
        name: "peers_hold",
        about: "clones read the image's contents from a peer while the peer's files change in every way, its server is \
                killed, stopped or hangs, it is unmounted, or the reader is killed; a damaged index is not used",
        kernels: &[Kernel::V6_12],
        profile: SLOW,
        limit: Duration::from_secs(700),
        run: |ctx| Box::pin(hold(ctx)),
    },
];

/// Run by name only: it takes ten minutes.
pub(super) const SOAK: &[Case] = &[Case {
    name: "peers_narrow",
    about: "the first part of peers_hold with one and two requests in flight per volume, and with memory.max hardly \
            above the locked memory of the block servers: no clone hangs, and none reads other data",
    kernels: &[Kernel::V6_12],
    profile: SLOW,
    limit: Duration::from_secs(1500),
    run: |ctx| Box::pin(narrow(ctx)),
}];

/// The pool is on a slow disk, so that reads can be caught in flight.
const SLOW: Profile = Profile {
    name: "peers",
    clock: Clock::Wall,
    cpus: 2,
    disks: &[
        DiskSpec::new(DiskModel::Hdd, 4096),
        DiskSpec::new(DiskModel::Fast, 1024),
        DiskSpec::new(DiskModel::Fast, 1024),
    ],
    ..PROFILE
};

/// Creates the contents of the image: eight large files, and small ones.
pub(super) const TREE: &str = "mkdir -p /run/tree/etc; for n in 0 1 2 3 4 5 6 7; do head -c 3000000 /dev/urandom > /run/tree/data$n; done; \
                    for n in $(seq 100); do head -c $((n * 137)) /dev/urandom > /run/tree/etc/$n; done; \
                    cd /run/tree; find . -type f | sort | xargs md5sum > /run/sums";

/// Total size of the large files, in bytes.
pub(super) const DATA: u64 = 8 * 3_000_000;

/// Starts the daemon, and creates the image and its clones.
async fn set_up(ctx: &Ctx, clones: &[(&str, &[&str])]) -> Result<Daemon> {
    let daemon = start_daemon(ctx, &[]).await?;
    make_clones(ctx, clones).await?;
    Ok(daemon)
}

async fn make_clones(ctx: &Ctx, clones: &[(&str, &[&str])]) -> Result<()> {
    make_pools(ctx, &["file", "thin"]).await?;
    ctx.machine.sh(TREE).await?;
    json(ctx, &["image", "import", "/run/tree", "file/image", "--size", "256M"]).await?;
    for (name, options) in clones {
        json(ctx, &[&["volume", "clone", "file/image", name], *options].concat()).await?;
        attach(ctx, name).await?;
    }
    Ok(())
}

async fn tear_down(ctx: &Ctx, daemon: Daemon, clones: &[(&str, &[&str])]) -> Result<()> {
    for (name, _) in clones {
        json(ctx, &["tenant", "rm", name]).await?;
        json(ctx, &["volume", "check", &format!("file/{name}")]).await?;
        json(ctx, &["volume", "rm", &format!("file/{name}")]).await?;
    }
    json(ctx, &["volume", "rm", "file/image"]).await?;
    let left = ctx
        .machine
        .sh(&format!("ls {POOL}; find /run/bulkhead/blockd ! -type d; pgrep -fa 'exe peers$' || true"))
        .await?;
    ensure!(left.trim() == "bulkhead-pool", "something is left: {left}");
    kernel_is_silent(ctx).await?;
    ctx.machine.sh("rm -rf /run/tree /run/sums /run/stop").await?;
    unmake_pools(ctx, &["file", "thin"]).await?;
    daemon.stop().await.map(drop)
}

/// Bytes that a clone has read, by kind of source.
#[derive(Debug, Default)]
pub(super) struct Heat {
    pub(super) disk: u64,
    pub(super) cache: u64,
    pub(super) peer: u64,
}

async fn heat(ctx: &Ctx, name: &str) -> Result<Heat> {
    heat_of(ctx, &format!("file/{name}")).await
}

/// The bytes that a clone has read from each kind of source, once its server has reported all.
pub(super) async fn heat_of(ctx: &Ctx, reader: &str) -> Result<Heat> {
    // Servers report once a second.
    let settled = async || {
        let mut heat = Heat::default();
        for row in json(ctx, &["heatmap"]).await?.as_array().into_iter().flatten() {
            if row["reader"] == reader {
                let bytes = row["bytes"].as_u64().context("no bytes")?;
                match row["source"]["from"].as_str() {
                    Some("disk") => heat.disk += bytes,
                    Some("cache") => heat.cache += bytes,
                    _ => heat.peer += bytes,
                }
            }
        }
        anyhow::Ok(heat)
    };
    let sum = |heat: &Heat| heat.disk + heat.cache + heat.peer;
    let mut before = settled().await?;
    ctx.machine
        .wait_until("the counts are stable", Duration::from_secs(30), async || {
            ctx.machine.sh("sleep 1.5").await?;
            let now = settled().await?;
            let same = sum(&now) == sum(&before) && sum(&now) > 0;
            before = now;
            Ok(same.then_some(()))
        })
        .await?;
    Ok(before)
}

/// Reads all files of a clone, whose contents must be those of the image.
async fn verify(ctx: &Ctx, name: &str) -> Result<()> {
    let at = mounted_at(ctx, name).await?;
    let checked = ctx.machine.sh(&format!("cd {at}; md5sum --quiet -c /run/sums")).await;
    checked.map(drop).with_context(|| format!("{name} differs from the image"))
}

async fn mounted_at(ctx: &Ctx, name: &str) -> Result<String> {
    Ok(inspect(ctx, name).await?["mounted_at"].as_str().context("not mounted")?.to_owned())
}

async fn share(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let clones: &[(&str, &[&str])] = &[
        ("first", &["--read-from", "peers"]),
        ("second", &["--read-from", "peers"]),
        ("third", &["--read-from", "both"]),
        ("alone", &["--read-from", "peers", "--domain", "other"]),
        ("off", &["--read-from", "disk"]),
        ("base", &["--read-from", "host-cache"]),
        ("again", &["--read-from", "host-cache"]),
    ];
    let daemon = set_up(ctx, clones).await?;
    ctx.machine.sh("sync; echo 3 > /proc/sys/vm/drop_caches").await?;
    let mut seen = Vec::new();
    for (name, _) in clones {
        verify(ctx, name).await?;
        let heat = heat(ctx, name).await?;
        ctx.log(format!("{name}: {heat:?}"));
        seen.push(heat);
    }
    ctx.save("servers.txt", &ctx.machine.sh("tail -n 30 /run/bulkhead/blockd/*.log").await?)?;
    let [first, second, third, alone, off, base, again] = seen.as_slice() else { unreachable!("one for each") };
    ensure!(first.peer == 0 && first.disk >= DATA, "the first should read from the disk: {first:?}");
    ensure!(second.peer >= DATA && second.disk < DATA / 4, "the second should read from the first: {second:?}");
    ensure!(third.peer >= DATA && third.disk + third.cache < DATA / 4, "so should the third: {third:?}");
    ensure!(alone.peer == 0 && alone.disk >= DATA, "a clone in another domain should read from the disk: {alone:?}");
    ensure!(
        off.peer + off.cache == 0 && off.disk >= DATA,
        "a clone that shares nothing should read from the disk: {off:?}"
    );
    ensure!(base.peer == 0 && base.disk + base.cache >= DATA, "{base:?}");
    ensure!(again.peer == 0 && again.cache >= DATA && again.disk < DATA / 4, "there should be one copy: {again:?}");
    let table =
        ctx.machine.sh(&format!("{} heatmap --svg /run/heat.svg; cat /run/heat.svg", ctx.program("bulkhead"))).await?;
    ctx.save("heatmap.txt", &table)?;
    ensure!(table.contains("file/first") && table.contains("</svg>"), "{table}");
    ctx.machine.sh("rm /run/heat.svg").await?;
    let with_domain = ["volume", "clone", "file/image", "no", "--read-from", "host-cache", "--domain", "other"];
    refused(ctx, 2, &["has no sharing domains", "--read-from peers"], &with_domain).await?;
    json(ctx, &["volume", "create", "thin/volume", "--size", "64M"]).await?;
    refused(ctx, 8, &["--read-from host-cache"], &["volume", "clone", "thin/volume", "no", "--read-from", "peers"])
        .await?;
    json(ctx, &["volume", "rm", "thin/volume"]).await?;
    // Peers are still used after a restart of the daemon and the replacement of a server.
    daemon.kill().await?;
    let daemon = start_daemon(ctx, &[]).await?;
    kill_server(ctx, "second").await?;
    let at = mounted_at(ctx, "second").await?;
    ctx.machine.sh(&format!("for f in {at}/data*; do dd if=$f iflag=nocache count=0 status=none; done")).await?;
    verify(ctx, "second").await?;
    let more = heat(ctx, "second").await?;
    ensure!(more.peer >= 2 * DATA, "the new server has not read from peers: {more:?} after {second:?}");
    tear_down(ctx, daemon, clones).await?;
    Ok(Outcome::Passed)
}

/// Changes a clone's files in every way, and makes them look unchanged; reads them, so that other clones are directed
/// to it.
const CHANGE: &str = r#"
echo $$ > /sys/fs/cgroup/bulkhead.slice/bulkhead-NAME.slice/bulkhead-NAME-payload.slice/cgroup.procs
cd AT; n=0; set -e
while [ ! -e /run/stop ]; do
    n=$((n + 1)); at=$((RANDOM % 700))
    dd if=/dev/urandom of=data0 bs=4096 count=3 seek=$at conv=notrunc status=none
    fio --name=mmap --ioengine=mmap --rw=randwrite --bs=4k --io_size=64k --size=2900k --filename=data1 --allow_file_create=0 --minimal > /dev/null
    truncate -s 100000 data2; head -c 3000000 /dev/urandom > data2
    dd if=/dev/urandom of=data3 bs=4096 count=5 seek=$at oflag=direct conv=notrunc status=none
    fallocate -p -o $((at * 4096)) -l 40960 data4
    cp data5 data5.new; dd if=/dev/urandom of=data5.new bs=4096 count=2 seek=$at conv=notrunc status=none; mv data5.new data5
    e4defrag data6 > /dev/null || true
    touch -d '2020-01-01' data*
    cat data* > /dev/null
    echo $n > /run/changes
done
"#;

/// Reads all files of a clone repeatedly, each time without its own page cache.
const COMPARE: &str = r#"
echo $$ > /sys/fs/cgroup/bulkhead.slice/bulkhead-NAME.slice/bulkhead-NAME-payload.slice/cgroup.procs
cd AT; n=0
while [ ! -e /run/stop ]; do
    for f in data*; do dd if=$f iflag=nocache count=0 status=none; done
    md5sum --quiet -c /run/sums || exit 1
    n=$((n + 1)); echo $n > /run/NAME.rounds
done
"#;

async fn hold(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let clones: &[(&str, &[&str])] = &[
        ("changed", &["--read-from", "peers"]),
        ("one", &["--read-from", "peers"]),
        ("two", &["--read-from", "both"]),
    ];
    let daemon = set_up(ctx, clones).await?;
    changed_files(ctx).await?;
    hanging_peer(ctx).await?;
    unmounted_and_killed(ctx).await?;
    damaged_index(ctx).await?;
    tear_down(ctx, daemon, clones).await?;
    Ok(Outcome::Passed)
}

/// Limits the memory of each tenant with its block server: less than 24 MB of files plus the server's locked memory.
const MEMORY: &str = "for s in /sys/fs/cgroup/bulkhead.slice/*.slice; do echo 28M > $s/memory.max; done";

async fn narrow(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let clones: &[(&str, &[&str])] = &[
        ("changed", &["--read-from", "peers"]),
        ("one", &["--read-from", "peers"]),
        ("two", &["--read-from", "both"]),
    ];
    for requests in ["1", "2"] {
        let program = ctx.program("bulkhead");
        let daemon = start_daemon_as(ctx, &[&program, "daemon", "--volume-requests", requests], &[]).await?;
        make_clones(ctx, clones).await?;
        ctx.machine.sh(MEMORY).await?;
        changed_files(ctx).await.with_context(|| format!("with {requests} requests in flight"))?;
        let events = ctx.machine.sh("grep -H . /sys/fs/cgroup/bulkhead.slice/*.slice/memory.events").await?;
        ctx.save(&format!("memory-{requests}.txt"), &events)?;
        ensure!(events.lines().any(|line| line.contains(":max ") && !line.ends_with(" 0")), "no pressure: {events}");
        tear_down(ctx, daemon, clones).await?;
    }
    Ok(Outcome::Passed)
}

/// Checks that no clone reads the changes of a peer.
async fn changed_files(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh("rm -f /run/stop /run/changes /run/*.rounds").await?;
    let changing = CHANGE.replace("AT", &mounted_at(ctx, "changed").await?).replace("NAME", "changed");
    let changing = ctx.machine.spawn(&["bash", "-c", &changing], &[]).await?;
    let mut comparing = Vec::new();
    for name in ["one", "two"] {
        comparing.push((name, compare(ctx, name).await?));
    }
    ctx.machine
        .wait_until("files were changed and compared", Duration::from_secs(300), async || {
            let text = ctx.machine.sh("cat /run/changes /run/one.rounds /run/two.rounds 2> /dev/null || true").await?;
            let counts: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
            let some = counts.len() == 3 && counts.iter().all(|n| *n >= 5);
            Ok(some.then_some(()))
        })
        .await?;
    // Servers are killed meanwhile.
    kill_server(ctx, "changed").await?;
    kill_server(ctx, "one").await?;
    ctx.machine.sh("touch /run/stop").await?;
    let ended = changing.wait(Duration::from_secs(120)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "the process that changes files: {}", ended.stderr);
    let mut from_peers = 0;
    for (name, process) in comparing {
        let ended = process.wait(Duration::from_secs(120)).await?;
        ensure!(ended.status == ExitStatus::Code(0), "{name} read other data than the image's: {}", ended.stdout);
        let rounds = ctx.machine.read_text(&format!("/run/{name}.rounds")).await?;
        let heat = heat(ctx, name).await?;
        ctx.log(format!("{name}: {} rounds compared, {heat:?}", rounds.trim()));
        from_peers += heat.peer;
    }
    // If the two run in lockstep, one of them reads from the disk in every round, and the other from it: which one is
    // random.
    ensure!(from_peers > 2 * DATA, "peers were hardly read from: {from_peers} bytes");
    let changes = ctx.machine.read_text("/run/changes").await?;
    ctx.log(format!("{} rounds of changes", changes.trim()));
    ctx.machine.sh("rm -f /run/stop /run/changes /run/*.rounds").await?;
    Ok(())
}

async fn compare(ctx: &Ctx, name: &str) -> Result<Process> {
    let script = COMPARE.replace("AT", &mounted_at(ctx, name).await?).replace("NAME", name);
    ctx.machine.spawn(&["bash", "-c", &script], &[]).await
}

/// A peer whose server hangs delays others only briefly.
async fn hanging_peer(ctx: &Ctx) -> Result<()> {
    let (one, pid) = (mounted_at(ctx, "one").await?, server_pid(&inspect(ctx, "one").await?)?);
    ctx.machine.sh("sync; echo 3 > /proc/sys/vm/drop_caches").await?;
    // It is stopped with reads in flight, and their pages stay locked.
    let reading = ctx.machine.spawn(&["bash", "-c", &format!("cat {one}/data* > /dev/null")], &[]).await?;
    ctx.machine.sh(&format!("sleep 0.3; kill -STOP {pid}")).await?;
    verify(ctx, "two").await.context("while a peer hangs")?;
    // The hanging clone itself resumes when its server does.
    ctx.machine.sh(&format!("kill -CONT {pid}")).await?;
    let ended = reading.wait(Duration::from_secs(60)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "the clone that hung: {}", ended.stderr);
    verify(ctx, "one").await.context("after it hung")
}

/// A volume can be unmounted while others read from it, and the reading process may be killed.
async fn unmounted_and_killed(ctx: &Ctx) -> Result<()> {
    let comparing = compare(ctx, "two").await?;
    for round in 0..3 {
        json(ctx, &["tenant", "rm", "one"]).await.with_context(|| format!("round {round}"))?;
        attach(ctx, "one").await?;
        verify(ctx, "one").await?;
        ctx.machine.sh("pkill -9 -f 'exe peers$'").await?;
        ctx.machine
            .wait_until("the reader is restarted", Duration::from_secs(60), async || {
                Ok(ctx.machine.sh("pgrep -f 'exe peers$'").await.ok())
            })
            .await?;
    }
    ctx.machine.sh("touch /run/stop").await?;
    let ended = comparing.wait(Duration::from_secs(120)).await?;
    ensure!(ended.status == ExitStatus::Code(0), "it read other data than the image's: {}", ended.stdout);
    ctx.machine.sh("rm -f /run/stop /run/two.rounds").await?;
    Ok(())
}

/// An index that is damaged, truncated or of another version is not used, which is logged; clones read the image's
/// contents.
async fn damaged_index(ctx: &Ctx) -> Result<()> {
    let index = ctx.machine.sh(&format!("ls {POOL}/*.index")).await?.trim().to_owned();
    ctx.machine.sh(&format!("cp --preserve=all {index} /run/index")).await?;
    let damages = [
        format!("printf '\\377' | dd of={index} bs=1 seek=200 conv=notrunc status=none"),
        format!("truncate -s 5000 {index}"),
        format!("printf '\\003' | dd of={index} bs=1 seek=8 conv=notrunc status=none"),
    ];
    for damage in damages {
        // The reader ends with the last volume, and drops its index.
        for name in ["one", "two", "changed"] {
            json(ctx, &["tenant", "rm", name]).await?;
        }
        ctx.machine.sh(&damage).await?;
        for name in ["one", "two", "changed"] {
            attach(ctx, name).await?;
        }
        verify(ctx, "one").await?;
        verify(ctx, "two").await?;
        let heat = heat(ctx, "two").await?;
        ensure!(heat.peer == 0, "a damaged index is used: {heat:?} after {damage}");
        let log = ctx.machine.sh("cat /run/bulkhead/blockd/peers.log").await?;
        ensure!(log.contains(&index), "the log does not mention it: {log}");
        ctx.machine.sh(&format!("cp --preserve=all /run/index {index}")).await?;
    }
    ctx.machine.sh("rm /run/index").await?;
    Ok(())
}
