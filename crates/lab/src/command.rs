//! Creation of all commands of the lab, on the host and in the guest, and running one to completion.
//!
//! Does not: choose the commands. No shell is involved unless a caller names one.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Directories searched in addition to `PATH`, which may lack root's tools.
const SYSTEM_DIRS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Creates a command, for this crate and for `xtask`.
#[expect(clippy::disallowed_methods, reason = "the lab and its agent run programs; all are created here")]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// Finds a program in `PATH` and the system directories.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(SYSTEM_DIRS.iter().map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// `PATH` with the system directories appended.
fn search_path() -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).chain(SYSTEM_DIRS.iter().map(PathBuf::from)).collect();
    std::env::join_paths(dirs).unwrap_or(path)
}

/// Runs a host command to completion under a time limit, and returns its standard output.
///
/// The command gets its own process group, which is killed when the limit is exceeded or the future is dropped.
///
/// # Errors
/// When it cannot be started, exceeds the limit or fails; the message includes the end of its error output.
pub async fn output(command: Command, what: &str, limit: Duration) -> Result<String> {
    let output = finish(command, what, limit).await?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{what} failed ({}):\n{}", output.status, last_lines(&stderr, 15));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn finish(mut command: Command, what: &str, limit: Duration) -> Result<Output> {
    use std::os::unix::process::CommandExt as _;
    command.process_group(0);
    command.env("PATH", command_path(&command));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_owned();
    let mut command = tokio::process::Command::from(command);
    let child = command
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {} for: {what}", program.display()))?;
    let group = GroupKiller::new(child.id());
    let result = tokio::time::timeout(limit, child.wait_with_output()).await;
    let Ok(output) = result else {
        bail!("{what} did not end within {} s (command {})", limit.as_secs(), program.display());
    };
    group.disarm();
    output.with_context(|| format!("cannot wait for: {what}"))
}

fn command_path(command: &Command) -> std::ffi::OsString {
    let own = command.get_envs().find(|(key, _)| *key == OsStr::new("PATH"));
    match own {
        Some((_, Some(path))) => path.to_owned(),
        _ => search_path(),
    }
}

/// Kills a whole process group when dropped while armed.
#[derive(Debug)]
pub(crate) struct GroupKiller {
    leader: Option<rustix::process::Pid>,
}

impl GroupKiller {
    pub(crate) fn new(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        Self { leader }
    }

    /// Kills the group. Harmless if it has ended.
    pub(crate) fn kill(&self) {
        if let Some(leader) = self.leader {
            // The only possible error is that the group has ended already.
            let _ = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }

    /// The group has ended by itself.
    pub(crate) fn disarm(mut self) {
        self.leader = None;
    }
}

impl Drop for GroupKiller {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `count` lines of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
