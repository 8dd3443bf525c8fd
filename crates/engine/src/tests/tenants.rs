//! Tenants, leases, and the volumes that are mounted for them.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use bulkhead_api::wire::{LeaseCreate, TenantCreate, TenantSet};
use bulkhead_core::action::{Action, CgroupAction, ServerAction};
use bulkhead_core::error::Code;
use bulkhead_core::finding::{FindingId, in_order};
use bulkhead_core::health;
use bulkhead_core::model::{FrontEnd, IoLimit, LeaseUser, ReadFrom, Server, VolumeFs};
use bulkhead_core::name::Name;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::slices;
use uuid::Uuid;

use super::{Op, assert_settled, engine, run, volume, with_pools};
use crate::engine::Engine;
use crate::host::Host as _;
use crate::jobs::Job;
use crate::sim::Sim;

#[test]
fn a_lease_ends_with_its_process_and_a_busy_volume_is_retried() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/w")).unwrap();
    assert_eq!(run(&engine, &Op::Lease("db", "file/v")).unwrap_err().code, Code::NotFound, "no such process");
    sim.set_process(42, Some(7));
    run(&engine, &Op::Lease("db", "file/v")).unwrap();
    let target = Path::new("/run/bulkhead/mnt/file/v");
    assert_eq!(sim.journal_of(target), Some(slices::journal(&"db".parse().unwrap())));
    // The pid is reused by another process while the volume is still busy.
    sim.set_process(42, Some(8));
    sim.set_busy(target, true);
    engine.tick();
    assert_eq!(engine.problems().len(), 1, "{:?}", engine.problems());
    sim.set_busy(target, false);
    engine.tick();
    assert_settled(&sim, &engine, "after the holder's end");
    assert_eq!(sim.leftovers().mounts, vec![PathBuf::from("/run/bulkhead/mnt/file/w")]);
}

#[test]
fn a_lease_of_a_front_end_outlives_restarts_and_ends_when_it_is_returned() {
    let sim = with_pools();
    let first = engine(&sim);
    run(&first, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&first, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&first, &Op::Tenant("db", "file/w")).unwrap();
    for _ in 0..2 {
        run(&first, &Op::Use("db", "file/v")).unwrap();
    }
    let engine = engine(&sim);
    engine.tick();
    let leases = engine.lease_list().unwrap();
    assert_eq!((leases.len(), leases[0].mounted_at.as_path()), (1, Path::new("/run/bulkhead/mnt/file/v")));
    assert_settled(&sim, &engine, "after a restart");
    // It is returned as often as it was requested, and then the daemon has to end it when it can.
    run(&engine, &Op::Return("file/v")).unwrap();
    assert_eq!(engine.lease_list().unwrap().len(), 1);
    sim.set_busy(&leases[0].mounted_at, true);
    assert_eq!(run(&engine, &Op::Return("file/v")).unwrap_err().code, Code::InUse);
    engine.tick();
    assert_eq!(engine.problems().len(), 1, "{:?}", engine.problems());
    sim.set_busy(&leases[0].mounted_at, false);
    engine.tick();
    assert_settled(&sim, &engine, "after its return");
    assert_eq!(engine.lease_list().unwrap(), []);
}

#[test]
fn a_repeated_request_for_a_lease_is_counted_once() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/w")).unwrap();
    let user = Some(LeaseUser { front_end: FrontEnd::Docker, id: "c1".into() });
    let request = LeaseCreate {
        tenant: "db".parse().unwrap(),
        volumes: vec![volume("file/v")],
        pid: None,
        user,
        selinux_context: None,
    };
    let [mount, again, unmount] = [1, 2, 3].map(|n| Some(Uuid::from_u128(n)));
    let mounts = |engine: &Engine| engine.lease_list().unwrap().first().and_then(|lease| lease.mounts);
    for id in [mount, mount, again, again] {
        engine.lease_create(&request, id).unwrap();
    }
    assert_eq!(mounts(&engine), Some(2));
    let lease = engine.lease_list().unwrap().remove(0).id;
    for _ in 0..2 {
        engine.lease_remove(lease, unmount).unwrap();
    }
    assert_eq!(mounts(&engine), Some(1));
    engine.lease_remove(lease, Some(Uuid::from_u128(4))).unwrap();
    assert_settled(&sim, &engine, "after its return");
    assert_eq!(engine.lease_list().unwrap(), []);
}

