//! Activity of containers: sums per container (not per cgroup), and differences between two states of them.
//!
//! Owns: the sums by container, device and file system, their differences, and the shares derived from them. Both ends
//! of the API use these values: the daemon enforces shares with them, and front ends show differences between two
//! answers. Does not: name a cgroup ([`super::naming`]).

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::histogram::Histogram;
use super::record::Kind;
use crate::identity::{ContainerKind, Identity};

/// Name of the sum over containers that were removed long ago.
pub const REMOVED: &str = "(removed containers)";

/// Whether this is the sum over containers that were removed long ago. Each of their sums is added at once, so that
/// differences of this sum are not recent activity. No container has this name: a cgroup without a better name has its
/// path.
#[must_use]
pub fn is_removed(identity: &Identity) -> bool {
    identity.kind == ContainerKind::Cgroup && identity.name == REMOVED
}

/// Journal bytes by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct JournalBytes {
    /// Blocks of the journal.
    pub commit_bytes: u64,
    /// File data that the journal thread wrote inside commits.
    pub ordered_bytes: u64,
    /// Metadata that was checkpointed: written to its final location.
    pub checkpoint_bytes: u64,
    /// Fast-commit blocks.
    pub fast_commit_bytes: u64,
}

impl JournalBytes {
    /// Bytes of one kind.
    #[must_use]
    pub const fn of(&self, kind: Kind) -> u64 {
        match kind {
            Kind::Commit => self.commit_bytes,
            Kind::Ordered => self.ordered_bytes,
            Kind::Checkpoint => self.checkpoint_bytes,
            Kind::FastCommit => self.fast_commit_bytes,
        }
    }

    /// Bytes of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.of(*kind)).sum()
    }

    pub(super) fn get_mut(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Commit => &mut self.commit_bytes,
            Kind::Ordered => &mut self.ordered_bytes,
            Kind::Checkpoint => &mut self.checkpoint_bytes,
            Kind::FastCommit => &mut self.fast_commit_bytes,
        }
    }

    fn since(mut self, before: &Self) -> Self {
        for kind in Kind::ALL {
            *self.get_mut(kind) = self.of(kind).saturating_sub(before.of(kind));
        }
        self
    }
}

/// Journal bytes that a container caused on one file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileSystemShare {
    /// The file system's device, as in the list of file systems.
    #[cfg_attr(feature = "schema", schema(value_type = String))]
    pub device: String,
    /// Journal bytes that it caused there.
    #[serde(flatten)]
    pub journal: JournalBytes,
    /// Journal bytes that its own threads wrote there, whichever container caused them: the kernel has charged it for
    /// these already.
    #[serde(default)]
    pub native_bytes: u64,
    /// The part of its journal bytes that its block servers caused, by writing to images.
    #[serde(default)]
    pub server_bytes: u64,
}

/// A container's use of a device, and its target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceShare {
    /// The device's kernel name.
    pub device: String,
    /// Device time that its requests took.
    pub seconds: f64,
    /// Bytes that the device read for it, as the kernel charged them.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes that it wrote.
    #[serde(default)]
    pub written_bytes: u64,
    /// Device time that its weight entitled it to among the containers active at the same time, accumulated 5 times a
    /// second; `null` if its weight cannot be read, or none applies (root cgroup).
    pub target_seconds: Option<f64>,
    /// Its fraction of the device time of all containers (0 to 1).
    pub achieved_share: f64,
    /// The target for that fraction.
    pub target_share: Option<f64>,
}

/// One container, tenant, unit or other cgroup that was active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ContainerView {
    /// Its identity.
    #[serde(flatten)]
    pub identity: Identity,
    /// Journal bytes that it caused, whichever thread wrote them.
    pub journal: Vec<FileSystemShare>,
    /// Bytes that devices read for it, as the kernel charged them.
    pub read_bytes: u64,
    /// Bytes that devices wrote for it, as the kernel charged them: without the journal writes of threads in other cgroups.
    pub written_bytes: u64,
    /// Device time that its requests took.
    pub device_seconds: f64,
    /// The same by device, with its target share.
    #[serde(default)]
    pub devices: Vec<DeviceShare>,
    /// Latencies of its fsync and fdatasync calls, and `O_SYNC` writes.
    pub fsync: Histogram,
}

