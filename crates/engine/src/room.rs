//! Room in pools: what an operation is going to take, or a flattening, counts as taken from the moment on when it was allowed.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use bulkhead_core::backend;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::model::{Pool, Volume};
use bulkhead_core::units::Bytes;
use bulkhead_core::wire::LayersView;
use uuid::Uuid;

use crate::engine::{Engine, Shared};
use crate::host::Space;

/// Room that an operation has, until this is dropped: by then it has taken it.
#[derive(Debug)]
pub(crate) struct Reserved {
    shared: Arc<Shared>,
    pool: Uuid,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(bytes) = reserved(&self.shared).get_mut(&self.pool) {
            *bytes -= self.bytes;
        }
    }
}

fn reserved(shared: &Shared) -> MutexGuard<'_, BTreeMap<Uuid, u64>> {
    shared.reserved.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Refuses a volume that is larger than its whole pool.
    pub(crate) fn check_size(space: &Space, size: Bytes, object: &str) -> Result<(), Fault> {
        if size <= space.total {
            return Ok(());
        }
        let cause = format!("{size} is larger than the whole pool ({})", space.total);
        Err(Fault::new(Code::NoSpace, object, cause).cure("ask for less, or use a larger pool"))
    }

    /// Reserves room in a pool.
    ///
    /// # Errors
    /// `NoSpace` when it has less, without what others are going to take.
    pub(crate) fn reserve(&self, pool: &Pool, needed: Bytes, object: &str) -> Result<Reserved, Fault> {
        let mut all = reserved(&self.shared);
        // What is promised after this has been reserved before.
        let promised = self.promised(pool)?;
        // Looked at while nobody reserves any, so that what was reserved and taken is not missed.
        let space = self.host().space(&pool.source)?;
        let taken = all.entry(pool.uuid).or_default();
        let left = space.free.0.saturating_sub(*taken).saturating_sub(promised.0);
        if needed.0 > left {
            let mut cause = format!("{needed} are needed and the pool has {} left", Bytes(left));
            if left < space.free.0 {
                cause += &format!(
                    " (of {}: the rest is promised to others, for example to volumes that are flattened)",
                    space.free
                );
            }
            return Err(Fault::new(Code::NoSpace, object, cause)
                .cure("ask for less, remove volumes or snapshots, make the pool larger, or provision on demand"));
        }
        *taken += needed.0;
        Ok(Reserved { shared: Arc::clone(&self.shared), pool: pool.uuid, bytes: needed.0 })
    }

    /// What volumes of a pool are going to take that are being flattened.
    fn promised(&self, pool: &Pool) -> Result<Bytes, Fault> {
        let backend = backend::backend(pool);
        let mut sum = 0;
        for volume in self.volumes_in(pool)?.into_iter().filter_map(Result::ok).filter(|volume| volume.flatten) {
            // One that is removed, or is done, just now takes nothing.
            let layers = self.host().layers(&backend.device(&volume)).ok().flatten();
            sum += layers.map_or(0, |layers| to_flatten(&volume, &layers).0);
        }
        Ok(Bytes(sum))
    }
}

/// What a volume takes at most when all is copied into its own image that it shares.
pub(crate) fn to_flatten(volume: &Volume, layers: &LayersView) -> Bytes {
    let below: u64 = layers.below.iter().map(|layer| layer.bytes.0).sum();
    Bytes(below.min(volume.size_bytes.0.saturating_sub(layers.own_bytes.0)))
}
