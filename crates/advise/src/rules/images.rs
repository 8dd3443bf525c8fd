//! Rules about images and copy-on-write below a file system.

use bulkhead_core::facts::{Device, DeviceKind, Facts, Image, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::{Change, Setting};
use bulkhead_core::units::Bytes;

use super::{COPY_ON_WRITE, JOURNALING, MOVE_DATA, device_of, is_zvol, on_device, on_mount, written};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::ImageCachedTwice,
        why: "Both the file system in the image and the one below it keep the data in the page cache, and writes wait in both.",
        measured: Some(Measured {
            figure: "a file server and a database on ext4 in an image on ext4 had 16 % and 35 % of their throughput on the disk itself through the page cache, \
                     and 95 % and 68 % with direct I/O, on the lab's hard disk",
            section: "nested-matrix",
        }),
        source: "kernel Documentation/admin-guide/abi-testing: /sys/block/loopN/loop/dio; loop(4), LOOP_SET_DIRECT_IO",
        fix: Fix::Changes(use_direct_io),
        find: image_cached_twice,
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
        fix: Fix::None(MOVE_DATA),
        find: journal_nested,
    },
    Rule {
        id: FindingId::ImageCopiedOnWrite,
        why: "Small random writes to an image, as databases make them, scatter its blocks over the disk.",
        measured: Some(Measured {
            figure: "ext4 in an image on btrfs kept 39 % of its sequential writes, 37 % of a file server's throughput and 62 % of a database's, and 89, 99 and \
                     67 % in an image on ext4, on the lab's hard disk; random writes alone were 2.8 times as many",
            section: "nested-matrix",
        }),
        source: "btrfs(5), `nodatacow`; chattr(1), attribute C",
        fix: Fix::None(MOVE_DATA),
        find: image_copied_on_write,
    },
    Rule {
        id: FindingId::ImageSparse,
        why: "A first write allocates a block in the outer file system: the inner file system's flush then waits for a commit of the outer \
              journal. When the outer file system is full, the inner one gets I/O errors although it has free space.",
        measured: None,
        source: "fallocate(1); kernel fs/ext4/inode.c, ext4_map_blocks: an allocation joins the running transaction",
        fix: Fix::None("an allocation cannot be undone"),
        find: image_sparse,
    },
    Rule {
        id: FindingId::ImageDeleted,
        why: "The kernel keeps a deleted file only as long as it is open.",
        measured: None,
        source: "unlink(2); losetup(8)",
        fix: Fix::None("its data has to be copied"),
        find: image_deleted,
    },
    Rule {
        id: FindingId::JournalOnZvol,
        why: "ZFS never overwrites: the journal that protects in-place writes protects nothing here. A flush of the journal is a commit of the \
              ZFS intent log, and a block smaller than `volblocksize` is read, changed and written as a whole.",
        measured: None,
        source: "zfsprops(7), volblocksize, logbias, sync",
        fix: Fix::None(MOVE_DATA),
        find: journal_on_zvol,
    },
    Rule {
        id: FindingId::CopyOnWriteTwice,
        why: "Both layers map each block to a new place. The lower one cannot know which blocks the upper one has freed, unless they are \
              discarded.",
        measured: None,
        source: "kernel Documentation/admin-guide/device-mapper/thin-provisioning.rst; btrfs(5)",
        fix: Fix::None(MOVE_DATA),
        find: copy_on_write_twice,
    },
];

/// Images with less than this part allocated are sparse. A full one can have a few holes, where its content is zeroes.
const SPARSE_BELOW_PCT: u64 = 90;

/// Devices with an image that is written, each with the file systems above it. Those of Bulkhead's own block servers are not among them.
fn images<'a>(facts: &'a Facts) -> Vec<(&'a Device, &'a Image, Vec<&'a Mount>)> {
    let mut above = facts.mounts_above();
    let written = facts.devices.iter().filter(|device| device.kind == DeviceKind::Loop && !device.read_only);
    let image = |device: &'a Device| {
        let mut above = above.remove(device.name.as_str())?;
        above.retain(|mount| !mount.has("ro"));
        Some((device, device.image.as_ref()?, above)).filter(|(.., above)| !above.is_empty())
    };
    written.filter_map(image).collect()
}

fn at(mounts: &[&Mount]) -> String {
    mounts.iter().map(|mount| mount.at.as_str()).collect::<Vec<_>>().join(", ")
}

fn image_cached_twice(facts: &Facts) -> Vec<Finding> {
    let buffered = images(facts).into_iter().filter(|(_, image, _)| image.direct == Some(false));
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let cached = image.cached_bytes.map(|bytes| format!(", {bytes} of it are there now")).unwrap_or_default();
        let evidence =
            format!("{} is read and written through the page cache{cached}, and {} is on it", image.path, at(&above));
        let advice = format!(
            "`losetup --direct-io=on /dev/{}`; permanently: `losetup --direct-io=on` where it is attached. It needs an image on a file system \
             with direct I/O, and blocks of the loop device that are no smaller than the disk's",
            device.name
        );
        on_device(FindingId::ImageCachedTwice, device, evidence).advise(advice)
    };
    buffered.map(finding).collect()
}

