//! A real Docker together with Bulkhead: containers that are started in a tenant's slice, and its volume plugin.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{json, kernel_is_silent, make_file_pool, refused, start_daemon, unmake_file_pool};
use super::systemd::{SYSTEMD, install, keeps_writing, no_package, purge};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

/// Run by name only: three boots with Docker take minutes.
pub(super) const SOAK: &[Case] = &[Case {
    name: "docker_reboot",
    about: "a database in a container of a stock Docker whose unit requires the tenant's volumes: after a reboot and \
            after a power cut it has all acknowledged rows, and Docker is not started if its pool is not mounted",
    kernels: &[Kernel::V6_12],
    profile: SYSTEMD,
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(docker_reboot(ctx)),
}];

pub(super) const CASES: &[Case] = &[
    Case {
        name: "docker_in_slice",
        about: "a stock Docker starts a container in a tenant's slice: the tenant is charged for its volume, journal \
            included; docker pause, exec, restart, update and rm work, and the tenant cannot be removed before its \
            container",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(500),
        run: |ctx| Box::pin(docker_in_slice(ctx)),
    },
    Case {
        name: "docker_volumes",
        about: "a stock Docker uses volumes of the driver `bulkhead`: created with options, filled from the image, shared by \
            containers, charged to their tenant, removed; Docker, plugin and daemon are restarted and killed meanwhile",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(docker_volumes(ctx)),
    },
    Case {
        name: "docker_image",
        about: "an image of a stock Docker is imported by its name: the base has the entries that Docker exports, and is the \
                base that the output of `docker save` gives; absent images and runtimes are refused, and nothing is left",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(500),
        run: |ctx| Box::pin(docker_image(ctx)),
    },
];

/// The packages of Docker, each with the directory of its programs.
const PACKAGES: [(&str, &str); 4] =
    [("docker.io", "usr/sbin"), ("docker-cli", "usr/bin"), ("containerd", "usr/bin"), ("runc", "usr/sbin")];

/// Stock Docker without a network (the guest has none), with a storage driver that works on an overlay.
const DOCKERD: &str = "--bridge=none --iptables=false --ip6tables=false --storage-driver=vfs";

/// Time limit of one operation of an emulated Docker.
const LIMIT: Duration = Duration::from_secs(120);

/// Appends lines to a file in the volume, syncs each, and publishes the count by rename, so that a reader never sees a
/// partial count. It pauses after each, because a busy guest is slow to emulate.
const WRITER: &str = "set -e; i=0; while :; do i=$((i + 1)); echo $i >> /data/log; sync /data/log; echo $i > /data/written.new; \
                      mv /data/written.new /data/written; sleep .05; done";

struct Docker {
    path: String,
}

impl Docker {
    /// Runs a `docker` command.
    async fn run(&self, ctx: &Ctx, words: &str) -> Result<String> {
        ctx.machine.sh_within(&format!("PATH={}:$PATH; docker {words}", self.path), LIMIT).await
    }
}

/// The directories of Docker's programs, and busybox; or a skip if they are not available.
async fn programs(ctx: &Ctx) -> std::result::Result<(Vec<String>, String), Outcome> {
    let skipped = |name, error| Outcome::Skipped(format!("Debian's {name} is not available: {error:#}"));
    let mut dirs = Vec::new();
    for (name, dir) in PACKAGES {
        dirs.push(ctx.lab.package(name).await.map_err(|error| skipped(name, error))?.path(dir));
    }
    let busybox = ctx.lab.package("busybox-static").await.map_err(|error| skipped("busybox-static", error))?;
    Ok((dirs, busybox.path("usr/bin/busybox")))
}

/// Waits until Docker answers, and imports the image `box`: busybox, and mount points for the guest's own programs.
async fn import_box(ctx: &Ctx, docker: &Docker, busybox: &str) -> Result<()> {
    let driver = ctx
        .machine
        .wait_until("Docker answers", LIMIT, async || {
            // While Docker starts, `info` can succeed without what it asks Docker for.
            let driver = docker.run(ctx, "info -f '{{.CgroupDriver}}'").await;
            Ok(driver.ok().filter(|driver| !driver.trim().is_empty()))
        })
        .await?;
    ensure!(driver.trim() == "systemd", "the cgroup driver is {driver}");
    ctx.machine
        .sh(&format!(
            "mkdir -p /tmp/root/bin /tmp/root/usr /tmp/root/etc /tmp/root/tmp; cp {busybox} /tmp/root/bin; \
             for n in sh cat sleep sync mv; do ln -s busybox /tmp/root/bin/$n; done; ln -s usr/lib usr/lib64 /tmp/root"
        ))
        .await?;
    let import = format!("PATH={}:$PATH; tar -C /tmp/root -c . | docker import - box; rm -r /tmp/root", docker.path);
    ctx.machine.sh_within(&import, LIMIT).await.map(drop)
}

