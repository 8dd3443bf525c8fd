//! Tests of the activity of containers, from sums per cgroup.

use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::identity::identify;
use crate::observe::Totals;
use crate::observe::naming::{FileSystemFacts, Names, activity};
use crate::observe::record::{CgroupId, Service, ServiceClass};
use crate::units::DevNo;

const FS: DevNo = DevNo::new(254, 1);

fn names() -> Names {
    let cgroup = |id, path| (CgroupId(id), identify(path));
    Names {
        cgroups: HashMap::from([
            cgroup(1, "/"),
            cgroup(2, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice"),
            cgroup(3, "/bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice"),
            cgroup(4, "/system.slice/noise.service"),
        ]),
        file_systems: HashMap::from([(
            FS,
            FileSystemFacts { device: "dm-1".into(), mount_point: Some("/srv".into()), disks: vec!["sda".into()] },
        )]),
        devices: HashMap::from([(DevNo::new(8, 0), "sda".to_owned())]),
        ..Names::default()
    }
}

fn totals() -> Totals {
    let cgroup = |id| Some(CgroupId(id));
    let mut syncs = Histogram::default();
    syncs.record(9000);
    Totals {
        journal_bytes: BTreeMap::from([
            ((cgroup(2), FS, Kind::Commit), 4096),
            ((cgroup(2), FS, Kind::Checkpoint), 100),
            ((cgroup(9), FS, Kind::Commit), 10),
            ((None, FS, Kind::Checkpoint), 7),
        ]),
        native_bytes: BTreeMap::from([((CgroupId(2), FS), 30), ((CgroupId(3), FS), 4)]),
        service: BTreeMap::from([
            ((cgroup(2), FS), Service { busy_ns: 500_000_000, read_bytes: 1, written_bytes: 2, requests: 1 }),
            ((cgroup(3), FS), Service { busy_ns: 250_000_000, read_bytes: 0, written_bytes: 5, requests: 1 }),
            ((None, FS), Service { busy_ns: 1, read_bytes: 0, written_bytes: 0, requests: 1 }),
        ]),
        device_ns: BTreeMap::from([((DevNo::new(8, 0), ServiceClass::Flush), 250_000_000)]),
        syncs: BTreeMap::from([(CgroupId(2), syncs)]),
        blame_ns: BTreeMap::from([
            ((CgroupId(2), cgroup(4)), 7_000_000),
            ((CgroupId(2), cgroup(3)), 1_000_000),
            ((CgroupId(2), None), 9_000_000),
        ]),
        commits: BTreeMap::from([(FS, 3)]),
        ..Totals::default()
    }
}

#[test]
fn the_cgroups_of_a_container_are_one_line() {
    let seen = activity(&totals(), [(FS, 5)].into_iter(), &names());
    let shown: Vec<&str> = seen.containers.iter().map(|view| view.identity.name.as_str()).collect();
    assert_eq!(shown, ["db", "cgroup 9 (gone)"]);
    let db = &seen.containers[0];
    assert_eq!((db.read_bytes, db.written_bytes, db.device_seconds), (1, 7, 0.75));
    assert_eq!((db.journal[0].native_bytes, db.journal[0].server_bytes), (34, 0));
    let servers = HashSet::from([CgroupId(2)]);
    let served = activity(&totals(), std::iter::empty(), &Names { servers, ..names() });
    let shares = |at: usize| served.containers[at].journal.iter().map(|share| share.server_bytes).collect::<Vec<_>>();
    assert_eq!((shares(0), shares(1)), (vec![4196], vec![0]));
    assert_eq!(db.journal_total(), JournalBytes { commit_bytes: 4096, checkpoint_bytes: 100, ..Default::default() });
    let fs = &seen.file_systems[0];
    assert_eq!((fs.device.as_str(), fs.commits, fs.journal.total(), fs.unattributed.total()), ("dm-1", 3, 4213, 7));
    assert_eq!(fs.pending_bytes, 5);
    let (culprit, seconds) = top_culprit(&seen.blame, &db.identity).unwrap();
    assert_eq!((culprit.name.as_str(), seconds), ("noise.service", 0.007));
    assert!(!seen.losses.any());
    assert_eq!((seen.devices[0].device.as_str(), seen.devices[0].flush_seconds), ("sda", 0.25));
}

#[test]
fn a_device_that_comes_back_under_another_number_is_one_line() {
    let (old, new) = (DevNo::new(259, 0), DevNo::new(259, 3));
    let device_ns = BTreeMap::from([
        ((old, ServiceClass::Data), 1_000_000_000),
        ((new, ServiceClass::Data), 500_000_000),
        ((new, ServiceClass::Flush), 250_000_000),
    ]);
    let devices = HashMap::from([(old, "nvme0n1".to_owned()), (new, "nvme0n1".to_owned())]);
    let totals = Totals { device_ns, ..Totals::default() };
    let seen = activity(&totals, std::iter::empty(), &Names { devices, ..Names::default() });
    let shown: Vec<_> =
        seen.devices.iter().map(|view| (view.device.as_str(), view.data_seconds, view.flush_seconds)).collect();
    assert_eq!(shown, [("nvme0n1", 1.5, 0.25)]);
}

#[test]
fn differences_omit_inactive_containers() {
    let (mut totals, names) = (totals(), names());
    let before = Activity { observed_seconds: 2.0, ..activity(&totals, std::iter::empty(), &names) };
    totals.journal_bytes.insert((Some(CgroupId(4)), FS, Kind::Ordered), 512);
    totals.syncs.get_mut(&CgroupId(2)).unwrap().record(10);
    let after = Activity { observed_seconds: 3.5, ..activity(&totals, std::iter::empty(), &names) };
    let new = after.clone().since(&before);
    assert_eq!(new.observed_seconds, 1.5);
    let shown: Vec<_> = new.containers.iter().map(|view| (view.identity.name.as_str(), view.fsync.count())).collect();
    assert_eq!(shown, [("db", 1), ("noise.service", 0)]);
    assert_eq!((new.file_systems[0].commits, new.file_systems[0].journal.total()), (0, 512));
    assert_eq!(new.blame, []);
    assert_eq!(after.clone().since(&after).containers, []);
}

#[test]
fn shares_are_parts_of_the_devices_time_in_the_interval() {
    let (mut totals, names) = (totals(), names());
    totals.target_ns = BTreeMap::from([((CgroupId(2), FS), 300_000_000), ((CgroupId(3), FS), 75_000_000)]);
    let before = activity(&totals, std::iter::empty(), &names);
    let db = &before.containers[0].devices[0];
    assert_eq!((db.device.as_str(), db.seconds, db.target_seconds), ("254:1", 0.75, Some(0.375)));
    assert_eq!((db.achieved_share, db.target_share), (1.0, Some(0.5)));
    // Another 2 s, of which db gets a quarter of its target, and a container without a weight the rest.
    totals.service.get_mut(&(Some(CgroupId(2)), FS)).unwrap().add(Service {
        busy_ns: 500_000_000,
        read_bytes: 1,
        ..Service::default()
    });
    totals
        .service
        .insert((Some(CgroupId(4)), FS), Service { busy_ns: 1_500_000_000, read_bytes: 1, ..Service::default() });
    *totals.target_ns.get_mut(&(CgroupId(2), FS)).unwrap() += 2_000_000_000;
    let new = activity(&totals, std::iter::empty(), &names).since(&before);
    let shares: Vec<_> = new
        .containers
        .iter()
        .map(|view| (view.identity.name.as_str(), view.main_device().unwrap()))
        .map(|(name, device)| (name, device.achieved_share, device.target_share))
        .collect();
    assert_eq!(shares, [("db", 0.25, Some(1.0)), ("noise.service", 0.75, None)]);
}

#[test]
fn a_name_that_becomes_known_changes_no_sums() {
    let id = "0123456789abcdef".repeat(4);
    let mut names = names();
    names.cgroups.insert(CgroupId(2), identify(&format!("/docker/{id}")));
    names.cgroups.insert(CgroupId(4), identify(&format!("/docker/{}", id.replace('0', "f"))));
    let before = activity(&totals(), std::iter::empty(), &names);
    for cgroup in [2, 4] {
        names.cgroups.get_mut(&CgroupId(cgroup)).unwrap().name = "web".to_owned();
    }
    let mut totals = totals();
    totals
        .service
        .insert((Some(CgroupId(4)), FS), Service { busy_ns: 1, read_bytes: 3, written_bytes: 0, requests: 1 });
    let after = activity(&totals, std::iter::empty(), &names);
    // Two containers of one name stay two.
    assert_eq!(after.containers.iter().filter(|view| view.identity.name == "web").count(), 2);
    let new = after.clone().since(&before);
    let shown: Vec<_> = new.containers.iter().map(|view| (view.identity.name.as_str(), view.read_bytes)).collect();
    assert_eq!((shown, new.blame), (vec![("web", 3)], vec![]));
}

#[test]
fn differences_of_many_containers_are_found_in_time() {
    // Ten thousand containers: a search for each would take minutes.
    let view = |n: u64, written_bytes| ContainerView {
        identity: identify(&format!("/system.slice/{n}.service")),
        journal: Vec::new(),
        read_bytes: 0,
        written_bytes,
        device_seconds: 0.0,
        devices: Vec::new(),
        fsync: Histogram::default(),
    };
    let blame = |n: u64, seconds| BlameView {
        victim: identify(&format!("/system.slice/{}.service", n / 10)),
        culprit: Some(identify(&format!("/system.slice/{n}.service"))),
        seconds,
    };
    let seen = |written_bytes, seconds| Activity {
        containers: (0..10_000).map(|n| view(n, written_bytes + n)).collect(),
        blame: (0..100_000).map(|n| blame(n, seconds)).collect(),
        ..Activity::default()
    };
    let new = seen(5, 3.0).since(&seen(4, 1.0));
    assert_eq!((new.containers.len(), new.blame.len()), (10_000, 100_000));
    assert!(new.containers.iter().all(|view| view.written_bytes == 1));
    assert!(new.blame.iter().all(|view| view.seconds == 2.0));
}
