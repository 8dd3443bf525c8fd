//! Running helper programs (`mkfs.ext4`, `lvm`, `fsck` …): without a shell, with a fixed environment, in their own process group, and
//! with a time limit unless killing them would do harm.
//!
//! Owns the only place in the shipped programs that starts helpers. Does not interpret their output.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, set_parent_process_death_signal};

use crate::process;

/// Search path for helpers; the caller's `PATH` is not trusted.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Default time limit of a helper.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// Size limit of a helper's output, in bytes; the rest is read and discarded.
const OUTPUT_LIMIT_BYTES: u64 = 16 << 20;

/// A helper program could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not installed.
    #[error("{program} is not installed (Debian package {package})")]
    Missing {
        /// Program name.
        program: String,
        /// The Debian package that contains it.
        package: &'static str,
    },
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Program name.
        program: String,
        /// The operating system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The program failed.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// The command line, for the log.
        command: String,
        /// Its exit status, for example `exit status: 5`.
        status: String,
        /// Exit code, or 128 + the signal's number.
        code: i32,
        /// Last lines of its standard error (or output, if that is empty), without control characters.
        stderr: String,
    },
    /// The program exceeded its time limit and was killed.
    #[error("{command} did not finish within {limit_seconds} s and was killed")]
    TimedOut {
        /// The command line, for the log.
        command: String,
        /// The limit in seconds.
        limit_seconds: u64,
    },
}

/// Output and exit code of a helper program (a code accepted by [`Tool::ok_codes`]).
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// Exit code.
    pub code: i32,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
}

/// Time limit for the exit of a killed program, if that matters: its open files keep file systems busy.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Interval at which [`Tool::run_while`] checks its condition.
const CHECK_PAUSE: Duration = Duration::from_millis(100);

/// A running helper program, and the threads that read its output.
struct Started {
    child: Child,
    stdout: Option<thread::JoinHandle<Vec<u8>>>,
    stderr: Option<thread::JoinHandle<Vec<u8>>>,
}

/// One run of a helper program.
#[derive(Clone, Debug)]
pub struct Tool {
    /// Its name, for messages.
    program: &'static str,
    /// The file to execute.
    path: Cow<'static, OsStr>,
    args: Vec<OsString>,
    envs: Vec<(&'static str, OsString)>,
    ok_codes: Vec<i32>,
    limit: Option<Duration>,
    dies_with_parent: bool,
    outlives_shutdown: bool,
}

impl Tool {
    /// A run of `program`, found in [`PATH`].
    #[must_use]
    pub fn new(program: &'static str) -> Self {
        Self {
            program,
            path: Cow::Borrowed(OsStr::new(program)),
            args: Vec::new(),
            envs: Vec::new(),
            ok_codes: vec![0],
            limit: Some(DEFAULT_LIMIT),
            dies_with_parent: false,
            outlives_shutdown: false,
        }
    }

    /// A run of this process's program, also if its file was replaced.
    #[must_use]
    pub fn this_program() -> Self {
        Self::bulkhead(Path::new("/proc/self/exe"))
    }

    /// A run of the program `bulkhead` at `path`.
    #[must_use]
    pub fn bulkhead(path: &Path) -> Self {
        Self { path: Cow::Owned(path.as_os_str().to_owned()), ..Self::new("bulkhead") }
    }

