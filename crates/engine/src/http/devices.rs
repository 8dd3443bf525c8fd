//! Devices, and the shares that are held on them.

use axum::extract::State;
use bulkhead_core::model::Calibration;
use bulkhead_core::wire::{DeviceControl, DeviceView, Done, HoldStart, HoldView};

use super::extract::{Asked, At, Body, Device, Json, Reply, Requested, Write};
use crate::openapi::{ListFaults, ObjectFaults, WriteFaults};
use crate::service::Service;

/// Lists the block devices: physical ones, and those stacked on them.
#[utoipa::path(get, path = "/v1/devices", tag = "devices",
    responses((status = 200, body = Vec<DeviceView>), ListFaults))]
pub(super) async fn device_list(State(service): State<Service>) -> Reply<Vec<DeviceView>> {
    Ok(Json(service.device_list().await?))
}

/// Shows a block device, and whether shares have an effect on it.
#[utoipa::path(get, path = "/v1/devices/{name}", tag = "devices", params(("name" = String, Path)),
    responses((status = 200, body = DeviceView), ObjectFaults))]
pub(super) async fn device_inspect(State(service): State<Service>, At(Device(name)): At<Device>) -> Reply<DeviceView> {
    Ok(Json(service.device_inspect(name).await?))
}

/// Puts a controller in force on a physical device, or what was in force before Bulkhead changed it. Idempotent.
#[utoipa::path(post, path = "/v1/devices/{name}/control", tag = "devices", request_body = DeviceControl,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<DeviceView>), WriteFaults))]
pub(super) async fn device_control(
    State(service): State<Service>,
    At(Device(name)): At<Device>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<DeviceControl>,
) -> Reply<Done<DeviceView>> {
    Ok(Json(service.device_control(name, request, query.terms(id)).await?))
}

/// Records a calibration that was measured on the device, and applies it where io.cost is in force.
#[utoipa::path(post, path = "/v1/devices/{name}/calibrate", tag = "devices", request_body = Calibration,
    params(("name" = String, Path), Write),
    responses((status = 200, body = Done<DeviceView>), WriteFaults))]
pub(super) async fn device_calibrate(
    State(service): State<Service>,
    At(Device(name)): At<Device>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<Calibration>,
) -> Reply<Done<DeviceView>> {
    Ok(Json(service.device_calibrated(name, request, query.terms(id)).await?))
}

/// Lists the shares that are held.
#[utoipa::path(get, path = "/v1/holds", tag = "hold", responses((status = 200, body = [HoldView]), ListFaults))]
pub(super) async fn hold_list(State(service): State<Service>) -> Reply<Vec<HoldView>> {
    Ok(Json(service.hold_list()))
}

/// Holds shares of containers on a device, journal I/O included, in place of what was held on it; the same request again renews a
/// lease.
#[utoipa::path(post, path = "/v1/holds", tag = "hold", params(Write), request_body = HoldStart,
    responses((status = 200, body = Done<HoldView>), WriteFaults))]
pub(super) async fn hold_start(
    State(service): State<Service>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
    Body(request): Body<HoldStart>,
) -> Reply<Done<HoldView>> {
    Ok(Json(service.hold_start(request, query.terms(id)).await?))
}

/// Ends what is held on a device: the weights are as before. Idempotent.
#[utoipa::path(delete, path = "/v1/holds/{device}", tag = "hold", params(("device" = String, Path), Write),
    responses((status = 200, body = Done<HoldView>), WriteFaults))]
pub(super) async fn hold_stop(
    State(service): State<Service>,
    At(Device(device)): At<Device>,
    Asked(query): Asked<Write>,
    Requested(id): Requested,
) -> Reply<Done<HoldView>> {
    Ok(Json(service.hold_stop(device, query.terms(id)).await?))
}
