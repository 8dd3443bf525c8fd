//! A crash after every single step, and operations that fail half-way.

use std::path::Path;

use bulkhead_api::wire::{NewPoolSource, VolumeResize};
use bulkhead_core::base::IMPORTING;
use bulkhead_core::error::Code;
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::VolumeFs;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use uuid::Uuid;

use super::{Op, assert_settled, engine, pool, run, run_on, volume, with_pools};
use crate::engine::Engine;
use crate::sim::Sim;

#[test]
fn a_crash_after_any_step_of_any_operation_is_recovered() {
    use VolumeFs::{Ext4, None as Raw, Xfs};
    let mut cuts = 0;
    for name in ["file/v", "thick/v", "thin/v"] {
        let raw = vec![
            Op::Create(name, 64, Raw),
            Op::Resize(name, 96),
            Op::Tenant("db", name),
            Op::Use("db", name),
            Op::Detach("db", name),
            Op::Return(name),
            Op::Remove(name),
        ];
        let stories: Vec<Vec<Op>> = vec![
            raw,
            vec![Op::Create(name, 64, Ext4), Op::Resize(name, 128), Op::Resize(name, 32), Op::Remove(name)],
            vec![Op::Create(name, 320, Xfs), Op::Resize(name, 400), Op::Remove(name)],
            vec![
                Op::Create(name, 64, Ext4),
                Op::Tenant("db", name),
                Op::Resize(name, 96),
                Op::Detach("db", name),
                Op::Lease("db", name),
                Op::RemoveTenant("db"),
            ],
            vec![Op::Create(name, 64, Ext4), Op::Tenant("db", name), Op::Remove(name)],
            vec![
                Op::Create(name, 64, Ext4),
                Op::Tenant("db", name),
                Op::Use("db", name),
                Op::Detach("db", name),
                Op::Use("db", name),
                Op::Return(name),
                Op::Remove(name),
            ],
            vec![
                Op::Create(name, 64, Ext4),
                Op::Tenant("db", name),
                Op::Detach("db", name),
                Op::Label("db", name),
                Op::Return(name),
                Op::Use("db", name),
            ],
            vec![
                Op::Create(name, 64, Ext4),
                Op::Resize(name, 160),
                Op::Journal(name, JournalSize::Auto),
                Op::Tenant("db", name),
                Op::Detach("db", name),
                Op::Journal(name, JournalSize::Bytes(Bytes::mib(4))),
            ],
        ];
        let clones = ["thin/v", "file/v"].map(|name| {
            let copy = if name == "thin/v" { "thin/copy" } else { "file/copy" };
            vec![
                Op::Create(name, 64, Ext4),
                Op::Tenant("db", name),
                Op::Clone(name, "copy"),
                Op::Clone(copy, "second"),
                Op::Remove(name),
                Op::Remove(copy),
            ]
        });
        let trims = ["thin/v", "file/v"]
            .map(|name| vec![Op::CreateOnDemand(name), Op::Tenant("db", name), Op::Trim(name), Op::Detach("db", name)]);
        let rollback = vec![
            Op::Create("file/v", 64, Ext4),
            Op::Snapshot("file/v", "s"),
            Op::Resize("file/v", 96),
            Op::Rollback("file/v", "s"),
            Op::Tenant("db", "file/v"),
            Op::Flatten("file/v"),
        ];
        let receive = vec![
            Op::Create("file/v", 64, Ext4),
            Op::Snapshot("file/v", "s"),
            Op::Receive("file/s", "file/r"),
            Op::Clone("file/r", "w"),
            Op::Remove("file/r"),
        ];
        let share = vec![
            Op::Create("thin/v", 64, Ext4),
            Op::Snapshot("thin/v", "s"),
            Op::Receive("thin/s", "file/r"),
            Op::Share("thin/s", "c"),
            Op::Tenant("db", "thin/c"),
            Op::Resize("thin/c", 96),
            Op::Snapshot("thin/c", "t"),
            Op::Detach("db", "thin/c"),
            Op::Remove("thin/s"),
            Op::Remove("thin/c"),
        ];
        let full = [(Ext4, 96, 32), (Xfs, 400, 400)].map(|(fs, larger, then)| {
            let resized = [Op::Resize("thin/v", larger), Op::Resize("thin/v", then), Op::Resize("thin/v", 480)];
            let tenant = [Op::Tenant("db", "thin/v"), Op::Resize("thin/v", 500), Op::Detach("db", "thin/v")];
            std::iter::once(Op::CreateFull("thin/v", fs)).chain(resized).chain(tenant).collect()
        });
        let raw_copies = ["thin/v", "file/v"].map(|name| {
            let (copy, snapshot) = if name == "thin/v" { ("thin/copy", "thin/s") } else { ("file/copy", "file/s") };
            let mut story = vec![
                Op::Create(name, 64, Raw),
                Op::Tenant("db", name),
                Op::Resize(name, 96),
                Op::Snapshot(name, "s"),
                Op::Clone(snapshot, "copy"),
                Op::Detach("db", name),
            ];
            story.extend((name == "file/v").then_some(Op::Rollback(name, "s")));
            story.extend([Op::Receive(snapshot, "file/r"), Op::Remove(snapshot), Op::Remove(copy)]);
            story
        });
        let raw_full = vec![
            Op::CreateFull("thin/v", Raw),
            Op::Resize("thin/v", 96),
            Op::Tenant("db", "thin/v"),
            Op::Detach("db", "thin/v"),
        ];
        let stories = stories.into_iter().chain(raw_copies).chain([raw_full]).chain(clones).chain(trims).chain(full);
        for story in stories.chain([rollback, receive, share]) {
            for cut_op in 0..story.len() {
                for cut_step in 0.. {
                    let sim = with_pools();
                    sim.set_process(42, Some(1));
                    let before = engine(&sim);
                    for op in &story[..cut_op] {
                        run_on(&sim, &before, op).unwrap();
                    }
                    sim.crash_after(Some(cut_step));
                    let whole = run_on(&sim, &before, &story[cut_op]).is_ok();
                    sim.crash_after(None);
                    let context = format!("{:?} cut after {cut_step} steps", &story[..=cut_op]);
                    assert_settled(&sim, &engine(&sim), &context);
                    cuts += 1;
                    // Repeated, the operation succeeds: it was completed or undone, or can be started again.
                    let again = match run_on(&sim, &engine(&sim), &story[cut_op]) {
                        // The received data exists.
                        Err(fault) if fault.code == Code::AlreadyExists && matches!(story[cut_op], Op::Receive(..)) => {
                            Ok(())
                        }
                        other => other,
                    };
                    assert!(again.is_ok(), "{context}: {again:?}");
                    if whole {
                        break;
                    }
                }
            }
        }
    }
    assert!(cuts > 150, "only {cuts} crashes were tried");
}

