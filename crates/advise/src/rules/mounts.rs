//! Rules about the options of mounted file systems.

use bulkhead_core::facts::{Device, DeviceKind, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::{Change, Setting};

use super::{UNMOUNT, mount_of, on_mount, written};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::BarriersOff,
        why: "The journal relies on the order in which its blocks reach the medium; without flushes the disk's cache decides.",
        measured: None,
        source: "kernel Documentation/filesystems/ext4/, `nobarrier`; Documentation/block/writeback_cache_control.rst",
        fix: Fix::Changes(enable_barriers),
        find: barriers_off,
    },
    Rule {
        id: FindingId::CacheNeverFlushed,
        why: "JFS writes its log without flushes or FUA, and its fsync flushes nothing: what the disk holds in its cache is lost with the power. \
              In the lab (doctor_power_cut), none of 60 synced files outlived a power cut; on eight other file systems all did.",
        measured: Some(Measured {
            figure: "a mail server on JFS did 9400 to 11 900 operations a second on the lab's hard disk without a single flush, on ext4 790 to 820 with 20 flushes a second",
            section: "nested-matrix",
        }),
        source: "kernel fs/jfs/jfs_logmgr.c, lbmStartIO: REQ_OP_WRITE | REQ_SYNC; fs/jfs/file.c, jfs_fsync",
        fix: Fix::None("only another file system flushes the cache, and turning the cache off makes all writes slower"),
        find: cache_never_flushed,
    },
    Rule {
        id: FindingId::DataNotOrdered,
        why: "Metadata is committed before the data that it refers to. The fsync of a database is not faster by it, because that writes its data first.",
        measured: None,
        source: "kernel Documentation/filesystems/ext4/, `data=writeback`; ext4(5)",
        fix: Fix::None(UNMOUNT),
        find: data_not_ordered,
    },
    Rule {
        id: FindingId::DataJournaled,
        why: "Data goes into the journal and then to its place. The mode has no delayed allocation and no direct I/O, and ext4 does not charge \
              writeback to cgroups in it.",
        measured: None,
        source: "kernel Documentation/filesystems/ext4/, `data=journal`; fs/ext4/super.c: SB_I_CGROUPWB is not set",
        fix: Fix::None(UNMOUNT),
        find: data_journaled,
    },
    Rule {
        id: FindingId::WritesSynchronous,
        why: "Each write waits for the medium, and each change of metadata for a commit, for programs that call fsync where they need it and \
              for all others.",
        measured: None,
        source: "mount(8), sync and dirsync",
        fix: Fix::Changes(write_asynchronously),
        find: writes_synchronous,
    },
    Rule {
        id: FindingId::CommitsRare,
        why: "A transaction collects the changes of all processes until its commit. The next fsync waits for all of them, and a crash loses \
              what no fsync has committed.",
        measured: None,
        source: "ext4(5), commit=",
        fix: Fix::Changes(commit_more_often),
        find: commits_rare,
    },
    Rule {
        id: FindingId::AtimeAlways,
        why: "A read of a file makes its inode dirty, and the next commit writes it.",
        measured: None,
        source: "mount(8), relatime and strictatime",
        fix: Fix::Changes(use_relatime),
        find: atime_always,
    },
    Rule {
        id: FindingId::SpaceNotTrimmed,
        why: "A drive, or a thin pool, learns only from discards which blocks are free.",
        measured: None,
        source: "fstrim(8); kernel Documentation/ABI/stable/sysfs-block: discard_max_bytes",
        fix: Fix::Changes(start_fstrim),
        find: space_not_trimmed,
    },
    Rule {
        id: FindingId::DiscardsStop,
        why: "A discard of the file system ends in the layer that does not pass it on: dm-crypt does so only with `allow-discards`, a RAID only \
              if all members can discard.",
        measured: None,
        source: "kernel Documentation/ABI/stable/sysfs-block: discard_max_bytes; crypttab(5), discard",
        fix: Fix::None("it is a property of the layer"),
        find: discards_stop,
    },
];

/// The default interval between commits of ext4 is 5 s; from this one on they are rare.
const RARE_COMMITS_SECONDS: u32 = 30;

/// Changes an option of the file system of a finding.
fn change_option(facts: &Facts, finding: &Finding, from: &str, to: &str) -> Vec<Change> {
    let Some(mount) = mount_of(facts, finding) else { return Vec::new() };
    let setting = Setting::FileSystemOption { at: mount.at.clone(), dev: mount.dev };
    vec![Change::new(setting, from, to)]
}

fn enable_barriers(facts: &Facts, finding: &Finding) -> Vec<Change> {
    change_option(facts, finding, "nobarrier", "barrier")
}

fn write_asynchronously(facts: &Facts, finding: &Finding) -> Vec<Change> {
    // The kernel cannot change dirsync while a file system is mounted.
    let is_sync = mount_of(facts, finding).is_some_and(|mount| mount.has("sync") && !mount.has("dirsync"));
    if is_sync { change_option(facts, finding, "sync", "async") } else { Vec::new() }
}

fn commit_more_often(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let option =
        mount_of(facts, finding).and_then(|mount| mount.fs_options.iter().find(|option| option.starts_with("commit=")));
    option.map(|option| change_option(facts, finding, option, "commit=5")).unwrap_or_default()
}

fn use_relatime(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let Some(mount) = mount_of(facts, finding) else { return Vec::new() };
    let setting = Setting::AccessTimes { at: mount.at.clone(), dev: mount.dev };
    vec![Change::new(setting, "strictatime", "relatime")]
}

