//! Selects what a periodic check examines. While nothing changes, a check's cost does not grow with the number of tenants and volumes,
//! apart from reading the dates of tenants' records, and each object has its turn within the bound in SPECIFICATION.md.
//!
//! Owns: how many objects have their turn, how thoroughly each is examined, and when all have to be, because something has changed. [`RoundRobin`]
//! decides whose turn it is; `reconcile.rs` acts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, PoisonError};

use bulkhead_core::error::Fault;
use bulkhead_core::model::{Lease, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::round_robin::{RoundRobin, Turn};
use uuid::Uuid;

use crate::engine::{Engine, MountedVolume};
use crate::host::Proof;
use crate::roster::{Roster, Slot};

/// Tenants per check whose cgroups, weights and limits are compared with their proofs: about 15 system calls each.
const TENANTS: usize = 16;

/// Tenants per check that are restored in full, because a proof does not cover everything: about 90 system calls each.
const TENANTS_IN_FULL: usize = 2;

/// Leases per check whose processes are looked up: three system calls each.
const LEASES: usize = 128;

/// Mounted volumes per check that are compared with their proofs: two or three system calls each.
const PROVED: usize = 128;

/// Mounted volumes per check that are restored in full, because a proof does not cover everything: about 100 system calls each.
const IN_FULL: usize = 4;

/// The rotas of all objects, and what earlier checks found.
#[derive(Debug)]
pub(crate) struct Turns {
    tenants: RoundRobin<Name>,
    tenants_in_full: RoundRobin<Name>,
    leases: RoundRobin<Uuid>,
    proved: RoundRobin<Slot>,
    in_full: RoundRobin<Slot>,
    /// Leases whose processes are gone and that have not been ended yet.
    gone: BTreeSet<Uuid>,
    /// The state in which all volumes were found mounted: while it is unchanged, they are.
    all_mounted: Option<MountState>,
    proofs: TenantProofs,
}

/// Proofs that the cgroups of tenants are unchanged.
#[derive(Debug, Default)]
struct TenantProofs {
    /// The records that they are based on.
    roster: Arc<Roster>,
    /// The weight files that they cover: loading a module adds some.
    weight_files: Vec<&'static str>,
    of: BTreeMap<Name, Arc<dyn Proof>>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            tenants: RoundRobin::new(TENANTS),
            tenants_in_full: RoundRobin::new(TENANTS_IN_FULL),
            leases: RoundRobin::new(LEASES),
            proved: RoundRobin::new(PROVED),
            in_full: RoundRobin::new(IN_FULL),
            gone: BTreeSet::new(),
            all_mounted: None,
            proofs: TenantProofs::default(),
        }
    }
}

/// Everything that determines whether each volume is mounted for its tenant.
#[derive(Clone, Debug)]
pub(crate) struct MountState {
    pub(crate) roster: Arc<Roster>,
    pub(crate) mounts: Arc<BTreeSet<PathBuf>>,
    /// [`MountedVolumes::changes`].
    pub(crate) changes: u64,
}

impl PartialEq for MountState {
    fn eq(&self, other: &Self) -> bool {
        self.changes == other.changes
            && Arc::ptr_eq(&self.roster, &other.roster)
            && (Arc::ptr_eq(&self.mounts, &other.mounts) || self.mounts == other.mounts)
    }
}

/// The volumes that this daemon mounted or found mounted, so that checking them every few seconds needs no LVM call.
#[derive(Debug, Default)]
pub(crate) struct MountedVolumes {
    volumes: BTreeMap<VolumeRef, MountedVolume>,
    flattening: BTreeSet<VolumeRef>,
    changes: u64,
}

impl MountedVolumes {
    pub(crate) fn get(&self, volume: &VolumeRef) -> Option<&MountedVolume> {
        self.volumes.get(volume)
    }

    pub(crate) fn insert(&mut self, volume: VolumeRef, watched: MountedVolume) {
        self.changes += 1;
        if watched.flatten {
            self.flattening.insert(volume.clone());
        } else {
            self.flattening.remove(&volume);
        }
        self.volumes.insert(volume, watched);
    }

    pub(crate) fn remove(&mut self, volume: &VolumeRef) -> Option<MountedVolume> {
        self.changes += 1;
        self.flattening.remove(volume);
        self.volumes.remove(volume)
    }

    pub(crate) fn volumes(&self) -> impl Iterator<Item = &VolumeRef> {
        self.volumes.keys()
    }

    /// The ones being flattened.
    pub(crate) const fn flattening(&self) -> &BTreeSet<VolumeRef> {
        &self.flattening
    }

    /// The number of additions and removals.
    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    fn set_proof(&mut self, volume: &VolumeRef, proof: Option<Arc<dyn Proof>>) {
        if let Some(watched) = self.volumes.get_mut(volume) {
            watched.proof = proof;
        }
    }
}

/// How thoroughly a volume or tenant is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Whether it is mounted.
    Mounted,
    /// Whether its server and journal thread are where they were, or its cgroups as they were.
    Proved,
    /// Every step that maintains it is carried out.
    Full,
}

