//! Volumes and snapshots, from creation to deletion.

use std::time::Duration;

use bulkhead_api::wire::VolumeCreate;
use bulkhead_core::model::FrontEnd;
use bulkhead_core::units::Bytes;
use tonic::{Code, Request, Response};

use super::{
    Controller, LIMIT, Mode, Service, Stack, answer, capability, from_snapshot, from_volume, map, refused, request,
    settings,
};
use crate::proto::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest,
    ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, GetCapacityRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest, Topology,
    TopologyRequirement, ValidateVolumeCapabilitiesRequest,
};
use crate::{TOPOLOGY, names};

#[tokio::test]
async fn a_volume_is_created_once_and_deleted_with_its_tenant() {
    let stack = Stack::start().await;
    let share = CreateVolumeRequest { parameters: map(&[("share", "300")]), ..request("pvc-1", 32) };
    let volume = stack.create(share.clone()).await.unwrap();
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("fast/pvc-1", 32 << 20));
    assert_eq!(volume.accessible_topology[0].segments, map(&[(TOPOLOGY, "node-1")]));
    assert_eq!(stack.create(share).await.unwrap(), volume);
    let view = stack.daemon.volume_inspect(&"fast/pvc-1".parse().unwrap()).await.unwrap();
    assert_eq!((view.created_by, view.default_tenant), (Some(FrontEnd::Csi), Some("pvc-1".parse().unwrap())));
    let tenant = stack.daemon.tenant_inspect(&"pvc-1".parse().unwrap()).await.unwrap();
    assert_eq!(tenant.share, "300".parse().unwrap());

    let least = CapacityRange { required_bytes: 1, limit_bytes: 16 << 20 };
    let least = CreateVolumeRequest { capacity_range: Some(least), ..request("least", 0) };
    for _ in 0..2 {
        assert_eq!(stack.create(least.clone()).await.unwrap().capacity_bytes, 16 << 20);
    }
    let delete = DeleteVolumeRequest { volume_id: "fast/least".to_owned(), ..Default::default() };
    answer(stack.controller.delete_volume(Request::new(delete))).await.unwrap();

    assert_eq!(refused(stack.create(request("pvc-1", 33)).await).0, Code::AlreadyExists);
    let xfs = CreateVolumeRequest {
        volume_capabilities: vec![capability(Mode::SingleNodeWriter, "xfs")],
        ..request("pvc-1", 32)
    };
    assert_eq!(refused(stack.create(xfs).await).0, Code::AlreadyExists);

    for (key, value) in [("tenant", "other"), ("subdir", "other"), ("suid", "true"), ("dev", "true")] {
        let other = CreateVolumeRequest { parameters: map(&[(key, value)]), ..request("pvc-1", 32) };
        assert_eq!(refused(stack.create(other).await).0, Code::AlreadyExists, "{key}");
    }
    assert_eq!(stack.daemon.tenant_list().await.unwrap().len(), 1);

    for id in ["fast/pvc-1", "fast/pvc-1", "no such id"] {
        let request = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        answer(stack.controller.delete_volume(Request::new(request))).await.unwrap();
    }
    assert!(stack.daemon.volume_list(None).await.unwrap().is_empty());
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn what_cannot_be_created_leaves_nothing() {
    let stack = Stack::start().await;
    let plain = || request("v", 32);
    let topology = |node: &str| Topology { segments: map(&[(TOPOLOGY, node)]) };
    let elsewhere = TopologyRequirement { requisite: vec![topology("node-2")], preferred: vec![] };
    let range = |required_bytes, limit_bytes| Some(CapacityRange { required_bytes, limit_bytes });
    for (request, code) in [
        (CreateVolumeRequest { name: String::new(), ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { volume_capabilities: vec![], ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { parameters: map(&[("poool", "fast")]), ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { parameters: map(&[("pool", "none")]), ..plain() }, Code::NotFound),
        (CreateVolumeRequest { mutable_parameters: map(&[("pool", "fast")]), ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { capacity_range: range(-1, 0), ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { capacity_range: range(8, 4), ..plain() }, Code::InvalidArgument),
        (CreateVolumeRequest { volume_content_source: from_snapshot("fast/none"), ..plain() }, Code::NotFound),
        (CreateVolumeRequest { volume_content_source: from_volume("none"), ..plain() }, Code::NotFound),
        (CreateVolumeRequest { accessibility_requirements: Some(elsewhere), ..plain() }, Code::ResourceExhausted),
    ] {
        assert_eq!(refused(stack.create(request.clone()).await).0, code, "{request:?}");
    }
    for (required, limit, code) in [
        (i64::MAX, 0, Code::ResourceExhausted),
        (1 << 50, 0, Code::ResourceExhausted),
        (0, 1, Code::OutOfRange),
        (1, (16 << 20) - 1, Code::OutOfRange),
    ] {
        let request = CreateVolumeRequest { capacity_range: range(required, limit), ..plain() };
        let (found, text) = refused(stack.create(request).await);
        assert_eq!(found, code, "{required} {limit}: {text}");
    }
    assert!(stack.daemon.volume_list(None).await.unwrap().is_empty());
    assert!(stack.daemon.tenant_list().await.unwrap().is_empty());
}

#[tokio::test]
async fn an_operators_volume_is_neither_taken_nor_deleted() {
    let stack = Stack::start().await;
    let volume = "fast/data".parse().unwrap();
    stack.daemon.volume_create(&VolumeCreate::new(volume, Bytes::mib(32)), false).await.unwrap();
    assert_eq!(refused(stack.create(request("data", 32)).await).0, Code::AlreadyExists);
    let delete = DeleteVolumeRequest { volume_id: "fast/data".to_owned(), ..Default::default() };
    assert_eq!(refused(answer(stack.controller.delete_volume(Request::new(delete))).await).0, Code::InvalidArgument);
    let listed = answer(stack.controller.list_volumes(Request::new(ListVolumesRequest::default()))).await.unwrap();
    assert!(listed.entries.is_empty());
}

#[tokio::test]
async fn a_snapshot_is_made_once_and_restored_to_a_larger_volume() {
    let stack = Stack::start().await;
    for name in ["a", "b"] {
        stack.create(request(name, 32)).await.unwrap();
    }
    let snapshot = stack.snapshot("snapshot-1", "fast/a").await.unwrap();
    assert_eq!(
        (snapshot.source_volume_id.as_str(), snapshot.size_bytes, snapshot.ready_to_use),
        ("fast/a", 32 << 20, true)
    );
    assert!(snapshot.creation_time.unwrap().seconds > 1_600_000_000);
    assert_eq!(stack.snapshot("snapshot-1", "fast/a").await.unwrap(), snapshot);
    assert_eq!(refused(stack.snapshot("snapshot-1", "fast/b").await).0, Code::AlreadyExists);
    assert_eq!(refused(stack.snapshot("snapshot-2", "fast/none").await).0, Code::NotFound);
    assert_eq!(refused(stack.snapshot("", "fast/a").await).0, Code::InvalidArgument);

    let source = from_snapshot(&snapshot.snapshot_id);
    let restore = CreateVolumeRequest { volume_content_source: source.clone(), ..request("restored", 48) };
    let volume = stack.create(restore.clone()).await.unwrap();
    assert_eq!((volume.capacity_bytes, &volume.content_source), (48 << 20, &source));
    assert_eq!(stack.create(restore).await.unwrap(), volume);
    let capacity_range = Some(CapacityRange { required_bytes: 0, limit_bytes: 16 << 20 });
    let small = CreateVolumeRequest { volume_content_source: source, capacity_range, ..request("small", 0) };
    assert_eq!(refused(stack.create(small).await).0, Code::OutOfRange);
    let clone = CreateVolumeRequest { volume_content_source: from_volume("fast/a"), ..request("clone", 32) };
    stack.create(clone).await.unwrap();
    let other = CreateVolumeRequest { volume_content_source: from_volume("fast/b"), ..request("clone", 32) };
    assert_eq!(refused(stack.create(other).await).0, Code::AlreadyExists);
    for (key, value) in [("tenant", "a"), ("subdir", "other"), ("suid", "true")] {
        let source = from_volume("fast/a");
        let parameters = map(&[(key, value)]);
        let other = CreateVolumeRequest { volume_content_source: source, parameters, ..request("clone", 32) };
        assert_eq!(refused(stack.create(other).await).0, Code::AlreadyExists, "{key}");
    }
    let get = |id: &str| GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let found = answer(stack.controller.get_snapshot(Request::new(get(&snapshot.snapshot_id)))).await.unwrap();
    assert_eq!(found.snapshot, Some(snapshot.clone()));
    for id in ["fast/a", "fast/none", "none"] {
        assert_eq!(refused(answer(stack.controller.get_snapshot(Request::new(get(id)))).await).0, Code::NotFound);
    }

    let delete = |id: &str| DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let volume = answer(stack.controller.delete_snapshot(Request::new(delete("fast/a")))).await;
    assert_eq!(refused(volume).0, Code::InvalidArgument);
    for id in [&snapshot.snapshot_id, &snapshot.snapshot_id, "none"] {
        answer(stack.controller.delete_snapshot(Request::new(delete(id)))).await.unwrap();
    }
    let listed = answer(stack.controller.list_snapshots(Request::new(ListSnapshotsRequest::default()))).await.unwrap();
    assert!(listed.entries.is_empty());
    let gone =
        CreateVolumeRequest { volume_content_source: from_snapshot(&snapshot.snapshot_id), ..request("late", 48) };
    assert_eq!(refused(stack.create(gone).await).0, Code::NotFound);
}

#[tokio::test]
async fn lists_come_in_pages_also_when_the_last_volume_of_a_page_is_deleted() {
    let stack = Stack::start().await;
    for name in ["a", "b", "c"] {
        stack.create(request(name, 16)).await.unwrap();
        stack.snapshot(name, &format!("fast/{name}")).await.unwrap();
    }
    let page = async |max_entries, starting_token: &str| {
        let request = ListVolumesRequest { max_entries, starting_token: starting_token.to_owned() };
        let reply = answer(stack.controller.list_volumes(Request::new(request))).await?;
        let ids: Vec<String> = reply.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect();
        Ok::<_, tonic::Status>((ids.join(" "), reply.next_token))
    };
    let (first, token) = page(2, "").await.unwrap();
    assert_eq!(first, "fast/a fast/b");
    let delete = DeleteVolumeRequest { volume_id: "fast/b".to_owned(), ..Default::default() };
    answer(stack.controller.delete_volume(Request::new(delete))).await.unwrap();
    let health = ControllerListVolumeHealthRequest { max_entries: 1, ..Default::default() };
    let health = answer(stack.controller.controller_list_volume_health(Request::new(health))).await.unwrap();
    assert_eq!((health.entries[0].volume_id.as_str(), health.next_token.is_empty()), ("fast/a", false));
    let health = |id: &str| ControllerGetVolumeHealthRequest { volume_id: id.to_owned(), ..Default::default() };
    let sound = answer(stack.controller.controller_get_volume_health(Request::new(health("fast/a")))).await.unwrap();
    assert_eq!(sound.volume_health.unwrap().health_statuses, []);
    let gone = answer(stack.controller.controller_get_volume_health(Request::new(health("fast/b")))).await;
    assert_eq!(refused(gone).0, Code::NotFound);
    let get = |id: &str| ControllerGetVolumeRequest { volume_id: id.to_owned() };
    let found = answer(stack.controller.controller_get_volume(Request::new(get("fast/a")))).await.unwrap();
    assert_eq!(found.volume.unwrap().capacity_bytes, 16 << 20);
    assert_eq!(refused(answer(stack.controller.controller_get_volume(Request::new(get("x")))).await).0, Code::NotFound);
    assert_eq!(page(2, &token).await.unwrap(), ("fast/c".to_owned(), String::new()));
    assert_eq!(page(0, "").await.unwrap().0, "fast/a fast/c");
    assert_eq!(refused(page(2, "invalid-token").await).0, Code::Aborted);
    assert_eq!(refused(page(-1, "").await).0, Code::InvalidArgument);

    let listed = async |snapshot_id: &str, source_volume_id: &str| {
        let (snapshot_id, source_volume_id) = (snapshot_id.to_owned(), source_volume_id.to_owned());
        let request = ListSnapshotsRequest { snapshot_id, source_volume_id, ..Default::default() };
        answer(stack.controller.list_snapshots(Request::new(request))).await.unwrap().entries.len()
    };
    let id = format!("fast/{}", names::of_snapshot("a").unwrap());
    assert_eq!(listed("", "").await, 3);
    assert_eq!((listed(&id, "").await, listed("", "fast/c").await, listed(&id, "fast/c").await), (1, 1, 0));
    assert_eq!((listed("none", "").await, listed("", "none").await), (0, 0));
}

#[tokio::test]
async fn a_volume_is_modified_and_validated() {
    let stack = Stack::start().await;
    stack.create(request("v", 32)).await.unwrap();
    // Volumes of other nodes would be asked for as well.
    let expand = ControllerExpandVolumeRequest { volume_id: "fast/v".to_owned(), ..Default::default() };
    let expand: Result<Response<_>, _> = stack.controller.controller_expand_volume(Request::new(expand)).await;
    assert_eq!(expand.unwrap_err().code(), Code::Unimplemented);

    let modify = async |id: &str, mutable_parameters| {
        let request =
            ControllerModifyVolumeRequest { volume_id: id.to_owned(), mutable_parameters, ..Default::default() };
        answer(stack.controller.controller_modify_volume(Request::new(request))).await
    };
    modify("fast/v", map(&[("share", "700")])).await.unwrap();
    let tenant = stack.daemon.tenant_inspect(&"v".parse().unwrap()).await.unwrap();
    assert_eq!(tenant.share, "700".parse().unwrap());
    modify("fast/v", map(&[("writeIops", "100"), ("readBytesPerSecond", "1M")])).await.unwrap();
    modify("fast/v", map(&[("readBytesPerSecond", "max")])).await.unwrap();
    let tenant = stack.daemon.tenant_inspect(&"v".parse().unwrap()).await.unwrap();
    assert_eq!(tenant.share, "700".parse().unwrap());
    assert!(!tenant.limits.is_empty());
    assert!(tenant.limits.iter().all(|limit| (limit.write_iops, limit.read_bytes_per_second) == (Some(100), None)));
    let limited = CreateVolumeRequest { mutable_parameters: map(&[("writeIops", "50")]), ..request("w", 32) };
    for _ in 0..2 {
        stack.create(limited.clone()).await.unwrap();
    }
    let tenant = stack.daemon.tenant_inspect(&"w".parse().unwrap()).await.unwrap();
    assert!(!tenant.limits.is_empty() && tenant.limits.iter().all(|limit| limit.write_iops == Some(50)));
    let promised =
        async |tenant: &str| stack.daemon.tenant_inspect(&tenant.parse().unwrap()).await.unwrap().fsync_p99_us;
    modify("fast/v", map(&[("fsyncP99", "13062us")])).await.unwrap();
    modify("fast/v", map(&[("share", "600")])).await.unwrap();
    assert_eq!(promised("v").await, Some(13_062));
    modify("fast/v", map(&[("fsyncP99", "none")])).await.unwrap();
    assert_eq!(promised("v").await, None);
    let promise = CreateVolumeRequest { parameters: map(&[("fsyncP99", "1s")]), ..request("x", 32) };
    stack.create(promise).await.unwrap();
    assert_eq!(promised("x").await, Some(1_000_000));
    assert_eq!(refused(modify("fast/v", map(&[("fsyncP99", "0ms")])).await).0, Code::InvalidArgument);
    assert_eq!(refused(modify("fast/v", map(&[("pool", "x")])).await).0, Code::InvalidArgument);
    assert_eq!(refused(modify("fast/none", map(&[])).await).0, Code::NotFound);

    let validate = async |id: &str, volume_capabilities| {
        let request =
            ValidateVolumeCapabilitiesRequest { volume_id: id.to_owned(), volume_capabilities, ..Default::default() };
        let reply = answer(stack.controller.validate_volume_capabilities(Request::new(request))).await?;
        Ok::<_, tonic::Status>(reply.confirmed.is_some())
    };
    assert!(validate("fast/v", vec![capability(Mode::SingleNodeWriter, "ext4")]).await.unwrap());
    assert!(!validate("fast/v", vec![capability(Mode::SingleNodeWriter, "xfs")]).await.unwrap());
    assert!(!validate("fast/v", vec![capability(Mode::MultiNodeMultiWriter, "")]).await.unwrap());
    assert_eq!(refused(validate("fast/v", vec![]).await).0, Code::InvalidArgument);
    assert_eq!(refused(validate("fast/none", vec![capability(Mode::SingleNodeWriter, "")]).await).0, Code::NotFound);
}

#[tokio::test]
async fn capacity_is_that_of_a_pool_of_this_node() {
    let stack = Stack::start().await;
    let capacity = async |topology: Option<&str>, modes: &[Mode]| {
        let request = GetCapacityRequest {
            accessible_topology: topology.map(|node| Topology { segments: map(&[(TOPOLOGY, node)]) }),
            volume_capabilities: modes.iter().map(|mode| capability(*mode, "")).collect(),
            ..Default::default()
        };
        answer(stack.controller.get_capacity(Request::new(request))).await.unwrap().available_capacity
    };
    let free = stack.daemon.pool_inspect(&"fast".parse().unwrap()).await.unwrap().free_bytes.unwrap();
    assert!(free.0 > 0);
    let free = i64::try_from(free.0).unwrap();
    assert_eq!((capacity(None, &[]).await, capacity(Some("node-1"), &[]).await), (free, free));
    assert_eq!(capacity(Some("node-2"), &[]).await, 0);
    assert_eq!(capacity(None, &[Mode::MultiNodeMultiWriter]).await, 0);
}

#[tokio::test]
async fn calls_on_one_volume_are_carried_out_one_at_a_time() {
    let stack = Stack::start().await;
    let calls = (0..8).map(|_| {
        let controller = stack.controller.clone();
        tokio::spawn(async move { controller.create_volume(Request::new(request("v", 32))).await })
    });
    for call in calls.collect::<Vec<_>>() {
        match call.await.unwrap() {
            Ok(reply) => assert_eq!(reply.into_inner().volume.unwrap().volume_id, "fast/v"),
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
    }
    // The claim ends with the call.
    stack.create(request("v", 32)).await.unwrap();
    assert_eq!(stack.daemon.volume_list(None).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_call_that_takes_longer_than_its_caller_waits_goes_on_and_is_answered_with_its_result_later() {
    let stack = Stack::start().await;
    let hasty = Controller::new(stack.daemon.clone(), settings(Duration::ZERO));
    let mut n_aborted = 0;
    let volume = tokio::time::timeout(LIMIT, async {
        loop {
            match hasty.create_volume(Request::new(request("v", 32))).await {
                Ok(reply) => break reply.into_inner().volume.unwrap(),
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
            }
            n_aborted += 1;
            // The call goes on in this thread.
            tokio::task::yield_now().await;
            if !stack.daemon.volume_list(None).await.unwrap().is_empty() {
                break stack.create(request("v", 32)).await.unwrap();
            }
        }
    });
    assert_eq!(volume.await.unwrap().volume_id, "fast/v");
    assert!(n_aborted > 0);
    assert_eq!(stack.daemon.volume_list(None).await.unwrap().len(), 1);
    assert_eq!(stack.daemon.tenant_list().await.unwrap().len(), 1);
}
