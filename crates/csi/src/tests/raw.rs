//! Raw volumes (`volumeMode: Block`). In place of the device that the simulated host has only claimed to bind, the test binds the node of a
//! device of this machine, which nobody opens.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use bulkhead_core::model::VolumeFs;
use tonic::{Code, Request, Status};

use super::node::{Host, in_own_mounts, run, writer};
use super::{Mode, Stack, answer, block, capability, from_snapshot, from_volume, map, refused, request};
use crate::proto::controller_server::Controller as _;
use crate::proto::node_server::Node as _;
use crate::proto::volume_usage::Unit;
use crate::proto::{
    CapacityRange, CreateVolumeRequest, NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    ValidateVolumeCapabilitiesRequest, VolumeUsage,
};

fn raw(name: &str, mib: i64) -> CreateVolumeRequest {
    CreateVolumeRequest { volume_capabilities: vec![block(Mode::SingleNodeWriter)], ..request(name, mib) }
}

/// Two devices whose nodes exist.
fn nodes() -> Option<[PathBuf; 2]> {
    let is_block = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    let entries = std::fs::read_dir("/dev").ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let mut nodes: Vec<PathBuf> = entries.filter(is_block).collect();
    nodes.sort();
    Some([nodes.first()?.clone(), nodes.get(1)?.clone()])
}

/// Creates and stages a raw volume, with this node in place of its device's.
async fn staged(host: &Host, name: &str, node: &Path) -> String {
    let id = host.stack.create(raw(name, 32)).await.unwrap().volume_id;
    host.stage(&id, &host.path("stage"), block(Mode::SingleNodeWriter)).await.unwrap();
    let leases = host.stack.daemon.lease_list().await.unwrap();
    let at = &leases.iter().find(|lease| lease.volume.to_string() == id).unwrap().mounted_at;
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, "").unwrap();
    run("mount", &["--bind", node.to_str().unwrap(), at.to_str().unwrap()]);
    id
}

fn publication(host: &Host, id: &str, target: &str) -> NodePublishVolumeRequest {
    let volume_capability = Some(block(Mode::SingleNodeWriter));
    NodePublishVolumeRequest { volume_capability, ..host.publication(id, target) }
}

#[tokio::test]
async fn a_block_claim_gets_a_raw_volume_and_no_other_use_of_it() {
    let stack = Stack::start().await;
    let view = async |name: &str| stack.daemon.volume_inspect(&format!("fast/{name}").parse().unwrap()).await.unwrap();
    let made = stack.create(raw("v", 32)).await.unwrap();
    assert_eq!((view("v").await.fs, made.capacity_bytes), (VolumeFs::None, 32 << 20));
    assert_eq!(stack.create(raw("v", 32)).await.unwrap(), made, "repeated");
    // A raw volume has no minimum of a file system.
    assert_eq!(stack.create(raw("small", 1)).await.unwrap().capacity_bytes, 4 << 20);

    let other = async |request| refused(stack.create(request).await);
    let (code, text) = other(request("v", 32)).await;
    assert!(code == Code::AlreadyExists && text.contains("raw volume"), "{text}");
    stack.create(request("fs", 32)).await.unwrap();
    let (code, text) = other(raw("fs", 32)).await;
    assert!(code == Code::AlreadyExists && text.contains("ext4"), "{text}");
    let both = vec![block(Mode::SingleNodeWriter), capability(Mode::SingleNodeWriter, "ext4")];
    let mixed = CreateVolumeRequest { volume_capabilities: both, ..request("mixed", 32) };
    assert_eq!(other(mixed).await.0, Code::InvalidArgument);

    for (key, value) in
        [("journalSize", "auto"), ("fastCommit", "true"), ("subdir", "data"), ("suid", "true"), ("dev", "true")]
    {
        let (code, text) = other(CreateVolumeRequest { parameters: map(&[(key, value)]), ..raw("w", 32) }).await;
        assert!(code == Code::InvalidArgument && text.contains(&format!("{key:?}")), "{text}");
    }
    for given in [("share", "300"), ("provision", "on-demand"), ("readIops", "100")] {
        let parameters = map(&[given]);
        stack.create(CreateVolumeRequest { parameters, ..raw(given.0, 32) }).await.unwrap();
    }

    let validate = async |id: &str, capability| {
        let (volume_id, volume_capabilities) = (id.to_owned(), vec![capability]);
        let request = ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities, ..Default::default() };
        answer(stack.controller.validate_volume_capabilities(Request::new(request))).await.unwrap().confirmed.is_some()
    };
    for (id, is_raw) in [("fast/v", true), ("fast/fs", false)] {
        assert_eq!(validate(id, block(Mode::SingleNodeWriter)).await, is_raw);
        assert_eq!(validate(id, capability(Mode::SingleNodeWriter, "")).await, !is_raw);
    }
}

