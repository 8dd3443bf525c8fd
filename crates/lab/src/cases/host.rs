//! Helpers of the product's cases: a daemon in the guest, the command line, and pools of each kind. Does not: define
//! cases.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::case::{Ctx, Profile};
use crate::clock::Clock;
use crate::disk::{DiskModel, DiskSpec};
use crate::init::Init;
use crate::process::{Output, Process};
use crate::protocol::ExitStatus;

/// The machine of the product's cases: disk 0 for a file pool's file system, 1 for thick and 2 for thin volumes. In
/// virtual time: commands run one at a time, and waiting costs nothing.
pub(super) const PROFILE: Profile = Profile {
    name: "host",
    clock: Clock::Virtual,
    init: Init::Script,
    disks: &[
        DiskSpec::new(DiskModel::Fast, 4096),
        DiskSpec::new(DiskModel::Fast, 4096),
        DiskSpec::new(DiskModel::Fast, 4096),
    ],
    memory_mib: 2048,
    cpus: 1,
    kernel_arguments: "",
};

/// [`PROFILE`] on the wall clock, with processors that run in parallel: for races between servers, writers and kills,
/// and for concurrent loads.
pub(super) const SMP: Profile = Profile { name: "smp", clock: Clock::Wall, cpus: 2, ..PROFILE };

/// Directory of the file pool.
pub(super) const FILE_POOL: &str = "/run/filepool/pool";

/// Time limit of a command of the product under emulation.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// The kinds of pool, which are also the names of the pools.
pub(super) const KINDS: [&str; 3] = ["file", "thick", "thin"];

/// A running daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    process: Process,
}

/// Starts the daemon and waits until it answers.
pub(super) async fn start_daemon(ctx: &Ctx, env: &[(&str, &str)]) -> Result<Daemon> {
    let program = ctx.program("bulkhead");
    start_daemon_as(ctx, &[&program, "daemon"], env).await
}

/// Starts the daemon with this command, and waits until it answers.
pub(super) async fn start_daemon_as(ctx: &Ctx, argv: &[&str], env: &[(&str, &str)]) -> Result<Daemon> {
    let process = ctx.machine.spawn(argv, env).await?;
    ctx.machine
        .wait_until("the daemon answers", COMMAND_LIMIT, async || {
            let answer = cli(ctx, &["tenant", "ls"]).await?;
            Ok((answer.status == ExitStatus::Code(0)).then_some(()))
        })
        .await?;
    Ok(Daemon { process })
}

/// Prints the uptime at which a daemon reports readiness (`sd_notify(3)`).
const SUPERVISOR: &str = r"
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind('/run/supervisor')
while 'READY=1' not in s.recv(4096).decode():
    pass
print(open('/proc/uptime').read().split()[0])
";

/// Starts the daemon and waits until it reports readiness to a supervisor, because polling would slow the start down.
/// Also returns the duration of the start on the guest's clock, in seconds.
pub(super) async fn start_daemon_timed(ctx: &Ctx, argv: &[&str], limit: Duration) -> Result<(Daemon, f64)> {
    let supervisor = ctx.machine.spawn(&["python3", "-c", SUPERVISOR], &[]).await?;
    wait_for_socket(ctx, "/run/supervisor").await?;
    let before: f64 = ctx.machine.sh("cut -d' ' -f1 /proc/uptime").await?.trim().parse()?;
    let process = ctx.machine.spawn(argv, &[("NOTIFY_SOCKET", "/run/supervisor")]).await?;
    let ready = supervisor.wait(limit).await?.success("waiting for the daemon")?;
    ctx.machine.sh("rm /run/supervisor").await?;
    Ok((Daemon { process }, ready.stdout.trim().parse::<f64>()? - before))
}

/// Waits until a supervisor has created its socket.
pub(super) async fn wait_for_socket(ctx: &Ctx, socket: &str) -> Result<()> {
    ctx.machine
        .wait_until("the supervisor listens", Duration::from_secs(60), async || {
            let found = ctx.machine.run(&["test", "-S", socket]).await?;
            Ok(found.status.success().then_some(()))
        })
        .await
}

impl Daemon {
    /// Stops it as systemd does, checks that it exits with 0, and returns its log.
    pub(super) async fn stop(self) -> Result<String> {
        self.process.kill(15).await?;
        let output = self.process.wait(COMMAND_LIMIT).await?;
        ensure!(output.status == ExitStatus::Code(0), "the daemon ended with {}: {}", output.status, output.stderr);
        Ok(output.stderr)
    }

    /// Its pid in the guest.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it with SIGKILL.
    pub(super) async fn kill(self) -> Result<()> {
        self.process.kill(9).await?;
        self.process.wait(COMMAND_LIMIT).await?;
        Ok(())
    }

    /// Waits until it ends by itself; returns its output.
    pub(super) async fn ended(self) -> Result<Output> {
        self.process.wait(COMMAND_LIMIT).await
    }
}

/// Runs a `bulkhead` command.
pub(super) async fn cli(ctx: &Ctx, args: &[&str]) -> Result<Output> {
    let program = ctx.program("bulkhead");
    let argv: Vec<&str> = std::iter::once(program.as_str()).chain(args.iter().copied()).collect();
    ctx.machine.run_within(&argv, COMMAND_LIMIT).await
}

/// Fails when the daemon reports a critical finding, or cannot be reached.
pub(super) async fn nothing_is_critical(ctx: &Ctx, when: &str) -> Result<()> {
    let findings = json(ctx, &["host"]).await?["findings"].clone();
    let is_fine = findings.as_array().is_some_and(|all| all.iter().all(|found| found["severity"] != "critical"));
    ensure!(is_fine, "{when}: {findings}");
    Ok(())
}

