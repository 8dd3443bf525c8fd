//! Findings as SARIF 2.1.0 (OASIS), the format in which code hosts and dashboards take results of checkers.
//!
//! Owns: the part of the format that applies to a host: rules, results, and logical locations, because a device has no file and line.

use bulkhead_advise::rules;
use bulkhead_core::finding::{Finding, Severity};
use serde_json::{Value, json};

const SCHEMA: &str = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json";

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical => "error",
        Severity::Warning => "warning",
        Severity::Info => "note",
    }
}

/// A log with one run.
pub(super) fn log(findings: &[Finding]) -> Value {
    let rule = |rule: &bulkhead_advise::Rule| {
        json!({
            "id": rule.id.word(),
            "shortDescription": {"text": rule.id.meaning()},
            "fullDescription": {"text": rule.why},
            "help": {"text": format!("Source: {}", rule.source)},
            "defaultConfiguration": {"level": level(rule.id.severity())},
        })
    };
    let index = |finding: &Finding| rules().position(|rule| rule.id == finding.id);
    let result = |finding: &Finding| {
        let advice = finding.advice.as_deref().map(|advice| format!(". Advice: {advice}")).unwrap_or_default();
        json!({
            "ruleId": finding.id.word(),
            "ruleIndex": index(finding),
            "level": level(finding.severity),
            "message": {"text": format!("{}: {}{advice}", finding.object, finding.evidence)},
            "locations": [{"logicalLocations": [{"fullyQualifiedName": finding.object, "kind": "resource"}]}],
        })
    };
    json!({
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "bulkhead doctor",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules().map(rule).collect::<Vec<_>>(),
            }},
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bulkhead_core::finding::FindingId;

    #[test]
    fn a_result_refers_to_its_rule() {
        let finding =
            Finding::new(FindingId::BarriersOff, "file system /", "it is mounted with nobarrier").advise("remount");
        let run = &log(&[finding])["runs"][0];
        let result = &run["results"][0];
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(run["tool"]["driver"]["rules"][index]["id"], "barriers_off");
        assert_eq!((&result["level"], &result["ruleId"]), (&json!("error"), &json!("barriers_off")));
        assert_eq!(result["message"]["text"], "file system /: it is mounted with nobarrier. Advice: remount");
    }
}
