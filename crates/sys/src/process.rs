//! Facts about processes from `/proc` (proc_pid_stat(5)), waiting for their exit, killing them, their priority,
//! and the limit on open files.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, pidfd_send_signal, setrlimit,
};
use rustix::time::{ClockId, clock_gettime};

use crate::raw;
use crate::roots::Roots;

/// Start time of a process in clock ticks after boot; `None` if there is no such process, or it is a zombie.
///
/// Together with the pid it distinguishes a process from a later one with the same pid.
#[must_use]
pub fn start_time(roots: &Roots, pid: u32) -> Option<u64> {
    let stat = fs::read(roots.proc.join(pid.to_string()).join("stat")).ok()?;
    parse_start_time(&stat)
}

/// The parent of a process; `None` if there is no such process, or it is a zombie.
#[must_use]
pub fn parent(roots: &Roots, pid: u32) -> Option<u32> {
    let stat = fs::read(roots.proc.join(pid.to_string()).join("stat")).ok()?;
    field(&stat, 4)?.parse().ok()
}

/// The name of a process (`/proc/PID/comm`): of its program, in 15 bytes, unless it has changed it; `None` if there is no such process.
#[must_use]
pub fn name(roots: &Roots, pid: u32) -> Option<String> {
    let name = fs::read(roots.proc.join(pid.to_string()).join("comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// Open files of a process, by the links in `/proc/PID/fd`; empty if it has exited.
///
/// # Errors
/// The operating system's.
pub fn open_files(roots: &Roots, pid: u32) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(roots.proc.join(pid.to_string()).join("fd")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    // A file that was closed after it was listed is omitted.
    Ok(entries.filter_map(Result::ok).filter_map(|entry| fs::read_link(entry.path()).ok()).collect())
}

/// Limit on open files of a process that needs many, if it is privileged: systemd's value.
const MANY_FILES: u64 = 1 << 19;

/// Default limit on open files of programs. select(2) does not support more.
const DEFAULT_FILES: u64 = 1024;

/// Raises this process's limit on open files (`RLIMIT_NOFILE`) to its hard limit, or if privileged at least to [`MANY_FILES`].
///
/// # Errors
/// The operating system's.
pub fn raise_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(MANY_FILES));
    if setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok() {
        return Ok(());
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// Reverts [`raise_open_files`] for a helper program. Does not allocate, so that it can be called between fork and exec.
///
/// # Errors
/// The operating system's.
pub(crate) fn reset_open_files() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(DEFAULT_FILES, |maximum| maximum.min(DEFAULT_FILES));
    Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit })?)
}

/// Sets the real-time priority of the calling thread (`SCHED_FIFO`; 1 to 99).
///
/// # Errors
/// The operating system's.
pub fn set_realtime(priority: u8) -> io::Result<()> {
    raw::set_realtime(i32::from(priority))
}

/// A handle to a process, alive or not, which is never confused with a later one of the same pid (pidfd_open(2)).
#[derive(Debug)]
pub struct Handle(OwnedFd);

impl Handle {
    /// The process with this pid; `None` if there is none.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(pid: Pid) -> io::Result<Option<Self>> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => Ok(None),
            opened => Ok(Some(Self(opened?))),
        }
    }

    /// Kills it (`SIGKILL`); succeeds if it has exited already.
    ///
    /// # Errors
    /// The operating system's.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.0, Signal::KILL) {
            Err(Errno::SRCH) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// Waits until it has exited, whether it is our child or not; `false` on timeout.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait_until_ended(&self, limit: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// [`Handle::wait_until_ended`] by pid; `true` if there is no such process.
///
/// # Errors
/// The operating system's.
pub fn wait_until_ended(pid: Pid, limit: Duration) -> io::Result<bool> {
    Handle::open(pid)?.map_or(Ok(true), |process| process.wait_until_ended(limit))
}

