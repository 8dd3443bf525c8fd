//! The roster: which tenant has which volumes, from the records of tenants and leases. It is rebuilt only when these have changed.
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
    tenant_records: Records,
    lease_records: Records,
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
    fn new(tenant_records: Records, lease_records: Records) -> Self {
        let mut roster = Self::default();
        for (path, record) in tenant_records.iter() {
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
        for (_, record) in lease_records.iter() {
            match record {
                Ok(Record::Lease(lease)) => roster.leases.push(lease.clone()),
                // Leases do not survive a reboot: a record of another kind is ignored.
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
        Self { tenant_records, lease_records, ..roster }
    }

    fn is_based_on(&self, tenant_records: &Records, lease_records: &Records) -> bool {
        let is_same = |one: &Records, other: &Records| Arc::ptr_eq(one, other) || one == other;
        is_same(&self.tenant_records, tenant_records) && is_same(&self.lease_records, lease_records)
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
    /// The roster of the current records. If they cannot be listed, the last known ones are used and the error is added to `faults`, so
    /// that no tenant's volumes are left unmaintained.
    pub(crate) fn roster(&self, faults: &mut Vec<Fault>) -> Arc<Roster> {
        let before = Arc::clone(&self.shared.roster.lock().unwrap_or_else(PoisonError::into_inner));
        let mut list = |dir: PathBuf, before: &Records| {
            self.host().records(&dir, "").unwrap_or_else(|fault| {
                faults.push(fault);
                Arc::clone(before)
            })
        };
        let tenant_records = list(self.dirs.state.join("tenants"), &before.tenant_records);
        let lease_records = list(self.dirs.run.join("leases"), &before.lease_records);
        let now = if before.is_based_on(&tenant_records, &lease_records) {
            before
        } else {
            Arc::new(Roster::new(tenant_records, lease_records))
        };
        faults.extend(now.faults.iter().cloned());
        *self.shared.roster.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&now);
        now
    }
}
