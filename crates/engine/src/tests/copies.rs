//! Clones, snapshots, and volumes that are sent and received.

use std::path::PathBuf;

use bulkhead_api::wire::{ResumeToken, TenantCreate, VolumeCopy, VolumeFlatten, VolumeSend};
use bulkhead_core::error::Code;
use bulkhead_core::model::{MountOptions, ReadFrom, VolumeFs};
use bulkhead_core::reason::Reason;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::units::Bytes;
use bulkhead_core::work::SendDevice;
use uuid::Uuid;

use super::{Op, engine, reason, run, volume, with_pools};
use crate::engine::Engine;

#[test]
fn a_flattened_volume_releases_its_layers() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ops = [Op::Create("file/v", 64, VolumeFs::Ext4), Op::Snapshot("file/v", "s"), Op::Tenant("db", "file/v")];
    ops.iter().for_each(|op| run(&engine, op).unwrap());
    let layers = |engine: &Engine| engine.volume_inspect(&volume("file/v")).unwrap().layers.unwrap().below.len();
    assert_eq!(layers(&engine), 1);
    run(&engine, &Op::Flatten("file/v")).unwrap();
    run(&engine, &Op::Remove("file/s")).unwrap();
    engine.tick();
    assert_eq!((layers(&engine), engine.problems().len()), (0, 0));
    assert!(sim.leftovers().unused_layers.is_empty());
    // A repeated request does nothing, and neither does one for a volume without layers.
    assert!(engine.volume_flatten(&volume("file/v"), &VolumeFlatten::default(), false).unwrap().steps.is_empty());
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    assert_eq!(run(&engine, &Op::Flatten("file/w")).unwrap_err().code, Code::Unsupported);
}

#[test]
fn copies_are_refused_when_thin_pool_metadata_is_nearly_full() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, VolumeFs::Ext4)).unwrap();
    sim.set_metadata_pct(89.9);
    run(&engine, &Op::Snapshot("thin/v", "s")).unwrap();
    sim.set_metadata_pct(90.0);
    let fault = run(&engine, &Op::Clone("thin/v", "c")).unwrap_err();
    assert!(fault.code == Code::NoSpace && fault.hint.contains("--poolmetadatasize"), "{fault:?}");
}

/// Each clone has two layers of 2 MiB, and unused volumes are not flattened yet.
#[test]
fn space_for_flattening_is_reserved() {
    let sim = with_pools();
    let engine = engine(&sim);
    let ops = [
        Op::Create("file/v", 64, VolumeFs::Ext4),
        Op::Snapshot("file/v", "s"),
        Op::Clone("file/s", "a"),
        Op::Clone("file/s", "b"),
    ];
    ops.iter().for_each(|op| run(&engine, op).unwrap());
    sim.set_free(Bytes::mib(71));
    run(&engine, &Op::Flatten("file/a")).unwrap();
    run(&engine, &Op::Flatten("file/b")).unwrap();
    // 63 MiB are not reserved.
    let fault = run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap_err();
    assert!(fault.code == Code::NoSpace && fault.cause.contains("has 63"), "{fault}");
    let cancel = VolumeFlatten { cancel: true };
    let done = engine.volume_flatten(&volume("file/a"), &cancel, false).unwrap();
    assert!(done.steps.iter().any(|step| step.changed));
    assert!(engine.volume_flatten(&volume("file/a"), &cancel, false).unwrap().steps.is_empty());
    run(&engine, &Op::Create("file/w", 64, VolumeFs::Ext4)).unwrap();
    sim.set_free(Bytes::mib(3));
    assert_eq!(run(&engine, &Op::Flatten("file/a")).unwrap_err().code, Code::NoSpace);
}

