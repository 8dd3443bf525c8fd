//! Registration with the kubelet, by the driver itself: the kubelet finds a socket in its directory of plugins and asks there what it is.
//!
//! Source: `pluginregistration` version 1 of the kubelet's API.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tonic::service::Routes;
use tonic::{Request, Response, Status, async_trait};

use crate::DRIVER;
use crate::pluginregistration::registration_server::{Registration as Service, RegistrationServer};
use crate::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// The kind of plugin that a CSI driver is to the kubelet.
const KIND: &str = "CSIPlugin";

/// The oldest version of CSI whose calls are understood. The kubelet accepts the versions of its own major number.
const VERSION: &str = "1.0.0";

/// The name of the socket in the kubelet's directory of plugins. The kubelet names the host of its requests after the percent-encoded path of
/// the socket, and HTTP/2 of `h2` resets a stream whose host has a `%`. Before an `@` it is allowed: that is a user.
pub const SOCKET: &str = "registration@csi.bulkhead.dev.sock";

/// Answers what the driver is, and hears whether it was registered.
#[derive(Clone, Debug)]
pub struct Registration {
    endpoint: PathBuf,
    refused: Arc<watch::Sender<Option<String>>>,
}

impl Registration {
    /// For a driver whose calls are answered on the socket `endpoint`, a path as the kubelet sees it.
    #[must_use]
    pub fn new(endpoint: PathBuf) -> Self {
        Self { endpoint, refused: Arc::new(watch::Sender::new(None)) }
    }

    /// Resolves when the kubelet has refused the driver, to the reason.
    pub async fn refused(&self) -> String {
        let mut refused = self.refused.subscribe();
        // The sender lives as long as `self`.
        let _ = refused.wait_for(Option::is_some).await;
        refused.borrow().clone().unwrap_or_default()
    }

    /// Its calls.
    #[must_use]
    pub fn routes(&self) -> Routes {
        Routes::new(RegistrationServer::new(self.clone()))
    }
}

#[async_trait]
impl Service for Registration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.display().to_string(),
            supported_versions: vec![VERSION.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("the kubelet has registered the driver");
        } else {
            tracing::error!(?error, "the kubelet has not registered the driver");
            self.refused.send_replace(Some(error));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