async fn docker_in_slice(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (dirs, busybox) = match programs(ctx).await {
        Ok(found) => found,
        Err(skipped) => return Ok(skipped),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let docker = Docker { path: dirs.join(":") };
    start_docker(ctx, &docker, &dirs[0]).await?;
    make_file_pool(ctx).await?;
    json(ctx, &["volume", "create", "file/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "web-db", "--share", "300", "--volume", "file/v"]).await?;
    let at =
        json(ctx, &["volume", "inspect", "file/v"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    let written = format!("{at}/written");
    import_box(ctx, &docker, &busybox).await?;

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
    ctx.machine.sh("systemctl stop docker; rm /run/systemd/system/docker.service; systemctl daemon-reload").await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// A Docker service as its package has it.
const SERVICE: &str = "[Service]
Type=notify
Environment=PATH=FOLDERS:/usr/sbin:/usr/bin
ExecStart=DOCKERD
Delegate=yes
KillMode=process
";

/// Starts Docker as a unit `docker`, which is gone after a reboot.
async fn start_docker(ctx: &Ctx, docker: &Docker, dockerd_dir: &str) -> Result<()> {
    let dockerd = format!("{dockerd_dir}/dockerd {DOCKERD}");
    let unit = SERVICE.replace("FOLDERS", &docker.path).replace("DOCKERD", &dockerd);
    ctx.machine.write_file("/run/systemd/system/docker.service", unit.as_bytes()).await?;
    ctx.machine.sh_within("systemctl daemon-reload; systemctl start docker", LIMIT).await.map(drop)
}

async fn docker_volumes(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (dirs, busybox) = match programs(ctx).await {
        Ok(found) => found,
        Err(skipped) => return Ok(skipped),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let docker = Docker { path: dirs.join(":") };
    ctx.machine
        .sh("systemctl is-active bulkhead-docker.socket")
        .await
        .context("the package starts the plugin's socket")?;
    start_docker(ctx, &docker, &dirs[0]).await?;
    make_file_pool(ctx).await?;
    import_box(ctx, &docker, &busybox).await?;

    // Options, and errors in Docker's words.
    for (words, expected) in [
        ("--opt sise=1G x", r#"did you mean "size"?"#),
        ("--opt size=lots x", r#"option "size""#),
        ("--opt pool=none x", "there is no pool of that name"),
    ] {
        let create = format!("PATH={}:$PATH; docker volume create -d bulkhead {words} 2>&1", docker.path);
        let output = ctx.machine.run(&["sh", "-c", &create]).await?;
        ensure!(output.status != ExitStatus::Code(0) && output.stdout.contains(expected), "{words}: {output:?}");
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
    ctx.machine.sh("systemctl stop docker; rm /run/systemd/system/docker.service; systemctl daemon-reload").await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// Lists the entries of a directory: name, type, mode, owners, target of a link, and the sums of files.
const ENTRIES: &str =
    "find . -path ./lost+found -prune -o -printf '%p %y %m %U %G %l\\n'; find . -type f -exec sha256sum {} +";

async fn docker_image(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (dirs, busybox) = match programs(ctx).await {
        Ok(found) => found,
        Err(skipped) => return Ok(skipped),
    };
    let docker = Docker { path: dirs.join(":") };
    start_docker(ctx, &docker, &dirs[0]).await?;
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    import_box(ctx, &docker, &busybox).await?;

    json(ctx, &["image", "import", "docker-daemon:box", "file/box"]).await?;
    json(ctx, &["tenant", "create", "reader", "--volume", "file/box"]).await?;
    let at =
        json(ctx, &["volume", "inspect", "file/box"]).await?["mounted_at"].as_str().context("not mounted")?.to_owned();
    docker.run(ctx, "create --name box --network none box sh").await?;
    let export = format!("PATH={}:$PATH; mkdir /tmp/shown; docker export box | tar -C /tmp/shown -xp", docker.path);
    ctx.machine.sh_within(&export, LIMIT).await?;
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

    let saved = format!("PATH={}:$PATH; docker save box > /tmp/box.tar", docker.path);
    ctx.machine.sh_within(&saved, LIMIT).await?;
    json(ctx, &["image", "import", "/tmp/box.tar", "file/saved"]).await?;
    let mut bases = Vec::new();
    for volume in ["file/box", "file/saved"] {
        let view = json(ctx, &["volume", "inspect", volume]).await?;
        bases.push(view["layers"]["below"].to_string());
    }
    ensure!(bases[0] == bases[1] && bases[0].contains("id"), "there are two bases: {bases:?}");

    for (source, code, words) in [
        ("docker-daemon:absent", 3, &["has no such image", "docker pull absent"][..]),
        ("docker-daemon:../box", 2, &["not the name of an image"]),
        ("docker://box", 2, &["docker-daemon:NAME"]),
        ("podman:box", 11, &["is not running", "podman.socket"]),
    ] {
        refused(ctx, code, words, &["image", "import", source, "file/x"]).await?;
    }
    let left = ctx.machine.sh("ls -d /var/tmp/bulkhead-* 2> /dev/null || true").await?;
    ensure!(left.trim().is_empty(), "the staging directory has {left}");

    json(ctx, &["tenant", "rm", "reader"]).await?;
    for volume in ["file/box", "file/saved"] {
        json(ctx, &["volume", "rm", volume]).await?;
    }
    docker.run(ctx, "rm -f box").await?;
    docker.run(ctx, "rmi box").await?;
    unmake_file_pool(ctx).await?;
    daemon.stop().await?;
    ctx.machine
        .sh("systemctl stop docker; rm /run/systemd/system/docker.service; systemctl daemon-reload; rm -r /tmp/shown /tmp/box.tar /tmp/a /tmp/b")
        .await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}

/// A Docker service that requires a tenant's volumes, as with an operator's drop-in.
const UNIT: &str = "[Unit]
Requires=bulkhead-tenant@db.service
After=bulkhead-tenant@db.service
[Service]
Type=notify
Environment=PATH=FOLDERS:/usr/sbin:/usr/bin
ExecStart=DOCKERD
Delegate=yes
KillMode=process
[Install]
WantedBy=multi-user.target
";

/// Mount point of the pool's file system, and directory of the tenant's database.
const POOL: &str = "/srv/file";
const DATA: &str = "/run/bulkhead/mnt/file/data";

/// A database in a container of the tenant, with the guest's own programs. Without grant tables it needs no
/// installation.
const DATABASE: &str = "run -d --name db --restart always --network none --cgroup-parent bulkhead-db.slice -v DATA:/data -v /usr:/usr:ro \
                        -v /etc:/etc:ro box /usr/sbin/mariadbd --no-defaults --user=root --skip-grant-tables --skip-networking \
                        --innodb-buffer-pool-size=16M --innodb-log-file-size=4M --performance-schema=0 --datadir=/data --socket=/data/socket \
                        --innodb-flush-log-at-trx-commit=1";

/// Inserts consecutive numbers, and durably records each acknowledged one.
const INSERT: &str = "mariadb -S SOCKET -e 'CREATE DATABASE IF NOT EXISTS t; CREATE TABLE IF NOT EXISTS t.n (n INT PRIMARY KEY)' && \
                      n=$(mariadb -N -S SOCKET -e 'SELECT COALESCE(MAX(n), 0) FROM t.n') && while n=$((n + 1)) && \
                      mariadb -S SOCKET -e \"INSERT INTO t.n VALUES ($n)\"; do echo $n > /var/acked.new; sync /var/acked.new; \
                      mv /var/acked.new /var/acked; done";

/// Rows acknowledged before the machine goes down.
const ROWS: u64 = 8;

async fn docker_reboot(ctx: &mut Ctx) -> Result<Outcome> {
    let (dirs, busybox) = match programs(ctx).await {
        Ok(found) => found,
        Err(skipped) => return Ok(skipped),
    };
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let disk = ctx.machine.disk(0).await?;
    ctx.machine
        .sh_within(
            &format!(
                "mkfs.ext4 -q -L file {disk}; mkdir -p {POOL}; echo 'LABEL=file {POOL} ext4 _netdev 0 0' >> /etc/fstab; \
                 systemctl daemon-reload; mount {POOL}"
            ),
            LIMIT,
        )
        .await?;
    json(ctx, &["pool", "create", "file", "--dir", &format!("{POOL}/volumes")]).await?;
    json(ctx, &["volume", "create", "file/data", "--size", "512M"]).await?;
    json(ctx, &["tenant", "create", "db", "--volume", "file/data"]).await?;
    let docker = Docker { path: dirs.join(":") };
    let dockerd = dirs.first().map(|dir| format!("{dir}/dockerd {DOCKERD}")).unwrap_or_default();
    let unit = UNIT.replace("FOLDERS", &docker.path).replace("DOCKERD", &dockerd);
    ctx.machine.write_file("/etc/systemd/system/docker.service", unit.as_bytes()).await?;
    ctx.machine.sh_within("systemctl daemon-reload; systemctl enable --now docker", LIMIT).await?;
    import_box(ctx, &docker, &busybox).await?;
    docker.run(ctx, &DATABASE.replace("DATA", DATA)).await?;

    insert(ctx, 0).await?;
    ctx.reboot(LIMIT * 2).await?;
    let after_reboot = insert(ctx, acked(ctx).await?).await?;
    ctx.crash_and_reboot().await?;
    let after_cut = insert(ctx, acked(ctx).await?).await?;
    ctx.log(format!("rows present after a reboot: {after_reboot}, after a power cut: {after_cut}"));
    let cgroup = docker.run(ctx, "inspect -f '{{.State.Pid}}' db").await?;
    let cgroup = ctx.machine.read_text(&format!("/proc/{}/cgroup", cgroup.trim())).await?;
    ensure!(cgroup.starts_with("0::/bulkhead.slice/bulkhead-db.slice/docker-"), "it is in {cgroup}");

    // Without the pool, the container is not started on an empty directory.
    ctx.machine.sh("sed -i /file/d /etc/fstab; sync").await?;
    ctx.reboot(LIMIT * 2).await?;
    ctx.machine.sh("systemctl is-system-running --wait || true").await?;
    let units = ctx.machine.run(&["systemctl", "is-active", "docker", "bulkhead-tenant@db"]).await?;
    ensure!(units.stdout == "inactive\nfailed\n", "{units:?}");
    ctx.machine.sh(&format!("[ ! -e {DATA}/ibdata1 ]; mount -L file {POOL}")).await?;
    ctx.machine.sh_within("systemctl reset-failed; systemctl start docker", LIMIT).await?;
    insert(ctx, acked(ctx).await?).await?;

    docker.run(ctx, "rm -f db").await?;
    ctx.machine.sh("systemctl disable --now docker; rm -r /etc/systemd/system/docker.service /var/acked").await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "check", "file/data"]).await?;
    json(ctx, &["volume", "rm", "file/data"]).await?;
    json(ctx, &["pool", "rm", "file"]).await?;
    ctx.machine.sh(&format!("umount {POOL}; rmdir {POOL}; systemctl daemon-reload; systemctl reset-failed")).await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// Number of rows that the database has acknowledged.
async fn acked(ctx: &Ctx) -> Result<u64> {
    Ok(ctx.machine.read_text("/var/acked").await?.trim().parse()?)
}

/// Waits until the database answers, checks that it has all rows up to `least`, and starts inserting more, which
/// continues afterwards. Returns the number of rows found.
async fn insert(ctx: &Ctx, least: u64) -> Result<u64> {
    let answers = format!("mariadb -N -S {DATA}/socket -e 'SELECT 1'");
    let waited = ctx
        .machine
        .wait_until("the database answers", LIMIT * 2, async || Ok(ctx.machine.sh(&answers).await.ok()))
        .await;
    if let Err(error) = waited {
        let log = ctx.machine.sh("journalctl -b -u docker -u 'bulkhead*' --no-pager -o cat | tail -n 60").await?;
        return Err(error.context(log));
    }
    let mut found = (0, 0);
    if least > 0 {
        let count =
            format!("mariadb -N -S {DATA}/socket -e 'SELECT COUNT(*), MAX(n) FROM t.n; CHECK TABLE t.n EXTENDED'");
        let answer = ctx.machine.sh(&count).await?;
        let mut words = answer.split_whitespace();
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).context("no number");
        found = (number()?, number()?);
        ensure!(
            found.0 >= least && found.0 == found.1,
            "{least} rows were acknowledged, but count and maximum are {found:?}"
        );
        ensure!(answer.trim().ends_with("OK"), "{answer}");
    }
    ctx.machine.write_file("/run/insert.sh", INSERT.replace("SOCKET", &format!("{DATA}/socket")).as_bytes()).await?;
    ctx.machine.sh("systemd-run --quiet --collect --unit=insert bash /run/insert.sh").await?;
    let inserted = async || Ok(acked(ctx).await.ok().filter(|acked| *acked >= least + ROWS));
    if let Err(error) = ctx.machine.wait_until("rows are inserted", LIMIT * 2, inserted).await {
        let log = ctx.machine.sh("journalctl -b -u insert -u docker --no-pager -o cat | tail -n 40").await?;
        return Err(error.context(log));
    }
    Ok(found.0)
}