#[test]
fn a_lease_has_one_holder() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/w")).unwrap();
    let user = |id: &str| Some(LeaseUser { front_end: FrontEnd::Docker, id: id.into() });
    for (pid, user) in [(None, None), (Some(42), user("c1")), (None, user("")), (None, user(&"x".repeat(256)))] {
        let (tenant, volumes) = ("db".parse().unwrap(), vec![volume("file/v")]);
        let refused =
            engine.lease_create(&LeaseCreate { tenant, volumes, pid, user, selinux_context: None }, None).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    }
    assert_settled(&sim, &engine, "after what was refused");
}

#[test]
fn a_device_in_use_without_a_holder_is_closed_once_it_is_free() {
    let sim = with_pools();
    let first = engine(&sim);
    for name in ["file/v", "file/w"] {
        run(&first, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
    }
    run(&first, &Op::Tenant("db", "file/v")).unwrap();
    run(&first, &Op::Detach("db", "file/v")).unwrap();
    // Like the device of an interrupted operation.
    let view = first.volume_inspect(&volume("file/v")).unwrap();
    let image = PathBuf::from("/srv/pool/v.img");
    let spec = ServeSpec {
        volume: view.uuid,
        image: image.clone(),
        discards: true,
        layered: false,
        below: None,
        flatten: false,
        read_from: ReadFrom::default(),
        domain: String::new(),
        cgroup: None,
    };
    let attach = Action::Server(ServerAction::AttachImage { server: Server::Auto, spec });
    sim.apply(&attach, &Job::internal()).unwrap();
    sim.set_busy(&image, true);
    let second = engine(&sim);
    for _ in 0..2 {
        assert_eq!(second.problems().len(), 1, "{:?}", second.problems());
        second.tick();
    }
    sim.set_busy(&image, false);
    second.tick();
    assert_eq!(second.problems().len(), 1, "it is not retried all the time");
    second.shared.in_use_at_start.lock().unwrap()[0].tried -= Duration::from_secs(60);
    second.tick();
    assert_settled(&sim, &second, "once nothing uses it");
}

/// As with a copy of the mount in another namespace, whose processes still write to the volume.
#[test]
fn a_volume_still_in_use_by_its_tenant_is_attached_to_no_other() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Create("file/other", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("a", "file/v")).unwrap();
    run(&engine, &Op::Tenant("b", "file/other")).unwrap();
    let target = Path::new("/run/bulkhead/mnt/file/v");
    sim.set_busy(target, true);
    assert_eq!(run(&engine, &Op::Detach("a", "file/v")).unwrap_err().code, Code::InUse);
    assert_eq!(engine.volume_inspect(&volume("file/v")).unwrap().tenant, Some("a".parse().unwrap()));
    let attach = TenantSet { attach: vec![volume("file/v")], ..TenantSet::default() };
    let to_b = || engine.tenant_set(&"b".parse().unwrap(), &attach, false).map_err(|fault| fault.code);
    assert_eq!(to_b().unwrap_err(), Code::InUse);
    sim.set_busy(target, false);
    run(&engine, &Op::Detach("a", "file/v")).unwrap();
    to_b().unwrap();
    assert_settled(&sim, &engine, "attached to another tenant");
}

