//! A hold and an observation of the simulated host.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bulkhead_api::wire::{
    CausesView, CommitView, CulpritView, HoldView, Observation, StandingView, WaitList, WaitView,
};
use bulkhead_core::error::Fault;
use bulkhead_core::finding::Finding;
use bulkhead_core::identity::{Identity, identify};
use bulkhead_core::model::{HeldTenant, Hold, Mode, RateLimit, Unit};
use bulkhead_core::observe::activity::{
    BlameView, ContainerView, DeviceShare, FileSystemShare, FileSystemView, JournalBytes,
};
use bulkhead_core::observe::histogram::Histogram;

use crate::observe::Observe;

/// The view of a hold on that host.
pub(crate) fn held() -> HoldView {
    let tenant = HeldTenant {
        name: "db".to_owned(),
        share_ppm: 700_000,
        identity: identify("/bulkhead.slice/bulkhead-db.slice"),
        cgroup: "bulkhead.slice/bulkhead-db.slice".parse().unwrap(),
        iops_before: RateLimit::default(),
        bytes_before: Some(RateLimit::default()),
        fsync_p99_us: Some(20_000),
        journal: None,
    };
    let standing = StandingView {
        name: "db".to_owned(),
        target_share: 0.7,
        achieved_share: 0.72,
        journal_share: 0.3,
        weight: 120,
        contends: true,
        infeasible: false,
        cap: Some(240),
        cap_bytes: Some(31_457_280),
        fsync_p99_seconds: Some(0.025),
    };
    HoldView {
        hold: Hold {
            device: "vda".parse().expect("a kernel name"),
            unit: Unit::Bytes,
            mode: Mode::Correcting,
            weight_file: "io.weight".to_owned(),
            total_weight: 200,
            tenants: vec![tenant],
            tunables: BTreeMap::new(),
            lease_seconds: None,
            for_promises: false,
        },
        state: "corrected".to_owned(),
        reason: "weights were changed".to_owned(),
        corrections: 7,
        standings: vec![standing],
    }
}

/// An observation of that host: each request comes a second later, and each second has the same activity.
#[derive(Debug, Default)]
pub(crate) struct Observed(AtomicU32);

impl Observe for Observed {
    fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }

    fn observe(&self, waits: Duration) -> Result<Observation, Fault> {
        let n = self.0.fetch_add(1, Ordering::SeqCst) + 1;
        let db = identify("/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice");
        let noise = identify("/system.slice/noise\u{1b}[2J.service");
        let journal = |commit_bytes: u64, ordered_bytes: u64| JournalBytes {
            commit_bytes: commit_bytes * u64::from(n),
            ordered_bytes: ordered_bytes * u64::from(n),
            ..JournalBytes::default()
        };
        let container =
            |identity: &Identity, journal: JournalBytes, written_bytes: u64, device_seconds: f64| ContainerView {
                identity: identity.clone(),
                journal: vec![FileSystemShare { device: "vda1".to_owned(), journal, ..FileSystemShare::default() }],
                read_bytes: 0,
                written_bytes: written_bytes * u64::from(n),
                device_seconds: device_seconds * f64::from(n),
                devices: vec![DeviceShare {
                    device: "vda".to_owned(),
                    seconds: device_seconds * f64::from(n),
                    read_bytes: 0,
                    written_bytes: written_bytes * u64::from(n),
                    target_seconds: (identity.name == "db").then(|| 0.76 * f64::from(n)),
                    achieved_share: device_seconds / 0.95,
                    target_share: (identity.name == "db").then_some(0.8),
                }],
                fsync: Histogram::default(),
            };
        let mut waiting = container(&db, journal(40 << 10, 0), 160 << 10, 0.05);
        for _ in 0..n * 10 {
            waiting.fsync.record(30_000);
        }
        waiting.fsync.record(900_000);
        let blame = |culprit: Option<&Identity>, seconds: f64| BlameView {
            victim: db.clone(),
            culprit: culprit.cloned(),
            seconds: seconds * f64::from(n),
        };
        Ok(Observation {
            observed_seconds: f64::from(n),
            method: "tp_btf".to_owned(),
            containers: vec![waiting, container(&noise, journal(2 << 20, 1 << 20), 90 << 20, 0.9)],
            file_systems: vec![FileSystemView {
                device: "vda1".to_owned(),
                mount_point: Some("/".to_owned()),
                disks: vec!["vda".to_owned()],
                commits: u64::from(n) * 11,
                journal: journal((40 << 10) + (2 << 20) + 4096, 1 << 20),
                unattributed: journal(4096, 0),
                pending_bytes: 0,
                fsync: Histogram::default(),
            }],
            blame: vec![blame(Some(&db), 0.02), blame(Some(&noise), 0.27), blame(None, 0.01)],
            waits: (!waits.is_zero()).then(|| WaitList {
                waits: vec![long_wait(&db, &noise), short_wait(&noise)],
                left_out: 9,
                left_out_seconds: 0.03,
            }),
            ..Observation::default()
        })
    }
}

/// A wait for two commits, mostly caused by another container.
fn long_wait(victim: &Identity, noise: &Identity) -> WaitView {
    let commit = |tid, seconds: f64, requester: Option<&Identity>| CommitView {
        tid,
        requester: requester.cloned(),
        locked_seconds: Some(0.0002),
        flushing_seconds: Some(seconds / 4.0),
        logging_seconds: requester.map(|_| seconds * 0.7),
        seconds,
        journal_bytes: 2 << 20,
        ordered_bytes: 1 << 20,
    };
    let culprit = |culprit: Option<&Identity>, [journal_seconds, queue_seconds]: [f64; 2]| CulpritView {
        culprit: culprit.cloned(),
        causes: CausesView {
            seconds: journal_seconds + queue_seconds,
            journal_seconds,
            queue_seconds,
            ..CausesView::default()
        },
    };
    WaitView {
        victim: victim.clone(),
        device: "vda1".to_owned(),
        mount_point: Some("/".to_owned()),
        began_seconds_ago: 12.5,
        seconds: 0.9,
        device_seconds: 0.72,
        commit_seconds: 0.17,
        tid: 4711,
        commits: vec![commit(4710, 0.4, None), commit(4711, 0.5, Some(victim))],
        n_commits: 2,
        culprits: vec![
            culprit(Some(noise), [0.15, 0.65]),
            culprit(Some(victim), [0.09, 0.0]),
            culprit(None, [0.0, 0.01]),
        ],
        n_others: 0,
        others: CausesView::default(),
    }
}

/// A wait that needed no commit, on a file system that is not mounted here.
fn short_wait(victim: &Identity) -> WaitView {
    let causes = CausesView { seconds: 0.04, flush_seconds: 0.04, ..CausesView::default() };
    WaitView {
        victim: victim.clone(),
        device: "vdb".to_owned(),
        mount_point: None,
        began_seconds_ago: 70.0,
        seconds: 0.04,
        device_seconds: 0.04,
        commit_seconds: 0.0,
        tid: 7,
        commits: Vec::new(),
        n_commits: 0,
        culprits: vec![CulpritView { culprit: Some(victim.clone()), causes }],
        n_others: 0,
        others: CausesView::default(),
    }
}
