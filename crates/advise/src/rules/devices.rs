//! Rules about block devices.

use bulkhead_core::facts::{Device, Facts};
use bulkhead_core::finding::{Finding, FindingId};

fn found(id: FindingId, device: &Device, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, format!("device {}", device.name), evidence)
}

/// Disks with file systems on them.
pub(super) fn disks_in_use(facts: &Facts) -> impl Iterator<Item = &Device> {
    let above = facts.mounts_above();
    facts.devices.iter().filter(move |device| device.is_disk() && above.contains_key(device.name.as_str()))
}

pub(super) fn raid_degraded(facts: &Facts) -> Vec<Finding> {
    let degraded = facts.devices.iter().filter(|device| device.missing_members > 0);
    let finding = |device: &Device| {
        let evidence = format!("members that are missing: {}", device.missing_members);
        let advice = format!(
            "`mdadm --detail /dev/{0}` shows which; replace it and add the new one: `mdadm /dev/{0} --add DEVICE`",
            device.name
        );
        found(FindingId::RaidDegraded, device, evidence).advise(advice)
    };
    degraded.map(finding).collect()
}

pub(super) fn bfq_on_nvme(facts: &Facts) -> Vec<Finding> {
    let is_concerned = |device: &&Device| {
        device.name.starts_with("nvme") && !device.rotational && device.scheduler.as_deref() == Some("bfq")
    };
    let finding = |device: &Device| {
        let advice = format!(
            "`bulkhead device calibrate {0}`, then `bulkhead device control {0} --policy iocost`; without Bulkhead: write `none` to \
             /sys/block/{0}/queue/scheduler, and use io.cost",
            device.name
        );
        found(FindingId::BfqOnNvme, device, "its I/O scheduler is bfq").advise(advice)
    };
    disks_in_use(facts).filter(is_concerned).map(finding).collect()
}

pub(super) fn io_cost_without_model(facts: &Facts) -> Vec<Finding> {
    let guessed = disks_in_use(facts).filter(|device| device.io_cost && !device.io_cost_model);
    let finding = |device: &Device| {
        let advice = format!("`bulkhead device calibrate {}` measures a model", device.name);
        found(FindingId::IoCostWithoutModel, device, "io.cost is enabled, and its model has ctrl=auto").advise(advice)
    };
    guessed.map(finding).collect()
}

pub(super) fn misaligned(facts: &Facts) -> Vec<Finding> {
    let above = facts.mounts_above();
    let shifted =
        facts.devices.iter().filter(|device| device.alignment_offset != 0 && above.contains_key(device.name.as_str()));
    let finding = |device: &Device| {
        let evidence = format!(
            "it begins {} bytes from a physical block of {} bytes",
            device.alignment_offset.unsigned_abs(),
            device.physical_block_bytes
        );
        let advice = "move its data to a partition or volume that begins at a multiple of 1 MiB, as all current tools create them";
        found(FindingId::PartitionMisaligned, device, evidence).advise(advice)
    };
    shifted.map(finding).collect()
}
