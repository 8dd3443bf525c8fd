//! What handlers take from a request, and what they answer with.

use std::time::Duration;

use axum::body::Bytes as BodyBytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::wire::REQUEST_HEADER;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::MAX_BODY_BYTES;
use crate::service::{DEFAULT_WAIT, Terms};

/// A success as JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: serde::Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        axum::Json(self.0).into_response()
    }
}

/// Everything else as JSON. The status is that of the fault's code, except where HTTP has a narrower one (405, 413).
pub(super) struct Failure {
    pub(super) status: StatusCode,
    pub(super) fault: Fault,
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        let status = StatusCode::from_u16(fault.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self { status, fault }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, axum::Json(self.fault)).into_response()
    }
}

pub(super) type Reply<T> = Result<Json<T>, Failure>;

fn invalid(cause: impl std::fmt::Display) -> Failure {
    Fault::new(Code::InvalidArgument, "request", cause).into()
}

/// A request body.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let bytes = BodyBytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
            if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                let cause = format!("its body is larger than {MAX_BODY_BYTES} bytes");
                return Failure { status: StatusCode::PAYLOAD_TOO_LARGE, ..invalid(cause) };
            }
            invalid(format!("its body cannot be read ({})", rejection.body_text()))
        })?;
        let body = serde_json::from_slice(&bytes);
        body.map(Self).map_err(|error| invalid(format!("its body is not the JSON that is expected: {error}")))
    }
}

/// The query of a request.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(query) = query.map_err(|rejection: QueryRejection| invalid(rejection.body_text()))?;
        Ok(Self(query))
    }
}

/// What the variable parts of a path name.
pub(super) struct At<T>(pub(super) T);

impl<T: FromPath, S: Send + Sync> FromRequestParts<S> for At<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let path = Path::<T::Parts>::from_request_parts(parts, state).await;
        let Path(path) = path.map_err(|rejection: PathRejection| invalid(rejection.body_text()))?;
        T::from_path(path).map(Self).map_err(|error| invalid(format!("its path is wrong: {error}")))
    }
}

pub(super) trait FromPath: Sized {
    type Parts: DeserializeOwned + Send;

    fn from_path(parts: Self::Parts) -> Result<Self, String>;
}

impl FromPath for Name {
    type Parts = String;

    fn from_path(name: String) -> Result<Self, String> {
        name.parse().map_err(|error: bulkhead_core::name::NameError| error.to_string())
    }
}

impl FromPath for VolumeRef {
    type Parts = (String, String);

    fn from_path((pool, name): (String, String)) -> Result<Self, String> {
        Ok(Self { pool: Name::from_path(pool)?, name: Name::from_path(name)? })
    }
}

/// The kernel name of a device; the engine looks it up among those that are there.
pub(super) struct Device(pub(super) String);

impl FromPath for Device {
    type Parts = String;

    fn from_path(name: String) -> Result<Self, String> {
        Ok(Self(name))
    }
}

impl FromPath for Uuid {
    type Parts = String;

    fn from_path(text: String) -> Result<Self, String> {
        Uuid::parse_str(&text).map_err(|error| format!("{text:?} is not the id of a lease ({error})"))
    }
}

impl FromPath for u64 {
    type Parts = String;

    fn from_path(text: String) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{text:?} is not the number of a job ({error})"))
    }
}

/// What the client calls its request.
pub(super) struct Requested(pub(super) Option<Uuid>);

impl<S: Send + Sync> FromRequestParts<S> for Requested {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Failure> {
        let Some(value) = parts.headers.get(REQUEST_HEADER) else { return Ok(Self(None)) };
        let id = value.to_str().ok().and_then(|text| Uuid::parse_str(text).ok());
        id.map(|id| Self(Some(id))).ok_or_else(|| invalid(format!("its {REQUEST_HEADER} is not a UUID")))
    }
}

fn default_wait() -> u64 {
    DEFAULT_WAIT.as_secs()
}

fn terms(dry_run: bool, wait_seconds: u64, request: Option<Uuid>) -> Terms {
    Terms { dry_run, wait: Duration::from_secs(wait_seconds), request }
}

/// Query of a request that may have to wait.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Wait {
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(default = "default_wait")]
    wait_seconds: u64,
}

impl Wait {
    pub(super) fn terms(self, request: Option<Uuid>) -> Terms {
        terms(false, self.wait_seconds, request)
    }
}

/// Query of a request that writes.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Write {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(default = "default_wait")]
    wait_seconds: u64,
}

impl Write {
    pub(super) fn terms(self, request: Option<Uuid>) -> Terms {
        terms(self.dry_run, self.wait_seconds, request)
    }
}

/// Query of a removal.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Remove {
    /// Say what would be done, and do nothing.
    #[serde(default)]
    dry_run: bool,
    /// Remove it although it is in use.
    #[serde(default)]
    pub(super) force: bool,
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(default = "default_wait")]
    wait_seconds: u64,
}

impl Remove {
    pub(super) fn terms(self, request: Option<Uuid>) -> Terms {
        terms(self.dry_run, self.wait_seconds, request)
    }
}
