//! Processes of the simulated host.

use bulkhead_core::error::Fault;
use bulkhead_core::slices;

use super::Sim;
use crate::host::Processes;

impl Processes for Sim {
    fn runs(&self, payload: &str) -> Vec<(u32, String)> {
        let run = |path: &String| Some((slices::run_of(path.strip_prefix(payload)?.strip_prefix('/')?)?, path.clone()));
        self.world().cgroups.keys().filter_map(run).collect()
    }

    fn start_run(&self, payload: &str, pid: u32, _command_pid: u32) -> Result<String, Fault> {
        let cgroup = format!("{payload}/{}", slices::run(pid, true));
        self.world().cgroups.entry(cgroup.clone()).or_default();
        Ok(cgroup)
    }

    fn processes(&self, _cgroup: &str) -> Vec<u32> {
        Vec::new()
    }

    fn kill_all(&self, _cgroup: &str) -> Result<(), Fault> {
        Ok(())
    }

    fn terminate(&self, _cgroup: &str) {}

    fn start_time(&self, pid: u32) -> Option<u64> {
        self.world().processes.get(&pid).copied()
    }

    fn is_going_down(&self) -> bool {
        false
    }
}