#[tokio::test]
async fn copies_of_raw_volumes_are_raw_volumes() {
    let stack = Stack::start().await;
    let id = stack.create(raw("v", 32)).await.unwrap().volume_id;
    let snapshot = stack.snapshot("s", &id).await.unwrap().snapshot_id;
    for (name, source) in [("c", from_snapshot(&snapshot)), ("d", from_volume(&id))] {
        let copy = CreateVolumeRequest { volume_content_source: source.clone(), ..raw(name, 64) };
        let made = stack.create(copy.clone()).await.unwrap();
        assert_eq!((stack.create(copy).await.unwrap(), made.capacity_bytes), (made.clone(), 64 << 20));
        let fs = CreateVolumeRequest { volume_content_source: source, ..request("other", 64) };
        let (code, text) = refused(stack.create(fs).await);
        assert!(code == Code::InvalidArgument && text.contains("raw volume"), "{text}");
    }
    let fs = stack.create(request("fs", 32)).await.unwrap().volume_id;
    let of_fs = CreateVolumeRequest { volume_content_source: from_volume(&fs), ..raw("other", 32) };
    assert_eq!(refused(stack.create(of_fs).await).0, Code::InvalidArgument);
}

#[tokio::test]
async fn root_the_device_of_a_raw_volume_is_published_as_often_as_asked() {
    let Some([node, foreign]) = nodes() else {
        println!("skipped: there are no two block devices");
        return;
    };
    if !in_own_mounts("tests::raw::root_the_device_of_a_raw_volume_is_published_as_often_as_asked") {
        return;
    }
    let host = Host::start().await;
    // A file system is what it is not staged for, and the other way round.
    let id = host.stack.create(raw("w", 32)).await.unwrap().volume_id;
    let (code, text) = refused(host.stage(&id, &host.path("stage"), writer()).await);
    assert!(code == Code::InvalidArgument && text.contains("raw volume"), "{text}");

    let (id, other) = (staged(&host, "v", &node).await, staged(&host, "x", &foreign).await);
    for target in ["pods/a", "pods/a", "pods/b"] {
        host.publish(publication(&host, &id, target)).await.unwrap();
        let found = std::fs::symlink_metadata(host.kubelet.join(target)).unwrap();
        assert!(found.file_type().is_block_device());
        assert_eq!(found.rdev(), std::fs::metadata(&node).unwrap().rdev());
    }
    let as_fs = NodePublishVolumeRequest { volume_capability: Some(writer()), ..publication(&host, &id, "pods/c") };
    assert_eq!(refused(host.publish(as_fs).await).0, Code::InvalidArgument);
    let read_only = NodePublishVolumeRequest { readonly: true, ..publication(&host, &id, "pods/c") };
    let (code, text) = refused(host.publish(read_only).await);
    assert!(code == Code::InvalidArgument && text.contains("would not prevent writes"), "{text}");
    assert!(!host.kubelet.join("pods/c").exists());
    let exclusive = NodePublishVolumeRequest {
        volume_capability: Some(block(Mode::SingleNodeSingleWriter)),
        ..publication(&host, &id, "pods/c")
    };
    let (code, text) = refused(host.publish(exclusive.clone()).await);
    assert!(code == Code::FailedPrecondition && text.contains("pods/"), "{text}");

    // The node of another device is in the same file system, and is another volume all the same.
    assert_eq!(refused(host.publish(publication(&host, &other, "pods/a")).await).0, Code::FailedPrecondition);
    assert_eq!(refused(host.unpublish(&other, &host.path("pods/a")).await).0, Code::FailedPrecondition);
    host.publish(publication(&host, &other, "pods/other")).await.unwrap();
    for _ in 0..2 {
        for target in ["pods/a", "pods/b"] {
            host.unpublish(&id, &host.path(target)).await.unwrap();
            assert!(!host.kubelet.join(target).exists());
        }
    }
    host.publish(exclusive).await.unwrap();
    host.unpublish(&id, &host.path("pods/c")).await.unwrap();
    host.unpublish(&other, &host.path("pods/other")).await.unwrap();
    for id in [&id, &other, &id] {
        host.unstage(id, &host.path("stage")).await.unwrap();
    }
    assert_eq!(host.n_leases().await, 0);
    let late = refused(host.publish(publication(&host, &id, "pods/a")).await);
    assert_eq!(late.0, Code::FailedPrecondition, "{}", late.1);
}

