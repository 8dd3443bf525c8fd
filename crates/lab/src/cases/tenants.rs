//! Tenants on real kernels: journal accounting, freezing, running a command, controllers.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::host::{KINDS, PROFILE, cli, json, make_pools, refused, start_daemon, unmake_pools, use_loop_devices};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;
use crate::protocol::ExitStatus;

pub(super) const CASES: &[Case] = &[
    Case {
        name: "journal_accounting",
        about: "writes of a volume's journal thread are charged to its tenant's journal cgroup, within 1 %",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(600),
        run: |ctx| Box::pin(journal_accounting(ctx)),
    },
    Case {
        name: "tenant_freeze_and_remove",
        about: "leaf cgroups that serve I/O have CPU weights; a writing payload can be frozen; a removed tenant leaves \
                nothing behind",
        kernels: &Kernel::ALL,
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(freeze_and_remove(ctx)),
    },
    Case {
        name: "tenant_run",
        about: "a command runs in its tenant with the volume mounted only for it; exit codes and signals are passed \
                through",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(tenant_run(ctx)),
    },
    Case {
        name: "device_control",
        about: "bfq and iocost are enabled on the physical device, shown, and restored; limits are enforced",
        kernels: &[Kernel::V6_12],
        profile: PROFILE,
        limit: Duration::from_secs(300),
        run: |ctx| Box::pin(device_control(ctx)),
    },
];

/// Sums the bytes of bios from the journal thread to the volume's device, from the block layer's tracepoint.
const TRACE: &str = r#"
trace=/sys/kernel/tracing
dev=$(cat /sys/class/block/$NAME/dev)
echo 0 > $trace/tracing_on; echo > $trace/trace
echo 16384 > $trace/buffer_size_kb
echo 'comm ~ "jbd2/*"' > $trace/events/block/block_bio_queue/filter
echo 1 > $trace/events/block/block_bio_queue/enable
stat() { awk -v dev=$dev '$1 == dev { for (i = 2; i <= NF; i++) if (sub("wbytes=", "", $i)) n = $i } END { print n + 0 }' $1/io.stat; }
before=$(stat $JOURNAL); payload=$(stat $PAYLOAD)
echo 1 > $trace/tracing_on
bash -c "echo \$\$ > $PAYLOAD/cgroup.procs; head -c 4194304 /dev/zero > $AT/data; sync $AT/data; mkdir $AT/d; cd $AT/d; mkdir \$(seq 300); for i in \$(seq 15); do echo x >> $AT/log; sync $AT/log; done"
sync -f $AT
echo 0 > $trace/tracing_on
after=$(stat $JOURNAL); payload_after=$(stat $PAYLOAD)
echo 0 > $trace/events/block/block_bio_queue/enable
echo 0 > $trace/events/block/block_bio_queue/filter
awk -v dev=${dev/:/,} '/block_bio_queue/ && $0 ~ " " dev " " { for (i = 1; i < NF; i++) if ($i == "+") n += $(i + 1) * 512 } END { print n + 0 }' $trace/trace
echo $((after - before)); echo $((payload_after - payload)); grep -c 'LOST' $trace/trace || true
"#;

async fn journal_accounting(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &KINDS).await?;
    use_loop_devices(ctx).await?;
    for kind in KINDS {
        let volume = format!("{kind}/v");
        json(ctx, &["volume", "create", &volume, "--size", "128M"]).await?;
        json(ctx, &["tenant", "create", "db", "--volume", &volume]).await?;
        let view = json(ctx, &["volume", "inspect", &volume]).await?;
        let at = view["mounted_at"].as_str().context("not mounted")?;
        let device = view["device"].as_str().context("no device")?;
        let slice = "/sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice";
        let script = format!(
            "AT={at}\nNAME=$(basename $(readlink -f {device}))\nJOURNAL={slice}/bulkhead-db-journal.slice\nPAYLOAD={slice}/bulkhead-db-payload.slice\n{TRACE}"
        );
        let output = ctx.machine.sh(&script).await?;
        ctx.save(&format!("{kind}.txt"), &output)?;
        let numbers: Vec<u64> = output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let [traced, charged, payload, lost] = numbers[..] else { anyhow::bail!("unexpected output {output:?}") };
        ctx.log(format!(
            "{kind}: the journal thread wrote {traced} B, its cgroup was charged {charged} B, the payload {payload} B"
        ));
        ensure!(lost == 0, "{kind}: the trace lost events");
        ensure!(traced > 1_000_000, "{kind}: only {traced} B of journal writes were traced");
        let off = traced.abs_diff(charged);
        ensure!(off * 100 <= traced, "{kind}: {charged} B charged, {traced} B written by the journal thread");
        ensure!(payload >= 4 << 20, "{kind}: the payload's own writes are missing: {payload} B");
        // A remount keeps or replaces the thread; a few seconds later it is in its cgroup again.
        ctx.machine
            .sh(&format!("mount -o remount,ro {at}; mount -o remount,rw {at}; touch {at}/again; sync -f {at}"))
            .await?;
        ctx.machine
            .wait_until("the journal thread is in its cgroup", Duration::from_secs(30), async || {
                let view = json(ctx, &["volume", "inspect", &volume]).await?;
                Ok((view["accounting"]["way"] == "journal_thread").then_some(()))
            })
            .await?;
        // Another process moves it away, and the daemon moves it back.
        let pid = view["accounting"]["pid"].as_u64().context("no pid")?;
        ctx.machine.sh(&format!("echo {pid} > /sys/fs/cgroup/cgroup.procs")).await?;
        ctx.machine
            .wait_until("the journal thread is moved back", Duration::from_secs(30), async || {
                let procs = ctx.machine.read_text(&format!("{slice}/bulkhead-db-journal.slice/cgroup.procs")).await?;
                Ok(procs.lines().any(|line| line == pid.to_string()).then_some(()))
            })
            .await?;
        json(ctx, &["tenant", "rm", "db"]).await?;
        json(ctx, &["volume", "rm", &volume]).await?;
    }
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