/// What one check examines.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    /// The tenants whose cgroups are examined.
    pub(crate) tenants: Vec<(&'a Name, Depth)>,
    /// The leases whose processes are looked up.
    pub(crate) leases: Vec<&'a Lease>,
    pub(crate) slots: Vec<(&'a Slot, Depth)>,
    /// Whether every slot is among them.
    pub(crate) has_all_slots: bool,
}

impl<'a> Round<'a> {
    /// Everything, in full.
    pub(crate) fn all(roster: &'a Roster) -> Self {
        Self {
            tenants: roster.tenants.iter().map(|name| (name, Depth::Full)).collect(),
            leases: roster.leases.iter().collect(),
            slots: roster.slots.iter().map(|slot| (slot, Depth::Full)).collect(),
            has_all_slots: true,
        }
    }
}

impl Turns {
    /// Selects what to examine now. While all volumes are known to be mounted, no others are examined.
    fn next<'a>(&mut self, now: &'a MountState) -> Round<'a> {
        let roster = &*now.roster;
        self.gone.retain(|id| roster.has_lease(id));
        let leases = self.leases.next(&roster.leases, |lease| &lease.id);
        let is_selected = |(place, lease): &(usize, &Lease)| leases.contains(*place) || self.gone.contains(&lease.id);
        let leases = match self.gone.is_empty() {
            true => leases.indices().map(|place| &roster.leases[place]).collect(),
            false => roster.leases.iter().enumerate().filter(is_selected).map(|(_, lease)| lease).collect(),
        };
        let proved = self.proved.next(&roster.slots, |slot| slot);
        let in_full = self.in_full.next(&roster.slots, |slot| slot);
        let has_all_slots = self.all_mounted.as_ref() != Some(now);
        let places: Vec<usize> =
            if has_all_slots { (0..roster.slots.len()).collect() } else { either(in_full, proved).collect() };
        let slot = |place| (&roster.slots[place], depth(place, in_full, proved));
        let tenants = self.tenants.next(&roster.tenants, |name| name);
        let tenants_in_full = self.tenants_in_full.next(&roster.tenants, |name| name);
        let tenant = |place| (&roster.tenants[place], depth(place, tenants_in_full, tenants));
        Round {
            tenants: either(tenants_in_full, tenants).map(tenant).collect(),
            leases,
            slots: places.into_iter().map(slot).collect(),
            has_all_slots,
        }
    }
}

/// The union of two turns.
fn either(in_full: Turn, proved: Turn) -> impl Iterator<Item = usize> {
    in_full.indices().chain(proved.indices().filter(move |place| !in_full.contains(*place)))
}

fn depth(place: usize, in_full: Turn, proved: Turn) -> Depth {
    match () {
        () if in_full.contains(place) => Depth::Full,
        () if proved.contains(place) => Depth::Proved,
        () => Depth::Mounted,
    }
}

impl Engine {
    /// Selects what to examine now.
    pub(crate) fn next_round<'a>(&self, now: &'a MountState) -> Round<'a> {
        self.turns().next(now)
    }

    /// Records the state in which all volumes were examined, and whether all of them were mounted.
    pub(crate) fn record_all_mounted(&self, then: MountState, all_mounted: bool) {
        self.turns().all_mounted = Some(then).filter(|_| all_mounted);
    }

    /// Records whether the process of a lease is gone.
    pub(crate) fn set_gone(&self, lease: Uuid, is_gone: bool) {
        let mut turns = self.turns();
        if is_gone {
            turns.gone.insert(lease);
        } else {
            turns.gone.remove(&lease);
        }
    }

    /// Whether the process of a lease is known to be gone.
    pub(crate) fn is_known_gone(&self, lease: Uuid) -> bool {
        self.turns().gone.contains(&lease)
    }

    /// Discards tenants' proofs that are based on older records, or that lack weight files which exist now.
    pub(crate) fn discard_stale_proofs(&self, roster: &Arc<Roster>) {
        let weight_files = self.host().weight_files();
        let mut turns = self.turns();
        let proofs = &mut turns.proofs;
        if !Arc::ptr_eq(&proofs.roster, roster) || proofs.weight_files != weight_files {
            *proofs = TenantProofs { roster: Arc::clone(roster), weight_files, of: BTreeMap::new() };
        }
    }

    /// The proof that a tenant's cgroups are unchanged, if it holds.
    pub(crate) fn tenant_proof(&self, name: &Name) -> Option<Arc<dyn Proof>> {
        let proof = self.turns().proofs.of.get(name).cloned();
        proof.filter(|proof| proof.holds())
    }

    /// Records the proof for the next check of a tenant's cgroups.
    pub(crate) fn set_tenant_proof(&self, name: &Name, proof: Option<Arc<dyn Proof>>) {
        let of = &mut self.turns().proofs.of;
        match proof {
            Some(proof) => drop(of.insert(name.clone(), proof)),
            None => drop(of.remove(name)),
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.shared.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out every step that maintains a mounted volume, and records the proof for the next check. The volume is claimed.
    pub(crate) fn keep(&self, reference: &VolumeRef, watched: MountedVolume) -> Result<(), Fault> {
        let MountedVolume { keep, proof, .. } = watched;
        let kept = self.executor.run_steps(keep.clone(), false);
        let proof = match kept {
            Ok(_) => proof.filter(|proof| proof.holds()).or_else(|| self.host().proof(&keep)),
            Err(_) => None,
        };
        self.mounted_volumes().set_proof(reference, proof);
        kept.map(drop)
    }
}

#[cfg(test)]
mod tests;
