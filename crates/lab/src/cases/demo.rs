//! `bulkhead demo --on DIR`, run to completion as on a user's host. It takes minutes, so it is run by name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::refused;
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const SOAK: &[Case] = &[Case {
    name: "demo_on_directory",
    about: "the demo runs in a directory of a host's file system, writes its report, and leaves the directory \
            unchanged",
    kernels: &[Kernel::V6_12],
    profile: Profile {
        name: "demo",
        clock: Clock::Wall,
        init: Init::Script,
        disks: &[DiskSpec::new(DiskModel::Hdd, 8192)],
        memory_mib: 3072,
        cpus: 2,
        kernel_arguments: "",
    },
    limit: Duration::from_secs(1800),
    run: |ctx| Box::pin(demo_on_directory(ctx)),
}];

async fn demo_on_directory(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {disk}; mkdir /run/host; mount {disk} /run/host")).await?;
    refused(ctx, 3, &["/run/host/absent"], &["demo", "--on", "/run/host/absent", "--report", "/run/report"]).await?;

    let program = ctx.program("bulkhead");
    let mut argv = vec![program.as_str(), "demo", "--on", "/run/host", "--report", "/run/report"];
    let lines = DiskModel::Hdd.iocost(ctx.machine.clock(), ctx.lab.kvm());
    if let Some(lines) = lines {
        argv.extend(["--model", lines.model, "--qos", lines.qos]);
    }
    let output = ctx.machine.run_within(&argv, Duration::from_secs(1500)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    for line in output.stdout.lines() {
        ctx.log(line);
    }
    let report = ctx.machine.read_text("/run/report/report.html").await.context("the report")?;
    ensure!(report.contains("<svg"), "the report has no figure");
    ctx.save("report.html", &report)?;
    let left = ctx.machine.sh("ls -A /run/host").await?;
    ensure!(left.trim() == "lost+found", "left in the directory: {left}");
    ctx.machine.sh(&format!("umount /run/host; rm -r /run/host /run/report; wipefs -qa {disk}")).await?;
    Ok(Outcome::Passed)
}
