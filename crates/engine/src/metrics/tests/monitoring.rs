//! The rules and the dashboard in `contrib`, and `docs/monitoring.md`, name only metrics that the exporter has.
//!
//! This compares text only; `lab: metrics_in_prometheus` evaluates the expressions in a real Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead_api::wire::{HeatRow, Observation};
use bulkhead_core::finding::{Finding, FindingId};
use bulkhead_core::health::Space;
use bulkhead_core::heat::HeatSource;
use bulkhead_core::observe::activity::DeviceTime;
use bulkhead_core::units::Bytes;
use serde_json::Value;
use uuid::Uuid;

use crate::metrics::{Format, Scrape, render};
use crate::observe::Observe as _;

const RULES: &str = include_str!("../../../../../contrib/prometheus/bulkhead.rules.yml");
const RULE_TESTS: &str = include_str!("../../../../../contrib/prometheus/bulkhead.rules.test.yml");
const DASHBOARD: &str = include_str!("../../../../../contrib/grafana/bulkhead.json");
const MANUAL: &str = include_str!("../../../../../docs/monitoring.md");

/// Labels that Prometheus adds to scraped samples.
const TARGET_LABELS: [&str; 2] = ["job", "instance"];
/// Variables that Grafana sets.
const GRAFANA_VARIABLES: [&str; 2] = ["__rate_interval", "__range"];

/// The names of all samples of a scrape, by the name of their metric, and all labels that occur.
fn exported() -> (BTreeMap<String, Vec<String>>, BTreeSet<String>) {
    let device = DeviceTime { device: "vda".to_owned(), data_seconds: 1.0, metadata_seconds: 2.0, flush_seconds: 3.0 };
    let mut seen = crate::sim::Observed::default().observe(Duration::ZERO).unwrap();
    let id = Some("c0ffee".to_owned());
    seen.containers[0].identity.id.clone_from(&id);
    for view in &mut seen.blame {
        view.victim.id.clone_from(&id);
        view.culprit.iter_mut().for_each(|culprit| culprit.id.clone_from(&id));
    }
    let observed = Ok(Observation { devices: vec![device], ..seen });
    let row = HeatRow {
        reader: "pool/clone".parse().unwrap(),
        source: HeatSource::Peer(Uuid::nil()),
        source_name: "pool/other".to_owned(),
        requests: 1,
        bytes: Bytes(4096),
        disk_reads_saved: 1,
    };
    let space = Space { metadata_pct: Some(20.0), ..Space::new(Bytes(100), Bytes(10), Bytes(1)) };
    let pools = vec![("pool".parse().unwrap(), space)];
    let trimmed = BTreeMap::from([("pool".parse().unwrap(), Bytes(4096))]);
    let (holds, problems) = (vec![crate::sim::held()], BTreeMap::from([("volume", 1)]));
    let findings = vec![Finding::new(FindingId::LayersMany, "volume pool/clone", "it depends on 32 layers")];
    let text =
        render(Scrape { observed, holds, shared_reads: vec![row], pools, trimmed, problems, findings }, Format::Text);
    let mut metrics = BTreeMap::new();
    let mut labels = BTreeSet::new();
    for line in text.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            metrics.insert(name.to_owned(), suffixes.iter().map(|suffix| format!("{name}{suffix}")).collect());
        } else if !line.starts_with('#') {
            labels.extend(labels_in(line));
        }
    }
    (metrics, labels)
}

/// Names of metrics in any text: those of the exporter, and with colons those that rules record.
fn names_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    words.map(|word| word.trim_matches(':')).filter(|word| word.contains("bulkhead_")).collect()
}

/// Removes double-quoted strings.
fn without_strings(expr: &str) -> String {
    let mut bare = String::new();
    let (mut quoted, mut escaped) = (false, false);
    for c in expr.chars() {
        match c {
            '"' if !escaped => quoted = !quoted,
            _ if !quoted => bare.push(c),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
    }
    bare
}

/// Names of labels in the selectors and groupings of an expression.
fn labels_in(expr: &str) -> BTreeSet<String> {
    let bare = without_strings(expr);
    let mut labels = BTreeSet::new();
    let mut list = |inside: &str| {
        let names = inside.split(',').map(|item| item.split(['=', '!', '~']).next().unwrap_or_default().trim());
        labels.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
    };
    for (at, _) in bare.match_indices('{') {
        list(bare[at + 1..].split('}').next().unwrap());
    }
    for word in ["by", "without", "on", "ignoring", "group_left", "group_right"] {
        for (at, _) in bare.match_indices(&format!(" {word} (")) {
            list(bare[at + word.len() + 3..].split(')').next().unwrap());
        }
    }
    labels
}

/// The values of a key in the rules: the rest of its line, and the lines below that are indented more.
fn values<'a>(key: &'a str, text: &'a str) -> impl Iterator<Item = String> + 'a {
    let lines: Vec<&str> = text.lines().collect();
    let indent = |line: &str| line.len() - line.trim_start_matches([' ', '-']).len();
    (0..lines.len()).filter_map(move |at| {
        let rest = lines[at].trim_start_matches([' ', '-']).strip_prefix(key)?.strip_prefix(':')?;
        let begin = Some(rest.trim()).filter(|rest| !matches!(*rest, "|" | ">-"));
        let below = lines[at + 1..].iter().take_while(|line| indent(line) > indent(lines[at]));
        Some(begin.into_iter().chain(below.map(|line| line.trim())).collect::<Vec<_>>().join(" "))
    })
}

fn strings(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(fields) => fields.values().flat_map(strings).collect(),
        _ => vec![],
    }
}

fn dashboard() -> Value {
    serde_json::from_str(DASHBOARD).unwrap()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

fn expressions(panel: &Value) -> impl Iterator<Item = &str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap())
}

