//! Bulkhead on a host whose process 1 is systemd: tenants as slice units, the Debian package, reboots.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{PROFILE, json, kernel_is_silent, make_pools, refused_as, unmake_pools};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::init::Init;
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

/// The machine of cases with systemd. On the wall clock: its disks belong to the host and keep running while the guest
/// reboots, as real ones do.
pub(super) const SYSTEMD: Profile =
    Profile { name: "systemd", clock: Clock::Wall, init: Init::Systemd, cpus: 2, ..PROFILE };

pub(super) const CASES: &[Case] = &[SLICES, PACKAGE, REBOOT];

const SLICES: Case = Case {
    name: "systemd_slices",
    about: "a tenant is a slice unit with its share and limits; the next check repairs the unit after reloads, a stop, \
            changed properties and a lost controller, while its container keeps writing; tenants of 0.1 are adopted \
            with their processes",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(slices(ctx)),
};

const PACKAGE: Case = Case {
    name: "systemd_package",
    about: "the package cannot be removed while volumes are in use; another version takes them over while a container \
            keeps writing; a group may use the socket, and the trim timer works",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(package(ctx)),
};

const REBOOT: Case = Case {
    name: "systemd_reboot",
    about: "a reboot unmounts all volumes, including one whose container ignores SIGTERM, and loses no synced data, nor what a \
            process that has a raw volume open has written to it; afterwards, and after a power cut, units that require a tenant's volumes find them or are not started",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(reboots(ctx, 3, false)),
};

pub(super) const SOAK: &[Case] = &[Case {
    name: "systemd_reboot_20",
    about: "a reboot with 20 more volumes in use does not wait for processes that have ended, compared with a reboot \
            without volumes",
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(reboots(ctx, 20, true)),
    ..REBOOT
}];

/// Time limit of dpkg.
const INSTALL: Duration = Duration::from_secs(180);

/// Time limit for the daemon to detect a deviation from the recorded state and to repair it.
const REPAIR_LIMIT: Duration = Duration::from_secs(60);

/// The slice of tenant `my-db`, and its unit.
const SLICE: &str = "/sys/fs/cgroup/bulkhead.slice/bulkhead-my\\x2ddb.slice";
const SLICE_UNIT: &str = "bulkhead-my\\x2ddb.slice";

/// File in which the container publishes the number of lines that it has synced.
const WRITTEN: &str = "/run/written";

/// Appends lines to a file, syncs each, and publishes the count by rename. It pauses after each, because a busy guest
/// is slow to emulate.
const WRITER: &str = "i=0; while :; do i=$((i + 1)); echo $i >> AT/log; sync AT/log; echo $i > /run/new; mv /run/new /run/written; \
                      sleep .05; done";

/// Options for a container that ends only when it is killed, late enough after a stop for several checks by the daemon.
/// A failed unit is collected, or it would keep its slice.
const STUBBORN_UNIT: [&str; 3] = ["--property=KillSignal=SIGCONT", "--property=TimeoutStopSec=8", "--collect"];

/// Command of a run: records its cgroup, its unit's slice and whether that is delegated to it, in this order, and
/// leaves a process behind.
const SCOPED: &str = "own=$(sed -n 's/^0:://p' /proc/self/cgroup); (echo $own; systemctl daemon-reload; \
                      systemctl show --value -p Slice -p Delegate ${own##*/}) > /run/scoped; sleep 1000 > /dev/null 2>&1 &";

/// Installs the package, which starts the service; `None` when there is no package.
pub(super) async fn install(ctx: &Ctx) -> Result<Option<()>> {
    let Some(package) = &ctx.lab.config().package else { return Ok(None) };
    let package = ctx.machine.show(package)?;
    ctx.machine.sh_within(&format!("dpkg --install {package} && systemctl is-active bulkhead"), INSTALL).await?;
    Ok(Some(()))
}

/// Purges the package, and checks that it leaves no files.
pub(super) async fn purge(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh_within("dpkg --purge bulkhead", INSTALL).await?;
    let left = "find /etc /usr /var/lib /run/bulkhead -name '*bulkhead*' -not -path '*/dpkg/*' -not -path '/etc/lvm/*' -not -name 'bulkhead-lab*' || true";
    let left = ctx.machine.sh(left).await?;
    ensure!(left.is_empty(), "the package leaves behind: {left}");
    Ok(())
}

