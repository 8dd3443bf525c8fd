//! Worker processes, which run this program for work that a daemon monitors and can cancel. A worker's standard input is one end of a
//! socket, through which both sides exchange packets ([`crate::packet`]).
//!
//! Owns: a worker's lifetime. It is killed when its [`Worker`] is dropped, and by the kernel when the *thread* that started it exits
//! (`PR_SET_PDEATHSIG`), so that thread has to wait for it. Does not: interpret packets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;
use std::{fs, io};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::roots::Roots;
use crate::tool::PATH;
use crate::{packet, process};

/// A started worker.
#[derive(Debug)]
pub struct Worker {
    /// `None` once another thread reaps it.
    child: Option<Child>,
    control: OwnedFd,
}

impl Worker {
    /// Starts this process's program with these arguments, also if its file was replaced. It inherits standard error; its standard
    /// output is discarded.
    ///
    /// # Errors
    /// The operating system's.
    #[expect(clippy::disallowed_methods, reason = "the one place that starts workers")]
    pub fn start(args: &[&str]) -> io::Result<Self> {
        let (control, theirs) = packet::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bulkhead").args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        // A Ctrl-C at our terminal must not interrupt a worker.
        command.process_group(0).stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::inherit());
        // SAFETY: between fork and exec the closure makes one system call (`prctl`), and neither allocates nor locks.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        Ok(Self { child: Some(command.spawn()?), control })
    }

    /// Our end of the socket.
    #[must_use]
    pub fn control(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    /// Sends it `SIGTERM`.
    pub fn terminate(&self) {
        if let Some(child) = &self.child {
            // Our child is not reaped yet, so its pid cannot have been reused. Fails if it has exited.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// Waits for its exit; returns its exit status, or `None` after `limit`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn wait(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Err(io::ErrorKind::NotFound.into()) };
        if process::wait_until_ended(Pid::from_child(child), limit)? { child.wait().map(Some) } else { Ok(None) }
    }
}

impl Drop for Worker {
    /// Kills it without waiting for its exit, as it may be in an uninterruptible system call.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        // Fails only if it has exited meanwhile.
        let _ = child.kill();
        // Reaped by this thread, or by init if this process exits first.
        thread::spawn(move || child.wait());
    }
}

/// Shuts a stream down for all processes that have it open: reads return the end of the stream, writes fail.
pub fn shut_down_stream(socket: impl AsFd) {
    // Fails only if the other end is closed already.
    let _ = shutdown(socket, Shutdown::Both);
}

/// Whether the other end of a stream is closed; if it is only shut down for writing, it counts as open.
pub fn is_closed(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    // An interrupted poll counts as open: the caller polls again.
    let result = poll(&mut polled, Some(&Timespec::default()));
    result.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// In a worker's process, its end of the socket: the standard input. Resets the process's OOM score: the daemon's protection must not
/// extend to a process that reads a client's data.
///
/// # Errors
/// The operating system's.
pub fn control(roots: &Roots) -> io::Result<OwnedFd> {
    let adjusted = roots.proc.join("self/oom_score_adj");
    if fs::read_to_string(&adjusted)?.starts_with('-') {
        fs::write(&adjusted, "0")?;
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_worker_exits_by_itself_or_is_killed_on_drop() {
        // This program lists its tests.
        let mut worker = Worker::start(&["--list"]).unwrap();
        assert!(worker.wait(Duration::from_secs(60)).unwrap().unwrap().success());
        // A dropped worker is killed.
        drop(Worker::start(&["--list"]).unwrap());
    }

    #[test]
    fn a_stream_is_closed_if_its_other_end_is() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        assert!(!is_closed(&one));
        other.write_all(b"all").unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        // The other end can still read.
        assert!(!is_closed(&one));
        drop(other);
        assert!(is_closed(&one));
        let mut text = String::new();
        one.read_to_string(&mut text).unwrap();
        assert_eq!(text, "all");
    }

    #[test]
    fn a_stream_is_shut_down_for_all_its_descriptors() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let mut copy = one.try_clone().unwrap();
        shut_down_stream(&one);
        assert_eq!(copy.read(&mut [0]).unwrap(), 0);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        assert_eq!(copy.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
