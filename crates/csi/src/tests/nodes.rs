//! Two nodes, each with a daemon and a driver of its own, that are asked for one volume.

use bulkhead_core::name::Name;
use tonic::{Code, Request, Status};

use super::node::{Host, writer};
use super::{Mode, Service as _, Stack, answer, capability, map, refused, request};
use crate::TOPOLOGY;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::controller_service_capability::{Rpc as RpcCapability, Type};
use crate::proto::node_server::Node as _;
use crate::proto::{
    ControllerGetCapabilitiesRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
    CreateVolumeRequest, DeleteVolumeRequest, NodeExpandVolumeRequest, NodeGetVolumeHealthRequest,
    NodeGetVolumeStatsRequest, Topology, TopologyRequirement, ValidateVolumeCapabilitiesRequest,
};

/// A request for the volume `pvc-1` that these nodes, the first of them preferably, may create.
fn for_nodes(nodes: &[&str]) -> CreateVolumeRequest {
    let requisite: Vec<Topology> = nodes.iter().map(|node| Topology { segments: map(&[(TOPOLOGY, node)]) }).collect();
    let preferred = requisite[..1].to_vec();
    CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement { requisite, preferred }),
        ..request("pvc-1", 32)
    }
}

async fn has_nothing(stack: &Stack) -> bool {
    let (volumes, tenants) = (stack.daemon.volume_list(None).await.unwrap(), stack.daemon.tenant_list().await.unwrap());
    volumes.is_empty() && tenants.is_empty()
}

#[tokio::test]
async fn a_volume_is_created_by_the_node_of_its_topology_and_by_no_other() {
    let (one, two) = (Stack::start_on("node-1").await, Stack::start_on("node-2").await);
    for (stack, other, node) in [(&one, &two, "node-1"), (&two, &one, "node-2")] {
        // Both drivers are asked at once, twice.
        for _ in 0..2 {
            let (created, elsewhere) = tokio::join!(stack.create(for_nodes(&[node])), other.create(for_nodes(&[node])));
            assert_eq!(created.unwrap().accessible_topology, [Topology { segments: map(&[(TOPOLOGY, node)]) }]);
            let (code, text) = refused(elsewhere);
            assert!(code == Code::ResourceExhausted && text.contains("is not in the requested topology"), "{text}");
            assert!(has_nothing(other).await);
        }
        let delete = |stack: &Stack| {
            let request = DeleteVolumeRequest { volume_id: "fast/pvc-1".to_owned(), ..Default::default() };
            let controller = stack.controller.clone();
            async move { answer(controller.delete_volume(Request::new(request))).await.unwrap() }
        };
        // The other node has nothing to delete, and deletes nothing.
        delete(other).await;
        assert!(stack.daemon.volume_inspect(&"fast/pvc-1".parse().unwrap()).await.is_ok());
        delete(stack).await;
        assert!(has_nothing(stack).await);
    }
    // Where both may create it, each says that its own node has it, and is not asked to be elsewhere.
    for (stack, node) in [(&one, "node-1"), (&two, "node-2")] {
        let volume = stack.create(for_nodes(&["node-1", "node-2"])).await.unwrap();
        assert_eq!(volume.accessible_topology, [Topology { segments: map(&[(TOPOLOGY, node)]) }]);
    }
}

#[tokio::test]
async fn a_volume_of_another_node_is_not_found_and_the_answer_says_why() {
    let (one, two) = (Host::start_on("node-1").await, Host::start_on("node-2").await);
    let id = one.stack.create(request("pvc-1", 32)).await.unwrap().volume_id;
    let stage = two.path("stage");
    let volume_path = stage.clone();
    let stats = NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path: stage.clone(), ..Default::default() };
    let expand = NodeExpandVolumeRequest { volume_id: id.clone(), volume_path, ..Default::default() };
    let health = NodeGetVolumeHealthRequest { volume_id: id.clone(), ..Default::default() };
    let answers: [Result<(), Status>; 5] = [
        two.stage(&id, &stage, writer()).await,
        two.publish(two.publication(&id, "pods/a")).await,
        answer(two.node.node_get_volume_stats(Request::new(stats))).await.map(drop),
        answer(two.node.node_expand_volume(Request::new(expand))).await.map(drop),
        answer(two.node.node_get_volume_health(Request::new(health))).await.map(drop),
    ];
    for outcome in answers {
        let (code, text) = refused(outcome);
        assert_eq!(code, Code::NotFound, "{text}");
        assert!(text.contains("node node-2 has no such volume") && text.contains("nodeAffinity"), "{text}");
    }
    assert!(has_nothing(&two.stack).await && two.n_leases().await == 0);

    // It is used on its own node meanwhile, and what the other one gives back is not its.
    one.stage(&id, &one.path("stage"), writer()).await.unwrap();
    two.unpublish(&id, &two.path("pods/a")).await.unwrap();
    two.unstage(&id, &stage).await.unwrap();
    assert_eq!((one.n_leases().await, two.n_leases().await), (1, 0));
    let tenant: Name = "pvc-1".parse().unwrap();
    assert!(one.stack.daemon.tenant_inspect(&tenant).await.is_ok());
    one.unstage(&id, &one.path("stage")).await.unwrap();
}

#[tokio::test]
async fn no_volume_is_for_several_nodes_or_attached_to_one() {
    let stack = Stack::start().await;
    let id = stack.create(request("pvc-1", 32)).await.unwrap().volume_id;
    for mode in [Mode::MultiNodeReaderOnly, Mode::MultiNodeSingleWriter, Mode::MultiNodeMultiWriter] {
        let volume_capabilities = vec![capability(Mode::SingleNodeWriter, ""), capability(mode, "")];
        let validate = ValidateVolumeCapabilitiesRequest {
            volume_id: id.clone(),
            volume_capabilities: volume_capabilities.clone(),
            ..Default::default()
        };
        let found = answer(stack.controller.validate_volume_capabilities(Request::new(validate))).await.unwrap();
        assert!(found.confirmed.is_none() && found.message.contains("several nodes"), "{mode:?}: {found:?}");
        let (code, text) =
            refused(stack.create(CreateVolumeRequest { volume_capabilities, ..request("pvc-2", 32) }).await);
        assert!(code == Code::InvalidArgument && text.contains("ReadWriteOnce"), "{text}");
    }

    let (volume_id, node_id) = (id.clone(), "node-2".to_owned());
    let publish =
        ControllerPublishVolumeRequest { volume_id, node_id, volume_capability: Some(writer()), ..Default::default() };
    let publish = answer(stack.controller.controller_publish_volume(Request::new(publish))).await;
    assert_eq!(refused(publish).0, Code::Unimplemented);
    let unpublish = ControllerUnpublishVolumeRequest { volume_id: id, ..Default::default() };
    let unpublish = answer(stack.controller.controller_unpublish_volume(Request::new(unpublish))).await;
    assert_eq!(refused(unpublish).0, Code::Unimplemented);
    let announced = stack.controller.controller_get_capabilities(Request::new(ControllerGetCapabilitiesRequest {}));
    for capability in answer(announced).await.unwrap().capabilities {
        let Some(Type::Rpc(RpcCapability { r#type })) = capability.r#type else { continue };
        assert_ne!(r#type, i32::from(Rpc::PublishUnpublishVolume));
    }
}
