//! The extender's metrics, in Prometheus' text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cluster::Unknown;

/// Upper bounds of the buckets of durations, in seconds.
const BOUNDS: [f64; 9] = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0];

/// What was counted since the start.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// By verb and outcome.
    requests: BTreeMap<(&'static str, &'static str), Durations>,
    /// Answers for a node of which nothing is known, by reason.
    unknown: BTreeMap<Unknown, u64>,
    n_failed: u64,
    n_unusable_reports: u64,
}

#[derive(Debug, Default)]
struct Durations {
    /// Requests by the first bound that they do not exceed; the last are those that exceed all.
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Metrics {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request.
    pub fn request(&self, verb: &'static str, outcome: &'static str, took: Duration) {
        let bucket = BOUNDS.iter().position(|bound| took.as_secs_f64() <= *bound).unwrap_or(BOUNDS.len());
        let mut counts = self.counts();
        let durations = counts.requests.entry((verb, outcome)).or_default();
        durations.buckets[bucket] += 1;
        durations.sum += took;
    }

    /// Counts answers for nodes of which nothing is known.
    pub fn unknown(&self, why: Unknown, n_nodes: u64) {
        *self.counts().unknown.entry(why).or_default() += n_nodes;
    }

    /// Counts nodes that a filter has removed.
    pub fn failed(&self, n_nodes: u64) {
        self.counts().n_failed += n_nodes;
    }

    /// Counts a report that cannot be used.
    pub fn unusable_report(&self) {
        self.counts().n_unusable_reports += 1;
    }

    /// In Prometheus' text format, with the numbers of [`crate::cluster::Cluster::counts`].
    #[must_use]
    pub fn text(&self, [n_nodes, n_stale, n_bound, n_assumed]: [usize; 4]) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.counts().write(&mut text);
        for (name, help, value) in [
            ("bulkhead_extender_nodes", "Nodes with a report", n_nodes),
            ("bulkhead_extender_stale_nodes", "Nodes whose report is too old to be used", n_stale),
            ("bulkhead_extender_bound_pods", "Bound pods with a workload", n_bound),
            ("bulkhead_extender_assumed_pods", "Pods that are assumed on a node, and not seen there yet", n_assumed),
        ] {
            let _ = head(&mut text, name, "gauge", help);
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}

impl Counts {
    fn write(&self, to: &mut String) -> std::fmt::Result {
        let name = "bulkhead_extender_request_duration_seconds";
        head(to, name, "histogram", "Duration of requests in seconds, by verb and outcome")?;
        for ((verb, outcome), durations) in &self.requests {
            let labels = format!("verb=\"{verb}\",outcome=\"{outcome}\"");
            let mut n = 0;
            let bounds = BOUNDS.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
            for (bound, n_more) in bounds.zip(durations.buckets) {
                n += n_more;
                writeln!(to, "{name}_bucket{{{labels},le=\"{bound}\"}} {n}")?;
            }
            writeln!(to, "{name}_sum{{{labels}}} {}", durations.sum.as_secs_f64())?;
            writeln!(to, "{name}_count{{{labels}}} {n}")?;
        }
        let name = "bulkhead_extender_neutral_answers_total";
        head(
            to,
            name,
            "counter",
            "Answers for a node of which nothing is known, by reason: it passes with a neutral score",
        )?;
        for why in Unknown::ALL {
            let n = self.unknown.get(&why).copied().unwrap_or_default();
            writeln!(to, "{name}{{reason=\"{}\"}} {n}", why.as_str())?;
        }
        let name = "bulkhead_extender_rejected_nodes_total";
        head(to, name, "counter", "Nodes that a filter has removed")?;
        writeln!(to, "{name} {}", self.n_failed)?;
        let name = "bulkhead_extender_unusable_reports_total";
        head(to, name, "counter", "Reports that cannot be used; the log says why")?;
        writeln!(to, "{name} {}", self.n_unusable_reports)
    }
}

fn head(to: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(to, "# HELP {name} {help}\n# TYPE {name} {kind}")
}
