//! The rules, by subject. Each is in a table beside its function.

mod cgroups;
mod databases;
mod devices;
mod images;
mod journals;
mod memory;
mod mounts;
mod raid;
mod runtimes;
mod space;

use bulkhead_core::facts::{Device, DeviceKind, Facts, Mount};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::fix::{Change, Setting};

use crate::Rule;

const TABLES: [&[Rule]; 10] = [
    images::RULES,
    mounts::RULES,
    journals::RULES,
    space::RULES,
    devices::RULES,
    raid::RULES,
    cgroups::RULES,
    memory::RULES,
    databases::RULES,
    runtimes::RULES,
];

/// All rules.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    TABLES.into_iter().flatten()
}

/// File systems with a journal or log that fsync commits.
const JOURNALING: [&str; 6] = ["btrfs", "ext3", "ext4", "f2fs", "jfs", "xfs"];

/// File systems that write each block to a new place.
const COPY_ON_WRITE: [&str; 3] = ["bcachefs", "btrfs", "zfs"];

// Why rules have no fix.
const MOVE_DATA: &str = "data has to be moved";
const UNMOUNT: &str = "the file system has to be unmounted";
const CHECK_HARDWARE: &str = "hardware has to be checked or replaced";
const REMOVE_DATA: &str = "what to remove is the owner's decision";
const CREATE_CONTAINERS: &str = "containers have to be created again";
const ENDS: &str = "it ends by itself";

/// Most objects that a finding names.
const MAX_NAMED: usize = 3;

/// Names, the first few of them.
fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    let mut text = names.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMED {
        text += &format!(" and {} more", names.len() - MAX_NAMED);
    }
    text
}

fn on_device(id: FindingId, device: &Device, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, format!("device {}", device.name), evidence)
}

fn on_mount(id: FindingId, mount: &Mount, evidence: impl std::fmt::Display) -> Finding {
    Finding::new(id, format!("file system {}", mount.at), evidence)
}

/// File systems that are written.
fn written(facts: &Facts) -> impl Iterator<Item = &Mount> {
    facts.file_systems().into_iter().filter(|mount| !mount.has("ro"))
}

/// Disks with file systems on them.
fn disks_in_use(facts: &Facts) -> impl Iterator<Item = &Device> {
    let above = facts.mounts_above();
    facts.devices.iter().filter(move |device| device.is_disk() && above.contains_key(device.name.as_str()))
}

/// The device of a finding.
fn device_of<'a>(facts: &'a Facts, finding: &Finding) -> Option<&'a Device> {
    facts.device(finding.object.strip_prefix("device ")?)
}

/// The mount of a finding.
fn mount_of<'a>(facts: &'a Facts, finding: &Finding) -> Option<&'a Mount> {
    let at = finding.object.strip_prefix("file system ")?;
    // The last one hides those below it.
    facts.mounts.iter().rfind(|mount| mount.at == at)
}

/// Changes the I/O scheduler of a device.
fn change_scheduler(device: &Device, to: &str) -> Vec<Change> {
    let Some(from) = device.scheduler.as_deref() else { return Vec::new() };
    let setting = Setting::Scheduler { device: device.name.clone(), dev: device.dev };
    vec![Change::new(setting, from, to)]
}

/// Whether a device is a volume of ZFS (`zd0`).
fn is_zvol(device: &Device) -> bool {
    let number = device.name.strip_prefix("zd");
    device.kind == DeviceKind::Disk && number.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// Whether a disk has an I/O controller that acts on weights.
fn is_controlled(disk: &Device) -> bool {
    disk.io_cost || has_bfq(disk)
}

fn has_bfq(device: &Device) -> bool {
    device.scheduler.as_deref() == Some("bfq")
}
