//! A host with systemd on which the daemon, block servers and the machine are killed at random moments.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::host::{json, kernel_is_silent, nothing_is_critical};
use super::systemd::{SYSTEMD, install, no_package, purge};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

/// Run by name only: they take minutes or hours.
pub(super) const SOAK: &[Case] = &[
    Case {
        name: "systemd_kills_60",
        about: "the daemon, block servers and the machine are killed 60 times under writers, rotating snapshots, \
                clones, resizes and detaches: no synced data is lost, and nothing is left behind",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(1800),
        run: |ctx| Box::pin(kills(ctx, 60)),
    },
    Case {
        name: "systemd_kills_300",
        about: "the same as systemd_kills_60 with 300 kills",
        kernels: &[Kernel::V6_12],
        profile: SYSTEMD,
        limit: Duration::from_secs(7200),
        run: |ctx| Box::pin(kills(ctx, 300)),
    },
];

/// Number of kills from one power cut to the next.
const KILLS_A_CUT: usize = 20;

/// The volumes of the tenants, which have the same names.
const TENANTS: [&str; 3] = ["file/a", "file/b", "thick/c"];

/// The containers: each appends numbers, syncs each, and then durably records the last one.
const WRITERS: &str = r#"
for name in a b c; do
    at=$(echo /run/bulkhead/mnt/*/$name)
    systemd-run --quiet --collect --unit=writer-$name --slice=bulkhead-$name.slice python3 -c "
import os
log = os.open('$at/log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
n = os.fstat(log).st_size // 9
while True:
    n += 1
    os.write(log, b'%08d\n' % n)
    os.fsync(log)
    with open('/var/acked/new-$name', 'w') as acked:
        acked.write(str(n))
        acked.flush()
        os.fsync(acked.fileno())
    os.rename('/var/acked/new-$name', '/var/acked/$name')
"
done
"#;

/// The operator: requests one operation after the other from a running daemon, accepts refusals, and counts the
/// completed operations.
const OPERATOR: &str = r#"
n=$(cat /var/acked/n 2> /dev/null || echo 0)
while :; do
    n=$((n + 1))
    echo $n > /var/acked/n.new; mv /var/acked/n.new /var/acked/n
    systemctl start bulkhead || true
    case $((RANDOM % 6)) in
        0 | 1) bulkhead volume snapshot file/a s$n && for old in $(seq $((n - 40)) $((n - 12))); do bulkhead volume rm file/s$old; done ;;
        2) bulkhead volume clone file/b k && bulkhead volume resize file/k --size 96M; bulkhead volume rm file/k ;;
        3) bulkhead volume create thick/x --size 32M; bulkhead volume rm thick/x ;;
        4) bulkhead tenant create t --volume file/d && bulkhead tenant set t --detach file/d; bulkhead tenant rm t ;;
        5) bulkhead volume resize thick/c --size $((64 + RANDOM % 8 * 4))M ;;
    esac && echo $n >> /var/acked/operations
done > /dev/null 2>> /var/acked/refusals
"#;

/// Kills the daemon, a block server, or both, `KILLS` times: a quarter of the time while the daemon starts, otherwise
/// at a random moment after its start, within twice the time that a restart and an operation take on this machine.
const KILLER: &str = r#"
before=$(date +%s%N)
systemctl restart bulkhead
bulkhead volume create file/y --size 32M > /dev/null && bulkhead volume rm file/y > /dev/null
took=$(($(date +%s%N) - before))
for i in $(seq KILLS); do
    [ $((RANDOM % 4)) = 0 ] || systemctl start bulkhead || true
    python3 -c "import time, random; time.sleep(random.random() * 2 * $took / 1e9)"
    # Fails when the operator removes a tenant after the glob was expanded.
    server=$(cat /sys/fs/cgroup/bulkhead.slice/*/*-server.slice/cgroup.procs 2> /dev/null | shuf -n 1) || true
    case $((RANDOM % 3)) in
        0) systemctl kill -s KILL --kill-whom=main bulkhead || true ;;
        1) kill -9 $server 2> /dev/null || true ;;
        2) kill -9 $server 2> /dev/null || true; systemctl kill -s KILL --kill-whom=main bulkhead || true ;;
    esac
done
"#;

/// Time limit of any step.
const LIMIT: Duration = Duration::from_secs(300);

