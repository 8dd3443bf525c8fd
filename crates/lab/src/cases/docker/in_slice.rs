//! Containers of a stock Docker in the slice of a tenant.

use anyhow::{Context as _, Result, ensure};

use super::engine::{Docker, LIMIT, WRITER};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent, make_file_pool, refused, unmake_file_pool};
use crate::cases::systemd::{keeps_writing, purge};

pub(super) async fn docker_in_slice(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::install(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    docker.start(ctx, "").await?;
    make_file_pool(ctx).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "web-db", "--share", "300", "--volume", "file/v"]).await?;
    let at =
        json(ctx, &["volume", "inspect", "file/v"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    let written = format!("{at}/written");
    docker.import_box(ctx).await?;

    let start = format!(
        "run -d --name db --network none --cgroup-parent 'bulkhead-web\\x2ddb.slice' -v {at}:/data box /bin/sh -c '{WRITER}'"
    );
    docker.run(ctx, &start).await?;
    keeps_writing(ctx, &written, LIMIT, "the container writes").await?;
    let cgroup = docker.run(ctx, "inspect -f '{{.State.Pid}}' db").await?;
    let cgroup = ctx.machine.read_text(&format!("/proc/{}/cgroup", cgroup.trim())).await?;
    ensure!(cgroup.starts_with("0::/bulkhead.slice/bulkhead-web\\x2ddb.slice/docker-"), "it is in {cgroup}");
    // All of the container's writes are done by its server, so they are charged wherever the container runs.
    let before = json(ctx, &["tenant", "inspect", "web-db"]).await?;
    keeps_writing(ctx, &written, LIMIT, "the container keeps writing").await?;
    let after = json(ctx, &["tenant", "inspect", "web-db"]).await?;
    let charged = |view: &serde_json::Value| view["server_io"]["written_bytes"].as_u64();
    ensure!(after["n_processes"].as_u64() > Some(0) && charged(&after) > charged(&before), "{before} {after}");
    refused(ctx, 5, &["processes run in it"], &["tenant", "rm", "web-db"]).await?;

    docker.run(ctx, "pause db").await?;
    let stopped = ctx.machine.sh(&format!("cat {at}/written; sleep 2; cat {at}/written")).await?;
    let (first, second) = stopped.trim().split_once('\n').context("nothing was written")?;
    ensure!(first == second, "it writes while it is paused: {stopped}");
    docker.run(ctx, "unpause db").await?;
    keeps_writing(ctx, &written, LIMIT, "it resumes").await?;
    ensure!(docker.run(ctx, "exec db cat /data/written").await?.trim().parse::<u64>().is_ok());
    docker.run(ctx, "update --memory 64m --memory-swap 64m db").await?;
    ctx.machine.sh("systemctl restart bulkhead; systemctl daemon-reload").await?;
    keeps_writing(ctx, &written, LIMIT, "it keeps writing under another daemon").await?;
    docker.run(ctx, "restart -t 1 db").await?;
    keeps_writing(ctx, &written, LIMIT, "it writes after a restart").await?;
    let weight = ctx.machine.sh("cat '/sys/fs/cgroup/bulkhead.slice/bulkhead-web\\x2ddb.slice/io.weight'").await?;
    ensure!(weight.starts_with("default 300\n"), "{weight}");

    docker.run(ctx, "rm -f db").await?;
    docker.run(ctx, "rmi box").await?;
    json(ctx, &["tenant", "rm", "web-db"]).await?;
    json(ctx, &["volume", "check", "file/v"]).await?;
    json(ctx, &["volume", "rm", "file/v"]).await?;
    unmake_file_pool(ctx).await?;
    docker.remove(ctx).await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}
