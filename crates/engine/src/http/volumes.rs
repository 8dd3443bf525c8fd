//! Volumes, and their streams.

use axum::extract::State;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::stream::StreamHeader;
use bulkhead_core::wire::{
    Done, HeatRow, ReceiveView, SendView, VolumeCheck, VolumeCopy, VolumeCreate, VolumeFlatten, VolumeResize,
    VolumeRollback, VolumeSend, VolumeView,
};
use serde::Deserialize;

use super::extract::{Asked, At, Body, Json, Remove, Reply, Requested, Write};
use crate::openapi::{ListFaults, ObjectFaults, WriteFaults};
use crate::service::Service;

/// Query of the list of volumes.
#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct OfPool {
    /// Only the volumes of this pool.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    pool: Option<Name>,
}

/// Lists the volumes of all pools, or of one.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(OfPool),
    responses((status = 200, body = Vec<VolumeView>), ObjectFaults))]
pub(super) async fn volume_list(State(service): State<Service>, Asked(query): Asked<OfPool>) -> Reply<Vec<VolumeView>> {
    Ok(Json(service.volume_list(query.pool).await?))
}

/// Makes a volume with an empty file system. Idempotent.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", params(Write), request_body = VolumeCreate,
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_create(
    State(service): State<Service>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeCreate>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_create(request, query.terms(id)).await?))
}

/// Shows a volume.
#[utoipa::path(get, path = "/v1/volumes/{pool}/{name}", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = VolumeView), ObjectFaults))]
pub(super) async fn volume_inspect(State(service): State<Service>, At(volume): At<VolumeRef>) -> Reply<VolumeView> {
    Ok(Json(service.volume_inspect(volume).await?))
}

/// Removes a volume and its data; one that is mounted only with `force`. Idempotent.
#[utoipa::path(delete, path = "/v1/volumes/{pool}/{name}", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Remove),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_remove(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Remove>,
    Requested(id): Requested,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_remove(volume, query.force, query.terms(id)).await?))
}

/// Changes a volume's size. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/resize", tag = "volumes", request_body = VolumeResize,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_resize(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeResize>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_resize(volume, request, query.terms(id)).await?))
}

/// Makes a snapshot or a clone in the same pool. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/copy", tag = "volumes", request_body = VolumeCopy,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_copy(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeCopy>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_copy(volume, request, query.terms(id)).await?))
}

/// Shows what volumes have read of what they share: from the disk, from the host's page cache, or from a sibling's.
#[utoipa::path(get, path = "/v1/heatmap", tag = "volumes", responses((status = 200, body = [HeatRow]), ListFaults))]
pub(super) async fn heatmap(State(service): State<Service>) -> Reply<Vec<HeatRow>> {
    Ok(Json(service.heatmap().await?))
}

/// Makes a volume that no tenant holds what a snapshot of it holds; what was written since is lost.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/rollback", tag = "volumes", request_body = VolumeRollback,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_rollback(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeRollback>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_rollback(volume, request, query.terms(id)).await?))
}

/// Has a copied volume copy what it still shares, while it is in use, or stop that. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/flatten", tag = "volumes", request_body = VolumeFlatten,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_flatten(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeFlatten>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_flatten(volume, request, query.terms(id)).await?))
}

/// Says what is to be read to send a snapshot, after it was made sure that this never changes. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/send", tag = "volumes", request_body = VolumeSend,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<SendView>), WriteFaults))]
pub(super) async fn volume_send(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeSend>,
) -> Reply<Done<SendView>> {
    Ok(Json(service.volume_send(volume, request, query.terms(id)).await?))
}

/// Begins to receive a snapshot as a volume, or goes on with it: what comes next is written to the part. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes", request_body = StreamHeader,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<ReceiveView>), WriteFaults))]
pub(super) async fn volume_receive(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(header): Body<StreamHeader>,
) -> Reply<Done<ReceiveView>> {
    Ok(Json(service.volume_receive(volume, header, query.terms(id)).await?))
}

/// Tells how far the receiving of a volume is.
#[utoipa::path(get, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = ReceiveView), ObjectFaults))]
pub(super) async fn volume_receiving(State(service): State<Service>, At(volume): At<VolumeRef>) -> Reply<ReceiveView> {
    Ok(Json(service.volume_receiving(volume).await?))
}

/// Gives up what was received of a volume so far. Idempotent.
#[utoipa::path(delete, path = "/v1/volumes/{pool}/{name}/receive", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<ReceiveView>), WriteFaults))]
pub(super) async fn volume_receive_abort(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
) -> Reply<Done<ReceiveView>> {
    Ok(Json(service.volume_receive_abort(volume, query.terms(id)).await?))
}

/// Makes a snapshot of what was received, when all of it was.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/received", tag = "volumes", request_body = StreamHeader,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_received(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(header): Body<StreamHeader>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_received(volume, header, query.terms(id)).await?))
}

/// Checks the file system of a volume that is not mounted.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/check", tag = "volumes", request_body = VolumeCheck,
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_check(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<VolumeCheck>,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_check(volume, request, query.terms(id)).await?))
}

/// Gives a volume that no tenant has a device without mounting it. Idempotent.
#[utoipa::path(post, path = "/v1/volumes/{pool}/{name}/map", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_map(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_map(volume, query.terms(id)).await?))
}

/// Takes the device of a mapped volume away. Idempotent.
#[utoipa::path(delete, path = "/v1/volumes/{pool}/{name}/map", tag = "volumes",
    params(("pool" = String, Path), ("name" = String, Path), Write),
    responses((status = 200, body = Done<VolumeView>), WriteFaults))]
pub(super) async fn volume_unmap(
    State(service): State<Service>,
    At(volume): At<VolumeRef>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
) -> Reply<Done<VolumeView>> {
    Ok(Json(service.volume_unmap(volume, query.terms(id)).await?))
}