#[test]
fn peers_release_a_volume_before_it_is_unmounted() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("file/v", 64, VolumeFs::Ext4)).unwrap();
    let copy = |name: &str, read_from, domain: Option<&str>| VolumeCopy {
        read_from: Some(read_from),
        domain: domain.map(|domain| domain.parse().unwrap()),
        ..VolumeCopy::new(name.parse().unwrap(), false)
    };
    let code = |of: &str, request: VolumeCopy| engine.volume_copy(&volume(of), &request, false).unwrap_err().code;
    assert_eq!(code("file/v", copy("c", ReadFrom::HostCache, Some("d"))), Code::InvalidArgument);
    run(&engine, &Op::Create("thick/v", 64, VolumeFs::Ext4)).unwrap();
    assert_eq!(code("thick/v", copy("c", ReadFrom::Peers, None)), Code::Unsupported);
    let made = engine.volume_copy(&volume("file/v"), &copy("c", ReadFrom::Peers, Some("d")), false).unwrap();
    let view = made.object.unwrap();
    assert_eq!((view.read_from, view.domain.map(|domain| domain.to_string())), (ReadFrom::Peers, Some("d".to_owned())));
    // A clone with other options does not match the request.
    assert_eq!(code("file/v", copy("c", ReadFrom::Peers, None)), Code::AlreadyExists);
    run(&engine, &Op::Tenant("db", "file/c")).unwrap();
    let rows = engine.heatmap().unwrap();
    assert_eq!(rows.iter().map(|row| row.source_name.as_str()).collect::<Vec<_>>(), ["file/c"]);
    // The reader may have been killed; the volume is attached again.
    sim.kill_peer_reader();
    engine.tick();
    assert_eq!((engine.heatmap().unwrap().len(), engine.problems().len()), (1, 0));
    // The simulated host would notice if it were unmounted first.
    run(&engine, &Op::Remove("file/c")).unwrap();
    assert!(engine.heatmap().unwrap().is_empty());
}

#[test]
fn on_lvm_a_clone_shares_page_cache_with_its_snapshot_while_mounted() {
    let sim = with_pools();
    let engine = engine(&sim);
    run(&engine, &Op::Create("thin/v", 64, VolumeFs::Ext4)).unwrap();
    assert_eq!(engine.volume_inspect(&volume("thin/v")).unwrap().read_from, ReadFrom::Disk);
    assert_eq!(run(&engine, &Op::Share("thin/v", "c")).unwrap_err().code, Code::InvalidArgument);
    run(&engine, &Op::Snapshot("thin/v", "s")).unwrap();
    run(&engine, &Op::Share("thin/s", "c")).unwrap();
    // Copies do not inherit the option.
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
    run(&engine, &Op::Create("thin/x", 320, VolumeFs::Xfs)).unwrap();
    run(&engine, &Op::Snapshot("thin/x", "y")).unwrap();
    assert_eq!(run(&engine, &Op::Share("thin/y", "z")).unwrap_err().code, Code::Unsupported);
}

