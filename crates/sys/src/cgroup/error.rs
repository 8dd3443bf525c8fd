//! Errors of cgroups.

use std::io;

use bulkhead_core::cgroup::{CgroupPath, CgroupPathError};

/// A failed operation on a cgroup.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The cgroup does not exist, or was removed meanwhile.
    #[error("cgroup {cgroup} does not exist")]
    NotFound {
        /// The cgroup.
        cgroup: CgroupPath,
    },
    /// The cgroup exists, but not the file: its controller is not enabled, or the kernel does not have it.
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
    /// A controller to be enabled below a cgroup is not available in it.
    #[error("controller {controller} is not available in cgroup {cgroup} (available: {available})")]
    MissingController {
        /// The cgroup whose `cgroup.controllers` lacks it.
        cgroup: CgroupPath,
        /// The wanted controller.
        controller: String,
        /// The content of `cgroup.controllers`.
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
    /// The kernel has a controller, but refuses to enable it for the processes below a cgroup.
    #[error(
        "the kernel refuses to enable {controllers} below cgroup {cgroup}; with CONFIG_RT_GROUP_SCHED it refuses cpu while a \
         realtime process runs below the cgroup"
    )]
    Refused {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The controllers, separated by spaces.
        controllers: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The cgroup cannot be removed while it or a descendant contains processes (kernel threads included).
    #[error("cgroup {cgroup} is in use by processes ({})", list(.pids))]
    Busy {
        /// The cgroup.
        cgroup: CgroupPath,
        /// The processes in it and its descendants.
        pids: Vec<u32>,
    },
    /// The process does not exist, or has exited.
    #[error("process {pid} does not exist")]
    NoProcess {
        /// Its pid.
        pid: u32,
    },
    /// The process is not in a cgroup v2 hierarchy (there is no `0::` line in `/proc/PID/cgroup`).
    #[error("process {pid} is not in a cgroup of the v2 hierarchy")]
    NotUnified {
        /// Its pid.
        pid: u32,
    },
    /// The process is a zombie whose cgroup was removed.
    #[error("the cgroup of process {pid} was removed")]
    Removed {
        /// Its pid.
        pid: u32,
    },
    /// The process is in a cgroup with an unusable path, for example outside our cgroup namespace.
    #[error("the cgroup of process {pid} has an unusable path")]
    Unnameable {
        /// Its pid.
        pid: u32,
        /// The error of the path.
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
        /// The awaited line of `cgroup.events`.
        wanted: &'static str,
        /// The limit in milliseconds.
        limit_ms: u64,
        /// The processes in the cgroup and its descendants.
        pids: Vec<u32>,
    },
    /// The directory could not be created.
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
    /// A file has a malformed line.
    #[error("{file} of cgroup {cgroup} has a malformed line: {line:?}")]
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
        return "none visible".to_owned();
    }
    let mut text = pids.iter().take(10).map(u32::to_string).collect::<Vec<_>>().join(" ");
    if pids.len() > 10 {
        text.push_str(&format!(" and {} more", pids.len() - 10));
    }
    text
}
