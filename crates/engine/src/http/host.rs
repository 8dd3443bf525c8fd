//! The host, what goes on on it, and the daemon's jobs.

use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::observe::view::Observation;
use bulkhead_core::wire::{HostView, JobView};
use serde::Deserialize;

use super::extract::{Asked, At, Json, Reply};
use crate::metrics;
use crate::openapi::{ListFaults, ObjectFaults, ObserveFaults};
use crate::service::Service;

/// Query of the observation.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Waits {
    /// Add the longest waits of so many seconds; they are remembered for 300 s.
    #[serde(default)]
    waits_seconds: f64,
}

/// Lists the jobs: operations that are under way, and those that ended lately.
#[utoipa::path(get, path = "/v1/jobs", tag = "jobs", responses((status = 200, body = [JobView]), ListFaults))]
pub(super) async fn job_list(State(service): State<Service>) -> Reply<Vec<JobView>> {
    Ok(Json(service.job_list()))
}

/// Shows a job.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path)),
    responses((status = 200, body = JobView), ObjectFaults))]
pub(super) async fn job_inspect(State(service): State<Service>, At(id): At<u64>) -> Reply<JobView> {
    Ok(Json(service.job_inspect(id)?))
}

/// Has a job end as soon as all that it did can be undone; at once while it waits. One that has ended, or cannot be undone any more,
/// is what it is. Idempotent.
#[utoipa::path(delete, path = "/v1/jobs/{id}", tag = "jobs", params(("id" = u64, Path)),
    responses((status = 200, body = JobView), ObjectFaults))]
pub(super) async fn job_cancel(State(service): State<Service>, At(id): At<u64>) -> Reply<JobView> {
    Ok(Json(service.job_cancel(id)?))
}

/// Shows who wrote which journal bytes and who waited for whom in fsync: sums since the daemon began to observe, which are
/// compared with an earlier answer to see what happens now. The first question begins the observation.
#[utoipa::path(get, path = "/v1/observation", tag = "observe",
    params(Waits), responses((status = 200, body = Observation), ObserveFaults))]
pub(super) async fn observation(State(service): State<Service>, Asked(query): Asked<Waits>) -> Reply<Observation> {
    let waits = Duration::try_from_secs_f64(query.waits_seconds).map_err(|error| {
        Fault::new(Code::InvalidArgument, "request", format!("waits_seconds={}: {error}", query.waits_seconds))
    })?;
    Ok(Json(service.observation(waits).await?))
}

/// What was observed, for Prometheus. A scrape every two minutes or more often keeps the observation going.
#[utoipa::path(get, path = "/metrics", tag = "observe",
    responses((status = 200, description = "Metrics, in the format that is accepted", content_type = "application/openmetrics-text")))]
pub(super) async fn metrics_text(State(service): State<Service>, headers: HeaderMap) -> impl IntoResponse {
    let format = metrics::Format::accepted(headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()));
    let seen = service.seen().await;
    ([(CONTENT_TYPE, format.media_type())], metrics::render(seen, format))
}

/// Shows what the daemon is and sees.
#[utoipa::path(get, path = "/v1/host", tag = "host", responses((status = 200, body = HostView), ListFaults))]
pub(super) async fn host(State(service): State<Service>) -> Reply<HostView> {
    Ok(Json(service.host().await?))
}

/// Answers while the daemon lives, also during a long operation.
#[utoipa::path(get, path = "/v1/healthz", tag = "host",
    responses((status = 200, description = "The daemon answers", body = serde_json::Value)))]
pub(super) async fn healthz() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

/// This document.
#[utoipa::path(get, path = "/v1/openapi.json", tag = "host",
    responses((status = 200, description = "The OpenAPI document", body = serde_json::Value)))]
pub(super) async fn openapi() -> Json<utoipa::openapi::OpenApi> {
    Json(crate::openapi::document())
}
