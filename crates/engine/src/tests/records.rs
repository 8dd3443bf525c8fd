//! Records that are damaged, lost or moved.

use std::path::{Path, PathBuf};

use bulkhead_api::routes::VolumeFilter;
use bulkhead_api::wire::{NewPoolSource, PoolMove, VolumeCheck};
use bulkhead_core::error::Code;
use bulkhead_core::finding::{FindingId, in_order};
use bulkhead_core::health;
use bulkhead_core::model::{Server, VolumeFs};
use bulkhead_core::reason::Reason;

use super::{Op, assert_settled, engine, pool, reason, run, volume, with_pools};

#[test]
fn a_damaged_record_is_reported_and_nothing_behind_it_is_touched() {
    let sim = with_pools();
    run(&engine(&sim), &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    sim.corrupt(Path::new("/srv/pool/file.volume").with_file_name("v.volume").as_path(), |bytes| bytes.truncate(60));
    let engine = engine(&sim);
    assert_eq!(engine.problems().len(), 1);
    // The finding of the pool is the same, and is listed once.
    let [damaged] = &in_order(engine.findings())[..] else { panic!("{:?}", engine.findings()) };
    assert_eq!(damaged.id, FindingId::RecordUnreadable);
    assert_eq!(engine.pool_inspect(&"file".parse().unwrap()).unwrap().findings, std::slice::from_ref(damaged));
    assert_eq!(engine.volume_inspect(&volume("file/v")).unwrap_err().code, Code::Corrupt);
    assert_eq!(engine.volume_remove(&volume("file/v"), true, false).unwrap_err().code, Code::Corrupt);
    assert_eq!(sim.leftovers().images, vec![PathBuf::from("/srv/pool/v.img")]);
    assert_eq!(engine.pool_remove(&"file".parse().unwrap(), false).unwrap_err().code, Code::InUse);
}

#[test]
fn a_complete_list_of_volumes_fails_when_a_pool_cannot_be_read() {
    let sim = with_pools();
    run(&engine(&sim), &Op::Create("thin/v", 64, VolumeFs::Ext4)).unwrap();
    let complete = VolumeFilter { complete: true, ..VolumeFilter::default() };
    assert_eq!(engine(&sim).volume_list(&complete).unwrap().len(), 1);
    let named = |name: &str| VolumeFilter { name: Some(name.parse().unwrap()), ..complete.clone() };
    assert_eq!(engine(&sim).volume_list(&named("v")).unwrap()[0].volume, volume("thin/v"));
    assert!(engine(&sim).volume_list(&named("w")).unwrap().is_empty());
    sim.corrupt(Path::new("/var/lib/bulkhead/pools/file"), |bytes| bytes.truncate(60));
    let engine = engine(&sim);
    assert_eq!(engine.volume_list(&VolumeFilter::default()).unwrap().len(), 1);
    for filter in [&complete, &named("v"), &named("w")] {
        assert_eq!(engine.volume_list(filter).unwrap_err().code, Code::Corrupt);
    }
}

#[test]
fn a_lost_state_directory_is_rebuilt_from_the_pool_itself() {
    let sim = with_pools();
    run(&engine(&sim), &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    sim.lose_file("/var/lib/bulkhead/pools/file");
    let engine = engine(&sim);
    assert!(engine.volume_list(&VolumeFilter::default()).unwrap().is_empty());
    let source = || NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    assert_eq!(engine.pool_create(&pool("other", source()), false).unwrap_err().code, Code::HasData);
    engine.pool_create(&pool("file", source()), false).unwrap();
    assert_eq!(engine.volume_list(&VolumeFilter::default()).unwrap().len(), 1);
}

/// After a reboot its file system is mounted elsewhere.
#[test]
fn a_pool_can_be_moved_to_its_new_mount_point() {
    for is_recorded in [true, false] {
        let sim = with_pools();
        {
            let engine = engine(&sim);
            run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
            run(&engine, &Op::Tenant("db", "file/v")).unwrap();
            let to = PoolMove { directory: "/mnt/pool".into() };
            assert_eq!(engine.pool_move(&"file".parse().unwrap(), &to, false).unwrap_err().code, Code::NotFound);
        }
        sim.reboot();
        sim.move_dir(Path::new("/srv/pool"), Path::new("/mnt/pool"));
        if !is_recorded {
            sim.lose_file("/var/lib/bulkhead/pools/file");
        }
        let engine = engine(&sim);
        let source = NewPoolSource::Directory { path: "/mnt/pool".into(), server: Server::Auto };
        if !is_recorded {
            let fault = engine.pool_create(&pool("file", source), false).unwrap_err();
            let moved = Reason::PoolMoved { pool: "file".parse().unwrap(), directory: "/mnt/pool".into() };
            assert_eq!(reason(&fault), Some(&moved), "{fault:?}");
        }
        let to = PoolMove { directory: "/mnt/pool".into() };
        assert_eq!(engine.pool_move(&"thick".parse().unwrap(), &to, false).unwrap_err().code, Code::HasData);
        engine.pool_move(&"file".parse().unwrap(), &to, false).unwrap();
        assert!(engine.pool_move(&"file".parse().unwrap(), &to, false).unwrap().steps.is_empty());
        engine.tick();
        assert!(engine.volume_inspect(&volume("file/v")).unwrap().mounted_at.is_some());
        // It is open by its old path now.
        let back = PoolMove { directory: "/srv/pool".into() };
        assert_eq!(engine.pool_move(&"file".parse().unwrap(), &back, false).unwrap_err().code, Code::NotFound);
    }
}

#[test]
fn a_mapped_volume_is_reserved_until_it_is_unmapped() {
    for name in ["file/v", "thick/v", "thin/v"] {
        let sim = with_pools();
        let engine_ = engine(&sim);
        run(&engine_, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        run(&engine_, &Op::Tenant("db", name)).unwrap();
        let map = || engine_.volume_map(&volume(name), false);
        assert_eq!(map().unwrap_err().code, Code::InUse, "{name}: a tenant has it");
        run(&engine_, &Op::Detach("db", name)).unwrap();
        let done = map().unwrap();
        assert!(done.object.unwrap().device.is_some());
        assert!(map().unwrap().steps.is_empty());
        for op in [Op::Tenant("web", name), Op::Remove(name), Op::Resize(name, 128)] {
            let fault = run(&engine_, &op).unwrap_err();
            assert!(fault.code == Code::InUse && fault.cause.contains("mapped"), "{name} {op:?}: {fault}");
        }
        // The next daemon does not touch it, and after a reboot it is unmapped.
        let next = engine(&sim);
        assert!(next.problems().is_empty());
        let mapped = health::mapping_finding(&volume(name));
        assert!(next.volume_inspect(&volume(name)).unwrap().findings.contains(&mapped));
        assert_eq!(next.findings(), [mapped]);
        next.volume_unmap(&volume(name), false).unwrap();
        assert!(next.volume_unmap(&volume(name), false).unwrap().steps.is_empty());
        run(&next, &Op::Remove(name)).unwrap();
        run(&next, &Op::RemoveTenant("db")).unwrap();
        assert_settled(&sim, &next, name);
    }
}

#[test]
fn a_snapshot_is_taken_before_a_full_repair() {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "thin/v", "thick/v"] {
        run(&engine, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        let full = VolumeCheck { full: true, ..VolumeCheck::default() };
        engine.volume_check(&volume(name), &full, false).unwrap();
        let kept = engine.volume_inspect(&volume(&format!("{name}-before-repair")));
        if name == "thick/v" {
            assert_eq!(kept.unwrap_err().code, Code::NotFound);
            continue;
        }
        assert!(kept.unwrap().read_only);
        assert_eq!(engine.volume_check(&volume(name), &full, false).unwrap_err().code, Code::AlreadyExists);
        run(&engine, &Op::Remove(if name == "file/v" { "file/v-before-repair" } else { "thin/v-before-repair" }))
            .unwrap();
    }
    assert_settled(&sim, &engine, "repaired");
}

#[test]
fn a_pool_whose_directory_is_missing_is_kept_but_not_used() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    sim.lose_file("/srv/pool/bulkhead-pool");
    let code = |result: Result<_, bulkhead_core::error::Fault>| result.map(|_: ()| ()).unwrap_err().code;
    assert_eq!(code(run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4))), Code::Corrupt);
    assert_eq!(code(run(&engine, &Op::Remove("file/v"))), Code::Corrupt);
    assert_eq!(code(engine.pool_remove(&"file".parse().unwrap(), false).map(drop)), Code::Corrupt);
}
