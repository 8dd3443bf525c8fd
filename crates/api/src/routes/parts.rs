//! What requests and answers are made of, beside the types in `wire`: both ends use the same.

use std::fmt::Write as _;
use std::marker::PhantomData;
use std::ops::Not;
use std::time::Duration;

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::PartialSchema;
use utoipa::openapi::schema::{KnownFormat, SchemaFormat};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use uuid::Uuid;

use crate::terms::{DEFAULT_WAIT, Terms};

/// What the variable parts of a path name.
pub trait Place: Send + Sized + 'static {
    /// The parts as they are found in a path.
    type Parts: DeserializeOwned + Send;

    /// # Errors
    /// Why they name nothing.
    fn from_parts(parts: Self::Parts) -> Result<Self, String>;

    /// The parts as they are put into a path, not escaped.
    fn parts(&self) -> Vec<String>;

    /// The schemas of the parts.
    fn schemas() -> Vec<Schema>;
}

fn text() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).into()
}

/// That of a type that has one of its own, as numbers have.
fn schema_of<T: PartialSchema>() -> Schema {
    match T::schema() {
        RefOr::T(schema) => schema,
        RefOr::Ref(_) => text(),
    }
}

impl Place for () {
    type Parts = ();

    fn from_parts((): ()) -> Result<Self, String> {
        Ok(())
    }

    fn parts(&self) -> Vec<String> {
        Vec::new()
    }

    fn schemas() -> Vec<Schema> {
        Vec::new()
    }
}

impl Place for Name {
    type Parts = String;

    fn from_parts(name: String) -> Result<Self, String> {
        name.parse().map_err(|error: bulkhead_core::name::NameError| error.to_string())
    }

    fn parts(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text()]
    }
}

impl Place for VolumeRef {
    type Parts = (String, String);

    fn from_parts((pool, name): (String, String)) -> Result<Self, String> {
        Ok(Self { pool: Name::from_parts(pool)?, name: Name::from_parts(name)? })
    }

    fn parts(&self) -> Vec<String> {
        vec![self.pool.to_string(), self.name.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text(), text()]
    }
}

/// The kernel name of a device; the engine looks it up among those that are there.
#[derive(Clone, Debug)]
pub struct Device(pub String);

impl Place for Device {
    type Parts = String;

    fn from_parts(name: String) -> Result<Self, String> {
        Ok(Self(name))
    }

    fn parts(&self) -> Vec<String> {
        vec![self.0.clone()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text()]
    }
}

impl Place for Uuid {
    type Parts = String;

    fn from_parts(text: String) -> Result<Self, String> {
        Uuid::parse_str(&text).map_err(|error| format!("{text:?} is not the id of a lease ({error})"))
    }

    fn parts(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        let format = SchemaFormat::KnownFormat(KnownFormat::Uuid);
        vec![ObjectBuilder::new().schema_type(Type::String).format(Some(format)).into()]
    }
}

/// A run: what it is called by in its tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub tenant: Name,
    /// The process that waits for the command.
    pub pid: u32,
}

impl Place for Run {
    type Parts = (String, String);

    fn from_parts((tenant, pid): (String, String)) -> Result<Self, String> {
        let pid = pid.parse().map_err(|error| format!("{pid:?} is not the id of a process ({error})"))?;
        Ok(Self { tenant: Name::from_parts(tenant)?, pid })
    }

    fn parts(&self) -> Vec<String> {
        vec![self.tenant.to_string(), self.pid.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![text(), schema_of::<u32>()]
    }
}

impl Place for u64 {
    type Parts = String;

    fn from_parts(text: String) -> Result<Self, String> {
        text.parse().map_err(|error| format!("{text:?} is not the number of a job ({error})"))
    }

    fn parts(&self) -> Vec<String> {
        vec![self.to_string()]
    }

    fn schemas() -> Vec<Schema> {
        vec![schema_of::<u64>()]
    }
}

/// Text as one part of a path or query (RFC 3986: everything that is not unreserved is escaped).
pub(super) fn escaped(text: &str) -> String {
    let mut part = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            part.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(part, "%{byte:02X}");
        }
    }
    part
}

/// The query of a request: a struct of scalars. A request whose query has terms becomes a job.
pub trait Query: Serialize + DeserializeOwned + Send + 'static {
    /// How a job is to be carried out; `()` for a request that is answered at once.
    type Terms: Send;

    /// Whether the request becomes a job.
    const IS_JOB: bool;

    /// The terms, with what the client calls its request.
    fn terms(&self, request: Option<Uuid>) -> Self::Terms;

    /// The same with how long it may wait, where it can be said; as the daemon sees fit when `None`.
    #[must_use]
    fn waiting(self, wait: Option<Duration>) -> Self;
}

