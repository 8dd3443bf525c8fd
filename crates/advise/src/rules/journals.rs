//! Rules about the state of file systems and their journals.

use bulkhead_core::facts::{Device, Ext4, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::units::Bytes;

use super::{CHECK_HARDWARE, ENDS, MOVE_DATA, UNMOUNT, named, on_mount, written};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::FileSystemErrors,
        why: "ext4 records an error when it finds metadata that cannot be right. Only e2fsck can tell what is lost.",
        measured: None,
        source: "kernel Documentation/ABI/testing/sysfs-fs-ext4: errors_count",
        fix: Fix::None(UNMOUNT),
        find: file_system_errors,
    },
    Rule {
        id: FindingId::BtrfsErrors,
        why: "btrfs counts failed reads, writes and flushes, and blocks whose checksum is wrong. With redundancy it repairs what it reads.",
        measured: None,
        source: "btrfs-device(8), stats; kernel fs/btrfs/sysfs.c, error_stats",
        fix: Fix::None(CHECK_HARDWARE),
        find: btrfs_errors,
    },
    Rule {
        id: FindingId::JournalNotLimited,
        why: "One kernel thread writes the journal for all that use the file system, and its I/O is charged to its own cgroup. A container at \
              its limit still makes it write, and everybody's fsync waits for that.",
        measured: Some(Measured {
            figure: "beside 8 buffered writers on a shared journal, an fsync took 513 to 616 ms on the lab's hard disk with io.cost, 1384 to 1710 ms \
                     with BFQ, and 22 to 34 ms alone",
            section: "fsync-probe",
        }),
        source: "kernel fs/jbd2/journal.c, kjournald2; Documentation/admin-guide/cgroup-v2.rst, Writeback",
        fix: Fix::None(MOVE_DATA),
        find: journal_not_limited,
    },
    Rule {
        id: FindingId::JournalSmall,
        why: "A transaction is at most a part of the journal. When one is full, all that change metadata wait for its commit, and when the \
              journal is full, for its blocks to be written to their places. mke2fs chooses a journal of 512 MiB for 64 GiB and 1 GiB from \
              128 GiB on; growing a file system, as images of clouds do when they start, does not grow its journal.",
        measured: None,
        source: "mke2fs(8), -J size; kernel fs/jbd2/journal.c, j_max_transaction_buffers; e2fsprogs lib/ext2fs/mkjournal.c, \
                 ext2fs_default_journal_size",
        fix: Fix::None(UNMOUNT),
        find: journal_small,
    },
    Rule {
        id: FindingId::Ext4WithoutJournal,
        why: "Without a journal, an fsync writes the file's own metadata in place. After a crash the whole file system has to be checked, and \
              what was being changed can be damaged.",
        measured: None,
        source: "mke2fs(8), has_journal; kernel fs/ext4/fsync.c, ext4_fsync_nojournal",
        fix: Fix::None(UNMOUNT),
        find: ext4_without_journal,
    },
    Rule {
        id: FindingId::LazyInitRunning,
        why: "mke2fs leaves the inode tables to the kernel, which writes them when the file system is mounted for the first time, for \
              minutes on a large disk; the same thread reads block bitmaps after each mount. Measurements during that time are too slow.",
        measured: None,
        source: "mke2fs(8), lazy_itable_init; kernel fs/ext4/super.c, ext4_lazyinit_thread and EXT4_LI_MODE_PREFETCH_BBITMAP",
        fix: Fix::None(ENDS),
        find: lazy_init_running,
    },
];

/// Smallest file system whose journal is judged: mke2fs gives it a journal of 512 MiB.
const LARGE_FS_BYTES: u64 = 64 * Bytes::GIB;
/// Largest transaction of a journal of 64 MiB, an eighth of what mke2fs chooses for such a file system, by the larger of the kernel's parts.
const SMALL_TRANSACTION_BYTES: u64 = 64 * Bytes::MIB / 3;

/// An ext4 file system with its device and where it is mounted.
fn ext4(facts: &Facts) -> impl Iterator<Item = (&Ext4, &Device, &Mount)> {
    let mounts = facts.file_systems();
    facts.ext4.iter().filter_map(move |fs| {
        let device = facts.device(&fs.device)?;
        Some((fs, device, *mounts.iter().find(|mount| mount.dev == device.dev)?))
    })
}

