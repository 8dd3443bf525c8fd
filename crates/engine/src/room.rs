//! Space reservations in pools: what an operation or a flattening is going to allocate counts as allocated from the moment it is granted.
//!
//! Owns: the reservations, separate for each pool, so that a slow LVM call delays no other pool. Releasing a reservation never waits.
//! Does not: decide what fits (`core::room`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::backend::{self, Backend};
use bulkhead_core::cow::LayersView;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::health::Space;
use bulkhead_core::model::{Pool, PoolSource, Volume};
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use bulkhead_core::room::{Reservation, Verdict, judge};
use bulkhead_core::units::Bytes;

use crate::engine::Engine;

/// How often the space is read again if others allocate during the reading.
const MAX_ATTEMPTS: usize = 16;

/// The reservations in a pool.
#[derive(Debug, Default)]
pub(crate) struct PoolRoom {
    /// Held while space is read and reserved.
    decision: Mutex<()>,
    reservations: Mutex<BTreeMap<u64, (Allocation, Reservation)>>,
}

impl PoolRoom {
    /// Never held during a call to the host.
    fn reservations(&self) -> MutexGuard<'_, BTreeMap<u64, (Allocation, Reservation)>> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a reservation is for, and whether the progress of its allocation can be observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allocation {
    /// A new volume: everything it allocates was reserved.
    New(Name),
    /// A growing volume, which allocates nothing else.
    Growth(Name),
    /// A volume to be flattened. Once that is recorded, it counts as promised; it is counted once.
    Flattening(Name),
    /// Its progress cannot be observed.
    Unobserved,
}

/// A reservation, released on drop: by then its space is allocated.
#[derive(Debug)]
pub(crate) struct Reserved {
    room: Arc<PoolRoom>,
    id: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.room.reservations().remove(&self.id);
    }
}

impl Engine {
    /// Refuses a volume that is larger than its whole pool.
    pub(crate) fn check_size(space: &Space, size: Bytes, object: &str) -> Result<(), Fault> {
        if size <= space.total {
            return Ok(());
        }
        let cause = format!("{size} is larger than the whole pool ({})", space.total);
        Err(Fault::new(Code::NoSpace, object, cause).hint("request less, or use a larger pool"))
    }

    /// Reserves room in a pool.
    ///
    /// # Errors
    /// `NoSpace` when it has less, without what others are going to take.
    pub(crate) fn reserve(
        &self,
        pool: &Pool,
        needed: Bytes,
        allocation: Allocation,
        object: &str,
    ) -> Result<Reserved, Fault> {
        let room = self.room_of(pool);
        let _decision = room.decision.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match &allocation {
            Allocation::New(_) => Some(Bytes(0)),
            Allocation::Growth(name) => Some(self.host().allocated(&pool.source, name)?),
            Allocation::Flattening(_) | Allocation::Unobserved => None,
        };
        self.find_room(pool, &room, needed, object)?;
        let mut reservations = room.reservations();
        let id = reservations.last_key_value().map_or(0, |(last, _)| last + 1);
        reservations.insert(id, (allocation, Reservation { needed, before }));
        drop(reservations);
        Ok(Reserved { room: Arc::clone(&room), id })
    }

    /// Reserves the additional room of a flattening whose volume is copied, or sent for the first time: its own blocks become a layer, and
    /// have to be copied as well. Held during the operation; later it counts as promised. `None` if the volume is not being flattened.
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn reserve_for_copy(
        &self,
        pool: &Pool,
        backend: &dyn Backend,
        volume: &Volume,
    ) -> Result<Option<Reserved>, Fault> {
        if !volume.flatten {
            return Ok(None);
        }
        let own = self.host().layers(&backend.device(volume))?.map_or(Bytes(0), |layers| layers.own_bytes);
        let object = format!("volume {}", volume.reference());
        match self.reserve(pool, own, Allocation::Unobserved, &object) {
            Err(fault) if fault.code == Code::NoSpace => {
                let cause = format!(
                    "it is being flattened; after a snapshot, a clone or a first send, the blocks of its own image must be copied as well: {}",
                    fault.cause
                );
                let reason = Reason::FlatteningNeedsRoom { volume: volume.reference() };
                Err(Fault::new(Code::NoSpace, object, cause).reason(reason))
            }
            reserved => reserved.map(Some),
        }
    }