/// A path with a query, without what has its default.
pub(super) fn with_query<Q: Query>(mut target: String, query: &Q) -> String {
    let fields = serde_json::to_value(query).expect("a struct of scalars can be written as JSON");
    for (name, value) in fields.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mark = if target.contains('?') { '&' } else { '?' };
        target.extend([mark.to_string(), escaped(name), "=".to_owned(), escaped(&value)]);
    }
    target
}

/// A query that nobody reads: whatever it has is ignored.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct NoQuery {}

/// Query of a request that may have to wait.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Wait {
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a request that writes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Write {
    /// Say what would be done, and do nothing.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a snapshot that is received.
#[derive(Clone, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Receive {
    /// Say what would be done, and do nothing.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// The tenant that is charged for the work; without one, that of a volume with the same base, or nobody, at the lowest priority. The
    /// snapshot is not attached to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub tenant: Option<Name>,
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of a removal.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Remove {
    /// Say what would be done, and do nothing.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub dry_run: bool,
    /// Remove it although it is in use.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub force: bool,
    /// How long it may wait for other operations, and for data to be written, before it has changed anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = u64, required = false)]
    pub wait_seconds: Option<u64>,
}

/// Query of the list of volumes.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OfPool {
    /// Only the volumes of this pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>)]
    pub pool: Option<Name>,
}

/// Query of a job.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AtEnd {
    /// Answer when it has ended, or after so many seconds: at most 3600.
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
pub struct Waits {
    /// Add the longest waits of so many seconds; they are remembered for 300 s.
    #[serde(default)]
    pub waits_seconds: f64,
}

macro_rules! answered_at_once {
    ($($query:ident),+) => {
        $(impl Query for $query {
            type Terms = ();

            const IS_JOB: bool = false;

            fn terms(&self, _request: Option<Uuid>) {}

            fn waiting(self, _wait: Option<Duration>) -> Self {
                self
            }
        })+
    };
}

answered_at_once!(AtEnd, NoQuery, OfPool, Waits);

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

            fn waiting(mut self, wait: Option<Duration>) -> Self {
                self.wait_seconds = wait.map(|wait| wait.as_secs());
                self
            }
        })+
    };
}

job!(Wait: |_| false, Write: |query| query.dry_run, Receive: |query| query.dry_run, Remove: |query| query.dry_run);

/// The body of a request.
pub trait Body: 'static {
    /// What is in it.
    type Content: Send;

    /// Whether there is one that is read.
    const IS_READ: bool;

    /// # Errors
    /// Why it cannot be read.
    fn read(bytes: &[u8]) -> serde_json::Result<Self::Content>;

    /// # Errors
    /// Why it cannot be written.
    fn write(content: &Self::Content) -> serde_json::Result<Vec<u8>>;
}

impl Body for () {
    type Content = ();

    const IS_READ: bool = false;

    fn read(_bytes: &[u8]) -> serde_json::Result<()> {
        Ok(())
    }

    fn write((): &()) -> serde_json::Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

/// A body that is JSON.
#[derive(Debug)]
pub struct Sent<T>(PhantomData<T>);

impl<T: Serialize + DeserializeOwned + Send + 'static> Body for Sent<T> {
    type Content = T;

    const IS_READ: bool = true;

    fn read(bytes: &[u8]) -> serde_json::Result<T> {
        serde_json::from_slice(bytes)
    }

    fn write(content: &T) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(content)
    }
}

/// An answer that is only its status, 204; where JSON is expected it is `null`.
#[derive(Debug, Deserialize)]
pub struct Nothing;

/// An answer that is no JSON.
#[derive(Debug)]
pub struct Text;

/// A success.
pub trait Answer {
    /// What is in its body, as JSON.
    type Content: Serialize;

    /// Its body; `None` when there is nothing but the status.
    fn content(self) -> Option<Self::Content>;
}

impl<T: Serialize> Answer for T {
    type Content = T;

    fn content(self) -> Option<T> {
        Some(self)
    }
}

impl Answer for Nothing {
    type Content = ();

    fn content(self) -> Option<()> {
        None
    }
}

/// An answer that is the bytes of a stream; in a dry run, JSON.
#[derive(Debug)]
pub struct Stream<T>(PhantomData<T>);
