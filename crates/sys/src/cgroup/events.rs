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

/// Longest interval between two reads of `cgroup.events`: the cost of a lost notification.
const RECHECK: Duration = Duration::from_millis(200);

/// Kills all processes in the cgroup and its descendants (file `cgroup.kill`), and waits until none is left (`populated 0`).
///
/// The kernel does not kill kernel threads: with one inside, this times out.
///
/// # Errors
/// [`CgroupError::TimedOut`] with the remaining processes, or a failed read or write.
pub fn kill_all(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    let ended = write(roots, path, "cgroup.kill", "1").and_then(|_| wait_for(roots, path, "populated 0", limit));
    match ended {
        // It was removed concurrently, so it was empty.
        Err(CgroupError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

/// Whether the cgroup or a descendant contains a process.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_populated(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "populated")
}

/// Freezes all processes in the cgroup and its descendants (file `cgroup.freeze`), and waits until they are frozen (`frozen 1`).
///
/// After an error the request is still pending: withdraw it with [`thaw`]. A kernel thread inside never freezes.
///
/// # Errors
/// [`CgroupError::TimedOut`], or a failed read or write.
pub fn freeze(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "1")?;
    wait_for(roots, path, "frozen 1", limit)
}

/// Thaws the processes and waits for the kernel's confirmation (`frozen 0`).
///
/// # Errors
/// [`CgroupError::TimedOut`] (an ancestor is frozen), or a failed read or write.
pub fn thaw(roots: &Roots, path: &CgroupPath, limit: Duration) -> Result<(), CgroupError> {
    write(roots, path, "cgroup.freeze", "0")?;
    wait_for(roots, path, "frozen 0", limit)
}

/// Whether all processes in the cgroup and its descendants are frozen.
///
/// # Errors
/// [`CgroupError::NotFound`], [`CgroupError::Read`] or [`CgroupError::Parse`].
pub fn is_frozen(roots: &Roots, path: &CgroupPath) -> Result<bool, CgroupError> {
    event(roots, path, "frozen")
}

/// The value of one key of a flat keyed file such as `cgroup.events` or `memory.stat`.
#[must_use]
pub fn keyed<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).map(str::trim)
}

fn parse_flag(text: &str, key: &str) -> Option<bool> {
    match keyed(text, key)? {
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
/// The kernel reports POLLPRI if the file has changed since the last read (`kernfs_generic_poll`). The regular file of a fake kernel
/// never does; it is read again every [`RECHECK`].
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
