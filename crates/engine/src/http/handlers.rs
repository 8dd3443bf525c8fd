//! Which operation of the service answers which route.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use bulkhead_api::openapi;
use bulkhead_api::routes::{self, NoContent};
use bulkhead_core::error::{Code, Fault};

use super::api::Api;
use crate::metrics::{Format, render};
use crate::service::Service;

/// How long a request may wait for the end of a job.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

pub(super) fn all() -> Api {
    [pools, volumes, tenants, devices, host, metrics].into_iter().fold(Api::default(), |api, add| add(api))
}

fn pools(api: Api) -> Api {
    api.on(routes::pool_list(), |service, _| async move { service.pool_list().await })
        .on(routes::pool_create(), |service, call| async move { service.pool_create(call.body, call.terms).await })
        .on(routes::pool_inspect(), |service, call| async move { service.pool_inspect(call.at).await })
        .on(routes::pool_move(), |service, call| async move { service.pool_move(call.at, call.body, call.terms).await })
        .on(routes::pool_remove(), |service, call| async move { service.pool_remove(call.at, call.terms).await })
}

fn volumes(api: Api) -> Api {
    api.on(routes::volume_list(), |service, call| async move { service.volume_list(call.query).await })
        .on(routes::volume_create(), |service, call| async move { service.volume_create(call.body, call.terms).await })
        .on(routes::volume_inspect(), |service, call| async move { service.volume_inspect(call.at).await })
        .on(routes::volume_remove(), |service, call| async move {
            service.volume_remove(call.at, call.query.force, call.terms).await
        })
        .on(routes::volume_resize(), |service, call| async move {
            service.volume_resize(call.at, call.body, call.terms).await
        })
        .on(
            routes::volume_copy(),
            |service, call| async move { service.volume_copy(call.at, call.body, call.terms).await },
        )
        .on(routes::heatmap(), |service, _| async move { service.heatmap().await })
        .on(routes::volume_rollback(), |service, call| async move {
            service.volume_rollback(call.at, call.body, call.terms).await
        })
        .on(routes::volume_flatten(), |service, call| async move {
            service.volume_flatten(call.at, call.body, call.terms).await
        })
        .stream(routes::volume_send(), |service, call| async move {
            service.volume_send(call.at, call.body, call.terms).await
        })
        .stream(routes::volume_receive(), |service, call| async move {
            service.volume_receive(call.at, call.body, call.query.tenant, call.terms).await
        })
        .on(routes::volume_receiving(), |service, call| async move { service.volume_receiving(call.at).await })
        .on(routes::volume_receive_abort(), |service, call| async move {
            service.volume_receive_abort(call.at, call.terms).await
        })
        .stream(routes::volume_import(), |service, call| async move {
            service.volume_import(call.at, call.body, call.terms).await
        })
        .on(routes::volume_check(), |service, call| async move {
            service.volume_check(call.at, call.body, call.terms).await
        })
        .on(routes::volume_trim(), |service, call| async move { service.volume_trim(call.at, call.terms).await })
        .on(routes::volume_map(), |service, call| async move { service.volume_map(call.at, call.terms).await })
        .on(routes::volume_unmap(), |service, call| async move { service.volume_unmap(call.at, call.terms).await })
}

fn tenants(api: Api) -> Api {
    api.on(routes::tenant_list(), |service, _| async move { service.tenant_list().await })
        .on(routes::tenant_create(), |service, call| async move { service.tenant_create(call.body, call.terms).await })
        .on(routes::tenant_inspect(), |service, call| async move { service.tenant_inspect(call.at).await })
        .on(
            routes::tenant_set(),
            |service, call| async move { service.tenant_set(call.at, call.body, call.terms).await },
        )
        .on(routes::tenant_remove(), |service, call| async move {
            service.tenant_remove(call.at, call.query.force, call.terms).await
        })
        .on(routes::profile_store(), |service, call| async move {
            service.profile_store(call.at, call.body, call.terms).await
        })
        .on(routes::lease_list(), |service, _| async move { service.lease_list().await })
        .on(routes::lease_create(), |service, call| async move { service.lease_create(call.body, call.terms).await })
        .on(routes::lease_remove(), |service, call| async move {
            service.lease_remove(call.at, call.terms).await.map(|()| NoContent)
        })
        .on(routes::run_start(), |service, call| async move { service.run_start(call.at, call.body, call.terms).await })
        .on(
            routes::run_end(),
            |service, call| async move { service.run_end(call.at, call.terms).await.map(|()| NoContent) },
        )
}

fn devices(api: Api) -> Api {
    api.on(routes::device_list(), |service, _| async move { service.device_list().await })
        .on(routes::device_inspect(), |service, call| async move { service.device_inspect(call.at.0).await })
        .on(routes::device_control(), |service, call| async move {
            service.device_control(call.at.0, call.body, call.terms).await
        })
        .on(routes::device_arbiter(), |service, call| async move {
            service.device_arbiter(call.at.0, call.body, call.terms).await
        })
        .on(routes::device_calibrate(), |service, call| async move {
            service.device_calibrated(call.at.0, call.body, call.terms).await
        })
        .on(routes::device_measure(), |service, call| async move {
            service.device_measure(call.at.0, call.body, call.terms).await
        })
        .on(routes::costs_store(), |service, call| async move { service.costs_store(call.body, call.terms).await })
        .on(routes::hold_list(), |service, _| async move { Ok(service.hold_list()) })
        .on(routes::hold_start(), |service, call| async move { service.hold_start(call.body, call.terms).await })
        .on(routes::hold_stop(), |service, call| async move { service.hold_stop(call.at.0, call.terms).await })
}

fn host(api: Api) -> Api {
    api.on(routes::job_list(), |service, _| async move { Ok(service.job_list()) })
        .on(routes::job_inspect(), |service, call| async move {
            let limit = Duration::from_secs(call.query.wait_seconds).min(LONGEST_WAIT);
            service.job_at_end(call.at, limit).await
        })
        .on(routes::job_cancel(), |service, call| async move { service.job_cancel(call.at) })
        .on(routes::host(), |service, _| async move { service.host().await })
        .on(routes::host_report(), |service, _| async move { service.host_report().await })
        .on(routes::observation(), |service, call| async move {
            let seconds = call.query.waits_seconds;
            let waits = Duration::try_from_secs_f64(seconds).map_err(|error| {
                Fault::new(Code::InvalidArgument, "request", format!("waits_seconds={seconds}: {error}"))
            })?;
            service.observation(waits).await
        })
        .on(routes::healthz(), |_, _| async {
            Ok(serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
        })
        .on(routes::openapi(), |_, _| async {
            openapi::committed().map_err(|error| Fault::new(Code::Internal, "OpenAPI document", error))
        })
}

pub(super) fn metrics(api: Api) -> Api {
    api.text(routes::metrics_text(), metrics_text)
}

/// In the format that is accepted.
async fn metrics_text(State(service): State<Service>, headers: HeaderMap) -> impl IntoResponse {
    let format = Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let seen = service.metrics().await;
    ([(CONTENT_TYPE, format.media_type())], render(seen, format))
}
