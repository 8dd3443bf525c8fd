//! Attribution of XFS logs on real kernels: charges compared with the counters of the log's device and of XFS, and with
//! what each container writes alone.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, json, start_daemon};
use super::observe::charges;
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "xfs_attribution",
        about: "charges to containers on a shared XFS with an external log equal the writes to its device, to the \
                byte, and are close to those of each container alone; btrfs is reported as not observed",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(xfs_attribution(ctx, EXTERNAL)),
    },
    Case {
        name: "xfs_attribution_internal",
        about: "the same as xfs_attribution with an internal log, measured by the counters of XFS",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(xfs_attribution(ctx, INTERNAL)),
    },
];

/// Appends a line and calls fsync.
const COMMITS: &str = "commits.service";

/// Loads of the containers. Each run has its own directories: `$N` is the run.
const LOADS: [(&str, &str); 3] = [
    ("storm.service", "mkdir storm$N; cd storm$N; mkdir {1..3000}; touch f{1..500}; rmdir {1..1000}"),
    (COMMITS, "for i in {1..60}; do echo x >> commits$N; sync commits$N; done"),
    (
        "streams.service",
        "mkdir streams$N; cd streams$N; for i in {1..300}; do head -c 65536 /dev/zero > $i; done; sync -f .",
    ),
];

/// Writes out all changes, background removals included: a plain sync leaves those to the next commit.
const QUIESCE: &str = "fsfreeze -f /run/shared; fsfreeze -u /run/shared";

