//! Raw volumes: a device for the tenant, without a file system. The simulated host panics when a tenant sees old data of others, or when
//! something writes to what may be the tenant's.

use std::path::{Path, PathBuf};

use bulkhead_api::wire::{Done, VolumeCheck, VolumeCopy, VolumeCreate, VolumeResize, VolumeRollback, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::journal::{Accounting, JournalSize};
use bulkhead_core::model::{MountOptions, Provision, ReadFrom, VolumeFs};
use bulkhead_core::units::Bytes;

use super::{Op, assert_settled, engine, run, run_on, volume, with_pools};
use crate::engine::Engine;
use crate::trim::Trimming;

fn words(done: &Done<VolumeView>) -> Vec<String> {
    done.steps.iter().map(|step| step.action.to_string()).collect()
}

fn create(engine: &Engine, name: &str, provision: Option<Provision>) -> Result<Done<VolumeView>, Fault> {
    let request = VolumeCreate { fs: VolumeFs::None, provision, ..VolumeCreate::new(volume(name), Bytes::mib(64)) };
    engine.volume_create(&request, false)
}

fn resize(engine: &Engine, name: &str, mib: u64) -> Result<Done<VolumeView>, Fault> {
    let request = VolumeResize { size_bytes: Some(Bytes::mib(mib)), shrink: true, journal: None };
    engine.volume_resize(&volume(name), &request, false)
}

#[test]
fn a_raw_volume_gets_a_device_and_no_file_system() {
    let sim = with_pools();
    let engine = engine(&sim);
    for (name, first) in [("file/v", "write volume record"), ("thin/v", "create thin volume"), ("thick/v", "create lo")]
    {
        let done = create(&engine, name, None).unwrap();
        let steps = words(&done);
        assert!(steps[0].starts_with(first), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("make ext4") || step.contains("journal")), "{steps:?}");
        assert_eq!(steps.iter().any(|step| step.starts_with("write zeroes")), name == "thick/v", "{steps:?}");
        let view = done.object.unwrap();
        assert_eq!((view.fs, view.state.as_str(), view.accounting), (VolumeFs::None, "ready", Accounting::NotMounted));
        assert!(create(&engine, name, None).unwrap().steps.is_empty(), "repeated");
        let other = VolumeCreate::new(volume(name), Bytes::mib(64));
        assert_eq!(engine.volume_create(&other, false).unwrap_err().code, Code::AlreadyExists);
    }
    assert_settled(&sim, &engine, "created");
}

#[test]
fn a_raw_volume_is_attached_as_a_node_and_charged() {
    let sim = with_pools();
    let first = engine(&sim);
    for (name, target) in [
        ("file/v", "/run/bulkhead/mnt/file/v"),
        ("thin/v", "/run/bulkhead/mnt/thin/v"),
        ("thick/v", "/run/bulkhead/mnt/thick/v"),
    ] {
        create(&first, name, None).unwrap();
        run(&first, &Op::Tenant("db", name)).unwrap();
        let view = first.volume_inspect(&volume(name)).unwrap();
        assert_eq!((view.mounted_at, view.accounting), (Some(target.into()), Accounting::Users));
        assert_eq!(sim.journal_of(Path::new(target)), None);
        assert_settled(&sim, &first, name);
        // Neither a later check nor another daemon changes anything, or takes it for one that is not mounted.
        let steps = sim.n_steps();
        first.tick();
        first.tick();
        assert_settled(&sim, &first, name);
        let next = engine(&sim);
        next.tick();
        assert_settled(&sim, &next, name);
        assert!(sim.n_steps() > steps, "a daemon's start looks at each volume");
        // An operator removes the node: the next check binds it again.
        sim.unmount(Path::new(target));
        next.tick();
        assert_settled(&sim, &next, name);
        // While a process has it open, its tenant keeps it.
        sim.set_busy(Path::new(target), true);
        assert_eq!(run(&next, &Op::Detach("db", name)).unwrap_err().code, Code::InUse);
        assert_eq!(next.volume_inspect(&volume(name)).unwrap().tenant, Some("db".parse().unwrap()));
        sim.set_busy(Path::new(target), false);
        run(&next, &Op::RemoveTenant("db")).unwrap();
        assert_settled(&sim, &next, "detached");
        assert_eq!(sim.leftovers().mounts, Vec::<PathBuf>::new());
    }
}

#[test]
fn a_raw_volume_on_lvm_is_closed_when_it_is_detached() {
    let sim = with_pools();
    let engine = engine(&sim);
    create(&engine, "thick/v", None).unwrap();
    run(&engine, &Op::Tenant("db", "thick/v")).unwrap();
    // A program that has opened it by its path in /dev could write to what the next tenant stores there.
    sim.set_busy(Path::new("/dev/vg/v"), true);
    assert_eq!(run(&engine, &Op::Detach("db", "thick/v")).unwrap_err().code, Code::InUse);
    assert_eq!(run(&engine, &Op::Tenant("web", "thick/v")).unwrap_err().code, Code::InUse);
    sim.set_busy(Path::new("/dev/vg/v"), false);
    engine.tick();
    run(&engine, &Op::Detach("db", "thick/v")).unwrap();
    run(&engine, &Op::Tenant("web", "thick/v")).unwrap();
    assert_settled(&sim, &engine, "another tenant has it");
}

