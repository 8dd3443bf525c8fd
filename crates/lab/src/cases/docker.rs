//! A real Docker beside Bulkhead: containers that are started in a tenant's slice.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{json, kernel_is_silent, make_file_pool, refused, unmake_file_pool};
use super::systemd::{SYSTEMD, install, no_package, purge, writes_on};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[Case {
    name: "docker_in_slice",
    about: "a stock Docker starts a container in a tenant's slice: the tenant pays for its volume, its journal included; docker pause, exec, \
            restart, update and rm work, and the tenant is not removed before its container",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(500),
    run: |ctx| Box::pin(docker_in_slice(ctx)),
}];

/// What is of Docker, each with the folder of its programs.
const PACKAGES: [(&str, &str); 4] =
    [("docker.io", "usr/sbin"), ("docker-cli", "usr/bin"), ("containerd", "usr/bin"), ("runc", "usr/sbin")];

/// Docker as it is, without a network (the guest has none) and with a store that works on an overlay.
const DOCKERD: &str = "--bridge=none --iptables=false --ip6tables=false --storage-driver=vfs";

/// Longest that an emulated Docker may take for one thing.
const LIMIT: Duration = Duration::from_secs(120);

/// Appends to a file in the volume, syncs each, and says how many there are.
const WRITER: &str =
    "i=0; while :; do i=$((i + 1)); echo $i >> /data/log; fsync /data/log; echo $i > /data/written; done";

struct Docker {
    path: String,
}

impl Docker {
    /// Runs the command line of Docker.
    async fn run(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("PATH={}:$PATH; docker {words}", self.path), LIMIT).await
    }
}

async fn docker_in_slice(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let mut folders = Vec::new();
    for (name, folder) in PACKAGES {
        match ctx.lab.package(name).await {
            Ok(package) => folders.push(package.path(folder)),
            Err(error) => return Ok(Outcome::Skipped(format!("Debian's {name} cannot be had: {error:#}"))),
        }
    }
    let busybox = match ctx.lab.package("busybox-static").await {
        Ok(package) => package.path("usr/bin/busybox"),
        Err(error) => return Ok(Outcome::Skipped(format!("Debian's busybox-static cannot be had: {error:#}"))),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let docker = Docker { path: folders.join(":") };
    ctx.machine
        .sh(&format!(
            "systemd-run --unit=docker -p Delegate=yes -p KillMode=process -p Environment=PATH={}:/usr/sbin:/usr/bin \
             {}/dockerd {DOCKERD}",
            docker.path, folders[0]
        ))
        .await?;
    make_file_pool(ctx).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "web-db", "--share", "300", "--volume", "file/v"]).await?;
    let at =
        json(ctx, &["volume", "inspect", "file/v"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    let written = format!("{at}/written");
    ctx.machine
        .wait_until("Docker answers", LIMIT, async || Ok(docker.run(ctx, "info -f '{{.CgroupDriver}}'").await.ok()))
        .await
        .and_then(|driver| {
            ensure!(driver.trim() == "systemd", "the cgroup driver is {driver}");
            Ok(())
        })?;
    ctx.machine
        .sh(&format!("mkdir -p /tmp/root/bin; cp {busybox} /tmp/root/bin; for n in sh cat sleep fsync; do ln -s busybox /tmp/root/bin/$n; done"))
        .await?;
    ctx.machine
        .sh_within(&format!("PATH={}:$PATH; tar -C /tmp/root -c . | docker import - box", docker.path), LIMIT)
        .await?;

    let start = format!(
        "run -d --name db --network none --cgroup-parent 'bulkhead-web\\x2ddb.slice' -v {at}:/data box /bin/sh -c '{WRITER}'"
    );
    docker.run(ctx, &start).await?;
    writes_on(ctx, &written, LIMIT, "the container writes").await?;
    let cgroup = docker.run(ctx, "inspect -f '{{.State.Pid}}' db").await?;
    let cgroup = ctx.machine.read_text(&format!("/proc/{}/cgroup", cgroup.trim())).await?;
    ensure!(cgroup.starts_with("0::/bulkhead.slice/bulkhead-web\\x2ddb.slice/docker-"), "it is in {cgroup}");
    // The container's writes are all its server's, so that they are charged wherever the container is.
    let before = json(ctx, &["tenant", "inspect", "web-db"]).await?;
    writes_on(ctx, &written, LIMIT, "the container writes on").await?;
    let after = json(ctx, &["tenant", "inspect", "web-db"]).await?;
    let charged = |view: &serde_json::Value| view["server_io"]["written_bytes"].as_u64();
    ensure!(after["n_processes"].as_u64() > Some(0) && charged(&after) > charged(&before), "{before} {after}");
    refused(ctx, 5, &["processes run in it"], &["tenant", "rm", "web-db"]).await?;

    docker.run(ctx, "pause db").await?;
    let stopped = ctx.machine.sh(&format!("cat {at}/written; sleep 2; cat {at}/written")).await?;
    let (first, second) = stopped.trim().split_once('\n').context("nothing was written")?;
    ensure!(first == second, "it writes while it is paused: {stopped}");
    docker.run(ctx, "unpause db").await?;
    writes_on(ctx, &written, LIMIT, "it goes on").await?;
    ensure!(docker.run(ctx, "exec db cat /data/written").await?.trim().parse::<u64>().is_ok());
    docker.run(ctx, "update --memory 64m --memory-swap 64m db").await?;
    ctx.machine.sh("systemctl restart bulkhead; systemctl daemon-reload").await?;
    writes_on(ctx, &written, LIMIT, "it writes beside another daemon").await?;
    docker.run(ctx, "restart -t 1 db").await?;
    writes_on(ctx, &written, LIMIT, "it writes after a restart").await?;
    let weight = ctx.machine.sh("cat '/sys/fs/cgroup/bulkhead.slice/bulkhead-web\\x2ddb.slice/io.weight'").await?;
    ensure!(weight.starts_with("default 300\n"), "{weight}");

    docker.run(ctx, "rm -f db").await?;
    docker.run(ctx, "rmi box").await?;
    json(ctx, &["tenant", "rm", "web-db"]).await?;
    json(ctx, &["volume", "check", "file/v"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;
    unmake_file_pool(ctx).await?;
    ctx.machine.sh("systemctl stop docker; systemctl reset-failed; rm -rf /tmp/root").await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}
