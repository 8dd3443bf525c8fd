//! Observations: the answer of the daemon, and the difference of two of them, which front ends show.

use bulkhead_core::finding::Finding;
use bulkhead_core::identity::Identity;
use bulkhead_core::observe::activity::{
    Activity, BlameView, ContainerView, DeviceTime, FileSystemView, LossView, top_culprit,
};
use bulkhead_core::observe::record::Tid;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{HoldView, StandingView};

/// How long a container made others wait in fsync, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CausesView {
    /// The total, in seconds.
    pub seconds: f64,
    /// Journal writes: device time of its journal blocks and other metadata, and the commit's own time for handles and requests.
    pub journal_seconds: f64,
    /// File data that had to be written inside the commit (ordered mode).
    pub ordered_seconds: f64,
    /// Other requests for file data that the device served in the meantime.
    pub queue_seconds: f64,
    /// Flushes of the device's cache, by its bytes in that cache.
    pub flush_seconds: f64,
    /// Journal bytes charged to it in the commits that were waited for.
    pub journal_bytes: u64,
    /// Bytes of its file data in these commits.
    pub ordered_bytes: u64,
}

/// A container that made another one wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CulpritView {
    /// The container, which can be the waiting one itself; `null` for time that cannot be attributed.
    pub culprit: Option<Identity>,
    /// How long, and by which causes.
    #[serde(flatten)]
    pub causes: CausesView,
}

/// A journal commit that an fsync waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitView {
    /// ID of the transaction.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// The container that forced the commit; `null` if the commit timer did, or if that was not observed.
    pub requester: Option<Identity>,
    /// How long the transaction waited for its handles to complete, in seconds; `null` if that was not observed, like the next two.
    pub locked_seconds: Option<f64>,
    /// How long file data was written, in seconds.
    pub flushing_seconds: Option<f64>,
    /// How long metadata was written to the journal, until all of it was on the device, in seconds.
    pub logging_seconds: Option<f64>,
    /// Duration of the commit, in seconds.
    pub seconds: f64,
    /// Bytes written to the journal.
    pub journal_bytes: u64,
    /// Bytes of file data written inside the commit.
    pub ordered_bytes: u64,
}

/// One wait in fsync, fdatasync or an `O_SYNC` write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitView {
    /// The container that waited.
    pub victim: Identity,
    /// Device of the file system, as in `FileSystemView`.
    pub device: String,
    /// Mount point of the file system; `null` if it is not mounted in the daemon's mount namespace.
    pub mount_point: Option<String>,
    /// How long ago it began, in seconds.
    pub began_seconds_ago: f64,
    /// Its duration, in seconds.
    pub seconds: f64,
    /// The part of it during which the device was busy, in seconds.
    pub device_seconds: f64,
    /// The part that commits account for while the device was idle, in seconds; the rest is unexplained.
    pub commit_seconds: f64,
    /// ID of the transaction that it needed: the last one that changed the file.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// The last commits that it waited for, oldest first; empty if the transaction had been committed before, or a fast commit served the
    /// fsync.
    pub commits: Vec<CommitView>,
    /// Number of commits that it waited for.
    pub n_commits: usize,
    /// The containers that made it wait, longest first.
    pub culprits: Vec<CulpritView>,
    /// Number of other containers that made it wait.
    pub n_others: usize,
    /// The sum of these.
    pub others: CausesView,
}

/// The longest waits: at most 64, and at most 16 of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitList {
    /// The waits, longest first.
    pub waits: Vec<WaitView>,
    /// Number of other waits in the same time, which is rounded up to multiples of 10 s.
    pub left_out: u64,
    /// Duration of the longest of these, in seconds.
    pub left_out_seconds: f64,
}

/// Sums since the observation began. The difference of two observations is what happened in between.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Observation {
    /// How long the host has been observed, in seconds.
    pub observed_seconds: f64,
    /// The tracing method in use.
    pub method: String,
    /// Why no better method is available, and what else limits the figures. Does not include losses, which `losses` has.
    pub findings: Vec<Finding>,
    /// Whether events were lost, so that the figures are too small.
    pub partial: bool,
    /// Lost events, by kind.
    pub losses: LossView,
    /// Number of entries in the BPF programs' maps at the last poll. It follows the activity on the host; steady growth is a bug.
    pub table_entries: u64,
    /// The containers with activity, by name.
    pub containers: Vec<ContainerView>,
    /// The devices with activity.
    pub devices: Vec<DeviceTime>,
    /// The observed file systems.
    pub file_systems: Vec<FileSystemView>,
    /// Which container waited for which.
    pub blame: Vec<BlameView>,
    /// The longest waits, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitList>,
    /// The holds, with target and achieved shares.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldView>,
}

