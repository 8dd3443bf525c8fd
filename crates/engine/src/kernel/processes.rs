//! Processes, and the runs of commands in tenants.

use std::time::Duration;

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::slices;
use bulkhead_sys::cgroup;
use bulkhead_sys::process;
use bulkhead_sys::size;

use super::Kernel;
use super::faults::Classify;
use crate::host::{HostSize, Processes};

/// How long killed processes may take to exit.
const KILL_LIMIT: Duration = Duration::from_secs(20);

impl Processes for Kernel {
    fn runs(&self, payload: &CgroupPath) -> Vec<(u32, CgroupPath)> {
        let children = cgroup::children(&self.roots, payload).unwrap_or_default();
        children.into_iter().filter_map(|path| Some((slices::run_of(path.name())?, path))).collect()
    }

    fn start_run(&self, payload: &CgroupPath, pid: u32, command_pid: u32) -> Result<CgroupPath, Fault> {
        self.start_run_in(payload, pid, command_pid)
    }

    fn processes(&self, cgroup: &CgroupPath) -> Vec<u32> {
        let mut pids = cgroup::procs(&self.roots, cgroup).unwrap_or_default();
        for child in cgroup::children(&self.roots, cgroup).unwrap_or_default() {
            pids.extend(self.processes(&child));
        }
        pids
    }

    fn kill_all(&self, cgroup: &CgroupPath) -> Result<(), Fault> {
        cgroup::kill_all(&self.roots, cgroup, KILL_LIMIT).map_err(|e| e.fault(format!("cgroup {cgroup}")))
    }

    fn terminate(&self, cgroup: &CgroupPath) {
        for pid in self.processes(cgroup) {
            // Fails for a process that has exited.
            let _ = process::terminate(pid);
        }
    }

    fn start_time(&self, pid: u32) -> Option<u64> {
        process::start_time(&self.roots, pid)
    }

    fn size(&self) -> Result<HostSize, Fault> {
        let failed = |error| Fault::new(Code::Internal, "host", format!("its processors cannot be counted ({error})"));
        Ok(HostSize { cpus: size::cpus(&self.roots).map_err(failed)?, memory_bytes: size::memory() })
    }

    fn is_going_down(&self) -> bool {
        self.systemd.as_ref().is_some_and(|systemd| {
            systemd.is_stopping().unwrap_or_else(|error| {
                tracing::warn!(
                    why = bulkhead_core::error::chain(&error),
                    "systemd does not say whether the host is shutting down"
                );
                false
            })
        })
    }
}
