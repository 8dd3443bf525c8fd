//! A process with volumes bound into its own mount namespace, and its supervisor (`bulkhead run`).
//!
//! Owns both halves: [`supervise`] runs in the process that the user started, and spawns this program again; there a hidden subcommand
//! calls [`enter_and_exec`], which becomes the payload. Does not choose the cgroup or the volumes.
//!
//! # Signals
//! The payload stays in the supervisor's process group, so that job control works: the terminal's Ctrl-C, Ctrl-\ and Ctrl-Z reach both.
//! Signals of the terminal are sent by the kernel (`si_code` is `SI_KERNEL`). While the payload is in our process group they are not
//! forwarded, or it would receive them twice. A hang-up of the terminal is different: it reaches only the session leader (kernel
//! `tty_signal_session_leader`), usually a shell, which forwards it. If the supervisor is the session leader itself, it forwards it. A
//! signal sent by a process with `kill` (`SI_USER`, `SI_QUEUE`, `SI_TKILL`) is forwarded, unless the payload sent it (`kill 0` in a
//! script). The sender's pid is not sufficient to decide this: it is 0 for the kernel, but also for a process outside our PID
//! namespace. A `kill` of the whole process group cannot be distinguished from one of the supervisor alone, so the payload then
//! receives the signal twice rather than not at all.
//!
//! # A killed supervisor
//! After `kill -9` of the supervisor the kernel sends the payload [`SuperviseSpec::death_signal`] (`PR_SET_PDEATHSIG`). The payload's
//! children do not receive it, and the kernel clears it if the payload executes a set-user-ID program or one with file capabilities, or
//! changes its user. Surviving processes are still in the cgroup: `cgroup.procs` lists them, and [`crate::cgroup::kill_all`] kills
//! them.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::mount::{self, MountError};
use crate::raw::{self, SIGNALFD_SIGINFO_BYTES, SignalSet};

/// The signals that a supervisor forwards.
pub const FORWARDED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// `si_code` of a signal sent by the kernel, such as the terminal's (`<asm-generic/siginfo.h>`).
const SI_KERNEL: i32 = 0x80;

/// A bind mount for the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The source, a directory or file.
    pub source: PathBuf,
    /// The target, which must exist.
    pub target: PathBuf,
    /// Whether the bind is read-only.
    pub readonly: bool,
}

/// The payload and its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnterSpec {
    /// Bind mounts, applied in this order. Without any, the mount namespace is not unshared.
    pub binds: Vec<Bind>,
    /// Working directory, resolved after the binds; `None` keeps the present path.
    pub cwd: Option<PathBuf>,
    /// Program and arguments. A program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The whole environment of the payload.
    pub env: Vec<(OsString, OsString)>,
}

/// The payload could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// The argument vector is empty.
    #[error("no command to run")]
    NoCommand,
    /// The mount namespace could not be unshared.
    #[error("cannot unshare the mount namespace")]
    Unshare {
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A mount operation in the new mount namespace failed.
    #[error("cannot set up the mount namespace")]
    Mount {
        /// The cause.
        #[source]
        source: MountError,
    },
    /// The working directory cannot be entered.
    #[error("cannot enter directory {dir}")]
    Chdir {
        /// The directory.
        dir: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The program cannot be executed.
    #[error("cannot execute {}", .program.display())]
    Exec {
        /// The program as given.
        program: OsString,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

impl EnterError {
    /// The exit code by the convention of shells and `docker run`: 127 if the program does not exist, 126 if it cannot be executed, 125 for
    /// earlier failures.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 125,
        }
    }
}

/// The child that a supervisor starts.
#[derive(Clone, Debug)]
pub struct SuperviseSpec {
    /// The program, usually `/proc/self/exe`.
    pub program: PathBuf,
    /// Its `argv[0]`.
    pub arg0: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Signal that the kernel sends to the child when the supervisor dies; `None` for no signal.
    pub death_signal: Option<Signal>,
}

/// How a supervised process exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitOutcome {
    /// Its exit code, or 128 + the number of the signal that killed it, as shells report it.
    pub code: u8,
    /// The number of the signal that killed it.
    pub signal: Option<i32>,
}

