//! Which limits in `io.max` are a hold's own caps, and which another program's.
//!
//! The kernel has one `io.max` per cgroup and device, whoever writes it. A hold knows the limits from before and what
//! its cap turns them into ([`limits_with_cap`]). Any other limits were written by another program, and are left alone
//! until that restores them ([`super::Reason::OtherCap`]).
//!
//! The record of a hold has the limits from before, but not its caps, which change every second. At its start, the
//! daemon takes limits that differ from the recorded ones for caps that the previous daemon left.

use std::collections::BTreeMap;

use super::Cap;
use crate::model::{IoMax, RateLimit};

/// The caps that a hold has set, by tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnCaps {
    set: BTreeMap<String, Cap>,
}

impl OwnCaps {
    /// Takes over a tenant's cap from the previous daemon, if `found` limits both reads and writes and differs from
    /// `before`.
    pub fn adopt(&mut self, name: &str, found: IoMax, before: IoMax) {
        self.set.extend(cap_from_limits(found.restricted_to(before), before).map(|cap| (name.to_owned(), cap)));
    }

    /// A tenant's current cap apart from the limits `before` the hold: a cap of this hold, recognised by the limits it
    /// produces, or one that another program wrote.
    #[must_use]
    pub fn current(&self, name: &str, found: IoMax, before: IoMax) -> Option<Cap> {
        let found = found.restricted_to(before);
        match self.get(name) {
            Some(set) if found == limits_with_cap(before, Some(set)) => Some(set),
            _ if found == before => None,
            // Another program's limits. Their larger numbers may equal the cap (20 reads and 40 writes for a cap of
            // 40): they still are not this hold's.
            set => Some(cap_from_limits(found, before).filter(|cap| set != Some(*cap)).unwrap_or(FOREIGN)),
        }
    }

    /// The cap that this hold has set on a tenant.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Cap> {
        self.set.get(name).copied()
    }

    /// Records that the changes of a step have been written to `io.max`.
    pub fn carried_out(&mut self, changes: &BTreeMap<String, Option<Cap>>) {
        for (name, cap) in changes {
            match cap {
                Some(cap) => self.set.insert(name.clone(), *cap),
                None => self.set.remove(name),
            };
        }
    }

    /// Forgets the caps of tenants that are held no longer.
    pub fn retain(&mut self, is_held: impl Fn(&str) -> bool) {
        self.set.retain(|name, _| is_held(name));
    }

    /// Records that all caps were lifted.
    pub fn clear(&mut self) {
        self.set.clear();
    }
}

/// Stands for limits that no cap produces.
const FOREIGN: Cap = Cap { ops: Some(u32::MAX), bytes: Some(u64::MAX) };

/// The limits that a cap produces: never higher than those from before; those from before without a cap.
#[must_use]
pub fn limits_with_cap(before: IoMax, cap: Option<Cap>) -> IoMax {
    let Cap { ops, bytes } = cap.unwrap_or_default();
    let capped = |before: RateLimit, most: Option<u64>| most.map_or(before, |most| before.capped(most));
    IoMax { ops: capped(before.ops, ops.map(u64::from)), bytes: before.bytes.map(|before| capped(before, bytes)) }
}

/// The cap that turns the limits from before into these, if there is one.
fn cap_from_limits(found: IoMax, before: IoMax) -> Option<Cap> {
    let most = |found: RateLimit, before: RateLimit| if found == before { None } else { found.largest() };
    let cap = Cap {
        ops: most(found.ops, before.ops).and_then(|ops| u32::try_from(ops).ok()),
        bytes: found.bytes.zip(before.bytes).and_then(|(found, before)| most(found, before)),
    };
    (cap != Cap::default()).then_some(cap)
}

#[cfg(test)]
mod tests;
