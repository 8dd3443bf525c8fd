//! A client of the daemon that blocks, for measurements in tenants that the daemon makes.

use anyhow::{Context, Result};
use bulkhead_api::client::Client;
use bulkhead_core::error::Fault;

/// A blocking client of the daemon.
#[derive(Debug)]
pub struct Daemon {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Daemon {
    /// Around a client.
    ///
    /// # Errors
    /// If no runtime can be started.
    pub fn new(client: Client) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self { client, runtime: runtime.context("cannot start a runtime")? })
    }

    /// Makes a request, and waits for its answer.
    ///
    /// # Errors
    /// The daemon's.
    pub fn request<T, F: Future<Output = Result<T, Fault>>>(&self, request: impl FnOnce(Client) -> F) -> Result<T> {
        Ok(self.runtime.block_on(request(self.client.clone()))?)
    }

    /// The daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &std::path::Path {
        self.client.socket()
    }
}
