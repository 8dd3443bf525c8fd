//! `bulkhead-runtime` as a runtime of a stock Docker, its containerd and a stock Podman: containers with volumes on LVM run in the slices of their tenants.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::engine::{Docker, LIMIT, WRITER, fill_box, unlink};
use super::podman;
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent, make_pools, unmake_pools};
use crate::cases::systemd::{install, keeps_writing, no_package, purge};
use crate::cases::tutorial;

/// The tenant's slice.
const SLICE: &str = "/bulkhead.slice/bulkhead-my\\x2ddb.slice/";

/// Where the volume `thick/my-db` publishes what its container has written.
const WRITTEN: &str = "/run/bulkhead/mnt/thick/my-db/written";

/// The page whose commands each engine runs.
const PAGE: &str = include_str!("../../../../../docs/runtime.md");

/// The container engine under test.
struct Engine {
    program: &'static str,
    /// Options of all its containers.
    options: &'static str,
    /// Where it puts containers: the beginning of their cgroup.
    elsewhere: &'static str,
    /// Lists its files of a container, `ID`: the log of the runtime.
    log: &'static str,
}

const DOCKER: Engine = Engine {
    program: "docker",
    options: "--network none --runtime bulkhead --volume-driver bulkhead",
    elsewhere: "/system.slice/docker-",
    log: "find /run -path '*/ID/log.json'",
};

const PODMAN: Engine = Engine {
    program: "podman",
    options: "--runtime bulkhead",
    elsewhere: "/machine.slice/libpod-",
    log: "find /run/containers /var/lib/containers -path '*ID*/oci-log'",
};

