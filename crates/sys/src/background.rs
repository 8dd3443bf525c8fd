//! Turning a process into a block server: daemonizing, and dropping every dependency that could wait for the server itself.
//!
//! Owns: the fork and the readiness report, and a server's mount namespace, memory lock and `PR_SET_IO_FLUSHER`.
//! Does not: serve requests.

use std::fs::{self, OpenOptions};
use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsmount, fsopen, mount_change, move_mount, unmount,
};
use rustix::process::{Signal, chdir, configure_io_flusher_behavior, fchdir, is_io_flusher, pivot_root, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::roots::Roots;
use crate::{process, raw};

/// Size at which a log is truncated, in bytes: a server that cannot start is retried, and logs the reason each time.
const LOG_LIMIT: u64 = 1 << 20;

/// `OOM_SCORE_ADJ_MIN` of `<linux/oom.h>`.
const OOM_NEVER: &str = "-1000";

/// A process could not become a server.
#[derive(Debug, thiserror::Error)]
pub enum BackgroundError {
    /// A step failed.
    #[error("cannot {step}")]
    Step {
        /// What was tried.
        step: &'static str,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// Other threads exist; a fork would abandon them in an arbitrary state.
    #[error("cannot start a background process while {threads} threads are running")]
    Threads {
        /// How many.
        threads: usize,
    },
    /// The kernel did not keep the setting.
    #[error("PR_SET_IO_FLUSHER has no effect: under memory pressure the server would wait for itself")]
    IoFlusherNotSet,
}

/// Which of the two processes this is after [`daemonize`].
#[derive(Debug)]
pub enum Side {
    /// The process that was started. The background process has reported, or exited.
    Foreground {
        /// The background process's report; empty if it exited without one.
        report: String,
    },
    /// The process that stays.
    Background(Report),
}

/// The pipe to the foreground process, which waits for a report.
#[derive(Debug)]
pub struct Report(PipeWriter);

impl Report {
    /// Sends the report, which lets the foreground process exit.
    ///
    /// # Errors
    /// The operating system's; the foreground process may have been killed.
    pub fn send(mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }
}

/// Forks. The foreground process waits for the background process's report. The background process gets a session of its own,
/// `/dev/null` as input and output, `log` as standard error and the highest allowed limit on open files, and outlives it.
///
/// Call it before starting any thread.
///
/// # Errors
/// [`BackgroundError`].
pub fn daemonize(roots: &Roots, log: &Path) -> Result<Side, BackgroundError> {
    let failed = |step| move |source| BackgroundError::Step { step, source };
    let threads = fs::read_dir(roots.proc.join("self/task")).map_err(failed("count threads"))?.count();
    if threads != 1 {
        return Err(BackgroundError::Threads { threads });
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed("open /dev/null"))?;
    let log = OpenOptions::new().create(true).append(true).open(log).map_err(failed("open the log"))?;
    if log.metadata().map_err(failed("stat the log"))?.len() > LOG_LIMIT {
        log.set_len(0).map_err(failed("truncate the log"))?;
    }
    let (reader, writer): (PipeReader, PipeWriter) = pipe().map_err(failed("create a pipe"))?;
    // SAFETY: this is the only thread, as was just checked, so no thread that the fork leaves behind holds a lock.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")(io::Error::last_os_error())),
        0 => {
            drop(reader);
            setsid().map_err(|errno| failed("start a session")(errno.into()))?;
            dup2_stdin(&null)
                .and_then(|()| dup2_stdout(&null))
                .and_then(|()| dup2_stderr(&log))
                .map_err(|errno| failed("redirect output")(errno.into()))?;
            // It also works with the present limit. Raising fails where the limit is higher than the system-wide maximum.
            let _ = process::raise_open_files();
            Ok(Side::Background(Report(writer)))
        }
        _ => {
            drop(writer);
            let mut report = String::new();
            (&reader).read_to_string(&mut report).map_err(failed("read the report of the background process"))?;
            Ok(Side::Foreground { report })
        }
    }
}

/// Prepares this process for serving a block device: locks all memory, marks it as an I/O flusher, exempts it from the OOM
/// killer, and ignores the signals that ask a process to exit (a server exits when its device is removed). Threads started later
/// inherit this.
///
/// # Errors
/// [`BackgroundError`].
pub fn become_server(roots: &Roots) -> Result<(), BackgroundError> {
    let failed = |step| move |errno: rustix::io::Errno| BackgroundError::Step { step, source: errno.into() };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        raw::ignore(signal).map_err(|source| BackgroundError::Step { step: "ignore a signal", source })?;
    }
    fs::write(roots.proc.join("self/oom_score_adj"), OOM_NEVER)
        .map_err(|source| BackgroundError::Step { step: "set oom_score_adj", source })?;
    configure_io_flusher_behavior(true).map_err(failed("set PR_SET_IO_FLUSHER"))?;
    check_io_flusher()?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(failed("lock the memory"))
}

