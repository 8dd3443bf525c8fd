//! Long-running children of an experiment (loads, a database): in a cgroup from their first instruction, and always killed in the end.
//!
//! Owns the child's lifetime: it is killed when its [`Running`] is dropped, and by the kernel when the *thread* that started it exits
//! (`PR_SET_PDEATHSIG`), so start it from a thread that outlives it. Helper programs are run by [`crate::tool`], a user's payload by
//! [`crate::namespace`].

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal};

use crate::process;

/// Size of the tail of a child's standard error that is kept, in bytes.
const STDERR_BYTES: usize = 16 << 10;

/// The program to start, and its cgroup.
#[derive(Clone, Debug, Default)]
pub struct SpawnSpec {
    /// The program; without a slash it is looked up in [`crate::tool::PATH`].
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Environment variables, in addition to `PATH` and `LC_ALL=C`; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Directory of its cgroup; `None` for ours.
    pub cgroup: Option<PathBuf>,
}

/// A child could not be started or watched.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The cgroup could not be opened.
    #[error("cannot open cgroup {dir} for {program}")]
    Cgroup {
        /// The program.
        program: PathBuf,
        /// Directory of the cgroup.
        dir: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The program could not be started, or could not join its cgroup.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Communication with the child failed.
    #[error("cannot communicate with process {pid} ({program})")]
    Reach {
        /// The program.
        program: PathBuf,
        /// The child.
        pid: u32,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// Result of reading a line of a child's standard output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdout {
    /// A line, without its newline.
    Line(String),
    /// No line within the time limit.
    Timeout,
    /// The child closed its standard output or has exited.
    Closed,
}

/// A running child. It is killed and reaped on drop.
#[derive(Debug)]
pub struct Running {
    program: PathBuf,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    reaped: bool,
}

/// Starts a child in its own process group, so that a Ctrl-C reaches only us.
///
/// # Errors
/// [`SpawnError::Cgroup`], [`SpawnError::Start`].
#[expect(clippy::disallowed_methods, reason = "the one place that starts an experiment's children")]
pub fn spawn(spec: &SpawnSpec) -> Result<Running, SpawnError> {
    let program = spec.program.clone();
    let start_error = |source| SpawnError::Start { program: program.clone(), source };
    let procs: Option<OwnedFd> = match &spec.cgroup {
        None => None,
        Some(dir) => {
            let opened = OpenOptions::new().write(true).open(dir.join("cgroup.procs"));
            Some(
                opened
                    .map_err(|source| SpawnError::Cgroup { program: program.clone(), dir: dir.clone(), source })?
                    .into(),
            )
        }
    };
    let mut command = Command::new(&spec.program);
    command.args(&spec.args).env_clear().env("PATH", crate::tool::PATH).env("LC_ALL", "C");
    command.envs(spec.env.iter().map(|(key, value)| (key, value))).current_dir("/").process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let prepare = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(procs) = &procs {
            // "0" moves the writing process (cgroup_procs_write), which is the child.
            rustix::io::write(procs.as_fd(), b"0")?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls on values that it owns (prctl, write); it does not allocate, lock or
    // access state of other threads.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().map_err(start_error)?;
    let (sender, lines) = channel();
    let stderr: Arc<Mutex<Vec<u8>>> = Arc::default();
    let mut readers = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        readers.push(std::thread::spawn(move || {
            let mut line = Vec::new();
            // Ends with the pipe, or when the receiver is dropped.
            for byte in BufReader::new(stdout).bytes().map_while(Result::ok) {
                if byte != b'\n' && byte != b'\r' {
                    line.push(byte);
                } else if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                } else {
                    line.clear();
                }
            }
            if !line.is_empty() {
                // As above, it does not matter if nobody reads it.
                let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            }
        }));
    }
    if let Some(mut pipe) = child.stderr.take() {
        let kept = Arc::clone(&stderr);
        readers.push(std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(n @ 1..) = pipe.read(&mut buffer) {
                let Ok(mut kept) = kept.lock() else { break };
                kept.extend(&buffer[..n]);
                let surplus = kept.len().saturating_sub(STDERR_BYTES);
                kept.drain(..surplus);
            }
        }));
    }
    let stdin = child.stdin.take();
    Ok(Running { program, child, stdin, lines, stderr, readers, reaped: false })
}

impl Running {
    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to its standard input.
    ///
    /// # Errors
    /// [`SpawnError::Reach`], also if the child has exited or its input was closed.
    pub fn write_stdin(&mut self, bytes: &[u8]) -> Result<(), SpawnError> {
        let written = match &mut self.stdin {
            Some(stdin) => stdin.write_all(bytes).and_then(|()| stdin.flush()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|source| self.unreachable(source))
    }

    /// Closes its standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Reads the next line of its standard output. A carriage return also ends one, as programs with a progress bar print it.
    #[must_use]
    pub fn read_line(&self, limit: Duration) -> Stdout {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Stdout::Line(line),
            Err(RecvTimeoutError::Timeout) => Stdout::Timeout,
            Err(RecvTimeoutError::Disconnected) => Stdout::Closed,
        }
    }

