//! Who changes what: an operation claims the objects that it changes, and waits only for those that claim the same.
//!
//! Owns: the order in which claims are granted. All objects of a claim are granted at once, so that no two operations can wait for
//! each other; of claims that conflict, the one that was made first comes first.
//! Does not: guard look-ups. They read records and the kernel as they are, and never wait for an operation.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use tokio::sync::Notify;

use crate::jobs::Job;

/// What an operation can change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// Which pools there are, and where: two may not come to be in one place.
    Pools,
    Pool(Name),
    Volume(VolumeRef),
    Tenant(Name),
    /// A block device, by its kernel name: its controller, and the shares that are held on it.
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
    /// It has to stay; others may claim it so as well.
    Shared,
    /// Nobody else may claim it.
    Exclusive,
}

/// The objects that an operation changes, or that have to stay as long as it goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim(BTreeMap<Object, Mode>);

impl Claim {
    /// With an object that the operation changes.
    pub(crate) fn changes(mut self, object: Object) -> Self {
        self.0.insert(object, Mode::Exclusive);
        self
    }

    /// With a volume that the operation changes, whose pool has to stay.
    pub(crate) fn volume(self, reference: &VolumeRef) -> Self {
        self.pool_stays(&reference.pool).changes(Object::Volume(reference.clone()))
    }

    /// With a pool that has to stay where and what it is.
    pub(crate) fn pool_stays(mut self, name: &Name) -> Self {
        self.0.entry(Object::Pool(name.clone())).or_insert(Mode::Shared);
        self
    }

    /// With volumes that the operation changes.
    pub(crate) fn volumes<'a>(self, references: impl IntoIterator<Item = &'a VolumeRef>) -> Self {
        references.into_iter().fold(self, Self::volume)
    }

    /// With a tenant that the operation changes.
    pub(crate) fn tenant(self, name: &Name) -> Self {
        self.changes(Object::Tenant(name.clone()))
    }

    /// With a tenant that has to stay.
    pub(crate) fn tenant_stays(mut self, name: &Name) -> Self {
        self.0.entry(Object::Tenant(name.clone())).or_insert(Mode::Shared);
        self
    }

    /// What it changes, as words.
    pub(crate) fn object_names(&self) -> Vec<String> {
        let changed = self.0.iter().filter(|(_, mode)| **mode == Mode::Exclusive);
        changed.map(|(object, _)| object.to_string()).collect()
    }

    /// Whether it claims all that another does, in a way that is at least as strong.
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

/// A claim that was made: it waits until it is granted.
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
    /// In the order in which they were made.
    all: Vec<Entry>,
}

impl Entries {
    fn add(&mut self, job: &Arc<Job>, claim: Claim) -> u64 {
        self.next += 1;
        self.all.push(Entry { ticket: self.next, claim, job: Arc::clone(job), granted: false });
        self.next
    }

    /// Those for which a claim has to wait: granted, or made before it.
    fn ahead_of(&self, ticket: u64) -> Vec<Arc<Job>> {
        let Some(own) = self.all.iter().find(|entry| entry.ticket == ticket) else { return Vec::new() };
        let is_ahead = |other: &&Entry| {
            other.ticket != ticket && (other.granted || other.ticket < ticket) && other.claim.conflicts_with(&own.claim)
        };
        self.all.iter().filter(is_ahead).map(|entry| Arc::clone(&entry.job)).collect()
    }

    fn grant(&mut self, ticket: u64) {
        if let Some(entry) = self.all.iter_mut().find(|entry| entry.ticket == ticket) {
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

    /// Claims objects when nobody has them, or waits for them.
    pub(crate) fn try_claim(self: &Arc<Self>, job: &Arc<Job>, claim: Claim) -> Option<Held> {
        let mut entries = self.entries();
        let ticket = entries.add(job, claim.clone());
        if entries.ahead_of(ticket).is_empty() {
            entries.grant(ticket);
            return Some(Held { locks: Arc::clone(self), ticket, claim });
        }
        entries.all.pop();
        None
    }

    /// Claims objects as soon as nobody has them who came before; the job says for whom it waits. Given up when it is dropped.
    pub(crate) async fn claim(self: &Arc<Self>, job: &Arc<Job>, claim: Claim) -> Held {
        let ticket = self.entries().add(job, claim.clone());
        // From here on it goes with its owner, granted or not.
        let held = Held { locks: Arc::clone(self), ticket, claim };
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before looking, so that no change is missed in between.
            changed.as_mut().enable();
            let ahead = {
                let mut entries = self.entries();
                let ahead = entries.ahead_of(ticket);
                if ahead.is_empty() {
                    entries.grant(ticket);
                }
                ahead
            };
            job.waits_for(&ahead);
            if ahead.is_empty() {
                return held;
            }
            changed.await;
        }
    }
}

/// Objects that an operation has, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    locks: Arc<Locks>,
    ticket: u64,
    claim: Claim,
}

impl Held {
    /// Whether what turned out to be needed is among them.
    pub(crate) fn covers(&self, claim: &Claim) -> bool {
        self.claim.covers(claim)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.entries().all.retain(|entry| entry.ticket != self.ticket);
        self.locks.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
