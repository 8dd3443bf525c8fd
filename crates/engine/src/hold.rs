//! Enforcing shares: the recorded holds, and once a second a step of the controller ([`running`]).
//!
//! Owns: the resolution of names to cgroups, the choice of the controller whose weights are used, and what a hold changes on the host and
//! restores. Weights are set on one device only, so that resetting them restores the previous state.
//! Does not: decide about weights or caps, or fight over them: another program that writes one is reported, and left alone.

pub(crate) mod promises;
mod reasons;
mod running;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_api::wire::{Done, HoldStart, HoldTenant};
use bulkhead_core::action::{Action, CgroupAction, Record, StateAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::control;
use bulkhead_core::control::actions::{move_journal, set_cap, set_tunable, set_weight};
use bulkhead_core::control::holding::{PPM, largest_weight};
use bulkhead_core::control::splitting::INITIAL_JOURNAL_FRACTION;
use bulkhead_core::control::strictness::{STRICT, strict_value};
use bulkhead_core::devname::DevName;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::identity::{Identity, journal_beside};
use bulkhead_core::model::{HeldJournal, HeldTenant, Hold, Policy};
use bulkhead_core::reason::Reason;
use bulkhead_core::volume::Plan;

pub use running::RunningHolds;

use self::promises::check_promise;
use crate::devices::kernel_name;
use crate::engine::Engine;
use crate::host::BlockFacts;

/// The interval between steps.
pub const PERIOD: Duration = Duration::from_secs(1);
/// The least average weight: smaller ones are too coarse.
const MIN_MEAN_WEIGHT: u32 = 10;

impl Engine {
    /// All holds with a readable record. Like the cgroups, they do not survive a reboot; a damaged record is reported, and does not
    /// affect the others.
    ///
    /// # Errors
    /// When the records cannot be listed.
    pub fn holds(&self) -> Result<Vec<Hold>, Fault> {
        let records = self.host().records(&self.dirs.run.join("holds"), "")?;
        let holds = records.iter().filter_map(|(path, record)| match record {
            Ok(Record::Hold(hold)) if *path == self.hold_record(&hold.device) => Some(hold.clone()),
            _ => None,
        });
        Ok(holds.collect())
    }

    /// Records a hold, and sets its initial weights. It replaces an earlier hold on the device. Idempotent.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid shares, and for a name that matches several containers; `NotFound` for one that matches none;
    /// `Unsupported` where no controller makes weights work, and for containers with different parent cgroups.
    pub fn hold_start(&self, request: &HoldStart, dry_run: bool) -> Result<Done<Hold>, Fault> {
        let facts = self.held_device(request.device.as_deref())?;
        let file = weight_file(&facts)?.to_owned();
        let before = self.holds()?.into_iter().find(|hold| hold.device == facts.name);
        let tenants = self.held_tenants(request, before.as_ref(), &facts)?;
        let is_same = before.as_ref().is_some_and(|hold| {
            (&hold.tenants, hold.unit, hold.mode, &hold.weight_file) == (&tenants, request.unit, request.mode, &file)
        });
        let total_weight = match &before {
            Some(before) if is_same => before.total_weight,
            _ => self.total_weight(&tenants, &file, &facts)?,
        };
        let tunables = self.tunables_before(before.as_ref(), &file, &facts);
        let hold = Hold {
            device: facts.name,
            unit: request.unit,
            mode: request.mode,
            weight_file: file,
            total_weight,
            tenants,
            tunables,
            lease_seconds: request.lease_seconds,
            for_promises: false,
        };
        let mut steps = Vec::new();
        if before.as_ref() != Some(&hold) {
            steps.push(self.write_hold(&hold));
        }
        let mut on_failure = Vec::new();
        if !is_same {
            let is_kept = |old: &&HeldTenant| {
                hold.tenants.iter().any(|tenant| (&tenant.cgroup, &tenant.journal) == (&old.cgroup, &old.journal))
            };
            if let Some(before) = &before {
                let dropped =
                    before.tenants.iter().filter(|old| before.weight_file != hold.weight_file || !is_kept(old));
                steps.extend(dropped.flat_map(|tenant| restore_steps(before, tenant)));
            }
            for journal in hold.tenants.iter().filter_map(|tenant| tenant.journal.as_ref()) {
                steps.extend([
                    Action::Cgroup(CgroupAction::CreateCgroup { cgroup: journal.cgroup.clone() }),
                    move_journal(journal),
                ]);
            }
            steps.extend(strict_tunables(&hold));
            let ideal =
                |tenant: &HeldTenant| set_weight(&hold, tenant, ideal_weight(&hold, tenant), INITIAL_JOURNAL_FRACTION);
            steps.extend(hold.tenants.iter().flat_map(ideal));
            on_failure = self.steps_to_end(&hold);
        }
        let steps = self.executor.run(&Plan { steps, on_failure, can_be_undone: true }, dry_run)?;
        self.look_up_promises_again();
        Ok(Done { object: Some(hold), steps, dry_run })
    }

    /// Ends the hold on a device and resets its weights. Idempotent.
    ///
    /// # Errors
    /// `InUse` for one that enforces promises of tenants, and those of the steps.
    pub fn hold_stop(&self, device: &str, dry_run: bool) -> Result<Done<Hold>, Fault> {
        let hold = self.holds()?.into_iter().find(|hold| hold.device.as_str() == kernel_name(device));
        if let Some(hold) = hold.as_ref().filter(|hold| hold.for_promises) {
            let promised = hold.tenants.iter().filter(|tenant| tenant.fsync_p99_us.is_some());
            let tenants: Vec<String> = promised.map(|tenant| tenant.name.clone()).collect();
            let cause = format!("it enforces what was promised to {}", tenants.join(", "));
            return Err(Fault::new(Code::InUse, format!("hold on {}", hold.device), cause)
                .reason(Reason::HoldForPromises { tenants }));
        }
        self.look_up_promises_again();
        let steps = hold.as_ref().map(|hold| self.steps_to_end(hold)).unwrap_or_default();
        let steps = self.executor.run_steps(steps, dry_run)?;
        Ok(Done { object: None, steps, dry_run })
    }

    fn steps_to_end(&self, hold: &Hold) -> Vec<Action> {
        let mut steps: Vec<Action> = hold.tenants.iter().flat_map(|tenant| restore_steps(hold, tenant)).collect();
        steps.extend(hold.tunables.iter().map(|(tunable, value)| set_tunable(&hold.device, tunable, value)));
        steps.push(Action::State(StateAction::RemoveRecord { path: self.hold_record(&hold.device) }));
        steps
    }

    /// The tunables to restore at the end: their current values, or those from before an earlier hold.
    fn tunables_before(&self, earlier: Option<&Hold>, file: &str, facts: &BlockFacts) -> BTreeMap<String, String> {
        let wanted = STRICT.into_iter().filter(|_| file == "io.bfq.weight");
        let before = wanted.filter_map(|(tunable, value)| {
            let now = self.host().tunable(facts.dev, tunable)?;
            match earlier.and_then(|hold| hold.tunables.get(tunable)) {
                Some(before) => Some((tunable.to_owned(), before.clone())),
                None => (now != value).then(|| (tunable.to_owned(), now)),
            }
        });
        before.collect()
    }

    fn hold_record(&self, device: &DevName) -> PathBuf {
        self.dirs.run.join("holds").join(device.sysfs_name())
    }

    pub(crate) fn held_device(&self, device: Option<&str>) -> Result<BlockFacts, Fault> {
        let is_physical = |facts: &BlockFacts| facts.physical == [facts.name.as_str()];
        let Some(device) = device else {
            let devices = self.host().block_devices()?.into_iter();
            let controlled = devices.filter(|facts| is_physical(facts) && facts.policy() != Policy::None);
            let mut controlled: Vec<BlockFacts> = controlled.collect();
            return match (controlled.pop(), controlled.is_empty()) {
                (Some(only), true) => Ok(only),
                (None, _) => {
                    Err(Fault::new(Code::Unsupported, "hold", "no device has a controller that honours weights")
                        .reason(Reason::NoDeviceToHold))
                }
                (Some(last), false) => {
                    let devices = controlled.into_iter().chain([last]).map(|facts| facts.name.to_string()).collect();
                    Err(Fault::new(Code::InvalidArgument, "hold", "several devices have a controller")
                        .reason(Reason::SeveralDevicesToHold { devices }))
                }
            };
        };
        let facts = self.facts(device)?;
        if !is_physical(&facts) {
            let cause = format!("it is stacked on {}: weights work on physical devices", facts.physical.join(", "));
            return Err(Fault::new(Code::Unsupported, format!("device {}", facts.name), cause)
                .reason(Reason::HoldOnPhysical { physical: facts.physical }));
        }
        Ok(facts)
    }

    /// The tenants that the names denote, with shares in parts per million, and with their limits from before the first hold.
    fn held_tenants(
        &self,
        request: &HoldStart,
        earlier: Option<&Hold>,
        facts: &BlockFacts,
    ) -> Result<Vec<HeldTenant>, Fault> {
        let invalid = |object: String, cause: String| Fault::new(Code::InvalidArgument, object, cause);
        let mut asked = BTreeMap::new();
        for HoldTenant { tenant, share, .. } in &request.tenants {
            if asked.insert(tenant.clone(), *share).is_some() {
                return Err(invalid(format!("tenant {tenant}"), "it is given twice".to_owned())
                    .hint("give each tenant one share"));
            }
        }
        let promised: BTreeMap<&str, u64> =
            request.tenants.iter().filter_map(|held| Some((held.tenant.as_str(), held.fsync_p99_us?))).collect();
        for (tenant, us) in &promised {
            check_promise(&format!("tenant {tenant}"), Some(*us))?;
        }
        let parts = control::normalise_shares(&asked)
            .map_err(|error| invalid("hold".to_owned(), error.to_string()).reason(Reason::SharesInvalid))?;
        let containers = self.host().containers()?;
        let mut tenants: Vec<HeldTenant> = Vec::new();
        for (name, part) in parts {
            let (cgroup, identity) = find_container(&containers, &name)?;
            if let Some(other) = tenants.iter().find(|tenant| tenant.cgroup == cgroup) {
                let cause = format!("{} and {name} are the same container", other.name);
                return Err(invalid(format!("tenant {name}"), cause).hint("give each tenant one share"));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of 1")]
            let share_ppm = (part * PPM).round() as u32;
            let was_held = earlier.and_then(|hold| hold.tenants.iter().find(|tenant| tenant.cgroup == cgroup));
            let before = match was_held {
                Some(tenant) => tenant.before(),
                None => self.host().io_max(&cgroup, facts.dev)?.unwrap_or_default(),
            };
            let fsync_p99_us = promised.get(name.as_str()).copied();
            let asked =
                request.tenants.iter().find(|held| held.tenant == name).and_then(|held| held.journal.as_deref());
            let journal = match asked {
                Some(path) => Some(self.held_journal(path, &cgroup, facts)?),
                None => None,
            };
            let is_same =
                |other: &&HeldTenant| journal.is_some() && device_of(other) == journal.as_ref().map(|j| &j.device);
            if let Some(other) = tenants.iter().find(is_same) {
                let cause = format!("{} and {name} use the same file system", other.name);
                return Err(invalid(format!("tenant {name}"), cause)
                    .hint("leave the journal of a shared file system where it is: shares are corrected for its I/O"));
            }
            let (iops_before, bytes_before) = (before.ops, before.bytes);
            tenants.push(HeldTenant {
                name,
                share_ppm,
                identity,
                cgroup,
                iops_before,
                bytes_before,
                fsync_p99_us,
                journal,
            });
        }
        if let [first, others @ ..] = &tenants[..]
            && let Some(other) = others.iter().find(|other| other.cgroup.parent() != first.cgroup.parent())
        {
            let cause = format!(
                "weights arbitrate between sibling cgroups, and {} is not a sibling of {}",
                other.cgroup, first.cgroup
            );
            return Err(Fault::new(Code::Unsupported, format!("tenant {}", other.name), cause)
                .hint("put them under one parent (`--cgroup-parent`, `Slice=`), or use the cgroups above them"));
        }
        Ok(tenants)
    }

    /// The journal whose thread moves to a cgroup next to the container's. The thread is in the root cgroup, or there already.
    fn held_journal(&self, path: &Path, cgroup: &CgroupPath, facts: &BlockFacts) -> Result<HeldJournal, Fault> {
        let object = || format!("file system of {}", path.display());
        if !path.is_absolute() {
            return Err(
                Fault::new(Code::InvalidArgument, object(), "the path is not absolute").hint("start it with a slash")
            );
        }
        let found = self.host().journal_at(path)?;
        if !found.physical.iter().any(|name| name == facts.name.as_str()) {
            let cause = format!("it is on {}, but shares are enforced on {}", found.physical.join(", "), facts.name);
            return Err(Fault::new(Code::InvalidArgument, object(), cause)
                .reason(Reason::HoldOnPhysical { physical: found.physical }));
        }
        let cgroup_beside =
            journal_beside(cgroup).map_err(|error| Fault::new(Code::Unsupported, format!("cgroup {cgroup}"), error))?;
        if !found.cgroup.is_root() && found.cgroup != cgroup_beside {
            let cause = format!("its journal thread is already in {}, which is charged for it", found.cgroup);
            return Err(Fault::new(Code::InUse, object(), cause).hint("enforce the share of that cgroup instead"));
        }
        Ok(HeldJournal { device: found.device, cgroup: cgroup_beside })
    }

    /// The sum of their current weights, so that the balance with other cgroups does not change.
    fn total_weight(&self, tenants: &[HeldTenant], file: &str, facts: &BlockFacts) -> Result<u32, Fault> {
        let mut total = 0u32;
        for tenant in tenants {
            let weight = self.host().weight(&tenant.cgroup, file, facts.dev)?;
            total = total.saturating_add(weight.ok_or_else(|| {
                let cause = format!("its cgroup {} has no {file}", tenant.cgroup);
                Fault::new(Code::Unsupported, format!("tenant {}", tenant.name), cause)
                    .hint("enable the io controller for it: `+io` in `cgroup.subtree_control` of its parent cgroup")
            })?);
        }
        Ok(total.max(MIN_MEAN_WEIGHT * u32::try_from(tenants.len()).unwrap_or(u32::MAX)))
    }
}

/// The weight file of the controller that is active on a device.
fn weight_file(facts: &BlockFacts) -> Result<&'static str, Fault> {
    match facts.policy() {
        Policy::Iocost => Ok("io.weight"),
        Policy::Bfq => Ok("io.bfq.weight"),
        Policy::None => Err(Fault::new(
            Code::Unsupported,
            format!("device {}", facts.name),
            "it has no controller that honours weights",
        )
        .reason(Reason::NoController { device: facts.name.to_string() })),
    }
}

fn strict_tunables(hold: &Hold) -> impl Iterator<Item = Action> {
    hold.tunables.keys().filter_map(|tunable| Some(set_tunable(&hold.device, tunable, strict_value(tunable)?)))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a part of the total weight, which is an u32"
)]
fn ideal_weight(hold: &Hold, tenant: &HeldTenant) -> u32 {
    let weight = f64::from(hold.total_weight) * f64::from(tenant.share_ppm) / PPM;
    (weight.round() as u32).clamp(1, largest_weight(&hold.weight_file))
}