/// The outcome of a case without a package.
pub(super) fn no_package() -> Outcome {
    Outcome::Skipped("no Debian package was built".to_owned())
}

/// A property of the tenant's unit.
async fn property(ctx: &Ctx, name: &str) -> Result<String> {
    let output = ctx.machine.run(&["systemctl", "show", "--value", "-p", name, SLICE_UNIT]).await?;
    Ok(output.success("systemctl show")?.stdout.trim().to_owned())
}

/// Waits until the tenant's cgroups match the record: its weight, and the threads that serve it, with the highest CPU
/// weight.
async fn wait_repaired(ctx: &Ctx, what: &str) -> Result<()> {
    let script = format!(
        "cd '{SLICE}' && cat *-journal.slice/io.stat > /dev/null && cat io.weight *-server.slice/cpu.weight && \
         grep -q . *-server.slice/cgroup.procs && grep -q . *-journal.slice/cgroup.procs"
    );
    let mut last = None;
    let waited = ctx
        .machine
        .wait_until(what, REPAIR_LIMIT, async || {
            let found = ctx.machine.run(&["bash", "-c", &script]).await?;
            let matches = found.status.success() && found.stdout == "default 300\n10000\n";
            last = Some(found);
            Ok(matches.then_some(()))
        })
        .await;
    waited.with_context(|| format!("{last:?}"))
}

/// Waits until a container has written more, according to the count in a file.
pub(super) async fn keeps_writing(ctx: &Ctx, file: &str, limit: Duration, what: &str) -> Result<()> {
    let written =
        async || -> Result<u64> { Ok(ctx.machine.sh(&format!("cat {file} || echo 0")).await?.trim().parse()?) };
    let before = written().await?;
    ctx.machine.wait_until(what, limit, async || Ok((written().await? > before + 1).then_some(()))).await
}

/// Checks that udev does not probe a volume's device, and, as a control, that it does without the server's mark.
async fn is_unprobed(ctx: &Ctx, volume: &str) -> Result<()> {
    let view = json(ctx, &["volume", "inspect", volume]).await?;
    let device = view["device"].as_str().context("no device")?;
    let known = format!("udevadm settle; udevadm info --query=property {device}");
    let unprobed = ctx.machine.sh(&known).await?;
    ensure!(unprobed.contains("DEVTYPE=") && !unprobed.contains("ID_FS_"), "udev has probed {device}: {unprobed}");
    ctx.machine.sh(&format!("rm /run/bulkhead/blockd/unprobed/ublkb*; udevadm trigger --settle {device}")).await?;
    let probed = ctx.machine.sh(&known).await?;
    ensure!(probed.contains("ID_FS_TYPE=ext4"), "udev does not probe without the mark either: {probed}");
    Ok(())
}

/// Installs the package and creates the tenant `my-db` with a volume on a file pool and one on a thick pool; returns
/// the mount point of the first. `None` when there is no package.
async fn make_tenant(ctx: &Ctx) -> Result<Option<String>> {
    if install(ctx).await?.is_none() {
        return Ok(None);
    }
    make_pools(ctx, &["file", "thick"]).await?;
    let disk = ctx.machine.disk(1).await?;
    for volume in ["file/v", "thick/w"] {
        json(ctx, &["volume", "create", volume, "--size", "64M"]).await?;
    }
    let volumes = ["--volume", "file/v", "--volume", "thick/w"];
    let limit = format!("{disk}:wbps=50M");
    json(ctx, &[&["tenant", "create", "my-db", "--share", "300", "--limit", &limit], &volumes[..]].concat()).await?;
    wait_repaired(ctx, "the tenant matches the record").await?;
    let view = json(ctx, &["volume", "inspect", "file/v"]).await?;
    Ok(Some(view["mounted_at"].as_str().context("not mounted")?.to_owned()))
}

/// Starts a unit that writes below `at`, like a container started with `--cgroup-parent` by a runtime with the systemd
/// driver.
async fn start_container(ctx: &Ctx, at: &str) -> Result<()> {
    let writer = WRITER.replace("AT", at);
    let start =
        [&["systemd-run", "--unit=container", "--slice", SLICE_UNIT], &STUBBORN_UNIT[..], &["bash", "-c", &writer]];
    ctx.machine.run(&start.concat()).await?.success("starting a container")?;
    keeps_writing(ctx, WRITTEN, REPAIR_LIMIT, "the container writes").await
}