#[test]
fn a_device_in_use_is_not_attached() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("a", "file/v")).unwrap();
    let image = Path::new("/srv/pool/v.img");
    sim.set_busy(image, true);
    // Unmounted, but its device stays, because an unknown process holds it.
    assert_eq!(run(&engine, &Op::Detach("a", "file/v")).unwrap_err().code, Code::InUse);
    run(&engine, &Op::RemoveTenant("a")).unwrap_err();
    let fault = run(&engine, &Op::Tenant("b", "file/v")).unwrap_err();
    assert_eq!(fault.code, Code::InUse, "{fault}");
    sim.set_busy(image, false);
    engine.tick();
    run(&engine, &Op::Tenant("b", "file/v")).unwrap();
    assert_settled(&sim, &engine, "free again");
}

/// `cpu.weight` of journal, server, payload and the slice of tenant `db`, if it was written.
fn cpu_weights(sim: &Sim) -> [Option<String>; 4] {
    let slice = "bulkhead.slice/bulkhead-db.slice";
    [
        format!("{slice}/bulkhead-db-journal.slice"),
        format!("{slice}/bulkhead-db-server.slice"),
        format!("{slice}/bulkhead-db-payload.slice"),
        slice.to_owned(),
    ]
    .map(|cgroup| sim.cgroup_file(&cgroup, "cpu.weight"))
}

pub(super) fn without_volumes(name: &str) -> TenantCreate {
    TenantCreate::new(name.parse().unwrap())
}

#[test]
fn servers_and_journal_threads_are_scheduled_before_processes() {
    let sim = Sim::default();
    let engine = engine(&sim);
    let wanted = [Some("10000".to_owned()), Some("10000".to_owned()), None, None];
    let view = engine.tenant_create(&without_volumes("db"), false).unwrap().object.unwrap();
    assert_eq!((cpu_weights(&sim), view.findings), (wanted.clone(), vec![]));
    // The controller is enabled again at whatever level it was disabled; earlier versions did not enable it.
    for cgroup in ["bulkhead.slice/bulkhead-db.slice", "bulkhead.slice"] {
        sim.disable_cpu(cgroup);
        assert_eq!(cpu_weights(&sim)[0], None);
        engine.tick();
        assert_eq!((cpu_weights(&sim), engine.problems().len()), (wanted.clone(), 0));
    }
    let changed = engine.tenant_create(&without_volumes("db"), false).unwrap().steps;
    assert!(changed.iter().all(|step| !step.changed), "{changed:?}");
    sim.reboot();
    engine.reconcile();
    assert_eq!(cpu_weights(&sim), wanted);
}

#[test]
fn a_tenant_works_without_the_cpu_controller_and_reports_why() {
    let sim = Sim::default();
    sim.lose_cpu();
    let engine = engine(&sim);
    let done = engine.tenant_create(&without_volumes("db"), false).unwrap();
    assert!(
        done.steps.iter().all(|step| !matches!(step.action, Action::Cgroup(CgroupAction::EnableController { .. }))),
        "{:?}",
        done.steps
    );
    assert_eq!(done.object.unwrap().findings, [health::no_cpu_controller()]);
    engine.tenant_create(&without_volumes("web"), false).unwrap();
    assert_eq!(in_order(engine.findings()), [health::no_cpu_controller()], "it is reported once for the host");
    assert_eq!((cpu_weights(&sim), engine.problems().len()), ([const { None }; 4], 0));
}

