//! The storage stacks of a host as a tree, with the findings on them: what pictures of it show.
//!
//! Owns: the order and the words. Does not: draw.

use std::collections::BTreeSet;

use crate::facts::{Device, DeviceKind, Facts, Image, Mount};
use crate::finding::Finding;

/// A file system, a device, an image, or another object with findings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its depth in the tree: 0 for file systems.
    pub depth: usize,
    /// Its name.
    pub name: String,
    /// What it is.
    pub detail: String,
    /// What was found on it.
    pub findings: Vec<&'a Finding>,
}

/// The stack below each file system, from top to bottom, then all other objects with findings. A device is followed once, and each finding is on
/// one row.
#[must_use]
pub fn rows<'a>(facts: &Facts, findings: &'a [Finding]) -> Vec<Row<'a>> {
    let mut tree = Tree { facts, findings, shown: BTreeSet::new(), drawn: BTreeSet::new(), rows: Vec::new() };
    let containers = facts.containers();
    let mut mounts = facts.file_systems();
    mounts.sort_by(|a, b| a.at.cmp(&b.at));
    for mount in mounts {
        tree.mount(mount, containers.get(&mount.dev).copied());
    }
    for device in &facts.devices {
        if tree.has_findings(&format!("device {}", device.name)) {
            tree.device(device, 0);
        }
    }
    tree.others();
    tree.rows
}

struct Tree<'a, 'b> {
    facts: &'b Facts,
    findings: &'a [Finding],
    /// Findings that are on a row, by their index.
    shown: BTreeSet<usize>,
    /// Devices with a row.
    drawn: BTreeSet<&'b str>,
    rows: Vec<Row<'a>>,
}

impl<'b> Tree<'_, 'b> {
    fn push(&mut self, depth: usize, name: impl Into<String>, detail: impl Into<String>, objects: &[String]) {
        let is_here = |finding: &Finding| objects.contains(&finding.object);
        let here = self.findings.iter().enumerate().filter(|(_, finding)| is_here(finding));
        let findings = here.filter(|(index, _)| self.shown.insert(*index)).map(|(_, finding)| finding).collect();
        self.rows.push(Row { depth, name: name.into(), detail: detail.into(), findings });
    }

    fn has_findings(&self, object: &str) -> bool {
        let is_left = |(index, finding): (usize, &Finding)| finding.object == object && !self.shown.contains(&index);
        self.findings.iter().enumerate().any(is_left)
    }

    fn mount(&mut self, mount: &'b Mount, containers: Option<usize>) {
        let mut details = vec![mount.fs_type.clone()];
        if let Some(space) = self.facts.space_of(mount.dev) {
            details.push(format!("{} of {} free", space.free_bytes, space.size_bytes));
        }
        let databases: BTreeSet<&str> = self
            .facts
            .databases
            .iter()
            .filter(|database| database.dev == mount.dev)
            .map(|database| database.name.as_str())
            .collect();
        details.extend(databases.iter().map(|name| format!("data of {name}")));
        match containers {
            Some(1) => details.push("1 container".to_owned()),
            Some(count) => details.push(format!("{count} containers")),
            None => (),
        }
        let objects: Vec<String> = std::iter::once(format!("file system {}", mount.at))
            .chain(databases.iter().map(|name| format!("database {name}")))
            .collect();
        self.push(0, &mount.at, details.join(", "), &objects);
        if let Some(device) = self.facts.device_of(mount) {
            self.device(device, 1);
        }
    }

    fn device(&mut self, device: &'b Device, depth: usize) {
        let objects = [format!("device {}", device.name), format!("thin pool {}", pool_name(device))];
        if !self.drawn.insert(&device.name) {
            let detail = if device.below.is_empty() { detail(device) } else { "as above".to_owned() };
            self.push(depth, &device.name, detail, &objects);
            return;
        }
        self.push(depth, &device.name, detail(device), &objects);
        let mut depth = depth;
        if let Some(image) = &device.image {
            depth += 1;
            self.push(depth, &image.path, image_detail(image), &[]);
        }
        let facts = self.facts;
        for below in device.below.iter().filter_map(|name| facts.device(name)) {
            self.device(below, depth + 1);
        }
    }

    /// Objects that are no part of a stack: the host, cgroups, runtimes, swap.
    fn others(&mut self) {
        let left = |tree: &Self| tree.findings.iter().enumerate().find(|(index, _)| !tree.shown.contains(index));
        while let Some(object) = left(self).map(|(_, finding)| finding.object.clone()) {
            self.push(0, object.clone(), "", &[object]);
        }
    }
}

