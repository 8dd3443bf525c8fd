//! Rules about disks, their I/O controllers and their blocks.

use bulkhead_core::facts::{Device, DeviceKind, Facts, Mount, Space};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::Change;
use bulkhead_core::units::Bytes;

use super::{
    CHECK_HARDWARE, MOVE_DATA, change_scheduler, device_of, disks_in_use, has_bfq, is_controlled, on_device, on_mount,
    written,
};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::BfqOnNvme,
        why: "BFQ serialises requests of a drive that works on many at once, under one lock.",
        measured: Some(Measured {
            figure: "beside 8 buffered writers on the lab's NVMe drive, an fsync on a volume of its own took 741 to 1073 ms with BFQ, and 51 to 78 ms with io.cost",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/block/bfq-iosched.rst, CPU overhead",
        fix: Fix::Changes(use_no_scheduler),
        find: bfq_on_nvme,
    },
    Rule {
        id: FindingId::IoCostWithoutModel,
        why: "The kernel's models are those of a hard disk, an average SSD and an NVMe drive. A disk that is slower than its model is overloaded \
              before io.cost restrains anybody.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, io.cost.model; block/blk-iocost.c, autop",
        fix: Fix::None("a calibration needs an idle disk"),
        find: io_cost_without_model,
    },
    Rule {
        id: FindingId::TwoControllers,
        why: "io.cost delays requests before BFQ sees them, and BFQ idles for requests that io.cost holds back. Neither divides the disk as its \
              weights say.",
        measured: None,
        source: "kernel block/blk-iocost.c and block/bfq-iosched.c; Documentation/admin-guide/cgroup-v2.rst, IO Interface Files",
        fix: Fix::Changes(keep_io_cost),
        find: two_controllers,
    },
    Rule {
        id: FindingId::SchedulerOnStack,
        why: "Requests are sorted and delayed twice, and the upper queue knows nothing of the disk.",
        measured: None,
        source: "kernel Documentation/block/switching-sched.rst; drivers/block/loop.c, BLK_MQ_F_NO_SCHED_BY_DEFAULT",
        fix: Fix::Changes(use_no_scheduler),
        find: scheduler_on_stack,
    },
    Rule {
        id: FindingId::WriteCacheOfHardDisk,
        why: "The drive takes writes at the speed of its interface, so that an fsync's flush waits until all of them are on the platter. No \
              controller above the drive can change that.",
        measured: Some(Measured {
            figure: "a flush beside 8 buffered writers took 0.63 s on the lab's hard disk, and with half of the disk's rate for them an fsync still \
                     took 186 ms, against 25 ms alone",
            section: "Why hard disks do not isolate with their write cache on",
        }),
        source: "hdparm(8), -W; kernel Documentation/block/writeback_cache_control.rst",
        fix: Fix::None("it costs throughput, which is the owner's decision"),
        find: write_cache_of_hard_disk,
    },
    Rule {
        id: FindingId::DiskFailing,
        why: "The drive compares its own counters of errors and wear with the limits of its maker.",
        measured: None,
        source: "udisks' reference, org.freedesktop.UDisks2.Drive.Ata: SmartFailing, and org.freedesktop.UDisks2.NVMe.Controller: SmartCriticalWarning",
        fix: Fix::None(CHECK_HARDWARE),
        find: disk_failing,
    },
    Rule {
        id: FindingId::DiskTimeouts,
        why: "The kernel resets a disk that does not answer in 30 s, and all I/O on it waits meanwhile. A disk, a cable or a controller is failing, \
              or the storage behind it is overloaded.",
        measured: None,
        source: "kernel Documentation/scsi/scsi_eh.rst; drivers/scsi/scsi_sysfs.c, iotmo_cnt",
        fix: Fix::None(CHECK_HARDWARE),
        find: disk_timeouts,
    },
    Rule {
        id: FindingId::PartitionMisaligned,
        why: "The disk can only write whole physical blocks: for parts of two it reads and writes both.",
        measured: None,
        source: "kernel Documentation/ABI/stable/sysfs-block: alignment_offset",
        fix: Fix::None(MOVE_DATA),
        find: misaligned,
    },
    Rule {
        id: FindingId::BlocksSmall,
        why: "The disk can only write whole physical blocks: for a smaller one it reads a block, changes and writes it.",
        measured: None,
        source: "kernel Documentation/ABI/stable/sysfs-block: physical_block_size; mke2fs(8), -b",
        fix: Fix::None(MOVE_DATA),
        find: blocks_small,
    },
];

fn use_no_scheduler(facts: &Facts, finding: &Finding) -> Vec<Change> {
    device_of(facts, finding).map(|device| change_scheduler(device, "none")).unwrap_or_default()
}

fn keep_io_cost(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let scheduler = |device: &Device| if device.rotational { "mq-deadline" } else { "none" };
    device_of(facts, finding).map(|device| change_scheduler(device, scheduler(device))).unwrap_or_default()
}

fn bfq_on_nvme(facts: &Facts) -> Vec<Finding> {
    let is_concerned = |device: &&Device| device.name.starts_with("nvme") && !device.rotational && has_bfq(device);
    let finding = |device: &Device| {
        let advice = format!(
            "`bulkhead device calibrate {0}`, then `bulkhead device control {0} --policy iocost`; without Bulkhead: write `none` to \
             /sys/block/{0}/queue/scheduler, and use io.cost",
            device.name
        );
        on_device(FindingId::BfqOnNvme, device, "its I/O scheduler is bfq").advise(advice)
    };
    disks_in_use(facts).filter(is_concerned).map(finding).collect()
}