/// Removes the tenant, its volumes and the package, and checks that nothing is left.
async fn remove_tenant(ctx: &Ctx) -> Result<()> {
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
    unmake_pools(ctx, &["file", "thick"]).await?;
    ctx.machine.sh("rm -f /run/new; rm /run/written").await?;
    purge(ctx).await
}

async fn slices(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let Some(at) = make_tenant(ctx).await? else { return Ok(no_package()) };
    ensure!(property(ctx, "ActiveState").await? == "active");
    ensure!(property(ctx, "IOWeight").await? == "300");
    let limits = property(ctx, "IOWriteBandwidthMax").await?;
    ensure!(limits.ends_with(" 52428800"), "{limits}");

    is_unprobed(ctx, "file/v").await?;

    start_container(ctx, &at).await?;
    let view = json(ctx, &["tenant", "inspect", "my-db"]).await?;
    ensure!(view["n_processes"].as_u64() > Some(0), "{view}");

    // A run is a scope below the tenant's slice. Processes that its command leaves behind end with it.
    let payload = SLICE_UNIT.replace(".slice", "-payload.slice");
    let run = ["bulkhead", "run", "--tenant", "my-db", "--volume", "file/v:/mnt", "--", "bash", "-c", SCOPED];
    ctx.machine.run(&run).await?.success("a run that inspects its unit")?;
    let seen = ctx.machine.read_text("/run/scoped").await?;
    let wanted = format!("{SLICE}/{payload}/bulkhead-run-").replace("/sys/fs/cgroup", "");
    ensure!(seen.starts_with(&wanted) && seen.ends_with(&format!("{payload}\nyes\n")), "{seen}");
    let left = "systemctl list-units --all --plain --no-legend 'bulkhead-run-*'";
    let left = ctx.machine.sh(left).await?;
    ensure!(left.is_empty(), "the run leaves behind: {left}");

    ctx.machine.sh("systemctl daemon-reload; systemctl daemon-reload").await?;
    wait_repaired(ctx, "reloads lose nothing").await?;
    ctx.machine.sh(&format!("systemctl set-property --runtime '{SLICE_UNIT}' IOWeight=50")).await?;
    wait_repaired(ctx, "the share is restored").await?;
    ensure!(property(ctx, "IOWeight").await? == "300");
    ctx.machine.sh(&format!("echo -io > '{SLICE}/cgroup.subtree_control'")).await?;
    wait_repaired(ctx, "the io controller is restored").await?;
    ctx.machine.sh("systemctl restart bulkhead").await?;
    wait_repaired(ctx, "a restart of the daemon loses nothing").await?;
    keeps_writing(ctx, WRITTEN, REPAIR_LIMIT, "the container keeps writing").await?;

    // Like the OOM killer.
    ctx.machine.sh("systemctl kill --signal=KILL bulkhead").await?;
    let again = "systemctl is-active bulkhead && [ $(systemctl show --value -p NRestarts bulkhead) = 1 ]";
    ctx.machine
        .wait_until("the daemon is started again", REPAIR_LIMIT, async || Ok(ctx.machine.sh(again).await.ok()))
        .await?;
    keeps_writing(ctx, WRITTEN, REPAIR_LIMIT, "the container keeps writing under the new daemon").await?;

    // All units in a slice are stopped with it; the block servers are no units, and keep running. Until the container
    // has ended, checks must not start a slice below: that would start this one as well and make systemd cancel the
    // stop.
    ctx.machine.sh(&format!("systemctl stop '{SLICE_UNIT}'")).await?;
    let ended = ctx.machine.run(&["systemctl", "is-active", "container"]).await?;
    ensure!(ended.status != ExitStatus::Code(0), "{ended:?}");
    ctx.machine.sh(&format!("echo more >> {at}/log; sync {at}/log")).await?;
    wait_repaired(ctx, "the slice is back").await?;

    // The cgroups of 0.1.
    ctx.machine
        .sh("cd /sys/fs/cgroup/bulkhead.slice; mkdir -p old.slice/payload/run-1 old.slice/journal old.slice/server; \
             (echo $BASHPID > old.slice/payload/run-1/cgroup.procs; exec sleep 1000) > /dev/null 2>&1 & echo $! > /run/old")
        .await?;
    json(ctx, &["tenant", "create", "old"]).await?;
    let taken = "cd /sys/fs/cgroup/bulkhead.slice; [ ! -e old.slice ]; \
                 grep -x $(cat /run/old) bulkhead-old.slice/bulkhead-old-payload.slice/run-1/cgroup.procs";
    ctx.machine
        .wait_until("the tenant of 0.1 is adopted", REPAIR_LIMIT, async || Ok(ctx.machine.sh(taken).await.ok()))
        .await?;
    json(ctx, &["tenant", "rm", "old", "--force"]).await?;

    ctx.machine.sh("rm /run/old /run/scoped").await?;
    remove_tenant(ctx).await?;
    Ok(Outcome::Passed)
}