    /// Excludes it from the processes that systemd kills late in a shutdown, since mounted file systems may still need it: an `argv[0]`
    /// with a leading `@` marks a storage daemon (<https://systemd.io/ROOT_STORAGE_DAEMONS>).
    #[must_use]
    pub fn outlives_shutdown(mut self) -> Self {
        self.outlives_shutdown = true;
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Adds a variable to the fixed environment.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name, value.as_ref().to_owned()));
        self
    }

    /// Sets the exit codes that count as success (default: only 0).
    #[must_use]
    pub fn ok_codes(mut self, codes: &[i32]) -> Self {
        self.ok_codes = codes.to_vec();
        self
    }

    /// Sets its time limit (default [`DEFAULT_LIMIT`]).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Removes its time limit, because killing it would leave data or devices unusable.
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        self.limit = None;
        self
    }

    /// Has it killed when the thread that runs it exits, for any reason, since its result would be unused.
    #[must_use]
    pub fn dies_with_parent(mut self) -> Self {
        self.dies_with_parent = true;
        self
    }

    /// The command line as text, for logs only; it is never passed to a shell.
    #[must_use]
    pub fn command_line(&self) -> String {
        let mut text = self.program.to_owned();
        for arg in &self.args {
            text.push(' ');
            text.push_str(&arg.to_string_lossy());
        }
        text
    }

    /// Runs the program and waits for its exit.
    ///
    /// # Errors
    /// [`ToolError`] if the program is missing, cannot start, fails, or exceeds its time limit (it is then killed and reaped).
    pub fn run(&self) -> Result<ToolOutput, ToolError> {
        let mut started = self.start()?;
        if let Some(limit) = self.limit {
            self.wait_or_kill(&mut started.child, limit)?;
        }
        self.finish(started)
    }

    fn start(&self) -> Result<Started, ToolError> {
        let mut child = self.command().spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                ToolError::Missing { program: self.program.to_owned(), package: package_of(self.program) }
            }
            _ => self.start_error(error),
        })?;
        let (stdout, stderr) = (child.stdout.take().map(drain), child.stderr.take().map(drain));
        Ok(Started { child, stdout, stderr })
    }

    /// Waits for its exit, and evaluates the exit code.
    fn finish(&self, Started { mut child, stdout, stderr }: Started) -> Result<ToolOutput, ToolError> {
        let status = child.wait().map_err(|source| self.start_error(source))?;
        let collect = |reader: Option<thread::JoinHandle<Vec<u8>>>| {
            let bytes = reader.and_then(|handle| handle.join().ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (collect(stdout), collect(stderr));
        let code = exit_code(status);
        tracing::debug!(command = %self.command_line(), code, "helper ended");
        if self.ok_codes.contains(&code) {
            return Ok(ToolOutput { code, stdout, stderr });
        }
        let text = if stderr.trim().is_empty() { &stdout } else { &stderr };
        Err(ToolError::Failed {
            command: self.command_line(),
            status: status.to_string(),
            code,
            stderr: last_lines(text, 6),
        })
    }

    fn start_error(&self, source: std::io::Error) -> ToolError {
        ToolError::Start { program: self.program.to_owned(), source }
    }

    /// Runs the program while `condition` is `Ok`, without a time limit; checks it about ten times per second. On an error the program
    /// is killed, but not waited for, as it may be in an uninterruptible system call. One that [dies with its
    /// parent](Self::dies_with_parent) is waited for up to 2 s.
    ///
    /// # Errors
    /// The error of `condition`; in the inner result, those of [`Tool::run`] except for the time limit.
    pub fn run_while<E>(&self, condition: impl Fn() -> Result<(), E>) -> Result<Result<ToolOutput, ToolError>, E> {
        let mut started = match self.start() {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            match process::wait_until_ended(Pid::from_child(&started.child), CHECK_PAUSE) {
                Ok(false) => {}
                Ok(true) => return Ok(self.finish(started)),
                Err(source) => return Ok(Err(self.start_error(source))),
            }
            if let Err(reason) = condition() {
                // Fails only if it has exited meanwhile.
                let _ = started.child.kill();
                if self.dies_with_parent
                    && let Ok(true) = process::wait_until_ended(Pid::from_child(&started.child), END_LIMIT)
                {
                    let _ = started.child.wait();
                    return Err(reason);
                }
                // Reaped by this thread, or by init if this process exits first.
                thread::spawn(move || started.child.wait());
                return Err(reason);
            }
        }
    }

    fn wait_or_kill(&self, child: &mut Child, limit: Duration) -> Result<(), ToolError> {
        let ended = process::wait_until_ended(Pid::from_child(child), limit);
        if let Ok(true) = ended {
            return Ok(());
        }
        // Our child is not reaped yet, so its pid cannot have been reused.
        let killed = child.kill().and_then(|()| child.wait());
        ended.and(killed).map_err(|source| self.start_error(source))?;
        Err(ToolError::TimedOut { command: self.command_line(), limit_seconds: limit.as_secs() })
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that starts helper programs")]
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        // LVM warns about inherited descriptors; ours are close-on-exec.
        command.env("LVM_SUPPRESS_FD_WARNINGS", "1");
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        // A Ctrl-C at our terminal must not interrupt a helper.
        command.process_group(0);
        if self.outlives_shutdown {
            command.arg0(format!("@{}", self.program));
        }
        // This program raises the limit itself if it has to, and starts faster without this.
        if *self.path == *self.program {
            // SAFETY: between fork and exec the closure makes two system calls (`prlimit`), and neither allocates nor locks.
            unsafe { command.pre_exec(process::reset_open_files) };
        }
        if self.dies_with_parent {
            // SAFETY: between fork and exec the closure makes one system call (`prctl`), and neither allocates nor locks.
            unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// The path of a program in [`PATH`], if it is installed.
#[must_use]
pub fn find_program(program: &str) -> Option<std::path::PathBuf> {
    PATH.split(':').map(|dir| std::path::Path::new(dir).join(program)).find(|path| path.is_file())
}

/// The Debian package that contains a program, for error messages.
#[must_use]
pub fn package_of(program: &str) -> &'static str {
    match program {
        "lvm" | "lvs" | "vgs" => "lvm2",
        "dmsetup" => "dmsetup",
        "thin_check" | "thin_delta" => "thin-provisioning-tools",
        p if p.ends_with(".xfs") || p.starts_with("xfs_") => "xfsprogs",
        "resize2fs" | "e2fsck" | "tune2fs" | "dumpe2fs" | "debugfs" | "mkfs.ext4" => "e2fsprogs",
        "fio" => "fio",
        "sysbench" => "sysbench",
        "mariadbd" | "mariadb" | "mariadb-install-db" | "mariadb-admin" => "mariadb-server",
        "modprobe" => "kmod",
        _ => "util-linux",
    }
}

fn drain(mut stream: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        // A read error truncates the output; the exit code still determines the result.
        let _ = stream.by_ref().take(OUTPUT_LIMIT_BYTES).read_to_end(&mut kept);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        kept
    })
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn last_lines(text: &str, n: usize) -> String {
    let clean: String = text.chars().filter(|c| !c.is_control() || *c == '\n').collect();
    let lines: Vec<&str> = clean.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(n)..].join("; ")
}

#[cfg(test)]
mod tests;