pub(super) async fn docker_runtime(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::install(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    let configuration = br#"{"runtimes": {"bulkhead": {"path": "/usr/bin/bulkhead-runtime"}}}"#;
    ctx.machine.sh("mkdir -p /etc/docker").await?;
    ctx.machine.write_file("/etc/docker/daemon.json", configuration).await?;
    docker.start(ctx, "").await?;
    docker.import_box(ctx).await?;
    make_pools(ctx, &["thick"]).await?;
    docker.commit_mariadb(ctx).await?;
    show(ctx, &DOCKER, "Docker").await?;
    if let Err(error) = live(ctx, &DOCKER).await {
        let state = "exec 2>&1; timeout 5 bulkhead job ls; timeout 5 docker ps -a; ps axo pid,ppid,stat,wchan:20,args | tail -n 40; \
                     journalctl -b -u docker -u containerd -u bulkhead -u bulkhead-docker --no-pager -o short-precise | tail -n 80";
        let state = ctx.machine.sh_within(&format!("({state}) || true"), LIMIT).await?;
        ctx.save("failed.log", &state)?;
        return Err(error);
    }
    show_containerd(ctx).await?;
    unmake_pools(ctx, &["thick"]).await?;
    docker.run(ctx, "rmi box mariadb").await?;
    docker.remove(ctx).await?;
    ctx.machine.sh("umount /var/lib/containerd; rm -r /etc/docker").await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

pub(super) async fn podman_runtime(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let busybox = match podman::link_packages(ctx).await? {
        Ok(busybox) => busybox,
        Err(skipped) => return Ok(skipped),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    podman::configure(ctx).await?;
    let engine = "[engine]\nvolume_plugin_timeout = 120\n\
                  [engine.volume_plugins]\nbulkhead = \"/run/docker/plugins/bulkhead.sock\"\n";
    ctx.machine.write_file("/etc/containers/containers.conf.d/volumes.conf", engine.as_bytes()).await?;
    fill_box(ctx, &busybox).await?;
    podman::import_mariadb(ctx).await?;
    ctx.machine.sh_within("tar -C /tmp/root -c . | podman import - box; rm -r /tmp/root", LIMIT).await?;
    make_pools(ctx, &["thick"]).await?;
    show(ctx, &PODMAN, "Podman").await?;
    live(ctx, &PODMAN).await?;
    unmake_pools(ctx, &["thick"]).await?;
    let clean =
        "podman rmi --all --force; podman system reset --force; rm -r /etc/containers; systemctl stop machine.slice";
    ctx.machine.sh_within(clean, LIMIT).await?;
    unlink(ctx).await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// Runs what docs/runtime.md shows of an engine.
async fn show(ctx: &Ctx, engine: &Engine, heading: &str) -> Result<()> {
    let n_commands = tutorial::follow(ctx, tutorial::section(PAGE, heading)?).await?;
    ctx.log(format!("{n_commands} commands of docs/runtime.md"));
    engine.run(ctx, "rm -f db").await?;
    engine.run(ctx, "volume rm db").await.map(drop)
}

/// Runs what docs/runtime.md shows of containerd, with Docker's.
async fn show_containerd(ctx: &Ctx) -> Result<()> {
    // The guest's root is an overlay, on which containerd cannot make another one.
    let import = "mount -t tmpfs none /var/lib/containerd; systemctl restart containerd; docker save mariadb | ctr images import -";
    ctx.machine.sh_within(import, LIMIT).await?;
    let n_commands = tutorial::follow(ctx, tutorial::section(PAGE, "containerd")?).await?;
    ctx.log(format!("{n_commands} commands of docs/runtime.md"));
    let remove = "ctr task kill -s KILL db; ctr task delete db; ctr container delete db; ctr images rm docker.io/library/mariadb:latest";
    ctx.machine.sh_within(remove, LIMIT).await?;
    for name in ["tenant rm db", "volume rm thick/db"] {
        json(ctx, &name.split(' ').collect::<Vec<_>>()).await?;
    }
    Ok(())
}

impl Engine {
    async fn run(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("{} {words}", self.program), LIMIT).await
    }

    /// The cgroup of the container `db`, which must be below `parent`.
    async fn is_in(&self, ctx: &Ctx, parent: &str, when: &str) -> Result<String> {
        let pid = self.run(ctx, "inspect -f '{{.State.Pid}}' db").await?;
        let cgroup = ctx.machine.read_text(&format!("/proc/{}/cgroup", pid.trim())).await?;
        let cgroup = cgroup.trim().trim_start_matches("0::").to_owned();
        ensure!(cgroup.starts_with(parent), "{when}: it is in {cgroup}");
        Ok(cgroup)
    }
}

/// The life of containers with the volume `thick/my-db` of a tenant of that name, and of one whose volume an operator has attached.
async fn live(ctx: &Ctx, engine: &Engine) -> Result<()> {
    let Engine { options, .. } = engine;
    engine.run(ctx, "volume create --driver bulkhead --opt size=64M --opt share=300 my-db").await?;
    let start = format!("run -d --name db {options} --restart always -v my-db:/data box /bin/sh -c '{WRITER}'");
    engine.run(ctx, &start).await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "the container writes").await?;
    let cgroup = engine.is_in(ctx, SLICE, "started").await?;
    save_bundle(ctx, engine).await?;

    // Its own I/O is its tenant's, by the kernel's account and by ours.
    let written = async |of: &str| -> Result<u64> {
        let sums =
            format!("tr ' ' '\\n' < '/sys/fs/cgroup{of}/io.stat' | sed -n 's/^wbytes=//p' | sort -n | tail -n 1");
        Ok(ctx.machine.sh(&sums).await?.trim().parse().unwrap_or(0))
    };
    let charged = |view: &Value| view["payload_io"]["written_bytes"].as_u64();
    let slice = SLICE.trim_end_matches('/');
    let before = (json(ctx, &["tenant", "inspect", "my-db"]).await?, written(&cgroup).await?, written(slice).await?);
    keeps_writing(ctx, WRITTEN, LIMIT, "the container keeps writing").await?;
    let after = (json(ctx, &["tenant", "inspect", "my-db"]).await?, written(&cgroup).await?, written(slice).await?);
    ensure!(charged(&after.0) > charged(&before.0), "the tenant does not pay: {} {}", before.0, after.0);
    ensure!(after.1 > before.1 && after.2 > before.2, "io.stat: {before:?} {after:?}");

    engine.run(ctx, "pause db").await?;
    let stopped = ctx.machine.sh(&format!("cat {WRITTEN}; sleep 2; cat {WRITTEN}")).await?;
    let (first, second) = stopped.trim().split_once('\n').context("nothing was written")?;
    ensure!(first == second, "it writes while it is paused: {stopped}");
    engine.run(ctx, "unpause db").await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "it resumes").await?;
    ensure!(engine.run(ctx, "exec db cat /data/written").await?.trim().parse::<u64>().is_ok());
    engine.run(ctx, "update --memory 64m --memory-swap 64m db").await?;
    let limits = format!("d='/sys/fs/cgroup{cgroup}'; cat \"$d\"/memory.max \"${{d%/container}}\"/memory.max");
    let limits = ctx.machine.sh(&limits).await?;
    ensure!(limits.lines().any(|limit| limit == "67108864"), "memory.max: {limits}");
    engine.run(ctx, "restart -t 1 db").await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "it writes after a restart").await?;
    engine.is_in(ctx, SLICE, "restarted").await?;
    ctx.machine.sh("systemctl restart bulkhead; systemctl daemon-reload").await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "it writes under another daemon").await?;
    let kill = format!("kill -9 $({} inspect -f '{{{{.State.Pid}}}}' db)", engine.program);
    ctx.machine.sh_within(&kill, LIMIT).await?;
    let restarted = async || Ok(engine.is_in(ctx, SLICE, "killed").await.ok());
    if let Err(error) = ctx.machine.wait_until("its restart policy starts it in the slice", LIMIT, restarted).await {
        let state = engine.run(ctx, "inspect -f '{{json .State}}' db").await?;
        let log = ctx.machine.sh("journalctl -b -u docker -u bulkhead-docker --no-pager -o cat | tail -n 20").await?;
        return Err(error.context(format!("{state}{log}")));
    }
    keeps_writing(ctx, WRITTEN, LIMIT, "it writes after it was killed").await?;
    engine.run(ctx, "rm -f db").await?;

    // A parent that somebody chose, and a container without volumes, are left alone.
    let chosen = format!(
        "run --rm {options} --cgroupns host --cgroup-parent mine.slice -v my-db:/data box cat /proc/self/cgroup"
    );
    ensure!(engine.run(ctx, &chosen).await?.starts_with("0::/mine.slice/"));
    let without = format!("run --rm {options} --cgroupns host box cat /proc/self/cgroup");
    ensure!(engine.run(ctx, &without).await?.starts_with(&format!("0::{}", engine.elsewhere)));
    ctx.machine.sh("systemctl stop mine.slice").await?;
    engine.run(ctx, "volume rm my-db").await?;
    ensure!(json(ctx, &["tenant", "ls"]).await? == serde_json::json!([]), "tenants are left");

    without_daemon(ctx, engine).await
}