impl ContainerView {
    /// All journal bytes that it caused.
    #[must_use]
    pub fn journal_total(&self) -> JournalBytes {
        let mut total = JournalBytes::default();
        for share in &self.journal {
            for kind in Kind::ALL {
                *total.get_mut(kind) += share.journal.of(kind);
            }
        }
        total
    }

    /// Its use of the device that spent most time on it.
    #[must_use]
    pub fn main_device(&self) -> Option<&DeviceShare> {
        self.devices.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds))
    }

    pub(super) fn device(&mut self, name: String) -> &mut DeviceShare {
        let at = self.devices.iter().position(|share| share.device == name).unwrap_or_else(|| {
            self.devices.push(DeviceShare { device: name, ..DeviceShare::default() });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    pub(super) fn file_system(&mut self, device: &str) -> &mut FileSystemShare {
        let at = self.journal.iter().position(|share| share.device == device).unwrap_or_else(|| {
            let device = device.to_owned();
            self.journal.push(FileSystemShare { device, ..FileSystemShare::default() });
            self.journal.len() - 1
        });
        &mut self.journal[at]
    }

    fn was_active(&self) -> bool {
        self.read_bytes + self.written_bytes + self.journal_total().total() + self.fsync.count() > 0
    }
}

/// An observed file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct FileSystemView {
    /// Name of its device, for example `dm-3`.
    pub device: String,
    /// Its mount point; `null` if it is not mounted in the daemon's mount namespace.
    pub mount_point: Option<String>,
    /// Names of the physical devices below it.
    pub disks: Vec<String>,
    /// Number of commits.
    pub commits: u64,
    /// All its journal bytes, as the block layer counted them.
    pub journal: JournalBytes,
    /// The part of them without a known owner.
    pub unattributed: JournalBytes,
    /// Journal bytes that are not included yet: those of commits that have just ended, and of the journal's superblock,
    /// which is charged with the next commit.
    pub pending_bytes: u64,
    /// Latencies of fsync and fdatasync calls, and `O_SYNC` writes, of all processes.
    #[serde(default)]
    pub fsync: Histogram,
}

/// A device whose requests were observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DeviceTime {
    /// Its kernel name, for example `sda`; its number if that is unknown.
    pub device: String,
    /// Busy time with file data, seconds.
    pub data_seconds: f64,
    /// Busy time with metadata: the journal and checkpoints, seconds.
    pub metadata_seconds: f64,
    /// Busy time with flushes of its cache, seconds.
    pub flush_seconds: f64,
}

/// How long one container waited in fsync because of another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct BlameView {
    /// The waiting container.
    pub victim: Identity,
    /// The container that it waited for, possibly itself; `null` for time without a known cause.
    pub culprit: Option<Identity>,
    /// The time, seconds.
    pub seconds: f64,
}

impl BlameView {
    /// The key of the pair.
    fn key(&self) -> ((ContainerKind, &str), Option<(ContainerKind, &str)>) {
        (self.victim.key(), self.culprit.as_ref().map(Identity::key))
    }
}

/// Events that the tracer had no space to record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct LossView {
    /// Records of commits and fsyncs that are missing.
    pub records: u64,
    /// Counts of blocks that are recorded as unattributed.
    pub owners: u64,
    /// Counts of blocks and writes that are missing.
    pub counts: u64,
    /// Requests to devices that are missing.
    pub requests: u64,
    /// Transactions whose commit was not observed.
    pub unseen_commits: u64,
}

/// Sums since the observation began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Duration of the observation.
    pub observed_seconds: f64,
    /// Lost events; if there are any, the other sums are too small.
    pub losses: LossView,
    /// The active containers, by name.
    pub containers: Vec<ContainerView>,
    /// The active devices.
    pub devices: Vec<DeviceTime>,
    /// The observed file systems.
    pub file_systems: Vec<FileSystemView>,
    /// How long containers waited for each other.
    pub blame: Vec<BlameView>,
}

