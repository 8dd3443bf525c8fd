//! A deliberately slow tenant delays only its own operations.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::host::{PROFILE, cli, json, kernel_is_silent, make_file_pool, refused, start_daemon, unmake_file_pool};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[Case {
    name: "slow_tenant",
    about: "a tenant limited to 1 MB/s has 400 MB of dirty data: a snapshot and a detach of its volume wait until \
            their `--wait` ends, can be cancelled and change nothing; all other operations proceed meanwhile, and the \
            daemon stops within 5 s",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(600),
    run: |ctx| Box::pin(slow_tenant(ctx)),
}];

/// Longest response time while another operation waits for minutes, in seconds. Most of it is the start of an
/// unoptimised command.
const ANSWER: f64 = 2.0;

/// Longest time that the daemon may take to stop, in seconds.
const STOP: f64 = 5.0;

/// Requests the metrics as Prometheus does.
const METRICS: &str = "
import socket
s = socket.socket(socket.AF_UNIX)
s.connect('/run/bulkhead/bulkhead.sock')
s.sendall(b'GET /metrics HTTP/1.0\\r\\nHost: h\\r\\n\\r\\n')
answer = s.makefile('rb').read()
assert b' 200 ' in answer[:20], answer
";

async fn slow_tenant(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_file_pool(ctx).await?;
    let disk = ctx.machine.disk(0).await?;
    for volume in ["file/slow", "file/other"] {
        json(ctx, &["volume", "create", volume, "--size", "600M", "--provision", "on-demand"]).await?;
    }
    json(ctx, &["tenant", "create", "slow", "--volume", "file/slow", "--limit", &format!("{disk}:wbps=1M")]).await?;
    json(ctx, &["tenant", "create", "other"]).await?;
    // As much dirty data as a host with much memory allows a tenant.
    ctx.machine.sh("mkdir -p /data; sysctl -q vm.dirty_bytes=1500000000 vm.dirty_background_bytes=1200000000").await?;
    let bulkhead = ctx.program("bulkhead");
    let dirty = "dd if=/dev/zero of=/data/f bs=1M count=400 status=none";
    ctx.machine
        .run(&[&bulkhead, "run", "--tenant", "slow", "--volume", "file/slow:/data", "--", "sh", "-c", dirty])
        .await?
        .success("the tenant's dd")?;

    // Both give up after `--wait`, and nothing is changed.
    let before = json(ctx, &["volume", "inspect", "file/slow"]).await?;
    let snapshot = ["volume", "snapshot", "file/slow", "snap"];
    let detach = ["tenant", "set", "slow", "--detach", "file/slow"];
    for (command, step) in [(&snapshot[..], "sync the file system"), (&detach, "unmount")] {
        let waits = [&["--wait", "3"], command].concat();
        let took =
            seconds(ctx, async || refused(ctx, 5, &["nothing was changed: within 3 s", step], &waits).await).await?;
        ensure!((3.0..3.0 + ANSWER).contains(&took), "{command:?} took {took:.1} s");
    }
    ensure!(json(ctx, &["volume", "inspect", "file/slow"]).await? == before, "it was {before}");

    // One operation waits for minutes, and no other does.
    let waiting = ctx.machine.spawn(&[&[bulkhead.as_str(), "--wait", "3000"], &snapshot[..]].concat(), &[]).await?;
    let job = running(ctx).await?;
    let mut answers = Vec::new();
    for command in [
        &["volume", "ls"][..],
        &["volume", "inspect", "file/slow"],
        &["tenant", "ls"],
        &["job", "ls"],
        &["host"],
        &["tenant", "set", "other", "--attach", "file/other"],
        &["volume", "snapshot", "file/other", "of-other"],
        &["tenant", "set", "other", "--detach", "file/other"],
        &["volume", "rm", "file/of-other"],
    ] {
        let took = seconds(ctx, async || json(ctx, command).await.map(drop)).await?;
        answers.push((command.join(" "), took));
    }
    let took =
        seconds(ctx, async || ctx.machine.run(&["python3", "-c", METRICS]).await?.success("metrics").map(drop)).await?;
    answers.push(("metrics".to_owned(), took));
    let shown: Vec<String> = answers.iter().map(|(command, took)| format!("{command}: {took:.2} s")).collect();
    ctx.log(format!("while a snapshot waits: {}", shown.join(", ")));
    ensure!(answers.iter().all(|(_, took)| *took < ANSWER), "while a snapshot waits: {}", shown.join(", "));
    ensure!(running(ctx).await? == job, "it no longer waits");

    // It can be cancelled, and another waiting operation does not keep the daemon from stopping.
    json(ctx, &["job", "cancel", &job.to_string()]).await?;
    let cancelled = waiting.wait(Duration::from_secs(60)).await?;
    ensure!(cancelled.status == ExitStatus::Code(12), "{}: {}", cancelled.status, cancelled.stderr);
    let waiting = ctx.machine.spawn(&[&[bulkhead.as_str(), "--wait", "3000"], &snapshot[..]].concat(), &[]).await?;
    running(ctx).await?;
    let took = seconds(ctx, async || daemon.stop().await.map(drop)).await?;
    ctx.log(format!("the daemon stopped in {took:.2} s"));
    ensure!(took < STOP, "stopping took {took:.1} s");
    let refused = waiting.wait(Duration::from_secs(60)).await?;
    ensure!(refused.status == ExitStatus::Code(11), "{}: {}", refused.status, refused.stderr);

    // The next daemon finds the volume unchanged; without the limit both operations succeed.
    let daemon = start_daemon(ctx, &[]).await?;
    ensure!(json(ctx, &["volume", "inspect", "file/slow"]).await? == before, "it was {before}");
    json(ctx, &["tenant", "set", "slow", "--no-limits"]).await?;
    json(ctx, &snapshot).await?;
    json(ctx, &detach).await?;
    for tenant in ["slow", "other"] {
        json(ctx, &["tenant", "rm", tenant]).await?;
    }
    for volume in ["file/snap", "file/slow", "file/other"] {
        json(ctx, &["volume", "rm", volume]).await?;
    }
    unmake_file_pool(ctx).await?;
    daemon.stop().await?;
    ctx.machine.sh("rmdir /data").await?;
    kernel_is_silent(ctx).await?;
    Ok(Outcome::Passed)
}

/// Duration of some work on the guest's clock, in seconds.
async fn seconds(ctx: &Ctx, work: impl AsyncFnOnce() -> Result<()>) -> Result<f64> {
    let now = async || -> Result<f64> {
        let uptime = ctx.machine.read_text("/proc/uptime").await?;
        uptime.split(' ').next().and_then(|text| text.parse().ok()).with_context(|| format!("uptime {uptime:?}"))
    };
    let before = now().await?;
    work().await?;
    Ok(now().await? - before)
}

/// Waits until a job waits for the tenant's data; returns its id.
async fn running(ctx: &Ctx) -> Result<u64> {
    ctx.machine
        .wait_until("the snapshot waits", Duration::from_secs(60), async || {
            let answer = cli(ctx, &["--output", "json", "job", "ls"]).await?;
            let jobs: Vec<Value> = serde_json::from_str(&answer.stdout)?;
            let is_it = |job: &&Value| {
                job["state"] == "running"
                    && job["step"].as_str().is_some_and(|step| step.starts_with("sync the file system"))
            };
            Ok(jobs.iter().find(is_it).and_then(|job| job["id"].as_u64()))
        })
        .await
}