async fn package(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let Some(at) = make_tenant(ctx).await? else { return Ok(no_package()) };
    start_container(ctx, &at).await?;
    refused_as(ctx, 1, &["/run/bulkhead/mnt/file/v", "tenant rm"], &["dpkg", "--remove", "bulkhead"]).await?;
    ctx.machine.sh("echo 'BULKHEAD_OPTIONS=--socket-group bulkhead' > /etc/default/bulkhead").await?;
    install(ctx).await?;
    wait_repaired(ctx, "an upgrade loses nothing").await?;
    keeps_writing(ctx, WRITTEN, REPAIR_LIMIT, "the container keeps writing under another version").await?;
    let member = ["setpriv", "--reuid=nobody", "--regid=bulkhead", "--clear-groups", "bulkhead", "tenant", "ls"];
    ctx.machine.run(&member).await?.success("a member of the socket's group")?;
    refused_as(ctx, 9, &["socket"], &["setpriv", "--reuid=nobody", "--clear-groups", "bulkhead", "tenant", "ls"])
        .await?;

    // The timer comes with the package; its service asks the daemon, and finds nothing to trim.
    let trims = "systemctl is-enabled bulkhead-trim.timer && systemctl is-active bulkhead-trim.timer && systemctl start bulkhead-trim && \
                 journalctl -u bulkhead-trim -o cat --no-pager | grep 'volumes trimmed: 0; .*: 2'";
    ctx.machine.sh_within(trims, INSTALL).await.context("trimming all volumes")?;

    ctx.machine.sh("systemctl kill --signal=KILL container").await?;
    ctx.machine
        .wait_until("the container ends", REPAIR_LIMIT, async || {
            Ok((!ctx.machine.run(&["systemctl", "is-active", "container"]).await?.status.success()).then_some(()))
        })
        .await?;
    remove_tenant(ctx).await?;
    Ok(Outcome::Passed)
}

/// Time limit of a reboot on the host's clock, up to the end of the machine.
const REBOOT_LIMIT: Duration = Duration::from_secs(200);