/// Runs a command, which must succeed; returns its JSON output.
pub(super) async fn json(ctx: &Ctx, args: &[&str]) -> Result<Value> {
    let args: Vec<&str> = ["--output", "json"].into_iter().chain(args.iter().copied()).collect();
    let output = cli(ctx, &args).await?;
    if output.status != ExitStatus::Code(0) {
        bail!("`bulkhead {}` ended with {}: {}", args.join(" "), output.status, output.stderr.trim());
    }
    serde_json::from_str(&output.stdout).with_context(|| format!("`bulkhead {}`: {:?}", args.join(" "), output.stdout))
}

/// Checks that the daemon has no volumes and no tenants.
pub(super) async fn nothing_is_left(ctx: &Ctx) -> Result<()> {
    for noun in ["volume", "tenant"] {
        let left = json(ctx, &[noun, "ls"]).await?;
        ensure!(left == Value::Array(Vec::new()), "{noun}s are left: {left}");
    }
    Ok(())
}

/// Runs a command, which must fail with this exit code and these words in its error.
pub(super) async fn refused(ctx: &Ctx, code: i32, words: &[&str], args: &[&str]) -> Result<()> {
    refused_as(ctx, code, words, &[&[ctx.program("bulkhead").as_str()], args].concat()).await
}

/// [`refused`] for any command.
pub(super) async fn refused_as(ctx: &Ctx, code: i32, words: &[&str], argv: &[&str]) -> Result<()> {
    let output = ctx.machine.run_within(argv, COMMAND_LIMIT).await?;
    let shown = format!("`{}`: {} {:?}", argv.join(" "), output.status, output.stderr);
    ensure!(output.status == ExitStatus::Code(code), "exit code {code} was expected: {shown}");
    for word in words {
        ensure!(output.stderr.contains(word), "{word:?} was expected: {shown}");
    }
    Ok(())
}

/// Checks that the kernel has logged no errors since the case started.
pub(super) async fn kernel_is_silent(ctx: &Ctx) -> Result<()> {
    let complaints = "I/O error|EXT4-fs error|XFS .*(Corruption|shutdown|error)|hung task|WARNING";
    let logged = ctx.machine.sh(&format!("dmesg | grep -E '{complaints}' || true")).await?;
    ensure!(logged.is_empty(), "the kernel logged errors: {logged}");
    Ok(())
}

/// Creates a pool of each of these kinds (of [`KINDS`]), named after its kind; [`unmake_pools`] removes them. LVM pools
/// make `volume ls` slow, so a case creates only those that it uses.
pub(super) async fn make_pools(ctx: &Ctx, kinds: &[&str]) -> Result<()> {
    for kind in kinds {
        let (disk, options) = match *kind {
            "file" => {
                make_file_pool(ctx).await?;
                continue;
            }
            "thick" => (1, &[][..]),
            "thin" => (2, &["--thin"][..]),
            other => bail!("no such kind of pool: {other}"),
        };
        let device = ctx.machine.disk(disk).await?;
        json(ctx, &[&["pool", "create", kind, "--device", &device], options].concat()).await?;
    }
    Ok(())
}

/// Creates the file pool, on disk 0; [`unmake_file_pool`] removes it.
pub(super) async fn make_file_pool(ctx: &Ctx) -> Result<()> {
    let d0 = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("mkfs.ext4 -q {d0}; mkdir -p /run/filepool; mount {d0} /run/filepool")).await?;
    json(ctx, &["pool", "create", "file", "--dir", FILE_POOL]).await?;
    Ok(())
}

/// Has udev leave the devices of volumes alone, by the rules of the package, until /run/udev/rules.d is removed.
pub(super) async fn leave_devices_to_bulkhead(ctx: &Ctx) -> Result<()> {
    let rules = include_str!("../../../../packaging/60-bulkhead.rules");
    ctx.machine.sh("mkdir -p /run/udev/rules.d").await?;
    ctx.machine.write_file("/run/udev/rules.d/60-bulkhead.rules", rules.as_bytes()).await?;
    ctx.machine.sh("udevadm control --reload").await.map(drop)
}

/// Recreates the file pool, which must be empty, with loop devices.
pub(super) async fn use_loop_devices(ctx: &Ctx) -> Result<()> {
    json(ctx, &["pool", "rm", "file"]).await?;
    json(ctx, &["pool", "create", "file", "--dir", FILE_POOL, "--server", "loop"]).await?;
    Ok(())
}

/// Whether the guest's kernel has ublk.
pub(super) async fn has_ublk(ctx: &Ctx) -> Result<bool> {
    Ok(ctx.machine.run(&["modinfo", "ublk_drv"]).await?.status == ExitStatus::Code(0))
}

/// Removes the pools of [`make_pools`], which must be empty, and the file system of the file pool.
pub(super) async fn unmake_pools(ctx: &Ctx, kinds: &[&str]) -> Result<()> {
    for kind in kinds {
        if *kind == "file" {
            unmake_file_pool(ctx).await?;
        } else {
            json(ctx, &["pool", "rm", kind]).await?;
        }
    }
    Ok(())
}

/// Removes the file pool, which must be empty, and its file system.
pub(super) async fn unmake_file_pool(ctx: &Ctx) -> Result<()> {
    json(ctx, &["pool", "rm", "file"]).await?;
    let d0 = ctx.machine.disk(0).await?;
    ctx.machine.sh(&format!("umount /run/filepool; rmdir /run/filepool; wipefs -qa {d0}")).await?;
    Ok(())
}