#[test]
fn a_refused_cpu_controller_is_reported_and_retried() {
    for cgroup in ["/", "bulkhead.slice", "bulkhead.slice/bulkhead-db.slice"] {
        let sim = Sim::default();
        sim.refuse_cpu(Some(cgroup));
        let engine = engine(&sim);
        let db = "db".parse().unwrap();
        let findings = engine.tenant_create(&without_volumes("db"), false).unwrap().object.unwrap().findings;
        let [refused] = &findings[..] else { panic!("{findings:?}") };
        assert_eq!((refused.id.word(), refused.object.as_str()), ("cpu_controller_refused", "tenant db"));
        assert!(refused.evidence.contains("a realtime process is below it"), "{refused:?}");
        sim.refuse_cpu(None);
        engine.tick();
        assert_eq!(
            (cpu_weights(&sim)[0].as_deref(), engine.problems().len()),
            (None, 0),
            "it is not retried all the time"
        );
        engine.without_cpu().get_mut(&db).unwrap().tried -= Duration::from_secs(3600);
        engine.tenant_set(&db, &TenantSet::default(), true).unwrap();
        assert_eq!(engine.tenant_inspect(&db).unwrap().findings, findings, "a dry run changes nothing");
        engine.tick();
        assert_eq!(cpu_weights(&sim)[1].as_deref(), Some("10000"));
        assert!(engine.tenant_inspect(&db).unwrap().findings.is_empty());
    }
}

#[test]
fn volumes_are_unmounted_before_shutdown_and_records_are_kept() {
    let sim = with_pools();
    let first = engine(&sim);
    for (name, tenant) in [("file/v", "db"), ("thick/w", "web")] {
        run(&first, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        run(&first, &Op::Tenant(tenant, name)).unwrap();
    }
    let target = first.volume_inspect(&volume("file/v")).unwrap().mounted_at.unwrap();
    sim.set_busy(&target, true);
    // As a pod has it: also mounted elsewhere.
    sim.bind(&target);
    let left = first.release(Duration::ZERO);
    assert_eq!(left.iter().map(|fault| fault.code).collect::<Vec<_>>(), [Code::InUse], "{left:?}");
    assert_eq!(sim.leftovers().mounts, std::slice::from_ref(&target));
    sim.set_busy(&target, false);
    assert_eq!(first.release(Duration::ZERO), []);
    assert!(sim.leftovers().mounts.is_empty() && sim.leftovers().attached.is_empty());
    let second = engine(&sim);
    assert_settled(&sim, &second, "after the next start");
    assert_eq!(sim.leftovers().mounts.len(), 2);
}

#[test]
fn tenants_and_mounts_are_restored_after_a_reboot() {
    let sim = with_pools();
    let first = engine(&sim);
    run(&first, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&first, &Op::Tenant("db", "file/v")).unwrap();
    let request = TenantSet { share: Some(700.try_into().unwrap()), ..TenantSet::default() };
    first.tenant_set(&"db".parse().unwrap(), &request, false).unwrap();
    sim.reboot();
    let second = engine(&sim);
    assert_settled(&sim, &second, "after a reboot");
    assert_eq!(sim.leftovers().mounts.len(), 1);
    let weight = sim.cgroup_file("bulkhead.slice/bulkhead-db.slice", "io.weight");
    assert_eq!(weight.as_deref(), Some("default 700"));
}

#[test]
fn an_unreadable_lease_is_a_problem_and_blocks_nothing() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    sim.set_process(42, Some(7));
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Lease("db", "file/w")).unwrap();
    let path = engine.dirs.lease_record(&engine.leases().unwrap()[0]);
    sim.corrupt(&path, |bytes| bytes.truncate(20));
    engine.tick();
    let [damaged] = &engine.problems()[..] else { panic!("{:?}", engine.problems()) };
    assert_eq!(damaged.id, FindingId::RecordUnreadable);
    assert!(damaged.object.contains(&path.display().to_string()), "{damaged:?}");
    assert!(engine.volume_inspect(&volume("file/v")).unwrap().mounted_at.is_some());
}

