//! Rules about swap and dirty pages.

use bulkhead_core::facts::{Database, Device, DeviceKind, Facts, Swap};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::units::Bytes;

use super::{is_controlled, is_zvol, named};
use crate::{Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::SwapBesideDatabase,
        why: "When memory is short, pages are written there at the rate at which processes need memory, and the database's I/O waits beside \
              it.",
        measured: None,
        source: "proc(5), /proc/swaps; kernel mm/page_io.c",
        fix: Fix::None("memory may not suffice without it"),
        find: swap_beside_database,
    },
    Rule {
        id: FindingId::SwapAboveImage,
        why: "To free memory the kernel has to write to it, for which the layers below need memory: a host that swaps can stop.",
        measured: None,
        source: "kernel Documentation/core-api/memory-allocation.rst, PF_MEMALLOC; drivers/block/loop.c, zvol and swap: OpenZFS FAQ",
        fix: Fix::None("memory may not suffice without it"),
        find: swap_above_image,
    },
    Rule {
        id: FindingId::DirtyLimitHigh,
        why: "So much can wait to be written when a database calls fsync, and when the drive or a shared journal makes it wait for all of it.",
        measured: None,
        source: "kernel Documentation/admin-guide/sysctl/vm.rst, dirty_ratio and dirty_bytes",
        fix: Fix::None("it concerns all programs of the host"),
        find: dirty_limit_high,
    },
];

/// Dirty data that a hard disk writes in about ten seconds.
const HIGH_DIRTY_LIMIT: u64 = Bytes::GIB;

fn swap_beside_database(facts: &Facts) -> Vec<Finding> {
    let finding = |swap: &Swap| {
        let disks: Vec<&Device> = facts.disks_of(swap.dev);
        let beside = |database: &&Database| {
            facts
                .disks_of(database.dev)
                .iter()
                .any(|disk| !is_controlled(disk) && disks.iter().any(|other| other.dev == disk.dev))
        };
        let names = named(facts.databases.iter().filter(beside).map(|database| database.name.as_str()));
        let disk = disks.first()?;
        let evidence = format!("{} are swapped out to {}, on which the data of {names} is", swap.used_bytes, disk.name);
        let advice = "move it to another disk, or use zram or less memory; where it has to stay, io.cost or BFQ with weights restrains it";
        (!names.is_empty() && swap.used_bytes.0 > 0).then(|| {
            Finding::new(FindingId::SwapBesideDatabase, format!("swap {}", swap.path), evidence).advise(advice)
        })
    };
    facts.swaps.iter().filter_map(finding).collect()
}

fn swap_above_image(facts: &Facts) -> Vec<Finding> {
    let finding = |swap: &Swap| {
        let top = facts.device_at(swap.dev)?;
        let is_served = |device: &&Device| {
            matches!(device.kind, DeviceKind::Loop | DeviceKind::Nbd | DeviceKind::Ublk) || is_zvol(device)
        };
        let below = facts.stack(top).into_iter().find(is_served)?;
        let advice = "`swapoff` it, and use a partition, a logical volume or a file on a disk";
        let evidence = format!("it is on {}, which needs memory to write", below.name);
        Some(Finding::new(FindingId::SwapAboveImage, format!("swap {}", swap.path), evidence).advise(advice))
    };
    facts.swaps.iter().filter_map(finding).collect()
}

fn dirty_limit_high(facts: &Facts) -> Vec<Finding> {
    let Some(limit) = facts.dirty_limit.filter(|limit| limit.0 >= HIGH_DIRTY_LIMIT) else { return Vec::new() };
    let slow = |database: &&Database| {
        facts
            .disks_of(database.dev)
            .iter()
            .any(|disk| disk.rotational && disk.name.starts_with("sd") && !is_controlled(disk))
    };
    let names = named(facts.databases.iter().filter(slow).map(|database| database.name.as_str()));
    if names.is_empty() {
        return Vec::new();
    }
    let evidence = format!(
        "writers are throttled from {limit} of dirty data on, and the data of {names} is on a hard disk without a controller"
    );
    let advice = "`sysctl vm.dirty_bytes=268435456 vm.dirty_background_bytes=67108864`, permanently in /etc/sysctl.d";
    vec![Finding::new(FindingId::DirtyLimitHigh, "host", evidence).advise(advice)]
}
