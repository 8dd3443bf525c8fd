//! The OpenAPI document of the API, from the table in `routes`, the types in `wire`, and the closed list of error codes.
//!
//! `docs/openapi.json` is its committed copy, which the daemon serves; a test fails if it is stale (`BULKHEAD_BLESS=1` rewrites it).

use std::collections::BTreeMap;
use std::io;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::reason::Reason;
use flate2::read::GzDecoder;
use hyper::Method;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, Required, Response, ResponseBuilder, Schema};
use utoipa::{IntoResponses, OpenApi as _};

use crate::routes;

/// The committed document, compressed by the build script.
const COMMITTED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/openapi.json.gz"));

/// The committed document.
///
/// # Errors
/// If it was committed as something else than JSON.
pub fn committed() -> io::Result<serde_json::Value> {
    Ok(serde_json::from_reader(GzDecoder::new(COMMITTED))?)
}

/// The document, made from the types.
#[must_use]
pub fn document() -> OpenApi {
    let mut document = routes::Paths::openapi();
    for route in routes::table().into_iter().filter(|route| !route.params.is_empty()) {
        let item = document.paths.paths.get_mut(route.path);
        if let Some(operation) = item.and_then(|item| operation(item, &route.method)) {
            operation.parameters.get_or_insert_default().splice(0..0, route.params.into_iter().map(path_parameter));
        }
    }
    document.merge(Shared::openapi());
    document.info = InfoBuilder::new()
        .title("Bulkhead")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Storage isolation for containers: the daemon's API on its unix socket (/run/bulkhead/bulkhead.sock). Every \
             error is a Fault. Operations marked as idempotent succeed and change nothing when they are repeated.",
        ))
        .build();
    document
}

fn operation<'a>(item: &'a mut PathItem, method: &Method) -> Option<&'a mut Operation> {
    let operation = match *method {
        Method::GET => &mut item.get,
        Method::POST => &mut item.post,
        Method::PATCH => &mut item.patch,
        Method::DELETE => &mut item.delete,
        _ => return None,
    };
    operation.as_mut()
}

fn path_parameter((name, schema): (&str, Schema)) -> RefOr<Parameter> {
    let parameter = ParameterBuilder::new().name(name).parameter_in(ParameterIn::Path).required(Required::True);
    RefOr::T(parameter.schema(Some(schema)).build())
}

/// Errors of lists.
pub(crate) struct ListFaults;

/// Errors of observations.
pub(crate) struct ObserveFaults;

/// Errors of requests that show one object.
pub(crate) struct ObjectFaults;

/// Errors of requests that make changes.
pub(crate) struct WriteFaults;

/// Errors of requests for a stream.
pub(crate) struct StreamFaults;

impl IntoResponses for ListFaults {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        faults(&[Code::Corrupt, Code::Unavailable, Code::Internal])
    }
}

impl IntoResponses for ObserveFaults {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        faults(&[Code::InvalidArgument, Code::Unsupported, Code::Unavailable, Code::Internal])
    }
}

impl IntoResponses for ObjectFaults {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        faults(&[Code::InvalidArgument, Code::NotFound, Code::Corrupt, Code::Unavailable, Code::Internal])
    }
}

impl IntoResponses for WriteFaults {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        faults(&Code::ALL)
    }
}

impl IntoResponses for StreamFaults {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        let upgrade =
            ("426".to_owned(), fault("`invalid_argument`: the request does not ask for an upgrade of its connection"));
        faults(&Code::ALL).into_iter().chain([upgrade]).collect()
    }
}

/// One response for each HTTP status, described by the codes with that status.
fn faults(codes: &[Code]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for code in codes {
        by_status.entry(code.http_status().to_string()).or_default().push(format!("`{code}`"));
    }
    by_status.into_iter().map(|(status, codes)| (status, fault(&codes.join(", ")))).collect()
}

fn fault(description: &str) -> RefOr<Response> {
    let content = Content::new(Some(RefOr::Ref(Ref::from_schema_name("Fault"))));
    ResponseBuilder::new().description(description).content("application/json", content).build().into()
}

/// Schemas of errors, which responses refer to by name: the document has them whichever paths it has.
#[derive(utoipa::OpenApi)]
#[openapi(components(schemas(Fault, Code, Reason)))]
pub(crate) struct Shared;

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_committed_document_is_current() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
        let expected = document().to_pretty_json().unwrap() + "\n";
        if std::env::var_os("BULKHEAD_BLESS").is_some() {
            std::fs::write(&path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(found == expected, "docs/openapi.json is stale: run this test with BULKHEAD_BLESS=1");
    }

    #[test]
    fn each_route_is_documented_with_its_path_parameters() {
        let document = serde_json::to_value(document()).unwrap();
        let mut described = 0;
        for operations in document["paths"].as_object().unwrap().values() {
            described += operations.as_object().unwrap().len();
        }
        let rows = routes::table();
        assert_eq!(described, rows.len());
        for route in rows {
            let operation = &document["paths"][route.path][route.method.as_str().to_lowercase()];
            assert!(operation.is_object(), "{} {}", route.method, route.path);
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let names = parameters.filter(|parameter| parameter["in"] == "path").map(|parameter| &parameter["name"]);
            assert!(names.eq(route.params.iter().map(|(name, _)| name)), "{operation}");
        }
    }

    #[test]
    fn every_reference_resolves() {
        let document = serde_json::to_value(document()).unwrap();
        let mut pending = vec![&document];
        let mut n_references = 0;
        while let Some(value) = pending.pop() {
            match value {
                serde_json::Value::Object(fields) => {
                    if let Some(serde_json::Value::String(target)) = fields.get("$ref") {
                        n_references += 1;
                        let pointer = target.strip_prefix('#').unwrap();
                        assert!(document.pointer(pointer).is_some(), "{target} does not resolve");
                    }
                    pending.extend(fields.values());
                }
                serde_json::Value::Array(items) => pending.extend(items),
                _ => {}
            }
        }
        assert!(n_references > 50, "{n_references}");
    }
}