/// Filling the new part of a full thin volume may take long: a starting daemon does not wait for it, and the next attempt resumes at the
/// same offset.
#[test]
fn an_interrupted_growth_of_a_full_thin_volume_is_resumed() {
    let fills = |engine: &Engine, mib| -> Vec<String> {
        let request = VolumeResize { size_bytes: Some(Bytes::mib(mib)), shrink: true, journal: None };
        let steps = engine.volume_resize(&volume("thin/v"), &request, false).unwrap().steps;
        let all = steps.iter().map(|step| step.action.to_string());
        all.filter(|step| step.starts_with("write all blocks")).collect()
    };
    let from = |mib| vec![format!("write all blocks of tvg/v from {mib} MiB on")];
    for is_mounted in [false, true] {
        let sim = with_pools();
        let first = engine(&sim);
        run(&first, &Op::CreateFull("thin/v", VolumeFs::Ext4)).unwrap();
        if is_mounted {
            run(&first, &Op::Tenant("db", "thin/v")).unwrap();
        }
        // Recorded, activated where it is not mounted, grown.
        sim.crash_after(Some(if is_mounted { 2 } else { 3 }));
        run(&first, &Op::Resize("thin/v", 128)).unwrap_err();
        sim.crash_after(None);
        let next = engine(&sim);
        assert_eq!(next.volume_inspect(&volume("thin/v")).unwrap().size_bytes, Bytes::mib(128));
        assert_settled(&sim, &next, "after the crash");
        // The rest is reserved again.
        sim.set_free(Bytes::mib(60));
        let fault = run(&next, &Op::Resize("thin/v", 128)).unwrap_err();
        assert_eq!(fault.code, Code::NoSpace, "{fault}");
        sim.set_free(Bytes::mib(512));
        if is_mounted {
            assert_eq!(fills(&next, 160), from(64));
        } else {
            // At its old size it is filled completely.
            assert_eq!(fills(&next, 64), [""; 0]);
            assert_eq!(fills(&next, 160), from(64));
        }
        assert_eq!(sim.allocated_to("/dev/tvg/v"), Bytes::mib(160));
        assert_eq!(fills(&engine(&sim), 200), from(160));
    }
}

