//! Tenants that a front end creates for its volumes.

use std::time::Duration;

use bulkhead_api::client::{Client, Removal};
use bulkhead_api::wire::{TenantCreate, TenantView, VolumeView};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::FrontEnd;
use bulkhead_core::name::Name;
use tokio::time::Instant;

use crate::repeat;

/// How long the removal of a tenant waits for a daemon that is away.
const AWAY: Duration = Duration::from_secs(300);

/// Ensures that a tenant exists; returns an existing one, which may differ from the request, and `None` if it was created.
///
/// # Errors
/// The daemon's.
pub async fn ensure(daemon: &Client, request: &TenantCreate) -> Result<Option<TenantView>, Fault> {
    match daemon.tenant_inspect(&request.name).await {
        Err(fault) if fault.code == Code::NotFound => daemon.tenant_create(request, false).await.map(|_| None),
        found => found.map(Some),
    }
}

/// Ensures that the tenant of a volume that is to be mounted exists; returns its name: the one that has the volume, its default, or one named as
/// the volume.
///
/// # Errors
/// The daemon's.
pub async fn of_volume(daemon: &Client, front_end: FrontEnd, view: &VolumeView) -> Result<Name, Fault> {
    let name = view.tenant.as_ref().or(view.default_tenant.as_ref()).unwrap_or(&view.volume.name);
    ensure(daemon, &TenantCreate { created_by: Some(front_end), ..TenantCreate::new(name.clone()) }).await?;
    Ok(name.clone())
}

/// Removes a tenant that this front end has created, unless it has volumes or processes, or is the default of a volume. Repeated while the
/// daemon restarts: once the volume is gone, nothing else names its tenant. Any other failure leaves it, and is only logged: the volume is
/// gone, which is what was asked for.
///
/// # Errors
/// `Unavailable` if the daemon stays away; the caller should let its client repeat the request.
pub async fn remove_unused(daemon: &Client, front_end: FrontEnd, name: &Name) -> Result<(), Fault> {
    let attempt = || remove_if_unused(daemon, front_end, name);
    match repeat::until_answered(AWAY, Instant::now() + AWAY, attempt).await {
        Err(fault) if fault.code == Code::Unavailable => Err(fault),
        Err(fault) => {
            tracing::warn!(tenant = %name, %fault, "cannot remove the tenant of a removed volume");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

async fn remove_if_unused(daemon: &Client, front_end: FrontEnd, name: &Name) -> Result<(), Fault> {
    let tenant = match daemon.tenant_inspect(name).await {
        Err(fault) if fault.code == Code::NotFound => return Ok(()),
        found => found?,
    };
    let is_default = |view: &VolumeView| view.default_tenant.as_ref() == Some(name);
    let is_used =
        tenant.n_processes > 0 || !tenant.volumes.is_empty() || daemon.volume_list(None).await?.iter().any(is_default);
    if tenant.created_by != Some(front_end) || is_used {
        return Ok(());
    }
    match daemon.tenant_remove(name, Removal::default()).await {
        // An earlier attempt, whose answer was lost, has removed it.
        Err(fault) if fault.code == Code::NotFound => Ok(()),
        removed => removed.map(drop),
    }
}
