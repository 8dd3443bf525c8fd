//! `bulkhead device costs` on a disk, `bulkhead profile` of loads whose demand is known, plans with what they print, and `bulkhead sweep`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, json, refused, start_daemon};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

const COSTS: Case = Case {
    name: "plan_costs",
    about: "`bulkhead device costs` refuses a directory without room, prints figures that agree with the disk's model, leaves no file, and \
            `bulkhead plan` takes them",
    kernels: &[Kernel::V6_12],
    profile: Profile { name: "plan", disks: &[DiskSpec::new(DiskModel::Ssd, 4096)], ..PROFILE },
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(costs(ctx)),
};

pub(super) const CASES: &[Case] = &[
    COSTS,
    Case {
        name: "plan_profile",
        about: "`bulkhead profile` finds the demand of loads that fio makes: durable writes, direct reads of many, cached reads; it refuses an \
                idle container, and `bulkhead plan` takes the demand",
        run: |ctx| Box::pin(profile(ctx)),
        ..COSTS
    },
    Case {
        name: "plan_sweep",
        about: "`bulkhead sweep` measures copies of durable writes, and a mix; it is killed in a run, continues with the runs that are left, notes a \
                command that fails, and leaves no tenant, volume or process; bad files and full pools are refused before anything is made",
        run: |ctx| Box::pin(sweep(ctx)),
        ..COSTS
    },
];

const FLEET: &str = r#"
[[device]]
kind = "disk"
costs = "costs.json"
[[host]]
name = "here"
cpus = 2
memory = "2G"
devices = [{ name = "disk", kind = "disk", space = "4G" }]
[[workload]]
name = "writer"
count = 2
demand = { clients = 1, cpu-seconds = 0.0001, durable = { per-operation = 1, chain = 1 } }
"#;

