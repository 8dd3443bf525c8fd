//! Rules about where databases have their data.

use std::collections::BTreeMap;

use bulkhead_core::facts::{Database, Device, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::{Change, Setting};
use bulkhead_core::units::Bytes;

use super::{COPY_ON_WRITE, JOURNALING, MOVE_DATA, device_of, named, on_device, on_mount};
use crate::{Fix, Measured, Rule};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: FindingId::DatabaseOnOverlay,
        why: "Each fsync commits the one journal below all containers of the engine, and waits for what they have in it. The first write to a file \
              of the image copies all of it.",
        measured: Some(Measured {
            figure: "on a shared file system, a 4 KiB fsync took 29 ms alone and 1622 ms beside 8 buffered writers on the lab's hard disk",
            section: "fsync-probe",
        }),
        source: "kernel Documentation/filesystems/overlayfs.rst; Docker's documentation, OverlayFS storage driver: use volumes for write-heavy workloads",
        fix: Fix::None(MOVE_DATA),
        find: database_on_overlay,
    },
    Rule {
        id: FindingId::DatabaseSharesJournal,
        why: "A file system has one journal. The database's fsync commits what all of them have changed, and in ext4's ordered mode waits for \
              the data that they have appended.",
        measured: Some(Measured {
            figure: "with its data in a directory of the host, p99 of PostgreSQL's inserts was 148 times that of its own beside a pod with 4 buffered \
                     writers, on the lab's hard disk",
            section: "kubernetes-noisy-neighbour",
        }),
        source: "kernel Documentation/filesystems/ext4/journal.rst; IceFS (OSDI 2014), section 2",
        fix: Fix::None(MOVE_DATA),
        find: database_shares_journal,
    },
    Rule {
        id: FindingId::DatabaseCopiedOnWrite,
        why: "Each page that the database writes goes to a new place: its files become fragmented, and each fsync also writes the trees that \
              refer to them.",
        measured: None,
        source: "btrfs(5), nodatacow; chattr(1), attribute C",
        fix: Fix::None(MOVE_DATA),
        find: database_copied_on_write,
    },
    Rule {
        id: FindingId::DatabaseOnParityRaid,
        why: "A write of less than a stripe reads the old data and parity, and writes both: four operations for one.",
        measured: None,
        source: "kernel Documentation/driver-api/md/raid5-cache.rst and raid5-ppl.rst",
        fix: Fix::None(MOVE_DATA),
        find: database_on_parity_raid,
    },
    Rule {
        id: FindingId::ReadaheadLarge,
        why: "What a database reads is seldom followed by what it reads next. The rest of the readahead is read in vain, and others wait for it.",
        measured: None,
        source: "kernel Documentation/ABI/stable/sysfs-block: read_ahead_kb; blockdev(8), --setra",
        fix: Fix::Changes(reduce_readahead),
        find: readahead_large,
    },
];

/// Readahead from which on it is large: the kernel's default is 128 KiB.
const LARGE_READAHEAD: u64 = 2 * Bytes::MIB;

