//! Tenants, and the leases of processes on volumes.

use bulkhead_api::routes::Run;
use bulkhead_api::terms::Terms;
use bulkhead_api::wire::{
    Done, LeaseCreate, LeaseReply, LeaseView, ProfileStore, RunStart, RunView, TenantCreate, TenantSet, TenantView,
};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use uuid::Uuid;

use super::Service;
use crate::locks::Claim;

#[expect(clippy::missing_errors_doc, reason = "the engine's methods of the same names say them")]
impl Service {
    /// All tenants.
    pub async fn tenant_list(&self) -> Result<Vec<TenantView>, Fault> {
        self.read(|engine| engine.tenant_list()).await
    }

    /// One tenant.
    pub async fn tenant_inspect(&self, name: Name) -> Result<TenantView, Fault> {
        self.read(move |engine| engine.tenant_inspect(&name)).await
    }

    /// Creates a tenant and mounts its volumes.
    pub async fn tenant_create(&self, request: TenantCreate, terms: Terms) -> Result<Done<TenantView>, Fault> {
        let operation = format!("create tenant {}", request.name);
        let claim = Claim::default().tenant(&request.name).volumes(&request.volumes);
        self.change(terms, operation, claim, move |engine| engine.tenant_create(&request, terms.dry_run)).await
    }

    /// Changes a tenant's share, limits and volumes.
    pub async fn tenant_set(&self, name: Name, request: TenantSet, terms: Terms) -> Result<Done<TenantView>, Fault> {
        let operation = format!("change tenant {name}");
        let claim = Claim::default().tenant(&name).volumes(&request.attach).volumes(&request.detach);
        self.change(terms, operation, claim, move |engine| engine.tenant_set(&name, &request, terms.dry_run)).await
    }

    /// Records what a tenant demands.
    pub async fn profile_store(
        &self,
        name: Name,
        request: ProfileStore,
        terms: Terms,
    ) -> Result<Done<TenantView>, Fault> {
        let (operation, claim) = (format!("store the profile of tenant {name}"), Claim::default().tenant(&name));
        self.change(terms, operation, claim, move |engine| engine.profile_store(&name, &request, terms.dry_run)).await
    }

    /// Removes a tenant; with `force` its processes are killed.
    pub async fn tenant_remove(&self, name: Name, force: bool, terms: Terms) -> Result<Done<TenantView>, Fault> {
        let operation = format!("remove tenant {name}");
        let removed = name.clone();
        self.change_with(
            terms,
            operation,
            move |engine| {
                let volumes = match engine.tenant(&removed) {
                    Ok(tenant) => engine.volumes_of(&tenant)?,
                    Err(fault) if fault.code == Code::NotFound => Vec::new(),
                    Err(fault) => return Err(fault),
                };
                Ok(Claim::default().tenant(&removed).volumes(&volumes))
            },
            move |engine| engine.tenant_remove(&name, force, terms.dry_run),
        )
        .await
    }

    /// All leases.
    pub async fn lease_list(&self) -> Result<Vec<LeaseView>, Fault> {
        self.read(|engine| engine.lease_list()).await
    }

    /// Mounts volumes for a tenant, until a process ends or a front end returns them.
    pub async fn lease_create(&self, request: LeaseCreate, terms: Terms) -> Result<LeaseReply, Fault> {
        let holder = match (&request.pid, &request.user) {
            (_, Some(user)) => format!("a user of {}", user.front_end),
            (pid, None) => format!("process {}", pid.unwrap_or_default()),
        };
        let operation = format!("lease volumes of tenant {} to {holder}", request.tenant);
        let claim = Claim::default().tenant(&request.tenant).volumes(&request.volumes);
        self.change(terms, operation, claim, move |engine| engine.lease_create(&request, terms.request)).await
    }

    /// Ends a lease. It is not cut off when the client goes: a front end that restarts does not repeat it.
    pub async fn lease_remove(&self, id: Uuid, terms: Terms) -> Result<(), Fault> {
        let find = move |engine: &crate::engine::Engine| {
            let lease = engine.leases()?.into_iter().find(|lease| lease.id == id);
            Ok(lease.map_or_else(Claim::default, |lease| Claim::default().tenant(&lease.tenant).volume(&lease.volume)))
        };
        let service = self.clone();
        let ending = tokio::spawn(async move {
            let end = move |engine: &crate::engine::Engine| engine.lease_remove(id, terms.request);
            service.change_with(terms, format!("end lease {id}"), find, end).await
        });
        ending.await.unwrap_or_else(|error| Err(Fault::new(Code::Internal, format!("lease {id}"), error)))
    }

    /// Moves a command into a tenant.
    pub async fn run_start(&self, tenant: Name, request: RunStart, terms: Terms) -> Result<RunView, Fault> {
        let operation = format!("start process {} in tenant {tenant}", request.command_pid);
        let claim = Claim::default().tenant(&tenant);
        self.change(terms, operation, claim, move |engine| engine.run_start(&tenant, &request)).await
    }

    /// Ends a command's remaining processes, and its leases.
    pub async fn run_end(&self, run: Run, terms: Terms) -> Result<(), Fault> {
        let Run { tenant, pid } = run.clone();
        let find = move |engine: &crate::engine::Engine| {
            let leases = engine.leases_of_run(&run.tenant, run.pid)?;
            let volumes: Vec<VolumeRef> = leases.into_iter().map(|lease| lease.volume).collect();
            Ok(Claim::default().tenant(&run.tenant).volumes(&volumes))
        };
        let operation = format!("end run {pid} in tenant {tenant}");
        self.change_with(terms, operation, find, move |engine| engine.run_end(&tenant, pid)).await
    }
}
