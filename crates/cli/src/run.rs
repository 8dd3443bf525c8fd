//! `bulkhead run`: runs a command in a tenant, with volumes that are mounted for it alone.
//!
//! Owns: the order of the steps. First, leases: the daemon mounts the volumes. Then this program is started again (`__enter`), requests its
//! own cgroup from the daemon, so that background processes of the command can be found and killed, and executes the command (see
//! `bulkhead_sys::namespace`). When the command ends, the daemon kills its remaining processes and ends the leases; it also does so by
//! itself if this process is killed.

use std::error::Error;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::routes::Run;
use bulkhead_api::wire::{LeaseCreate, LeaseView, RunStart};
use bulkhead_core::error::{Code, Fault, chain};
use bulkhead_sys::namespace::{self, Bind, EnterSpec, SuperviseSpec};
use rustix::process::Signal;

use crate::args::{EnterArgs, RunArgs};
use crate::output::Output;
use crate::parse::{self, RunVolume, invalid};
use crate::{block_on, commands};

/// How long to wait for a daemon that is being restarted.
const RESTART: Duration = Duration::from_secs(2);

/// The exit code of failures before the command starts, as in `env`, `timeout` and `docker run`. Other exit codes are the command's.
const NOT_RUN: u8 = 125;

/// Runs the command and returns its exit code, or prints why it cannot be started and returns [`NOT_RUN`].
pub(crate) fn run(args: &RunArgs, client: &Client, output: &Output) -> ExitCode {
    run_command(args, client, output).unwrap_or_else(|fault| {
        output.fail(&fault);
        ExitCode::from(NOT_RUN)
    })
}

fn run_command(args: &RunArgs, client: &Client, output: &Output) -> Result<ExitCode, Fault> {
    let tenant = parse::tenant_name(&args.tenant)?;
    let wanted: Vec<RunVolume> = args.volumes.iter().map(|text| parse::run_volume(text)).collect::<Result<_, _>>()?;
    for (i, volume) in wanted.iter().enumerate() {
        check_target(&volume.target)?;
        if wanted[..i].iter().any(|other| other.target == volume.target) {
            return Err(invalid(
                format!("directory {}", volume.target.display()),
                "two volumes would be mounted there",
            ));
        }
    }
    let run = Run { tenant: tenant.clone(), pid: std::process::id() };
    let reply = block_on(async {
        let mut volumes = Vec::with_capacity(wanted.len());
        for volume in &wanted {
            volumes.push(commands::resolve(client, volume.volume.clone()).await?);
        }
        client
            .lease_create(&LeaseCreate { tenant, volumes, pid: Some(run.pid), user: None, selinux_context: None })
            .await
    })?;
    let raw = reply.leases.iter().find(|lease| is_device(&lease.mounted_at));
    if let Some(LeaseView { volume, .. }) = raw {
        end(client, &run, output);
        let cause = "it is a raw volume, which cannot be mounted on a directory";
        return Err(invalid(format!("volume {volume}"), cause).hint(format!(
            "attach it (`bulkhead tenant set {} --attach {volume}`), and use its device at the path that `bulkhead volume inspect` shows",
            run.tenant
        )));
    }
    let mut command_line = enter_args(&run, &wanted, &reply.leases, client, output);
    command_line.extend_from_slice(&args.command);
    let spec = SuperviseSpec {
        program: PathBuf::from("/proc/self/exe"),
        arg0: "bulkhead".into(),
        args: command_line,
        death_signal: Some(Signal::TERM),
    };
    let outcome = namespace::supervise(&spec).map_err(|error| failed("command", &error));
    end(client, &run, output);
    outcome.map(|outcome| ExitCode::from(outcome.code))
}

/// Whether the daemon has bound the node of a raw volume's device there.
fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn check_target(target: &Path) -> Result<(), Fault> {
    let object = format!("directory {}", target.display());
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(invalid(object, "it is not a directory").hint("volumes are mounted on directories")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Fault::new(Code::NotFound, object, "it does not exist")
                .hint(format!("create it first: `mkdir -p {}`", target.display())))
        }
        Err(error) => Err(invalid(object, format!("it cannot be used ({error})"))),
    }
}

