//! The health of volumes: the daemon's findings, by CSI's three kinds.

use bulkhead_api::wire::VolumeView;
use bulkhead_core::finding::{Finding, FindingId, Severity};

use crate::names;
use crate::proto::volume_health::VolumeHealthEntry;
use crate::proto::{VolumeHealth, VolumeHealthErrorType as Kind};

/// What is wrong with a volume; nothing for a finding that is only expected.
#[must_use]
pub fn of(view: &VolumeView) -> VolumeHealth {
    let mut health_statuses: Vec<VolumeHealthEntry> = Vec::new();
    for finding in &view.findings {
        let Some(entry) = entry(finding) else { continue };
        // A kind and a reason may be reported once.
        match health_statuses.iter_mut().find(|known| (known.status, &known.reason) == (entry.status, &entry.reason)) {
            Some(known) => known.message = format!("{}; {}", known.message, entry.message),
            None => health_statuses.push(entry),
        }
    }
    VolumeHealth { volume_id: names::id(&view.volume), health_statuses }
}

fn entry(finding: &Finding) -> Option<VolumeHealthEntry> {
    let status = match (&finding.id, finding.severity) {
        (_, Severity::Info) => return None,
        (FindingId::VolumeDamaged, _) => Kind::DataLoss,
        (_, Severity::Critical) => Kind::Inaccessible,
        (_, Severity::Warning) => Kind::Degraded,
    };
    Some(VolumeHealthEntry {
        status: status.into(),
        reason: camel_case(finding.id.word()),
        message: finding.evidence.clone(),
    })
}

/// `volume_not_mounted` as `VolumeNotMounted`.
fn camel_case(word: &str) -> String {
    let capitalised = |part: &str| {
        let mut letters = part.chars();
        letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    };
    word.split('_').map(capitalised).collect()
}

#[cfg(test)]
mod tests {
    use super::{Finding, FindingId, Kind, camel_case, entry};

    #[test]
    fn each_finding_has_a_kind_and_an_expected_one_is_no_problem() {
        let kind = |id: FindingId| entry(&Finding::new(id, "volume p/v", "evidence")).map(|entry| entry.status());
        assert_eq!(kind(FindingId::VolumeDamaged), Some(Kind::DataLoss));
        assert_eq!(kind(FindingId::ServerGone), Some(Kind::Inaccessible));
        assert_eq!(kind(FindingId::LayersMany), Some(Kind::Degraded));
        assert_eq!(kind(FindingId::VolumeMapped), None);
        assert_eq!(camel_case("volume_not_mounted"), "VolumeNotMounted");
    }
}
