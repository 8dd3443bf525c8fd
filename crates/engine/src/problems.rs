//! Problems on the host, by the place that was checked: the next check of the same place replaces them.

use std::collections::BTreeMap;

use bulkhead_core::error::{Code, Fault};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::model::VolumeRef;
use bulkhead_core::name::Name;
use bulkhead_core::reason::Reason;
use uuid::Uuid;

use crate::conditions;

/// A place that is checked.
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
    /// Devices that could not be closed at the start.
    InUse(VolumeRef),
    /// The controllers that the starting daemon restores on devices.
    Devices,
    /// Everything else that is checked only when the daemon starts.
    Start,
}

impl Place {
    /// The kind of place.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Tenant(_) => "tenant",
            Self::Volume(_) => "volume",
            Self::Lease(_) => "lease",
            Self::Flattening(_) => "flattening",
            Self::InUse(_) => "in_use",
            Self::Devices | Self::Start => "start",
        }
    }

    /// The finding that an error there stands for.
    fn finding(&self, fault: Fault) -> Finding {
        let id = match (self, fault.reason.as_deref()) {
            (Self::Records, _) | (_, Some(Reason::RecordDamaged { .. })) => FindingId::RecordUnreadable,
            (_, Some(Reason::NoSuchPool { .. } | Reason::PoolNotThere { .. } | Reason::PoolGroupNotThere { .. })) => {
                FindingId::PoolUnreachable
            }
            (Self::Tenant(_), _) => FindingId::TenantNotAsRecorded,
            (Self::Volume(_), _) if fault.code == Code::Corrupt => FindingId::VolumeDamaged,
            (Self::Volume(_), _) => FindingId::VolumeNotMounted,
            (Self::Lease(_), _) => FindingId::LeaseNotEnded,
            (Self::Flattening(_), _) => FindingId::FlatteningNotEnded,
            (Self::InUse(_), _) => FindingId::VolumeStillInUse,
            (Self::Devices, _) => FindingId::DeviceNotRestored,
            (Self::Start, _) => FindingId::NotRecovered,
        };
        Finding::from_fault(id, fault)
    }

    /// The volume that its tenant cannot use while the place has a problem.
    const fn volume(&self) -> Option<&VolumeRef> {
        match self {
            Self::Volume(volume) => Some(volume),
            _ => None,
        }
    }
}

/// All kinds of places: each has a count, even 0.
const KINDS: [&str; 7] = ["records", "tenant", "volume", "lease", "flattening", "in_use", "start"];

/// The problems, by place.
#[derive(Debug, Default)]
pub(crate) struct Problems(BTreeMap<Place, Vec<Finding>>);

impl Problems {
    /// Replaces the problems of a place; new ones are logged.
    pub(crate) fn set(&mut self, place: Place, faults: Vec<Fault>) {
        let findings: Vec<Finding> = faults.into_iter().map(|fault| place.finding(fault)).collect();
        let is_known = |finding: &Finding| self.0.values().any(|known| known.contains(finding));
        findings.iter().filter(|finding| !is_known(finding)).for_each(conditions::log);
        if findings.is_empty() {
            self.0.remove(&place);
        } else {
            self.0.insert(place, findings);
        }
    }

    /// Drops the problems of places that are no longer checked.
    pub(crate) fn retain(&mut self, is_checked: impl Fn(&Place) -> bool) {
        self.0.retain(|place, _| is_checked(place));
    }