/// Sends `SIGTERM` to a process.
///
/// # Errors
/// The operating system's, also if there is no such process.
pub fn terminate(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(kill_process(pid, Signal::TERM)?)
}

/// The clock of a waiting process and of the records of BPF programs, in nanoseconds (`CLOCK_MONOTONIC`, kernel `ktime_get_ns`).
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, ns) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    seconds * 1_000_000_000 + ns
}

/// Waits between two polls of a state that has no event. A signal may end the wait early, which is harmless.
pub fn pause(time: Duration) {
    let timeout = Timespec::try_from(time).unwrap_or_default();
    let _ = poll(&mut [], Some(&timeout));
}

/// Whether this process ignores a signal (by number), as in programs started by `nohup` or by shells without job control.
#[must_use]
pub fn is_ignored(roots: &Roots, signal: i32) -> bool {
    let status = fs::read_to_string(roots.proc.join("self/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    // Bit 0 is signal 1.
    let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    mask.zip(bit).and_then(|(mask, bit)| mask.checked_shr(bit)).is_some_and(|rest| rest & 1 == 1)
}

/// Field 22 of `/proc/PID/stat`.
fn parse_start_time(stat: &[u8]) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// A field of `/proc/PID/stat`, by its number in proc_pid_stat(5), from 4 on; none of a zombie.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    // The preceding name of the program may contain spaces and parentheses, so the fields are counted from the last one.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(number.checked_sub(4)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_open_files_is_raised_to_the_hard_limit() {
        raise_open_files().unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn the_start_time_is_found_after_any_name() {
        let line = |name: &str, state: &str| {
            format!("7 ({name}) {state} 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 9 9\n").into_bytes()
        };
        assert_eq!(parse_start_time(&line("sh", "S")), Some(123_456));
        assert_eq!(parse_start_time(&line("a) S 1 (b", "R")), Some(123_456));
        assert_eq!(parse_start_time(&line("sh", "Z")), None);
        assert_eq!(parse_start_time(b"7 (sh) S 1 2"), None);
        assert_eq!(parse_start_time(b""), None);
    }

    #[test]
    fn ignored_signals_are_detected() {
        let base = tempfile::tempdir().unwrap();
        let roots = Roots::under(base.path());
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        assert!(!is_ignored(&roots, 1));
        // nohup, in a Rust program: SIGHUP (1) and SIGPIPE (13).
        fs::write(roots.proc.join("self/status"), "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n").unwrap();
        let ignored: Vec<i32> = (-1..70).filter(|signal| is_ignored(&roots, *signal)).collect();
        assert_eq!(ignored, [1, 13]);
    }

    #[test]
    fn open_files_include_deleted_ones() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one.layer");
        let file = fs::File::create(&path).unwrap();
        let open = || open_files(&Roots::host(), std::process::id()).unwrap();
        assert!(open().contains(&path));
        fs::remove_file(&path).unwrap();
        assert!(open().contains(&PathBuf::from(format!("{} (deleted)", path.display()))));
        drop(file);
        assert!(!open().iter().any(|open| open.starts_with(dir.path())));
        assert!(open_files(&Roots::host(), u32::MAX).unwrap().is_empty());
    }

    #[test]
    fn this_process_has_a_start_time_and_a_parent() {
        let roots = Roots::host();
        assert!(start_time(&roots, std::process::id()).is_some());
        assert_eq!(start_time(&roots, u32::MAX), None);
        assert_eq!(parent(&roots, std::process::id()), Some(std::os::unix::process::parent_id()));
        assert_eq!(parent(&roots, u32::MAX), None);
    }

    #[test]
    fn a_process_has_the_name_of_its_program() {
        let roots = Roots::host();
        let program = std::env::current_exe().unwrap();
        let found = name(&roots, std::process::id()).unwrap();
        assert!(program.file_name().unwrap().to_str().unwrap().starts_with(&found), "{found}");
        assert_eq!(name(&roots, u32::MAX), None);
    }
}