async fn costs(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; mkdir -p /run/disk; mount {disk} /run/disk")).await?;
    refused(ctx, 3, &["/absent"], &["device", "costs", "/absent"]).await?;
    refused(ctx, 1, &["of space"], &["device", "costs", "/run/disk", "--size", "1T"]).await?;
    let program = ctx.program("bulkhead");
    let arguments = [program.as_str(), "device", "costs", "/run/disk", "--size", "512M"];
    let output = ctx.machine.run_within(&arguments, Duration::from_secs(800)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    let costs: Value = serde_json::from_str(&output.stdout).context("the costs")?;
    ctx.log(format!("costs: {costs}"));
    let figure = |path: &str| costs.pointer(path).and_then(Value::as_f64).with_context(|| format!("{path} in {costs}"));
    // The model's bounds: commands per second, bandwidth, and the time of a flush.
    for (path, least, most) in [
        ("/random-read/small/per-s", 15_000.0, 22_000.0),
        ("/random-write/small/latency-us", 50.0, 260.0),
        ("/cpu-us", 10.0, 200.0),
        ("/sequential-read/large/per-s", 750.0, 900.0),
        ("/durable-write/latency-us", 9_000.0, 13_000.0),
        ("/read-write-sharing", 0.0, 1.0),
        ("/sequential-run", 1.0, 1000.0),
    ] {
        let found = figure(path)?;
        ensure!((least..=most).contains(&found), "{path} is {found}, not between {least} and {most}");
    }
    // A write to the disk's cache takes this long together with its processor time.
    let alone = figure("/random-write/small/latency-us")? + figure("/cpu-us")?;
    ensure!((100.0..=260.0).contains(&alone), "a random write alone takes {alone} us");
    let left =
        ctx.machine.sh("ls -A /run/disk | grep -v lost+found || true; df --output=used -m /run/disk | tail -1").await?;
    let used: u64 = left.trim().parse().with_context(|| format!("left behind: {left:?}"))?;
    ensure!(used < 64, "the file still takes {used} MiB");

    ctx.machine
        .sh(&format!("cat > /run/costs.json <<'E'\n{costs}\nE\ncat > /run/fleet.toml <<'E'\n{FLEET}\nE"))
        .await?;
    let output = ctx.machine.run(&[program.as_str(), "-o", "json", "plan", "/run/fleet.toml"]).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    let plan: Value = serde_json::from_str(&output.stdout).context("the plan")?;
    // Each durable write takes as long as it was measured to.
    let per_s = plan["workloads"][0]["per_s"].as_f64().context("per_s")?;
    ensure!((60.0..=110.0).contains(&per_s), "{plan}");
    ctx.machine.sh("umount /run/disk").await?;
    Ok(Outcome::Passed)
}

/// Loads of fio, by name: how it is called, and what is to be found.
const LOADS: [(&str, &str); 3] = [
    ("durable", "--rw=randwrite --bs=4k --fdatasync=1 --ioengine=psync --numjobs=2"),
    ("direct", "--rw=randread --bs=16k --direct=1 --ioengine=psync --numjobs=3"),
    ("cached", "--rw=randread --bs=4k --ioengine=psync --numjobs=1 --invalidate=0 --thinktime=50000"),
];

async fn profile(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    ctx.machine
        .sh(&format!(
            "mkfs.ext4 -q {disk}; mkdir -p /run/disk; mount {disk} /run/disk; dd if=/dev/zero of=/run/disk/file bs=1M count=256 \
             oflag=direct status=none; sync; cd /sys/fs/cgroup; echo '+memory +io' > cgroup.subtree_control; mkdir db.service idle.service"
        ))
        .await?;
    let program = ctx.program("bulkhead");
    let spawn = async |cgroup: &str, command: &str| {
        let script = format!("echo $$ > /sys/fs/cgroup/{cgroup}/cgroup.procs; exec {command}");
        ctx.machine.spawn(&["bash", "-c", &script], &[]).await
    };
    let idle = spawn("idle.service", "sleep 1000").await?;
    for (name, options) in LOADS {
        // Only the cached reads find the file in memory.
        let prepare =
            if name == "cached" { "cat /run/disk/file > /dev/null" } else { "echo 3 > /proc/sys/vm/drop_caches" };
        ctx.machine.sh_within(prepare, Duration::from_secs(120)).await?;
        let fio = format!(
            "fio --name={name} --thread --filename=/run/disk/file --size=256M --time_based --runtime=300 --fallocate=none \
             --randrepeat=1 --norandommap --output-format=json --group_reporting --output=/run/{name}.json {options}"
        );
        let load = spawn("db.service", &fio).await?;
        let demand = format!("/run/{name}.demand");
        let arguments = [&program, "-o", "json", "profile", "db", "--for", "60", "--demand", &demand];
        let output = ctx.machine.run_within(&arguments, Duration::from_secs(300)).await?;
        load.kill(2).await?;
        load.wait(Duration::from_secs(60)).await?;
        ensure!(output.status == ExitStatus::Code(0), "{name}: {}: {}", output.status, output.stderr);
        ctx.save(&format!("{name}.json"), &output.stdout)?;
        let found: Value = serde_json::from_str(&output.stdout).context("the profile")?;
        // Before it, fio says which signal ended it.
        let report = ctx.machine.sh(&format!("sed -n '/^{{/,$p' /run/{name}.json")).await?;
        let report: Value = serde_json::from_str(&report).with_context(|| format!("fio's report: {report}"))?;
        ctx.log(format!("{name}: {found}"));
        check_profile(name, &found, &report)?;
    }
    refused(ctx, 1, &["it was idle"], &["profile", "idle.service", "--for", "30"]).await?;
    refused(ctx, 3, &["container \"nobody\"", "no running container"], &["profile", "nobody"]).await?;
    refused(ctx, 3, &["there is no such cgroup"], &["profile", "/a/b"]).await?;
    refused(ctx, 2, &["is not the number of a process"], &["profile", "pid:x"]).await?;
    refused(ctx, 2, &["in the root cgroup, which is no container"], &["profile", "pid:1"]).await?;
    idle.kill(9).await?;
    idle.wait(Duration::from_secs(60)).await?;

    let fleet = FLEET.replace("costs = \"costs.json\"", PLAIN_COSTS).replace(
        "demand = { clients = 1, cpu-seconds = 0.0001, durable = { per-operation = 1, chain = 1 } }",
        "demand = \"durable.demand\"",
    );
    ctx.machine.sh(&format!("cat > /run/fleet.toml <<'E'\n{fleet}\nE")).await?;
    let output = ctx.machine.run(&[program.as_str(), "plan", "/run/fleet.toml"]).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    // The kernel mounts tracefs in debugfs when libbpf looks there.
    ctx.machine
        .sh("umount /run/disk; umount /sys/kernel/debug/tracing; cd /sys/fs/cgroup; rmdir db.service idle.service")
        .await?;
    Ok(Outcome::Passed)
}

/// Durable writes by fio, a command that needs nothing of the host, and one that fails.
const SWEEP: &str = r#"
pool = "file"
seconds = 30
within-percent = 20

[workload.durable]
command = ["fio", "--name=w", "--directory={dir}", "--size=16M", "--rw=randwrite", "--bs=4k", "--fdatasync=1", "--thread",
           "--time_based", "--runtime=1000", "--eta=always", "--eta-newline=1"]
prepare = ["dd", "if=/dev/zero", "of={dir}/w.0.0", "bs=1M", "count=16", "conv=fsync", "status=none"]
rate = '\[w=[^\]]*\]\[w=([0-9.]+)(k?) IOPS\]'
size = "64M"

[workload.fails]
command = ["sh", "-c", "echo broken >&2; exit 7"]
rate = '([0-9]+)'
size = "16M"

[workload.paced]
command = ["sh", "-c", "while :; do echo {copy}00 per second; sleep 0.4; done"]
rate = '^([0-9]+) per second'
size = "16M"

[[mix]]
durable = [1, 2]
[[mix]]
paced = 1
[[mix]]
fails = 1
[[mix]]
durable = 1
paced = 2
"#;

async fn sweep(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    let disk = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; mkdir -p /run/disk; mount {disk} /run/disk")).await?;
    json(ctx, &["pool", "create", "file", "--dir", "/run/disk"]).await?;
    ctx.machine.write_file("/run/sweep.toml", SWEEP.as_bytes()).await?;

    for (from, to, code, words) in [
        ("durable = [1, 2]", "durable = [1, 200]", 7, &["pool file", "free space"][..]),
        ("pool = \"file\"", "pool = \"absent\"", 3, &["absent"]),
        ("paced = 1", "spaced = 1", 2, &["/run/bad.toml", "line 25: mix: there is no workload \"spaced\""]),
    ] {
        ctx.machine.write_file("/run/bad.toml", SWEEP.replacen(from, to, 1).as_bytes()).await?;
        refused(ctx, code, words, &["sweep", "/run/bad.toml", "--report", "/run/refused"]).await?;
    }
    refused(ctx, 3, &["/run/absent.toml"], &["sweep", "/run/absent.toml"]).await?;
    json(ctx, &["tenant", "create", "sweep-paced-2"]).await?;
    refused(ctx, 4, &["tenant sweep-paced-2", "did not create it"], &["sweep", "/run/sweep.toml"]).await?;
    json(ctx, &["tenant", "rm", "sweep-paced-2"]).await?;

    let program = ctx.program("bulkhead");
    let report = |options: &str| format!("{program} sweep /run/sweep.toml --rounds 1 --report /run/report {options}");
    let first = ctx.machine.spawn(&["sh", "-c", &format!("exec {} > /run/first.log 2>&1", report(""))], &[]).await?;
    ctx.machine
        .wait_until("the second run begins", Duration::from_secs(300), async || {
            let found = ctx.machine.run(&["grep", "-q", "durable x 2", "/run/first.log"]).await?;
            Ok(found.status.success().then_some(()))
        })
        .await?;
    first.kill(9).await?;
    first.wait(Duration::from_secs(60)).await?;
    let output = ctx.machine.run_within(&["sh", "-c", &report("--resume")], Duration::from_secs(600)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}{}", output.status, output.stdout, output.stderr);
    ctx.log(format!("{}{}", output.stderr, output.stdout));
    ctx.save("sweep.log", &format!("{}{}", output.stderr, output.stdout))?;
    for word in [
        "fails x 1, round 1, failed: sweep-fails-1 has ended with code 7; it printed the error \"broken\"",
        "result: /run/report/sweep.json",
    ] {
        ensure!(output.stderr.contains(word), "not said: {word}");
    }
    let text = ctx.machine.read_text("/run/report/sweep.json").await?;
    ctx.save("sweep.json", &text)?;
    ctx.save("sweep-durable.svg", &ctx.machine.read_text("/run/report/sweep-durable.svg").await?)?;
    let result: Value = serde_json::from_str(&text).context("the result")?;
    let cells = result["cells"].as_array().context("no cells")?;
    let each = |layout: &str, numbers: &str| {
        let cell = cells.iter().find(|cell| cell["layout"] == layout && cell["neighbour"] == numbers);
        let rounds = cell.and_then(|cell| cell["rounds"].as_array()).filter(|rounds| rounds.len() == 1);
        let rates = rounds.and_then(|rounds| rounds[0]["series"]["each_per_s"].as_array());
        rates.map(|rates| rates.iter().filter_map(Value::as_f64).collect::<Vec<_>>()).unwrap_or_default()
    };
    let (one, two, mixed) = (each("durable", "1"), each("durable", "2"), each("durable+paced", "1+2"));
    ensure!(one.len() == 1 && two.len() == 2 && mixed.len() == 3, "{text}");
    ensure!(each("paced", "1") == [100.0] && mixed[1..] == [100.0, 200.0], "{text}");
    // The model's flushes take 9 to 13 ms, and paced copies need no device.
    ensure!((60.0..=115.0).contains(&one[0]) && (mixed[0] / one[0] - 1.0).abs() < 0.2, "{one:?} {mixed:?}");
    ensure!(
        output.stdout.contains("durable: ") && output.stdout.contains("keeps of its throughput alone"),
        "{}",
        output.stdout
    );

    let is_limited =
        |mix: &str, by: &str| output.stdout.lines().any(|line| line.starts_with(mix) && line.ends_with(by));
    ensure!(is_limited("durable ", "device") && is_limited("paced ", "copies"), "{}", output.stdout);

    ensure!(json(ctx, &["volume", "ls"]).await? == serde_json::json!([]), "volumes are left");
    ensure!(json(ctx, &["tenant", "ls"]).await? == serde_json::json!([]), "tenants are left");
    let left = ctx.machine.sh("pgrep -x fio || true; ls -d /run/bulkhead-bench/sweep 2> /dev/null || true").await?;
    ensure!(left.trim().is_empty(), "left behind: {left}");
    json(ctx, &["pool", "rm", "file"]).await?;
    daemon.stop().await?;
    ctx.machine.sh("umount /run/disk; rm -r /run/report /run/*.toml /run/first.log").await?;
    Ok(Outcome::Passed)
}

/// Costs of a made-up disk.
const PLAIN_COSTS: &str = r#"
[device.costs]
random-read = { small = { latency-us = 100, per-s = 10000 }, large = { latency-us = 300, per-s = 3000 } }
sequential-read = { small = { latency-us = 100, per-s = 10000 }, large = { latency-us = 300, per-s = 3000 } }
random-write = { small = { latency-us = 100, per-s = 10000 }, large = { latency-us = 300, per-s = 3000 } }
sequential-write = { small = { latency-us = 100, per-s = 10000 }, large = { latency-us = 300, per-s = 3000 } }
durable-write = { latency-us = 9000, per-s = 200 }
read-write-sharing = 1
sequential-run = 4"#;

/// Checks a profile against what fio counted itself.
fn check_profile(name: &str, found: &Value, report: &Value) -> Result<()> {
    let figure = |path: &str| found.pointer(path).and_then(Value::as_f64).with_context(|| format!("{path} in {found}"));
    let job = report["jobs"].get(0).context("no job")?;
    let side = if name == "durable" { "write" } else { "read" };
    let per_s = job[side]["iops"].as_f64().context("iops")?;
    let near = |what: &str, value: f64, wanted: f64, part: f64| {
        ensure!((value / wanted - 1.0).abs() <= part, "{name}: {what} is {value}, not {wanted}: {found}");
        Ok(())
    };
    ensure!(found["unstable"] == Value::Array(Vec::new()), "{name}: not stable: {found}");
    let operation = if name == "durable" { "durable-write" } else { "call" };
    ensure!(found["operation"] == operation, "{name}: {found}");
    let first = |key: &str| figure(&format!("/demand/requests/0/{key}"));
    let is_of = |access: &str, purpose: &str| {
        let requests = &found["demand"]["requests"][0];
        ensure!(requests["access"] == access && requests["purpose"] == purpose, "{name}: {found}");
        Ok(())
    };
    match name {
        "durable" => {
            near("operations", figure("/per_s/mean")?, per_s, 0.1)?;
            near("chain", figure("/demand/durable/chain")?, 1.0, 0.2)?;
            near("clients", figure("/demand/clients")?, 2.0, 0.01)?;
            // The two wait for the device nearly always.
            ensure!(figure("/demand/think-seconds")? * per_s < 0.3, "{found}");
        }
        "direct" => {
            near("operations", figure("/per_s/mean")?, per_s, 0.1)?;
            near("clients", figure("/demand/clients")?, 3.0, 0.01)?;
            is_of("random-read", "direct")?;
            near("requests", first("per-operation")?, 1.0, 0.05)?;
            near("size", first("bytes")?, 16_384.0, 0.05)?;
        }
        _ => {
            is_of("random-read", "cached")?;
            // Calls of fio's own threads are counted as well.
            let calls = figure("/per_s/mean")?;
            near("reads", first("per-operation")? * calls, per_s, 0.1)?;
            // Its only client thinks or computes.
            let busy = figure("/cpu_us/mean")? * 1e-6 * calls;
            near("thinking", figure("/demand/think-seconds")? * calls, 1.0 - busy, 0.1)?;
            let miss = figure("/demand/miss-ratios/1/miss")?;
            ensure!(miss < 0.01, "{miss} of the reads miss: {found}");
        }
    }
    Ok(())
}
