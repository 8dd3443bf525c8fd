//! Workers: our own program once more, for work that a daemon follows and can end. It gets one end of a socket as its standard input,
//! through which the two send packets ([`crate::packet`]).
//!
//! Owns: its start and its end. It is killed when its [`Worker`] is dropped, and by the kernel when the *thread* that started it ends
//! (`PR_SET_PDEATHSIG`): that thread has to wait for it. Does not: know what is said.

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

/// A worker that was started.
#[derive(Debug)]
pub struct Worker {
    /// `None` once it was handed over to be reaped.
    child: Option<Child>,
    control: OwnedFd,
}

impl Worker {
    /// Starts the program that this process runs with these arguments: also when its file was replaced. What it writes to standard
    /// error goes where ours does, and what it writes to standard output nowhere.
    ///
    /// # Errors
    /// The operating system's.
    #[expect(clippy::disallowed_methods, reason = "the one place that starts workers")]
    pub fn start(args: &[&str]) -> io::Result<Self> {
        let (control, theirs) = packet::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("bulkhead").args(args).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        // A Ctrl-C at our terminal is for us: it must not end a worker half way.
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

    /// Asks it to end (`SIGTERM`).
    pub fn terminate(&self) {
        if let Some(child) = &self.child {
            // Ours, and not yet reaped: the number is nobody else's. It fails when it has ended.
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
    }

    /// How it ended; `None` when it has not within `limit`.
    ///
    /// # Errors
    /// The operating system's.
    pub fn ended(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.child else { return Err(io::ErrorKind::NotFound.into()) };
        if process::wait_until_ended(Pid::from_child(child), limit)? { child.wait().map(Some) } else { Ok(None) }
    }
}

impl Drop for Worker {
    /// Ends it, and does not wait for that: it may be in a system call that no signal ends.
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        // Fails only when it has ended meanwhile.
        let _ = child.kill();
        // Whoever ends last reaps it: this thread, or init after this process.
        thread::spawn(move || child.wait());
    }
}

/// Ends a stream for whoever reads or writes it, in whatever process: reading comes to its end, and writing fails.
pub fn end_stream(socket: impl AsFd) {
    // Fails only when it has come to its end.
    let _ = shutdown(socket, Shutdown::Both);
}

/// Whether nobody has the other end of a stream open any more; one that was only closed for writing is open.
pub fn is_closed(socket: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&socket, PollFlags::empty())];
    // What cannot be asked now is asked again.
    let asked = poll(&mut polled, Some(&Timespec::default()));
    asked.is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// The other end of the socket, in a worker's process: its standard input. Makes the process one like any other when memory runs out:
/// what protects the daemon must not protect what reads a client's bytes.
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
    fn a_worker_ends_by_itself_or_with_us() {
        // This program: it lists its tests.
        let mut worker = Worker::start(&["--list"]).unwrap();
        assert!(worker.ended(Duration::from_secs(60)).unwrap().unwrap().success());
        // One that nobody waits for is killed.
        drop(Worker::start(&["--list"]).unwrap());
    }

    #[test]
    fn a_stream_is_closed_when_its_other_end_is() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        assert!(!is_closed(&one));
        other.write_all(b"all").unwrap();
        other.shutdown(std::net::Shutdown::Write).unwrap();
        // Somebody waits for what comes of it.
        assert!(!is_closed(&one));
        drop(other);
        assert!(is_closed(&one));
        let mut text = String::new();
        one.read_to_string(&mut text).unwrap();
        assert_eq!(text, "all");
    }

    #[test]
    fn a_stream_that_was_ended_ends_for_whoever_has_it() {
        let (one, mut other) = UnixStream::pair().unwrap();
        let mut copy = one.try_clone().unwrap();
        end_stream(&one);
        assert_eq!(copy.read(&mut [0]).unwrap(), 0);
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
        assert_eq!(copy.write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
