use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::error::Code;

fn page() -> String {
    let mut page = "# Findings\n\n\
        A finding is a lasting condition of the host or of an object on it, with an id, a severity, the object, the evidence, and usually\n\
        advice. `bulkhead host` lists those that the daemon knows without querying LVM or devices; `inspect` lists those of one object.\n\
        The metric `bulkhead_findings` counts them by `id` and `severity`. In JSON they are in the list `findings`.\n\n\
        An id is never renamed and never gets another meaning. A newer daemon may have more ids: programs should treat an unknown id by\n\
        its severity.\n\n\
        | severity | meaning |\n|---|---|\n\
        | `critical` | something is not as recorded and the daemon could not repair it, or data cannot be read or written |\n\
        | `warning` | isolation, accounting or observation is weaker than it could be, or something will fail without intervention |\n\
        | `info` | expected: it ends by itself, or is a property of the host or of how an object was created |\n\n\
        | id | severity | meaning |\n|---|---|---|\n"
        .to_owned();
    for id in FindingId::ALL {
        page += &format!("| `{id}` | {} | {} |\n", id.severity(), id.meaning());
    }
    page
}

#[test]
fn the_page_in_docs_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings.md");
    if std::env::var_os("BULKHEAD_BLESS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page(), "docs/findings.md is stale: run this test with BULKHEAD_BLESS=1");
}

#[test]
fn ids_are_distinct_in_snake_case_and_round_trip() {
    let words: BTreeSet<&str> = FindingId::ALL.iter().map(FindingId::word).collect();
    assert_eq!(words.len(), FindingId::ALL.len());
    for id in FindingId::ALL {
        assert!(id.word().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'), "{id}");
        assert!(id.meaning().ends_with('.') && !id.meaning().contains('|'), "{id}");
        let wire = serde_json::to_string(id).unwrap();
        assert_eq!((wire.as_str(), &serde_json::from_str::<FindingId>(&wire).unwrap()), (&*format!("\"{id}\""), id));
    }
}

#[test]
fn an_unknown_id_is_kept() {
    let text = r#"{"id":"disk_on_fire","severity":"critical","object":"device sda","evidence":"it burns"}"#;
    let finding: Finding = serde_json::from_str(text).unwrap();
    assert_eq!((finding.id.word(), finding.severity), ("disk_on_fire", Severity::Critical));
    assert_eq!(finding.to_string(), "critical[disk_on_fire]: device sda: it burns");
    assert_eq!(serde_json::to_string(&finding).unwrap(), text);
}

#[test]
fn findings_are_sorted_by_severity_without_duplicates() {
    let finding = |id, object: &str| Finding::new(id, object, "e");
    let info = finding(FindingId::VolumeMapped, "volume a/a");
    let warning = |object| finding(FindingId::LayersMany, object);
    let critical = finding(FindingId::ServerGone, "volume z/z");
    let all = vec![info.clone(), warning("volume b/b"), critical.clone(), warning("volume a/b"), warning("volume b/b")];
    assert_eq!(counts(&all)[&("layers_many", Severity::Warning)], 3);
    assert_eq!(in_order(all), [critical, warning("volume a/b"), warning("volume b/b"), info]);
}

#[test]
fn a_finding_from_an_error_keeps_its_texts() {
    let fault = Fault::new(Code::Corrupt, "pool p", "it is not there").hint("mount it");
    let finding = Finding::from_fault(FindingId::PoolUnreachable, fault);
    let expected = Finding::new(FindingId::PoolUnreachable, "pool p", "it is not there").advise("mount it");
    assert_eq!(finding, expected);
    let without = Finding::from_fault(FindingId::LookupFailed, Fault::new(Code::Internal, "pool p", "no"));
    assert_eq!(without.advice, None);
}
