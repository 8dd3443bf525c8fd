//! Bodies of requests and answers.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The body of a request.
pub trait Body: 'static {
    /// The decoded body.
    type Content: Send;

    /// Whether the request has a body.
    const IS_READ: bool;

    /// # Errors
    /// The body is not JSON of this type.
    fn read(bytes: &[u8]) -> serde_json::Result<Self::Content>;

    /// # Errors
    /// The content has no form in JSON.
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

/// A JSON body.
#[derive(Debug)]
pub struct Json<T>(PhantomData<T>);

impl<T: Serialize + DeserializeOwned + Send + 'static> Body for Json<T> {
    type Content = T;

    const IS_READ: bool = true;

    fn read(bytes: &[u8]) -> serde_json::Result<T> {
        serde_json::from_slice(bytes)
    }

    fn write(content: &T) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(content)
    }
}

/// An answer without a body (status 204), which decodes from `null`.
#[derive(Debug, Deserialize)]
pub struct NoContent;

/// An answer in plain text.
#[derive(Debug)]
pub struct Text;

/// A successful answer.
pub trait Answer {
    /// The body, serialised as JSON.
    type Content: Serialize;

    /// The body; `None` for status 204.
    fn content(self) -> Option<Self::Content>;
}

impl<T: Serialize> Answer for T {
    type Content = T;

    fn content(self) -> Option<T> {
        Some(self)
    }
}

impl Answer for NoContent {
    type Content = ();

    fn content(self) -> Option<()> {
        None
    }
}

/// An answer that upgrades the connection to a stream; in a dry run, JSON.
#[derive(Debug)]
pub struct Stream<T>(PhantomData<T>);
