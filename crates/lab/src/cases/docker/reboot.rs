//! A database in a stock Docker across reboots and power cuts.

use anyhow::{Context as _, Result, ensure};

use super::engine::{Docker, LIMIT, WRITER};
use crate::case::{Ctx, Outcome};
use crate::cases::host::{json, kernel_is_silent};
use crate::cases::systemd::{keeps_writing, purge};

/// What an operator adds to a Docker service that requires a tenant's volumes.
const UNIT: &str = "[Unit]
Requires=bulkhead-tenant@db.service
After=bulkhead-tenant@db.service
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

/// The volume of the driver `bulkhead` that another container has.
const KEPT: &str = "/run/bulkhead/mnt/file/kept";

/// Rows acknowledged before the machine goes down.
const ROWS: u64 = 8;

pub(super) async fn docker_reboot(ctx: &mut Ctx) -> Result<Outcome> {
    let docker = match Docker::install(ctx).await? {
        Ok(docker) => docker,
        Err(skipped) => return Ok(skipped),
    };
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
    docker.start(ctx, UNIT).await?;
    docker.import_box(ctx).await?;
    docker.run(ctx, &DATABASE.replace("DATA", DATA)).await?;

    docker.run(ctx, "volume create -d bulkhead --opt pool=file --opt size=64M kept").await?;
    let start = format!("run -d --name kept --restart always --network none -v kept:/data box sh -c '{WRITER}'");
    docker.run(ctx, &start).await?;

    insert(ctx, 0).await?;
    let synced = keeps_its_volume(ctx, 0).await?;
    ctx.reboot(LIMIT * 2).await?;
    let after_reboot = insert(ctx, acked(ctx).await?).await?;
    let synced = keeps_its_volume(ctx, synced).await?;
    ctx.crash_and_reboot().await?;
    let after_cut = insert(ctx, acked(ctx).await?).await?;
    keeps_its_volume(ctx, synced).await?;
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

    docker.run(ctx, "rm -f db kept").await?;
    docker.run(ctx, "volume rm kept").await?;
    docker.remove(ctx).await?;
    ctx.machine.sh("rm /var/acked").await?;
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

/// Checks that the container with a volume of the driver `bulkhead` has at least this many lines in it, and appends more; returns how many it
/// has synced.
async fn keeps_its_volume(ctx: &Ctx, least: u64) -> Result<u64> {
    keeps_writing(ctx, &format!("<(wc -l < {KEPT}/log)"), LIMIT, "the container writes to its volume").await?;
    let found: u64 = ctx.machine.sh(&format!("wc -l < {KEPT}/log")).await?.trim().parse()?;
    ensure!(found >= least, "{least} lines were synced, and {found} are left");
    ctx.machine.sh(&format!("sync -f {KEPT}/log")).await?;
    Ok(found)
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
