//! Rules about mounted file systems.

use bulkhead_core::facts::{Database, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};

fn found(id: FindingId, mount: &Mount, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, format!("file system {}", mount.at), evidence)
}

/// File systems that are written.
fn written(facts: &Facts) -> impl Iterator<Item = &Mount> {
    facts.file_systems().into_iter().filter(|mount| !mount.has("ro"))
}

pub(super) fn barriers_off(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let option = ["nobarrier", "barrier=0"].into_iter().find(|option| mount.has(option))?;
        let disks = facts.disks(facts.device_of(mount)?);
        // Nothing is lost where every write goes to the medium.
        let disk = disks.into_iter().find(|disk| disk.write_cache.as_deref() != Some("write through"))?;
        let evidence = format!("it is mounted with {option}, and {} has a write cache", disk.name);
        let advice = format!("`mount -o remount,barrier {}`, and remove {option} from /etc/fstab", mount.at);
        Some(found(FindingId::BarriersOff, mount, evidence).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}

pub(super) fn file_system_errors(facts: &Facts) -> Vec<Finding> {
    let finding = |fs: &bulkhead_core::facts::Ext4| {
        let device = facts.device(&fs.device).filter(|_| fs.errors > 0)?;
        let mount = facts.file_systems().into_iter().find(|mount| mount.dev == device.dev)?;
        let evidence = format!("ext4 on {} has recorded errors: {}", fs.device, fs.errors);
        let advice = format!(
            "save its data, unmount it, and run `e2fsck -f /dev/{0}`; `dumpe2fs -h /dev/{0}` shows the first and the last error",
            fs.device
        );
        Some(found(FindingId::FileSystemErrors, mount, evidence).advise(advice))
    };
    facts.ext4.iter().filter_map(finding).collect()
}

pub(super) fn data_not_ordered(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let advice = "remove it from /etc/fstab (and from the defaults in the superblock: `tune2fs -o ^journal_data_writeback DEVICE`), and mount \
                      the file system again; the mode cannot be changed while it is mounted";
        found(FindingId::DataNotOrdered, mount, "it is mounted with data=writeback").advise(advice)
    };
    written(facts).filter(|mount| mount.fs_type == "ext4" && mount.has("data=writeback")).map(finding).collect()
}

pub(super) fn atime_always(facts: &Facts) -> Vec<Finding> {
    let is_concerned = |mount: &&Mount| {
        ["btrfs", "ext3", "ext4", "xfs"].contains(&mount.fs_type.as_str())
            && !mount.has("relatime")
            && !mount.has("noatime")
    };
    let finding = |mount: &Mount| {
        let advice = format!("`mount -o remount,noatime {}` (or relatime), and the same in /etc/fstab", mount.at);
        found(FindingId::AtimeAlways, mount, "it has neither relatime nor noatime").advise(advice)
    };
    written(facts).filter(is_concerned).map(finding).collect()
}

pub(super) fn space_not_trimmed(facts: &Facts) -> Vec<Finding> {
    if facts.trims != Some(false) {
        return Vec::new();
    }
    let finding = |mount: &Mount| {
        let device = facts.device_of(mount)?;
        let discards = device.discard_bytes.0 > 0 && !device.rotational;
        let is_trimmed = mount.fs_options.iter().any(|option| option == "discard" || option.starts_with("discard="));
        let evidence =
            format!("{} can discard; the mount has no discard option, and fstrim.timer is not enabled", device.name);
        let advice = "`systemctl enable --now fstrim.timer`";
        (discards && !is_trimmed).then(|| found(FindingId::SpaceNotTrimmed, mount, evidence).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}

pub(super) fn database_on_overlay(facts: &Facts) -> Vec<Finding> {
    let finding = |database: &Database| {
        let evidence = format!(
            "process {} in {} has its data in {}, which is on overlay",
            database.pid, database.cgroup, database.directory
        );
        let advice = "mount a volume there: `docker run --volume-driver bulkhead -v NAME:DIRECTORY`, or a volume claim in Kubernetes";
        Finding::new(FindingId::DatabaseOnOverlay, format!("database {}", database.name), evidence).advise(advice)
    };
    facts.databases.iter().filter(|database| database.fs_type == "overlay").map(finding).collect()
}