fn device_of(tenant: &HeldTenant) -> Option<&DevName> {
    tenant.journal.as_ref().map(|journal| &journal.device)
}

/// The steps that restore a tenant's cgroup.
fn restore_steps(hold: &Hold, tenant: &HeldTenant) -> Vec<Action> {
    let (cgroup, file, device) = (tenant.cgroup.clone(), hold.weight_file.clone(), hold.device.clone());
    let mut steps =
        vec![Action::Cgroup(CgroupAction::ResetWeight { cgroup, file, device }), set_cap(hold, tenant, None)];
    if let Some(HeldJournal { device, cgroup }) = tenant.journal.clone() {
        steps.extend([
            Action::Cgroup(CgroupAction::MoveJournal { device, cgroup: CgroupPath::root() }),
            Action::Cgroup(CgroupAction::RemoveCgroup { cgroup }),
        ]);
    }
    steps
}

/// The cgroup with this path, or of the container with this name or id.
fn find_container(containers: &[(CgroupPath, Identity)], name: &str) -> Result<(CgroupPath, Identity), Fault> {
    let path = name.trim_matches('/');
    let object = format!("tenant {name}");
    let mut found: Vec<&(CgroupPath, Identity)> =
        containers.iter().filter(|(cgroup, _)| cgroup.relative() == path).collect();
    if found.is_empty() {
        found = containers.iter().filter(|(_, identity)| identity.matches(name)).collect();
        // A container has cgroups below its own.
        found.sort_by_key(|(cgroup, _)| cgroup.relative().len());
        let mut kept: Vec<&(CgroupPath, Identity)> = Vec::new();
        for one in found {
            if !kept.iter().any(|other| other.1 == one.1) {
                kept.push(one);
            }
        }
        found = kept;
    }
    match &found[..] {
        [] => Err(Fault::new(Code::NotFound, object, "no container, unit, tenant or cgroup has that name")
            .reason(Reason::NoSuchContainer { name: name.to_owned() })),
        [(cgroup, _)] if cgroup.is_root() => {
            Err(Fault::new(Code::InvalidArgument, object, "the root cgroup has no weight")
                .hint("use the cgroups below it"))
        }
        [one] => Ok((*one).clone()),
        several => {
            let paths: Vec<&str> = several.iter().map(|(cgroup, _)| cgroup.relative()).collect();
            Err(Fault::new(Code::InvalidArgument, object, format!("several have that name: {}", paths.join(", ")))
                .hint("give the path of one of the cgroups"))
        }
    }
}

#[cfg(test)]
mod tests;