#[test]
fn the_tokenizer_finds_names_and_labels() {
    let expr = "sum by (a, b) (x:bulkhead_y:z{c=\"{d=\\\"}\", e!~\"f\"}) / on (g) group_left (h) bulkhead_i_total[5m]";
    assert_eq!(names_in(expr), BTreeSet::from(["x:bulkhead_y:z", "bulkhead_i_total"]));
    assert_eq!(labels_in(expr).into_iter().collect::<Vec<_>>(), ["a", "b", "c", "e", "g", "h"]);
    let rule = "  - record: a\n    expr: |\n      b\n        c\n    for: 1m\n  - alert: d\n    expr: e\n";
    assert_eq!(values("expr", rule).collect::<Vec<_>>(), ["b c", "e"]);
}

#[test]
fn rules_dashboard_and_manual_name_only_existing_metrics() {
    let (metrics, _) = exported();
    let recorded: BTreeSet<String> = values("record", RULES).collect();
    assert!(recorded.len() > 5, "{recorded:?}");
    let dashboard = dashboard();
    let texts = [("the rules", RULES), ("their tests", RULE_TESTS), ("the manual", MANUAL)];
    for (place, text) in texts.into_iter().chain(strings(&dashboard).into_iter().map(|text| ("the dashboard", text))) {
        for name in names_in(text) {
            // The CSI driver's own metrics are compared with the manual by its tests.
            if place == "the manual" && name.starts_with("bulkhead_csi_") {
                continue;
            }
            let is_exported = metrics.values().flatten().any(|exported| exported == name) || metrics.contains_key(name);
            assert!(is_exported || recorded.contains(name), "{place}: there is no metric {name}");
        }
    }
}

#[test]
fn expressions_use_only_existing_labels() {
    let (_, mut labels) = exported();
    assert!(["victim_container_id", "class", "le"].iter().all(|label| labels.contains(*label)), "{labels:?}");
    labels.extend(TARGET_LABELS.map(str::to_owned));
    let dashboard = dashboard();
    let of_rules: Vec<String> = values("expr", RULES).collect();
    assert_eq!(of_rules.len(), values("record", RULES).count() + values("alert", RULES).count());
    let of_panels = panels(&dashboard).flat_map(expressions).map(str::to_owned);
    for expr in of_rules.into_iter().chain(of_panels) {
        for label in labels_in(&expr) {
            assert!(labels.contains(&label), "there is no label {label}: {expr}");
        }
    }
    let in_words = RULES.split("$labels.").skip(1).map(|rest| rest.split([' ', ',']).next().unwrap());
    let legends = strings(&dashboard).into_iter().flat_map(|text| text.split("{{").skip(1));
    for label in in_words.chain(legends.map(|rest| rest.split("}}").next().unwrap())) {
        assert!(labels.contains(label), "there is no label {label}");
    }
}

#[test]
fn every_metric_is_in_the_manual() {
    let (metrics, labels) = exported();
    for name in metrics.keys() {
        assert!(MANUAL.contains(&format!("| `{name}` |")), "docs/monitoring.md lacks {name}");
    }
    for label in labels.iter().filter(|label| *label != "le") {
        assert!(MANUAL.contains(&format!("`{label}`")), "docs/monitoring.md lacks the label {label}");
    }
}

#[test]
fn every_alert_is_tested_and_in_the_runbook() {
    for alert in values("alert", RULES) {
        let rule = RULES.split("- alert: ").find(|rule| rule.starts_with(&format!("{alert}\n"))).unwrap();
        for key in ["severity", "summary", "description"] {
            assert!(values(key, rule).next().is_some(), "{alert} lacks a {key}");
        }
        let anchor = alert.to_lowercase();
        assert!(rule.contains(&format!("runbook: docs/monitoring.md#{anchor}\n")), "{alert} lacks its runbook");
        assert!(MANUAL.contains(&format!("\n### {alert}\n")), "docs/monitoring.md lacks {alert}");
        assert!(
            RULE_TESTS.contains(&format!("alertname: {alert}\n        exp_alerts:\n")),
            "nothing makes {alert} fire"
        );
        assert!(RULE_TESTS.contains(&format!("alertname: {alert}}}\n")), "{alert} is not silent when all is well");
    }
    let headings = MANUAL.lines().filter_map(|line| line.strip_prefix("### Bulkhead"));
    assert_eq!(headings.count(), values("alert", RULES).count(), "docs/monitoring.md has alerts that there are not");
}

/// The rules of Grafana's dashboard linter.
#[test]
fn panels_explain_themselves_and_follow_the_variables() {
    let dashboard = dashboard();
    let variables: BTreeSet<&str> = dashboard["templating"]["list"]
        .as_array()
        .unwrap()
        .iter()
        .map(|variable| variable["name"].as_str().unwrap())
        .chain(GRAFANA_VARIABLES)
        .collect();
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        assert!(panel["description"].as_str().unwrap().len() > 40, "{title} is not described");
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title} has no unit");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(cell.0 < 24 && cells.insert(cell), "{title} lies over another panel or sticks out");
        }
        for expr in expressions(panel) {
            for wanted in ["job=~\"$job\"", "instance=~\"$instance\""] {
                assert!(expr.contains(wanted), "{title} does not follow {wanted}: {expr}");
            }
            for range in expr.split('[').skip(1) {
                assert!(range.starts_with("$__"), "{title} has a fixed range: {expr}");
            }
            for rest in expr.split('$').skip(1) {
                let name = rest.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next().unwrap();
                assert!(variables.contains(name), "{title}: there is no variable {name}");
            }
        }
    }
    assert!(ids.len() > 15, "{ids:?}");
}