fn io_cost_without_model(facts: &Facts) -> Vec<Finding> {
    let guessed = disks_in_use(facts).filter(|device| device.io_cost && !device.io_cost_model);
    let finding = |device: &Device| {
        let advice = format!("`bulkhead device calibrate {}` measures a model", device.name);
        on_device(FindingId::IoCostWithoutModel, device, "io.cost is enabled, and its model has ctrl=auto")
            .advise(advice)
    };
    guessed.map(finding).collect()
}

fn two_controllers(facts: &Facts) -> Vec<Finding> {
    let both = disks_in_use(facts).filter(|device| device.io_cost && has_bfq(device));
    let finding = |device: &Device| {
        let advice = format!(
            "keep one: write `none` (hard disk: `mq-deadline`) to /sys/block/{0}/queue/scheduler, or `bulkhead device control {0} --policy bfq`",
            device.name
        );
        on_device(FindingId::TwoControllers, device, "io.cost is enabled, and its I/O scheduler is bfq").advise(advice)
    };
    both.map(finding).collect()
}

fn scheduler_on_stack(facts: &Facts) -> Vec<Finding> {
    let above = facts.mounts_above();
    let finding = |device: &Device| {
        let is_stacked =
            matches!(device.kind, DeviceKind::Loop | DeviceKind::Ublk) && !device.is_disk() && !device.read_only;
        let scheduler = device.scheduler.as_deref().filter(|scheduler| *scheduler != "none")?;
        let evidence = format!("its I/O scheduler is {scheduler}, and the disk below it has one of its own");
        let advice = format!("write `none` to /sys/block/{}/queue/scheduler", device.name);
        (is_stacked && above.contains_key(device.name.as_str()))
            .then(|| on_device(FindingId::SchedulerOnStack, device, evidence).advise(advice))
    };
    facts.devices.iter().filter_map(finding).collect()
}

/// Models of disks that a hypervisor emulates: whether they rotate is not known.
const EMULATED: [&str; 4] = ["QEMU", "VBOX", "Virtual", "VMware"];

fn write_cache_of_hard_disk(facts: &Facts) -> Vec<Finding> {
    let weighted = |settings: &bulkhead_core::facts::CgroupSettings| settings.weight.or(settings.bfq_weight).is_some();
    if !facts.cgroups.as_ref().is_some_and(|cgroups| cgroups.settings.iter().any(weighted)) {
        return Vec::new();
    }
    let is_concerned = |disk: &&Device| {
        let is_hard_disk = disk.rotational && disk.name.starts_with("sd");
        let model = disk.model.as_deref().unwrap_or(EMULATED[0]);
        let is_real = !EMULATED.iter().any(|word| model.contains(word));
        is_hard_disk && is_real && is_controlled(disk) && disk.write_cache.as_deref() == Some("write back")
    };
    let finding = |disk: &Device| {
        let advice = format!(
            "`hdparm -W 0 /dev/{}` where isolation matters more than throughput, with BFQ's `strict_guarantees`",
            disk.name
        );
        let evidence = "it is a hard disk with its write cache on, and weights are to divide it";
        on_device(FindingId::WriteCacheOfHardDisk, disk, evidence).advise(advice)
    };
    disks_in_use(facts).filter(is_concerned).map(finding).collect()
}

fn disk_failing(facts: &Facts) -> Vec<Finding> {
    let finding = |disk: &Device| {
        let advice =
            format!("save its data and replace it; `smartctl -a /dev/{}` shows what it has recorded", disk.name);
        Some(on_device(FindingId::DiskFailing, disk, disk.failing.as_deref()?).advise(advice))
    };
    facts.devices.iter().filter(|disk| disk.is_disk()).filter_map(finding).collect()
}

fn disk_timeouts(facts: &Facts) -> Vec<Finding> {
    let finding = |disk: &Device| {
        let evidence = format!("commands that have timed out since it appeared: {}", disk.timeouts);
        let advice =
            format!("`dmesg` says when; `smartctl -a /dev/{}` shows what the disk itself has recorded", disk.name);
        on_device(FindingId::DiskTimeouts, disk, evidence).advise(advice)
    };
    facts.devices.iter().filter(|disk| disk.is_disk() && disk.timeouts > 0).map(finding).collect()
}

fn misaligned(facts: &Facts) -> Vec<Finding> {
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
        on_device(FindingId::PartitionMisaligned, device, evidence).advise(advice)
    };
    shifted.map(finding).collect()
}

/// mke2fs gives smaller file systems, such as /boot, smaller blocks; little is written there.
const SMALL_FS_BYTES: u64 = Bytes::GIB;

fn blocks_small(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let is_judged = |space: &&Space| space.block_bytes > 0 && space.size_bytes.0 >= SMALL_FS_BYTES;
        let space = facts.space_of(mount.dev).filter(is_judged)?;
        let disks = facts.disks_of(mount.dev);
        let disk = disks.into_iter().find(|disk| u64::from(disk.physical_block_bytes) > space.block_bytes)?;
        let evidence = format!(
            "its blocks have {} bytes, and those of {} have {}",
            space.block_bytes, disk.name, disk.physical_block_bytes
        );
        let advice =
            "copy its data to a file system with blocks of 4096 bytes (`mke2fs -b 4096`); they cannot be changed";
        Some(on_mount(FindingId::BlocksSmall, mount, evidence).advise(advice))
    };
    // FAT and others have units that are not those of their writes.
    let with_blocks = |mount: &&Mount| ["ext2", "ext3", "ext4", "xfs"].contains(&mount.fs_type.as_str());
    written(facts).filter(with_blocks).filter_map(finding).collect()
}
