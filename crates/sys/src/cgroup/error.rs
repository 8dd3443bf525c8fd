//! What can fail about a cgroup.

use std::io;

use bulkhead_core::cgroup::{CgroupPath, CgroupPathError};

/// A failed operation on a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The cgroup does not exist, or ceased to.
    #[error("cgroup {cgroup} does not exist")]
    NotFound {
        /// The cgroup.
        cgroup: CgroupPath,
    },
    /// The cgroup exists but not the file: its controller is not enabled, or the kernel does not have it.
    #[error("cgroup {cgroup} has no file {file}: its controller is not enabled there")]
    NoFile {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The file.
        file: String,
    },
    /// The file name has a slash, or is `.` or `..`.
    #[error("{file:?} is not the name of a cgroup file")]
    BadFile {
        /// The name as given.
        file: String,
    },
    /// A controller that is wanted below a cgroup is not available in it.
    #[error("controller {controller} is not available in cgroup {cgroup} (available: {available})")]
    MissingController {
        /// The cgroup whose `cgroup.controllers` lacks it.
        cgroup: CgroupPath,
        /// The wanted controller.
        controller: String,
        /// What `cgroup.controllers` lists.
        available: String,
    },
    /// Controllers cannot be enabled below a cgroup that itself contains processes (the "no internal processes" rule).
    #[error("controllers cannot be enabled below cgroup {cgroup} while it contains processes ({})", list(.pids))]
    Occupied {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The processes in it.
        pids: Vec<u32>,
    },
    /// The kernel has a controller, and does not enable it for the processes below a cgroup.
    #[error(
        "the kernel does not enable {controllers} below cgroup {cgroup}; with CONFIG_RT_GROUP_SCHED that is so for cpu while a \
         realtime process is below it"
    )]
    Refused {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The controllers, apart by spaces.
        controllers: String,
        /// What the kernel says.
        source: io::Error,
    },
    /// The cgroup cannot be removed while there are processes (kernel threads included) in it or below it.
    #[error("cgroup {cgroup} is in use by processes ({})", list(.pids))]
    Busy {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The processes in it and below.
        pids: Vec<u32>,
    },
    /// The process does not exist (any more).
    #[error("process {pid} does not exist")]
    NoProcess {
        /// Its pid.
        pid: u32,
    },
    /// The process is not in a cgroup v2 hierarchy (there is no `0::` line in `/proc/PID/cgroup`).
    #[error("process {pid} is in no cgroup of the v2 hierarchy")]
    NotUnified {
        /// Its pid.
        pid: u32,
    },
    /// The process is a zombie whose cgroup is already removed.
    #[error("the cgroup of process {pid} is removed already")]
    Removed {
        /// Its pid.
        pid: u32,
    },
    /// The process is in a cgroup whose path cannot be used, for example one outside our cgroup namespace.
    #[error("the cgroup of process {pid} cannot be named")]
    Unnameable {
        /// Its pid.
        pid: u32,
        /// What is wrong with the path.
        #[source]
        source: CgroupPathError,
    },
    /// A process file below `/proc` cannot be read.
    #[error("cannot read the cgroup of process {pid}")]
    ReadProc {
        /// Its pid.
        pid: u32,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The cgroup did not reach a state within the time limit.
    #[error("cgroup {cgroup} did not reach '{wanted}' within {limit_ms} ms (processes: {})", list(.pids))]
    TimedOut {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The line of `cgroup.events` that was waited for.
        wanted: &'static str,
        /// The limit in milliseconds.
        limit_ms: u64,
        /// The processes that are in the cgroup and below.
        pids: Vec<u32>,
    },
    /// The directory could not be made.
    #[error("cannot create cgroup {cgroup}")]
    Create {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The directory could not be removed, for another reason than [`CgroupError::Busy`].
    #[error("cannot remove cgroup {cgroup}")]
    Remove {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A file, or the list of children, could not be read.
    #[error("cannot read {file} of cgroup {cgroup}")]
    Read {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The file.
        file: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {value:?} to {file} of cgroup {cgroup}")]
    Write {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The file.
        file: String,
        /// The value.
        value: String,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A file has a line that cannot be understood.
    #[error("{file} of cgroup {cgroup} has a line that cannot be read: {line:?}")]
    Parse {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The file.
        file: String,
        /// The line.
        line: String,
    },
}

/// Up to ten pids for a message.
fn list(pids: &[u32]) -> String {
    if pids.is_empty() {
        return "none that can be seen".to_owned();
    }
    let mut text = pids.iter().take(10).map(u32::to_string).collect::<Vec<_>>().join(" ");
    if pids.len() > 10 {
        text.push_str(&format!(" and {} more", pids.len() - 10));
    }
    text
}
