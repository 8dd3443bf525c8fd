//! The conversion between HTTP and the service's types: path, query and body of a request, status and body of an answer.

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query as QueryString, Request, State};
use axum::handler::Handler;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use bulkhead_api::routes::{Answer, Body, PathParams, Query, Route, Stream, Text};
use bulkhead_api::wire::REQUEST_HEADER;
use bulkhead_core::error::{Code, Fault};
use serde::Serialize;
use uuid::Uuid;

use super::MAX_BODY_BYTES;
use super::upgrade::{self, Upgrade};
use crate::service::{Reply, Service, Terms};

/// Routes with their handlers.
#[derive(Default)]
pub(super) struct Api {
    pub(super) router: Router<Service>,
}

impl Api {
    /// Adds an operation for a route.
    pub(super) fn on<A, Q, B, R, F, Fut>(self, route: Route<A, Q, B, R>, operation: F) -> Self
    where
        A: PathParams,
        Q: Query,
        B: Body,
        R: Answer,
        F: Fn(Service, Call<A, Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, Fault>> + Send + 'static,
    {
        self.handled(&route, move |State(service): State<Service>, call: Call<A, Q, B>| {
            let answer = operation(service, call);
            async move { answer.await.map(success).map_err(Failure::from) }
        })
    }

    /// Adds an operation for a route with a stream. Refusals come before the connection is upgraded.
    pub(super) fn stream<A, Q, B, R, F, Fut>(self, route: Route<A, Q, B, Stream<R>>, operation: F) -> Self
    where
        A: PathParams,
        Q: Query<Terms = Terms>,
        B: Body,
        R: Serialize + Send + 'static,
        F: Fn(Service, Call<A, Q, B>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Reply<R>, Fault>> + Send + 'static,
    {
        self.handled(&route, move |State(service): State<Service>, mut request: Request| async move {
            let upgrade = Upgrade::requested_by(&mut request);
            let call = Call::<A, Q, B>::from_request(request, &service).await?;
            let upgrade = match upgrade {
                None if !call.terms.dry_run => return Err(upgrade::required()),
                upgrade => upgrade,
            };
            match operation(service, call).await? {
                Reply::Planned(planned) => Ok(success(planned)),
                Reply::Stream(begun) => upgrade.map(|upgrade| upgrade.switch_to(begun)).ok_or_else(upgrade::required),
            }
        })
    }

    /// Adds a handler for a route without JSON.
    pub(super) fn text<A: PathParams, Q: Query, B: Body, H: Handler<T, Service>, T: 'static>(
        self,
        route: Route<A, Q, B, Text>,
        handler: H,
    ) -> Self {
        self.handled(&route, handler)
    }

    fn handled<A, Q, B, R, H: Handler<T, Service>, T: 'static>(self, route: &Route<A, Q, B, R>, handler: H) -> Self {
        let method = MethodFilter::try_from(route.method.clone()).expect("the table has only methods that HTTP has");
        Self { router: self.router.route(route.path, on(method, handler)) }
    }
}

/// The parts of a request that an operation gets.
pub(super) struct Call<A, Q: Query, B: Body> {
    /// The parameters of its path.
    pub(super) at: A,
    pub(super) query: Q,
    pub(super) body: B::Content,
    /// The terms of its job, if it has one.
    pub(super) terms: Q::Terms,
}

impl<A: PathParams, Q: Query, B: Body, S: Send + Sync> FromRequest<S> for Call<A, Q, B> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let (mut parts, body) = request.into_parts();
        let path = Path::<A::Segments>::from_request_parts(&mut parts, state).await;
        let Path(path) = path.map_err(|rejection: PathRejection| invalid(rejection.body_text()))?;
        let at = A::from_segments(path).map_err(|error| invalid(format!("its path is wrong: {error}")))?;
        let query = QueryString::<Q>::from_request_parts(&mut parts, state).await;
        let QueryString(query) = query.map_err(|rejection: QueryRejection| invalid(rejection.body_text()))?;
        let id = if Q::IS_JOB { requested(&parts.headers)? } else { None };
        let bytes = if B::IS_READ { read(Request::from_parts(parts, body), state).await? } else { Bytes::new() };
        let body = B::read(&bytes).map_err(|error| invalid(format!("its body is not the expected JSON: {error}")))?;
        let terms = query.terms(id);
        Ok(Self { at, query, body, terms })
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, Failure> {
    Bytes::from_request(request, state).await.map_err(|rejection: BytesRejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            let cause = format!("its body is larger than {MAX_BODY_BYTES} bytes");
            return Failure { status: StatusCode::PAYLOAD_TOO_LARGE, ..invalid(cause) };
        }
        invalid(format!("its body cannot be read ({})", rejection.body_text()))
    })
}

/// The client's id of the request.
fn requested(headers: &HeaderMap) -> Result<Option<Uuid>, Failure> {
    let Some(value) = headers.get(REQUEST_HEADER) else { return Ok(None) };
    let id = value.to_str().ok().and_then(|text| Uuid::parse_str(text).ok());
    id.map(Some).ok_or_else(|| invalid(format!("its {REQUEST_HEADER} is not a UUID")))
}

/// A success: 200 with JSON, or 204.
fn success(answer: impl Answer) -> Response {
    match answer.content() {
        Some(content) => axum::Json(content).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
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

fn invalid(cause: impl std::fmt::Display) -> Failure {
    Fault::new(Code::InvalidArgument, "request", cause).into()
}