/// With the daemon stopped, a container starts all the same, and the engine's log says why it is not in the slice; later, a finding of the volume
/// does.
async fn without_daemon(ctx: &Ctx, engine: &Engine) -> Result<()> {
    json(ctx, &["volume", "create", "thick/my-db", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "my-db", "--volume", "thick/my-db"]).await?;
    let options = engine.options.replace("--volume-driver bulkhead", "");
    let start = format!("run -d --name db {options} -v /run/bulkhead/mnt/thick/my-db:/data box /bin/sh -c '{WRITER}'");
    let written = "/run/bulkhead/mnt/thick/my-db/written";
    ctx.machine.sh("systemctl stop bulkhead").await?;
    engine.run(ctx, &start).await.context("with the daemon stopped")?;
    keeps_writing(ctx, written, LIMIT, "it writes without a daemon").await?;
    engine.is_in(ctx, engine.elsewhere, "without a daemon").await?;
    let id = engine.run(ctx, "inspect -f '{{.Id}}' db").await?;
    let log = ctx.machine.sh(&format!("cat $({})", engine.log.replace("ID", id.trim()))).await?;
    ctx.save(&format!("{}-runtime.log", engine.program), &log)?;
    ensure!(log.contains("not put into its tenant's slice: volume thick/my-db: daemon: "), "{log}");

    ctx.machine.sh_within("systemctl start bulkhead", LIMIT).await?;
    let outside = async || -> Result<Vec<Value>> {
        let view = json(ctx, &["volume", "inspect", "thick/my-db"]).await?;
        let findings = view["findings"].as_array().context("no findings")?;
        Ok(findings.iter().filter(|finding| finding["id"] == "outside_slice").cloned().collect())
    };
    let found = outside().await?;
    let evidence = found.first().and_then(|finding| finding["evidence"].as_str()).unwrap_or_default();
    ensure!(found.len() == 1 && evidence.contains(engine.elsewhere), "{found:?}");
    engine.run(ctx, "restart -t 1 db").await?;
    keeps_writing(ctx, written, LIMIT, "it writes with a daemon").await?;
    engine.is_in(ctx, SLICE, "restarted with a daemon").await?;
    let found = outside().await?;
    ensure!(found.is_empty(), "it is in its slice, or was never one: {found:?}");
    engine.run(ctx, "rm -f db").await?;
    json(ctx, &["tenant", "rm", "my-db"]).await?;
    json(ctx, &["volume", "check", "thick/my-db"]).await?;
    json(ctx, &["volume", "rm", "thick/my-db"]).await?;
    Ok(())
}

/// Saves the bundle's configuration, as the engine wrote it but for the path of the cgroup.
async fn save_bundle(ctx: &Ctx, engine: &Engine) -> Result<()> {
    let id = engine.run(ctx, "inspect -f '{{.Id}}' db").await?;
    let find =
        format!("cat $(find /run /var/lib/containers -path '*{}*/config.json' 2>/dev/null | head -n 1)", id.trim());
    let configuration = ctx.machine.sh(&find).await?;
    ensure!(configuration.contains("bulkhead-my\\\\x2ddb.slice:"), "{configuration}");
    ctx.save(&format!("{}-config.json", engine.program), &configuration).map(drop)
}
