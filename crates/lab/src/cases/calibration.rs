//! `device calibrate` on simulated disks, run to completion. It takes minutes, so it is run by name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{json, refused, start_daemon};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const SOAK: &[Case] = &[
    case("calibrate_hdd", &[DiskSpec::new(DiskModel::Hdd, 8192)]),
    case("calibrate_ssd", &[DiskSpec::new(DiskModel::Ssd, 8192)]),
];

const fn case(name: &'static str, disks: &'static [DiskSpec]) -> Case {
    Case {
        name,
        about: "an io.cost model is measured and stored, works when it is enabled, and the measurement leaves nothing \
                behind",
        kernels: &[Kernel::V6_12],
        profile: Profile {
            name,
            clock: Clock::Wall,
            init: Init::Script,
            disks,
            memory_mib: 3072,
            cpus: 2,
            kernel_arguments: "",
        },
        limit: Duration::from_secs(1800),
        run: |ctx| Box::pin(calibrate(ctx)),
    }
}

/// Starts a calibration and kills its worker as soon as both scratch volumes are mounted; the next calibration removes
/// its leftovers.
async fn killed_midway(ctx: &Ctx, argv: &[&str]) -> Result<()> {
    let process = ctx.machine.spawn(argv, &[]).await?;
    ctx.machine
        .wait_until("both scratch volumes are mounted", Duration::from_secs(300), async || {
            let volumes = json(ctx, &["volume", "ls"]).await?;
            let mounted =
                volumes.as_array().into_iter().flatten().filter(|volume| !volume["mounted_at"].is_null()).count();
            Ok((mounted == 2).then_some(()))
        })
        .await?;
    ctx.machine.sh("pkill -9 -f '[b]ulkhead work .*measure'").await?;
    process.wait(Duration::from_secs(60)).await?;
    let left = json(ctx, &["tenant", "ls"]).await?;
    ensure!(
        left.as_array().is_some_and(|tenants| !tenants.is_empty()),
        "it was killed too late to leave tenants behind"
    );
    Ok(())
}

async fn calibrate(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    let disk = ctx.machine.disk(0).await?;
    let device = disk.replace("/dev/", "");
    refused(ctx, 3, &["no pool lies on it"], &["device", "calibrate", &device]).await?;
    json(ctx, &["pool", "create", "p", "--device", &disk]).await?;
    refused(ctx, 2, &["dry run"], &["device", "calibrate", &device, "--dry-run"]).await?;
    refused(ctx, 3, &["never calibrated"], &["device", "calibrate", &device, "--verify"]).await?;
    let before = json(ctx, &["device", "inspect", &device]).await?;

    let program = ctx.program("bulkhead");
    killed_midway(ctx, &[&program, "device", "calibrate", &device]).await?;
    let output = ctx.machine.run_within(&[&program, "device", "calibrate", &device], Duration::from_secs(1500)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    for line in output.stderr.lines().filter(|line| !line.starts_with("calibrate: ")) {
        ctx.log(line);
    }
    let after = json(ctx, &["device", "inspect", &device]).await?;
    for unchanged in ["scheduler", "policy"] {
        ensure!(
            before[unchanged] == after[unchanged],
            "{unchanged} was {}, is {}",
            before[unchanged],
            after[unchanged]
        );
    }
    let calibration = &after["calibration"];
    ensure!(calibration["measured"].as_array().is_some_and(|lines| lines.len() > 20), "{calibration}");
    ctx.log(format!("{} {}", calibration["model"], calibration["qos"]));
    let verify = [&program, "--output", "json", "device", "calibrate", &device, "--verify"];
    let output = ctx.machine.run_within(&verify, Duration::from_secs(900)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    let rows: Vec<Value> = serde_json::from_str(&output.stdout).context("the result of --verify")?;
    rows.iter().for_each(|row| ctx.log(row.to_string()));
    let measured = |row: &Value| {
        ["mean_ratio", "p99_ratio", "neighbour_pct"]
            .iter()
            .all(|field| row[field].as_f64().is_some_and(|value| value > 0.0))
    };
    ensure!(rows.len() == 3 && rows.iter().all(measured), "{rows:?}");
    ensure!(json(ctx, &["device", "inspect", &device]).await? == after, "verifying changed the device");
    ensure!(json(ctx, &["tenant", "ls"]).await? == serde_json::json!([]), "a tenant is left");
    ensure!(json(ctx, &["volume", "ls"]).await? == serde_json::json!([]), "a volume is left");

    let done = json(ctx, &["device", "control", &device, "--policy", "iocost"]).await?;
    ensure!(done["object"]["shares_work"] == true, "{done}");
    ensure!(done["object"]["cost_model"] == calibration["model"], "{done}");
    json(ctx, &["device", "control", &device, "--restore"]).await?;
    json(ctx, &["pool", "rm", "p"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}
