//! Calls that create, change and list volumes and snapshots.

mod list;
mod snapshots;
mod volumes;

use std::time::Duration;

use bulkhead_api::client::Client;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FrontEnd;
use bulkhead_core::name::Name;
use bulkhead_core::units::Bytes;
use tonic::{Request, Response, Status, async_trait};

use crate::calls::Calls;
use crate::proto::controller_server::Controller as Service;
use crate::proto::controller_service_capability::rpc::Type as Rpc;
use crate::proto::controller_service_capability::{Rpc as RpcCapability, Type};
use crate::proto::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, Topology,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse, controller_get_volume_response,
};
use crate::{TOPOLOGY, health, status};

/// What the controller announces. `EXPAND_VOLUME` is not among them: the node of a volume expands it. csi-resizer does not know which
/// driver is on that node, and would ask the ones of all nodes.
const CAPABILITIES: [Rpc; 12] = [
    Rpc::CreateDeleteVolume,
    Rpc::CreateDeleteSnapshot,
    Rpc::CloneVolume,
    Rpc::GetCapacity,
    Rpc::ListSnapshots,
    Rpc::ListVolumes,
    Rpc::ModifyVolume,
    Rpc::SingleNodeMultiWriter,
    Rpc::GetVolume,
    Rpc::GetVolumeHealth,
    Rpc::ListVolumeHealth,
    Rpc::GetSnapshot,
];

/// What is used where a request says nothing, and the node whose volumes these are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The node's name in the orchestrator.
    pub node: String,
    /// Where volumes are created. Default: the only pool.
    pub pool: Option<Name>,
    /// The size of new volumes.
    pub size: Bytes,
    /// How long a call waits for the daemon before it answers `ABORTED`, and goes on.
    pub patience: Duration,
}

/// The controller. It has no state but the calls in progress.
#[derive(Clone, Debug)]
pub struct Controller {
    daemon: Client,
    settings: Settings,
    calls: Calls,
}

impl Controller {
    /// A controller in front of a daemon.
    #[must_use]
    pub fn new(daemon: Client, settings: Settings) -> Self {
        let calls = Calls::new(settings.patience);
        Self { daemon, settings, calls }
    }

    fn topology(&self) -> Topology {
        Topology { segments: [(TOPOLOGY.to_owned(), self.settings.node.clone())].into() }
    }

    /// Whether a topology includes this node. One without our key includes every node.
    fn is_here(&self, topology: &Topology) -> bool {
        topology.segments.get(TOPOLOGY).is_none_or(|node| *node == self.settings.node)
    }

    /// The pool that is named, the default, or the only one.
    async fn pool(&self, named: Option<&Name>) -> Result<Name, Fault> {
        if let Some(pool) = named.or(self.settings.pool.as_ref()) {
            return Ok(pool.clone());
        }
        let mut pools: Vec<Name> = self.daemon.pool_list().await?.into_iter().map(|pool| pool.name).collect();
        match pools.len() {
            1 => Ok(pools.remove(0)),
            0 => Err(Fault::new(Code::Unsupported, "pool", "this node has no pool")
                .hint("create one with `bulkhead pool create`")),
            _ => {
                Err(Fault::new(Code::InvalidArgument, "parameter \"pool\"", "there are several pools, and no default")
                    .hint("set the parameter `pool` in the StorageClass, or start the driver with --pool"))
            }
        }
    }
}

/// The front end that this driver's volumes and tenants are recorded with.
const OWN: Option<FrontEnd> = Some(FrontEnd::Csi);

fn failed(fault: Fault) -> Status {
    status::of(&fault)
}

fn unimplemented<T>(call: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!("{call} is not announced by this driver")))
}

#[async_trait]
impl Service for Controller {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {:?}", request.name);
        self.calls.carry_out(&object, async move { this.create(&request).await }).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let (this, id) = (self.clone(), request.into_inner().volume_id);
        let object = format!("volume {id}");
        self.calls.carry_out(&object, async move { this.delete(&id).await.map(|()| DeleteVolumeResponse {}) }).await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("volume {}", request.volume_id);
        self.calls
            .carry_out(&object, async move {
                this.modify(&request).await.map(|()| ControllerModifyVolumeResponse {}).map_err(failed)
            })
            .await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let (this, request) = (self.clone(), request.into_inner());
        let object = format!("snapshot {:?}", request.name);
        self.calls
            .carry_out(&object, async move {
                let snapshot = Some(this.snapshot(&request).await.map_err(failed)?);
                Ok(CreateSnapshotResponse { snapshot })
            })
            .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let (this, id) = (self.clone(), request.into_inner().snapshot_id);
        let object = format!("snapshot {id}");
        self.calls
            .carry_out(&object, async move {
                this.delete_snapshot(&id).await.map(|()| DeleteSnapshotResponse {}).map_err(failed)
            })
            .await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        self.list_snapshots(&request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.list_volumes(&request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        self.validate(request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        self.capacity(&request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability =
            |rpc: Rpc| ControllerServiceCapability { r#type: Some(Type::Rpc(RpcCapability { r#type: rpc.into() })) };
        let capabilities = CAPABILITIES.map(capability).into();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    /// A volume is on the node that created it, and is not attached to another.
    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        unimplemented("ControllerPublishVolume")
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        unimplemented("ControllerUnpublishVolume")
    }

    /// `NodeExpandVolume` does it.
    async fn controller_expand_volume(
        &self,
        _: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        unimplemented("ControllerExpandVolume")
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        let view = self.own_volume(&request.into_inner().volume_id).await.map_err(failed)?;
        let status = Some(controller_get_volume_response::VolumeStatus::default());
        Ok(Response::new(ControllerGetVolumeResponse { volume: Some(self.volume(&view, None)), status }))
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        let view = self.own_volume(&request.into_inner().volume_id).await.map_err(failed)?;
        Ok(Response::new(ControllerGetVolumeHealthResponse { volume_health: Some(health::of(&view)) }))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        self.list_health(&request.into_inner()).await.map(Response::new).map_err(failed)
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        let snapshot = self.own_snapshot(&request.into_inner().snapshot_id).await.map_err(failed)?;
        Ok(Response::new(GetSnapshotResponse { snapshot: Some(snapshot) }))
    }
}
