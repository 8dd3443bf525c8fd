//! What a periodic check looks at: what it costs grows little with the number of tenants and volumes, and each has its turn within a bound
//! that SPECIFICATION.md has.
//!
//! Owns: how many have their turn, and how far a volume is looked at. Whose turn it is decides [`Rota`], what is done about it
//! `reconcile.rs`.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use bulkhead_core::error::Fault;
use bulkhead_core::model::{Tenant, VolumeRef};
use bulkhead_core::name::Name;
use bulkhead_core::rota::Rota;

use crate::engine::{Engine, Watched};

/// How many tenants have their cgroups, weights and limits brought to what is recorded: about 50 system calls each.
const TENANTS: usize = 16;

/// How many mounted volumes are proved to be as they were: two or three system calls each.
const PROVED: usize = 128;

/// How many mounted volumes are kept in full, proof or none, because a proof does not see everything: about 100 system calls each.
const IN_FULL: usize = 4;

/// Whose turn it is next.
#[derive(Debug)]
pub(crate) struct Turns {
    tenants: Rota<Name>,
    proved: Rota<VolumeRef>,
    in_full: Rota<VolumeRef>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { tenants: Rota::new(TENANTS), proved: Rota::new(PROVED), in_full: Rota::new(IN_FULL) }
    }
}

/// How far a volume is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// Whether it is mounted.
    Mounted,
    /// Whether what serves it, and what writes its journal, is where it was.
    Proved,
    /// All that it takes to keep it is done.
    Full,
}

/// What one check looks at.
#[derive(Debug)]
pub(crate) enum Look<'a> {
    /// All tenants and volumes, in full.
    All,
    /// Those whose turn it is; of all others, whether volumes are mounted.
    Turn { tenants: BTreeSet<&'a Name>, proved: BTreeSet<&'a VolumeRef>, in_full: BTreeSet<&'a VolumeRef> },
}

impl Look<'_> {
    /// Whether the cgroups of a tenant are looked at.
    pub(crate) fn is_at(&self, tenant: &Name) -> bool {
        match self {
            Self::All => true,
            Self::Turn { tenants, .. } => tenants.contains(tenant),
        }
    }

    pub(crate) fn depth(&self, volume: &VolumeRef) -> Depth {
        match self {
            Self::All => Depth::Full,
            Self::Turn { in_full, .. } if in_full.contains(volume) => Depth::Full,
            Self::Turn { proved, .. } if proved.contains(volume) => Depth::Proved,
            Self::Turn { .. } => Depth::Mounted,
        }
    }
}

impl Engine {
    /// Whose turn it is now, of these tenants and the volumes that are kept for them or lent to them.
    pub(crate) fn turn<'a>(&self, tenants: &[&'a Tenant], lent: impl Iterator<Item = &'a VolumeRef>) -> Look<'a> {
        let mut names: Vec<&Name> = tenants.iter().map(|tenant| &tenant.name).collect();
        let mut volumes: Vec<&VolumeRef> = tenants.iter().flat_map(|tenant| &tenant.volumes).chain(lent).collect();
        names.sort_unstable();
        volumes.sort_unstable();
        volumes.dedup();
        let mut turns = self.shared.turns.lock().unwrap_or_else(PoisonError::into_inner);
        Look::Turn {
            tenants: turns.tenants.next(&names),
            proved: turns.proved.next(&volumes),
            in_full: turns.in_full.next(&volumes),
        }
    }

    /// Does all that keeps a mounted volume as it is, and notes how that can be told the next time. The volume is claimed.
    pub(crate) fn keep(&self, reference: &VolumeRef, watched: Watched) -> Result<(), Fault> {
        let Watched { keep, proof, .. } = watched;
        let kept = self.executor.run_steps(keep.clone(), false);
        let proof = match kept {
            Ok(_) => proof.filter(|proof| proof.holds()).or_else(|| self.host().proof(&keep)),
            Err(_) => None,
        };
        if let Some(now) = self.watched().get_mut(reference) {
            now.proof = proof;
        }
        kept.map(drop)
    }
}

#[cfg(test)]
mod tests;
