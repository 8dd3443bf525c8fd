//! Calls about the driver itself.

use bulkhead_api::client::Client;
use tonic::{Request, Response, Status, async_trait};

use crate::proto::identity_server::Identity;
use crate::proto::plugin_capability::service::Type as Service;
use crate::proto::plugin_capability::volume_expansion::Type as Expansion;
use crate::proto::plugin_capability::{Service as ServiceCapability, Type, VolumeExpansion};
use crate::proto::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::{DRIVER, status};

/// Answers who the driver is, and whether its daemon answers.
#[derive(Clone, Debug)]
pub struct Driver {
    /// The daemon.
    pub daemon: Client,
    /// Whether this process answers calls to the controller.
    pub has_controller: bool,
}

#[async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (DRIVER.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |kind: Service| Type::Service(ServiceCapability { r#type: kind.into() });
        let controller = self.has_controller.then(|| service(Service::ControllerService));
        let capabilities = controller.into_iter().chain([
            service(Service::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(VolumeExpansion { r#type: Expansion::Online.into() }),
        ]);
        let capabilities = capabilities.map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// Fails with `UNAVAILABLE` while no daemon answers, which the driver cannot work without.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.daemon.healthz().await.map_err(|fault| status::of(&fault))?;
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