#[test]
fn a_second_crash_during_recovery_is_recovered_as_well() {
    for first in 0..9 {
        for second in 0..9 {
            let sim = with_pools();
            run(&engine(&sim), &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
            sim.crash_after(Some(first));
            let _ = run(&engine(&sim), &Op::Resize("file/v", 32));
            sim.crash_after(Some(second));
            engine(&sim);
            sim.crash_after(None);
            assert_settled(&sim, &engine(&sim), &format!("cuts after {first} and {second} steps"));
        }
    }
}

#[test]
fn a_second_crash_during_the_recovery_of_a_journal_is_recovered_as_well() {
    for name in ["file/v", "thick/v", "thin/v"] {
        for (first, second) in (0..9).flat_map(|first| (0..7).map(move |second| (first, second))) {
            let sim = with_pools();
            run(&engine(&sim), &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
            sim.crash_after(Some(first));
            let _ = run(&engine(&sim), &Op::Journal(name, JournalSize::Bytes(Bytes::mib(16))));
            sim.crash_after(Some(second));
            engine(&sim);
            sim.crash_after(None);
            let last = engine(&sim);
            assert_settled(&sim, &last, &format!("{name} cut after {first} and {second} steps"));
            // The simulated host mounts no ext4 without a journal.
            run(&last, &Op::Tenant("db", name)).unwrap();
        }
    }
}

#[test]
fn an_interrupted_import_is_discarded_by_the_next_daemon() {
    let sim = with_pools();
    let daemon = engine(&sim);
    let header = StreamHeader {
        content: IMPORTING,
        base: None,
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(0),
        data_bytes: Bytes(0),
        fs: VolumeFs::Ext4,
        snapshot: "/tree".to_owned(),
    };
    let (one, other) = (volume("file/one"), volume("file/other"));
    daemon.volume_receive(&one, &header, false).unwrap();
    let findings = daemon.pool_inspect(&"file".parse().unwrap()).unwrap().findings;
    let is_import = |found: &Finding| found.id == FindingId::ImportUnfinished && found.object == "volume file/one";
    assert!(findings.iter().any(is_import), "{findings:?}");
    // A new import may be about to start, and incomplete transfers are kept.
    daemon.volume_receive(&other, &StreamHeader { content: Uuid::from_u128(7), ..header.clone() }, false).unwrap();
    daemon.volume_receive(&volume("file/third"), &header, false).unwrap();
    assert_eq!(daemon.volume_receiving(&one).unwrap().content, IMPORTING);
    let next = engine(&sim);
    assert_eq!(next.volume_receiving(&one).unwrap_err().code, Code::NotFound);
    assert_eq!(next.volume_receiving(&other).unwrap().content, Uuid::from_u128(7));
    assert_eq!(next.volume_receive(&volume("thin/r"), &header, true).unwrap_err().code, Code::Unsupported);
}

#[test]
fn a_failed_shrink_leaves_the_volume_unchanged() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thick/v", 64, VolumeFs::Ext4)).unwrap();
    assert_eq!(run(&engine, &Op::Resize("thick/v", 16)).unwrap_err().code, Code::NoSpace);
    let view = engine.volume_inspect(&volume("thick/v")).unwrap();
    assert_eq!((view.size_bytes, view.state.as_str()), (Bytes::mib(64), "ready"));
}

#[test]
fn a_failed_growth_is_never_truncated_by_the_next() {
    for name in ["file/v", "thick/v"] {
        let sim = with_pools();
        let engine = engine(&sim);
        run(&engine, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        let image = Path::new("/srv/pool/v.img");
        sim.set_busy(image, true);
        let failed = run(&engine, &Op::Resize(name, 128)).is_err();
        assert_eq!(failed, name == "file/v", "a program has the device open");
        sim.set_busy(image, false);
        let view = engine.volume_inspect(&volume(name)).unwrap();
        assert_eq!((view.size_bytes, view.state.as_str()), (Bytes::mib(128), "ready"), "the device is the truth");
        let request = VolumeResize { size_bytes: Some(Bytes::mib(96)), ..VolumeResize::default() };
        assert_eq!(engine.volume_resize(&volume(name), &request, false).unwrap_err().code, Code::InvalidArgument);
        run(&engine, &Op::Resize(name, 128)).unwrap();
    }
}

#[test]
fn an_interrupted_shrink_that_cannot_be_completed_does_not_block_the_volume_forever() {
    for name in ["file/v", "thick/v"] {
        let sim = with_pools();
        run(&engine(&sim), &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        let before = engine(&sim);
        sim.crash_after(Some(1));
        run(&before, &Op::Resize(name, 16)).unwrap_err();
        sim.crash_after(None);
        let after = engine(&sim);
        assert_eq!(after.problems().len(), 1, "{:?}", after.problems());
        after.tick();
        assert_eq!(after.problems().len(), 1, "a check does not clear it");
        let view = after.volume_inspect(&volume(name)).unwrap();
        assert_eq!((view.size_bytes, view.state.as_str()), (Bytes::mib(64), "ready"));
    }
}

#[test]
fn a_pool_on_a_device_survives_a_crash_after_any_step() {
    let request = || {
        let source = NewPoolSource::Device { path: "/dev/sdb".into(), thin: true, erase: Some("/dev/sdb".into()) };
        pool("p", source)
    };
    let name = "p".parse().unwrap();
    for cut in 0..4 {
        let sim = Sim::default();
        sim.crash_after(Some(cut));
        let _ = engine(&sim).pool_create(&request(), false);
        sim.crash_after(None);
        engine(&sim).pool_create(&request(), false).unwrap();
        sim.crash_after(Some(cut));
        let _ = engine(&sim).pool_remove(&name, false);
        sim.crash_after(None);
        engine(&sim).pool_remove(&name, false).unwrap();
        assert!(engine(&sim).pool_list().unwrap().is_empty(), "cut after {cut} steps");
    }
}
