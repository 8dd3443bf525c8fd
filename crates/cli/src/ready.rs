//! `bulkhead tenant ready`: waits until a tenant's volumes are mounted.

use std::time::{Duration, Instant};

use bulkhead_api::client::Client;
use bulkhead_api::wire::TenantView;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::Finding;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;

/// Interval between polls of volumes that are not mounted, which is also the interval of the daemon's retries.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until all volumes of a tenant are mounted, or until the tenant is removed.
///
/// # Errors
/// The fault of the first volume that is not mounted when the time is over, or of the tenant.
pub(crate) async fn wait(tenant: &Name, limit: Duration, client: &Client) -> Result<TenantView, Fault> {
    let end = Instant::now() + limit;
    loop {
        let found = match client.tenant_inspect(tenant).await {
            Ok(view) => all_mounted(view, client).await,
            // The daemon may still be starting.
            Err(fault) if fault.code == Code::Unavailable => Err(fault),
            Err(fault) => return Err(fault),
        };
        let left = end.saturating_duration_since(Instant::now());
        if found.is_ok() || left.is_zero() {
            return found;
        }
        tokio::time::sleep(left.min(POLL_INTERVAL)).await;
    }
}

/// The tenant if all its volumes are mounted now; otherwise the fault of the first that is not.
async fn all_mounted(view: TenantView, client: &Client) -> Result<TenantView, Fault> {
    for volume in &view.volumes {
        if client.volume_inspect(volume).await?.mounted_at.is_none() {
            let mut findings = client.host().await?.findings.into_iter();
            let known = findings.find(|finding| finding.volumes.contains(volume));
            return Err(known.map_or_else(|| not_mounted(volume, &view.name), unavailable));
        }
    }
    Ok(view)
}

fn unavailable(finding: Finding) -> Fault {
    let fault = Fault::new(Code::Unavailable, finding.object, finding.evidence);
    match finding.reason {
        Some(reason) => fault.reason(*reason),
        None => fault.hint(finding.advice.unwrap_or_default()),
    }
}

fn not_mounted(volume: &VolumeRef, tenant: &Name) -> Fault {
    let cause = format!("it is not mounted for tenant {tenant}");
    Fault::new(Code::Unavailable, format!("volume {volume}"), cause)
        .hint("`bulkhead host` and the daemon's log show the cause")
}
