//! Operations on pools: what each claims.

use bulkhead_api::terms::Terms;
use bulkhead_api::wire::{Done, PoolCreate, PoolMove, PoolView};
use bulkhead_core::error::Fault;
use bulkhead_core::name::Name;

use super::Service;
use crate::locks::{Claim, Object};

#[expect(clippy::missing_errors_doc, reason = "the engine's methods of the same names say them")]
impl Service {
    /// All pools.
    pub async fn pool_list(&self) -> Result<Vec<PoolView>, Fault> {
        self.read(|engine| engine.pool_list()).await
    }

    /// One pool.
    pub async fn pool_inspect(&self, name: Name) -> Result<PoolView, Fault> {
        self.read(move |engine| engine.pool_inspect(&name)).await
    }

    /// Creates a pool, or adopts an existing one.
    pub async fn pool_create(&self, request: PoolCreate, terms: Terms) -> Result<Done<PoolView>, Fault> {
        let operation = format!("create pool {}", request.name);
        let claim = Claim::default().changes(Object::Pools).changes(Object::Pool(request.name.clone()));
        self.change(terms, operation, claim, move |engine| engine.pool_create(&request, terms.dry_run)).await
    }

    /// Records the new directory of a pool.
    pub async fn pool_move(&self, name: Name, request: PoolMove, terms: Terms) -> Result<Done<PoolView>, Fault> {
        let operation = format!("move pool {name} to {}", request.directory.display());
        let claim = Claim::default().changes(Object::Pools).changes(Object::Pool(name.clone()));
        self.change(terms, operation, claim, move |engine| engine.pool_move(&name, &request, terms.dry_run)).await
    }

    /// Removes an empty pool.
    pub async fn pool_remove(&self, name: Name, terms: Terms) -> Result<Done<PoolView>, Fault> {
        let operation = format!("remove pool {name}");
        let claim = Claim::default().changes(Object::Pools).changes(Object::Pool(name.clone()));
        self.change(terms, operation, claim, move |engine| engine.pool_remove(&name, terms.dry_run)).await
    }
}
