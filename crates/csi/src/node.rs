//! Calls that make volumes usable on this node.
//!
//! A staged volume is a lease in the daemon, whose user is the staging path; a published one is a bind mount in the kernel. The driver itself
//! has no state, so that it can be restarted between any two calls. It mounts in its own mount namespace, which has to be the one of the
//! orchestrator's agent, or one whose mounts propagate there.

mod paths;
mod publish;
mod stage;
mod stats;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_api::wire::{LeaseView, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_sys::roots::Roots;
use tonic::{Request, Response, Status, async_trait};

use self::paths::staged_by;
use crate::calls::Calls;
use crate::proto::node_server::Node as Service;
use crate::proto::node_service_capability::rpc::Type as Rpc;
use crate::proto::node_service_capability::{Rpc as RpcCapability, Type};
use crate::proto::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest, NodeGetStorageHealthResponse,
    NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, Topology,
};
use crate::{TOPOLOGY, health, names, status};

/// What the node announces. `VOLUME_MOUNT_GROUP` is not among them: it would keep the orchestrator's agent from applying a pod's `fsGroup`.
const CAPABILITIES: [Rpc; 5] =
    [Rpc::StageUnstageVolume, Rpc::GetVolumeStats, Rpc::ExpandVolume, Rpc::SingleNodeMultiWriter, Rpc::GetVolumeHealth];

/// The node, and where its agent keeps what containers use.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the orchestrator.
    pub node: String,
    /// All staging and target paths are below this directory.
    pub kubelet_dir: PathBuf,
    /// How long a call waits before it answers `ABORTED`, and goes on.
    pub patience: Duration,
}

/// The node service. It has no state but the calls in progress.
#[derive(Clone, Debug)]
pub struct Node {
    daemon: Client,
    settings: Arc<Settings>,
    calls: Calls,
    roots: Roots,
}

impl Node {
    /// The node service in front of a daemon.
    #[must_use]
    pub fn new(daemon: Client, settings: Settings) -> Self {
        let calls = Calls::new(settings.patience);
        Self { daemon, settings: Arc::new(settings), calls, roots: Roots::host() }
    }

    /// The volume that an id names. A snapshot is none.
    async fn volume(&self, id: &str) -> Result<VolumeView, Fault> {
        let none = || {
            let cause = format!(
                "node {} has no such volume, and a volume stays on the node that created it",
                self.settings.node
            );
            Fault::new(Code::NotFound, format!("volume {id}"), cause)
                .hint("the nodeAffinity of its PersistentVolume names that node")
        };
        let Some(volume) = names::parse_id("volume_id", id)? else { return Err(none()) };
        match self.daemon.volume_inspect(&volume).await {
            Ok(view) if view.read_only => Err(none()),
            Err(fault) if fault.code == Code::NotFound => Err(none()),
            found => found,
        }
    }

    /// The lease of a volume that is staged at a path.
    async fn lease(&self, volume: &VolumeRef, staging_path: &str) -> Result<Option<LeaseView>, Fault> {
        let user = staged_by(staging_path);
        let leases = self.daemon.lease_list().await?;
        Ok(leases.into_iter().find(|lease| lease.volume == *volume && lease.user.as_ref() == Some(&user)))
    }
}

/// Refuses a request that lacks a field.
fn required(field: &str, value: &str) -> Result<(), Fault> {
    if value.is_empty() { Err(Fault::new(Code::InvalidArgument, field, "it is empty")) } else { Ok(()) }
}

fn failed(fault: Fault) -> Status {
    status::of(&fault)
}

/// System calls that may wait, on a thread for those.
async fn blocking<T: Send + 'static>(calls: impl FnOnce() -> Result<T, Fault> + Send + 'static) -> Result<T, Fault> {
    let aborted = |_| Err(Fault::new(Code::Internal, "node", "the call was aborted"));
    tokio::task::spawn_blocking(calls).await.unwrap_or_else(aborted)
}

#[async_trait]
impl Service for Node {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        let call = async move { this.stage(&request).await.map(|()| NodeStageVolumeResponse {}).map_err(failed) };
        self.calls.carry_out(&object, call).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        let call = async move { this.unstage(&request).await.map(|()| NodeUnstageVolumeResponse {}).map_err(failed) };
        self.calls.carry_out(&object, call).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        let call = async move { this.publish(&request).await.map(|()| NodePublishVolumeResponse {}).map_err(failed) };
        self.calls.carry_out(&object, call).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        let call =
            async move { this.unpublish(&request).await.map(|()| NodeUnpublishVolumeResponse {}).map_err(failed) };
        self.calls.carry_out(&object, call).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.stats(&request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        let call = async move { this.expand(&request).await };
        self.calls.carry_out(&object, call).await
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        let view = self.volume(&request.into_inner().volume_id).await.map_err(failed)?;
        Ok(Response::new(NodeGetVolumeHealthResponse { volume_health: Some(health::of(&view)) }))
    }

    async fn node_get_storage_health(
        &self,
        _: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        Err(Status::unimplemented("NodeGetStorageHealth is not announced by this driver"))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability =
            |kind: Rpc| NodeServiceCapability { r#type: Some(Type::Rpc(RpcCapability { r#type: kind.into() })) };
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities: CAPABILITIES.map(capability).into() }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.settings.node.clone();
        let accessible_topology = Some(Topology { segments: [(TOPOLOGY.to_owned(), node_id.clone())].into() });
        Ok(Response::new(NodeGetInfoResponse { node_id, max_volumes_per_node: 0, accessible_topology }))
    }
}
