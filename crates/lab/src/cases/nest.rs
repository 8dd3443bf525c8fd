//! `bulkhead nest` on a disk, killed and continued.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, refused};
use crate::case::{Case, Ctx, Outcome, Profile};
use crate::disk::{DiskModel, DiskSpec};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "nest_continued",
    about: "`bulkhead nest` refuses a disk without confirmation and unknown names; it is killed in a cell, continues with the cells that are \
            left, reports pairs and what differs on the disk, records a file system that fails, and leaves nothing",
    kernels: &[Kernel::V6_12],
    profile: Profile { name: "nest", disks: &[DiskSpec::new(DiskModel::Hdd, 4096)], ..PROFILE },
    limit: Duration::from_secs(900),
    run: |ctx| Box::pin(continued(ctx)),
}];

/// What a run has made: mounts, mapped devices, and attached images.
const MADE: &str =
    "grep -c bulkhead-bench/nest /proc/mounts || true; ls /dev/mapper | grep -c nest || true; losetup -n -l | wc -l";
const NOTHING: &str = "0\n0\n0";

async fn continued(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let disk = ctx.machine.disk(0).await?;
    refused(ctx, 2, &["--erase"], &["nest", "--device", &disk]).await?;
    refused(ctx, 2, &["zfs", "ext4"], &["nest", "--device", &disk, "--erase", &disk, "--guest", "zfs"]).await?;
    refused(ctx, 3, &["/dev/absent"], &["nest", "--device", "/dev/absent", "--erase", "/dev/absent"]).await?;

    let program = ctx.program("bulkhead");
    let arguments: Vec<&str> = [program.as_str(), "nest", "--device", &disk, "--erase", &disk]
        .into_iter()
        .chain(
            "--quick --guest ext4,xfs --host ext4 --workload random-write,mail-server --report /run/report".split(' '),
        )
        .collect();
    let process = ctx.machine.spawn(&arguments, &[]).await?;
    ctx.machine
        .wait_until("a cell on an image is measured", Duration::from_secs(300), async || {
            let done = ctx.machine.sh("grep -c ops_per_s /run/report/nested-matrix.json || true").await?;
            let made = ctx.machine.sh(MADE).await?;
            Ok((done.trim().parse().unwrap_or(0) >= 4 && made.trim() == "2\n1\n1").then_some(()))
        })
        .await?;
    process.kill(9).await?;
    process.wait(Duration::from_secs(60)).await?;
    let before = cells(ctx).await?;
    ctx.log(format!("killed after {} cells", before.len()));

    let rest: Vec<&str> = arguments.iter().copied().chain(["--resume"]).collect();
    let output = ctx.machine.run_within(&rest, Duration::from_secs(600)).await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    let made = ctx.machine.sh(MADE).await?;
    ensure!(made.trim() == NOTHING, "left behind: {made:?}");
    let after = cells(ctx).await?;
    ensure!(after.len() == 8, "{after:?}");
    for (id, figures) in &before {
        ensure!(after.iter().any(|cell| cell == &(id.clone(), figures.clone())), "{id} was measured again");
    }
    let page = ctx.machine.read_text("/run/report/report.md").await?;
    for text in ["### mail-server", "| ext4 |", "Most is lost by", "| finding | here | figures |"] {
        ensure!(page.contains(text), "{text:?} is not in the report:\n{page}");
    }
    ensure!(output.stdout.trim() == page.trim(), "the terminal shows something else:\n{}", output.stdout);
    let picture = ctx.machine.read_text("/run/report/matrix.svg").await?;
    ensure!(picture.contains("mail-server"), "the picture lacks a workload");
    ctx.save("report.md", &page)?;

    // A program that fails is a failed cell, and the others are measured.
    let without = "mount --bind /bin/false $(command -v mkfs.xfs)";
    ctx.machine.sh(without).await?;
    let fewer: Vec<&str> =
        arguments.iter().copied().map(|word| if word == "/run/report" { "/run/other" } else { word }).collect();
    let output = ctx.machine.run_within(&fewer, Duration::from_secs(600)).await?;
    ctx.machine.sh("umount $(command -v mkfs.xfs)").await?;
    ensure!(output.status == ExitStatus::Code(0), "{}: {}", output.status, output.stderr);
    ensure!(output.stderr.contains("xfs-on-ext4/loop, round 1, failed: cannot make xfs"), "{}", output.stderr);
    ctx.machine.sh("rm -r /run/report /run/other").await?;
    Ok(Outcome::Passed)
}

/// The measured cells, with the figures of their first round.
async fn cells(ctx: &Ctx) -> Result<Vec<(String, Value)>> {
    let result: Value = serde_json::from_str(&ctx.machine.read_text("/run/report/nested-matrix.json").await?)?;
    let cells = result["cells"].as_array().context("no cells")?;
    let measured = cells.iter().filter(|cell| cell["rounds"].as_array().is_some_and(|rounds| !rounds.is_empty()));
    Ok(measured
        .map(|cell| (format!("{}/{}", cell["layout"], cell["neighbour"]), cell["rounds"][0]["figures"].clone()))
        .collect())
}
