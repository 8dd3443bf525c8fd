//! Tests of the engine on the simulated host: idempotence, refusals, and a crash after every single step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_core::action::{Action, CgroupAction, FsAction, ServerAction};
use bulkhead_core::base::IMPORTING;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId, in_order};
use bulkhead_core::health;
use bulkhead_core::model::{Calibration, FsKind, IoLimit, Isolation, Policy, Provision, ReadFrom, Server, VolumeRef};
use bulkhead_core::reason::Reason;
use bulkhead_core::serve::ServeSpec;
use bulkhead_core::slices;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::{Bytes, Share};
use bulkhead_core::wire::{
    DeviceControl, JournalSize, LeaseCreate, NewPoolSource, PoolCreate, PoolMove, ResumeToken, TenantCreate, TenantSet,
    VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize, VolumeRollback, VolumeSend, VolumeView,
};
use bulkhead_core::work::SendDevice;

use uuid::Uuid;

use crate::carry_out::Executor;
use crate::engine::{Dirs, Engine};
use crate::host::Host as _;
use crate::jobs::Job;
use crate::sim::Sim;
use crate::trim::Trimming;

/// One request, so that each can be cut after each of its steps.
#[derive(Clone, Debug)]
enum Op {
    Create(&'static str, u64, FsKind),
    Remove(&'static str),
    Resize(&'static str, u64),
    Journal(&'static str, JournalSize),
    Clone(&'static str, &'static str),
    /// Of a snapshot, to share memory with it.
    Share(&'static str, &'static str),
    Snapshot(&'static str, &'static str),
    Rollback(&'static str, &'static str),
    Flatten(&'static str),
    /// Of what a snapshot holds, all of which comes.
    Receive(&'static str, &'static str),
    Tenant(&'static str, &'static str),
    Detach(&'static str, &'static str),
    RemoveTenant(&'static str),
    Lease(&'static str, &'static str),
    /// Of one that was provisioned on demand.
    CreateOnDemand(&'static str),
    CreateFull(&'static str, FsKind),
    Trim(&'static str),
}

fn engine(sim: &Sim) -> Engine {
    let engine = Engine::new(Dirs::default(), Executor::new(Arc::new(sim.clone()), None));
    engine.reconcile();
    engine
}

fn reason(fault: &Fault) -> Option<&Reason> {
    fault.reason.as_deref()
}

fn volume(text: &str) -> VolumeRef {
    text.parse().unwrap()
}

fn pool(name: &str, source: NewPoolSource) -> PoolCreate {
    PoolCreate { name: name.parse().unwrap(), source }
}

fn with_pools() -> Sim {
    let sim = Sim::default().with_group("vg", &[]).with_group("tvg", &["thin"]);
    let engine = engine(&sim);
    for request in [
        pool("file", NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto }),
        pool("thick", NewPoolSource::VolumeGroup { vg: "vg".into(), thin_pool: None }),
        pool("thin", NewPoolSource::VolumeGroup { vg: "tvg".into(), thin_pool: Some("thin".into()) }),
    ] {
        engine.pool_create(&request, false).unwrap();
    }
    sim
}

fn run_on(sim: &Sim, engine: &Engine, op: &Op) -> Result<(), bulkhead_core::error::Fault> {
    match op {
        Op::Create(name, mib, fs) => {
            let request = VolumeCreate {
                volume: volume(name),
                size_bytes: Bytes::mib(*mib),
                fs: *fs,
                provision: None,
                fast_commit: false,
            };
            engine.volume_create(&request, false).map(drop)
        }
        Op::Remove(name) => engine.volume_remove(&volume(name), true, false).map(drop),
        Op::Resize(name, mib) => {
            let request = VolumeResize { size_bytes: Some(Bytes::mib(*mib)), shrink: true, journal: None };
            engine.volume_resize(&volume(name), &request, false).map(drop)
        }
        Op::Journal(name, size) => {
            let request = VolumeResize { journal: Some(*size), ..VolumeResize::default() };
            engine.volume_resize(&volume(name), &request, false).map(drop)
        }
        Op::Clone(name, copy) => {
            let request = VolumeCopy { name: copy.parse().unwrap(), read_only: false, read_from: None, domain: None };
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Share(name, copy) => {
            let read_from = Some(ReadFrom::HostCache);
            let request = VolumeCopy { name: copy.parse().unwrap(), read_only: false, read_from, domain: None };
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Rollback(name, to) => {
            let request = VolumeRollback { to: to.parse().unwrap(), lose_changes: true };
            engine.volume_rollback(&volume(name), &request, false).map(drop)
        }
        Op::Receive(snapshot, name) => {
            let view = engine.volume_send(&volume(snapshot), &VolumeSend::default(), false)?.object;
            let header = StreamHeader { content: Uuid::from_u128(7), ..view.unwrap().header };
            let part = engine.volume_receive(&volume(name), &header, false)?.object.unwrap().part;
            sim.fill_part(&part);
            engine.volume_received(&volume(name), &header, false).map(drop)
        }
        Op::Flatten(name) => engine.volume_flatten(&volume(name), &VolumeFlatten::default(), false).map(drop),
        Op::Snapshot(name, copy) => {
            let request = VolumeCopy { name: copy.parse().unwrap(), read_only: true, read_from: None, domain: None };
            engine.volume_copy(&volume(name), &request, false).map(drop)
        }
        Op::Tenant(tenant, name) => {
            let request = TenantCreate {
                name: tenant.parse().unwrap(),
                share: Share::DEFAULT,
                limits: vec![],
                volumes: vec![volume(name)],
            };
            engine.tenant_create(&request, false).map(drop)
        }
        Op::Detach(tenant, name) => {
            let request = TenantSet { detach: vec![volume(name)], ..TenantSet::default() };
            engine.tenant_set(&tenant.parse().unwrap(), &request, false).map(drop)
        }
        Op::RemoveTenant(tenant) => engine.tenant_remove(&tenant.parse().unwrap(), true, false).map(drop),
        Op::Lease(tenant, name) => {
            let request = LeaseCreate { tenant: tenant.parse().unwrap(), volumes: vec![volume(name)], pid: 42 };
            engine.lease_create(&request).map(drop)
        }
        Op::CreateOnDemand(name) | Op::CreateFull(name, _) => {
            let (provision, fs, mib) = match op {
                Op::CreateFull(_, FsKind::Xfs) => (Provision::Full, FsKind::Xfs, 320),
                Op::CreateFull(..) => (Provision::Full, FsKind::Ext4, 64),
                _ => (Provision::OnDemand, FsKind::Ext4, 64),
            };
            let request = VolumeCreate {
                volume: volume(name),
                size_bytes: Bytes::mib(mib),
                fs,
                provision: Some(provision),
                fast_commit: false,
            };
            engine.volume_create(&request, false).map(drop)
        }
        Op::Trim(name) => engine.trim_next(&volume(name), &mut Trimming::default(), false).map(drop),
    }
}

fn run(engine: &Engine, op: &Op) -> Result<(), bulkhead_core::error::Fault> {
    run_on(&Sim::default(), engine, op)
}

/// Whatever the cut: every volume is whole, nothing is attached or mounted that no tenant holds, no problem is left.
fn assert_settled(sim: &Sim, engine: &Engine, context: &str) {
    assert!(engine.problems().is_empty(), "{context}: {:?}", engine.problems());
    let views = engine.volume_list(None).unwrap();
    for view in &views {
        assert_eq!(view.state, "ready", "{context}: {view:?}");
        assert_eq!(view.mounted_at.is_some(), view.tenant.is_some(), "{context}: {view:?}");
    }
    let left = sim.leftovers();
    let mounted = views.iter().filter(|view| view.mounted_at.is_some()).count();
    assert_eq!(left.mounts.len(), mounted, "{context}: {left:?}");
    assert_eq!(left.images.len() + left.volumes.len(), views.len(), "{context}: {left:?}");
    let is_served = |view: &&VolumeView| match view.volume.pool.as_str() {
        "file" => true,
        _ => view.read_from != ReadFrom::Disk,
    };
    let attached_wanted = views.iter().filter(|view| view.mounted_at.is_some()).filter(is_served).count();
    assert_eq!(left.attached.len(), attached_wanted, "{context}: {left:?}");
    assert!(left.unused_layers.is_empty() && left.parts.is_empty(), "{context}: {left:?}");
    let tenants = engine.tenant_list().unwrap();
    for leaf in tenants.iter().flat_map(|view| [slices::journal(&view.name), slices::server(&view.name)]) {
        assert_eq!(sim.cgroup_file(&leaf, "cpu.weight").as_deref(), Some("10000"), "{context}: {leaf}");
    }
    if tenants.is_empty() {
        assert_eq!(left.cgroups, Vec::<String>::new(), "{context}");
    }
}

#[test]
fn a_crash_after_any_step_of_any_operation_is_recovered() {
    use FsKind::{Ext4, Xfs};
    let mut cuts = 0;
    for name in ["file/v", "thick/v", "thin/v"] {
        let stories: Vec<Vec<Op>> = vec![
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
        let stories = stories.into_iter().chain(clones).chain(trims).chain(full);
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
                    // Asked again, the operation succeeds: it was completed, undone, or can be started anew.
                    let again = match run_on(&sim, &engine(&sim), &story[cut_op]) {
                        // What was received is there.
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
    assert!(cuts > 150, "only {cuts} cuts were tried");
}

/// What fills the new part of a full thin volume may take long: the daemon that starts does not wait for it, and the next try begins
/// where the first one did.
#[test]
fn a_growth_of_a_full_thin_volume_that_was_cut_off_goes_on_where_it_began() {
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
        run(&first, &Op::CreateFull("thin/v", FsKind::Ext4)).unwrap();
        if is_mounted {
            run(&first, &Op::Tenant("db", "thin/v")).unwrap();
        }
        // Recorded, activated where it is not mounted, grown.
        sim.crash_after(Some(if is_mounted { 2 } else { 3 }));
        run(&first, &Op::Resize("thin/v", 128)).unwrap_err();
        sim.crash_after(None);
        let next = engine(&sim);
        assert_eq!(next.volume_inspect(&volume("thin/v")).unwrap().size_bytes, Bytes::mib(128));
        assert_settled(&sim, &next, "cut off");
        // What it has yet to take is reserved again.
        sim.set_free(Bytes::mib(60));
        let fault = run(&next, &Op::Resize("thin/v", 128)).unwrap_err();
        assert_eq!(fault.code, Code::NoSpace, "{fault}");
        sim.set_free(Bytes::mib(512));
        if is_mounted {
            assert_eq!(fills(&next, 160), from(64));
        } else {
            // As large as it was, it has nothing that is not filled.
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
            run(&engine(&sim), &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
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
fn a_second_crash_while_a_journal_is_mended_is_mended_as_well() {
    for name in ["file/v", "thick/v", "thin/v"] {
        for (first, second) in (0..9).flat_map(|first| (0..7).map(move |second| (first, second))) {
            let sim = with_pools();
            run(&engine(&sim), &Op::Create(name, 64, FsKind::Ext4)).unwrap();
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
fn a_journal_that_stayed_small_is_told_and_replaced() {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "thick/v", "thin/v"] {
        let found = |engine: &Engine| {
            let findings = engine.volume_inspect(&volume(name)).unwrap().findings;
            findings.into_iter().filter(|found| found.id == FindingId::JournalSmallAfterGrowth).collect::<Vec<_>>()
        };
        run(&engine, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
        assert!(found(&engine).is_empty());
        run(&engine, &Op::Tenant("db", name)).unwrap();
        let grow = VolumeResize { size_bytes: Some(Bytes::mib(128)), ..VolumeResize::default() };
        let grown = engine.volume_resize(&volume(name), &grow, false).unwrap().object.unwrap();
        let told = found(&engine);
        assert!(
            told.len() == 1 && told[0].evidence.contains("8 MiB") && told[0].evidence.contains("16 MiB"),
            "{told:?}"
        );
        let is_small = matches!(told[0].reason.as_deref(), Some(Reason::JournalSmall { .. }));
        assert!(is_small && grown.findings.contains(&told[0]), "{told:?}");
        let asked = run(&engine, &Op::Journal(name, JournalSize::Auto)).unwrap_err();
        assert!(asked.code == Code::InUse && matches!(reason(&asked), Some(Reason::VolumeAttached { .. })), "{asked}");
        run(&engine, &Op::Detach("db", name)).unwrap();
        run(&engine, &Op::Journal(name, JournalSize::Auto)).unwrap();
        assert!(found(&engine).is_empty());
        let both = VolumeResize { journal: Some(JournalSize::Auto), size_bytes: Some(Bytes::mib(64)), shrink: true };
        engine.volume_resize(&volume(name), &both, false).unwrap();
        // Asked for what it has, it stays.
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
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Create("file/x", 300, FsKind::Xfs)).unwrap();
    let code = |op: &Op| run(&engine, op).unwrap_err().code;
    assert_eq!(code(&Op::Journal("file/x", JournalSize::Auto)), Code::Unsupported);
    assert_eq!(code(&Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(33)))), Code::InvalidArgument);
    let nothing = engine.volume_resize(&volume("file/v"), &VolumeResize::default(), false).unwrap_err();
    assert_eq!(nothing.code, Code::InvalidArgument);
    sim.fill_file_systems(true);
    assert_eq!(code(&Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(16)))), Code::NoSpace);
    // At once, not only after a restart.
    assert_settled(&sim, &engine, "after a refusal");
    sim.fill_file_systems(false);
    // Of a pool that it takes room of, it needs as much.
    run(&engine, &Op::Create("thin/v", 64, FsKind::Ext4)).unwrap();
    sim.set_free(Bytes::mib(15));
    assert_eq!(code(&Op::Journal("thin/v", JournalSize::Bytes(Bytes::mib(16)))), Code::NoSpace);
    run(&engine, &Op::Journal("file/v", JournalSize::Bytes(Bytes::mib(16)))).unwrap();
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
}

#[test]
fn a_flattened_volume_lets_go_of_its_layers() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ops = [Op::Create("file/v", 64, FsKind::Ext4), Op::Snapshot("file/v", "s"), Op::Tenant("db", "file/v")];
    ops.iter().for_each(|op| run(&engine, op).unwrap());
    let layers = |engine: &Engine| engine.volume_inspect(&volume("file/v")).unwrap().layers.unwrap().below.len();
    assert_eq!(layers(&engine), 1);
    run(&engine, &Op::Flatten("file/v")).unwrap();
    run(&engine, &Op::Remove("file/s")).unwrap();
    engine.tick();
    assert_eq!((layers(&engine), engine.problems().len()), (0, 0));
    assert!(sim.leftovers().unused_layers.is_empty());
    // There is nothing left to be done, and on others there never was.
    assert!(engine.volume_flatten(&volume("file/v"), &VolumeFlatten::default(), false).unwrap().steps.is_empty());
    run(&engine, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap();
    assert_eq!(run(&engine, &Op::Flatten("file/w")).unwrap_err().code, Code::Unsupported);
}

#[test]
fn the_last_of_a_thin_pools_metadata_is_left_for_the_volumes_that_there_are() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, FsKind::Ext4)).unwrap();
    sim.set_metadata_pct(89.9);
    run(&engine, &Op::Snapshot("thin/v", "s")).unwrap();
    sim.set_metadata_pct(90.0);
    let fault = run(&engine, &Op::Clone("thin/v", "c")).unwrap_err();
    assert!(fault.code == Code::NoSpace && fault.hint.contains("--poolmetadatasize"), "{fault:?}");
}

/// A layer takes 2 MiB here, of which each clone has two, and what nobody uses is not flattened yet.
#[test]
fn what_flattening_is_going_to_take_is_given_to_nobody_else() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ops = [
        Op::Create("file/v", 64, FsKind::Ext4),
        Op::Snapshot("file/v", "s"),
        Op::Clone("file/s", "a"),
        Op::Clone("file/s", "b"),
    ];
    ops.iter().for_each(|op| run(&engine, op).unwrap());
    sim.set_free(Bytes::mib(71));
    run(&engine, &Op::Flatten("file/a")).unwrap();
    run(&engine, &Op::Flatten("file/b")).unwrap();
    // 63 MiB are left of what seems to be free.
    let fault = run(&engine, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap_err();
    assert!(fault.code == Code::NoSpace && fault.cause.contains("has 63"), "{fault}");
    let cancel = VolumeFlatten { cancel: true };
    let done = engine.volume_flatten(&volume("file/a"), &cancel, false).unwrap();
    assert!(done.steps.iter().any(|step| step.changed));
    assert!(engine.volume_flatten(&volume("file/a"), &cancel, false).unwrap().steps.is_empty());
    run(&engine, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap();
    sim.set_free(Bytes::mib(3));
    assert_eq!(run(&engine, &Op::Flatten("file/a")).unwrap_err().code, Code::NoSpace);
}

#[test]
fn siblings_let_go_of_a_volume_before_it_is_unmounted() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    let copy = |name: &str, read_from, domain: Option<&str>| VolumeCopy {
        name: name.parse().unwrap(),
        read_only: false,
        read_from: Some(read_from),
        domain: domain.map(|domain| domain.parse().unwrap()),
    };
    let code = |of: &str, request: VolumeCopy| engine.volume_copy(&volume(of), &request, false).unwrap_err().code;
    assert_eq!(code("file/v", copy("c", ReadFrom::HostCache, Some("d"))), Code::InvalidArgument);
    run(&engine, &Op::Create("thick/v", 64, FsKind::Ext4)).unwrap();
    assert_eq!(code("thick/v", copy("c", ReadFrom::Peers, None)), Code::Unsupported);
    let made = engine.volume_copy(&volume("file/v"), &copy("c", ReadFrom::Peers, Some("d")), false).unwrap();
    let view = made.object.unwrap();
    assert_eq!((view.read_from, view.domain.map(|domain| domain.to_string())), (ReadFrom::Peers, Some("d".to_owned())));
    // What was made otherwise is not what was asked for.
    assert_eq!(code("file/v", copy("c", ReadFrom::Peers, None)), Code::AlreadyExists);
    run(&engine, &Op::Tenant("db", "file/c")).unwrap();
    let rows = engine.heatmap().unwrap();
    assert_eq!(rows.iter().map(|row| row.source_name.as_str()).collect::<Vec<_>>(), ["file/c"]);
    // The reader may have been killed; it is told again.
    sim.forget_siblings();
    engine.tick();
    assert_eq!((engine.heatmap().unwrap().len(), engine.problems().len()), (1, 0));
    // The simulated host would notice if it were unmounted first.
    run(&engine, &Op::Remove("file/c")).unwrap();
    assert!(engine.heatmap().unwrap().is_empty());
}

#[test]
fn on_lvm_a_clone_of_a_snapshot_shares_and_keeps_that_as_long_as_it_is_mounted() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, FsKind::Ext4)).unwrap();
    assert_eq!(engine.volume_inspect(&volume("thin/v")).unwrap().read_from, ReadFrom::Disk);
    assert_eq!(run(&engine, &Op::Share("thin/v", "c")).unwrap_err().code, Code::InvalidArgument);
    run(&engine, &Op::Snapshot("thin/v", "s")).unwrap();
    run(&engine, &Op::Share("thin/s", "c")).unwrap();
    // Unless it is said again, copies of it share nothing.
    run(&engine, &Op::Clone("thin/c", "d")).unwrap();
    let read_from = |name| engine.volume_inspect(&volume(name)).unwrap().read_from;
    assert_eq!(
        (read_from("thin/s"), read_from("thin/c"), read_from("thin/d")),
        (ReadFrom::Disk, ReadFrom::HostCache, ReadFrom::Disk)
    );
    run(&engine, &Op::Tenant("db", "thin/c")).unwrap();
    let refused = run(&engine, &Op::Remove("thin/s")).unwrap_err();
    assert!(refused.code == Code::InUse && refused.cause.contains("thin/c"), "{refused}");
    run(&engine, &Op::Detach("db", "thin/c")).unwrap();
    run(&engine, &Op::Remove("thin/s")).unwrap();
    run(&engine, &Op::Create("thin/x", 320, FsKind::Xfs)).unwrap();
    run(&engine, &Op::Snapshot("thin/x", "y")).unwrap();
    assert_eq!(run(&engine, &Op::Share("thin/y", "z")).unwrap_err().code, Code::Unsupported);
}

#[test]
fn what_is_received_in_part_is_seen_and_given_up() {
    let sim = with_pools();
    let engine = engine(&sim);
    [Op::Create("file/v", 64, FsKind::Ext4), Op::Snapshot("file/v", "s")]
        .iter()
        .for_each(|op| run(&engine, op).unwrap());
    let send = |name, from: Option<&str>| {
        let request = VolumeSend { from: from.map(|name| name.parse().unwrap()), ..VolumeSend::default() };
        engine.volume_send(&volume(name), &request, false).map(|done| done.object.unwrap())
    };
    // Only a snapshot does not change meanwhile.
    assert_eq!(send("file/v", None).unwrap_err().code, Code::InvalidArgument);
    let whole = send("file/s", None).unwrap();
    assert_eq!(whole.header.base, None);
    assert_eq!(whole.changed, whole.layers);
    assert_eq!(send("file/s", None).unwrap(), whole, "what it holds has not changed");
    run(&engine, &Op::Snapshot("file/v", "t")).unwrap();
    let later = send("file/t", Some("s")).unwrap();
    assert_eq!(later.header.base, Some(whole.header.content));
    assert!(!later.changed.contains(later.layers.last().unwrap()), "what both lie on is not sent: {later:?}");

    // Who goes on, does so with what was begun.
    let resume = |content, base| {
        let resume = Some(ResumeToken { content, base, received_bytes: Bytes(4096) });
        let request = VolumeSend { from: Some("s".parse().unwrap()), resume };
        engine.volume_send(&volume("file/t"), &request, false).map(|done| done.object.unwrap())
    };
    let (content, base) = (later.header.content, later.header.base);
    assert_eq!(
        resume(content, base).unwrap().header,
        StreamHeader { start_bytes: Bytes(4096), ..later.header.clone() }
    );
    for (content, base, why) in
        [(Uuid::from_u128(7), base, Reason::ResumeOfOther), (content, None, Reason::ResumeOnOtherBase)]
    {
        let fault = resume(content, base).unwrap_err();
        assert_eq!((fault.code, reason(&fault)), (Code::InvalidArgument, Some(&why)), "{fault}");
    }

    let (name, header) = (volume("file/r"), StreamHeader { content: Uuid::from_u128(7), ..whole.header });
    let lost = StreamHeader { base: Some(Uuid::from_u128(9)), ..header.clone() };
    assert_eq!(engine.volume_receive(&name, &lost, false).unwrap_err().code, Code::NotFound);
    let middle = StreamHeader { start_bytes: Bytes(4096), ..header.clone() };
    assert_eq!(engine.volume_receive(&name, &middle, false).unwrap_err().code, Code::InvalidArgument);
    let huge = StreamHeader { data_bytes: Bytes(1 << 60), ..header.clone() };
    assert_eq!(engine.volume_receive(&name, &huge, false).unwrap_err().code, Code::NoSpace);
    assert_eq!(engine.volume_receive(&volume("file/s"), &header, false).unwrap_err().code, Code::AlreadyExists);
    assert_eq!(engine.volume_receive(&volume("thin/r"), &header, false).unwrap_err().code, Code::Unsupported);
    assert_eq!(engine.volume_receiving(&name).unwrap_err().code, Code::NotFound);
    assert_eq!(engine.volume_receive(&name, &header, false).unwrap().object.unwrap().received_bytes, Bytes(0));
    assert_eq!(engine.volume_received(&name, &header, false).unwrap_err().code, Code::InvalidArgument);
    let findings = engine.pool_inspect(&"file".parse().unwrap()).unwrap().findings;
    let [part] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((part.id.word(), part.object.as_str()), ("receive_unfinished", "volume file/r"));
    assert!(part.evidence.contains("0 B of 64 MiB") && engine.findings().contains(part), "{part:?}");
    for name in ["file/s", "file/t", "file/v"] {
        run(&engine, &Op::Remove(name)).unwrap();
    }
    let kept = engine.pool_remove(&"file".parse().unwrap(), false).unwrap_err();
    assert_eq!(
        (kept.code, reason(&kept)),
        (Code::InUse, Some(&Reason::PoolHasPart { volume: "file/r".parse().unwrap() }))
    );
    assert_eq!(engine.volume_receive_abort(&name, false).unwrap().steps.len(), 2);
    assert_eq!(engine.volume_receive_abort(&name, false).unwrap().steps.len(), 0);
    engine.pool_remove(&"file".parse().unwrap(), false).unwrap();
}

#[test]
fn what_is_sent_from_a_thin_pool_can_never_change() {
    let sim = with_pools();
    let engine = engine(&sim);
    for op in [
        Op::Create("thin/v", 64, FsKind::Ext4),
        Op::Snapshot("thin/v", "a"),
        Op::Snapshot("thin/v", "b"),
        Op::Create("thin/x", 320, FsKind::Xfs),
        Op::Snapshot("thin/x", "y"),
        Op::Create("thick/v", 64, FsKind::Ext4),
    ] {
        run(&engine, &op).unwrap();
    }
    let send = |name, from: Option<&str>, dry_run| {
        let request = VolumeSend { from: from.map(|name| name.parse().unwrap()), ..VolumeSend::default() };
        engine.volume_send(&volume(name), &request, dry_run)
    };
    let never_sent = |from| Some(Reason::NeverSent { from: volume(from) });
    for (name, from, code, cause, why) in [
        (
            "thin/v",
            None,
            Code::InvalidArgument,
            "not a snapshot",
            Some(Reason::SnapshotNeeded { volume: volume("thin/v") }),
        ),
        ("thin/y", None, Code::Unsupported, "an XFS snapshot", None),
        ("thick/v", None, Code::Unsupported, "no snapshots", Some(Reason::NoSnapshotsInPool)),
        ("thin/b", Some("a"), Code::InvalidArgument, "the content of thin/a has never been sent", never_sent("thin/a")),
        ("thin/b", Some("v"), Code::InvalidArgument, "the content of thin/v has never been sent", never_sent("thin/v")),
        ("thin/b", Some("none"), Code::NotFound, "", Some(Reason::NoSuchVolume { volume: volume("thin/none") })),
    ] {
        let fault = send(name, from, false).unwrap_err();
        assert_eq!((fault.code, reason(&fault)), (code, why.as_ref()), "{fault}");
        assert!(fault.cause.contains(cause), "{fault}");
    }
    // A dry run says what would be done, and does nothing.
    let plan = send("thin/a", None, true).unwrap();
    let steps: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
    assert_eq!((plan.object, steps), (None, vec!["make tvg/a read-only".to_owned(), "activate tvg/a".to_owned()]));
    assert!(send("thin/b", Some("a"), false).is_err());
    let whole = send("thin/a", None, false).unwrap().object.unwrap();
    let device = |name: &str| PathBuf::from("/dev/tvg").join(name);
    assert_eq!(whole.header.content, engine.volume_inspect(&volume("thin/a")).unwrap().uuid);
    assert_eq!(whole.device, Some(SendDevice { path: device("a"), base: None }));
    let again = send("thin/a", None, false).unwrap();
    assert_eq!((again.object.as_ref(), again.steps[0].changed), (Some(&whole), false), "it is as it was");
    let step = send("thin/b", Some("a"), false).unwrap().object.unwrap();
    assert_eq!(step.header.base, Some(whole.header.content));
    assert_eq!(step.device, Some(SendDevice { path: device("b"), base: Some(device("a")) }));
    // It can be used as before.
    run(&engine, &Op::Clone("thin/a", "c")).unwrap();
    run(&engine, &Op::Remove("thin/a")).unwrap();
}

#[test]
fn an_import_that_was_cut_off_is_given_up_by_the_next_daemon() {
    let sim = with_pools();
    let daemon = engine(&sim);
    let header = StreamHeader {
        content: IMPORTING,
        base: None,
        size_bytes: Bytes::mib(64),
        start_bytes: Bytes(0),
        data_bytes: Bytes(0),
        fs: FsKind::Ext4,
        snapshot: "/tree".to_owned(),
    };
    let (one, other) = (volume("file/one"), volume("file/other"));
    daemon.volume_receive(&one, &header, false).unwrap();
    let findings = daemon.pool_inspect(&"file".parse().unwrap()).unwrap().findings;
    let is_import = |found: &Finding| found.id == FindingId::ImportUnfinished && found.object == "volume file/one";
    assert!(findings.iter().any(is_import), "{findings:?}");
    // Another one may be about to begin, and what is received in part is worth keeping.
    daemon.volume_receive(&other, &StreamHeader { content: Uuid::from_u128(7), ..header.clone() }, false).unwrap();
    daemon.volume_receive(&volume("file/third"), &header, false).unwrap();
    assert_eq!(daemon.volume_receiving(&one).unwrap().content, IMPORTING);
    let next = engine(&sim);
    assert_eq!(next.volume_receiving(&one).unwrap_err().code, Code::NotFound);
    assert_eq!(next.volume_receiving(&other).unwrap().content, Uuid::from_u128(7));
    assert_eq!(next.volume_receive(&volume("thin/r"), &header, true).unwrap_err().code, Code::Unsupported);
}

#[test]
fn requests_are_idempotent() {
    let sim = with_pools();
    let engine = engine(&sim);
    let request = VolumeCreate {
        volume: volume("file/a"),
        size_bytes: Bytes::mib(64),
        fs: FsKind::Ext4,
        provision: None,
        fast_commit: false,
    };
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
    let request = VolumeCreate {
        volume: volume("thick/a"),
        size_bytes: Bytes::mib(30),
        fs: FsKind::Ext4,
        provision: None,
        fast_commit: true,
    };
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
fn what_must_be_refused_is_refused() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ask = |name: &str, mib: u64, fs, provision| {
        let request =
            VolumeCreate { volume: volume(name), size_bytes: Bytes::mib(mib), fs, provision, fast_commit: false };
        engine.volume_create(&request, false).unwrap_err().code
    };
    assert_eq!(ask("file/x", 0, FsKind::Ext4, None), Code::InvalidArgument);
    assert_eq!(ask("file/x", 100, FsKind::Xfs, None), Code::InvalidArgument);
    assert_eq!(ask("file/x", 2048, FsKind::Ext4, None), Code::NoSpace);
    assert_eq!(ask("file/x", 600, FsKind::Ext4, None), Code::NoSpace);
    assert_eq!(ask("nopool/x", 64, FsKind::Ext4, None), Code::NotFound);
    assert_eq!(ask("thick/x", 64, FsKind::Ext4, Some(Provision::OnDemand)), Code::Unsupported);

    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
    let code = |result: Result<_, bulkhead_core::error::Fault>| result.map(|_: ()| ()).unwrap_err().code;
    assert_eq!(code(engine.volume_remove(&volume("file/v"), false, false).map(drop)), Code::InUse);
    assert_eq!(code(engine.volume_check(&volume("file/v"), &VolumeCheck::default(), false).map(drop)), Code::InUse);
    assert_eq!(code(run(&engine, &Op::Tenant("web", "file/v"))), Code::InUse);
    run(&engine, &Op::Create("thick/v", 64, FsKind::Ext4)).unwrap();
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
fn a_failed_shrink_leaves_the_volume_as_it_was() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thick/v", 64, FsKind::Ext4)).unwrap();
    assert_eq!(run(&engine, &Op::Resize("thick/v", 16)).unwrap_err().code, Code::NoSpace);
    let view = engine.volume_inspect(&volume("thick/v")).unwrap();
    assert_eq!((view.size_bytes, view.state.as_str()), (Bytes::mib(64), "ready"));
}

#[test]
fn a_lease_ends_with_its_process_and_a_busy_volume_is_tried_again() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "file/w")).unwrap();
    assert_eq!(run(&engine, &Op::Lease("db", "file/v")).unwrap_err().code, Code::NotFound, "no such process");
    sim.set_process(42, Some(7));
    run(&engine, &Op::Lease("db", "file/v")).unwrap();
    let target = Path::new("/run/bulkhead/mnt/file/v");
    assert_eq!(sim.journal_of(target).as_deref(), Some("bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice"));
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
fn what_nobody_holds_and_something_uses_is_closed_when_it_can_be() {
    let sim = with_pools();
    let first = engine(&sim);
    for name in ["file/v", "file/w"] {
        run(&first, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
    }
    run(&first, &Op::Tenant("db", "file/v")).unwrap();
    run(&first, &Op::Detach("db", "file/v")).unwrap();
    // As the device of an operation that was cut off.
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
    sim.apply(&attach, &Job::nobody()).unwrap();
    sim.set_busy(&image, true);
    let second = engine(&sim);
    for _ in 0..2 {
        assert_eq!(second.problems().len(), 1, "{:?}", second.problems());
        second.tick();
    }
    sim.set_busy(&image, false);
    second.tick();
    assert_eq!(second.problems().len(), 1, "it is not tried all the time");
    second.shared.in_use_at_start.lock().unwrap()[0].tried -= Duration::from_secs(60);
    second.tick();
    assert_settled(&sim, &second, "when nothing uses it any more");
}

/// As with a copy of the mount in a namespace of its own: whoever is in there writes to the volume still.
#[test]
fn a_volume_that_its_tenant_still_uses_is_given_to_nobody_else() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Create("file/other", 64, FsKind::Ext4)).unwrap();
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
    assert_settled(&sim, &engine, "given to another");
}

#[test]
fn a_device_that_somebody_uses_is_attached_for_nobody() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Tenant("a", "file/v")).unwrap();
    let image = Path::new("/srv/pool/v.img");
    sim.set_busy(image, true);
    // Unmounted, and its device stays, because somebody out of sight holds it.
    assert_eq!(run(&engine, &Op::Detach("a", "file/v")).unwrap_err().code, Code::InUse);
    run(&engine, &Op::RemoveTenant("a")).unwrap_err();
    let fault = run(&engine, &Op::Tenant("b", "file/v")).unwrap_err();
    assert_eq!(fault.code, Code::InUse, "{fault}");
    sim.set_busy(image, false);
    engine.tick();
    run(&engine, &Op::Tenant("b", "file/v")).unwrap();
    assert_settled(&sim, &engine, "free again");
}

#[test]
fn a_journal_thread_that_a_remount_made_anew_is_moved_again() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, FsKind::Ext4)).unwrap();
    run(&engine, &Op::Tenant("db", "thin/v")).unwrap();
    sim.lose_journals();
    engine.tick();
    let journal = sim.journal_of(Path::new("/run/bulkhead/mnt/thin/v"));
    assert_eq!(journal.as_deref(), Some("bulkhead.slice/bulkhead-db.slice/bulkhead-db-journal.slice"));
}

/// `cpu.weight` of journal, server, payload and the slice of tenant `db`, where something wrote one.
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

fn without_volumes(name: &str) -> TenantCreate {
    TenantCreate { name: name.parse().unwrap(), share: Share::DEFAULT, limits: vec![], volumes: vec![] }
}

#[test]
fn what_serves_io_is_scheduled_before_the_processes() {
    let sim = Sim::default();
    let engine = engine(&sim);
    let wanted = [Some("10000".to_owned()), Some("10000".to_owned()), None, None];
    let view = engine.tenant_create(&without_volumes("db"), false).unwrap().object.unwrap();
    assert_eq!((cpu_weights(&sim), view.findings), (wanted.clone(), vec![]));
    // Whoever disabled the controller, and at whatever level; so did every version before this one.
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
fn without_the_cpu_controller_a_tenant_works_and_says_why() {
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
    assert_eq!(in_order(engine.findings()), [health::no_cpu_controller()], "it is told once of the host");
    assert_eq!((cpu_weights(&sim), engine.problems().len()), ([const { None }; 4], 0));
}

#[test]
fn a_refused_cpu_controller_is_told_and_asked_for_again() {
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
            "it is not asked all the time"
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
fn before_the_host_goes_down_volumes_are_unmounted_and_records_stay() {
    let sim = with_pools();
    let first = engine(&sim);
    for (name, tenant) in [("file/v", "db"), ("thick/w", "web")] {
        run(&first, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
        run(&first, &Op::Tenant(tenant, name)).unwrap();
    }
    let target = first.volume_inspect(&volume("file/v")).unwrap().mounted_at.unwrap();
    sim.set_busy(&target, true);
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
fn a_reboot_brings_tenants_and_mounts_back() {
    let sim = with_pools();
    let first = engine(&sim);
    run(&first, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
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
fn a_lease_that_cannot_be_read_is_a_problem_and_keeps_nothing_from_going_on() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    sim.set_process(42, Some(7));
    run(&engine, &Op::Tenant("db", "file/v")).unwrap();
    run(&engine, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap();
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
fn a_damaged_record_is_reported_and_nothing_behind_it_is_touched() {
    let sim = with_pools();
    run(&engine(&sim), &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    sim.corrupt(Path::new("/srv/pool/file.volume").with_file_name("v.volume").as_path(), |bytes| bytes.truncate(60));
    let engine = engine(&sim);
    assert_eq!(engine.problems().len(), 1);
    // The pool says the same of it: it is there once.
    let [damaged] = &in_order(engine.findings())[..] else { panic!("{:?}", engine.findings()) };
    assert_eq!(damaged.id, FindingId::RecordUnreadable);
    assert_eq!(engine.pool_inspect(&"file".parse().unwrap()).unwrap().findings, std::slice::from_ref(damaged));
    assert_eq!(engine.volume_inspect(&volume("file/v")).unwrap_err().code, Code::Corrupt);
    assert_eq!(engine.volume_remove(&volume("file/v"), true, false).unwrap_err().code, Code::Corrupt);
    assert_eq!(sim.leftovers().images, vec![PathBuf::from("/srv/pool/v.img")]);
    assert_eq!(engine.pool_remove(&"file".parse().unwrap(), false).unwrap_err().code, Code::InUse);
}

#[test]
fn a_lost_state_directory_is_rebuilt_from_the_pool_itself() {
    let sim = with_pools();
    run(&engine(&sim), &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    sim.lose_file("/var/lib/bulkhead/pools/file");
    let engine = engine(&sim);
    assert!(engine.volume_list(None).unwrap().is_empty());
    let source = || NewPoolSource::Directory { path: "/srv/pool".into(), server: Server::Auto };
    assert_eq!(engine.pool_create(&pool("other", source()), false).unwrap_err().code, Code::HasData);
    engine.pool_create(&pool("file", source()), false).unwrap();
    assert_eq!(engine.volume_list(None).unwrap().len(), 1);
}

/// After a reboot its file system is mounted elsewhere.
#[test]
fn a_pool_is_found_again_where_its_file_system_is_mounted_now() {
    for is_recorded in [true, false] {
        let sim = with_pools();
        {
            let engine = engine(&sim);
            run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
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
        // By its path it is open now.
        let back = PoolMove { directory: "/srv/pool".into() };
        assert_eq!(engine.pool_move(&"file".parse().unwrap(), &back, false).unwrap_err().code, Code::NotFound);
    }
}

/// With many tenants each is looked at in all detail in turn, and a mount that is gone is seen at once.
#[test]
fn a_mapped_volume_is_an_operators_until_it_is_unmapped() {
    for name in ["file/v", "thick/v", "thin/v"] {
        let sim = with_pools();
        let engine_ = engine(&sim);
        run(&engine_, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
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
        // The next daemon leaves it alone, and after a reboot there is nothing to be unmapped.
        let next = engine(&sim);
        assert!(next.problems().is_empty());
        let mapped = health::of_mapping(&volume(name));
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
fn what_a_volume_was_is_kept_before_it_is_repaired() {
    let sim = with_pools();
    let engine = engine(&sim);
    for name in ["file/v", "thin/v", "thick/v"] {
        run(&engine, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
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
fn a_directory_in_which_others_can_write_becomes_no_pool() {
    let engine = engine(&Sim::default());
    let source = NewPoolSource::Directory { path: "/home/alice/pool".into(), server: Server::Auto };
    let fault = engine.pool_create(&pool("p", source), false).unwrap_err();
    assert!(fault.code == Code::InvalidArgument && fault.cause.contains("user 1000"), "{fault}");
}

fn calibration(isolation: Option<Isolation>) -> Calibration {
    let (model, qos) = ("ctrl=user model=linear".into(), "enable=1 ctrl=user".into());
    Calibration { model, qos, measured: vec![], isolation }
}

#[test]
fn what_weakens_isolation_on_a_device_is_found_on_it_and_on_what_is_stacked_on_it() {
    let sim = Sim::default();
    let engine = engine(&sim);
    let ids = |name: &str| -> Vec<String> {
        let findings = engine.device_inspect(name).unwrap().findings;
        assert!(findings.iter().all(|finding| finding.object == "device sda"), "{findings:?}");
        findings.iter().map(|finding| finding.id.to_string()).collect()
    };
    let calibrate = |isolation: Option<Isolation>| {
        engine.device_calibrated("sda", calibration(isolation), false).unwrap();
    };
    assert_eq!((ids("sda"), ids("dm-0")), (vec!["no_controller".to_owned()], vec!["no_controller".to_owned()]));
    calibrate(None);
    engine.device_control("sda", &DeviceControl { policy: Some(Policy::Iocost) }, false).unwrap();
    assert_eq!((ids("sda"), ids("dm-0")), (vec![], vec![]));
    calibrate(Some(Isolation { alone_us: 26_000, beside_us: 80_000 }));
    assert_eq!(ids("sda"), [""; 0]);
    calibrate(Some(Isolation { alone_us: 25_000, beside_us: 2_250_000 }));
    assert_eq!(
        (ids("sda"), ids("dm-0")),
        (vec!["device_not_isolated".to_owned()], vec!["device_not_isolated".to_owned()])
    );
    // It is recorded.
    let view = self::engine(&sim).device_inspect("sda").unwrap();
    assert!(view.findings[0].evidence.contains("90 times"), "{}", view.findings[0]);
}

#[test]
fn a_policy_is_put_in_force_survives_a_reboot_and_is_put_back() {
    let sim = Sim::default();
    let first = engine(&sim);
    let ask = |engine: &Engine, name: &str, policy| {
        let done = engine.device_control(name, &DeviceControl { policy }, false)?;
        Ok::<_, Fault>(done.object.unwrap())
    };
    assert!(!first.device_inspect("sda").unwrap().shares_work);
    assert_eq!(ask(&first, "dm-0", Some(Policy::Bfq)).unwrap_err().code, Code::Unsupported, "not physical");
    assert_eq!(ask(&first, "sda", Some(Policy::Iocost)).unwrap_err().code, Code::Unsupported, "not calibrated");
    let calibration = calibration(None);
    first.device_calibrated("/dev/sda", calibration, false).unwrap();
    let view = ask(&first, "sda", Some(Policy::Iocost)).unwrap();
    assert_eq!((view.policy, view.shares_work), (Policy::Iocost, true));
    assert!(first.device_inspect("dm-0").unwrap().shares_work, "decided on the device below");
    sim.reboot();
    let second = engine(&sim);
    assert_eq!(second.device_inspect("sda").unwrap().policy, Policy::Iocost);
    assert_eq!(ask(&second, "sda", Some(Policy::Bfq)).unwrap().policy, Policy::Bfq);
    let restored = ask(&second, "sda", None).unwrap();
    assert_eq!((restored.policy, restored.scheduler.as_deref()), (Policy::None, Some("mq-deadline")));
}

#[test]
fn what_is_not_ours_is_never_removed() {
    let sim = with_pools().with_group("vg", &[]);
    let engine = engine(&sim);
    // A group that with_group made anew has lost the pool's tag: it is another one.
    assert_eq!(run(&engine, &Op::Create("thick/v", 64, FsKind::Ext4)).unwrap_err().code, Code::Corrupt);
    assert_eq!(run(&engine, &Op::Create("thin/thin", 64, FsKind::Ext4)).unwrap_err().code, Code::HasData);
    sim.put_image("/srv/pool/x.img");
    assert_eq!(run(&engine, &Op::Create("file/x", 64, FsKind::Ext4)).unwrap_err().code, Code::HasData);
    assert_eq!(sim.leftovers().images, vec![PathBuf::from("/srv/pool/x.img")]);
}

#[test]
fn a_pool_whose_place_is_gone_is_neither_used_nor_forgotten() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    sim.lose_file("/srv/pool/bulkhead-pool");
    let code = |result: Result<_, bulkhead_core::error::Fault>| result.map(|_: ()| ()).unwrap_err().code;
    assert_eq!(code(run(&engine, &Op::Create("file/w", 64, FsKind::Ext4))), Code::Corrupt);
    assert_eq!(code(run(&engine, &Op::Remove("file/v"))), Code::Corrupt);
    assert_eq!(code(engine.pool_remove(&"file".parse().unwrap(), false).map(drop)), Code::Corrupt);
}

#[test]
fn a_growth_that_failed_is_never_cut_off_by_the_next() {
    for name in ["file/v", "thick/v"] {
        let sim = with_pools();
        let engine = engine(&sim);
        run(&engine, &Op::Create(name, 64, FsKind::Ext4)).unwrap();
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
fn a_removal_that_is_refused_leaves_the_volume_as_it_was() {
    for (name, busy) in [("file/v", "/srv/pool/v.img"), ("thick/v", "/dev/vg/v")] {
        let sim = with_pools();
        run(&engine(&sim), &Op::Create(name, 64, FsKind::Ext4)).unwrap();
        sim.set_busy(Path::new(busy), true);
        assert_eq!(run(&engine(&sim), &Op::Remove(name)).unwrap_err().code, Code::InUse);
        sim.set_busy(Path::new(busy), false);
        assert_eq!(engine(&sim).volume_inspect(&volume(name)).unwrap().state, "ready");
    }
}

#[test]
fn an_interrupted_shrink_that_cannot_be_completed_does_not_hold_the_volume_for_ever() {
    for name in ["file/v", "thick/v"] {
        let sim = with_pools();
        run(&engine(&sim), &Op::Create(name, 64, FsKind::Ext4)).unwrap();
        let before = engine(&sim);
        sim.crash_after(Some(1));
        run(&before, &Op::Resize(name, 16)).unwrap_err();
        sim.crash_after(None);
        let after = engine(&sim);
        assert_eq!(after.problems().len(), 1, "{:?}", after.problems());
        after.tick();
        assert_eq!(after.problems().len(), 1, "a tick does not forget it");
        let view = after.volume_inspect(&volume(name)).unwrap();
        assert_eq!((view.size_bytes, view.state.as_str()), (Bytes::mib(64), "ready"));
    }
}

#[test]
fn a_volume_stays_with_its_tenant() {
    let sim = with_pools();
    let engine_ = engine(&sim);
    let target = Path::new("/run/bulkhead/mnt/file/v");
    run(&engine_, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    run(&engine_, &Op::Create("file/w", 64, FsKind::Ext4)).unwrap();
    run(&engine_, &Op::Tenant("db", "file/v")).unwrap();
    run(&engine_, &Op::Tenant("web", "file/w")).unwrap();
    run(&engine_, &Op::Detach("web", "file/v")).unwrap();
    assert!(sim.leftovers().mounts.contains(&target.to_owned()), "another tenant's volume was unmounted");
    // Asked again while a volume cannot be mounted: what is there stays.
    sim.set_busy(target, true);
    assert_eq!(run(&engine_, &Op::RemoveTenant("db")).unwrap_err().code, Code::InUse);
    assert_eq!(run(&engine_, &Op::Tenant("other", "file/v")).unwrap_err().code, Code::InUse, "it is still db's");
    sim.set_busy(target, false);
    let later = engine(&sim);
    later.tick();
    assert_settled(&sim, &later, "after the removal was completed");
    // Nobody knows what a tenant with a damaged record holds.
    sim.corrupt(Path::new("/var/lib/bulkhead/tenants/web"), |bytes| bytes.truncate(40));
    let damaged = engine(&sim);
    assert!(sim.leftovers().mounts.contains(&PathBuf::from("/run/bulkhead/mnt/file/w")));
    assert_eq!(damaged.volume_remove(&volume("file/w"), false, false).unwrap_err().code, Code::Corrupt);
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

#[test]
fn a_limit_on_a_device_that_is_gone_does_not_keep_volumes_from_being_mounted() {
    let sim = with_pools();
    let first = engine(&sim);
    run(&first, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
    let limit = |device: &str, n| IoLimit { device: device.into(), write_iops: Some(n), ..IoLimit::default() };
    let create = |limits| TenantCreate {
        name: "db".parse().unwrap(),
        share: Share::DEFAULT,
        limits,
        volumes: vec![volume("file/v")],
    };
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
fn a_policy_that_cannot_be_put_in_force_is_not_recorded_and_a_lost_device_hides_no_other() {
    let sim = Sim::default();
    let first = engine(&sim);
    let bfq = DeviceControl { policy: Some(Policy::Bfq) };
    sim.crash_after(Some(1));
    first.device_control("sda", &bfq, false).unwrap_err();
    sim.crash_after(None);
    // Killed, not failed: the next start completes it.
    assert_eq!(engine(&sim).device_inspect("sda").unwrap().policy, Policy::Bfq);
    sim.crash_after(Some(1));
    first.device_control("sda", &DeviceControl { policy: None }, false).unwrap_err();
    sim.crash_after(None);
    let last = engine(&sim);
    assert_eq!(last.device_inspect("sda").unwrap().policy, Policy::Bfq, "not yet forgotten, so put in force again");
    let restored = last.device_control("sda", &DeviceControl { policy: None }, false).unwrap();
    assert_eq!(restored.object.unwrap().scheduler.as_deref(), Some("mq-deadline"));
}

#[test]
fn what_a_run_without_volumes_left_behind_is_ended() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, FsKind::Ext4)).unwrap();
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
