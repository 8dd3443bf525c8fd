//! Bulkhead on a host whose process 1 is systemd: tenants as slice units.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{PROFILE, json, kernel_is_silent, make_pools, unmake_pools};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::init::Init;
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

/// The machine of cases with systemd. On the wall clock: its disks belong to the host and stay while the guest reboots, as real ones do.
pub(super) const SYSTEMD: Profile =
    Profile { name: "systemd", clock: Clock::Wall, init: Init::Systemd, cpus: 2, ..PROFILE };

pub(super) const CASES: &[Case] = &[Case {
    name: "systemd_slices",
    about: "a tenant is a slice unit with its share and limits; reloads, a stop, other properties and a lost controller of the unit are \
            mended by the next check while a container in it writes on; tenants of 0.1 are taken over with their processes",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(400),
    run: |ctx| Box::pin(slices(ctx)),
}];

/// The unit as it is shipped.
const UNIT: &str = include_str!("../../../../packaging/bulkhead.service");
const UNIT_PATH: &str = "/etc/systemd/system/bulkhead.service";

/// Longest that the daemon takes to see that something is not as recorded and to mend it.
const MENDED: Duration = Duration::from_secs(60);

/// The slice of tenant `my-db`, and its unit.
const SLICE: &str = "/sys/fs/cgroup/bulkhead.slice/bulkhead-my\\x2ddb.slice";
const SLICE_UNIT: &str = "bulkhead-my\\x2ddb.slice";

/// Appends to a file, syncs each, and says how many there are.
const WRITER: &str = "i=0; while :; do i=$((i + 1)); echo $i >> AT/log; sync AT/log; echo $i > /run/written; done";

/// Installs the program and its service, and starts it.
async fn install(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh("cp /lab/bin/bulkhead /usr/bin/bulkhead").await?;
    ctx.machine.write_file(UNIT_PATH, UNIT.as_bytes()).await?;
    ctx.machine.sh("systemctl daemon-reload; systemctl start bulkhead").await?;
    Ok(())
}

async fn remove(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh("systemctl stop bulkhead; rm /usr/bin/bulkhead").await?;
    ctx.machine.sh(&format!("rm {UNIT_PATH}; systemctl daemon-reload; rm -rf /var/lib/bulkhead")).await?;
    Ok(())
}

/// A property of the tenant's unit.
async fn property(ctx: &Ctx, name: &str) -> Result<String> {
    let output = ctx.machine.run(&["systemctl", "show", "--value", "-p", name, SLICE_UNIT]).await?;
    Ok(output.success("systemctl show")?.stdout.trim().to_owned())
}

/// Waits until the tenant's cgroups have what is recorded: its weight, and threads that serve it, which come first on the CPU.
async fn mended(ctx: &Ctx, what: &str) -> Result<()> {
    let script = format!(
        "cd '{SLICE}' && cat *-journal.slice/io.stat > /dev/null && cat io.weight *-server.slice/cpu.weight && \
         grep -q . *-server.slice/cgroup.procs && grep -q . *-journal.slice/cgroup.procs"
    );
    let mut last = None;
    let waited = ctx
        .machine
        .wait_until(what, MENDED, async || {
            let found = ctx.machine.run(&["bash", "-c", &script]).await?;
            let is_so = found.status.success() && found.stdout == "default 300\n10000\n";
            last = Some(found);
            Ok(is_so.then_some(()))
        })
        .await;
    waited.with_context(|| format!("{last:?}"))
}

/// Waits until the container has written more.
async fn writes_on(ctx: &Ctx, what: &str) -> Result<()> {
    let written = async || -> Result<u64> {
        Ok(ctx.machine.sh("cat /run/written || true").await?.trim().parse().unwrap_or_default())
    };
    let before = written().await?;
    ctx.machine.wait_until(what, MENDED, async || Ok((written().await? > before + 1).then_some(()))).await
}