fn file_system_errors(facts: &Facts) -> Vec<Finding> {
    let finding = |(fs, _, mount): (&Ext4, &Device, &Mount)| {
        let evidence = format!("ext4 on {} has recorded errors: {}", fs.device, fs.errors);
        let advice = format!(
            "save its data, unmount it, and run `e2fsck -f /dev/{0}`; `dumpe2fs -h /dev/{0}` shows the first and the last error",
            fs.device
        );
        on_mount(FindingId::FileSystemErrors, mount, evidence).advise(advice)
    };
    ext4(facts).filter(|(fs, ..)| fs.errors > 0).map(finding).collect()
}

fn btrfs_errors(facts: &Facts) -> Vec<Finding> {
    let finding = |fs: &bulkhead_core::facts::Btrfs| {
        let is_on = |mount: &&Mount| facts.device_of(mount).is_some_and(|device| fs.devices.contains(&device.name));
        let mount = facts.file_systems().into_iter().find(is_on)?;
        let evidence = format!("btrfs on {} has recorded errors: {}", fs.devices.join(", "), fs.errors);
        let advice = format!(
            "`btrfs device stats {0}` shows of which device; replace it (`btrfs replace`) or run `btrfs scrub start {0}`, then reset the counters \
             with `btrfs device stats --reset {0}`",
            mount.at
        );
        Some(on_mount(FindingId::BtrfsErrors, mount, evidence).advise(advice))
    };
    facts.btrfs.iter().filter(|fs| fs.errors > 0).filter_map(finding).collect()
}

fn journal_not_limited(facts: &Facts) -> Vec<Finding> {
    let Some(cgroups) = &facts.cgroups else { return Vec::new() };
    let finding = |(fs, device, mount): (&Ext4, &Device, &Mount)| {
        let stack = facts.stack(device);
        let limited = cgroups.settings.iter().filter(|settings| {
            settings.limited.iter().any(|limited| stack.iter().any(|device| device.dev == *limited))
        });
        let limited = named(limited.map(|settings| settings.path.as_str()));
        let is_outside = fs.journal_cgroup.as_deref() == Some("/") && !limited.is_empty() && !mount.has("ro");
        let evidence =
            format!("io.max limits {limited}, and the journal of {} is written by the root cgroup", fs.device);
        let advice = "give each container a file system of its own: a volume of Bulkhead's charges its journal thread to the container (`bulkhead \
                      volume create`, `bulkhead tenant set --limit`)";
        is_outside.then(|| on_mount(FindingId::JournalNotLimited, mount, evidence).advise(advice))
    };
    ext4(facts).filter_map(finding).collect()
}

fn journal_small(facts: &Facts) -> Vec<Finding> {
    let finding = |(fs, device, mount): (&Ext4, &Device, &Mount)| {
        let space = facts.space_of(device.dev)?;
        let transaction = Bytes(fs.max_transaction_blocks?.saturating_mul(space.block_bytes));
        let is_small = space.size_bytes.0 >= LARGE_FS_BYTES && transaction.0 <= SMALL_TRANSACTION_BYTES;
        let evidence =
            format!("it has {}, and a transaction of its journal has at most {transaction}", space.size_bytes);
        let advice = format!(
            "unmount it, then `tune2fs -O ^has_journal /dev/{0}`, `e2fsck -f /dev/{0}` and `tune2fs -J size=1024 /dev/{0}`",
            fs.device
        );
        (is_small && !mount.has("ro")).then(|| on_mount(FindingId::JournalSmall, mount, evidence).advise(advice))
    };
    ext4(facts).filter_map(finding).collect()
}

fn ext4_without_journal(facts: &Facts) -> Vec<Finding> {
    let finding = |(fs, _, mount): (&Ext4, &Device, &Mount)| {
        let is_written = fs.has_journal == Some(false) && mount.fs_type == "ext4" && !mount.has("ro");
        let advice = format!("if its data matters: unmount it, then `tune2fs -O has_journal /dev/{}`", fs.device);
        let evidence = format!("ext4 on {} has no journal", fs.device);
        is_written.then(|| on_mount(FindingId::Ext4WithoutJournal, mount, evidence).advise(advice))
    };
    ext4(facts).filter_map(finding).collect()
}

fn lazy_init_running(facts: &Facts) -> Vec<Finding> {
    if !facts.lazy_init || written(facts).all(|mount| mount.fs_type != "ext4") {
        return Vec::new();
    }
    let advice = "wait until the kernel thread `ext4lazyinit` has ended before measuring; `mke2fs -E lazy_itable_init=0` writes the tables at once";
    vec![Finding::new(FindingId::LazyInitRunning, "host", "the kernel thread ext4lazyinit runs").advise(advice)]
}