/// The supervisor could not start or watch its child.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The signals could not be redirected to the supervisor.
    #[error("cannot set up signal forwarding for {program}")]
    Signals {
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The child could not be started.
    #[error("cannot start {program}")]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The child, which may still be running, cannot be watched.
    #[error("cannot wait for process {pid} ({program})")]
    Wait {
        /// The child.
        pid: u32,
        /// The program.
        program: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
}

/// Becomes the payload: creates a mount namespace that receives the host's mounts but propagates none, applies the binds, and executes the
/// program. Does not return on success.
///
/// For a new process with a single thread. After an error the process is in an intermediate state and must exit.
///
/// # Errors
/// [`EnterError`]; its [`EnterError::exit_code`] is the code to exit with.
pub fn enter_and_exec(spec: &EnterSpec) -> Result<Infallible, EnterError> {
    let (program, args) = spec.argv.split_first().ok_or(EnterError::NoCommand)?;
    // Entered again below, because a bind may have hidden it. A deleted directory is kept.
    let cwd = spec.cwd.clone().or_else(|| std::env::current_dir().ok());
    if !spec.binds.is_empty() {
        // SAFETY: CLONE_NEWNS unshares no descriptor table, which is the only hazard that the function names.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(|errno| EnterError::Unshare { source: errno.into() })?;
        let error = |source| EnterError::Mount { source };
        mount::make_slave(Path::new("/")).map_err(error)?;
        for bind in &spec.binds {
            mount::bind(&bind.source, &bind.target, bind.readonly).map_err(error)?;
        }
    }
    if let Some(dir) = cwd {
        std::env::set_current_dir(&dir).map_err(|source| EnterError::Chdir { dir, source })?;
    }
    Err(EnterError::Exec { program: program.clone(), source: exec(program, args, &spec.env) })
}

/// Starts a child, forwards the [`FORWARDED`] signals (see the module's documentation), and waits for its exit.
///
/// Call it from the main thread, before starting others: signals are blocked in this thread only, and the kernel treats the exit of the
/// *thread* that started the child as the death of its parent. Resets `SIGCHLD` to its default disposition, as otherwise the exit code
/// could be lost.
///
/// # Errors
/// [`SuperviseError`].
pub fn supervise(spec: &SuperviseSpec) -> Result<ExitOutcome, SuperviseError> {
    let signals_error = |source| SuperviseError::Signals { program: spec.program.clone(), source };
    raw::reset_disposition(Signal::CHILD).map_err(signals_error)?;
    let set = SignalSet::from_signals(&FORWARDED).map_err(signals_error)?;
    let incoming = set.descriptor().map_err(signals_error)?;
    // Blocked before the child exists, so that no signal is lost.
    let old_mask = set.block().map_err(signals_error)?;
    let outcome = spawn(spec, old_mask)
        .map_err(|source| SuperviseError::Spawn { program: spec.program.clone(), source })
        .and_then(|mut child| {
            let pid = child.id();
            watch(&mut child, incoming.as_fd()).map_err(|source| SuperviseError::Wait {
                pid,
                program: spec.program.clone(),
                source,
            })
        });
    // Signals that arrive after the child's exit (such as the Ctrl-C that killed it) must not kill us before we report.
    while matches!(read_signal(incoming.as_fd()), Ok(Some(_))) {}
    old_mask.install().map_err(signals_error)?;
    outcome
}

#[expect(clippy::disallowed_methods, reason = "executes the user's program, which is not a helper program")]
fn exec(program: &OsStr, args: &[OsString], env: &[(OsString, OsString)]) -> io::Error {
    let env = env.iter().map(|(key, value)| (key, value));
    Command::new(program).args(args).env_clear().envs(env).exec()
}

#[expect(clippy::disallowed_methods, reason = "starts this program again, which is not a helper program")]
fn spawn(spec: &SuperviseSpec, mask: SignalSet) -> io::Result<Child> {
    let mut command = Command::new(&spec.program);
    command.arg0(&spec.arg0).args(&spec.args);
    let (parent, death_signal) = (getpid(), spec.death_signal);
    let prepare = move || {
        if death_signal.is_some() {
            set_parent_process_death_signal(death_signal)?;
            // The supervisor may have died before the call above.
            if getppid() != Some(parent) {
                return Err(Errno::SRCH.into());
            }
        }
        mask.install()
    };
    // SAFETY: between fork and exec the closure makes only system calls; it neither allocates, locks nor unwinds, and owns all values
    // that it uses.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

fn watch(child: &mut Child, incoming: BorrowedFd<'_>) -> io::Result<ExitOutcome> {
    let pid = Pid::from_child(child);
    let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
    loop {
        let mut fds = [PollFd::new(&pidfd, PollFlags::IN), PollFd::from_borrowed_fd(incoming, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ended = !fds[0].revents().is_empty();
        if ended {
            return child.wait().map(outcome);
        }
        while let Some(info) = read_signal(incoming)? {
            let terminal = Terminal {
                in_our_group: raw::process_group(Some(pid))? == raw::process_group(None)?,
                we_lead: raw::session()? == getpid().as_raw_pid(),
            };
            let Some(signal) = Signal::from_named_raw(info.signal) else { continue };
            if is_for_child(info, child.id(), terminal) {
                match pidfd_send_signal(&pidfd, signal) {
                    // It has exited, which the next poll reports.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
    }
}

/// A signal, as reported by `signalfd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignalInfo {
    signal: i32,
    /// `si_code`: the kind of sender.
    code: i32,
    /// Sender; 0 for the kernel and for processes outside our PID namespace.
    sender: u32,
}

/// Processes that receive the terminal's signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terminal {
    /// The child is in our process group.
    in_our_group: bool,
    /// We are the session leader.
    we_lead: bool,
}

/// Whether a signal is forwarded; see the module's documentation.
fn is_for_child(info: SignalInfo, child: u32, terminal: Terminal) -> bool {
    if info.code != SI_KERNEL {
        return info.sender != child;
    }
    let is_hang_up = info.signal == Signal::HUP.as_raw();
    !terminal.in_our_group || is_hang_up && terminal.we_lead
}

/// The next pending signal; `None` if there is none.
fn read_signal(incoming: BorrowedFd<'_>) -> io::Result<Option<SignalInfo>> {
    let mut buffer = [0u8; SIGNALFD_SIGINFO_BYTES];
    loop {
        match rustix::io::read(incoming, &mut buffer) {
            Ok(SIGNALFD_SIGINFO_BYTES) => return Ok(Some(parse_signal(&buffer))),
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// The first fields of `struct signalfd_siginfo`: `ssi_signo`, `ssi_errno`, `ssi_code`, `ssi_pid`, 32 bits each.
fn parse_signal(record: &[u8; SIGNALFD_SIGINFO_BYTES]) -> SignalInfo {
    let word = |at: usize| [record[at], record[at + 1], record[at + 2], record[at + 3]];
    SignalInfo {
        signal: i32::from_ne_bytes(word(0)),
        code: i32::from_ne_bytes(word(8)),
        sender: u32::from_ne_bytes(word(12)),
    }
}

fn outcome(status: ExitStatus) -> ExitOutcome {
    let signal = status.signal();
    let number = status.code().unwrap_or_else(|| 128 + signal.unwrap_or(0));
    // Exit codes have 8 bits and signals go up to 64.
    ExitOutcome { code: u8::try_from(number).unwrap_or(u8::MAX), signal }
}

#[cfg(test)]
mod tests;
