//! Freezing and killing, and the state that `cgroup.events` reports.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bulkhead_core::cgroup::CgroupPath;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{CgroupError, file_of, missing, parse_error, procs_below, read, write};
use crate::roots::Roots;

/// Longest wait between two looks at `cgroup.events`: a lost notification costs no more than this.
const RECHECK: Duration = Duration::from_millis(200);

/// Kills every process in the cgroup and below (file `cgroup.kill`), and waits until none is left (`populated 0`).
///
/// Kernel threads are not killed by the kernel: a cgroup that holds one runs into the time limit.
///
/// # Errors
/// [`CgroupError::TimedOut`] with the processes that are left, or a failed read or write.
pub fn kill_all(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    let ended = write(roots, path, "cgroup.kill", "1").and_then(|_| wait_for(roots, path, "populated 0", limit));
    match ended {
        // Somebody removed it meanwhile, so nobody was left in it.
        Err(CgroupError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// Whether there is a process in the cgroup or below it.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_populated(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "populated")
}

/// Stops all processes in the cgroup and below (file `cgroup.freeze`), and waits until they are stopped (`frozen 1`).
///
/// After an error the request still stands: call [`thaw`] to withdraw it. A kernel thread inside never freezes.
///
/// # Errors
/// [`CgroupError::TimedOut`], or a failed read or write.
pub fn freeze(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "1")?;
    wait_for(roots, path, "frozen 1", limit)
}

/// Lets the processes run again and waits until the kernel says so (`frozen 0`).
///
/// # Errors
/// [`CgroupError::TimedOut`] (a cgroup above is frozen), or a failed read or write.
pub fn thaw(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "0")?;
    wait_for(roots, path, "frozen 0", limit)
}

/// Whether all processes in the cgroup and below are stopped.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_frozen(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "frozen")
}

/// The value of one key of a flat keyed file such as `cgroup.events`.
fn parse_flag(text: &str, key: &str) -> Option<bool> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
    match value.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn event(roots: &Roots, path: &CgroupPath, key: &str) -> Result<bool, CgroupError> {
    let text = read(roots, path, "cgroup.events")?;
    parse_flag(&text, key).ok_or_else(|| parse_error(path, "cgroup.events", text.replace('\n', "; ")))
}

/// Waits until `cgroup.events` has the line `line`.
///
/// The kernel wakes a poll for POLLPRI when the file changed since it was last read (`kernfs_generic_poll`). A regular file,
/// as in a fake kernel, never does: there the file is read again every [`RECHECK`].
fn wait_for(roots: &Roots, path: &CgroupPath, line: &'static str, limit: Duration) -> Result<(), CgroupError> {
    let key = line.split(' ').next().unwrap_or_default();
    let deadline = Instant::now() + limit;
    let error = |source: io::Error| {
        missing(roots, path, "cgroup.events", &source).unwrap_or_else(|| CgroupError::Read {
            cgroup: path.clone(),
            file: "cgroup.events".to_owned(),
            source,
        })
    };
    let file = File::open(file_of(roots, path, "cgroup.events")?).map_err(error)?;
    loop {
        let mut buffer = [0u8; 512];
        let n = file.read_at(&mut buffer, 0).map_err(error)?;
        let text = String::from_utf8_lossy(&buffer[..n]);
        if text.lines().any(|found| found == line) {
            return Ok(());
        }
        if parse_flag(&text, key).is_none() {
            return Err(parse_error(path, "cgroup.events", text.replace('\n', "; ")));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(CgroupError::TimedOut {
                cgroup: path.clone(),
                wanted: line,
                limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
                pids: procs_below(roots, path),
            });
        }
        let pause = Timespec::try_from(left.min(RECHECK)).map_err(|_| error(io::ErrorKind::InvalidInput.into()))?;
        match poll(&mut [PollFd::new(&file, PollFlags::PRI)], Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(error(errno.into())),
        }
    }
}