/// A container's main process that ignores SIGTERM. It records the last synced number in a file that survives the
/// reboot.
const STUBBORN: &str = "
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
log = os.open('/data/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = 0
while True:
    n += 1
    os.write(log, b'%08d\\n' % n)
    os.fsync(log)
    acked = os.open('/var/acked', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(acked, b'%d' % n)
    os.fsync(acked)
    os.close(acked)
";

/// A unit that requires the volumes of a tenant.
const APP: &str = "[Unit]
Requires=bulkhead-tenant@TENANT.service
After=bulkhead-tenant@TENANT.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'cat /run/bulkhead/mnt/*/TENANT/mark'
[Install]
WantedBy=multi-user.target
";

/// Reboots; returns the duration of the shutdown on the guest's clock, in seconds.
async fn reboot(ctx: &mut Ctx) -> Result<f64> {
    let uptime = ctx.machine.read_text("/proc/uptime").await?;
    let begin: f64 = uptime.split(' ').next().context("no uptime")?.parse()?;
    let log = ctx.machine.console_log();
    ctx.reboot(REBOOT_LIMIT).await?;
    let log = std::fs::read(&log).with_context(|| format!("cannot read {}", log.display()))?;
    let log = String::from_utf8_lossy(&log).into_owned();
    let end = log.lines().rev().find(|line| line.contains("reboot: Restarting system"));
    let end = end
        .and_then(|line| line.trim_start_matches('[').split(']').next())
        .context("no time in the kernel's message")?;
    let end: f64 = end.trim().parse()?;
    ctx.machine.sh("systemctl is-system-running --wait || true").await?;
    Ok(end - begin)
}

/// Reboots with `attached` volumes in addition to those that are checked; on request, compares with a reboot without
/// volumes.
async fn reboots(ctx: &mut Ctx, attached: usize, is_compared: bool) -> Result<Outcome> {
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    // File systems that are mounted late, such as network file systems.
    for (index, name) in [(0, "file"), (1, "gone")] {
        let disk = ctx.machine.disk(index).await?;
        ctx.machine
            .sh(&format!(
                "mkfs.ext4 -q -L {name} {disk}; mkdir -p /srv/{name}; echo 'LABEL={name} /srv/{name} ext4 _netdev 0 0' >> /etc/fstab; \
                 systemctl daemon-reload; mount /srv/{name}"
            ))
            .await?;
        json(ctx, &["pool", "create", name, "--dir", &format!("/srv/{name}/volumes")]).await?;
    }
    let without = if is_compared { Some(reboot(ctx).await?) } else { None };

    let create = "bulkhead volume create file/v{} --size 16M --provision on-demand";
    ctx.machine.sh_within(&format!("seq {attached} | xargs -P 4 -I {{}} {create}"), INSTALL).await?;
    let volumes: Vec<String> = (1..=attached).flat_map(|n| ["--volume".to_owned(), format!("file/v{n}")]).collect();
    let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
    json(ctx, &[&["tenant", "create", "many"], &volumes[..]].concat()).await?;
    for tenant in ["file/good", "gone/bad"] {
        json(ctx, &["volume", "create", tenant, "--size", "64M"]).await?;
        let name = tenant.rsplit('/').next().unwrap_or_default();
        json(ctx, &["tenant", "create", name, "--volume", tenant]).await?;
        ctx.machine.sh(&format!("echo {name} > /run/bulkhead/mnt/{tenant}/mark; sync")).await?;
        ctx.machine
            .write_file(&format!("/etc/systemd/system/app-{name}.service"), APP.replace("TENANT", name).as_bytes())
            .await?;
        ctx.machine.sh(&format!("systemctl daemon-reload; systemctl enable --now app-{name}")).await?;
    }
    json(ctx, &["volume", "create", "file/raw", "--size", "16M", "--fs", "none"]).await?;
    json(ctx, &["tenant", "create", "raw", "--volume", "file/raw"]).await?;
    json(ctx, &["volume", "create", "file/stubborn", "--size", "64M"]).await?;
    let bulkhead = ctx.program("bulkhead");
    json(ctx, &["tenant", "create", "stubborn", "--volume", "file/stubborn"]).await?;
    let start = format!(
        "mkdir -p /data; rm -f /var/acked; systemd-run --unit=stubborn --slice=bulkhead-stubborn.slice -p TimeoutStopSec=5 \
         -p BindPaths=/run/bulkhead/mnt/file/stubborn:/data python3 -c \"{STUBBORN}\"; mkdir -p /x; setsid {bulkhead} run --tenant \
         many --volume file/v1:/x -- sh -c 'trap : TERM; echo more > /x/more; sync /x/more; while :; do sleep 1000; done' \
         > /dev/null 2>&1 &"
    );
    ctx.machine.sh(&start).await?;
    ctx.machine
        .wait_until("both containers have written", REPAIR_LIMIT, async || {
            let found =
                ctx.machine.run(&["test", "-s", "/var/acked", "-a", "-s", "/run/bulkhead/mnt/file/v1/more"]).await?;
            Ok(found.status.success().then_some(()))
        })
        .await?;
    // As a CSI driver publishes a volume: in the host's mount namespace, where systemd unmounts it only after the daemon has ended.
    let bind =
        "mkdir -p /srv/bound; mount --bind /run/bulkhead/mnt/file/good /srv/bound; echo bound > /srv/bound/bound; sync";
    ctx.machine.sh(bind).await?;
    ctx.machine.sh("sed -i /gone/d /etc/fstab; sync").await?;
    // What is written to a raw volume is in its device's page cache, and a process has it open until systemd ends it.
    let write = "head -c 4194304 /dev/urandom > /var/raw; sync /var/raw; systemd-run --unit=raw --slice=bulkhead-raw.slice \
                 sh -c 'exec 3<> /run/bulkhead/mnt/file/raw; cat /var/raw >&3; touch /run/raw; exec sleep 1000'";
    ctx.machine.sh(write).await?;
    ctx.machine
        .wait_until("the raw volume is written", REPAIR_LIMIT, async || {
            Ok(ctx.machine.run(&["test", "-e", "/run/raw"]).await?.status.success().then_some(()))
        })
        .await?;
    let with = reboot(ctx).await?;
    if let Some(without) = without {
        ctx.log(format!("shutdown took {without:.1} s without volumes, {with:.1} s with {} in use", attached + 3));
        // systemd would wait 90 s for a process that does not end.
        ensure!(with < 12.0 * without, "shutdown takes longer with volumes");
    }
    let journal = ctx.machine.sh("journalctl -b -1 -u bulkhead --no-pager -o cat").await?;
    ctx.save("shutdown.log", &journal)?;
    ensure!(journal.contains("\"left\":0"), "not all volumes were unmounted: {journal}");

    ctx.machine.sh("systemctl is-active bulkhead app-good bulkhead-tenant@good").await.context("after the reboot")?;
    let refused = ctx.machine.run(&["systemctl", "is-active", "app-bad", "bulkhead-tenant@bad"]).await?;
    ensure!(refused.stdout == "inactive\nfailed\n", "{refused:?}");
    let why = ctx.machine.sh("journalctl -b -u bulkhead-tenant@bad --no-pager -o cat").await?;
    ensure!(why.contains("/srv/gone/volumes"), "the reason is missing: {why}");
    ctx.machine.sh("mount -L gone /srv/gone; systemctl start app-bad; systemctl is-active app-bad").await?;
    let acked: usize = ctx.machine.read_text("/var/acked").await?.trim().parse()?;
    let lines =
        ctx.machine.sh("wc -l < /run/bulkhead/mnt/file/stubborn/log; cat /run/bulkhead/mnt/file/v1/more").await?;
    let logged: usize = lines.lines().next().unwrap_or_default().trim().parse()?;
    ensure!(logged >= acked, "{acked} lines were synced, but {logged} are present");
    ensure!(lines.ends_with("more\n"), "{lines}");
    ctx.machine.sh("grep -qx bound /run/bulkhead/mnt/file/good/bound; rmdir /srv/bound").await?;
    let is_kept = "cmp -n 4194304 /var/raw /run/bulkhead/mnt/file/raw";
    ctx.machine.sh(is_kept).await.context("the raw volume after the reboot")?;
    kernel_is_silent(ctx).await?;

    ctx.crash_and_reboot().await?;
    ctx.machine.sh("systemctl is-system-running --wait || true; systemctl is-active app-good").await?;
    ctx.machine
        .sh("mount -L gone /srv/gone; tail -n 1 /run/bulkhead/mnt/file/v1/more")
        .await
        .context("after a power cut")?;
    ctx.machine.sh(is_kept).await.context("the raw volume after a power cut")?;

    for name in ["good", "bad"] {
        ctx.machine
            .sh(&format!("systemctl disable --now app-{name}; rm /etc/systemd/system/app-{name}.service"))
            .await?;
    }
    for tenant in ["many", "good", "bad", "stubborn", "raw"] {
        json(ctx, &["tenant", "rm", tenant]).await?;
    }
    json(ctx, &["volume", "rm", "file/raw"]).await?;
    let each = "bulkhead volume check {} && bulkhead volume rm {}";
    let names = "bulkhead -o json volume ls | python3 -c 'import json, sys; [print(v[\"volume\"]) for v in json.load(sys.stdin)]'";
    ctx.machine.sh_within(&format!("{names} | xargs -P 4 -I {{}} sh -c '{each}'"), INSTALL).await?;
    for name in ["file", "gone"] {
        json(ctx, &["pool", "rm", name]).await?;
        ctx.machine.sh(&format!("umount /srv/{name}; rmdir /srv/{name}; sed -i /{name}/d /etc/fstab")).await?;
    }
    ctx.machine.sh("systemctl daemon-reload; systemctl reset-failed; rm -r /data /x /var/acked /var/raw").await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}
