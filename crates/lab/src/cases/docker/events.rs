//! What happens to containers with volumes of the driver `bulkhead` in a stock Docker: docs/docker.md, Compose, and events of the engine
//! and of the host.

use anyhow::{Context as _, Result, ensure};
use serde_json::json as value;

use super::engine::{Docker, LIMIT, WRITER, link};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent};
use crate::cases::systemd::{install, keeps_writing, purge};
use crate::cases::tutorial;

/// The published count of the synced lines in the volume `db`, on the host.
const WRITTEN: &str = "/run/bulkhead/mnt/data/db/written";

/// A container's main process that needs more memory than it may have, after it has counted its start.
const HUNGRY: &str =
    "echo started >> /data/starts; sync /data/starts; exec dd if=/dev/zero of=/dev/null bs=200M count=1";

pub(super) async fn docker_events(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::install(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    if let Err(skipped) = link(ctx, &["docker-compose"]).await? {
        return Ok(skipped);
    }
    docker.start(ctx, "").await?;
    docker.import_box(ctx).await?;
    docker.commit_mariadb(ctx).await?;
    let disk = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; mkdir -p /srv/bulkhead; mount {disk} /srv/bulkhead")).await?;
    let n_commands = tutorial::follow(ctx, include_str!("../../../../../docs/docker.md")).await?;
    ctx.log(format!("{n_commands} commands of docs/docker.md"));
    nothing_is_left(ctx, "after the tutorial").await?;

    docker.run(ctx, "volume create -d bulkhead --opt size=64M db").await?;
    let start = format!("run -d --name db --restart always --network none -v db:/data box /bin/sh -c '{WRITER}'");
    docker.run(ctx, &start).await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "the container writes").await?;
    pause_and_commit(ctx, &docker).await?;
    out_of_memory(ctx, &docker).await?;

    // Docker is restarted, and the container is not.
    let pid = docker.run(ctx, "inspect -f '{{.State.Pid}}' db").await?;
    ctx.machine.sh("mkdir -p /etc/docker; echo '{\"live-restore\": true}' > /etc/docker/daemon.json").await?;
    ctx.machine.sh("systemctl kill --signal=HUP --kill-whom=main docker").await?;
    let enabled =
        async || Ok((docker.run(ctx, "info -f '{{.LiveRestoreEnabled}}'").await?.trim() == "true").then_some(()));
    ctx.machine.wait_until("live-restore is enabled", LIMIT, enabled).await?;
    ctx.machine.sh_within("systemctl restart docker", LIMIT).await?;
    ensure!(docker.run(ctx, "inspect -f '{{.State.Pid}}' db").await? == pid, "the container was restarted");
    keeps_writing(ctx, WRITTEN, LIMIT, "it writes without Docker").await?;

    // The package is installed again, which restarts daemon and plugin.
    install(ctx).await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "it writes after an upgrade").await?;
    docker.run(ctx, "run --rm --network none -v db:/data box cat /data/written").await?;
    docker.run(ctx, "stop -t 1 db").await?;
    let left = ctx.machine.sh("ls /run/bulkhead/leases; cat /run/bulkhead/leases/* 2> /dev/null || true").await?;
    ctx.log(format!("leases after a restart of Docker with live-restore, and a stop: {left:?}"));
    docker.run(ctx, "rm -f db").await?;
    docker.run(ctx, "volume rm db").await?;
    nothing_is_left(ctx, "after the container").await?;

    json(ctx, &["pool", "rm", "data"]).await?;
    docker.run(ctx, "rmi box mariadb saved").await?;
    docker.remove(ctx).await?;
    ctx.machine.sh("umount /srv/bulkhead; rm -r /srv/bulkhead /srv/app /etc/docker").await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// A paused container's volume, whose journal is charged to it, can be synced; a committed image does not contain the volume.
async fn pause_and_commit(ctx: &Ctx, docker: &Docker) -> Result<()> {
    let view = json(ctx, &["volume", "inspect", "data/db"]).await?;
    ensure!(view["accounting"]["way"] == "server", "{view}");
    docker.run(ctx, "pause db").await?;
    let first = ctx.machine.sh_within(&format!("sync -f {WRITTEN}; cat {WRITTEN}"), LIMIT).await?;
    docker.run(ctx, "commit db saved").await?;
    ensure!(ctx.machine.read_text(WRITTEN).await? == first, "it writes while it is paused");
    docker.run(ctx, "unpause db").await?;
    keeps_writing(ctx, WRITTEN, LIMIT, "it resumes").await?;
    let found = docker.run(ctx, "run --rm --network none saved ls /data").await?;
    ensure!(found.trim().is_empty(), "the image contains the volume: {found}");
    Ok(())
}

/// A container that is killed for lack of memory is restarted with its volume as often as its policy says.
async fn out_of_memory(ctx: &Ctx, docker: &Docker) -> Result<()> {
    docker.run(ctx, "volume create -d bulkhead --opt size=64M hungry").await?;
    let limits = "--memory 32m --memory-swap 32m --restart on-failure:2";
    docker
        .run(ctx, &format!("run -d --name hungry --network none {limits} -v hungry:/data box sh -c '{HUNGRY}'"))
        .await?;
    let state = "inspect -f '{{.State.Status}} {{.State.OOMKilled}} {{.RestartCount}}' hungry";
    ctx.machine
        .wait_until("the container is no longer restarted", LIMIT, async || {
            Ok((docker.run(ctx, state).await?.trim() == "exited true 2").then_some(()))
        })
        .await?;
    let view = json(ctx, &["volume", "inspect", "data/hungry"]).await?;
    ensure!(view["mounted_at"].is_null(), "it is still mounted: {view}");
    let starts = docker.run(ctx, "run --rm --network none -v hungry:/data box cat /data/starts").await?;
    ensure!(starts.lines().count() == 3, "starts: {starts}");
    docker.run(ctx, "rm hungry").await?;
    docker.run(ctx, "volume rm hungry").await.map(drop)
}

/// Checks that no volume, tenant or lease is left.
async fn nothing_is_left(ctx: &Ctx, when: &str) -> Result<()> {
    for noun in ["volume", "tenant"] {
        let left = json(ctx, &[noun, "ls"]).await.with_context(|| when.to_owned())?;
        ensure!(left == value!([]), "{when}: {left}");
    }
    let leases = ctx.machine.sh("ls /run/bulkhead/leases").await?;
    ensure!(leases.is_empty(), "{when}: leases {leases}");
    Ok(())
}