fn database_on_overlay(facts: &Facts) -> Vec<Finding> {
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

/// Words in the cgroups of containers, by their runtimes.
const CONTAINERS: [&str; 6] = ["containerd", "crio", "docker", "kubepods", "libpod", "machine.slice"];

fn database_shares_journal(facts: &Facts) -> Vec<Finding> {
    let containers = facts.containers();
    let finding = |mount: &Mount| {
        let here: Vec<&Database> = facts.databases.iter().filter(|database| database.dev == mount.dev).collect();
        let contained = here.iter().filter(|database| CONTAINERS.iter().any(|word| database.cgroup.contains(word)));
        // The overlays of the databases' own containers are among them.
        let others = containers.get(&mount.dev).copied().unwrap_or_default().saturating_sub(contained.count());
        if here.is_empty() || here.len() + others < 2 {
            return None;
        }
        let names = named(here.iter().map(|database| database.name.as_str()));
        let writers = match others {
            0 => names,
            1 => format!("{names} and another container"),
            _ => format!("{names} and {others} other containers"),
        };
        let evidence = format!("{writers} write to its {}", mount.fs_type);
        let advice = "give each database a volume with a journal of its own: `bulkhead volume create`, `docker run --volume-driver bulkhead`, or a \
                      volume claim of Bulkhead's storage class";
        Some(on_mount(FindingId::DatabaseSharesJournal, mount, evidence).advise(advice))
    };
    let journaling = |mount: &&Mount| JOURNALING.contains(&mount.fs_type.as_str());
    facts.file_systems().into_iter().filter(journaling).filter_map(finding).collect()
}

fn database_copied_on_write(facts: &Facts) -> Vec<Finding> {
    let finding = |database: &Database| {
        let evidence =
            format!("process {} has its data in {}, on {}", database.pid, database.directory, database.fs_type);
        let advice = match database.fs_type.as_str() {
            "btrfs" => {
                "stop it, create a new directory with `chattr +C`, and copy the data there: the attribute has no effect on files with data"
            }
            _ => {
                "use ext4 or XFS, or set the block size of the file system to the database's page (`zfs set recordsize=16K`)"
            }
        };
        Finding::new(FindingId::DatabaseCopiedOnWrite, format!("database {}", database.name), evidence).advise(advice)
    };
    // The block size of ZFS is not known; with that of a page it is well configured.
    let is_concerned = |database: &&Database| {
        COPY_ON_WRITE.contains(&database.fs_type.as_str())
            && database.fs_type != "zfs"
            && database.no_copy_on_write == Some(false)
    };
    facts.databases.iter().filter(is_concerned).map(finding).collect()
}

/// Devices in the stacks below the data of databases that match, each once, with the names of those databases.
fn below<'a>(facts: &'a Facts, find: impl Fn(&[&'a Device]) -> Option<&'a Device>) -> Vec<(&'a Device, String)> {
    let mut found: BTreeMap<&str, (&Device, Vec<&str>)> = BTreeMap::new();
    for database in &facts.databases {
        let top = facts.device_at(database.dev);
        if let Some(device) = top.and_then(|top| find(&facts.stack(top))) {
            found.entry(&device.name).or_insert((device, Vec::new())).1.push(&database.name);
        }
    }
    found.into_values().map(|(device, names)| (device, named(names))).collect()
}

fn database_on_parity_raid(facts: &Facts) -> Vec<Finding> {
    let is_parity = |device: &&&Device| {
        device.raid_level.as_deref().is_some_and(|level| ["raid4", "raid5", "raid6"].contains(&level))
    };
    let finding = |(raid, names): (&Device, String)| {
        let evidence =
            format!("the data of {names} is on it, and it is {}", raid.raid_level.as_deref().unwrap_or_default());
        let advice = "use RAID 1 or 10 for databases, or give it a journal device (`mdadm --add-journal`)";
        on_device(FindingId::DatabaseOnParityRaid, raid, evidence).advise(advice)
    };
    below(facts, |stack| stack.iter().find(is_parity).copied()).into_iter().map(finding).collect()
}

fn reduce_readahead(facts: &Facts, finding: &Finding) -> Vec<Change> {
    let change = |device: &Device| {
        let setting = Setting::Readahead { device: device.name.clone(), dev: device.dev };
        Some(Change::new(setting, (device.readahead_bytes?.0 / 1024).to_string(), "128"))
    };
    device_of(facts, finding).and_then(change).into_iter().collect()
}

fn readahead_large(facts: &Facts) -> Vec<Finding> {
    // The file system uses that of its own device, the first of the stack.
    let is_large = |device: &&&Device| device.readahead_bytes.is_some_and(|readahead| readahead.0 >= LARGE_READAHEAD);
    let finding = |(top, names): (&Device, String)| {
        let evidence =
            format!("its readahead is {}, and the data of {names} is on it", top.readahead_bytes.unwrap_or_default());
        let advice = format!("`blockdev --setra 256 /dev/{}` (128 KiB), permanently by a udev rule", top.name);
        on_device(FindingId::ReadaheadLarge, top, evidence).advise(advice)
    };
    below(facts, |stack| stack.first().filter(is_large).copied()).into_iter().map(finding).collect()
}
