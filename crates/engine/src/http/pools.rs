//! Pools.

use axum::extract::State;
use bulkhead_core::name::Name;
use bulkhead_core::wire::{Done, PoolCreate, PoolMove, PoolView};

use super::extract::{Asked, At, Body, Json, Reply, Requested, Write};
use crate::openapi::{ListFaults, ObjectFaults, WriteFaults};
use crate::service::Service;

/// Lists the pools.
#[utoipa::path(get, path = "/v1/pools", tag = "pools", responses((status = 200, body = Vec<PoolView>), ListFaults))]
pub(super) async fn pool_list(State(service): State<Service>) -> Reply<Vec<PoolView>> {
    Ok(Json(service.pool_list().await?))
}

/// Makes a pool, or takes one over that describes itself by this name. Idempotent.
#[utoipa::path(post, path = "/v1/pools", tag = "pools", params(Write), request_body = PoolCreate,
    responses((status = 200, body = Done<PoolView>), WriteFaults))]
pub(super) async fn pool_create(
    State(service): State<Service>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<PoolCreate>,
) -> Reply<Done<PoolView>> {
    Ok(Json(service.pool_create(request, query.terms(id)).await?))
}

/// Shows a pool.
#[utoipa::path(get, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 200, body = PoolView), ObjectFaults))]
pub(super) async fn pool_inspect(State(service): State<Service>, At(name): At<Name>) -> Reply<PoolView> {
    Ok(Json(service.pool_inspect(name).await?))
}

/// Says where a pool in a directory is now. Idempotent.
#[utoipa::path(post, path = "/v1/pools/{name}/move", tag = "pools", request_body = PoolMove,
    params(("name" = String, Path), Write), responses((status = 200, body = Done<PoolView>), WriteFaults))]
pub(super) async fn pool_move(
    State(service): State<Service>,
    At(name): At<Name>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<PoolMove>,
) -> Reply<Done<PoolView>> {
    Ok(Json(service.pool_move(name, request, query.terms(id)).await?))
}

/// Removes an empty pool. Idempotent.
#[utoipa::path(delete, path = "/v1/pools/{name}", tag = "pools", params(("name" = String, Path), Write),
    responses((status = 200, body = Done<PoolView>), WriteFaults))]
pub(super) async fn pool_remove(
    State(service): State<Service>,
    At(name): At<Name>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
) -> Reply<Done<PoolView>> {
    Ok(Json(service.pool_remove(name, query.terms(id)).await?))
}
