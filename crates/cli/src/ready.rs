//! `bulkhead tenant ready`: waits until a tenant's volumes are mounted.

use std::time::{Duration, Instant};

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::name::Name;
use bulkhead_core::wire::TenantView;
use bulkhead_engine::client::Client;

/// Between two looks at volumes that are not mounted: the daemon tries again as often.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Waits until all volumes of a tenant are mounted, as long as the tenant is there.
///
/// # Errors
/// About the first volume that is not mounted when the time is over, or about the tenant.
pub(crate) async fn wait(tenant: &Name, limit: Duration, client: &Client) -> Result<TenantView, Fault> {
    let end = Instant::now() + limit;
    loop {
        let found = all_mounted(tenant, client).await;
        let is_final = |fault: &Fault| fault.object == format!("tenant {tenant}");
        let left = end.saturating_duration_since(Instant::now());
        match found {
            Err(fault) if !is_final(&fault) && !left.is_zero() => tokio::time::sleep(left.min(LOOK_AGAIN)).await,
            found => return found,
        }
    }
}

/// A tenant whose volumes are all mounted now; the error is about the first that is not.
async fn all_mounted(tenant: &Name, client: &Client) -> Result<TenantView, Fault> {
    let view = client.tenant_inspect(tenant).await?;
    for volume in &view.volumes {
        let object = format!("volume {volume}");
        if client.volume_inspect(volume).await?.mounted_at.is_none() {
            let problems = client.host().await?.problems;
            let known = problems.into_iter().find(|problem| problem.object == object);
            return Err(known.unwrap_or_else(|| {
                Fault::new(Code::Unavailable, object, format!("it is not mounted for tenant {tenant}"))
                    .cure("`bulkhead host` and the daemon's log say what is wrong")
            }));
        }
    }
    Ok(view)
}
