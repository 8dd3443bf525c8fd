//! Kernel threads that write a file system's log: ext4's journal thread (`jbd2/<device>-<n>`) and `xfsaild/<device>`.
//!
//! Owns finding them and moving them into a cgroup, to which their writes are then charged. Does not decide which cgroup. A thread is
//! identified by its full name *and* by being a kernel thread, as any user process can set the same name.

use std::fs;
use std::io;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, poll};

use crate::cgroup::{self, CgroupError};
use crate::roots::Roots;
use bulkhead_core::cgroup::CgroupPath;

/// Flag of a kernel thread in field 9 of `/proc/PID/stat` (kernel `PF_KTHREAD`, `include/linux/sched.h`).
const PF_KTHREAD: u64 = 0x0020_0000;

/// The result of placing a kernel thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The thread.
    pub pid: u32,
    /// Its previous cgroup.
    pub from: CgroupPath,
    /// Whether it was moved; `false` if it was in the right cgroup already.
    pub moved: bool,
}

/// A kernel thread could not be found or placed.
#[derive(Debug, thiserror::Error)]
pub enum Jbd2Error {
    /// There is no such thread: the device is not mounted, is not ext4, has no journal, or has its journal on another device (whose
    /// name the thread then has).
    #[error("device {dev_name} has no kernel thread {prefix}")]
    NoThread {
        /// Name of the thread up to the slash, for example `jbd2`.
        prefix: String,
        /// Kernel name of the device.
        dev_name: String,
    },
    /// `/proc` cannot be listed.
    #[error("cannot list the processes while looking for kernel thread {prefix}/{dev_name}")]
    List {
        /// Name of the thread up to the slash.
        prefix: String,
        /// Kernel name of the device.
        dev_name: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The cgroup file system refused.
    #[error("cannot place kernel thread {pid} of device {dev_name} in cgroup {cgroup}")]
    Move {
        /// The thread.
        pid: u32,
        /// Kernel name of the device.
        dev_name: String,
        /// The intended cgroup.
        cgroup: CgroupPath,
        /// The cause.
        #[source]
        source: Box<CgroupError>,
    },
    /// The thread exited while it was being moved (an unmount). If its pid was reused in that instant, the other process was moved; its
    /// pid is included so that it can be moved back.
    #[error("kernel thread {pid} of device {dev_name} exited while it was moved to cgroup {cgroup}")]
    Ended {
        /// The former thread.
        pid: u32,
        /// Kernel name of the device.
        dev_name: String,
        /// The intended cgroup.
        cgroup: CgroupPath,
    },
    /// The kernel accepted the move, but the thread is in another cgroup.
    #[error("kernel thread {pid} of device {dev_name} is in cgroup {found} after it was moved to {cgroup}")]
    Strayed {
        /// The thread.
        pid: u32,
        /// Kernel name of the device.
        dev_name: String,
        /// The intended cgroup.
        cgroup: CgroupPath,
        /// Its actual cgroup.
        found: CgroupPath,
    },
}

/// The journal thread of the ext4 file system on a device; `None` if there is none.
///
/// `dev_name` is the kernel's name (`dm-0`, `vda1`, `cciss/c0d0` or `cciss!c0d0`) of the device, or of an external journal's device.
///
/// # Errors
/// [`Jbd2Error::List`].
pub fn find_thread(roots: &Roots, dev_name: &str) -> Result<Option<u32>, Jbd2Error> {
    if let Some(pid) = journal_task(roots, dev_name) {
        return Ok(Some(pid));
    }
    find_kthread(roots, "jbd2", dev_name)
}

/// The journal thread as ext4 reports it (`/sys/fs/ext4/DEV/journal_task`), which avoids a search; `None` if it is not such a thread.
fn journal_task(roots: &Roots, dev_name: &str) -> Option<u32> {
    let path = roots.sys.join("fs/ext4").join(dev_name.replace('/', "!")).join("journal_task");
    let pid: u32 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    is_kthread_of(roots, pid, "jbd2", dev_name).then_some(pid)
}

/// The log thread (`xfsaild`) of the XFS file system on a device; `None` if there is none.
///
/// # Errors
/// [`Jbd2Error::List`].
pub fn find_xfsaild(roots: &Roots, dev_name: &str) -> Result<Option<u32>, Jbd2Error> {
    find_kthread(roots, "xfsaild", dev_name)
}

/// Kernel names of the devices with journals of mounted file systems, in any mount namespace (`/proc/fs/jbd2`). Empty if jbd2 is not
/// loaded.
#[must_use]
pub fn journal_devices(roots: &Roots) -> Vec<String> {
    let Ok(entries) = fs::read_dir(roots.proc.join("fs/jbd2")) else { return Vec::new() };
    let name = |entry: fs::DirEntry| {
        // `<device>-<inode of the journal>`, or only the device if it is an external journal.
        let name = entry.file_name().into_string().ok()?;
        let device = match name.rsplit_once('-') {
            Some((device, inode)) if inode.bytes().all(|byte| byte.is_ascii_digit()) => device,
            _ => &name,
        };
        Some(device.replace('!', "/"))
    };
    entries.filter_map(Result::ok).filter_map(name).collect()
}

/// Whether the ext4 on a device has no journal (`/sys/fs/ext4/DEV/journal_task`); `false` if the kernel does not report it.
#[must_use]
pub fn is_without_journal(roots: &Roots, dev_name: &str) -> bool {
    let path = roots.sys.join("fs/ext4").join(dev_name.replace('/', "!")).join("journal_task");
    fs::read_to_string(path).is_ok_and(|task| task.trim() == "<none>")
}

/// The kernel thread named `prefix/dev_name` or `prefix/dev_name-<number>`; `None` if there is none. Processes that exit during the
/// search are skipped.
///
/// # Errors
/// [`Jbd2Error::List`].
pub fn find_kthread(roots: &Roots, prefix: &str, dev_name: &str) -> Result<Option<u32>, Jbd2Error> {
    let error = |source| Jbd2Error::List { prefix: prefix.to_owned(), dev_name: dev_name.to_owned(), source };
    let mut found: Option<u32> = None;
    for entry in fs::read_dir(&roots.proc).map_err(error)? {
        let name = entry.map_err(error)?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if found.is_none_or(|lowest| pid < lowest) && is_kthread_of(roots, pid, prefix, dev_name) {
            found = Some(pid);
        }
    }
    Ok(found)
}

/// Moves the journal thread of a device into a cgroup, and verifies the result. Idempotent.
///
/// # Errors
/// [`Jbd2Error`]; [`Jbd2Error::NoThread`] if there is no such thread.
pub fn place(roots: &Roots, dev_name: &str, cgroup: &CgroupPath) -> Result<Placed, Jbd2Error> {
    place_kthread(roots, "jbd2", dev_name, cgroup)
}

/// [`place`] for any kernel thread that [`find_kthread`] finds.
///
/// # Errors
/// [`Jbd2Error`]; [`Jbd2Error::NoThread`] if there is no such thread.
pub fn place_kthread(roots: &Roots, prefix: &str, dev_name: &str, cgroup: &CgroupPath) -> Result<Placed, Jbd2Error> {
    place_with(roots, prefix, dev_name, cgroup, |pid| cgroup::move_pid(roots, pid, cgroup))
}

/// The thread that writes the log of a mounted file system, to wait for its exit after the unmount, when finding it would require a search
/// through all processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogThread {
    pid: u32,
    prefix: &'static str,
    dev_name: String,
}

