//! Stock Docker in the guest: its packages, its service, and an image. Does not: define cases.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::case::{Ctx, Outcome};
use crate::cases::systemd::{install, no_package};

/// The packages of Docker.
const PACKAGES: [&str; 4] = ["docker.io", "docker-cli", "containerd", "runc"];

/// Time limit of one operation of an emulated container engine.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Appends lines to a file in the volume, syncs each, and publishes the count by rename, so that a reader never sees a
/// partial count. It pauses after each, because a busy guest is slow to emulate.
pub(super) const WRITER: &str = "set -e; i=0; while :; do i=$((i + 1)); echo $i >> /data/log; sync /data/log; \
                                 echo $i > /data/written.new; mv /data/written.new /data/written; sleep .05; done";

/// What a container of the image `mariadb` of tutorials does by default: it appends to a file of the volume.
pub(super) const COMMAND: &str = r#"CMD ["sh", "-c", "i=0; cd /var/lib/mysql; while :; do i=$((i + 1)); echo $i >> log; sync log; sleep .05; done"]"#;

/// A containerd service like the package's. Docker would start one of its own, and give up after 15 s, in which it does not start
/// while the host is busy.
const CONTAINERD: &str = "[Service]
Type=notify
ExecStart=/usr/bin/containerd
Delegate=yes
KillMode=process
";

/// A Docker service like the package's, which also works without a network (the guest has none), with a storage driver
/// that works on an overlay.
const SERVICE: &str = "[Unit]
Wants=containerd.service
After=containerd.service
[Service]
Type=notify
ExecStart=/usr/sbin/dockerd --containerd=/run/containerd/containerd.sock --bridge=none --iptables=false --ip6tables=false \
    --storage-driver=vfs --log-opt max-size=10m
Delegate=yes
KillMode=process
";

/// Where the services are.
const UNIT: &str = "/etc/systemd/system/docker.service";
const CONTAINERD_UNIT: &str = "/etc/systemd/system/containerd.service";

/// The root directory of the image `box`: busybox, and mount points for the guest's own programs.
const BOX: &str = "mkdir -p /tmp/root/bin /tmp/root/usr /tmp/root/etc /tmp/root/tmp; cp BUSYBOX /tmp/root/bin/busybox; \
                   for n in sh cat sleep sync mv dd ls; do ln -s busybox /tmp/root/bin/$n; done; \
                   ln -s usr/lib usr/lib64 /tmp/root";

/// A stock Docker that is installed in the guest.
pub(super) struct Docker {
    busybox: String,
}

impl Docker {
    /// Installs Bulkhead's package and Docker's; the reason for a skip if one of them is not available.
    pub(super) async fn install(ctx: &Ctx) -> Result<std::result::Result<Self, Outcome>> {
        let docker = Self::link(ctx).await?;
        if docker.is_ok() && install(ctx).await?.is_none() {
            return Ok(Err(no_package()));
        }
        Ok(docker)
    }

    /// Installs Docker alone; the reason for a skip if it is not available.
    pub(super) async fn link(ctx: &Ctx) -> Result<std::result::Result<Self, Outcome>> {
        Ok(link(ctx, &PACKAGES).await?.map(|busybox| Self { busybox }))
    }

    /// Enables and starts the service, with what an operator adds to its unit.
    pub(super) async fn start(&self, ctx: &Ctx, additions: &str) -> Result<()> {
        ctx.machine.write_file(CONTAINERD_UNIT, CONTAINERD.as_bytes()).await?;
        ctx.machine.write_file(UNIT, format!("{SERVICE}{additions}").as_bytes()).await?;
        let enable = if additions.contains("[Install]") { "systemctl enable docker; " } else { "" };
        let start = format!("systemctl daemon-reload; {enable}systemctl start docker");
        if let Err(error) = ctx.machine.sh_within(&start, LIMIT).await {
            let log = ctx.machine.sh("journalctl -b -u docker -u containerd --no-pager -o cat | tail -n 40").await?;
            return Err(error.context(log));
        }
        Ok(())
    }

    /// Waits until Docker answers, and imports the image `box`.
    pub(super) async fn import_box(&self, ctx: &Ctx) -> Result<()> {
        let driver = ctx
            .machine
            .wait_until("Docker answers", LIMIT, async || {
                // While Docker starts, `info` can succeed without what it asks Docker for.
                let driver = self.run(ctx, "info -f '{{.CgroupDriver}}'").await;
                Ok(driver.ok().filter(|driver| !driver.trim().is_empty()))
            })
            .await?;
        ensure!(driver.trim() == "systemd", "the cgroup driver is {driver}");
        fill_box(ctx, &self.busybox).await?;
        ctx.machine.sh_within("tar -C /tmp/root -c . | docker import - box; rm -r /tmp/root", LIMIT).await.map(drop)
    }

    /// Makes the image `mariadb` of tutorials from `box`.
    pub(super) async fn commit_mariadb(&self, ctx: &Ctx) -> Result<()> {
        let commit = format!(
            "create --name command box sh; docker commit --change '{COMMAND}' command mariadb; docker rm command"
        );
        self.run(ctx, &commit).await.map(drop)
    }

    /// Runs a `docker` command.
    pub(super) async fn run(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("docker {words}"), LIMIT).await
    }

    /// Stops Docker, and removes its service and its packages.
    pub(super) async fn remove(&self, ctx: &Ctx) -> Result<()> {
        let stop = format!(
            "systemctl disable --quiet --now docker; systemctl stop containerd; rm {UNIT} {CONTAINERD_UNIT}; systemctl daemon-reload"
        );
        ctx.machine.sh_within(&stop, LIMIT).await?;
        unlink(ctx).await
    }
}

/// Makes the files of packages available where a package manager would install them, as links; returns the path of
/// busybox. The maintainers' scripts do not run.
pub(super) async fn link(ctx: &Ctx, packages: &[&'static str]) -> Result<std::result::Result<String, Outcome>> {
    let skipped = |name, error| Outcome::Skipped(format!("Debian's {name} is not available: {error:#}"));
    let busybox = match ctx.lab.package("busybox-static").await {
        Ok(package) => package.path("usr/bin/busybox"),
        Err(error) => return Ok(Err(skipped("busybox-static", error))),
    };
    let mut script = String::new();
    for name in packages {
        let dir = match ctx.lab.package(name).await {
            Ok(package) => package.path(""),
            Err(error) => return Ok(Err(skipped(*name, error))),
        };
        // A case that failed may have left links of another machine's boot.
        script +=
            &format!("for d in usr etc; do [ ! -e {dir}$d ] || cp -asf --keep-directory-symlink {dir}$d /; done; ");
    }
    ctx.machine.sh_within(&script, LIMIT).await?;
    Ok(Ok(busybox))
}

/// Removes the links of [`link`].
pub(super) async fn unlink(ctx: &Ctx) -> Result<()> {
    ctx.machine.sh("find /usr /etc -lname '/opt/*' -delete").await.map(drop)
}

/// Makes the root directory of an image, /tmp/root.
pub(super) async fn fill_box(ctx: &Ctx, busybox: &str) -> Result<()> {
    ctx.machine.sh(&BOX.replace("BUSYBOX", busybox)).await.map(drop)
}
