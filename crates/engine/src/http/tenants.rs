//! Tenants and leases.

use axum::extract::State;
use axum::http::StatusCode;
use bulkhead_core::name::Name;
use bulkhead_core::wire::{Done, LeaseCreate, LeaseReply, TenantCreate, TenantSet, TenantView};
use uuid::Uuid;

use super::extract::{Asked, At, Body, Failure, Json, Remove, Reply, Requested, Wait, Write};
use crate::openapi::{ListFaults, ObjectFaults, WriteFaults};
use crate::service::Service;

/// Lists the tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants",
    responses((status = 200, body = Vec<TenantView>), ListFaults))]
pub(super) async fn tenant_list(State(service): State<Service>) -> Reply<Vec<TenantView>> {
    Ok(Json(service.tenant_list().await?))
}

/// Makes a tenant and mounts its volumes. Idempotent.
#[utoipa::path(post, path = "/v1/tenants", tag = "tenants", params(Write), request_body = TenantCreate,
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
pub(super) async fn tenant_create(
    State(service): State<Service>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<TenantCreate>,
) -> Reply<Done<TenantView>> {
    Ok(Json(service.tenant_create(request, query.terms(id)).await?))
}

/// Shows a tenant.
#[utoipa::path(get, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path)),
    responses((status = 200, body = TenantView), ObjectFaults))]
pub(super) async fn tenant_inspect(State(service): State<Service>, At(name): At<Name>) -> Reply<TenantView> {
    Ok(Json(service.tenant_inspect(name).await?))
}

/// Changes a tenant's share, limits and volumes. Idempotent.
#[utoipa::path(patch, path = "/v1/tenants/{name}", tag = "tenants", request_body = TenantSet,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
pub(super) async fn tenant_set(
    State(service): State<Service>,
    At(name): At<Name>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<TenantSet>,
) -> Reply<Done<TenantView>> {
    Ok(Json(service.tenant_set(name, request, query.terms(id)).await?))
}

/// Removes a tenant; with `force` its processes are killed. Its volumes stay. Idempotent.
#[utoipa::path(delete, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path), Remove),
    responses((status = 200, body = Done<TenantView>), WriteFaults))]
pub(super) async fn tenant_remove(
    State(service): State<Service>,
    At(name): At<Name>,
    Asked(query): Asked<Remove>,
    Requested(id): Requested,
) -> Reply<Done<TenantView>> {
    Ok(Json(service.tenant_remove(name, query.force, query.terms(id)).await?))
}

/// Mounts volumes for a tenant for as long as a process lives.
#[utoipa::path(post, path = "/v1/leases", tag = "leases", params(Wait), request_body = LeaseCreate,
    responses((status = 200, body = LeaseReply), WriteFaults))]
pub(super) async fn lease_create(
    State(service): State<Service>,
    Asked(query): Asked<Wait>,
    Requested(id): Requested,
    Body(request): Body<LeaseCreate>,
) -> Reply<LeaseReply> {
    Ok(Json(service.lease_create(request, query.terms(id)).await?))
}

/// Gives a lease back. Idempotent.
#[utoipa::path(delete, path = "/v1/leases/{id}", tag = "leases", params(("id" = Uuid, Path), Wait),
    responses((status = 204, description = "There is no such lease any more"), WriteFaults))]
pub(super) async fn lease_remove(
    State(service): State<Service>,
    At(lease): At<Uuid>,
    Asked(query): Asked<Wait>,
    Requested(id): Requested,
) -> Result<StatusCode, Failure> {
    service.lease_remove(lease, query.terms(id)).await?;
    Ok(StatusCode::NO_CONTENT)
}
