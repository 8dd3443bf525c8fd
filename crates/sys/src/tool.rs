//! Runs helper programs (`mkfs.ext4`, `lvm`, `fsck` …): without a shell, with a fixed environment, in a process group
//! of their own, and with a time limit unless it would do harm to kill them.
//!
//! Owns the only place in the shipped programs that starts a helper. Does not interpret what a program prints.

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

/// Where helpers are looked for; the caller's `PATH` is not trusted.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// How long a helper may run unless the caller says otherwise.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(120);

/// How much of a helper's output is kept, in bytes; the rest is read and dropped.
const OUTPUT_LIMIT_BYTES: u64 = 16 << 20;

/// A helper program that could not be run, or failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not installed.
    #[error("{program} is not installed (Debian package {package})")]
    Missing {
        /// Program name.
        program: String,
        /// The Debian package that carries it.
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
    /// The program ended with a failure.
    #[error("{command} failed ({status}): {stderr}")]
    Failed {
        /// The command line, for the log.
        command: String,
        /// How it ended, for example `exit status: 5`.
        status: String,
        /// Exit code, or 128 + the signal's number.
        code: i32,
        /// Last lines of its standard error (or output, when that is empty), control characters removed.
        stderr: String,
    },
    /// The program ran longer than allowed and was killed.
    #[error("{command} did not end within {limit_seconds} s and was killed")]
    TimedOut {
        /// The command line, for the log.
        command: String,
        /// The limit in seconds.
        limit_seconds: u64,
    },
}

/// What a helper program printed, with its exit code (which [`Tool::ok_codes`] allowed).
#[derive(Clone, Debug)]
pub struct ToolOutput {
    /// Exit code.
    pub code: i32,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
}

/// How long a program that was killed has for its end, where that matters: what it has open, others cannot unmount meanwhile.
const END_LIMIT: Duration = Duration::from_secs(2);

/// How often it is asked whether a program is still waited for.
const LOOK: Duration = Duration::from_millis(100);