impl Activity {
    /// The difference to an earlier state of the same observation. Containers without activity are omitted.
    #[must_use]
    pub fn since(self, before: &Self) -> Self {
        let mut new = self;
        if new.observed_seconds < before.observed_seconds {
            // Another observation, which began later: all of it is new.
            return new;
        }
        new.containers.retain(|view| !is_removed(&view.identity));
        new.blame.retain(|view| !is_removed(&view.victim) && !view.culprit.as_ref().is_some_and(is_removed));
        new.observed_seconds -= before.observed_seconds;
        let old = by_key(&before.containers, |view| view.identity.key());
        for view in &mut new.containers {
            let Some(old) = old.get(&view.identity.key()) else { continue };
            let shares = by_key(&old.journal, |share| share.device.as_str());
            for share in &mut view.journal {
                if let Some(old) = shares.get(share.device.as_str()) {
                    share.journal = share.journal.since(&old.journal);
                    share.native_bytes = share.native_bytes.saturating_sub(old.native_bytes);
                    share.server_bytes = share.server_bytes.saturating_sub(old.server_bytes);
                }
            }
            view.journal.retain(|share| share.journal.total() + share.native_bytes > 0);
            view.read_bytes = view.read_bytes.saturating_sub(old.read_bytes);
            view.written_bytes = view.written_bytes.saturating_sub(old.written_bytes);
            view.device_seconds = (view.device_seconds - old.device_seconds).max(0.0);
            view.fsync = view.fsync.since(&old.fsync);
            let devices = by_key(&old.devices, |device| device.device.as_str());
            for device in &mut view.devices {
                let Some(old) = devices.get(device.device.as_str()) else { continue };
                device.seconds = (device.seconds - old.seconds).max(0.0);
                device.read_bytes = device.read_bytes.saturating_sub(old.read_bytes);
                device.written_bytes = device.written_bytes.saturating_sub(old.written_bytes);
                let before = old.target_seconds.unwrap_or(0.0);
                device.target_seconds = device.target_seconds.map(|target| (target - before).max(0.0));
            }
            view.devices.retain(|device| {
                let was_active = device.seconds > 0.0 || device.read_bytes + device.written_bytes > 0;
                was_active || device.target_seconds > Some(0.0)
            });
        }
        compute_shares(&mut new.containers);
        new.containers.retain(ContainerView::was_active);
        let old = by_key(&before.file_systems, |view| view.device.as_str());
        for view in &mut new.file_systems {
            let Some(old) = old.get(view.device.as_str()) else { continue };
            view.commits = view.commits.saturating_sub(old.commits);
            view.journal = view.journal.since(&old.journal);
            view.unattributed = view.unattributed.since(&old.unattributed);
            view.fsync = view.fsync.since(&old.fsync);
        }
        let old = by_key(&before.devices, |view| view.device.as_str());
        for view in &mut new.devices {
            let Some(old) = old.get(view.device.as_str()) else { continue };
            view.data_seconds -= old.data_seconds;
            view.metadata_seconds -= old.metadata_seconds;
            view.flush_seconds -= old.flush_seconds;
        }
        let old = by_key(&before.blame, BlameView::key);
        for view in &mut new.blame {
            let seconds = old.get(&view.key()).map_or(0.0, |old| old.seconds);
            view.seconds -= seconds;
        }
        // Smaller values are rounding errors.
        new.blame.retain(|view| view.seconds > 1e-9);
        new
    }
}

/// The container that another one waited for most, and for how long; `None` if there is none.
#[must_use]
pub fn top_culprit<'a>(blame: &'a [BlameView], victim: &Identity) -> Option<(&'a Identity, f64)> {
    let others = blame.iter().filter(|view| view.victim == *victim && view.culprit.as_ref() != Some(victim));
    let named = others.filter_map(|view| Some((view.culprit.as_ref()?, view.seconds)));
    named.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Computes the shares of each device, as fractions of its time for all of these containers.
pub(super) fn compute_shares(containers: &mut [ContainerView]) {
    let mut sums: HashMap<String, f64> = HashMap::new();
    for device in containers.iter().flat_map(|view| &view.devices) {
        *sums.entry(device.device.clone()).or_default() += device.seconds;
    }
    for device in containers.iter_mut().flat_map(|view| &mut view.devices) {
        let sum = sums.get(&device.device).copied().unwrap_or(0.0);
        // If there was none, all shares are 0.
        let scale = if sum > 0.0 { 1.0 / sum } else { 0.0 };
        device.achieved_share = device.seconds * scale;
        device.target_share = device.target_seconds.map(|seconds| seconds * scale);
    }
}

/// Indexes views by key: there may be thousands of them.
fn by_key<'a, T, K: std::hash::Hash + Eq>(views: &'a [T], key: impl Fn(&'a T) -> K) -> HashMap<K, &'a T> {
    views.iter().map(|view| (key(view), view)).collect()
}

#[cfg(test)]
mod tests;