#[tokio::test]
async fn root_what_is_in_the_way_of_a_device_is_refused_and_stays() {
    let Some([node, foreign]) = nodes() else {
        println!("skipped: there are no two block devices");
        return;
    };
    if !in_own_mounts("tests::raw::root_what_is_in_the_way_of_a_device_is_refused_and_stays") {
        return;
    }
    let host = Host::start().await;
    let id = staged(&host, "v", &node).await;
    let elsewhere = host.stack.dir.path().join("elsewhere");
    std::fs::create_dir_all(&elsewhere).unwrap();
    std::fs::write(elsewhere.join("empty"), "").unwrap();
    symlink(&elsewhere, host.kubelet.join("link")).unwrap();
    symlink(elsewhere.join("empty"), host.kubelet.join("pods/link")).unwrap();
    symlink(elsewhere.join("new"), host.kubelet.join("pods/dangling")).unwrap();
    std::fs::create_dir(host.kubelet.join("pods/directory")).unwrap();
    std::fs::write(host.kubelet.join("pods/full"), "data").unwrap();
    run("mkfifo", &[&host.path("pods/fifo")]);
    let publish = async |target: &str| refused(host.publish(publication(&host, &id, target)).await).0;
    for target in ["../elsewhere/x", "pods/../../elsewhere/x", "link/x", "pods/link", "pods/dangling", "/etc/x", ""] {
        assert_eq!(publish(target).await, Code::InvalidArgument, "{target}");
    }
    for target in ["pods/directory", "pods/full", "pods/fifo", "pods/full/x", "pods/none/x"] {
        assert_eq!(publish(target).await, Code::FailedPrecondition, "{target}");
    }
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1);
    assert_eq!(std::fs::read(host.kubelet.join("pods/full")).unwrap(), b"data");

    // What is not the volume's is neither unmounted nor removed: another node, also over the volume's, and a file with content.
    let target = host.path("pods/a");
    std::fs::write(&target, "").unwrap();
    run("mount", &["--bind", foreign.to_str().unwrap(), &target]);
    assert_eq!(publish("pods/a").await, Code::FailedPrecondition);
    assert_eq!(refused(host.unpublish(&id, &target).await).0, Code::FailedPrecondition);
    run("umount", &[&target]);
    host.publish(publication(&host, &id, "pods/a")).await.unwrap();
    run("mount", &["--bind", foreign.to_str().unwrap(), &target]);
    let (code, text) = refused(host.unpublish(&id, &target).await);
    assert!(code == Code::FailedPrecondition && text.contains("unmount it"), "{text}");
    run("umount", &[&target]);
    host.unpublish(&id, &target).await.unwrap();
    let full = refused(host.unpublish(&id, &host.path("pods/full")).await);
    assert!(full.0 == Code::FailedPrecondition && host.kubelet.join("pods/full").exists(), "{}", full.1);

    // One that is gone can be unpublished, and leaves the file that an interrupted call has made.
    std::fs::write(&target, "").unwrap();
    host.unpublish("fast/none", &target).await.unwrap();
    assert!(!Path::new(&target).exists());
}

#[tokio::test]
async fn root_a_raw_volume_has_a_size_and_is_expanded() {
    let Some([node, _]) = nodes() else {
        println!("skipped: there are no two block devices");
        return;
    };
    if !in_own_mounts("tests::raw::root_a_raw_volume_has_a_size_and_is_expanded") {
        return;
    }
    let host = Host::start().await;
    let id = staged(&host, "v", &node).await;
    host.publish(publication(&host, &id, "pods/a")).await.unwrap();
    let stats = async |path: &str| {
        let (volume_id, volume_path) = (id.clone(), host.path(path));
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        answer(host.node.node_get_volume_stats(Request::new(request))).await
    };
    for path in ["pods/a", "stage"] {
        let expected = VolumeUsage { total: 32 << 20, unit: Unit::Bytes.into(), ..Default::default() };
        assert_eq!(stats(path).await.unwrap().usage, [expected], "{path}");
    }
    assert_eq!(refused(stats("pods/b").await).0, Code::NotFound);

    let expand = async |path: String, staging: &str, capability, mib: i64| -> Result<i64, Status> {
        let request = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: path,
            staging_target_path: if staging.is_empty() { String::new() } else { host.path(staging) },
            capacity_range: Some(CapacityRange { required_bytes: mib << 20, limit_bytes: 0 }),
            volume_capability: capability,
            ..Default::default()
        };
        answer(host.node.node_expand_volume(Request::new(request))).await.map(|reply| reply.capacity_bytes)
    };
    let as_block = || Some(block(Mode::SingleNodeWriter));
    assert_eq!(expand(host.path("pods/a"), "", as_block(), 48).await.unwrap(), 48 << 20);
    assert_eq!(expand(host.path("stage"), "", None, 64).await.unwrap(), 64 << 20);
    // A path of the kubelet's own, with the staging path.
    assert_eq!(expand("/dev/loop7".to_owned(), "stage", as_block(), 80).await.unwrap(), 80 << 20);
    assert_eq!(refused(expand("/dev/loop7".to_owned(), "", as_block(), 96).await).0, Code::NotFound);
    assert_eq!(refused(expand("/dev/loop7".to_owned(), "other", as_block(), 96).await).0, Code::NotFound);
    assert_eq!(refused(expand(host.path("pods/a"), "", Some(writer()), 96).await).0, Code::InvalidArgument);
    assert_eq!(stats("pods/a").await.unwrap().usage[0].total, 80 << 20);
}
