//! Parameters in the path of a route.

use std::fmt::Write as _;

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use serde::de::DeserializeOwned;
use utoipa::PartialSchema;
use utoipa::openapi::schema::{KnownFormat, SchemaFormat};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use uuid::Uuid;

/// The parameters in the path of a route.
pub trait PathParams: Send + Sized + 'static {
    /// The decoded segments, as the router extracts them.
    type Segments: DeserializeOwned + Send;

    /// # Errors
    /// The segment that does not parse, and why.
    fn from_segments(segments: Self::Segments) -> Result<Self, String>;

    /// The segments, not escaped.
    fn segments(&self) -> Vec<String>;

    /// The schemas of the segments.
    fn schemas() -> Vec<Schema>;
}

fn text() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).into()
}

/// The inline schema of a type, such as a number.
fn schema_of<T: PartialSchema>() -> Schema {
    match T::schema() {
        RefOr::T(schema) => schema,
        RefOr::Ref(_) => text(),
    }
}

impl PathParams for () {
    type Segments = ();

    fn from_segments((): ()) -> Result<Self, String> {
        Ok(())
    }

    fn segments(&self) -> Vec<String> {
        Vec::new()
    }

    fn schemas() -> Vec<Schema> {
        Vec::new()
    }
}

impl PathParams for Name {
    type Segments = String;

    fn from_segments(name: String) -> Result<Self, String> {
        name.parse().map_err(|error: bulkhead_core::name::NameError| error.to_string())
    }

    fn segments(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text()]
    }
}

impl PathParams for VolumeRef {
    type Segments = (String, String);

    fn from_segments((pool, name): (String, String)) -> Result<Self, String> {
        Ok(Self { pool: Name::from_segments(pool)?, name: Name::from_segments(name)? })
    }

    fn segments(&self) -> Vec<String> {
        vec![self.pool.to_string(), self.name.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text(), text()]
    }
}

/// The kernel name of a device, or its path.
#[derive(Clone, Debug)]
pub struct Device(pub String);

impl PathParams for Device {
    type Segments = String;

    fn from_segments(name: String) -> Result<Self, String> {
        Ok(Self(name))
    }

    fn segments(&self) -> Vec<String> {
        vec![self.0.clone()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text()]
    }
}

impl PathParams for Uuid {
    type Segments = String;

    fn from_segments(text: String) -> Result<Self, String> {
        Uuid::parse_str(&text).map_err(|error| format!("{text:?} is not the ID of a lease ({error})"))
    }

    fn segments(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Uuid);
        vec![ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()]
    }
}

/// A run, identified by its tenant and the process that waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub tenant: Name,
    /// The process that waits for the command, and owns the run's leases.
    pub pid: u32,
}

impl PathParams for Run {
    type Segments = (String, String);

    fn from_segments((tenant, pid): (String, String)) -> Result<Self, String> {
        let pid = pid.parse().map_err(|error| format!("{pid:?} is not the ID of a process ({error})"))?;
        Ok(Self { tenant: Name::from_segments(tenant)?, pid })
    }

    fn segments(&self) -> Vec<String> {
        vec![self.tenant.to_string(), self.pid.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text(), schema_of::<u32>()]
    }
}

impl PathParams for u64 {
    type Segments = String;

    fn from_segments(text: String) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{text:?} is not the number of a job ({error})"))
    }

    fn segments(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![schema_of::<u64>()]
    }
}

/// Escapes a segment of a path, or a name or value of a query: everything but unreserved characters (RFC 3986, 2.3).
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            escaped.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
