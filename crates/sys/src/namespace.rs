//! For `bulkhead run`: a process with volumes bound into its own mount namespace, and its supervisor.
//!
//! Owns the two halves: [`supervise`] runs in the process that the user started; it spawns our own program again, whose hidden
//! subcommand calls [`enter_and_exec`] and so becomes the payload. Does not choose the cgroup or the volumes.
//!
//! # Signals
//! The payload stays in the supervisor's process group, so that job control works without our help: the terminal's Ctrl-C,
//! Ctrl-\ and Ctrl-Z reach both at once. Signals from the terminal come from the kernel itself (`si_code` is
//! `SI_KERNEL`); forwarding those too would deliver them twice, so they are not forwarded as long as the payload is in our
//! process group. A hang-up of the terminal is different: it reaches the session leader alone (kernel
//! `tty_signal_session_leader`), usually a shell, which hands it on. Where the supervisor is the session leader itself, it
//! forwards it. A signal that some process sent with `kill` (`SI_USER`, `SI_QUEUE`, `SI_TKILL`) is forwarded, unless the
//! payload itself sent it (`kill 0` in a script). The sender's pid alone would not do: it is 0 for the kernel, but also for a
//! process outside our PID namespace. A `kill` of the whole process group cannot be told from one of the supervisor alone, so
//! then the payload gets the signal twice; this errs on the side of delivery.
//!
//! # A supervisor that is killed
//! After `kill -9` of the supervisor the kernel sends the payload [`SuperviseSpec::death_signal`] (`PR_SET_PDEATHSIG`). The
//! payload's own children do not get it, and the kernel forgets it when the payload runs a set-user-ID program or one with
//! file capabilities, or changes its user. What lives on is still in the cgroup: `cgroup.procs` lists it, and
//! [`crate::cgroup::kill_all`] ends it.

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

/// The signals that a supervisor hands on.
pub const FORWARDED: [Signal; 6] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// `si_code` of a signal that the kernel itself sent, such as the terminal's (`<asm-generic/siginfo.h>`).
const SI_KERNEL: i32 = 0x80;

/// A directory or file that is shown to the payload at another place too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// What is shown.
    pub source: PathBuf,
    /// Where; it must exist.
    pub target: PathBuf,
    /// Whether it cannot be written there.
    pub readonly: bool,
}

/// What the payload is and where it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnterSpec {
    /// Bind mounts, done in this order. When there are none the mount namespace is not unshared.
    pub binds: Vec<Bind>,
    /// Working directory, looked up after the binds; `None` keeps the path of the present one.
    pub cwd: Option<PathBuf>,
    /// Program and arguments. A program without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// The whole environment of the payload.
    pub env: Vec<(OsString, OsString)>,
}

/// The payload could not be started.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// There is no program to run.
    #[error("no command to run")]
    NoCommand,
    /// No mount namespace of our own.
    #[error("cannot unshare the mount namespace")]
    Unshare {
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A mount operation in the new mount namespace failed.
    #[error("cannot set up the mount namespace")]
    Mount {
        /// Which one and why.
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
    /// The exit code by the convention of shells and `docker run`: 127 when the program is not there, 126 when it cannot be
    /// executed, 125 for everything before it.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Exec { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            Self::Exec { .. } => 126,
            _ => 125,
        }
    }
}

/// What a supervisor starts.
#[derive(Clone, Debug)]
pub struct SuperviseSpec {
    /// The program, usually `/proc/self/exe`.
    pub program: PathBuf,
    /// What it sees as its own name (`argv[0]`).
    pub arg0: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What the kernel sends to the child when the supervisor dies; `None` lets it live on.
    pub death_signal: Option<Signal>,
}

/// How a supervised process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitOutcome {
    /// Its exit code, or 128 + the number of the signal that ended it, as shells report it.
    pub code: u8,
    /// The number of the signal that ended it.
    pub signal: Option<i32>,
}

/// The supervisor could not start or watch its child.
#[derive(Debug, thiserror::Error)]
pub enum SuperviseError {
    /// The signals could not be taken over.
    #[error("cannot take over the signals for {program}")]
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
    /// The child, which may be running still, cannot be watched.
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

/// Becomes the payload: makes a mount namespace whose mounts do not spread to the host (while the host's
/// still arrive), binds, and executes. On success it does not return.
///
/// For a fresh process with a single thread: after an error the process is half way there and must exit.
///
/// # Errors
/// [`EnterError`]; its [`EnterError::exit_code`] is the code to exit with.
pub fn enter_and_exec(spec: &EnterSpec) -> Result<Infallible, EnterError> {
    let (program, args) = spec.argv.split_first().ok_or(EnterError::NoCommand)?;
    // Entered again below, because a bind may have covered it. One that has been deleted is kept as it is.
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

/// Starts a child, hands on the [`FORWARDED`] signals (see the module's page), and waits for its end.
///
/// Call it from the main thread, before there is any other: signals are blocked in this thread only, and the kernel takes the
/// end of the *thread* that started the child for the end of its parent. `SIGCHLD` gets its default disposition, since
/// otherwise the exit code could be lost.
///
/// # Errors
/// [`SuperviseError`].
pub fn supervise(spec: &SuperviseSpec) -> Result<ExitOutcome, SuperviseError> {
    let signals_error = |source| SuperviseError::Signals { program: spec.program.clone(), source };
    raw::reset_disposition(Signal::CHILD).map_err(signals_error)?;
    let set = SignalSet::of(&FORWARDED).map_err(signals_error)?;
    let incoming = set.descriptor().map_err(signals_error)?;
    // Blocked before the child exists: from here on no signal is lost.
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
    // Signals that came for the child after its end (the Ctrl-C that ended it) must not end us before we report.
    while matches!(read_signal(incoming.as_fd()), Ok(Some(_))) {}
    old_mask.install().map_err(signals_error)?;
    outcome
}

#[expect(clippy::disallowed_methods, reason = "becomes the user's program, which is no helper program")]
fn exec(program: &OsStr, args: &[OsString], env: &[(OsString, OsString)]) -> io::Error {
    let env = env.iter().map(|(key, value)| (key, value));
    Command::new(program).args(args).env_clear().envs(env).exec()
}

#[expect(clippy::disallowed_methods, reason = "starts our own program again, which is no helper program")]
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
    // SAFETY: between fork and exec the closure makes only system calls; it neither allocates, locks nor unwinds, and owns
    // all that it uses (plain values).
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
                    // It has ended: the next poll says so.
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
    }
}

/// What `signalfd` tells about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SignalInfo {
    signal: i32,
    /// `si_code`: who sent it.
    code: i32,
    /// Sender; 0 for the kernel and for processes outside our PID namespace.
    sender: u32,
}

/// Whom the terminal's signals reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Terminal {
    /// The child is in our process group.
    in_our_group: bool,
    /// We are the session leader.
    we_lead: bool,
}

/// Whether a signal is handed on; the module's page says why.
fn is_for_child(info: SignalInfo, child: u32, terminal: Terminal) -> bool {
    if info.code != SI_KERNEL {
        return info.sender != child;
    }
    let is_hang_up = info.signal == Signal::HUP.as_raw();
    !terminal.in_our_group || is_hang_up && terminal.we_lead
}

/// The next pending signal; `None` when there is none.
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
