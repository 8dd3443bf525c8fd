//! Proofs that the simulated host is as some actions left it.

use bulkhead_core::action::{Action, CgroupAction, MountAction, ServerAction};

use super::Sim;
use crate::host::Proof;

/// The actions whose result has to be unchanged.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) sim: Sim,
    pub(super) kept: Vec<Action>,
}

impl Proof for Kept {
    fn holds(&self) -> bool {
        let world = self.sim.world();
        self.kept.iter().all(|action| match action {
            Action::Server(ServerAction::AttachImage { spec, .. }) => {
                world.attached.get(&spec.image) == Some(&spec.cgroup)
            }
            Action::Cgroup(CgroupAction::PlaceJournal { device, cgroup, .. }) => {
                let target = world.mounts.iter().find(|(_, mounted)| *mounted == device).map(|(target, _)| target);
                target.and_then(|target| world.journals.get(target)) == Some(cgroup)
            }
            Action::Mount(MountAction::AttachPeer { volume, target, .. }) => world.peers.get(volume) == Some(target),
            Action::Cgroup(CgroupAction::CreateCgroup { cgroup }) => world.cgroups.contains_key(cgroup),
            Action::Cgroup(CgroupAction::EnableController { cgroup, .. }) => world.cpu_below.contains(cgroup),
            Action::Cgroup(CgroupAction::WriteCgroup { cgroup, file, value }) => {
                world.cgroups.get(cgroup).and_then(|files| files.get(file)) == Some(value)
            }
            _ => true,
        })
    }
}