/// The arguments of `__enter` up to the command. A directory comes before its subdirectories, which it would hide otherwise.
fn enter_args(
    run: &Run,
    wanted: &[RunVolume],
    leases: &[LeaseView],
    client: &Client,
    output: &Output,
) -> Vec<OsString> {
    let format = if output.is_json() { "json" } else { "table" };
    let mut args = vec!["__enter".into(), "--output".into(), format.into(), "--socket".into(), client.socket().into()];
    if let Some(wait) = client.wait() {
        args.extend(["--wait".into(), wait.as_secs().to_string().into()]);
    }
    args.extend(["--tenant".into(), run.tenant.to_string().into(), "--run".into(), run.pid.to_string().into()]);
    let mut binds: Vec<(&RunVolume, &LeaseView)> = wanted.iter().zip(leases).collect();
    binds.sort_by_key(|(volume, _)| volume.target.components().count());
    for (volume, lease) in binds {
        let mode = if volume.read_only { "ro" } else { "rw" };
        let (source, target) = (lease.mounted_at.clone().into_os_string(), volume.target.clone().into_os_string());
        args.extend(["--bind".into(), source, target, mode.into()]);
    }
    args.push("--".into());
    args
}

/// Requests that the daemon kill the command's remaining processes and end the leases. A failure is only a warning, because the daemon
/// also cleans up runs whose processes are gone.
fn end(client: &Client, run: &Run, output: &Output) {
    let outcome = block_on(async {
        match client.run_end(run).await {
            Err(fault) if fault.code == Code::Unavailable => {
                tokio::time::sleep(RESTART).await;
                client.run_end(run).await
            }
            other => other,
        }
    });
    if let Err(fault) = outcome {
        let cause = format!("cleaning up after the command failed; the daemon will try again ({fault})");
        output.warn(&Fault::new(fault.code, format!("tenant {}", run.tenant), cause));
    }
}

/// Executes the command in this process. Returns only if that fails.
pub(crate) fn enter(args: EnterArgs, client: &Client, output: &Output) -> ExitCode {
    let started = parse::tenant_name(&args.tenant).and_then(|tenant| {
        block_on(client.run_start(&tenant, &RunStart { pid: args.run, command_pid: std::process::id() }))
    });
    if let Err(fault) = started {
        output.fail(&fault);
        return ExitCode::from(NOT_RUN);
    }
    let bind = |part: &[OsString]| match part {
        [source, target, mode] => Some(Bind { source: source.into(), target: target.into(), readonly: mode == "ro" }),
        _ => None,
    };
    let spec = EnterSpec {
        binds: args.bind.chunks(3).filter_map(bind).collect(),
        cwd: None,
        argv: args.command,
        env: std::env::vars_os().collect(),
    };
    let Err(error) = namespace::enter_and_exec(&spec);
    let code = error.exit_code();
    // The exit code follows shells and not the fault: 127 not found, 126 not executable, 125 not attempted.
    let fault = match code {
        126 | 127 => invalid("command", chain(&error)),
        _ => failed("command", &error),
    };
    output.fail(&fault);
    ExitCode::from(code)
}

/// The fault of an error from `sys`.
fn failed(object: &str, error: &(dyn Error + 'static)) -> Fault {
    let denied = |error: &(dyn Error + 'static)| {
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    if std::iter::successors(Some(error), |&error| error.source()).any(denied) {
        return Fault::new(Code::PermissionDenied, object, chain(error)).hint("`bulkhead run` needs root");
    }
    Fault::new(Code::Internal, object, chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;

    #[test]
    fn a_directory_is_mounted_before_its_subdirectories() {
        let wanted: Vec<RunVolume> =
            ["b:/srv/sub", "c:/srv/sub/deep:ro", "a:/srv/"].map(|text| parse::run_volume(text).unwrap()).into();
        let lease = |name: &str| {
            let (id, volume) = ("01234567-89ab-cdef-0123-456789abcdef", format!("p/{name}"));
            let view =
                serde_json::json!({"id": id, "volume": volume, "tenant": "db", "mounted_at": format!("/mnt/{name}")});
            serde_json::from_value::<LeaseView>(view).unwrap()
        };
        let run = Run { tenant: "db".parse().unwrap(), pid: 7 };
        let client = Client::new("/run/s").with_wait(Duration::from_secs(5));
        let args = enter_args(&run, &wanted, &["b", "c", "a"].map(lease), &client, &Output::new(Format::Json));
        let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(
            words.join(" "),
            "__enter --output json --socket /run/s --wait 5 --tenant db --run 7 --bind /mnt/a /srv/ rw \
             --bind /mnt/b /srv/sub rw --bind /mnt/c /srv/sub/deep ro --"
        );
    }
}
