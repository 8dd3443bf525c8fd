//! Processes of the simulated host.

use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::Fault;
use bulkhead_core::slices;
use bulkhead_core::units::Bytes;

use super::Sim;
use crate::host::{HostSize, Processes};

impl Processes for Sim {
    fn runs(&self, payload: &CgroupPath) -> Vec<(u32, CgroupPath)> {
        let world = self.world();
        let below = world.cgroups.keys().filter(|path| path.parent().as_ref() == Some(payload));
        below.filter_map(|path| Some((slices::run_of(path.name())?, path.clone()))).collect()
    }

    fn start_run(&self, payload: &CgroupPath, pid: u32, _command_pid: u32) -> Result<CgroupPath, Fault> {
        let cgroup = payload.join(&slices::run(pid, true)).unwrap();
        self.world().cgroups.entry(cgroup.clone()).or_default();
        Ok(cgroup)
    }

    fn processes(&self, _cgroup: &CgroupPath) -> Vec<u32> {
        Vec::new()
    }

    fn kill_all(&self, _cgroup: &CgroupPath) -> Result<(), Fault> {
        Ok(())
    }

    fn terminate(&self, _cgroup: &CgroupPath) {}

    fn start_time(&self, pid: u32) -> Option<u64> {
        self.world().processes.get(&pid).copied()
    }

    fn size(&self) -> Result<HostSize, Fault> {
        Ok(HostSize { cpus: 4, memory_bytes: Bytes::mib(8 << 10) })
    }

    fn is_going_down(&self) -> bool {
        false
    }
}