#[test]
fn an_incomplete_receive_is_listed_and_discarded() {
    let sim = with_pools();
    let engine = engine(&sim);
    [Op::Create("file/v", 64, VolumeFs::Ext4), Op::Snapshot("file/v", "s")]
        .iter()
        .for_each(|op| run(&engine, op).unwrap());
    let send = |name, from: Option<&str>| {
        let request = VolumeSend { from: from.map(|name| name.parse().unwrap()), ..VolumeSend::default() };
        engine.volume_send(&volume(name), &request, false).map(|done| done.object.unwrap())
    };
    // Only a snapshot can be sent, because it does not change.
    assert_eq!(send("file/v", None).unwrap_err().code, Code::InvalidArgument);
    let whole = send("file/s", None).unwrap();
    assert_eq!(whole.header.base, None);
    assert_eq!(whole.changed, whole.layers);
    assert_eq!(send("file/s", None).unwrap(), whole, "its content is unchanged");
    run(&engine, &Op::Snapshot("file/v", "t")).unwrap();
    let later = send("file/t", Some("s")).unwrap();
    assert_eq!(later.header.base, Some(whole.header.content));
    assert!(!later.changed.contains(later.layers.last().unwrap()), "common layers are not sent: {later:?}");

    // A transfer is resumed with the same content and base.
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
fn a_snapshot_sent_from_a_thin_pool_is_immutable() {
    let sim = with_pools();
    let engine = engine(&sim);
    for op in [
        Op::Create("thin/v", 64, VolumeFs::Ext4),
        Op::Snapshot("thin/v", "a"),
        Op::Snapshot("thin/v", "b"),
        Op::Create("thin/x", 320, VolumeFs::Xfs),
        Op::Snapshot("thin/x", "y"),
        Op::Create("thick/v", 64, VolumeFs::Ext4),
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
    // A dry run lists the steps, and changes nothing.
    let plan = send("thin/a", None, true).unwrap();
    let steps: Vec<String> = plan.steps.iter().map(|step| step.action.to_string()).collect();
    assert_eq!((plan.object, steps), (None, vec!["make tvg/a read-only".to_owned(), "activate tvg/a".to_owned()]));
    assert!(send("thin/b", Some("a"), false).is_err());
    let whole = send("thin/a", None, false).unwrap().object.unwrap();
    let device = |name: &str| PathBuf::from("/dev/tvg").join(name);
    assert_eq!(whole.header.content, engine.volume_inspect(&volume("thin/a")).unwrap().uuid);
    assert_eq!(whole.device, Some(SendDevice { path: device("a"), base: None }));
    let again = send("thin/a", None, false).unwrap();
    assert_eq!((again.object.as_ref(), again.steps[0].changed), (Some(&whole), false), "it is unchanged");
    let step = send("thin/b", Some("a"), false).unwrap().object.unwrap();
    assert_eq!(step.header.base, Some(whole.header.content));
    assert_eq!(step.device, Some(SendDevice { path: device("b"), base: Some(device("a")) }));
    // It can be used as before.
    run(&engine, &Op::Clone("thin/a", "c")).unwrap();
    run(&engine, &Op::Remove("thin/a")).unwrap();
}

#[test]
fn a_clone_keeps_its_mount_options_and_its_copies_inherit_only_subdir() {
    let sim = with_pools();
    let first = engine(&sim);
    for pool in ["file", "thin"] {
        let original = format!("{pool}/v");
        run(&first, &Op::Create(if pool == "file" { "file/v" } else { "thin/v" }, 64, VolumeFs::Ext4)).unwrap();
        let copy = |name: &str, read_only, mount_options| VolumeCopy {
            mount_options,
            ..VolumeCopy::new(name.parse().unwrap(), read_only)
        };
        let subdir = Some("data".parse().unwrap());
        let asked = MountOptions { suid: true, dev: true, subdir: subdir.clone() };
        let request = copy("root", false, asked.clone());
        let view = first.volume_copy(&volume(&original), &request, false).unwrap().object.unwrap();
        assert_eq!(view.mount_options, asked);
        assert!(first.volume_copy(&volume(&original), &request, false).unwrap().steps.is_empty());
        let other = copy("root", false, MountOptions::default());
        assert_eq!(first.volume_copy(&volume(&original), &other, false).unwrap_err().code, Code::AlreadyExists);
        // A copy inherits the directory, but not `suid` and `dev`.
        let root = volume(&format!("{pool}/root"));
        let inherited = MountOptions { subdir, ..MountOptions::default() };
        for (name, read_only) in [("snap", true), ("again", false)] {
            let made = first.volume_copy(&root, &copy(name, read_only, MountOptions::default()), false).unwrap();
            assert_eq!(made.object.unwrap().mount_options, inherited, "{pool}/{name}");
        }
        let tenant =
            TenantCreate { volumes: vec![root.clone(), volume(&original)], ..super::tenants::without_volumes(pool) };
        let steps = first.tenant_create(&tenant, false).unwrap().steps;
        let mounts: Vec<String> = steps.iter().map(|step| step.action.to_string()).collect();
        assert!(mounts.iter().any(|step| step.contains("(suid,dev,noatime)")), "{mounts:?}");
        assert!(mounts.iter().any(|step| step.contains("(nosuid,nodev,noatime)")), "{mounts:?}");
        let view = first.volume_inspect(&root).unwrap();
        assert_eq!(view.logical_block_bytes, Some(if pool == "file" { 4096 } else { 512 }));
        let at = view.mounted_at.unwrap();
        let at_original = first.volume_inspect(&volume(&original)).unwrap().mounted_at.unwrap();
        let check = |when: &str| {
            assert_eq!(sim.mounted_with(&at), Some(asked.clone()), "{pool}, {when}");
            assert_eq!(sim.mounted_with(&at_original), Some(MountOptions::default()), "{pool}, {when}");
        };
        check("attached");
        sim.unmount(&at);
        first.tick();
        check("after the periodic check");
        sim.reboot();
        engine(&sim);
        check("after a reboot");
    }
}