impl LogThread {
    /// The thread of the ext4 or XFS on a device; `None` if it has none.
    ///
    /// # Errors
    /// [`Jbd2Error::List`].
    pub fn find(roots: &Roots, dev_name: &str) -> Result<Option<Self>, Jbd2Error> {
        let thread = |prefix| move |pid| Self { pid, prefix, dev_name: dev_name.to_owned() };
        match find_thread(roots, dev_name)? {
            Some(pid) => Ok(Some(thread("jbd2")(pid))),
            None => Ok(find_xfsaild(roots, dev_name)?.map(thread("xfsaild"))),
        }
    }

    /// Waits until it has exited. Returns `false` on timeout.
    #[must_use]
    pub fn wait_until_gone(&self, roots: &Roots, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            if !is_kthread_of(roots, self.pid, self.prefix, &self.dev_name) {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            // The exit of a kernel thread has no event, so poll until the deadline.
            let pause = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
            let _ = poll(&mut [], Some(&pause));
        }
    }
}

/// The move is a parameter, because a fake kernel does not update `/proc/PID/cgroup`.
fn place_with(
    roots: &Roots,
    prefix: &str,
    dev_name: &str,
    cgroup: &CgroupPath,
    move_it: impl FnOnce(u32) -> Result<(), CgroupError>,
) -> Result<Placed, Jbd2Error> {
    let no_thread = || Jbd2Error::NoThread { prefix: prefix.to_owned(), dev_name: dev_name.to_owned() };
    let reported = if prefix == "jbd2" { journal_task(roots, dev_name) } else { None };
    let pid = match reported {
        Some(pid) => pid,
        None => find_kthread(roots, prefix, dev_name)?.ok_or_else(no_thread)?,
    };
    let error = |source| match source {
        CgroupError::NoProcess { .. } => no_thread(),
        source => {
            let source = Box::new(source);
            Jbd2Error::Move { pid, dev_name: dev_name.to_owned(), cgroup: cgroup.clone(), source }
        }
    };
    let from = cgroup::cgroup_of(roots, pid).map_err(error)?;
    if from == *cgroup {
        return Ok(Placed { pid, from, moved: false });
    }
    move_it(pid).map_err(error)?;
    let found = cgroup::cgroup_of(roots, pid).map_err(error)?;
    if !is_kthread_of(roots, pid, prefix, dev_name) {
        return Err(Jbd2Error::Ended { pid, dev_name: dev_name.to_owned(), cgroup: cgroup.clone() });
    }
    if found != *cgroup {
        return Err(Jbd2Error::Strayed { pid, dev_name: dev_name.to_owned(), cgroup: cgroup.clone(), found });
    }
    Ok(Placed { pid, from, moved: true })
}

