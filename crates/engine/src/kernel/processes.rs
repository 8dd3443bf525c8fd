//! Processes, and the runs of commands in tenants.

use std::time::Duration;

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::Fault;
use bulkhead_core::slices;
use bulkhead_sys::cgroup;
use bulkhead_sys::process;

use super::Kernel;
use super::act::cgroup_path;
use super::faults::Classify;
use crate::host::Processes;

/// How long killed processes may take to go.
const KILL_LIMIT: Duration = Duration::from_secs(20);

impl Processes for Kernel {
    fn runs(&self, payload: &str) -> Vec<(u32, String)> {
        let children = cgroup_path(payload).ok().and_then(|path| cgroup::children(&self.roots, &path).ok());
        let run = |path: &CgroupPath| Some((slices::run_of(path.name())?, path.to_string()));
        children.unwrap_or_default().iter().filter_map(run).collect()
    }

    fn start_run(&self, payload: &str, pid: u32, command_pid: u32) -> Result<String, Fault> {
        self.start_run_in(payload, pid, command_pid)
    }

    fn processes(&self, cgroup: &str) -> Vec<u32> {
        let Ok(path) = cgroup_path(cgroup) else { return Vec::new() };
        let mut pids = cgroup::procs(&self.roots, &path).unwrap_or_default();
        for child in cgroup::children(&self.roots, &path).unwrap_or_default() {
            pids.extend(self.processes(&child.to_string()));
        }
        pids
    }

    fn kill_all(&self, cgroup: &str) -> Result<(), Fault> {
        let path = cgroup_path(cgroup)?;
        cgroup::kill_all(&self.roots, &path, KILL_LIMIT).map_err(|e| e.fault(format!("cgroup {cgroup}")))
    }

    fn terminate(&self, cgroup: &str) {
        for pid in self.processes(cgroup) {
            // One that is gone has ended.
            let _ = process::terminate(pid);
        }
    }

    fn start_time(&self, pid: u32) -> Option<u64> {
        process::start_time(&self.roots, pid)
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