#[test]
fn a_raw_volume_grows_in_use_unless_its_new_part_has_to_be_written_first() {
    for (name, provision, in_use) in [
        ("file/v", Provision::Full, true),
        ("file/v", Provision::OnDemand, true),
        ("thin/v", Provision::OnDemand, true),
        ("thin/v", Provision::Full, false),
        ("thick/v", Provision::Full, false),
    ] {
        let sim = with_pools();
        let engine = engine(&sim);
        create(&engine, name, Some(provision)).unwrap();
        run(&engine, &Op::Tenant("db", name)).unwrap();
        let grown = resize(&engine, name, 96);
        assert_eq!(grown.as_ref().map_err(|fault| fault.code).err(), (!in_use).then_some(Code::InUse), "{name}");
        run(&engine, &Op::RemoveTenant("db")).unwrap();
        let steps = words(&resize(&engine, name, 128).unwrap());
        let zeroes: Vec<&String> = steps.iter().filter(|step| step.starts_with("write zeroes")).collect();
        assert_eq!(zeroes.is_empty(), in_use, "{name} {provision}: {steps:?}");
        assert!(zeroes.iter().all(|step| step.ends_with("from 64 MiB on")), "{zeroes:?}");
        assert!(!steps.iter().any(|step| step.contains("ext4") || step.contains("xfs")), "{steps:?}");
        let fault = resize(&engine, name, 64).unwrap_err();
        assert_eq!(fault.code, Code::Unsupported, "{fault}");
        assert_eq!(engine.volume_inspect(&volume(name)).unwrap().size_bytes, Bytes::mib(128));
        run(&engine, &Op::Tenant("db", name)).unwrap();
        assert_settled(&sim, &engine, name);
    }
}

/// Nobody has seen the new part: it is taken back, so that no tenant sees old data there.
#[test]
fn an_interrupted_growth_that_has_to_be_filled_is_undone() {
    for (name, provision) in [("thick/v", Provision::Full), ("thin/v", Provision::Full)] {
        for cut in 0.. {
            let sim = with_pools();
            let first = engine(&sim);
            create(&first, name, Some(provision)).unwrap();
            sim.crash_after(Some(cut));
            let whole = resize(&first, name, 128).is_ok();
            sim.crash_after(None);
            let next = engine(&sim);
            let context = format!("{name} cut after {cut} steps");
            assert_settled(&sim, &next, &context);
            run(&next, &Op::Tenant("db", name)).expect(&context);
            let size = next.volume_inspect(&volume(name)).unwrap().size_bytes;
            assert_eq!(size, Bytes::mib(if whole { 128 } else { 64 }), "{context}");
            if whole {
                break;
            }
        }
    }
}

#[test]
fn a_growth_that_fails_and_cannot_be_undone_keeps_the_volume_from_tenants() {
    let sim = with_pools();
    let first = engine(&sim);
    create(&first, "thick/v", None).unwrap();
    // The program that opens it meanwhile, and fails the undoing as well.
    sim.crash_after(Some(3));
    resize(&first, "thick/v", 128).unwrap_err();
    sim.crash_after(None);
    sim.set_busy(Path::new("/dev/vg/v"), true);
    let next = engine(&sim);
    let refused = run(&next, &Op::Tenant("db", "thick/v")).unwrap_err();
    assert!(refused.code == Code::InUse && refused.cause.contains("old data of others"), "{refused}");
    assert!(next.volume_map(&volume("thick/v"), false).unwrap_err().cause.contains("old data of others"));
    sim.set_busy(Path::new("/dev/vg/v"), false);
    // Its present size, which completes it.
    let steps = words(&resize(&next, "thick/v", 128).unwrap());
    assert!(steps.contains(&"write zeroes to vg/v from 64 MiB on".to_owned()), "{steps:?}");
    run(&next, &Op::RemoveTenant("db")).unwrap();
    run(&next, &Op::Tenant("db", "thick/v")).unwrap();
}