    /// The number of problems by kind of place.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::from(KINDS.map(|kind| (kind, 0)));
        for (place, findings) in &self.0 {
            *counts.entry(place.kind()).or_default() += findings.len();
        }
        counts
    }

    /// All problems, without duplicates.
    pub(crate) fn all(&self) -> Vec<Finding> {
        let mut all: Vec<Finding> = Vec::new();
        for (place, findings) in &self.0 {
            for finding in findings {
                let volumes: Vec<VolumeRef> = place.volume().cloned().into_iter().collect();
                let is_same = |known: &&mut Finding| Finding { volumes: Vec::new(), ..(*known).clone() } == *finding;
                match all.iter_mut().find(is_same) {
                    Some(known) => known.volumes.extend(volumes),
                    None => all.push(Finding { volumes, ..finding.clone() }),
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_core::finding::Severity;

    use super::*;

    fn place() -> Place {
        Place::Volume("p/v".parse().unwrap())
    }

    #[test]
    fn a_second_check_replaces_the_first_and_drops_what_is_gone() {
        let fault = |cause: &str| Fault::new(Code::Internal, "volume p/v", cause);
        let at_start = |cause| Finding::from_fault(FindingId::NotRecovered, fault(cause));
        let of_volume = |cause| Finding::from_fault(FindingId::VolumeNotMounted, fault(cause));
        let mut problems = Problems::default();
        problems.set(Place::Start, vec![fault("torn")]);
        problems.set(place(), vec![fault("torn"), fault("busy")]);
        let of_volume = |cause| Finding { volumes: vec!["p/v".parse().unwrap()], ..of_volume(cause) };
        assert_eq!(problems.all(), [of_volume("torn"), of_volume("busy"), at_start("torn")]);
        problems.set(Place::Volume("p/w".parse().unwrap()), vec![fault("torn")]);
        let both =
            Finding { volumes: ["p/v", "p/w"].map(|volume| volume.parse().unwrap()).into(), ..of_volume("torn") };
        assert_eq!(problems.all(), [both, of_volume("busy"), at_start("torn")]);
        problems.set(Place::Volume("p/w".parse().unwrap()), Vec::new());
        problems.set(place(), vec![fault("gone")]);
        assert_eq!(problems.all(), [of_volume("gone"), at_start("torn")]);
        assert_eq!((problems.counts()["volume"], problems.counts()["start"], problems.counts()["lease"]), (1, 1, 0));
        problems.retain(|kept| *kept == place() || *kept == Place::Start);
        assert_eq!(problems.all().len(), 2);
        problems.retain(|kept| *kept == Place::Start);
        assert_eq!(problems.all(), [at_start("torn")]);
    }

    #[test]
    fn the_finding_follows_from_place_reason_and_code() {
        // The name of the object does not matter.
        let id = |place: &Place, fault: &Fault| {
            let ids = ["state file /x", "pool p", "volume group vg", "device sda", "x"].map(|object| {
                let finding = place.finding(Fault { object: object.to_owned(), ..fault.clone() });
                assert_eq!((finding.severity, finding.advice.as_deref()), (Severity::Critical, Some(&*fault.hint)));
                finding.id
            });
            assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
            ids[0].clone()
        };
        let plain = |code| Fault::new(code, "x", "why").hint("what to do");
        let because = |reason| Fault::new(Code::Corrupt, "x", "why").reason(reason);
        let (db, pool) = (Place::Tenant("db".parse().unwrap()), "p".parse::<Name>().unwrap());
        let damaged = || because(Reason::RecordDamaged { path: "/srv/pool/v.volume".into() });
        let no_group = || because(Reason::PoolGroupNotThere { pool: pool.clone(), vg: "vg".to_owned() });
        for (place, fault, expected) in [
            (Place::Records, plain(Code::Internal), FindingId::RecordUnreadable),
            (place(), damaged(), FindingId::RecordUnreadable),
            (Place::Devices, damaged(), FindingId::RecordUnreadable),
            (place(), because(Reason::PoolNotThere { pool: pool.clone() }), FindingId::PoolUnreachable),
            (Place::Start, no_group(), FindingId::PoolUnreachable),
            (db.clone(), because(Reason::NoSuchPool { pool: pool.clone() }), FindingId::PoolUnreachable),
            (place(), plain(Code::Corrupt), FindingId::VolumeDamaged),
            (place(), plain(Code::NoSpace), FindingId::VolumeNotMounted),
            (place(), plain(Code::Unsupported), FindingId::VolumeNotMounted),
            (db, plain(Code::NotFound), FindingId::TenantNotAsRecorded),
            (Place::Lease(Uuid::nil()), plain(Code::InUse), FindingId::LeaseNotEnded),
            (Place::Flattening("p/v".parse().unwrap()), plain(Code::Internal), FindingId::FlatteningNotEnded),
            (Place::InUse("p/v".parse().unwrap()), plain(Code::InUse), FindingId::VolumeStillInUse),
            (Place::Devices, plain(Code::NotFound), FindingId::DeviceNotRestored),
            (Place::Start, plain(Code::NotFound), FindingId::NotRecovered),
        ] {
            assert_eq!(id(&place, &fault), expected, "{place:?}: {fault:?}");
        }
    }
}
