//! Naming: from sums per cgroup and device number to sums per container and device name.
//!
//! Owns: which sums belong to one container. Does not: look up names; the engine does.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Totals;
use super::activity::{Activity, BlameView, ContainerView, DeviceTime, FileSystemView, JournalBytes, compute_shares};
use super::histogram::Histogram;
use super::limits;
use super::record::{CgroupId, ServiceClass};
use crate::identity::{ContainerKind, Identity};
use crate::units::{DevNo, seconds};

/// The name, mount point and devices of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSystemFacts {
    /// Name of its device.
    pub device: String,
    /// Its mount point, printable.
    pub mount_point: Option<String>,
    /// Names of the physical devices below it.
    pub disks: Vec<String>,
}

/// Names for the numbers in [`Totals`].
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// The owner of each cgroup.
    pub cgroups: HashMap<CgroupId, Identity>,
    /// The cgroups of tenants' block servers.
    pub servers: HashSet<CgroupId>,
    /// The file system on each device.
    pub file_systems: HashMap<DevNo, FileSystemFacts>,
    /// Kernel names of devices.
    pub devices: HashMap<DevNo, String>,
}

/// The identity of a cgroup that was removed before it could be named.
#[must_use]
pub fn unnamed(id: CgroupId) -> Identity {
    Identity { kind: ContainerKind::Cgroup, name: format!("cgroup {} (gone)", id.0), id: None, pod_uid: None }
}

impl Names {
    /// The container of a cgroup.
    #[must_use]
    pub fn cgroup(&self, id: CgroupId) -> Identity {
        self.cgroups.get(&id).cloned().unwrap_or_else(|| unnamed(id))
    }

    fn device(&self, dev: DevNo) -> String {
        self.devices.get(&dev).cloned().unwrap_or_else(|| dev.to_string())
    }

    /// A file system; an unknown one has its device number as its name.
    #[must_use]
    pub fn file_system(&self, dev: DevNo) -> FileSystemFacts {
        self.file_systems
            .get(&dev)
            .cloned()
            .unwrap_or_else(|| FileSystemFacts { device: dev.to_string(), ..FileSystemFacts::default() })
    }
}

/// Names the sums. `pending` are bytes of each journal that are not charged yet. `observed_seconds` is left at 0.
#[must_use]
pub fn activity(totals: &Totals, pending: impl Iterator<Item = (DevNo, u64)>, names: &Names) -> Activity {
    let mut containers: BTreeMap<Identity, ContainerView> = BTreeMap::new();
    let mut file_systems: BTreeMap<String, FileSystemView> = BTreeMap::new();
    let mut container = |identity: Identity, change: &mut dyn FnMut(&mut ContainerView)| {
        let new = ContainerView {
            identity: identity.clone(),
            journal: Vec::new(),
            read_bytes: 0,
            written_bytes: 0,
            device_seconds: 0.0,
            devices: Vec::new(),
            fsync: Histogram::default(),
        };
        change(containers.entry(identity).or_insert(new));
    };
    for (dev, commits) in &totals.commits {
        file_system(&mut file_systems, names.file_system(*dev)).commits += commits;
    }
    for (dev, bytes) in pending.filter(|(_, bytes)| *bytes > 0) {
        file_system(&mut file_systems, names.file_system(dev)).pending_bytes += bytes;
    }
    for (dev, histogram) in &totals.file_system_syncs {
        file_system(&mut file_systems, names.file_system(*dev)).fsync.merge(histogram);
    }
    for (&(owner, dev, kind), bytes) in &totals.journal_bytes {
        let facts = names.file_system(dev);
        let device = facts.device.clone();
        let view = file_system(&mut file_systems, facts);
        *view.journal.get_mut(kind) += bytes;
        let Some(owner) = owner else {
            *view.unattributed.get_mut(kind) += bytes;
            continue;
        };
        container(names.cgroup(owner), &mut |view| {
            let share = view.file_system(&device);
            *share.journal.get_mut(kind) += bytes;
            share.server_bytes += if names.servers.contains(&owner) { *bytes } else { 0 };
        });
    }
    for (&(writer, dev), bytes) in &totals.native_bytes {
        let device = names.file_system(dev).device;
        container(names.cgroup(writer), &mut |view| view.file_system(&device).native_bytes += bytes);
    }
    for (&(owner, dev), service) in &totals.service {
        // Flushes have no owner; their device time appears in the blame.
        let Some(owner) = owner else { continue };
        container(names.cgroup(owner), &mut |view| {
            view.read_bytes += service.read_bytes;
            view.written_bytes += service.written_bytes;
            view.device_seconds += seconds(service.busy_ns);
            let device = view.device(names.device(dev));
            device.seconds += seconds(service.busy_ns);
            device.read_bytes += service.read_bytes;
            device.written_bytes += service.written_bytes;
        });
    }
    for (&(owner, dev), &ns) in &totals.target_ns {
        container(names.cgroup(owner), &mut |view| {
            *view.device(names.device(dev)).target_seconds.get_or_insert_default() += seconds(ns);
        });
    }
    for (&cgroup, histogram) in &totals.syncs {
        container(names.cgroup(cgroup), &mut |view| view.fsync.merge(histogram));
    }
    let mut containers: Vec<ContainerView> = containers.into_values().collect();
    compute_shares(&mut containers);
    Activity {
        observed_seconds: 0.0,
        losses: limits::losses(totals),
        containers,
        devices: devices(totals, names),
        file_systems: file_systems.into_values().collect(),
        blame: blame(totals, names),
    }
}

fn file_system(views: &mut BTreeMap<String, FileSystemView>, facts: FileSystemFacts) -> &mut FileSystemView {
    views.entry(facts.device.clone()).or_insert_with(|| FileSystemView {
        device: facts.device,
        mount_point: facts.mount_point,
        disks: facts.disks,
        commits: 0,
        journal: JournalBytes::default(),
        unattributed: JournalBytes::default(),
        pending_bytes: 0,
        fsync: Histogram::default(),
    })
}

fn devices(totals: &Totals, names: &Names) -> Vec<DeviceTime> {
    // By name: a device that was removed and added again may have another number.
    let mut views: BTreeMap<String, DeviceTime> = BTreeMap::new();
    for (&(dev, class), &ns) in &totals.device_ns {
        let name = names.device(dev);
        let view = views.entry(name.clone()).or_insert_with(|| DeviceTime {
            device: name,
            data_seconds: 0.0,
            metadata_seconds: 0.0,
            flush_seconds: 0.0,
        });
        *match class {
            ServiceClass::Data => &mut view.data_seconds,
            ServiceClass::Meta => &mut view.metadata_seconds,
            ServiceClass::Flush => &mut view.flush_seconds,
        } += seconds(ns);
    }
    views.into_values().collect()
}

fn blame(totals: &Totals, names: &Names) -> Vec<BlameView> {
    let mut sums: BTreeMap<(Identity, Option<Identity>), u64> = BTreeMap::new();
    for (&(victim, culprit), ns) in &totals.blame_ns {
        *sums.entry((names.cgroup(victim), culprit.map(|culprit| names.cgroup(culprit)))).or_default() += ns;
    }
    sums.into_iter().map(|((victim, culprit), ns)| BlameView { victim, culprit, seconds: seconds(ns) }).collect()
}