#[test]
fn copies_of_raw_volumes_are_complete_and_keep_their_content() {
    for name in ["file/v", "thin/v"] {
        let sim = with_pools();
        let engine = engine(&sim);
        create(&engine, name, Some(Provision::OnDemand)).unwrap();
        run(&engine, &Op::Tenant("db", name)).unwrap();
        let copy = |of: &str, name: &str, read_only| {
            engine.volume_copy(&volume(of), &VolumeCopy::new(name.parse().unwrap(), read_only), false)
        };
        let steps = words(&copy(name, "s", true).unwrap());
        assert!(steps[0].starts_with("sync "), "{steps:?}");
        assert!(!steps.iter().any(|step| step.contains("UUID") || step.contains("ext4")), "{steps:?}");
        let (pool, _) = name.split_once('/').unwrap();
        let (snapshot, clone) = (format!("{pool}/s"), format!("{pool}/c"));
        // A snapshot cannot be mounted read-only, as it is not mounted.
        let lend = |name: &str| run(&engine, &Op::Tenant("web", Box::leak(name.to_owned().into_boxed_str())));
        let fault = lend(&snapshot).unwrap_err();
        assert!(fault.code == Code::Unsupported && fault.hint.contains("clone"), "{fault}");
        assert_eq!(copy(&snapshot, "c", false).unwrap().object.unwrap().fs, VolumeFs::None);
        lend(&clone).unwrap();
        assert_settled(&sim, &engine, name);
        run(&engine, &Op::RemoveTenant("db")).unwrap();
        let back = VolumeRollback { to: "s".parse().unwrap(), lose_changes: true };
        let rolled = engine.volume_rollback(&volume(name), &back, false);
        assert_eq!(rolled.is_ok(), pool == "file", "{rolled:?}");
        assert_settled(&sim, &engine, name);
    }
}

#[test]
fn a_raw_volume_can_be_sent_and_received() {
    let sim = with_pools();
    let engine = engine(&sim);
    for from in ["file/v", "thin/v"] {
        create(&engine, from, Some(Provision::OnDemand)).unwrap();
        run(&engine, &Op::Snapshot(from, "s")).unwrap();
    }
    for (snapshot, name) in [("file/s", "file/r"), ("thin/s", "file/q")] {
        run_on(&sim, &engine, &Op::Receive(snapshot, name)).unwrap();
        assert_eq!(engine.volume_inspect(&volume(name)).unwrap().fs, VolumeFs::None);
    }
    assert_settled(&sim, &engine, "received");
}

#[test]
fn what_needs_a_file_system_is_refused_for_a_raw_volume() {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "thick/v", "thin/v"] {
        let ask = |change: fn(&mut VolumeCreate)| {
            let mut request = VolumeCreate { fs: VolumeFs::None, ..VolumeCreate::new(volume(name), Bytes::mib(64)) };
            change(&mut request);
            engine.volume_create(&request, false).unwrap_err()
        };
        let fault = ask(|request| request.journal = Some(JournalSize::Auto));
        assert!(fault.cause.contains("no journal"), "{fault}");
        assert!(ask(|request| request.fast_commit = true).cause.contains("fast_commit"));
        for (options, word) in [
            (MountOptions { suid: true, ..MountOptions::default() }, "suid"),
            (MountOptions { dev: true, ..MountOptions::default() }, "dev"),
            (MountOptions { subdir: Some("data".parse().unwrap()), ..MountOptions::default() }, "subdir"),
        ] {
            let request = VolumeCreate {
                fs: VolumeFs::None,
                mount_options: options,
                ..VolumeCreate::new(volume(name), Bytes::mib(64))
            };
            let fault = engine.volume_create(&request, false).unwrap_err();
            assert!(fault.code == Code::InvalidArgument && fault.cause.contains(&format!("`{word}`")), "{fault}");
        }
        let fault = ask(|request| request.size_bytes = Bytes(4096));
        assert!(fault.code == Code::InvalidArgument && fault.hint.contains("1 MiB"), "{fault}");
        assert!(engine.volume_inspect(&volume(name)).is_err(), "nothing is left");

        create(&engine, name, None).unwrap();
        let reference = volume(name);
        let journal = VolumeResize { journal: Some(JournalSize::Auto), ..VolumeResize::default() };
        assert_eq!(engine.volume_resize(&reference, &journal, false).unwrap_err().code, Code::Unsupported);
        for full in [false, true] {
            let request = VolumeCheck { repair: false, full };
            let fault = engine.volume_check(&reference, &request, false).unwrap_err();
            assert!(fault.code == Code::Unsupported && fault.cause.contains("raw volume"), "{fault}");
        }
        run(&engine, &Op::Tenant("db", name)).unwrap();
        let fault = engine.trim_next(&reference, &mut Trimming::default(), false).unwrap_err();
        assert!(fault.code == Code::Unsupported && fault.cause.contains("raw volume"), "{fault}");
        run(&engine, &Op::RemoveTenant("db")).unwrap();
    }
    run(&engine, &Op::Snapshot("thin/v", "s")).unwrap();
    let request = VolumeCopy { read_from: Some(ReadFrom::HostCache), ..VolumeCopy::new("c".parse().unwrap(), false) };
    let fault = engine.volume_copy(&volume("thin/s"), &request, false).unwrap_err();
    assert!(fault.code == Code::Unsupported && fault.cause.contains("raw volume"), "{fault}");
    assert_settled(&sim, &engine, "all refused");
}
