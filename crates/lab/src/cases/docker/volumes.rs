//! Volumes of the driver `bulkhead` in a stock Docker.

use anyhow::{Context as _, Result, ensure};

use super::engine::{Docker, LIMIT, WRITER};
use crate::case::{Ctx, Outcome};
use crate::cases::doctor;
use crate::cases::host::{json, kernel_is_silent, make_file_pool, refused, unmake_file_pool};
use crate::cases::systemd::{keeps_writing, purge};
use crate::protocol::ExitStatus;

pub(super) async fn docker_volumes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::install(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    ctx.machine
        .sh("systemctl is-active bulkhead-docker.socket")
        .await
        .context("the package starts the plugin's socket")?;
    docker.start(ctx, "").await?;
    make_file_pool(ctx).await?;
    docker.import_box(ctx).await?;

    // Options, and errors in Docker's words.
    for (words, expected) in [
        ("--opt sise=1G x", r#"did you mean "size"?"#),
        ("--opt size=lots x", r#"option "size""#),
        ("--opt pool=none x", "there is no pool of that name"),
    ] {
        let create = format!("docker volume create -d bulkhead {words}");
        let output = ctx.machine.run(&["sh", "-c", &create]).await?;
        ensure!(output.status != ExitStatus::Code(0) && output.stderr.contains(expected), "{words}: {output:?}");
    }
    docker.run(ctx, "volume create -d bulkhead --opt size=64M --opt share=300 db").await?;
    docker.run(ctx, "volume create -d bulkhead --opt size=64M filled").await?;
    let volume = json(ctx, &["volume", "inspect", "file/db"]).await?;
    ensure!(volume["created_by"] == "docker" && volume["tenant"].is_null(), "{volume}");

    // A container fills a volume that is empty from its image, and several share one.
    docker
        .run(ctx, "run --rm --network none --volume-driver bulkhead -v filled:/bin box sh -c 'sync /bin/busybox'")
        .await?;
    let start = format!(
        "run -d --name db --restart always --network none --volume-driver bulkhead -v db:/data box /bin/sh -c '{WRITER}'"
    );
    docker.run(ctx, &start).await?;
    let mounted_at = |view: &serde_json::Value| view["mounted_at"].as_str().map(str::to_owned);
    let at = mounted_at(&json(ctx, &["volume", "inspect", "file/db"]).await?).context("db is not mounted")?;
    let written = format!("{at}/written");
    keeps_writing(ctx, &written, LIMIT, "the container writes").await?;
    docker.run(ctx, "run --rm --network none -v db:/data box cat /data/written").await?;
    keeps_writing(ctx, &written, LIMIT, "it writes after the volume's other user has ended").await?;

    // Its block server does all of its I/O, in the tenant's slice, wherever the container runs.
    let charged = |view: &serde_json::Value| view["server_io"]["written_bytes"].as_u64();
    let before = json(ctx, &["tenant", "inspect", "db"]).await?;
    keeps_writing(ctx, &written, LIMIT, "the container keeps writing").await?;
    let after = json(ctx, &["tenant", "inspect", "db"]).await?;
    ensure!(after["share"] == 300 && charged(&after) > charged(&before), "{before} {after}");
    // The guest's root is an overlay, on which Docker's overlay does not work.
    doctor::finds_only(ctx, &["images_copied_whole"]).await?;
    docker.run(ctx, "pause db").await?;
    docker.run(ctx, "unpause db").await?;
    keeps_writing(ctx, &written, LIMIT, "it resumes").await?;

    // Docker mounts the volume a second time for it, and unmounts it, by the same ID.
    docker.run(ctx, "cp db:/data/written /tmp/copied").await?;
    ensure!(
        mounted_at(&json(ctx, &["volume", "inspect", "file/db"]).await?).as_deref() == Some(&*at),
        "docker cp unmounted it"
    );
    refused(ctx, 5, &["uses its volume file/db"], &["tenant", "rm", "db"]).await?;
    keeps_writing(ctx, &written, LIMIT, "it writes after docker cp").await?;

    // Restarts in any order: of the daemon and the plugin, which are killed, and of Docker.
    for restart in [
        "systemctl kill -s KILL bulkhead-docker",
        "systemctl kill -s KILL bulkhead",
        "systemctl restart bulkhead-docker",
    ] {
        ctx.machine.sh(restart).await?;
        docker.run(ctx, "volume inspect db").await.with_context(|| format!("after {restart}"))?;
        keeps_writing(ctx, &written, LIMIT, restart).await?;
    }
    ctx.machine.sh_within("systemctl restart docker", LIMIT).await?;
    keeps_writing(ctx, &written, LIMIT, "it writes after Docker was restarted").await?;

    // Volumes of operators are Docker's too, and its own are the operator's.
    json(ctx, &["volume", "create", "file/native", "--size", "64M"]).await?;
    let listed = docker.run(ctx, "volume ls -q").await?;
    ensure!(["db", "filled", "native"].iter().all(|name| listed.lines().any(|line| line == *name)), "{listed}");
    let status = docker.run(ctx, "volume inspect -f '{{json .Status}}' db").await?;
    ensure!(status.contains("\"tenant\":\"db\""), "{status}");
    refused(ctx, 5, &["mounted for tenant db"], &["volume", "rm", "file/db"]).await?;

    docker.run(ctx, "rm -f db").await?;
    let view = json(ctx, &["volume", "inspect", "file/db"]).await?;
    ensure!(view["mounted_at"].is_null(), "it is still mounted: {view}");
    docker.run(ctx, "volume rm db filled native").await?;
    ensure!(json(ctx, &["tenant", "ls"]).await? == serde_json::json!([]), "tenants are left");
    docker.run(ctx, "rmi box").await?;
    unmake_file_pool(ctx).await?;
    docker.remove(ctx).await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}
