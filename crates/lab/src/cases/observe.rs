//! Attribution and blame on real kernels: charges compared with the writes to the journal's device, blame with known
//! culprits.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{SMP, json, start_daemon, start_daemon_as};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "journal_attribution",
        about: "charges to containers on a shared ext4 equal the writes to the journal's device, to the byte",
        kernels: &Kernel::ALL,
        profile: SMP,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(journal_attribution(ctx)),
    },
    Case {
        name: "blame_known_culprit",
        about: "the container that slows down another one's fsync is named, and an innocent one is not",
        kernels: &[Kernel::V6_12],
        profile: SLOW,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(blame_known_culprit(ctx)),
    },
];

/// A machine whose disk is the bottleneck, in virtual time: shares and waits are those of the drive's model under any
/// load of the host.
pub(super) const SLOW: Profile = Profile {
    name: "slow",
    clock: Clock::Virtual,
    init: Init::Script,
    disks: &[DiskSpec::new(DiskModel::Hdd, 4096)],
    memory_mib: 2048,
    cpus: 1,
    kernel_arguments: "",
};

/// Creates and mounts a shared ext4 with its journal on a separate device.
const SHARED: &str = "
mke2fs -q -F -b 4096 -O journal_dev $JOURNAL 65536
mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 -J device=$JOURNAL $FEATURES $DATA
mkdir -p /run/shared; mount $DATA /run/shared";

/// Concurrent loads of two containers with different operations, and of one with a hostile name. Each directory is a
/// journal block that no other container dirties; with fast commits, which log names, only if it still exists at the
/// next full commit.
const LOADS: &str = r#"
in_cgroup() { bash -c "echo \$\$ > '/sys/fs/cgroup/test.slice/$1/cgroup.procs'; cd /run/shared; $2" & }
in_cgroup a.service 'mkdir a; cd a; mkdir $(seq 400); for i in $(seq 20); do echo x >> log; sync log; done; rmdir $(seq 200)'
in_cgroup b.service 'for i in $(seq 4); do head -c 2097152 /dev/zero > b$i; sync b$i; done; touch b-$(seq -s " b-" 300); rm b-1*'
in_cgroup "$HOSTILE" 'head -c 8388608 /dev/zero > c; mv c d; ln d e; mkdir f'
wait; sync -f /run/shared"#;

/// Directories that a.service creates; none is removed before its first commit.
const DIRECTORIES_MADE: i64 = 400;
/// Directories that it does not remove.
const DIRECTORIES_KEPT: i64 = 200;

/// Address of the daemon's metrics.
const METRICS: &str = "127.0.0.1:9477";

/// A cgroup name with a terminal escape sequence, a space and a quote.
const HOSTILE: &str = "c \u{1b}[2J\"x";

