//! The list of rules.

mod cgroups;
mod devices;
mod mounts;
mod stack;

use bulkhead_core::finding::FindingId;

use crate::{Measured, Rule};

/// All rules, in the order of the list of findings.
pub const RULES: &[Rule] = &[
    Rule {
        id: FindingId::ImageCachedTwice,
        why: "Both the file system in the image and the one below it keep the data in the page cache, and writes wait in both.",
        measured: None,
        source: "kernel Documentation/admin-guide/abi-testing: /sys/block/loopN/loop/dio; loop(4), LOOP_SET_DIRECT_IO",
        find: stack::image_cached_twice,
    },
    Rule {
        id: FindingId::BarriersOff,
        why: "The journal relies on the order in which its blocks reach the medium; without flushes the disk's cache decides.",
        measured: None,
        source: "kernel Documentation/filesystems/ext4/, `nobarrier`; Documentation/block/writeback_cache_control.rst",
        find: mounts::barriers_off,
    },
    Rule {
        id: FindingId::FileSystemErrors,
        why: "ext4 records an error when it finds metadata that cannot be right. Only e2fsck can tell what is lost.",
        measured: None,
        source: "kernel Documentation/ABI/testing/sysfs-fs-ext4: errors_count",
        find: mounts::file_system_errors,
    },
    Rule {
        id: FindingId::RaidDegraded,
        why: "Redundancy is gone, and reads of a missing member are computed from all others.",
        measured: None,
        source: "kernel Documentation/admin-guide/md.rst: degraded",
        find: devices::raid_degraded,
    },
    Rule {
        id: FindingId::DataNotOrdered,
        why: "Metadata is committed before the data that it refers to. The fsync of a database is not faster by it, because that writes its data first.",
        measured: None,
        source: "kernel Documentation/filesystems/ext4/, `data=writeback`; ext4(5)",
        find: mounts::data_not_ordered,
    },
    Rule {
        id: FindingId::JournalNested,
        why: "A flush of the inner file system is an fsync of the image: unless the image's blocks are written in advance and its times do not \
              change, that commits the outer journal, and waits for everything that others have in it.",
        measured: Some(Measured {
            figure: "with a loop device, an operation of 4 KiB and a flush reached 43 % of the rate without one on the lab's ssd, and 23 to 29 % on its hard disk",
            section: "volume-overhead",
        }),
        source: "Le, Huang, Wang: Understanding Performance Implications of Nested File Systems in a Virtualized Environment, FAST 2012",
        find: stack::journal_nested,
    },
    Rule {
        id: FindingId::ImageCopiedOnWrite,
        why: "Small random writes to an image, as databases make them, scatter its blocks over the disk.",
        measured: None,
        source: "btrfs(5), `nodatacow`; chattr(1), attribute C",
        find: stack::image_copied_on_write,
    },
    Rule {
        id: FindingId::WeightWithoutEffect,
        why: "The kernel stores any weight; only io.cost and BFQ act on one, each on its own file, and only on the physical disk.",
        measured: Some(Measured {
            figure: "without a controller, an fsync on a volume of its own took 3150 ms beside 8 buffered writers on the lab's NVMe drive, and 51 to 78 ms with io.cost",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, IO Interface Files; Documentation/block/bfq-iosched.rst",
        find: cgroups::weight_without_effect,
    },
    Rule {
        id: FindingId::BfqOnNvme,
        why: "BFQ serialises requests of a drive that works on many at once, under one lock.",
        measured: Some(Measured {
            figure: "beside 8 buffered writers on the lab's NVMe drive, an fsync on a volume of its own took 741 to 1073 ms with BFQ, and 51 to 78 ms with io.cost",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/block/bfq-iosched.rst, CPU overhead",
        find: devices::bfq_on_nvme,
    },
    Rule {
        id: FindingId::IoCostWithoutModel,
        why: "The kernel's models are those of a hard disk, an average SSD and an NVMe drive. A disk that is slower than its model is overloaded \
              before io.cost restrains anybody.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, io.cost.model; block/blk-iocost.c, autop",
        find: devices::io_cost_without_model,
    },
    Rule {
        id: FindingId::WritebackNotAttributed,
        why: "The kernel charges a dirty page to the memory cgroup that owns it, and finds the io cgroup from there.",
        measured: None,
        source: "kernel Documentation/admin-guide/cgroup-v2.rst, Writeback",
        find: cgroups::writeback_not_attributed,
    },
    Rule {
        id: FindingId::DatabaseOnOverlay,
        why: "Each fsync commits the one journal below all containers of the engine, and waits for what they have in it. The first write to a file \
              of the image copies all of it.",
        measured: Some(Measured {
            figure: "on a shared file system, a 4 KiB fsync took 29 ms alone and 1622 ms beside 8 buffered writers on the lab's hard disk",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/filesystems/overlayfs.rst; Docker's documentation, OverlayFS storage driver: use volumes for write-heavy workloads",
        find: mounts::database_on_overlay,
    },
    Rule {
        id: FindingId::PartitionMisaligned,
        why: "The disk can only write whole physical blocks: for parts of two it reads and writes both.",
        measured: None,
        source: "kernel Documentation/ABI/stable/sysfs-block: alignment_offset",
        find: devices::misaligned,
    },
    Rule {
        id: FindingId::AtimeAlways,
        why: "A read of a file makes its inode dirty, and the next commit writes it.",
        measured: None,
        source: "mount(8), relatime and strictatime",
        find: mounts::atime_always,
    },
    Rule {
        id: FindingId::SpaceNotTrimmed,
        why: "A drive, or a thin pool, learns only from discards which blocks are free.",
        measured: None,
        source: "fstrim(8); kernel Documentation/ABI/stable/sysfs-block: discard_max_bytes",
        find: mounts::space_not_trimmed,
    },
];
