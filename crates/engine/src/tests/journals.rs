//! Journals of volumes: their sizes, and the threads that commit them.

use std::path::Path;

use bulkhead_api::wire::VolumeResize;
use bulkhead_core::action::{Action, FsAction};
use bulkhead_core::cgroup::CgroupPath;
use bulkhead_core::error::Code;
use bulkhead_core::finding::FindingId;
use bulkhead_core::journal::JournalSize;
use bulkhead_core::model::VolumeFs;
use bulkhead_core::reason::Reason;
use bulkhead_core::units::Bytes;

use super::{Op, assert_settled, engine, reason, run, volume, with_pools};
use crate::engine::Engine;

#[test]
fn a_journal_that_stayed_small_is_reported_and_replaced() {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "thick/v", "thin/v"] {
        let found = |engine: &Engine| {
            let findings = engine.volume_inspect(&volume(name)).unwrap().findings;
            findings.into_iter().filter(|found| found.id == FindingId::JournalSmallAfterGrowth).collect::<Vec<_>>()
        };
        run(&engine, &Op::Create(name, 64, VolumeFs::Ext4)).unwrap();
        assert!(found(&engine).is_empty());
        run(&engine, &Op::Tenant("db", name)).unwrap();
        let grow = VolumeResize { size_bytes: Some(Bytes::mib(128)), ..VolumeResize::default() };
        let grown = engine.volume_resize(&volume(name), &grow, false).unwrap().object.unwrap();
        let findings = found(&engine);
        assert!(
            findings.len() == 1 && findings[0].evidence.contains("8 MiB") && findings[0].evidence.contains("16 MiB"),
            "{findings:?}"
        );
        let is_small = matches!(findings[0].reason.as_deref(), Some(Reason::JournalSmall { .. }));
        assert!(is_small && grown.findings.contains(&findings[0]), "{findings:?}");
        let asked = run(&engine, &Op::Journal(name, JournalSize::Auto)).unwrap_err();
        assert!(asked.code == Code::InUse && matches!(reason(&asked), Some(Reason::VolumeAttached { .. })), "{asked}");
        run(&engine, &Op::Detach("db", name)).unwrap();
        run(&engine, &Op::Journal(name, JournalSize::Auto)).unwrap();
        assert!(found(&engine).is_empty());
        let both = VolumeResize { journal: Some(JournalSize::Auto), size_bytes: Some(Bytes::mib(64)), shrink: true };
        engine.volume_resize(&volume(name), &both, false).unwrap();
        // A request for its current size changes nothing.
        let request = VolumeResize { journal: Some(JournalSize::Auto), ..VolumeResize::default() };
        let again = engine.volume_resize(&volume(name), &request, false).unwrap();
        let changes = |action: &Action| {
            matches!(action, Action::Fs(FsAction::RemoveJournal { .. }) | Action::Fs(FsAction::MakeJournal { .. }))
        };
        assert!(again.steps.iter().filter(|step| changes(&step.action)).all(|step| !step.changed));
        run(&engine, &Op::RemoveTenant("db")).unwrap();
    }
}

#[test]
fn a_journal_that_cannot_be_replaced_stays() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Create("file/x", 300, VolumeFs::Xfs)).unwrap();
    let code = |op: &Op| run(&engine, op).unwrap_err().code;
    assert_eq!(code(&Op::Journal("file/x", JournalSize::Auto)), Code::Unsupported);
    assert_eq!(code(&Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(33)))), Code::InvalidArgument);
    let nothing = engine.volume_resize(&volume("file/v"), &VolumeResize::default(), false).unwrap_err();
    assert_eq!(nothing.code, Code::InvalidArgument);
    sim.fill_file_systems(true);
    assert_eq!(code(&Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(16)))), Code::NoSpace);
    // Recovered at once, without a restart.
    assert_settled(&sim, &engine, "after a refusal");
    sim.fill_file_systems(false);
    // A journal that allocates needs free space in the pool.
    run(&engine, &Op::Create("thin/v", 64, VolumeFs::Ext4)).unwrap();
    sim.set_free(Bytes::mib(15));
    assert_eq!(code(&Op::Journal("thin/v", JournalSize::Bytes(Bytes::mib(16)))), Code::NoSpace);
    run(&engine, &Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(16)))).unwrap();
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
}

#[test]
fn a_journal_thread_replaced_by_a_remount_is_moved_again() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, VolumeFs::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "thin/v")).unwrap();
    sim.lose_journals();
    engine.tick();
    let journal = sim.journal_of(Path::new("/run/bulkhead/mnt/thin/v"));
    assert_eq!(
        journal.as_ref().map(CgroupPath::relative),
        Some("bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice")
    );
}
