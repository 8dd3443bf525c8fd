//! What a process does to itself to serve block devices: go to the background, and depend on nothing that might wait for it.
//!
//! Owns: the fork with its report of readiness, the mount namespace, memory lock and `PR_SET_IO_FLUSHER` of a server.
//! Does not: know what is served.

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

/// Where a log is begun anew, in bytes: a server that cannot start is tried again and again, and says each time why.
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
    /// There are other threads, which a fork would leave behind in the middle of whatever they do.
    #[error("cannot go to the background with {threads} threads")]
    Threads {
        /// How many.
        threads: usize,
    },
    /// The kernel did not keep what was set.
    #[error("PR_SET_IO_FLUSHER has no effect: under memory pressure the server would wait for itself")]
    NotAFlusher,
}

/// Which of the two processes this is after [`split`].
#[derive(Debug)]
pub enum Side {
    /// The one that was started: the other has said what it had to say, or is gone.
    Foreground {
        /// What it said, empty when it is gone.
        said: String,
    },
    /// The one that stays.
    Background(Report),
}

/// The way back to who waits in the foreground.
#[derive(Debug)]
pub struct Report(PipeWriter);

impl Report {
    /// Says it, and lets the foreground end.
    ///
    /// # Errors
    /// The operating system's; the foreground may have been killed.
    pub fn say(mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }
}

/// Splits this process: one stays in the foreground until the other has reported, the other is in a session of its own, with
/// `/dev/null` as input and output, `log` as standard error and as many open files as it may have, and outlives it.
///
/// # Errors
/// [`BackgroundError`]. Call it before any thread is started.
pub fn split(roots: &Roots, log: &Path) -> Result<Side, BackgroundError> {
    let failed = |step| move |source| BackgroundError::Step { step, source };
    let threads = fs::read_dir(roots.proc.join("self/task")).map_err(failed("count threads"))?.count();
    if threads != 1 {
        return Err(BackgroundError::Threads { threads });
    }
    let null = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed("open /dev/null"))?;
    let log = OpenOptions::new().create(true).append(true).open(log).map_err(failed("open the log"))?;
    if log.metadata().map_err(failed("look at the log"))?.len() > LOG_LIMIT {
        log.set_len(0).map_err(failed("begin the log anew"))?;
    }
    let (reader, writer): (PipeReader, PipeWriter) = pipe().map_err(failed("make a pipe"))?;
    // SAFETY: this is the only thread, which was just counted, so that no lock is held by somebody who is not copied.
    match unsafe { libc::fork() } {
        -1 => Err(failed("fork")(io::Error::last_os_error())),
        0 => {
            drop(reader);
            setsid().map_err(|errno| failed("start a session")(errno.into()))?;
            dup2_stdin(&null)
                .and_then(|()| dup2_stdout(&null))
                .and_then(|()| dup2_stderr(&log))
                .map_err(|errno| failed("redirect output")(errno.into()))?;
            // With as many as there are it works, too; where fewer are allowed to all than to it, this fails.
            let _ = process::raise_open_files();
            Ok(Side::Background(Report(writer)))
        }
        _ => {
            drop(writer);
            let mut said = String::new();
            (&reader).read_to_string(&mut said).map_err(failed("hear from the background"))?;
            Ok(Side::Foreground { said })
        }
    }
}

/// Makes a server of this process: all memory locked, marked as one that writes memory back for others, never
/// chosen to be killed when memory runs out, deaf to the signals that ask a process to end (a block device goes when it is
/// removed). Threads that are started later inherit it.
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
    check_flusher()?;
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(failed("lock the memory"))
}

/// Marks this thread, and the programs that it starts, as ones that write memory back for others: when memory is short, they do not wait
/// for a volume whose server they are about to start (`PR_SET_IO_FLUSHER`).
///
/// # Errors
/// [`BackgroundError`].
pub fn become_flusher() -> Result<(), BackgroundError> {
    let failed =
        |errno: rustix::io::Errno| BackgroundError::Step { step: "set PR_SET_IO_FLUSHER", source: errno.into() };
    configure_io_flusher_behavior(true).map_err(failed)?;
    check_flusher()
}

/// Gives this process mounts of its own, which are those that there are. They keep others from unmounting until [`forget_mounts`], so
/// call it late; and before any thread is started, which would stay with the old ones.
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn own_mounts() -> Result<(), BackgroundError> {
    let failed = |step| move |errno: rustix::io::Errno| BackgroundError::Step { step, source: errno.into() };
    // SAFETY: CLONE_NEWNS unshares no descriptor table, which is the only hazard that the function names.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(failed("unshare the mount namespace"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed("make the mounts private"))
}

/// Whether this thread is marked as one that writes memory back (`PR_GET_IO_FLUSHER`).
///
/// # Errors
/// [`BackgroundError::NotAFlusher`], [`BackgroundError::Step`].
pub fn check_flusher() -> Result<(), BackgroundError> {
    match is_io_flusher() {
        Ok(true) => Ok(()),
        Ok(false) => Err(BackgroundError::NotAFlusher),
        Err(errno) => Err(BackgroundError::Step { step: "read PR_GET_IO_FLUSHER", source: errno.into() }),
    }
}

/// Makes a directory that was opened before the one that relative paths lead from, which is all that paths lead to after
/// [`forget_mounts`].
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn work_in(directory: impl AsFd) -> Result<(), BackgroundError> {
    let failed = |errno: rustix::io::Errno| BackgroundError::Step { step: "enter the directory", source: errno.into() };
    fchdir(directory).map_err(failed)
}

/// Leaves all mounts behind, those that others wait to unmount among them; files that are open stay so, and no path leads
/// anywhere any more. For a process with mounts of its own ([`own_mounts`]); `place` is any directory.
///
/// # Errors
/// [`BackgroundError::Step`].
pub fn forget_mounts(place: &Path) -> Result<(), BackgroundError> {
    let failed = |step| move |errno: rustix::io::Errno| BackgroundError::Step { step, source: errno.into() };
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("make an empty root"))?;
    fsconfig_create(&context).map_err(failed("make an empty root"))?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let empty = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed("make an empty root"))?;
    move_mount(&empty, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
        .map_err(failed("mount an empty root"))?;
    fchdir(&empty).map_err(failed("enter the empty root"))?;
    // With the same place for both, the old root lies on top of the new one, and is taken off (pivot_root(2)).
    pivot_root(".", ".").map_err(failed("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(failed("leave the old root"))?;
    chdir(PathBuf::from("/")).map_err(failed("enter the empty root"))
}
