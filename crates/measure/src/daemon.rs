//! A client of the daemon that blocks, for measurements in tenants that the daemon makes.

use anyhow::{Context, Result};
use bulkhead_api::client::{Client, Removal};
use bulkhead_core::error::Fault;
use bulkhead_core::model::FrontEnd;
use bulkhead_core::name::Name;

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

    /// Removes the tenants and volumes that were created by `creator` and have such a name, with what runs in them.
    ///
    /// # Errors
    /// The daemon's first refusal.
    pub fn remove_created(&self, creator: FrontEnd, is_one: impl Fn(&Name) -> bool) -> Result<()> {
        let how = Removal { force: true, dry_run: false };
        for tenant in self.request(async |client| client.tenant_list().await)? {
            if tenant.created_by == Some(creator) && is_one(&tenant.name) {
                self.request(async |client| client.tenant_remove(&tenant.name, how).await)?;
            }
        }
        for volume in self.request(async |client| client.volume_list(None).await)? {
            if volume.created_by == Some(creator) && is_one(&volume.volume.name) {
                self.request(async |client| client.volume_remove(&volume.volume, how).await)?;
            }
        }
        Ok(())
    }

    /// The daemon's socket.
    #[must_use]
    pub fn socket(&self) -> &std::path::Path {
        self.client.socket()
    }
}