/// A helper program that runs, and what collects what it says.
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
    /// What is started.
    path: Cow<'static, OsStr>,
    args: Vec<OsString>,
    envs: Vec<(&'static str, OsString)>,
    ok_codes: Vec<i32>,
    limit: Option<Duration>,
    ends_with_us: bool,
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
            ends_with_us: false,
            outlives_shutdown: false,
        }
    }

    /// A run of the program that this process runs, also when its file was replaced.
    #[must_use]
    pub fn this_program() -> Self {
        Self::bulkhead(Path::new("/proc/self/exe"))
    }

    /// A run of the program `bulkhead` that is at `path`.
    #[must_use]
    pub fn bulkhead(path: &Path) -> Self {
        Self { path: Cow::Owned(path.as_os_str().to_owned()), ..Self::new("bulkhead") }
    }

    /// Excludes it from the processes that systemd kills at the end of a shutdown, since file systems may need it until then: an `argv[0]` with
    /// a leading `@` marks a storage daemon (<https://systemd.io/ROOT_STORAGE_DAEMONS>).
    #[must_use]
    pub fn outlives_shutdown(mut self) -> Self {
        self.outlives_shutdown = true;
        self
    }

    /// Adds one argument.
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

    /// Adds a variable to its environment, which otherwise is the same for all.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl AsRef<OsStr>) -> Self {
        self.envs.push((name, value.as_ref().to_owned()));
        self
    }

    /// Exit codes that are not failures (default: only 0).
    #[must_use]
    pub fn ok_codes(mut self, codes: &[i32]) -> Self {
        self.ok_codes = codes.to_vec();
        self
    }

    /// How long it may run (default [`DEFAULT_LIMIT`]).
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// It may run as long as it needs, because killed half way it would leave data or devices unusable.
    #[must_use]
    pub fn unlimited(mut self) -> Self {
        self.limit = None;
        self
    }

    /// It is killed when the thread that runs it ends, however that is: what it works on is of no use to anybody else.
    #[must_use]
    pub fn ends_with_us(mut self) -> Self {
        self.ends_with_us = true;
        self
    }

    /// The command line as text, for logs only: it is never given to a shell.
    #[must_use]
    pub fn command_line(&self) -> String {
        let mut text = self.program.to_owned();
        for arg in &self.args {
            text.push(' ');
            text.push_str(&arg.to_string_lossy());
        }
        text
    }

    /// Runs the program to its end.
    ///
    /// # Errors
    /// [`ToolError`] when the program is missing, cannot start, fails, or runs over its limit (it is then killed and reaped).
    pub fn run(&self) -> Result<ToolOutput, ToolError> {
        let mut started = self.start()?;
        if let Some(limit) = self.limit {
            self.wait_or_kill(&mut started.child, limit)?;
        }
        self.end(started)
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

    /// Waits for its end, and looks at what it said.
    fn end(&self, Started { mut child, stdout, stderr }: Started) -> Result<ToolOutput, ToolError> {
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

    /// Runs the program to its end, unless `goes_on` says that nobody waits for it any more: asked about ten times a second. The
    /// program is killed then, and not waited for: it may be in a system call that no signal ends. One that [ends with us](Self::ends_with_us)
    /// has 2 s for that.
    ///
    /// # Errors
    /// What `goes_on` says; within it, those of [`Tool::run`] but for the limit, which this has not.
    pub fn run_while<E>(&self, goes_on: impl Fn() -> Result<(), E>) -> Result<Result<ToolOutput, ToolError>, E> {
        let mut started = match self.start() {
            Ok(started) => started,
            Err(error) => return Ok(Err(error)),
        };
        loop {
            match process::wait_until_ended(Pid::from_child(&started.child), LOOK) {
                Ok(false) => {}
                Ok(true) => return Ok(self.end(started)),
                Err(source) => return Ok(Err(self.start_error(source))),
            }
            if let Err(why) = goes_on() {
                // Fails only when it has ended meanwhile.
                let _ = started.child.kill();
                if self.ends_with_us
                    && let Ok(true) = process::wait_until_ended(Pid::from_child(&started.child), END_LIMIT)
                {
                    let _ = started.child.wait();
                    return Err(why);
                }
                // Whoever ends last reaps it: this thread, or init after this process.
                thread::spawn(move || started.child.wait());
                return Err(why);
            }
        }
    }

    fn wait_or_kill(&self, child: &mut Child, limit: Duration) -> Result<(), ToolError> {
        let ended = process::wait_until_ended(Pid::from_child(child), limit);
        if let Ok(true) = ended {
            return Ok(());
        }
        // The child is ours and not yet reaped, so the pid cannot have been reused.
        let killed = child.kill().and_then(|()| child.wait());
        ended.and(killed).map_err(|source| self.start_error(source))?;
        Err(ToolError::TimedOut { command: self.command_line(), limit_seconds: limit.as_secs() })
    }

    #[expect(clippy::disallowed_methods, reason = "the one place that starts helper programs")]
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        // LVM complains about every descriptor that it inherits; ours are close-on-exec.
        command.env("LVM_SUPPRESS_FD_WARNINGS", "1");
        command.envs(self.envs.iter().map(|(name, value)| (name, value)));
        // A Ctrl-C at our terminal is for us: it must not end a helper half way.
        command.process_group(0);
        if self.outlives_shutdown {
            command.arg0(format!("@{}", self.program));
        }
        // Our own program raises the limit by itself where it has to, and is started faster without this.
        if *self.path == *self.program {
            // SAFETY: between fork and exec the closure makes two system calls (`prlimit`), and neither allocates nor locks.
            unsafe { command.pre_exec(process::reset_open_files) };
        }
        if self.ends_with_us {
            // SAFETY: between fork and exec the closure makes one system call (`prctl`), and neither allocates nor locks.
            unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// The path of a program in [`PATH`], when it is installed.
#[must_use]
pub fn find_program(program: &str) -> Option<std::path::PathBuf> {
    PATH.split(':').map(|dir| std::path::Path::new(dir).join(program)).find(|path| path.is_file())
}

/// The Debian package that carries a program, for error messages.
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
        // A read error ends the output early; the exit code still decides.
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