    /// The tail of its standard error.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.lock().map(|kept| String::from_utf8_lossy(&kept).trim().to_owned()).unwrap_or_default()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// [`SpawnError::Reach`].
    pub fn signal(&self, signal: Signal) -> Result<(), SpawnError> {
        // Our child is not reaped yet, so its pid cannot have been reused.
        pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .and_then(|pidfd| pidfd_send_signal(&pidfd, signal))
            .map_err(|errno| self.unreachable(errno.into()))
    }

    /// Sends it `SIGTERM`.
    ///
    /// # Errors
    /// [`SpawnError::Reach`].
    pub fn terminate(&self) -> Result<(), SpawnError> {
        self.signal(Signal::TERM)
    }

    /// Waits for its exit; returns the exit code (128 + signal), or `None` on timeout.
    ///
    /// # Errors
    /// [`SpawnError::Reach`].
    pub fn wait(&mut self, limit: Duration) -> Result<Option<i32>, SpawnError> {
        let ended = self.poll_end(limit).map_err(|source| self.unreachable(source))?;
        if !ended {
            return Ok(None);
        }
        let status = self.child.wait().map_err(|source| self.unreachable(source))?;
        self.reaped = true;
        use std::os::unix::process::ExitStatusExt;
        Ok(Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))))
    }

    fn poll_end(&self, limit: Duration) -> io::Result<bool> {
        if self.reaped {
            return Ok(true);
        }
        process::wait_until_ended(Pid::from_child(&self.child), limit)
    }

    fn unreachable(&self, source: io::Error) -> SpawnError {
        SpawnError::Reach { program: self.program.clone(), pid: self.child.id(), source }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stdin = None;
        if !self.reaped {
            // Both fail only if the child has exited.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // A grandchild may keep the pipes open: then the readers are left running.
        for reader in self.readers.drain(..) {
            if reader.is_finished() {
                let _ = reader.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> SpawnSpec {
        SpawnSpec { program: "sh".into(), args: vec!["-c".into(), script.into()], ..SpawnSpec::default() }
    }

    #[test]
    fn a_progress_bar_has_lines() {
        let child = spawn(&shell(r"printf 'one\rtwo\nthree'")).unwrap();
        for line in ["one", "two", "three"] {
            assert_eq!(child.read_line(SOON), Stdout::Line(line.into()));
        }
        assert_eq!(child.read_line(SOON), Stdout::Closed);
    }

    #[test]
    fn a_childs_input_output_and_exit_code_are_available() {
        let mut child = spawn(&shell("echo ready; read word; echo got $word; echo oops >&2; exit 3")).unwrap();
        assert_eq!(child.read_line(SOON), Stdout::Line("ready".into()));
        assert_eq!(child.read_line(Duration::from_millis(10)), Stdout::Timeout);
        child.write_stdin(b"go\n").unwrap();
        assert_eq!(child.read_line(SOON), Stdout::Line("got go".into()));
        assert_eq!(child.read_line(SOON), Stdout::Closed);
        assert_eq!(child.wait(SOON).unwrap(), Some(3));
        assert_eq!(child.wait(SOON).unwrap_or(Some(3)), Some(3));
    }

    #[test]
    fn a_child_is_killed_on_drop() {
        let child = spawn(&shell("echo ready; exec sleep 60")).unwrap();
        assert_eq!(child.read_line(SOON), Stdout::Line("ready".into()));
        let pid = child.pid();
        drop(child);
        let roots = crate::roots::Roots::host();
        assert_eq!(crate::process::start_time(&roots, pid), None);
    }

    #[test]
    fn a_child_joins_its_cgroup_before_exec() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.procs"), "").unwrap();
        let spec = SpawnSpec { cgroup: Some(dir.path().to_owned()), ..shell("exit 0") };
        let mut child = spawn(&spec).unwrap();
        assert_eq!(child.wait(SOON).unwrap(), Some(0));
        assert_eq!(std::fs::read_to_string(dir.path().join("cgroup.procs")).unwrap(), "0");
        let missing = SpawnSpec { cgroup: Some(dir.path().join("none")), ..shell("exit 0") };
        assert!(matches!(spawn(&missing), Err(SpawnError::Cgroup { .. })));
    }

    #[test]
    fn an_error_on_start_names_the_program() {
        let error = spawn(&SpawnSpec { program: "no-such-program".into(), ..SpawnSpec::default() }).unwrap_err();
        assert_eq!(error.to_string(), "cannot start no-such-program");
    }
}
