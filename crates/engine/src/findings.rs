//! All findings together: what `bulkhead host` lists and the metrics count.
//!
//! Owns: which findings about pools, tenants and volumes are included: those that need only the daemon's memory, state files, cgroup files,
//! the last known space in pools, and, while volumes on LVM are mounted, the mount tables of processes. Does not: decide about any (`bulkhead_core::health`); `inspect` of an object calls the same functions
//! with more facts.

use std::path::Path;

use bulkhead_api::wire::ReceiveView;
use bulkhead_core::action::Record;
use bulkhead_core::error::Fault;
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::{self, Space, Unfinished};
use bulkhead_core::model::{Pool, PoolSource, VolumeRef};

use crate::conditions::Condition;
use crate::engine::{Engine, ListedVolume};

impl Engine {
    /// Findings that need no LVM call and no device, in no order: problems, lasting conditions, and what follows from the records.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        let pools: Vec<Pool> = self.pools().unwrap_or_default().into_iter().filter_map(Result::ok).collect();
        let mut findings = self.problems();
        findings.extend(self.host().conditions().all().into_iter().map(|condition| about_volume(&pools, condition)));
        // Records that cannot be read are problems already.
        let tenants = self.tenants().unwrap_or_default().into_iter().filter_map(Result::ok);
        let on_host = self.tenant_facts();
        findings.extend(tenants.flat_map(|tenant| self.tenant_findings(&tenant, on_host)));
        for pool in &pools {
            findings.extend(of_pool(pool, &self.room_in(pool)));
            if matches!(pool.source, PoolSource::File { .. }) {
                findings.extend(of_content(&self.volumes_in(pool), &self.incomplete_receives(pool)));
            }
        }
        let mappings = self.host().records(&self.dirs.run.join("mappings"), "").unwrap_or_default();
        findings.extend(mappings.iter().filter_map(|(_, record)| match record {
            Ok(Record::Mapping(mapping)) => Some(health::mapping_finding(&mapping.volume)),
            _ => None,
        }));
        findings.extend(self.outside(None));
        findings
    }

    /// Clears the conditions of a pool that has moved.
    pub(crate) fn forget_conditions_of(&self, pool: &Pool) {
        let conditions = self.host().conditions();
        conditions.clear(FindingId::LayersNotMerged, &format!("pool {}", pool.name));
        if let PoolSource::File { directory, .. } = &pool.source {
            conditions.clear(FindingId::LayersNotRemoved, &format!("directory {}", directory.display()));
        }
    }
}

/// The finding of a condition about an image, with the image's volume as its object: supervision of block servers does not know volumes.
fn about_volume(pools: &[Pool], Condition { finding, image }: Condition) -> Finding {
    let volume = image.and_then(|image| pools.iter().find_map(|pool| volume_at(pool, &image)));
    match volume {
        Some(volume) => Finding { object: format!("volume {volume}"), ..finding },
        None => finding,
    }
}

/// The volume of a pool whose image or logical volume has this path.
fn volume_at(pool: &Pool, image: &Path) -> Option<VolumeRef> {
    let (directory, name) = match &pool.source {
        PoolSource::File { directory, .. } => (directory.clone(), image.file_stem()?),
        PoolSource::Lvm { vg, .. } => (Path::new("/dev").join(vg), image.file_name()?),
    };
    let name = name.to_str()?.parse().ok()?;
    (image.parent() == Some(&directory)).then(|| VolumeRef { pool: pool.name.clone(), name })
}

/// Findings about the space in a pool, or that it cannot be read.
pub(crate) fn of_pool(pool: &Pool, space: &Result<Space, Fault>) -> Vec<Finding> {
    match space {
        Ok(space) => health::pool_findings(pool, space),
        Err(fault) => vec![Finding {
            object: format!("pool {}", pool.name),
            evidence: fault.to_string(),
            ..Finding::from_fault(FindingId::PoolUnreachable, fault.clone())
        }],
    }
}

