//! What is wrong on the host, by what was looked at: the next look at the same thing replaces what the last one found.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_core::error::Fault;
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use uuid::Uuid;

/// What was looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// The records of pools and tenants, and the leases.
    Records,
    Tenant(Name),
    Volume(VolumeRef),
    /// The lease of a process that is gone.
    Lease(Uuid),
    /// A flattening that is done.
    Flattening(VolumeRef),
    /// What could not be closed at the start.
    InUse(VolumeRef),
    /// What is looked at only when the daemon starts.
    Start,
}

impl Place {
    /// What is looked at there, in a word.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Tenant(_) => "tenant",
            Self::Volume(_) => "volume",
            Self::Lease(_) => "lease",
            Self::Flattening(_) => "flattening",
            Self::InUse(_) => "in_use",
            Self::Start => "start",
        }
    }
}

/// All kinds of places: each has a count, be it 0.
const KINDS: [&str; 7] = ["records", "tenant", "volume", "lease", "flattening", "in_use", "start"];

/// What was found there.
#[derive(Debug, Default)]
pub(crate) struct Problems(BTreeMap<Place, Vec<Fault>>);

impl Problems {
    /// Replaces what was found at a place; what was not known yet is logged.
    pub(crate) fn found(&mut self, place: Place, faults: Vec<Fault>) {
        for fault in faults.iter().filter(|fault| !self.0.values().any(|known| known.contains(fault))) {
            tracing::error!(object = %fault.object, cause = %fault.cause, cure = %fault.cure, "problem");
        }
        if faults.is_empty() {
            self.0.remove(&place);
        } else {
            self.0.insert(place, faults);
        }
    }

    /// Forgets what nobody looks at any more.
    pub(crate) fn keep(&mut self, looked_at: &BTreeSet<Place>) {
        self.0.retain(|place, _| match place {
            Place::Records | Place::InUse(_) | Place::Start => true,
            _ => looked_at.contains(place),
        });
    }

    /// How many there are at each kind of place.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::from(KINDS.map(|kind| (kind, 0)));
        for (place, faults) in &self.0 {
            *counts.entry(place.kind()).or_default() += faults.len();
        }
        counts
    }

    /// All of them, each once.
    pub(crate) fn all(&self) -> Vec<Fault> {
        let mut all: Vec<Fault> = Vec::new();
        for fault in self.0.values().flatten() {
            if !all.contains(fault) {
                all.push(fault.clone());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_core::error::Code;

    use super::*;

    #[test]
    fn a_second_look_replaces_the_first_and_what_is_gone_is_forgotten() {
        let fault = |cause: &str| Fault::new(Code::Internal, "volume p/v", cause);
        let volume = || Place::Volume("p/v".parse().unwrap());
        let mut problems = Problems::default();
        problems.found(Place::Start, vec![fault("torn")]);
        problems.found(volume(), vec![fault("torn"), fault("busy")]);
        assert_eq!(problems.all(), [fault("torn"), fault("busy")]);
        problems.found(volume(), vec![fault("gone")]);
        assert_eq!(problems.all(), [fault("gone"), fault("torn")]);
        problems.keep(&BTreeSet::from([volume()]));
        assert_eq!(problems.all().len(), 2);
        problems.keep(&BTreeSet::new());
        assert_eq!(problems.all(), [fault("torn")]);
    }
}
