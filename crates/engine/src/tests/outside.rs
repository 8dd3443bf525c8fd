//! Containers that use volumes outside of their tenants' slices.

use std::path::Path;

use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::model::VolumeFs;
use bulkhead_core::reason::Reason;

use super::{Op, engine, run, volume, with_pools};
use crate::engine::Engine;

fn found(engine: &Engine, name: &str) -> Vec<Finding> {
    let findings = engine.volume_inspect(&volume(name)).unwrap().findings;
    findings.into_iter().filter(|finding| finding.id == FindingId::OutsideSlice).collect()
}

#[test]
fn a_container_outside_of_its_volumes_slice_is_reported() {
    let sim = with_pools();
    let daemon = engine(&sim);
    for (name, tenant) in [("file/v", "files"), ("thick/v", "my-db"), ("thin/v", "web")] {
        run(&daemon, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        run(&daemon, &Op::Tenant(tenant, name)).unwrap();
        let target = Path::new("/run/bulkhead/mnt").join(name);
        sim.put_container(&target, "bulkhead.slice/bulkhead-web.slice/docker-1.scope");
    }
    sim.put_container(Path::new("/run/bulkhead/mnt/thick/v"), "bulkhead.slice/bulkhead-my\\x2ddb.slice/docker-2.scope");
    // Its block server does a file volume's I/O; the one on thin/v is in its slice.
    assert_eq!((found(&daemon, "file/v"), found(&daemon, "thin/v")), (Vec::new(), Vec::new()));
    let outside = found(&daemon, "thick/v");
    let [finding] = &outside[..] else { panic!("{outside:?}") };
    assert_eq!(finding.object, "volume thick/v");
    let slice = "bulkhead-my\\x2ddb.slice".to_owned();
    assert_eq!(finding.reason.as_deref(), Some(&Reason::OutsideSlice { slice }));
    assert!(
        finding.evidence.ends_with(": tenant web in /bulkhead.slice/bulkhead-web.slice/docker-1.scope"),
        "{finding:?}"
    );
    // Of the host too, also for a daemon that has only found the volume mounted.
    for daemon in [&daemon, &engine(&sim)] {
        let all: Vec<Finding> =
            daemon.findings().into_iter().filter(|finding| finding.id == FindingId::OutsideSlice).collect();
        assert_eq!(all, outside);
    }
    run(&daemon, &Op::RemoveTenant("my-db")).unwrap();
    assert_eq!(found(&daemon, "thick/v"), []);
}