async fn kills(ctx: &mut Ctx, n_kills: usize) -> Result<Outcome> {
    if install(ctx).await?.is_none() {
        return Ok(no_package());
    }
    let (disk, group) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    ctx.machine
        .sh(&format!(
            "mkfs.ext4 -q -L file {disk}; mkdir -p /srv/file /var/acked; echo 'LABEL=file /srv/file ext4 defaults 0 0' >> /etc/fstab; \
             systemctl daemon-reload; mount /srv/file; vgcreate -q thick {group}"
        ))
        .await?;
    json(ctx, &["pool", "create", "file", "--dir", "/srv/file/volumes"]).await?;
    json(ctx, &["pool", "create", "thick", "--vg", "thick"]).await?;
    for volume in TENANTS.iter().chain(&["file/d"]) {
        json(ctx, &["volume", "create", volume, "--size", "64M"]).await?;
    }
    for volume in TENANTS {
        let name = volume.rsplit('/').next().unwrap_or_default();
        json(ctx, &["tenant", "create", name, "--volume", volume]).await?;
    }
    let mut done = 0;
    while done < n_kills {
        ctx.machine.sh(WRITERS).await?;
        ctx.machine.write_file("/run/operator.sh", OPERATOR.as_bytes()).await?;
        ctx.machine.sh("systemd-run --quiet --collect --unit=operator bash /run/operator.sh").await?;
        let kills = KILLS_A_CUT.min(n_kills - done);
        ctx.machine.sh_within(&KILLER.replace("KILLS", &(kills - 1).to_string()), LIMIT * 6).await?;
        ctx.crash_and_reboot().await?;
        done += kills;
        settled(ctx, &format!("after {done} kills")).await?;
        let counts = "cd /var/acked; touch operations; echo $(wc -l < operations) operations, synced up to $(for name in a b c; do echo $(cat $name); done)";
        let counts = ctx.machine.sh(counts).await?;
        ctx.log(format!("{done} kills, {}", counts.trim()));
    }

    let n_done: usize = ctx.machine.sh("wc -l < /var/acked/operations").await?.trim().parse()?;
    ensure!(n_done >= n_kills / 2, "the operator completed only {n_done} operations during {n_kills} kills");
    let refusals =
        ctx.machine.sh("sed 's/[0-9]\\+/N/g' /var/acked/refusals | sort | uniq -c | sort -rn | head -n 40").await?;
    ctx.save("refusals.txt", &refusals)?;
    for tenant in json(ctx, &["tenant", "ls"]).await?.as_array().into_iter().flatten() {
        json(ctx, &["tenant", "rm", tenant["name"].as_str().context("no name")?]).await?;
    }
    let each = "bulkhead volume check {} && bulkhead volume rm {}";
    let names = "bulkhead -o json volume ls | python3 -c 'import json, sys; [print(v[\"volume\"]) for v in json.load(sys.stdin)]'";
    ctx.machine.sh_within(&format!("{names} | xargs -P 2 -I {{}} sh -c '{each}'"), LIMIT).await?;
    let left = ctx.machine.sh("ls /srv/file/volumes; lvs --noheadings thick").await?;
    ensure!(left.trim() == "bulkhead-pool", "something is left: {left}");
    json(ctx, &["pool", "rm", "file"]).await?;
    json(ctx, &["pool", "rm", "thick"]).await?;
    ctx.machine
        .sh("umount /srv/file; rmdir /srv/file; sed -i /file/d /etc/fstab; vgremove -q thick; rm -r /var/acked; systemctl daemon-reload; systemctl reset-failed")
        .await?;
    kernel_is_silent(ctx).await?;
    purge(ctx).await?;
    Ok(Outcome::Passed)
}

/// Checks after a boot that no finding is critical, all tenants have their volumes, and these contain all synced data.
async fn settled(ctx: &Ctx, when: &str) -> Result<()> {
    ctx.machine.sh_within("systemctl is-system-running --wait || true", LIMIT).await?;
    ctx.machine
        .wait_until("the daemon answers", LIMIT, async || Ok(json(ctx, &["host"]).await.ok()))
        .await
        .with_context(|| when.to_owned())?;
    nothing_is_critical(ctx, when).await?;
    for view in json(ctx, &["volume", "ls"]).await?.as_array().into_iter().flatten() {
        ensure!(view["state"] == "ready", "{when}: {view}");
        ensure!(view["mounted_at"].is_null() == view["tenant"].is_null(), "{when}: {view}");
    }
    for volume in TENANTS {
        let name = volume.rsplit('/').next().unwrap_or_default();
        let read = format!("cat /var/acked/{name}; echo; cat /run/bulkhead/mnt/{volume}/log");
        let text = ctx.machine.sh(&read).await.with_context(|| format!("{when}: {volume}"))?;
        let mut numbers = text.split_whitespace().map(str::parse::<usize>);
        let acked = numbers.next().context("nothing was synced")??;
        let numbers: Vec<usize> = numbers.collect::<Result<_, _>>()?;
        ensure!(numbers.len() >= acked, "{when}: {volume} has {} numbers, but {acked} were synced", numbers.len());
        ensure!(numbers.iter().enumerate().all(|(i, n)| i + 1 == *n), "{when}: {volume} has other numbers");
    }
    Ok(())
}
