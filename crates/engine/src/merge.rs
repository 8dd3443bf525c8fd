//! Merging layers in the background, so that snapshots can rotate forever (`bulkhead_core::merge`).
//!
//! Owns: when pools are checked (at the start, and after a volume was copied or removed), merging one run at a time, and making
//! servers release merged files. No volume is claimed while layers are copied, so no operation waits for that.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bulkhead_core::action::{Action, DeviceRef, ServerAction};
use bulkhead_core::backend;
use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::merge::Run;
use bulkhead_core::model::{Pool, PoolSource, Volume, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::slices;
use uuid::Uuid;

use crate::engine::{Engine, Located};
use crate::locks::Claim;
use crate::room::Allocation;

/// Pending work on layers.
#[derive(Debug, Default)]
pub(crate) struct Merging(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Pools in which there may be layers that can be merged.
    pools: BTreeSet<Name>,
    /// Volumes whose servers may have merged files open.
    stale: BTreeSet<VolumeRef>,
    is_running: bool,
}

impl Merging {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The exclusive right to merge layers, until this is dropped.
#[derive(Debug)]
pub(crate) struct MergeGuard(Engine);

impl Drop for MergeGuard {
    fn drop(&mut self) {
        self.0.shared.merging.state().is_running = false;
    }
}

impl Engine {
    /// Requests a check of a pool's layers.
    pub(crate) fn check_layers(&self, pool: &Pool) {
        if matches!(pool.source, PoolSource::File { .. }) {
            self.shared.merging.state().pools.insert(pool.name.clone());
        }
    }

    /// The right to merge, if layers may be due and no merge is running.
    pub(crate) fn try_start_merge(&self) -> Option<MergeGuard> {
        let mut state = self.shared.merging.state();
        if state.is_running || state.pools.is_empty() {
            return None;
        }
        state.is_running = true;
        Some(MergeGuard(self.clone()))
    }

    /// Merges all runs of layers that are due. A run that cannot be merged now is retried after the next change in its pool.
    ///
    /// # Errors
    /// `Cancelled` and `Unavailable`: no further run is merged.
    pub(crate) fn merge_layers(&self, guard: MergeGuard) -> Result<(), Fault> {
        let pools = std::mem::take(&mut self.shared.merging.state().pools);
        let engine = self.without_fault_injection();
        for name in pools {
            match engine.merge_in_pool(&name) {
                // The obstacle disappears by itself: a merge process of an earlier daemon, or layers being created.
                Err(fault) if fault.code == Code::InUse => {
                    self.shared.merging.state().pools.insert(name);
                }
                outcome => {
                    let object = format!("pool {name}");
                    let finding = outcome.err().map(|fault| {
                        let evidence = format!("its layers cannot be merged: {fault}");
                        Finding {
                            object: object.clone(),
                            evidence,
                            ..Finding::from_fault(FindingId::LayersNotMerged, fault)
                        }
                    });
                    self.host().conditions().set_or_clear(FindingId::LayersNotMerged, &object, finding);
                }
            }
            engine.executor.job().keep_waiting()?;
        }
        drop(guard);
        Ok(())
    }

    fn merge_in_pool(&self, name: &Name) -> Result<(), Fault> {
        // An operation that removes or moves the pool claims it exclusively.
        let claim = Claim::default().pool_stays(name);
        let in_use = || Fault::new(Code::InUse, format!("pool {name}"), "an operation on it is in progress");
        let _held = self.shared.locks.try_claim(self.executor.job(), claim).ok_or_else(in_use)?;
        let pool = match self.pool(name) {
            Err(fault) if fault.code == Code::NotFound => return Ok(()),
            pool => pool?,
        };
        self.check_identity(&pool)?;
        let PoolSource::File { directory, .. } = &pool.source else { return Ok(()) };
        // Terminates: each merge removes a run.
        while let Some(run) = self.host().layer_tree(directory)?.runs().into_iter().find(Run::is_due) {
            let _room = self.reserve(&pool, run.bytes, Allocation::Unobserved, &format!("pool {name}"))?;
            let newest = run.layers.first().copied().unwrap_or_default();
            let users = self.users_of(&pool, newest)?;
            let holder = |volume| self.holders(volume).ok()?.0;
            let cgroup = users.iter().find_map(holder).map(|tenant| slices::server(&tenant));
            tracing::info!(pool = %name, layers = run.layers.len(), bytes = %run.bytes, "merging layers");
            let aside = run.renamed(Uuid::new_v4);
            self.executor.run_steps(run.merge(&aside, directory, cgroup), false)?;
            // Including volumes that were put on it meanwhile: any of them may have opened the old files.
            let users = self.users_of(&pool, newest)?.into_iter().chain(users);
            self.shared.merging.state().stale.extend(users);
        }
        Ok(())
    }

    /// The volumes that depend on a layer.
    pub(crate) fn users_of(&self, pool: &Pool, layer: Uuid) -> Result<Vec<VolumeRef>, Fault> {
        let backend = backend::backend(pool);
        let volumes = self.volumes_in(pool)?.into_iter().filter_map(Result::ok);
        let depends_on_it = |volume: &Volume| {
            let layers = self.host().layers(&backend.device(volume)).ok().flatten();
            layers.is_some_and(|layers| layers.below.iter().any(|below| below.id == layer))
        };
        Ok(volumes.filter(depends_on_it).map(|volume| volume.reference()).collect())
    }

    /// Requests a check of the layers of all pools, and of the servers of their mounted volumes: it is not recorded which of them have
    /// files open that an earlier daemon merged.
    pub(crate) fn check_all_layers(&self, pools: &[Pool]) {
        pools.iter().for_each(|pool| self.check_layers(pool));
        let watched: Vec<VolumeRef> = self.mounted_volumes().volumes().cloned().collect();
        let mut state = self.shared.merging.state();
        let has_layers: Vec<VolumeRef> =
            watched.into_iter().filter(|volume| state.pools.contains(&volume.pool)).collect();
        state.stale.extend(has_layers);
    }

    /// Makes servers close merged files, which occupy space until then. Skips volumes that an operation has claimed.
    pub(crate) fn renew_servers(&self) {
        let stale = self.shared.merging.state().stale.clone();
        for reference in stale {
            let renewed = self.unless_busy(Claim::default().volume(&reference), || self.renew_server(&reference));
            if let Some(renewed) = renewed {
                self.shared.merging.state().stale.remove(&reference);
                if let Err(fault) = renewed {
                    tracing::warn!(%fault, "a block server does not release merged layers");
                }
            }
        }
    }

    fn renew_server(&self, reference: &VolumeRef) -> Result<(), Fault> {
        let Located { backend, volume, .. } = match self.locate(reference) {
            Err(fault) if fault.code == Code::NotFound => return Ok(()),
            located => located?,
        };
        let DeviceRef::Image { image, .. } = backend.device(&volume) else { return Ok(()) };
        let renew = Action::Server(ServerAction::RenewServer { image, volume: volume.uuid });
        self.executor.run_steps(if volume.layered { vec![renew] } else { Vec::new() }, false).map(drop)
    }
}

#[cfg(test)]
mod tests;