impl Observation {
    /// An observation of this activity, with everything else empty.
    #[must_use]
    pub fn new(activity: Activity) -> Self {
        Self { partial: activity.losses.any(), ..Self::default() }.with(activity)
    }

    /// The activity of containers, devices and file systems.
    #[must_use]
    pub fn into_activity(self) -> Activity {
        let Self { observed_seconds, losses, containers, devices, file_systems, blame, .. } = self;
        Activity { observed_seconds, losses, containers, devices, file_systems, blame }
    }

    fn with(self, activity: Activity) -> Self {
        let Activity { observed_seconds, losses, containers, devices, file_systems, blame } = activity;
        Self { observed_seconds, losses, containers, devices, file_systems, blame, ..self }
    }

    /// What happened since an earlier observation of the same daemon. Containers without activity are omitted.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let activity = self.clone().into_activity().since(&before.clone().into_activity());
        let Self { method, findings, table_entries, waits, holds, .. } = self.clone();
        Self { method, findings, partial: self.partial, table_entries, waits, holds, ..Self::default() }.with(activity)
    }

    /// Everything that limits the figures: what cannot be observed on this host, and what was lost.
    #[must_use]
    pub fn limits(&self) -> Vec<Finding> {
        let lost = self.losses.finding().filter(|_| self.partial);
        self.findings.iter().cloned().chain(lost).collect()
    }

    /// The container that made another one wait longest, and for how long.
    #[must_use]
    pub fn top_culprit(&self, victim: &Identity) -> Option<(&Identity, f64)> {
        top_culprit(&self.blame, victim)
    }

    /// Target and achieved share of a container in the hold on a device.
    #[must_use]
    pub fn standing(&self, container: &Identity, device: &str) -> Option<&StandingView> {
        let view = self.holds.iter().find(|view| view.hold.device.as_str() == device)?;
        let tenant = view.hold.tenants.iter().find(|tenant| tenant.identity == *container)?;
        view.standings.iter().find(|standing| standing.name == tenant.name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bulkhead_core::finding::FindingId;
    use bulkhead_core::observe::Totals;
    use bulkhead_core::observe::histogram::Histogram;
    use bulkhead_core::observe::limits::{finding, losses};
    use bulkhead_core::observe::naming::{Names, activity};
    use bulkhead_core::observe::record::{CgroupId, Kind};
    use bulkhead_core::units::DevNo;

    use super::*;

    const FS: DevNo = DevNo::new(254, 1);

    fn totals() -> Totals {
        let mut syncs = Histogram::default();
        syncs.record(9000);
        Totals {
            journal_bytes: BTreeMap::from([((Some(CgroupId(2)), FS, Kind::Commit), 4096)]),
            syncs: BTreeMap::from([(CgroupId(2), syncs)]),
            ..Totals::default()
        }
    }

    #[test]
    fn json_names_units_and_round_trips() {
        let seen = Observation::new(activity(&totals(), [(FS, 5)].into_iter(), &Names::default()));
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json["containers"][0]["journal"][0]["commit_bytes"], 4096);
        assert_eq!(json["containers"][0]["fsync"]["sum_us"], 9000);
        assert_eq!(serde_json::from_value::<Observation>(json).unwrap(), seen);
    }

    #[test]
    fn a_difference_keeps_values_that_are_not_sums() {
        let before = Observation::new(activity(&totals(), std::iter::empty(), &Names::default()));
        let mut totals = totals();
        totals.journal_bytes.insert((Some(CgroupId(2)), FS, Kind::Ordered), 512);
        let seen = Observation::new(activity(&totals, std::iter::empty(), &Names::default()));
        let now = Observation { method: "typed".to_owned(), table_entries: 7, observed_seconds: 2.0, ..seen };
        let new = now.since(&before);
        assert_eq!((new.method.as_str(), new.table_entries, new.observed_seconds), ("typed", 7, 2.0));
        assert_eq!(new.containers[0].journal_total().total(), 512);
    }

    #[test]
    fn losses_are_among_the_limits() {
        let xfs = finding(FindingId::XfsNotObserved, "no such tracepoint");
        let mut seen = Observation { findings: vec![xfs.clone()], ..Observation::default() };
        assert_eq!(seen.limits(), std::slice::from_ref(&xfs));
        let mut totals = Totals { unseen_commits: 2, ..Totals::default() };
        totals.losses.requests = 7;
        (seen.losses, seen.partial) = (losses(&totals), true);
        let partial = finding(
            FindingId::ObservationPartial,
            "the figures are incomplete; lost since the observation began: 7 requests (device time), 2 commits",
        );
        assert_eq!(seen.limits(), [xfs, partial]);
        assert_eq!(losses(&Totals::default()).finding(), None);
    }
}
