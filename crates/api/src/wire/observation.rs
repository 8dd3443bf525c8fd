//! What was observed: the answer, and what a front end makes of two of them.

use bulkhead_core::finding::Finding;
use bulkhead_core::identity::Identity;
use bulkhead_core::observe::activity::{
    Activity, BlameView, ContainerView, DeviceTime, FileSystemView, LossView, top_culprit,
};
use bulkhead_core::observe::record::Tid;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{HoldView, StandingView};

/// By what somebody makes others wait, and how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CausesView {
    /// All of it.
    pub seconds: f64,
    /// Blocks in the journal: device time for them and other metadata, and the commit's own for handles and requests.
    pub journal_seconds: f64,
    /// File data that had to be written inside the commit.
    pub ordered_seconds: f64,
    /// Other requests for file data that the device served meanwhile.
    pub queue_seconds: f64,
    /// Bytes in the device's cache when it was flushed.
    pub flush_seconds: f64,
    /// Bytes of journal that it is charged in the commits that were waited for.
    pub journal_bytes: u64,
    /// Bytes of its file data in them.
    pub ordered_bytes: u64,
}

/// A container that made another one wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CulpritView {
    /// Who it is, the one that waited as well; `None` for what nobody can be named for.
    pub culprit: Option<Identity>,
    /// How it made it wait.
    #[serde(flatten)]
    pub causes: CausesView,
}

/// A commit that somebody waited for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommitView {
    /// Number of the transaction.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// Who forced it; `None` if the timer did, or if that was not seen.
    pub requester: Option<Identity>,
    /// How long the transaction waited for its handles to end; `None` if that was not seen, like the next two.
    pub locked_seconds: Option<f64>,
    /// How long file data was sent to the device.
    pub flushing_seconds: Option<f64>,
    /// How long metadata was written to the journal, until all of it was on the device.
    pub logging_seconds: Option<f64>,
    /// All of it.
    pub seconds: f64,
    /// What was written to the journal.
    pub journal_bytes: u64,
    /// File data that was written inside it.
    pub ordered_bytes: u64,
}

/// One wait in fsync, fdatasync or an `O_SYNC` write.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitView {
    /// Who waited.
    pub victim: Identity,
    /// The file system's device, as in [`FileSystemView`].
    pub device: String,
    /// Where that is mounted; `None` when it is not mounted in the daemon's mount namespace.
    pub mount_point: Option<String>,
    /// How long ago it began.
    pub began_seconds_ago: f64,
    /// How long it took.
    pub seconds: f64,
    /// The part of it in which the device was busy.
    pub device_seconds: f64,
    /// The part that the commits account for while the device was idle; what is left nothing explains.
    pub commit_seconds: f64,
    /// Number of the transaction that it needed: the last one that changed the file.
    #[schema(value_type = u32)]
    pub tid: Tid,
    /// The last of the commits that it waited for, oldest first. None where the transaction was committed before, or the
    /// fsync was served by a fast commit.
    pub commits: Vec<CommitView>,
    /// How many it waited for.
    pub n_commits: usize,
    /// Who made it wait, the largest part first.
    pub culprits: Vec<CulpritView>,
    /// How many others had a part.
    pub n_others: usize,
    /// Theirs together.
    pub others: CausesView,
}

/// The longest waits, at most 64, and at most 16 of one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WaitList {
    /// The longest first.
    pub waits: Vec<WaitView>,
    /// How many others there were in this time, in steps of 10 s.
    pub left_out: u64,
    /// The longest of those.
    pub left_out_seconds: f64,
}

/// Sums since the observation began. The difference of two observations ([`Observation::since`]) is what happened between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Observation {
    /// How long was observed.
    pub observed_seconds: f64,
    /// The way of tracing that is in force.
    pub method: String,
    /// Why it is not a better one, and what else limits the figures; not what was lost ([`Observation::limits`]).
    pub findings: Vec<Finding>,
    /// Whether something was lost, so that the figures are too small.
    pub partial: bool,
    /// What was lost.
    pub losses: LossView,
    /// Entries in the tables of the programs at the last look; it follows what goes on, and must not only grow.
    pub table_entries: u64,
    /// Who did something, by name.
    pub containers: Vec<ContainerView>,
    /// The devices that did something.
    pub devices: Vec<DeviceTime>,
    /// The file systems that are observed.
    pub file_systems: Vec<FileSystemView>,
    /// Who waited for whom.
    pub blame: Vec<BlameView>,
    /// The longest waits, if they were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<WaitList>,
    /// Shares that the daemon holds, and where they stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub holds: Vec<HoldView>,
}

impl Observation {
    /// What containers did, and nothing else yet.
    #[must_use]
    pub fn new(activity: Activity) -> Self {
        Self { partial: activity.losses.any(), ..Self::default() }.with(activity)
    }

    /// What containers did.
    #[must_use]
    pub fn into_activity(self) -> Activity {
        let Self { observed_seconds, losses, containers, devices, file_systems, blame, .. } = self;
        Activity { observed_seconds, losses, containers, devices, file_systems, blame }
    }

    fn with(self, activity: Activity) -> Self {
        let Activity { observed_seconds, losses, containers, devices, file_systems, blame } = activity;
        Self { observed_seconds, losses, containers, devices, file_systems, blame, ..self }
    }

    /// What happened since an earlier observation of the same daemon. Containers that did nothing are omitted.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let activity = self.clone().into_activity().since(&before.clone().into_activity());
        let Self { method, findings, table_entries, waits, holds, .. } = self.clone();
        Self { method, findings, partial: self.partial, table_entries, waits, holds, ..Self::default() }.with(activity)
    }

    /// All that limits the figures: what cannot be observed on this host, and what was lost.
    #[must_use]
    pub fn limits(&self) -> Vec<Finding> {
        let lost = self.losses.finding().filter(|_| self.partial);
        self.findings.iter().cloned().chain(lost).collect()
    }

    /// The container that made another one wait most, and for how long; `None` when there is none.
    #[must_use]
    pub fn top_culprit(&self, victim: &Identity) -> Option<(&Identity, f64)> {
        top_culprit(&self.blame, victim)
    }

    /// Where a container stands on a device whose shares are held, if it is one of those.
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
    fn json_carries_units_and_comes_back() {
        let seen = Observation::new(activity(&totals(), [(FS, 5)].into_iter(), &Names::default()));
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json["containers"][0]["journal"][0]["commit_bytes"], 4096);
        assert_eq!(json["containers"][0]["fsync"]["sum_us"], 9000);
        assert_eq!(serde_json::from_value::<Observation>(json).unwrap(), seen);
    }

    #[test]
    fn a_difference_keeps_what_is_no_sum() {
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
    fn what_was_lost_limits_the_figures() {
        let xfs = finding(FindingId::XfsNotObserved, "no such tracepoint");
        let mut seen = Observation { findings: vec![xfs.clone()], ..Observation::default() };
        assert_eq!(seen.limits(), std::slice::from_ref(&xfs));
        let mut totals = Totals { unseen_commits: 2, ..Totals::default() };
        totals.losses.requests = 7;
        (seen.losses, seen.partial) = (losses(&totals), true);
        let partial = finding(
            FindingId::ObservationPartial,
            "the figures are partial since the observation began; lost: 7 requests (device time), 2 commits",
        );
        assert_eq!(seen.limits(), [xfs, partial]);
        assert_eq!(losses(&Totals::default()).finding(), None);
    }
}