/// Location of a log: its name, its mkfs options, its mount options.
type Place = (&'static str, &'static str, &'static str);
const EXTERNAL: Place = ("external", "-l logdev=$LOG,size=128m", "-o logdev=$LOG");
const INTERNAL: Place = ("internal", "-l size=128m", "");

async fn xfs_attribution(ctx: &mut Ctx, (place, mkfs, mount): Place) -> Result<Outcome> {
    let ctx = &*ctx;
    let (data, log) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    let vars = format!("DATA={data}; LOG={log}");
    // Disable the timer, which logs two records after some idle time.
    let groups: String = LOADS.map(|(name, _)| format!(" {name}")).concat();
    ctx.machine
        .sh(&format!(
            "modprobe xfs; echo 720000 > /proc/sys/fs/xfs/xfssyncd_centisecs; cd /sys/fs/cgroup; echo '+io +memory' > \
             cgroup.subtree_control; mkdir test.slice; echo '+io +memory' > test.slice/cgroup.subtree_control; cd test.slice; mkdir{groups}"
        ))
        .await?;
    let daemon = start_daemon(ctx, &[]).await?;
    ctx.machine
        .sh(&format!(
            "{vars}; mkfs.xfs -q -f {mkfs} $DATA; mkdir -p /run/shared; mount {mount} $DATA /run/shared; sync -f /run/shared"
        ))
        .await?;
    let mut alone = BTreeMap::new();
    for (n, (name, load)) in LOADS.into_iter().enumerate() {
        let (written, new) = charged(ctx, &vars, place, &format!("N={n}"), &[(name, load)]).await?;
        ensure!(new.get(name).copied().unwrap_or(0) * 10 > written * 9, "{name} alone has only {new:?} of {written} B");
        alone.insert(name, written);
    }
    // Without a frequent committer each container is charged at most what it writes alone, and at least about what it
    // adds to the others: an inode that one freed and another reuses is logged once. A frequent committer makes the
    // others log the same items again, so they are charged more.
    let quiet: Vec<_> = LOADS.into_iter().filter(|(name, _)| *name != COMMITS).collect();
    for (run, loads, commits_often) in [("N=quiet", &quiet[..], false), ("N=all", &LOADS[..], true)] {
        let (written, new) = charged(ctx, &vars, place, run, loads).await?;
        let all_alone: i64 = loads.iter().map(|(name, _)| alone[name]).sum();
        for (name, _) in loads {
            let (alone, together) = (alone[name], new.get(*name).copied().unwrap_or(0));
            let added = written - (all_alone - alone);
            ctx.log(format!(
                "{place} {run}: {name}: alone {alone} B, charged with others {together} B, adds {added} B to what they write alone"
            ));
            let bounds = if commits_often { alone * 2 / 5..i64::MAX } else { added / 2..alone * 3 / 2 };
            ensure!(bounds.contains(&together), "{place} {run}: {name} is charged {together} B, not {bounds:?}");
        }
    }
    ctx.machine.sh("umount /run/shared; rmdir /run/shared").await?;
    if place == EXTERNAL.0 {
        btrfs(ctx, &data).await?;
    }
    daemon.stop().await?;
    ctx.machine
        .sh(&format!(
            "cd /sys/fs/cgroup/test.slice; rmdir{groups}; cd ..; rmdir test.slice; echo 3000 > /proc/sys/fs/xfs/xfssyncd_centisecs; \
             wipefs -qa {log}"
        ))
        .await?;
    Ok(Outcome::Passed)
}

/// Runs loads concurrently; returns the bytes written to the log, and the bytes charged to each container.
async fn charged(
    ctx: &Ctx,
    vars: &str,
    place: &str,
    run: &str,
    loads: &[(&str, &str)],
) -> Result<(i64, BTreeMap<String, i64>)> {
    let data = ctx.machine.disk(0).await?;
    // The first query starts the observation, after the self-test.
    let before = json(ctx, &["top", "--total"]).await?;
    // The counters of XFS itself, and of the log's device.
    let written = "awk '/^log / { print $3 * 512 }' /sys/fs/xfs/$(basename $DATA)/stats/stats; awk '{ print $7 * 512 }' \
                   /sys/class/block/$(basename $LOG)/stat";
    let started: String = loads
        .iter()
        .map(|(name, load)| {
            format!(
                "bash -c 'echo $$ > /sys/fs/cgroup/test.slice/{name}/cgroup.procs; cd /run/shared; {run}; {load}' & "
            )
        })
        .collect();
    let output = ctx.machine.sh(&format!("{vars}; {written}; {started}wait; {QUIESCE}; {written}")).await?;
    let after = json(ctx, &["top", "--total"]).await?;
    ctx.save(&format!("{place}-{run}.json"), &serde_json::to_string_pretty(&after)?)?;
    let numbers: Vec<i64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [logged, on_device, logged_after, on_device_after] = numbers[..] else {
        anyhow::bail!("unexpected output {output:?}")
    };
    let (logged, on_device) = (logged_after - logged, on_device_after - on_device);
    let (before, after_charges) = (charges(&before, &data)?, charges(&after, &data)?);
    let new: BTreeMap<String, i64> = after_charges
        .into_iter()
        .map(|(name, bytes)| (name.clone(), bytes - before.get(&name).copied().unwrap_or(0)))
        .filter(|(_, bytes)| *bytes != 0)
        .collect();
    let native = native(&after, &data)?;
    ctx.log(format!(
        "{place} {run}: XFS logged {logged} B, its device counted {on_device} B, charges: {new:?}; charged by the kernel so far: {native:?}"
    ));
    ensure!(place == "internal" || on_device == logged, "XFS logged {logged} B, the device counted {on_device} B");
    ensure!(new.values().sum::<i64>() == logged, "{} B are charged, XFS logged {logged} B", new.values().sum::<i64>());
    let unattributed = new.get("").copied().unwrap_or(0);
    ensure!(unattributed * 20 < logged, "{unattributed} B of {logged} B are unattributed");
    ensure!(after["partial"] == false, "figures were lost: {}", after["losses"]);
    let findings = after["findings"].as_array().context("no findings")?;
    ensure!(!findings.iter().any(|found| found["id"] == "xfs_not_observed"), "{findings:?}");
    Ok((logged, new))
}

/// Journal bytes that the kernel itself charged, by container. They sum up to all writes, to the log and in place.
fn native(seen: &Value, device: &str) -> Result<BTreeMap<String, i64>> {
    let device = device.trim_start_matches("/dev/");
    let mut native = BTreeMap::new();
    for view in seen["containers"].as_array().context("no containers")? {
        for share in view["journal"].as_array().into_iter().flatten().filter(|share| share["device"] == device) {
            let bytes = share["native_bytes"].as_i64().context("no native bytes")?;
            native.insert(view["name"].as_str().unwrap_or_default().to_owned(), bytes);
        }
    }
    let views = seen["file_systems"].as_array().context("no file systems")?;
    let whole = views.iter().find(|view| view["device"] == device).context("the file system is not shown")?;
    let written: i64 =
        ["commit_bytes", "checkpoint_bytes"].iter().filter_map(|kind| whole["journal"][kind].as_i64()).sum();
    let sum: i64 = native.values().sum();
    ensure!(sum == written, "the kernel charged {sum} B of {written} B");
    Ok(native)
}

/// A mounted btrfs is reported as not observed.
async fn btrfs(ctx: &Ctx, device: &str) -> Result<()> {
    ctx.machine.sh(&format!("mkfs.btrfs -q -f {device}; mkdir -p /run/btrfs; mount {device} /run/btrfs")).await?;
    let evidence = "btrfs: not attributed (copy-on-write log trees are not journal commits): /run/btrfs";
    let noted = async |wanted: bool| {
        ctx.machine
            .wait_until("the finding about btrfs", Duration::from_secs(60), async || {
                let seen = json(ctx, &["top", "--total"]).await?;
                let findings = seen["findings"].as_array().context("no findings")?;
                Ok((findings.iter().any(|found| found["evidence"] == evidence) == wanted).then_some(()))
            })
            .await
    };
    noted(true).await?;
    ctx.machine.sh("umount /run/btrfs; rmdir /run/btrfs").await?;
    noted(false).await?;
    ctx.machine.sh(&format!("wipefs -qa {device}")).await.map(drop)
}