    fn room_of(&self, pool: &Pool) -> Arc<PoolRoom> {
        let mut all = self.shared.reserved.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(pool.uuid).or_default())
    }

    /// Reads the space until the decision is certain.
    fn find_room(&self, pool: &Pool, room: &PoolRoom, needed: Bytes, object: &str) -> Result<(), Fault> {
        let mut before = self.outstanding(pool, room)?;
        let mut attempts_left = MAX_ATTEMPTS;
        loop {
            let free = self.host().space(&pool.source)?.free;
            // It fits with everything that was outstanding before: no second look is needed.
            if judge(needed, free, before, before) == Verdict::Fits {
                return Ok(());
            }
            let after = self.outstanding(pool, room)?;
            attempts_left -= 1;
            match judge(needed, free, before, after) {
                Verdict::Fits => return Ok(()),
                Verdict::Moved if attempts_left > 0 => before = after,
                Verdict::Moved | Verdict::Full => return Err(no_room(needed, free, before.max(after), object)),
            }
        }
    }

    /// What others have reserved in a pool.
    fn outstanding(&self, pool: &Pool, room: &PoolRoom) -> Result<Bytes, Fault> {
        let reservations: Vec<(Allocation, Reservation)> = room.reservations().values().cloned().collect();
        let promised = self.promised(pool, &reservations)?;
        reservations.iter().try_fold(promised, |sum, (allocation, reservation)| {
            let allocated = match allocation {
                Allocation::New(name) | Allocation::Growth(name) => self.host().allocated(&pool.source, name)?,
                Allocation::Flattening(_) | Allocation::Unobserved => Bytes(0),
            };
            Ok(Bytes(sum.0.saturating_add(reservation.outstanding(allocated).0)))
        })
    }

    /// What the volumes of a pool that are being flattened are going to allocate, except those with a reservation.
    fn promised(&self, pool: &Pool, reservations: &[(Allocation, Reservation)]) -> Result<Bytes, Fault> {
        // LVM pools have no layers, and their records are slow to read.
        if matches!(pool.source, PoolSource::Lvm { .. }) {
            return Ok(Bytes(0));
        }
        let backend = backend::backend(pool);
        let mut sum: u64 = 0;
        for volume in self.volumes_in(pool)?.into_iter().filter_map(Result::ok).filter(|volume| volume.flatten) {
            if reservations.iter().any(|(allocation, _)| *allocation == Allocation::Flattening(volume.name.clone())) {
                continue;
            }
            // A volume that has just been removed, or is flattened, needs nothing.
            let layers = self.host().layers(&backend.device(&volume)).ok().flatten();
            sum = sum.saturating_add(layers.map_or(0, |layers| to_flatten(&volume, &layers).0));
        }
        Ok(Bytes(sum))
    }
}

fn no_room(needed: Bytes, free: Bytes, outstanding: Bytes, object: &str) -> Fault {
    let left = Bytes(free.0.saturating_sub(outstanding.0));
    let mut cause = format!("{needed} is needed, but the pool has {left} left");
    if left < free {
        cause += &format!(" (of {free}: the rest is reserved for others, for example for volumes being flattened)");
    }
    Fault::new(Code::NoSpace, object, cause)
        .hint("request less, remove volumes or snapshots, make the pool larger, or provision on demand")
}

/// The most that a volume allocates when it is flattened.
pub(crate) fn to_flatten(volume: &Volume, layers: &LayersView) -> Bytes {
    let below: u64 = layers.below.iter().map(|layer| layer.bytes.0).sum();
    Bytes(below.min(volume.size_bytes.0.saturating_sub(layers.own_bytes.0)))
}

#[cfg(test)]
mod tests;
