//! Rules about redundancy: software RAID and multipath.

use bulkhead_core::facts::{Device, Facts};
use bulkhead_core::finding::{Finding, FindingId};

use super::{CHECK_HARDWARE, ENDS, on_device};
use crate::{Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::RaidDegraded,
        why: "Redundancy is gone, and reads of a missing member are computed from all others.",
        measured: None,
        source: "kernel Documentation/admin-guide/md.rst: degraded",
        fix: Fix::None(CHECK_HARDWARE),
        find: raid_degraded,
    },
    Rule {
        id: FindingId::RaidRebuilding,
        why: "The kernel's own I/O on the members is charged to no container, and has a minimum speed also beside theirs.",
        measured: None,
        source: "kernel Documentation/admin-guide/md.rst: sync_action, sync_speed_min",
        fix: Fix::None(ENDS),
        find: raid_rebuilding,
    },
    Rule {
        id: FindingId::PathLost,
        why: "The others carry its I/O. When the last one fails, all I/O waits or fails.",
        measured: None,
        source: "kernel Documentation/admin-guide/device-mapper/dm-queue-length.rst, Status; multipath(8)",
        fix: Fix::None(CHECK_HARDWARE),
        find: path_lost,
    },
];

fn raid_degraded(facts: &Facts) -> Vec<Finding> {
    let degraded = facts.devices.iter().filter(|device| device.missing_members > 0);
    let finding = |device: &Device| {
        let evidence = format!("members that are missing: {}", device.missing_members);
        let advice = format!(
            "`mdadm --detail /dev/{0}` shows which; replace it and add the new one: `mdadm /dev/{0} --add DEVICE`",
            device.name
        );
        on_device(FindingId::RaidDegraded, device, evidence).advise(advice)
    };
    degraded.map(finding).collect()
}

fn raid_rebuilding(facts: &Facts) -> Vec<Finding> {
    let finding = |device: &Device| {
        let action = device.raid_action.as_deref().filter(|action| !["idle", "frozen"].contains(action))?;
        let advice = format!(
            "wait until it has ended (/proc/mdstat); /sys/block/{}/md/sync_speed_max limits it, in KiB/s for each member",
            device.name
        );
        Some(on_device(FindingId::RaidRebuilding, device, format!("its members are in {action}")).advise(advice))
    };
    facts.devices.iter().filter_map(finding).collect()
}

fn path_lost(facts: &Facts) -> Vec<Finding> {
    let finding = |device: &Device| {
        let paths = device.paths.filter(|paths| paths.failed > 0)?;
        let evidence =
            format!("{} of its {} paths have failed", paths.failed, paths.failed.saturating_add(paths.usable));
        let advice = "`multipath -ll` shows which; check the link, and what the storage reports";
        Some(on_device(FindingId::PathLost, device, evidence).advise(advice))
    };
    facts.devices.iter().filter_map(finding).collect()
}