/// The name of a thin pool: LVM's, without the suffix of its hidden device.
#[must_use]
pub fn pool_name(device: &Device) -> &str {
    let name = device.dm_name.as_deref().unwrap_or(&device.name);
    name.strip_suffix("-tpool").unwrap_or(name)
}

fn detail(device: &Device) -> String {
    let kind = match device.kind {
        DeviceKind::Disk if device.rotational => "disk (rotating)",
        DeviceKind::Disk => "disk",
        DeviceKind::Partition => "partition",
        DeviceKind::Dm => device.dm_target.as_deref().unwrap_or("device-mapper"),
        DeviceKind::Loop => "loop device",
        DeviceKind::Md => device.raid_level.as_deref().unwrap_or("RAID"),
        DeviceKind::Ublk => "ublk device",
        DeviceKind::Nbd => "network block device",
        DeviceKind::Memory => "memory",
        DeviceKind::Bcache => "bcache",
    };
    let mut details = vec![kind.to_owned(), device.size_bytes.to_string()];
    details.extend(device.dm_name.clone());
    details.extend(device.read_only.then(|| "read-only".to_owned()));
    if device.is_disk() {
        details.extend(device.model.clone());
        details.extend(device.scheduler.as_deref().map(|scheduler| format!("scheduler {scheduler}")));
        details.extend(device.io_cost.then(|| "io.cost".to_owned()));
        details.extend(device.write_cache.clone());
    }
    details.join(", ")
}

fn image_detail(image: &Image) -> String {
    let mut details = vec!["image".to_owned()];
    details.extend(image.fs_type.as_deref().map(|fs| format!("on {fs}")));
    details.extend(image.direct.map(|direct| if direct { "direct I/O" } else { "page cache" }.to_owned()));
    details.extend(image.deleted.then(|| "deleted".to_owned()));
    details.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::FindingId;
    use crate::units::{Bytes, DevNo};

    fn device(name: &str, minor: u32, kind: DeviceKind, below: &[&str]) -> Device {
        let below = below.iter().map(|name| (*name).to_owned()).collect();
        let size_bytes = Bytes(Bytes::GIB);
        Device { name: name.to_owned(), dev: DevNo::new(8, minor), kind, below, size_bytes, ..Device::default() }
    }

    fn mount(minor: u32, at: &str) -> Mount {
        Mount { dev: DevNo::new(8, minor), at: at.to_owned(), fs_type: "ext4".to_owned(), ..Mount::default() }
    }

    #[test]
    fn each_finding_is_on_one_row_and_each_device_is_followed_once() {
        let image = Image { path: "/srv/image".to_owned(), direct: Some(false), ..Image::default() };
        let facts = Facts {
            mounts: vec![mount(1, "/"), mount(2, "/srv"), mount(5, "/mnt")],
            devices: vec![
                device("sda", 0, DeviceKind::Disk, &[]),
                device("sda1", 1, DeviceKind::Partition, &["sda"]),
                device("dm-0", 2, DeviceKind::Dm, &["sda1", "dm-0"]),
                Device { image: Some(image), ..device("loop0", 5, DeviceKind::Loop, &["dm-0"]) },
            ],
            ..Facts::default()
        };
        let found = |object: &str| Finding::new(FindingId::JournalNested, object, "evidence");
        let findings =
            [found("device sda"), found("host"), found("file system /srv"), found("device loop0"), found("host")];
        let rows = rows(&facts, &findings);
        let shown: Vec<String> = rows
            .iter()
            .map(|row| format!("{}{} ({}) {}", "  ".repeat(row.depth), row.name, row.detail, row.findings.len()))
            .collect();
        assert_eq!(
            shown,
            [
                "/ (ext4) 0",
                "  sda1 (partition, 1 GiB) 0",
                "    sda (disk, 1 GiB) 1",
                "/mnt (ext4) 0",
                "  loop0 (loop device, 1 GiB) 1",
                "    /srv/image (image, page cache) 0",
                "      dm-0 (device-mapper, 1 GiB) 0",
                "        sda1 (as above) 0",
                "        dm-0 (as above) 0",
                "/srv (ext4) 1",
                "  dm-0 (as above) 0",
                "host () 2",
            ]
        );
        assert_eq!(rows.iter().map(|row| row.findings.len()).sum::<usize>(), findings.len());
    }
}
