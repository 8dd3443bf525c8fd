//! Proofs that a mounted volume is unchanged: its journal thread and block server are where they were, and its peers can read from it.
//! And that a tenant's cgroups are: their controllers, weights and limits.
//!
//! The rest cannot be lost while a volume is mounted: its device, partition and logical volume are in use. A server's registration can, which
//! only a full check notices.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::action::{Action, CgroupAction, DeviceRef, LvmAction, MountAction, ServerAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::model::FsKind;
use bulkhead_formats::servers;
use bulkhead_sys::cgroup::{FileWatch, Membership};
use bulkhead_sys::process::Handle;
use bulkhead_sys::{jbd2, mount, packet};

use super::Kernel;
use super::cgroups::CONTROLLERS;
use super::servers::{Attached, server_of};
use crate::host::Proof;

/// What has to hold. Each item is about the process that was found: a successor is another one, and needs a full check.
#[derive(Debug, Default)]
struct Kept {
    members: Vec<Membership>,
    /// The reader that serves the volume's peers: a later one does not know the volume.
    reader: Option<Handle>,
    files: Vec<FileWatch>,
}

impl Proof for Kept {
    fn holds(&self) -> bool {
        let is_alive = |process: &Handle| matches!(process.wait_until_ended(Duration::ZERO), Ok(false));
        self.members.iter().all(Membership::holds)
            && self.files.iter().all(FileWatch::holds)
            && self.reader.as_ref().is_none_or(is_alive)
    }
}

impl Kernel {
    pub(super) fn proof_of(&self, kept: &[Action]) -> Option<Arc<dyn Proof>> {
        let mut proof = Kept::default();
        for action in kept {
            match action {
                Action::Server(ServerAction::AttachImage { spec, .. }) => {
                    // A loop device serves itself.
                    if let Attached::Served(device) = self.attached(&spec.image, spec.volume).ok()?? {
                        proof.members.push(self.member(server_of(&device)?, spec.cgroup.as_ref()?)?);
                    }
                }
                Action::Cgroup(CgroupAction::PlaceJournal { device, fs, cgroup }) => {
                    let (_, name) = self.kernel_name(device).ok()?;
                    let thread = match fs {
                        FsKind::Ext4 => jbd2::find_thread(&self.roots, &name),
                        FsKind::Xfs => jbd2::find_xfsaild(&self.roots, &name),
                    };
                    proof.members.push(self.member(thread.ok()??, cgroup)?);
                }
                Action::Mount(MountAction::AttachPeer { device: DeviceRef::Image { image, .. }, volume, .. }) => {
                    if let Attached::Served(_) = self.attached(image, *volume).ok()?? {
                        let reader = packet::connect_to(&servers::peers_socket(&self.roots)).ok()?;
                        proof.reader = Some(packet::peer(&reader).ok()??);
                    }
                }
                Action::Lvm(LvmAction::ActivateLv { .. }) => {}
                // The node stays the same as long as its device does, which a full check finds out.
                Action::Mount(MountAction::BindDevice { device, target }) => {
                    let (dev, _) = self.kernel_name(device).ok()?;
                    if mount::bound_node(&self.roots, target).ok()? != Some(dev) {
                        return None;
                    }
                }
                // An existing cgroup has its parents, and no controller that they lack.
                Action::Cgroup(
                    CgroupAction::CreateCgroup { cgroup } | CgroupAction::EnableController { cgroup, .. },
                ) if kept.iter().any(|other| is_below(other, action, cgroup)) => {}
                Action::Cgroup(CgroupAction::CreateCgroup { cgroup }) => {
                    proof.files.push(FileWatch::words(&self.roots, cgroup, "cgroup.controllers", &CONTROLLERS).ok()?);
                }
                Action::Cgroup(CgroupAction::EnableController { cgroup, controller }) => {
                    proof
                        .files
                        .push(FileWatch::words(&self.roots, cgroup, "cgroup.subtree_control", &[controller]).ok()?);
                }
                Action::Cgroup(CgroupAction::WriteCgroup { cgroup, file, value }) => {
                    proof.files.push(FileWatch::line(&self.roots, cgroup, file, value).ok()?);
                }
                _ => return None,
            }
        }
        proof.holds().then(|| Arc::new(proof) as Arc<dyn Proof>)
    }

    fn member(&self, pid: u32, cgroup: &CgroupPath) -> Option<Membership> {
        Membership::open(&self.roots, pid, cgroup).ok()
    }
}

/// Whether an action is the same as another one, below its cgroup.
fn is_below(action: &Action, other: &Action, cgroup: &CgroupPath) -> bool {
    let below = match (action, other) {
        (
            Action::Cgroup(CgroupAction::CreateCgroup { cgroup: below }),
            Action::Cgroup(CgroupAction::CreateCgroup { .. }),
        ) => below,
        (
            Action::Cgroup(CgroupAction::EnableController { cgroup: below, controller }),
            Action::Cgroup(CgroupAction::EnableController { controller: same, .. }),
        ) if controller == same => below,
        _ => return false,
    };
    below != cgroup && below.starts_with(cgroup)
}

#[cfg(test)]
mod tests {
    use bulkhead_core::{slices, tenant};

    use super::*;

    #[test]
    fn only_leaf_cgroups_are_checked() {
        let tenant = "db".parse().unwrap();
        let mut steps: Vec<Action> = [slices::tenant(&tenant), slices::payload(&tenant), slices::journal(&tenant)]
            .map(|cgroup| Action::Cgroup(CgroupAction::CreateCgroup { cgroup }))
            .into();
        steps.extend(tenant::prioritize_serving(&tenant));
        let is_checked = |action: &&Action| match action {
            Action::Cgroup(CgroupAction::CreateCgroup { cgroup } | CgroupAction::EnableController { cgroup, .. }) => {
                !steps.iter().any(|other| is_below(other, action, cgroup))
            }
            _ => false,
        };
        let asked: Vec<String> = steps.iter().filter(is_checked).map(ToString::to_string).collect();
        let slice = "bulkhead.slice/bulkhead-db.slice";
        let expected = [
            format!("create cgroup {slice}/bulkhead-db-payload.slice"),
            format!("create cgroup {slice}/bulkhead-db-journal.slice"),
            format!("enable controller cpu below cgroup {slice}"),
        ];
        assert_eq!(asked, expected);
    }
}