fn is_kthread_of(roots: &Roots, pid: u32, prefix: &str, dev_name: &str) -> bool {
    let dir = roots.proc.join(pid.to_string());
    // A process that exited meanwhile, or whose name is not UTF-8, is not the thread.
    let Ok(comm) = fs::read_to_string(dir.join("comm")) else { return false };
    if !is_thread_name(comm.trim_end_matches('\n'), prefix, dev_name) {
        return false;
    }
    fs::read(dir.join("stat")).is_ok_and(|stat| is_kthread(&stat))
}

/// Whether `comm` is the kernel's name of the thread `prefix` of device `dev_name`.
fn is_thread_name(comm: &str, prefix: &str, dev_name: &str) -> bool {
    if dev_name.is_empty() {
        return false;
    }
    let Some(rest) = comm.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')) else { return false };
    // jbd2 replaces '/' by '!' (jbd2_journal_init_inode), XFS does not.
    let (rest, dev_name) = (rest.replace('/', "!"), dev_name.replace('/', "!"));
    match rest.strip_prefix(&dev_name) {
        Some("") => true,
        Some(tail) => tail
            .strip_prefix('-')
            .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())),
        None => false,
    }
}

/// Whether `/proc/PID/stat` is that of a kernel thread. The name in parentheses may contain parentheses, spaces and newlines, so the
/// fields are counted from the last closing parenthesis.
fn is_kthread(stat: &[u8]) -> bool {
    let Some(end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let Ok(fields) = std::str::from_utf8(&stat[end + 1..]) else { return false };
    // The first field after the name is number 3 (proc_pid_stat(5)); flags is number 9.
    let flags = fields.split_ascii_whitespace().nth(9 - 3).and_then(|text| text.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & PF_KTHREAD != 0)
}

#[cfg(test)]
mod tests;
