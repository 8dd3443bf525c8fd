//! Queries of requests.

use std::ops::Not;
use std::time::Duration;

use bulkhead_core::name::Name;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::path::escape;
use crate::terms::{DEFAULT_WAIT, Terms};

/// The query of a request: a struct of scalars. A request whose query has terms becomes a job.
pub trait Query: Serialize + DeserializeOwned + Send + 'static {
    /// The terms of the job; `()` for a request that is answered without one.
    type Terms: Send;

    /// Whether the request becomes a job.
    const IS_JOB: bool;

    /// The terms, with the client's ID of the request.
    fn terms(&self, request: Option<Uuid>) -> Self::Terms;

    /// The same query with a limit on how long the job may wait; `None` for the daemon's default. No effect without a job.
    #[must_use]
    fn with_wait(self, wait: Option<Duration>) -> Self;
}

/// Appends a query to a path; parameters with their default value are omitted.
pub(super) fn with_query<Q: Query>(mut target: String, query: &Q) -> String {
    let fields = serde_json::to_value(query).expect("a struct of scalars can be written as JSON");
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mark = if target.contains('?') { '&' } else { '?' };
        target.extend([mark.to_string(), escape(name), "=".to_owned(), escape(&value)]);
    }
    target
}

/// No query; parameters are ignored.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct NoQuery {}

/// Query of a request that can wait for others.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wait {
    /// How long to wait for other operations on the same objects, and for data to be written, before anything is changed, in
    /// seconds. Default: 60. On timeout: `in_use`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a request that makes changes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Write {
    /// Return the steps without carrying them out. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// How long to wait for other operations on the same objects, and for data to be written, before anything is changed, in
    /// seconds. Default: 60. On timeout: `in_use`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a transfer to a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Receive {
    /// Return the steps without carrying them out. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// The tenant to charge for the work. Default: the tenant of a volume with the same base; if there is none, nobody is charged
    /// and the work has the lowest priority. The snapshot is not attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// How long to wait for other operations on the same objects, and for data to be written, before anything is changed, in
    /// seconds. Default: 60. On timeout: `in_use`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a removal.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Remove {
    /// Return the steps without carrying them out. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// Remove the object even if it is in use. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub force: bool,
    /// How long to wait for other operations on the same objects, and for data to be written, before anything is changed, in
    /// seconds. Default: 60. On timeout: `in_use`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of the list of volumes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VolumeFilter {
    /// Only the volumes of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub pool: Option<Name>,
    /// Only the volumes of this name, of which each pool can have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub name: Option<Name>,
    /// Fail if a pool cannot be read, with its error, instead of omitting its volumes. Default: false.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub complete: bool,
}

/// Query of a job.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// How long to wait for the end of the job before answering, in seconds, at most 3600. Default: 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

/// Query of the observation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ObservationQuery {
    /// Include the longest fsync waits of the last `waits_seconds`, at most 300. Default: 0, which includes none.
    #[serde(default)]
    pub waits_seconds: f64,
}

macro_rules! without_job {
    ($($query:ident),+) => {
        $(impl Query for $query {
            type Terms = ();

            const IS_JOB: bool = false;

            fn terms(&self, _request: Option<Uuid>) {}

            fn with_wait(self, _wait: Option<Duration>) -> Self {
                self
            }
        })+
    };
}

without_job!(JobQuery, NoQuery, VolumeFilter, ObservationQuery);

macro_rules! job {
    ($($query:ident: $dry_run:expr),+) => {
        $(impl Query for $query {
            type Terms = Terms;

            const IS_JOB: bool = true;

            fn terms(&self, request: Option<Uuid>) -> Terms {
                let dry_run: fn(&Self) -> bool = $dry_run;
                let wait = self.wait_seconds.map_or(DEFAULT_WAIT, Duration::from_secs);
                Terms { dry_run: dry_run(self), wait, request }
            }

            fn with_wait(mut self, wait: Option<Duration>) -> Self {
                self.wait_seconds = wait.map(|wait| wait.as_secs());
                self
            }
        })+
    };
}

job!(Wait: |_| false, Write: |query| query.dry_run, Receive: |query| query.dry_run, Remove: |query| query.dry_run);