async fn freeze_and_remove(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &KINDS).await?;
    for kind in KINDS {
        let volume = format!("{kind}/v");
        json(ctx, &["volume", "create", &volume, "--size", "128M"]).await?;
        json(ctx, &["tenant", "create", "db", "--volume", &volume]).await?;
        let view = json(ctx, &["volume", "inspect", &volume]).await?;
        let at = view["mounted_at"].as_str().context("not mounted")?;
        cpu_weights(ctx).await?;
        let payload = "/sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice";
        let script = format!(
            "echo $$ > {payload}/cgroup.procs; i=0; while :; do i=$((i + 1)); echo $i > {at}/n; sync {at}/n; done"
        );
        let writer = ctx.machine.spawn(&["bash", "-c", &script], &[]).await?;
        ctx.machine
            .wait_until("the payload writes", Duration::from_secs(60), async || {
                let text = ctx.machine.run(&["cat", &format!("{at}/n")]).await?.stdout;
                Ok(text.trim().parse::<u64>().is_ok_and(|n| n > 3).then_some(()))
            })
            .await?;
        ctx.machine.sh(&format!("echo 1 > {payload}/cgroup.freeze")).await?;
        ctx.machine
            .wait_until("the payload is frozen", Duration::from_secs(30), async || {
                let events = ctx.machine.read_text(&format!("{payload}/cgroup.events")).await?;
                Ok(events.contains("frozen 1").then_some(()))
            })
            .await?;
        ctx.machine.sh(&format!("echo 0 > {payload}/cgroup.freeze")).await?;
        refused(ctx, 5, &["processes run in it"], &["tenant", "rm", "db"]).await?;
        json(ctx, &["tenant", "rm", "db", "--force"]).await?;
        writer.wait(Duration::from_secs(30)).await?;
        let left = ctx.machine.sh("find /sys/fs/cgroup -name '*bulkhead*'; grep bulkhead /proc/mounts || true").await?;
        ensure!(left.is_empty(), "{kind}: left behind: {left}");
        json(ctx, &["volume", "rm", &volume]).await?;
    }
    unmake_pools(ctx, &KINDS).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Checks that the leaf cgroups that serve the I/O of tenant `db` have the highest CPU weight, also after another
/// process disabled the controller.
async fn cpu_weights(ctx: &Ctx) -> Result<()> {
    let script = "cd /sys/fs/cgroup; cat cgroup.subtree_control bulkhead.slice/cgroup.subtree_control; cd bulkhead.slice/bulkhead-db.slice; \
                  cat cgroup.subtree_control; cat bulkhead-db-{journal,server,payload}.slice/cpu.weight cpu.weight";
    let found = ctx.machine.sh(script).await?;
    let lines: Vec<&str> = found.lines().map(str::trim).collect();
    ensure!(lines.len() == 7, "{found:?}");
    ensure!(lines[..3].iter().all(|line| line.split(' ').any(|controller| controller == "cpu")), "{found:?}");
    ensure!(lines[3..] == ["10000", "10000", "100", "100"], "{found:?}");
    let slice = "/sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice";
    ctx.machine.sh(&format!("echo -cpu > {slice}/cgroup.subtree_control")).await?;
    let files = [
        format!("{slice}/bulkhead-db-journal.slice/cpu.weight"),
        format!("{slice}/bulkhead-db-server.slice/cpu.weight"),
    ];
    ctx.machine
        .wait_until("the weights are restored", Duration::from_secs(30), async || {
            let weights = ctx.machine.run(&["cat", &files[0], &files[1]]).await?.stdout;
            Ok((weights == "10000\n10000\n").then_some(()))
        })
        .await
}

