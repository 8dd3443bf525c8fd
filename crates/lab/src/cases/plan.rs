//! `bulkhead device costs` on a disk, and a plan with what it prints.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, refused};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "plan_costs",
    about: "`bulkhead device costs` refuses a directory without room, prints figures that agree with the disk's model, leaves no file, and \
            `bulkhead plan` takes them",
    kernels: &[Kernel::V6_12],
    profile: Profile { name: "plan", disks: &[DiskSpec::new(DiskModel::Ssd, 4096)], ..PROFILE },
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(costs(ctx)),
}];

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
        ("/random-write/small/latency-us", 100.0, 260.0),
        ("/sequential-read/large/per-s", 750.0, 900.0),
        ("/durable-write/latency-us", 9_000.0, 13_000.0),
        ("/read-write-sharing", 0.0, 1.0),
        ("/sequential-run", 1.0, 1000.0),
    ] {
        let found = figure(path)?;
        ensure!((least..=most).contains(&found), "{path} is {found}, not between {least} and {most}");
    }
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
