//! Calls that are about tenants, their leases and the commands that run in them.

use bulkhead_core::error::Fault;
use bulkhead_core::name::Name;
use uuid::Uuid;

use super::{Client, Removal, dry};
use crate::routes::{self, NoContent, NoQuery, Run, Wait};
use crate::wire::{
    Done, LeaseCreate, LeaseReply, LeaseView, ProfileStore, RunStart, RunView, TenantCreate, TenantSet, TenantView,
};

/// Tenants, leases and runs.
#[expect(clippy::missing_errors_doc, reason = "documented once, at the first `impl` block of `Client`")]
impl Client {
    /// Lists all tenants.
    pub async fn tenant_list(&self) -> Result<Vec<TenantView>, Fault> {
        self.query(routes::tenant_list(), &(), NoQuery {}).await
    }

    /// Creates a tenant.
    pub async fn tenant_create(&self, request: &TenantCreate, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        self.submit(routes::tenant_create(), &(), dry(dry_run), request).await
    }

    /// Shows a tenant.
    pub async fn tenant_inspect(&self, name: &Name) -> Result<TenantView, Fault> {
        self.query(routes::tenant_inspect(), name, NoQuery {}).await
    }

    /// Changes a tenant.
    pub async fn tenant_set(&self, name: &Name, request: &TenantSet, dry_run: bool) -> Result<Done<TenantView>, Fault> {
        self.submit(routes::tenant_set(), name, dry(dry_run), request).await
    }

    /// Stores what a tenant demands.
    pub async fn profile_store(
        &self,
        name: &Name,
        request: &ProfileStore,
        dry_run: bool,
    ) -> Result<Done<TenantView>, Fault> {
        self.submit(routes::profile_store(), name, dry(dry_run), request).await
    }

    /// Removes a tenant; its volumes are kept.
    pub async fn tenant_remove(&self, name: &Name, how: Removal) -> Result<Done<TenantView>, Fault> {
        self.submit(routes::tenant_remove(), name, how.into(), &()).await
    }

    /// Mounts volumes for a tenant, until a process ends or a front end returns them.
    pub async fn lease_create(&self, request: &LeaseCreate) -> Result<LeaseReply, Fault> {
        self.submit(routes::lease_create(), &(), Wait::default(), request).await
    }

    /// Lists the leases.
    pub async fn lease_list(&self) -> Result<Vec<LeaseView>, Fault> {
        self.query(routes::lease_list(), &(), NoQuery {}).await
    }

    /// Ends a lease.
    pub async fn lease_remove(&self, id: Uuid) -> Result<(), Fault> {
        self.submit(routes::lease_remove(), &id, Wait::default(), &()).await.map(|NoContent| ())
    }

    /// Moves a command into a tenant.
    pub async fn run_start(&self, tenant: &Name, request: &RunStart) -> Result<RunView, Fault> {
        self.submit(routes::run_start(), tenant, Wait::default(), request).await
    }

    /// Kills the processes that a command has left running, and ends its leases.
    pub async fn run_end(&self, run: &Run) -> Result<(), Fault> {
        self.submit(routes::run_end(), run, Wait::default(), &()).await.map(|NoContent| ())
    }
}
