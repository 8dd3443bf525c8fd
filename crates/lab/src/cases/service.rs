//! The daemon as a service: its notifications to a supervisor (sd_notify(3)), and that stopping it changes nothing for
//! tenants.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::{PROFILE, json, make_pools, start_daemon, unmake_pools, wait_for_socket};
use crate::case::{Case, Ctx, Outcome};
use crate::kernels::Kernel;

pub(super) const CASES: &[Case] = &[Case {
    name: "service",
    about: "the daemon reports when it is ready, alive and stopping; while it is stopped, tenants keep running and \
            volumes stay mounted",
    kernels: &[Kernel::V6_12],
    profile: PROFILE,
    limit: Duration::from_secs(300),
    run: |ctx| Box::pin(service(ctx)),
}];

/// The supervisor's end of the notification socket; exits when the daemon reports that it is stopping.
const SUPERVISOR: &str = "
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind('/run/notify')
with open('/run/notified', 'w') as log:
    message = ''
    while 'STOPPING=1' not in message:
        message = s.recv(4096).decode()
        print(message.strip(), file=log, flush=True)
";

async fn service(ctx: &mut Ctx) -> Result<Outcome> {
    let ctx = &*ctx;
    let supervisor = ctx.machine.spawn(&["python3", "-c", SUPERVISOR], &[]).await?;
    let notified = async |word: &'static str| {
        ctx.machine
            .wait_until(word, Duration::from_secs(60), async || {
                let text = ctx.machine.sh("cat /run/notified || true").await?;
                Ok(text.contains(word).then_some(text))
            })
            .await
    };
    wait_for_socket(ctx, "/run/notify").await?;
    // Keep-alives are sent at half of the watchdog interval.
    let daemon = start_daemon(ctx, &[("NOTIFY_SOCKET", "/run/notify"), ("WATCHDOG_USEC", "1000000")]).await?;
    notified("READY=1").await?;
    let text = notified("WATCHDOG=1").await?;
    ensure!(text.trim_start().starts_with("READY=1"), "{text:?}");

    make_pools(ctx, &["thick"]).await?;
    json(ctx, &["volume", "create", "thick/v", "--size", "64M"]).await?;
    json(ctx, &["tenant", "create", "db", "--share", "700", "--volume", "thick/v"]).await?;
    let program = ctx.program("bulkhead");
    let running = ctx.machine.spawn(&[&program, "run", "--tenant", "db", "--", "sleep", "1000"], &[]).await?;
    ctx.machine
        .wait_until("the command runs", Duration::from_secs(60), async || {
            let view = json(ctx, &["tenant", "inspect", "db"]).await?;
            Ok((view["n_processes"] == 1).then_some(()))
        })
        .await?;
    let state = "findmnt -no SOURCE /run/bulkhead/mnt/thick/v; cd /sys/fs/cgroup/bulkhead.slice/bulkhead-db.slice; cat io.weight *-journal.slice/cgroup.procs \
                 *-payload.slice/run-*/cgroup.procs";
    let before = ctx.machine.sh(state).await?;
    daemon.stop().await?;
    notified("STOPPING=1").await?;
    supervisor.wait(Duration::from_secs(60)).await?;
    let stopped = ctx.machine.sh(state).await?;
    ensure!(before == stopped && before.lines().count() == 4, "before {before:?}, after the stop {stopped:?}");
    let daemon = start_daemon(ctx, &[]).await?;
    let again = ctx.machine.sh(state).await?;
    ensure!(before == again, "before {before:?}, after the next start {again:?}");

    running.kill(15).await?;
    running.wait(Duration::from_secs(60)).await?;
    json(ctx, &["tenant", "rm", "db"]).await?;
    json(ctx, &["volume", "rm", "thick/v"]).await?;
    unmake_pools(ctx, &["thick"]).await?;
    daemon.stop().await?;
    ctx.machine.sh("rm /run/notify /run/notified").await?;
    Ok(Outcome::Passed)
}
