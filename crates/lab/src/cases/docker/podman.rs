//! Volumes of the driver `bulkhead` in a stock Podman.

use anyhow::{Context as _, Result, ensure};

use super::engine::{COMMAND, LIMIT, fill_box, link, unlink};
use crate::case::{Ctx, Outcome};
use crate::cases::doctor;
use crate::cases::host::{json, kernel_is_silent};
use crate::cases::systemd::{install, keeps_writing, no_package, purge};
use crate::cases::tutorial;

/// The packages of Podman, with the libraries that the guest does not have.
const PACKAGES: [&str; 12] = [
    "podman",
    "conmon",
    "crun",
    "golang-github-containers-common",
    "golang-github-containers-image",
    "netavark",
    "uidmap",
    "libassuan9",
    "libgpg-error0",
    "libgpgme11t64",
    "libsubid5",
    "libyajl2",
];

/// Containers without a network (the guest has none), on a storage driver that works on an overlay.
const LAB: &str = "[containers]\nnetns = \"none\"\n";
const STORAGE: &str = "[storage]\ndriver = \"vfs\"\nrunroot = \"/run/containers/storage\"\n\
                       graphroot = \"/var/lib/containers/storage\"\n";

/// Asks the plugin to remove the volume, and prints the answer.
const REMOVE: &str = r#"
import http.client, socket

connection = http.client.HTTPConnection("plugin")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect("/run/docker/plugins/bulkhead.sock")
connection.request("POST", "/VolumeDriver.Remove", '{"Name": "db"}')
print(connection.getresponse().read().decode())
"#;

/// The file with the synced lines of the volume, on the host.
const LOG: &str = "/run/bulkhead/mnt/data/db/log";

/// Makes the packages of Podman available; returns the path of busybox, or the reason for a skip.
pub(super) async fn link_packages(ctx: &Ctx) -> Result<std::result::Result<String, Outcome>> {
    link(ctx, &PACKAGES).await
}

/// Configures Podman for the guest.
pub(super) async fn configure(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh("mkdir -p /etc/containers/containers.conf.d").await?;
    ctx.machine.write_file("/etc/containers/containers.conf.d/lab.conf", LAB.as_bytes()).await?;
    ctx.machine.write_file("/etc/containers/storage.conf", STORAGE.as_bytes()).await
}

/// Imports the image `mariadb` from /tmp/root.
pub(super) async fn import_mariadb(ctx: &Ctx) -> Result<()> {
    let import = format!("tar -C /tmp/root -c . | podman import --change '{COMMAND}' - docker.io/library/mariadb");
    ctx.machine.sh_within(&import, LIMIT).await.map(drop)
}

pub(super) async fn podman_volumes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let busybox = match link_packages(ctx).await? {
        Ok(busybox) => busybox,
        Err(skipped) => return Ok(skipped),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let disk = ctx.machine.disk(0).await?;
    let prepare = format!(
        "mkfs.ext4 -q {disk}; mkdir -p /srv/bulkhead; mount {disk} /srv/bulkhead; useradd --create-home rootless"
    );
    ctx.machine.sh(&prepare).await?;
    configure(ctx).await?;
    fill_box(ctx, &busybox).await?;
    import_mariadb(ctx).await?;
    ctx.machine.sh("rm -r /tmp/root").await?;

    let n_commands = tutorial::follow(ctx, include_str!("../../../../../docs/podman.md")).await?;
    ctx.log(format!("{n_commands} commands of docs/podman.md"));
    life(ctx).await?;

    json(ctx, &["pool", "rm", "data"]).await?;
    let clean = "podman rmi --all --force; podman system reset --force; pkill -u rootless; userdel --remove rootless; umount /srv/bulkhead; \
                 rm -r /etc/containers /srv/bulkhead; systemctl daemon-reload; systemctl stop machine.slice";
    ctx.machine.sh_within(clean, LIMIT).await?;
    unlink(ctx).await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// What the tutorial does not show: several users, charges, restarts of daemon and plugin, and a kill of the container.
async fn life(ctx: &Ctx) -> Result<()> {
    let podman = async |words: &str| ctx.machine.sh_within(&format!("podman {words}"), LIMIT).await;
    let written = "<(wc -l < /run/bulkhead/mnt/data/db/log)";
    podman("volume create --driver bulkhead --opt size=64M db").await?;
    podman("run -d --name db --restart always -v db:/var/lib/mysql docker.io/library/mariadb").await?;
    keeps_writing(ctx, written, LIMIT, "the container writes").await?;
    podman("run --rm -v db:/data docker.io/library/mariadb cat /data/log").await?;
    keeps_writing(ctx, written, LIMIT, "it writes after another user has ended").await?;
    // Another client than Podman is taken for Docker.
    let answer = ctx.machine.run(&["python3", "-c", REMOVE]).await?.success("a request to the plugin")?.stdout;
    ensure!(answer.contains("a container of podman uses it"), "{answer}");
    let charged = |view: &serde_json::Value| view["server_io"]["written_bytes"].as_u64();
    let before = json(ctx, &["tenant", "inspect", "db"]).await?;
    keeps_writing(ctx, written, LIMIT, "it keeps writing").await?;
    let after = json(ctx, &["tenant", "inspect", "db"]).await?;
    ensure!(charged(&after) > charged(&before), "the tenant does not pay: {before} {after}");
    // The guest's root is an overlay, on which Podman's overlay does not work.
    doctor::finds_only(ctx, &["images_copied_whole"]).await?;

    // Podman cannot copy a file that grows.
    podman("pause db").await?;
    podman("cp db:/var/lib/mysql/log /tmp/copied").await?;
    podman("unpause db").await?;
    ctx.machine.sh(&format!("test -s /tmp/copied; rm /tmp/copied; test -e {LOG}")).await.context("podman cp")?;
    for restart in ["systemctl kill -s KILL bulkhead-docker", "systemctl kill -s KILL bulkhead"] {
        ctx.machine.sh(restart).await?;
        podman("volume inspect db").await.with_context(|| format!("after {restart}"))?;
        keeps_writing(ctx, written, LIMIT, restart).await?;
    }
    podman("restart -t 1 db").await?;
    keeps_writing(ctx, written, LIMIT, "it writes after a restart").await?;
    podman("kill db").await.context("a kill of the container")?;
    podman("start db").await.context("a start after a kill")?;
    keeps_writing(ctx, written, LIMIT, "it writes after a kill").await?;
    podman("rm -f -t 1 db").await?;
    let view = json(ctx, &["volume", "inspect", "data/db"]).await?;
    ensure!(view["mounted_at"].is_null(), "it is still mounted: {view}");
    podman("volume rm db").await?;
    ensure!(json(ctx, &["tenant", "ls"]).await? == serde_json::json!([]), "tenants are left");
    Ok(())
}
