//! Rules about space: of file systems and of thin pools.

use bulkhead_core::facts::{Device, Facts, Mount, Space, ThinPool};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::stack::pool_name;

use super::{REMOVE_DATA, on_mount, written};
use crate::{Fix, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::FileSystemNearlyFull,
        why: "The allocator finds only small free pieces, so that new files are fragmented; then writes fail, for every container there.",
        measured: None,
        source: "statvfs(3); kernel fs/ext4/mballoc.c, ext4_mb_regular_allocator",
        fix: Fix::None(REMOVE_DATA),
        find: file_system_nearly_full,
    },
    Rule {
        id: FindingId::InodesNearlyUsed,
        why: "The number of inodes of ext4 is fixed when it is created. Without a free one no file can be created, whatever space is free.",
        measured: None,
        source: "mke2fs(8), -i and -N; statvfs(3)",
        fix: Fix::None(REMOVE_DATA),
        find: inodes_nearly_used,
    },
    Rule {
        id: FindingId::PoolNearlyFull,
        why: "Volumes of a thin pool can have more space in sum than the pool. When it is full, writes to new blocks wait, then fail, and the \
              file systems above report I/O errors.",
        measured: None,
        source: "lvmthin(7); kernel Documentation/admin-guide/device-mapper/thin-provisioning.rst",
        fix: Fix::None(REMOVE_DATA),
        find: pool_nearly_full,
    },
    Rule {
        id: FindingId::PoolMetadataNearlyFull,
        why: "Snapshots and small random writes need metadata. When its space is used up, the pool refuses all changes.",
        measured: None,
        source: "lvmthin(7), Metadata space exhaustion",
        fix: Fix::None("what space it gets is the owner's decision"),
        find: pool_metadata_nearly_full,
    },
    Rule {
        id: FindingId::PoolUnhealthy,
        why: "The kernel has stopped changing the pool, to protect its metadata.",
        measured: None,
        source: "kernel Documentation/admin-guide/device-mapper/thin-provisioning.rst, Status",
        fix: Fix::None("its volumes have to be unmounted"),
        find: pool_unhealthy,
    },
    Rule {
        id: FindingId::ThinPoolNotExtended,
        why: "LVM's monitor can give a pool more of the volume group in time. Its default is not to.",
        measured: None,
        source: "lvmthin(7), Automatically extend thin pool; lvm.conf(5), thin_pool_autoextend_threshold",
        fix: Fix::None("how far it may grow is the owner's decision"),
        find: thin_pool_not_extended,
    },
];

/// Usage from which on a file system is nearly full, in percent.
const NEARLY_FULL_PCT: u64 = 95;
/// The same for thin pools: those of the findings about Bulkhead's own.
const POOL_NEARLY_FULL_PCT: u64 = 80;

fn percent(used: u64, total: u64) -> u64 {
    u64::try_from(u128::from(used) * 100 / u128::from(total.max(1))).unwrap_or(u64::MAX)
}

/// File systems that are written, with their space.
fn spaces(facts: &Facts) -> impl Iterator<Item = (&Mount, &Space)> {
    written(facts).filter_map(|mount| Some((mount, facts.space_of(mount.dev)?)))
}

fn file_system_nearly_full(facts: &Facts) -> Vec<Finding> {
    let finding = |(mount, space): (&Mount, &Space)| {
        let used = space.size_bytes.0.saturating_sub(space.free_bytes.0);
        let evidence = format!("{} of {} are free", space.free_bytes, space.size_bytes);
        let advice = format!(
            "`du -xh --max-depth=2 {} | sort -h` shows what takes it; remove some, or grow the file system",
            mount.at
        );
        (space.size_bytes.0 > 0 && percent(used, space.size_bytes.0) >= NEARLY_FULL_PCT)
            .then(|| on_mount(FindingId::FileSystemNearlyFull, mount, evidence).advise(advice))
    };
    spaces(facts).filter_map(finding).collect()
}

fn inodes_nearly_used(facts: &Facts) -> Vec<Finding> {
    let finding = |(mount, space): (&Mount, &Space)| {
        let used = space.inodes.saturating_sub(space.free_inodes);
        let evidence = format!("{} of {} inodes are free", space.free_inodes, space.inodes);
        let advice = format!(
            "`du --inodes -x --max-depth=3 {} | sort -n` shows where the files are; remove some, or use XFS, which creates inodes as needed",
            mount.at
        );
        (space.inodes > 0 && percent(used, space.inodes) >= NEARLY_FULL_PCT)
            .then(|| on_mount(FindingId::InodesNearlyUsed, mount, evidence).advise(advice))
    };
    // XFS and btrfs report what would fit into their free space.
    spaces(facts).filter(|(mount, _)| mount.fs_type.starts_with("ext")).filter_map(finding).collect()
}

/// Thin pools, by their device-mapper names.
fn pools(facts: &Facts) -> impl Iterator<Item = (String, &ThinPool)> {
    facts
        .devices
        .iter()
        .filter_map(|device: &Device| Some((format!("thin pool {}", pool_name(device)), device.thin_pool.as_ref()?)))
}

fn pool_nearly_full(facts: &Facts) -> Vec<Finding> {
    let finding = |(object, pool): (String, &ThinPool)| {
        let used = percent(pool.data.0, pool.data.1);
        let when_full = if pool.queues { "writes wait for space, then fail" } else { "writes fail" };
        let evidence = format!("{used} % of its data are used; when it is full, {when_full}");
        let advice = "`lvextend` the pool, remove volumes or snapshots, or run `fstrim` on the file systems in it";
        (used >= POOL_NEARLY_FULL_PCT).then(|| Finding::new(FindingId::PoolNearlyFull, object, evidence).advise(advice))
    };
    pools(facts).filter_map(finding).collect()
}

fn pool_metadata_nearly_full(facts: &Facts) -> Vec<Finding> {
    let finding = |(object, pool): (String, &ThinPool)| {
        let used = percent(pool.metadata.0, pool.metadata.1);
        let evidence = format!("{used} % of its metadata are used");
        let advice = "`lvextend --poolmetadatasize +SIZE` the pool, or remove snapshots";
        (used >= POOL_NEARLY_FULL_PCT)
            .then(|| Finding::new(FindingId::PoolMetadataNearlyFull, object, evidence).advise(advice))
    };
    pools(facts).filter_map(finding).collect()
}

fn pool_unhealthy(facts: &Facts) -> Vec<Finding> {
    let finding = |(object, pool): (String, &ThinPool)| {
        let check = if pool.needs_check { ", and its metadata has to be checked" } else { "" };
        let evidence = format!("its state is {}{check}", pool.state);
        let advice =
            "a full pool: `lvextend` it. Else unmount its volumes, deactivate it, and run `lvconvert --repair`";
        (pool.state != "rw" || pool.needs_check)
            .then(|| Finding::new(FindingId::PoolUnhealthy, object, evidence).advise(advice))
    };
    pools(facts).filter_map(finding).collect()
}

fn thin_pool_not_extended(facts: &Facts) -> Vec<Finding> {
    let finding = |(object, _): (String, &ThinPool)| {
        let advice = "set `thin_pool_autoextend_threshold = 70` in the section `activation` of /etc/lvm/lvm.conf, leave space in the volume group, \
                      and monitor the pool (`lvchange --monitor y`)";
        let evidence = "thin_pool_autoextend_threshold in lvm.conf is 100";
        Finding::new(FindingId::ThinPoolNotExtended, object, evidence).advise(advice)
    };
    pools(facts).filter(|_| facts.thin_autoextend == Some(false)).map(finding).collect()
}
