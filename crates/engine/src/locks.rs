//! Claims: an operation claims the objects that it changes, and waits only for operations that claim the same ones.
//!
//! Owns: the order in which claims are granted. All objects of a claim are granted at once, so that no two operations can wait for
//! each other; of conflicting claims, the earliest comes first.
//! Does not: guard look-ups. They read records and the kernel as they are, and never wait for an operation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use tokio::sync::Notify;

use crate::jobs::Job;

/// An object that an operation can change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// The set of pools and their places: no two pools may share one.
    Pools,
    Pool(Name),
    Volume(VolumeRef),
    Tenant(Name),
    /// A block device, by its kernel name: its controller, and the shares enforced on it.
    Device(String),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Object::Pools => f.write_str("the set of pools"),
            Object::Pool(name) => write!(f, "pool {name}"),
            Object::Volume(reference) => write!(f, "volume {reference}"),
            Object::Tenant(name) => write!(f, "tenant {name}"),
            Object::Device(name) => write!(f, "device {name}"),
        }
    }
}

/// How an object is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    /// Shared: it has to stay as it is.
    Shared,
    /// Exclusive: it is changed.
    Exclusive,
}

/// The objects that an operation changes, or that have to stay as they are until it ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim(BTreeMap<Object, Mode>);

impl Claim {
    /// Adds an object that the operation changes.
    pub(crate) fn changes(mut self, object: Object) -> Self {
        self.0.insert(object, Mode::Exclusive);
        self
    }

    /// Adds a volume that the operation changes; its pool has to stay.
    pub(crate) fn volume(self, reference: &VolumeRef) -> Self {
        self.pool_stays(&reference.pool).changes(Object::Volume(reference.clone()))
    }

    /// Adds a pool that has to stay where and what it is.
    pub(crate) fn pool_stays(mut self, name: &Name) -> Self {
        self.0.entry(Object::Pool(name.clone())).or_insert(Mode::Shared);
        self
    }

    /// Adds volumes that the operation changes.
    pub(crate) fn volumes<'a>(self, references: impl IntoIterator<Item = &'a VolumeRef>) -> Self {
        references.into_iter().fold(self, Self::volume)
    }

    /// Adds a tenant that the operation changes.
    pub(crate) fn tenant(self, name: &Name) -> Self {
        self.changes(Object::Tenant(name.clone()))
    }

    /// Adds a tenant that has to stay.
    pub(crate) fn tenant_stays(mut self, name: &Name) -> Self {
        self.0.entry(Object::Tenant(name.clone())).or_insert(Mode::Shared);
        self
    }

    /// The names of the objects that it changes.
    pub(crate) fn object_names(&self) -> Vec<String> {
        let changed = self.0.iter().filter(|(_, mode)| **mode == Mode::Exclusive);
        changed.map(|(object, _)| object.to_string()).collect()
    }

    /// Whether it includes another claim, each object in a mode at least as strong.
    fn covers(&self, other: &Claim) -> bool {
        other.0.iter().all(|(object, mode)| self.0.get(object).is_some_and(|own| own >= mode))
    }

    fn conflicts_with(&self, other: &Claim) -> bool {
        let clashes = |(object, mode): (&Object, &Mode)| {
            other.0.get(object).is_some_and(|theirs| *mode == Mode::Exclusive || *theirs == Mode::Exclusive)
        };
        self.0.iter().any(clashes)
    }
}

/// A claim in the queue, granted or waiting.
#[derive(Debug)]
struct Entry {
    ticket: u64,
    claim: Claim,
    job: Arc<Job>,
    granted: bool,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// In order of arrival.
    queue: Vec<Entry>,
}

impl Entries {
    fn add(&mut self, job: &Arc<Job>, claim: Claim) -> u64 {
        self.next += 1;
        self.queue.push(Entry { ticket: self.next, claim, job: Arc::clone(job), granted: false });
        self.next
    }

    /// The jobs that a claim has to wait for: those of granted and of earlier conflicting claims.
    fn blockers_of(&self, ticket: u64) -> Vec<Arc<Job>> {
        let Some(own) = self.queue.iter().find(|entry| entry.ticket == ticket) else { return Vec::new() };
        let blocks = |other: &&Entry| {
            other.ticket != ticket && (other.granted || other.ticket < ticket) && other.claim.conflicts_with(&own.claim)
        };
        self.queue.iter().filter(blocks).map(|entry| Arc::clone(&entry.job)).collect()
    }

    fn grant(&mut self, ticket: u64) {
        if let Some(entry) = self.queue.iter_mut().find(|entry| entry.ticket == ticket) {
            entry.granted = true;
        }
    }
}

/// All claims of a daemon.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    entries: Mutex<Entries>,
    changed: Notify,
}

impl Locks {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims objects if no other claim holds them or waits for them.
    pub(crate) fn try_claim(self: &Arc<Self>, job: &Arc<Job>, claim: Claim) -> Option<Held> {
        let mut entries = self.entries();
        let ticket = entries.add(job, claim.clone());
        if entries.blockers_of(ticket).is_empty() {
            entries.grant(ticket);
            return Some(Held { locks: Arc::clone(self), ticket, claim });
        }
        entries.queue.pop();
        None
    }

    /// Claims objects once no earlier claim conflicts; the job shows which jobs it waits for. Dropping the future withdraws the claim.
    pub(crate) async fn claim(self: &Arc<Self>, job: &Arc<Job>, claim: Claim) -> Held {
        let ticket = self.entries().add(job, claim.clone());
        // From here on, dropping the future removes the entry, granted or not.
        let held = Held { locks: Arc::clone(self), ticket, claim };
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the queue is read, so that no change is missed in between.
            changed.as_mut().enable();
            let blockers = {
                let mut entries = self.entries();
                let blockers = entries.blockers_of(ticket);
                if blockers.is_empty() {
                    entries.grant(ticket);
                }
                blockers
            };
            job.set_waits_for(&blockers);
            if blockers.is_empty() {
                return held;
            }
            changed.await;
        }
    }
}

/// Claimed objects. Dropping this releases them.
#[derive(Debug)]
pub(crate) struct Held {
    locks: Arc<Locks>,
    ticket: u64,
    claim: Claim,
}

impl Held {
    /// Whether they include another claim.
    pub(crate) fn covers(&self, claim: &Claim) -> bool {
        self.claim.covers(claim)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.entries().queue.retain(|entry| entry.ticket != self.ticket);
        self.locks.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