async fn journal_attribution(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let (data, journal) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    ctx.machine.sh("ip link set lo up").await?;
    let program = ctx.program("bulkhead");
    let daemon = start_daemon_as(ctx, &[&program, "daemon", "--metrics", METRICS], &[]).await?;
    make_cgroups(ctx).await?;
    for features in ["", "-O fast_commit"] {
        let after = loads_are_charged(ctx, features).await?;
        ensure!(after["findings"] == Value::Array(Vec::new()), "unexpected findings: {}", after["findings"]);
    }
    charges_do_not_cross_file_systems(ctx).await?;
    let scrape = format!(
        "exec 3<>/dev/tcp/{}; printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3",
        METRICS.replace(':', "/")
    );
    let scraped = ctx.machine.run(&["bash", "-c", &scrape]).await?.stdout;
    ctx.save("metrics.txt", &scraped)?;
    for wanted in
        ["bulkhead_observing{method=\"tp_btf\",reason=\"\"} 1", "bulkhead_journal_bytes_total{tenant=\"a.service\","]
    {
        ensure!(scraped.contains(wanted), "/metrics lacks {wanted}: {scraped:.2000}");
    }
    // A removed cgroup keeps its totals, under its name.
    remove_cgroups(ctx).await?;
    let after = charges(&json(ctx, &["top", "--total"]).await?, &data)?;
    ensure!(after.keys().any(|name| name == "a.service"), "a.service was dropped with its cgroup: {after:?}");
    ctx.machine.sh(&format!("wipefs -qa {data}; wipefs -qa {journal}")).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// A bash assignment of [`HOSTILE`].
fn hostile() -> String {
    format!("HOSTILE=$'{}'", HOSTILE.replace('\u{1b}', "\\e"))
}

/// Creates the cgroups of [`LOADS`].
pub(super) async fn make_cgroups(ctx: &Ctx) -> Result<()> {
    ctx.machine
        .sh(&format!(
            "{}; cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control; mkdir test.slice; echo '+io +memory' > \
             test.slice/cgroup.subtree_control; cd test.slice; mkdir a.service b.service \"$HOSTILE\"",
            hostile()
        ))
        .await
        .map(drop)
}

pub(super) async fn remove_cgroups(ctx: &Ctx) -> Result<()> {
    let script = "cd /sys/fs/cgroup/test.slice; rmdir a.service b.service \"$HOSTILE\"; cd ..; rmdir test.slice";
    ctx.machine.sh(&format!("{}; {script}", hostile())).await.map(drop)
}

/// Runs [`LOADS`] on a new ext4 on the first disk with its journal on the second, and checks that the charges equal the
/// writes to the journal's device. Returns the observation.
pub(super) async fn loads_are_charged(ctx: &Ctx, features: &str) -> Result<Value> {
    let (data, journal) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    let vars = format!("DATA={data}; JOURNAL={journal}; {}", hostile());
    ctx.machine.sh(&format!("{vars}; FEATURES='{features}'{SHARED}; sync -f /run/shared")).await?;
    // The first query starts the observation, after the self-test.
    let before = json(ctx, &["top", "--total"]).await?;
    let written = "awk '{ print $7 * 512 }' /sys/class/block/$(basename $JOURNAL)/stat";
    let output = ctx.machine.sh(&format!("{vars}; {written}; {LOADS}; {written}")).await?;
    let after = settled(ctx, &data).await?;
    let method = after["method"].as_str().unwrap_or_default();
    let name = format!("observation-{method}{}.json", features.replace(' ', ""));
    ctx.save(&name, &serde_json::to_string_pretty(&after)?)?;
    let numbers: Vec<i64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [first, last] = numbers[..] else { anyhow::bail!("unexpected output {output:?}") };
    // Bytes that were pending before are charged now: they must not hide unattributed ones.
    let owed = pending(&before, &data)?;
    compare(ctx, features, (last - first, owed), &charges(&before, &data)?, &charges(&after, &data)?)?;
    ensure!(after["partial"] == false, "figures were lost: {}", after["losses"]);
    ctx.machine.sh("umount /run/shared; rmdir /run/shared").await?;
    Ok(after)
}

/// Blocks logged on an earlier file system of the device do not count as logged again: b.service makes directories
/// there, and commits on the next file system, where a.service makes directories in the same blocks.
async fn charges_do_not_cross_file_systems(ctx: &Ctx) -> Result<()> {
    let (data, journal) = (ctx.machine.disk(0).await?, ctx.machine.disk(1).await?);
    let within = |name: &str, script: &str| {
        format!("bash -c 'echo $$ > /sys/fs/cgroup/test.slice/{name}/cgroup.procs; cd /run/shared; {script}'\n")
    };
    // Everything happens within one commit interval.
    let make = SHARED.replace("mount ", "mount -o commit=60 ");
    let before_it = within("b.service", "mkdir d-{1..400}; sync .");
    let wanted = within("b.service", "for i in {1..8}; do touch $i; sync $i; done");
    let vars = format!("DATA={data}; JOURNAL={journal}; FEATURES=");
    ctx.machine.sh(&format!("{vars}{make}\n{before_it}umount /run/shared; rmdir /run/shared {make}\n{wanted}")).await?;
    let before = charges(&settled(ctx, &data).await?, &data)?;
    ctx.machine.sh(&format!("{}sync -f /run/shared", within("a.service", "mkdir d-{1..200}"))).await?;
    let after = charges(&settled(ctx, &data).await?, &data)?;
    let new = |name: &str| after.get(name).copied().unwrap_or(0) - before.get(name).copied().unwrap_or(0);
    let (maker, other) = (new("a.service"), new("b.service"));
    ctx.log(format!("another file system: a.service is charged {maker} B, b.service {other} B"));
    ensure!(maker >= 200 * 4096, "a.service made 200 directories and is charged {maker} B");
    // Its share of the blocks that its commits made a.service log again: bitmaps, the inode table, the root directory.
    ensure!(other < 20 * 4096, "b.service made no directories on the new file system and is charged {other} B");
    ctx.machine.sh("umount /run/shared; rmdir /run/shared").await.map(drop)
}

/// Waits until all commits on a file system are charged; returns the observation. A waiter may proceed just before the
/// end of the commit is recorded; the next poll charges it.
async fn settled(ctx: &Ctx, device: &str) -> Result<Value> {
    ctx.machine
        .wait_until("the last commit is charged", Duration::from_secs(60), async || {
            let seen = json(ctx, &["top", "--total"]).await?;
            Ok((pending(&seen, device)? == 0).then_some(seen))
        })
        .await
}

/// Journal bytes of commits on a file system whose end is not recorded yet.
fn pending(seen: &Value, device: &str) -> Result<i64> {
    let device = device.trim_start_matches("/dev/");
    let of_device = seen["file_systems"].as_array().into_iter().flatten().filter(|view| view["device"] == device);
    of_device.map(|view| view["pending_bytes"].as_i64().context("no pending bytes")).sum()
}

/// Journal bytes of commits and fast commits on a file system, by charged container; unattributed bytes have the empty
/// name.
pub(super) fn charges(seen: &Value, device: &str) -> Result<BTreeMap<String, i64>> {
    let device = device.trim_start_matches("/dev/");
    let bytes =
        |view: &Value| view["commit_bytes"].as_i64().unwrap_or(0) + view["fast_commit_bytes"].as_i64().unwrap_or(0);
    let mut charges = BTreeMap::new();
    for view in seen["containers"].as_array().context("no containers")? {
        let name = view["name"].as_str().context("a container without a name")?;
        for share in view["journal"].as_array().into_iter().flatten().filter(|share| share["device"] == device) {
            *charges.entry(name.to_owned()).or_default() += bytes(share);
        }
    }
    for view in seen["file_systems"].as_array().into_iter().flatten().filter(|view| view["device"] == device) {
        *charges.entry(String::new()).or_default() += bytes(&view["unattributed"]);
    }
    *charges.entry(String::new()).or_default() += pending(seen, device)?;
    Ok(charges)
}

fn compare(
    ctx: &Ctx,
    features: &str,
    (written, owed): (i64, i64),
    before: &BTreeMap<String, i64>,
    after: &BTreeMap<String, i64>,
) -> Result<()> {
    let new: BTreeMap<&str, i64> =
        after.iter().map(|(name, bytes)| (name.as_str(), bytes - before.get(name).copied().unwrap_or(0))).collect();
    let (sum, unattributed) = (new.values().sum::<i64>(), new.get("").copied().unwrap_or(0) + owed);
    ctx.log(format!("{features}: the journal's device counted {written} B, {sum} B are charged, {unattributed} B unattributed: {new:?}"));
    ensure!(written > 500_000, "only {written} B of journal writes");
    ensure!(sum == written, "{sum} B are charged, the device counted {written} B");
    ensure!(unattributed * 100 < written, "{unattributed} B of {written} B are unattributed");
    let of = |name: &str| new.get(name).copied().unwrap_or(0);
    let hostile = bulkhead_printable(HOSTILE);
    let own = 4096 * if features.contains("fast_commit") { DIRECTORIES_KEPT } else { DIRECTORIES_MADE };
    ensure!(of("a.service") >= own, "a.service made {own} B of directories and is charged less: {new:?}");
    ensure!(of("b.service") > 0, "b.service wrote and is charged nothing: {new:?}");
    ensure!(of(&hostile) >= 4096, "{hostile} made a directory and is charged less: {new:?}");
    Ok(())
}

/// The escaped form of the hostile name, with the path that names a cgroup of unknown kind.
fn bulkhead_printable(name: &str) -> String {
    format!("/test.slice/{}", name.replace('\u{1b}', "\\u{1b}"))
}

/// Loads of the culprit, by name. Each runs with a victim that appends with fsync, and an innocent that writes a
/// little.
const SCENARIOS: [(&str, &str); 3] = [
    (
        "streams",
        "while :; do for i in 1 2 3 4; do (head -c 16777216 /dev/zero > $DIR/s$i; sync $DIR/s$i) & done; wait; done",
    ),
    ("storm", "while :; do mkdir $DIR/d-{1..800}; sync -f $DIR; rmdir $DIR/d-*; done"),
    (
        "neighbour",
        "while :; do for i in 1 2 3 4; do (head -c 16777216 /dev/zero > /run/other/s$i; sync /run/other/s$i) & done; wait; done",
    ),
];

/// How long each scenario is observed.
const WATCH_SECONDS: f64 = 10.0;

/// Checks that each of the longest waits has its parts and its commits, the required one last, and that the culprit is
/// to blame for most of their total time. It need not be for each: on a fast disk a wait for the victim's own commit
/// can be the longest.
fn check_longest(ctx: &Ctx, name: &str, list: &Value) -> Result<()> {
    let number = |value: &Value| value.as_f64().context("no number");
    let waits = list["waits"].as_array().context("no list of waits")?;
    // A wait that ended in this scenario may have started in the previous one.
    let is_recent = |wait: &&Value| wait["began_seconds_ago"].as_f64().is_some_and(|seconds| seconds < WATCH_SECONDS);
    let waits: Vec<&Value> = waits.iter().filter(is_recent).collect();
    let longest = waits.first().with_context(|| format!("{name}: no wait of this scenario is listed: {list}"))?;
    ctx.log(format!("{name}: the longest of {} waits: {}", waits.len(), serde_json::to_string(longest)?));
    let (mut to_blame, mut n_with_commits) = (BTreeMap::<&str, f64>::new(), 0);
    for wait in &waits {
        let (seconds, mut parts) = (number(&wait["seconds"])?, number(&wait["others"]["seconds"])?);
        for view in wait["culprits"].as_array().context("no culprits")? {
            let part = number(&view["seconds"])?;
            parts += part;
            *to_blame.entry(view["culprit"]["name"].as_str().unwrap_or("unknown")).or_default() += part;
        }
        ensure!((parts - seconds).abs() < 1e-6, "{name}: the parts of {seconds} s sum to {parts} s");
        let Some(last) = wait["commits"].as_array().context("no list of commits")?.last() else {
            // Its transaction had been committed, so it waited for its data and a flush.
            ensure!(number(&wait["commit_seconds"])? == 0.0, "{name}: a wait without commits has commit time: {wait}");
            continue;
        };
        n_with_commits += 1;
        ensure!(
            last["tid"] == wait["tid"],
            "{name}: it required commit {}, but waited for {}",
            wait["tid"],
            last["tid"]
        );
        let phases = ["locked_seconds", "flushing_seconds", "logging_seconds"].map(|phase| number(&last[phase]));
        let sum: f64 = phases.into_iter().sum::<Result<f64>>()?;
        ensure!((sum - number(&last["seconds"])?).abs() < 1e-6, "{name}: the phases sum to {sum} s");
    }
    ensure!(n_with_commits > 0, "{name}: none of {} waits was for a commit", waits.len());
    let first = to_blame.iter().max_by(|one, other| one.1.total_cmp(other.1)).context("no container is blamed")?.0;
    ensure!(*first == "culprit.service", "{name}: {first} is blamed for most of the longest waits: {to_blame:?}");
    Ok(())
}

async fn blame_known_culprit(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    // Two file systems on one disk, so that a culprit can be on the other one.
    ctx.machine
        .sh(&format!(
            "modprobe dm_mod; for n in 0 1; do echo 0 4194304 linear {disk} $((n * 4194304)) | dmsetup create fs$n; mkfs.ext4 -q -E \
             lazy_itable_init=0,lazy_journal_init=0 /dev/mapper/fs$n; done; mkdir -p /run/shared /run/other; mount /dev/mapper/fs0 \
             /run/shared; mount /dev/mapper/fs1 /run/other; cd /sys/fs/cgroup; echo '+io +memory' > cgroup.subtree_control; mkdir \
             test.slice; echo '+io +memory' > test.slice/cgroup.subtree_control; mkdir test.slice/victim.service \
             test.slice/innocent.service test.slice/culprit.service"
        ))
        .await?;
    let daemon = start_daemon(ctx, &[]).await?;
    json(ctx, &["top", "--total"]).await?;
    let load = async |cgroup: &str, script: &str| {
        let script =
            format!("echo $$ > /sys/fs/cgroup/test.slice/{cgroup}.service/cgroup.procs; DIR=/run/shared; {script}");
        ctx.machine.spawn(&["bash", "-c", &script], &[]).await
    };
    load("victim", "while :; do echo x >> $DIR/log; sync $DIR/log; sleep 0.1; done").await?;
    // Appends without fsync: truncating would make ext4 write the file at once, and take device time.
    load("innocent", "while :; do echo x >> $DIR/innocent; sleep 0.5; done").await?;
    for (name, script) in SCENARIOS {
        load("culprit", script).await?;
        let seen = json(ctx, &["blame", "--for", &WATCH_SECONDS.to_string(), "victim.service"]).await?;
        let waits = json(ctx, &["blame", "--waits", "--last", &WATCH_SECONDS.to_string(), "victim.service"]).await?;
        ctx.save(&format!("{name}-waits.json"), &serde_json::to_string_pretty(&waits)?)?;
        let top = json(ctx, &["top", "--interval", "3"]).await?;
        ctx.save(&format!("{name}.json"), &serde_json::to_string_pretty(&top)?)?;
        ctx.machine.sh("echo 1 > /sys/fs/cgroup/test.slice/culprit.service/cgroup.kill; sync -f /run/shared; sync -f /run/other").await?;
        let mut waited: BTreeMap<String, f64> = BTreeMap::new();
        for view in seen.as_array().context("no list")? {
            let culprit = view["culprit"]["name"].as_str().unwrap_or("unknown");
            *waited.entry(culprit.to_owned()).or_default() += view["seconds"].as_f64().unwrap_or(0.0);
        }
        let total: f64 = waited.values().sum();
        ctx.log(format!("{name}: the victim waited {total:.2} s: {waited:.2?}"));
        let part = |name: &str| waited.get(name).copied().unwrap_or(0.0) / total;
        // On a busy host the victim calls fsync less often.
        ensure!(total > 0.3, "{name}: the victim hardly waited: {total:.2} s");
        ensure!(part("culprit.service") > 0.6, "{name}: the culprit has {:.0} %", 100.0 * part("culprit.service"));
        // It has a block in nearly every commit, so some blame is correct.
        ensure!(part("innocent.service") < 0.1, "{name}: the innocent has {:.0} %", 100.0 * part("innocent.service"));
        check_longest(ctx, name, &waits)?;
    }
    daemon.stop().await?;
    ctx.machine
        .sh(&format!(
            "for c in victim innocent culprit; do cd /sys/fs/cgroup/test.slice/$c.service; echo 1 > cgroup.kill; while grep -q 'populated 1' \
             cgroup.events; do :; done; cd ..; rmdir $c.service; done; cd ..; rmdir test.slice; umount /run/shared; umount \
             /run/other; rmdir /run/shared /run/other; dmsetup remove fs0; dmsetup remove fs1; wipefs -qa {disk}"
        ))
        .await?;
    Ok(Outcome::Passed)
}
