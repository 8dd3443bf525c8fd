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
    pub(crate) fn words(&self) -> Vec<String> {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn volume(name: &str) -> VolumeRef {
        format!("p/{name}").parse().unwrap()
    }

    fn job() -> Arc<Job> {
        Arc::new(Job::nobody())
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        let mut future = Box::pin(future);
        match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn volumes_of_a_pool_are_changed_side_by_side_and_the_pool_stays() {
        let locks = Arc::new(Locks::default());
        let a = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
        let b = locks.try_claim(&job(), Claim::default().volume(&volume("b"))).unwrap();
        assert!(locks.try_claim(&job(), Claim::default().volume(&volume("a"))).is_none());
        let pool = || Claim::default().changes(Object::Pool("p".parse().unwrap()));
        assert!(locks.try_claim(&job(), pool()).is_none());
        drop((a, b));
        assert!(locks.try_claim(&job(), pool()).is_some());
    }

    #[test]
    fn who_waits_says_for_whom_and_nobody_overtakes() {
        let locks = Arc::new(Locks::default());
        let first = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
        let second = job();
        let both = Claim::default().volume(&volume("a")).volume(&volume("b"));
        let mut waiting = Box::pin(locks.claim(&second, both));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert!(second.is_waiting());
        // Free, but somebody came before.
        assert!(locks.try_claim(&job(), Claim::default().volume(&volume("b"))).is_none());
        assert!(locks.try_claim(&job(), Claim::default().volume(&volume("c"))).is_some());
        drop(first);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        assert!(!second.is_waiting());
    }

    #[test]
    fn a_claim_that_is_given_up_keeps_nobody_waiting() {
        let locks = Arc::new(Locks::default());
        let held = locks.try_claim(&job(), Claim::default().volume(&volume("a"))).unwrap();
        assert!(now(locks.claim(&job(), Claim::default().volume(&volume("a")))).is_none());
        drop(held);
        assert!(now(locks.claim(&job(), Claim::default().volume(&volume("a")))).is_some());
        assert!(locks.entries().all.is_empty());
    }

    #[test]
    fn a_stronger_claim_covers_a_weaker_one() {
        let locks = Arc::new(Locks::default());
        let tenant = Claim::default().tenant(&"t".parse().unwrap());
        let held = locks.try_claim(&job(), tenant.clone().volume(&volume("a"))).unwrap();
        assert!(held.covers(&tenant));
        assert!(!held.covers(&tenant.volume(&volume("b"))));
        assert!(!held.covers(&Claim::default().changes(Object::Pool("p".parse().unwrap()))));
    }

    proptest! {
        /// Whatever is claimed in whatever order: all are granted in the end, and no two at a time that conflict.
        #[test]
        fn all_are_granted_and_none_with_another_that_conflicts(
            claims in prop::collection::vec(prop::collection::vec((0usize..5, any::<bool>()), 1..4), 1..12),
            ends in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let locks = Arc::new(Locks::default());
            let claims: Vec<Claim> = claims.into_iter().map(|objects| Claim(objects.into_iter().map(|(n, alone)| {
                let mode = if alone { Mode::Exclusive } else { Mode::Shared };
                (Object::Device(n.to_string()), mode)
            }).collect())).collect();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let jobs: Vec<_> = claims.iter().map(|_| job()).collect();
            let mut waiting: Vec<_> =
                claims.iter().zip(&jobs).map(|(claim, job)| Box::pin(locks.claim(job, claim.clone()))).collect();
            let (mut held, mut n_granted): (Vec<Held>, usize) = (Vec::new(), 0);
            for end in ends {
                waiting.retain_mut(|future| match future.as_mut().poll(&mut context) {
                    std::task::Poll::Ready(granted) => {
                        held.push(granted);
                        n_granted += 1;
                        false
                    }
                    std::task::Poll::Pending => true,
                });
                for (i, one) in held.iter().enumerate() {
                    prop_assert!(held[i + 1..].iter().all(|other| !one.claim.conflicts_with(&other.claim)));
                }
                if held.is_empty() {
                    break;
                }
                held.remove(end.index(held.len()));
            }
            prop_assert_eq!(n_granted, claims.len());
        }
    }
}