async fn tenant_run(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["thick"]).await?;
    json(ctx, &["volume", "create", "thick/data", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "db"]).await?;
    ctx.machine.sh("mkdir -p /run/target").await?;
    let run =
        |command: &'static str| ["run", "--tenant", "db", "--volume", "data:/run/target", "--", "bash", "-c", command];
    let output =
        cli(ctx, &run("cat /proc/self/cgroup; touch /run/target/file; findmnt -no SOURCE /run/target; exit 7")).await?;
    ensure!(output.status == ExitStatus::Code(7), "{output:?}");
    ensure!(output.stdout.contains("/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice/run-"), "{output:?}");
    ensure!(output.stdout.contains("thick"), "the volume was not mounted: {output:?}");
    ensure!(!ctx.machine.run(&["test", "-e", "/run/target/file"]).await?.status.success(), "the host saw the volume");
    let again = cli(ctx, &run("ls /run/target")).await?;
    ensure!(again.stdout.contains("file"), "the file is gone: {again:?}");
    let missing = cli(ctx, &run("exec /no/such/program")).await?;
    ensure!(missing.status == ExitStatus::Code(127), "{missing:?}");

    // A signal reaches the command, and its exit code is returned; processes that it leaves behind are killed, and the
    // volume is unmounted.
    let program = ctx.program("bulkhead");
    let argv: Vec<&str> = std::iter::once(program.as_str())
        .chain(run("sleep 1000 & trap 'exit 42' TERM; touch /run/target/ready; wait"))
        .collect();
    let running = ctx.machine.spawn(&argv, &[]).await?;
    command_runs(ctx).await?;
    refused(ctx, 5, &["mounted for tenant db"], &["volume", "rm", "thick/data"]).await?;
    running.kill(15).await?;
    let ended = running.wait(Duration::from_secs(60)).await?;
    ensure!(ended.status == ExitStatus::Code(42), "{ended:?}");
    let view = json(ctx, &["volume", "inspect", "thick/data"]).await?;
    ensure!(view["mounted_at"].is_null(), "still mounted: {view}");

    // When the client is killed, the daemon detects that and detaches the volume.
    let running = ctx.machine.spawn(&argv, &[]).await?;
    command_runs(ctx).await?;
    running.kill(9).await?;
    running.wait(Duration::from_secs(60)).await?;
    ctx.machine
        .wait_until("the volume is detached", Duration::from_secs(60), async || {
            let view = json(ctx, &["volume", "inspect", "thick/data"]).await?;
            Ok(view["mounted_at"].is_null().then_some(()))
        })
        .await?;
    ctx.machine.sh("rmdir /run/target").await?;
    json(ctx, &["tenant", "rm", "db", "--force"]).await?;
    json(ctx, &["volume", "rm", "thick/data"]).await?;
    unmake_pools(ctx, &["thick"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}

/// Waits until the tenant has a command and a child of it.
async fn command_runs(ctx: &Ctx) -> Result<()> {
    ctx.machine
        .wait_until("the command and its child run", Duration::from_secs(60), async || {
            let view = json(ctx, &["tenant", "inspect", "db"]).await?;
            Ok((view["n_processes"].as_u64() > Some(1)).then_some(()))
        })
        .await
}

async fn device_control(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let daemon = start_daemon(ctx, &[]).await?;
    make_pools(ctx, &["thick"]).await?;
    let disk = ctx.machine.disk(1).await?.replace("/dev/", "");
    json(ctx, &["volume", "create", "thick/v", "--size", "64M"]).await?;
    let volume = json(ctx, &["volume", "inspect", "thick/v"]).await?;
    ensure!(volume["physical_devices"] == serde_json::json!([disk]), "{volume}");
    let before = json(ctx, &["device", "inspect", &disk]).await?;
    ensure!(before["shares_work"] == false, "{before}");
    refused(ctx, 8, &["no calibration"], &["device", "control", &disk, "--policy", "iocost"]).await?;
    let done = json(ctx, &["device", "control", &disk, "--policy", "bfq"]).await?;
    ensure!(done["object"]["policy"] == "bfq" && done["object"]["shares_work"] == true, "{done}");
    let scheduler = ctx.machine.read_text(&format!("/sys/block/{disk}/queue/scheduler")).await?;
    ensure!(scheduler.contains("[bfq]"), "{scheduler}");
    json(ctx, &["tenant", "create", "db", "--share", "300", "--limit", &format!("/dev/{disk}:wiops=50")]).await?;
    let slice = "/sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice";
    let weights = ctx.machine.sh(&format!("cat {slice}/io.weight {slice}/io.bfq.weight {slice}/io.max")).await?;
    for expected in ["default 300", "default 30", "wiops=50"] {
        ensure!(weights.contains(expected), "{expected} is missing: {weights}");
    }
    json(ctx, &["tenant", "set", "db", "--no-limits", "--share", "500"]).await?;
    let weights = ctx.machine.sh(&format!("cat {slice}/io.weight {slice}/io.max")).await?;
    ensure!(weights.trim() == "default 500", "{weights:?}");
    let back = json(ctx, &["device", "control", &disk, "--restore"]).await?;
    ensure!(back["object"]["scheduler"] == before["scheduler"], "{back}");
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "thick/v"]).await?;
    unmake_pools(ctx, &["thick"]).await?;
    daemon.stop().await?;
    Ok(Outcome::Passed)
}