#[test]
fn a_volume_stays_with_its_tenant() {
    let sim = with_pools();
    let engine_ = engine(&sim);
    let target = Path::new("/run/bulkhead/mnt/file/v");
    run(&engine_, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine_, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    run(&engine_, &Op::Tenant("db", "file/v")).unwrap();
    run(&engine_, &Op::Tenant("web", "file/w")).unwrap();
    run(&engine_, &Op::Detach("web", "file/v")).unwrap();
    assert!(sim.leftovers().mounts.contains(&target.to_owned()), "another tenant's volume was unmounted");
    // Repeated while a volume cannot be mounted: existing mounts stay.
    sim.set_busy(target, true);
    assert_eq!(run(&engine_, &Op::RemoveTenant("db")).unwrap_err().code, Code::InUse);
    assert_eq!(run(&engine_, &Op::Tenant("other", "file/v")).unwrap_err().code, Code::InUse, "it is still db's");
    sim.set_busy(target, false);
    let later = engine(&sim);
    later.tick();
    assert_settled(&sim, &later, "after the removal was completed");
    // The volumes of a tenant with a damaged record are unknown.
    sim.corrupt(Path::new("/var/lib/bulkhead/tenants/web"), |bytes| bytes.truncate(40));
    let damaged = engine(&sim);
    assert!(sim.leftovers().mounts.contains(&PathBuf::from("/run/bulkhead/mnt/file/w")));
    assert_eq!(damaged.volume_remove(&volume("file/w"), false, false).unwrap_err().code, Code::Corrupt);
}

#[test]
fn a_limit_on_a_missing_device_does_not_prevent_mounts() {
    let sim = with_pools();
    let first = engine(&sim);
    run(&first, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    let limit = |device: &str, n| IoLimit { device: device.into(), write_iops: Some(n), ..IoLimit::default() };
    let create =
        |limits| TenantCreate { limits, volumes: vec![volume("file/v")], ..TenantCreate::new("db".parse().unwrap()) };
    assert_eq!(
        first.tenant_create(&create(vec![limit("/dev/sdb", 0)]), false).unwrap_err().code,
        Code::InvalidArgument
    );
    assert!(first.tenant_list().unwrap().is_empty(), "a tenant with a wrong limit was recorded");
    first.tenant_create(&create(vec![limit("/dev/sdb", 100)]), false).unwrap();
    sim.lose_device();
    sim.reboot();
    let second = engine(&sim);
    assert_eq!(second.problems().len(), 1, "{:?}", second.problems());
    assert_eq!(sim.leftovers().mounts.len(), 1);
    let request = TenantSet { limits: Some(vec![]), ..TenantSet::default() };
    second.tenant_set(&"db".parse().unwrap(), &request, false).unwrap();
    second.tick();
    assert!(second.problems().is_empty(), "{:?}", second.problems());
}

#[test]
fn leftovers_of_a_run_without_volumes_are_killed() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
    sim.set_process(42, Some(1));
    for name in ["run-42", "run-43", "bulkhead-run-44.scope"] {
        sim.put_run("db", name);
    }
    engine.tick();
    let runs = |sim: &Sim| sim.leftovers().cgroups.into_iter().filter(|path| path.contains("run-")).collect::<Vec<_>>();
    assert_eq!(runs(&sim), ["bulkhead.slice/bulkhead-db.slice/bulkhead-db-payload.slice/run-42"]);
    sim.set_process(42, None);
    engine.tick();
    assert!(runs(&sim).is_empty());
}

#[test]
fn the_slice_above_tenants_goes_with_the_last_of_those_that_are_removed_at_once() {
    let sim = with_pools();
    let engine = engine(&sim);
    for round in 0..40 {
        let names: Vec<Name> = (0..8).map(|n| format!("t{n}").parse().unwrap()).collect();
        for name in &names {
            engine.tenant_create(&TenantCreate::new(name.clone()), false).unwrap();
        }
        let together = Barrier::new(names.len());
        std::thread::scope(|scope| {
            for name in &names {
                scope.spawn(|| {
                    together.wait();
                    engine.tenant_remove(name, false, false).unwrap();
                });
            }
        });
        assert_eq!(sim.leftovers().cgroups, Vec::<String>::new(), "round {round}");
    }
}
