//! Staging: a lease in the daemon, which mounts the volume for its tenant, or binds the node of a raw volume's device. Nothing is mounted at
//! the staging path itself.

use bulkhead_api::wire::LeaseCreate;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FrontEnd;
use bulkhead_front_end::tenants;

use super::paths::{self, staged_by};
use super::{Node, blocking, publish, required};
use crate::capability::Use;
use crate::names;
use crate::proto::{NodeStageVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability};

impl Node {
    /// `NodeStageVolume`. The lease counts, and requests are repeated: so one that exists, and is mounted, is all that was asked for.
    pub(super) async fn stage(&self, request: &NodeStageVolumeRequest) -> Result<(), Fault> {
        required("volume_id", &request.volume_id)?;
        let path = &request.staging_target_path;
        required("staging_target_path", path)?;
        let capability = self.capability(request.volume_capability.as_ref())?;
        let view = self.volume(&request.volume_id).await?;
        capability.check_fs(view.fs)?;
        self.check_staging_path(path).await?;
        // One that was returned, but could not be unmounted then, is requested again, or the daemon would end it.
        if let Some(lease) = self.lease(&view.volume, path).await?.filter(|lease| lease.mounts != Some(0)) {
            if lease.selinux_context != capability.selinux_context {
                let cause = format!("it is staged at {path} with another SELinux context, or none");
                return Err(
                    Fault::new(Code::AlreadyExists, format!("volume {}", view.volume), cause).hint("unstage it first")
                );
            }
            if publish::topmost(&publish::table(&self.roots)?, &lease.mounted_at).is_some() {
                return Ok(());
            }
        }
        let tenant = tenants::of_volume(&self.daemon, FrontEnd::Csi, &view).await?;
        let request = LeaseCreate {
            tenant,
            volumes: vec![view.volume],
            pid: None,
            user: Some(staged_by(path)),
            selinux_context: capability.selinux_context,
        };
        self.daemon.lease_create(&request).await.map(drop)
    }

    /// `NodeUnstageVolume`. Succeeds for a volume that is not staged, or no longer exists.
    pub(super) async fn unstage(&self, request: &NodeUnstageVolumeRequest) -> Result<(), Fault> {
        required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let Some(volume) = names::parse_id("volume_id", &request.volume_id)? else { return Ok(()) };
        let Some(lease) = self.lease(&volume, &request.staging_target_path).await? else { return Ok(()) };
        for _ in 0..lease.mounts.unwrap_or(1).max(1) {
            self.daemon.lease_remove(lease.id).await?;
        }
        Ok(())
    }

    /// What a request to this node may ask of a volume.
    pub(super) fn capability(&self, given: Option<&VolumeCapability>) -> Result<Use, Fault> {
        let missing = || Fault::new(Code::InvalidArgument, "volume_capability", "it is missing");
        Use::parse(given.ok_or_else(missing)?)
    }

    async fn check_staging_path(&self, path: &str) -> Result<(), Fault> {
        const FIELD: &str = "staging_target_path";
        let (settings, path) = (self.settings.clone(), path.to_owned());
        blocking(move || {
            let place = paths::place(&settings, FIELD, &path)?;
            let exists =
                place.map_or(Ok(false), |place| place.exists()).map_err(|error| paths::fault(FIELD, &error))?;
            if exists {
                Ok(())
            } else {
                Err(Fault::new(Code::InvalidArgument, FIELD, format!("{path} does not exist")))
            }
        })
        .await
    }
}