fn use_direct_io(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let Some(device) = device_of(facts, finding) else { return Vec::new() };
    let setting = Setting::DirectIo { device: device.name.clone(), dev: device.dev };
    vec![Change::new(setting, "off", "on")]
}

fn journal_nested(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let outer = image.fs_type.as_deref().filter(|fs| JOURNALING.contains(fs))?;
        let inner = above.iter().find(|mount| JOURNALING.contains(&mount.fs_type.as_str()))?;
        let evidence = format!("{} at {} is in {}, on {outer}", inner.fs_type, inner.at, image.path);
        let advice = "use a block device or a logical volume, or a volume of Bulkhead's: its block server writes to an image without commits of \
                      the outer journal";
        Some(on_device(FindingId::JournalNested, device, evidence).advise(advice))
    };
    images(facts).into_iter().filter_map(finding).collect()
}

fn image_copied_on_write(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let outer = image.fs_type.as_deref().filter(|fs| COPY_ON_WRITE.contains(fs))?;
        let evidence = format!("{} is on {outer}, and {} is on it", image.path, at(&above));
        let advice = match outer {
            "btrfs" => {
                "create the image in a directory with `chattr +C`, and copy its content there: the attribute has no effect on a file with data"
            }
            _ => "use a volume of that file system (a zvol, a subvolume), or an image on ext4 or XFS",
        };
        Some(on_device(FindingId::ImageCopiedOnWrite, device, evidence).advise(advice))
    };
    images(facts).into_iter().filter_map(finding).collect()
}

fn image_sparse(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let (Bytes(size), Bytes(allocated)) = image.size_bytes.zip(image.allocated_bytes)?;
        // Copy-on-write file systems allocate for every write.
        image.fs_type.as_deref().filter(|fs| JOURNALING.contains(fs) && !COPY_ON_WRITE.contains(fs))?;
        let is_sparse = u128::from(allocated) * 100 < u128::from(size) * u128::from(SPARSE_BELOW_PCT);
        let evidence = format!(
            "{} of {} of {} are allocated, and {} is on it",
            Bytes(allocated),
            Bytes(size),
            image.path,
            at(&above)
        );
        let advice = format!(
            "`fallocate --length {size} {0}` allocates the rest without changing data (a first write still changes the outer metadata); a volume of \
             Bulkhead's with `--provision full` is written in advance",
            image.path
        );
        is_sparse.then(|| on_device(FindingId::ImageSparse, device, evidence).advise(advice))
    };
    images(facts).into_iter().filter_map(finding).collect()
}

fn image_deleted(facts: &Facts) -> Vec<Finding> {
    let finding = |(device, image, above): (&Device, &Image, Vec<&Mount>)| {
        let evidence = format!("{} is deleted, and {} is on it", image.path, at(&above));
        let advice = format!(
            "copy the data elsewhere before the file system is unmounted or the host is restarted: `dd if=/dev/{} of=FILE bs=1M` after \
             `fsfreeze --freeze`, or copy its files",
            device.name
        );
        on_device(FindingId::ImageDeleted, device, evidence).advise(advice)
    };
    images(facts).into_iter().filter(|(_, image, _)| image.deleted).map(finding).collect()
}

fn journal_on_zvol(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let zvol = facts.disks_of(mount.dev).into_iter().find(|device| is_zvol(device))?;
        let evidence = format!("{} is on {}, a volume of ZFS", mount.fs_type, zvol.name);
        let advice = "use a data set of ZFS (`zfs create`) in place of a volume with a file system on it; if it has to be a volume, one with \
                      `volblocksize` of the database's page";
        Some(on_mount(FindingId::JournalOnZvol, mount, evidence).advise(advice))
    };
    let journaling = written(facts).filter(|mount| ["ext3", "ext4", "xfs", "jfs"].contains(&mount.fs_type.as_str()));
    journaling.filter_map(finding).collect()
}

fn copy_on_write_twice(facts: &Facts) -> Vec<Finding> {
    let finding = |mount: &Mount| {
        let stack = facts.device_of(mount).map(|top| facts.stack(top)).unwrap_or_default();
        let lower = stack.into_iter().find(|device| device.dm_target.as_deref() == Some("thin") || is_zvol(device))?;
        let kind = if is_zvol(lower) { "a volume of ZFS" } else { "a thin volume" };
        let evidence = format!("{} is on {}, {kind}", mount.fs_type, lower.dm_name.as_deref().unwrap_or(&lower.name));
        let advice = format!("put {} on a plain volume or a disk, or use ext4 or XFS on this one", mount.fs_type);
        Some(on_mount(FindingId::CopyOnWriteTwice, mount, evidence).advise(advice))
    };
    written(facts).filter(|mount| COPY_ON_WRITE.contains(&mount.fs_type.as_str())).filter_map(finding).collect()
}
