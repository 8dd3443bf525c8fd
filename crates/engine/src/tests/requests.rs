//! Requests that are repeated, only planned, or refused.

use std::path::{Path, PathBuf};

use bulkhead_api::wire::{NewPoolSource, VolumeCheck, VolumeCreate, VolumeResize};
use bulkhead_core::error::Code;
use bulkhead_core::model::{Provision, Server, VolumeFs};
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;

use super::{Op, engine, pool, reason, run, volume, with_pools};
use crate::sim::Sim;

#[test]
fn requests_are_idempotent() {
    let sim = with_pools();
    let engine = engine(&sim);
    let request = VolumeCreate::new(volume("file/a"), Bytes::mib(64));
    let first = engine.volume_create(&request, false).unwrap();
    let second = engine.volume_create(&request, false).unwrap();
    assert!(!first.steps.is_empty() && second.steps.is_empty());
    assert_eq!(first.object, second.object);
    for other in
        [VolumeCreate { size_bytes: Bytes::mib(65), ..request.clone() }, VolumeCreate { fast_commit: true, ..request }]
    {
        assert_eq!(engine.volume_create(&other, false).unwrap_err().code, Code::AlreadyExists);
    }
    assert!(engine.volume_remove(&volume("file/none"), false, false).unwrap().steps.is_empty());
}

#[test]
fn a_dry_run_changes_nothing_and_names_the_same_steps() {
    let sim = with_pools();
    let engine = engine(&sim);
    let request = VolumeCreate { fast_commit: true, ..VolumeCreate::new(volume("thick/a"), Bytes::mib(30)) };
    let before = sim.leftovers();
    let planned = engine.volume_create(&request, true).unwrap();
    assert_eq!(sim.leftovers(), before);
    let done = engine.volume_create(&request, false).unwrap();
    let words = |steps: &[bulkhead_core::action::Applied]| -> Vec<String> {
        steps.iter().map(|step| step.action.to_string()).collect()
    };
    assert_eq!(words(&planned.steps), words(&done.steps));
    assert_eq!(done.object.unwrap().size_bytes, Bytes::mib(32), "rounded up to extents");
}

#[test]
fn invalid_requests_are_refused() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ask = |name: &str, mib: u64, fs, provision| {
        let request = VolumeCreate { fs, provision, ..VolumeCreate::new(volume(name), Bytes::mib(mib)) };
        engine.volume_create(&request, false).unwrap_err().code
    };
    assert_eq!(ask("file/x", 0, VolumeFs::Ext4, None), Code::InvalidArgument);
    assert_eq!(ask("file/x", 100, VolumeFs::Xfs, None), Code::InvalidArgument);
    assert_eq!(ask("file/x", 2048, VolumeFs::Ext4, None), Code::NoSpace);
    assert_eq!(ask("file/x", 600, VolumeFs::Ext4, None), Code::NoSpace);
    assert_eq!(ask("nopool/x", 64, VolumeFs::Ext4, None), Code::NotFound);
    assert_eq!(ask("thick/x", 64, VolumeFs::Ext4, Some(Provision::OnDemand)), Code::Unsupported);

    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
    let code = |result: Result<_, bulkhead_core::error::Fault>| result.map(|_: ()| ()).unwrap_err().code;
    assert_eq!(code(engine.volume_remove(&volume("file/v"), false, false).map(drop)), Code::InUse);
    assert_eq!(code(engine.volume_check(&volume("file/v"), &VolumeCheck::default(), false).map(drop)), Code::InUse);
    assert_eq!(code(run(&engine, &Op::Tenant("web", "file/v"))), Code::InUse);
    run(&engine, &Op::Create("thick/v", 64, VolumeFs::Ext4)).unwrap();
    assert_eq!(code(run(&engine, &Op::Clone("thick/v", "w"))), Code::Unsupported);
    assert_eq!(code(run(&engine, &Op::Resize("file/v", 32))), Code::InUse, "ext4 shrinks unmounted only");
    let grow = VolumeResize { size_bytes: Some(Bytes::mib(32)), ..VolumeResize::default() };
    assert_eq!(code(engine.volume_resize(&volume("file/v"), &grow, false).map(drop)), Code::InvalidArgument);
    assert_eq!(code(engine.pool_remove(&"file".parse().unwrap(), false).map(drop)), Code::InUse);
}

#[test]
fn a_device_with_data_needs_the_exact_confirmation() {
    let sim = Sim::default();
    let engine = engine(&sim);
    let ask = |erase: Option<&str>| {
        let source = NewPoolSource::Device { path: "/dev/sdb".into(), thin: false, erase: erase.map(str::to_owned) };
        engine.pool_create(&pool("p", source), false)
    };
    for wrong in [None, Some(""), Some("yes"), Some("/dev/sdc"), Some("sdb")] {
        let fault = ask(wrong).unwrap_err();
        assert_eq!(fault.code, Code::HasData);
        assert_eq!(reason(&fault), Some(&Reason::EraseUnconfirmed { device: "/dev/sdb".to_owned() }), "{fault:?}");
    }
    ask(Some("/dev/sdb")).unwrap();
}

#[test]
fn a_directory_writable_by_others_is_refused_as_a_pool() {
    let engine = engine(&Sim::default());
    let source = NewPoolSource::Directory { path: "/home/alice/pool".into(), server: Server::Auto };
    let fault = engine.pool_create(&pool("p", source), false).unwrap_err();
    assert!(fault.code == Code::InvalidArgument && fault.cause.contains("user 1000"), "{fault}");
}

#[test]
fn foreign_objects_are_never_removed() {
    let sim = with_pools().with_group("vg", &[]);
    let engine = engine(&sim);
    // A group created again by with_group lacks the pool's tag: it is another group.
    assert_eq!(run(&engine, &Op::Create("thick/v", 64, VolumeFs::Ext4)).unwrap_err().code, Code::Corrupt);
    assert_eq!(run(&engine, &Op::Create("thin/thin", 64, VolumeFs::Ext4)).unwrap_err().code, Code::HasData);
    sim.put_image("/srv/pool/x.img");
    assert_eq!(run(&engine, &Op::Create("file/x", 64, VolumeFs::Ext4)).unwrap_err().code, Code::HasData);
    assert_eq!(sim.leftovers().images, vec![PathBuf::from("/srv/pool/x.img")]);
}

#[test]
fn a_refused_removal_leaves_the_volume_unchanged() {
    for (name, busy) in [("file/v", "/srv/pool/v.img"), ("thick/v", "/dev/vg/v")] {
        let sim = with_pools();
        run(&engine(&sim), &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        sim.set_busy(Path::new(busy), true);
        assert_eq!(run(&engine(&sim), &Op::Remove(name)).unwrap_err().code, Code::InUse);
        sim.set_busy(Path::new(busy), false);
        assert_eq!(engine(&sim).volume_inspect(&volume(name)).unwrap().state, "ready");
    }
}