/// Findings about the content of a pool: unreadable records, and incomplete receives.
pub(crate) fn of_content(
    found: &Result<Vec<ListedVolume>, Fault>,
    receives: &Result<Vec<ReceiveView>, Fault>,
) -> Vec<Finding> {
    let damaged = found.iter().flatten().filter_map(|volume| volume.as_ref().err());
    let damaged = damaged.map(|fault| Finding::from_fault(FindingId::RecordUnreadable, fault.clone()));
    let unlisted = found.as_ref().err().map(|fault| Finding::from_fault(FindingId::PoolUnreachable, fault.clone()));
    // Where the volumes cannot be listed, the staging files cannot either, for the same reason.
    let no_receives = receives.as_ref().err().filter(|_| found.is_ok()).map(|fault| lookup_failed(fault.clone()));
    let unfinished = |view: &ReceiveView| {
        let (volume, content) = (&view.volume, view.content);
        health::unfinished_finding(Unfinished { volume, content, received: view.received_bytes, size: view.size_bytes })
    };
    let receives = receives.iter().flatten().map(unfinished);
    damaged.chain(unlisted).chain(no_receives).chain(receives).collect()
}

/// A failed look-up, whose result is missing from what is shown.
pub(crate) fn lookup_failed(fault: Fault) -> Finding {
    Finding::from_fault(FindingId::LookupFailed, fault)
}

#[cfg(test)]
mod tests {
    use bulkhead_core::error::Code;
    use bulkhead_core::model::Server;
    use std::path::PathBuf;
    use uuid::Uuid;

    use super::*;

    fn pools() -> Vec<Pool> {
        let pool = |name: &str, source| Pool { name: name.parse().unwrap(), uuid: Uuid::nil(), source };
        vec![
            pool("files", PoolSource::File { directory: "/srv/pool".into(), server: Server::Auto }),
            pool("fast", PoolSource::Lvm { vg: "vg".to_owned(), thin_pool: Some("thin".to_owned()), device: None }),
        ]
    }

    #[test]
    fn a_condition_of_an_image_is_a_finding_about_its_volume() {
        let of = |image: Option<&str>| {
            let finding = health::server_gone("an unknown image", "no memory");
            about_volume(&pools(), Condition { finding, image: image.map(PathBuf::from) }).object
        };
        assert_eq!(of(Some("/srv/pool/data.img")), "volume files/data");
        assert_eq!(of(Some("/dev/vg/data")), "volume fast/data");
        for other in
            ["/srv/other/data.img", "/srv/pool/below/data.img", "/dev/other/data"].map(Some).into_iter().chain([None])
        {
            assert_eq!(of(other), "an unknown image", "{other:?}");
        }
    }

    #[test]
    fn a_missing_pool_is_reported_under_its_name() {
        let fault = Fault::new(Code::NotFound, "volume group vg", "there is no such volume group").hint("find it");
        let [finding] = &of_pool(&pools()[1], &Err(fault))[..] else { panic!("not one finding") };
        assert_eq!((finding.id.word(), finding.object.as_str()), ("pool_unreachable", "pool fast"));
        assert_eq!(finding.evidence, "volume group vg: there is no such volume group");
        assert_eq!(finding.advice.as_deref(), Some("find it"));
    }

    #[test]
    fn a_failed_listing_is_one_finding() {
        let fault = || Fault::new(Code::Corrupt, "pool files", "it does not exist");
        let ids = |found, parts| -> Vec<String> {
            of_content(&found, &parts).iter().map(|finding| finding.id.to_string()).collect()
        };
        assert_eq!(ids(Err(fault()), Err(fault())), ["pool_unreachable"]);
        assert_eq!(ids(Ok(vec![Err(fault())]), Err(fault())), ["record_unreadable", "lookup_failed"]);
        assert_eq!(ids(Ok(vec![]), Ok(vec![])), [""; 0]);
    }
}