fn start_fstrim(facts: &Facts, _: &Finding) -> Vec<Change> {
    let change = || Change::new(Setting::Timer { unit: "fstrim.timer".to_owned() }, "disabled", "enabled");
    facts.systemd.then(change).into_iter().collect()
}

/// A disk below a mount that can lose writes: nothing is lost where every write goes to the medium.
fn disk_with_cache<'a>(facts: &'a Facts, mount: &Mount) -> Option<&'a Device> {
    let disks = facts.disks(facts.device_of(mount)?);
    disks.into_iter().find(|disk| disk.write_cache.as_deref() != Some("write through"))
}

fn barriers_off(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let option = ["nobarrier", "barrier=0"].into_iter().find(|option| mount.has(option))?;
        let disk = disk_with_cache(facts, mount)?;
        let evidence = format!("it is mounted with {option}, and {} has a write cache", disk.name);
        let advice = format!("`mount -o remount,barrier {}`, and remove {option} from /etc/fstab", mount.at);
        Some(on_mount(FindingId::BarriersOff, mount, evidence).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}

fn cache_never_flushed(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let disk = disk_with_cache(facts, mount)?;
        let evidence = format!("{} never flushes the write cache of {}", mount.fs_type, disk.name);
        let advice = "move the data to ext4 or XFS, or turn the cache off: `hdparm -W0 DEVICE`, `nvme set-feature DEVICE -f 6 -V 0`";
        Some(on_mount(FindingId::CacheNeverFlushed, mount, evidence).advise(advice))
    };
    written(facts).filter(|mount| mount.fs_type == "jfs").filter_map(finding).collect()
}

fn data_not_ordered(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let advice = "remove it from /etc/fstab (and from the defaults in the superblock: `tune2fs -o ^journal_data_writeback DEVICE`), and mount \
                      the file system again; the mode cannot be changed while it is mounted";
        on_mount(FindingId::DataNotOrdered, mount, "it is mounted with data=writeback").advise(advice)
    };
    written(facts).filter(|mount| mount.fs_type == "ext4" && mount.has("data=writeback")).map(finding).collect()
}

fn data_journaled(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let advice = "remove it from /etc/fstab (and from the defaults in the superblock: `tune2fs -o ^journal_data DEVICE`), and mount the file \
                      system again; the mode cannot be changed while it is mounted";
        on_mount(FindingId::DataJournaled, mount, "it is mounted with data=journal").advise(advice)
    };
    written(facts).filter(|mount| mount.fs_type == "ext4" && mount.has("data=journal")).map(finding).collect()
}

fn writes_synchronous(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let option = ["sync", "dirsync"].into_iter().find(|option| mount.has(option))?;
        let advice = match option {
            "sync" => format!(
                "`mount -o remount,async {}`, and remove sync from /etc/fstab; databases call fsync themselves",
                mount.at
            ),
            _ => "remove dirsync from /etc/fstab, and mount it again: it cannot be changed while it is mounted"
                .to_owned(),
        };
        Some(on_mount(FindingId::WritesSynchronous, mount, format!("it is mounted with {option}")).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}

fn commits_rare(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let interval = |option: &String| option.strip_prefix("commit=")?.parse::<u32>().ok();
        let seconds = mount.fs_options.iter().find_map(interval).filter(|seconds| *seconds >= RARE_COMMITS_SECONDS)?;
        let advice = format!("`mount -o remount,commit=5 {}`, and remove commit= from /etc/fstab", mount.at);
        let evidence = format!("it is mounted with commit={seconds}");
        Some(on_mount(FindingId::CommitsRare, mount, evidence).advise(advice))
    };
    written(facts).filter(|mount| mount.fs_type == "ext4").filter_map(finding).collect()
}

fn atime_always(facts: &Facts) -> Vec<Finding> {
    let is_concerned = |mount: &&Mount| {
        ["btrfs", "ext3", "ext4", "xfs"].contains(&mount.fs_type.as_str())
            && !mount.has("relatime")
            && !mount.has("noatime")
    };
    let finding = |mount: &Mount| {
        let advice = format!("`mount -o remount,noatime {}` (or relatime), and the same in /etc/fstab", mount.at);
        on_mount(FindingId::AtimeAlways, mount, "it has neither relatime nor noatime").advise(advice)
    };
    written(facts).filter(is_concerned).map(finding).collect()
}

fn space_not_trimmed(facts: &Facts) -> Vec<Finding> {
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
        (discards && !is_trimmed).then(|| on_mount(FindingId::SpaceNotTrimmed, mount, evidence).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}

fn discards_stop(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let top = facts.device_of(mount)?;
        let disks = facts.disks(top);
        let can = |device: &Device| device.discard_bytes.0 > 0 && !device.rotational;
        let stack = facts.stack(top);
        // Bulkhead's block servers keep what they have allocated.
        if stack.iter().any(|device| device.kind == DeviceKind::Ublk && device.image.is_some()) {
            return None;
        }
        // The lowest layer that cannot, although all that is below it can.
        let lost = stack.into_iter().rfind(|device| device.discard_bytes.0 == 0 && !device.is_disk())?;
        let evidence = format!("{} does not pass discards on to {}", lost.name, disks.first()?.name);
        let advice = match lost.dm_target.as_deref() {
            Some("crypt") => {
                "open it with `discard` in /etc/crypttab (`cryptsetup --allow-discards`), which lets others see which blocks are free"
            }
            _ => "the layer has to support discards; without them, leave a part of a flash drive unpartitioned",
        };
        (!disks.is_empty() && disks.iter().all(|disk| can(disk)))
            .then(|| on_mount(FindingId::DiscardsStop, mount, evidence).advise(advice))
    };
    written(facts).filter_map(finding).collect()
}
