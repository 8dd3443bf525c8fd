//! The roster: which tenant has which volumes, from the records of tenants and leases. It is rebuilt only when they have changed.
//!
//! Owns: the last known entries while records cannot be listed. Does not: read anything of the host except records.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

use bulkhead_core::action::Record;
use bulkhead_core::error::Fault;
use bulkhead_core::model::{Lease, VolumeRef};
use bulkhead_core::name::Name;
use uuid::Uuid;

use crate::engine::{Engine, read_tenant};
use crate::host::Records;

/// A volume that is kept mounted for a tenant, or lent to it by a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) volume: VolumeRef,
    pub(crate) tenant: Name,
}

/// The content of the records.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    of_tenants: Records,
    of_leases: Records,
    /// The errors of records that cannot be read.
    pub(crate) faults: Vec<Fault>,
    /// Tenants whose removal has begun.
    pub(crate) removing: Vec<Name>,
    /// All other tenants, sorted.
    pub(crate) tenants: Vec<Name>,
    /// Sorted by their ids.
    pub(crate) leases: Vec<Lease>,
    /// The volumes of tenants that are not being removed, sorted, without duplicates.
    pub(crate) slots: Vec<Slot>,
}

impl Roster {
    fn new(of_tenants: Records, of_leases: Records) -> Self {
        let mut roster = Self::default();
        for (path, record) in of_tenants.iter() {
            match read_tenant(path, record.clone()) {
                Ok(tenant) if tenant.removing => roster.removing.push(tenant.name),
                Ok(tenant) => {
                    let slot = |volume| Slot { volume, tenant: tenant.name.clone() };
                    roster.slots.extend(tenant.volumes.into_iter().map(slot));
                    roster.tenants.push(tenant.name);
                }
                Err(fault) => roster.faults.push(fault),
            }
        }
        roster.tenants.sort_unstable();
        for (_, record) in of_leases.iter() {
            match record {
                Ok(Record::Lease(lease)) => roster.leases.push(lease.clone()),
                // Leases do not survive a reboot: what else is there keeps nothing from going on.
                Ok(_) => {}
                Err(fault) => roster.faults.push(fault.clone()),
            }
        }
        roster.leases.sort_unstable_by_key(|lease| lease.id);
        let lent = roster.leases.iter().filter(|lease| roster.tenants.binary_search(&lease.tenant).is_ok());
        let lent = lent.map(|lease| Slot { volume: lease.volume.clone(), tenant: lease.tenant.clone() });
        roster.slots.extend(lent);
        roster.slots.sort_unstable();
        roster.slots.dedup();
        Self { of_tenants, of_leases, ..roster }
    }

    fn is_of(&self, of_tenants: &Records, of_leases: &Records) -> bool {
        let is_same = |one: &Records, other: &Records| Arc::ptr_eq(one, other) || one == other;
        is_same(&self.of_tenants, of_tenants) && is_same(&self.of_leases, of_leases)
    }

    pub(crate) fn has_tenant(&self, name: &Name) -> bool {
        self.tenants.binary_search(name).is_ok() || self.removing.contains(name)
    }

    pub(crate) fn has_volume(&self, volume: &VolumeRef) -> bool {
        self.slots.binary_search_by(|slot| slot.volume.cmp(volume)).is_ok()
    }

    pub(crate) fn has_lease(&self, id: &Uuid) -> bool {
        self.leases.binary_search_by(|lease| lease.id.cmp(id)).is_ok()
    }
}

impl Engine {
    /// What the records say now. What cannot be listed is as it was when it could be the last time, and noted: nobody loses who looks after
    /// him.
    pub(crate) fn roster(&self, of_records: &mut Vec<Fault>) -> Arc<Roster> {
        let before = Arc::clone(&self.shared.roster.lock().unwrap_or_else(PoisonError::into_inner));
        let mut list = |dir: PathBuf, before: &Records| {
            self.host().records(&dir, "").unwrap_or_else(|fault| {
                of_records.push(fault);
                Arc::clone(before)
            })
        };
        let of_tenants = list(self.dirs.state.join("tenants"), &before.of_tenants);
        let of_leases = list(self.dirs.run.join("leases"), &before.of_leases);
        let now =
            if before.is_of(&of_tenants, &of_leases) { before } else { Arc::new(Roster::new(of_tenants, of_leases)) };
        of_records.extend(now.faults.iter().cloned());
        *self.shared.roster.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&now);
        now
    }
}