/// Marks this thread and the programs that it starts as I/O flushers (`PR_SET_IO_FLUSHER`): under memory pressure they do not
/// wait for a volume whose server they are about to start.
///
/// # Errors
/// [`BackgroundError`].
pub fn set_io_flusher() -> Result<(), BackgroundError> {
    let failed =
        |errno: rustix::io::Errno| BackgroundError::Step { step: "set PR_SET_IO_FLUSHER", source: errno.into() };
    configure_io_flusher_behavior(true).map_err(failed)?;
    check_io_flusher()
}

/// Moves this process into a mount namespace of its own, a copy of the present one that follows its unmounts: otherwise the copies would keep
/// file systems busy that are unmounted meanwhile. Where mounts are not shared (without systemd), they do so until [`detach_mounts`]: call
/// it late; but before starting any thread, which would stay in the old namespace.
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn unshare_mounts() -> Result<(), BackgroundError> {
    let failed = |step| move |errno: rustix::io::Errno| BackgroundError::Step { step, source: errno.into() };
    // SAFETY: CLONE_NEWNS unshares no descriptor table, which is the only hazard that the function names.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed("unshare the mount namespace"))?;
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .map_err(failed("make the mounts follow those of the host"))
}

/// Checks that this thread is marked as an I/O flusher (`PR_GET_IO_FLUSHER`).
///
/// # Errors
/// [`BackgroundError::IoFlusherNotSet`], [`BackgroundError::Step`].
pub fn check_io_flusher() -> Result<(), BackgroundError> {
    match is_io_flusher() {
        Ok(true) => Ok(()),
        Ok(false) => Err(BackgroundError::IoFlusherNotSet),
        Err(errno) => Err(BackgroundError::Step { step: "read PR_GET_IO_FLUSHER", source: errno.into() }),
    }
}

/// Changes the working directory to one that was opened before [`detach_mounts`]; afterwards only relative paths lead anywhere.
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn change_dir(directory: impl AsFd) -> Result<(), BackgroundError> {
    let failed = |errno: rustix::io::Errno| BackgroundError::Step { step: "enter the directory", source: errno.into() };
    fchdir(directory).map_err(failed)
}

/// Detaches all mounts by pivoting to an empty root, so that this process keeps none of them busy. Open files stay open; absolute
/// paths lead nowhere. For a process in its own mount namespace ([`unshare_mounts`]); `place` is any directory.
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn detach_mounts(place: &Path) -> Result<(), BackgroundError> {
    let failed = |step| move |errno: rustix::io::Errno| BackgroundError::Step { step, source: errno.into() };
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("create an empty root"))?;
    fsconfig_create(&context).map_err(failed("create an empty root"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let empty = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed("create an empty root"))?;
    move_mount(&empty, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("mount an empty root"))?;
    fchdir(&empty).map_err(failed("enter the empty root"))?;
    // With "." for both, the old root is stacked on the new one, from where it is unmounted (pivot_root(2)).
    pivot_root(".", ".").map_err(failed("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("unmount the old root"))?;
    chdir(PathBuf::from("/")).map_err(failed("enter the empty root"))
}