async fn slices(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    install(ctx).await?;
    make_pools(ctx).await?;
    let disk = ctx.machine.disk(1).await?;
    for volume in ["file/v", "thick/w"] {
        json(ctx, &["volume", "create", volume, "--size", "64M"]).await?;
    }
    let volumes = ["--volume", "file/v", "--volume", "thick/w"];
    let limit = format!("{disk}:wbps=50M");
    json(ctx, &[&["tenant", "create", "my-db", "--share", "300", "--limit", &limit], &volumes[..]].concat()).await?;
    mended(ctx, "the tenant has what is recorded").await?;
    ensure!(property(ctx, "ActiveState").await? == "active");
    ensure!(property(ctx, "IOWeight").await? == "300");
    let limits = property(ctx, "IOWriteBandwidthMax").await?;
    ensure!(limits.ends_with(" 52428800"), "{limits}");

    // As a runtime with the systemd driver starts a container with `--cgroup-parent`.
    let at =
        json(ctx, &["volume", "inspect", "file/v"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    let writer = WRITER.replace("AT", &at);
    let start = ["systemd-run", "--unit=container", "--slice", SLICE_UNIT, "bash", "-c", &writer];
    ctx.machine.run(&start).await?.success("starting a container")?;
    writes_on(ctx, "the container writes").await?;
    let view = json(ctx, &["tenant", "inspect", "my-db"]).await?;
    ensure!(view["n_processes"].as_u64() > Some(0), "{view}");

    ctx.machine.sh("for i in $(seq 8); do systemctl daemon-reload; done").await?;
    mended(ctx, "nothing is lost by reloads").await?;
    ctx.machine.sh(&format!("systemctl set-property --runtime '{SLICE_UNIT}' IOWeight=50")).await?;
    mended(ctx, "the share is put back").await?;
    ensure!(property(ctx, "IOWeight").await? == "300");
    ctx.machine.sh(&format!("echo -io > '{SLICE}/cgroup.subtree_control'")).await?;
    mended(ctx, "the io controller is put back").await?;
    ctx.machine.sh("systemctl restart bulkhead").await?;
    mended(ctx, "nothing is lost by a restart of the daemon").await?;
    writes_on(ctx, "the container writes on").await?;

    // All units in a slice are stopped with it; what serves the volumes is none, and goes on.
    ctx.machine.sh(&format!("systemctl stop '{SLICE_UNIT}'")).await?;
    let ended = ctx.machine.run(&["systemctl", "is-active", "container"]).await?;
    ensure!(ended.status != ExitStatus::Code(0), "{ended:?}");
    ctx.machine.sh(&format!("echo more >> {at}/log; sync {at}/log")).await?;
    mended(ctx, "the slice is there again").await?;

    // What 0.1 made.
    ctx.machine
        .sh("cd /sys/fs/cgroup/bulkhead.slice; mkdir -p old.slice/payload/run-1 old.slice/journal old.slice/server; \
             (echo $BASHPID > old.slice/payload/run-1/cgroup.procs; exec sleep 1000) > /dev/null 2>&1 & echo $! > /run/old")
        .await?;
    json(ctx, &["tenant", "create", "old"]).await?;
    let taken = "cd /sys/fs/cgroup/bulkhead.slice; [ ! -e old.slice ]; \
                 grep -x $(cat /run/old) bulkhead-old.slice/bulkhead-old-payload.slice/run-1/cgroup.procs";
    ctx.machine
        .wait_until("the tenant of 0.1 is taken over", MENDED, async || Ok(ctx.machine.sh(taken).await.ok()))
        .await?;
    json(ctx, &["tenant", "rm", "old", "--force"]).await?;

    json(ctx, &["tenant", "rm", "my-db"]).await?;
    let left = "systemctl list-units --all --plain --no-legend 'bulkhead*.slice'; \
                ls /run/systemd/transient /run/systemd/system.control | grep 'bulkhead.*slice' || true; \
                ls -d /sys/fs/cgroup/bulkhead* 2>/dev/null || true";
    let left = ctx.machine.sh(left).await?;
    ensure!(left.is_empty(), "left behind: {left}");
    for volume in ["file/v", "thick/w"] {
        json(ctx, &["volume", "check", volume]).await?;
        json(ctx, &["volume", "rm", volume]).await?;
    }
    kernel_is_silent(ctx).await?;
    unmake_pools(ctx).await?;
    ctx.machine.sh("rm /run/written /run/old").await?;
    remove(ctx).await?;
    Ok(Outcome::Passed)
}
