//! Images of a stock Docker and its containerd, imported by name.

use anyhow::{Context as _, Result, ensure};

use super::engine::{Docker, LIMIT};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent, make_file_pool, refused, start_daemon, unmake_file_pool};

/// Lists the entries of a directory: name, type, mode, owners, target of a link, and the sums of files.
const ENTRIES: &str =
    "find . -path ./lost+found -prune -o -printf '%p %y %m %U %G %l\\n'; find . -type f -exec sha256sum {} +";

/// The image, imported in four ways.
const VOLUMES: [&str; 4] = ["file/box", "file/saved", "file/stored", "file/piped"];

pub(super) async fn docker_image(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let docker = match Docker::link(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
    docker.start(ctx, "").await?;
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    docker.import_box(ctx).await?;

    json(ctx, &["image", "import", "docker-daemon:box", "file/box"]).await?;
    json(ctx, &["tenant", "create", "reader", "--volume", "file/box"]).await?;
    let at =
        json(ctx, &["volume", "inspect", "file/box"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    docker.run(ctx, "create --name box --network none box sh").await?;
    let export = "mkdir /tmp/shown; docker export box | tar -C /tmp/shown -xp";
    ctx.machine.sh_within(export, LIMIT).await?;
    let entries = ctx.machine.sh(&format!("cd {at}; ({ENTRIES}) | sort")).await?;
    ensure!(entries.lines().count() > 8, "the base has only {entries}");
    // A container has mount points that its image has not.
    let missing = format!(
        "cd {at}; ({ENTRIES}) | sort > /tmp/a; cd /tmp/shown; ({ENTRIES}) | sort > /tmp/b; comm -23 /tmp/a /tmp/b"
    );
    let missing = ctx.machine.sh(&missing).await?;
    ensure!(missing.is_empty(), "the base has what Docker does not show:\n{missing}");
    let image = "grep -vE ' \\./(dev|proc|sys|\\.dockerenv|etc/(hosts|hostname|resolv.conf|mtab))|^\\./(dev|proc|sys|\\.dockerenv|etc/(hosts|hostname|resolv.conf|mtab))'";
    let absent = ctx.machine.sh(&format!("comm -13 /tmp/a /tmp/b | {image} || true")).await?;
    ensure!(absent.trim().is_empty(), "the base lacks what Docker shows:\n{absent}");

    ctx.machine.sh_within("docker save box > /tmp/box.tar", LIMIT).await?;
    json(ctx, &["image", "import", "/tmp/box.tar", "file/saved"]).await?;
    let ctr = "ctr -n lab images";
    ctx.machine.sh_within(&format!("{ctr} import /tmp/box.tar"), LIMIT).await?;
    json(ctx, &["image", "import", "containerd:box", "file/stored", "--containerd-namespace", "lab"]).await?;
    let pipe = format!("{ctr} export - docker.io/library/box:latest | bulkhead image import /dev/stdin file/piped");
    ctx.machine.sh_within(&pipe, LIMIT).await?;
    let mut bases = Vec::new();
    for volume in VOLUMES {
        let view = json(ctx, &["volume", "inspect", volume]).await?;
        bases.push(view["layers"]["below"].to_string());
    }
    ensure!(
        bases.iter().all(|base| *base == bases[0]) && bases[0].contains("id"),
        "there are several bases: {bases:?}"
    );

    for (source, code, words) in [
        ("docker-daemon:absent", 3, &["has no such image", "docker pull absent"][..]),
        ("docker-daemon:../box", 2, &["not the name of an image"]),
        ("docker://box", 2, &["docker-daemon:NAME"]),
        ("podman:box", 11, &["is not running", "podman.socket"]),
        ("nerdctl:box", 3, &["is not an image transport", "containerd:NAME"]),
    ] {
        refused(ctx, code, words, &["image", "import", source, "file/x"]).await?;
    }
    for (image, namespace, hint) in
        [("containerd:absent", "lab", "ctr -n lab images ls"), ("containerd:box", "moby", "-n moby")]
    {
        let import = ["image", "import", image, "file/x", "--containerd-namespace", namespace];
        refused(ctx, 3, &["has no such image", hint], &import).await?;
    }
    let elsewhere = ["image", "import", "containerd:box", "file/x", "--runtime-socket", "/run/absent.sock"];
    refused(ctx, 11, &["is not running", "systemctl start containerd"], &elsewhere).await?;
    let left = ctx.machine.sh("ls -d /var/tmp/bulkhead-* 2> /dev/null || true").await?;
    ensure!(left.trim().is_empty(), "the staging directory has {left}");

    json(ctx, &["tenant", "rm", "reader"]).await?;
    for volume in VOLUMES {
        json(ctx, &["volume", "rm", volume]).await?;
    }
    docker.run(ctx, "rm -f box").await?;
    docker.run(ctx, "rmi box").await?;
    unmake_file_pool(ctx).await?;
    daemon.stop().await?;
    docker.remove(ctx).await?;
    ctx.machine.sh("rm -r /tmp/shown /tmp/box.tar /tmp/a /tmp/b").await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}
