//! Actions of a hold: weights, caps, scheduler tunables and journal threads.

use super::Cap;
use super::own_caps::limits_with_cap;
use super::splitting::split;
use crate::action::{Action, CgroupAction, QueueAction};
use crate::cgroup::CgroupPath;
use crate::devname::DevName;
use crate::model::{HeldJournal, HeldTenant, Hold};

/// Sets a tenant's weight. If its journal thread has a cgroup of its own, that gets the fraction `journal` of the
/// weight.
#[must_use]
pub fn set_weight(hold: &Hold, tenant: &HeldTenant, weight: u32, journal: f64) -> Vec<Action> {
    let set = |cgroup: &CgroupPath, weight: u32| {
        Action::Cgroup(CgroupAction::SetWeight {
            cgroup: cgroup.clone(),
            file: hold.weight_file.clone(),
            device: hold.device.clone(),
            weight,
        })
    };
    let Some(journal_thread) = &tenant.journal else { return vec![set(&tenant.cgroup, weight)] };
    let (own, of_journal) = split(weight, journal);
    vec![set(&journal_thread.cgroup, of_journal), set(&tenant.cgroup, own)]
}

/// Caps a tenant, or restores the limits from before the hold.
#[must_use]
pub fn set_cap(hold: &Hold, tenant: &HeldTenant, cap: Option<Cap>) -> Action {
    let (cgroup, device) = (tenant.cgroup.clone(), hold.device.clone());
    Action::Cgroup(CgroupAction::LimitIo { cgroup, device, limit: limits_with_cap(tenant.before(), cap) })
}

/// Sets a tunable of the device's scheduler.
#[must_use]
pub fn set_tunable(device: &DevName, tunable: &str, value: &str) -> Action {
    Action::Queue(QueueAction::SetTunable {
        device: device.clone(),
        tunable: tunable.to_owned(),
        value: value.to_owned(),
    })
}

/// Moves a journal thread to the cgroup next to its container's.
#[must_use]
pub fn move_journal(journal: &HeldJournal) -> Action {
    Action::Cgroup(CgroupAction::MoveJournal { device: journal.device.clone(), cgroup: journal.cgroup.clone() })
}
